//! Channels: comms that send and receive the typed messages of the protocol.

use core::fmt;
use core::pin::pin;
use core::task::{Context, Waker};
use core::time::Duration;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use daskwire::compression::Codec;
use daskwire::frame::ReadHint;
use daskwire::message::Layout;
use daskwire_comm::runtime;
use daskwire_comm::{Address, Comm, CommError, CommReader, CommWriter, Traffic};
use daskwire_messages::Value;
use daskwire_messages::brief::bounded;
use daskwire_messages::protocol::{Body, Field, Opener, ProtocolError, Source, read_batch};
use daskwire_messages::scratch::MessageScratch;

use crate::RequestError;
use crate::event::{Level, MessageEvent, emit};
use crate::layout::Converter;

/// An observer of every message sent or received, as `daskwire journey` shows them.
pub trait Observer: Send + Sync {
    /// Called for each message that is sent or has been received.
    fn message(&self, message: &ObservedMessage<'_>);

    /// Whether a message that is about to be sent is lost: the comm breaks in its place, as a lost
    /// connection does, and [`message`](Self::message) is not called. For tests of faults. Default:
    /// `false`.
    fn is_lost(&self, message: &ObservedMessage<'_>) -> bool {
        let _ = message;
        false
    }
}

/// A message, as observed at one of its ends.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct ObservedMessage<'a> {
    /// The name of the observed end, such as `client`.
    pub local: &'a str,
    /// The name of the other end, or its address while the name is not known.
    pub peer: &'a str,
    /// Whether the message is sent, rather than received.
    pub is_leaving: bool,
    /// The body and all other frames.
    pub frames: &'a [&'a [u8]],
    /// The time of the message.
    pub at: Instant,
}

/// Formats the lengths of the frames in place of their bytes.
impl fmt::Debug for ObservedMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lens = self.frames.iter().map(|frame| frame.len());
        bounded(f, |f| {
            f.debug_struct("ObservedMessage")
                .field("local", &self.local)
                .field("peer", &self.peer)
                .field("is_leaving", &self.is_leaving)
                .field("frame_lens", &lens.clone().collect::<Vec<_>>())
                .field("at", &self.at)
                .finish()
        })
    }
}

/// The names of both ends, and the observer.
#[derive(Clone)]
pub struct Ends {
    pub local: Arc<str>,
    pub peer: Arc<str>,
    pub observer: Option<Arc<dyn Observer>>,
}

impl fmt::Debug for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} and {}", self.local, self.peer)
    }
}

impl Ends {
    pub fn new(local: &str, peer: &str, observer: Option<Arc<dyn Observer>>) -> Self {
        Self {
            local: local.into(),
            peer: peer.into(),
            observer,
        }
    }

    /// Reports a message to `tracing` and to the observer, which may lose a message that leaves.
    fn report<T: AsRef<[u8]>>(&self, is_leaving: bool, frames: &[T]) -> Result<(), RequestError> {
        emit(Level::Trace, || MessageEvent {
            peer: &self.peer,
            is_leaving,
            frame_count: frames.len(),
            len: frames.iter().map(|frame| frame.as_ref().len()).sum(),
        });
        if let Some(observer) = &self.observer {
            let frames: Vec<&[u8]> = frames.iter().map(AsRef::as_ref).collect();
            let message = ObservedMessage {
                local: &self.local,
                peer: &self.peer,
                is_leaving,
                frames: &frames,
                at: Instant::now(),
            };
            if is_leaving && observer.is_lost(&message) {
                let lost = io::Error::new(
                    io::ErrorKind::ConnectionReset,
                    "the observer loses a message",
                );
                return Err(CommError::Io(lost).into());
            }
            observer.message(&message);
        }
        Ok(())
    }
}

/// Default limit of the comms that a listener serves at once: three quarters of the process's
/// file descriptors, so that some are left for files and outgoing comms, and at most 65,536.
pub fn max_comms() -> usize {
    let descriptors = daskwire_comm::descriptor_limit();
    (descriptors - descriptors / 4).min(1 << 16)
}

/// Number of frames that need no allocation. Most messages do not have more.
const INLINE_FRAMES: usize = 8;

/// The sending half of a comm.
#[derive(Debug)]
pub struct Sender {
    writer: CommWriter,
    room: MessageScratch,
    /// The converter for peers with the classic layout.
    converter: Option<Box<Converter>>,
    ends: Ends,
}

impl Sender {
    /// Sends a message. Not cancel safe: dropping the future ends the comm.
    pub async fn send(&mut self, message: &impl Field) -> Result<(), RequestError> {
        loop {
            let mut few: [&[u8]; INLINE_FRAMES] = [&[]; INLINE_FRAMES];
            let mut many = Vec::new();
            let slots = if self.room.slot_count() <= INLINE_FRAMES {
                &mut few[..]
            } else {
                many.resize(self.room.slot_count(), &[][..]);
                &mut many[..]
            };
            let body = Body(message);
            let error = match self.room.build(&body, slots) {
                Ok(frames) => {
                    self.ends.report(true, frames)?;
                    match &mut self.converter {
                        None => self.writer.write_message(frames).await?,
                        Some(converter) => converter.write(frames, &mut self.writer).await?,
                    }
                    break;
                }
                Err(error) => error,
            };
            drop(many);
            self.room.grow(error)?;
        }
        self.room.shrink();
        Ok(())
    }

    pub async fn close(&mut self) -> Result<(), RequestError> {
        Ok(self.writer.close().await?)
    }
}

/// The receiving half of a comm.
#[derive(Debug)]
pub struct Receiver {
    reader: CommReader,
    opener: Opener,
    /// The converter for peers with the classic layout.
    converter: Option<Box<Converter>>,
    ends: Ends,
}

impl Receiver {
    /// Receives the next message; `None` when the peer has closed the comm.
    /// Cancel safe.
    pub async fn receive<T: Field>(&mut self) -> Result<Option<T>, RequestError> {
        self.receive_with(T::read).await
    }

    /// Like [`receive`](Self::receive), for a batch or a single message.
    pub async fn receive_batch<T: Field>(&mut self) -> Result<Option<Vec<T>>, RequestError> {
        self.receive_with(read_batch).await
    }

    async fn receive_with<T>(
        &mut self,
        read: impl FnOnce(&mut Source<'_>) -> Result<T, ProtocolError>,
    ) -> Result<Option<T>, RequestError> {
        let Some(frames) = self.reader.read_message().await? else {
            return Ok(None);
        };
        let converted;
        let frames: &[Bytes] = match &mut self.converter {
            None => &frames,
            Some(converter) => {
                converted = converter.read(&frames)?;
                &converted
            }
        };
        self.ends.report(false, frames)?;
        Ok(Some(self.opener.read(frames, read)?))
    }
}

/// A comm for typed messages, with both halves.
#[derive(Debug)]
pub struct Channel {
    pub sender: Sender,
    pub receiver: Receiver,
    pub peer: Address,
    pub local: Address,
    /// The codec for the data that this side serializes, if the handshake agreed on one.
    pub(crate) codec: Option<Codec>,
}

impl Channel {
    /// Sets the read hint of the following messages, see [`ReadHint`].
    pub fn set_read_hint(&mut self, hint: ReadHint) {
        self.sender.writer.set_read_hint(hint);
    }

    pub fn new(comm: Comm, ends: Ends) -> Self {
        let (peer, local) = (comm.peer_address().clone(), comm.local_address().clone());
        let agreement = comm.agreement();
        let is_classic = agreement.layout == Layout::Classic;
        let codec = agreement.negotiated.compression;
        let (reader, writer) = comm.split();
        let limits = *reader.limits();
        let converter = |to| is_classic.then(|| Box::new(Converter::new(to, limits)));
        Self {
            sender: Sender {
                writer,
                room: MessageScratch::new(),
                converter: converter(Layout::Classic),
                ends: ends.clone(),
            },
            receiver: Receiver {
                reader,
                opener: Opener::new(limits),
                converter: converter(Layout::Modern),
                ends,
            },
            peer,
            local,
            codec: codec.and_then(|name| Codec::from_name(name.as_bytes())),
        }
    }

    /// Sets the kind of traffic that is sent from now on, so that control messages have
    /// priority over data on a connection that several comms share.
    pub fn set_traffic(&self, traffic: Traffic) {
        self.sender.writer.set_traffic(traffic);
    }

    /// Sets the peer's name for observers.
    pub fn rename_peer(&mut self, name: &str) {
        let name: Arc<str> = name.into();
        self.sender.ends.peer = Arc::clone(&name);
        self.receiver.ends.peer = name;
    }

    /// Whether the comm is open, and the peer has sent nothing since its last reply.
    pub fn is_quiet(&mut self) -> bool {
        let receiving = pin!(self.receiver.receive::<Value>());
        receiving
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
    }

    pub async fn close(mut self) {
        // Errors are ignored: a peer that has left need not be notified.
        let _ = self.sender.close().await;
    }
}

/// Waits for a future with a timeout. `waiting_for` names the awaited event in the error.
pub async fn with_timeout<T, E: From<RequestError>>(
    timeout: Duration,
    waiting_for: &'static str,
    future: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    match runtime::timeout(timeout, future).await {
        Ok(result) => result,
        Err(_) => Err(RequestError::Timeout {
            waiting_for,
            timeout,
        }
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observed_messages_are_shown_in_brief() {
        let frame = vec![0; 1 << 20];
        let observed = ObservedMessage {
            local: "client",
            peer: "scheduler",
            is_leaving: true,
            frames: &[&frame, b""],
            at: Instant::now(),
        };
        for shown in [format!("{observed:?}"), format!("{observed:#?}")] {
            assert!(shown.len() < 1 << 15, "{} bytes", shown.len());
        }
    }
}
