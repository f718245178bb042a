//! Keys as texts, and back.

use daskwire_messages::Key;

/// A key as a text: a string as it is, and another one as Python shows it.
pub(super) fn shown(key: &Key) -> String {
    match key.as_str() {
        Some(string) => string.to_owned(),
        None => key.to_string(),
    }
}

/// The keys that are shown as a text, of which at most one is likely to be known.
pub(crate) fn parse(text: &str) -> Vec<Key> {
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
}
