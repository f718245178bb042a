//! CPython, asked: our reader sees in a pickle what `pickletools` sees, and
//! refuses what it refuses.

mod support;

#[path = "../../core/tests/support/pickle_tokens.rs"]
mod pickle_tokens;

use daskwire::pickle::Reader;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use support::{Environment, Peer};

/// Reads so many random pickles of a kind, in batches, and returns how many of
/// them were read to the end.
fn agree(kind: &str, pickle_count: usize) -> usize {
    const BATCH: usize = 2_000;
    let mut peer = Peer::spawn(Environment::Current, "pickle_read_peer.py", &[]);
    let mut whole_count = 0;
    for seed in 0..pickle_count / BATCH {
        let question =
            format!(r#"{{"op": "random", "seed": {seed}, "count": {BATCH}, "kind": "{kind}"}}"#);
        let (answer, data) = peer.ask(&question, &[]);
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        let pickles = answer["pickles"].as_array().expect("a list");
        assert_eq!(pickles.len(), BATCH, "{answer}");
        let mut rest = data.as_slice();
        for expected in pickles {
            let len = expected["len"].as_u64().expect("a length");
            let (pickle, behind) = rest.split_at(usize::try_from(len).expect("it fits"));
            rest = behind;

            let mut reader = Reader::new(pickle).text_opcodes(true);
            let mut lines = Vec::new();
            let error = loop {
                match reader.next_token() {
                    Ok(Some(token)) => lines.push(pickle_tokens::line(&token)),
                    Ok(None) => break None,
                    Err(error) => break Some(error),
                }
            };
            let sum = Sha256::digest(lines.join("\n"));
            let sum: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
            let agrees = expected["whole"] == error.is_none()
                && expected["count"] == lines.len()
                && expected["sha256"] == sum.as_str();
            assert!(
                agrees,
                "{kind}, seed {seed}: {}\nread as {lines:#?}\n{error:?}\nexpected {expected}",
                pickle.escape_ascii()
            );
            whole_count += usize::from(error.is_none());
        }
        assert!(rest.is_empty());
    }
    whole_count
}

#[test]
fn opcodes_of_100_000_random_pickles_are_those_of_pickletools() {
    assert_eq!(agree("written", 100_000), 100_000);
}

#[test]
fn damaged_pickles_are_read_and_refused_as_pickletools_does() {
    let whole_count = agree("damaged", 50_000);
    assert!((5_000..45_000).contains(&whole_count), "{whole_count}");
}

#[test]
fn text_opcodes_are_read_and_refused_as_pickletools_does() {
    let whole_count = agree("text", 50_000);
    assert!((1_000..45_000).contains(&whole_count), "{whole_count}");
}
