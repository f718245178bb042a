//! The dashboard of a scheduler.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use daskwire_messages::Value;
use daskwire_messages::protocol;
use daskwire_scheduler::Scheduler;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Method, StatusCode};
use serde_json::Value as Json;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

use crate::actions::Action;
use crate::api::Call;
use crate::assets::{ASSETS, Asset, INDEX};
use crate::http::{self, Body, Request, Response, Server, Site};
use crate::info;
use crate::live::{Live, View, Views};
use crate::pages::Pages;
use crate::token::Token;
use crate::views::{self, Failed, Question, Streaming, Viewed};

/// The paths at which the page is, each of which shows one of its views.
const PAGES: [&str; 9] = [
    "/status", "/workers", "/worker", "/tasks", "/task", "/graph", "/stuck", "/events", "/system",
];

/// What the page may load: its own files only.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'self'";

/// Options of a [`Dashboard`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DashboardOptions {
    /// The start of the names of metrics. Default: `dask`.
    pub namespace: String,
    /// The settings that are shown. Default: none.
    pub settings: Vec<Setting>,
    /// The token that requests need for data, and without which nothing can be changed. Default: none,
    /// so that all who reach the server may look.
    pub token: Option<Token>,
    /// Whether there is `/api/v1`, with which others retire workers, without a token if there is none.
    /// Default: false, as in Dask.
    pub has_api: bool,
}

/// A setting of the scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its name.
    pub name: String,
    /// Its value as text.
    pub value: String,
    /// Where it comes from, such as `default`.
    pub source: String,
}

impl Default for DashboardOptions {
    fn default() -> Self {
        Self {
            namespace: "dask".to_owned(),
            settings: Vec::new(),
            token: None,
            has_api: false,
        }
    }
}

impl DashboardOptions {
    daskwire_comm::with_fields! {
        with_namespace(namespace: String);
        with_settings(settings: Vec<Setting>);
        with_token(token: impl Into<Option<Token>>);
        with_has_api(has_api: bool);
    }
}

/// The time without an event, which the scheduler has twice a second, after which `/health` fails.
const MAX_STALL: Duration = Duration::from_secs(5);

/// Timeout for what the scheduler asks others for. Less than the one for a request.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);

/// Maximum number of requests that read from the state at once. Live views and metrics have the other
/// threads.
const MAX_READERS: usize = 2;

fn ended() -> Failed {
    Failed {
        status: StatusCode::SERVICE_UNAVAILABLE,
        text: "the scheduler has ended".to_owned(),
    }
}

impl Setting {
    /// Returns a setting.
    pub fn new(name: impl Into<String>, value: impl Into<String>, source: &str) -> Self {
        Self {
            name: name.into(),
            value: value.into(),
            source: source.to_owned(),
        }
    }
}

/// The dashboard of a scheduler.
#[derive(Debug)]
pub struct Dashboard {
    scheduler: Weak<Scheduler>,
    /// Runs what the scheduler does beside its state machine.
    executor: Handle,
    settings: Arc<[Setting]>,
    token: Option<Token>,
    has_api: bool,
    pages: Arc<Pages>,
    live: Arc<Live>,
    /// Permits for threads that read from the state for requests.
    readers: Arc<Semaphore>,
    /// Whether the scheduler is not about to end.
    serving: watch::Sender<bool>,
}

/// A dashboard that is served. What it does with the scheduler ends when this is dropped, so that the
/// scheduler can be closed; until the process ends, requests are then answered with an error.
#[derive(Debug)]
#[must_use = "nothing is done for requests when this is dropped"]
pub struct Serving(watch::Sender<bool>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.send_replace(false);
    }
}

impl Dashboard {
    /// Returns the dashboard of a scheduler, which it does not keep from ending. Must be called in a task
    /// of an executor of tokio, which does what the scheduler is asked for.
    ///
    /// # Panics
    ///
    /// Outside of such a task.
    pub fn new(scheduler: &Arc<Scheduler>, options: DashboardOptions) -> Self {
        let DashboardOptions {
            namespace,
            settings,
            token,
            has_api,
        } = options;
        let scheduler = Arc::downgrade(scheduler);
        let (healthy, measured) = (Weak::clone(&scheduler), Weak::clone(&scheduler));
        let health = move || match healthy.upgrade().map(|scheduler| scheduler.stalled_for()) {
            Some(time) if time > MAX_STALL => Err(format!(
                "the scheduler hangs: it has handled no event for {:.1} s",
                time.as_secs_f64()
            )),
            Some(_) => Ok(()),
            None => Err("the scheduler has ended".to_owned()),
        };
        let metrics = move || match measured.upgrade() {
            Some(scheduler) => Ok(views::metrics::metrics(&scheduler, &namespace)),
            None => Err("the scheduler has ended".to_owned()),
        };
        Self {
            scheduler,
            executor: Handle::current(),
            settings: settings.into(),
            token,
            has_api,
            pages: Arc::new(Pages::new(health, metrics)),
            live: Arc::default(),
            readers: Arc::new(Semaphore::new(MAX_READERS)),
            serving: watch::Sender::new(true),
        }
    }

    /// Serves the dashboard, on a thread of the server.
    ///
    /// # Errors
    ///
    /// Those of the system for a thread.
    pub fn serve(self, server: Server) -> io::Result<Serving> {
        let serving = Serving(self.serving.clone());
        server.start(Arc::new(self))?;
        Ok(serving)
    }

    /// Answers a request for data.
    async fn data(&self, request: &Request) -> Response {
        let answer = match request.path() {
            "/data/live" => return self.view(request),
            "/data/task/story" => self.story(request).await,
            _ => match views::question(request) {
                Ok(Some(question)) => self.forward(question).await.map(|it| it.to_string().into()),
                Ok(None) => match views::find(request, &self.settings) {
                    Ok(answer) => self.look(answer).await,
                    Err(failed) => Err(failed),
                },
                Err(failed) => Err(failed),
            },
        };
        answer.map_or_else(Response::from, http::document)
    }

    /// The document of what the scheduler answers to a request.
    async fn forward(&self, question: Question) -> Result<Json, Failed> {
        let Question {
            worker,
            request,
            document,
        } = question;
        if let Some(address) = worker {
            self.look(move |viewed| views::worker::check(viewed, &address))
                .await?;
        }
        let reply = self.ask(request).await?;
        self.look(move |viewed| Ok(document(viewed, &reply))).await
    }

    /// Reads from the state, on a thread that may wait.
    async fn look<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Viewed<'_>) -> Result<T, Failed> + Send + 'static,
    ) -> Result<T, Failed> {
        let scheduler = Weak::clone(&self.scheduler);
        // A connection that ends does not end what was begun for it, so that those that wait do so here.
        // The semaphore is never closed.
        let permit = Arc::clone(&self.readers).acquire_owned().await;
        let looking = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let scheduler = scheduler.upgrade().ok_or_else(ended)?;
            read(&Viewed::new(&scheduler))
        });
        looking.await.unwrap_or_else(|_| {
            Err(Failed {
                status: StatusCode::INTERNAL_SERVER_ERROR,
                text: "this cannot be determined; the log of the scheduler has a message"
                    .to_owned(),
            })
        })
    }

    /// Has the scheduler do something, on its own threads. What takes too long goes on if it `changes`
    /// the cluster, and ends otherwise.
    async fn run<T, F>(
        &self,
        changes: bool,
        act: impl FnOnce(Arc<Scheduler>) -> F + Send + 'static,
    ) -> Result<T, Failed>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send,
    {
        let scheduler = self.scheduler.upgrade().ok_or_else(ended)?;
        let mut serving = self.serving.subscribe();
        let mut acting = self.executor.spawn(async move {
            tokio::select! {
                done = act(scheduler) => Some(done),
                // The scheduler is about to end.
                _ = serving.wait_for(|is_serving| !is_serving) => None,
            }
        });
        match tokio::time::timeout(ANSWER_TIMEOUT, &mut acting).await {
            Ok(Ok(Some(done))) => Ok(done),
            Ok(Ok(None) | Err(_)) => Err(ended()),
            Err(_) => {
                if !changes {
                    acting.abort();
                }
                let seconds = ANSWER_TIMEOUT.as_secs();
                let rest = if changes {
                    "; it may still be done"
                } else {
                    ""
                };
                Err(Failed {
                    status: StatusCode::GATEWAY_TIMEOUT,
                    text: format!("there is no answer after {seconds} s{rest}"),
                })
            }
        }
    }

    /// Has the scheduler answer a request as it does for clients.
    async fn ask(&self, question: protocol::Request) -> Result<Value, Failed> {
        let answering = self.run(false, |scheduler| async move {
            scheduler.answer(question).await
        });
        answering.await?.map_err(|text| Failed {
            status: StatusCode::BAD_GATEWAY,
            text,
        })
    }

    /// Answers with the story of a task on the workers that have or run it.
    async fn story(&self, request: &Request) -> Result<Vec<u8>, Failed> {
        let key = views::needed(request, "key")?;
        let find = move |viewed: &Viewed<'_>| views::story_places(viewed, &key);
        let (key, workers) = self.look(find).await?;
        let asked = workers.iter().map(async |address| {
            let question = views::worker::story_request(address, &key);
            match self.ask(question).await {
                Ok(reply) => serde_json::json!({
                    "worker": address,
                    "steps": views::worker::story(&reply),
                }),
                Err(failed) => serde_json::json!({"worker": address, "error": failed.text}),
            }
        });
        let stories = futures_util::future::join_all(asked).await;
        Ok(serde_json::json!({"worker_stories": stories})
            .to_string()
            .into_bytes())
    }

    /// Answers with live views.
    fn view(&self, request: &Request) -> Response {
        let names = request.parameter("views").unwrap_or_default();
        let views = match Views::parse(&names) {
            Ok(views) => views,
            Err(name) => {
                let known = View::ALL.map(View::name).join(", ");
                let text = format!("there is no live view {name:?}; views= takes some of {known}");
                return http::error(StatusCode::BAD_REQUEST, &text);
            }
        };
        let cursor = request.parameter("cursor");
        let cursor = cursor.map_or(Some(0), |cursor| cursor.parse().ok());
        let Some(cursor) = cursor else {
            let text = "cursor= takes a number, the `next` of a message before";
            return http::error(StatusCode::BAD_REQUEST, text);
        };
        let Some(messages) = self.live.view(views, cursor, request.viewing().clone()) else {
            let text = "too many people look at this dashboard; close one of its pages";
            return http::error(StatusCode::SERVICE_UNAVAILABLE, text);
        };
        let mut response = Response::new(Body::Live(messages));
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/event-stream"),
        );
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        );
        response
    }
}

/// Answers with a file of the page, or says that it has not changed.
fn asset(asset: &Asset, request: &Request) -> Response {
    let tag = asset.tag();
    let is_known = request.header(&header::IF_NONE_MATCH) == Some(&*tag);
    let mut response = match is_known {
        true => http::full(StatusCode::NOT_MODIFIED, asset.media_type, ""),
        false => http::full(StatusCode::OK, asset.media_type, asset.content),
    };
    let headers = response.headers_mut();
    // A tag consists of digits.
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(header::ETAG, tag);
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

impl Site for Dashboard {
    fn begin(self: &Arc<Self>) {
        let scheduler = Weak::clone(&self.scheduler);
        let streaming = Mutex::new(Streaming::default());
        let take = move |views: Views| {
            let scheduler = scheduler.upgrade()?;
            let mut streaming = streaming.lock().unwrap_or_else(PoisonError::into_inner);
            let viewed = Viewed::new(&scheduler);
            Some(views::take(&viewed, views, &mut streaming))
        };
        tokio::spawn(Arc::clone(&self.live).run(take));
    }

    fn answer(
        self: Arc<Self>,
        mut request: Request,
    ) -> Pin<Box<dyn Future<Output = Response> + Send>> {
        Box::pin(async move {
            let mut response = match self.pages.find(&request).await {
                Some(response) => response,
                None => self.find(&mut request).await,
            };
            let headers = response.headers_mut();
            for (name, value) in [
                (header::CONTENT_SECURITY_POLICY, POLICY),
                (header::REFERRER_POLICY, "no-referrer"),
                (
                    HeaderName::from_static("cross-origin-resource-policy"),
                    "same-origin",
                ),
            ] {
                headers.insert(name, HeaderValue::from_static(value));
            }
            response
        })
    }
}

/// A redirection to a path of ASCII.
fn redirect(status: StatusCode, target: &str) -> Response {
    let mut response = http::text(status, format!("see {target}\n"));
    if let Ok(target) = HeaderValue::from_str(target) {
        response.headers_mut().insert(header::LOCATION, target);
    }
    response
}

impl Dashboard {
    async fn find(&self, request: &mut Request) -> Response {
        let path = request.path().to_owned();
        if request.is_of_other_site() {
            let text = "pages of other sites may neither read data nor change anything here";
            return http::error(StatusCode::FORBIDDEN, text);
        }
        if let Some(action) = path.strip_prefix("/actions/") {
            return self.act(action, request).await;
        }
        if self.has_api
            && let Some(call) = path.strip_prefix("/api/v1")
        {
            return self.call(call, request).await;
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return http::only(&[Method::GET, Method::HEAD]);
        }
        match &*path {
            // Relative, for proxies that add a path.
            "/" => return redirect(StatusCode::FOUND, "status"),
            "/sitemap.json" => {
                let more = [
                    "/health",
                    "/metrics",
                    "/json/counts.json",
                    "/json/identity.json",
                    "/info/main/workers.html",
                    "/info/main/logs.html",
                ];
                let paths = [&PAGES[..], &more].concat();
                return http::document(serde_json::json!({"paths": paths}).to_string());
            }
            // Where Dask has its index.
            "/json/index.html" => {
                let routes = "counts.json\nidentity.json\n";
                return http::text(StatusCode::OK, routes);
            }
            _ => {}
        }
        if PAGES.contains(&&*path) {
            return asset(&INDEX, request);
        }
        if let Some(target) = info::find(&path) {
            return redirect(StatusCode::SEE_OTHER, &target);
        }
        if path.starts_with("/data/") || path.starts_with("/json/") {
            return match self.denial(request) {
                Some(denial) => denial,
                None => self.data(request).await,
            };
        }
        let name = path.strip_prefix("/assets/");
        let found = name.and_then(|name| ASSETS.iter().find(|asset| asset.name == name));
        match found {
            Some(found) => asset(found, request),
            None => http::text(StatusCode::NOT_FOUND, "the dashboard is at /status\n"),
        }
    }

    /// The answer to a request without the token, if one is needed.
    fn denial(&self, request: &Request) -> Option<Response> {
        let token = self.token.as_ref()?;
        if token.is_in(request.header(&header::AUTHORIZATION)) {
            return None;
        }
        let text =
            "this needs the token of --dashboard-token, as the header Authorization: Bearer TOKEN";
        let mut response = http::error(StatusCode::UNAUTHORIZED, text);
        let headers = response.headers_mut();
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        Some(response)
    }

    /// Changes the cluster.
    async fn act(&self, name: &str, request: &mut Request) -> Response {
        if *request.method() != Method::POST {
            return http::only(&[Method::POST]);
        }
        if self.token.is_none() {
            let text = "nothing can be changed here: the scheduler was started without \
                        --dashboard-token";
            return http::error(StatusCode::FORBIDDEN, text);
        }
        if let Some(denial) = self.denial(request) {
            return denial;
        }
        let body = match request.body().await {
            Ok(body) => body,
            Err(text) => return http::error(StatusCode::PAYLOAD_TOO_LARGE, text),
        };
        let action = match Action::read(name, &body) {
            None => {
                let text = "there are /actions/retire, /actions/restart and /actions/cancel";
                return http::error(StatusCode::NOT_FOUND, text);
            }
            Some(Err(text)) => return http::error(StatusCode::BAD_REQUEST, &text),
            Some(Ok(action)) => action,
        };
        match self.run(true, |scheduler| action.perform(scheduler)).await {
            Ok(Ok(())) => http::document(r#"{"ok":true}"#),
            Ok(Err(text)) => http::error(StatusCode::CONFLICT, &text),
            Err(failed) => failed.into(),
        }
    }

    /// Answers a request for a route of Dask's API.
    async fn call(&self, route: &str, request: &mut Request) -> Response {
        let method = match route {
            "/retire_workers" => Method::POST,
            _ => Method::GET,
        };
        if *request.method() != method {
            return http::only(&[method]);
        }
        if let Some(denial) = self.denial(request) {
            return denial;
        }
        let call = match route {
            "" | "/" => return http::text(StatusCode::OK, "API V1"),
            "/retire_workers" => match request.body().await {
                Ok(body) => Call::RetireWorkers(body),
                Err(text) => return http::error(StatusCode::PAYLOAD_TOO_LARGE, text),
            },
            "/get_workers" => Call::GetWorkers,
            "/adaptive_target" => Call::AdaptiveTarget,
            "/check_idle" => Call::CheckIdle,
            _ => {
                let text = "there are retire_workers, get_workers, adaptive_target and check_idle";
                return http::error(StatusCode::NOT_FOUND, text);
            }
        };
        match self.run(true, |scheduler| call.answer(scheduler)).await {
            Ok(Ok(document)) => http::document(document.to_string()),
            Ok(Err(text)) => http::error(StatusCode::INTERNAL_SERVER_ERROR, &text),
            Err(failed) => failed.into(),
        }
    }
}
