//! Captures of traffic that `daskwire inspect` reads.

use daskwire_cli::inspect::capture::{Capture, Time};

use crate::input::Choices;

/// Checks that any file is read within bounds, and that the segments of a stream, in any
/// order and repeated in any way, give the stream up to the first byte that is missing.
///
/// The input: its kind, then a file, or pairs of the offset and the length of a segment.
pub(crate) fn capture(input: &[u8]) {
    let mut choices = Choices(input);
    match choices.byte() % 2 {
        0 => file(choices.0),
        _ => segments(choices.0),
    }
}

fn file(file: &[u8]) {
    let capture = Capture::parse(file);
    let mut total = 0;
    for conversation in &capture.conversations {
        for direction in [&conversation.sent, &conversation.received] {
            let bytes = direction.bytes();
            total += bytes.len();
            assert!(direction.starts().all(|start| start < bytes.len()));
            let mut clock = direction.clock();
            let times = [0, bytes.len() / 2, bytes.len()].map(|end| clock.arrival(end as u64));
            assert!(times.is_sorted());
            if let Some((missing, after)) = direction.gap() {
                assert!(missing > 0 && after > 0);
                total += 1;
            }
        }
        let _ = (
            conversation.start.to_string(),
            conversation.start.since(Time(0)),
        );
    }
    assert!(total <= file.len());
    if let Some(error) = capture.error {
        assert!(error.offset <= file.len(), "{error}");
    }
}

/// The length of the stream, a little more than the largest offset in two bytes.
const LEN: usize = 600;

fn segments(pairs: &[u8]) {
    let stream: Vec<u8> = (0..LEN).map(|at| ((at * at) >> 3) as u8).collect();
    // The numbers wrap around within the stream.
    let first = u32::MAX - 300;
    let mut file = [
        &0xa1b2_c3d4_u32.to_le_bytes()[..],
        &[2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0],
        // Raw packets of IP.
        &101_u32.to_le_bytes(),
    ]
    .concat();
    packet(&mut file, first.wrapping_sub(1), true, &[]);
    let mut is_there = [false; LEN];
    for pair in pairs.chunks_exact(2) {
        let start = 2 * usize::from(pair[0]);
        let end = (start + usize::from(pair[1])).min(LEN);
        is_there[start..end].fill(true);
        let sequence = first.wrapping_add(start as u32);
        packet(&mut file, sequence, false, &stream[start..end]);
    }
    let len = is_there.iter().position(|is| !is).unwrap_or(LEN);
    let capture = Capture::parse(&file);
    assert_eq!(capture.error, None);
    let [conversation] = &capture.conversations[..] else {
        panic!("{} conversations", capture.conversations.len());
    };
    assert!(conversation.sent.is_whole);
    assert!(conversation.sent.bytes() == stream[..len]);
    let is_more = is_there[len..].contains(&true);
    assert_eq!(conversation.sent.gap().is_some(), is_more);
}

/// Adds a packet of a conversation to a file.
fn packet(file: &mut Vec<u8>, sequence: u32, is_syn: bool, data: &[u8]) {
    let len = 40 + data.len();
    for number in [1, 0, len as u32, len as u32] {
        file.extend_from_slice(&number.to_le_bytes());
    }
    let mut header = [0; 40];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    (header[8], header[9]) = (64, 6);
    header[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    header[20..24].copy_from_slice(&[0x90, 0, 0x22, 0x52]);
    header[24..28].copy_from_slice(&sequence.to_be_bytes());
    header[32] = 5 << 4;
    header[33] = if is_syn { 2 } else { 16 };
    file.extend_from_slice(&header);
    file.extend_from_slice(data);
}
