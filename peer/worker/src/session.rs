//! The membership in a cluster: registration, heartbeats, the scheduler's
//! messages, and leaving.

use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use daskwire_comm::runtime::{self, Instant, TaskSet};
use daskwire_comm::{Listener, Transports};
use daskwire_messages::Value;
use daskwire_messages::protocol::{
    HeartbeatReply, HeartbeatWorker, KeepAlive, Nullable, RegisterWorker, RegisterWorkerReply,
    ReplyStatus, Request, ToWorker, Unregister, WorkerStatus,
};
use daskwire_rpc::RequestError;
use daskwire_rpc::channel::{Channel, Receiver, with_timeout};
use daskwire_rpc::event::{self, emit};
use tokio::sync::watch;

use super::context::Cancellation;
use super::diagnostics::Level;
use super::event::WorkerEvent;
#[cfg(target_os = "linux")]
use super::python::PythonProcesses;
use super::rejoin::Rejoin;
use super::start::Joined;
use super::state::{Action, WorkerInput, stimulus};
use super::{Ended, Shared, StartError, now, scheduler_plugin, server};

/// Timeout for registering with the scheduler and for leaving it.
pub(super) const REGISTER_TIMEOUT: Duration = Duration::from_secs(30);

/// Minimum interval at which unused memory for large frames is returned to the system.
const TRIM_INTERVAL: Duration = Duration::from_secs(5);

/// Interval of keep-alive messages on the stream to the scheduler.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// Number of heartbeat intervals between two heartbeats while the worker retires. Most
/// workers have left before the first. A scheduler waits for at least ten intervals,
/// whatever its timeout is.
const RETIRE_QUIET: u32 = 6;

/// Timeout for the message in which the scheduler says why it has removed the worker.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Timeout for the scheduler's reply to the last heartbeat, and for reading its
/// last messages once writing to it has failed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Compares the clocks. The reply to a request that was sent at the time `asked` has just
/// arrived; `at_scheduler` is the time in it, in seconds since 1970.
fn clock_offset(asked: Duration, at_scheduler: Option<f64>) -> Option<WorkerInput> {
    let here = asked.saturating_add(now()).as_secs_f64() / 2.0;
    Some(WorkerInput::ClockOffset(at_scheduler? - here))
}

impl Shared {
    /// Registers with the scheduler. `versions` are those of the scheduler if the worker registers
    /// again.
    pub(super) async fn register(
        &self,
        channel: &mut Channel,
        versions: Option<Value>,
        timeout: Duration,
    ) -> Result<Registered, StartError> {
        let time = now();
        let is_returning = versions.is_some();
        let (status, resources) = {
            let machine = self.machine();
            let state = &machine.state;
            (state.status().clone(), state.resources().clone())
        };
        let has_stimulus = self.dialect.has_worker_stimulus;
        let request = Request::RegisterWorker(RegisterWorker {
            address: self.address.clone(),
            status,
            server_id: self.dialect.has_server_id.then(|| self.id.clone()),
            nthreads: self.nthreads as u64,
            name: self.name_value(),
            now: time.as_secs_f64(),
            resources: resources.into_iter().collect(),
            memory_limit: Nullable(self.memory_limit),
            metrics: self.metrics(),
            services: Value::dict(self.services.iter().map(|(name, port)| {
                let port = Value::from(u64::from(*port));
                (name.as_str(), port)
            })),
            local_directory: self.local_directory.display().to_string(),
            versions: versions.unwrap_or_else(|| self.versions.clone()),
            // The worker answers the requests that its scheduler sends to nannies.
            nanny: Nullable(self.is_restartable.then(|| self.address.clone())),
            extra_information: scheduler_plugin::description(self.runs_python(), is_returning),
            stimulus_id: has_stimulus.then(|| stimulus("worker-connect", time)),
            pid: Some(std::process::id().into()),
            reply: Some(false),
            ..RegisterWorker::default()
        });
        let reply = channel.call::<RegisterWorkerReply>(&request);
        let reply = with_timeout(timeout, "the registration of the worker", reply).await?;
        if reply.status != ReplyStatus::Ok {
            return Err(StartError::Refused {
                reason: reply.message.unwrap_or_else(|| reply.status.to_string()),
            });
        }
        if let Some(event) = clock_offset(time, reply.time) {
            // There are no actions, before the first registration and before the worker is told of
            // any other.
            self.machine().state.handle(now(), event);
        }
        let interval = interval(reply.heartbeat_interval);
        Ok(Registered {
            heartbeat_interval: interval.unwrap_or(Duration::from_secs(1)),
            plugins: reply.worker_plugins,
            returns: reply.returns == Some(true),
        })
    }

    /// Asks the scheduler to remove the worker, so that it can be restarted.
    pub(super) async fn unregister(&self, reason: Option<String>) -> Result<(), RequestError> {
        let reason = reason.unwrap_or_else(|| "the scheduler gave no reason".to_owned());
        // An error means that an earlier reason is set, which is kept.
        let _ = self.restart.set(reason);
        let has_stimulus = self.dialect.has_worker_stimulus;
        let scheduler = self.scheduler();
        let request = Request::Unregister(Unregister {
            address: self.address.clone(),
            stimulus_id: has_stimulus.then(|| stimulus("worker-restart", now())),
            reply: Some(true),
            ..Unregister::default()
        });
        let asked = self.pool.call::<Value>(&scheduler, &request);
        with_timeout(
            REGISTER_TIMEOUT,
            "the scheduler to remove the worker",
            asked,
        )
        .await?;
        Ok(())
    }

    /// Sends heartbeats to the scheduler.
    pub(super) async fn heartbeats(self: Arc<Self>, mut interval: Duration) -> Ended {
        let mut retiring: Option<Instant> = None;
        let mut trimmed = runtime::now();
        loop {
            runtime::sleep(interval).await;
            if let Some(buffers) = &self.buffers
                && runtime::now().saturating_duration_since(trimmed) >= TRIM_INTERVAL
            {
                buffers.trim();
                trimmed = runtime::now();
            }
            let sending = self.heartbeat.lock().await;
            // A scheduler that has just removed a worker logs warnings about heartbeats
            // that the worker sends before it learns about the removal, and about
            // heartbeats that overtake its last message.
            let status = self.machine().state.status().clone();
            let is_retiring = self.is_retiring.load(Ordering::Relaxed);
            match status {
                WorkerStatus::Closing => continue,
                status if is_retiring || status == WorkerStatus::ClosingGracefully => {
                    let now = runtime::now();
                    let since = *retiring.get_or_insert(now);
                    let quiet = interval.saturating_mul(RETIRE_QUIET);
                    if now.saturating_duration_since(since) < quiet {
                        continue;
                    }
                    retiring = Some(now);
                }
                _ => retiring = None,
            }
            let time = now();
            let executing = {
                let machine = self.machine();
                let executing = machine.state.executing();
                executing
                    .map(|(key, since)| (key.clone(), time.saturating_sub(since).as_secs_f64()))
                    .collect()
            };
            let has_extensions = self.dialect.has_heartbeat_extensions;
            let request = Request::HeartbeatWorker(HeartbeatWorker {
                address: self.address.clone(),
                now: time.as_secs_f64(),
                metrics: self.metrics(),
                executing,
                extensions: has_extensions.then(|| Value::Dict([].into())),
                reply: Some(true),
                ..HeartbeatWorker::default()
            });
            // An error is ignored: if the scheduler is gone, the stream reports it.
            let asked = runtime::now();
            let reply: Result<HeartbeatReply, _> =
                self.pool.call(&self.scheduler(), &request).await;
            drop(sending);
            let Ok(reply) = reply else {
                continue;
            };
            let answered = runtime::now();
            self.transfers
                .set_latency(answered.saturating_duration_since(asked));
            if reply.status == ReplyStatus::Missing {
                // If the worker has retired meanwhile, the stream reports it.
                if self.machine().state.status().is_closing() {
                    continue;
                }
                // The message that closes the worker may still be in flight.
                runtime::sleep(CLOSE_TIMEOUT).await;
                return Ended::Forgotten;
            }
            self.handle(clock_offset(time, reply.time));
            interval = self::interval(reply.heartbeat_interval).unwrap_or(interval);
        }
    }

    pub(super) async fn keep_alive(self: Arc<Self>) -> Ended {
        loop {
            runtime::sleep(KEEP_ALIVE).await;
            if let Some(stream) = &self.machine().stream {
                stream.send(KeepAlive::default());
            }
        }
    }

    /// Handles the messages of the scheduler until the stream ends.
    pub(super) async fn handle_stream(self: Arc<Self>, mut receiver: Receiver) -> Ended {
        loop {
            let batch = match receiver.receive_batch::<ToWorker>().await {
                Ok(Some(batch)) => batch,
                Ok(None) => {
                    let peer = self.scheduler().to_string();
                    return Ended::Lost(RequestError::Closed { peer });
                }
                Err(error) => return Ended::Lost(error),
            };
            let mut end = None;
            let mut events = Vec::with_capacity(batch.len());
            for message in batch {
                let reason = match message {
                    ToWorker::Close(close) => close.reason.unwrap_or_default(),
                    ToWorker::CloseStream(_) => "the scheduler closed the stream".to_owned(),
                    #[cfg(target_os = "linux")]
                    ToWorker::Unknown(message) if self.python.is_some() => {
                        let python = self.python.as_ref();
                        if let Some(host) = python.and_then(PythonProcesses::running_host) {
                            host.stream(message);
                        }
                        continue;
                    }
                    message => {
                        events.push(WorkerInput::FromScheduler(message));
                        continue;
                    }
                };
                end = Some(Ended::ByScheduler { reason });
                break;
            }
            self.handle(events);
            if let Some(end) = end {
                return end;
            }
        }
    }

    /// Sends the pending messages and the end of the worker to the scheduler, and closes the
    /// stream.
    pub(super) fn leave(&self) {
        let mut machine = self.machine();
        let closing = machine.state.handle(now(), WorkerInput::Close);
        machine
            .cancellations
            .values()
            .for_each(Cancellation::cancel);
        let Some(stream) = machine.stream.take() else {
            return;
        };
        for action in closing {
            if let Action::Send(message) = action {
                stream.send(self.dialect.worker_message(*message));
            }
        }
    }
}

/// Converts an interval in seconds, if it is valid.
fn interval(seconds: Option<f64>) -> Option<Duration> {
    let duration = Duration::try_from_secs_f64(seconds?).ok()?;
    Some(duration.clamp(Duration::from_millis(10), Duration::from_secs(600)))
}

/// What a scheduler replies to a registration.
pub(super) struct Registered {
    pub(super) heartbeat_interval: Duration,
    /// The plugins of workers.
    pub(super) plugins: Option<Value>,
    /// Whether it takes what workers return with.
    pub(super) returns: bool,
}

/// The parts of a worker that [`supervise`] takes over.
pub(super) struct Parts {
    pub(super) transports: Transports,
    pub(super) listener: Listener,
    pub(super) joined: Joined,
    pub(super) rejoin: Rejoin,
}

/// Starts what needs a connection to the scheduler.
fn serve_link(shared: &Arc<Shared>, receiver: Receiver, interval: Duration) -> TaskSet<Ended> {
    let mut link = TaskSet::new();
    let scheduler = shared.scheduler().to_string();
    let stream = Arc::clone(shared).handle_stream(receiver);
    link.spawn(event::in_comm(&scheduler, stream));
    link.spawn(Arc::clone(shared).heartbeats(interval));
    link.spawn(Arc::clone(shared).keep_alive());
    link
}

/// Why a worker ends that one of its parts has ended.
fn ended_part<E>(ended: Option<Result<Ended, E>>) -> Ended {
    match ended {
        Some(Ok(ended)) => ended,
        // Otherwise the parts never return, and nothing aborts them.
        _ => Ended::Panicked,
    }
}

/// Runs a worker until one of its parts ends, and makes it leave the cluster.
pub(super) async fn supervise(
    shared: Arc<Shared>,
    parts: Parts,
    end: watch::Sender<Option<Ended>>,
) {
    let Parts {
        transports,
        listener,
        joined,
        rejoin,
    } = parts;
    let listener = Arc::new(listener);
    let mut tasks = TaskSet::new();
    tasks.spawn(Arc::clone(&shared).monitor());
    tasks.spawn(server::serve(Arc::clone(&shared), Arc::clone(&listener)));
    let mut writing = joined.writing;
    let mut link = serve_link(&shared, joined.receiver, joined.heartbeat_interval);
    let ended = loop {
        let ended = tokio::select! {
            () = shared.stop.notified() => Ended::Closed,
            () = shared.panic_flag.wait() => Ended::Panicked,
            ended = tasks.join_next() => ended_part(ended),
            ended = link.join_next() => ended_part(ended),
            written = writing.finished() => match written {
                Err(error) => {
                    // The scheduler's last messages may give the reason.
                    let last = runtime::timeout(DRAIN_TIMEOUT, link.join_next()).await;
                    match last {
                        Ok(Some(Ok(ended))) => ended,
                        _ => Ended::Lost(error),
                    }
                }
                // The writer returns only after the stream is dropped, or after a
                // panic.
                Ok(()) => Ended::Panicked,
            },
        };
        let lost = match ended {
            Ended::Lost(lost) if !rejoin.timeout.is_zero() && shared.may_return() => lost,
            ended => break ended,
        };
        link.shutdown().await;
        writing.abort();
        shared.disconnect(&lost, rejoin.timeout);
        let joined = tokio::select! {
            () = shared.stop.notified() => break Ended::Closed,
            () = shared.panic_flag.wait() => break Ended::Panicked,
            ended = tasks.join_next() => break ended_part(ended),
            joined = rejoin.run(&shared, &lost) => joined,
        };
        match joined {
            Ok(joined) => {
                writing = joined.writing;
                link = serve_link(&shared, joined.receiver, joined.heartbeat_interval);
            }
            Err(ended) => break ended,
        }
    };
    let ended = match shared.restart.get() {
        Some(reason) => Ended::Restart {
            reason: reason.clone(),
        },
        None => ended,
    };
    if shared.panic_flag.is_set() {
        shared
            .log
            .add(Level::Warning, "the worker panicked, and ends");
    }
    // A heartbeat in flight, over another comm, may arrive after the last message on the
    // stream.
    let quiet = runtime::timeout(DRAIN_TIMEOUT, shared.heartbeat.lock()).await;
    shared.leave();
    drop(quiet);
    shared.queue.close();
    #[cfg(target_os = "linux")]
    if shared.python.is_some() {
        let shared = Arc::clone(&shared);
        let closing = move || shared.python.iter().for_each(PythonProcesses::close);
        let _ = runtime::spawn_blocking(closing).await;
    }
    // Do not wait for a scheduler that has stopped reading.
    if runtime::timeout(REGISTER_TIMEOUT, writing.finished())
        .await
        .is_err()
    {
        writing.abort();
    }
    let _ = runtime::timeout(DRAIN_TIMEOUT, shared.answering.write()).await;
    link.shutdown().await;
    tasks.shutdown().await;
    let mut transfers = core::mem::take(&mut shared.machine().tasks);
    transfers.shutdown().await;
    #[cfg(feature = "client")]
    // Locked while a task connects it.
    if let Ok(mut client) = runtime::timeout(DRAIN_TIMEOUT, shared.client.lock()).await
        && let Some(client) = client.take()
    {
        // An error means that the connection has ended already.
        let _ = client.close().await;
    }
    shared.pool.close().await;
    transports.close().await;
    listener.close().await;
    drop(listener);
    let store = Arc::clone(&shared);
    let _ = runtime::spawn_blocking(move || store.store.close()).await;
    emit(event::Level::Info, || WorkerEvent::Ended { reason: &ended });
    // Sending fails only if the receiver was dropped.
    let _ = end.send(Some(ended));
}
