//! A sans-IO comm: no I/O, no heap, no runtime.
//!
//! Bytes arrive in pieces, for example from the interrupt of a UART or a
//! callback of a network stack, and are copied to the buffer that the decoder
//! returns. A complete message is opened without copying and answered, with its
//! payload forwarded unchanged. The reply is a list of slices to send.
//!
//! ```sh
//! cargo run -p daskwire --example sans_io
//! ```

use core::error::Error;

use daskwire::Limits;
use daskwire::frame::{Arena, FrameDecoder, Prefix, encode_prelude};
use daskwire::handshake::Handshake;
use daskwire::message::{
    BuilderScratch, Item, Layout, Message, MessageBuilder, ReadOptions, Scratch,
};
use daskwire::msgpack::Writer;

/// The bytes from the peer: its handshake, and a message with an array of five
/// ones, both recorded from distributed 2026.8.0.
const RECEIVED: [&[u8]; 2] = [
    include_bytes!("../tests/vectors/modern-nosplit-2026.8.0/handshake.bin"),
    include_bytes!("../tests/vectors/modern-nosplit-2026.8.0/docs-get-data-ones5.bin"),
];

/// Simulates the hardware: returns up to `most` bytes at a time.
struct Wire {
    /// The bytes that have not arrived yet.
    messages: [&'static [u8]; 2],
    most: usize,
}

impl Wire {
    /// Fills the start of `space` and returns the number of bytes.
    fn receive(&mut self, space: &mut [u8]) -> usize {
        let next = self.messages.iter_mut().find(|bytes| !bytes.is_empty());
        let Some(bytes) = next else {
            return 0;
        };
        let count = space.len().min(self.most).min(bytes.len());
        let (now, later) = bytes.split_at(count);
        space[..count].copy_from_slice(now);
        *bytes = later;
        count
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut wire = Wire {
        messages: RECEIVED,
        most: 100,
    };
    // All memory for incoming data: the lengths of 8 frames, and the frames of
    // one message.
    let mut decoder = FrameDecoder::new(Prefix::U64, [0; 8 * 8], Limits::HANDSHAKE);
    let mut storage = [0; 1024];

    let mut frames = Arena::new(&mut storage);
    receive(&mut wire, &mut decoder, &mut frames)?;
    shake_hands(&decoder, frames.filled())?;

    // After the handshake larger limits apply.
    decoder.reset_with(Limits::MICROCONTROLLER);
    receive(&mut wire, &mut decoder, &mut frames)?;
    answer(&decoder, frames.filled())
}

/// Reads pieces from the wire until a message is complete.
fn receive(
    wire: &mut Wire,
    decoder: &mut FrameDecoder<[u8; 64]>,
    frames: &mut Arena<'_>,
) -> Result<(), Box<dyn Error>> {
    loop {
        let space = decoder.space(frames)?;
        if space.is_empty() {
            return Ok(());
        }
        let wanted = space.len();
        let count = wire.receive(space);
        println!("    {wanted:3} bytes have a place, {count:3} came");
        if count == 0 {
            // Within a message this is an error with the offset.
            decoder.end()?;
            return Err("the peer has nothing more to say".into());
        }
        decoder.advance(count)?;
    }
}

fn shake_hands(decoder: &FrameDecoder<[u8; 64]>, frames: &[u8]) -> Result<(), Box<dyn Error>> {
    let prelude = decoder.prelude().ok_or("no message")?;
    let mut slots = [&[][..]; 2];
    let frames = prelude.split(frames, &mut slots)?;
    let (theirs, layout) = Handshake::from_frames(frames, &Limits::HANDSHAKE)?;
    let ours = Handshake::new(None);
    println!("received a handshake: {theirs:?}, {layout:?} layout");
    println!("agreed on {:?}", ours.negotiate(&theirs));

    let mut document = [0; 128];
    let mut writer = Writer::new(&mut document);
    ours.encode(&mut writer);
    send(&[writer.finish()?])
}

fn answer(decoder: &FrameDecoder<[u8; 64]>, frames: &[u8]) -> Result<(), Box<dyn Error>> {
    let prelude = decoder.prelude().ok_or("no message")?;
    let mut slots = [&[][..]; 8];
    let frames = prelude.split(frames, &mut slots)?;
    let mut scratch = Scratch::<8, 4>::new();
    let reading = ReadOptions {
        limits: Limits::MICROCONTROLLER,
        ..ReadOptions::default()
    };
    let message = Message::open(frames, Layout::Modern, &reading, &mut scratch)?;
    let op = message.op().ok_or("a message without op")?;
    println!("received \"{}\" in {} frames", op.to_str()?, frames.len());
    for payload in message.payloads() {
        let payload = payload?;
        println!(
            "    with a payload by the serializer {:?}: {} bytes",
            payload.header().serializer()?,
            payload.merged_len()?.unwrap_or_default()
        );
    }

    // The reply is {"status": "OK", "result": the payload}.
    let (mut body, mut headers) = ([0; 128], [0; 256]);
    let mut slots = [&[][..]; 8];
    let mut builder = MessageBuilder::new(
        Layout::Modern,
        BuilderScratch {
            body: &mut body,
            headers: &mut headers,
            slots: &mut slots,
        },
    );
    builder.body().map(2).str("status").str("OK").str("result");
    builder.item(Item::Payload(0), &message)?;
    send(builder.finish()?)
}

/// Here the prelude and then each frame would be sent.
fn send(frames: &[&[u8]]) -> Result<(), Box<dyn Error>> {
    let mut prelude = [0; 16 + 8 * 8];
    let lengths = frames.iter().map(|frame| frame.len() as u64);
    let prelude_len = encode_prelude(Prefix::U64, lengths, &mut prelude)?;
    println!("to send: a prelude of {prelude_len} bytes");
    for (index, frame) in frames.iter().enumerate() {
        let (start, dots) = match frame.get(..24) {
            Some(start) => (start, "..."),
            None => (*frame, ""),
        };
        let text = start.escape_ascii();
        println!("    frame {index}, {} bytes: {text}{dots}", frame.len());
    }
    Ok(())
}
