//! Peers that break the protocol, or use a part of it that Dask does not use.

use core::time::Duration;

use daskwire_comm::{Address, Comm, CommError, CommOptions, Limits, Listener, Transports};
use daskwire_tcp::Tcp;
use daskwire_ws::{Ws, WsError, WsOptions};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{raise_file_limit, transports, with_tls};

/// A handshake of Dask.
const HANDSHAKE: &[u8] =
    b"\x83\xabcompression\xc0\xa6python\x93\x03\x0b\x07\xafpickle-protocol\x05";

const REQUEST: &str = "GET / HTTP/1.1\r\nHost: here:1\r\nConnection: keep-alive, Upgrade\r\n\
                       Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                       Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n";

const MASK: [u8; 4] = [1, 2, 3, 0xfe];

/// A frame of a client: the first byte, and the payload.
fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    match payload.len() {
        len @ 0..126 => frame.push(0x80 | len as u8),
        len @ 126..0x1_0000 => {
            frame.push(0x80 | 126);
            frame.extend((len as u16).to_be_bytes());
        }
        len => {
            frame.push(0x80 | 127);
            frame.extend((len as u64).to_be_bytes());
        }
    }
    frame.extend(MASK);
    let payload = payload.iter().zip(MASK.into_iter().cycle());
    frame.extend(payload.map(|(byte, mask)| byte ^ mask));
    frame
}

/// A message of Dask from a client.
fn message(frames: &[&[u8]]) -> Vec<u8> {
    let count = (frames.len() as u64).to_le_bytes();
    let frames = frames.iter().map(|frame| masked(0x82, frame));
    frames.fold(masked(0x82, &count), |all, frame| [all, frame].concat())
}

async fn listen(options: CommOptions) -> (Listener, Address) {
    let address = "ws://127.0.0.1:0".parse().unwrap();
    let listener = transports().bind(&address, options).await.unwrap();
    let address = listener.local_address().unwrap();
    (listener, address)
}

/// Sends a request, and returns the connection with the head of the answer.
async fn request(address: &Address, request: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(address.location()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    (stream, String::from_utf8(head).unwrap())
}

/// A raw client, after the request.
async fn raw_client(address: &Address) -> TcpStream {
    let (stream, head) = request(address, &format!("{REQUEST}\r\n")).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    // The value that RFC 6455 prescribes for this key.
    assert!(
        head.to_lowercase().contains("sec-websocket-accept: "),
        "{head}"
    );
    stream
}

/// The comm of a raw client that sends these bytes after the request.
async fn comm_with(bytes: &[u8], options: CommOptions) -> (TcpStream, Result<Comm, CommError>) {
    let (listener, address) = listen(options).await;
    let client = async {
        let mut client = raw_client(&address).await;
        client.write_all(bytes).await.unwrap();
        client
    };
    let accepting = async { listener.accept().await.unwrap().handshake().await };
    tokio::join!(client, accepting)
}

/// Reads frames of a server until one begins with `first`, and returns its payload.
async fn wait_for(stream: &mut TcpStream, first: u8) -> Vec<u8> {
    loop {
        let [found, len] = {
            let mut head = [0; 2];
            stream.read_exact(&mut head).await.expect("a frame");
            head
        };
        assert!(len < 126, "a long frame");
        let mut payload = vec![0; len.into()];
        stream.read_exact(&mut payload).await.unwrap();
        if found == first {
            return payload;
        }
    }
}

const CLOSE: u8 = 0x88;

/// The error of a comm whose peer sends these bytes after its handshake, and the status with
/// which the comm closes.
async fn error_after(bytes: &[u8], options: CommOptions) -> (CommError, u16) {
    let all = [message(&[HANDSHAKE]), bytes.to_vec()].concat();
    let (mut stream, comm) = comm_with(&all, options).await;
    let mut comm = comm.expect("a handshake");
    let error = loop {
        match comm.read_message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the comm has ended"),
            Err(error) => break error,
        }
    };
    drop(comm);
    let status = wait_for(&mut stream, CLOSE).await;
    (error, u16::from_be_bytes([status[0], status[1]]))
}

#[tokio::test]
async fn broken_messages_are_refused() {
    let count = |count: u64| masked(0x82, &count.to_le_bytes());
    for (bytes, expected, code) in [
        (masked(0x81, b"text"), "a text message", 1003),
        (masked(0x82, b"seven b"), "8 bytes, found 7 bytes", 1002),
        (masked(0x82, b"nine byte"), "8 bytes, found 9 bytes", 1002),
        (
            [count(1), masked(0x81, b"x")].concat(),
            "a text message",
            1003,
        ),
        (masked(0xc2, b"12345678"), "a reserved bit", 1002),
        (masked(0x83, b"12345678"), "invalid opcode", 1002),
        (masked(0x80, b"12345678"), "second fragment", 1002),
        (
            [masked(0x02, b"1234"), masked(0x82, b"5678")].concat(),
            "within another one",
            1002,
        ),
        (masked(0x09, b""), "a control frame is fragmented", 1002),
        (masked(0x89, &[0; 126]), "longer than 125 bytes", 1002),
        (b"\x82\x0812345678".to_vec(), "a client has no mask", 1002),
        (masked(0x88, b"\x03"), "a close message of one byte", 1002),
    ] {
        let (error, status) = error_after(&bytes, CommOptions::default()).await;
        let said = error.to_string();
        assert!(said.contains(expected), "{bytes:?}: {said}");
        assert!(WsError::of(&error).is_some(), "{error:?}");
        assert!(!error.is_closed(), "{said}");
        assert_eq!(status, code, "{said}");
    }
}

/// A length beyond the limits is refused by the header, before the bytes arrive.
#[tokio::test]
async fn limits_apply_to_what_is_announced() {
    let limits = Limits::HOST
        .with_frame_count(3)
        .with_frame_len(2000)
        .with_message_len(3000);
    let options = CommOptions::default().with_limits(limits);
    let count = |count: u64| masked(0x82, &count.to_le_bytes());
    let long = |len: u64| [&[0x82, 0xff][..], &len.to_be_bytes(), &MASK].concat();
    for (bytes, expected) in [
        (count(0), "no frames"),
        (count(4), "4 frames"),
        (count(u64::MAX), "frames"),
        ([count(1), long(2001)].concat(), "2001"),
        ([count(2), long(1 << 62)].concat(), "4611686018427387904"),
        (
            [count(3), masked(0x82, &[0; 1500]), long(1501)].concat(),
            "3000",
        ),
    ] {
        let (error, _) = error_after(&bytes, options.clone()).await;
        assert!(matches!(error, CommError::Frame(_)), "{error:?}");
        assert!(error.to_string().contains(expected), "{expected}: {error}");
    }
    // The length of fragments is not announced, and there may be more of them.
    let first = masked(0x02, &[0; 1000]);
    let more = masked(0x00, &[0; 1001]);
    let last = masked(0x80, &[0; 900]);
    let whole = masked(0x82, &[0; 1500]);
    for (bytes, limit) in [
        ([count(1), first.clone(), more].concat(), 2000),
        ([count(3), whole, first, last].concat(), 3000),
    ] {
        let (error, status) = error_after(&bytes, options.clone()).await;
        let expected = WsError::MessageTooLong { limit };
        assert_eq!(WsError::of(&error), Some(&expected));
        assert_eq!(status, 1009);
    }
}

#[tokio::test]
async fn a_handshake_is_limited() {
    for bytes in [
        [
            masked(0x82, &1_u64.to_le_bytes()),
            b"\x82\xff\0\0\0\0\0\x01\0\x01\0\0\0\0".to_vec(),
        ]
        .concat(),
        masked(0x82, &17_u64.to_le_bytes()),
    ] {
        let (_, comm) = comm_with(&bytes, CommOptions::default()).await;
        let error = comm.expect_err("no handshake");
        assert!(matches!(error, CommError::Frame(_)), "{error:?}");
    }
}

#[tokio::test]
async fn fragments_are_joined_and_pings_are_answered() {
    let ping = masked(0x89, b"are you there?");
    let bytes = [
        message(&[HANDSHAKE]),
        // The number of frames: two.
        masked(0x02, &[2, 0]),
        ping.clone(),
        masked(0x00, &[0; 5]),
        masked(0x80, &[0]),
        // The frames, each in fragments.
        masked(0x02, b"one, "),
        masked(0x00, b""),
        masked(0x80, b"two"),
        masked(0x02, b""),
        ping,
        masked(0x80, &[7; 70_000]),
        masked(0x8a, b"a pong without a ping"),
        message(&[b"", b"next", b""]),
        masked(0x88, b"\x03\xe8"),
    ]
    .concat();
    let (mut stream, comm) = comm_with(&bytes, CommOptions::default()).await;
    let mut comm = comm.expect("a handshake");
    let frames = comm.read_message().await.unwrap().expect("a message");
    assert_eq!(frames.len(), 2);
    assert_eq!(&frames[0][..], b"one, two");
    assert_eq!(&frames[1][..], [7; 70_000]);
    let frames = comm.read_message().await.unwrap().expect("a message");
    let frames: Vec<&[u8]> = frames.iter().map(|frame| &frame[..]).collect();
    assert_eq!(frames, [&b""[..], b"next", b""]);
    assert!(comm.read_message().await.unwrap().is_none());
    assert_eq!(wait_for(&mut stream, 0x8a).await, b"are you there?");
    // The other direction is open until the comm closes it.
    comm.write_message(&[b"still"]).await.unwrap();
    assert_eq!(wait_for(&mut stream, 0x82).await, 1_u64.to_le_bytes());
    assert_eq!(wait_for(&mut stream, 0x82).await, b"still");
    comm.close().await.unwrap();
    assert_eq!(wait_for(&mut stream, CLOSE).await, 1000_u16.to_be_bytes());
}

#[tokio::test]
async fn the_status_of_a_close_message_is_answered() {
    for status in [1000_u16, 1001] {
        let closed = masked(0x88, &status.to_be_bytes());
        let bytes = [message(&[HANDSHAKE]), closed].concat();
        let (mut stream, comm) = comm_with(&bytes, CommOptions::default()).await;
        let mut comm = comm.expect("a handshake");
        assert!(comm.read_message().await.unwrap().is_none());
        comm.close().await.unwrap();
        assert_eq!(wait_for(&mut stream, CLOSE).await, status.to_be_bytes());
    }
    let closed = masked(0x88, &4000_u16.to_be_bytes());
    let (error, status) = error_after(&closed, CommOptions::default()).await;
    assert!(error.is_closed(), "{error:?}");
    assert_eq!(status, 4000);
}

/// A task of tokio may do 128 operations before it has to wait for others.
#[tokio::test]
async fn many_comms_that_are_dropped_together_stay_open_for_their_peers() {
    raise_file_limit();
    let tcp = Tcp::new(with_tls());
    let transports = Transports::new().with(tcp.clone()).with(Ws::new(tcp));
    let address = "wss://127.0.0.1:0".parse().unwrap();
    let options = CommOptions::default();
    let listener = transports.bind(&address, options.clone()).await.unwrap();
    let address = listener.local_address().unwrap();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..300 {
        let accepting = async { listener.accept().await.unwrap().handshake().await };
        let (near, far) = tokio::join!(accepting, transports.connect(&address, &options));
        let (mut near, mut far) = (near.unwrap(), far.unwrap());
        // A socket that is closed with unread data is reset.
        far.write_message(&[b"unread"]).await.unwrap();
        near.write_message(&[b"last"]).await.unwrap();
        near.close().await.unwrap();
        ours.push(near);
        theirs.push(far);
    }
    tokio::task::yield_now().await;
    drop(ours);
    for comm in &mut theirs {
        let last = comm.read_message().await.unwrap().expect("a message");
        assert_eq!(&last[0][..], b"last");
        assert!(comm.read_message().await.unwrap().is_none());
        comm.write_message(&[b"not announced before"])
            .await
            .unwrap();
    }
}

/// A ping between the messages of a comm that is only read.
#[tokio::test]
async fn pings_of_an_idle_comm_are_answered() {
    let (mut stream, comm) = comm_with(&message(&[HANDSHAKE]), CommOptions::default()).await;
    let mut comm = comm.expect("a handshake");
    let reading = tokio::spawn(async move { comm.read_message().await.map(|_| ()) });
    for payload in [&b"1"[..], b"", &[5; 125]] {
        stream.write_all(&masked(0x89, payload)).await.unwrap();
        let pong = tokio::time::timeout(Duration::from_secs(10), wait_for(&mut stream, 0x8a));
        assert_eq!(pong.await.expect("an answer"), payload);
    }
    reading.abort();
}

#[tokio::test]
async fn ends_without_a_close_message_are_errors() {
    for bytes in [&b""[..], &masked(0x82, &[1, 0, 0, 0, 0, 0, 0, 0]), b"\x82"] {
        let all = [message(&[HANDSHAKE]), bytes.to_vec()].concat();
        let (stream, comm) = comm_with(&all, CommOptions::default()).await;
        drop(stream);
        let error = comm.expect("a handshake").read_message().await;
        let error = error.expect_err("no end");
        assert!(error.is_closed(), "{error:?}");
    }
    let closed = masked(0x88, b"\x03\xf1too long");
    let all = [message(&[HANDSHAKE]), closed].concat();
    let (_stream, comm) = comm_with(&all, CommOptions::default()).await;
    let error = comm.expect("a handshake").read_message().await;
    let error = error.expect_err("an error of the peer");
    assert!(error.is_closed(), "{error:?}");
    assert!(
        error.to_string().ends_with("status 1009: too long"),
        "{error}"
    );
}

#[tokio::test]
async fn requests_that_open_no_websocket_are_answered() {
    let own = format!("{REQUEST}Origin: http://here\r\n\r\n");
    let foreign = format!("{REQUEST}Origin: http://elsewhere\r\n\r\n");
    let long = format!("{REQUEST}X: {}\r\n\r\n", "x".repeat(40_000));
    for (bytes, status, expected) in [
        (
            "GET /status HTTP/1.1\r\nHost: here\r\n\r\n",
            "400 ",
            "websocket",
        ),
        (
            "POST / HTTP/1.1\r\n\r\n",
            "400 ",
            "does not speak WebSocket",
        ),
        ("\x3d\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0", "400 ", "tcp://"),
        (&foreign, "403 ", "http://elsewhere"),
        (&own, "403 ", "http://here"),
        (&long, "431 ", "32 KiB"),
    ] {
        let (listener, address) = listen(CommOptions::default()).await;
        let accepting = async { listener.accept().await.unwrap().handshake().await };
        let ((_, head), comm) = tokio::join!(request(&address, bytes), accepting);
        let error = comm.expect_err("no WebSocket").to_string();
        assert!(
            error.to_lowercase().contains(&expected.to_lowercase()),
            "{error}"
        );
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{head}");
    }
}

/// The error of a connector to a server that answers with these bytes.
async fn error_of(scheme: &str, answer: &'static [u8]) -> (CommError, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let address = format!("{scheme}://127.0.0.1:{port}").parse().unwrap();
    let options = CommOptions::default().within(Duration::from_secs(2));
    let transports = transports();
    let connecting = transports.connect(&address, &options);
    let serving = async {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let count = stream.read(&mut request).await.unwrap();
            stream.write_all(answer).await.unwrap();
            request.truncate(count);
            // The answer is read before the connection ends.
            let _ = stream.read(&mut [0]).await;
            if !answer.starts_with(b"HTTP/1.1 502") {
                core::future::pending::<()>().await;
            }
        }
    };
    tokio::select! {
        outcome = connecting => {
            let error = outcome.expect_err("no WebSocket");
            let said = error.to_string();
            (error, said)
        }
        () = serving => unreachable!(),
    }
}

#[tokio::test]
async fn servers_of_other_protocols_are_recognized() {
    for (answer, expected) in [
        (
            &b"HTTP/1.1 404 Not Found\r\n\r\n"[..],
            "no WebSocket at this path",
        ),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "such as a token"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "HTTP status 200"),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", "HTTP status 502"),
        (
            b"\x3d\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0",
            "does not speak WebSocket",
        ),
        (
            b"HTTP/1.1 101 Ok\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\
              Sec-WebSocket-Accept: bm8=\r\n\r\n",
            "another request",
        ),
        (
            b"HTTP/1.1 101 Ok\r\nUpgrade: h2c\r\n\r\n",
            "does not switch",
        ),
    ] {
        let (error, said) = error_of("ws", answer).await;
        assert!(said.contains(expected), "{said}");
        assert!(WsError::of(&error).is_some(), "{error:?}");
    }
    let (error, said) = error_of("ws", b"\x15\x03\x01\0\x02\x02\x46").await;
    assert!(matches!(error, CommError::PeerSpeaksTls), "{said}");
    assert!(said.contains("wss://"), "{said}");
}

#[tokio::test]
async fn encrypted_addresses_need_certificates() {
    let address: Address = "wss://127.0.0.1:1".parse().unwrap();
    for error in [
        transports()
            .connect(&address, &CommOptions::default())
            .await
            .map(|_| ()),
        transports()
            .bind(&address, CommOptions::default())
            .await
            .map(|_| ()),
    ] {
        let error = error.expect_err("no certificates");
        assert!(matches!(&error, CommError::NoTls { address: named } if *named == address));
    }
}

/// What a proxy sees.
#[tokio::test]
async fn requests_have_the_path_and_the_headers() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let options = WsOptions::default().with_header("Authorization", "token secret");
    let options = options.expect("a valid header");
    assert!(!format!("{options:?}").contains("secret"), "{options:?}");
    let transports = Transports::new().with(Ws::with_options(Tcp::default(), options));
    let address = format!("ws://127.0.0.1:{port}/user/me/proxy/8786?a=b")
        .parse()
        .unwrap();
    let connecting = tokio::spawn(async move {
        transports
            .connect(&address, &CommOptions::default())
            .await
            .map(|_| ())
    });
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut request = String::new();
    while !request.ends_with("\r\n\r\n") {
        request.push(stream.read_u8().await.unwrap().into());
    }
    connecting.abort();
    let mut lines = request.lines();
    assert_eq!(lines.next(), Some("GET /user/me/proxy/8786?a=b HTTP/1.1"));
    for line in [
        &format!("Host: 127.0.0.1:{port}"),
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "authorization: token secret",
    ] {
        assert!(
            request.lines().any(|found| found == line),
            "{line}: {request}"
        );
    }
    for (name, value) in [
        ("Host", "x"),
        ("sec-websocket-key", "x"),
        ("a b", "x"),
        ("a", "\n"),
    ] {
        let error = WsOptions::default().with_header(name, value);
        assert!(error.is_err(), "{name}: {value}");
    }
}
