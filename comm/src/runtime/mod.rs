//! Executors: the tasks, timers and sockets of comms, transports and roles.
//!
//! Comms, transports, clients, workers and schedulers start tasks and wait for
//! timers through the functions of this module, so that they run on any
//! executor. The executor is the first of:
//!
//! 1. the one of the [`scope`] that the task runs in;
//! 2. tokio, in a task or a thread of a tokio runtime, with the feature `runtime-tokio`;
//! 3. smol, with the feature `runtime-smol`.
//!
//! Nothing is installed for the process: a program may use several executors, each within a
//! scope of its own.
//!
//! Channels, `select!` and the I/O traits of tokio are used as well; they work on
//! any executor. Only `unix://` and the `daskwire` command need tokio as the executor.
//! On other executors, `quic://` needs the timers and sockets of smol: its feature
//! `runtime-smol`.
//!
//! tokio's tasks, timers and sockets are used directly. A [`Runtime`] costs a few more
//! allocations for each task, timer and connection, and none for a message.

mod addresses;
mod scope;
#[cfg(feature = "runtime-smol")]
mod smol;
mod task;

use core::fmt;
use core::future::poll_fn;
use core::net::SocketAddr;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::sync::Arc;
#[cfg(feature = "runtime-smol")]
use std::sync::LazyLock;

use tokio::io::{AsyncRead, AsyncWrite};
#[cfg(feature = "runtime-tokio")]
use tokio::runtime::{Handle, RuntimeFlavor};

/// A point in time, of the clock of tokio with the feature `runtime-tokio`.
#[cfg(not(feature = "runtime-tokio"))]
pub type Instant = std::time::Instant;
/// A point in time, of the clock of tokio with the feature `runtime-tokio`.
#[cfg(feature = "runtime-tokio")]
pub type Instant = tokio::time::Instant;

pub use self::addresses::{first_to_connect, lookup_host};
use self::scope::Scoped;
pub use self::scope::scope;
#[cfg(feature = "runtime-smol")]
pub use self::smol::Smol;
pub use self::task::{Task, TaskError, TaskSet};
use crate::BoxFuture;

/// Polls once, for what is dropped and cannot wait: outside of the budget of tokio's tasks, after
/// which their operations seem to have no room.
#[doc(hidden)]
pub fn poll_now<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
    let once = poll_fn(|context| Poll::Ready(poll(context)));
    #[cfg(feature = "runtime-tokio")]
    let once = tokio::task::coop::unconstrained(once);
    match pin!(once).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => Poll::Pending,
    }
}

/// An executor other than tokio.
///
/// # Examples
///
/// An executor that uses threads for tasks and timers, and has no sockets:
///
/// ```standalone_crate
/// use daskwire_comm::BoxFuture;
/// use daskwire_comm::runtime::{self, Instant, Runtime};
///
/// #[derive(Debug)]
/// struct Threads;
///
/// impl Runtime for Threads {
///     fn spawn(&self, task: BoxFuture<'static, ()>) {
///         std::thread::spawn(|| futures_executor::block_on(task));
///     }
///
///     fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()> {
///         Box::pin(async move {
///             let left = deadline.saturating_duration_since(Instant::now());
///             runtime::spawn_blocking(move || std::thread::sleep(left)).await.unwrap_or(());
///         })
///     }
/// }
///
/// let sum = runtime::scope(Threads, async { runtime::spawn(async { 1 + 1 }).await });
/// assert_eq!(futures_executor::block_on(sum).ok(), Some(2));
/// ```
pub trait Runtime: fmt::Debug + Send + Sync + 'static {
    /// Starts a task. The task does not panic.
    fn spawn(&self, task: BoxFuture<'static, ()>);

    /// Returns a future that is ready at `deadline`.
    fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()>;

    /// The current time. Default: [`Instant::now`].
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Runs a function that blocks, outside of the threads of tasks. Default: a new
    /// thread for each.
    fn spawn_blocking(&self, function: Box<dyn FnOnce() + Send>) {
        drop(std::thread::Builder::new().spawn(function));
    }

    /// Connects a TCP socket. Default: a blocking call on
    /// [`Runtime::spawn_blocking`].
    ///
    /// # Errors
    ///
    /// Those of the system.
    fn connect_tcp(
        &self,
        address: SocketAddr,
    ) -> BoxFuture<'static, io::Result<std::net::TcpStream>> {
        Box::pin(async move {
            let connecting = spawn_blocking(move || std::net::TcpStream::connect(address));
            connecting.await.unwrap_or_else(|_| Err(ended()))
        })
    }

    /// Makes a stream of a connected TCP socket, which is non-blocking. The first poll of its
    /// shutdown must end the stream for the peer, as `shutdown` of a socket does.
    ///
    /// # Errors
    ///
    /// Those of the system, and [`io::ErrorKind::Unsupported`], the default, if
    /// this executor has no sockets.
    fn tcp_stream(&self, socket: std::net::TcpStream) -> io::Result<Box<dyn Stream>> {
        drop(socket);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Makes a listener of a listening TCP socket, which is non-blocking.
    ///
    /// # Errors
    ///
    /// As [`Runtime::tcp_stream`].
    fn tcp_listener(&self, socket: std::net::TcpListener) -> io::Result<Box<dyn AcceptTcp>> {
        drop(socket);
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A stream of bytes in both directions.
pub trait Stream: AsyncRead + AsyncWrite + Send + Sync + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> Stream for T {}

/// A listening TCP socket that an executor waits on.
pub trait AcceptTcp: Send + Sync {
    /// Waits for the next connection.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future must not lose a connection.
    ///
    /// # Errors
    ///
    /// Those of the system.
    fn accept(&self) -> BoxFuture<'_, io::Result<(std::net::TcpStream, SocketAddr)>>;
}

/// The executor of this task or thread, if it is not tokio.
fn other_than_tokio() -> Option<Arc<dyn Runtime>> {
    if let Some(runtime) = scope::current() {
        return Some(runtime);
    }
    #[cfg(feature = "runtime-smol")]
    if !is_in_tokio() {
        static SMOL: LazyLock<Arc<dyn Runtime>> = LazyLock::new(|| Arc::new(Smol));
        return Some(Arc::clone(&SMOL));
    }
    None
}

/// Whether this is a task or a thread of a tokio runtime.
#[cfg(feature = "runtime-smol")]
fn is_in_tokio() -> bool {
    #[cfg(feature = "runtime-tokio")]
    return Handle::try_current().is_ok();
    #[cfg(not(feature = "runtime-tokio"))]
    false
}

/// A handle that starts tasks on one executor, also from threads outside of it, as
/// destructors need. Cloning it is cheap.
#[derive(Clone, Debug)]
pub struct Spawner(Executor);

#[derive(Clone, Debug)]
enum Executor {
    #[cfg(feature = "runtime-tokio")]
    Tokio(Handle),
    Other(Arc<dyn Runtime>),
}

impl Spawner {
    /// The executor of this task.
    ///
    /// # Panics
    ///
    /// Outside of an executor.
    pub fn current() -> Self {
        match Self::try_current() {
            Ok(spawner) => spawner,
            Err(error) => panic!("{error}"),
        }
    }

    /// The executor of this task.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::Other`] outside of an executor.
    pub fn try_current() -> io::Result<Self> {
        if let Some(runtime) = other_than_tokio() {
            return Ok(Self(Executor::Other(runtime)));
        }
        #[cfg(feature = "runtime-tokio")]
        return match Handle::try_current() {
            Ok(handle) => Ok(Self(Executor::Tokio(handle))),
            Err(error) => Err(io::Error::other(error)),
        };
        #[cfg(not(feature = "runtime-tokio"))]
        Err(io::Error::other(
            "this is no task of an executor: see runtime::scope",
        ))
    }

    /// Starts a task. Dropping the [`Task`] does not end it.
    pub fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Task<T> {
        // Boxed, so that the code of an executor's tasks is compiled once for each `T`.
        let task: BoxFuture<'static, T> = Box::pin(task);
        match &self.0 {
            #[cfg(feature = "runtime-tokio")]
            Executor::Tokio(handle) => Task::tokio(handle.spawn(task)),
            Executor::Other(runtime) => {
                let scoped = Scoped::new(Arc::clone(runtime), task);
                let (task, handle) = Task::with_handle(scoped);
                runtime.spawn(Box::pin(task));
                handle
            }
        }
    }

    /// Runs a function that blocks, outside of the threads of tasks. It cannot be
    /// aborted once it runs.
    pub fn spawn_blocking<T: Send + 'static>(
        &self,
        function: impl FnOnce() -> T + Send + 'static,
    ) -> Task<T> {
        let function: Box<dyn FnOnce() -> T + Send> = Box::new(function);
        match &self.0 {
            #[cfg(feature = "runtime-tokio")]
            Executor::Tokio(handle) => Task::tokio(handle.spawn_blocking(function)),
            Executor::Other(runtime) => {
                let entered = Arc::clone(runtime);
                let (function, handle) = Task::blocking(move || {
                    let _scope = scope::enter(entered);
                    function()
                });
                runtime.spawn_blocking(Box::new(function));
                handle
            }
        }
    }

    /// Whether a task of this executor can wake the caller without waking another
    /// thread. `false` in `block_on` of tokio's multi-threaded executor.
    pub fn wakes_caller_cheaply(&self) -> bool {
        match &self.0 {
            #[cfg(feature = "runtime-tokio")]
            Executor::Tokio(handle) => {
                tokio::task::try_id().is_some()
                    || handle.runtime_flavor() == RuntimeFlavor::CurrentThread
            }
            Executor::Other(_) => true,
        }
    }
}

/// Starts a task on the current executor. Dropping the [`Task`] does not end it.
///
/// # Panics
///
/// Outside of an executor.
pub fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> Task<T> {
    Spawner::current().spawn(task)
}

/// Runs a function that blocks, outside of the threads of tasks. It cannot be aborted
/// once it runs.
///
/// # Panics
///
/// Outside of an executor.
pub fn spawn_blocking<T: Send + 'static>(function: impl FnOnce() -> T + Send + 'static) -> Task<T> {
    Spawner::current().spawn_blocking(function)
}

/// The current time of the clock that timers use.
pub fn now() -> Instant {
    match scope::current() {
        Some(runtime) => runtime.now(),
        None => Instant::now(),
    }
}

/// The time `after` from now, saturating at a distant future.
pub fn later(after: Duration) -> Instant {
    const LIFETIME: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
    now() + after.min(LIFETIME)
}

/// Lets other tasks of the executor run, and tokio look for I/O. Cancel safe.
pub async fn yield_now() {
    #[cfg(feature = "runtime-tokio")]
    tokio::task::yield_now().await;
    #[cfg(not(feature = "runtime-tokio"))]
    {
        let mut is_woken = false;
        poll_fn(|context| match core::mem::replace(&mut is_woken, true) {
            true => Poll::Ready(()),
            false => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
        })
        .await;
    }
}

/// Waits for a duration.
///
/// # Panics
///
/// When polled outside of an executor.
pub async fn sleep(duration: Duration) {
    sleep_until(later(duration)).await;
}

/// Waits until a deadline.
///
/// # Panics
///
/// When polled outside of an executor.
pub async fn sleep_until(deadline: Instant) {
    match other_than_tokio() {
        Some(runtime) => runtime.sleep_until(deadline).await,
        #[cfg(feature = "runtime-tokio")]
        None => tokio::time::sleep_until(deadline).await,
        #[cfg(not(feature = "runtime-tokio"))]
        None => drop(Spawner::current()),
    }
}

/// The error of a timeout: the deadline has passed, and the future was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the deadline has passed")
    }
}

impl core::error::Error for Elapsed {}

daskwire::kinds! {
    Elapsed: |_| ErrorKind::Timeout;
}

/// Awaits a future for at most `after`.
///
/// # Errors
///
/// [`Elapsed`]; the future has been dropped.
pub async fn timeout<F: Future>(after: Duration, future: F) -> Result<F::Output, Elapsed> {
    timeout_at(later(after), future).await
}

/// Awaits a future until `deadline` at the latest.
///
/// # Errors
///
/// [`Elapsed`]; the future has been dropped.
pub async fn timeout_at<F: Future>(deadline: Instant, future: F) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    // On tokio, `future` may have used up the budget of this task, which would keep the
    // timer pending.
    let timer = sleep_until(deadline);
    #[cfg(feature = "runtime-tokio")]
    let timer = tokio::task::coop::unconstrained(timer);
    let mut timer = pin!(timer);
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Ok(output)),
        Poll::Pending => timer.as_mut().poll(context).map(|()| Err(Elapsed)),
    })
    .await
}

/// The runtime whose TCP sockets this task must use; `None` for tokio, whose sockets
/// transports use directly.
pub fn sockets() -> Option<Arc<dyn Runtime>> {
    other_than_tokio()
}

/// The I/O error of a task that ended with its executor.
fn ended() -> io::Error {
    io::Error::other("the executor has ended")
}

/// A random duration below `max`.
pub(crate) fn jitter(max: Duration) -> Duration {
    // The keys of each `RandomState` are random.
    let random = RandomState::new().hash_one(0_u8);
    max.mul_f64((random >> 11) as f64 / (1_u64 << 53) as f64)
}
