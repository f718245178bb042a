//! The interface of transports, and the connection attempts, backoff and deadlines that
//! all of them share.

use core::fmt;
use core::pin::Pin;
use core::time::Duration;
use std::io;
use std::sync::Arc;

use daskwire::ErrorKind;

use crate::error::kind_of_io;
use crate::event::CommEvent;
use crate::inproc::Inproc;
use crate::listener::Listener;
use crate::runtime::{self, jitter, later, now};
use crate::{Address, AddressError, Comm, CommError, CommOptions, Phase, RawConnection};

/// A boxed future, as methods of trait objects return it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A transport: connects and listens for one or more schemes of addresses.
///
/// A transport makes connections; retries, deadlines and the handshake of Dask are
/// done by [`Transports`]. `daskwire_comm::conformance` tests a transport.
pub trait Transport: Send + Sync {
    /// The schemes of this transport: the part of its addresses before `://`.
    fn schemes(&self) -> &[&'static str];

    /// Makes one attempt to connect.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future must drop the connection.
    ///
    /// # Errors
    ///
    /// [`ConnectError`], which tells whether another attempt may succeed.
    fn connect<'a>(
        &'a self,
        address: &'a Address,
        options: &'a ConnectOptions,
    ) -> BoxFuture<'a, Result<PendingConnection, ConnectError>>;

    /// Binds a listener.
    ///
    /// # Errors
    ///
    /// [`CommError::Bind`], and errors of the address or of the transport's options.
    fn bind<'a>(
        &'a self,
        address: &'a Address,
    ) -> BoxFuture<'a, Result<Box<dyn Listen>, CommError>>;

    /// Waits until data on connections that several comms share has arrived, and closes
    /// these connections. Default: does nothing, for transports with a connection for
    /// each comm.
    ///
    /// # Cancel safety
    ///
    /// Must be cancel safe: a later call continues.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    /// Creates a transport with the same options that shares no connection with this one,
    /// so that it can be closed separately. Default: `None`, for transports without
    /// shared connections.
    fn with_own_connections(&self) -> Option<Arc<dyn Transport>> {
        None
    }
}

/// A listener of a transport.
pub trait Listen: Send + Sync {
    /// Waits for the next connection.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future must not lose a connection.
    ///
    /// # Errors
    ///
    /// [`CommError::Io`] if one connection failed, or for a temporary condition; the
    /// listener still works. After any other error it does not.
    fn accept(&self) -> BoxFuture<'_, Result<PendingConnection, CommError>>;

    /// The address of the listener, with the actual port.
    ///
    /// # Errors
    ///
    /// Those of the system.
    fn local_address(&self) -> io::Result<Address>;

    /// Stops accepting, and waits until data on connections that several comms share
    /// has arrived. Default: does nothing, for listeners that stop when they are dropped.
    ///
    /// # Cancel safety
    ///
    /// Must be cancel safe: a later call continues.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

/// Implements [`Transport`] for a pointer to a transport.
macro_rules! delegate_transport {
    ($(impl $([$($bounds:tt)*])? for $pointer:ty;)*) => {$(
        impl $(<$($bounds)*>)? Transport for $pointer {
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

            fn with_own_connections(&self) -> Option<Arc<dyn Transport>> {
                (**self).with_own_connections()
            }
        }
    )*};
}

delegate_transport! {
    impl [T: Transport + ?Sized] for Box<T>;
    // Not for every `Arc`, whose methods would hide those of the transport's own type.
    impl for Arc<dyn Transport>;
}

/// Implements [`Listen`] for a pointer to a listener.
macro_rules! delegate_listen {
    ($($pointer:ident),*) => {$(
        impl<L: Listen + ?Sized> Listen for $pointer<L> {
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
    )*};
}

delegate_listen!(Arc, Box);

/// The options of one attempt to connect.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectOptions {
    /// The timeout of the attempt, for transports that may wait for a lost packet; they
    /// return [`ConnectError::NoAnswer`] then. In any case the attempt is dropped when
    /// [`CommOptions::connect_timeout`] has passed.
    pub attempt_timeout: Duration,
}

impl ConnectOptions {
    /// Creates the options of an attempt, as [`Transports`] does for a transport. Tests of a
    /// transport may need their own.
    pub const fn new(attempt_timeout: Duration) -> Self {
        Self { attempt_timeout }
    }
}

/// The traffic class of a comm: its priority among comms that share a connection, when
/// there is more to send than the path can carry. It applies to sent messages.
/// Transports that cannot prioritize comms ignore it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Traffic {
    /// Sent first: heartbeats and messages of the scheduler.
    Control,
    /// Sent after control and before bulk messages.
    #[default]
    Normal,
    /// Sent last: data that workers fetch.
    Bulk,
}

/// The error of an attempt to connect.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConnectError {
    /// The peer did not answer within [`ConnectOptions::attempt_timeout`].
    NoAnswer,
    /// The attempt failed, and another one may succeed.
    Failed(io::Error),
    /// The attempt failed, and any other would too.
    Fatal(CommError),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAnswer => f.write_str("no answer within the time of an attempt"),
            Self::Failed(error) => error.fmt(f),
            Self::Fatal(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for ConnectError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::NoAnswer => None,
            Self::Failed(error) => error.source(),
            Self::Fatal(error) => error.source(),
        }
    }
}

daskwire::kinds! {
    ConnectError: |error| match error {
        Self::NoAnswer => ErrorKind::Timeout,
        Self::Failed(error) => kind_of_io(error),
        Self::Fatal(error) => error.kind(),
    };
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
    /// The error of a last attempt.
    pub(crate) fn into_comm_error(self) -> CommError {
        match self {
            Self::NoAnswer => CommError::Io(io::ErrorKind::TimedOut.into()),
            Self::Failed(error) => error.downcast().unwrap_or_else(CommError::Io),
            Self::Fatal(error) => error,
        }
    }

    /// Converts the error of a transport's own handshake. If the connection was lost,
    /// another attempt may succeed, for example at a proxy whose server is restarting. Dask
    /// repeats such attempts too.
    fn of_opening(error: CommError) -> Self {
        match error {
            CommError::Io(error) => Self::Failed(error),
            error @ CommError::Closed(_) => {
                Self::Failed(io::Error::new(io::ErrorKind::ConnectionReset, error))
            }
            error => Self::Fatal(error),
        }
    }
}

/// A connection that was made or accepted, before the transport's own handshake, such as
/// that of TLS.
pub struct PendingConnection {
    peer: Address,
    opening: BoxFuture<'static, Result<RawConnection, CommError>>,
}

impl PendingConnection {
    /// Creates a connection to `peer`, which is usable when `opening` is done.
    pub fn new(
        peer: Address,
        opening: impl Future<Output = Result<RawConnection, CommError>> + Send + 'static,
    ) -> Self {
        Self {
            peer,
            opening: Box::pin(opening),
        }
    }

    /// Continues with `then` when this connection is usable, for a transport over connections
    /// of another one. `peer` is the address of its peer.
    #[must_use]
    pub fn and_then<F>(
        self,
        peer: Address,
        then: impl FnOnce(RawConnection) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = Result<RawConnection, CommError>> + Send + 'static,
    {
        let opening = self.opening;
        Self::new(peer, async move { then(opening.await?).await })
    }

    /// The address of the peer.
    pub const fn peer_address(&self) -> &Address {
        &self.peer
    }

    /// Does the handshake of the transport.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection.
    ///
    /// # Errors
    ///
    /// Those of the transport, and [`CommError::Timeout`] after
    /// [`CommOptions::handshake_timeout`].
    pub async fn open(self, options: &CommOptions) -> Result<RawConnection, CommError> {
        let timeout = options.handshake_timeout;
        let outcome = runtime::timeout(timeout, self.opening).await;
        outcome.unwrap_or(Err(late(timeout)))
    }

    /// Does both handshakes within one timeout.
    pub(crate) async fn handshake(self, options: &CommOptions) -> Result<Comm, ConnectError> {
        self.handshake_through(options, &|connection| connection)
            .await
    }

    /// Does both handshakes within one timeout, that of Dask on the connection that `wrap`
    /// returns.
    async fn handshake_through(
        self,
        options: &CommOptions,
        wrap: &Wrap<'_>,
    ) -> Result<Comm, ConnectError> {
        let timeout = options.handshake_timeout;
        // Boxed, because it is large and would enlarge the futures of callers.
        let both = Box::pin(async {
            let opened = self.opening.await.map_err(ConnectError::of_opening)?;
            wrap(opened).try_handshake(options).await
        });
        let outcome = runtime::timeout(timeout, both).await;
        outcome.unwrap_or(Err(late(timeout).into()))
    }
}

/// A function that wraps a connection before the handshake of Dask, for example to count
/// its bytes.
pub type Wrap<'w> = dyn Fn(RawConnection) -> RawConnection + Send + Sync + 'w;

const fn late(timeout: Duration) -> CommError {
    let phase = Phase::Handshake;
    CommError::Timeout { phase, timeout }
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
    /// Creates a registry as [`Transports::new`] does.
    fn default() -> Self {
        Self::new()
    }
}

impl Transports {
    /// Creates a registry with `inproc://` alone.
    pub fn new() -> Self {
        Self(vec![Arc::new(Inproc)])
    }

    /// Adds a transport, which replaces earlier ones for its schemes.
    #[must_use]
    pub fn with(mut self, transport: impl Transport + 'static) -> Self {
        self.0.insert(0, Arc::new(transport));
        self
    }

    /// Adds all transports of another registry, which replace earlier ones for their schemes.
    #[must_use]
    pub fn with_all(mut self, others: &Self) -> Self {
        self.0.splice(..0, others.0.iter().cloned());
        self
    }

    /// The schemes of all transports.
    pub fn schemes(&self) -> impl Iterator<Item = &'static str> {
        self.0
            .iter()
            .flat_map(|transport| transport.schemes().iter().copied())
    }

    /// The transport for addresses of this scheme.
    ///
    /// # Errors
    ///
    /// [`CommError::Scheme`] if no transport has this scheme.
    pub fn for_scheme(&self, scheme: &str) -> Result<&dyn Transport, CommError> {
        let mut transports = self.0.iter();
        match transports.find(|transport| transport.schemes().contains(&scheme)) {
            Some(transport) => Ok(&**transport),
            None => Err(no_transport(scheme)),
        }
    }

    /// Connects to a peer that listens at `address`, and does the handshake.
    ///
    /// If the connection is refused or lost before the handshake of Dask, or the host name
    /// does not resolve yet, further attempts follow until
    /// [`CommOptions::connect_timeout`] has passed. The pauses
    /// between them are random and grow, so that many workers that lost their
    /// scheduler do not reconnect at the same time. A peer that does not finish the
    /// handshake may be busy: further attempts follow after
    /// [`CommOptions::handshake_timeout`], until [`CommOptions::answer_timeout`] has passed.
    /// After any other error of the handshake of Dask, another attempt is made only if the
    /// transport reports that a new connection may succeed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the connection.
    ///
    /// # Errors
    ///
    /// * [`CommError::Connect`] with the error of the last attempt;
    /// * [`CommError::Timeout`] if no attempt got an answer;
    /// * [`CommError::Scheme`] if no transport has the scheme;
    /// * those of the transport, such as [`CommError::NoTls`], after which no other
    ///   attempt is made;
    /// * those of [`Comm::establish`].
    pub async fn connect(
        &self,
        address: &Address,
        options: &CommOptions,
    ) -> Result<Comm, CommError> {
        self.connect_for(address, options, Traffic::Normal).await
    }

    /// Connects as [`Transports::connect`] does, with a traffic class.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the connection.
    ///
    /// # Errors
    ///
    /// Those of [`Transports::connect`].
    pub async fn connect_for(
        &self,
        address: &Address,
        options: &CommOptions,
        traffic: Traffic,
    ) -> Result<Comm, CommError> {
        let transport = self.for_scheme(address.scheme())?;
        connect(transport, address, options, traffic).await
    }

    /// Connects as [`Transports::connect_for`] does, over connections that `wrap` returns.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the connection.
    ///
    /// # Errors
    ///
    /// Those of [`Transports::connect`].
    pub async fn connect_through(
        &self,
        address: &Address,
        options: &CommOptions,
        traffic: Traffic,
        wrap: &Wrap<'_>,
    ) -> Result<Comm, CommError> {
        let transport = self.for_scheme(address.scheme())?;
        connect_through(transport, address, options, traffic, wrap).await
    }

    /// Connects as [`Transports::connect`] does, without the handshake of Dask.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the connection.
    ///
    /// # Errors
    ///
    /// Those of [`Transports::connect`], except for errors of the handshake.
    pub async fn connect_raw(
        &self,
        address: &Address,
        options: &CommOptions,
        traffic: Traffic,
    ) -> Result<RawConnection, CommError> {
        let transport = self.for_scheme(address.scheme())?;
        connect_raw(transport, address, options, traffic).await
    }

    /// Listens at `address`, and accepts comms with `options`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the listener.
    ///
    /// # Errors
    ///
    /// Those of [`Transport::bind`], and [`CommError::Scheme`].
    pub async fn bind(
        &self,
        address: &Address,
        options: CommOptions,
    ) -> Result<Listener, CommError> {
        let listen = self.for_scheme(address.scheme())?.bind(address).await?;
        Ok(Listener::new(listen, options))
    }

    /// Waits until data on connections that several comms share has arrived, and closes
    /// these connections, for all clones.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: call it again.
    pub async fn close(&self) {
        for transport in &self.0 {
            transport.close().await;
        }
    }

    /// Creates the same transports without the connections of these, for a client or worker
    /// that is closed separately.
    #[must_use]
    pub fn with_own_connections(&self) -> Self {
        let separate = |transport: &Arc<dyn Transport>| {
            transport
                .with_own_connections()
                .unwrap_or(Arc::clone(transport))
        };
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

/// Connects over one transport, as [`Transports::connect`] does.
///
/// # Cancel safety
///
/// Dropping the future drops the connection.
///
/// # Errors
///
/// Those of [`Transports::connect`].
pub async fn connect(
    transport: &dyn Transport,
    address: &Address,
    options: &CommOptions,
    traffic: Traffic,
) -> Result<Comm, CommError> {
    connect_through(transport, address, options, traffic, &|connection| {
        connection
    })
    .await
}

async fn connect_through(
    transport: &dyn Transport,
    address: &Address,
    options: &CommOptions,
    traffic: Traffic,
    wrap: &Wrap<'_>,
) -> Result<Comm, CommError> {
    let mut attempts = Attempts::new(transport, address, options)?;
    loop {
        let pending = attempts.next().await?;
        let options = attempts.handshake_options();
        match pending.handshake_through(&options, wrap).await {
            Ok(comm) => {
                comm.set_traffic(traffic);
                return Ok(comm);
            }
            Err(error) => attempts.failed(error).await?,
        }
    }
}

/// Connects over one transport, as [`Transports::connect_raw`] does.
///
/// # Cancel safety
///
/// Dropping the future drops the connection.
///
/// # Errors
///
/// Those of [`Transports::connect_raw`].
pub async fn connect_raw(
    transport: &dyn Transport,
    address: &Address,
    options: &CommOptions,
    traffic: Traffic,
) -> Result<RawConnection, CommError> {
    let mut attempts = Attempts::new(transport, address, options)?;
    loop {
        let pending = attempts.next().await?;
        match pending.open(&attempts.handshake_options()).await {
            Ok(connection) => {
                connection.set_traffic(traffic);
                return Ok(connection);
            }
            Err(error) => attempts.failed(ConnectError::of_opening(error)).await?,
        }
    }
}

/// The attempts to connect to one address.
struct Attempts<'a> {
    transport: &'a dyn Transport,
    address: &'a Address,
    options: &'a CommOptions,
    /// The time until which a connection must be made.
    deadline: runtime::Instant,
    /// The time until which a peer that accepts connections must finish a handshake.
    answer_deadline: runtime::Instant,
    attempt: ConnectOptions,
    /// The number of attempts so far.
    count: u32,
    backoff: Duration,
    /// The error of the last attempt that was not without any answer.
    last: Option<CommError>,
}

impl<'a> Attempts<'a> {
    fn new(
        transport: &'a dyn Transport,
        address: &'a Address,
        options: &'a CommOptions,
    ) -> Result<Self, CommError> {
        if !transport.schemes().contains(&address.scheme()) {
            return Err(no_transport(address.scheme()));
        }
        Ok(Self {
            transport,
            address,
            options,
            deadline: later(options.connect_timeout),
            answer_deadline: later(options.answer_timeout.max(options.connect_timeout)),
            attempt: ConnectOptions {
                // A connection request may be lost, so leave time for further ones
                // (`intermediate_cap` in Dask's `connect`).
                attempt_timeout: options.connect_timeout / 5,
            },
            count: 0,
            backoff: BACKOFF,
            last: None,
        })
    }

    /// Makes attempts until one succeeds.
    async fn next(&mut self) -> Result<PendingConnection, CommError> {
        loop {
            self.count += 1;
            let connecting = self.transport.connect(self.address, &self.attempt);
            let error = match runtime::timeout_at(self.deadline, connecting).await {
                Ok(Ok(pending)) => {
                    let attempt = self.count;
                    CommEvent::Connected { attempt }.emit(self.address);
                    return Ok(pending);
                }
                Ok(Err(error)) => error,
                Err(_) => ConnectError::NoAnswer,
            };
            self.failed(error).await?;
        }
    }

    /// The options for the handshake of the current attempt.
    fn handshake_options(&self) -> CommOptions {
        let left = self.answer_deadline.saturating_duration_since(now());
        self.options
            .clone()
            .with_handshake_timeout(self.options.handshake_timeout.min(left))
    }

    /// Waits before the next attempt, or returns the error if it was the last one.
    async fn failed(&mut self, error: ConnectError) -> Result<(), CommError> {
        let delay = self.delay(error);
        let delay = delay.inspect_err(|error| self.emit_connect_failed(error))?;
        runtime::sleep(delay).await;
        Ok(())
    }

    /// Emits the error of the last attempt.
    fn emit_connect_failed(&self, error: &CommError) {
        let attempt = self.count;
        CommEvent::ConnectFailed { attempt, error }.emit(self.address);
    }

    /// The time to wait before the next attempt, or the error if it was the last one.
    fn delay(&mut self, error: ConnectError) -> Result<Duration, CommError> {
        let address = self.address;
        let failed = |error| CommError::Connect {
            address: address.clone(),
            error,
        };
        let has_answer = !matches!(error, ConnectError::NoAnswer);
        match error {
            ConnectError::Fatal(CommError::Timeout { phase, mut timeout }) => {
                // The peer accepts connections, so the next one may take as long as the first.
                self.deadline = later(self.options.connect_timeout).min(self.answer_deadline);
                if self.options.connect_retry {
                    timeout = self
                        .options
                        .answer_timeout
                        .max(self.options.connect_timeout);
                }
                self.last = Some(CommError::Timeout { phase, timeout });
            }
            ConnectError::Fatal(error) => return Err(error),
            ConnectError::Failed(error) if is_permanent(&error) => return Err(failed(error)),
            ConnectError::Failed(error) => self.last = Some(failed(error)),
            // The error of an earlier attempt is more helpful than a timeout.
            ConnectError::NoAnswer => {}
        }
        let left = self.deadline.saturating_duration_since(now());
        if left.is_zero() || (self.last.is_some() && !self.options.connect_retry) {
            return Err(self.last.take().unwrap_or(CommError::Timeout {
                phase: Phase::Connect,
                timeout: self.options.connect_timeout,
            }));
        }
        let delay = jitter(self.backoff.min(left));
        CommEvent::AttemptFailed {
            attempt: self.count,
            error: match &self.last {
                Some(CommError::Connect { error, .. }) if has_answer => error,
                Some(error) if has_answer => error,
                _ => &ConnectError::NoAnswer,
            },
            delay,
        }
        .emit(address);
        self.backoff = self.backoff.saturating_mul(2);
        let longer = self.attempt.attempt_timeout.saturating_mul(3) / 2;
        self.attempt.attempt_timeout = longer;
        Ok(delay)
    }
}

/// Whether any other attempt to connect would fail with the same error. Transports that
/// attempt several addresses return the error of another address then.
pub fn is_permanent(error: &io::Error) -> bool {
    matches!(
        kind_of_io(error),
        ErrorKind::Invalid | ErrorKind::Refused | ErrorKind::Unsupported | ErrorKind::Protocol
    )
}

/// The host and port of an address, for transports of `host:port`.
///
/// # Errors
///
/// [`CommError::Address`] if the location is not `host:port`.
pub fn host_and_port(address: &Address) -> Result<(&str, u16), CommError> {
    let ends = address.host_and_port();
    ends.ok_or_else(|| CommError::Address {
        address: address.clone(),
        error: AddressError::Host,
    })
}

/// The upper bound of the first pause between attempts to connect, which doubles for
/// each further one (`backoff_base` of Dask's `connect`).
const BACKOFF: Duration = Duration::from_millis(10);
