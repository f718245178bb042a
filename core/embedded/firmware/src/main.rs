//! Firmware that asks a Dask scheduler for its workers.
//!
//! It runs on a Cortex-M3 with 64 KiB of RAM, without a heap and an operating
//! system. The serial line of the emulated board is connected to the TCP port of
//! a real scheduler:
//!
//! ```text
//! $ core/embedded/firmware/run.sh
//!     handshake: modern layout, pickle protocol 5
//!     scheduler Scheduler-0fe45433-6f35-4836-bbaf-316734425039: 2 workers
//!       tcp://127.0.0.1:40639
//!       tcp://127.0.0.1:43737
//! ```
//!
//! To port it to another chip, replace `uart.rs`: [`read`] and [`write`] are
//! the only functions that use the stream. A driver that implements
//! `embedded-io`, or a TCP socket of smoltcp, can take its place; the functions
//! can also be async.
//!
//! The program ends for any input from the peer: sizes are compared with [`LIMITS`]
//! before anything is stored, each wait has a deadline, nothing allocates, and
//! the program links only if it contains no panic.

#![no_std]
#![no_main]

use core::fmt::{self, Write};

use daskwire::Limits;
use daskwire::comm::{Comm, CommError, CommOptions, DriveError, HANDSHAKE_LEN};
use daskwire::message::{Layout, Message, ReadOptions, Scratch};
use daskwire::msgpack::Writer;

use cortex_m::Semihosting;
use deadline::Deadline;
use uart::{TICKS_PER_SECOND, Uart, UartError};

#[path = "../../../tests/bare-metal/src/cortex_m.rs"]
mod cortex_m;
mod deadline;
mod register;
mod uart;

/// The timeout of the whole connection, in seconds.
const PATIENCE: u32 = 10;

/// The maximum message length, in bytes. A scheduler sends
/// about 750 bytes about itself and each worker: enough for 40 workers.
const MESSAGE_LEN: usize = 32 << 10;

/// The maximum number of frames of a message. An identity has 1, or 2 in the
/// classic layout.
const FRAME_COUNT: usize = 8;

/// The limits for messages of the scheduler after the handshake.
const LIMITS: Limits = Limits::HOST
    .with_frame_count(FRAME_COUNT as u64)
    .with_frame_len(MESSAGE_LEN as u64)
    .with_message_len(MESSAGE_LEN as u64)
    .with_document_len(MESSAGE_LEN as u64)
    .with_depth(16)
    .with_items(MESSAGE_LEN as u32)
    .with_decompressed_len(0)
    .with_decompressed_message_len(0);

fn program(out: &mut Semihosting) -> bool {
    #[cfg(feature = "break-no-panic")]
    core::hint::black_box(core::hint::black_box([1_u8; 3])[core::hint::black_box(3)]);

    let mut uart = Uart::start();
    let asked = ask(&mut uart, out);
    if let Err(fault) = asked {
        let _ = writeln!(out, "    failed: {fault}");
    }
    let (flash, stack) = cortex_m::memory_used();
    let printed = writeln!(
        out,
        "    flash {flash} bytes, stack {stack}, static {}",
        cortex_m::static_len(),
    );
    asked.is_ok() && printed.is_ok()
}

/// The serial line, with the time at which the conversation has to be over.
struct Line<'u> {
    uart: &'u mut Uart,
    deadline: Deadline,
}

/// Runs the conversation. Each side waits for the other to finish. Dask does not
/// require this order, but a line without flow control does.
fn ask(uart: &mut Uart, out: &mut dyn Write) -> Result<(), Fault> {
    let deadline = Deadline::after(PATIENCE.saturating_mul(TICKS_PER_SECOND));
    let line = &mut Line { uart, deadline };
    let (mut incoming, mut outgoing) = ([0; MESSAGE_LEN], [0; HANDSHAKE_LEN]);
    let options = CommOptions::CONNECTOR.with_limits(LIMITS);
    let mut comm = Comm::<FRAME_COUNT>::new(options, &mut incoming, &mut outgoing)?;
    comm.drive(line, read, write)?;
    let agreement = comm.agreement().ok_or(Fault::NoHandshake)?;
    let name = match agreement.layout {
        Layout::Modern => "modern",
        Layout::Classic => "classic",
    };
    let pickle_protocol = agreement.negotiated.pickle_protocol;
    writeln!(
        out,
        "    handshake: {name} layout, pickle protocol {pickle_protocol}"
    )?;
    let mut buffer = [0; 64];
    let mut writer = Writer::new(&mut buffer);
    writer.map(2);
    writer.str("op").str("identity");
    writer.str("reply").bool(true);
    let body = writer.finish()?;
    // A message without payloads has an empty header in the classic layout.
    match agreement.layout {
        Layout::Modern => comm.send(&[body])?,
        Layout::Classic => comm.send(&[&[], body])?,
    }
    comm.drive(line, read, write)?;
    let (frames, _) = comm.take_message().ok_or(Fault::NoIdentity)?;
    show(&frames, agreement.layout, out)
}

fn read(line: &mut Line<'_>, space: &mut [u8]) -> Result<usize, UartError> {
    line.uart.read(space, &mut line.deadline)
}

fn write(line: &mut Line<'_>, bytes: &[u8]) -> Result<usize, UartError> {
    line.uart.write(bytes, &mut line.deadline)?;
    Ok(bytes.len())
}

/// Prints the reply to `identity`.
fn show(frames: &[&[u8]], layout: Layout, out: &mut dyn Write) -> Result<(), Fault> {
    let reading = ReadOptions::new(LIMITS);
    let mut scratch = Scratch::<16, 4>::new();
    let message = Message::open(frames, layout, &reading, &mut scratch)?;

    let (mut id, mut workers) = (message.reader(), message.reader());
    if !id.find("id")? || !workers.find("workers")? {
        return Err(Fault::NoIdentity);
    }
    let (id, count) = (id.str()?.to_str(), workers.map()?);
    // Escaped: a peer must not control the terminal.
    let plural = if count == 1 { "" } else { "s" };
    let id = id.escape_default();
    writeln!(out, "    scheduler {id}: {count} worker{plural}")?;
    for _ in 0..count {
        let address = workers.str()?.to_str();
        writeln!(out, "      {}", address.escape_default())?;
        workers.skip()?; // what is known of it
    }
    Ok(())
}

/// The reason why there is no reply.
#[derive(Clone, Copy)]
enum Fault {
    /// The first message is not a handshake.
    NoHandshake,
    /// The reply is a message, but not an identity.
    NoIdentity,
    /// The serial line failed.
    Uart(UartError),
    /// The peer violated the protocol or the limits, or a buffer is too small.
    Comm(CommError),
    /// The line has accepted nothing.
    Full,
    /// The reply is not a valid message.
    Message(daskwire::message::MessageError),
    /// A value in the reply is malformed.
    Document(daskwire::msgpack::Malformed),
    /// The body of a sent message does not fit in its buffer.
    Write(daskwire::msgpack::WriteError),
    /// The output could not be written.
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
                    Self::NoHandshake => f.write_str("the peer's first message is not a handshake"),
                    Self::NoIdentity => f.write_str("the answer has no `id` or no `workers`"),
                    Self::Full => f.write_str("the line has accepted nothing"),
                    $(Self::$variant(error) => error.fmt(f),)+
                }
            }
        }
    };
}

from! {
    Uart: UartError,
    Comm: CommError,
    Message: daskwire::message::MessageError,
    Document: daskwire::msgpack::Malformed,
    Write: daskwire::msgpack::WriteError,
    Text: fmt::Error,
}

impl From<DriveError<UartError>> for Fault {
    fn from(error: DriveError<UartError>) -> Self {
        match error {
            DriveError::Comm(error) => Self::Comm(error),
            DriveError::Io(error) => Self::Uart(error),
            _ => Self::Full, // `DriveError::WriteZero`
        }
    }
}
