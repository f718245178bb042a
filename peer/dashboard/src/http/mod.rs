//! An HTTP server on a thread of its own, which answers one request of each connection.

mod request;
mod response;

use core::fmt;
use core::future::poll_fn;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use tokio_rustls::TlsAcceptor;

use crate::address::HttpAddress;
use crate::live::Viewing;
use crate::tls::Https;

pub(crate) use request::{Request, decoded_path};
pub(crate) use response::{Body, Response, document, error, full, only, text};

/// Maximum length of the head of a request, in bytes.
const MAX_HEAD_LEN: usize = 16 << 10;

/// Maximum number of headers of a request.
const MAX_HEADERS: usize = 64;

/// Timeout for the head of a request, which a client sends at once.
const HEAD_TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum length of what is read and ignored after the response to a request that may have a body,
/// in bytes.
const MAX_IGNORED_LEN: u64 = 1 << 20;

/// Timeout for the end of such a body.
const IGNORED_TIMEOUT: Duration = Duration::from_secs(3);

/// Timeout for a request and its response, unless it is a stream.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of concurrent connections that are not streams. A further one ends the oldest.
const MAX_CONNECTIONS: usize = 64;

/// What a server answers.
pub(crate) trait Site: Send + Sync + 'static {
    /// Starts what the site does beside answering, on the thread of the server.
    fn begin(self: &Arc<Self>) {}

    /// Answers a request.
    fn answer(self: Arc<Self>, request: Request) -> Pin<Box<dyn Future<Output = Response> + Send>>;
}

/// A bound HTTP server.
pub struct Server {
    listener: TcpListener,
    port: u16,
    is_replaced: bool,
    tls: Option<Https>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("port", &self.port)
            .field("is_encrypted", &self.tls.is_some())
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Binds a port. Falls back to a free port if it is in use.
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub async fn bind(address: &HttpAddress) -> io::Result<Self> {
        let (host, port) = (address.host(), address.port());
        let (listener, is_replaced) = match TcpListener::bind((host, port)).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                (TcpListener::bind((host, 0)).await?, true)
            }
            bound => (bound?, false),
        };
        let port = listener.local_addr()?.port();
        Ok(Self {
            listener,
            port,
            is_replaced,
            tls: None,
        })
    }

    /// Serves HTTPS only.
    #[must_use]
    pub fn with_tls(mut self, https: Https) -> Self {
        self.tls = Some(https);
        self
    }

    /// The port that is bound.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Whether the port is another than that of the address, which was in use.
    pub const fn is_replaced(&self) -> bool {
        self.is_replaced
    }

    /// Serves requests on a thread of its own, so that a role whose threads all wait is noticed.
    pub(crate) fn start(self, site: Arc<impl Site>) -> io::Result<()> {
        let listener = self.listener.into_std()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            // Queries of a role that hangs keep a thread each.
            .max_blocking_threads(4)
            .thread_name("http")
            .build()?;
        let thread = std::thread::Builder::new().name("http".to_owned());
        thread.spawn(move || {
            runtime.block_on(async {
                // Fails only without an executor.
                if let Ok(listener) = TcpListener::from_std(listener) {
                    site.begin();
                    serve(&listener, self.tls.as_ref(), &site).await;
                }
            });
        })?;
        Ok(())
    }
}

/// A connection, and whether it is a stream.
struct Connection {
    task: JoinHandle<()>,
    viewing: Viewing,
}

async fn serve(listener: &TcpListener, tls: Option<&Https>, site: &Arc<impl Site>) {
    // The oldest first. It had the most time, and a client needs a few milliseconds.
    let mut connections: VecDeque<Connection> = VecDeque::new();
    loop {
        let accepted = listener.accept().await;
        connections.retain(|connection| !connection.task.is_finished());
        let is_stream = |connection: &Connection| connection.viewing.has_begun();
        let streams = connections
            .iter()
            .filter(|connection| is_stream(connection));
        if accepted.is_err() || connections.len() - streams.count() >= MAX_CONNECTIONS {
            let oldest = connections
                .iter()
                .position(|connection| !is_stream(connection));
            if let Some(oldest) = oldest.and_then(|oldest| connections.remove(oldest)) {
                oldest.task.abort();
            }
        }
        let Ok((stream, _)) = accepted else {
            // The process may have no file descriptors left.
            tokio::time::sleep(Duration::from_millis(150)).await;
            continue;
        };
        let (site, viewing) = (Arc::clone(site), Viewing::default());
        let seen = viewing.clone();
        let task = match tls.map(Https::config) {
            None => tokio::spawn(answer(stream, site, seen)),
            Some(config) => tokio::spawn(async move {
                let accepting = TlsAcceptor::from(config).accept(stream);
                let handshake = tokio::time::timeout(HEAD_TIMEOUT, accepting);
                if let Ok(Ok(stream)) = handshake.await {
                    answer(stream, site, seen).await;
                }
            }),
        };
        connections.push_back(Connection { task, viewing });
    }
}

/// Answers one request, and closes the connection. A failed response concerns only its client, which
/// has disconnected.
async fn answer<S>(stream: S, site: Arc<impl Site>, viewing: Viewing)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let seen = viewing.clone();
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let answer = Arc::clone(&site).answer(Request::new(request, viewing.clone()));
        Box::pin(async { Ok::<_, Infallible>(answer.await) })
    });
    let mut connection = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_headers(MAX_HEADERS)
        .max_header_size(MAX_HEAD_LEN)
        .max_buf_size(MAX_HEAD_LEN)
        .serve_connection(TokioIo::new(stream), service);
    let stalled = async {
        tokio::time::sleep(TIMEOUT).await;
        if seen.has_begun() {
            seen.stalled().await;
        }
    };
    tokio::select! {
        // After a request that is malformed, there is a response, too.
        _ = poll_fn(|context| connection.poll_without_shutdown(context)) => {}
        () = stalled => return,
    }
    let mut stream = connection.into_parts().io.into_inner();
    let ended = tokio::time::timeout(IGNORED_TIMEOUT, stream.shutdown()).await;
    if matches!(ended, Ok(Ok(()))) && !seen.has_begun() {
        // Closing a connection with unread bytes resets it, and its client may then not see the
        // response.
        let (mut rest, mut nowhere) = (stream.take(MAX_IGNORED_LEN), tokio::io::sink());
        let ignoring = tokio::io::copy(&mut rest, &mut nowhere);
        let _ = tokio::time::timeout(IGNORED_TIMEOUT, ignoring).await;
    }
}
