//! A client of nothing but sockets: what receiving costs, to which any client can only add.

use daskwire::frame::{Prefix, encode_prelude};
use daskwire::msgpack::Writer;
use daskwire_testing::bench::processor_time;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

/// A comm over raw tokio, after the handshakes.
pub(crate) struct RawComm(TcpStream);

impl RawComm {
    pub(crate) async fn connect(address: &str) -> Self {
        let address = address.strip_prefix("tcp://").expect("TCP");
        let stream = TcpStream::connect(address).await.expect("a peer");
        stream.set_nodelay(true).expect("TCP");
        let mut comm = Self(stream);
        comm.receive().await;
        comm.send(|body| {
            body.map(3).str("compression").nil();
            body.str("python").array(3).u64(3).u64(11).u64(7);
            body.str("pickle-protocol").u64(5);
        })
        .await;
        comm
    }

    /// Sends a message of one frame, its body.
    pub(crate) async fn send(&mut self, write: impl Fn(&mut Writer<'_>)) {
        let mut measured = Writer::new(&mut []);
        write(&mut measured);
        let len = measured.len();
        let mut message = vec![0; 24 + len];
        let lengths = [len as u64].into_iter();
        encode_prelude(Prefix::U64, lengths, &mut message).expect("room");
        let mut body = Writer::new(&mut message[24..]);
        write(&mut body);
        body.finish().expect("a document");
        self.0.write_all(&message).await.expect("sent");
    }

    /// Receives the frames of a message into fresh memory.
    pub(crate) async fn receive(&mut self) -> Vec<u8> {
        // The hint for reading, which need not be the length, then the prelude
        self.0.read_u64_le().await.expect("a message");
        let frame_count = self.0.read_u64_le().await.expect("a message");
        let mut len = 0;
        for _ in 0..frame_count {
            len += self.0.read_u64_le().await.expect("a message") as usize;
        }
        let mut message = Vec::with_capacity(len);
        while message.len() < len {
            let mut rest = (&mut self.0).take((len - message.len()) as u64);
            rest.read_buf(&mut message).await.expect("a message");
        }
        message
    }
}

/// A client that reads the scheduler's reports on a thread of its own, and does nothing with
/// them.
pub(crate) struct Reports {
    stop: oneshot::Sender<()>,
    thread: std::thread::JoinHandle<(usize, f64)>,
}

impl Reports {
    /// Registers the client, which then wants the keys that `write_keys` writes. The scheduler
    /// must know them.
    pub(crate) async fn start(address: &str, write_keys: impl Fn(&mut Writer<'_>)) -> Self {
        let mut comm = RawComm::connect(address).await;
        comm.send(|body| {
            body.map(4).str("op").str("register-client");
            body.str("client").str("Client-raw");
            body.str("versions").map(0);
            body.str("reply").bool(false);
        })
        .await;
        // The start of the stream
        comm.receive().await;
        comm.send(|body| {
            body.array(1).map(3);
            body.str("op").str("client-desires-keys");
            body.str("client").str("Client-raw").str("keys");
            write_keys(body);
        })
        .await;
        let stream = comm.0.into_std().expect("a socket");
        let (stop, mut stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let reading = async {
                let mut stream = TcpStream::from_std(stream).expect("a socket");
                let mut buffer = vec![0; 64 << 10];
                let mut count = 0;
                loop {
                    tokio::select! {
                        len = stream.read(&mut buffer) => assert!(len.expect("reports") > 0),
                        _ = &mut stopped => return count,
                    }
                    count += 1;
                }
            };
            let count = runtime.expect("a runtime").block_on(reading);
            (count, processor_time("thread-self"))
        });
        Self { stop, thread }
    }

    /// Ends the client. Returns the number of its reads and its processor time in seconds.
    pub(crate) fn stop(self) -> (usize, f64) {
        let _ = self.stop.send(());
        self.thread.join().expect("reports")
    }
}
