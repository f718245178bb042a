//! Keys as texts, and back.

use daskwire_messages::Key;
use daskwire_scheduler::Scheduler;

use super::{MAX_TEXT, Viewed, cut_to};
use crate::assets::hash;

/// Number of characters that are shown of a key whose text does not tell which one it is.
const MAX_BEGINNING: usize = 200;

/// A key as a text: a string as it is, and another one as Python shows it.
pub(super) fn shown(key: &Key) -> String {
    match key.as_str() {
        Some(string) => string.to_owned(),
        None => key.to_string(),
    }
}

/// A key in lists, and in the parameters of requests: as it is [`shown`], or, if that is long or cannot be
/// read back, its beginning, the number of its task, and a hash.
pub(super) fn text(viewed: &Viewed<'_>, key: &Key) -> String {
    let shown = shown(key);
    if says_all(key, &shown) {
        return shown;
    }
    let number = viewed.inspect(|state| state.task_number(key));
    let number = number.map_or_else(String::new, |number| number.to_string());
    let beginning = cut_to(&shown, MAX_BEGINNING);
    format!("{beginning}#{number}-{:016x}", hash(key.as_msgpack()))
}

fn says_all(key: &Key, shown: &str) -> bool {
    shown.len() <= MAX_TEXT && (key.as_str().is_some() || parse(shown).contains(key))
}

/// The number and the hash in a text of [`text`].
fn number_in(text: &str) -> Option<(u32, u64)> {
    let (_, end) = text.rsplit_once('#')?;
    let (number, hash) = end.split_once('-')?;
    let hash = (hash.len() == 16).then(|| u64::from_str_radix(hash, 16).ok())?;
    Some((number.parse().ok()?, hash?))
}

/// The key of the task that lists show as a text.
pub(crate) fn find(scheduler: &Scheduler, text: &str) -> Option<Key> {
    let is_known = |key: &Key| scheduler.inspect(|state| state.status(key).is_some());
    parse(text).into_iter().find(is_known).or_else(|| {
        let (number, expected) = number_in(text)?;
        let key = scheduler.inspect(|state| state.key_of(number));
        key.filter(|key| hash(key.as_msgpack()) == expected)
    })
}

/// The keys that are shown as a text, of which at most one is likely to be known.
fn parse(text: &str) -> Vec<Key> {
    let string = Key::from(text);
    let other = Parser {
        rest: text,
        depth: 0,
    }
    .whole();
    core::iter::once(string).chain(other).collect()
}

/// A parser of what [`shown`] writes for keys that are no strings.
struct Parser<'t> {
    rest: &'t str,
    depth: usize,
}

/// Maximum nesting of lists.
const MAX_DEPTH: usize = 32;

impl Parser<'_> {
    fn whole(mut self) -> Option<Key> {
        let key = self.part()?;
        self.rest.is_empty().then_some(key)
    }

    fn take(&mut self, expected: &str) -> bool {
        match self.rest.strip_prefix(expected) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn part(&mut self) -> Option<Key> {
        if self.take("(") {
            return self.list();
        }
        if self.take("'") {
            return self.string().map(Key::from);
        }
        let end = self.rest.find([',', ')']).unwrap_or(self.rest.len());
        let (number, rest) = self.rest.split_at(end);
        self.rest = rest;
        number.parse::<i64>().ok().map(Key::from)
    }

    /// The rest of a list.
    fn list(&mut self) -> Option<Key> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let mut parts = Vec::new();
        while !self.take(")") {
            parts.push(self.part()?);
            if !self.take(", ") && !self.take(",") && !self.rest.starts_with(')') {
                return None;
            }
        }
        self.depth -= 1;
        Some(Key::list(parts))
    }

    /// The rest of a string, with the escapes of Rust.
    fn string(&mut self) -> Option<String> {
        let mut string = String::new();
        loop {
            let mut characters = self.rest.chars();
            let next = characters.next()?;
            self.rest = characters.as_str();
            string.push(match next {
                '\'' => return Some(string),
                '\\' => {
                    let escape = characters.next()?;
                    self.rest = characters.as_str();
                    match escape {
                        'n' => '\n',
                        'r' => '\r',
                        't' => '\t',
                        '0' => '\0',
                        'u' => {
                            let (code, rest) = self.rest.strip_prefix('{')?.split_once('}')?;
                            self.rest = rest;
                            char::from_u32(u32::from_str_radix(code, 16).ok()?)?
                        }
                        other => other,
                    }
                }
                other => other,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use daskwire::msgpack::Reader;

    use super::*;

    #[test]
    fn what_is_shown_is_found() {
        let list = |parts: &[Key]| Key::list(parts.iter().cloned());
        for key in [
            Key::from("inc-1"),
            Key::from("('x', 0)"),
            Key::from("<b>\n\u{1b}"),
            Key::from(-7),
            list(&[Key::from("x"), Key::from(0), Key::from(1)]),
            list(&[Key::from("it's \\ \"q\"\n\u{7f}é"), list(&[Key::from("y")])]),
            list(&[]),
        ] {
            let text = shown(&key);
            assert!(parse(&text).contains(&key), "{text}");
        }
        for text in [
            "(",
            "('x'",
            "('x',, 0)",
            "(((",
            "('\\u{zz}')",
            "(1 2)",
            "('x', 0) ",
        ] {
            assert_eq!(parse(text), [Key::from(text)], "{text}");
        }
        assert_eq!(parse(&"(".repeat(100_000)).len(), 1);
    }

    #[test]
    fn keys_that_do_not_say_all_have_a_number() {
        let read = |bytes: &[u8]| Key::read(&mut Reader::new(bytes)).expect("a key");
        let long = Key::from("x".repeat(1_000_000));
        let list = Key::list([Key::from("y"), long.clone()]);
        let float = read(&[0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0]);
        let raw = read(&[0xc4, 1, b'r']);
        assert_eq!((&*shown(&float), &*shown(&raw)), ("1.5", "b'r'"));
        for key in [long, list, float, raw] {
            assert!(!says_all(&key, &shown(&key)));
        }
        for key in [Key::from("inc-1"), Key::list([Key::from("x"), 0.into()])] {
            assert!(says_all(&key, &shown(&key)));
        }
        assert_eq!(number_in("x#7-00000000000000ff"), Some((7, 255)));
        for text in [
            "x#12",
            "x#-00000000000000ff",
            "x#1-ff",
            "x#1-00000000000000zz",
        ] {
            assert_eq!(number_in(text), None, "{text}");
        }
    }
}
