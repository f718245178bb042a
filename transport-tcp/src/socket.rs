//! TCP sockets of the current executor: those of tokio, or of another [`Runtime`].

use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;

use daskwire_comm::runtime::{self, AcceptTcp, Runtime, Stream};
use daskwire_comm::{RawConnection, is_permanent, lingering};
use socket2::{Domain, SockRef, Socket as Socket2, TcpKeepalive, Type};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// Maximum number of connections that wait to be accepted, as Dask's default of
/// `distributed.comm.socket-backlog`: all workers of a cluster may connect at once. The
/// system may have a lower limit.
const BACKLOG: i32 = 2048;

/// A connected socket, with the options that Dask sets.
pub(crate) struct SocketStream {
    socket: Socket,
    local: SocketAddr,
    peer: SocketAddr,
}

enum Socket {
    Tokio(TcpStream),
    Other(Box<dyn Stream>),
}

impl SocketStream {
    /// Connects to one of the addresses of the host.
    pub(crate) async fn connect(host: &str, port: u16, timeout: Duration) -> io::Result<Self> {
        let runtime = runtime::sockets();
        let addresses = runtime::lookup_host(host, port).await?;
        let connecting = runtime::first_to_connect(addresses, async |address| match &runtime {
            None => Self::tokio(TcpStream::connect(address).await?, timeout),
            Some(runtime) => Self::other(&**runtime, runtime.connect_tcp(address).await?, timeout),
        });
        connecting.await.map_err(first_error)
    }

    fn tokio(stream: TcpStream, timeout: Duration) -> io::Result<Self> {
        set_options(&SockRef::from(&stream), timeout);
        Ok(Self {
            local: stream.local_addr()?,
            peer: stream.peer_addr()?,
            socket: Socket::Tokio(stream),
        })
    }

    fn other(
        runtime: &dyn Runtime,
        stream: std::net::TcpStream,
        timeout: Duration,
    ) -> io::Result<Self> {
        set_options(&SockRef::from(&stream), timeout);
        stream.set_nonblocking(true)?;
        Ok(Self {
            local: stream.local_addr()?,
            peer: stream.peer_addr()?,
            socket: Socket::Other(runtime.tcp_stream(stream)?),
        })
    }

    /// The local address.
    #[cfg(feature = "tls")]
    pub(crate) const fn local(&self) -> SocketAddr {
        self.local
    }

    /// The address of the peer.
    #[cfg(feature = "tls")]
    pub(crate) const fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Converts the socket to a connection without TLS.
    pub(crate) fn into_raw(self) -> RawConnection {
        let ends = (self.local.into(), self.peer.into());
        match self.socket {
            Socket::Tokio(stream) => {
                let (reader, writer) = stream.into_split();
                let (reader, writer) = lingering(reader, writer);
                RawConnection::new(reader, writer, ends)
            }
            Socket::Other(stream) => {
                let (reader, writer) = tokio::io::split(stream);
                let (reader, writer) = lingering(reader, ShutdownOnDrop(writer));
                RawConnection::new(reader, writer, ends)
            }
        }
    }
}

impl AsyncRead for SocketStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().socket {
            Socket::Tokio(stream) => Pin::new(stream).poll_read(context, buffer),
            Socket::Other(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for SocketStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().socket {
            Socket::Tokio(stream) => Pin::new(stream).poll_write(context, bytes),
            Socket::Other(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().socket {
            Socket::Tokio(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Socket::Other(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.socket {
            Socket::Tokio(stream) => stream.is_write_vectored(),
            Socket::Other(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().socket {
            Socket::Tokio(stream) => Pin::new(stream).poll_flush(context),
            Socket::Other(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().socket {
            Socket::Tokio(stream) => Pin::new(stream).poll_shutdown(context),
            Socket::Other(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

/// The writing half of a [`Socket::Other`]. Dropping it ends the stream, as dropping
/// tokio's does.
struct ShutdownOnDrop(WriteHalf<Box<dyn Stream>>);

impl Drop for ShutdownOnDrop {
    fn drop(&mut self) {
        // Shutting down a TCP socket does not wait. An error means that it is closed.
        let mut context = Context::from_waker(Waker::noop());
        let _ = Pin::new(&mut self.0).poll_shutdown(&mut context);
    }
}

impl AsyncWrite for ShutdownOnDrop {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

/// A listening socket.
pub(crate) struct Listening {
    socket: ListeningSocket,
    local: SocketAddr,
}

enum ListeningSocket {
    Tokio(TcpListener),
    Other(Box<dyn AcceptTcp>, Arc<dyn Runtime>),
}

impl Listening {
    /// Listens at an address, and registers the socket with the executor. As in Dask, an
    /// IPv6 socket accepts no connections over IPv4.
    pub(crate) fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket2::new(Domain::for_address(address), Type::STREAM, None)?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        #[cfg(unix)]
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let listener = std::net::TcpListener::from(socket);
        let local = listener.local_addr()?;
        let socket = match runtime::sockets() {
            None => ListeningSocket::Tokio(TcpListener::from_std(listener)?),
            Some(runtime) => ListeningSocket::Other(runtime.tcp_listener(listener)?, runtime),
        };
        Ok(Self { socket, local })
    }

    /// The address of the listener, with the actual port.
    pub(crate) const fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Waits for the next connection. This method is cancel safe.
    pub(crate) async fn accept(&self) -> io::Result<(Accepted, SocketAddr)> {
        match &self.socket {
            ListeningSocket::Tokio(listener) => {
                let (stream, peer) = listener.accept().await?;
                Ok((Accepted::Tokio(stream), peer))
            }
            ListeningSocket::Other(listener, runtime) => {
                let (stream, peer) = listener.accept().await?;
                Ok((Accepted::Other(stream, Arc::clone(runtime)), peer))
            }
        }
    }
}

/// An accepted connection, before its socket options are set.
pub(crate) enum Accepted {
    Tokio(TcpStream),
    Other(std::net::TcpStream, Arc<dyn Runtime>),
}

impl Accepted {
    /// Sets the socket options and returns the connected socket.
    pub(crate) fn open(self, timeout: Duration) -> io::Result<SocketStream> {
        match self {
            Self::Tokio(stream) => SocketStream::tokio(stream, timeout),
            Self::Other(stream, runtime) => SocketStream::other(&*runtime, stream, timeout),
        }
    }
}

/// The error of several attempts: the first after which another attempt may succeed, if
/// there is one.
fn first_error(mut errors: Vec<io::Error>) -> io::Error {
    let found = errors.iter().position(|error| !is_permanent(error));
    if errors.is_empty() {
        return io::ErrorKind::NotFound.into();
    }
    errors.swap_remove(found.unwrap_or(0))
}

/// Sets the socket options that Dask sets: no delay, and keepalive probes that detect a
/// vanished peer after `timeout` (`set_tcp_timeout` in `distributed/comm/tcp.py`). On Linux
/// the connection also ends if the peer acknowledges no data for that time, or keeps its
/// receive window closed for as long.
///
/// Errors are ignored, as Dask and tornado do: a system may lack some of the options, and
/// a socket that its peer has reset refuses them, which the first read reports.
fn set_options(socket: &SockRef<'_>, timeout: Duration) {
    let timeout = timeout.clamp(MIN_TIMEOUT, MAX_TIMEOUT);
    // As Dask divides it: about a quarter until the first probe.
    let seconds = timeout.as_secs();
    let interval = ((seconds - (seconds / 4).max(2)) / u64::from(PROBES)).max(1);
    let idle = seconds - interval * u64::from(PROBES);
    let _ = socket.set_tcp_nodelay(true);
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(idle))
        .with_interval(Duration::from_secs(interval));
    #[cfg(not(any(target_os = "openbsd", target_os = "redox", target_os = "solaris")))]
    let keepalive = keepalive.with_retries(PROBES);
    let _ = socket.set_tcp_keepalive(&keepalive);
    #[cfg(target_os = "linux")]
    let _ = socket.set_tcp_user_timeout(Some(timeout));
}

/// The number of keepalive probes without an answer after which a connection ends.
const PROBES: u32 = 10;

/// The shortest timeout of a connection: a second until the first probe and one for each.
const MIN_TIMEOUT: Duration = Duration::from_secs(11);

/// The longest timeout of a connection: Linux refuses more than 32,767 seconds until the
/// first probe.
const MAX_TIMEOUT: Duration = Duration::from_secs(86_400);

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use daskwire_comm::BoxFuture;

    use super::*;

    /// A name with the addresses 127.0.0.1 and `::1`, in a container without IPv6.
    #[test]
    fn the_first_error_that_may_pass_is_reported() {
        use io::ErrorKind::{AddrNotAvailable, ConnectionRefused, PermissionDenied, Unsupported};
        for (errors, expected) in [
            (
                &[ConnectionRefused, AddrNotAvailable][..],
                ConnectionRefused,
            ),
            (&[PermissionDenied, ConnectionRefused], ConnectionRefused),
            (&[PermissionDenied, Unsupported], PermissionDenied),
            (&[], io::ErrorKind::NotFound),
        ] {
            let errors = errors.iter().map(|kind| (*kind).into()).collect();
            assert_eq!(first_error(errors).kind(), expected);
        }
    }

    /// Expected values come from `set_tcp_timeout` of distributed 2026.8.0.
    #[test]
    fn the_timeout_is_divided_as_in_dask() {
        for (timeout, seconds, idle, interval) in [
            (30, 30, 10, 2),
            (60, 60, 20, 4),
            (12, 12, 2, 1),
            (11, 11, 1, 1),
            // Dask refuses a shorter one.
            (3, 11, 1, 1),
            // Linux refuses a longer one.
            (1_000_000, 86_400, 21_600, 6_480),
        ] {
            let socket = Socket2::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
            let options = SockRef::from(&socket);
            set_options(&options, Duration::from_secs(timeout));
            let second = |number| Duration::from_secs(number);
            assert_eq!(options.tcp_keepalive_time().expect("set"), second(idle));
            let set = options.tcp_keepalive_interval();
            assert_eq!(set.expect("set"), second(interval));
            assert_eq!(options.tcp_keepalive_retries().expect("set"), PROBES);
            let set = options.tcp_user_timeout();
            assert_eq!(set.expect("set"), Some(second(seconds)));
        }
    }

    #[test]
    fn an_executor_receives_non_blocking_sockets() {
        #[derive(Debug)]
        struct Checks;

        impl Runtime for Checks {
            fn spawn(&self, _: BoxFuture<'static, ()>) {}

            fn sleep_until(&self, _: runtime::Instant) -> BoxFuture<'static, ()> {
                Box::pin(async {})
            }

            fn tcp_stream(&self, socket: std::net::TcpStream) -> io::Result<Box<dyn Stream>> {
                assert!(SockRef::from(&socket).nonblocking()?);
                Ok(Box::new(tokio::io::empty()))
            }
        }

        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("a listener");
        let stream = std::net::TcpStream::connect(address).expect("it listens");
        SocketStream::other(&Checks, stream, MIN_TIMEOUT).expect("connected");
    }

    /// A Unix socket refuses the options of TCP, but may have keepalive on.
    #[test]
    fn an_option_that_fails_does_not_prevent_others() {
        let socket = Socket2::new(Domain::UNIX, Type::STREAM, None).expect("a socket");
        set_options(&SockRef::from(&socket), MIN_TIMEOUT);
        socket.tcp_nodelay().expect_err("no socket of TCP");
        assert!(socket.keepalive().expect("an option of every socket"));
    }
}
