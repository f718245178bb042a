//! The documents of `daskwire inspect` and `daskwire encode`.

use daskwire::frame::Prefix;
use daskwire::message::Layout;
use daskwire_cli::encode::{self, EncodeError, Target};
use daskwire_cli::inspect::{Inspector, Options};

use crate::input::{Choices, repeated};
use daskwire_fuzz::budget::{Budget, Linear};

/// The budget for JSON and for readable text.
const BUDGET: Budget = Budget {
    memory_len: Linear {
        base: 4 << 20,
        per_byte: 1 << 10,
    },
    allocated_len: Linear {
        base: 16 << 20,
        per_byte: 8 << 10,
    },
    steps: Linear {
        base: 1 << 20,
        per_byte: 1 << 14,
    },
};

/// Checks that inspected messages can be encoded again with the same result,
/// and that any document is encoded or refused.
///
/// The input: its kind and options, then a stream, the frames of a message, or
/// JSON.
pub(crate) fn documents(input: &[u8]) {
    let mut choices = Choices(input);
    let (kind, flags) = (choices.byte(), choices.byte());
    match kind % 5 {
        0 => stream(choices.0, flags),
        1 => stream(&repeated(choices.0), flags),
        2 => {
            let frames = choices.frames();
            let mut bytes = Vec::new();
            let total =
                8 * (1 + frames.len()) + frames.iter().map(|frame| frame.len()).sum::<usize>();
            bytes.extend_from_slice(&(total as u64).to_le_bytes());
            bytes.extend_from_slice(&(frames.len() as u64).to_le_bytes());
            for frame in &frames {
                bytes.extend_from_slice(&(frame.len() as u64).to_le_bytes());
            }
            for frame in &frames {
                bytes.extend_from_slice(frame);
            }
            stream(&bytes, flags);
        }
        3 => json(choices.0, flags),
        _ => json(&repeated(choices.0), flags),
    }
}

fn stream(bytes: &[u8], flags: u8) {
    let bit = |bit: u8| flags >> bit & 1 == 1;
    let options = Options::default()
        .with_prefix(match flags & 3 {
            0 => Some(Prefix::U64),
            1 => Some(Prefix::None),
            _ => None,
        })
        .with_layout(match flags >> 2 & 3 {
            0 => Some(Layout::Modern),
            1 => Some(Layout::Classic),
            _ => None,
        })
        .with_payloads(bit(4))
        .with_data(bit(5));
    BUDGET.check(bytes.len(), || {
        let mut inspector = Inspector::new(bytes, options.clone());
        while let Ok(Some(recorded)) = inspector.next_message() {
            let text = inspector.text(&recorded);
            let Ok(document) = inspector.json(&recorded) else {
                continue;
            };
            // The text describes payloads, so a damaged header is an error
            // there.
            assert!(text.is_err() || text.is_ok_and(|text| text.ends_with('\n')));
            // In the classic layout, unknown keys of the message's own headers
            // are not in the document.
            if !options.data || options.payloads || recorded.layout == Layout::Classic {
                continue;
            }
            let encoded = encode::encode(&document.to_string(), Target::default());
            let encoded = encoded.expect("what was inspected can be encoded");
            let again = options.clone().with_prefix(inspector.prefix());
            let again = again.with_layout(recorded.layout);
            let mut inspector = Inspector::new(&encoded, again);
            let recorded = inspector.next_message().expect("our own message");
            let again = inspector.json(&recorded.expect("a message"));
            let again = again.expect("our own message");
            // Of duplicate keys the last is used, and the payloads of the
            // others are not encoded.
            let [before, after] =
                [&document, &again].map(|document| document["payloads"].as_array().map(Vec::len));
            if after < before {
                continue;
            }
            for part in ["message", "payloads"] {
                assert_eq!(again.get(part), document.get(part));
            }
        }
    });
}

fn json(json: &[u8], flags: u8) {
    let json = String::from_utf8_lossy(json);
    let target = Target::default().with_layout(match flags & 3 {
        0 => Some(Layout::Modern),
        1 => Some(Layout::Classic),
        _ => None,
    });
    BUDGET.check(json.len(), || {
        for (_, document) in encode::documents(&json) {
            match encode::encode(document, target) {
                Ok(_) => {}
                Err(error @ EncodeError::Json(_)) => assert!(error.line() >= 1),
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use daskwire_fuzz::meter;

    /// A message of the modern layout with a body nested this deep.
    fn nested(opening: &[u8], depth: usize) -> Vec<u8> {
        let body = [&opening.repeat(depth), &b"\xc0"[..]].concat();
        let mut stream = (body.len() as u64 + 16).to_le_bytes().to_vec();
        stream.extend_from_slice(&1_u64.to_le_bytes());
        stream.extend_from_slice(&(body.len() as u64).to_le_bytes());
        stream.extend_from_slice(&body);
        stream
    }

    /// A message with `count` payloads in a list at this depth, each with as many empty frames
    /// of different codecs.
    fn payloads(count: u32, depth: usize, codecs: u32) -> Vec<u8> {
        let mut body = b"\x91".repeat(depth);
        body.push(0xdd);
        body.extend_from_slice(&count.to_be_bytes());
        let mut header = b"\x82\xaenum-sub-frames\xce".to_vec();
        header.extend_from_slice(&codecs.to_be_bytes());
        header.extend_from_slice(b"\xabcompression\xdd");
        header.extend_from_slice(&codecs.to_be_bytes());
        for codec in 0..codecs {
            // A string of five bytes
            header.push(0xa5);
            header.extend_from_slice(format!("{codec:05}").as_bytes());
        }
        let mut frames = vec![Vec::new()];
        for _ in 0..count {
            body.extend_from_slice(b"\x81\xae__Serialized__\xce");
            body.extend_from_slice(&(frames.len() as u32).to_be_bytes());
            frames.push(header.clone());
            frames.resize(frames.len() + codecs as usize, Vec::new());
        }
        frames[0] = body;
        let total: usize = frames.iter().map(|frame| frame.len() + 8).sum();
        let mut stream = (total as u64 + 8).to_le_bytes().to_vec();
        stream.extend_from_slice(&(frames.len() as u64).to_le_bytes());
        for frame in &frames {
            stream.extend_from_slice(&(frame.len() as u64).to_le_bytes());
        }
        stream.extend(frames.into_iter().flatten());
        stream
    }

    #[test]
    fn codecs_of_a_payload_are_listed_up_to_a_number() {
        let stream = payloads(1, 1, 2000);
        let mut inspector = Inspector::new(&stream, Options::default());
        let recorded = inspector.next_message().expect("a stream");
        let text = inspector.text(&recorded.expect("a message"));
        let text = text.expect("a message");
        let line = text.lines().find(|line| line.contains("compressed by"));
        let names = line.expect("a payload").split(" and ").count();
        assert_eq!(names, 9, "{text}");
        assert!(
            line.is_some_and(|line| line.ends_with("00007 and others")),
            "{text}"
        );
    }

    #[test]
    fn inspecting_payloads_far_down_takes_memory_in_proportion_to_the_message() {
        let used = |count: u32, depth: usize| {
            let stream = payloads(count, depth, 0);
            let before = meter::usage().allocated_len;
            let mut inspector = Inspector::new(&stream, Options::default());
            let recorded = inspector.next_message().expect("a stream");
            let recorded = recorded.expect("a message");
            inspector.text(&recorded).expect("a message");
            let document = inspector.json(&recorded).expect("a message");
            let allocated = meter::usage().allocated_len - before;
            let paths = document["payloads"].as_array().expect("a list").iter();
            let found = paths.filter(|payload| payload["path"].is_array()).count();
            assert!(found > 0, "{document}");
            allocated / stream.len() as u64
        };
        let (once, twice) = (used(1000, 250), used(2000, 500));
        assert!(
            twice <= once + once / 4,
            "{once} bytes per byte, then {twice}"
        );
    }

    #[test]
    fn inspecting_takes_memory_in_proportion_to_the_depth() {
        let set = &b"\x82\xa7__Set__\xc3\xa7as-list\x91"[..];
        for opening in [set, b"\x91", b"\x81\xa1k", b"\x81\x01"] {
            let [once, twice] = [200, 400].map(|depth| {
                let stream = nested(opening, depth);
                let options = Options::default().with_data(true);
                let before = meter::usage().allocated_len;
                let mut inspector = Inspector::new(&stream, options);
                let recorded = inspector.next_message().expect("a stream");
                let recorded = recorded.expect("a message");
                inspector.text(&recorded).expect("a message");
                inspector.json(&recorded).expect("a message");
                meter::usage().allocated_len - before
            });
            assert!(twice < 3 * once, "{opening:x?}: {once}, then {twice}");
        }
    }
}
