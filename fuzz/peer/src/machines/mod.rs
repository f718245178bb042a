//! The state machines of the roles, driven by events.

mod client;
mod scheduler;
mod worker;

use crate::message::Message;
use bytes::Bytes;
use daskwire_fuzz::budget::{Budget, Linear};
use daskwire_messages::protocol::WorkerStatus;
use daskwire_messages::{Key, Value};

use crate::input::Choices;

pub(crate) use client::client_machine;
pub(crate) use scheduler::scheduler_machine;
pub(crate) use worker::worker_machine;

/// The budget for steps of a machine with a full check after each.
const BUDGET: Budget = Budget {
    memory_len: Linear {
        base: 4 << 20,
        per_byte: 16 << 10,
    },
    allocated_len: Linear {
        base: 16 << 20,
        per_byte: 512 << 10,
    },
    steps: Linear {
        base: 1 << 22,
        per_byte: 1 << 16,
    },
};

impl Choices<'_> {
    /// Chooses one of a few keys, so that they collide.
    fn key(&mut self) -> Key {
        match self.below(12) {
            number @ 0..10 => Key::from(format!("k-{number}")),
            _ => Key::list([Key::from("t"), Key::from(i64::from(self.byte() % 2))]),
        }
    }

    fn keys(&mut self) -> Vec<Key> {
        (0..self.below(4)).map(|_| self.key()).collect()
    }

    fn number(&mut self) -> f64 {
        match self.below(8) {
            0 => f64::from_bits(self.u64()),
            1 => f64::NAN,
            2 => f64::INFINITY,
            3 => -1.0,
            number => number as f64 - 4.0,
        }
    }

    fn resources(&mut self) -> Value {
        match self.below(4) {
            0 => Value::dict([("GPU", self.number())]),
            1 => Value::dict([("GPU", 1.0), ("TPU", self.number())]),
            _ => Value::None,
        }
    }

    fn status(&mut self) -> WorkerStatus {
        let all = ["running", "paused", "closing_gracefully", "init", "odd"];
        WorkerStatus::from(all[self.below(all.len())])
    }

    /// A message with a document from the input, which is its last frame.
    fn raw(&mut self) -> Vec<Bytes> {
        let len = self.byte();
        vec![Bytes::copy_from_slice(self.bytes(len.into()))]
    }
}

/// Passes a message through encoding and decoding.
fn sent<T: Message>(messages: &Vec<T>) -> Vec<T>
where
    Vec<T>: Message,
{
    let frames = messages.encode().expect("it can be written");
    T::decode_batch(&frames).expect("it can be read")
}
