//! What a function can learn about the task that calls it, and do on its behalf.

use core::fmt;
use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::task::Poll;

#[cfg(feature = "client")]
use daskwire_client::Connection;
use daskwire_comm::BoxFuture;
use daskwire_messages::protocol::LogEvent;
#[cfg(feature = "client")]
use daskwire_messages::protocol::WorkerStatus;
use daskwire_messages::value::IntoValue;
use daskwire_messages::{Key, RemoteError, Value};
use tokio::sync::watch;

use super::diagnostics::Level;
use super::state::WorkerInput;
use super::{Shared, now, threads};

/// The task that calls a function: an argument that the worker adds, which callers do not give.
///
/// ```
/// use daskwire_peer::RemoteError;
/// use daskwire_peer::worker::{Context, Functions};
///
/// let functions = Functions::new()
///     .function("search", |context: Context, tries: u64| -> Result<u64, RemoteError> {
///         for candidate in 0..tries {
///             // Ends the task if its future was cancelled or released.
///             context.cancellation().check()?;
///             if candidate * candidate == 1_000_000 {
///                 context.log_event("found", candidate);
///                 return Ok(candidate);
///             }
///         }
///         Err(RemoteError::new("LookupError", "nothing found"))
///     });
/// let arguments = [5000.into()].into_iter().collect();
/// assert_eq!(functions.call("search", arguments), Some(Ok(1000.into())));
/// ```
///
/// In a call by [`Functions::call`](super::Functions::call), there is no task: the key and the
/// names are empty, events are dropped, and nothing is cancelled. Clones refer to the same task.
#[derive(Clone, Default)]
pub struct Context {
    task: Option<Arc<Execution>>,
    cancellation: Cancellation,
}

impl Context {
    /// The key of the task.
    pub fn key(&self) -> Key {
        let key = self.task.as_ref().map(|task| task.key.clone());
        key.unwrap_or_default()
    }

    /// The name of the worker.
    pub fn worker(&self) -> &str {
        self.task.as_ref().map_or("", |task| &task.shared.name)
    }

    /// The address of the worker.
    pub fn worker_address(&self) -> &str {
        self.task.as_ref().map_or("", |task| &task.shared.address)
    }

    /// Says whether the result is still wanted.
    pub const fn cancellation(&self) -> &Cancellation {
        &self.cancellation
    }

    /// Whether the task was cancelled, see [`Cancellation`].
    pub fn is_cancelled(&self) -> bool {
        self.cancellation.is_cancelled()
    }

    /// Sends an event to the scheduler, as `get_worker().log_event(topic, event)` does in Python:
    /// the scheduler adds the time and the address of the worker, and passes it to subscribers
    /// of the topic.
    ///
    /// The event is plain data: numbers, strings, bytes, lists and dictionaries of them. Other
    /// values, such as arrays and dates, are sent as the strings that they are displayed as. An event
    /// that does not convert, is nested deeper than 100 levels, or too large, is dropped, with a
    /// warning in the log of the worker.
    pub fn log_event(&self, topic: &str, event: impl IntoValue) {
        let Some(task) = &self.task else {
            return;
        };
        // Not while the state machine is locked: the conversion is code of the program.
        let event = event.into_value();
        let event = match event.and_then(|event| event.checked().map_err(Into::into)) {
            Ok(event) => event,
            Err(error) => {
                let message = format!("an event of the topic {topic} is not sent: {error}");
                task.shared.log.add(Level::Warning, &message);
                return;
            }
        };
        let message = LogEvent {
            topic: topic.into(),
            msg: event,
            ..LogEvent::default()
        };
        if let Some(stream) = &task.shared.machine().stream {
            stream.send(message);
        }
    }

    /// Stops counting the task towards the number of threads, so that the worker starts another
    /// one, as `secede()` in Python does. A function that waits for other tasks does this first:
    /// otherwise, no thread may be left to run them. It holds for the rest of the task, and has no
    /// effect after its end.
    ///
    /// # Errors
    ///
    /// A `RuntimeError` if the system refuses a further thread, or in a call of a function that is
    /// [declared as quick](super::Functions::quick), which has no thread of its own; then nothing
    /// changes.
    pub fn secede(&self) -> Result<(), RemoteError> {
        let Some(task) = &self.task else {
            return Ok(());
        };
        // Locked until the event is handled: after the end of the task, it would be taken for
        // one of the next task with this key.
        let mut progress = task.progress();
        if progress.has_ended || progress.has_seceded {
            return Ok(());
        }
        let refused = |reason: &dyn fmt::Display| {
            let message = format!("the task cannot secede: {reason}");
            RemoteError::new("RuntimeError", &message)
        };
        if task.is_inline {
            return Err(refused(&"its function is declared as quick"));
        }
        threads::start_one(&task.shared, "task").map_err(|error| refused(&error))?;
        progress.has_seceded = true;
        let seceded = WorkerInput::Seceded {
            key: task.key.clone(),
            run_time: now().saturating_sub(task.start),
        };
        let jobs = task.shared.react([], [seceded]);
        drop(progress);
        task.shared.begin(jobs);
        Ok(())
    }

    /// A client of the worker's scheduler, with the transports of the worker. The first call
    /// connects it; the tasks of the worker share it, and it is closed when the worker ends. Do not
    /// close it: other tasks may use it. If it has ended nevertheless, the next call connects
    /// another one. Cancel safe.
    ///
    /// [Secede](Self::secede) before waiting for tasks.
    ///
    /// # Errors
    ///
    /// * A `RuntimeError` if it cannot connect, or if there is no task;
    /// * a `CancelledError` of Python's `concurrent.futures` if the worker ends.
    #[cfg(feature = "client")]
    pub async fn client(&self) -> Result<daskwire_client::Client, RemoteError> {
        let Some(task) = &self.task else {
            let message = "a function that no task calls has no client";
            return Err(RemoteError::new("RuntimeError", message));
        };
        let shared = &task.shared;
        let mut shared_client = shared.client.lock().await;
        // The worker has closed its client, and would not close another one.
        if *shared.machine().state.status() == WorkerStatus::Closing {
            return Err(cancelled());
        }
        if let Some(client) = &*shared_client
            && !matches!(client.connection(), Connection::Closed { .. })
        {
            return Ok(client.clone());
        }
        let options = shared.client_options.clone();
        let scheduler = shared.scheduler().to_string();
        let client = daskwire_client::Client::connect_with(&scheduler, options)
            .await
            .map_err(|error| RemoteError::of_error(Box::new(error)))?;
        *shared_client = Some(client.clone());
        Ok(client)
    }

    /// Runs the future of a function in the executor of the worker, and waits for its output on
    /// this thread. Cancellation drops the future.
    ///
    /// Without a task, or if the calling thread may be one of the executor, which the future would
    /// wait for in vain, it runs in a runtime of its own.
    pub(super) fn run(
        &self,
        future: BoxFuture<'static, Result<Value, RemoteError>>,
    ) -> Result<Value, RemoteError> {
        let cancellation = self.cancellation.clone();
        let running = async move {
            tokio::select! {
                biased;
                result = caught(future) => result,
                () = cancellation.cancelled() => Ok(Err(cancelled())),
            }
        };
        let result = match &self.task {
            Some(task) if !task.is_inline => {
                let (sender, receiver) = mpsc::sync_channel(1);
                let running = async move { drop(sender.send(running.await)) };
                drop(task.shared.runtime.spawn(running));
                receiver.recv()
            }
            _ => Ok(run_on_own_runtime(running)),
        };
        match result {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(mpsc::RecvError) => Err(cancelled()),
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("key", &self.key())
            .field("worker", &self.worker())
            .field("is_cancelled", &self.is_cancelled())
            .finish()
    }
}

/// Whether the result of a task is still wanted. It is not once the scheduler has released the
/// task, after `Client.cancel`, after the last future was dropped, or when it assigned the task
/// to another worker; and when the worker ends.
///
/// A cancelled task occupies its thread until its function returns. Whatever it returns is
/// dropped.
#[derive(Clone, Debug)]
pub struct Cancellation(Arc<watch::Sender<bool>>);

impl Default for Cancellation {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }
}

impl Cancellation {
    pub(super) fn cancel(&self) {
        self.0.send_replace(true);
    }

    /// Whether the task was cancelled.
    pub fn is_cancelled(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the task is cancelled. Cancel safe.
    pub async fn cancelled(&self) {
        // The sender lives as long as `self`.
        let _ = self
            .0
            .subscribe()
            .wait_for(|is_cancelled| *is_cancelled)
            .await;
    }

    /// Checks that the task was not cancelled, in functions that return a [`Result`].
    ///
    /// # Errors
    ///
    /// A `CancelledError` of Python's `concurrent.futures` if it was.
    pub fn check(&self) -> Result<(), RemoteError> {
        match self.is_cancelled() {
            true => Err(cancelled()),
            false => Ok(()),
        }
    }
}

fn cancelled() -> RemoteError {
    RemoteError::new(
        "concurrent.futures.CancelledError",
        "the task was cancelled",
    )
}

type Caught<T> = Result<T, Box<dyn core::any::Any + Send>>;

/// Catches a panic of a future.
async fn caught<T>(mut future: BoxFuture<'static, T>) -> Caught<T> {
    core::future::poll_fn(|context| {
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    })
    .await
}

/// Runs a future in a runtime of a thread of its own, and waits for its output.
fn run_on_own_runtime(
    future: impl Future<Output = Caught<Result<Value, RemoteError>>> + Send + 'static,
) -> Caught<Result<Value, RemoteError>> {
    let refused = |error: std::io::Error| {
        let message = format!("the async function cannot run: {error}");
        RemoteError::new("RuntimeError", &message)
    };
    let run = move || match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime.block_on(future),
        Err(error) => Ok(Err(refused(error))),
    };
    match std::thread::Builder::new().spawn(run) {
        Ok(thread) => thread.join().unwrap_or_else(Err),
        Err(error) => Ok(Err(refused(error))),
    }
}

/// An execution of a task.
pub(super) struct Execution {
    shared: Arc<Shared>,
    key: Key,
    start: Duration,
    /// Whether it runs on the thread that received the task, not on one for tasks.
    is_inline: bool,
    /// Locked before the state machine.
    progress: Mutex<Progress>,
}

/// What an execution has done. Contexts may outlive it.
#[derive(Default)]
struct Progress {
    has_seceded: bool,
    has_ended: bool,
    /// Made when a function asks for the context.
    cancellation: Option<Cancellation>,
}

impl Execution {
    pub(super) fn new(shared: Arc<Shared>, key: Key, start: Duration, is_inline: bool) -> Self {
        Self {
            shared,
            key,
            start,
            is_inline,
            progress: Mutex::default(),
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.shared.panic_flag.check(self.progress.lock())
    }

    pub(super) fn context(self: &Arc<Self>) -> Context {
        let mut progress = self.progress();
        let has_ended = progress.has_ended;
        let cancellation = progress.cancellation.get_or_insert_with(|| {
            let cancellation = Cancellation::default();
            let mut machine = self.shared.machine();
            if has_ended || !machine.state.is_wanted(&self.key) {
                cancellation.cancel();
            }
            if !has_ended {
                let key = self.key.clone();
                machine.cancellations.insert(key, cancellation.clone());
            }
            cancellation
        });
        Context {
            cancellation: cancellation.clone(),
            task: Some(Arc::clone(self)),
        }
    }

    /// Ends the execution. Returns whether the task was cancelled, as far as its context says.
    pub(super) fn end(&self) -> bool {
        let mut progress = self.progress();
        progress.has_ended = true;
        if progress.has_seceded {
            threads::set_replaced();
        }
        let Some(cancellation) = &progress.cancellation else {
            return false;
        };
        self.shared.machine().cancellations.remove(&self.key);
        cancellation.is_cancelled()
    }
}
