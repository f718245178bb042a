//! What a function can learn about the task that calls it, and do on its behalf.

use core::fmt;
use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::task::Poll;

use daskwire_comm::BoxFuture;
use daskwire_messages::protocol::LogEvent;
use daskwire_messages::{Key, RemoteError, Value};
use tokio::sync::watch;

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
    task: Option<Arc<Running>>,
    cancellation: Cancellation,
}

/// A task whose function has asked for its context.
struct Running {
    shared: Arc<Shared>,
    key: Key,
    start: Duration,
    has_seceded: AtomicBool,
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
    pub fn log_event(&self, topic: &str, event: impl Into<Value>) {
        let Some(task) = &self.task else {
            return;
        };
        if let Some(stream) = &task.shared.machine().stream {
            stream.send(LogEvent {
                topic: topic.into(),
                msg: event.into(),
                ..LogEvent::default()
            });
        }
    }

    /// Stops counting the task towards the number of threads, so that the worker starts another
    /// one, as `secede()` in Python does. A function that waits for other tasks does this first:
    /// otherwise, no thread may be left to run them. It holds for the rest of the task.
    ///
    /// # Errors
    ///
    /// A `RuntimeError` if the system refuses a further thread; then nothing changes.
    pub fn secede(&self) -> Result<(), RemoteError> {
        let Some(task) = &self.task else {
            return Ok(());
        };
        if task.has_seceded.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        if let Err(error) = threads::start_one(&task.shared, "task") {
            task.has_seceded.store(false, Ordering::Release);
            let message = format!("the task cannot secede: {error}");
            return Err(RemoteError::new("RuntimeError", &message));
        }
        task.shared.handle([WorkerInput::Seceded {
            key: task.key.clone(),
            run_time: now().saturating_sub(task.start),
        }]);
        Ok(())
    }

    /// A client of the worker's scheduler, with the transports of the worker. The first call
    /// connects it; the tasks of the worker share it, and it is closed when the worker ends.
    ///
    /// [Secede](Self::secede) before waiting for tasks.
    ///
    /// # Errors
    ///
    /// A `RuntimeError` if it cannot connect, or if there is no task.
    #[cfg(feature = "client")]
    pub async fn client(&self) -> Result<daskwire_client::Client, RemoteError> {
        let Some(task) = &self.task else {
            let message = "a function that no task calls has no client";
            return Err(RemoteError::new("RuntimeError", message));
        };
        let shared = &task.shared;
        let connecting = shared.client.get_or_try_init(|| async {
            let options = shared.client_options.clone();
            daskwire_client::Client::connect_with(&shared.scheduler.to_string(), options).await
        });
        match connecting.await {
            Ok(client) => Ok(client.clone()),
            Err(error) => Err(RemoteError::of_error(Box::new(error))),
        }
    }

    pub(super) fn cancel(&self) {
        self.cancellation.0.send_replace(true);
    }

    /// Runs the future of a function in the executor of the worker, and waits for its output on
    /// this thread. Cancellation drops the future.
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
            Some(task) => {
                let (sender, receiver) = mpsc::sync_channel(1);
                let running = async move { drop(sender.send(running.await)) };
                drop(task.shared.runtime.spawn(running));
                receiver.recv()
            }
            None => Ok(block_on(running)),
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

/// Runs a future on this thread.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);

    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = core::task::Context::from_waker(&waker);
    let mut future = core::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// An execution of a task. Its context is made when a function asks for it.
pub(super) struct Execution {
    shared: Arc<Shared>,
    key: Key,
    start: Duration,
    context: OnceLock<Context>,
}

impl Execution {
    pub(super) const fn new(shared: Arc<Shared>, key: Key, start: Duration) -> Self {
        Self {
            shared,
            key,
            start,
            context: OnceLock::new(),
        }
    }

    pub(super) fn context(&self) -> &Context {
        self.context.get_or_init(|| {
            let context = Context {
                task: Some(Arc::new(Running {
                    shared: Arc::clone(&self.shared),
                    key: self.key.clone(),
                    start: self.start,
                    has_seceded: AtomicBool::new(false),
                })),
                cancellation: Cancellation::default(),
            };
            let mut machine = self.shared.machine();
            if !machine.state.is_wanted(&self.key) {
                context.cancel();
            }
            machine.contexts.insert(self.key.clone(), context.clone());
            context
        })
    }

    /// Ends the execution. Returns whether the task was cancelled, as far as its context says.
    pub(super) fn end(&self) -> bool {
        let Some(context) = self.context.get() else {
            return false;
        };
        self.shared.machine().contexts.remove(&self.key);
        let has_seceded = context.task.as_ref();
        if has_seceded.is_some_and(|task| task.has_seceded.load(Ordering::Acquire)) {
            threads::set_replaced();
        }
        context.is_cancelled()
    }
}
