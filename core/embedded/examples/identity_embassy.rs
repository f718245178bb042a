//! Asks a scheduler how many workers it has, in a task as embassy runs it: no
//! heap, no std, and a stream of embedded-io-async, such as a socket of
//! embassy-net. A firmware calls it with buffers from a `StaticCell`.

use daskwire::comm::{Comm, CommError, CommOptions};
use daskwire::message::{Layout, Message, ReadOptions, Scratch};
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
    let mut is_asked = false;
    while !comm.has_message() {
        if comm.is_open() && !is_asked {
            comm.send(&[IDENTITY])?;
            is_asked = true;
        }
        let sent = stream.write_all(comm.unsent()).await;
        comm.sent(comm.unsent().len());
        let count = stream.read(comm.space()?).await.unwrap_or(0);
        if sent.is_err() || count == 0 {
            comm.end()?;
            return Ok(None);
        }
        comm.received(count)?;
    }
    let (frames, _) = comm.take_message().ok_or(CommError::NotOpen)?;
    let (options, mut scratch) = (ReadOptions::default(), Scratch::<8, 1>::new());
    let mut reader = Message::open(&frames, Layout::Modern, &options, &mut scratch)?.reader();
    reader.find("workers")?;
    Ok(Some(reader.map()?))
}

fn main() {}
