//! A million messages, each of which has to arrive once and in its place.
//!
//! One end receives, the other sends:
//!
//! ```sh
//! cargo run --release -p daskwire-peer --example ordered -- receive quic://127.0.0.1:9000 cert.pem
//! cargo run --release -p daskwire-peer --example ordered -- send quic://127.0.0.1:9000 cert.pem 1000000
//! ```
//!
//! `cert.pem` is a certificate with its key that both trust; `tcp://` does
//! without. `peer/tests/lossy.sh` runs this over a link that loses packets.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use daskwire_comm::tls::TlsSettings;
use daskwire_comm::{Address, CommOptions, Transports};
use daskwire_quic::{Congestion, Quic, QuicOptions};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Bytes of each message: its number, and more of it.
const LEN: usize = 128;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Runtime::new();
    let outcome = match (runtime, &arguments[..]) {
        (Ok(runtime), [role, address, pem]) if role == "receive" => {
            runtime.block_on(receive(address, pem))
        }
        (Ok(runtime), [role, address, pem, count]) if role == "send" => {
            runtime.block_on(send(address, pem, count))
        }
        (Err(error), _) => Err(error.into()),
        _ => Err("usage: ordered receive ADDRESS CERT | ordered send ADDRESS CERT COUNT".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ordered: {error}");
            ExitCode::FAILURE
        }
    }
}

fn transports(address: &Address, pem: &str) -> Result<Transports, Box<dyn std::error::Error>> {
    if address.scheme() == "tcp" {
        return Ok(daskwire_peer::transports());
    }
    let tls = TlsSettings::new(Path::new(pem), Path::new(pem)).build()?;
    let quic = QuicOptions::default()
        .with_tls(&tls)
        .with_congestion(Congestion::Bbr);
    Ok(daskwire_peer::transports_with_tls(&tls).with(Quic::new(quic)))
}

fn message(number: u64) -> [u8; LEN] {
    let mut message = [0; LEN];
    for (place, byte) in message
        .iter_mut()
        .zip(number.to_le_bytes().into_iter().cycle())
    {
        *place = byte;
    }
    message
}

async fn receive(address: &str, pem: &str) -> Outcome {
    let address: Address = address.parse()?;
    let transports = transports(&address, pem)?;
    let listener = transports.bind(&address, CommOptions::default()).await?;
    println!("listening at {}", listener.local_address()?);
    let mut comm = listener.accept().await?.handshake().await?;
    let mut number = 0;
    while let Some(frames) = comm.read_message().await? {
        if frames.len() != 1 || frames[0][..] != message(number) {
            return Err(format!("message {number} is another one").into());
        }
        number += 1;
    }
    // The sender waits for this.
    comm.write_message(&[number.to_le_bytes()]).await?;
    comm.close().await?;
    println!("{number} messages arrived, each once and in its place");
    Ok(())
}

async fn send(address: &str, pem: &str, count: &str) -> Outcome {
    let address: Address = address.parse()?;
    let transports = transports(&address, pem)?;
    let count: u64 = count.parse()?;
    let comm = transports
        .connect(&address, &CommOptions::default())
        .await?;
    let started = Instant::now();
    let (mut reader, mut writer) = comm.split();
    for number in 0..count {
        writer.feed_message(&[message(number)]).await?;
    }
    writer.close().await?;
    let answer = reader.read_message().await?.ok_or("no answer came")?;
    let seconds = started.elapsed().as_secs_f64();
    drop((reader, writer));
    transports.close().await;
    if answer[0][..] != count.to_le_bytes() {
        return Err("not all messages arrived".into());
    }
    println!("{count} messages in {seconds:.1} s");
    Ok(())
}
