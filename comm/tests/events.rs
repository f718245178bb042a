//! Events for subscribers of `tracing`.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use daskwire_comm::{Address, Bytes, Comm, CommOptions, Listener, Transports};
use tokio::io::AsyncWriteExt as _;
use tracing::Level;
use tracing::subscriber::DefaultGuard;

/// The events of this thread, as lines.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn subscribe(level: Level) -> (Self, DefaultGuard) {
        let lines = Self::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .without_time()
            .with_ansi(false)
            .with_max_level(level)
            .with_writer(move || writer.clone())
            .finish();
        (lines, tracing::subscriber::set_default(subscriber))
    }

    /// The lines since the last call.
    fn take(&self) -> Vec<String> {
        let bytes = core::mem::take(&mut *self.0.lock().expect("no panic"));
        let text = String::from_utf8(bytes).expect("UTF-8");
        text.lines()
            .map(|line| line.trim_start().to_owned())
            .collect()
    }
}

async fn bind(location: &str, options: &CommOptions) -> (Transports, Listener, Address) {
    let transports = Transports::new();
    let address = format!("inproc://{location}").parse().expect("an address");
    let listener = transports.bind(&address, options.clone()).await;
    (transports, listener.expect("a listener"), address)
}

async fn pair(transports: &Transports, listener: &Listener, address: &Address) -> (Comm, Comm) {
    let options = CommOptions::default();
    let (near, far) = tokio::join!(transports.connect(address, &options), async {
        listener.accept().await?.handshake().await
    });
    (near.expect("a comm"), far.expect("a comm"))
}

#[tokio::test(start_paused = true)]
async fn attempts_to_connect() {
    let (lines, _guard) = Lines::subscribe(Level::DEBUG);
    let options = CommOptions::default().with_connect_timeout(Duration::from_secs(1));
    let address = "inproc://nowhere".parse().expect("an address");
    let connected = Transports::new().connect(&address, &options).await;
    connected.expect_err("there is no listener");
    let lines = lines.take();
    let (last, others) = lines.split_last().expect("events");
    assert!(others.len() > 3, "{lines:?}");
    for (line, attempt) in others.iter().zip(1..) {
        let begin = format!(
            "INFO daskwire_comm: attempt {attempt} to connect failed: connection refused; \
             next attempt in "
        );
        assert!(line.starts_with(&begin), "{line}");
        assert!(line.ends_with(" ms peer=inproc://nowhere"), "{line}");
    }
    let expected = format!(
        "INFO daskwire_comm: gave up after attempt {}: \
         cannot connect to inproc://nowhere: connection refused peer=inproc://nowhere",
        lines.len()
    );
    assert_eq!(last, &expected);
}

#[tokio::test]
async fn the_life_of_a_comm() {
    let (lines, _guard) = Lines::subscribe(Level::DEBUG);
    let (transports, listener, address) = bind("life", &CommOptions::default()).await;
    let (mut near, mut far) = pair(&transports, &listener, &address).await;
    let established = "INFO daskwire_comm: established a comm: modern layout, pickle protocol 5, \
                       no compression, Python 3.8.0, not encrypted peer=inproc://";
    let found = lines.take();
    assert_eq!(found.len(), 4, "{found:?}");
    assert_eq!(
        found[0],
        "DEBUG daskwire_comm: connected at attempt 1 peer=inproc://life"
    );
    assert!(found[1].starts_with("DEBUG daskwire_comm: accepted a connection peer=inproc://"));
    let is_established = |line: &&String| line.starts_with(established);
    assert_eq!(found.iter().filter(is_established).count(), 2, "{found:?}");

    near.write_message(&[b"message"]).await.expect("it is sent");
    far.read_message().await.expect("it arrives");
    assert_eq!(lines.take(), [""; 0], "no event of a message");
    near.close().await.expect("it closes");
    near.close().await.expect("it is closed");
    drop(near);
    assert_eq!(
        lines.take(),
        ["DEBUG daskwire_comm: closed the comm peer=inproc://life"]
    );

    drop(far);
    let found = lines.take();
    assert_eq!(found.len(), 1, "{found:?}");
    let expected = "DEBUG daskwire_comm: dropped the comm without closing it peer=inproc://";
    assert!(found[0].starts_with(expected), "{found:?}");
}

#[tokio::test]
async fn failures_are_events_of_the_level_info() {
    let (lines, _guard) = Lines::subscribe(Level::INFO);
    let (transports, listener, address) = bind("failures", &CommOptions::default()).await;
    let (near, mut far) = pair(&transports, &listener, &address).await;
    lines.take();
    // A peer that ends within a message.
    let (_reader, writer) = near.split();
    let mut stream = writer.into_inner();
    stream.write_all(b"\x10\0").await.expect("it is sent");
    drop(stream);
    far.read_message().await.expect_err("half a message");
    let found = lines.take();
    assert_eq!(found.len(), 1, "{found:?}");
    let expected = "INFO daskwire_comm: cannot read from the comm: the peer closed the \
                    connection within a message";
    assert!(found[0].starts_with(expected), "{found:?}");
    // A peer that sends no handshake.
    let options = CommOptions::default();
    let raw = transports.connect_raw(&address, &options, daskwire_comm::Traffic::Normal);
    let mut raw = raw.await.expect("a connection");
    raw.writer.write_all(&[0xff; 64]).await.expect("it is sent");
    let incoming = listener.accept().await.expect("a connection");
    incoming.handshake().await.expect_err("no handshake");
    let found = lines.take();
    assert_eq!(found.len(), 1, "{found:?}");
    let expected = "INFO daskwire_comm: the handshake failed: ";
    assert!(found[0].starts_with(expected), "{found:?}");
}

#[tokio::test]
async fn a_pool_without_memory() {
    const LEN: usize = 8 << 20;
    let (lines, _guard) = Lines::subscribe(Level::DEBUG);
    let options = CommOptions::default().with_pool(daskwire_comm::BufferPool::new(LEN));
    let (transports, listener, address) = bind("pool", &options).await;
    let (mut near, mut far) = pair(&transports, &listener, &address).await;
    lines.take();
    let frame = vec![7; LEN];
    let sending = async {
        for _ in 0..2 {
            near.write_message(&[&frame]).await.expect("it is sent");
        }
    };
    let receiving = async {
        let mut frames: Vec<Bytes> = Vec::new();
        for _ in 0..2 {
            let message = far.read_message().await.expect("it arrives");
            frames.extend(message.expect("a message"));
        }
        frames
    };
    let ((), frames) = tokio::join!(sending, receiving);
    drop(frames);
    let empty =
        format!("DEBUG daskwire_comm: the buffer pool has no memory for a frame of {LEN} bytes");
    let full = format!("DEBUG daskwire_comm: the buffer pool is full and frees {LEN} bytes");
    assert_eq!(lines.take(), [empty.clone(), empty, full]);
}
