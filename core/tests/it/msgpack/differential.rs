//! Properties for any bytes: our reader agrees with rmpv, with itself and with
//! our writer. A plain function, so that a fuzz target can call it.

use daskwire::msgpack::{Malformed, MalformedKind, Reader, Token, Writer};
use rmpv::ValueRef;

/// Deeper than anything that fits in the documents used here.
const RMPV_DEPTH: usize = 20_000;

/// Panics if any bytes are read differently.
///
/// Intended differences: rmpv reads the byte 0xc1 as nil and counts depth by
/// calls. Like `Reader::token` it accepts invalid UTF-8 and trailing bytes.
pub(crate) fn check(bytes: &[u8]) {
    let mut reader = Reader::new(bytes);
    let walked = walk(&mut reader, |_| {});

    // PROTOCOL MSGPACK-10
    if let Err(Malformed {
        at,
        kind: MalformedKind::Reserved,
    }) = walked
    {
        assert_eq!(bytes[at], 0xc1);
    } else {
        let mut rest = bytes;
        let theirs = rmpv::decode::read_value_ref_with_max_depth(&mut rest, RMPV_DEPTH);
        match (&walked, &theirs) {
            (Ok(_), Ok(value)) => {
                assert_eq!(reader.remaining(), rest, "of {bytes:02x?}");
                assert_same(&mut Reader::new(bytes), value);
            }
            (Err(_), Err(_)) => {}
            _ => panic!("we: {walked:?}, rmpv: {theirs:?}, of {bytes:02x?}"),
        }
    }

    check_skip(bytes, walked);
    check_moves(bytes);
    if walked.is_ok() {
        check_rewritten(&bytes[..reader.position()]);
    }
}

/// Reads one value token by token and returns its depth of nesting.
pub(crate) fn walk<'a>(
    reader: &mut Reader<'a>,
    mut each: impl FnMut(Token<'a>),
) -> Result<usize, Malformed> {
    let mut owed = vec![1_u64];
    let mut deepest = 0;
    while let Some(last) = owed.last_mut() {
        if *last == 0 {
            owed.pop();
            continue;
        }
        let token = reader.token()?;
        *last -= 1;
        if token.child_count() != 0 {
            owed.push(token.child_count());
            deepest = deepest.max(owed.len() - 1);
        }
        each(token);
    }
    Ok(deepest)
}

/// Checks that `skip` agrees with a walk up to the depth limit.
fn check_skip(bytes: &[u8], walked: Result<usize, Malformed>) {
    let mut reader = Reader::new(bytes);
    match (reader.skip(), walked) {
        (Ok(value), Ok(_)) => {
            assert_eq!(value, &bytes[..reader.position()]);
            let mut walker = Reader::new(bytes);
            walk(&mut walker, |_| {}).expect("walked before");
            assert_eq!(reader.position(), walker.position());
        }
        (Err(error), Err(walked)) if error == walked => assert_eq!(reader.position(), 0),
        (Err(error), walked) => {
            assert_eq!(error.kind, MalformedKind::TooDeep { limit: 1024 });
            assert_eq!(reader.position(), 0);
            if let Ok(deepest) = walked {
                assert!(deepest > 1024);
            }
        }
        (Ok(_), Err(error)) => panic!("skipped what is malformed: {error}, {bytes:02x?}"),
    }
}

/// Checks that a method that fails does not move the reader.
fn check_moves(bytes: &[u8]) {
    fn fails<'a, T>(bytes: &'a [u8], read: impl Fn(&mut Reader<'a>) -> Result<T, Malformed>) {
        let mut reader = Reader::new(bytes);
        if read(&mut reader).is_err() {
            assert_eq!(reader.position(), 0);
            assert_eq!(reader.remaining(), bytes);
        } else {
            assert_ne!(reader.position(), 0);
        }
    }
    fails(bytes, Reader::token);
    fails(bytes, Reader::nil);
    fails(bytes, Reader::bool);
    fails(bytes, Reader::u64);
    fails(bytes, Reader::i64);
    fails(bytes, Reader::f64);
    fails(bytes, Reader::str);
    fails(bytes, Reader::raw_str);
    fails(bytes, Reader::bin);
    fails(bytes, Reader::array);
    fails(bytes, Reader::map);
    fails(bytes, Reader::extension);
    fails(bytes, Reader::skip);
    fails(bytes, |reader| reader.find("op"));
    fails(bytes, |reader| reader.fields().map(|_| ()));
    let reader = Reader::new(bytes);
    assert_eq!(reader.peek().is_ok(), Reader::new(bytes).token().is_ok());
}

/// Checks that a rewritten document is not longer and has the same meaning.
fn check_rewritten(document: &[u8]) {
    let write = |writer: &mut Writer<'_>| {
        walk(&mut Reader::new(document), |token| {
            writer.token(token);
        })
        .expect("walked before");
    };
    let mut measure = Writer::new(&mut []);
    write(&mut measure);
    assert!(measure.len() <= document.len());

    let mut out = vec![0xa5; measure.len()];
    let mut writer = Writer::new(&mut out);
    write(&mut writer);
    let again = writer.finish().expect("measured");
    let tokens = |document| {
        let mut tokens = Vec::new();
        walk(&mut Reader::new(document), |token| {
            tokens.push(Exact::from(token));
        })
        .expect("walked before");
        tokens
    };
    assert_eq!(tokens(document), tokens(again));
}

/// A token that compares NaNs by their bits.
#[derive(Debug, PartialEq)]
pub(crate) enum Exact<'a> {
    F32(u32),
    F64(u64),
    Other(Token<'a>),
}

impl<'a> From<Token<'a>> for Exact<'a> {
    fn from(token: Token<'a>) -> Self {
        match token {
            Token::F32(value) => Self::F32(value.to_bits()),
            Token::F64(value) => Self::F64(value.to_bits()),
            other => Self::Other(other),
        }
    }
}

/// Compares what `reader` has next with `value`.
fn assert_same<'a>(reader: &mut Reader<'a>, value: &ValueRef<'a>) {
    let token = reader.token().expect("walked before");
    match (token, value) {
        (Token::Nil, ValueRef::Nil) => {}
        (Token::Bool(ours), ValueRef::Boolean(theirs)) => assert_eq!(ours, *theirs),
        (Token::UInt(ours), ValueRef::Integer(theirs)) => assert_eq!(Some(ours), theirs.as_u64()),
        (Token::Int(ours), ValueRef::Integer(theirs)) => {
            assert!(ours < 0);
            assert_eq!(Some(ours), theirs.as_i64());
        }
        (Token::F32(ours), ValueRef::F32(theirs)) => assert_eq!(ours.to_bits(), theirs.to_bits()),
        (Token::F64(ours), ValueRef::F64(theirs)) => assert_eq!(ours.to_bits(), theirs.to_bits()),
        (Token::Str(ours), ValueRef::String(theirs)) => {
            assert_eq!(ours.as_bytes(), theirs.as_bytes());
            assert_eq!(ours.to_str().is_ok(), theirs.is_str());
            assert_eq!(ours.check().is_ok(), theirs.is_str());
        }
        (Token::Bin(ours), ValueRef::Binary(theirs)) => assert_eq!(ours, *theirs),
        (Token::Ext(code, ours), ValueRef::Ext(their_code, theirs)) => {
            assert_eq!((code, ours), (*their_code, *theirs));
        }
        (Token::Array(count), ValueRef::Array(values)) => {
            assert_eq!(count as usize, values.len());
            for value in values {
                assert_same(reader, value);
            }
        }
        (Token::Map(count), ValueRef::Map(pairs)) => {
            assert_eq!(count as usize, pairs.len());
            for (key, value) in pairs {
                assert_same(reader, key);
                assert_same(reader, value);
            }
        }
        (token, value) => panic!("we: {token:?}, rmpv: {value:?}"),
    }
}
