//! A message with one payload, as distributed 2026.8.0 sends an array of numpy:
//! opened and read by an inspector, and forwarded by a scheduler.

use core::hint::black_box;

use daskwire::frame::{FramedMessage, Prefix};
use daskwire::message::{
    BuilderBuffers, Layout, Message, MessageBuilder, ReadOptions, Scratch, Serializer,
};
use daskwire::{Limits, message::MessageError};

const STREAM: &[u8] =
    include_bytes!("../../tests/vectors/modern-nosplit-2026.8.0/case-array-fortran-order.bin");

/// The frames of the message.
pub(crate) fn frames() -> [&'static [u8]; 3] {
    let framed = FramedMessage::parse(STREAM, Prefix::U64, &Limits::HOST).expect("a message");
    let mut slots = [&[][..]; 3];
    let frames = framed.prelude.split(framed.frames, &mut slots);
    frames.expect("frames").try_into().expect("three frames")
}

fn with_message<R>(
    frames: &[&'static [u8]; 3],
    use_it: impl FnOnce(Message<'_, &'static [u8]>) -> Result<R, MessageError>,
) -> R {
    let mut scratch = Scratch::<8, 4>::new();
    let options = ReadOptions::default();
    let opened = Message::open(frames, Layout::Modern, &options, &mut scratch);
    use_it(opened.expect("a message")).expect("valid")
}

/// Reads what a consumer of an array needs: the entries of its header, and its
/// data without copying.
pub(crate) fn read(frames: &[&'static [u8]; 3]) {
    with_message(frames, |message| {
        let payload = message.payload(0)?;
        let header = payload.header();
        assert_eq!(header.serializer()?, Serializer::Dask);
        black_box((header.type_serialized()?, header.dtype()?));
        for size in header.shape()?.expect("a shape").numbers() {
            black_box(size?);
        }
        black_box((header.strides()?, header.writeable()?));
        black_box(payload.merged_len()?);
        for frame in payload.logical_frames()? {
            black_box(frame?.as_slice());
        }
        Ok(())
    });
}

/// Writes the message again, with its payload forwarded.
pub(crate) fn forward(frames: &[&'static [u8]; 3]) {
    with_message(frames, |message| {
        let (mut body, mut headers, mut slots) = ([0; 512], [0; 512], [&[][..]; 4]);
        let scratch = BuilderBuffers {
            body: &mut body,
            headers: &mut headers,
            slots: &mut slots,
        };
        let mut builder = MessageBuilder::new(Layout::Modern, scratch);
        let mut scratch = Scratch::<8>::new();
        let mut walk = message.walk(&mut scratch);
        while let Some(item) = walk.next_item()? {
            builder.item(item, &message).expect("written");
        }
        black_box(builder.finish().expect("built"));
        Ok(())
    });
}
