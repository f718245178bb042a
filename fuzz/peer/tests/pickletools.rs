//! The pickles of the corpora, read as `pickletools` of CPython reads them.

#[path = "../../../core/pickle/tests/it/tokens.rs"]
mod pickle_tokens;

use daskwire_fuzz::corpus;
use daskwire_pickle::Reader;
use daskwire_testing::{Peer, interpreters};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// Reads a pickle: returns the hash and the number of its opcodes, and whether
/// they end with STOP.
fn read(pickle: &[u8]) -> (String, usize, bool) {
    let mut reader = Reader::new(pickle).text_opcodes(true);
    let mut lines = Vec::new();
    let is_whole = loop {
        match reader.next_token() {
            Ok(Some(token)) => lines.push(pickle_tokens::line(&token)),
            Ok(None) => break true,
            Err(_) => break false,
        }
    };
    let sum = Sha256::digest(lines.join("\n"));
    let sum = sum.iter().map(|byte| format!("{byte:02x}")).collect();
    (sum, lines.len(), is_whole)
}

#[test]
fn opcodes_of_the_fuzz_corpora_match_pickletools() {
    // An option precedes each pickle.
    let inputs: Vec<(String, Vec<u8>)> = ["pickle", "pickle_tree", "graph", "pickled"]
        .iter()
        .flat_map(|target| corpus::inputs(target))
        .map(|(path, input)| (path, input.get(1..).unwrap_or_default().to_vec()))
        .collect();
    let lengths: Vec<usize> = inputs.iter().map(|(_, pickle)| pickle.len()).collect();
    let pickles: Vec<u8> = inputs
        .iter()
        .flat_map(|(_, pickle)| pickle.iter().copied())
        .collect();
    let question = format!(r#"{{"op": "judge", "pickles": {lengths:?}}}"#);
    for interpreter in interpreters() {
        let mut peer = Peer::spawn_in(&interpreter, "pickle_read_peer.py");
        let version = peer.address().to_owned();
        let (answer, _) = peer.ask(&question, &pickles);
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        let expected = answer["pickles"].as_array().expect("a list");
        assert_eq!(expected.len(), inputs.len());
        let mut whole_count = 0;
        for ((path, pickle), expected) in inputs.iter().zip(expected) {
            let (sum, count, is_whole) = read(pickle);
            assert!(
                expected["sha256"] == sum.as_str()
                    && expected["count"] == count
                    && expected["whole"] == is_whole,
                "Python {version}, {path}: {}\nread as {count} opcodes, whole: {is_whole}\n\
                 expected {expected}",
                pickle.escape_ascii()
            );
            whole_count += usize::from(is_whole);
        }
        println!(
            "Python {version}: {whole_count} of {} are whole",
            inputs.len()
        );
        assert!(whole_count > 10, "{whole_count}");
    }
}
