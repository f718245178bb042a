//! TLS over TCP, with the settings of [`daskwire_comm::tls`].

use core::net::SocketAddr;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::io;
use std::sync::Arc;

use daskwire_comm::runtime::{self, Spawner};
use daskwire_comm::tls::Tls;
use daskwire_comm::tls::rustls::Side;
use daskwire_comm::tls::rustls::pki_types::ServerName;
use daskwire_comm::{
    Address, Bytes, CommError, ConnectError, Encryption, RawConnection, linger_permit, lingering,
};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, ReadBuf};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use crate::socket::SocketStream;

/// Does the TLS handshake as the client.
pub(crate) async fn connect(
    tls: Tls,
    stream: SocketStream,
    host: Address,
) -> Result<RawConnection, CommError> {
    let name = match tls.server_name() {
        Some(name) => name.clone(),
        None => server_name(&host, &stream),
    };
    let connector = TlsConnector::from(Arc::clone(tls.client_config()));
    let outcome = connector.connect(name, stream).into_fallible().await;
    finish(tls, outcome.map(TlsStream::from), Side::Client)
}

/// Does the TLS handshake as the server.
pub(crate) async fn accept(tls: Tls, stream: SocketStream) -> Result<RawConnection, CommError> {
    let acceptor = TlsAcceptor::from(Arc::clone(tls.server_config()));
    let outcome = acceptor.accept(stream).into_fallible().await;
    finish(tls, outcome.map(TlsStream::from), Side::Server)
}

fn finish(
    tls: Tls,
    outcome: Result<TlsStream<SocketStream>, (io::Error, SocketStream)>,
    side: Side,
) -> Result<RawConnection, CommError> {
    let spawner = Spawner::current();
    match outcome {
        Ok(stream) => {
            let encryption = Arc::new(encryption(&stream));
            let (socket, _) = stream.get_ref();
            let address = |socket: SocketAddr| Address::new("tls", socket);
            let ends = (address(socket.local()), address(socket.peer()));
            let (reader, writer) = tokio::io::split(stream);
            let writer = ShutdownOnDrop {
                half: Some(writer),
                is_shut_down: false,
                spawner,
            };
            let (reader, writer) = lingering(WithoutCloseNotify(reader), writer);
            // With TLS 1.3 the client has finished the handshake before the server
            // checks its certificate.
            let explain = move |error| ConnectError::Fatal(tls.explain(error, side));
            Ok(RawConnection::new(reader, writer, ends)
                .with_encryption(encryption)
                .with_explanation(explain))
        }
        Err((error, stream)) => {
            let error = tls.explain(CommError::Io(error), side);
            if matches!(error, CommError::Tls(_)) {
                // In the background, so that the error is returned at once.
                spawner.spawn(close_after_alert(stream));
            }
            Err(error)
        }
    }
}

/// The server name: the host, or the IP address if the host is not a valid TLS name.
fn server_name(host: &Address, connection: &SocketStream) -> ServerName<'static> {
    match ServerName::try_from(host.host().to_owned()) {
        Ok(name) => name,
        Err(_) => connection.peer().ip().into(),
    }
}

/// Closes a connection so that the peer receives the alert.
///
/// Data that the peer sends meanwhile is read, within limits: closing with unread data
/// would reset the connection and lose the alert.
async fn close_after_alert(mut stream: SocketStream) {
    const TIMEOUT: Duration = Duration::from_secs(1);
    const MAX_LEN: u64 = 1 << 20;
    if stream.shutdown().await.is_ok() {
        let rest = &mut (&mut stream).take(MAX_LEN);
        let _ = runtime::timeout(TIMEOUT, tokio::io::copy(rest, &mut tokio::io::sink())).await;
    }
}

/// A stream that may end without `close_notify`: the framing detects truncated
/// messages.
struct WithoutCloseNotify<R>(R);

impl<R: AsyncRead + Unpin> AsyncRead for WithoutCloseNotify<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.0).poll_read(cx, buffer) {
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Poll::Ready(Ok(()))
            }
            outcome => outcome,
        }
    }
}

fn encryption(stream: &TlsStream<SocketStream>) -> Encryption {
    let (_, session) = stream.get_ref();
    let certificates = session.peer_certificates().unwrap_or_default();
    let version = session
        .protocol_version()
        .and_then(|version| version.as_str());
    let suite = session.negotiated_cipher_suite();
    Encryption::new(
        version.unwrap_or("TLS"),
        suite.and_then(|suite| suite.suite().as_str()),
        certificates
            .iter()
            .map(|der| Bytes::copy_from_slice(der))
            .collect(),
    )
}

/// The writing half. Dropping it ends the stream; otherwise the reading half would keep
/// the connection open.
struct ShutdownOnDrop {
    /// `Some` until this value is dropped.
    half: Option<tokio::io::WriteHalf<TlsStream<SocketStream>>>,
    is_shut_down: bool,
    spawner: Spawner,
}

impl Drop for ShutdownOnDrop {
    fn drop(&mut self) {
        let Some(mut half) = self.half.take().filter(|_| !self.is_shut_down) else {
            return;
        };
        let mut context = Context::from_waker(Waker::noop());
        // The caller may drop more comms at once than tokio lets a task poll.
        let end = tokio::task::coop::unconstrained(half.shutdown());
        if core::pin::pin!(end).poll(&mut context).is_ready() {
            return;
        }
        // The buffers of the connection are full.
        let Some(permit) = linger_permit() else {
            return;
        };
        self.spawner.spawn(async move {
            let _permit = permit;
            let end = half.shutdown();
            // The connection is dropped if the peer does not read within this time.
            let _ = runtime::timeout(Duration::from_secs(10), end).await;
        });
    }
}

impl ShutdownOnDrop {
    fn half(
        self: Pin<&mut Self>,
    ) -> io::Result<Pin<&mut tokio::io::WriteHalf<TlsStream<SocketStream>>>> {
        let half = self.get_mut().half.as_mut();
        let half = half.ok_or(io::ErrorKind::NotConnected)?;
        Ok(Pin::new(half))
    }
}

impl tokio::io::AsyncWrite for ShutdownOnDrop {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.half()?.poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.half()?.poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.half
            .as_ref()
            .is_some_and(tokio::io::AsyncWrite::is_write_vectored)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.half()?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = self.as_mut().half()?.poll_shutdown(context);
        self.is_shut_down |= outcome.is_ready();
        outcome
    }
}
