//! What a program around the scheduler asks of it, such as a dashboard.

use std::sync::Arc;

use daskwire_messages::protocol::{CancelKeys, Keys, Nullable, Request};
use daskwire_messages::{Key, Value};

use super::Shared;
use super::reply::Reply;
use crate::state::{ClientId, SchedulerInput, UnknownOps};

/// The name of the client that cancels tasks, in events.
const NAME: &str = "dashboard";

impl Shared {
    /// Answers a request. The error is the text of an exception.
    pub(crate) async fn answer(self: &Arc<Self>, request: Request) -> Result<Value, String> {
        let mut unknown_ops = UnknownOps::default();
        match self.reply_to(request, &NAME, &mut unknown_ops).await {
            Reply::Value(value) => Ok(value),
            Reply::Status(status) => match status.exception_text {
                Some(text) => Err(text),
                None => Ok(Value::None),
            },
            _ => Ok(Value::None),
        }
    }

    /// Cancels tasks for all clients. Returns how many of the keys are known.
    pub(crate) async fn cancel(&self, keys: Vec<Key>) -> usize {
        let (id, count, work) = self.with_machine(|machine| {
            let known = |key: &&Key| machine.state.status(key).is_some();
            let count = keys.iter().filter(known).count();
            // It is a client for a moment, since only clients cancel tasks.
            let id = ClientId(machine.next_id());
            let message = CancelKeys {
                keys: Keys(keys),
                force: true,
                reason: Nullable(Some(format!("cancelled in the {NAME}"))),
                ..CancelKeys::default()
            };
            machine.handle(SchedulerInput::ClientJoined {
                id,
                name: format!("{NAME}-{}", daskwire_messages::key::identifier()),
                versions: Value::None,
                returning: None,
            });
            let work = machine.handle(SchedulerInput::FromClient(id, message.into()));
            (id, count, work)
        });
        self.ended(work).await;
        self.handle(SchedulerInput::ClientLeft(id));
        count
    }

    pub(crate) fn record_spans(&self, is_recording: bool) {
        self.with_machine(|machine| machine.state.record_spans(is_recording));
    }
}
