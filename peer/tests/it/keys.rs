//! Compares prefixes of keys with Dask's.

use daskwire_peer::Key;
use daskwire_testing::{Environment, Peer, Random};

/// A generator of random keys.
struct Keys(Random);

impl Keys {
    fn hex(&mut self, len: usize) -> String {
        (0..len)
            .map(|_| self.0.one_of(b"0123456789abcdef") as char)
            .collect()
    }

    fn uuid(&mut self) -> String {
        let parts = [8, 4, 4, 4, 12].map(|len| self.hex(len));
        parts.join("-")
    }

    /// Returns a part of a key: a word, a hash, a number, or the repr of an object.
    fn part(&mut self) -> String {
        const WORDS: [&str; 24] = [
            "inc",
            "add",
            "x",
            "Sum",
            "read_parquet",
            "hello-world",
            "getitem",
            "lambda",
            "<lambda>",
            "function",
            "zigzagged",
            "abcdefab",
            "ABCDEFAB",
            "straße",
            "变量",
            "हिन्दी",
            "Ⅷ",
            "Ⓐ",
            "_private",
            "'quoted'",
            "\"double\"",
            "a,b",
            "a.b",
            "",
        ];
        const OBJECTS: [&str; 6] = [
            "<module.submodule.myclass object at 0xdaf372",
            "<a.b.C object at 0x7f00>",
            "<>",
            "<\x1c.x>",
            "b'hello-world-1'",
            "functools.partial(<function f at 0x1>, 1)",
        ];
        match self.0.below(10) {
            0..4 => self.0.one_of(&WORDS).to_owned(),
            4 => self.hex(32),
            5 => self.uuid(),
            6 => {
                let len = self.0.one_of(&[1, 7, 8, 9, 31, 33]);
                self.hex(len)
            }
            7 => {
                // Only letters, all of which may be hexadecimal digits.
                let len = self.0.one_of(&[7, 8, 9]);
                (0..len)
                    .map(|_| self.0.one_of(b"abcdefgz") as char)
                    .collect()
            }
            8 => self.0.one_of(&OBJECTS).to_owned(),
            _ => {
                let len = self.0.below(6);
                let letters: Vec<char> = "ab-_'(),\"<> .0é\u{301}中\u{2160}😀\u{a0}\u{1f}"
                    .chars()
                    .collect();
                (0..len).map(|_| self.0.one_of(&letters)).collect()
            }
        }
    }

    fn string(&mut self) -> String {
        let count = self.0.below(5);
        let parts: Vec<String> = (0..count).map(|_| self.part()).collect();
        let string = parts.join(self.0.one_of(&["-", "-", "-", "", "_", " "]));
        match self.0.below(8) {
            0 => format!("('{string}', {})", self.0.below(100)),
            1 => format!("(\"{string}\", 0, 1)"),
            _ => string,
        }
    }

    fn key(&mut self) -> Key {
        match self.0.below(10) {
            0..6 => Key::from(self.string()),
            6 => Key::from(self.string().as_bytes()),
            7 => Key::list([
                Key::list([Key::from(self.string()), Key::from(1)]),
                Key::from(2),
            ]),
            8 => Key::list([Key::from(self.string()), Key::from(0), Key::from(7)]),
            _ => self
                .0
                .one_of(&[Key::from(7), Key::from(0.5), Key::list([Key::from(3)])].each_ref())
                .clone(),
        }
    }
}

#[test]
fn prefixes_match_dask() {
    let mut random = Keys(Random(0x2545_f491_4f6c_dd1d));
    let mut keys: Vec<Key> = (0..20_000).map(|_| random.key()).collect();
    // Each letter alone: at the start of a word, where Dask does not strip it, and after
    // a dash.
    let letters = (0..=u32::from(char::MAX))
        .step_by(7)
        .filter_map(char::from_u32);
    keys.extend(letters.map(|letter| Key::from(format!("{letter},a-{letter}-b"))));
    let packed: Vec<u8> = keys
        .iter()
        .flat_map(|key| key.as_msgpack().to_vec())
        .collect();
    let mut python = Peer::spawn(Environment::Current, "functions_peer.py", &[]);
    let (answer, _) = python.ask(r#"{"op": "prefixes"}"#, &packed);
    let answer: serde_json::Value = serde_json::from_str(&answer).expect("a document");
    let wanted = answer["prefixes"]
        .as_array()
        .unwrap_or_else(|| panic!("{answer}"));
    assert_eq!(wanted.len(), keys.len());
    let unknown_count = wanted.iter().filter(|wanted| wanted.is_null()).count();
    // Most code points are unassigned.
    assert!(
        keys.len() - unknown_count > 40_000,
        "{unknown_count} are not known"
    );
    let wrong: Vec<String> = keys
        .iter()
        .zip(wanted)
        .filter(|(key, wanted)| !wanted.is_null() && wanted.as_str() != Some(&key.prefix()))
        .map(|(key, wanted)| format!("{key:?}: {wanted}, not {:?}", key.prefix()))
        .collect();
    assert!(
        wrong.is_empty(),
        "{} of {} are wrong:\n{}",
        wrong.len(),
        keys.len(),
        wrong[..wrong.len().min(50)].join("\n")
    );
}
