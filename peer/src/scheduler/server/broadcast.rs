//! Requests that are passed on to workers.

use core::time::Duration;
use std::sync::Arc;

use daskwire_comm::runtime::TaskSet;

use super::Shared;
use super::answer::{Answer, refused};
use crate::channel::within;
use crate::protocol::{Broadcast, Request};
use crate::{RequestError, Value};

/// Timeout for the replies of workers to a broadcast.
const BROADCAST_TIMEOUT: Duration = Duration::from_secs(30);

impl Shared {
    /// Sends a message to workers, by default to all, and returns the reply of
    /// each.
    pub(super) async fn broadcast(self: &Arc<Self>, request: Broadcast) -> Answer {
        if request.nanny == Some(true) {
            return refused("NotImplementedError", "this scheduler cannot reach nannies");
        }
        let counts = self.inspect(|state| state.thread_counts(request.workers.as_deref(), false));
        let mut asking = TaskSet::new();
        for (worker, _) in counts {
            let Ok(address) = RequestError::parse_address(&worker) else {
                continue;
            };
            let asked = Request::Unknown(request.msg.clone());
            let shared = Arc::clone(self);
            asking.spawn(async move {
                let asking = shared.pool.call::<Value>(&address, &asked);
                (
                    worker,
                    within(BROADCAST_TIMEOUT, "an answer of a worker", asking).await,
                )
            });
        }
        let is_ignored = request.on_error.as_deref() == Some("ignore");
        let mut replies = Vec::new();
        while let Some(reply) = asking.join_next().await {
            match reply {
                Ok((worker, Ok(reply))) => replies.push((worker, reply)),
                Ok((_, Err(_))) if is_ignored => {}
                Ok((worker, Err(error))) => {
                    return refused("RuntimeError", &format!("{worker}: {error}"));
                }
                Err(_) => {}
            }
        }
        Answer::Value(Value::dict(replies))
    }
}
