//! Tests of exceptions as strings.
#![allow(clippy::unwrap_used)]

use daskwire_pickle::{Writer, WriterLevel};

use super::describe;
use crate::fixed_string::FixedString;
use crate::pickle_tree::Tree;

/// The description in at most 40 bytes of the exception that `write` pickles.
fn described(write: impl Fn(&mut Writer<'_, '_>)) -> Option<FixedString<40>> {
    let (mut out, mut levels) = ([0; 256], [WriterLevel::EMPTY; 6]);
    let mut writer = Writer::new(&mut out, &mut levels);
    write(&mut writer);
    let mut tree = Tree::new();
    tree.read(writer.finish().unwrap(), &[]).unwrap();
    let mut message = FixedString::new();
    describe(&tree, &mut message).map(|()| message)
}

#[test]
fn both_forms_of_tblib_are_read() {
    // tblib 3.2, for a class without `__reduce__`
    let with_attributes = described(|writer| {
        writer.reduce();
        writer.global("tblib.pickling_support", "unpickle_exception_with_attrs");
        writer.tuple(2).global("builtins", "ValueError");
        writer.dict(1).str("args").tuple(1).str("no number");
    });
    assert_eq!(with_attributes.unwrap().as_str(), "ValueError: no number");
    // tblib 3.2 for a class with `__reduce__`, older ones always
    let with_arguments = described(|writer| {
        writer.reduce();
        writer.global("tblib.pickling_support", "unpickle_exception");
        writer.tuple(4).global("builtins", "ImportError");
        writer.tuple(1).str("no module").none().none();
    });
    assert_eq!(with_arguments.unwrap().as_str(), "ImportError: no module");
}

#[test]
fn a_message_that_is_too_long_is_left_out() {
    let with = |message: &str| {
        described(|writer| {
            writer.reduce().global("builtins", "ValueError");
            writer.tuple(1).str(message);
        })
    };
    let fits = "a message that fills it: 28B";
    assert_eq!(
        with(fits).unwrap().as_str(),
        ["ValueError: ", fits].concat()
    );
    let long = "a message that is too long: +";
    assert_eq!(with(long).unwrap().as_str(), "ValueError");
}
