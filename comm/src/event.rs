//! Events of connections and comms, for logs, and their adapter to `tracing`.
//!
//! An event borrows its data, and is formatted only for an interested subscriber. Without
//! the feature `tracing`, emitting one does nothing. There are no events for single
//! messages.

use core::fmt;
use core::time::Duration;

use daskwire::comm::Agreement;
use daskwire::message::Layout;

use crate::comm::Encryption;
use crate::{Address, CommError};

/// An event of one connection.
pub(crate) enum CommEvent<'a> {
    /// An attempt to connect failed, and another one follows.
    AttemptFailed {
        attempt: u32,
        error: &'a dyn fmt::Display,
        /// The pause before the next attempt.
        delay: Duration,
    },
    /// The last attempt to connect failed.
    ConnectFailed {
        attempt: u32,
        error: &'a dyn fmt::Display,
    },
    /// An attempt to connect succeeded; handshakes follow.
    Connected { attempt: u32 },
    /// A peer connected; handshakes follow.
    Accepted,
    /// The handshake of Dask is done.
    Established {
        agreement: &'a Agreement<'static>,
        encryption: Option<&'a Encryption>,
    },
    /// A handshake with a peer that connected failed.
    HandshakeFailed { error: &'a CommError },
    /// A message could not be read, so that no more can be.
    ReadFailed { error: &'a CommError },
    /// The comm was closed on this side.
    Closed { error: Option<&'a CommError> },
    /// The comm was dropped on this side without closing it.
    #[cfg_attr(not(feature = "tracing"), expect(dead_code, reason = "for tracing"))]
    Dropped,
}

/// The importance of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Info,
    Debug,
}

impl CommEvent<'_> {
    #[cfg_attr(not(feature = "tracing"), expect(dead_code, reason = "for tracing"))]
    const fn level(&self) -> Level {
        match self {
            Self::AttemptFailed { .. }
            | Self::ConnectFailed { .. }
            | Self::Established { .. }
            | Self::HandshakeFailed { .. }
            | Self::ReadFailed { .. }
            | Self::Closed { error: Some(_) } => Level::Info,
            Self::Connected { .. } | Self::Accepted | Self::Closed { .. } | Self::Dropped => {
                Level::Debug
            }
        }
    }

    /// Emits the event for a connection with this peer.
    #[cfg(feature = "tracing")]
    #[inline]
    pub(crate) fn emit(&self, peer: &Address) {
        match self.level() {
            Level::Info => tracing::info!(target: TARGET, %peer, "{self}"),
            Level::Debug => tracing::debug!(target: TARGET, %peer, "{self}"),
        }
    }

    /// Does nothing, without the feature `tracing`.
    #[cfg(not(feature = "tracing"))]
    #[inline]
    #[expect(clippy::unused_self, reason = "as with the feature")]
    pub(crate) const fn emit(&self, _: &Address) {}
}

impl fmt::Display for CommEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AttemptFailed {
                attempt,
                error,
                delay,
            } => write!(
                f,
                "attempt {attempt} to connect failed: {error}; next attempt in {} ms",
                delay.as_millis()
            ),
            Self::ConnectFailed { attempt, error } => {
                write!(f, "gave up after attempt {attempt}: {error}")
            }
            Self::Connected { attempt } => write!(f, "connected at attempt {attempt}"),
            Self::Accepted => f.write_str("accepted a connection"),
            Self::Established {
                agreement,
                encryption,
            } => established(f, agreement, *encryption),
            Self::HandshakeFailed { error } => write!(f, "the handshake failed: {error}"),
            Self::ReadFailed { error } => write!(f, "cannot read from the comm: {error}"),
            Self::Closed { error: None } => f.write_str("closed the comm"),
            Self::Closed { error: Some(error) } => {
                write!(f, "closed the comm, and lost data: {error}")
            }
            Self::Dropped => f.write_str("dropped the comm without closing it"),
        }
    }
}

fn established(
    f: &mut fmt::Formatter<'_>,
    agreement: &Agreement<'_>,
    encryption: Option<&Encryption>,
) -> fmt::Result {
    let layout = match agreement.layout {
        Layout::Modern => "modern",
        Layout::Classic => "classic",
    };
    let pickle = agreement.negotiated.pickle_protocol;
    let compression = agreement.negotiated.compression.unwrap_or("no");
    write!(
        f,
        "established a comm: {layout} layout, pickle protocol {pickle}, {compression} compression"
    )?;
    if let Some([major, minor, micro]) = agreement.peer_python {
        write!(f, ", Python {major}.{minor}.{micro}")?;
    }
    match encryption {
        None => f.write_str(", not encrypted"),
        Some(Encryption {
            version,
            cipher: None,
            ..
        }) => write!(f, ", {version}"),
        Some(Encryption {
            version,
            cipher: Some(cipher),
            ..
        }) => write!(f, ", {version} {cipher}"),
    }
}

/// The peer of one half of a comm, for the event that the half has ended.
///
/// Empty unless the feature `tracing` is on and a subscriber is interested in this event
/// when the comm is established.
#[derive(Debug)]
pub(crate) struct HalfLog {
    #[cfg(feature = "tracing")]
    peer: Option<Address>,
    /// Whether dropping the half emits an event, as for a writer.
    #[cfg(feature = "tracing")]
    logs_drop: bool,
}

#[cfg(feature = "tracing")]
impl HalfLog {
    /// Creates a log that emits no event until it is started.
    pub(crate) const fn new() -> Self {
        Self {
            peer: None,
            logs_drop: false,
        }
    }

    /// Enables the event of a reader of a comm with `peer`.
    pub(crate) fn start_reader(&mut self, peer: &Address) {
        if tracing::enabled!(target: TARGET, tracing::Level::INFO) {
            self.peer = Some(peer.clone());
        }
    }

    /// Enables the event of a writer of a comm with `peer`.
    pub(crate) fn start_writer(&mut self, peer: &Address) {
        self.start_reader(peer);
        self.logs_drop = true;
    }

    /// Emits the event, unless one was emitted before.
    pub(crate) fn end(&mut self, event: &CommEvent<'_>) {
        if let Some(peer) = self.peer.take() {
            event.emit(&peer);
        }
    }

    /// Disables the event.
    pub(crate) fn stop(&mut self) {
        self.peer = None;
    }
}

#[cfg(feature = "tracing")]
impl Drop for HalfLog {
    fn drop(&mut self) {
        if self.logs_drop {
            self.end(&CommEvent::Dropped);
        }
    }
}

#[cfg(not(feature = "tracing"))]
#[expect(clippy::unused_self, reason = "as with the feature")]
impl HalfLog {
    pub(crate) const fn new() -> Self {
        Self {}
    }

    pub(crate) const fn start_reader(&mut self, _: &Address) {}

    pub(crate) const fn start_writer(&mut self, _: &Address) {}

    pub(crate) const fn end(&mut self, _: &CommEvent<'_>) {}

    pub(crate) const fn stop(&mut self) {}
}

/// An event of a buffer pool.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PoolEvent {
    /// The pool has no free memory for a frame, so that new memory is allocated.
    Empty { frame_len: usize },
    /// The pool is full, and frees memory.
    Full { freed_len: usize },
}

impl PoolEvent {
    /// Emits the event.
    #[cfg(feature = "tracing")]
    pub(crate) fn emit(self) {
        tracing::debug!(target: TARGET, "{self}");
    }

    /// Does nothing, without the feature `tracing`.
    #[cfg(not(feature = "tracing"))]
    pub(crate) const fn emit(self) {}
}

impl fmt::Display for PoolEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty { frame_len } => {
                write!(
                    f,
                    "the buffer pool has no memory for a frame of {frame_len} bytes"
                )
            }
            Self::Full { freed_len } => {
                write!(f, "the buffer pool is full and frees {freed_len} bytes")
            }
        }
    }
}

/// The target of all events.
#[cfg(feature = "tracing")]
const TARGET: &str = "daskwire_comm";
