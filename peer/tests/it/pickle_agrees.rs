//! Differential tests with each supported version of CPython: our reader must return the
//! same opcodes as `pickletools`, and reject the same pickles.

#[path = "../../../core/pickle/tests/it/tokens.rs"]
mod pickle_tokens;

use daskwire_pickle::Reader;
use daskwire_testing::{Interpreter, Peer, interpreters};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

const SCRIPT: &str = "pickle_read_peer.py";

/// Reads a pickle, and compares it with the description `expected`. Returns whether it
/// was read to the end.
fn read(what: &str, pickle: &[u8], expected: &Value) -> bool {
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
        "{what}: {}\nread as {lines:#?}\n{error:?}\nexpected {expected}",
        pickle.escape_ascii()
    );
    error.is_none()
}

/// Sends a request, and calls `each` with every description in the reply and its bytes.
fn ask(peer: &mut Peer, question: &str, mut each: impl FnMut(&Value, &[u8])) -> usize {
    let (answer, data) = peer.ask(question, &[]);
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    let pickles = answer["pickles"]
        .as_array()
        .unwrap_or_else(|| panic!("{answer}"));
    let len = |value: &Value| {
        let len = value.as_u64().expect("a length");
        usize::try_from(len).expect("fits")
    };
    let mut rest = data.as_slice();
    for expected in pickles {
        let (pickle, after) = rest.split_at(len(&expected["len"]));
        // Other tests cover out-of-band buffers.
        let buffers = expected["buffers"].as_array().into_iter().flatten();
        rest = &after[buffers.map(len).sum()..];
        each(expected, pickle);
    }
    assert!(rest.is_empty());
    pickles.len()
}

/// Reads random pickles of a kind, in batches, from each Python. The number of pickles
/// read to the end must be within `whole_counts`.
fn agree(kind: &str, pickle_count: usize, whole_counts: core::ops::RangeInclusive<usize>) {
    const BATCH: usize = 2_000;
    for interpreter in interpreters() {
        let mut peer = Peer::spawn_in(&interpreter, SCRIPT);
        let version = peer.address().to_owned();
        let mut whole_count = 0;
        for seed in 0..pickle_count / BATCH {
            let question = format!(
                r#"{{"op": "random", "seed": {seed}, "count": {BATCH}, "kind": "{kind}"}}"#
            );
            let what = format!("Python {version}, {kind}, seed {seed}");
            let count = ask(&mut peer, &question, |expected, pickle| {
                whole_count += usize::from(read(&what, pickle, expected));
            });
            assert_eq!(count, BATCH);
        }
        println!("Python {version}, {kind}: {whole_count} of {pickle_count} read to the end");
        assert!(whole_counts.contains(&whole_count), "{whole_count}");
    }
}

#[test]
fn opcodes_of_the_corpus_match_pickletools() {
    for interpreter in interpreters() {
        let mut peer = Peer::spawn_in(&interpreter, SCRIPT);
        let version = peer.address().to_owned();
        let Interpreter { has_dask, .. } = interpreter;
        let question = format!(r#"{{"op": "corpus", "dask": {has_dask}}}"#);
        let count = ask(&mut peer, &question, |expected, pickle| {
            let what = format!("Python {version}, {}", expected["name"]);
            assert!(read(&what, pickle, expected), "{what}");
        });
        println!("Python {version}: {count} pickles of the corpus");
        assert!(count > 300, "{count}");
    }
}

#[test]
fn opcodes_of_random_pickles_match_pickletools() {
    agree("written", 30_000, 30_000..=30_000);
}

#[test]
fn damaged_pickles_are_read_and_refused_as_pickletools_does() {
    agree("damaged", 20_000, 2_000..=18_000);
}

#[test]
fn text_opcodes_are_read_and_refused_as_pickletools_does() {
    agree("text", 20_000, 400..=18_000);
}
