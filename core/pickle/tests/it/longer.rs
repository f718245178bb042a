//! Comparison of trees with the plain reader, and with trees of the same pickle
//! in other opcodes, which have separate code.

use std::collections::BTreeSet;
use std::mem::discriminant;

use daskwire_pickle::tree::Tree;
use daskwire_pickle::{Argument, Limits, Opcode, PickleError, PickleErrorKind, Reader, Token};

/// Asserts that building a tree of these bytes has the expected result.
#[allow(unreachable_pub, reason = "a module of several tests")]
pub fn check(pickle: &[u8], text_opcodes: bool, buffers: &[impl AsRef<[u8]>], limits: &Limits) {
    let reader = |pickle| Reader::with_limits(pickle, limits).text_opcodes(text_opcodes);
    let (tokens, error) = read(reader(pickle));
    let tree = Tree::build(reader(pickle), buffers, limits);
    match &tree {
        Ok(tree) => {
            assert_eq!(error, None);
            let len: usize = tokens.iter().map(|token| token.len).sum();
            assert_eq!(tree.pickle_len(), len);
        }
        Err(found) if is_of_reader(found) && Some(*found) == error => {}
        Err(found) => {
            let place = tokens.binary_search_by_key(&found.offset, |token| token.offset);
            let token = tokens[place.expect("the reader has nothing against it")];
            assert!(
                !is_of_reader(found) || matches!(found.kind, PickleErrorKind::NotQuoted),
                "{found} at {token:?}"
            );
        }
    }

    let (longer, places) = longer(pickle, &tokens, text_opcodes);
    match (&tree, &Tree::build(reader(&longer), buffers, limits)) {
        (Ok(tree), Ok(longer)) => {
            assert_eq!(tree.value_count(), longer.value_count());
            assert_eq!(tree, longer);
        }
        (Err(error), Err(longer)) => {
            assert_eq!(discriminant(&error.kind), discriminant(&longer.kind));
            let is_same = places.contains(&(error.offset, longer.offset));
            assert!(is_same, "{error}, in longer opcodes {longer}");
        }
        (tree, longer) => panic!("{tree:?}, in longer opcodes {longer:?}"),
    }
}

/// All opcodes that can be read, and the error of the next one.
fn read(mut reader: Reader<'_>) -> (Vec<Token<'_>>, Option<PickleError>) {
    let mut tokens = Vec::new();
    loop {
        match reader.next_token() {
            Ok(Some(token)) => tokens.push(token),
            Ok(None) => return (tokens, None),
            Err(error) => return (tokens, Some(error)),
        }
    }
}

/// Whether this error is from the reader. For a single quote, a tree returns
/// the error that the reader returns for other strings.
const fn is_of_reader(error: &PickleError) -> bool {
    matches!(
        error.kind,
        PickleErrorKind::MissingStop
            | PickleErrorKind::Truncated { .. }
            | PickleErrorKind::MissingLineFeed { .. }
            | PickleErrorKind::UnknownOpcode { .. }
            | PickleErrorKind::UnknownProtocol { .. }
            | PickleErrorKind::TextOpcode { .. }
            | PickleErrorKind::NegativeCount { .. }
            | PickleErrorKind::FrameTooLong { .. }
            | PickleErrorKind::NotUtf8 { .. }
            | PickleErrorKind::NotAscii { .. }
            | PickleErrorKind::NotQuoted
            | PickleErrorKind::BadEscape { .. }
            | PickleErrorKind::NotAnInteger { .. }
            | PickleErrorKind::NotAFloat
            | PickleErrorKind::MemoIndex { .. }
            | PickleErrorKind::TooManyOpcodes { .. }
    )
}

/// The same opcodes in their long forms, then the rest, with the old and new
/// offset of each.
fn longer(
    pickle: &[u8],
    tokens: &[Token<'_>],
    text_opcodes: bool,
) -> (Vec<u8>, Vec<(usize, usize)>) {
    let mut longer = Vec::new();
    let mut places = Vec::new();
    let mut memo = BTreeSet::new();
    let mut end = 0;
    for token in tokens {
        places.push((token.offset, longer.len()));
        end = token.offset + token.len;
        let raw = &pickle[token.offset..end];
        let put = |longer: &mut Vec<u8>, opcode: Opcode, argument: &[&[u8]]| {
            longer.push(opcode.byte());
            longer.extend(argument.concat());
        };
        let long = |bytes: &[u8]| (bytes.len() as u64).to_le_bytes();
        match (token.opcode, token.argument) {
            (Opcode::BinInt | Opcode::BinInt1 | Opcode::BinInt2, Argument::Int(value)) => {
                let argument: [&[u8]; 2] = [&8_u32.to_le_bytes(), &value.to_le_bytes()];
                put(&mut longer, Opcode::Long4, &argument);
            }
            (_, Argument::Float(value)) if text_opcodes && value.is_finite() => {
                let line = format!("{value:?}\n");
                put(&mut longer, Opcode::Float, &[line.as_bytes()]);
            }
            (_, Argument::Str(text)) => {
                let argument = [&long(text.as_bytes()), text.as_bytes()];
                put(&mut longer, Opcode::BinUnicode8, &argument);
            }
            (_, Argument::Bytes(bytes)) => {
                put(&mut longer, Opcode::BinBytes8, &[&long(bytes), bytes]);
            }
            (Opcode::BinGet, Argument::Index(index)) => {
                let index = u32::try_from(index).expect("one byte");
                put(&mut longer, Opcode::LongBinGet, &[&index.to_le_bytes()]);
            }
            (Opcode::BinPut, Argument::Index(index)) => {
                memo.insert(index);
                let index = u32::try_from(index).expect("one byte");
                put(&mut longer, Opcode::LongBinPut, &[&index.to_le_bytes()]);
            }
            (Opcode::LongBinPut | Opcode::Put, Argument::Index(index)) => {
                memo.insert(index);
                longer.extend(raw);
            }
            (Opcode::Memoize, _) => {
                let index = u32::try_from(memo.len()).expect("one for each byte");
                memo.insert(index.into());
                put(&mut longer, Opcode::LongBinPut, &[&index.to_le_bytes()]);
            }
            // The length of the frame has changed.
            (Opcode::Frame, _) => put(&mut longer, Opcode::Frame, &[&[0; 8]]),
            _ => longer.extend(raw),
        }
    }
    places.push((end, longer.len()));
    longer.extend(&pickle[end..]);
    (longer, places)
}
