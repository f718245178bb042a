//! Keys as texts, and back.

use std::collections::HashSet;

use daskwire_messages::Key;
use daskwire_scheduler::Scheduler;
use daskwire_scheduler::state::State;

use super::{MAX_TEXT, cut_to};
use crate::assets::hash;

/// Number of characters that are shown of a key whose text does not tell which one it is.
const MAX_BEGINNING: usize = 200;

/// Number of parts of tasks that are looked through at once for a number, which takes about as long as
/// other views look at a part.
const PARTS: usize = 8;

/// A key as a text: a string as it is, and another one as Python shows it.
pub(super) fn shown(key: &Key) -> String {
    match key.as_str() {
        Some(string) => string.to_owned(),
        None => key.to_string(),
    }
}

/// A key in lists, and in the parameters of requests: as it is [`shown`], or, if that is long or cannot be
/// read back, its beginning and its number.
pub(super) fn text(key: &Key) -> String {
    let shown = shown(key);
    let is_read_back = key.as_str().is_some() || parse(&shown).contains(key);
    match is_read_back && shown.len() <= MAX_TEXT {
        true => shown,
        false => format!("{}#{:016x}", cut_to(&shown, MAX_BEGINNING), number(key)),
    }
}

fn number(key: &Key) -> u64 {
    hash(key.as_msgpack())
}

/// The number in a text of [`text`].
fn number_in(text: &str) -> Option<u64> {
    let (_, number) = text.rsplit_once('#')?;
    let is_whole = number.len() == 16;
    is_whole
        .then(|| u64::from_str_radix(number, 16).ok())
        .flatten()
}

/// The keys of tasks that lists show as these texts. Looks through all tasks, in parts, if one has a
/// number.
pub(crate) fn find(scheduler: &Scheduler, texts: &[String]) -> Vec<Key> {
    let is_known = |key: &Key| scheduler.inspect(|state| state.status(key).is_some());
    let mut found = Vec::new();
    let mut numbers = HashSet::new();
    for text in texts {
        match parse(text).into_iter().find(is_known) {
            Some(key) => found.push(key),
            None => numbers.extend(number_in(text)),
        }
    }
    let mut place = Some(0);
    while let Some(from) = place.filter(|_| !numbers.is_empty()) {
        let is_wanted = |key: &Key, _| {
            // Most keys have no number.
            let is_text = key.as_msgpack().len() <= MAX_TEXT && key.as_str().is_some();
            !is_text && numbers.contains(&number(key))
        };
        let find = |state: &State| {
            let (mut found, mut next) = (Vec::new(), Some(from));
            for _ in 0..PARTS {
                let Some(from) = next else {
                    break;
                };
                let (tasks, after) = state.find_tasks(from, numbers.len(), is_wanted);
                found.extend(tasks);
                next = after;
            }
            (found, next)
        };
        let (tasks, next) = scheduler.inspect(find);
        for task in tasks {
            numbers.remove(&number(&task.key));
            found.push(task.key);
        }
        place = next;
        scheduler.give_way();
    }
    found
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
    fn keys_that_cannot_be_read_back_have_a_number() {
        let long = Key::from("x".repeat(1_000_000));
        let list = Key::list([Key::from("y"), long.clone()]);
        for key in [long, list] {
            let text = text(&key);
            assert!(text.len() < 2 * MAX_BEGINNING, "{text}");
            assert_eq!(number_in(&text), Some(number(&key)), "{text}");
        }
        for key in ["x#12", "inc-1", "x#00000000000000zz"] {
            assert_eq!(text(&Key::from(key)), key);
            assert_eq!(number_in(key), None);
        }
    }
}
