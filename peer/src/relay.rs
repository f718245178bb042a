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
use std::io;

use daskwire::Limits;
use daskwire::frame::{FrameBuffers, FrameDecoder, FrameError, Prefix, Wanted};
use daskwire::handshake::detect_prefix;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Bytes that are under way at once in each direction.
const CHUNK: usize = 256 << 10;

/// How a relay passes on.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Options {
    /// What is accepted of the first message of either side.
    pub handshake_limits: Limits,
    /// What is accepted of all others.
    pub limits: Limits,
    /// How long the first message of either side may take. Whoever says
    /// nothing for so long is no Dask peer.
    pub handshake_timeout: Duration,
}

impl Default for Options {
    /// [`Limits::HANDSHAKE`], [`Limits::HOST`], 30 seconds.
    fn default() -> Self {
        Self {
            handshake_limits: Limits::HANDSHAKE,
            limits: Limits::HOST,
            handshake_timeout: Duration::from_secs(30),
        }
    }
}

/// What went through, in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Passed {
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
}

impl fmt::Display for RelayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout { after } => write!(f, "no handshake came within {after:?}"),
            Self::Frame(error) => write!(f, "the peer breaks the framing: {error}"),
            Self::Io(error) => write!(f, "the connection failed: {error}"),
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
) -> Result<(Passed, Passed), RelayError>
where
    NR: AsyncRead + Unpin,
    NW: AsyncWrite + Unpin,
    FR: AsyncRead + Unpin,
    FW: AsyncWrite + Unpin,
{
    tokio::try_join!(
        pass_on(near.0, far.1, options),
        pass_on(far.0, near.1, options)
    )
}

/// One direction.
async fn pass_on<R, W>(
    mut reader: R,
    mut writer: W,
    options: &Options,
) -> Result<Passed, RelayError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut passed = Passed::default();
    let mut buffer = Vec::with_capacity(4 << 10);

    // As many bytes as tell how messages are framed.
    let after = options.handshake_timeout;
    let deadline = tokio::time::Instant::now() + after;
    let late = |_| RelayError::Timeout { after };
    while buffer.len() < 8 {
        let count = tokio::time::timeout_at(deadline, reader.read_buf(&mut buffer))
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
        follow(&mut decoder, &buffer, options, &mut passed)?;
        writer.write_all(&buffer).await?;
        writer.flush().await?;
        passed.len += buffer.len() as u64;
        let was_full = buffer.len() == buffer.capacity();
        buffer.clear();
        if was_full && buffer.capacity() < CHUNK {
            buffer.reserve(buffer.capacity() * 2);
        }
        let read = reader.read_buf(&mut buffer);
        if passed.message_count == 0 {
            tokio::time::timeout_at(deadline, read)
                .await
                .map_err(late)??;
        } else {
            read.await?;
        }
    }
    decoder.end()?;
    writer.shutdown().await?;
    Ok(passed)
}

/// Takes the framing of `bytes` into account. Frames are not kept.
fn follow(
    decoder: &mut FrameDecoder<Vec<u8>>,
    mut bytes: &[u8],
    options: &Options,
    passed: &mut Passed,
) -> Result<(), FrameError> {
    loop {
        let count = match decoder.wanted()? {
            Wanted::Prelude { .. } if !bytes.is_empty() => {
                let mut nothing = Nothing;
                let space = decoder.space(&mut nothing)?;
                let count = space.len().min(bytes.len());
                let (place, _) = space.split_at_mut(count);
                place.copy_from_slice(&bytes[..count]);
                count
            }
            Wanted::Frame { len, filled, .. } if !bytes.is_empty() => {
                (len - filled).min(bytes.len())
            }
            Wanted::Nothing => {
                passed.message_count += 1;
                decoder.reset_with(options.limits);
                continue;
            }
            _ => return Ok(()),
        };
        decoder.advance(count)?;
        bytes = &bytes[count..];
    }
}

/// No room for frames.
struct Nothing;

impl FrameBuffers for Nothing {
    fn buffer(&mut self, _: usize, _: usize, _: usize) -> Option<&mut [u8]> {
        None
    }
}
