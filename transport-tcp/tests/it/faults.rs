//! Faults at the n-th operation of a stream, for every n and every kind of fault, and
//! slow peers.

use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use daskwire_comm::{Address, Comm, CommError, CommOptions, Frames};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf};

use crate::support::{bind, connect, raise_file_limit};

/// The kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// No fault: counts the operations.
    None,
    /// From this operation on, one byte at a time.
    OneByte,
    /// The operation is pending once.
    NotYet,
    /// The connection is reset.
    Reset,
    /// Reads return the end, writes write nothing.
    End,
}

/// A stream with a fault at its n-th operation.
struct Faulty {
    stream: DuplexStream,
    operation_count: Arc<AtomicUsize>,
    at: usize,
    fault: Fault,
}

/// The behaviour of an operation.
enum Verdict {
    Proceed { at_most: usize },
    Instead(Poll<io::Result<()>>),
}

impl Faulty {
    fn verdict(&self, context: &Context<'_>) -> Verdict {
        let number = self.operation_count.fetch_add(1, Ordering::Relaxed);
        let whole = Verdict::Proceed {
            at_most: usize::MAX,
        };
        match self.fault {
            Fault::OneByte if number >= self.at => Verdict::Proceed { at_most: 1 },
            Fault::NotYet if number == self.at => {
                context.waker().wake_by_ref();
                Verdict::Instead(Poll::Pending)
            }
            Fault::Reset if number >= self.at => {
                Verdict::Instead(Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())))
            }
            Fault::End if number >= self.at => Verdict::Instead(Poll::Ready(Ok(()))),
            _ => whole,
        }
    }
}

impl AsyncRead for Faulty {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.verdict(context) {
            Verdict::Instead(outcome) => outcome,
            Verdict::Proceed { at_most } => {
                let mut part = into.take(at_most);
                let outcome = Pin::new(&mut self.stream).poll_read(context, &mut part);
                let bytes = part.filled().to_vec();
                into.put_slice(&bytes);
                outcome
            }
        }
    }
}

impl AsyncWrite for Faulty {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.verdict(context) {
            Verdict::Instead(outcome) => outcome.map_ok(|()| 0),
            Verdict::Proceed { at_most } => {
                let from = &from[..from.len().min(at_most)];
                Pin::new(&mut self.stream).poll_write(context, from)
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.verdict(context) {
            Verdict::Instead(Poll::Ready(Ok(()))) | Verdict::Proceed { .. } => {
                Pin::new(&mut self.stream).poll_shutdown(context)
            }
            Verdict::Instead(outcome) => outcome,
        }
    }
}

/// Message `number` of the session.
fn message(number: usize) -> Vec<Vec<u8>> {
    let frame = |len: usize| (0..len).map(|at| (at * 7 + number) as u8).collect();
    match number % 5 {
        0 => vec![frame(3)],
        1 => vec![frame(40), Vec::new(), frame(300)],
        2 => vec![frame(20_000), frame(1)],
        3 => (0..30).map(frame).collect(),
        _ => vec![frame(5), frame(70_000), frame(70_000)],
    }
}

const MESSAGE_COUNT: usize = 10;

fn is_message(frames: &Frames, number: usize) -> bool {
    frames
        .iter()
        .map(|frame| &frame[..])
        .eq(message(number).iter().map(|frame| &frame[..]))
}

/// Sends messages that are echoed. Returns the number of echoes, and the result.
async fn near(io: Faulty) -> (usize, Result<(), CommError>) {
    let mut count = 0;
    let outcome = async {
        let mut comm = establish(io).await?;
        for number in 0..MESSAGE_COUNT {
            comm.write_message(&message(number)).await?;
            let Some(frames) = comm.read_message().await? else {
                return Ok(());
            };
            assert!(
                is_message(&frames, number),
                "message {number} is another one"
            );
            count += 1;
        }
        comm.close().await?;
        assert_eq!(comm.read_message().await?.map(|frames| frames.len()), None);
        Ok(())
    };
    let outcome = outcome.await;
    (count, outcome)
}

async fn far(io: DuplexStream) -> Result<usize, CommError> {
    let mut comm = establish(io).await?;
    let mut count = 0;
    while let Some(frames) = comm.read_message().await? {
        assert!(is_message(&frames, count), "message {count} is another one");
        comm.write_message(&frames).await?;
        count += 1;
    }
    comm.close().await?;
    Ok(count)
}

async fn establish<S>(
    io: S,
) -> Result<Comm<tokio::io::ReadHalf<S>, tokio::io::WriteHalf<S>>, CommError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (reader, writer) = tokio::io::split(io);
    let end = |text: &str| text.parse::<Address>().expect("an address");
    let ends = (end("tcp://10.0.0.1:1"), end("tcp://10.0.0.2:2"));
    Comm::establish(reader, writer, ends, &CommOptions::default()).await
}

/// Runs one session. Returns the results of both ends and the number of operations.
async fn session(fault: Fault, at: usize) -> ((usize, Result<(), CommError>), usize) {
    let (near_end, far_end) = tokio::io::duplex(50_000);
    let operation_count = Arc::new(AtomicUsize::new(0));
    let faulty = Faulty {
        stream: near_end,
        operation_count: Arc::clone(&operation_count),
        at,
        fault,
    };
    // Each end ends with the other one; otherwise the timeout passes.
    let both = async { tokio::join!(near(faulty), far(far_end)) };
    let Ok((near, far)) = tokio::time::timeout(Duration::from_secs(3600), both).await else {
        panic!("{fault:?} at operation {at}: it hangs");
    };
    match far {
        Ok(count) => assert!(count >= near.0, "{fault:?} at operation {at}"),
        Err(error) => assert!(error.is_closed(), "{fault:?} at operation {at}: {error}"),
    }
    (near, operation_count.load(Ordering::Relaxed))
}

#[tokio::test(start_paused = true)]
async fn every_operation_can_fail_in_every_way() {
    let ((count, outcome), operation_count) = session(Fault::None, 0).await;
    outcome.expect("without a fault there is none");
    assert_eq!(count, MESSAGE_COUNT);
    assert!(operation_count > 40, "{operation_count} operations");
    for at in 0..operation_count {
        for fault in [Fault::OneByte, Fault::NotYet] {
            if fault == Fault::OneByte && at % 16 != 0 {
                continue;
            }
            let ((count, outcome), _) = session(fault, at).await;
            outcome.unwrap_or_else(|error| panic!("{fault:?} at operation {at}: {error}"));
            assert_eq!(count, MESSAGE_COUNT, "{fault:?} at operation {at}");
        }
        for fault in [Fault::Reset, Fault::End] {
            let ((count, outcome), _) = session(fault, at).await;
            match outcome {
                // An end between two messages is a clean one.
                Ok(()) => assert!(
                    fault == Fault::End || count == MESSAGE_COUNT,
                    "{fault:?} at operation {at} went unnoticed"
                ),
                Err(error) => assert!(error.is_closed(), "{fault:?} at operation {at}: {error:?}"),
            }
        }
    }
}

/// A thousand silent peers and a thousand that send single bytes do not block others,
/// and are disconnected at the timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_slow_peers_do_not_block_others() {
    const SLOW_COUNT: usize = 1000;
    raise_file_limit();
    let options = CommOptions::default().with_handshake_timeout(Duration::from_secs(4));
    let listener = bind(&"tcp://127.0.0.1:0".parse().unwrap(), options)
        .await
        .expect("a port");
    let address = listener.local_address().expect("it is bound");
    tokio::spawn(async move {
        while let Ok(incoming) = listener.accept().await {
            tokio::spawn(async move {
                let mut comm = incoming.handshake().await?;
                while let Some(frames) = comm.read_message().await? {
                    comm.write_message(&frames).await?;
                }
                Ok::<_, CommError>(())
            });
        }
    });
    let socket = (address.host().to_owned(), address.port());
    let mut slow = Vec::new();
    for number in 0..2 * SLOW_COUNT {
        let mut stream = tokio::net::TcpStream::connect(&socket)
            .await
            .expect("it accepts");
        slow.push(tokio::spawn(async move {
            let mut answer = [0; 1024];
            loop {
                // A handshake of 66 bytes would take ten seconds like this.
                if number % 2 == 0 && stream.write_all(&[16]).await.is_err() {
                    break;
                }
                let pause = Duration::from_millis(500);
                let read = tokio::io::AsyncReadExt::read(&mut stream, &mut answer);
                match tokio::time::timeout(pause, read).await {
                    Err(_) | Ok(Ok(1..)) => {}
                    Ok(_) => break,
                }
            }
        }));
    }
    // All slow peers are still connected.
    for _ in 0..100 {
        let mut comm = connect(&address, &CommOptions::default())
            .await
            .expect("a comm");
        comm.write_message(&message(1)).await.expect("it is taken");
        let frames = comm
            .read_message()
            .await
            .expect("an echo")
            .expect("an echo");
        assert!(is_message(&frames, 1));
        comm.close().await.expect("it ends");
    }
    let over = async {
        for peer in slow {
            peer.await.expect("it ends");
        }
    };
    let outcome = tokio::time::timeout(Duration::from_secs(60), over).await;
    assert!(outcome.is_ok(), "slow peers are still there");
}
