//! `/health` and `/metrics`, which all roles have.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use hyper::{Method, StatusCode};

use crate::http::{self, Request, Response, Server, Site};
use crate::metrics::Metrics;
use crate::process;

type Health = dyn Fn() -> Result<(), String> + Send + Sync;
type Text = dyn Fn() -> Result<String, String> + Send + Sync;

/// `/health` and `/metrics` of a role.
pub struct Pages {
    health: Box<Health>,
    metrics: Box<Text>,
}

impl core::fmt::Debug for Pages {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Pages").finish_non_exhaustive()
    }
}

impl Pages {
    /// Returns pages of a role. `health` returns the reason why the role does not work, and must not
    /// block; `metrics` returns that why there are no metrics, and may wait for the role.
    pub fn new(
        health: impl Fn() -> Result<(), String> + Send + Sync + 'static,
        metrics: impl Fn() -> Result<String, String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            health: Box::new(health),
            metrics: Box::new(metrics),
        }
    }

    /// Serves the pages, on a thread of the server.
    ///
    /// # Errors
    ///
    /// Those of the system for a thread.
    pub fn serve(self, server: Server) -> io::Result<()> {
        server.start(Arc::new(self))
    }

    /// The answer to a request, or `None` if it is about another path.
    pub(crate) async fn find(self: &Arc<Self>, request: &Request) -> Option<Response> {
        let answer = match request.path() {
            "/health" => match (self.health)() {
                Ok(()) => http::text(StatusCode::OK, "ok"),
                Err(reason) => http::text(StatusCode::SERVICE_UNAVAILABLE, reason + "\n"),
            },
            "/metrics" => {
                let pages = Arc::clone(self);
                let metrics = tokio::task::spawn_blocking(move || {
                    (pages.metrics)().map(|metrics| metrics + &process::metrics())
                });
                match metrics.await {
                    Ok(Ok(metrics)) => http::full(StatusCode::OK, Metrics::MEDIA_TYPE, metrics),
                    Ok(Err(reason)) => http::text(StatusCode::SERVICE_UNAVAILABLE, reason + "\n"),
                    Err(_) => http::text(
                        StatusCode::INTERNAL_SERVER_ERROR,
                        "the metrics cannot be determined\n",
                    ),
                }
            }
            _ => return None,
        };
        Some(match *request.method() {
            Method::GET | Method::HEAD => answer,
            _ => http::only(&[Method::GET, Method::HEAD]),
        })
    }
}

impl Site for Pages {
    fn answer(self: Arc<Self>, request: Request) -> Pin<Box<dyn Future<Output = Response> + Send>> {
        Box::pin(async move {
            match (self.find(&request).await, request.method()) {
                (Some(answer), _) => answer,
                (None, &Method::GET | &Method::HEAD) => {
                    http::text(StatusCode::NOT_FOUND, "there are /health and /metrics\n")
                }
                (None, _) => http::only(&[Method::GET, Method::HEAD]),
            }
        })
    }
}
