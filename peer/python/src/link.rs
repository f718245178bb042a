//! Messages over a socket to a Python process.
//!
//! ```text
//! u32      number of frames
//! u32      number of file descriptors, sent as ancillary data
//! u64      length of the frames without descriptors
//! ...      for each frame: i64 index of its descriptor or -1, u64 offset, u64 length
//! ...      the frames without descriptors
//! ```
//!
//! All numbers are little-endian. Linux sends at most 253 descriptors with one call. The
//! first batch is attached to the first bytes of the message; each further batch is attached
//! to one zero byte, and these bytes follow the three numbers (16 bytes).

use core::mem::MaybeUninit;
use core::ops::Range;
use core::time::Duration;
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use daskwire_messages::protocol::Body;
use daskwire_messages::protocol::{Field, Opener};
use daskwire_messages::scratch::MessageScratch;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use super::memory::{LONG, Region, SharedMemory};

/// Length of the three leading numbers, in bytes.
const HEAD: usize = 16;

/// Length of the description of a frame, in bytes.
const ENTRY: usize = 24;

/// Maximum number of descriptors sent with one call.
const MAX_DESCRIPTORS: usize = 200;

/// Length in bytes of what is received with one call: a short message, or several.
const RECEIVED_AT_ONCE: usize = 4 << 10;

/// Alignment of inline frames in bytes, for the arrays in them.
const ALIGNMENT: usize = 16;

/// Timeout for writing to a process that does not read.
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// A socket to a Python process.
#[derive(Debug)]
pub struct Link {
    socket: UnixStream,
    received: Received,
    memory: Arc<SharedMemory>,
    scratch: MessageScratch,
    opener: Opener,
    out: Vec<u8>,
    /// Length in bytes of the mapped regions that the process can reuse once they are dropped.
    pub(crate) lent: Arc<AtomicU64>,
}

impl Link {
    pub(crate) fn new(socket: UnixStream, memory: Arc<SharedMemory>) -> Self {
        Self {
            socket,
            received: Received::default(),
            memory,
            scratch: MessageScratch::new(),
            opener: Opener::default(),
            out: Vec::new(),
            lent: Arc::default(),
        }
    }

    /// Returns a second link over the same socket, for sending while this one receives.
    ///
    /// # Errors
    ///
    /// If this process has too many open files.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self::new(
            self.socket.try_clone()?,
            Arc::clone(&self.memory),
        ))
    }

    /// Sets the timeout for receiving. Default: none.
    pub(crate) fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.socket.set_read_timeout(timeout)
    }

    /// Sends a message with at most [`MAX_DESCRIPTORS`] descriptors.
    pub(crate) fn send_with(
        &mut self,
        message: &impl Field,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let Self { scratch, out, .. } = self;
        let built = scratch.with_frames(&Body(message), |frames| pack(frames, None, out));
        built.map_err(io::Error::other)?;
        out[4..8].copy_from_slice(&count(descriptors.len()).to_le_bytes());
        write(&self.socket, out, descriptors)
    }

    /// Sends a message. Blocks while the buffer of the socket is full.
    ///
    /// # Errors
    ///
    /// If the process has ended, or does not read for a minute; a part of the message may have
    /// been sent then.
    pub fn send(&mut self, message: &impl Field) -> io::Result<()> {
        let Self {
            scratch,
            out,
            memory,
            ..
        } = self;
        let built = scratch.with_frames(&Body(message), |frames| pack(frames, Some(memory), out));
        let regions = built.map_err(io::Error::other)?;
        let descriptors: Vec<BorrowedFd<'_>> =
            regions.iter().map(|region| region.file().as_fd()).collect();
        let written = write(&self.socket, out, &descriptors);
        scratch.shrink();
        if out.capacity() > (1 << 20) {
            *out = Vec::new();
        }
        written
    }

    /// Sends a message like [`send`](Self::send), without the timeout for a process that does not
    /// read.
    ///
    /// # Errors
    ///
    /// If the process has ended.
    pub fn send_without_timeout(&mut self, message: &impl Field) -> io::Result<()> {
        self.socket.set_write_timeout(None)?;
        let sent = self.send(message);
        self.socket.set_write_timeout(Some(WRITE_TIMEOUT))?;
        sent
    }

    /// Sends a short message if the buffer of the socket has space for it. Returns whether
    /// it was sent.
    ///
    /// # Errors
    ///
    /// If the socket fails, or takes only a part of the message.
    pub fn try_send(&mut self, message: &impl Field) -> io::Result<bool> {
        let Self { scratch, out, .. } = self;
        let built = scratch.with_frames(&Body(message), |frames| pack(frames, None, out));
        built.map_err(io::Error::other)?;
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match retry_on_intr(|| rustix::net::send(&self.socket, out, flags)) {
            Ok(sent) if sent == out.len() => Ok(true),
            Ok(_) => Err(io::ErrorKind::WriteZero.into()),
            Err(Errno::AGAIN) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Shuts down the sending direction of the socket.
    pub(crate) fn close(&self) -> io::Result<()> {
        self.socket.shutdown(Shutdown::Write)
    }

    /// Waits for a message.
    ///
    /// # Errors
    ///
    /// If the process has ended, or has sent anything but a message of this type.
    pub fn receive<T: Field>(&mut self) -> io::Result<T> {
        let frames = self.receive_frames()?;
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        self.opener.read(&frames, T::read).map_err(invalid)
    }

    fn receive_frames(&mut self) -> io::Result<Vec<Bytes>> {
        let Self {
            socket, received, ..
        } = self;
        let mut head = [0; HEAD];
        received.read_exact(socket, &mut head)?;
        let (frame_count, rest) = number::<4>(&head);
        let (descriptor_count, rest) = number::<4>(rest);
        let (len, _) = number::<8>(rest);
        let batch_count = descriptor_count.div_ceil(MAX_DESCRIPTORS as u64);
        for _ in 1..batch_count {
            received.read_exact(socket, &mut [0])?;
        }
        let descriptors = received.take_descriptors(descriptor_count)?;
        let table = received.take(socket, frame_count.saturating_mul(ENTRY as u64))?;
        let inline = Bytes::from(received.take(socket, len)?);
        let regions = descriptors
            .into_iter()
            .map(|file| self.memory.adopt(file, Some(&self.lent)));
        let regions: Vec<Bytes> = regions.collect::<Result<_, _>>()?;
        let frames = table.chunks_exact(ENTRY).map(|entry| {
            let (index, rest) = number::<8>(entry);
            let (offset, rest) = number::<8>(rest);
            let (len, _) = number::<8>(rest);
            let source = match index {
                u64::MAX => Some(&inline),
                index => usize::try_from(index)
                    .ok()
                    .and_then(|index| regions.get(index)),
            };
            let start = usize::try_from(offset).ok()?;
            let end = start.checked_add(usize::try_from(len).ok()?)?;
            let source = source?;
            let frame = source.get(start..end)?;
            Some(source.slice_ref(frame))
        });
        let frames: Option<Vec<Bytes>> = frames.collect();
        frames.ok_or_else(|| invalid("the offset or length of a frame is wrong"))
    }
}

/// Bytes and descriptors that have been received and are not in a message yet.
#[derive(Debug)]
struct Received {
    buffer: Box<[u8; RECEIVED_AT_ONCE]>,
    /// The part of the buffer that is not in a message yet.
    unread: Range<usize>,
    /// In the order of their messages.
    descriptors: VecDeque<OwnedFd>,
}

impl Default for Received {
    fn default() -> Self {
        Self {
            buffer: Box::new([0; RECEIVED_AT_ONCE]),
            unread: 0..0,
            descriptors: VecDeque::new(),
        }
    }
}

impl Received {
    /// Fills `into`.
    fn read_exact(&mut self, socket: &UnixStream, into: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < into.len() {
            let bytes = self.next(socket, into.len() - filled)?;
            into[filled..filled + bytes.len()].copy_from_slice(bytes);
            filled += bytes.len();
        }
        Ok(())
    }

    /// Reads `len` bytes of a message whose descriptors have been taken. The returned buffer
    /// grows as bytes arrive, since `len` is not trusted.
    fn take(&mut self, socket: &UnixStream, len: u64) -> io::Result<Vec<u8>> {
        /// Maximum number of bytes reserved before any has arrived.
        const MAX_RESERVED: u64 = 1 << 20;
        let reserved = usize::try_from(len.min(MAX_RESERVED)).unwrap_or_default();
        let mut bytes = Vec::with_capacity(reserved);
        let unread = self.unread.len().min(reserved);
        if unread > 0 {
            bytes.extend(self.next(socket, unread)?);
        }
        // Descriptors that are left are of a later message, whose first bytes came with them.
        if self.unread.is_empty() && !self.descriptors.is_empty() {
            return Err(invalid(UNNAMED));
        }
        // A long message is not copied twice. The rest of a message has no descriptors.
        let rest = len - bytes.len() as u64;
        let read = socket.take(rest).read_to_end(&mut bytes)?;
        if read as u64 != rest {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(bytes)
    }

    /// Returns the next received bytes, from 1 to `max_len`. Waits for them if there are none.
    fn next(&mut self, socket: &UnixStream, max_len: usize) -> io::Result<&[u8]> {
        if self.unread.is_empty() {
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let received = retry_on_intr(|| {
                let mut bytes = [IoSliceMut::new(&mut *self.buffer)];
                rustix::net::recvmsg(socket, &mut bytes, &mut control, RecvFlags::CMSG_CLOEXEC)
            })?;
            if received.bytes == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if received.flags.contains(ReturnFlags::CTRUNC) {
                return Err(io::Error::other(
                    "file descriptors of a message are missing: the worker has too many open files",
                ));
            }
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(files) = message {
                    self.descriptors.extend(files);
                }
            }
            self.unread = 0..received.bytes;
        }
        let start = self.unread.start;
        let end = self.unread.end.min(start.saturating_add(max_len));
        self.unread.start = end;
        Ok(&self.buffer[start..end])
    }

    /// Returns the next descriptors, which have been received with the first bytes of their
    /// message.
    fn take_descriptors(&mut self, count: u64) -> io::Result<Vec<OwnedFd>> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count > self.descriptors.len() {
            return Err(invalid("a message arrived without its file descriptors"));
        }
        // The buffer holds the bytes of one call, with which one batch arrives at most.
        if self.descriptors.len() - count > MAX_DESCRIPTORS {
            return Err(invalid(UNNAMED));
        }
        Ok(self.descriptors.drain(..count).collect())
    }
}

/// Packs the head, the table and the inline frames into `out`. Returns the regions of the
/// frames in shared memory.
fn pack(
    frames: &[&[u8]],
    memory: Option<&mut Arc<SharedMemory>>,
    out: &mut Vec<u8>,
) -> Vec<Arc<Region>> {
    let mut regions: Vec<Arc<Region>> = Vec::new();
    let mut inline: Vec<&[u8]> = Vec::new();
    let mut len = 0;
    out.clear();
    out.resize(HEAD, 0);
    for frame in frames {
        let long = memory.as_ref().filter(|_| frame.len() >= LONG);
        let found = long.and_then(|memory| {
            let (region, offset) = memory.find(frame)?;
            let known = regions.iter().position(|known| Arc::ptr_eq(known, &region));
            let is_sent = known.is_some() || regions.len() < memory.max_sent_count;
            is_sent.then_some((region, offset, known))
        });
        let (index, offset) = match found {
            Some((region, offset, known)) => {
                let index = known.unwrap_or(regions.len());
                if known.is_none() {
                    regions.push(region);
                }
                (index as i64, offset)
            }
            None => {
                let offset = len;
                len += frame.len().next_multiple_of(ALIGNMENT);
                inline.push(frame);
                (-1, offset as u64)
            }
        };
        out.extend(index.to_le_bytes());
        out.extend(offset.to_le_bytes());
        out.extend((frame.len() as u64).to_le_bytes());
    }
    out.reserve(len);
    for frame in inline {
        out.extend(frame);
        let padding = frame.len().next_multiple_of(ALIGNMENT) - frame.len();
        out.extend(&[0; ALIGNMENT][..padding]);
    }
    out[..4].copy_from_slice(&count(frames.len()).to_le_bytes());
    out[4..8].copy_from_slice(&count(regions.len()).to_le_bytes());
    out[8..HEAD].copy_from_slice(&(len as u64).to_le_bytes());
    regions
}

fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// Writes a packed message with its descriptors.
pub(crate) fn write(
    mut socket: &UnixStream,
    out: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut batches = descriptors.chunks(MAX_DESCRIPTORS);
    let first = batches.next().unwrap_or_default();
    let is_one = descriptors.len() <= MAX_DESCRIPTORS;
    let with_first = if is_one { out } else { &out[..HEAD] };
    let mut sent = send(socket, with_first, first)?;
    if !is_one {
        socket.write_all(&out[sent..HEAD])?;
        sent = HEAD;
    }
    for batch in batches {
        send(socket, &[0], batch)?;
    }
    socket.write_all(&out[sent..])
}

fn send(socket: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let bytes = [IoSlice::new(bytes)];
    let sent =
        retry_on_intr(|| rustix::net::sendmsg(socket, &bytes, &mut control, SendFlags::NOSIGNAL))?;
    Ok(sent)
}

/// Splits a number of `N` bytes off the start of `bytes`.
fn number<const N: usize>(bytes: &[u8]) -> (u64, &[u8]) {
    let (number, rest) = bytes.split_at(N.min(bytes.len()));
    let mut all = [0; 8];
    all[..number.len()].copy_from_slice(number);
    (u64::from_le_bytes(all), rest)
}

const UNNAMED: &str = "a message arrived with more file descriptors than it names";

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use daskwire_messages::Value;
    use daskwire_messages::protocol::{Nullable, RunInPython};
    use daskwire_messages::value::Serialized;

    #[test]
    fn messages_with_many_regions_arrive_whole() {
        let memory = Arc::new(SharedMemory::default());
        let (one, other) = UnixStream::pair().expect("a socket");
        let data = (0..2 * MAX_DESCRIPTORS + 1).map(|index| {
            let len = if index % 2 == 0 { LONG + index } else { index };
            let value = Value::bytes(vec![index.to_le_bytes()[0]; len]);
            let payload = Serialized::of(&value).expect("bytes");
            let payload = memory.share(&payload).unwrap_or(payload);
            (index.to_string().into(), Nullable(Some(payload)))
        });
        let message = RunInPython {
            key: "k".into(),
            run_spec: Serialized::default(),
            data: data.collect(),
            ..RunInPython::default()
        };
        let mut sender = Link::new(one, Arc::clone(&memory));
        let mut receiver = Link::new(other, memory);
        let arrived = std::thread::scope(|scope| {
            // Sending blocks until the other side reads.
            let arrived = scope.spawn(|| [(); 2].map(|()| receiver.receive::<RunInPython>()));
            sender.send(&message).expect("it is read");
            sender.send(&message).expect("it is read");
            arrived.join().expect("no panic")
        });
        for arrived in arrived {
            assert_eq!(arrived.expect("a message"), message);
        }
        drop(sender);
        let end = receiver.receive::<RunInPython>().expect_err("closed");
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn short_messages_that_arrive_together_keep_their_descriptors() {
        let memory = Arc::new(SharedMemory::default());
        let (one, other) = UnixStream::pair().expect("a socket");
        let message = |name: &str, len| {
            let value = Value::bytes(vec![len as u8; len]);
            let payload = Serialized::of(&value).expect("bytes");
            let payload = memory.share(&payload).unwrap_or(payload);
            RunInPython {
                key: name.into(),
                run_spec: Serialized::default(),
                data: [("x".into(), Nullable(Some(payload)))].into(),
                ..RunInPython::default()
            }
        };
        let lens = [1, LONG, 2, 3, LONG + 1, RECEIVED_AT_ONCE, LONG + 2, 0];
        let messages = lens.map(|len| message(&len.to_string(), len));
        let mut sender = Link::new(one, Arc::clone(&memory));
        for message in &messages {
            sender.send(message).expect("it fits");
        }
        let mut receiver = Link::new(other, memory);
        for message in messages {
            let arrived = receiver.receive::<RunInPython>();
            assert_eq!(arrived.expect("a message"), message);
        }
    }

    #[test]
    fn wrong_numbers_of_descriptors_are_errors() {
        let memory = Arc::new(SharedMemory::default());
        let value = Value::bytes(vec![0; LONG]);
        let payload = Serialized::of(&value).expect("bytes");
        let payload = memory.share(&payload).expect("it is long");
        let (region, _) = memory.find(&payload.frames()[0]).expect("it is shared");
        let file = region.file().as_fd();
        let mut out = Vec::new();
        pack(&[b"ab"], None, &mut out);
        for (count, sent, expected) in [
            (1, 0, "a message arrived without its file descriptors"),
            (
                1,
                2,
                "a message arrived with more file descriptors than it names",
            ),
            (
                0,
                1,
                "a message arrived with more file descriptors than it names",
            ),
        ] {
            let (one, other) = UnixStream::pair().expect("a socket");
            out[4..8].copy_from_slice(&u32::to_le_bytes(count));
            write(&one, &out, &vec![file; sent]).expect("it fits");
            let mut link = Link::new(other, Arc::clone(&memory));
            let error = link.receive_frames().expect_err("a wrong number");
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn descriptors_without_a_message_are_not_collected() {
        let (one, other) = UnixStream::pair().expect("a socket");
        let mut out = Vec::new();
        pack(&[b"ab"], None, &mut out);
        let mut link = Link::new(other, Arc::new(SharedMemory::default()));
        // Each message but the first arrives with the first byte of the next one.
        let (first, rest) = out.split_at(1);
        let next = [rest, first].concat();
        let files = vec![one.as_fd(); MAX_DESCRIPTORS];
        write(&one, first, &[]).expect("it fits");
        for _ in 0..2 {
            write(&one, &next, &files).expect("it fits");
        }
        assert_eq!(link.receive_frames().expect("a message").len(), 1);
        let error = link.receive_frames().expect_err("too many descriptors");
        assert_eq!(error.to_string(), UNNAMED);
    }

    #[test]
    fn a_message_to_a_process_that_does_not_read_is_not_sent() {
        let memory = Arc::new(SharedMemory::default());
        let (one, other) = UnixStream::pair().expect("a socket");
        let mut sender = Link::new(one, Arc::clone(&memory));
        let message = RunInPython {
            key: "k".into(),
            run_spec: Serialized::default(),
            data: [].into_iter().collect(),
            ..RunInPython::default()
        };
        let mut sent = 0;
        while sender.try_send(&message).expect("it is open") {
            sent += 1;
        }
        assert!(sent > 1);
        let mut receiver = Link::new(other, memory);
        for _ in 0..sent {
            let arrived = receiver.receive::<RunInPython>();
            assert_eq!(arrived.expect("a message"), message);
        }
        assert!(sender.try_send(&message).expect("it is open"));
    }

    #[test]
    fn wrong_places_of_frames_are_errors() {
        let memory = Arc::new(SharedMemory::default());
        for (index, offset, len) in [(0, 0, 1), (-1, 0, 3), (-1, u64::MAX, 1), (-1, 3, 0)] {
            let (one, other) = UnixStream::pair().expect("a socket");
            let mut out = Vec::new();
            pack(&[b"ab"], None, &mut out);
            out[8..HEAD].copy_from_slice(&2_u64.to_le_bytes());
            out[HEAD..HEAD + 8].copy_from_slice(&i64::from(index).to_le_bytes());
            out[HEAD + 8..HEAD + 16].copy_from_slice(&offset.to_le_bytes());
            out[HEAD + 16..HEAD + 24].copy_from_slice(&u64::to_le_bytes(len));
            write(&one, &out[..HEAD + ENTRY + 2], &[]).expect("it fits");
            let mut link = Link::new(other, Arc::clone(&memory));
            let error = link.receive_frames().expect_err("out of bounds");
            assert_eq!(
                error.to_string(),
                "the offset or length of a frame is wrong"
            );
        }
    }
}
