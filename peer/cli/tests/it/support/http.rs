//! Requests to the HTTP server of a worker or scheduler.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

/// Requests a path over HTTP, and returns the head and body of the response.
pub(crate) fn get(port: &str, path: &str) -> (String, String) {
    request(port, "GET", path, "", "")
}

/// Sends a request with headers, each with its line end, and a body. Returns the head and body of the
/// response.
pub(crate) fn request(
    port: &str,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> (String, String) {
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).expect("it listens");
    let len = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len}\r\n{headers}\r\n{body}"
    );
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("UTF-8");
    let (head, body) = response.split_once("\r\n\r\n").expect("a head");
    let status = head.lines().next().expect("a line").to_owned();
    (status, body.to_owned())
}

/// Sends the head of a POST, its body of zeros once the response has arrived, and returns the first
/// line of the response.
pub(crate) fn post_late(port: &str, body_len: usize) -> String {
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).expect("it listens");
    let head =
        format!("POST /health HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {body_len}\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("it reads");
    stream.peek(&mut [0]).expect("a response");
    for part in vec![0; body_len].chunks(64 << 10) {
        // A server that has closed its end answers the first part with a reset.
        thread::sleep(Duration::from_millis(50));
        stream.write_all(part).expect("it still reads");
    }
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("no reset");
    response.lines().next().expect("a line").to_owned()
}
