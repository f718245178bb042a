//! The received part of a WebSocket for fuzz targets.

use daskwire_comm::Limits;
use tokio::io::ReadBuf;

use crate::WsError;
use crate::parser::{Event, Parser, Side};

/// What a server or a client receives, without I/O.
#[derive(Debug)]
pub struct Received(Parser);

impl Received {
    /// Creates the end of a server or of a client, after the request and the answer of HTTP.
    pub const fn new(is_server: bool) -> Self {
        let side = if is_server {
            Side::Server
        } else {
            Side::Client
        };
        Self(Parser::new(side, &Limits::HOST))
    }

    /// Receives bytes, and appends to `stream` what can be passed on. Returns whether the peer
    /// has closed the WebSocket. Bytes that are only a part of the header of a frame stay in
    /// `bytes`.
    ///
    /// # Errors
    ///
    /// The fault of the peer.
    pub fn receive(&mut self, bytes: &mut &[u8], stream: &mut Vec<u8>) -> Result<bool, WsError> {
        loop {
            let before = bytes.len();
            let outcome = self.0.push(bytes);
            let count = self.pass_on(stream);
            match outcome? {
                Some(Event::Close(_)) => return Ok(true),
                None if before == bytes.len() && count == 0 => return Ok(false),
                _ => {}
            }
        }
    }

    fn pass_on(&mut self, stream: &mut Vec<u8>) -> usize {
        let before = stream.len();
        let mut buffer = [0xa5; 512];
        loop {
            let mut space = ReadBuf::new(&mut buffer);
            self.0.pass_on(&mut space);
            if space.filled().is_empty() {
                return stream.len() - before;
            }
            stream.extend_from_slice(space.filled());
        }
    }

    /// The memory that is in use, in bytes.
    pub fn allocated(&self) -> usize {
        self.0.allocated()
    }
}
