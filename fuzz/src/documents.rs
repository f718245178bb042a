//! MessagePack documents.

use daskwire::display::Document;
use daskwire::msgpack::{Reader, Token, Writer};

use super::LIMITS;

/// Checks that tokens, skipping and writing agree for every document.
pub(crate) fn msgpack(input: &[u8]) {
    let mut reader = Reader::with_limits(input, &LIMITS);
    let skipped = reader.skip();
    let mut tokens = Reader::with_limits(input, &LIMITS);
    // Large enough for any document of this length in its shortest form.
    let mut buffer = vec![0xa5; input.len() + 16];
    let mut writer = Writer::new(&mut buffer);
    let walked = loop {
        let before = tokens;
        match tokens.token() {
            Ok(token) => {
                writer.token(token);
                let peeked = before.peek();
                if matches!(token, Token::F32(_) | Token::F64(_)) {
                    // As strings, since a NaN is not equal to itself.
                    assert_eq!(format!("{peeked:?}"), format!("Ok({token:?})"));
                } else {
                    assert_eq!(peeked, Ok(token));
                }
            }
            Err(error) => {
                assert_eq!(before.position(), tokens.position(), "moved on failure");
                break Err(error);
            }
        }
        if writer.owed() == 0 {
            break Ok(());
        }
    };
    match (skipped, walked) {
        (Ok(bytes), Ok(())) => {
            assert_eq!(bytes.len(), tokens.position());
            let len = writer.len();
            assert!(len <= bytes.len(), "the shortest form is longer");
            let written = writer.finish().expect("complete, and it fits").to_vec();
            assert_eq!(written.len(), len);
            // Writing it again changes nothing.
            let mut reader = Reader::with_limits(&written, &LIMITS);
            let mut again = vec![0x5a; written.len()];
            let mut writer = Writer::new(&mut again);
            while writer.owed() != 0 {
                writer.token(reader.token().expect("our own document"));
            }
            assert_eq!(writer.finish().expect("it fits"), written);
        }
        // Only skipping checks the depth.
        (Err(error), Ok(())) => {
            assert!(matches!(
                error.kind,
                daskwire::msgpack::MalformedKind::TooDeep { .. }
            ));
        }
        (Ok(_), Err(error)) => panic!("skipped, but {error}"),
        (Err(_), Err(_)) => assert_eq!(reader.position(), 0, "moved on failure"),
    }
    let mut find = Reader::with_limits(input, &LIMITS);
    if let Ok(true) = find.find("op") {
        assert!(find.position() > 3 && find.position() <= input.len());
    }
    let _ = Document::new(input).to_string();
}

/// Checks that rmpv reads the same values from the same bytes.
pub(crate) fn rmp(input: &[u8]) {
    // rmpv reserves memory for declared counts, so implausible counts are not
    // passed to it.
    let mut reader = Reader::with_limits(input, &LIMITS);
    let Ok(document) = reader.skip() else {
        return;
    };
    let mut rest = document;
    let theirs = match rmpv::decode::read_value_ref_with_max_depth(&mut rest, 1024) {
        Ok(value) => value,
        Err(error) => panic!("rmpv refuses what we read: {error}"),
    };
    assert!(rest.is_empty(), "rmpv read less");
    let mut ours = Reader::with_limits(document, &LIMITS);
    compare(&mut ours, &theirs);
    assert!(ours.is_empty());
    // Both write the same shortest form.
    let mut buffer = vec![0; document.len() + 16];
    let mut writer = Writer::new(&mut buffer);
    let mut ours = Reader::with_limits(document, &LIMITS);
    let mut is_utf8 = true;
    while writer.owed() != 0 {
        let token = ours.token().expect("read before");
        if let Token::Str(string) = token {
            is_utf8 &= string.check().is_ok();
        }
        writer.token(token);
    }
    if !is_utf8 {
        // rmpv writes strings that are not UTF-8 as byte strings.
        return;
    }
    let mut written = Vec::new();
    rmpv::encode::write_value_ref(&mut written, &theirs).expect("writing to memory");
    assert_eq!(writer.finish().expect("it fits"), written);
}

/// Compares a value with the next of `ours`. Recursive, within the depth limit
/// that both have passed.
fn compare(ours: &mut Reader<'_>, theirs: &rmpv::ValueRef<'_>) {
    use rmpv::ValueRef;
    let token = ours.token().expect("rmpv has a value here");
    match (token, theirs) {
        (Token::Nil, ValueRef::Nil) => {}
        (Token::Bool(a), ValueRef::Boolean(b)) => assert_eq!(a, *b),
        (Token::UInt(a), ValueRef::Integer(b)) => assert_eq!(Some(a), b.as_u64()),
        (Token::Int(a), ValueRef::Integer(b)) => assert_eq!(Some(a), b.as_i64()),
        (Token::F32(a), ValueRef::F32(b)) => assert_eq!(a.to_bits(), b.to_bits()),
        (Token::F64(a), ValueRef::F64(b)) => assert_eq!(a.to_bits(), b.to_bits()),
        (Token::Str(a), ValueRef::String(b)) => {
            assert_eq!(a.as_bytes(), b.as_bytes());
            assert_eq!(a.check().is_ok(), b.as_str().is_some());
        }
        (Token::Bin(a), ValueRef::Binary(b)) => assert_eq!(a, *b),
        (Token::Ext(a, x), ValueRef::Ext(b, y)) => assert_eq!((a, x), (*b, *y)),
        (Token::Array(count), ValueRef::Array(items)) => {
            assert_eq!(count as usize, items.len());
            for item in items {
                compare(ours, item);
            }
        }
        (Token::Map(count), ValueRef::Map(pairs)) => {
            assert_eq!(count as usize, pairs.len());
            for (key, value) in pairs {
                compare(ours, key);
                compare(ours, value);
            }
        }
        (ours, theirs) => panic!("{ours:?} is {theirs:?} for rmpv"),
    }
}
