//! What comms and transports ask of the executor: tasks and timers. Everything
//! else that they use of tokio works on any executor.

use core::time::Duration;
use std::hash::{BuildHasher as _, RandomState};

use tokio::runtime::Handle;
pub use tokio::time::Instant;
pub use tokio::time::error::Elapsed;

/// The time.
pub fn now() -> Instant {
    Instant::now()
}

/// A time from now. More than a lifetime is a lifetime.
pub fn later(after: Duration) -> Instant {
    const LIFETIME: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
    now() + after.min(LIFETIME)
}

/// Waits.
pub async fn sleep(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// What a future comes to, unless it takes longer than `after`.
///
/// # Errors
///
/// [`Elapsed`]; the future has been dropped.
pub async fn timeout<F: Future>(after: Duration, future: F) -> Result<F::Output, Elapsed> {
    tokio::time::timeout(after, future).await
}

/// What a future comes to, unless it takes until `deadline`.
///
/// # Errors
///
/// [`Elapsed`]; the future has been dropped.
pub async fn timeout_at<F: Future>(deadline: Instant, future: F) -> Result<F::Output, Elapsed> {
    tokio::time::timeout_at(deadline, future).await
}

/// Starts tasks on the executor of the task that made it, also from a thread that
/// belongs to none, as destructors do.
#[derive(Clone, Debug)]
pub struct Spawner(Handle);

impl Spawner {
    /// That of this task.
    ///
    /// # Panics
    ///
    /// Outside of an executor.
    pub fn current() -> Self {
        Self(Handle::current())
    }

    /// Starts a task that ends by itself.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.0.spawn(task));
    }
}

/// Anything from nothing to `most`.
pub(crate) fn jitter(most: Duration) -> Duration {
    // Every RandomState has other keys.
    let random = RandomState::new().hash_one(0_u8);
    most.mul_f64((random >> 11) as f64 / (1_u64 << 53) as f64)
}
