//! Requests to the HTTP server of a worker or scheduler.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

/// Requests a path over HTTP, and returns the head and body of the response.
pub(crate) fn get(port: &str, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("UTF-8");
    let (head, body) = response.split_once("\r\n\r\n").expect("a head");
    let status = head.lines().next().expect("a line").to_owned();
    (status, body.to_owned())
}
