//! Asks a scheduler how many workers it has, in a task as embassy runs it: no
//! heap, no std, and a stream of embedded-io-async, such as a socket of
//! embassy-net. A firmware calls it with buffers from a `StaticCell`.

use daskwire::comm::{Comm, CommOptions, DriveError};
use daskwire::message::{Layout, Message, ReadOptions, Scratch};
use daskwire_embedded::embedded_io_async_07::drive;
use embedded_io_async_07::{Read, Write};

/// `{"op": "identity", "reply": true}`
const IDENTITY: &[u8] = b"\x82\xa2op\xa8identity\xa5reply\xc3";

/// The number of workers of the scheduler at the other end of `stream`.
/// `incoming` holds its answer: about 700 bytes for each worker. `None` if the
/// connection ends before.
/// # Errors
/// Those of the socket and of the comm.
pub async fn worker_count<S: Read + Write>(
    stream: &mut S,
    incoming: &mut [u8],
    outgoing: &mut [u8; 256],
) -> Result<Option<u32>, daskwire::Error> {
    let mut comm = Comm::<1>::new(CommOptions::CONNECTOR, incoming, outgoing)?;
    run(&mut comm, stream).await?; // the handshake
    if !comm.is_open() {
        return Ok(None);
    }
    comm.send(&[IDENTITY])?;
    run(&mut comm, stream).await?; // the reply
    let Some((frames, _)) = comm.take_message() else {
        return Ok(None);
    };
    let (options, mut scratch) = (ReadOptions::default(), Scratch::<8, 1>::new());
    let mut reader = Message::open(&frames, Layout::Modern, &options, &mut scratch)?.reader();
    reader.find("workers")?;
    Ok(Some(reader.map()?))
}

/// Drives a comm until the next event, or until the socket fails.
async fn run<S: Read + Write>(
    comm: &mut Comm<'_, 1>,
    stream: &mut S,
) -> Result<(), daskwire::Error> {
    match drive(comm, stream).await {
        Err(DriveError::Comm(error)) => Err(error.into()),
        _ => Ok(()),
    }
}

fn main() {}
