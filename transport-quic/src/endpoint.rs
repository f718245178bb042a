//! Connecting, listening, and the connections between.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use daskwire_comm::{Address, Closed, Comm, CommError, CommOptions, Phase, RawConnection, Scheme};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ConnectionError, EndpointConfig};
use rustls::pki_types::{CertificateDer, ServerName};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::connection::{Entry, SharedConnection};
use crate::error::{self, code};
use crate::stream::{self, Receiver, Sender};
use crate::{ALPN, Priority, QuicOptions, Tls};

/// The first pause between two attempts to connect is shorter than this; the
/// next ones may be twice as long each (`backoff_base` of Dask's `connect`).
const BACKOFF: Duration = Duration::from_millis(10);

/// One attempt takes no less than this, if the deadline allows.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long one address of a name is tried before the next one is tried too
/// (RFC 8305).
const NEXT_ADDRESS: Duration = Duration::from_millis(250);

/// One UDP socket, and all comms over it, made here or accepted.
///
/// With each peer there is one connection; a comm is a stream on it. What a
/// comm is, see [`Comm`]: it is the same type as over TCP.
///
/// Dropping the endpoint ends listening, not the comms. Before the process
/// ends call [`Endpoint::close`], or peers may have to wait for their idle
/// timeout.
///
/// # Common issues
///
/// * Peers that speak another ALPN, or whose certificate is not accepted, are
///   told apart by the text of the error, [`CommError::Connect`].
/// * If [`QuicOptions::connection_window`] is set, comms that are not read hold up
///   all others of the connection when they fill it.
pub struct Endpoint {
    quinn: quinn::Endpoint,
    runtime: Handle,
    settings: QuicOptions,
    client: RwLock<Option<ClientSide>>,
    pool: Mutex<HashMap<Key, Arc<Slot>>>,
    lives: Connections,
    incoming: tokio::sync::Mutex<mpsc::Receiver<Incoming>>,
    listens: bool,
}

/// What connections are made with.
#[derive(Clone)]
struct ClientSide {
    config: quinn::ClientConfig,
    server_name: Option<ServerName<'static>>,
}

/// Host and port.
type Key = (Box<str>, u16);

/// All connections, those made and those accepted.
#[derive(Clone, Debug, Default)]
struct Connections(Arc<Mutex<Vec<Weak<SharedConnection>>>>);

/// The connection to one address.
#[derive(Debug, Default)]
struct Slot {
    /// Attempts to connect that have come to an end.
    attempts: AtomicU64,
    /// Locked during an attempt, so that there is one at a time.
    connected: tokio::sync::Mutex<Connected>,
}

#[derive(Debug, Default)]
struct Connected {
    live: Option<Arc<SharedConnection>>,
    /// What the last attempt came to, for those who waited for it.
    failure: Option<Failure>,
}

/// Why an attempt to connect led to nothing.
#[derive(Clone, Debug)]
struct Failure {
    error: Option<Arc<io::Error>>,
    /// No other will go better.
    is_final: bool,
}

impl Endpoint {
    /// Binds a socket to `address`; port 0 stands for any that is free, an
    /// empty host for every interface of IPv4.
    ///
    /// `options` are for the comms that will be accepted.
    ///
    /// # Errors
    ///
    /// * [`CommError::Bind`], also if the TLS configurations cannot be used
    ///   for QUIC;
    /// * [`CommError::Scheme`] unless the scheme is `quic`.
    pub async fn bind(
        address: &Address,
        tls: &Tls,
        options: CommOptions,
        quic: QuicOptions,
    ) -> Result<Self, CommError> {
        if address.scheme() != Scheme::Quic {
            let scheme = address.scheme();
            return Err(CommError::Scheme { scheme });
        }
        let failed = |error| CommError::Bind {
            address: address.clone(),
            error,
        };
        let host = match address.host() {
            "" => "0.0.0.0",
            host => host,
        };
        let sockets = tokio::net::lookup_host((host, address.port())).await;
        let mut last = io::ErrorKind::NotFound.into();
        for socket in sockets.map_err(failed)? {
            match bind_socket(socket, &quic) {
                Ok(socket) => return Self::new(socket, tls, options, quic).map_err(failed),
                Err(error) => last = error,
            }
        }
        Err(failed(last))
    }

    /// Binds a socket to connect from: every interface, any free port, IPv6
    /// and IPv4 where the system has both.
    ///
    /// # Errors
    ///
    /// [`CommError::Bind`], also if the TLS configuration cannot be used for
    /// QUIC.
    pub fn client(tls: impl Into<Tls>, quic: QuicOptions) -> Result<Self, CommError> {
        let wildcard = |ip: IpAddr| SocketAddr::new(ip, 0);
        let tls = Tls {
            server: None,
            ..tls.into()
        };
        bind_socket(wildcard(Ipv6Addr::UNSPECIFIED.into()), &quic)
            .or_else(|_| bind_socket(wildcard(Ipv4Addr::UNSPECIFIED.into()), &quic))
            .and_then(|socket| Self::new(socket, &tls, CommOptions::default(), quic))
            .map_err(|error| CommError::Bind {
                address: Address::new(Scheme::Quic, wildcard(Ipv4Addr::UNSPECIFIED.into())),
                error,
            })
    }

    fn new(
        socket: std::net::UdpSocket,
        tls: &Tls,
        options: CommOptions,
        settings: QuicOptions,
    ) -> io::Result<Self> {
        let runtime = Handle::try_current().map_err(io::Error::other)?;
        let client = client_side(tls, &settings)?;
        let server = server_config(tls, &settings)?;
        let listens = server.is_some();
        let mut config = EndpointConfig::default();
        config
            .max_udp_payload_size(settings.max_udp_payload)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let quinn = quinn::Endpoint::new(config, server, socket, Arc::new(quinn::TokioRuntime))?;
        let (sender, incoming) = mpsc::channel(settings.backlog.max(1));
        let lives = Connections::default();
        if listens {
            let acceptor = Acceptor {
                sender,
                lives: lives.clone(),
                options,
                settings: settings.clone(),
                runtime: runtime.clone(),
                handshaking: Arc::new(()),
            };
            runtime.spawn(acceptor.run(quinn.clone()));
        }
        Ok(Self {
            quinn,
            runtime,
            settings,
            client: RwLock::new(client),
            pool: Mutex::default(),
            lives,
            incoming: tokio::sync::Mutex::new(incoming),
            listens,
        })
    }

    /// Makes a comm to a peer that listens at `address`: a stream on the
    /// connection that there is, or else on a new one.
    ///
    /// While nobody listens there, or the name stands for nothing yet, further
    /// attempts are made until [`CommOptions::connect_timeout`] has passed, after
    /// random pauses that may grow. Those who ask for one address at the same
    /// time share the attempt and what it comes to. A connection that is found dead is
    /// replaced.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the stream; the connection, if there is one,
    /// is kept for [`QuicOptions::linger`].
    ///
    /// # Errors
    ///
    /// * [`CommError::Connect`] with what the last attempt met: nobody there,
    ///   another protocol than ours, a certificate that is not accepted, on
    ///   either side;
    /// * [`CommError::Timeout`] if the last attempt met nothing at all;
    /// * [`CommError::Scheme`] unless the scheme is `quic`;
    /// * as [`Comm::establish`].
    pub async fn connect(
        &self,
        address: &Address,
        options: &CommOptions,
    ) -> Result<Comm, CommError> {
        self.connect_with_priority(address, options, Priority::Normal)
            .await
    }

    /// [`Endpoint::connect`], and says what goes first of what this side
    /// sends.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn connect_with_priority(
        &self,
        address: &Address,
        options: &CommOptions,
        priority: Priority,
    ) -> Result<Comm, CommError> {
        self.connect_and(address, options, priority, Handshake)
            .await
    }

    /// Opens a stream to `address`, without the handshake of Dask. The peer sees
    /// it at once, even if nothing is written.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::connect`], but for those of the handshake.
    pub async fn connect_raw(
        &self,
        address: &Address,
        options: &CommOptions,
        priority: Priority,
    ) -> Result<RawConnection, CommError> {
        self.connect_and(address, options, priority, NoHandshake)
            .await
    }

    /// Opens a stream, with the retries that are left, and does something with
    /// it.
    async fn connect_and<T: Then>(
        &self,
        address: &Address,
        options: &CommOptions,
        priority: Priority,
        then: T,
    ) -> Result<T::Outcome, CommError> {
        if address.scheme() != Scheme::Quic {
            let scheme = address.scheme();
            return Err(CommError::Scheme { scheme });
        }
        let after = options.connect_timeout;
        let deadline = Instant::now() + after;
        let patience = (after / 5).max(PATIENCE);
        let failed = |error| CommError::Connect {
            address: address.clone(),
            error,
        };
        let mut backoff = BACKOFF;
        let mut last = None;
        loop {
            match tokio::time::timeout_at(deadline, self.open(address, patience)).await {
                Ok(Ok(opened)) => {
                    let live = Arc::clone(&opened.live);
                    let is_fresh = opened.is_fresh;
                    let connection = self.bytes(opened, priority)?;
                    let error = match then.finish(connection, options).await {
                        Ok(outcome) => return Ok(outcome),
                        Err(error) => error,
                    };
                    match (&error, live.connection.close_reason()) {
                        // TLS refused us after it was done here, as it does
                        // with the certificates of clients.
                        (_, Some(reason)) if error::is_final(&reason) => {
                            return Err(failed(error::lost(reason)));
                        }
                        // It had died in the meantime, or had no more to give.
                        (_, Some(reason)) if !is_fresh => last = Some(error::lost(reason)),
                        (CommError::Io(_), _) if is_refusal(&error) => {
                            live.retire();
                            if let CommError::Io(error) = error {
                                last = Some(error);
                            }
                        }
                        _ => return Err(error),
                    }
                }
                Ok(Err(failure)) => {
                    // Others may have a share in it.
                    let again = |error: Arc<io::Error>| io::Error::new(error.kind(), error);
                    last = failure.error.map(again).or(last);
                    if failure.is_final {
                        let unknown = || io::ErrorKind::NotConnected.into();
                        return Err(failed(last.unwrap_or_else(unknown)));
                    }
                }
                Err(_) => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || (last.is_some() && !options.connect_retry) {
                return Err(match last {
                    Some(error) => failed(error),
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

    /// Waits for the next comm, of any peer. The handshake is still to be
    /// done, by [`Incoming::handshake`]: in a task of its own, or a peer that
    /// says nothing keeps all others waiting.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: no comm is lost.
    ///
    /// # Errors
    ///
    /// [`CommError::Closed`] if the endpoint was closed, or does not listen.
    pub async fn accept(&self) -> Result<Incoming, CommError> {
        match self.incoming.lock().await.recv().await {
            Some(incoming) => Ok(incoming),
            None => Err(Closed::Locally.into()),
        }
    }

    /// Where the socket is bound, with the port that it got.
    ///
    /// # Errors
    ///
    /// [`CommError::Io`].
    pub fn local_address(&self) -> Result<Address, CommError> {
        let socket = self.quinn.local_addr().map_err(CommError::Io)?;
        Ok(Address::new(Scheme::Quic, canonical(socket)))
    }

    /// How many connections there are, made and accepted.
    pub fn connection_count(&self) -> usize {
        self.quinn.open_connections()
    }

    /// Takes other certificates for connections to come. Those that there are
    /// go on, and so do their comms, new ones included.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::InvalidInput`] if these cannot be used for QUIC, or if
    /// there is none to listen with and the endpoint listens, or the other way
    /// round. Nothing has changed then.
    pub fn set_tls(&self, tls: &Tls) -> io::Result<()> {
        if tls.server.is_some() != self.listens {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "an endpoint listens from the beginning, or not at all",
            ));
        }
        let client = client_side(tls, &self.settings)?;
        let server = server_config(tls, &self.settings)?;
        *self.client.write().unwrap_or_else(PoisonError::into_inner) = client;
        self.quinn.set_server_config(server);
        Ok(())
    }

    /// Closes all connections and waits until the peers know. Comms that are
    /// still there end with their connection, so close or drop them first.
    ///
    /// Takes as long as a few round trips, and up to
    /// [`QuicOptions::drain_timeout`] while peers have not closed comms that
    /// are closed here.
    pub async fn close(&self) {
        // PROTOCOL QUIC-17
        self.quinn.set_server_config(None);
        let lives = self.lives.all();
        for live in &lives {
            live.retire();
        }
        for live in &lives {
            live.drained().await;
        }
        // The end of a connection is said once, and lost where the peer's socket
        // is full. The end of a stream is said until it is acknowledged.
        let patience = lives.iter().map(|live| live.telling_time()).max();
        tokio::time::sleep(patience.unwrap_or_default()).await;
        // Once more: there may be new ones from handshakes that were under way.
        for live in self.lives.all() {
            live.close();
        }
        self.quinn.close(code::GONE, b"");
        self.quinn.wait_idle().await;
    }

    fn bytes(&self, opened: Opened, priority: Priority) -> Result<RawConnection, CommError> {
        let (local, peer) = ends(&self.quinn, &opened.live.connection).map_err(CommError::Io)?;
        opened.sender.set_priority(priority.of_stream());
        let encryption = Some(opened.live.encryption());
        Ok(RawConnection {
            encryption,
            reader: Box::new(opened.receiver),
            writer: Box::new(opened.sender),
            local,
            peer,
        })
    }

    /// A new stream to `address`.
    async fn open(&self, address: &Address, patience: Duration) -> Result<Opened, Failure> {
        loop {
            let (entry, is_fresh) = self.connection(address, patience).await?;
            let live = Arc::clone(&entry.live);
            // PROTOCOL QUIC-5
            match live.connection.open_bi().await {
                Ok((mut send, receive)) => {
                    // PROTOCOL QUIC-8: an empty frame. If it fails, so does what
                    // is written next.
                    let _ = send.write(&[]).await;
                    let (receiver, sender) = stream::halves(entry, send, receive);
                    return Ok(Opened {
                        live,
                        receiver,
                        sender,
                        is_fresh,
                    });
                }
                Err(error) if is_fresh => return Err(error.into()),
                // It has just died.
                Err(_) => {}
            }
        }
    }

    /// The connection to `address` (PROTOCOL QUIC-4), and whether it is new.
    async fn connection(
        &self,
        address: &Address,
        patience: Duration,
    ) -> Result<(Entry, bool), Failure> {
        let slot = self.slot(address);
        let seen = slot.attempts.load(Ordering::Acquire);
        let mut connected = slot.connected.lock().await;
        if let Some(live) = connected.live.as_ref().filter(|live| live.is_usable())
            && let Some(entry) = live.enter()
        {
            return Ok((entry, false));
        }
        if slot.attempts.load(Ordering::Acquire) != seen
            && let Some(failure) = &connected.failure
        {
            return Err(failure.clone());
        }
        let outcome = match tokio::time::timeout(patience, self.attempt(address)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Failure {
                error: None,
                is_final: false,
            }),
        };
        slot.attempts.fetch_add(1, Ordering::Release);
        match outcome {
            Ok(connection) => {
                let live = self.live(connection);
                let entry = live.enter().ok_or(Failure {
                    error: None,
                    is_final: false,
                })?;
                let watched = Arc::clone(&live).close_when_done(self.settings.linger);
                self.runtime.spawn(watched);
                *connected = Connected {
                    live: Some(live),
                    failure: None,
                };
                Ok((entry, true))
            }
            Err(failure) => {
                *connected = Connected {
                    live: None,
                    failure: Some(failure.clone()),
                };
                Err(failure)
            }
        }
    }

    /// One attempt at a new connection, to all addresses that the name has.
    async fn attempt(&self, address: &Address) -> Result<quinn::Connection, Failure> {
        if self.quinn.open_connections() >= self.settings.max_connections {
            return Err(Failure::retry(io::ErrorKind::QuotaExceeded.into()));
        }
        let Some(client) = self.client_side() else {
            return Err(Failure::last(io::Error::new(
                io::ErrorKind::Unsupported,
                "this endpoint has no TLS configuration to connect with",
            )));
        };
        let target = (address.host(), address.port());
        let sockets = tokio::net::lookup_host(target)
            .await
            .map_err(Failure::retry)?;
        let mut attempts = JoinSet::new();
        for (index, socket) in (0_u32..).zip(sockets) {
            let name = match &client.server_name {
                Some(name) => name.to_str().into_owned(),
                // What is no name and no number, as fe80::1%eth0, is not
                // verified by that name either.
                None => match ServerName::try_from(address.host()) {
                    Ok(_) => address.host().to_owned(),
                    Err(_) => socket.ip().to_canonical().to_string(),
                },
            };
            let (quinn, client) = (self.quinn.clone(), client.config.clone());
            attempts.spawn_on(
                async move {
                    tokio::time::sleep(NEXT_ADDRESS * index).await;
                    let connecting = quinn.connect_with(client, socket, &name);
                    let connecting = connecting.map_err(Attempt::Address)?;
                    connecting.await.map_err(Attempt::Connection)
                },
                &self.runtime,
            );
        }
        let mut failure = None;
        while let Some(outcome) = attempts.join_next().await {
            match outcome {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(Attempt::Connection(error))) if error::is_final(&error) => {
                    return Err(error.into());
                }
                Ok(Err(Attempt::Connection(error))) => failure = Some(error.into()),
                // The socket does not reach an address of this kind; another
                // one of the name may do.
                Ok(Err(Attempt::Address(error))) if failure.is_none() => {
                    let error = io::Error::new(io::ErrorKind::InvalidInput, error);
                    failure = Some(Failure::last(error));
                }
                _ => {}
            }
        }
        Err(failure.unwrap_or_else(|| Failure::retry(io::ErrorKind::NotFound.into())))
    }

    fn client_side(&self) -> Option<ClientSide> {
        let client = self.client.read().unwrap_or_else(PoisonError::into_inner);
        client.clone()
    }

    fn slot(&self, address: &Address) -> Arc<Slot> {
        let key = (Box::from(address.host()), address.port());
        let mut pool = lock(&self.pool);
        if let Some(slot) = pool.get(&key) {
            return Arc::clone(slot);
        }
        // Only slots that nobody is about to use, and that lead nowhere.
        pool.retain(|_, slot| match slot.connected.try_lock() {
            Ok(connected) if Arc::strong_count(slot) == 1 => {
                connected.live.as_ref().is_some_and(|live| live.is_usable())
            }
            _ => true,
        });
        Arc::clone(pool.entry(key).or_default())
    }

    fn live(&self, connection: quinn::Connection) -> Arc<SharedConnection> {
        self.lives
            .insert(connection, self.runtime.clone(), &self.settings)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("local", &self.quinn.local_addr().ok())
            .field("connection_count", &self.connection_count())
            .finish_non_exhaustive()
    }
}

/// Why an attempt to connect to one socket led to nothing.
enum Attempt {
    Address(quinn::ConnectError),
    Connection(ConnectionError),
}

/// A stream that was opened.
struct Opened {
    live: Arc<SharedConnection>,
    receiver: Receiver,
    sender: Sender,
    /// The connection was made for it.
    is_fresh: bool,
}

impl Failure {
    fn retry(error: io::Error) -> Self {
        Self {
            error: Some(Arc::new(error)),
            is_final: false,
        }
    }

    fn last(error: io::Error) -> Self {
        Self {
            error: Some(Arc::new(error)),
            is_final: true,
        }
    }
}

impl From<ConnectionError> for Failure {
    fn from(error: ConnectionError) -> Self {
        let is_final = error::is_final(&error);
        match error {
            // Nobody there is what attempts are repeated for.
            ConnectionError::TimedOut => Self {
                error: None,
                is_final,
            },
            error => Self {
                error: Some(Arc::new(error::lost(error))),
                is_final,
            },
        }
    }
}

impl Connections {
    fn insert(
        &self,
        connection: quinn::Connection,
        runtime: Handle,
        settings: &QuicOptions,
    ) -> Arc<SharedConnection> {
        let drain_len = settings.stream_window as usize;
        let live = SharedConnection::new(connection, runtime, settings.drain_timeout, drain_len);
        let mut all = lock(&self.0);
        // Now and then, so that it is cheap for each.
        if all.len() == all.capacity() {
            all.retain(|live| live.strong_count() != 0);
        }
        all.push(Arc::downgrade(&live));
        live
    }

    fn all(&self) -> Vec<Arc<SharedConnection>> {
        lock(&self.0).iter().filter_map(Weak::upgrade).collect()
    }
}

/// Takes connections, and comms from them.
#[derive(Clone)]
struct Acceptor {
    sender: mpsc::Sender<Incoming>,
    lives: Connections,
    options: CommOptions,
    settings: QuicOptions,
    runtime: Handle,
    /// A clone for each handshake that is under way.
    handshaking: Arc<()>,
}

impl Acceptor {
    async fn run(self, quinn: quinn::Endpoint) {
        loop {
            let incoming = tokio::select! {
                incoming = quinn.accept() => incoming,
                () = self.sender.closed() => None,
            };
            let Some(incoming) = incoming else {
                // Whoever comes now is refused.
                return quinn.set_server_config(None);
            };
            if quinn.open_connections() >= self.settings.max_connections {
                incoming.refuse();
            } else if Arc::strong_count(&self.handshaking) > self.settings.retry_threshold
                && incoming.may_retry()
            {
                // It may; an error would only say that it may not.
                let _ = incoming.retry();
            } else {
                let acceptor = self.clone();
                let quinn = quinn.clone();
                self.runtime.spawn(acceptor.serve(quinn, incoming));
            }
        }
    }

    /// Hands out the comms of one connection.
    async fn serve(mut self, quinn: quinn::Endpoint, incoming: quinn::Incoming) {
        // PROTOCOL QUIC-23
        let after = self.options.handshake_timeout;
        let handshaking = core::mem::take(&mut self.handshaking);
        let connection = match tokio::time::timeout(after, incoming).await {
            Ok(Ok(connection)) => connection,
            // The peer has been told by QUIC, or does not listen.
            _ => return,
        };
        drop(handshaking);
        let live = self
            .lives
            .insert(connection, self.runtime.clone(), &self.settings);
        let local_port = quinn.local_addr().map_or(0, |local| local.port());
        // The socket must not be kept for this alone.
        drop(quinn);
        // Until it is closed by the peer, which has made it, even when nobody
        // accepts here any more: whoever opens a comm must learn of that.
        while let Ok((send, receive)) = live.connection.accept_bi().await {
            let Some(entry) = live.enter() else { continue };
            let (receiver, sender) = stream::halves(entry, send, receive);
            let incoming = Incoming {
                receiver,
                sender,
                live: Arc::clone(&live),
                local_port,
                options: self.options.clone(),
            };
            if let Err(mpsc::error::SendError(incoming)) = self.sender.send(incoming).await {
                incoming.refuse();
            }
        }
    }
}

/// What becomes of a stream that was opened.
trait Then: Sync {
    type Outcome;

    fn finish(
        &self,
        connection: RawConnection,
        options: &CommOptions,
    ) -> impl Future<Output = Result<Self::Outcome, CommError>> + Send;
}

struct Handshake;

impl Then for Handshake {
    type Outcome = Comm;

    async fn finish(
        &self,
        connection: RawConnection,
        options: &CommOptions,
    ) -> Result<Comm, CommError> {
        connection.handshake(options).await
    }
}

struct NoHandshake;

impl Then for NoHandshake {
    type Outcome = RawConnection;

    async fn finish(
        &self,
        connection: RawConnection,
        _: &CommOptions,
    ) -> Result<RawConnection, CommError> {
        Ok(connection)
    }
}

/// A comm that was accepted, before its handshake.
#[must_use = "a comm ends when this is dropped"]
pub struct Incoming {
    receiver: Receiver,
    sender: Sender,
    live: Arc<SharedConnection>,
    local_port: u16,
    options: CommOptions,
}

impl Incoming {
    /// Does the handshake.
    ///
    /// # Errors
    ///
    /// As [`Comm::establish`]; the comm ends then.
    pub async fn handshake(self) -> Result<Comm, CommError> {
        self.handshake_with_priority(Priority::Normal).await
    }

    /// Does the handshake, and says what goes first of what this side sends.
    ///
    /// # Errors
    ///
    /// As [`Comm::establish`]; the comm ends then.
    pub async fn handshake_with_priority(self, priority: Priority) -> Result<Comm, CommError> {
        let options = self.options.clone();
        let connection = self.bytes(priority);
        connection.handshake(&options).await
    }

    /// The stream without the handshake of Dask.
    pub fn bytes(self, priority: Priority) -> RawConnection {
        self.sender.set_priority(priority.of_stream());
        let peer = self.peer_address();
        // Not every system says at which of its addresses a packet arrived.
        let local = self.live.connection.local_ip();
        let local = local.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        let local = canonical(SocketAddr::new(local, self.local_port));
        RawConnection {
            encryption: Some(self.live.encryption()),
            reader: Box::new(self.receiver),
            writer: Box::new(self.sender),
            local: Address::new(Scheme::Quic, local),
            peer,
        }
    }

    /// The address of the other end.
    pub fn peer_address(&self) -> Address {
        Address::new(
            Scheme::Quic,
            canonical(self.live.connection.remote_address()),
        )
    }

    /// The certificates that the peer has shown, its own first; none if it was
    /// not asked. They have been verified as the TLS configuration says.
    pub fn peer_certificates(&self) -> Vec<CertificateDer<'static>> {
        self.live.peer_certificates()
    }

    fn refuse(mut self) {
        // PROTOCOL QUIC-13
        self.sender.reset(code::REFUSED);
        self.receiver.stop(code::REFUSED);
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming")
            .field("peer", &format_args!("{}", self.peer_address()))
            .finish_non_exhaustive()
    }
}

/// PROTOCOL QUIC-1, QUIC-2 and QUIC-3
fn client_side(tls: &Tls, settings: &QuicOptions) -> io::Result<Option<ClientSide>> {
    let Some(client) = &tls.client else {
        return Ok(None);
    };
    let server_name = tls.server_name.clone();
    let mut tls = rustls::ClientConfig::clone(client);
    tls.alpn_protocols = vec![ALPN.to_vec()];
    tls.enable_early_data = false;
    let tls = Arc::new(tls);
    // quinn would panic on what rustls refuses here.
    let name = ServerName::IpAddress(Ipv4Addr::LOCALHOST.into());
    let version = rustls::quic::Version::V1;
    rustls::quic::ClientConnection::new(Arc::clone(&tls), version, name, Vec::new())
        .map_err(unsuitable)?;
    let tls = QuicClientConfig::try_from(tls).map_err(unsuitable)?;
    let mut config = quinn::ClientConfig::new(Arc::new(tls));
    config.transport_config(settings.to_transport_config());
    Ok(Some(ClientSide {
        config,
        server_name,
    }))
}

/// PROTOCOL QUIC-1, QUIC-2 and QUIC-3
fn server_config(tls: &Tls, settings: &QuicOptions) -> io::Result<Option<quinn::ServerConfig>> {
    let Some(tls) = &tls.server else {
        return Ok(None);
    };
    let mut tls = rustls::ServerConfig::clone(tls);
    tls.alpn_protocols = vec![ALPN.to_vec()];
    tls.max_early_data_size = 0;
    let tls = Arc::new(tls);
    // quinn would panic on what rustls refuses here.
    let version = rustls::quic::Version::V1;
    rustls::quic::ServerConnection::new(Arc::clone(&tls), version, Vec::new())
        .map_err(unsuitable)?;
    let tls = QuicServerConfig::try_from(tls).map_err(unsuitable)?;
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(tls));
    config
        .transport_config(settings.to_transport_config())
        // PROTOCOL QUIC-6
        .migration(settings.migration)
        .max_incoming(settings.max_incoming)
        .incoming_buffer_size(settings.incoming_buffer_len)
        .incoming_buffer_size_total(settings.incoming_buffers_len);
    Ok(Some(config))
}

fn unsuitable(error: impl core::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

fn bind_socket(address: SocketAddr, settings: &QuicOptions) -> io::Result<std::net::UdpSocket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        // Where the system does not do that, it is IPv6 alone.
        let _ = socket.set_only_v6(false);
    }
    // As much of it as the system allows.
    let _ = socket.set_recv_buffer_size(settings.socket_buffer_len);
    let _ = socket.set_send_buffer_size(settings.socket_buffer_len);
    socket.bind(&address.into())?;
    Ok(socket.into())
}

fn ends(quinn: &quinn::Endpoint, connection: &quinn::Connection) -> io::Result<(Address, Address)> {
    let mut local = quinn.local_addr()?;
    if let Some(ip) = connection.local_ip() {
        local.set_ip(ip);
    }
    let address = |socket| Address::new(Scheme::Quic, canonical(socket));
    Ok((address(local), address(connection.remote_address())))
}

/// IPv4 as such, also on a socket that does both.
fn canonical(socket: SocketAddr) -> SocketAddr {
    match socket.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, socket.port()),
        IpAddr::V6(_) => socket,
    }
}

fn is_refusal(error: &CommError) -> bool {
    matches!(error, CommError::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Anything from nothing to `most`.
fn jitter(most: Duration) -> Duration {
    // Every RandomState has other keys.
    let random = RandomState::new().hash_one(0_u8);
    most.mul_f64((random >> 11) as f64 / (1_u64 << 53) as f64)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whoever panicked did not leave it half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
