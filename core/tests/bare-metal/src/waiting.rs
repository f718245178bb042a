//! Comms over the async streams of embedded-io.
//!
//! Apart from the rest, since the compiler adds a panic to each `async fn`, for a
//! future that is polled again after it has completed. `run.sh` checks that there
//! is no other.

use core::future::Future;
use core::hint::black_box;
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};

use daskwire::frame::{Arena, Prefix};
use daskwire::handshake::Handshake;
use daskwire_embedded::embedded_io_async_07::{
    HandshakeRole, MessageReader, MessageWriter, StreamError, handshake,
};
use embedded_io::ErrorKind;

use crate::{Fault, Serial, ensure, lay, reading};

impl embedded_io_async::Read for Serial<'_> {
    async fn read(&mut self, space: &mut [u8]) -> Result<usize, ErrorKind> {
        Wait(black_box(true)).await;
        embedded_io::Read::read(self, space)
    }
}

impl embedded_io_async::Write for Serial<'_> {
    async fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        Wait(black_box(true)).await;
        embedded_io::Write::write(self, bytes)
    }

    async fn flush(&mut self) -> Result<(), ErrorKind> {
        embedded_io::Write::flush(self)
    }
}

/// Completes when it is polled again.
struct Wait(bool);

impl Future for Wait {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        match core::mem::take(&mut self.0) {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    }
}

/// As [`comm`](crate::comm), over async streams.
pub(crate) fn comm(greeting: &[u8], stream: &[u8], role: HandshakeRole) -> Result<u32, Fault> {
    let mut future = pin!(wait_for_comm(greeting, stream, role));
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(count) = future.as_mut().poll(&mut context) {
            return count;
        }
    }
}

async fn wait_for_comm(greeting: &[u8], stream: &[u8], role: HandshakeRole) -> Result<u32, Fault> {
    let (mut received, mut sent) = ([0; 1024], [0; 1024]);
    let received = lay(&[greeting, stream], &mut received)?;
    let rx = Serial {
        received,
        sent: &mut [],
        sent_len: 0,
    };
    let tx = Serial {
        received: &[],
        sent: &mut sent,
        sent_len: 0,
    };
    let limits = reading().limits;
    let mut reader = MessageReader::new(rx, Prefix::U64, [0_u8; 64], limits);
    let mut writer = MessageWriter::new(tx, Prefix::U64, [0_u8; 128]);
    let mut storage = [0; 1024];
    let ours = Handshake::new(black_box(Some("lz4")));
    let agreed = handshake(&mut reader, &mut writer, &ours, role, &mut storage).await;
    black_box(agreed.map_err(|error| error.map_io(StreamError::into_inner))?);
    let mut arena = Arena::new(&mut storage);
    let mut count = 0_u32;
    while reader.read_message(&mut arena).await?.is_some() {
        let prelude = reader.prelude().ok_or(Fault::Wrong("no prelude"))?;
        let mut slots = [&[][..]; 8];
        let frames = prelude.split(arena.filled(), &mut slots)?;
        writer.write_message(frames).await?;
        count = count.wrapping_add(1);
    }
    writer.close().await?;
    let Serial { sent, sent_len, .. } = writer.into_inner();
    let sent = sent.get(..sent_len).unwrap_or_default();
    ensure(sent.ends_with(stream), "the messages came back as others")?;
    Ok(count)
}
