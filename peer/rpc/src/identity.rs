//! Requests for the identity of a scheduler and its workers.

use core::time::Duration;
use std::collections::BTreeMap;

use daskwire::message::Layout;
use daskwire::msgpack::Writer;
use daskwire_comm::runtime;
use daskwire_comm::{Address, Comm, CommError, CommOptions, Transports, WireFormat};
use daskwire_messages::protocol::{ProtocolError, WorkerStatus, body_in};
use daskwire_messages::release::{UnsupportedRelease, rust_version};
use daskwire_messages::{Release, Value};

use crate::RequestError;

/// The identity of a scheduler.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Identity {
    /// The scheduler's class, `Scheduler`.
    pub kind: String,
    /// The scheduler's id.
    pub id: String,
    /// The scheduler's address.
    pub address: String,
    /// The start time in seconds since 1970; since 2021.4.0.
    pub started: Option<f64>,
    /// The port of the scheduler's dashboard.
    pub dashboard_port: Option<u16>,
    /// The workers, in the scheduler's order.
    pub workers: Vec<WorkerIdentity>,
    /// The scheduler's release of Dask, if [`identity`] found it.
    pub release: Option<Release>,
    /// The version of daskwire, if [`identity`] found that the scheduler is in Rust.
    pub rust_version: Option<String>,
}

/// The identity of a worker.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct WorkerIdentity {
    /// The worker's address.
    pub address: String,
    /// The worker's name; numbers are converted to strings.
    pub name: String,
    /// Number of tasks that run at once.
    pub nthreads: u64,
    /// Memory limit in bytes; 0 if there is none.
    pub memory_limit: u64,
    /// Bytes of memory that the process used at the last heartbeat.
    pub memory: u64,
    /// Processor use of the process in percent.
    pub cpu: f64,
    /// The worker's status, such as `running`; since 2021.10.0.
    pub status: Option<WorkerStatus>,
    /// The number of the worker's tasks in each of its states, such as `executing` and `memory`, at the
    /// last heartbeat; since 2022.11.0.
    pub task_counts: BTreeMap<String, u64>,
    /// Bytes of data on disk at the last heartbeat.
    pub spilled: u64,
    /// The metrics of the last heartbeat, a dictionary whose keys depend on the release.
    pub metrics: Value,
}

/// The error of a request for the identity.
#[derive(Debug)]
#[non_exhaustive]
pub enum IdentityError {
    /// The connection failed.
    Comm(CommError),
    /// The scheduler closed the connection instead of replying.
    NoAnswer,
    /// The scheduler did not reply in time.
    Timeout(Duration),
    /// The reply is malformed, or is not an identity.
    Answer(ProtocolError),
}

daskwire::kinds! {
    IdentityError: |error| match error {
        Self::Comm(error) => error.kind(),
        Self::NoAnswer => ErrorKind::Connection,
        Self::Timeout(_) => ErrorKind::Timeout,
        Self::Answer(error) => error.kind(),
    };
}

impl core::fmt::Display for IdentityError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Comm(error) => error.fmt(f),
            Self::NoAnswer => f.write_str("the peer closed the connection without an answer"),
            Self::Timeout(time) => write!(f, "no answer within {time:?}"),
            Self::Answer(ProtocolError::Message(error)) => {
                write!(f, "the answer is malformed: {error}")
            }
            Self::Answer(error) => write!(f, "the answer is not an identity: {error}"),
        }
    }
}

impl core::error::Error for IdentityError {}

impl From<CommError> for IdentityError {
    fn from(error: CommError) -> Self {
        Self::Comm(error)
    }
}

impl From<ProtocolError> for IdentityError {
    fn from(error: ProtocolError) -> Self {
        Self::Answer(error)
    }
}

/// Options for [`identity`]: one attempt with any wire format. `timeout` applies to the
/// connection, to the handshake and to the reply separately.
///
/// They work with every release since 2.23.0: the client waits for the scheduler's
/// handshake and replies in the same format.
pub fn options(timeout: Duration) -> CommOptions {
    CommOptions::default()
        .with_connect_timeout(timeout)
        // The user can try again.
        .with_connect_retry(false)
        .with_handshake_timeout(timeout)
        // The handshake has its timeout from the time of the connection on.
        .with_answer_timeout(timeout.saturating_mul(2))
        .with_wire(WireFormat::Detect)
}

/// Connects, does the handshake and requests the identity.
///
/// ```no_run
/// # async fn ask() -> Result<(), Box<dyn std::error::Error>> {
/// use core::time::Duration;
/// use daskwire_rpc::identity::{identity, options};
///
/// let options = options(Duration::from_secs(10));
/// let address = "tcp://10.0.0.7:8786".parse()?;
/// let (scheduler, _) = identity(&address, &daskwire_rpc::transports(), &options).await?;
/// println!("{} workers", scheduler.workers.len());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`IdentityError`], with the reason. The timeout of the reply is that of the handshake.
pub async fn identity(
    address: &Address,
    transports: &Transports,
    options: &CommOptions,
) -> Result<(Identity, daskwire_comm::Agreement<'static>), IdentityError> {
    let timeout = options.handshake_timeout;
    let transports = transports.with_own_connections();
    let mut comm = transports.connect(address, options).await?;
    let answer = runtime::timeout(timeout, ask(&mut comm))
        .await
        .map_err(|_| IdentityError::Timeout(timeout))??;
    let agreement = *comm.agreement();
    comm.close().await?;
    drop(comm);
    transports.close().await;
    Ok((answer, agreement))
}

async fn ask(comm: &mut Comm) -> Result<Identity, IdentityError> {
    let mut identity = Identity::from_value(&request(comm, "identity").await?)?;
    match request(comm, "versions").await {
        Ok(versions) => {
            identity.release = Release::of_versions(&versions);
            identity.rust_version = rust_version(&versions).map(str::to_owned);
        }
        Err(IdentityError::Answer(_)) => {}
        Err(error) => return Err(error),
    }
    Ok(identity)
}

/// Sends a request in the layout of the peer, and reads the reply.
async fn request(comm: &mut Comm, op: &str) -> Result<Value, IdentityError> {
    let mut buffer = [0; 64];
    let mut writer = Writer::new(&mut buffer);
    writer.map(2).str("op").str(op).str("reply").bool(true);
    let request = writer.finish().expect("a short request");
    let layout = comm.agreement().layout;
    match layout {
        Layout::Modern => comm.write_message(&[request]).await?,
        Layout::Classic => comm.write_message(&[b"".as_slice(), request]).await?,
    }
    let frames = comm.read_message().await?.ok_or(IdentityError::NoAnswer)?;
    Ok(body_in(&frames, layout)?)
}

/// Converts to a string, `None` to the empty string.
fn display(value: &Value) -> String {
    match value {
        Value::None => String::new(),
        value => value.to_unquoted(),
    }
}

fn number(value: &Value) -> f64 {
    #[allow(clippy::cast_precision_loss)] // for display
    match value {
        Value::Float(value) => *value,
        Value::Int(value) => *value as f64,
        _ => 0.0,
    }
}

fn integer(value: &Value) -> u64 {
    match value {
        Value::Int(value) => u64::try_from(*value).unwrap_or(0),
        _ => 0,
    }
}

impl Identity {
    /// Reads the reply to `identity`; unknown entries are skipped.
    #[doc(hidden)]
    pub fn from_value(answer: &Value) -> Result<Self, ProtocolError> {
        if !matches!(answer, Value::Dict(_)) {
            return Err(ProtocolError::Unexpected {
                at: 0,
                expected: "a dictionary",
            });
        }
        let string = |name| answer.get(name).map(display).unwrap_or_default();
        let workers = match answer.get("workers") {
            Some(Value::Dict(workers)) => workers.iter(),
            _ => [].iter(),
        };
        Ok(Self {
            kind: string("type"),
            id: string("id"),
            address: string("address"),
            started: answer.get("started").map(number),
            dashboard_port: answer
                .get("services")
                .and_then(|services| services.get("dashboard"))
                .and_then(|port| u16::try_from(integer(port)).ok())
                .filter(|port| *port != 0),
            workers: workers
                .map(|(address, about)| WorkerIdentity::from_value(display(address), about))
                .collect(),
            release: None,
            rust_version: None,
        })
    }

    /// The address of the dashboard, as `Client.dashboard_link` of Dask has it by default:
    /// `http://HOST:PORT/status`. A proxy in between, and certificates of the dashboard, are not
    /// known to the scheduler.
    pub fn dashboard_link(&self) -> Option<String> {
        let port = self.dashboard_port?;
        let address = self.address.parse::<Address>().ok()?;
        let host = match address.host_and_port() {
            Some((host, _)) if host.contains(':') => format!("[{host}]"),
            Some((host, _)) => host.to_owned(),
            None => "localhost".to_owned(),
        };
        Some(format!("http://{host}:{port}/status"))
    }
}

impl WorkerIdentity {
    fn from_value(address: String, about: &Value) -> Self {
        let string = |name| about.get(name).map(display).unwrap_or_default();
        let count = |name| about.get(name).map(integer).unwrap_or_default();
        let metric = |name| about.get("metrics")?.get(name);
        let task_counts = match metric("task_counts") {
            Some(Value::Dict(counts)) => {
                let counts = counts.iter();
                counts
                    .map(|(state, count)| (display(state), integer(count)))
                    .collect()
            }
            _ => BTreeMap::new(),
        };
        // A number before 2022.2.1, and in memory and on disk since.
        let spilled = metric("spilled_bytes").or_else(|| metric("spilled_nbytes"));
        let spilled = spilled.map(|spilled| spilled.get("disk").unwrap_or(spilled));
        Self {
            address,
            name: string("name"),
            nthreads: count("nthreads"),
            memory_limit: count("memory_limit"),
            memory: metric("memory").map(integer).unwrap_or_default(),
            cpu: metric("cpu").map(number).unwrap_or_default(),
            status: about
                .get("status")
                .map(|status| WorkerStatus::from(&*display(status))),
            task_counts,
            spilled: spilled.map(integer).unwrap_or_default(),
            metrics: about.get("metrics").cloned().unwrap_or_default(),
        }
    }
}

/// Replaces the error of a first request by [`UnsupportedRelease`], if the cause is a
/// scheduler with an older release, which may use another framing.
#[doc(hidden)]
pub async fn explain<E: From<RequestError> + From<UnsupportedRelease>>(
    error: RequestError,
    scheduler: &Address,
    transports: &Transports,
    options: &CommOptions,
    first: Release,
    what: &'static str,
) -> E {
    let is_framing = matches!(
        &error,
        RequestError::Comm(error) if matches!(**error, CommError::Prefix { .. })
    );
    if !is_framing {
        return error.into();
    }
    let options = options
        .clone()
        .with_wire(WireFormat::Detect)
        .with_connect_retry(false);
    match identity(scheduler, transports, &options).await {
        Ok((identity, _)) => match Release::check(identity.release, first, what) {
            Ok(()) => error.into(),
            Err(unsupported) => unsupported.into(),
        },
        Err(_) => error.into(),
    }
}
