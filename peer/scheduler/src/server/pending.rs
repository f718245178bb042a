//! Requests that the state replies to, at once or later.

use daskwire_messages::Value;
use daskwire_messages::protocol::Request;
use daskwire_rpc::channel::Receiver;
use daskwire_rpc::request::IncomingRequest;
use tokio::sync::oneshot;

use super::Shared;
use super::reply::{Reply, refused};
use crate::state::{RequestId, RequestRefusal, SchedulerInput};

/// A request that the state has taken. Tells the state at the end whether the reply was sent.
#[derive(Debug)]
pub(super) struct Pending<'s> {
    shared: &'s Shared,
    id: RequestId,
    reply: oneshot::Receiver<Result<Value, RequestRefusal>>,
    is_replied: bool,
}

/// The end of the comm of a request before the reply.
#[derive(Debug)]
pub(super) struct Ended;

impl Shared {
    /// Passes a request to the state.
    pub(super) fn request(&self, request: Request) -> Pending<'_> {
        let (sender, reply) = oneshot::channel();
        let id = self.with_machine(|machine| {
            let id = RequestId(machine.next_id());
            machine.outbox.replies.insert(id, sender);
            let request = Box::new(request);
            machine.handle(SchedulerInput::Requested { id, request });
            id
        });
        Pending {
            shared: self,
            id,
            reply,
            is_replied: false,
        }
    }
}

impl Pending<'_> {
    /// Waits for the reply. Meanwhile, receives from the comm, to notice its end. A message that
    /// the peer sends before it has the reply becomes `next`.
    pub(super) async fn reply(
        &mut self,
        receiver: &mut Receiver,
        next: &mut Option<IncomingRequest>,
    ) -> Result<Reply, Ended> {
        loop {
            tokio::select! {
                biased;
                // Without a reply, the state has failed.
                reply = &mut self.reply => return match reply.map_err(|_| Ended)? {
                    Ok(value) => Ok(Reply::Value(value)),
                    Err(refusal) => Ok(refused(refusal.class(), &refusal.to_string())),
                },
                message = receiver.receive(), if next.is_none() => match message {
                    Ok(Some(message)) => *next = Some(message),
                    Ok(None) | Err(_) => return Err(Ended),
                },
            }
        }
    }

    /// Reports that the reply was sent.
    pub(super) fn sent(mut self) {
        self.is_replied = true;
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let event = match self.is_replied {
            true => SchedulerInput::Replied(self.id),
            false => SchedulerInput::RequestDropped(self.id),
        };
        // A panic of the state has ended the scheduler already; a second one here would abort the
        // process.
        let _ = self.shared.try_with_machine(|machine| {
            machine.outbox.replies.remove(&self.id);
            machine.handle(event);
        });
    }
}
