//! P2P shuffles: the creation of runs, and the barriers.

use core::time::Duration;
use std::sync::Arc;

use daskwire_comm::runtime;
use daskwire_messages::Value;
use daskwire_messages::protocol::{Request, ShuffleBarrier, Unknown};
use daskwire_rpc::RequestError;

use super::Shared;
use super::reply::{Reply, refused};
use crate::state::{SchedulerInput, State, is_about_run};

impl Shared {
    /// Creates the runs that the state asks for, one after the other.
    #[cfg(target_os = "linux")]
    pub(crate) async fn create_runs(self: Arc<Self>) {
        let Some(python) = &self.python else {
            return;
        };
        loop {
            self.run_wanted.notified().await;
            while let Some(new) = self.with_machine(|machine| machine.outbox.new_run.take()) {
                let run_id = new.run_id;
                let run = python.create_run(*new).await;
                self.handle(SchedulerInput::RunCreated { run_id, run });
            }
        }
    }

    /// Whether a request is about a shuffle, and this scheduler has no Python.
    pub(super) fn lacks_python(&self, request: &Request) -> bool {
        #[cfg(target_os = "linux")]
        let has_python = self.python.is_some();
        #[cfg(not(target_os = "linux"))]
        let has_python = false;
        !has_python && (is_about_run(request) || matches!(request, Request::ShuffleBarrier(_)))
    }

    /// Asks all workers that take part in a shuffle to send what they have for it, and replies once
    /// they have. Workers that cannot be reached are asked again.
    pub(super) async fn shuffle_barrier(self: &Arc<Self>, request: ShuffleBarrier) -> Reply {
        /// Number of attempts that reach no further worker, after which the barrier fails.
        const MAX_VAIN_COUNT: u32 = 3;
        const PAUSE: Duration = Duration::from_millis(100);
        let ShuffleBarrier {
            id: shuffle,
            run_id,
            consistent,
            ..
        } = request;
        let current = |state: &State| state.shuffle_workers(&shuffle, run_id);
        let mut workers = match self.inspect(current) {
            Ok(workers) => workers,
            Err((class, message)) => return refused(class, &message),
        };
        if !consistent {
            self.handle(SchedulerInput::ShuffleRestarted { shuffle, run_id });
            return Reply::Value(Value::None);
        }
        let done = Unknown::new("shuffle_inputs_done")
            .field("shuffle_id", shuffle.as_str())
            .field("run_id", run_id);
        let mut vain_count = 0;
        loop {
            let count = workers.len();
            let requests = workers.into_iter();
            let requests = requests.map(|worker| (worker, done.clone().into()));
            let replies = self.ask_each(requests).await;
            workers = Vec::new();
            for (worker, reply) in replies {
                match reply {
                    Ok(Value::None) => {}
                    Ok(reply) => return unexpected(&reply.to_string()),
                    Err(RequestError::Remote(error)) => return unexpected(&error.to_string()),
                    Err(_) => workers.push(worker),
                }
            }
            if workers.is_empty() {
                return Reply::Value(Value::None);
            }
            let mut known = workers.iter();
            if !known.all(|worker| self.inspect(|state| state.has_worker(worker))) {
                let workers = Value::list(workers.iter().map(String::as_str));
                let message = format!("Workers {workers} left during shuffle {shuffle}[{run_id}]");
                return refused("RuntimeError", &message);
            }
            runtime::sleep(PAUSE).await;
            if workers.len() == count {
                vain_count += 1;
                if vain_count >= MAX_VAIN_COUNT {
                    let message = format!(
                        "Broadcast not making progress for {shuffle}[{run_id}]. Aborting. This is \
                         possibly due to overloaded workers. Increasing config \
                         `distributed.comm.timeouts.connect` timeout may help."
                    );
                    return refused("RuntimeError", &message);
                }
            }
        }
    }
}

fn unexpected(reply: &str) -> Reply {
    let message = format!("Unexpected error encountered during P2P barrier: {reply}");
    refused("RuntimeError", &message)
}
