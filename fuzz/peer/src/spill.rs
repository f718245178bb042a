//! Damaged spill files.

use bytes::Bytes;
use daskwire_messages::{Serialized, Value};
use daskwire_store::fuzzing::{self, Spilled};

use crate::input::Choices;
use crate::{opened, scratch};

/// Checks that a changed file is detected or has the same contents, and that
/// any file is read or refused.
///
/// The input: a byte, then a file without its checksum, or choices for a value
/// and the damage to its file.
pub(crate) fn spill_file(input: &[u8]) {
    let mut choices = Choices(input);
    match choices.byte() % 4 {
        0 => read(choices.0),
        1 => {
            let mut file = choices.0.to_vec();
            file.extend_from_slice(&fuzzing::checksum(choices.0).to_le_bytes());
            read(&file);
        }
        kind => {
            let mut count = 0;
            let value = match kind {
                2 => {
                    let len = choices.u16() & 0xfff;
                    let data = choices.bytes(len.into());
                    Value::Bytes(Bytes::copy_from_slice(data))
                }
                _ => opened::value(&mut choices, 6, &mut count),
            };
            damage(value, choices);
        }
    }
}

fn read(file: &[u8]) {
    opened::BUDGET.check(file.len(), || {
        let Some(payload) = fuzzing::read_spill_file(&scratch::directory().join("file"), file)
        else {
            return;
        };
        let _ = payload.to_string();
        if let Ok(value) = payload.open() {
            opened::hold(&value);
        }
    });
}

fn damage(value: Value, mut choices: Choices<'_>) {
    let Ok(whole) = Serialized::of(&value) else {
        return;
    };
    let Some(spilled) = Spilled::new(scratch::directory(), value) else {
        return;
    };
    let mut file = std::fs::read(spilled.file()).expect("the file is there");
    let was = file.clone();
    while !choices.is_empty() {
        let place = usize::from(choices.u16()) % file.len().max(1);
        match choices.byte() {
            byte @ 0..=199 => {
                if let Some(at) = file.get_mut(place) {
                    *at ^= byte;
                }
            }
            200..=219 => file.truncate(place),
            220..=239 => file.extend_from_slice(&was[..place.min(was.len())]),
            _ => file.clear(),
        }
    }
    std::fs::write(spilled.file(), &file).expect("the file is writable");
    let (sent, opened) = match file.len() % 2 {
        0 => (spilled.serialize(), spilled.open()),
        _ => {
            let opened = spilled.open();
            (spilled.serialize(), opened)
        }
    };
    if file == was {
        assert!(sent.is_some(), "a file as it was written is refused");
    } else {
        assert!(opened.is_none(), "a damaged file is used");
    }
    if let Some(sent) = sent {
        assert_eq!(sent, whole);
    }
}
