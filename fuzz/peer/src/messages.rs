//! Typed messages.

use crate::message::Message;
use bytes::Bytes;
use daskwire_messages::protocol::{
    DataReply, FromClient, FromWorker, HeartbeatReply, RegisterWorkerReply, Request, Status,
    ToClient, ToWorker, UpdateDataReply,
};
use daskwire_messages::{Key, Value};

use crate::input::{Choices, wire_len};
use daskwire_fuzz::budget::{Budget, Linear};

/// The budget for reading a message, writing it and reading it again.
pub(crate) const BUDGET: Budget = Budget {
    memory_len: Linear {
        base: 1 << 20,
        per_byte: 2 << 10,
    },
    allocated_len: Linear {
        base: 2 << 20,
        per_byte: 8 << 10,
    },
    steps: Linear {
        base: 1 << 18,
        per_byte: 1 << 11,
    },
};

/// Checks that a message round-trips.
///
/// The input: the kind of message, then its frames.
pub(crate) fn messages(input: &[u8]) {
    let mut choices = Choices(input);
    let kind = choices.byte();
    let frames = choices.frames();
    BUDGET.check(wire_len(&frames), || match kind % 12 {
        0 => batch::<FromClient>(&frames),
        1 => batch::<ToClient>(&frames),
        2 => batch::<FromWorker>(&frames),
        3 => batch::<ToWorker>(&frames),
        4 => one::<Request>(&frames),
        5 => one::<Status>(&frames),
        6 => one::<DataReply>(&frames),
        7 => one::<UpdateDataReply>(&frames),
        8 => one::<RegisterWorkerReply>(&frames),
        9 => one::<HeartbeatReply>(&frames),
        10 => one::<Vec<(Key, Value)>>(&frames),
        _ => one::<Value>(&frames),
    });
}

fn batch<T: Message>(frames: &[Bytes])
where
    Vec<T>: Message,
{
    if let Ok(batch) = T::decode_batch(frames) {
        round_trip(&batch);
    }
}

fn one<T: Message>(frames: &[Bytes]) {
    if let Ok(message) = T::decode(frames) {
        round_trip(&message);
    }
}

pub(crate) fn round_trip<T: Message>(message: &T) {
    let written = message.encode().expect("what was read can be written");
    let again = T::decode(&written).expect("what was written can be read");
    assert_eq!(again.encode().as_ref(), Ok(&written));
}
