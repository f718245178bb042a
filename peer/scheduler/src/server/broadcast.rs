//! Requests that are forwarded to workers.

use std::collections::HashSet;
use std::sync::Arc;

use daskwire_comm::runtime::TaskSet;
use daskwire_messages::Value;
use daskwire_messages::protocol::{Broadcast, Request};
use daskwire_rpc::RequestError;

use super::Shared;
use super::reply::{Reply, raised_by, refused};
use crate::state::State;

impl Shared {
    /// Sends a message to workers or their nannies, and returns the reply of each,
    /// by the worker's address. As in Dask, there is no timeout for the replies.
    pub(super) async fn broadcast(self: &Arc<Self>, request: Broadcast) -> Reply {
        let recipients = self.inspect(|state| recipients(state, &request));
        let mut message = request.msg.clone();
        if let Some(serializers) = &request.serializers {
            message = message.field("serializers", Value::list(serializers.clone()));
        }
        let message = Arc::new(Request::Unknown(message));
        let mut calls = TaskSet::new();
        for (worker, address) in recipients {
            let message = Arc::clone(&message);
            let shared = Arc::clone(self);
            calls.spawn(async move {
                let reply = match RequestError::parse_address(&address) {
                    Ok(address) => shared.pool.call::<Value>(&address, &message).await,
                    Err(error) => Err(error),
                };
                (worker, reply)
            });
        }
        let mut replies = Vec::new();
        while let Some(reply) = calls.join_next().await {
            match reply {
                Ok((worker, Ok(reply))) => replies.push((worker, reply)),
                Ok((worker, Err(error))) => match request.on_error.as_deref() {
                    None | Some("raise") => return Reply::raised(&worker, &error),
                    Some("ignore") => {}
                    Some("return") => {
                        let exception = raised_by(&worker, &error);
                        replies.push((worker, Value::Serialized(exception)));
                    }
                    // Python clients use this option.
                    Some("return_pickle") => {
                        let exception = raised_by(&worker, &error).pickle();
                        let (pickle, _) = exception.unwrap_or_default();
                        replies.push((worker, Value::Bytes(pickle)));
                    }
                    Some(other) => {
                        let message = format!(
                            "on_error must be 'raise', 'return', 'return_pickle', or 'ignore'; \
                             got {other:?}"
                        );
                        return refused("ValueError", &message);
                    }
                },
                Err(_) => {}
            }
        }
        Reply::Value(Value::dict(replies))
    }
}

/// Returns the workers that a broadcast is for, each once, and the addresses to send it
/// to. If it is for nannies, workers without a nanny are omitted.
fn recipients(state: &State, request: &Broadcast) -> Vec<(String, String)> {
    let mut workers = match (&request.workers, &request.hosts) {
        (Some(workers), _) => state.addresses(workers),
        (None, Some(_)) => Vec::new(),
        (None, None) => state.workers_on(None),
    };
    if let Some(hosts) = &request.hosts {
        workers.extend(state.workers_on(Some(hosts)));
    }
    let mut seen = HashSet::new();
    workers.retain(|worker| seen.insert(worker.clone()));
    if request.nanny != Some(true) {
        return workers
            .into_iter()
            .map(|worker| (worker.clone(), worker))
            .collect();
    }
    let with_nanny = workers.into_iter().filter_map(|worker| {
        let nanny = state.nanny(&worker)?;
        Some((worker, nanny))
    });
    with_nanny.collect()
}
