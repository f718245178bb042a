//! Endpoints: connecting, listening, and the connections that comms share.

use core::fmt;
use core::net::{Ipv4Addr, SocketAddr};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use daskwire_comm::runtime::{Spawner, first_to_connect, lookup_host, sleep, timeout};
use daskwire_comm::{
    Address, BoxFuture, Closed, Comm, CommError, CommOptions, ConnectError, ConnectOptions, Listen,
    PendingConnection, RawConnection, Traffic, Transport,
};
use quinn::{ConnectionError, EndpointConfig, ReadError};
use rustls::pki_types::ServerName;
use tokio::sync::mpsc;

use crate::QuicOptions;
use crate::acceptor::{Acceptor, Incoming};
use crate::config::{
    ClientSide, bind_every_interface, bind_socket, canonical, client_side, server_config,
};
use crate::connection::{CountedComm, SharedConnection};
use crate::error::{self, code};
use crate::options::MAX_UDP_PAYLOAD;
use crate::stream::{self, Receiver, Sender};
use crate::transport::Quic;

/// The minimum timeout of an attempt to connect, if the deadline allows it.
const MIN_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);

/// The maximum number of comms that wait to be accepted; further ones stay on their
/// connections.
const BACKLOG: usize = 1_024;

/// A UDP socket and all comms over it, made or accepted.
///
/// There is one connection with each peer, and a comm is a stream on it. [`Comm`] is the
/// same type as over TCP.
///
/// Dropping the endpoint ends listening, not the comms. Call [`Endpoint::close`] before
/// the process ends; otherwise peers may notice only at their idle timeout.
///
/// # Common issues
///
/// * A peer with another ALPN token and one whose certificate is refused both give
///   [`CommError::Connect`], with different messages.
pub struct Endpoint {
    quinn: quinn::Endpoint,
    runtime: Spawner,
    settings: QuicOptions,
    client: Option<ClientSide>,
    pool: Mutex<HashMap<HostAndPort, Arc<AddressSlot>>>,
    connections: Connections,
    incoming: tokio::sync::Mutex<mpsc::Receiver<Incoming>>,
    /// Whether the socket is bound to every interface of both families.
    is_wildcard: bool,
    /// Whether an attempt to connect has failed because the endpoint was closed, or its
    /// executor has ended.
    is_stopped: AtomicBool,
}

/// The host and port of an address.
type HostAndPort = (Box<str>, u16);

/// All connections, made and accepted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connections(Arc<Mutex<Vec<Weak<SharedConnection>>>>);

/// The connection to one address.
#[derive(Debug, Default)]
struct AddressSlot {
    /// The number of finished attempts to connect.
    attempts: AtomicU64,
    /// Locked during an attempt, so that there is only one at a time.
    connected: tokio::sync::Mutex<Connected>,
}

#[derive(Debug, Default)]
struct Connected {
    /// The last connection, which its comms and [`SharedConnection::close_when_done`] keep.
    connection: Weak<SharedConnection>,
    /// The error of the last attempt, for callers that waited for it.
    failure: Option<Failure>,
}

/// The error of an attempt to connect.
#[derive(Clone, Debug)]
struct Failure {
    error: Option<Arc<io::Error>>,
    /// Whether any other attempt would fail too.
    is_final: bool,
}

impl Endpoint {
    /// Binds a socket to `address`. Port 0 means any free port, and an empty host every
    /// interface, IPv6 and IPv4 where the system has both. A host name is bound at one of
    /// its addresses, of IPv4 if it has any.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the socket.
    ///
    /// # Errors
    ///
    /// * [`CommError::Bind`], also if the TLS configurations cannot be used for QUIC;
    /// * [`CommError::Scheme`] unless the scheme is `quic`.
    pub async fn bind(address: &Address, options: QuicOptions) -> Result<Self, CommError> {
        if address.scheme() != "quic" {
            let scheme = address.scheme().into();
            return Err(CommError::Scheme { scheme });
        }
        let (host, port) = daskwire_comm::host_and_port(address)?;
        let failed = |error| CommError::Bind {
            address: address.clone(),
            error,
        };
        Spawner::try_current().map_err(failed)?;
        if host.is_empty() {
            let socket = bind_every_interface(port);
            return socket
                .and_then(|socket| Self::new(socket, true, options))
                .map_err(failed);
        }
        let mut sockets = lookup_host(host, port).await.map_err(failed)?;
        // Peers that do not use IPv6 know the name as well.
        sockets.sort_by_key(SocketAddr::is_ipv6);
        let mut first = None;
        for socket in sockets {
            match bind_socket(socket) {
                Ok(socket) => return Self::new(socket, false, options).map_err(failed),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    return Err(failed(error));
                }
                Err(error) => {
                    first.get_or_insert(error);
                }
            }
        }
        Err(failed(
            first.unwrap_or_else(|| io::ErrorKind::NotFound.into()),
        ))
    }

    /// Binds a socket to connect from: every interface, any free port, IPv6
    /// and IPv4 where the system has both.
    ///
    /// # Errors
    ///
    /// [`CommError::Bind`], also if the TLS configuration cannot be used for
    /// QUIC.
    pub fn client(mut options: QuicOptions) -> Result<Self, CommError> {
        options.tls.server = None;
        bind_every_interface(0)
            .and_then(|socket| Self::new(socket, true, options))
            .map_err(|error| CommError::Bind {
                address: Address::new("quic", SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))),
                error,
            })
    }

    fn new(
        socket: std::net::UdpSocket,
        is_wildcard: bool,
        settings: QuicOptions,
    ) -> io::Result<Self> {
        let (runtime, of_quinn) = crate::runtime::current()?;
        let client = client_side(&settings.tls, &settings)?;
        let server = server_config(&settings.tls, &settings)?;
        let listens = server.is_some();
        let mut config = EndpointConfig::default();
        config
            .max_udp_payload_size(MAX_UDP_PAYLOAD)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let quinn = quinn::Endpoint::new(config, server, socket, of_quinn)?;
        let (sender, incoming) = mpsc::channel(BACKLOG);
        let connections = Connections::default();
        if listens {
            let acceptor = Acceptor {
                sender,
                connections: connections.clone(),
                settings: settings.clone(),
                runtime: runtime.clone(),
                handshaking: Arc::new(()),
            };
            runtime.spawn(acceptor.run(quinn.clone()));
        }
        Ok(Self {
            quinn,
            runtime,
            client,
            settings,
            pool: Mutex::default(),
            connections,
            incoming: tokio::sync::Mutex::new(incoming),
            is_wildcard,
            is_stopped: AtomicBool::new(false),
        })
    }

    /// Connects to a peer that listens at `address`: opens a stream on the existing
    /// connection or on a new one. Concurrent calls for one address share an attempt to
    /// connect and its result. A dead connection is replaced, and so is one on which the
    /// peer does not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the stream; the connection, if it was made, is kept for
    /// [`QuicOptions::linger`].
    ///
    /// # Errors
    ///
    /// Those of [`daskwire_comm::Transports::connect`]. The message of
    /// [`CommError::Connect`] tells whether the peer did not answer, uses another
    /// protocol, or either end refused the certificate of the other.
    pub async fn connect(
        &self,
        address: &Address,
        options: &CommOptions,
    ) -> Result<Comm, CommError> {
        daskwire_comm::connect(self, address, options, Traffic::Normal).await
    }

    /// Waits for the next comm of any peer.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: no comm is lost.
    ///
    /// # Errors
    ///
    /// [`CommError::Closed`] if the endpoint was closed, or does not listen.
    async fn accept(&self) -> Result<PendingConnection, CommError> {
        match self.incoming.lock().await.recv().await {
            Some(Incoming::Comm(comm)) => Ok(comm.raw().into()),
            Some(Incoming::Failed { peer, error }) => Ok(PendingConnection::new(
                peer,
                core::future::ready(Err(error)),
            )),
            None => Err(Closed::Locally.into()),
        }
    }

    /// The address of the socket, with the actual port. The host is `0.0.0.0` if the socket
    /// is bound to every interface, as for the other transports.
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub fn local_address(&self) -> io::Result<Address> {
        let mut socket = self.quinn.local_addr()?;
        if self.is_wildcard {
            socket.set_ip(Ipv4Addr::UNSPECIFIED.into());
        }
        Ok(Address::new("quic", canonical(socket)))
    }

    /// The number of connections, made and accepted, for tests.
    #[doc(hidden)]
    pub fn connection_count(&self) -> usize {
        self.quinn.open_connections()
    }

    /// Closes all connections and waits until the peers have noticed. Open comms end
    /// with their connection, so close or drop them first.
    ///
    /// This takes a few round trips, and up to
    /// [`QuicOptions::drain_timeout`] while peers have not closed comms that
    /// were closed locally.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the endpoint no longer accepts connections, but existing ones may
    /// still be open. Call this again.
    pub async fn close(&self) {
        // PROTOCOL QUIC-17
        self.quinn.set_server_config(None);
        let connections = self.connections.all();
        for connection in &connections {
            connection.retire();
        }
        for connection in &connections {
            connection.drained().await;
        }
        // The close of a connection is sent once, and lost if the peer's socket buffer
        // is full. The end of a stream is sent until it is acknowledged.
        let limit = connections
            .iter()
            .map(|connection| connection.notification_time())
            .max();
        sleep(limit.unwrap_or_default()).await;
        // The list again, since handshakes may have finished meanwhile.
        for connection in self.connections.all() {
            connection.close();
        }
        self.quinn.close(code::GONE, b"");
        self.quinn.wait_idle().await;
    }

    /// Makes one attempt to open a stream to `address`.
    async fn stream(
        &self,
        address: &Address,
        limit: Duration,
    ) -> Result<RawConnection, ConnectError> {
        let opened = self.open(address, limit).await;
        let opened = opened.map_err(|failure| failure.connect_error(address))?;
        let connection = Arc::clone(&opened.connection);
        let ends = ends(&self.quinn, &connection.quinn)?;
        let raw = connection.raw(opened.receiver, opened.sender, ends);
        let (address, is_fresh) = (address.clone(), opened.is_fresh);
        Ok(raw.with_explanation(move |error| explain(&connection, is_fresh, address, error)))
    }

    /// Opens a stream to `address`.
    async fn open(&self, address: &Address, limit: Duration) -> Result<Opened, Failure> {
        loop {
            let (entry, is_fresh) = self.connection(address, limit).await?;
            let connection = Arc::clone(&entry.connection);
            let received = connection.received();
            // PROTOCOL QUIC-5
            match connection.quinn.open_bi().await {
                Ok((mut send, receive)) => {
                    // PROTOCOL QUIC-8: an empty frame. If this fails, so does the next
                    // write.
                    let _ = send.write(&[]).await;
                    let (mut receiver, sender) = stream::split(entry, send, receive);
                    if !is_fresh {
                        let wait = connection.acknowledgement_time().min(limit / 2);
                        let is_dead = match timeout(wait, receiver.wait()).await {
                            // PROTOCOL QUIC-13: a pause comes before the next attempt,
                            // because the peer may refuse a new connection too.
                            Ok(Err(ReadError::Reset(code::REFUSED))) => {
                                connection.retire();
                                return Err(Failure::retry(error::refused()));
                            }
                            Ok(Err(ReadError::ConnectionLost(reason))) => {
                                if error::is_final(&reason) {
                                    return Err(reason.into());
                                }
                                true
                            }
                            Ok(_) => false,
                            Err(_) => connection.received() == received,
                        };
                        // PROTOCOL QUIC-4
                        if is_dead {
                            connection.retire();
                            continue;
                        }
                    }
                    return Ok(Opened {
                        connection,
                        receiver,
                        sender,
                        is_fresh,
                    });
                }
                Err(error) if is_fresh => return Err(error.into()),
                // The connection has just died.
                Err(_) => {}
            }
        }
    }

    /// The connection to `address` (PROTOCOL QUIC-4), and whether it is new.
    async fn connection(
        &self,
        address: &Address,
        limit: Duration,
    ) -> Result<(CountedComm, bool), Failure> {
        let slot = self.slot(address);
        let seen = slot.attempts.load(Ordering::Acquire);
        let mut connected = slot.connected.lock().await;
        if let Some(connection) = connected.connection.upgrade()
            && connection.is_usable()
            && let Some(entry) = connection.add_comm()
        {
            return Ok((entry, false));
        }
        if slot.attempts.load(Ordering::Acquire) != seen
            && let Some(failure) = &connected.failure
        {
            return Err(failure.clone());
        }
        let outcome = match timeout(limit, self.attempt(address)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Failure {
                error: None,
                is_final: false,
            }),
        };
        slot.attempts.fetch_add(1, Ordering::Release);
        match outcome {
            Ok(connection) => {
                let connection = self.share(connection);
                let entry = connection.add_comm().ok_or(Failure {
                    error: None,
                    is_final: false,
                })?;
                *connected = Connected {
                    connection: Arc::downgrade(&connection),
                    failure: None,
                };
                let watched = connection.close_when_done(self.settings.linger);
                self.runtime.spawn(watched);
                Ok((entry, true))
            }
            Err(failure) => {
                *connected = Connected {
                    connection: Weak::new(),
                    failure: Some(failure.clone()),
                };
                Err(failure)
            }
        }
    }

    /// Makes one attempt at a new connection, to all addresses of the host.
    async fn attempt(&self, address: &Address) -> Result<quinn::Connection, Failure> {
        if self.quinn.open_connections() >= self.settings.max_connections {
            return Err(Failure::retry(io::ErrorKind::QuotaExceeded.into()));
        }
        let Some(client) = &self.client else {
            return Err(Failure::last(io::Error::new(
                io::ErrorKind::Unsupported,
                "this endpoint has no TLS configuration to connect with",
            )));
        };
        let (host, port) = daskwire_comm::host_and_port(address).map_err(Failure::address)?;
        let sockets = lookup_host(host, port).await.map_err(Failure::retry)?;
        let outcome = first_to_connect(sockets, |socket| {
            let name = match &client.server_name {
                Some(name) => name.to_str().into_owned(),
                // A host that is neither a name nor an IP address, such as
                // fe80::1%eth0, is verified by its IP address.
                None => match ServerName::try_from(address.host()) {
                    Ok(_) => address.host().to_owned(),
                    Err(_) => socket.ip().to_canonical().to_string(),
                },
            };
            let config = client.config.clone();
            async move {
                let connecting = self.quinn.connect_with(config, socket, &name);
                // The socket cannot reach addresses of this family, or the endpoint is closed.
                let connecting = connecting.map_err(|error| {
                    let is_stopped = matches!(error, quinn::ConnectError::EndpointStopping);
                    self.is_stopped.fetch_or(is_stopped, Ordering::Relaxed);
                    Attempt::Address(error)
                })?;
                match connecting.await {
                    // Other addresses of the host are the same peer.
                    Err(error) if error::is_final(&error) => Ok(Err(error)),
                    Err(error) => Err(Attempt::Connection(error)),
                    Ok(connection) => Ok(Ok(connection)),
                }
            }
        });
        match outcome.await {
            Ok(outcome) => Ok(outcome?),
            Err(errors) => {
                let mut failure = Failure::retry(io::ErrorKind::NotFound.into());
                for error in errors {
                    match error {
                        Attempt::Connection(error) => return Err(error.into()),
                        Attempt::Address(error) => {
                            let error = io::Error::new(io::ErrorKind::InvalidInput, error);
                            failure = Failure::last(error);
                        }
                    }
                }
                Err(failure)
            }
        }
    }

    /// Whether an attempt to connect has failed because the endpoint was closed, or its
    /// executor has ended.
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    fn slot(&self, address: &Address) -> Arc<AddressSlot> {
        let key = (Box::from(address.host()), address.port());
        let mut pool = lock(&self.pool);
        if let Some(slot) = pool.get(&key) {
            return Arc::clone(slot);
        }
        // Remove the slots that are not in use and have no usable connection.
        pool.retain(|_, slot| match slot.connected.try_lock() {
            Ok(connected) if Arc::strong_count(slot) == 1 => connected
                .connection
                .upgrade()
                .is_some_and(|connection| connection.is_usable()),
            _ => true,
        });
        Arc::clone(pool.entry(key).or_default())
    }

    fn share(&self, connection: quinn::Connection) -> Arc<SharedConnection> {
        self.connections
            .insert(connection, &self.runtime, &self.settings)
    }
}

impl Transport for Endpoint {
    fn schemes(&self) -> &[&'static str] {
        &["quic"]
    }

    fn connect<'a>(
        &'a self,
        address: &'a Address,
        options: &'a ConnectOptions,
    ) -> BoxFuture<'a, Result<PendingConnection, ConnectError>> {
        let limit = options.attempt_timeout.max(MIN_ATTEMPT_TIMEOUT);
        Box::pin(async move { Ok(self.stream(address, limit).await?.into()) })
    }

    /// Binds another endpoint with the same options.
    fn bind<'a>(
        &'a self,
        address: &'a Address,
    ) -> BoxFuture<'a, Result<Box<dyn Listen>, CommError>> {
        Box::pin(listen(address, &self.settings))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.close())
    }

    /// Creates a [`Quic`] with the same options.
    fn with_own_connections(&self) -> Option<Arc<dyn Transport>> {
        Some(Arc::new(Quic::new(self.settings.clone())))
    }
}

impl Listen for Endpoint {
    fn accept(&self) -> BoxFuture<'_, Result<PendingConnection, CommError>> {
        Box::pin(self.accept())
    }

    fn local_address(&self) -> io::Result<Address> {
        self.local_address()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.close())
    }
}

/// Binds a listening endpoint.
pub(crate) async fn listen(
    address: &Address,
    options: &QuicOptions,
) -> Result<Box<dyn Listen>, CommError> {
    if options.tls.server.is_none() {
        return Err(CommError::NoTls {
            address: address.clone(),
        });
    }
    Ok(Box::new(Endpoint::bind(address, options.clone()).await?))
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("local", &self.quinn.local_addr().ok())
            .field("connection_count", &self.connection_count())
            .finish_non_exhaustive()
    }
}

/// The error of an attempt to connect to one socket address.
enum Attempt {
    Address(quinn::ConnectError),
    Connection(ConnectionError),
}

/// An opened stream.
struct Opened {
    connection: Arc<SharedConnection>,
    receiver: Receiver,
    sender: Sender,
    /// Whether the connection was made for this stream.
    is_fresh: bool,
}

impl Failure {
    /// Converts the failure to the error of an attempt to connect to `address`.
    fn connect_error(self, address: &Address) -> ConnectError {
        // The error may be shared with other callers.
        let shared = |error: Arc<io::Error>| io::Error::new(error.kind(), error);
        match self.error.map(shared) {
            Some(error) if self.is_final => CommError::Connect {
                address: address.clone(),
                error,
            }
            .into(),
            Some(error) => error.into(),
            None => ConnectError::NoAnswer,
        }
    }

    fn address(error: CommError) -> Self {
        Self::last(io::Error::new(io::ErrorKind::InvalidInput, error))
    }

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
            // No answer: another attempt may succeed.
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
    pub(crate) fn insert(
        &self,
        connection: quinn::Connection,
        runtime: &Spawner,
        settings: &QuicOptions,
    ) -> Arc<SharedConnection> {
        let drain_len = settings.stream_window as usize;
        let drain_timeout = settings.drain_timeout;
        let connection =
            SharedConnection::new(connection, runtime.clone(), drain_timeout, drain_len);
        let mut all = lock(&self.0);
        // Dead connections are removed only when the vector is full, so that the cost is
        // amortized.
        if all.len() == all.capacity() {
            all.retain(|connection| connection.strong_count() != 0);
        }
        all.push(Arc::downgrade(&connection));
        connection
    }

    fn all(&self) -> Vec<Arc<SharedConnection>> {
        lock(&self.0).iter().filter_map(Weak::upgrade).collect()
    }
}

/// Finds the cause of a failed handshake, and whether another stream may succeed.
fn explain(
    connection: &SharedConnection,
    is_fresh: bool,
    address: Address,
    error: CommError,
) -> ConnectError {
    match (error, connection.quinn.close_reason()) {
        // The server refused the certificate after the client's TLS handshake was done.
        (_, Some(reason)) if error::is_final(&reason) => CommError::Connect {
            address,
            error: error::lost(reason),
        }
        .into(),
        // The connection died meanwhile, or allows no more streams.
        (_, Some(reason)) if !is_fresh => error::lost(reason).into(),
        (CommError::Io(error), _) if error.kind() == io::ErrorKind::ConnectionRefused => {
            connection.retire();
            error.into()
        }
        (error, _) => error.into(),
    }
}

pub(crate) fn ends(
    quinn: &quinn::Endpoint,
    connection: &quinn::Connection,
) -> io::Result<(Address, Address)> {
    let mut local = quinn.local_addr()?;
    if let Some(ip) = connection.local_ip() {
        local.set_ip(ip);
    }
    let address = |socket| Address::new("quic", canonical(socket));
    Ok((address(local), address(connection.remote_address())))
}

/// Locks a mutex, even after a panic: a holder changes the state only by one assignment, or
/// by calls of collections whose entries do not depend on each other, so a panic between two
/// of them leaves a valid state.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, feature = "ring"))]
mod tests {
    use daskwire_comm::tls::TlsSettings;

    use super::*;
    use crate::Tls;

    #[tokio::test]
    async fn closed_connections_are_freed() {
        let pem = daskwire_testing::certificate("self-signed.pem");
        let settings = TlsSettings::new(&*pem, &*pem).build();
        let options = QuicOptions::default()
            .with_tls(Tls::from(&settings.expect("a certificate and its key")))
            .with_linger(Duration::from_millis(1));
        let address = "quic://127.0.0.1:0".parse().expect("an address");
        let theirs = Endpoint::bind(&address, options.clone()).await;
        let theirs = theirs.expect("loopback");
        let address = theirs.local_address().expect("bound");
        let ours = Endpoint::client(options).expect("a socket");
        let raw = ours.stream(&address, MIN_ATTEMPT_TIMEOUT).await;
        assert_eq!(ours.connections.all().len(), 1);
        drop(raw.expect("it listens"));
        let freed = async {
            while !ours.connections.all().is_empty() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        let freed = timeout(Duration::from_secs(10), freed).await;
        freed.expect("the connection was freed");
    }
}
