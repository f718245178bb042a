//! Asks a scheduler how many workers it has, in a task of smol:
//! `cargo run -p daskwire-embedded --example identity_smol -- 127.0.0.1:8786`

use std::error::Error;

use daskwire::comm::{Comm, CommOptions};
use daskwire::message::{Layout, Message, ReadOptions, Scratch};
use smol::io::{AsyncReadExt as _, AsyncWriteExt as _};
use smol::net::TcpStream;

/// `{"op": "identity", "reply": true}`
const IDENTITY: &[u8] = b"\x82\xa2op\xa8identity\xa5reply\xc3";

/// The number of workers of the scheduler at `address`.
pub(crate) async fn worker_count(address: &str) -> Result<u32, Box<dyn Error>> {
    let mut stream = TcpStream::connect(address).await?;
    let (mut incoming, mut outgoing) = (vec![0; 64 << 10], [0; 256]);
    let mut comm = Comm::<1>::new(CommOptions::CONNECTOR, &mut incoming, &mut outgoing)?;
    let read = async |stream: &mut TcpStream, space: &mut [u8]| stream.read(space).await;
    let write = async |stream: &mut TcpStream, bytes: &[u8]| stream.write(bytes).await;
    comm.drive_async(&mut stream, read, write).await?; // the handshake
    comm.send(&[IDENTITY])?;
    comm.drive_async(&mut stream, read, write).await?; // the reply
    let (frames, _) = comm
        .take_message()
        .ok_or("the scheduler closed the connection")?;
    let (options, mut scratch) = (ReadOptions::default(), Scratch::<8, 1>::new());
    let mut reader = Message::open(&frames, Layout::Modern, &options, &mut scratch)?.reader();
    reader.find("workers")?;
    Ok(reader.map()?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("give an address")?;
    println!("{} workers", smol::block_on(worker_count(&address))?);
    Ok(())
}
