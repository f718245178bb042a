//! The dashboard of a scheduler.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use daskwire_messages::Value;
use daskwire_messages::protocol;
use daskwire_scheduler::Scheduler;
use hyper::header::{self, HeaderValue};
use hyper::{Method, StatusCode};
use tokio::runtime::Handle;

use crate::assets::{ASSETS, Asset, INDEX};
use crate::http::{self, Body, Request, Response, Server, Site};
use crate::live::{Live, View, Views};
use crate::pages::Pages;
use crate::views::{self, Failed, Streaming, Viewed};

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
        }
    }
}

impl DashboardOptions {
    daskwire_comm::with_fields! {
        with_namespace(namespace: String);
        with_settings(settings: Vec<Setting>);
    }
}

/// The time without an event, which the scheduler has twice a second, after which `/health` fails.
const MAX_STALL: Duration = Duration::from_secs(5);

/// Timeout for what the scheduler asks others for. Less than the one for a request.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);

fn ended() -> Failed {
    Failed {
        status: StatusCode::SERVICE_UNAVAILABLE,
        text: "the scheduler has ended".to_owned(),
    }
}

/// The dashboard of a scheduler.
#[derive(Debug)]
pub struct Dashboard {
    scheduler: Weak<Scheduler>,
    /// Runs what the scheduler does beside its state machine.
    executor: Handle,
    settings: Arc<[Setting]>,
    pages: Arc<Pages>,
    live: Arc<Live>,
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
            pages: Arc::new(Pages::new(health, metrics)),
            live: Arc::default(),
        }
    }

    /// Serves the dashboard, on a thread of the server.
    ///
    /// # Errors
    ///
    /// Those of the system for a thread.
    pub fn serve(self, server: Server) -> io::Result<()> {
        server.start(Arc::new(self))
    }

    /// Answers a request for data.
    async fn data(&self, request: &Request) -> Response {
        let answer = match request.path() {
            "/data/live" => return self.view(request),
            "/data/task/story" => self.story(request).await,
            _ => match views::question(request) {
                Ok(Some((question, document))) => {
                    let reply = self.ask(question).await;
                    reply.map(|reply| document(&reply).to_string().into_bytes())
                }
                Ok(None) => match views::find(request, &self.settings) {
                    Ok(answer) => self.look(answer).await,
                    Err(failed) => Err(failed),
                },
                Err(failed) => Err(failed),
            },
        };
        answer.map_or_else(Response::from, http::document)
    }

    /// Reads from the state, on a thread that may wait.
    async fn look<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Viewed<'_>) -> Result<T, Failed> + Send + 'static,
    ) -> Result<T, Failed> {
        let scheduler = Weak::clone(&self.scheduler);
        let looking = tokio::task::spawn_blocking(move || {
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

    /// Has the scheduler do something, on its own threads.
    async fn run<T, F>(
        &self,
        act: impl FnOnce(Arc<Scheduler>) -> F + Send + 'static,
    ) -> Result<T, Failed>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send,
    {
        let scheduler = self.scheduler.upgrade().ok_or_else(ended)?;
        let acting = self.executor.spawn(async move { act(scheduler).await });
        match tokio::time::timeout(ANSWER_TIMEOUT, acting).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(_)) => Err(ended()),
            Err(_) => Err(Failed {
                status: StatusCode::GATEWAY_TIMEOUT,
                text: format!(
                    "there is no answer after {} s; it may still be done",
                    ANSWER_TIMEOUT.as_secs()
                ),
            }),
        }
    }

    /// Has the scheduler answer a request as it does for clients.
    async fn ask(&self, question: protocol::Request) -> Result<Value, Failed> {
        let answering = self.run(|scheduler| async move { scheduler.answer(question).await });
        answering.await?.map_err(|text| Failed {
            status: StatusCode::BAD_GATEWAY,
            text,
        })
    }

    /// Answers with the story of a task on the workers that have or run it.
    async fn story(&self, request: &Request) -> Result<Vec<u8>, Failed> {
        let key = request.parameter("key");
        let key = key.ok_or_else(|| Failed::invalid("this needs the parameter key="))?;
        let find = move |viewed: &Viewed<'_>| views::story_places(viewed, &key);
        let (key, workers) = self.look(find).await?;
        let mut stories = Vec::new();
        for address in workers {
            let question = views::worker::story_request(&address, &key);
            let steps = match self.ask(question).await {
                Ok(reply) => serde_json::json!({
                    "worker": address,
                    "steps": views::worker::story(&reply),
                }),
                Err(failed) => serde_json::json!({"worker": address, "error": failed.text}),
            };
            stories.push(steps);
        }
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

    fn answer(self: Arc<Self>, request: Request) -> Pin<Box<dyn Future<Output = Response> + Send>> {
        Box::pin(async move {
            let mut response = match self.pages.find(&request).await {
                Some(response) => response,
                None => self.find(&request).await,
            };
            let headers = response.headers_mut();
            for (name, value) in [
                (header::CONTENT_SECURITY_POLICY, POLICY),
                (header::REFERRER_POLICY, "no-referrer"),
            ] {
                headers.insert(name, HeaderValue::from_static(value));
            }
            response
        })
    }
}

impl Dashboard {
    async fn find(&self, request: &Request) -> Response {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return http::only(&[Method::GET, Method::HEAD]);
        }
        let path = request.path();
        if path == "/" {
            let mut response = http::text(StatusCode::FOUND, "the dashboard is at /status\n");
            let target = HeaderValue::from_static("/status");
            response.headers_mut().insert(header::LOCATION, target);
            return response;
        }
        if PAGES.contains(&path) {
            return asset(&INDEX, request);
        }
        if path.starts_with("/data/") || path.starts_with("/json/") {
            return self.data(request).await;
        }
        let name = path.strip_prefix("/assets/");
        let found = name.and_then(|name| ASSETS.iter().find(|asset| asset.name == name));
        match found {
            Some(found) => asset(found, request),
            None => http::text(StatusCode::NOT_FOUND, "the dashboard is at /status\n"),
        }
    }
}
