//! Registering again after the connection to the scheduler was lost.

use core::time::Duration;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, PoisonError};

use daskwire_comm::runtime::{self, Instant};
use daskwire_comm::{Address, CommOptions, Traffic, Transports};
use daskwire_messages::Release;
use daskwire_rpc::RequestError;
use daskwire_rpc::channel::{Channel, Ends};
use daskwire_rpc::event::{self, emit};

use super::diagnostics::Level;
use super::event::WorkerEvent;
use super::start::{Joined, SchedulerVersions, ask_versions, join};
use super::state::WorkerInput;
use super::{Ended, Shared, StartError, scheduler_plugin};

/// Default time for which a worker tries to register again.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);

/// Pause before the second attempt. It doubles with each, up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(100);

const MAX_PAUSE: Duration = Duration::from_secs(2);

/// Timeout for naming the scheduler, after which the address of before is used.
const FIND_TIMEOUT: Duration = Duration::from_secs(5);

/// Names the scheduler; `None` if it is that of before. May block.
pub(super) type FindScheduler = dyn Fn() -> Option<Address> + Send + Sync;

/// What is needed to register again.
pub(super) struct Rejoin {
    pub(super) transports: Transports,
    pub(super) options: CommOptions,
    pub(super) batch_interval: Duration,
    pub(super) timeout: Duration,
    pub(super) find: Option<Arc<FindScheduler>>,
    /// The release of the scheduler with which the worker has started, if it ran Dask.
    pub(super) release: Option<Release>,
    /// Whether it was one of this project.
    pub(super) is_own: bool,
    /// Whether a plugin is installed in schedulers of Dask.
    pub(super) installs_plugin: bool,
}

/// The reason why an attempt has failed.
enum Failed {
    /// A later one may not.
    ForNow(StartError),
    ForGood(String),
}

impl From<StartError> for Failed {
    fn from(error: StartError) -> Self {
        match &error {
            StartError::Release(_) => Self::ForGood(error.to_string()),
            // The scheduler may not have noticed yet that the former connection is lost.
            StartError::Refused { reason } if !is_about_namesake(reason) => {
                Self::ForGood(error.to_string())
            }
            _ => Self::ForNow(error),
        }
    }
}

/// Whether a worker was refused because of another one with its address or name.
fn is_about_namesake(reason: &str) -> bool {
    let reason = reason.to_lowercase();
    reason.contains("worker already exists") || reason.contains("name taken")
}

impl Shared {
    /// Whether the worker tries to register again after its connection was lost.
    pub(super) fn may_return(&self) -> bool {
        let is_retiring = self.is_retiring.load(core::sync::atomic::Ordering::Relaxed);
        !is_retiring && self.restart.get().is_none() && !self.machine().state.status().is_closing()
    }

    /// Goes on without a connection to the scheduler.
    pub(super) fn disconnect(self: &Arc<Self>, lost: &RequestError, timeout: Duration) {
        self.machine().stream = None;
        self.handle([WorkerInput::Disconnected]);
        self.pool.forget(&self.scheduler());
        self.notice(&format!(
            "the connection to the scheduler was lost, and the worker tries to register again for \
             {} s: {lost}",
            timeout.as_secs_f64()
        ));
    }
}

impl Rejoin {
    /// Tries to register again until the time is over. Returns the reason why the worker ends if it
    /// cannot: `lost`.
    pub(super) async fn run(
        &self,
        shared: &Arc<Shared>,
        lost: &RequestError,
    ) -> Result<Joined, Ended> {
        let deadline = runtime::later(self.timeout);
        let mut pause = FIRST_PAUSE;
        loop {
            let left = deadline.saturating_duration_since(runtime::now());
            let attempt = runtime::timeout(left, self.attempt(shared, deadline)).await;
            match attempt {
                Ok(Ok(joined)) => return Ok(joined),
                Ok(Err(Failed::ForNow(error))) => {
                    let message = format!("the worker cannot register again yet: {error}");
                    shared.log.add(Level::Info, &message);
                }
                Ok(Err(Failed::ForGood(reason))) => {
                    shared.notice(&format!("the worker cannot register again: {reason}"));
                    return Err(Ended::Lost(lost.clone()));
                }
                Err(_) => return Err(Ended::Lost(lost.clone())),
            }
            // Not all workers of a cluster come at once.
            let pausing = pause.mul_f64(0.5 + random() / 2.0);
            if runtime::now() + pausing >= deadline {
                runtime::sleep_until(deadline).await;
                return Err(Ended::Lost(lost.clone()));
            }
            runtime::sleep(pausing).await;
            pause = pause.saturating_mul(2).min(MAX_PAUSE);
        }
    }

    async fn attempt(&self, shared: &Arc<Shared>, deadline: Instant) -> Result<Joined, Failed> {
        let scheduler = self.find(shared).await;
        let left = || deadline.saturating_duration_since(runtime::now());
        let options = self.options.clone().with_connect_retry(false);
        let comm = self
            .transports
            .connect_for(&scheduler, &options, Traffic::Control)
            .await
            .map_err(|error| StartError::from(RequestError::from(error)))?;
        let ends = Ends::new(&shared.name, "scheduler", shared.observer.clone());
        let channel = Channel::new(comm, ends);
        // A comm of before may have broken without notice.
        shared.pool.forget(&scheduler);
        let timeout = self.options.answer_timeout.min(left());
        let versions = ask_versions(&shared.pool, &scheduler, &shared.notify, timeout).await?;
        let SchedulerVersions {
            versions,
            release,
            is_own,
            ..
        } = versions;
        if (release, is_own) != (self.release, self.is_own) {
            return Err(Failed::ForGood(
                "the scheduler is of another release than that of before".to_owned(),
            ));
        }
        if self.installs_plugin && release.is_some() {
            // If it fails, the worker returns tasks that it cannot run.
            let _ = scheduler_plugin::install(&shared.pool, &scheduler).await;
        }
        *shared
            .scheduler
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = scheduler.clone();
        let timeout = self.options.answer_timeout.min(left());
        let interval = self.batch_interval;
        let joined = join(shared, channel, Some(versions), interval, timeout).await?;
        let message = format!(
            "{} is registered with {scheduler} again, and keeps its data",
            shared.title
        );
        shared.log.add(Level::Info, &message);
        emit(event::Level::Info, || WorkerEvent::Notice {
            message: &message,
        });
        shared.notify.notify(&message);
        Ok(joined)
    }

    /// The address of the scheduler, which may have changed.
    async fn find(&self, shared: &Shared) -> Address {
        if let Some(find) = &self.find {
            let find = Arc::clone(find);
            let found = runtime::spawn_blocking(move || find());
            // A file system may not answer.
            if let Ok(Ok(Some(found))) = runtime::timeout(FIND_TIMEOUT, found).await {
                return found;
            }
        }
        shared.scheduler()
    }
}

/// A random number from 0 to 1.
fn random() -> f64 {
    // The hash has random seeds.
    f64::from((RandomState::new().hash_one(()) >> 32) as u32) / f64::from(u32::MAX)
}
