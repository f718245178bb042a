//! The functions of the test programs: they use everything in daskwire that
//! needs no heap.
//!
//! All buffers are on the stack. Inputs go through [`black_box`], so that the
//! compiler keeps the code for all inputs.
//!
//! Not used: compression with lz4, since the crate lz4_flex contains panics.
//! Decompression of lz4 is part of daskwire.

#![no_std]
#![forbid(unsafe_code)]

#[cfg(feature = "async")]
mod waiting;

use core::fmt::{self, Write};
use core::hint::black_box;

use daskwire::comm::{Comm, CommOptions};
use daskwire::compression::{Codec, Compression, Policy, Snappy, decompress};
use daskwire::frame::{Arena, FrameDecoder, FramedMessage, Prefix, encode_prelude};
use daskwire::handshake::{Handshake, detect_prefix};
use daskwire::message::{
    BuilderBuffers, FrameCompressor, Item, Layout, Message, MessageBuilder, Payload, PayloadHeader,
    PayloadKind, ReadOptions, SHARD_LEN, Scratch,
};
use daskwire::msgpack::{Reader, Token, Writer};
use daskwire::{BufferTooSmall, Limits, copy};
use daskwire_embedded::embedded_io_07::{
    CommError, HandshakeRole, MessageReader, MessageWriter, StreamError, handshake as shake_hands,
};
use daskwire_numpy::{
    Array, DType, DTypeError, Description, MaskedArray, NumpyModules, Order, PayloadValue,
    PickledPayload, RecordType, ValueBuilder as _, WriteOptions, encode_into, pickle_array,
};
use daskwire_pickle::{
    Argument, Framing, Mutability, OutOfBandReader, PickleBuffer, PickleBufferError, Placement,
    Protocol, Reader as PickleReader, Unescaped, WriterOptions,
};
use embedded_io::ErrorKind;

/// A message of a real release, and its contents.
#[derive(Clone, Copy)]
pub struct Recorded {
    /// The name of the message.
    pub name: &'static str,
    /// Its bytes on the wire.
    pub bytes: &'static [u8],
    /// The prefix of the prelude.
    pub prefix: Prefix,
    /// Its layout.
    pub layout: Layout,
    /// The length of its decompressed payload, in bytes.
    pub plain_len: usize,
    /// FNV-1a of the decompressed payload, computed with Dask's decompression.
    pub plain_hash: u64,
}

/// Replies to get-data: five float64 ones with lz4, in both layouts.
pub const ONES: [Recorded; 2] = [
    Recorded {
        name: "distributed 2026.8.0, lz4",
        bytes: include_bytes!("../../vectors/modern-nosplit-2026.8.0/docs-get-data-ones5-lz4.bin"),
        prefix: Prefix::U64,
        layout: Layout::Modern,
        plain_len: 40,
        plain_hash: 0x33e8_1a0d_cc8f_3478,
    },
    Recorded {
        name: "distributed 2.30.1, lz4",
        bytes: include_bytes!("../../vectors/classic-2.30.1/docs-get-data-ones5-lz4.bin"),
        prefix: Prefix::None,
        layout: Layout::Classic,
        plain_len: 40,
        plain_hash: 0x33e8_1a0d_cc8f_3478,
    },
];

/// Ten thousand bytes with snappy.
pub const SNAPPY: Recorded = Recorded {
    name: "distributed 2026.8.0, snappy",
    bytes: include_bytes!("../../vectors/modern-nosplit-2026.8.0/bytes-10000-comp-snappy.bin"),
    prefix: Prefix::U64,
    layout: Layout::Modern,
    plain_len: 10_000,
    plain_hash: 0x8d7d_3dfe_002e_bc42,
};

/// A handshake.
pub const HANDSHAKE: &[u8] = include_bytes!("../../vectors/modern-nosplit-2026.8.0/handshake.bin");

/// The length of the recorded messages, to subtract from the size of a program.
pub const RECORDED_LEN: usize =
    ONES[0].bytes.len() + ONES[1].bytes.len() + SNAPPY.bytes.len() + HANDSHAKE.len();

/// All error types of daskwire in one, for formatting.
pub enum Fault {
    /// An error on the stream.
    Frame(daskwire::frame::FrameError),
    /// An error in the message.
    Message(daskwire::message::MessageError),
    /// An error of the message builder.
    Build(daskwire::message::BuildError),
    /// An error of the encoded prelude.
    Encode(daskwire::frame::EncodeError),
    /// An error in the handshake.
    Handshake(daskwire::handshake::HandshakeError),
    /// An error of compression.
    Compression(daskwire::compression::CompressionError),
    /// An error in a document.
    Document(daskwire::msgpack::Malformed),
    /// An error of a written document.
    Write(daskwire::msgpack::WriteError),
    /// An error of a written pickle.
    PickleWrite(daskwire_pickle::WriteError),
    /// An error of an out-of-band buffer.
    PickleBuffer(PickleBufferError),
    /// An error in a pickle.
    Pickle(daskwire_pickle::PickleError),
    /// An error of a comm over streams.
    Comm(CommError<ErrorKind>),
    /// An error of a comm without I/O.
    SansIo(daskwire::comm::CommError),
    /// A buffer is too small.
    Buffer(BufferTooSmall),
    /// There are too few slots for frames.
    Split(daskwire::frame::SplitError),
    /// A wrong result.
    Wrong(&'static str),
    /// The text could not be written.
    Text(fmt::Error),
}

macro_rules! from {
    ($($variant:ident: $error:ty),+ $(,)?) => {
        $(impl From<$error> for Fault {
            fn from(error: $error) -> Self {
                Self::$variant(error)
            }
        })+

        impl fmt::Display for Fault {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$variant(error) => write_text(error, f),)+
                    Self::Wrong(what) => f.write_str(what),
                }
            }
        }
    };
}

from! {
    Frame: daskwire::frame::FrameError,
    Message: daskwire::message::MessageError,
    Build: daskwire::message::BuildError,
    Encode: daskwire::frame::EncodeError,
    Handshake: daskwire::handshake::HandshakeError,
    Compression: daskwire::compression::CompressionError,
    Document: daskwire::msgpack::Malformed,
    Write: daskwire::msgpack::WriteError,
    PickleWrite: daskwire_pickle::WriteError,
    PickleBuffer: PickleBufferError,
    Pickle: daskwire_pickle::PickleError,
    Comm: CommError<ErrorKind>,
    SansIo: daskwire::comm::CommError,
    Buffer: BufferTooSmall,
    Split: daskwire::frame::SplitError,
    Text: fmt::Error,
}

#[cfg(not(feature = "without-texts"))]
fn write_text(error: &impl fmt::Display, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    error.fmt(f)
}

#[cfg(feature = "without-texts")]
fn write_text<T>(error: &T, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    black_box(error);
    f.write_str("an error")
}

fn ensure(holds: bool, what: &'static str) -> Result<(), Fault> {
    if holds {
        Ok(())
    } else {
        Err(Fault::Wrong(what))
    }
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The options, opaque to the compiler.
fn reading() -> ReadOptions {
    ReadOptions::new(black_box(Limits::MICROCONTROLLER))
        .with_sets_and_enums(black_box(true))
        .with_lengths_optional(black_box(false))
}

/// The minimal use: decodes a message from a stream in pieces, and decompresses
/// its payload. Returns its length and hash.
///
/// `PLAIN` is the size of the buffer for it, in bytes.
pub fn decode<const PLAIN: usize>(
    stream: &[u8],
    prefix: Prefix,
    layout: Layout,
) -> Result<(usize, u64), Fault> {
    let mut storage = [0; 1024];
    let mut frames = Arena::new(&mut storage);
    let mut decoder = FrameDecoder::new(prefix, [0_u8; 64], reading().limits);
    for mut piece in stream.chunks(black_box(11).max(1)) {
        decoder.push(&mut piece, &mut frames)?;
    }
    decoder.end()?;
    let prelude = decoder.prelude().ok_or(Fault::Wrong("no prelude"))?;
    let mut slots = [&[][..]; 8];
    let frames = prelude.split(frames.filled(), &mut slots)?;

    let (mut scratch, mut walking) = (Scratch::<8, 4>::new(), Scratch::<8>::new());
    let message = Message::open(frames, layout, &reading(), &mut scratch)?;
    let mut found = (0, 0);
    let mut walk = message.walk(&mut walking);
    while let Some(item) = walk.next_item()? {
        if let Item::Payload(number) = item {
            let (mut out, mut ends) = ([0; PLAIN], [0; 4]);
            let merged = message.payload(number)?.merge_into(&mut out, &mut ends)?;
            found = (merged.bytes().len(), fnv(merged.bytes()));
        }
    }
    Ok(found)
}

/// Decodes a message and builds replies: its payload forwarded in both layouts,
/// and sent again. Returns the payload's length and hash.
pub fn exchange(
    stream: &[u8],
    prefix: Prefix,
    layout: Layout,
    log: &mut dyn Write,
) -> Result<(usize, u64), Fault> {
    // Reads into the buffer that the decoder returns.
    let mut storage = [0; 1024];
    let mut arena = Arena::new(&mut storage);
    let mut decoder = FrameDecoder::new(prefix, [0_u8; 64], reading().limits);
    let mut rest = stream;
    loop {
        let space = decoder.space(&mut arena)?;
        if space.is_empty() {
            break;
        }
        let len = space.len().min(black_box(13));
        let (Some(place), Some((now, later))) = (space.get_mut(..len), rest.split_at_checked(len))
        else {
            decoder.end()?;
            break;
        };
        copy(place, now);
        rest = later;
        decoder.advance(len)?;
    }
    let prelude = decoder.prelude().ok_or(Fault::Wrong("no prelude"))?;
    let mut slots = [&[][..]; 8];
    let frames = prelude.split(arena.filled(), &mut slots)?;
    let framed = FramedMessage::parse(stream, prefix, &reading().limits)?;
    ensure(framed.prelude == prelude, "two decoders, two preludes")?;
    ensure(
        framed.frames == arena.filled(),
        "two decoders, two messages",
    )?;

    let (mut scratch, mut walking) = (Scratch::<8, 4, 256>::new(), Scratch::<8>::new());
    let message = Message::open(frames, layout, &reading(), &mut scratch)?;
    message.check()?;
    let mut found = (0, 0);
    for payload in message.payloads() {
        let payload = payload?;
        look_at(&payload, log)?;
        let (mut out, mut ends) = ([0; 10_240], [0; 4]);
        let merged = payload.merge_into(&mut out, &mut ends)?;
        found = (merged.bytes().len(), fnv(merged.bytes()));
        send_anew(merged.iter().next().unwrap_or_default())?;
    }

    for target in [Layout::Modern, Layout::Classic] {
        let (mut body, mut headers) = ([0; 256], [0; 512]);
        let (mut slots, mut scratch) = ([&[][..]; 8], Scratch::<8, 2>::new());
        let mut builder = MessageBuilder::new(
            black_box(target),
            BuilderBuffers {
                body: &mut body,
                headers: &mut headers,
                slots: &mut slots,
            },
        )
        .with_scratch(&mut scratch);
        let mut steps = 0_usize;
        let mut walk = message.walk(&mut walking);
        while let Some(item) = walk.next_item()? {
            builder.item(item, &message)?;
            steps = steps.wrapping_add(walk.path().count());
        }
        ensure(steps != 0, "a walk without a path")?;
        let answer = builder.finish()?;
        let mut wire = [0; 1024];
        let wire = join(answer, &mut wire)?;
        if target == Layout::Modern && layout == Layout::Modern {
            // Forwarded unchanged, including the prelude.
            ensure(
                wire.len() == envelope_len(&framed),
                "what was forwarded has another length",
            )?;
        }
        let again = decode::<10_240>(wire, Prefix::U64, target)?;
        ensure(again == found, "the answer has another payload")?;
    }
    Ok(found)
}

fn envelope_len(framed: &FramedMessage<'_>) -> usize {
    usize::try_from(framed.message_len()).unwrap_or(usize::MAX)
}

/// Joins the frames of a message.
fn join<'o>(frames: &[&[u8]], out: &'o mut [u8]) -> Result<&'o [u8], Fault> {
    let lengths = frames.iter().map(|frame| frame.len() as u64);
    let mut len = encode_prelude(Prefix::U64, lengths, out)?;
    let available = out.len();
    for frame in frames {
        let needed = len.saturating_add(frame.len());
        let rest = out.get_mut(len..).unwrap_or_default();
        let place = rest
            .get_mut(..frame.len())
            .ok_or(BufferTooSmall { needed, available })?;
        copy(place, frame);
        len = needed;
    }
    out.get(..len).ok_or(Fault::Wrong("no room"))
}

/// Calls all methods of a payload.
fn look_at(payload: &Payload<'_, &[u8]>, log: &mut dyn Write) -> Result<(), Fault> {
    payload.check()?;
    let count = payload.logical_count()?;
    for frame in payload.logical_frames()? {
        let frame = frame?;
        black_box((frame.as_slice(), frame.parts()));
    }
    look_at_value(payload);
    let header = payload.header();
    look_at_header(header)?;
    if let Some(subs) = header.sub_headers()? {
        for sub in subs {
            look_at_header(&sub?)?;
        }
    }
    if let Some(len) = payload.merged_len()? {
        // See the feature `without-texts` for u64.
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        writeln!(log, "    {count} logical frames of {len} bytes in all")?;
    }
    Ok(())
}

/// Reads a payload as a value, and writes an array again. Errors of values are
/// ignored.
fn look_at_value<T: AsRef<[u8]>>(payload: &Payload<'_, T>) {
    let (mut body, mut headers) = ([0; 32], [0; 512]);
    let (mut slots, mut room) = ([&[][..]; 4], [0; 64]);
    if let Ok(pickled) = PickledPayload::read(payload)
        && let Ok(there) = pickled.borrowed()
    {
        let mut items = there.items();
        while let Ok(Some(item)) = items.next_item() {
            black_box(item.data);
        }
        for buffer in there.pickle_buffers([black_box(None), Some(false)]) {
            black_box(buffer);
        }
    }
    let Ok(parsed) = PayloadValue::read(payload) else {
        return;
    };
    black_box(parsed.copy_into(&mut room).is_ok());
    black_box(parsed.array_into(&mut room).is_ok());
    if let Description::MaskedArray(header) = parsed.description() {
        black_box((header.mask().is_ok(), header.data().is_ok()));
        black_box(header.fill_value().is_ok());
    }
    if let Ok(masked) = parsed.masked_array() {
        look_at_masked(&masked);
    }
    if let Ok(masked) = parsed.masked_array_into(&mut room) {
        look_at_masked(&masked);
    }
    let Ok(array) = parsed.array() else {
        return;
    };
    black_box((array.items().count(), array.item(&[0, 0])));
    if let Ok(elements) = array.elements::<f64>() {
        black_box(elements.fold(0.0, |sum, element| sum + element));
    }
    if let Ok(elements) = array.memory_elements::<f64>() {
        black_box(elements.len());
    }
    let mut decoded = [0.0_f64; 8];
    if let Ok(elements) = array.decode_into(&mut decoded) {
        black_box(encode_into(elements, &mut room).is_ok());
    }
    black_box(array.copy_into(&mut room).is_ok());
    let mut builder = MessageBuilder::new(
        Layout::Modern,
        BuilderBuffers {
            body: &mut body,
            headers: &mut headers,
            slots: &mut slots,
        },
    );
    let written = builder.array_payload(&array, &WriteOptions::default());
    black_box(written.is_ok());
    let mut levels = [daskwire_pickle::WriterLevel::EMPTY; 6];
    let mut writer = daskwire_pickle::Writer::new(&mut room, &mut levels);
    let modules = NumpyModules::default();
    let written = pickle_array(&mut writer, &array, modules, |_| Placement::OutOfBand);
    black_box((written.is_ok(), writer.finish_mut().is_ok()));
}

fn look_at_masked(masked: &MaskedArray<'_>) {
    black_box((
        masked.is_masked(&[0, 0]),
        masked.mask(),
        masked.dimensions(),
    ));
    if let Ok(elements) = masked.elements::<u8>() {
        black_box(elements.flatten().map(u32::from).sum::<u32>());
    }
}

/// `numpy.dtype.descr` of records with a title, an array and nested records.
pub const RECORDS: &[u8] = b"\x93\x92\xa1x\xa3<f8\x93\x92\xa1t\xa1y\xa3<i4\x92\x02\x03\
    \x92\xa1z\x91\x92\xa1a\xa3|u1";

/// Reads the fields of records, and the type again with each byte damaged.
/// Returns the number of fields.
pub fn records(list: &[u8]) -> Result<usize, Fault> {
    fn fields(list: &[u8]) -> Result<usize, DTypeError> {
        let records = RecordType::from_list(list)?;
        for field in records.fields() {
            let field = field?;
            black_box((field.name(), field.title(), field.offset(), field.dtype()));
            black_box((field.element_type(), field.shape()));
        }
        black_box(records.field(black_box("y"))?);
        Ok(records.fields().count())
    }
    let mut storage = [0; 64];
    let room = storage.get_mut(..list.len());
    let damaged = room.ok_or(Fault::Wrong("a long list"))?;
    copy(damaged, list);
    for at in 0..list.len() {
        for flip in [0xff, 0xff] {
            if let Some(byte) = damaged.get_mut(at) {
                *byte ^= black_box(flip);
            }
            black_box(fields(damaged).is_ok());
        }
    }
    fields(list).map_err(|_| Fault::Wrong("the records are not read"))
}

/// Reads a masked array. Returns the number of elements that are not masked.
pub fn masked(data: &[u8], mask: &[u8]) -> Result<usize, Fault> {
    let wrong = || Fault::Wrong("the masked array is not read");
    let shape = [black_box(data.len())];
    let (Ok(data), Ok(mask)) = (
        Array::new(DType::U8, &shape, Order::C, data),
        Array::new(DType::BOOL, &shape, Order::C, mask),
    ) else {
        return Err(wrong());
    };
    let masked = MaskedArray::new(data, Some(mask)).map_err(|_| wrong())?;
    look_at_masked(&masked);
    let elements = masked.elements::<u8>();
    Ok(elements.map_or(0, |elements| elements.flatten().count()))
}

/// Decodes a message into vectors of heapless. Returns the number of frames.
pub fn into_vectors(stream: &[u8]) -> Result<usize, Fault> {
    let mut frames = heapless::Vec::<heapless::Vec<u8, 256>, 4>::new();
    let prelude = heapless::Vec::<u8, 64>::new();
    let mut decoder = FrameDecoder::new(Prefix::U64, prelude, reading().limits);
    for mut piece in stream.chunks(black_box(11).max(1)) {
        decoder.push(&mut piece, &mut frames)?;
    }
    decoder.end()?;
    Ok(frames.len())
}

fn look_at_header(header: &PayloadHeader<'_>) -> Result<(), Fault> {
    black_box((header.serializer()?, header.type_name()?));
    black_box((header.type_serialized()?, header.pickled_object()?));
    black_box((header.number("num-sub-frames")?, header.number("count")?));
    black_box((header.is_collection()?, header.key()));
    let own = header.type_header()?;
    black_box(own.dtype()?);
    for list in [
        header.list("lengths")?,
        header.list("split-num-sub-frames")?,
        header.list("split-offsets")?,
        header.list("frame-lengths")?,
        own.shape()?,
    ]
    .into_iter()
    .flatten()
    {
        for number in list.numbers() {
            black_box(number?);
        }
    }
    if let Some(strides) = own.strides()? {
        for stride in strides.signed_numbers() {
            black_box(stride?);
        }
    }
    if let Some(names) = header.list("compression")? {
        for name in names.codec_names() {
            black_box(name?);
        }
    }
    if let Some(flags) = header.writeable()? {
        black_box(flags.flags().count());
    }
    for (key, value) in header.entries() {
        black_box((key, value));
    }
    Ok(())
}

/// Builds a message with a new payload, split and compressed again.
fn send_anew(frame: &[u8]) -> Result<(), Fault> {
    let frame = frame.get(..64).unwrap_or(frame);
    let mut snappy = Snappy::<256>::sized();
    let entries: [(&str, &[u8]); 2] = [("serializer", b"\xa4dask"), ("type", b"\xa5bytes")];
    for layout in [Layout::Modern, Layout::Classic] {
        let (mut body, mut headers) = ([0; 128], [0; 512]);
        let (mut slots, mut scratch) = ([&[][..]; 16], Scratch::<4, 3>::new());
        let mut builder = MessageBuilder::new(
            black_box(layout),
            BuilderBuffers {
                body: &mut body,
                headers: &mut headers,
                slots: &mut slots,
            },
        )
        .with_scratch(&mut scratch);
        builder.body().array(3);
        let kind = PayloadKind::Serialized;
        builder.payload(kind, &entries, &[frame, &[]], black_box(16))?;
        builder.payload_as_is(kind, b"\x80", &[frame], false)?;
        let (mut packed, mut random) = ([0; 128], |bound| bound / 2);
        let mut builder = builder.with_compression(FrameCompressor {
            compression: &mut snappy,
            policy: Policy::DASK
                .with_min_len(black_box(1))
                .with_max_percent(black_box(1000)),
            out: &mut packed,
            random: &mut random,
        });
        builder.payload(kind, &entries, &[frame, &[]], SHARD_LEN)?;
        let answer = builder.finish()?;
        let mut wire = [0; 1024];
        ensure(!join(answer, &mut wire)?.is_empty(), "nothing to send")?;
    }
    Ok(())
}

/// Parses a handshake, negotiates, and writes ours.
pub fn handshake(stream: &[u8]) -> Result<u8, Fault> {
    let limits = black_box(Limits::HANDSHAKE);
    let first = stream.first_chunk().ok_or(Fault::Wrong("no handshake"))?;
    let prefix = detect_prefix(first).ok_or(Fault::Wrong("no handshake"))?;
    let framed = FramedMessage::parse(stream, prefix, &limits)?;
    let mut slots = [&[][..]; 2];
    let frames = framed.prelude.split(framed.frames, &mut slots)?;
    let (peer, layout) = Handshake::from_frames(frames, &limits)?;
    ensure(layout == Layout::Modern, "another layout")?;
    let ours = Handshake::new(black_box(Some("lz4")));
    let agreed = ours.negotiate(&peer);
    ensure(agreed.compression == Some("lz4"), "no compression")?;
    let mut out = [0; 128];
    let mut writer = Writer::new(&mut out);
    ours.encode(&mut writer);
    let document = writer.finish()?;
    ensure(
        Handshake::parse(document, &limits)? == ours,
        "not what we said",
    )?;
    Ok(agreed.pickle_protocol)
}

/// A stream like a serial port: reads and writes a few bytes at a time.
struct Serial<'a> {
    received: &'a [u8],
    sent: &'a mut [u8],
    sent_len: usize,
}

impl embedded_io::ErrorType for Serial<'_> {
    type Error = ErrorKind;
}

impl embedded_io::Read for Serial<'_> {
    fn read(&mut self, space: &mut [u8]) -> Result<usize, ErrorKind> {
        let count = space.len().min(self.received.len()).min(black_box(13));
        let now = self.received.split_at_checked(count);
        let ((now, later), place) = now.zip(space.get_mut(..count)).ok_or(ErrorKind::Other)?;
        copy(place, now);
        self.received = later;
        black_box(Ok(count))
    }
}

impl embedded_io::Write for Serial<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        let bytes = bytes.get(..black_box(13)).unwrap_or(bytes);
        let rest = self.sent.get_mut(self.sent_len..).unwrap_or_default();
        let place = rest.get_mut(..bytes.len());
        copy(place.ok_or(ErrorKind::WriteZero)?, bytes);
        self.sent_len = self.sent_len.wrapping_add(bytes.len());
        black_box(Ok(bytes.len()))
    }

    fn flush(&mut self) -> Result<(), ErrorKind> {
        black_box(Ok(()))
    }
}

/// Does the handshake over streams of embedded-io and echoes every message.
/// Returns the number of messages.
pub fn comm(greeting: &[u8], stream: &[u8], role: HandshakeRole) -> Result<u32, Fault> {
    let (mut received, mut sent) = ([0; 1024], [0; 1024]);
    let received = lay(&[greeting, stream], &mut received)?;
    let serial = |received, sent| Serial {
        received,
        sent,
        sent_len: 0,
    };
    let limits = reading().limits;
    let rx = serial(received, &mut []);
    let mut reader = MessageReader::new(rx, Prefix::U64, [0_u8; 64], limits);
    let tx = serial(&[], &mut sent);
    let mut writer = MessageWriter::new(tx, Prefix::U64, [0_u8; 128]);
    let mut storage = [0; 1024];
    let ours = Handshake::new(black_box(Some("lz4")));
    let agreed = shake_hands(&mut reader, &mut writer, &ours, role, &mut storage)
        .map_err(|error| error.map_io(StreamError::into_inner))?;
    black_box(agreed);
    let greeted_len = writer.get_ref().sent_len;
    let mut arena = Arena::new(&mut storage);
    let mut count = 0_u32;
    while reader.read_message(&mut arena)?.is_some() {
        let prelude = reader.prelude().ok_or(Fault::Wrong("no prelude"))?;
        let mut slots = [&[][..]; 8];
        writer.write_message(prelude.split(arena.filled(), &mut slots)?)?;
        count = count.wrapping_add(1);
    }
    writer.close()?;
    let Serial { sent, sent_len, .. } = writer.into_inner();
    ensure(
        sent.get(greeted_len..sent_len) == Some(stream),
        "the messages came back as others",
    )?;
    Ok(count)
}

/// As [`comm`], without streams.
pub fn sans_io_comm(greeting: &[u8], stream: &[u8], role: HandshakeRole) -> Result<u32, Fault> {
    let (mut first, mut second, mut outgoing) = ([0; 128], [0; 512], [0; 512]);
    let options = black_box(CommOptions::CONNECTOR)
        .with_role(role)
        .with_handshake(Handshake::new(black_box(Some("lz4"))))
        .with_limits(reading().limits);
    let mut comm = Comm::<8>::new(options, &mut first, &mut outgoing)?;
    black_box(comm.send(&[stream]).is_ok());
    let mut second = Some(&mut second);
    let mut count = 0_u32;
    for part in [greeting, stream] {
        for mut piece in part.chunks(black_box(11).max(1)) {
            while !piece.is_empty() {
                let pushed = match black_box(count & 1) {
                    0 => comm.push(&mut piece),
                    _ => fill(&mut comm, &mut piece),
                };
                if pushed.is_err_and(|error| error.is_caller_fault())
                    && let Some(larger) = second.take()
                {
                    comm.set_incoming(larger)?;
                    continue;
                }
                pushed?;
                // The peer reads everything.
                comm.sent(comm.unsent().len());
                if let Some((frames, outgoing)) = comm.take_message() {
                    outgoing.send(&frames)?;
                    count = count.wrapping_add(1);
                }
            }
        }
        black_box((comm.agreement(), comm.is_open()));
    }
    ensure(!comm.unsent().is_empty(), "nothing to send")?;
    comm.end()?;
    Ok(count)
}

/// Writes to the space of a comm.
fn fill(comm: &mut Comm<'_, 8>, piece: &mut &[u8]) -> Result<bool, daskwire::comm::CommError> {
    let space = comm.space()?;
    let len = space.len().min(piece.len());
    let (now, later) = piece.split_at_checked(len).unwrap_or((piece, &[]));
    copy(space, now);
    *piece = later;
    comm.received(len)?;
    Ok(comm.has_message())
}

/// Joins pieces.
fn lay<'o>(pieces: &[&[u8]], out: &'o mut [u8]) -> Result<&'o [u8], Fault> {
    let mut len = 0_usize;
    for piece in pieces {
        let rest = out.get_mut(len..).unwrap_or_default();
        let place = rest.get_mut(..piece.len());
        copy(place.ok_or(Fault::Wrong("no room"))?, piece);
        len = len.saturating_add(piece.len());
    }
    out.get(..len).ok_or(Fault::Wrong("no room"))
}

/// Compresses with snappy if worthwhile, and decompresses the result.
pub fn compress(data: &[u8], snappy: &mut Snappy) -> Result<usize, Fault> {
    let (mut packed, mut plain) = ([0; 12_000], [0; 10_000]);
    let policy = black_box(Policy::DASK);
    let packed = policy
        .maybe_compress(snappy, data, &mut packed, &mut |bound| bound / 2)?
        .ok_or(Fault::Wrong("it does not pay"))?;
    let limits = black_box(Limits::MICROCONTROLLER);
    let len = decompress(Codec::Snappy, packed, &mut plain, limits.decompressed_len)?;
    ensure(plain.get(..len) == Some(data), "snappy loses data")?;
    let mut short = [0; 64];
    ensure(
        snappy.compress(black_box(data), &mut short).is_err(),
        "snappy writes without room",
    )?;
    Ok(packed.len())
}

/// Reads every token of a document and writes it again.
fn copy_document(document: &[u8]) -> Result<(), Fault> {
    let limits = black_box(Limits::MICROCONTROLLER);
    let mut out = [0; 512];
    let mut writer = Writer::new(&mut out);
    let mut reader = Reader::with_limits(document, &limits);
    while !reader.is_empty() {
        match reader.token()? {
            Token::UInt(number) => writer.u64(number),
            Token::Int(number) => writer.i64(number),
            token => writer.token(token),
        };
    }
    writer.f32(black_box(1.5));
    writer.finish()?;
    let mut reader = Reader::with_limits(document, &limits);
    black_box((reader.peek().is_ok(), reader.clone().take_nil()));
    if let Ok(true) = reader.find("op") {
        black_box(reader.str().ok());
    }
    // Calls each method, also for values of another kind.
    let at = Reader::with_limits(document, &limits);
    black_box((at.clone().nil().ok(), at.clone().bool().ok()));
    black_box((
        at.clone().u64().ok(),
        at.clone().i64().ok(),
        at.clone().f64().ok(),
    ));
    black_box((at.clone().raw_str().ok(), at.clone().bin().ok()));
    black_box((at.clone().extension().ok(), at.clone().skip().ok()));
    Ok(())
}

/// Writes a pickle from choices and returns its length.
pub fn write_pickle(choices: &[u8]) -> Result<usize, Fault> {
    let mut levels = [daskwire_pickle::WriterLevel::EMPTY; 8];
    let mut out = [0; 512];
    let options = WriterOptions::new()
        .with_protocol(black_box(Protocol::V5))
        .with_framing(black_box(Framing::Frames));
    let mut writer = daskwire_pickle::Writer::with_options(&mut out, &mut levels, options);
    let mut rest = choices;
    while let [choice, after @ ..] = rest {
        let (data, after) = after.split_at(after.len().min(9));
        rest = after;
        let number = data.first().copied().map_or(0, i64::from);
        let count = data.len();
        match choice & 31 {
            0 => writer.bool(number > 9),
            1 => writer.i64(number.wrapping_sub(100)),
            2 => writer.u64(number.unsigned_abs()),
            3 => writer.i128(i128::from(number)),
            4 => writer.int_bytes(data),
            5 => writer.int_magnitude(number > 9, choices),
            6 => writer.f64(black_box(1.5)),
            7 => writer.str(core::str::from_utf8(data).unwrap_or("x")),
            8 => writer.str_bytes(choices),
            9 => writer.bytes(choices),
            10 => writer.bytearray(data),
            11 => {
                let view = PickleBuffer::with_strides(
                    data,
                    black_box(Mutability::Writable),
                    1,
                    &[count],
                    &[black_box(1)],
                )?;
                writer.buffer(view, |_| black_box(Placement::OutOfBand))
            }
            12 => writer.global("m", core::str::from_utf8(data).unwrap_or("x")),
            13 => writer.stack_global(),
            14 => writer.tuple(count),
            15 => writer.frozenset(count),
            16 => writer.list(count),
            17 => writer.dict(count),
            18 => writer.set(count),
            19 => writer.reduce(),
            20 => writer.newobj(),
            21 => writer.newobj_ex(),
            22 => writer.build(),
            23 => writer.extend(count),
            24 => writer.update(count),
            25 => writer.end(),
            26 => {
                black_box(writer.memoize());
                continue;
            }
            27 => writer.get(data.first().copied().map_or(0, u32::from)),
            _ => writer.none(),
        };
    }
    for _ in 0..writer.owed().min(1000) {
        writer.none();
    }
    Ok(writer.finish()?.len())
}

/// Decodes the message with each byte damaged; each call must return. Returns
/// the numbers of refused and accepted messages.
pub fn damage(message: &Recorded, log: &mut dyn Write) -> Result<(u32, u32), Fault> {
    struct Nothing;
    impl Write for Nothing {
        fn write_str(&mut self, string: &str) -> fmt::Result {
            black_box(string);
            Ok(())
        }
    }
    let mut storage = [0; 512];
    let damaged = storage
        .get_mut(..message.bytes.len())
        .ok_or(Fault::Wrong("a long message"))?;
    copy(damaged, message.bytes);
    let (mut refused, mut accepted) = (0_u32, 0_u32);
    for at in 0..damaged.len() {
        for flip in [0x01, 0x40, 0xff] {
            if let Some(byte) = damaged.get_mut(at) {
                *byte ^= flip;
            }
            let bytes = black_box(&*damaged);
            let body = bytes.get(black_box(24)..).unwrap_or_default();
            if let Err(fault) = copy_document(body) {
                write!(Nothing, "{fault}")?;
            }
            if let Err(fault) = handshake(bytes) {
                write!(Nothing, "{fault}")?;
            }
            if let Err(fault) = write_pickle(bytes) {
                write!(Nothing, "{fault}")?;
            }
            if let Err(fault) = comm(HANDSHAKE, bytes, black_box(HandshakeRole::WaitForPeer)) {
                write!(Nothing, "{fault}")?;
            }
            match exchange(bytes, message.prefix, message.layout, &mut Nothing) {
                Ok(_) => accepted = accepted.wrapping_add(1),
                Err(fault) => {
                    if refused == 0 {
                        writeln!(log, "    the first of them: {fault}")?;
                    }
                    write!(Nothing, "{fault}")?;
                    refused = refused.wrapping_add(1);
                }
            }
            if let Some(byte) = damaged.get_mut(at) {
                *byte ^= flip;
            }
        }
    }
    Ok((refused, accepted))
}

/// Every kind of opcode, with two buffers out of band.
const PICKLE: &[u8] = b"\x80\x05(\x97\x98\x97\x94C\x01b\x96\x01\0\0\0\0\0\0\0a\x8c\x02os\x8c\x04path\x93\
    K\x01M\x01\0J\x01\0\0\0\x8a\x02\0\x80\x8b\x01\0\0\0\x05G?\xf8\0\0\0\0\0\0X\x01\0\0\0aB\x01\0\0\0a\
    q\x01h\x01r\x02\0\0\0j\x02\0\0\0\x82\x01U\x01aI01\nI-5\nL12L\nF1_0.5\nS'\\x41\\101'\nV\\u0041\np3\ng3\n\
    cos\npath\nPid\nlR.";

/// Reads a pickle with its buffers, unchanged and with each byte damaged.
/// Returns the numbers of opcodes and of refused copies.
pub fn pickle(pickle: &[u8], log: &mut dyn Write) -> Result<(u32, u32), Fault> {
    let buffers = black_box([&b"one"[..], b"two"]);
    let count = |pickle: &[u8]| {
        let reader = PickleReader::with_limits(pickle, &daskwire_pickle::Limits::HOST);
        let mut items = OutOfBandReader::new(reader.text_opcodes(black_box(true)), &buffers);
        let mut count = 0_u32;
        while let Some(item) = items.next_item()? {
            count = count.wrapping_add(1);
            match item.token.argument {
                Argument::BigInt(value) => drop(black_box((value.to_u64(), value.to_i128()))),
                Argument::Decimal(value) => drop(black_box((value.to_i64(), value.to_i128()))),
                Argument::Line(line) => drop(black_box((
                    Unescaped::string(line).count(),
                    Unescaped::unicode(line).count(),
                ))),
                argument => drop(black_box(argument)),
            }
        }
        Ok::<_, daskwire_pickle::PickleError>(count)
    };
    let whole = count(pickle)?;
    let mut storage = [0; 256];
    let mut refused = 0_u32;
    for at in 0..pickle.len() {
        let Some(damaged) = storage.get_mut(..pickle.len()) else {
            return Err(Fault::Wrong("the pickle is too long"));
        };
        copy(damaged, pickle);
        if let Some(byte) = damaged.get_mut(at) {
            *byte ^= black_box(0xff);
        }
        if let Err(error) = count(damaged) {
            refused = refused.wrapping_add(1);
            if refused == 1 {
                writeln!(log, "    {}", Fault::from(error))?;
            }
        }
    }
    Ok((whole, refused))
}

/// Runs everything and prints the results.
pub fn everything(snappy: &mut Snappy, log: &mut dyn Write) -> Result<(), Fault> {
    for message in &ONES {
        let bytes = black_box(message.bytes);
        let found = exchange(bytes, message.prefix, message.layout, log)?;
        ensure(
            found == (message.plain_len, message.plain_hash),
            "the payload is another one",
        )?;
        writeln!(
            log,
            "    {}: {} bytes read, {} in the payload, answered in both layouts",
            message.name,
            message.bytes.len(),
            found.0
        )?;
    }
    let found = exchange(black_box(SNAPPY.bytes), SNAPPY.prefix, SNAPPY.layout, log)?;
    ensure(
        found == (SNAPPY.plain_len, SNAPPY.plain_hash),
        "the payload is another one",
    )?;
    writeln!(log, "    {}: {} bytes in the payload", SNAPPY.name, found.0)?;
    let protocol = handshake(black_box(HANDSHAKE))?;
    writeln!(
        log,
        "    handshake: lz4 and pickle protocol {protocol} agreed"
    )?;
    let stream = black_box(ONES[0].bytes);
    for role in [
        HandshakeRole::SendFirst(Layout::Modern),
        HandshakeRole::WaitForPeer,
    ] {
        let count = comm(black_box(HANDSHAKE), stream, black_box(role))?;
        ensure(count == 1, "messages are missing")?;
        #[cfg(feature = "async")]
        {
            let count = waiting::comm(black_box(HANDSHAKE), stream, black_box(role))?;
            ensure(count == 1, "messages are missing")?;
        }
        let count = sans_io_comm(black_box(HANDSHAKE), stream, black_box(role))?;
        ensure(count == 1, "messages are missing")?;
    }
    writeln!(
        log,
        "    comms over embedded-io and without I/O: a handshake and a message, either side first"
    )?;
    ensure(into_vectors(stream)? == 3, "frames are missing")?;
    ensure(records(black_box(RECORDS))? == 3, "fields are missing")?;
    let count = masked(black_box(&[1, 2, 3]), black_box(&[0, 1, 0]))?;
    ensure(count == 2, "another mask was read")?;
    writeln!(log, "    vectors of heapless, records, masked arrays")?;
    let data = [7_u8; 10_000];
    let len = compress(black_box(&data), snappy)?;
    writeln!(log, "    snappy: 10000 bytes into {len} and back")?;
    // A dictionary of 5 entries, all None.
    let len = write_pickle(black_box(b"\x1112345"))?;
    ensure(len == 25, "another pickle was written")?;
    writeln!(log, "    pickle: {len} bytes written")?;
    let (opcode_count, refused) = pickle(black_box(PICKLE), log)?;
    ensure(refused != 0, "no damage was seen")?;
    writeln!(
        log,
        "    pickle: {opcode_count} opcodes read, {refused} damaged copies refused"
    )?;
    for message in &ONES {
        let (refused, accepted) = damage(message, log)?;
        ensure(refused != 0, "no damage was seen")?;
        writeln!(
            log,
            "    {}: {refused} damaged copies refused, {accepted} understood otherwise",
            message.name
        )?;
    }
    Ok(())
}

/// Panics depending on the input, which the linker must detect.
#[cfg(feature = "break-no-panic")]
pub fn break_a_promise() -> u8 {
    black_box(HANDSHAKE)[black_box(3)]
}

/// Allocates, which the linker must detect.
#[cfg(feature = "break-no-heap")]
pub fn break_a_promise() -> u8 {
    extern crate alloc;
    alloc::vec![7_u8; black_box(3)].pop().unwrap_or_default()
}

/// Neither panics nor allocates.
#[cfg(not(any(feature = "break-no-panic", feature = "break-no-heap")))]
pub const fn break_a_promise() -> u8 {
    0
}
