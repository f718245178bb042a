//! The handling of tasks that this worker cannot run: a plugin in the scheduler assigns
//! them to other workers, and tasks that arrive nevertheless are returned.

use std::sync::Arc;

use daskwire_comm::runtime::{self, Instant};
use daskwire_messages::pickling::Pickling;
use daskwire_messages::protocol::{Identity, Unknown};
use daskwire_messages::scratch;
use daskwire_messages::value::ValueError;
use daskwire_messages::{RemoteError, Value};
use daskwire_rpc::RequestError;
use daskwire_rpc::channel::with_timeout;
use daskwire_rpc::pool::Pool;

use super::Shared;
use super::session::REGISTER_TIMEOUT;
use super::state::{Executed, WorkerInput};
use daskwire_comm::Address;

/// The Python source of the scheduler plugin and of the function that installs it.
const SOURCE: &str = include_str!("scheduler_plugin.py");

/// A Python function that executes [`SOURCE`] and calls its `install`.
const INSTALL: &str = "lambda source, dask_scheduler: \
    (lambda names: (exec(source, names), names['install'](dask_scheduler))[1])({})";

/// The kinds of tasks that a worker runs, which it registers in `extra`.
/// A worker that registers again adds `returning`.
// ROLES SCHEDULER-17
pub(super) fn description(runs_python: bool, is_returning: bool) -> Value {
    let kinds = [
        ("native", true),
        ("python", runs_python),
        ("returning", is_returning),
    ];
    let kinds = kinds.into_iter().filter(|(_, is_one)| *is_one);
    Value::dict([("daskwire", Value::list(kinds.map(|(kind, _)| kind)))])
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
    let reply = with_timeout(REGISTER_TIMEOUT, "the scheduler to install a plugin", reply).await?;
    if reply.get("status").and_then(Value::as_str) == Some("OK") {
        return Ok(());
    }
    let absent = Value::None;
    let exception = reply.get("exception").unwrap_or(&absent);
    Err(RemoteError::of_fields(exception, reply.get("traceback")).into())
}

/// Whether a worker gives back tasks that it cannot run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GivesBack {
    /// To a scheduler that may not know other workers.
    Never,
    /// To Dask's scheduler, if another worker may run them.
    ToOthers,
    /// To a scheduler of this project, which fails those that no worker runs.
    Always,
}

/// The workers of the cluster, as the scheduler last reported them, with the time of the
/// request.
#[derive(Debug, Default)]
pub(super) struct OtherWorkers(tokio::sync::Mutex<Option<(Instant, Vec<Known>)>>);

/// A worker to which a task may be restricted in three ways.
#[derive(Debug)]
struct Known {
    address: Value,
    name: Value,
    host: Value,
    runs_python: bool,
    /// Whether the worker is this one.
    is_own: bool,
}

/// Whether another worker may run a task that this one cannot run. `allowed` are the workers
/// to which the task is restricted, if it is.
fn others_may_run(workers: &[Known], allowed: Option<&[Value]>) -> bool {
    let Some(allowed) = allowed else {
        return workers
            .iter()
            .any(|worker| worker.runs_python && !worker.is_own);
    };
    allowed.iter().any(|entry| {
        let mut is_known = false;
        for worker in workers {
            let is_named = worker.address == *entry || worker.name == *entry;
            let is_host = worker.host == *entry;
            is_known |= is_named || is_host;
            // A worker in Rust that is named may have other functions. Of a host, the scheduler
            // may choose the same worker again and again.
            if !worker.is_own && (is_named || (is_host && worker.runs_python)) {
                return true;
            }
        }
        // When in doubt, the task is returned: Dask takes addresses in several forms.
        !is_known
    })
}

/// The workers to which annotations restrict a task: addresses, names and hosts. `None` if
/// other workers may run the task, too.
pub(super) fn allowed_workers(annotations: Option<&Value>) -> Option<Vec<Value>> {
    let annotation = |name| annotations.and_then(|annotations| annotations.get(name));
    if annotation("allow_other_workers") == Some(&Value::Bool(true)) {
        return None;
    }
    match annotation("workers")? {
        Value::List(workers)
        | Value::Tuple(workers)
        | Value::Set(workers)
        | Value::FrozenSet(workers) => Some(workers.to_vec()),
        Value::None => None,
        worker => Some(vec![worker.clone()]),
    }
}

impl Shared {
    /// Handles a task that this worker cannot run. The task fails if no other worker can
    /// run it; `allowed` are the workers to which it is restricted, if it is.
    pub(super) async fn cannot_run(
        self: Arc<Self>,
        executed: Executed,
        allowed: Option<Vec<Value>>,
    ) {
        let event = if self.has_others(allowed.as_deref()).await {
            let reason = match &executed.outcome {
                Err(failure) if self.sends_reasons => Some(failure.exception_text.clone()),
                _ => None,
            };
            WorkerInput::Unsupported { executed, reason }
        } else {
            if let Err(failure) = &executed.outcome {
                self.report_failure(&executed.key, &failure.exception_text);
            }
            WorkerInput::Executed(executed)
        };
        self.handle([event]);
    }

    /// Whether the scheduler may have another worker that runs a task.
    async fn has_others(&self, allowed: Option<&[Value]>) -> bool {
        match self.gives_back {
            GivesBack::Never => return false,
            GivesBack::Always => return true,
            GivesBack::ToOthers => {}
        }
        // The lock is held during the request, so that only one of many tasks sends it.
        let mut last = self.others.0.lock().await;
        let now = runtime::now();
        let found = |workers: &[Known]| others_may_run(workers, allowed);
        if let Some((at, workers)) = &*last
            && now.saturating_duration_since(*at) < ANSWER_AGE
        {
            return found(workers);
        }
        let request = Identity {
            n_workers: self.dialect.limits_identity.then_some(-1),
            reply: Some(true),
            ..Identity::default()
        };
        let request = request.into();
        let scheduler = self.scheduler();
        let reply = self.pool.call::<Value>(&scheduler, &request);
        match with_timeout(REGISTER_TIMEOUT, "the identity of the scheduler", reply).await {
            Ok(identity) => {
                let (_, workers) = last.insert((now, workers(&identity, &self.address)));
                found(workers)
            }
            // When in doubt, the task is returned: it may be able to run elsewhere.
            Err(_) => last.as_ref().is_none_or(|(_, workers)| found(workers)),
        }
    }
}

/// The workers in the identity of a scheduler. This worker is that at `own`.
fn workers(identity: &Value, own: &str) -> Vec<Known> {
    let Some(Value::Dict(workers)) = identity.get("workers") else {
        return Vec::new();
    };
    let workers = workers.iter().map(|(address, worker)| {
        let field = |name| worker.get(name).cloned().unwrap_or(Value::None);
        let runs_python = match worker.get("daskwire") {
            Some(Value::List(kinds) | Value::Tuple(kinds)) => {
                kinds.iter().any(|kind| kind.as_str() == Some("python"))
            }
            Some(_) => false,
            None => true,
        };
        Known {
            address: address.clone(),
            name: field("name"),
            host: field("host"),
            runs_python,
            is_own: address.as_str() == Some(own),
        }
    });
    workers.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_without_a_description_may_run_python() {
        let native = description(false, false);
        let both = description(true, true);
        let python = Value::dict([("name", "worker-0")]);
        let identity = |workers: &[(&str, &Value)]| {
            let workers = workers
                .iter()
                .map(|(name, worker)| (*name, (*worker).clone()));
            Value::dict([("workers", Value::dict(workers))])
        };
        let has_python = |identity: &Value| others_may_run(&workers(identity, "own"), None);
        assert!(!has_python(&identity(&[])));
        assert!(!has_python(&identity(&[("a", &native)])));
        assert!(has_python(&identity(&[("a", &native), ("b", &python)])));
        assert!(has_python(&identity(&[("a", &native), ("b", &both)])));
        assert!(!has_python(&identity(&[("a", &native), ("own", &both)])));
        assert!(!has_python(&Value::None));
    }

    #[test]
    fn a_restricted_task_runs_on_named_workers_and_in_python_on_named_hosts() {
        let worker = |name: &str, host: &str, is_native: bool| {
            let kind = is_native.then(|| ("daskwire", Value::list(["native"])));
            let fields = [("name", Value::from(name)), ("host", Value::from(host))];
            Value::dict(fields.into_iter().chain(kind))
        };
        let identity = Value::dict([(
            "workers",
            Value::dict([
                ("own", worker("me", "10.0.0.1", true)),
                ("tcp://10.0.0.1:2", worker("python", "10.0.0.1", false)),
                ("tcp://10.0.0.2:3", worker("rust", "10.0.0.2", true)),
            ]),
        )]);
        let workers_known = workers(&identity, "own");
        let may_run = |workers: Value, is_loose: bool| {
            let loose = Value::Bool(is_loose);
            let annotations = Value::dict([("workers", workers), ("allow_other_workers", loose)]);
            let allowed = allowed_workers(Some(&annotations));
            others_may_run(&workers_known, allowed.as_deref())
        };
        for (workers, expected) in [
            (Value::list(["own"]), false),
            (Value::from("me"), false),
            (Value::list(["me", "python"]), true),
            (Value::from("10.0.0.1"), true),
            (Value::list(["tcp://10.0.0.2:3"]), true),
            (Value::from("rust"), true),
            // No other worker of this host runs Python.
            (Value::from("10.0.0.2"), false),
            // Dask takes these, too.
            (
                Value::Set([Value::from("me"), Value::from("python")].into()),
                true,
            ),
            (Value::list(["me", "localhost:2"]), true),
            (Value::None, true),
        ] {
            assert_eq!(may_run(workers.clone(), false), expected, "{workers}");
            assert!(may_run(workers.clone(), true), "{workers}");
        }
        assert_eq!(allowed_workers(None), None);
    }
}
