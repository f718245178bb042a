//! The code that has submitted tasks, for people who look at them.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Arc;

use daskwire_messages::Value;
use daskwire_messages::protocol::Field as _;

use super::key_groups::cut;

/// Maximum number of changes of the code that are remembered.
const MAX_CHANGES: usize = 1 << 10;

/// Maximum length of the code of a submission in bytes.
const MAX_LEN: usize = 16 << 10;

/// Maximum size in bytes of what a client sends as code. More is not read.
const MAX_SENT_LEN: usize = 256 << 10;

/// Maximum number of frames of a stack.
const MAX_FRAMES: usize = 32;

/// The code of the last submissions.
#[derive(Debug, Default)]
pub(super) struct Codes {
    /// The code of submissions from one with a number on, oldest first. Submissions with the same code
    /// share it.
    changes: VecDeque<(u64, Option<Arc<str>>)>,
}

impl Codes {
    /// Adds the code of a submission, which has a higher number than those before.
    pub(super) fn add(&mut self, submission: u64, code: Option<Arc<str>>) {
        let last = self.changes.back().and_then(|(_, code)| code.as_ref());
        if last == code.as_ref() {
            return;
        }
        let code = code.map(|code| {
            let mut known = self.changes.iter().filter_map(|(_, code)| code.as_ref());
            known.find(|known| **known == code).cloned().unwrap_or(code)
        });
        if self.changes.len() >= MAX_CHANGES {
            self.changes.pop_front();
        }
        self.changes.push_back((submission, code));
    }

    /// The code of a submission, if the client has sent it and it is remembered.
    pub(super) fn of(&self, submission: u64) -> Option<&Arc<str>> {
        let end = self
            .changes
            .partition_point(|(first, _)| *first <= submission);
        self.changes.get(end.checked_sub(1)?)?.1.as_ref()
    }
}

/// Reads the code that Dask's clients send with a graph if they are configured to: that of the functions
/// which have submitted it, innermost last, each with its place.
pub(super) fn read(code: &Value) -> Option<Arc<str>> {
    if code.heap_len() > MAX_SENT_LEN {
        return None;
    }
    // A compressed pickle could be of any length.
    let Value::Serialized(code) = code else {
        return None;
    };
    code.plain_pickle()?;
    let (Value::Tuple(frames) | Value::List(frames)) = code.open().ok()? else {
        return None;
    };
    let mut text = String::new();
    for frame in frames.iter().take(MAX_FRAMES) {
        // A `SourceCode`.
        let Value::Object(frame) = frame else {
            continue;
        };
        let [Value::Str(code), Value::Int(line), _, Value::Str(file)] = frame.arguments() else {
            continue;
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# {file}, line {line}\n{}\n", code.trim_end());
    }
    let text = cut(text.trim_end(), MAX_LEN);
    (!text.is_empty()).then(|| text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_shared_and_bounded() {
        let mut codes = Codes::default();
        let code = |number: u64| Some(Arc::from(format!("f({number})")));
        codes.add(1, None);
        assert!(codes.changes.is_empty());
        // Two clients take turns.
        for number in 2..100 {
            codes.add(number, code(number % 2));
        }
        let shared = |number| codes.of(number).map(|code| (Arc::as_ptr(code), &**code));
        assert_eq!((shared(0), shared(1)), (None, None));
        assert_eq!(shared(2).map(|(_, code)| code), Some("f(0)"));
        assert_eq!(shared(2), shared(4));
        assert_eq!(shared(99), shared(1_000_000));
        codes.add(100, None);
        codes.add(101, None);
        assert_eq!((codes.of(100), codes.of(101)), (None, None));
        for number in 102..10_000 {
            codes.add(number, code(number));
        }
        assert_eq!(codes.changes.len(), MAX_CHANGES);
        assert_eq!(codes.of(2), None);
        assert_eq!(codes.of(9_999).map(|code| &**code), Some("f(9999)"));
    }

    #[test]
    fn what_is_no_code_is_left_out() {
        for other in [
            Value::None,
            Value::from("x"),
            Value::list(["x"]),
            Value::Tuple([].into()),
        ] {
            assert_eq!(read(&other), None, "{other:?}");
        }
    }
}
