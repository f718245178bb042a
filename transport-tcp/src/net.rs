//! Connecting and listening, for every scheme of this package.

use core::time::Duration;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

#[cfg(feature = "tls")]
use daskwire_comm::tls::Tls;
use daskwire_comm::{
    Address, Comm, CommError, CommOptions, Handshakes, InprocListener, InprocStream, Phase,
    RawConnection, ReadHalf, Role, Scheme, UnderWay, WriteHalf, lingering,
};
use socket2::{Domain, SockRef, Socket as Socket2, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream};
#[cfg(unix)]
use tokio::net::{UnixListener, UnixStream};
use tokio::time::Instant;

/// The first pause between two attempts to connect is shorter than this; the
/// next ones may be twice as long each (`backoff_base` of Dask's `connect`).
const BACKOFF: Duration = Duration::from_millis(10);

/// Makes a comm to a peer that listens at `address`.
///
/// While nobody listens there, or the name stands for nothing yet, further
/// attempts are made until [`CommOptions::connect_timeout`] has passed, after
/// random pauses that may grow, so that a thousand workers that lost their
/// scheduler do not come back all at once. The handshake is not repeated.
///
/// # Cancel safety
///
/// Dropping the future drops the connection.
///
/// # Errors
///
/// * [`CommError::Connect`] with what the last attempt met;
/// * [`CommError::Timeout`] if the last attempt met nothing at all;
/// * [`CommError::Scheme`] for a scheme that this package does not carry;
/// * `CommError::NoTls` for a `tls` address without settings, and
///   `CommError::Tls` if TLS fails, which is not tried again;
/// * as [`Comm::establish`].
pub async fn connect(address: &Address, options: &CommOptions) -> Result<Comm, CommError> {
    let stream = connect_stream(address, options).await?;
    stream.establish(Role::Connector, options).await
}

/// Makes a connection as [`connect`] does, without the handshake of Dask.
///
/// # Errors
///
/// As [`connect`], but for those of the handshake.
pub async fn connect_raw(
    address: &Address,
    options: &CommOptions,
) -> Result<RawConnection, CommError> {
    let stream = connect_stream(address, options).await?;
    stream.open(Role::Connector, options).await
}

async fn connect_stream(address: &Address, options: &CommOptions) -> Result<Stream, CommError> {
    let after = options.connect_timeout;
    let deadline = later(after);
    // A connection request may be lost; do not wait for the first one until
    // it is too late for a second.
    let mut patience = after / 5;
    let mut backoff = BACKOFF;
    let mut last = None;
    loop {
        let until = deadline.min(later(patience));
        patience = after;
        match tokio::time::timeout_at(until, Stream::connect(address, options)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(Attempt::Fatal(error))) => return Err(error),
            Ok(Err(Attempt::Failed(error))) if is_lasting(&error) => {
                return Err(CommError::Connect {
                    address: address.clone(),
                    error,
                });
            }
            Ok(Err(Attempt::Failed(error))) => last = Some(error),
            // What an earlier attempt met says more than that time is up.
            Err(_) => {}
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || (last.is_some() && !options.connect_retry) {
            return Err(match last {
                Some(error) => CommError::Connect {
                    address: address.clone(),
                    error,
                },
                None => CommError::Timeout {
                    phase: Phase::Connect,
                    after,
                },
            });
        }
        tokio::time::sleep(jitter(backoff.min(left))).await;
        backoff = backoff.saturating_mul(2);
    }
}

/// Whether another attempt would meet the same.
fn is_lasting(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidInput | io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported
    )
}

/// A time from now. More than a lifetime is a lifetime.
fn later(after: Duration) -> Instant {
    const LIFETIME: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
    Instant::now() + after.min(LIFETIME)
}

/// Anything from nothing to `most`.
fn jitter(most: Duration) -> Duration {
    // Every RandomState has other keys.
    let random = RandomState::new().hash_one(0_u8);
    most.mul_f64((random >> 11) as f64 / (1_u64 << 53) as f64)
}

/// Why an attempt to connect led to nothing.
enum Attempt {
    /// The next one may go better.
    Failed(io::Error),
    /// No other will go better.
    Fatal(CommError),
}

impl From<io::Error> for Attempt {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// A connection before its handshake.
#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    /// With the address that was asked for, or that of the peer if it asked.
    #[cfg(feature = "tls")]
    Tls(TcpStream, Tls, Address),
    #[cfg(unix)]
    Unix(UnixStream, Address),
    Inproc(InprocStream),
}

impl Stream {
    #[cfg_attr(not(feature = "tls"), expect(unused_variables, reason = "for TLS"))]
    async fn connect(address: &Address, options: &CommOptions) -> Result<Self, Attempt> {
        Ok(match address.scheme() {
            Scheme::Tcp => Self::Tcp(TcpStream::connect((address.host(), address.port())).await?),
            #[cfg(feature = "tls")]
            Scheme::Tls => {
                let tls = tls(address, options).map_err(Attempt::Fatal)?;
                let stream = TcpStream::connect((address.host(), address.port())).await?;
                Self::Tls(stream, tls, address.clone())
            }
            #[cfg(unix)]
            Scheme::Unix => Self::Unix(UnixStream::connect(address.path()).await?, address.clone()),
            Scheme::Inproc => Self::Inproc(InprocStream::connect(address).await?),
            scheme => return Err(Attempt::Fatal(CommError::Scheme { scheme })),
        })
    }

    fn peer_address(&self) -> io::Result<Address> {
        Ok(match self {
            Self::Tcp(stream) => stream.peer_addr()?.into(),
            #[cfg(feature = "tls")]
            Self::Tls(stream, ..) => Address::new(Scheme::Tls, stream.peer_addr()?),
            #[cfg(unix)]
            Self::Unix(_, address) => address.clone(),
            Self::Inproc(stream) => stream.peer.clone(),
        })
    }

    async fn establish(self, role: Role, options: &CommOptions) -> Result<Comm, CommError> {
        #[cfg(feature = "tls")]
        if let Self::Tls(_, tls, _) = &self {
            let tls = tls.clone();
            // Both handshakes within the time of one.
            let after = options.handshake_timeout;
            let both = async {
                let connection = self.open(role, options).await?;
                let outcome = connection.handshake(options).await;
                outcome.map_err(|error| tls.explain(error, role))
            };
            let outcome = tokio::time::timeout(after, both).await;
            return outcome.unwrap_or(Err(late(after)));
        }
        self.open(role, options).await?.handshake(options).await
    }

    /// The bytes of it, behind TLS where there is one.
    #[cfg_attr(not(feature = "tls"), expect(unused_variables, reason = "for TLS"))]
    async fn open(self, role: Role, options: &CommOptions) -> Result<RawConnection, CommError> {
        let reader: ReadHalf;
        let writer: WriteHalf;
        let (local, peer);
        let encryption;
        match self {
            Self::Tcp(stream) => {
                set_options(&stream).map_err(CommError::Io)?;
                local = stream.local_addr().map_err(CommError::Io)?.into();
                peer = stream.peer_addr().map_err(CommError::Io)?.into();
                let halves = stream.into_split();
                (reader, writer) = lingering(halves.0, halves.1);
                encryption = None;
            }
            #[cfg(feature = "tls")]
            Self::Tls(stream, tls, host) => {
                set_options(&stream).map_err(CommError::Io)?;
                let end = |address| Address::new(Scheme::Tls, address);
                local = end(stream.local_addr().map_err(CommError::Io)?);
                peer = end(stream.peer_addr().map_err(CommError::Io)?);
                let after = options.handshake_timeout;
                let handshake = crate::tls::establish(&tls, stream, role, &host);
                let outcome = tokio::time::timeout(after, handshake).await;
                let ((reading, writing), how) = outcome.unwrap_or(Err(late(after)))?;
                (reader, writer) = (reading, writing);
                encryption = Some(how);
            }
            #[cfg(unix)]
            Self::Unix(stream, address) => {
                (local, peer) = (address.clone(), address);
                let halves = stream.into_split();
                (reader, writer) = lingering(halves.0, halves.1);
                encryption = None;
            }
            Self::Inproc(stream) => {
                (local, peer) = (stream.local, stream.peer);
                (reader, writer) = (Box::new(stream.reader), Box::new(stream.writer));
                encryption = None;
            }
        }
        Ok(RawConnection {
            reader,
            writer,
            local,
            peer,
            encryption,
        })
    }
}

#[cfg(feature = "tls")]
const fn late(after: Duration) -> CommError {
    CommError::Timeout {
        phase: Phase::Handshake,
        after,
    }
}

/// The settings of TLS, which this address needs.
#[cfg(feature = "tls")]
fn tls(address: &Address, options: &CommOptions) -> Result<Tls, CommError> {
    options.tls.clone().ok_or_else(|| CommError::NoTls {
        address: address.clone(),
    })
}

/// Waits for connections.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    options: CommOptions,
    handshakes: Handshakes,
}

#[derive(Debug)]
enum Socket {
    Tcp(Sockets),
    #[cfg(feature = "tls")]
    Tls(Sockets, Tls),
    #[cfg(unix)]
    Unix(UnixListener, UnixPath),
    Inproc(InprocListener),
}

/// Where one address of TCP is listened at.
#[derive(Debug)]
struct Sockets {
    first: TcpListener,
    /// For IPv6, where the first is for every interface of IPv4.
    second: Option<TcpListener>,
}

impl Sockets {
    async fn bind(address: &Address) -> io::Result<Self> {
        if !address.host().is_empty() {
            return Ok(Self {
                first: TcpListener::bind((address.host(), address.port())).await?,
                second: None,
            });
        }
        // As Dask does: two sockets with one port.
        let mut attempts = 0..10;
        loop {
            let first = TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await?;
            match bind_ipv6(first.local_addr()?.port()) {
                Ok(second) => {
                    let second = Some(second);
                    return Ok(Self { first, second });
                }
                // Of IPv6 the port that we got is another's: try another.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && address.port() == 0 => {
                    if attempts.next().is_none() {
                        return Err(error);
                    }
                }
                Err(error) if is_about_this_host(&error) => {
                    // There is no IPv6 here.
                    return Ok(Self {
                        first,
                        second: None,
                    });
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Cancel safe.
    async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        match &self.second {
            None => self.first.accept().await,
            Some(second) => tokio::select! {
                accepted = self.first.accept() => accepted,
                accepted = second.accept() => accepted,
            },
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.first.local_addr()
    }
}

/// Whether an error says that there is no IPv6, and not that something is taken,
/// forbidden or used up, for good or for now.
fn is_about_this_host(error: &io::Error) -> bool {
    !is_out_of_descriptors(error)
        && !matches!(
            error.kind(),
            io::ErrorKind::AddrInUse | io::ErrorKind::OutOfMemory | io::ErrorKind::PermissionDenied
        )
}

/// Whether the process or the system has no descriptors left: EMFILE and ENFILE,
/// which have no kind, and these numbers on every Unix.
fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(23 | 24))
}

/// Every interface of IPv6, and nothing of IPv4.
fn bind_ipv6(port: u16) -> io::Result<TcpListener> {
    let socket = Socket2::new(Domain::IPV6, Type::STREAM, None)?;
    socket.set_only_v6(true)?;
    #[cfg(unix)]
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into())?;
    // As many may wait as with the others.
    socket.listen(1024)?;
    TcpListener::from_std(socket.into())
}

/// The file of a Unix socket, which is there as long as somebody listens.
#[cfg(unix)]
#[derive(Debug)]
struct UnixPath {
    address: Address,
    /// Which file it is, should another one take its place.
    file: Option<(u64, u64)>,
}

#[cfg(unix)]
impl UnixPath {
    fn new(address: &Address) -> Self {
        Self {
            file: Self::file(address),
            address: address.clone(),
        }
    }

    fn file(address: &Address) -> Option<(u64, u64)> {
        use std::os::unix::fs::MetadataExt as _;
        let file = std::fs::symlink_metadata(address.path()).ok()?;
        Some((file.dev(), file.ino()))
    }
}

#[cfg(unix)]
impl Drop for UnixPath {
    fn drop(&mut self) {
        if self.file.is_some() && self.file == Self::file(&self.address) {
            // If it is gone by now that is just as well.
            let _ = std::fs::remove_file(self.address.path());
        }
    }
}

impl Listener {
    /// Listens at `address`; port 0 stands for any that is free, an empty host
    /// for every interface of IPv4 and, where there is IPv6, of that too. Of `inproc`, any name that nobody listens
    /// at in this process will do.
    ///
    /// # Errors
    ///
    /// * [`CommError::Bind`];
    /// * `CommError::NoTls` for a `tls` address without settings;
    /// * [`CommError::Scheme`] for a scheme that this package does not carry.
    pub async fn bind(address: &Address, options: CommOptions) -> Result<Self, CommError> {
        let failed = |error| CommError::Bind {
            address: address.clone(),
            error,
        };
        let socket = match address.scheme() {
            Scheme::Tcp => Socket::Tcp(Sockets::bind(address).await.map_err(failed)?),
            #[cfg(feature = "tls")]
            Scheme::Tls => {
                let tls = tls(address, &options)?;
                Socket::Tls(Sockets::bind(address).await.map_err(failed)?, tls)
            }
            #[cfg(unix)]
            Scheme::Unix => {
                let socket = bind_unix(address.path()).await.map_err(failed)?;
                Socket::Unix(socket, UnixPath::new(address))
            }
            Scheme::Inproc => Socket::Inproc(InprocListener::bind(address).map_err(failed)?),
            scheme => return Err(CommError::Scheme { scheme }),
        };
        Ok(Self {
            socket,
            handshakes: Handshakes::new(options.max_handshakes),
            options,
        })
    }

    /// Waits for the next connection. The handshake is still to be done, by
    /// [`Incoming::handshake`]: in a task of its own, or a peer that says
    /// nothing keeps all others waiting.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: no connection is lost.
    ///
    /// # Errors
    ///
    /// [`CommError::Io`]. The listener goes on: most errors here are about one
    /// connection, or pass (too many open files: wait before the next call).
    pub async fn accept(&self) -> Result<Incoming, CommError> {
        let stream = self.accept_stream().await.map_err(|error| {
            if is_out_of_descriptors(&error) {
                self.handshakes.displace_oldest();
            }
            CommError::Io(error)
        })?;
        Ok(Incoming {
            stream,
            options: self.options.clone(),
            under_way: self.handshakes.begin(),
        })
    }

    async fn accept_stream(&self) -> io::Result<Stream> {
        Ok(match &self.socket {
            Socket::Tcp(socket) => Stream::Tcp(socket.accept().await?.0),
            #[cfg(feature = "tls")]
            Socket::Tls(socket, tls) => {
                let (stream, peer) = socket.accept().await?;
                Stream::Tls(stream, tls.clone(), Address::new(Scheme::Tls, peer))
            }
            #[cfg(unix)]
            Socket::Unix(socket, UnixPath { address, .. }) => {
                let (stream, _) = socket.accept().await?;
                Stream::Unix(stream, address.clone())
            }
            Socket::Inproc(socket) => Stream::Inproc(socket.accept().await),
        })
    }

    /// Where it listens, with the port that it got.
    ///
    /// # Errors
    ///
    /// [`CommError::Io`].
    pub fn local_address(&self) -> Result<Address, CommError> {
        Ok(match &self.socket {
            Socket::Tcp(socket) => socket.local_addr().map_err(CommError::Io)?.into(),
            #[cfg(feature = "tls")]
            Socket::Tls(socket, _) => {
                Address::new(Scheme::Tls, socket.local_addr().map_err(CommError::Io)?)
            }
            #[cfg(unix)]
            Socket::Unix(_, UnixPath { address, .. }) => address.clone(),
            Socket::Inproc(socket) => socket.address().clone(),
        })
    }
}

/// Binds a Unix socket, in place of one that a process left behind which is not
/// there any more.
#[cfg(unix)]
async fn bind_unix(path: &str) -> io::Result<UnixListener> {
    use std::os::unix::fs::FileTypeExt as _;
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let is_socket = std::fs::symlink_metadata(path)?.file_type().is_socket();
            let answer = UnixStream::connect(path).await;
            let is_left =
                answer.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
            if !is_socket || !is_left {
                return Err(error);
            }
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        outcome => outcome,
    }
}

/// A connection that was accepted, before its handshake.
#[derive(Debug)]
#[must_use = "a connection is closed when this is dropped"]
pub struct Incoming {
    stream: Stream,
    options: CommOptions,
    under_way: UnderWay,
}

impl Incoming {
    /// Does the handshake.
    ///
    /// # Errors
    ///
    /// As [`Comm::establish`], and `CommError::Tls` if TLS fails; the connection
    /// is closed then.
    pub async fn handshake(self) -> Result<Comm, CommError> {
        let handshake = self.stream.establish(Role::Listener, &self.options);
        self.under_way.limit(handshake).await
    }

    /// The connection without the handshake of Dask; that of TLS is done.
    ///
    /// # Errors
    ///
    /// [`CommError::Io`] if the peer is gone, and those of TLS.
    pub async fn bytes(self) -> Result<RawConnection, CommError> {
        let handshake = self.stream.open(Role::Listener, &self.options);
        self.under_way.limit(handshake).await
    }

    /// The address of the other end.
    ///
    /// # Errors
    ///
    /// [`CommError::Io`] if the peer is gone.
    pub fn peer_address(&self) -> Result<Address, CommError> {
        self.stream.peer_address().map_err(CommError::Io)
    }
}

/// What Dask sets: no delay, and a peer that is gone without a word is found
/// after 30 seconds (`distributed.comm.timeouts.tcp`, `set_tcp_timeout` in
/// `distributed/comm/tcp.py`). On Linux that is also how long a peer may take
/// nothing of what is sent to it, as between two processes of Dask: its window
/// being closed counts.
fn set_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(2));
    #[cfg(not(any(target_os = "openbsd", target_os = "redox", target_os = "solaris")))]
    let keepalive = keepalive.with_retries(10);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(Duration::from_secs(30)))?;
    Ok(())
}
