//! Asking a scheduler who it is and which workers it has.

use core::time::Duration;

use daskwire::message::{BuildError, Layout, MessageBuilder, ReadOptions, Workspace};
use daskwire::msgpack::{Malformed, Reader, Token, Writer};
use daskwire_comm::{Address, Comm, CommError, CommOptions, WireFormat};

use crate::Release;
use crate::net::Connector;
use crate::protocol::{Field, ProtocolError, Source};

/// What a scheduler says of itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Identity {
    /// The class of the scheduler; `Scheduler`.
    pub kind: String,
    /// Its name for itself.
    pub id: String,
    /// The address that it is reached at.
    pub address: String,
    /// When it started, in seconds since 1970; since 2021.4.0.
    pub started: Option<f64>,
    /// Its workers, in the order that it has them.
    pub workers: Vec<Worker>,
    /// The release of Dask that it runs, if it says so: [`identity`] asks.
    pub release: Option<Release>,
}

/// What a scheduler says of one of its workers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Worker {
    /// Its address.
    pub address: String,
    /// Its name; numbers as text.
    pub name: String,
    /// How many tasks it runs at once.
    pub thread_count: u64,
    /// Bytes of memory that it may use; 0 where there is no limit.
    pub memory_limit: u64,
    /// Bytes of memory that its process used at the last heartbeat.
    pub memory: u64,
    /// Part of a processor that it used, in percent.
    pub cpu: f64,
    /// Its state, such as `running`; since 2021.10.0.
    pub status: String,
}

/// Why a scheduler could not be asked.
#[derive(Debug)]
#[non_exhaustive]
pub enum IdentityError {
    /// The connection.
    Comm(CommError),
    /// It closed the connection instead of answering.
    NoAnswer,
    /// It did not answer in time.
    Timeout(Duration),
    /// Its answer is not a message.
    Message(daskwire::message::MessageError),
    /// Its answer is a message, but not what was asked for.
    Answer(Malformed),
}

impl core::fmt::Display for IdentityError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Comm(error) => error.fmt(f),
            Self::NoAnswer => f.write_str("the peer closed the connection without an answer"),
            Self::Timeout(time) => write!(f, "no answer within {} seconds", time.as_secs()),
            Self::Message(error) => write!(f, "the answer is not a message: {error}"),
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

impl From<Malformed> for IdentityError {
    fn from(error: Malformed) -> Self {
        Self::Answer(error)
    }
}

/// CommOptions for [`identity`]: `patience` for each of connection, handshake and
/// answer, one attempt, and any wire.
///
/// They understand every release since 2.23.0: whoever asks waits for the
/// handshake of the scheduler and answers in kind.
pub fn options(patience: Duration) -> CommOptions {
    CommOptions {
        connect_timeout: patience,
        // A person can try again.
        connect_retry: false,
        handshake_timeout: patience,
        wire: WireFormat::Answer,
        ..CommOptions::default()
    }
}

/// Connects, does the handshake and asks for the identity.
///
/// ```no_run
/// # async fn ask() -> Result<(), Box<dyn std::error::Error>> {
/// use core::time::Duration;
/// use daskwire_peer::identity::{identity, options};
/// use daskwire_comm::{CommOptions, tls::TlsSettings};
///
/// let settings = TlsSettings::new("ca.pem", "client.pem");
/// let options = CommOptions {
///     tls: Some(settings.build()?),
///     ..options(Duration::from_secs(10))
/// };
/// let (scheduler, _) = identity(&"tls://10.0.0.7:8786".parse()?, &options).await?;
/// println!("{} workers", scheduler.workers.len());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// What kept the scheduler from being asked. For the answer it waits as long as
/// for the handshake.
pub async fn identity(
    address: &Address,
    options: &CommOptions,
) -> Result<(Identity, daskwire_comm::Agreement), IdentityError> {
    let patience = options.handshake_timeout;
    let connector = Connector::new(options.clone());
    let mut comm = connector.connect(address).await?;
    let answer = tokio::time::timeout(patience, ask(&mut comm))
        .await
        .map_err(|_| IdentityError::Timeout(patience))??;
    let agreement = comm.agreement().clone();
    comm.close().await?;
    drop(comm);
    connector.close().await;
    Ok((answer, agreement))
}

async fn ask(comm: &mut Comm) -> Result<Identity, IdentityError> {
    let mut identity = request(comm, "identity", Identity::parse).await??;
    // The answer has lists where releases before 2.0 have the versions.
    identity.release = request(comm, "versions", release).await?.unwrap_or(None);
    Ok(identity)
}

/// Makes a request, and reads the reply.
async fn request<T>(
    comm: &mut Comm,
    op: &str,
    read: impl FnOnce(&mut Reader<'_>) -> T,
) -> Result<T, IdentityError> {
    let mut buffer = [0; 64];
    let mut writer = Writer::new(&mut buffer);
    writer.map(2).str("op").str(op).str("reply").bool(true);
    let request = writer.finish().unwrap_or_default();
    let layout = comm.agreement().layout;
    match layout {
        Layout::Modern => comm.write_message(&[request]).await?,
        Layout::Classic => comm.write_message(&[&[], request]).await?,
    }
    let frames = comm.read_message().await?.ok_or(IdentityError::NoAnswer)?;
    let mut workspace = Workspace::new();
    workspace
        .with_message(&frames, layout, &ReadOptions::default(), |message, _| {
            read(&mut message.reader())
        })
        .map_err(IdentityError::Message)
}

/// Reads the answer to `versions`.
fn release(reader: &mut Reader<'_>) -> Result<Option<Release>, Malformed> {
    if reader.find("packages")? && reader.find("distributed")? {
        return Ok(text(reader)?.parse().ok());
    }
    Ok(None)
}

/// Reads the next value as text; what is not text as Python would show it.
fn text(reader: &mut Reader<'_>) -> Result<String, Malformed> {
    Ok(match reader.peek()? {
        Token::Str(_) => reader.str()?.to_str().to_owned(),
        Token::Nil => {
            reader.skip()?;
            String::new()
        }
        _ => daskwire::display::Document::new(reader.skip()?).to_string(),
    })
}

fn number(reader: &mut Reader<'_>) -> Result<f64, Malformed> {
    #[allow(clippy::cast_precision_loss)] // for people
    let value = match reader.peek()? {
        Token::F64(value) => value,
        Token::F32(value) => value.into(),
        Token::UInt(value) => value as f64,
        Token::Int(value) => value as f64,
        _ => 0.0,
    };
    reader.skip()?;
    Ok(value)
}

fn integer(reader: &mut Reader<'_>) -> Result<u64, Malformed> {
    let value = match reader.peek()? {
        Token::UInt(value) => value,
        _ => 0,
    };
    reader.skip()?;
    Ok(value)
}

impl Identity {
    /// Reads the answer to `identity`; entries that are not known are skipped.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut identity = Self::default();
        for _ in 0..reader.map()? {
            let key = reader.str()?;
            match key.to_str() {
                "type" => identity.kind = text(reader)?,
                "id" => identity.id = text(reader)?,
                "address" => identity.address = text(reader)?,
                "started" => identity.started = Some(number(reader)?),
                "workers" => {
                    for _ in 0..reader.map()? {
                        let address = text(reader)?;
                        identity.workers.push(Worker::parse(address, reader)?);
                    }
                }
                _ => {
                    reader.skip()?;
                }
            }
        }
        Ok(identity)
    }
}

impl Worker {
    fn parse(address: String, reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut worker = Self {
            address,
            ..Self::default()
        };
        for _ in 0..reader.map()? {
            let key = reader.str()?;
            match key.to_str() {
                "name" => worker.name = text(reader)?,
                "nthreads" => worker.thread_count = integer(reader)?,
                "memory_limit" => worker.memory_limit = integer(reader)?,
                "status" => worker.status = text(reader)?,
                "metrics" => {
                    for _ in 0..reader.map()? {
                        // Keys may be arrays.
                        match reader.peek()? {
                            Token::Str(key) if key == "memory" => {
                                reader.skip()?;
                                worker.memory = integer(reader)?;
                            }
                            Token::Str(key) if key == "cpu" => {
                                reader.skip()?;
                                worker.cpu = number(reader)?;
                            }
                            _ => {
                                reader.skip()?;
                                reader.skip()?;
                            }
                        }
                    }
                }
                _ => {
                    reader.skip()?;
                }
            }
        }
        Ok(worker)
    }
}

impl Field for Identity {
    fn read(source: &mut Source<'_>) -> Result<Self, ProtocolError> {
        Ok(Self::parse(&mut source.reader)?)
    }

    fn write<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
        let body = to.body();
        body.map(6)
            .str("type")
            .str(&self.kind)
            .str("id")
            .str(&self.id);
        body.str("address")
            .str(&self.address)
            .str("services")
            .map(0);
        body.str("started").f64(self.started.unwrap_or_default());
        body.str("workers");
        body.map(u32::try_from(self.workers.len()).unwrap_or(u32::MAX));
        for worker in &self.workers {
            body.str(&worker.address).map(7).str("type").str("Worker");
            body.str("id")
                .str(&worker.name)
                .str("name")
                .str(&worker.name);
            body.str("nthreads").u64(worker.thread_count);
            body.str("memory_limit").u64(worker.memory_limit);
            body.str("status").str(&worker.status).str("metrics").map(2);
            body.str("memory")
                .u64(worker.memory)
                .str("cpu")
                .f64(worker.cpu);
        }
        Ok(())
    }
}
