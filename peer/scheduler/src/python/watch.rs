//! Limits of time and memory for the answers of helpers.

use core::time::Duration;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Instant;

use daskwire_comm::runtime::{self, Task};
use daskwire_python::{ChildProcess, anonymous_memory};
use daskwire_rpc::panic_flag::lock_counter;

use super::PythonOptions;
use super::graphs::has_ended;

/// Interval at which the time and the memory of a process are measured.
const PAUSE: Duration = Duration::from_millis(100);

/// Ends a process that takes too long or too much memory, or whose answer is not awaited any
/// more.
#[derive(Debug)]
pub(super) struct Watch {
    process: Arc<Watched>,
    time_limit: Duration,
    memory_limit: Option<u64>,
}

/// The process of an answer, known once it has started.
#[derive(Debug, Default)]
pub(super) struct Watched(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    child: Option<Arc<ChildProcess>>,
    /// When the process had to answer; `None` while it waits.
    since: Option<Instant>,
    /// The reason why the process has to end.
    end: Option<String>,
}

impl Watch {
    /// Creates a watch for one answer, which begins now.
    pub(super) fn new(options: &PythonOptions) -> Self {
        Self {
            process: Arc::default(),
            time_limit: options.time_limit,
            memory_limit: options.memory_limit,
        }
    }

    /// Where the process is set.
    pub(super) fn process(&self) -> Arc<Watched> {
        Arc::clone(&self.process)
    }

    /// Awaits the answer. Dropping the future ends the process.
    ///
    /// # Errors
    ///
    /// Those of the answer, or that a limit is exceeded.
    pub(super) async fn limit<T: Send + 'static>(
        self,
        mut answering: Task<io::Result<T>>,
    ) -> io::Result<T> {
        let answer = loop {
            match runtime::timeout(PAUSE, &mut answering).await {
                Ok(answer) => break answer,
                Err(_) => self.check(),
            }
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => match error.into_panic() {
                Some(panic) => std::panic::resume_unwind(panic),
                None => Err(io::Error::other("the scheduler ends")),
            },
        };
        answer.map_err(|error| self.process.describe(error))
    }
}

impl Watch {
    /// Ends the process if it exceeds a limit.
    fn check(&self) {
        let (child, since) = {
            let state = self.process.lock();
            (state.child.clone(), state.since)
        };
        let (Some(child), Some(since)) = (child, since) else {
            return;
        };
        let limit = self.time_limit;
        if since.elapsed() >= limit {
            let limit = limit.as_secs_f64();
            let why = format!("it took longer than the limit of {limit} s");
            self.process.end(why);
        } else if let Some(limit) = self.memory_limit
            && anonymous_memory(&child.id.to_string()) > limit
        {
            let why = format!("it took more memory than the limit of {limit} bytes");
            self.process.end(why);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Without an answer, since a process is cleared with it.
        self.process
            .end("its answer is not needed any more".to_owned());
    }
}

impl Watched {
    /// Sets the process.
    ///
    /// # Errors
    ///
    /// If it has to end already.
    pub(super) fn set(&self, child: &Arc<ChildProcess>) -> io::Result<()> {
        let mut state = self.lock();
        if let Some(why) = &state.end {
            return Err(io::Error::other(why.clone()));
        }
        state.child = Some(Arc::clone(child));
        state.since = Some(Instant::now());
        Ok(())
    }

    /// Does work for which the process waits, and which does not count as its time.
    pub(super) fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        let used = self.lock().since.take().map(|since| since.elapsed());
        let result = work();
        self.lock().since = used.and_then(|used| Instant::now().checked_sub(used));
        result
    }

    /// Removes the process, which has answered.
    pub(super) fn clear(&self) {
        self.lock().child = None;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock_counter(&self.0)
    }

    /// Ends the process, unless it was ended before or has answered.
    fn end(&self, why: String) {
        let mut state = self.lock();
        if state.end.is_some() {
            return;
        }
        state.end = Some(why);
        if let Some(child) = state.child.take() {
            // Waits for the end of the process, which must not hold up tasks.
            drop(thread::Builder::new().spawn(move || child.end()));
        }
    }

    /// The error of an answer, with the reason for the end of its process if that is what it says.
    fn describe(&self, error: io::Error) -> io::Error {
        let state = self.lock();
        match (&state.end, &state.child) {
            (Some(why), _) => io::Error::new(io::ErrorKind::TimedOut, why.clone()),
            (None, Some(child)) => {
                let child = Arc::clone(child);
                drop(state);
                let end = child.end();
                match has_ended(&error) {
                    true => io::Error::new(error.kind(), end),
                    false => error,
                }
            }
            (None, None) => error,
        }
    }
}
