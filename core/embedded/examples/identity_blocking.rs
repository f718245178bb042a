//! Asks a scheduler how many workers it has, over a blocking socket:
//! `cargo run -p daskwire-embedded --example identity_blocking -- 127.0.0.1:8786`

use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpStream;

use daskwire::comm::{Comm, CommOptions};
use daskwire::message::{Layout, Message, ReadOptions, Scratch};

/// `{"op": "identity", "reply": true}`
const IDENTITY: &[u8] = b"\x82\xa2op\xa8identity\xa5reply\xc3";

/// The number of workers of the scheduler at `address`.
pub(crate) fn worker_count(address: &str) -> Result<u32, Box<dyn Error>> {
    let mut stream = TcpStream::connect(address)?;
    let (mut incoming, mut outgoing) = ([0; 64 << 10], [0; 256]);
    let mut comm = Comm::<1>::new(CommOptions::CONNECTOR, &mut incoming, &mut outgoing)?;
    comm.drive(&mut stream, Read::read, Write::write)?; // the handshake
    comm.send(&[IDENTITY])?;
    comm.drive(&mut stream, Read::read, Write::write)?; // the reply
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
    println!("{} workers", worker_count(&address)?);
    Ok(())
}
