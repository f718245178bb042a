//! The interface of transports, and what is the same for all of them:
//! attempts, pauses and deadlines.

use core::fmt;
use core::pin::Pin;
use core::time::Duration;
use std::io;
use std::sync::Arc;

use crate::inproc::Inproc;
use crate::listener::Listener;
use crate::runtime::{self, jitter, later, now};
use crate::{Address, AddressError, Comm, CommError, CommOptions, Phase, RawConnection};

/// A future on the heap, as methods of trait objects return it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A way to carry comms, for one or more schemes of addresses.
///
/// A transport makes connections; attempts, deadlines and the handshake of Dask
/// are the business of [`Transports`]. `daskwire_comm::conformance` checks
/// whether what it makes will do.
pub trait Transport: Send + Sync {
    /// The schemes that it carries: what stands before `://`.
    fn schemes(&self) -> &[&'static str];

    /// Attempts once to connect.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future must drop the connection.
    ///
    /// # Errors
    ///
    /// [`ConnectError`], which says whether another attempt may go better.
    fn connect<'a>(
        &'a self,
        address: &'a Address,
        options: &'a ConnectOptions,
    ) -> BoxFuture<'a, Result<PendingConnection, ConnectError>>;

    /// Listens.
    ///
    /// # Errors
    ///
    /// [`CommError::Bind`], and what is wrong with the address or the options of
    /// the transport.
    fn bind<'a>(
        &'a self,
        address: &'a Address,
    ) -> BoxFuture<'a, Result<Box<dyn Listen>, CommError>>;

    /// Waits until everything has arrived that went over connections which several
    /// comms share, and ends these connections. Default: nothing, for
    /// transports with a connection for each comm.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    /// A transport with the same options that shares no connection with this one, so
    /// that it can be closed by itself. Default: none, for transports without
    /// shared connections.
    fn separate(&self) -> Option<Arc<dyn Transport>> {
        None
    }
}

/// A listener of a transport.
pub trait Listen: Send + Sync {
    /// Waits for the next connection.
    ///
    /// # Cancel safety
    ///
    /// No connection may be lost if the future is dropped.
    ///
    /// # Errors
    ///
    /// [`CommError::Io`] where the listener goes on: most errors here are about
    /// one connection, or pass. Any other error is the end of the listener.
    fn accept(&self) -> BoxFuture<'_, Result<PendingConnection, CommError>>;

    /// Where it listens, with the port that it got.
    ///
    /// # Errors
    ///
    /// What the system says.
    fn local_address(&self) -> io::Result<Address>;

    /// Accepts nothing more, and waits until everything has arrived that went over
    /// connections which several comms share. Default: nothing, for
    /// transports whose listeners end when they are dropped.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

impl<T: Transport + ?Sized> Transport for Box<T> {
    fn schemes(&self) -> &[&'static str] {
        (**self).schemes()
    }

    fn connect<'a>(
        &'a self,
        address: &'a Address,
        options: &'a ConnectOptions,
    ) -> BoxFuture<'a, Result<PendingConnection, ConnectError>> {
        (**self).connect(address, options)
    }

    fn bind<'a>(
        &'a self,
        address: &'a Address,
    ) -> BoxFuture<'a, Result<Box<dyn Listen>, CommError>> {
        (**self).bind(address)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        (**self).close()
    }

    fn separate(&self) -> Option<Arc<dyn Transport>> {
        (**self).separate()
    }
}

impl<L: Listen + ?Sized> Listen for Arc<L> {
    fn accept(&self) -> BoxFuture<'_, Result<PendingConnection, CommError>> {
        (**self).accept()
    }

    fn local_address(&self) -> io::Result<Address> {
        (**self).local_address()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        (**self).close()
    }
}

/// What a transport is told of one attempt to connect.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectOptions {
    /// How long the attempt should take at most, where a lost packet would be
    /// waited for: [`ConnectError::NoAnswer`] after that. The attempt is dropped
    /// when [`CommOptions::connect_timeout`] has passed.
    pub attempt_timeout: Duration,
    /// What the comm is for.
    pub traffic: Traffic,
}

/// What a comm is for: what goes first where comms share a connection that has
/// more to send than the path takes. It holds for what this side sends.
/// Transports that cannot tell comms apart ignore it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Traffic {
    /// Ahead of all others: heartbeats, the scheduler's messages.
    Control,
    /// In between.
    #[default]
    Normal,
    /// When there is nothing else: data that workers fetch.
    Bulk,
}

/// Why an attempt to connect led to nothing.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConnectError {
    /// Nothing was heard within [`ConnectOptions::attempt_timeout`].
    NoAnswer,
    /// Another attempt may go better.
    Failed(io::Error),
    /// No other attempt will go better.
    Fatal(CommError),
}

impl From<io::Error> for ConnectError {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<CommError> for ConnectError {
    fn from(error: CommError) -> Self {
        Self::Fatal(error)
    }
}

impl ConnectError {
    /// The error where there is no other attempt.
    pub(crate) fn into_comm_error(self) -> CommError {
        match self {
            Self::NoAnswer => CommError::Io(io::ErrorKind::TimedOut.into()),
            Self::Failed(error) => CommError::Io(error),
            Self::Fatal(error) => error,
        }
    }
}

/// A connection that was made or accepted, and on which the transport may have a
/// handshake of its own to do, such as that of TLS.
pub struct PendingConnection {
    peer: Address,
    opening: BoxFuture<'static, Result<RawConnection, CommError>>,
}

impl PendingConnection {
    /// A connection to `peer`, which stands when `opening` is done.
    pub fn new(
        peer: Address,
        opening: impl Future<Output = Result<RawConnection, CommError>> + Send + 'static,
    ) -> Self {
        Self {
            peer,
            opening: Box::pin(opening),
        }
    }

    /// The address of the other end.
    pub const fn peer_address(&self) -> &Address {
        &self.peer
    }

    /// Does the handshake of the transport.
    ///
    /// # Errors
    ///
    /// Those of the transport, and [`CommError::Timeout`] after
    /// [`CommOptions::handshake_timeout`].
    pub async fn open(self, options: &CommOptions) -> Result<RawConnection, CommError> {
        let after = options.handshake_timeout;
        let outcome = runtime::timeout(after, self.opening).await;
        outcome.unwrap_or(Err(late(after)))
    }

    /// Does both handshakes within the time of one.
    pub(crate) async fn handshake(self, options: &CommOptions) -> Result<Comm, ConnectError> {
        let after = options.handshake_timeout;
        // On the heap, as it is large, and the futures of callers with it.
        let both = Box::pin(async { self.opening.await?.try_handshake(options).await });
        let outcome = runtime::timeout(after, both).await;
        outcome.unwrap_or(Err(late(after).into()))
    }
}

const fn late(after: Duration) -> CommError {
    let phase = Phase::Handshake;
    CommError::Timeout { phase, after }
}

impl From<RawConnection> for PendingConnection {
    fn from(connection: RawConnection) -> Self {
        Self::new(connection.peer.clone(), core::future::ready(Ok(connection)))
    }
}

impl fmt::Debug for PendingConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingConnection")
            .field("peer", &format_args!("{}", self.peer))
            .finish_non_exhaustive()
    }
}

/// The transports of a program, by scheme. Cloning it is cheap; clones share
/// connections.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use daskwire_comm::{CommOptions, Transports};
///
/// let transports = Transports::new();
/// let options = CommOptions::default();
/// let listener = transports.bind(&"inproc://here".parse()?, options.clone()).await?;
/// let address = listener.local_address()?;
/// let (near, far) = tokio::join!(transports.connect(&address, &options), async {
///     listener.accept().await?.handshake().await
/// });
/// near?.write_message(&[b"\x81\xa2op\xa4ping"]).await?;
/// assert!(far?.read_message().await?.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Transports(Vec<Arc<dyn Transport>>);

impl Default for Transports {
    /// As [`Transports::new`].
    fn default() -> Self {
        Self::new()
    }
}

impl Transports {
    /// `inproc://` alone, which is memory of this process.
    pub fn new() -> Self {
        Self(vec![Arc::new(Inproc)])
    }

    /// Adds a transport. It takes the place of earlier ones for its schemes.
    #[must_use]
    pub fn with(mut self, transport: impl Transport + 'static) -> Self {
        self.0.insert(0, Arc::new(transport));
        self
    }

    /// The schemes that it carries.
    pub fn schemes(&self) -> impl Iterator<Item = &'static str> {
        self.0
            .iter()
            .flat_map(|transport| transport.schemes().iter().copied())
    }

    /// The transport for addresses of this scheme.
    ///
    /// # Errors
    ///
    /// [`CommError::Scheme`] if there is none.
    pub fn for_scheme(&self, scheme: &str) -> Result<&dyn Transport, CommError> {
        let mut transports = self.0.iter();
        match transports.find(|transport| transport.schemes().contains(&scheme)) {
            Some(transport) => Ok(&**transport),
            None => Err(no_transport(scheme)),
        }
    }

    /// Makes a comm to a peer that listens at `address`.
    ///
    /// While nobody listens there, or the name stands for nothing yet, further
    /// attempts are made until [`CommOptions::connect_timeout`] has passed, after
    /// random pauses that may grow, so that a thousand workers that lost their
    /// scheduler do not come back all at once. The handshake is repeated only where
    /// the transport says that a new connection may do better.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the connection.
    ///
    /// # Errors
    ///
    /// * [`CommError::Connect`] with what the last attempt met;
    /// * [`CommError::Timeout`] if no attempt met anything at all;
    /// * [`CommError::Scheme`] if there is no transport for it;
    /// * those of the transport, such as [`CommError::NoTls`], after which no other
    ///   attempt is made;
    /// * as [`Comm::establish`].
    pub async fn connect(
        &self,
        address: &Address,
        options: &CommOptions,
    ) -> Result<Comm, CommError> {
        self.connect_for(address, options, Traffic::Normal).await
    }

    /// [`Transports::connect`], and says what the comm is for.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn connect_for(
        &self,
        address: &Address,
        options: &CommOptions,
        traffic: Traffic,
    ) -> Result<Comm, CommError> {
        let transport = self.for_scheme(address.scheme())?;
        connect(transport, address, options, traffic).await
    }

    /// Makes a connection as [`Transports::connect`] does, without the handshake of
    /// Dask.
    ///
    /// # Errors
    ///
    /// As there, but for those of the handshake.
    pub async fn connect_raw(
        &self,
        address: &Address,
        options: &CommOptions,
        traffic: Traffic,
    ) -> Result<RawConnection, CommError> {
        let transport = self.for_scheme(address.scheme())?;
        connect_raw(transport, address, options, traffic).await
    }

    /// Listens at `address`. `options` are for the comms that will be accepted.
    ///
    /// # Errors
    ///
    /// As [`Transport::bind`], and [`CommError::Scheme`].
    pub async fn bind(
        &self,
        address: &Address,
        options: CommOptions,
    ) -> Result<Listener, CommError> {
        let listen = self.for_scheme(address.scheme())?.bind(address).await?;
        Ok(Listener::new(listen, options))
    }

    /// Waits until everything has arrived that went over connections which several
    /// comms share, and ends these connections, for all clones.
    pub async fn close(&self) {
        for transport in &self.0 {
            transport.close().await;
        }
    }

    /// The same transports, which share no connection with these: for a party that
    /// is to be closed by itself.
    #[must_use]
    pub fn separate(&self) -> Self {
        let separate =
            |transport: &Arc<dyn Transport>| transport.separate().unwrap_or(Arc::clone(transport));
        Self(self.0.iter().map(separate).collect())
    }
}

impl fmt::Debug for Transports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.schemes()).finish()
    }
}

fn no_transport(scheme: &str) -> CommError {
    let scheme = scheme.into();
    CommError::Scheme { scheme }
}

/// Makes a comm by one transport, as [`Transports::connect`] does.
///
/// # Errors
///
/// As there.
pub async fn connect(
    transport: &dyn Transport,
    address: &Address,
    options: &CommOptions,
    traffic: Traffic,
) -> Result<Comm, CommError> {
    let mut attempts = Attempts::new(transport, address, options, traffic)?;
    loop {
        let pending = attempts.next().await?;
        match pending.handshake(options).await {
            Ok(comm) => {
                comm.set_traffic(traffic);
                return Ok(comm);
            }
            Err(error) => attempts.failed(error).await?,
        }
    }
}

/// Makes a connection by one transport, as [`Transports::connect_raw`] does.
///
/// # Errors
///
/// As there.
pub async fn connect_raw(
    transport: &dyn Transport,
    address: &Address,
    options: &CommOptions,
    traffic: Traffic,
) -> Result<RawConnection, CommError> {
    let mut attempts = Attempts::new(transport, address, options, traffic)?;
    let connection = attempts.next().await?.open(options).await?;
    connection.set_traffic(traffic);
    Ok(connection)
}

/// The attempts to connect to one address.
struct Attempts<'a> {
    transport: &'a dyn Transport,
    address: &'a Address,
    options: &'a CommOptions,
    deadline: runtime::Instant,
    attempt: ConnectOptions,
    backoff: Duration,
    /// What the last attempt met, if any met something.
    last: Option<io::Error>,
}

impl<'a> Attempts<'a> {
    fn new(
        transport: &'a dyn Transport,
        address: &'a Address,
        options: &'a CommOptions,
        traffic: Traffic,
    ) -> Result<Self, CommError> {
        if !transport.schemes().contains(&address.scheme()) {
            return Err(no_transport(address.scheme()));
        }
        Ok(Self {
            transport,
            address,
            options,
            deadline: later(options.connect_timeout),
            attempt: ConnectOptions {
                // A connection request may be lost; do not wait for the first one
                // until it is too late for a second (`intermediate_cap` there).
                attempt_timeout: options.connect_timeout / 5,
                traffic,
            },
            backoff: BACKOFF,
            last: None,
        })
    }

    /// The next connection. Makes attempts until there is one.
    async fn next(&mut self) -> Result<PendingConnection, CommError> {
        loop {
            let connecting = self.transport.connect(self.address, &self.attempt);
            let error = match runtime::timeout_at(self.deadline, connecting).await {
                Ok(Ok(pending)) => return Ok(pending),
                Ok(Err(error)) => error,
                Err(_) => ConnectError::NoAnswer,
            };
            self.failed(error).await?;
        }
    }

    /// Pauses before the next attempt, unless there is none.
    async fn failed(&mut self, error: ConnectError) -> Result<(), CommError> {
        let address = self.address;
        let failed = |error| CommError::Connect {
            address: address.clone(),
            error,
        };
        match error {
            ConnectError::Fatal(error) => return Err(error),
            ConnectError::Failed(error) if is_lasting(&error) => return Err(failed(error)),
            ConnectError::Failed(error) => self.last = Some(error),
            // What an earlier attempt met says more than that time is up.
            ConnectError::NoAnswer => {}
        }
        let left = self.deadline.saturating_duration_since(now());
        if left.is_zero() || (self.last.is_some() && !self.options.connect_retry) {
            return Err(match self.last.take() {
                Some(error) => failed(error),
                None => CommError::Timeout {
                    phase: Phase::Connect,
                    after: self.options.connect_timeout,
                },
            });
        }
        runtime::sleep(jitter(self.backoff.min(left))).await;
        self.backoff = self.backoff.saturating_mul(2);
        let longer = self.attempt.attempt_timeout.saturating_mul(3) / 2;
        self.attempt.attempt_timeout = longer;
        Ok(())
    }
}

/// Whether another attempt would meet the same.
fn is_lasting(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidInput | io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported
    )
}

/// Host and port of an address, for transports of `host:port`.
///
/// # Errors
///
/// [`CommError::Address`] if it is none.
pub fn host_and_port(address: &Address) -> Result<(&str, u16), CommError> {
    let ends = address.host_and_port();
    ends.ok_or_else(|| CommError::Address {
        address: address.clone(),
        error: AddressError::Host,
    })
}

/// The first pause between two attempts to connect is shorter than this; the
/// next ones may be twice as long each (`backoff_base` of Dask's `connect`).
const BACKOFF: Duration = Duration::from_millis(10);
