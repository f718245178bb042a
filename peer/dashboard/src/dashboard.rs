//! The dashboard of a scheduler.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use daskwire_scheduler::Scheduler;
use hyper::header::{self, HeaderValue};
use hyper::{Method, StatusCode};

use crate::assets::{ASSETS, Asset, INDEX};
use crate::http::{self, Body, Request, Response, Server, Site};
use crate::live::{Live, Snapshot, View, Views};
use crate::pages::Pages;
use crate::views::{self, Viewed};

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
}

impl Default for DashboardOptions {
    fn default() -> Self {
        Self {
            namespace: "dask".to_owned(),
        }
    }
}

impl DashboardOptions {
    daskwire_comm::with_fields! {
        with_namespace(namespace: String);
    }
}

/// The time without an event, which the scheduler has twice a second, after which `/health` fails.
const MAX_STALL: Duration = Duration::from_secs(5);

/// The dashboard of a scheduler.
#[derive(Debug)]
pub struct Dashboard {
    scheduler: Weak<Scheduler>,
    pages: Arc<Pages>,
    live: Arc<Live>,
}

impl Dashboard {
    /// Returns the dashboard of a scheduler, which it does not keep from ending.
    pub fn new(scheduler: &Arc<Scheduler>, options: DashboardOptions) -> Self {
        let DashboardOptions { namespace } = options;
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
        if request.path() == "/data/live" {
            return self.view(request);
        }
        let Some(view) = views::find(request) else {
            return http::error(StatusCode::NOT_FOUND, "there is no such view");
        };
        let scheduler = Weak::clone(&self.scheduler);
        let looking = tokio::task::spawn_blocking(move || {
            let scheduler = scheduler.upgrade()?;
            Some(view(&Viewed::new(&scheduler)))
        });
        match looking.await {
            Ok(Some(response)) => response,
            Ok(None) => http::error(StatusCode::SERVICE_UNAVAILABLE, "the scheduler has ended"),
            Err(_) => http::error(
                StatusCode::INTERNAL_SERVER_ERROR,
                "this view cannot be determined; the log of the scheduler has a message",
            ),
        }
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
        let take = move |views: Views| {
            let scheduler = scheduler.upgrade()?;
            let viewed = Viewed::new(&scheduler);
            let mut snapshot = Snapshot::default();
            views::take(&viewed, views, &mut snapshot);
            Some(snapshot)
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
        if path.starts_with("/data/") {
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
