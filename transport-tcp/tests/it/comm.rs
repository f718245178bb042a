//! Comms over loopback and over misbehaving streams.
#![allow(clippy::unwrap_used, clippy::std_instead_of_alloc)]

use core::future::Future;
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex};

use daskwire::Limits;
use daskwire::frame::{EncodeError, FrameErrorKind, Prefix, encode_prelude, prelude_len};
use daskwire::handshake::HandshakeError;
use daskwire::message::Layout;
use daskwire_comm::{
    Address, BufferPool, Bytes, Closed, Comm, CommError, CommOptions, CommReader, CommWriter,
    Listener, Phase, WireFormat,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{bind, connect, raise_file_limit};

/// The handshake of Dask 2026.8.0, with lz4.
const MODERN: &[u8] = b"\x3d\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x2d\0\0\0\0\0\0\0\
    \x83\xabcompression\xa3lz4\xa6python\x93\x03\x0b\x07\xafpickle-protocol\x05";

/// The handshake of Dask 2.30.1.
const CLASSIC: &[u8] = b"\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x2a\0\0\0\0\0\0\0\
    \x83\xabcompression\xc0\xa6python\x93\x03\x08\x14\xafpickle-protocol\x04";

/// The handshake of this package.
const OURS: &[u8] = b"\x3a\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x2a\0\0\0\0\0\0\0\
    \x83\xabcompression\xc0\xa6python\x93\x03\x08\x00\xafpickle-protocol\x05";

async fn listen(host: &str, options: CommOptions) -> (Listener, Address) {
    let address = format!("tcp://{host}:0").parse().unwrap();
    let listener = bind(&address, options).await.unwrap();
    let address = listener.local_address().unwrap();
    (listener, address)
}

/// Both ends of a comm over loopback.
async fn pair() -> (Comm, Comm) {
    let (listener, address) = listen("127.0.0.1", CommOptions::default()).await;
    let options = CommOptions::default();
    let (ours, theirs) = tokio::join!(connect(&address, &options), async {
        listener.accept().await?.handshake().await
    });
    (ours.unwrap(), theirs.unwrap())
}

/// Sends `sent` to a listener over a raw connection. Returns the result of the listener's
/// handshake, and the raw connection.
async fn against_listener(sent: &[u8], close: bool) -> (Result<Comm, CommError>, TcpStream) {
    against_listener_with(CommOptions::default(), sent, close).await
}

async fn against_listener_with(
    options: CommOptions,
    sent: &[u8],
    close: bool,
) -> (Result<Comm, CommError>, TcpStream) {
    let (listener, address) = listen("127.0.0.1", options).await;
    let mut raw = TcpStream::connect((address.host(), address.port()))
        .await
        .unwrap();
    raw.write_all(sent).await.unwrap();
    if close {
        raw.shutdown().await.unwrap();
    }
    let outcome = listener.accept().await.unwrap().handshake().await;
    (outcome, raw)
}

/// The result of connecting to a raw listener that sends `sent`.
async fn against_connector(sent: &'static [u8], wire: WireFormat) -> Result<Comm, CommError> {
    let raw = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = raw.local_addr().unwrap().into();
    tokio::spawn(async move {
        let (mut stream, _) = raw.accept().await.unwrap();
        stream.write_all(sent).await.unwrap();
        // Wait until the other side is done.
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
    });
    let options = CommOptions::default().with_wire(wire);
    connect(&address, &options).await
}

fn message(prefix: Prefix, frames: &[&[u8]]) -> Vec<u8> {
    let mut out = vec![0; prelude_len(prefix, frames.len()).unwrap()];
    let lengths = frames.iter().map(|frame| frame.len() as u64);
    encode_prelude(prefix, lengths, &mut out).unwrap();
    frames.iter().for_each(|frame| out.extend_from_slice(frame));
    out
}

/// Bytes that depend on their position.
fn pattern(len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8)
        .collect()
}

// Messages.

#[tokio::test]
async fn ping_pong() {
    let (mut ours, mut theirs) = pair().await;
    let echo = tokio::spawn(async move {
        while let Some(frames) = theirs.read_message().await.unwrap() {
            theirs.write_message(&frames).await.unwrap();
        }
    });
    for number in 0..1000_u32 {
        let body = number.to_be_bytes();
        ours.write_message(&[&body[..], b"", b"x"]).await.unwrap();
        let answer = ours.read_message().await.unwrap().unwrap();
        assert_eq!(answer.as_slices(), [&body[..], b"", b"x"]);
    }
    ours.close().await.unwrap();
    assert!(ours.read_message().await.unwrap().is_none());
    assert!(ours.read_message().await.unwrap().is_none());
    echo.await.unwrap();
}

#[tokio::test]
async fn frames_of_all_sizes_in_both_directions_at_once() {
    const EDGE: usize = 64 << 10;
    let sizes: [&[usize]; 8] = [
        &[0],
        &[0, 0, 0],
        &[EDGE - 1, EDGE, EDGE + 1],
        &[100, 5 << 20, 0, 200, 3 << 20, 1],
        &[16 << 10, (16 << 10) - 1, 1],
        &[2047, 2048, 2049, 4096],
        &[9000; 50],
        &[17 << 20],
    ];
    let messages: Vec<Vec<Vec<u8>>> = sizes
        .iter()
        .map(|sizes| sizes.iter().map(|len| pattern(*len)).collect())
        .collect();
    let messages = Arc::new(messages);
    let (ours, theirs) = pair().await;
    let mut tasks = tokio::task::JoinSet::new();
    for comm in [ours, theirs] {
        let (mut reader, mut writer) = comm.split();
        let sent = Arc::clone(&messages);
        tasks.spawn(async move {
            for frames in sent.iter() {
                writer.write_message(frames).await.unwrap();
            }
            writer.close().await.unwrap();
        });
        let expected = Arc::clone(&messages);
        tasks.spawn(async move {
            for frames in expected.iter() {
                let read = reader.read_message().await.unwrap().unwrap();
                assert!(read.as_slices() == &frames[..], "{read:?}");
            }
            assert!(reader.read_message().await.unwrap().is_none());
        });
    }
    while let Some(outcome) = tasks.join_next().await {
        outcome.unwrap();
    }
}

#[tokio::test]
async fn a_hundred_comms_and_as_many_silent_peers() {
    let (listener, address) = listen("127.0.0.1", CommOptions::default()).await;
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
    let mut silent = Vec::new();
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..100_u8 {
        let to = (address.host(), address.port());
        silent.push(TcpStream::connect(to).await.unwrap());
        let address = address.clone();
        tasks.spawn(async move {
            let mut comm = connect(&address, &CommOptions::default()).await.unwrap();
            for _ in 0..20 {
                comm.write_message(&[[number; 10]]).await.unwrap();
                let answer = comm.read_message().await.unwrap().unwrap();
                assert_eq!(answer.as_slices(), [&[number; 10][..]]);
            }
        });
    }
    while let Some(outcome) = tasks.join_next().await {
        outcome.unwrap();
    }
}

// Handshakes.

// PROTOCOL HANDSHAKE-1, HANDSHAKE-3
#[tokio::test]
async fn both_sides_agree() {
    let (listener, address) = listen("127.0.0.1", CommOptions::default()).await;
    let options = CommOptions::default();
    let (ours, theirs) = tokio::join!(connect(&address, &options), async {
        listener.accept().await?.handshake().await
    });
    let (ours, theirs) = (ours.unwrap(), theirs.unwrap());
    assert_eq!(ours.agreement(), theirs.agreement());
    let agreement = ours.agreement();
    assert_eq!(agreement.negotiated.pickle_protocol, 5);
    assert_eq!(agreement.layout, Layout::Modern);
    assert_eq!(agreement.prefix, Prefix::U64);
    assert_eq!(ours.peer_address(), theirs.local_address());
    assert_eq!(ours.local_address(), theirs.peer_address());
    assert_eq!(*ours.peer_address(), address);
}

/// Every listener of Dask sends first, so connectors up to 2023.7.1 read first.
// PROTOCOL HANDSHAKE-1
#[tokio::test]
async fn serves_connectors_that_read_first() {
    let (listener, address) = listen("127.0.0.1", CommOptions::default()).await;
    let connecting = async {
        let mut raw = TcpStream::connect((address.host(), address.port())).await?;
        let mut received = [0; OURS.len()];
        raw.read_exact(&mut received).await?;
        assert_eq!(received, OURS);
        raw.write_all(MODERN).await?;
        io::Result::Ok(raw)
    };
    let (raw, comm) = tokio::join!(connecting, async {
        listener.accept().await?.handshake().await
    });
    raw.unwrap();
    assert_eq!(comm.unwrap().agreement().peer_python, Some([3, 11, 7]));
}

/// Both ends send and read their handshakes concurrently.
#[tokio::test]
async fn handshakes_work_over_a_pipe_of_one_byte() {
    let (near, far) = tokio::io::duplex(1);
    let [near, far] = [near, far].map(tokio::io::split);
    let options = CommOptions::default();
    let (near, far) = tokio::join!(
        Comm::establish(near.0, near.1, ends(), &options),
        Comm::establish(far.0, far.1, ends(), &options),
    );
    assert_eq!(near.unwrap().agreement(), far.unwrap().agreement());
}

#[tokio::test]
async fn ipv6_works() {
    let (listener, address) = listen("[::1]", CommOptions::default()).await;
    assert!(address.to_string().starts_with("tcp://[::1]:"));
    let options = CommOptions::default();
    let (ours, theirs) = tokio::join!(connect(&address, &options), async {
        listener.accept().await?.handshake().await
    });
    theirs.unwrap();
    ours.unwrap();
}

#[tokio::test]
async fn the_first_message_may_come_with_the_handshake() {
    let request = message(Prefix::U64, &[b"\x81\xa2op\xa8identity"]);
    let (outcome, _raw) = against_listener(&[MODERN, &request[..]].concat(), false).await;
    let mut comm = outcome.unwrap();
    assert_eq!(comm.agreement().peer_python, Some([3, 11, 7]));
    let frames = comm.read_message().await.unwrap().unwrap();
    assert_eq!(frames.as_slices(), [&b"\x81\xa2op\xa8identity"[..]]);
}

// PROTOCOL FRAME-13
#[tokio::test]
async fn listeners_can_use_the_format_of_the_peer() {
    let total_of_2021_3_0 = message(Prefix::U64, &[b"", &CLASSIC[24..]]);
    for (sent, prefix, layout) in [
        (MODERN, Prefix::U64, Layout::Modern),
        (CLASSIC, Prefix::None, Layout::Classic),
        (&total_of_2021_3_0[..], Prefix::U64, Layout::Classic),
    ] {
        let options = CommOptions::default().with_wire(WireFormat::Detect);
        let (outcome, mut raw) = against_listener_with(options, sent, false).await;
        let mut comm = outcome.unwrap();
        let agreement = comm.agreement();
        assert_eq!((agreement.prefix, agreement.layout), (prefix, layout));
        comm.write_message(&[b"next"]).await.unwrap();
        drop(comm);

        let ours = b"\x83\xabcompression\xc0\xa6python\x93\x03\x08\x00\xafpickle-protocol\x05";
        let frames: &[&[u8]] = match layout {
            Layout::Modern => &[ours],
            Layout::Classic => &[b"", ours],
        };
        let expected = [message(prefix, frames), message(prefix, &[b"next"])].concat();
        let mut received = Vec::new();
        raw.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, expected);
    }
}

#[tokio::test]
async fn connectors_can_use_a_given_format() {
    let error = against_connector(CLASSIC, WireFormat::Auto)
        .await
        .unwrap_err();
    let peer = Prefix::None;
    assert!(matches!(error, CommError::Prefix { peer: found } if found == peer));
    assert!(error.to_string().contains("2021.2.0"), "{error}");

    let (prefix, layout) = (Prefix::None, Layout::Classic);
    for wire in [WireFormat::Fixed { prefix, layout }, WireFormat::Detect] {
        let comm = against_connector(CLASSIC, wire).await.unwrap();
        assert_eq!(comm.agreement().layout, layout);
        assert_eq!(comm.agreement().negotiated.pickle_protocol, 4);
    }
    let wire = WireFormat::Fixed { prefix, layout };
    let error = against_connector(MODERN, wire).await.unwrap_err();
    let peer = Prefix::U64;
    assert!(matches!(error, CommError::Prefix { peer: found } if found == peer));
}

#[tokio::test(start_paused = true)]
async fn answer_sends_its_handshake_after_a_timeout() {
    let waiting = CommOptions::default().with_wire(WireFormat::Detect);
    let (near, far) = tokio::io::duplex(4096);
    let started = tokio::time::Instant::now();
    let [near, far] = [near, far].map(tokio::io::split);
    let (near, far) = tokio::join!(
        Comm::establish(near.0, near.1, ends(), &waiting),
        Comm::establish(far.0, far.1, ends(), &waiting),
    );
    assert_eq!(near.unwrap().agreement().layout, Layout::Modern);
    assert_eq!(far.unwrap().agreement().prefix, Prefix::U64);
    assert!(started.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn invalid_handshakes_close_the_connection() {
    let not_a_map = message(Prefix::U64, &[b"\x90"]);
    let empty_map = message(Prefix::U64, &[b"\x80"]);
    let old_request = message(Prefix::None, &[b"", b"\x81\xa2op\xa8identity"]);
    let large = message(Prefix::U64, &[&[0; 100_000]]);
    let many = message(Prefix::U64, &[&b""[..]; 17]);
    for (sent, text) in [
        (
            &b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"[..],
            "frames; the limit is",
        ),
        (
            b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03aaaaaaaaaa",
            "the peer speaks TLS",
        ),
        (&[0; 16], "no frames"),
        (&not_a_map, "a handshake must be a map; this is an array"),
        (&empty_map, "no `compression`"),
        (&old_request, "no leading length"),
        (&large, "the limit is 65536"),
        (&many, "the limit is 16"),
    ] {
        let (outcome, mut raw) = against_listener(sent, false).await;
        let error = outcome.unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
        assert!(!error.is_closed());
        // The peer is notified and does not wait (with unread bytes in the
        // socket, by a reset).
        let mut rest = Vec::new();
        match raw.read_to_end(&mut rest).await {
            Ok(_) => assert_eq!(rest, OURS),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset),
        }
    }
    let error = against_connector(b"\x02\0\0\0\0\0\0\0", WireFormat::Auto).await;
    assert!(matches!(error, Err(CommError::Prefix { .. })));
    let (outcome, _raw) = against_listener(&empty_map, false).await;
    let key = "compression";
    let missing = HandshakeError::Missing { key };
    assert!(matches!(outcome, Err(CommError::Handshake(error)) if error == missing));
}

#[tokio::test]
async fn truncated_handshakes_are_errors() {
    for len in 0..MODERN.len() {
        let (outcome, _raw) = against_listener(&MODERN[..len], true).await;
        let error = outcome.unwrap_err();
        match error {
            CommError::Closed(Closed::BeforeHandshake) => assert!(len < 8, "{len}"),
            CommError::Closed(Closed::WithinMessage(error)) => {
                assert_eq!(error.at, len as u64);
                assert!(matches!(error.kind, FrameErrorKind::Truncated { .. }));
            }
            error => panic!("{len}: {error}"),
        }
    }
}

/// Silent peers do not block others.
#[tokio::test]
async fn the_oldest_handshakes_are_displaced() {
    const MAX: usize = 3;
    let options = CommOptions::default().with_max_handshakes(MAX);
    let (listener, address) = listen("127.0.0.1", options).await;
    let mut silent = Vec::new();
    let mut handshakes = Vec::new();
    for _ in 0..10 {
        let target = (address.host(), address.port());
        silent.push(TcpStream::connect(target).await.unwrap());
        let incoming = listener.accept().await.unwrap();
        handshakes.push(tokio::spawn(incoming.handshake()));
    }
    let options = CommOptions::default();
    let (comm, accepted) = tokio::join!(connect(&address, &options), async {
        listener.accept().await?.handshake().await
    });
    comm.unwrap();
    accepted.unwrap();
    let still = handshakes.split_off(10 - (MAX - 1));
    for handshake in handshakes {
        let error = handshake.await.unwrap().unwrap_err();
        assert!(
            matches!(error, CommError::Closed(Closed::Displaced)),
            "{error}"
        );
    }
    // Only unfinished handshakes are counted.
    let mut raw = silent.pop().unwrap();
    raw.write_all(MODERN).await.unwrap();
    assert!(still.iter().all(|handshake| !handshake.is_finished()));
    still.into_iter().last().unwrap().await.unwrap().unwrap();
}

fn ends() -> (Address, Address) {
    ("a:1".parse().unwrap(), "b:2".parse().unwrap())
}

#[tokio::test(start_paused = true)]
async fn silent_peers_time_out() {
    for sent in [0, 5, 20, MODERN.len() - 1] {
        let (ours, mut theirs) = tokio::io::duplex(1024);
        theirs.write_all(&MODERN[..sent]).await.unwrap();
        let (reader, writer) = tokio::io::split(ours);
        let started = tokio::time::Instant::now();
        let options = CommOptions::default();
        let error = Comm::establish(reader, writer, ends(), &options)
            .await
            .unwrap_err();
        let after = Duration::from_secs(30);
        assert!(started.elapsed() >= after && started.elapsed() < after * 2);
        let CommError::Timeout {
            phase,
            timeout: said,
        } = error
        else {
            panic!("{error}");
        };
        assert_eq!((phase, said), (Phase::Handshake, after));
    }
}

/// A peer that sends single bytes slowly gets no more time than a silent one.
#[tokio::test(start_paused = true)]
async fn slow_peers_time_out() {
    let (ours, mut theirs) = tokio::io::duplex(1024);
    tokio::spawn(async move {
        for byte in MODERN {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if theirs.write_all(&[*byte]).await.is_err() {
                return;
            }
        }
    });
    let (reader, writer) = tokio::io::split(ours);
    let started = tokio::time::Instant::now();
    let options = CommOptions::default();
    let error = Comm::establish(reader, writer, ends(), &options)
        .await
        .unwrap_err();
    assert!(matches!(error, CommError::Timeout { .. }));
    assert!(started.elapsed() < Duration::from_secs(31));
    assert!(error.to_string().contains("30s"), "{error}");
}

#[tokio::test]
async fn connection_errors_name_the_address() {
    let (listener, address) = listen("127.0.0.1", CommOptions::default()).await;
    drop(listener);
    let once = CommOptions::default().with_connect_retry(false);
    let error = connect(&address, &once).await.unwrap_err();
    assert!(matches!(error, CommError::Connect { .. }));
    assert!(error.to_string().contains(&address.to_string()), "{error}");

    let (_listener, taken) = listen("127.0.0.1", CommOptions::default()).await;
    let error = bind(&taken, CommOptions::default()).await.unwrap_err();
    assert!(error.to_string().contains(&taken.to_string()), "{error}");
}

// Ends.

#[tokio::test]
async fn closing_within_a_message_is_an_error() {
    let bytes = message(Prefix::U64, &[b"body", &[7; 70_000], b"end"]);
    for len in [0, 1, 15, 39, 40, 44, 45, 70_043, 70_044, bytes.len() - 1] {
        let (outcome, mut raw) = against_listener(MODERN, false).await;
        let mut comm = outcome.unwrap();
        raw.write_all(&bytes).await.unwrap();
        raw.write_all(&bytes[..len]).await.unwrap();
        raw.shutdown().await.unwrap();
        assert_eq!(comm.read_message().await.unwrap().unwrap().len(), 3);
        let outcome = comm.read_message().await;
        if len == 0 {
            assert!(outcome.unwrap().is_none());
            continue;
        }
        let error = outcome.unwrap_err();
        assert!(error.is_closed());
        let CommError::Closed(Closed::WithinMessage(inner)) = error else {
            panic!("{error}");
        };
        assert_eq!(inner.at, len as u64);
        // The comm stays closed.
        let error = comm.read_message().await.unwrap_err();
        assert!(matches!(error, CommError::Closed(Closed::AfterError)));
    }
}

#[tokio::test]
async fn garbage_after_the_handshake_ends_the_comm() {
    let (outcome, mut raw) = against_listener(MODERN, false).await;
    let mut comm = outcome.unwrap();
    raw.write_all(&[0xff; 64]).await.unwrap();
    let error = comm.read_message().await.unwrap_err();
    assert!(matches!(error, CommError::Frame(_)));
    assert!(comm.read_message().await.unwrap_err().is_closed());
}

#[tokio::test]
async fn limits_rise_after_the_handshake() {
    let bytes = message(Prefix::U64, &[&[7; 100_000][..]; 20]);
    let (outcome, mut raw) = against_listener(MODERN, false).await;
    let mut comm = outcome.unwrap();
    let sending = tokio::spawn(async move {
        raw.write_all(&bytes).await.unwrap();
        // Kept open: closing it with our handshake unread would be a reset.
        raw
    });
    assert_eq!(comm.read_message().await.unwrap().unwrap().len(), 20);
    sending.await.unwrap();
}

#[tokio::test]
async fn writing_to_a_closed_peer_fails() {
    let (mut ours, theirs) = pair().await;
    drop(theirs);
    let frame = vec![0; 1 << 20];
    let error = loop {
        match ours.write_message(&[&frame]).await {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    assert!(error.is_closed(), "{error}");
    let again = ours.write_message(&[&frame]).await.unwrap_err();
    assert!(matches!(again, CommError::Closed(Closed::AfterError)));
}

#[tokio::test]
async fn a_closed_comm_cannot_send() {
    let (mut ours, mut theirs) = pair().await;
    ours.close().await.unwrap();
    ours.close().await.unwrap();
    let error = ours.write_message(&[b"x"]).await.unwrap_err();
    assert!(matches!(error, CommError::Closed(Closed::Locally)));
    assert!(theirs.read_message().await.unwrap().is_none());
    // The other direction is still open.
    theirs.write_message(&[b"bye"]).await.unwrap();
    assert_eq!(ours.read_message().await.unwrap().unwrap().len(), 1);
}

#[tokio::test]
async fn messages_without_frames_are_not_sent() {
    let (mut ours, mut theirs) = pair().await;
    let none: [&[u8]; 0] = [];
    let error = ours.write_message(&none).await.unwrap_err();
    assert!(matches!(error, CommError::Encode(EncodeError::NoFrames)));
    ours.write_message(&[b"x"]).await.unwrap();
    assert!(theirs.read_message().await.unwrap().is_some());
}

// Cancellation.

/// A stream that returns one byte with every other poll.
struct Trickle<'a> {
    bytes: &'a [u8],
    ready: bool,
}

impl AsyncRead for Trickle<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.ready = !self.ready;
        if !self.ready {
            return Poll::Pending;
        }
        if let Some((first, rest)) = self.bytes.split_first() {
            buf.put_slice(&[*first]);
            self.bytes = rest;
        }
        Poll::Ready(Ok(()))
    }
}

fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    let mut context = Context::from_waker(Waker::noop());
    pin!(future).poll(&mut context)
}

#[test]
fn reads_can_be_dropped_at_every_poll() {
    let large = pattern(70_000);
    let medium = pattern(3000);
    let messages: [&[&[u8]]; 5] = [
        &[b"\x80"],
        &[b"", &medium, b"", b"x"],
        &[b"before", &large, b"after", b""],
        &[b""],
        &[&large, &large],
    ];
    for prefix in [Prefix::None, Prefix::U64] {
        let stream: Vec<u8> = messages
            .iter()
            .flat_map(|frames| message(prefix, frames))
            .collect();
        let io = Trickle {
            bytes: &stream,
            ready: true,
        };
        let mut reader = CommReader::new(io, prefix, Limits::HOST);
        let mut dropped = 0;
        for frames in messages {
            let read = loop {
                match poll_once(reader.read_message()) {
                    Poll::Ready(read) => break read.unwrap().unwrap(),
                    Poll::Pending => dropped += 1,
                }
            };
            assert!(read.as_slices() == frames, "{read:?}");
        }
        // One read was dropped for every byte; another one is at the end of the stream.
        assert_eq!(dropped, stream.len());
        while poll_once(reader.read_message()).is_pending() {}
    }
}

/// A stream that accepts a given number of bytes.
#[derive(Clone, Default)]
struct Sluice(Arc<Mutex<Flow>>);

#[derive(Default)]
struct Flow {
    allowed: usize,
    received: Vec<u8>,
    write_count: usize,
    /// The addresses of the slices that were written.
    places: Vec<(usize, usize)>,
    broken: bool,
    closed: bool,
}

impl AsyncWrite for Sluice {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut flow = self.0.lock().unwrap();
        if flow.allowed == 0 {
            return if flow.broken {
                Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
            } else {
                Poll::Pending
            };
        }
        flow.write_count += 1;
        let mut count = 0;
        for slice in slices {
            let len = slice.len().min(flow.allowed);
            flow.received.extend_from_slice(&slice[..len]);
            flow.places.push((slice.as_ptr() as usize, slice.len()));
            flow.allowed -= len;
            count += len;
        }
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.lock().unwrap().closed = true;
        Poll::Ready(Ok(()))
    }
}

fn sluice(allowed: usize) -> (Sluice, CommWriter<Sluice>) {
    let sluice = Sluice::default();
    sluice.0.lock().unwrap().allowed = allowed;
    (sluice.clone(), CommWriter::new(sluice, Prefix::U64))
}

#[test]
fn a_write_dropped_within_a_message_ends_the_comm() {
    let large = pattern(16 << 10);
    let frames: [&[u8]; 4] = [b"body", &large, b"", b"after"];
    let whole = message(Prefix::U64, &frames);
    let inside = (1..100).chain((100..whole.len()).step_by(509));
    let small = inside
        .chain([whole.len() - 1])
        .map(|allowed| (&frames, &whole, allowed));
    // A frame that is written in parts, of which the second is not written completely
    let parts = pattern((2 << 20) + 5);
    let in_parts: [&[u8]; 4] = [b"body", &parts, b"", b"after"];
    let long = message(Prefix::U64, &in_parts);
    let second = [1 << 20, (1 << 20) + 500, (2 << 20) + 50];
    let large = second.map(|allowed| (&in_parts, &long, allowed));
    for (frames, whole, allowed) in small.chain(large) {
        let (sluice, mut writer) = sluice(allowed);
        assert!(poll_once(writer.write_message(frames)).is_pending());
        sluice.0.lock().unwrap().allowed = usize::MAX;
        let Poll::Ready(Err(error)) = poll_once(writer.write_message(&[b"x"])) else {
            panic!("written after {allowed} bytes of another message");
        };
        assert!(matches!(error, CommError::Closed(Closed::WriteCancelled)));
        assert!(error.is_closed());
        assert_eq!(sluice.0.lock().unwrap().received, whole[..allowed]);
        // Closing still works, so that the peer is notified.
        assert!(matches!(poll_once(writer.close()), Poll::Ready(Ok(()))));
        assert!(sluice.0.lock().unwrap().closed);
    }
}

#[test]
fn a_write_dropped_before_its_first_byte_is_harmless() {
    let (sluice, mut writer) = sluice(0);
    for _ in 0..3 {
        let dropped = writer.write_message(&[b"never sent"]);
        assert!(poll_once(dropped).is_pending());
    }
    sluice.0.lock().unwrap().allowed = usize::MAX;
    let Poll::Ready(Ok(())) = poll_once(writer.write_message(&[b"sent"])) else {
        panic!("not written");
    };
    let received = &sluice.0.lock().unwrap().received;
    assert_eq!(*received, message(Prefix::U64, &[b"sent"]));
}

#[test]
fn a_write_that_fails_anywhere_ends_the_comm() {
    let frames: [&[u8]; 2] = [b"body", &[7; 20_000]];
    let whole_len = message(Prefix::U64, &frames).len();
    for allowed in (0..64).chain([whole_len - 1]) {
        let (sluice, mut writer) = sluice(allowed);
        sluice.0.lock().unwrap().broken = true;
        let Poll::Ready(Err(error)) = poll_once(writer.write_message(&frames)) else {
            panic!("written to a broken stream");
        };
        assert!(matches!(error, CommError::Io(_)) && error.is_closed());
        sluice.0.lock().unwrap().allowed = usize::MAX;
        let Poll::Ready(Err(error)) = poll_once(writer.write_message(&[b"x"])) else {
            panic!("written after a failure");
        };
        assert!(matches!(error, CommError::Closed(Closed::AfterError)));
    }
}

#[test]
fn small_messages_take_one_write_and_large_frames_no_copy() {
    let (sluice, mut writer) = sluice(usize::MAX);
    let small: [&[u8]; 5] = [b"body", b"", &[1; 5000], b"header", &[2; 9000]];
    assert!(poll_once(writer.write_message(&small)).is_ready());
    assert_eq!(sluice.0.lock().unwrap().write_count, 1);

    let large = [1 << 20, (1 << 20) + 5].map(|len| Bytes::from(pattern(len)));
    let frames = [
        Bytes::from_static(b"body"),
        large[0].clone(),
        Bytes::from_static(b"header"),
        large[1].clone(),
        Bytes::from_static(b"end"),
    ];
    assert!(poll_once(writer.write_message(&frames)).is_ready());
    let flow = sluice.0.lock().unwrap();
    // A frame is written in parts of 1 MiB.
    assert_eq!(flow.write_count, 1 + 4);
    for part in large.iter().flat_map(|frame| frame.chunks(1 << 20)) {
        let place = (part.as_ptr() as usize, part.len());
        assert!(flow.places.contains(&place), "it was copied");
    }
    let frames: Vec<&[u8]> = frames.iter().map(AsRef::as_ref).collect();
    let expected = [message(Prefix::U64, &small), message(Prefix::U64, &frames)].concat();
    assert!(flow.received == expected);
}

#[test]
fn the_buffer_of_small_frames_is_bounded() {
    let (sluice, mut writer) = sluice(usize::MAX);
    let frames = vec![[7; 1000]; 1000];
    assert!(poll_once(writer.write_message(&frames)).is_ready());
    let flow = sluice.0.lock().unwrap();
    assert!(flow.places.iter().all(|(_, len)| *len <= 80 << 10));
    assert!(flow.write_count <= 20);
    let frames: Vec<&[u8]> = frames.iter().map(AsRef::as_ref).collect();
    assert!(flow.received == message(Prefix::U64, &frames));
}

#[test]
fn fed_messages_are_sent_together_and_in_order() {
    let (sluice, mut writer) = sluice(usize::MAX);
    let mut expected = Vec::new();
    for number in 0..100_u32 {
        let frame = number.to_le_bytes();
        expected.extend(message(Prefix::U64, &[&frame, b"x"]));
        let fed = poll_once(writer.feed_message(&[&frame[..], b"x"]));
        assert!(matches!(fed, Poll::Ready(Ok(()))));
    }
    assert_eq!(sluice.0.lock().unwrap().write_count, 0);
    // A message without frames is refused, and no other is lost.
    let fed = poll_once(writer.feed_message::<&[u8]>(&[]));
    assert!(matches!(fed, Poll::Ready(Err(CommError::Encode(_)))));
    assert!(matches!(poll_once(writer.flush()), Poll::Ready(Ok(()))));
    {
        let flow = sluice.0.lock().unwrap();
        assert!(flow.received == expected);
        assert_eq!(flow.write_count, 1);
    }
    // Messages are fed before a written one, and before the end.
    for number in 0..3_u32 {
        let frame = number.to_le_bytes();
        expected.extend(message(Prefix::U64, &[&frame]));
        let fed = poll_once(writer.feed_message(&[frame]));
        assert!(matches!(fed, Poll::Ready(Ok(()))));
    }
    expected.extend(message(Prefix::U64, &[b"written"]));
    let written = poll_once(writer.write_message(&[b"written"]));
    assert!(matches!(written, Poll::Ready(Ok(()))));
    assert_eq!(sluice.0.lock().unwrap().write_count, 2);
    expected.extend(message(Prefix::U64, &[b"last"]));
    let fed = poll_once(writer.feed_message(&[b"last"]));
    assert!(matches!(fed, Poll::Ready(Ok(()))));
    assert!(matches!(poll_once(writer.close()), Poll::Ready(Ok(()))));
    let flow = sluice.0.lock().unwrap();
    assert!(flow.received == expected);
    assert!(flow.closed);
}

#[test]
fn the_buffer_of_fed_messages_is_bounded() {
    let (sluice, mut writer) = sluice(usize::MAX);
    let large = pattern(20_000);
    let mut expected = Vec::new();
    for number in 0..5000_usize {
        let frame: &[u8] = if number % 100 == 99 {
            &large
        } else {
            &[7; 100]
        };
        expected.extend(message(Prefix::U64, &[b"", frame]));
        let fed = poll_once(writer.feed_message(&[&b""[..], frame]));
        assert!(matches!(fed, Poll::Ready(Ok(()))));
        let received_len = sluice.0.lock().unwrap().received.len();
        assert!(expected.len() - received_len <= 80 << 10);
    }
    assert!(matches!(poll_once(writer.flush()), Poll::Ready(Ok(()))));
    assert!(sluice.0.lock().unwrap().received == expected);
}

#[test]
fn a_write_dropped_before_its_first_byte_keeps_fed_messages() {
    let (sluice, mut writer) = sluice(0);
    let mut expected = Vec::new();
    for number in 0..10_u32 {
        let frame = number.to_le_bytes();
        let fed = poll_once(writer.feed_message(&[frame]));
        assert!(matches!(fed, Poll::Ready(Ok(()))));
        expected.extend(message(Prefix::U64, &[&frame]));
        assert!(poll_once(writer.write_message(&[b"never sent"])).is_pending());
        assert!(poll_once(writer.flush()).is_pending());
        assert!(poll_once(writer.feed_message(&[&[7; 80 << 10]])).is_pending());
    }
    sluice.0.lock().unwrap().allowed = usize::MAX;
    assert!(matches!(poll_once(writer.flush()), Poll::Ready(Ok(()))));
    assert!(sluice.0.lock().unwrap().received == expected);
}

#[test]
fn a_dropped_flush_ends_the_comm() {
    let whole = message(Prefix::U64, &[b"fed"]);
    for allowed in 1..whole.len() {
        let (sluice, mut writer) = sluice(allowed);
        assert!(poll_once(writer.feed_message(&[b"fed"])).is_ready());
        assert!(poll_once(writer.flush()).is_pending());
        sluice.0.lock().unwrap().allowed = usize::MAX;
        let Poll::Ready(Err(error)) = poll_once(writer.feed_message(&[b"x"])) else {
            panic!("written after {allowed} bytes of another message");
        };
        assert!(matches!(error, CommError::Closed(Closed::WriteCancelled)));
        assert_eq!(sluice.0.lock().unwrap().received, whole[..allowed]);
    }
}

#[test]
fn closing_reports_lost_fed_messages() {
    let whole = message(Prefix::U64, &[b"fed"]);
    for allowed in 0..whole.len() {
        // Closing is dropped before it is done, and repeated.
        let (stream, mut writer) = sluice(allowed);
        assert!(poll_once(writer.feed_message(&[b"fed"])).is_ready());
        assert!(poll_once(writer.close()).is_pending());
        stream.0.lock().unwrap().allowed = usize::MAX;
        for _ in 0..2 {
            let closed = poll_once(writer.close());
            if allowed == 0 {
                assert!(matches!(closed, Poll::Ready(Ok(()))));
                assert_eq!(stream.0.lock().unwrap().received, whole);
            } else {
                let lost = CommError::Closed(Closed::WriteCancelled);
                assert!(
                    matches!(closed, Poll::Ready(Err(error)) if error.to_string() == lost.to_string())
                );
            }
            assert!(stream.0.lock().unwrap().closed);
        }
        // The stream breaks.
        let (stream, mut writer) = sluice(allowed);
        assert!(poll_once(writer.feed_message(&[b"fed"])).is_ready());
        stream.0.lock().unwrap().broken = true;
        assert!(matches!(
            poll_once(writer.close()),
            Poll::Ready(Err(CommError::Io(_)))
        ));
        assert!(stream.0.lock().unwrap().closed, "the peer is not told");
        assert!(matches!(
            poll_once(writer.close()),
            Poll::Ready(Err(CommError::Closed(Closed::AfterError)))
        ));
    }
}

// Memory.

#[tokio::test]
async fn large_frames_have_their_own_memory() {
    let large = pattern(64 << 10);
    let bytes = message(Prefix::U64, &[b"body", &large, b"", b"header", &large]);
    let mut reader = CommReader::new(&bytes[..], Prefix::U64, Limits::HOST);
    let frames = reader.read_message().await.unwrap().unwrap();
    assert_eq!(format!("{frames:?}"), "Frames of [4, 65536, 0, 6, 65536]");
    let mut frames = frames.into_vec();
    // The body and the header are stored one after the other.
    assert_eq!(frames[0].as_ptr() as usize + 4, frames[3].as_ptr() as usize);
    // A large frame shares no memory, so it can be converted to a vector.
    let kept = frames.swap_remove(1);
    assert!(kept.is_unique());
    drop(frames);
    assert!(kept == large);
}

#[tokio::test]
async fn a_message_is_not_continued_in_other_buffers() {
    use daskwire::transport::CommReader as Trait;
    let bytes = message(Prefix::U64, &[&[7; 100_000]]);
    for is_given_first in [true, false] {
        let (mut theirs, ours) = tokio::io::duplex(1 << 20);
        let mut reader = CommReader::new(ours, Prefix::U64, Limits::HOST);
        let mut given: Vec<Vec<u8>> = Vec::new();
        theirs.write_all(&bytes[..50_000]).await.unwrap();
        let short = Duration::from_millis(50);
        let began = match is_given_first {
            true => tokio::time::timeout(short, Trait::read_message(&mut reader, &mut given))
                .await
                .map(drop),
            false => tokio::time::timeout(short, reader.read_message())
                .await
                .map(drop),
        };
        assert!(began.is_err(), "half a message is one");
        theirs.write_all(&bytes[50_000..]).await.unwrap();
        let outcome = match is_given_first {
            true => reader.read_message().await.map(drop),
            false => Trait::read_message(&mut reader, &mut given).await.map(drop),
        };
        let error = outcome.unwrap_err();
        assert!(
            matches!(error, CommError::Frame(error)
                if matches!(error.kind, FrameErrorKind::NoBuffer { .. })),
            "{error}"
        );
        let again = reader.read_message().await.unwrap_err();
        assert!(matches!(again, CommError::Closed(Closed::AfterError)));
    }
}

#[cfg(unix)]
#[tokio::test]
async fn permanent_errors_are_not_retried() {
    let long = format!("unix:///{}", "x".repeat(300)).parse().unwrap();
    let options = CommOptions::default();
    let once = tokio::time::timeout(Duration::from_secs(5), connect(&long, &options));
    let error = once.await.expect("it is not tried again").unwrap_err();
    assert!(error.to_string().contains("xxx"), "{error}");
}

#[cfg(unix)]
#[tokio::test]
async fn stale_unix_sockets_are_replaced() {
    let path = std::env::temp_dir().join(format!("daskwire-left-{}.sock", std::process::id()));
    let address: Address = format!("unix://{}", path.display()).parse().unwrap();
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let listener = bind(&address, CommOptions::default()).await.unwrap();
    // A socket with a listener is not replaced.
    let error = bind(&address, CommOptions::default()).await.unwrap_err();
    assert!(matches!(error, CommError::Bind { .. }), "{error}");
    drop(listener);
    assert!(!path.exists());
    // A file that has replaced the socket is kept.
    let listener = bind(&address, CommOptions::default()).await.unwrap();
    std::fs::remove_file(&path).unwrap();
    let other = bind(&address, CommOptions::default()).await.unwrap();
    drop(listener);
    assert!(path.exists());
    drop(other);
    assert!(!path.exists());
    // A file that is not a socket is not replaced.
    std::fs::write(&path, "mine").unwrap();
    assert!(bind(&address, CommOptions::default()).await.is_err());
    std::fs::remove_file(&path).unwrap();
}

#[tokio::test]
async fn large_frames_reuse_the_memory_of_a_pool() {
    let pool = BufferPool::new(64 << 20);
    let options = CommOptions::default().with_pool(pool.clone());
    let (listener, address) = listen("127.0.0.1", options).await;
    let near = tokio::spawn(async move {
        let mut comm = connect(&address, &CommOptions::default()).await.unwrap();
        for byte in 0..6_u8 {
            let large = vec![byte; (8 << 20) - usize::from(byte)];
            comm.write_message(&[&b"small"[..], &large[..]])
                .await
                .unwrap();
        }
        comm.close().await.unwrap();
    });
    let mut comm = listener.accept().await.unwrap().handshake().await.unwrap();
    let mut kept = Vec::new();
    let mut places = Vec::new();
    for byte in 0..6_u8 {
        let frames = comm.read_message().await.unwrap().unwrap();
        let large = frames[1].clone();
        assert_eq!(large.len(), (8 << 20) - usize::from(byte));
        assert!(large.iter().all(|there| *there == byte));
        places.push(large.as_ptr() as usize);
        if byte == 2 {
            kept.push(large);
        }
    }
    near.await.unwrap();
    // The first buffer is reused until its frame is kept.
    assert_eq!(places[..3], [places[0]; 3]);
    assert_ne!(places[3], places[0]);
    assert_eq!(places[3..], [places[3]; 3]);
    assert!(kept[0].iter().all(|there| *there == 2));
    assert_eq!(pool.kept_len(), (8 << 20) - 3);
    drop(kept);
    assert_eq!(pool.kept_len(), (16 << 20) - 3);
}

// Addresses and listeners. Each test names the corresponding one of Dask.

/// test_default_client_server_ipv4, _ipv6: an empty host is every interface.
#[tokio::test]
async fn an_empty_host_is_every_interface() {
    let (listener, address) = listen("", CommOptions::default()).await;
    assert_eq!(address.host(), "0.0.0.0");
    let mut hosts = vec!["127.0.0.1"];
    if std::net::TcpListener::bind("[::1]:0").is_ok() {
        hosts.push("[::1]");
    }
    for host in hosts {
        let contact = address.contact(host.trim_matches(['[', ']']));
        let options = CommOptions::default();
        let (near, far) = tokio::join!(connect(&contact, &options), async {
            listener.accept().await.unwrap().handshake().await
        });
        let (near, far) = (near.unwrap(), far.unwrap());
        // test_tcp_addresses, test_tcp_repr
        assert_eq!(near.peer_address(), &contact);
        assert_eq!(near.local_address(), far.peer_address());
        let shown = format!("{near:?}");
        assert!(shown.contains(&contact.to_string()), "{shown}");
        assert!(near.encryption().is_none());
        near.abort();
    }
    // The port is in use for both families.
    for host in ["", "0.0.0.0", "[::]"] {
        let address = format!("tcp://{host}:{}", address.port()).parse().unwrap();
        if host == "[::]" && std::net::TcpListener::bind("[::1]:0").is_err() {
            continue;
        }
        let again = bind(&address, CommOptions::default()).await;
        assert!(matches!(again, Err(CommError::Bind { .. })), "{host}");
    }
}

/// test_tcp_many_listeners
#[tokio::test]
async fn a_hundred_listeners_have_a_hundred_addresses() {
    let mut listeners = Vec::new();
    for _ in 0..100 {
        listeners.push(listen("127.0.0.1", CommOptions::default()).await);
    }
    let addresses: std::collections::HashSet<String> = listeners
        .iter()
        .map(|(_, address)| address.to_string())
        .collect();
    assert_eq!(addresses.len(), 100);
    for (listener, address) in &listeners {
        let options = CommOptions::default();
        let (near, far) = tokio::join!(connect(address, &options), async {
            listener.accept().await.unwrap().handshake().await
        });
        assert_eq!(near.unwrap().local_address(), far.unwrap().peer_address());
    }
}

/// As when all workers of a large cluster connect at once. Linux, whose limit of its own
/// is above that.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn hundreds_of_connections_may_wait_to_be_accepted() {
    for host in ["127.0.0.1", ""] {
        let (_listener, address) = listen(host, CommOptions::default()).await;
        let address = ([127, 0, 0, 1], address.port()).into();
        // This thread is that of the executor, so that none is accepted meanwhile.
        let _connections: Vec<std::net::TcpStream> = (0..300)
            .map(|number| {
                std::net::TcpStream::connect_timeout(&address, Duration::from_secs(10))
                    .unwrap_or_else(|error| panic!("{host:?}, connection {number}: {error}"))
            })
            .collect();
    }
}

/// test_retry_connect: a late listener is found soon.
#[tokio::test]
async fn connecting_waits_for_a_late_listener() {
    // No other test can get the port meanwhile.
    let (listener, address) = listen("127.0.0.2", CommOptions::default()).await;
    drop(listener);
    let options = CommOptions::default();
    let late = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let listener = bind(&address, CommOptions::default()).await.unwrap();
        listener.accept().await.unwrap().handshake().await
    };
    let (near, far) = tokio::join!(connect(&address, &options), late);
    near.unwrap();
    far.unwrap();
}

/// test_tcp_connect_timeout, test_connect_raises.
#[tokio::test]
async fn connecting_times_out() {
    let (listener, address) = listen("127.0.0.3", CommOptions::default()).await;
    drop(listener);
    let options = CommOptions::default().with_connect_timeout(Duration::from_millis(150));
    let started = tokio::time::Instant::now();
    let error = connect(&address, &options).await.unwrap_err();
    let elapsed = started.elapsed();
    assert!(matches!(error, CommError::Connect { .. }), "{error}");
    let bounds = Duration::from_millis(100)..Duration::from_secs(10);
    assert!(bounds.contains(&elapsed), "{elapsed:?}");
}

/// test_stop_listener_during_handle_stream: an accepted connection that is dropped
/// ends at once.
#[tokio::test]
async fn dropping_an_incoming_connection_closes_it() {
    let (listener, address) = listen("127.0.0.1", CommOptions::default()).await;
    let options = CommOptions::default();
    let (near, _) = tokio::join!(connect(&address, &options), async {
        let incoming = listener.accept().await.unwrap();
        drop(listener);
        drop(incoming);
    });
    let error = near.unwrap_err();
    assert!(error.is_closed(), "{error}");
}

/// test_inproc_continues_listening_after_handshake_error, with 500 of them.
#[tokio::test]
async fn bad_peers_do_not_stop_a_listener() {
    raise_file_limit();
    let (listener, address) = listen("127.0.0.1", CommOptions::default()).await;
    let serving = tokio::spawn(async move {
        let mut good_count = 0;
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..501 {
            let incoming = listener.accept().await.unwrap();
            tasks.spawn(incoming.handshake());
        }
        while let Some(outcome) = tasks.join_next().await {
            good_count += usize::from(outcome.unwrap().is_ok());
        }
        good_count
    });
    let mut bad = Vec::new();
    for number in 0..500 {
        let mut stream = TcpStream::connect((address.host(), address.port()))
            .await
            .unwrap();
        let garbage: &[u8] = match number % 3 {
            0 => b"GET / HTTP/1.1\r\n\r\n",
            1 => &[0xff; 64],
            _ => b"",
        };
        stream.write_all(garbage).await.unwrap();
        stream.shutdown().await.unwrap();
        bad.push(stream);
    }
    connect(&address, &CommOptions::default()).await.unwrap();
    assert_eq!(serving.await.unwrap(), 1);
}

/// test_comm_failure_threading: failed attempts leave no task.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_thousand_failed_attempts_leave_no_task() {
    let (listener, address) = listen("127.0.0.4", CommOptions::default()).await;
    drop(listener);
    let options = CommOptions::default().with_connect_retry(false);
    let metrics = tokio::runtime::Handle::current().metrics();
    let before = metrics.num_alive_tasks();
    for _ in 0..1000 {
        connect(&address, &options).await.unwrap_err();
    }
    assert_eq!(metrics.num_alive_tasks(), before);
}
