//! A relay, which forwards messages unopened between any two transports.
//!
//! A relay connects two peers that cannot reach each other well: for example an
//! unmodified Dask client at one end of a bad link and an unmodified scheduler at the
//! other, with QUIC in between. Messages are forwarded unchanged, including handshakes,
//! so the peers negotiate with each other and the relay need not understand what they
//! send. It follows the framing in order to disconnect peers that do not speak the
//! protocol, and to enforce limits, but does not buffer frames: bytes are forwarded as
//! they arrive.

use core::fmt;
use core::time::Duration;
use daskwire_comm::runtime::{self, TaskSet};
use std::io::{self, Cursor};
use std::sync::Arc;

use daskwire::Limits;
use daskwire::frame::{FrameDecoder, FrameError, Prefix, Wanted};
use daskwire::handshake::detect_prefix;
use daskwire_comm::{Address, CommError, CommOptions, Listener, Traffic, Transports};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Maximum number of buffered bytes in each direction.
const CHUNK: usize = 256 << 10;

/// Options of a relay.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Options of the connections that [`serve`] makes to the target.
    pub comm: CommOptions,
    /// Limits of the first message of either side.
    pub handshake_limits: Limits,
    /// Limits of all other messages.
    pub limits: Limits,
    /// Timeout for the first message of either side. A peer that is silent for longer is
    /// disconnected.
    pub handshake_timeout: Duration,
    /// The maximum time that [`serve`] waits for the first bytes of a connection before
    /// it connects to the target. Connections that end before, such as port scans and
    /// health checks, never reach the target. Connectors of distributed up to 2023.7.1
    /// wait for the handshake of the target (PROTOCOL HANDSHAKE-1), and are delayed by
    /// this time.
    pub first_bytes_timeout: Duration,
    /// Limit of the connections that [`serve`] forwards at once. Further ones are closed
    /// and reported as [`RelayError::TooManyConnections`].
    pub max_connections: usize,
}

impl Options {
    daskwire_comm::with_fields! {
        with_comm(comm: CommOptions);
        with_handshake_limits(handshake_limits: Limits);
        with_limits(limits: Limits);
        with_handshake_timeout(handshake_timeout: Duration);
        with_first_bytes_timeout(first_bytes_timeout: Duration);
        with_max_connections(max_connections: usize);
    }
}

impl Default for Options {
    /// Returns [`Limits::HANDSHAKE`] and [`Limits::HOST`], 30 seconds for a handshake, 100
    /// milliseconds for the first bytes, and a connection for each three
    /// [file descriptors](daskwire_comm::descriptor_limit) of the process, of which it takes two,
    /// and at most 65,536.
    fn default() -> Self {
        Self {
            comm: CommOptions::default(),
            handshake_limits: Limits::HANDSHAKE,
            limits: Limits::HOST,
            handshake_timeout: Duration::from_secs(30),
            first_bytes_timeout: Duration::from_millis(100),
            max_connections: (daskwire_comm::descriptor_limit() / 3).clamp(1, 1 << 16),
        }
    }
}

/// Counters of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayStats {
    /// Number of complete messages, including the handshake.
    pub message_count: u64,
    /// Number of bytes, including preludes.
    pub len: u64,
}

/// The error of a relay.
#[derive(Debug)]
#[non_exhaustive]
pub enum RelayError {
    /// The first message did not arrive in time.
    Timeout {
        /// The timeout.
        timeout: Duration,
    },
    /// The received bytes are not a message, exceed the limits, or end within a
    /// message.
    Frame(FrameError),
    /// A connection failed.
    Io(io::Error),
    /// An incoming connection could not be accepted.
    Comm(CommError),
    /// The connection was refused, because the relay already forwards the maximum number
    /// of connections.
    TooManyConnections {
        /// The limit, [`Options::max_connections`].
        limit: usize,
    },
    /// The target cannot be reached.
    Target(CommError),
}

daskwire_rpc::kinds! {
    RelayError: |error| match error {
        Self::Timeout { .. } => ErrorKind::Timeout,
        Self::Frame(_) => ErrorKind::Protocol,
        Self::Io(error) => daskwire_comm::kind_of_io(error),
        Self::Comm(error) | Self::Target(error) => error.kind(),
        Self::TooManyConnections { .. } => ErrorKind::Refused,
    };
}

impl From<CommError> for RelayError {
    fn from(error: CommError) -> Self {
        Self::Comm(error)
    }
}

impl fmt::Display for RelayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout { timeout } => write!(f, "no handshake arrived within {timeout:?}"),
            Self::Frame(error) => write!(f, "the peer breaks the framing: {error}"),
            Self::Io(error) => write!(f, "the connection failed: {error}"),
            Self::Comm(error) => error.fmt(f),
            Self::TooManyConnections { limit } => {
                write!(
                    f,
                    "the relay already forwards {limit} connections, the maximum"
                )
            }
            Self::Target(error) => write!(f, "cannot reach the target: {error}"),
        }
    }
}

impl core::error::Error for RelayError {}

impl From<FrameError> for RelayError {
    fn from(error: FrameError) -> Self {
        Self::Frame(error)
    }
}

impl From<io::Error> for RelayError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Forwards bytes between two connections in both directions, until both have
/// ended or one has failed. Returns the counters from `near` to `far`, and back.
///
/// The end of one direction is forwarded and does not affect the other.
///
/// # Errors
///
/// [`RelayError`], with the reason. The caller should drop both connections.
pub async fn relay<NR, NW, FR, FW>(
    near: (NR, NW),
    far: (FR, FW),
    options: &Options,
) -> Result<(RelayStats, RelayStats), RelayError>
where
    NR: AsyncRead + Unpin,
    NW: AsyncWrite + Unpin,
    FR: AsyncRead + Unpin,
    FW: AsyncWrite + Unpin,
{
    let (mut there_stats, mut back_stats) = (RelayStats::default(), RelayStats::default());
    let outcome = {
        let there = forward(near.0, far.1, options, &mut there_stats);
        let back = forward(far.0, near.1, options, &mut back_stats);
        tokio::pin!(there, back);
        // A peer that has stopped reading may still send, so the other direction
        // continues for a while.
        let (first, is_there) = tokio::select! {
            first = &mut there => (first, true),
            first = &mut back => (first, false),
        };
        let other = async { if is_there { back.await } else { there.await } };
        match first {
            Ok(()) => other.await,
            Err(End::Unwritable(error)) => match runtime::timeout(DRAIN_TIMEOUT, other).await {
                Ok(other) => other,
                Err(_) => Err(End::Unwritable(error)),
            },
            failed => failed,
        }
    };
    match outcome {
        Ok(()) => Ok((there_stats, back_stats)),
        Err(End::Unwritable(error)) => Err(error.into()),
        Err(End::Fault(error)) => Err(error),
    }
}

/// Maximum time that a peer may continue to send after it has stopped reading.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// The reason why one direction ended early.
enum End {
    /// The receiving peer does not read any more.
    Unwritable(io::Error),
    Fault(RelayError),
}

impl<E: Into<RelayError>> From<E> for End {
    fn from(error: E) -> Self {
        Self::Fault(error.into())
    }
}

/// Accepts connections, and forwards each of them to the address `to`, until the
/// listener fails or `stop` is ready.
///
/// Connects to `to` when the first bytes of a connection have arrived, or [their
/// timeout](Options::first_bytes_timeout) has passed. Calls `report` at the end of each
/// connection, except for those that `stop` closes.
///
/// # Errors
///
/// The error of the listener; all connections end with it. Errors of single
/// connections are passed to `report`.
pub async fn serve(
    listener: &Listener,
    transports: &Transports,
    to: &Address,
    options: Options,
    report: impl Fn(&Address, Result<(RelayStats, RelayStats), RelayError>) + Send + Sync + 'static,
    stop: impl Future<Output = ()>,
) -> Result<(), CommError> {
    let (report, options) = (Arc::new(report), Arc::new(options));
    let mut connections = TaskSet::new();
    tokio::pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            () = &mut stop => {
                connections.shutdown().await;
                return Ok(());
            }
        };
        let incoming = match accepted {
            Ok(incoming) => incoming,
            // Usually too many open files, which is temporary.
            Err(CommError::Io(_)) => {
                runtime::sleep(Duration::from_millis(100)).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        let (transports, to) = (transports.clone(), to.clone());
        let (report, options) = (Arc::clone(&report), Arc::clone(&options));
        let from = incoming.peer_address().clone();
        while connections.try_join_next().is_some() {}
        let limit = options.max_connections;
        if connections.len() >= limit {
            drop(incoming);
            report(&from, Err(RelayError::TooManyConnections { limit }));
            continue;
        }
        connections.spawn(async move {
            let outcome = async {
                let mut near = incoming.open().await?;
                let limit = options.first_bytes_timeout;
                let mut first = Vec::with_capacity(4 << 10);
                match runtime::timeout(limit, near.reader.read_buf(&mut first)).await {
                    Ok(Ok(0)) => return Ok(Default::default()),
                    Ok(read) => drop(read?),
                    Err(_) => {}
                }
                let connecting = transports.connect_raw(&to, &options.comm, Traffic::Normal);
                let far = connecting.await;
                let far = far.map_err(RelayError::Target)?;
                let reader = Cursor::new(first).chain(near.reader);
                relay((reader, near.writer), (far.reader, far.writer), &options).await
            };
            let outcome = outcome.await;
            report(&from, outcome);
        });
    }
}

/// Forwards one direction.
async fn forward<R, W>(
    mut reader: R,
    mut writer: W,
    options: &Options,
    stats: &mut RelayStats,
) -> Result<(), End>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut buffer = Vec::with_capacity(4 << 10);

    // Read as many bytes as are needed to detect the framing.
    let timeout = options.handshake_timeout;
    let deadline = runtime::later(timeout);
    let late = |_| RelayError::Timeout { timeout };
    while buffer.len() < 8 {
        let count = runtime::timeout_at(deadline, reader.read_buf(&mut buffer))
            .await
            .map_err(late)??;
        if count == 0 {
            break;
        }
    }
    let first = buffer.first_chunk::<8>();
    // Other input is refused by the decoder.
    let prefix = first.and_then(detect_prefix).unwrap_or(Prefix::U64);
    let mut decoder = FrameDecoder::new(prefix, Vec::new(), options.handshake_limits);

    while !buffer.is_empty() {
        // Forward the bytes before a fault.
        let (good, verdict) = follow(&mut decoder, &buffer, options, stats);
        let sent = async {
            writer.write_all(&buffer[..good]).await?;
            writer.flush().await
        };
        sent.await.map_err(End::Unwritable)?;
        stats.len += good as u64;
        verdict?;
        let was_full = buffer.len() == buffer.capacity();
        buffer.clear();
        if was_full && buffer.capacity() < CHUNK {
            buffer.reserve(buffer.capacity() * 2);
        }
        let read = reader.read_buf(&mut buffer);
        if stats.message_count == 0 {
            runtime::timeout_at(deadline, read).await.map_err(late)??;
        } else {
            read.await?;
        }
    }
    decoder.end()?;
    writer.shutdown().await.map_err(End::Unwritable)?;
    Ok(())
}

/// Tracks the framing of `bytes`, without keeping frames.
///
/// Returns the number of bytes that belong to valid messages, and the fault after them.
fn follow(
    decoder: &mut FrameDecoder<Vec<u8>>,
    bytes: &[u8],
    options: &Options,
    stats: &mut RelayStats,
) -> (usize, Result<(), FrameError>) {
    let mut at = 0;
    // The start of the current message, if it is in `bytes`.
    let mut start = 0;
    let mut step = |at: &mut usize, start: &mut usize| -> Result<bool, FrameError> {
        let mut rest = &bytes[*at..];
        match decoder.wanted()? {
            Wanted::Prelude { .. } if !rest.is_empty() => {
                decoder.push_prelude(&mut rest)?;
                *at = bytes.len() - rest.len();
            }
            Wanted::Frame { len, filled, .. } if !rest.is_empty() => {
                let count = (len - filled).min(rest.len());
                decoder.advance(count)?;
                *at += count;
            }
            Wanted::Nothing => {
                stats.message_count += 1;
                decoder.reset_with(options.limits);
                *start = *at;
            }
            _ => return Ok(false),
        }
        Ok(true)
    };
    loop {
        match step(&mut at, &mut start) {
            Ok(true) => {}
            Ok(false) => return (at, Ok(())),
            Err(error) => return (start, Err(error)),
        }
    }
}
