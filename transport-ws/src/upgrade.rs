//! The request and the answer that open a WebSocket on a connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use daskwire_comm::{Address, CommError, Limits, RawConnection, ReadHalf, WriteHalf};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tungstenite::handshake::client::{self, Response};
use tungstenite::handshake::derive_accept_key;
use tungstenite::handshake::machine::TryParse;
use tungstenite::handshake::server::{self, Request};
use tungstenite::http::header::{HeaderMap, HeaderName, HeaderValue};
use tungstenite::http::{self, StatusCode};

use crate::error::{WsError, upgrade};
use crate::incoming::Incoming;
use crate::outgoing::Outgoing;
use crate::parser::Side;

/// Opens a WebSocket as the client.
pub(crate) async fn connect(
    mut connection: RawConnection,
    address: Address,
    headers: HeaderMap,
    limits: Limits,
) -> Result<RawConnection, CommError> {
    let outcome = request(&mut connection, &address, headers).await;
    match outcome {
        Ok(received) => Ok(opened(connection, received, Side::Client, &limits)),
        Err(error) => Err(connection.explain(error)),
    }
}

/// Sends the request and checks the answer. Returns what was received after it.
async fn request(
    connection: &mut RawConnection,
    address: &Address,
    headers: HeaderMap,
) -> Result<Vec<u8>, CommError> {
    let key = client::generate_key();
    let request =
        build_request(address, headers, &key).map_err(|error| upgrade(error.to_string()))?;
    let (bytes, _) =
        client::generate_request(request).map_err(|error| upgrade(error.to_string()))?;
    send(&mut connection.writer, &bytes).await?;
    let (answer, received) = head::<Response>(&mut connection.reader, b"HTTP/1.").await?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        let status = answer.status().as_u16();
        return Err(WsError::Refused { status }.into());
    }
    let has = |name, value: &str| is_value(answer.headers().get(name), value);
    if !has("upgrade", "websocket") || !has("connection", "upgrade") {
        return Err(upgrade("the answer does not switch to WebSocket").into());
    }
    let accepted = answer.headers().get("sec-websocket-accept");
    if accepted.is_none_or(|accepted| *accepted != derive_accept_key(key.as_bytes())) {
        return Err(upgrade("the answer is one to another request").into());
    }
    if ["sec-websocket-extensions", "sec-websocket-protocol"]
        .iter()
        .any(|name| answer.headers().contains_key(*name))
    {
        return Err(upgrade("the server has chosen an extension that was not offered").into());
    }
    Ok(received)
}

fn build_request(
    address: &Address,
    headers: HeaderMap,
    key: &str,
) -> Result<client::Request, http::Error> {
    let path = match address.path() {
        "" => "/",
        path => path,
    };
    let mut request = http::Request::builder()
        .uri(path)
        .header("Host", host(address))
        .header("Connection", "Upgrade")
        .header("Upgrade", "websocket")
        .header("Sec-WebSocket-Version", "13")
        .header("Sec-WebSocket-Key", key)
        .body(())?;
    for (name, value) in headers {
        // A name is missing if the header has several values.
        if let Some(name) = name {
            request.headers_mut().insert(name, value);
        }
    }
    Ok(request)
}

/// The host and port of an address, without the zone of an IPv6 address, which has a meaning on
/// this host alone.
fn host(address: &Address) -> String {
    let (host, port) = address.host_and_port().unwrap_or_default();
    match host.split_once('%') {
        Some((host, _)) => format!("[{host}]:{port}"),
        None if host.contains(':') => format!("[{host}]:{port}"),
        None => format!("{host}:{port}"),
    }
}

/// Opens a WebSocket as the server.
pub(crate) async fn accept(
    mut connection: RawConnection,
    limits: Limits,
) -> Result<RawConnection, CommError> {
    match answer(&mut connection).await {
        Ok(received) => Ok(opened(connection, received, Side::Server, &limits)),
        Err(error) => {
            if let Some(error) = WsError::of(&error) {
                refuse(&mut connection, error).await;
            }
            Err(error)
        }
    }
}

/// Reads the request and answers it. Returns what was received after it.
async fn answer(connection: &mut RawConnection) -> Result<Vec<u8>, CommError> {
    let (request, received) = head::<Request>(&mut connection.reader, b"GET ").await?;
    check_origin(request.headers())?;
    let answer = server::create_response(&request).map_err(|error| upgrade(error.to_string()))?;
    let mut bytes = Vec::new();
    server::write_response(&mut bytes, &answer).map_err(|error| upgrade(error.to_string()))?;
    send(&mut connection.writer, &bytes).await?;
    Ok(received)
}

/// Refuses web pages: a browser lets each page open a WebSocket to any server that it reaches, such
/// as one on the same machine. Tornado accepts those of the host that the request names, but a page
/// chooses that name, and this listener has no pages.
fn check_origin(headers: &HeaderMap) -> Result<(), WsError> {
    let text = |name| headers.get(name).map(HeaderValue::as_bytes);
    let Some(origin) = text("origin").or(text("sec-websocket-origin")) else {
        return Ok(());
    };
    Err(WsError::Origin {
        origin: String::from_utf8_lossy(origin).into(),
    })
}

/// Answers a request that opens no WebSocket. The connection is closed after it.
async fn refuse(connection: &mut RawConnection, error: &WsError) {
    let status = match error {
        WsError::Origin { .. } => StatusCode::FORBIDDEN,
        WsError::HeadTooLong => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        _ => StatusCode::BAD_REQUEST,
    };
    let text = format!("{error}\n");
    let answer = format!(
        "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Type: text/plain; charset=utf-8\r\n\
         Content-Length: {}\r\n\r\n{text}",
        text.len()
    );
    // The peer may have gone.
    if send(&mut connection.writer, answer.as_bytes())
        .await
        .is_ok()
    {
        let _ = connection.writer.shutdown().await;
    }
}

async fn send(writer: &mut WriteHalf, bytes: &[u8]) -> Result<(), CommError> {
    let sending = async {
        writer.write_all(bytes).await?;
        writer.flush().await
    };
    sending.await.map_err(CommError::Io)
}

/// Reads the head of a request or an answer, which begins with `start`. Returns it, with the
/// bytes that were received after it.
async fn head<H: TryParse>(reader: &mut ReadHalf, start: &[u8]) -> Result<(H, Vec<u8>), CommError> {
    let mut bytes = Vec::new();
    let mut searched = 0_usize;
    loop {
        let before = bytes.len();
        let count = reader.read_buf(&mut bytes).await.map_err(CommError::Io)?;
        let common = start.len().min(bytes.len());
        if bytes[..common] != start[..common] {
            return Err(match bytes.as_slice() {
                [0x15 | 0x16, 3, 1..=4, ..] => CommError::PeerSpeaksTls,
                _ => WsError::NotHttp.into(),
            });
        }
        if count == 0 {
            return Err(daskwire_comm::Closed::BeforeHandshake.into());
        }
        // Parsed once, so that a head that arrives byte by byte costs no more.
        let len = head_len(&bytes, &mut searched);
        if len.unwrap_or(before) > MAX_HEAD_LEN {
            return Err(WsError::HeadTooLong.into());
        }
        if len.is_some() {
            let parsed = H::try_parse(&bytes).map_err(|error| upgrade(error.to_string()))?;
            let (len, head) = parsed.ok_or_else(|| upgrade("its HTTP headers have no end"))?;
            return Ok((head, bytes.split_off(len)));
        }
    }
}

/// The length of a head, up to the empty line at its end. `searched` is where to begin.
fn head_len(bytes: &[u8], searched: &mut usize) -> Option<usize> {
    while let Some(line) = bytes[*searched..].iter().position(|byte| *byte == b'\n') {
        let end = *searched + line + 1;
        match &bytes[end..] {
            [b'\n', ..] => return Some(end + 1),
            [b'\r', b'\n', ..] => return Some(end + 2),
            // What follows the line end has not arrived.
            [] | [b'\r'] => return None,
            _ => *searched = end,
        }
    }
    None
}

/// Whether a header has this value, among others.
fn is_value(header: Option<&HeaderValue>, value: &str) -> bool {
    let text = header.and_then(|header| header.to_str().ok());
    text.is_some_and(|text| {
        text.split(',')
            .any(|item| item.trim().eq_ignore_ascii_case(value))
    })
}

/// The connection with the messages of the WebSocket.
fn opened(
    mut connection: RawConnection,
    received: Vec<u8>,
    side: Side,
    limits: &Limits,
) -> RawConnection {
    let stored = Arc::new([limits.message_len, limits.frame_len].map(AtomicU64::new));
    let (outgoing, shared) = Outgoing::new(connection.writer, side);
    let ours = Arc::clone(&stored);
    connection.writer = Box::new(outgoing);
    connection.reader = Box::new(Incoming::new(
        connection.reader,
        received,
        side,
        stored,
        shared,
    ));
    connection.with_limits(move |limits| {
        let [message, frame] = &*ours;
        message.store(limits.message_len, Ordering::Relaxed);
        frame.store(limits.frame_len, Ordering::Relaxed);
    })
}

/// Whether a header can be set by a program: the others belong to the request itself.
pub(crate) fn is_settable(name: &HeaderName) -> bool {
    !["host", "connection", "upgrade"].contains(&name.as_str())
        && !name.as_str().starts_with("sec-websocket-")
}

/// The maximum length of a head: proxies add headers, and tokens take some KiB.
const MAX_HEAD_LEN: usize = 32 << 10;
