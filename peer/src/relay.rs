//! Passing messages on unopened, between any two transports.
//!
//! A relay stands between two peers that cannot reach each other, or not well:
//! an unmodified Dask client at one end of a bad link and an unmodified
//! scheduler at the other, with QUIC in between. Messages go through as they
//! are, handshakes included, so that the two ends agree with each other and the
//! relay needs to know nothing of what they send. It follows the framing, so
//! that what is no Dask peer is cut off and limits hold, but no frame is kept:
//! bytes leave as they come.

use core::fmt;
use core::time::Duration;
use daskwire_comm::runtime::{self, TaskSet};
use std::io::{self, Cursor};
use std::sync::Arc;

use daskwire::Limits;
use daskwire::frame::{FrameBuffers, FrameDecoder, FrameError, Prefix, Wanted};
use daskwire::handshake::detect_prefix;
use daskwire_comm::{Address, CommError, CommOptions, Listener, Traffic, Transports};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Bytes that are under way at once in each direction.
const CHUNK: usize = 256 << 10;

/// How a relay passes on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// How [`serve`] makes connections to the target.
    pub comm: CommOptions,
    /// What is accepted of the first message of either side.
    pub handshake_limits: Limits,
    /// What is accepted of all others.
    pub limits: Limits,
    /// How long the first message of either side may take. Whoever says
    /// nothing for so long is no Dask peer.
    pub handshake_timeout: Duration,
    /// How long [`serve`] waits for the first bytes of a connection before it
    /// makes one to the target. Those that end meanwhile, as port scans and health
    /// checks do, never reach the target. Connectors of distributed up to 2023.7.1
    /// wait for the handshake of the target (PROTOCOL HANDSHAKE-1), and so for
    /// this long each time.
    pub first_bytes_timeout: Duration,
}

impl Default for Options {
    /// [`Limits::HANDSHAKE`], [`Limits::HOST`], 30 seconds, 100 milliseconds.
    fn default() -> Self {
        Self {
            comm: CommOptions::default(),
            handshake_limits: Limits::HANDSHAKE,
            limits: Limits::HOST,
            handshake_timeout: Duration::from_secs(30),
            first_bytes_timeout: Duration::from_millis(100),
        }
    }
}

/// What went through, in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayStats {
    /// Whole messages, the handshake included.
    pub message_count: u64,
    /// Bytes, preludes included.
    pub len: u64,
}

/// Why a relay ended before its time.
#[derive(Debug)]
#[non_exhaustive]
pub enum RelayError {
    /// The first message did not come in time.
    Timeout {
        /// How long it was given.
        after: Duration,
    },
    /// What came is no message, or beyond the limits, or ended within one.
    Frame(FrameError),
    /// A connection broke.
    Io(io::Error),
    /// The connection that came was no good to begin with.
    Comm(CommError),
    /// The target could not be connected to.
    Target(CommError),
}

impl From<CommError> for RelayError {
    fn from(error: CommError) -> Self {
        Self::Comm(error)
    }
}

impl fmt::Display for RelayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout { after } => write!(f, "no handshake came within {after:?}"),
            Self::Frame(error) => write!(f, "the peer breaks the framing: {error}"),
            Self::Io(error) => write!(f, "the connection failed: {error}"),
            Self::Comm(error) => error.fmt(f),
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

/// Passes on what comes from either of two connections to the other, until both
/// have ended or one has failed. Returns what went from `near` to `far`, and
/// back.
///
/// The end of one direction is passed on and leaves the other as it is.
///
/// # Errors
///
/// What ended it. Both connections are to be dropped then.
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
    let (mut passed_there, mut passed_back) = (RelayStats::default(), RelayStats::default());
    let outcome = {
        let there = pass_on(near.0, far.1, options, &mut passed_there);
        let back = pass_on(far.0, near.1, options, &mut passed_back);
        tokio::pin!(there, back);
        // Whoever does not read any more may still have something to say: only its
        // end is the end, or a fault.
        let (first, is_there) = tokio::select! {
            first = &mut there => (first, true),
            first = &mut back => (first, false),
        };
        let other = async { if is_there { back.await } else { there.await } };
        match first {
            Ok(()) => other.await,
            Err(End::Unwritable(error)) => match runtime::timeout(LAST_WORDS, other).await {
                Ok(other) => other,
                Err(_) => Err(End::Unwritable(error)),
            },
            failed => failed,
        }
    };
    match outcome {
        Ok(()) => Ok((passed_there, passed_back)),
        Err(End::Unwritable(error)) => Err(error.into()),
        Err(End::Fault(error)) => Err(error),
    }
}

/// How long a peer that reads no more may go on talking.
const LAST_WORDS: Duration = Duration::from_secs(30);

/// Why one direction has ended before its time.
enum End {
    /// Nobody reads at the other end.
    Unwritable(io::Error),
    Fault(RelayError),
}

impl<E: Into<RelayError>> From<E> for End {
    fn from(error: E) -> Self {
        Self::Fault(error.into())
    }
}

/// Accepts connections until the listener fails, and for each makes one to `to`, when
/// its first bytes are there or [have not come](Options::first_bytes_timeout), and
/// passes on what comes, both ways. `told` hears of every end, but
/// those that `stop` brings about: when it is ready all connections are cut off.
///
/// # Errors
///
/// What made listening impossible; all connections end with it. Those that fail
/// by themselves are told of, and end alone.
pub async fn serve(
    listener: &Listener,
    transports: &Transports,
    to: &Address,
    options: Options,
    told: impl Fn(&Address, Result<(RelayStats, RelayStats), RelayError>) + Send + Sync + 'static,
    stop: impl Future<Output = ()>,
) -> Result<(), CommError> {
    let (told, options) = (Arc::new(told), Arc::new(options));
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
            // Mostly too many open files, which passes.
            Err(CommError::Io(error)) if error.kind() != io::ErrorKind::NotConnected => {
                runtime::sleep(Duration::from_millis(100)).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        let (transports, to) = (transports.clone(), to.clone());
        let (told, options) = (Arc::clone(&told), Arc::clone(&options));
        let from = incoming.peer_address().clone();
        connections.spawn(async move {
            let outcome = async {
                let mut near = incoming.open().await?;
                let patience = options.first_bytes_timeout;
                let mut first = Vec::with_capacity(4 << 10);
                match runtime::timeout(patience, near.reader.read_buf(&mut first)).await {
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
            told(&from, outcome);
        });
    }
}

/// One direction.
async fn pass_on<R, W>(
    mut reader: R,
    mut writer: W,
    options: &Options,
    passed: &mut RelayStats,
) -> Result<(), End>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut buffer = Vec::with_capacity(4 << 10);

    // As many bytes as tell how messages are framed.
    let after = options.handshake_timeout;
    let now = runtime::now();
    let deadline = now.checked_add(after).unwrap_or(now);
    let late = |_| RelayError::Timeout { after };
    while buffer.len() < 8 {
        let count = runtime::timeout_at(deadline, reader.read_buf(&mut buffer))
            .await
            .map_err(late)??;
        if count == 0 {
            break;
        }
    }
    let first = buffer.first_chunk::<8>();
    // What is neither is for the decoder to refuse.
    let prefix = first.and_then(detect_prefix).unwrap_or(Prefix::U64);
    let mut decoder = FrameDecoder::new(prefix, Vec::new(), options.handshake_limits);

    while !buffer.is_empty() {
        // What was good goes on, whatever comes behind it.
        let (good, verdict) = follow(&mut decoder, &buffer, options, passed);
        let sent = async {
            writer.write_all(&buffer[..good]).await?;
            writer.flush().await
        };
        sent.await.map_err(End::Unwritable)?;
        passed.len += good as u64;
        verdict?;
        let was_full = buffer.len() == buffer.capacity();
        buffer.clear();
        if was_full && buffer.capacity() < CHUNK {
            buffer.reserve(buffer.capacity() * 2);
        }
        let read = reader.read_buf(&mut buffer);
        if passed.message_count == 0 {
            runtime::timeout_at(deadline, read).await.map_err(late)??;
        } else {
            read.await?;
        }
    }
    decoder.end()?;
    writer.shutdown().await.map_err(End::Unwritable)?;
    Ok(())
}

/// Takes the framing of `bytes` into account. Frames are not kept.
///
/// Returns how many bytes belong to messages in which no fault was found, and
/// the fault.
fn follow(
    decoder: &mut FrameDecoder<Vec<u8>>,
    bytes: &[u8],
    options: &Options,
    passed: &mut RelayStats,
) -> (usize, Result<(), FrameError>) {
    let mut at = 0;
    // Where the message began that is arriving, if it is in these bytes.
    let mut start = 0;
    let mut step = |at: &mut usize, start: &mut usize| -> Result<bool, FrameError> {
        let rest = &bytes[*at..];
        let count = match decoder.wanted()? {
            Wanted::Prelude { .. } if !rest.is_empty() => {
                let mut nothing = Nothing;
                let space = decoder.space(&mut nothing)?;
                let count = space.len().min(rest.len());
                let (place, _) = space.split_at_mut(count);
                place.copy_from_slice(&rest[..count]);
                count
            }
            Wanted::Frame { len, filled, .. } if !rest.is_empty() => (len - filled).min(rest.len()),
            Wanted::Nothing => {
                passed.message_count += 1;
                decoder.reset_with(options.limits);
                *start = *at;
                return Ok(true);
            }
            _ => return Ok(false),
        };
        decoder.advance(count)?;
        *at += count;
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

/// No room for frames.
struct Nothing;

impl FrameBuffers for Nothing {
    fn buffer(&mut self, _: usize, _: usize, _: usize) -> Option<&mut [u8]> {
        None
    }
}
