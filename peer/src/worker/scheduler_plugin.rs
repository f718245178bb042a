//! The handling of tasks that this worker cannot run: a plugin in the scheduler assigns
//! them to other workers, and tasks that arrive nevertheless are returned.

use std::sync::Arc;

use daskwire_comm::runtime::{self, Instant};

use super::Shared;
use super::session::REGISTER_TIMEOUT;
use super::state::{Event, Executed};
use crate::channel::within;
use crate::pickling::Pickling;
use crate::pool::Pool;
use crate::protocol::{Identity, Unknown};
use crate::scratch;
use crate::value::ValueError;
use crate::{RemoteError, RequestError, Value};
use daskwire_comm::Address;

/// The Python source of the scheduler plugin and of the function that installs it.
const SOURCE: &str = include_str!("scheduler_plugin.py");

/// A Python function that executes [`SOURCE`] and calls its `install`.
const INSTALL: &str = "lambda source, dask_scheduler: \
    (lambda names: (exec(source, names), names['install'](dask_scheduler))[1])({})";

/// The kinds of tasks that a worker runs, which it registers in `extra`.
pub(super) fn description(runs_python: bool) -> Value {
    let kinds: &[&str] = if runs_python {
        &["native", "python"]
    } else {
        &["native"]
    };
    Value::dict([("daskwire", Value::list(kinds.iter().copied()))])
}

/// Time for which the result of a request for the workers of the cluster is cached.
const ANSWER_AGE: core::time::Duration = core::time::Duration::from_secs(1);

// ROLES WORKER-8
/// Installs the plugin in a scheduler of Dask, unless it is installed already.
pub(super) async fn install(pool: &Pool, scheduler: &Address) -> Result<(), RequestError> {
    let function = scratch::pickle(Pickling::PORTABLE, |writer| {
        writer.reduce().global("builtins", "eval").tuple(1);
        writer.str(INSTALL);
        Ok::<(), ValueError>(())
    });
    let arguments = scratch::pickle(Pickling::PORTABLE, |writer| {
        writer.tuple(1).str(SOURCE);
        Ok::<(), ValueError>(())
    });
    let unwritable = |error| RequestError::Value(Box::new(error));
    let request = Unknown::new("run_function")
        .field("function", Value::bytes(function.map_err(unwritable)?))
        .field("args", Value::bytes(arguments.map_err(unwritable)?))
        .field("kwargs", Value::None)
        .field("wait", true)
        .into();
    let reply = pool.call::<Value>(scheduler, &request);
    let reply = within(REGISTER_TIMEOUT, "the scheduler to install a plugin", reply).await?;
    if reply.get("status").and_then(Value::as_str) == Some("OK") {
        return Ok(());
    }
    let absent = Value::None;
    let exception = reply.get("exception").unwrap_or(&absent);
    Err(RemoteError::of_fields(exception, reply.get("traceback")).into())
}

/// Whether other workers may run tasks that this one cannot, as the scheduler last
/// reported it, with the time of the request.
#[derive(Debug, Default)]
pub(super) struct OtherWorkers(tokio::sync::Mutex<Option<(Instant, bool)>>);

impl Shared {
    /// Handles a task that this worker cannot run. The task fails if no other worker can
    /// run it.
    pub(super) async fn cannot_run(self: Arc<Self>, executed: Executed) {
        let event = if self.has_others().await {
            Event::Unsupported(executed)
        } else {
            if let Err(failure) = &executed.outcome {
                self.report_failure(&executed.key, &failure.exception_text);
            }
            Event::Executed(executed)
        };
        self.handle([event]);
    }

    /// Whether the scheduler runs Dask, and has another worker that may run Python.
    async fn has_others(&self) -> bool {
        if !self.gives_back {
            return false;
        }
        // The lock is held during the request, so that only one of many tasks sends it.
        let mut last = self.others.0.lock().await;
        let now = runtime::now();
        if let Some((at, found)) = *last
            && now.saturating_duration_since(at) < ANSWER_AGE
        {
            return found;
        }
        let request = Identity {
            n_workers: self.dialect.limits_identity.then_some(-1),
            reply: Some(true),
            ..Identity::default()
        };
        let request = request.into();
        let reply = self.pool.call::<Value>(&self.scheduler, &request);
        match within(REGISTER_TIMEOUT, "the identity of the scheduler", reply).await {
            Ok(identity) => {
                let found = has_python(&identity, &self.address);
                *last = Some((now, found));
                found
            }
            // When in doubt, the task is returned: it may be able to run elsewhere.
            Err(_) => last.is_none_or(|(_, found)| found),
        }
    }
}

/// Whether a worker of a scheduler, other than that at `own`, may run Python.
fn has_python(identity: &Value, own: &str) -> bool {
    let Some(Value::Dict(workers)) = identity.get("workers") else {
        return false;
    };
    let mut workers = workers.iter();
    workers.any(|(address, worker)| {
        let kinds = worker.get("daskwire");
        let runs_python = kinds.is_none_or(|kinds| match kinds {
            Value::List(kinds) | Value::Tuple(kinds) => {
                kinds.iter().any(|kind| kind.as_str() == Some("python"))
            }
            _ => false,
        });
        runs_python && address.as_str() != Some(own)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_without_a_description_may_run_python() {
        let native = description(false);
        let both = description(true);
        let python = Value::dict([("name", "worker-0")]);
        let identity = |workers: &[(&str, &Value)]| {
            let workers = workers
                .iter()
                .map(|(name, worker)| (*name, (*worker).clone()));
            Value::dict([("workers", Value::dict(workers))])
        };
        let has_python = |identity: &Value| has_python(identity, "own");
        assert!(!has_python(&identity(&[])));
        assert!(!has_python(&identity(&[("a", &native)])));
        assert!(has_python(&identity(&[("a", &native), ("b", &python)])));
        assert!(has_python(&identity(&[("a", &native), ("b", &both)])));
        assert!(!has_python(&identity(&[("a", &native), ("own", &both)])));
        assert!(!has_python(&Value::None));
    }
}
