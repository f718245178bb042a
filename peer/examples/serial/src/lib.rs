//! A transport of another crate: `serial://` and a name, over links that hold 256
//! bytes and carry packets, as serial lines do. Here a link is two pipes within the
//! process; packets are framed by COBS, and an empty one is the end.

use daskwire_comm::{
    Address, BoxFuture, CommError, ConnectError, ConnectOptions, Listen, Listeners,
    PendingConnection, RawConnection, Transport, runtime,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

/// The lines of this process, by name.
#[derive(Debug, Default)]
pub struct Serial(Listeners);

impl Transport for Serial {
    fn schemes(&self) -> &[&'static str] {
        &["serial"]
    }

    fn connect<'a>(
        &'a self,
        address: &'a Address,
        _: &'a ConnectOptions,
    ) -> BoxFuture<'a, Result<PendingConnection, ConnectError>> {
        Box::pin(async {
            let ((near_out, far_in), (far_out, near_in)) = (duplex(256), duplex(256));
            let far = end(address, far_in, far_out);
            self.0.offer(address, far).await?;
            Ok(end(address, near_in, near_out).into())
        })
    }

    fn bind<'a>(
        &'a self,
        address: &'a Address,
    ) -> BoxFuture<'a, Result<Box<dyn Listen>, CommError>> {
        Box::pin(async { self.0.bind(address) })
    }
}

/// One end of a link: packets come in by `from` and leave by `to`.
fn end(address: &Address, from: DuplexStream, to: DuplexStream) -> RawConnection {
    let (reader, decoded) = duplex(256);
    let (writer, plain) = duplex(256);
    drop(runtime::spawn(decode(from, decoded)));
    drop(runtime::spawn(encode(plain, to)));
    RawConnection::new(reader, writer, (address.clone(), address.clone()))
}

/// Sends packets until the writer or the receiver is dropped.
async fn encode(mut plain: DuplexStream, mut line: DuplexStream) {
    let mut bytes = [0; 200];
    while let Ok(count) = plain.read(&mut bytes).await {
        let sent = line.write_all(&cobs_encode(&bytes[..count])).await;
        if count == 0 || sent.is_err() {
            break;
        }
    }
}

/// Receives packets until the empty one.
async fn decode(mut line: DuplexStream, mut decoded: DuplexStream) {
    let mut packet = Vec::new();
    while let Ok(byte) = line.read_u8().await {
        if byte != 0 && packet.len() < 300 {
            packet.push(byte);
            continue;
        }
        let bytes = cobs_decode(&packet);
        packet.clear();
        if bytes.is_empty() || decoded.write_all(&bytes).await.is_err() {
            break;
        }
    }
}

/// Bytes without a 0, and a 0 after them: each 0 is replaced by the distance to the next.
fn cobs_encode(bytes: &[u8]) -> Vec<u8> {
    let runs = bytes.split(|byte| *byte == 0);
    let run = |run: &[u8]| [&[run.len() as u8 + 1], run].concat();
    runs.flat_map(run).chain([0]).collect()
}

fn cobs_decode(mut packet: &[u8]) -> Vec<u8> {
    let mut runs = Vec::new();
    while let Some((distance, rest)) = packet.split_first() {
        let (run, rest) = rest.split_at((*distance as usize - 1).min(rest.len()));
        runs.push(run);
        packet = rest;
    }
    runs.join(&0)
}
