//! What the peer of a WebSocket sends.

use daskwire_ws::WsError;
use daskwire_ws::fuzzing::Received;

/// Checks that pieces of any size give the same stream and the same end as the whole, in memory
/// that grows with what has arrived.
///
/// The input: a byte for the side and the size of pieces, then what arrives.
pub(crate) fn websocket(input: &[u8]) {
    let Some((choice, bytes)) = input.split_first() else {
        return;
    };
    let is_server = choice % 2 == 1;
    let whole = receive(is_server, bytes, bytes.len().max(1));
    let pieces = receive(is_server, bytes, usize::from(choice / 2) % 32 + 1);
    assert_eq!(whole, pieces);
}

/// The stream that arrives in pieces of this length, and its end: whether the peer has closed
/// it, or its fault.
fn receive(is_server: bool, bytes: &[u8], len: usize) -> (Vec<u8>, Result<bool, WsError>) {
    let (mut received, mut stream) = (Received::new(is_server), Vec::new());
    let (mut kept, mut arrived) = (Vec::new(), 0);
    for piece in bytes.chunks(len) {
        kept.extend_from_slice(piece);
        arrived += piece.len();
        let mut rest = &kept[..];
        let outcome = received.receive(&mut rest, &mut stream);
        assert!(received.allocated() <= 16 * arrived + (8 << 10));
        if outcome != Ok(false) {
            return (stream, outcome);
        }
        // The header of a frame has 14 bytes at most.
        let left = rest.len();
        assert!(left < 14, "{left} bytes are left");
        kept.drain(..kept.len() - left);
    }
    (stream, Ok(false))
}
