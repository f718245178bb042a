//! The HTTP server of `--dashboard-address`: `/health`, and `/metrics` for Prometheus.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::command::terminal;

/// Maximum length of the head of a request, in bytes.
const MAX_HEAD_LEN: usize = 8 << 10;

/// Timeout for the head of a request, which a client sends at once.
const HEAD_TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum length of what is read and ignored after the response to a request that may have a body,
/// in bytes.
const MAX_BODY_LEN: u64 = 1 << 20;

/// Timeout for the end of such a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(3);

/// Timeout for a request and its response.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of concurrent connections. A further one ends the oldest.
const MAX_CONNECTIONS: usize = 64;

/// The host and port to bind: `HOST:PORT`, `:PORT` or `PORT`.
#[derive(Clone, Debug)]
pub(crate) struct HttpAddress {
    host: String,
    port: u16,
}

impl HttpAddress {
    /// Any free port of all interfaces.
    pub(crate) fn any_port() -> Self {
        Self {
            host: "0.0.0.0".to_owned(),
            port: 0,
        }
    }
}

impl FromStr for HttpAddress {
    type Err = &'static str;

    fn from_str(input: &str) -> Result<Self, Self::Err> {
        let location = input.trim_start_matches("http://");
        let (host, port) = location.rsplit_once(':').unwrap_or(("", location));
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Ok(Self {
            host: if host.is_empty() { "0.0.0.0" } else { host }.to_owned(),
            port: port
                .parse()
                .map_err(|_| "expected HOST:PORT, :PORT or PORT")?,
        })
    }
}

impl fmt::Display for HttpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// A bound HTTP server.
pub(crate) struct Server {
    listener: TcpListener,
    port: u16,
}

impl Server {
    /// Binds a port. Falls back to a free port if it is in use.
    pub(crate) async fn bind(address: &HttpAddress) -> io::Result<Self> {
        let (host, port) = (&*address.host, address.port);
        let listener = match TcpListener::bind((host, port)).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                let listener = TcpListener::bind((host, 0)).await?;
                let other = listener.local_addr()?;
                terminal::event(
                    "notice",
                    format_args!("port {port} is in use; health and metrics are at http://{other}"),
                    json!({}),
                );
                listener
            }
            bound => bound?,
        };
        let port = listener.local_addr()?.port();
        Ok(Self { listener, port })
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// Serves requests on a thread of its own, so that a role whose threads all wait is noticed.
    /// `health` returns the reason why the role does not work, and `metrics` that why there are no
    /// metrics.
    ///
    /// # Errors
    ///
    /// Those of the system for a thread.
    pub(crate) fn start(
        self,
        health: impl Fn() -> Result<(), String> + Send + Sync + 'static,
        metrics: impl Fn() -> Result<String, String> + Send + Sync + 'static,
    ) -> io::Result<()> {
        let pages = Arc::new(Pages {
            health: Box::new(health),
            metrics: Box::new(metrics),
        });
        let listener = self.listener.into_std()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            // Metrics of a role that hangs keep a thread each.
            .max_blocking_threads(4)
            .build()?;
        let thread = std::thread::Builder::new().name("http".to_owned());
        thread.spawn(move || {
            runtime.block_on(async {
                // Fails only without an executor.
                if let Ok(listener) = TcpListener::from_std(listener) {
                    serve(&listener, &pages).await;
                }
            });
        })?;
        Ok(())
    }
}

/// What the server answers.
struct Pages {
    health: Box<dyn Fn() -> Result<(), String> + Send + Sync>,
    metrics: Box<dyn Fn() -> Result<String, String> + Send + Sync>,
}

async fn serve(listener: &TcpListener, pages: &Arc<Pages>) {
    // The unfinished requests, the oldest first. It had the most time, and a client needs a few
    // milliseconds.
    let mut requests: VecDeque<JoinHandle<()>> = VecDeque::new();
    loop {
        let accepted = listener.accept().await;
        requests.retain(|request| !request.is_finished());
        if accepted.is_err() || requests.len() == MAX_CONNECTIONS {
            requests.pop_front().inspect(JoinHandle::abort);
        }
        let Ok((stream, _)) = accepted else {
            // The process may have no file descriptors left.
            tokio::time::sleep(Duration::from_millis(150)).await;
            continue;
        };
        let pages = Arc::clone(pages);
        requests.push_back(tokio::spawn(async move {
            // A failed response concerns only its client, which has disconnected.
            let _ = tokio::time::timeout(TIMEOUT, answer(stream, &pages)).await;
        }));
    }
}

/// Answers one request, and closes the connection.
async fn answer(mut stream: TcpStream, pages: &Arc<Pages>) -> io::Result<()> {
    let Some(head) = tokio::time::timeout(HEAD_TIMEOUT, read_head(&mut stream)).await?? else {
        return Ok(());
    };
    let head = String::from_utf8_lossy(&head);
    let mut line = head.lines().next().unwrap_or_default().split(' ');
    let (method, target) = (line.next(), line.next().unwrap_or_default());
    let path = target.split(['?', '#']).next().unwrap_or_default();
    const TEXT: &str = "text/plain; charset=utf-8";
    const UNAVAILABLE: &str = "503 Service Unavailable";
    let (status, kind, body) = match (method, path) {
        (Some("GET" | "HEAD"), "/health") => match (pages.health)() {
            Ok(()) => ("200 OK", TEXT, "ok".to_owned()),
            Err(reason) => (UNAVAILABLE, TEXT, reason + "\n"),
        },
        (Some("GET" | "HEAD"), "/metrics") => {
            let pages = Arc::clone(pages);
            let metrics = tokio::task::spawn_blocking(move || (pages.metrics)());
            match metrics.await {
                Ok(Ok(metrics)) => (
                    "200 OK",
                    "text/plain; version=0.0.4; charset=utf-8",
                    metrics,
                ),
                Ok(Err(reason)) => (UNAVAILABLE, TEXT, reason + "\n"),
                Err(_) => (
                    "500 Internal Server Error",
                    TEXT,
                    "the metrics cannot be determined\n".to_owned(),
                ),
            }
        }
        (Some("GET" | "HEAD"), _) => (
            "404 Not Found",
            TEXT,
            "there are /health and /metrics\n".to_owned(),
        ),
        _ => (
            "405 Method Not Allowed",
            TEXT,
            "only GET is allowed\n".to_owned(),
        ),
    };
    let allow = if status.starts_with("405") {
        "Allow: GET, HEAD\r\n"
    } else {
        ""
    };
    let mut response = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}\
         Connection: close\r\n\r\n",
        body.len()
    );
    if method != Some("HEAD") {
        response.push_str(&body);
    }
    stream.write_all(response.as_bytes()).await?;
    stream.shutdown().await?;
    if !matches!(method, Some("GET" | "HEAD")) {
        // Closing a connection with unread bytes resets it, and its client may then not see the
        // response.
        let (mut body, mut nowhere) = (stream.take(MAX_BODY_LEN), tokio::io::sink());
        let ignoring = tokio::io::copy(&mut body, &mut nowhere);
        let _ = tokio::time::timeout(BODY_TIMEOUT, ignoring).await;
    }
    Ok(())
}

/// Reads the head of a request. Returns `None` if it ends early or is too long.
async fn read_head(stream: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() > MAX_HEAD_LEN || stream.read_buf(&mut head).await? == 0 {
            return Ok(None);
        }
    }
    Ok(Some(head))
}

/// Metrics in the text format of Prometheus.
pub(crate) struct Metrics {
    /// The start of each name, with the role.
    prefix: String,
    text: String,
}

impl Metrics {
    /// Returns no metrics yet, of a role such as `worker`.
    pub(crate) fn new(namespace: &str, role: &str) -> Self {
        let prefix = match namespace {
            "" => format!("{role}_"),
            namespace => format!("{namespace}_{role}_"),
        };
        let text = String::new();
        Self { prefix, text }
    }

    /// The metrics as text.
    pub(crate) fn into_text(self) -> String {
        self.text
    }

    /// Adds a metric, with one value per label.
    pub(crate) fn add(
        &mut self,
        kind: &str,
        name: &str,
        help: &str,
        values: &[(Option<(&str, &str)>, f64)],
    ) {
        let name = format!("{}{name}", self.prefix);
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (label, value) in values {
            let label = label.map_or_else(String::new, |(label, value)| {
                let value = value.replace('\\', r"\\").replace('"', "\\\"");
                let value = value.replace('\n', r"\n");
                format!("{{{label}=\"{value}\"}}")
            });
            let _ = writeln!(self.text, "{name}{label} {value:?}");
        }
    }

    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.add("gauge", name, help, &[(None, value)]);
    }

    pub(crate) fn counter(&mut self, name: &str, help: &str, value: f64) {
        self.add("counter", name, help, &[(None, value)]);
    }
}
