//! The opcodes of pickles and their out-of-band buffers.

use daskwire_pickle::{
    Argument, ArgumentForm, Opcode, OutOfBandReader, PickleError, PickleErrorKind,
    Reader as PickleReader, Token as PickleToken, Unescaped,
};

use super::PICKLE_LIMITS;

/// Checks that the opcodes of a pickle are contiguous, with the lengths of the
/// opcode table; that arguments are parts of the input; that the result is the
/// same with and without text opcodes, whole and truncated; and that buffers
/// are borrowed in order.
///
/// The first byte of the input is the number of buffers.
pub(crate) fn pickle(input: &[u8]) {
    let Some((&buffer_count, input)) = input.split_first() else {
        return;
    };
    let reader = PickleReader::with_limits(input, &PICKLE_LIMITS);
    let (tokens, error) = pickle_tokens(reader.text_opcodes(true));
    let mut end = 0;
    for token in &tokens {
        assert_eq!(token.offset, end);
        let rest = &input[end..];
        assert_eq!(Opcode::from_byte(rest[0]), Some(token.opcode));
        assert_eq!(token.len, pickle_len(token.opcode, &rest[1..]));
        if let Argument::Bytes(bytes)
        | Argument::ByteString(bytes)
        | Argument::ByteArray(bytes)
        | Argument::Line(bytes) = token.argument
        {
            let start = bytes.as_ptr().addr() - input.as_ptr().addr();
            assert!(end < start && start + bytes.len() <= end + token.len);
        }
        match (token.opcode, token.argument) {
            (Opcode::String, Argument::Line(line)) => {
                let bytes: Vec<u8> = Unescaped::string(line).collect();
                assert!(bytes.is_ascii() && bytes.len() <= line.len());
            }
            (Opcode::Unicode, Argument::Line(line)) => {
                let max_len = Unescaped::unicode(line).size_hint().1;
                let mut string: Vec<u8> = Unescaped::unicode(line).collect();
                assert!(max_len >= Some(string.len()));
                // Without the surrogates it is UTF-8.
                while let Err(error) = str::from_utf8(&string) {
                    let half: Vec<u8> = string.drain(error.valid_up_to()..).collect();
                    assert!(half[0] == 0xed && half[1] >= 0xa0, "{half:x?}");
                    string.extend(&half[3..]);
                }
            }
            _ => {}
        }
        end += token.len;
    }
    match error {
        None => assert_eq!(tokens.last().map(|token| token.opcode), Some(Opcode::Stop)),
        Some(error) => {
            assert_eq!(error.offset, end);
            assert!(error.to_string().starts_with("at byte "));
        }
    }
    assert!(
        tokens
            .iter()
            .rev()
            .skip(1)
            .all(|token| token.opcode != Opcode::Stop)
    );

    // A truncated pickle has the same opcodes up to the end.
    let cut = end.saturating_sub(1 + usize::from(buffer_count));
    let (fewer, cut_error) =
        pickle_tokens(PickleReader::with_limits(&input[..cut], &PICKLE_LIMITS).text_opcodes(true));
    assert!(cut_error.is_some());
    assert!(fewer.len() <= tokens.len() && same(&fewer, &tokens[..fewer.len()]));

    // Without text opcodes, up to the first of them.
    let (binary, binary_error) = pickle_tokens(reader);
    assert!(same(&binary, &tokens[..binary.len()]));
    assert!(binary.iter().all(|token| !token.opcode.is_text()));
    if let Some(token) = tokens.get(binary.len()) {
        let kind = PickleErrorKind::TextOpcode {
            opcode: token.opcode,
        };
        assert_eq!(binary_error.map(|error| error.kind), Some(kind));
    }

    let frames: Vec<[u8; 1]> = (0..buffer_count).map(|index| [index]).collect();
    let mut items = OutOfBandReader::new(reader.text_opcodes(true), &frames);
    let mut count = 0;
    let mut taken = 0;
    let matched = loop {
        match items.next_item() {
            Ok(Some(item)) => {
                assert!(same(&[item.token], &tokens[count..=count]));
                if let Some(index) = item.data.and_then(|data| data.buffer) {
                    assert_eq!(index, taken);
                    let data = item.data.expect("it has an index");
                    assert!(std::ptr::eq(data.bytes, frames[index].as_slice()));
                    taken += 1;
                }
                count += 1;
            }
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    assert_eq!(items.used_count(), taken);
    match matched {
        None => assert!(error.is_none() && taken == frames.len()),
        Some(matched) => match matched.kind {
            PickleErrorKind::TooFewBuffers { .. } => assert_eq!(taken, frames.len()),
            PickleErrorKind::TooManyBuffers { used_count, .. } => {
                assert!(taken < frames.len() && used_count == taken);
            }
            PickleErrorKind::NoBuffer => {
                assert_eq!(tokens[count].opcode, Opcode::ReadOnlyBuffer);
            }
            _ => assert_eq!(Some(matched), error),
        },
    }
}

/// All opcodes of a pickle, and the error if there was one.
fn pickle_tokens(mut reader: PickleReader<'_>) -> (Vec<PickleToken<'_>>, Option<PickleError>) {
    let mut tokens = Vec::new();
    loop {
        let before = reader.position();
        match reader.next_token() {
            Ok(Some(token)) => tokens.push(token),
            Ok(None) => return (tokens, None),
            Err(error) => {
                assert_eq!(before, reader.position(), "moved on failure");
                return (tokens, Some(error));
            }
        }
    }
}

/// Whether two tokens are equal, including NaNs.
fn same(one: &[PickleToken<'_>], other: &[PickleToken<'_>]) -> bool {
    let is_nan = |token: &PickleToken<'_>| matches!(token.argument, Argument::Float(value) if value.is_nan());
    one.len() == other.len()
        && one.iter().zip(other).all(|(one, other)| {
            let place = |token: &PickleToken<'_>| (token.offset, token.len, token.opcode);
            place(one) == place(other)
                && (one.argument == other.argument || is_nan(one) && is_nan(other))
        })
}

/// The length of an opcode according to its form, in bytes.
fn pickle_len(opcode: Opcode, rest: &[u8]) -> usize {
    let line = |rest: &[u8]| 1 + rest.iter().position(|&byte| byte == b'\n').expect("a line");
    1 + match opcode.argument_form() {
        ArgumentForm::None => 0,
        ArgumentForm::Bytes(len) => usize::from(len),
        ArgumentForm::Counted(len) => {
            let count = rest[..usize::from(len)].iter().rev();
            usize::from(len) + count.fold(0, |count, &byte| count << 8 | usize::from(byte))
        }
        ArgumentForm::Line => line(rest),
        ArgumentForm::TwoLines => line(rest) + line(&rest[line(rest)..]),
        form => panic!("a form that is not known here: {form:?}"),
    }
}
