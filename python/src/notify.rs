//! Wakeups of an asyncio event loop by threads that do not hold the GIL.

use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;

/// Wakes an event loop when operations have finished.
///
/// The loop watches the socket `fileno()`, and calls `take()` when it is readable. One byte
/// is sent for all operations that finish before the loop calls `take()`.
#[pyclass(frozen, module = "daskwire._native")]
pub(crate) struct Notifier(Arc<Wakeups>);

/// The part of a [`Notifier`] that is shared with other threads.
pub(crate) struct Wakeups {
    finished: Mutex<Finished>,
    sender: UnixStream,
    receiver: UnixStream,
}

#[derive(Default)]
struct Finished {
    tokens: Vec<u64>,
    /// Buffers of sent frames, which only a thread with the GIL can release.
    sent: Vec<PyBuffer<u8>>,
}

#[pymethods]
impl Notifier {
    #[new]
    fn new() -> io::Result<Self> {
        let (sender, receiver) = UnixStream::pair()?;
        sender.set_nonblocking(true)?;
        receiver.set_nonblocking(true)?;
        Ok(Self(Arc::new(Wakeups {
            finished: Mutex::default(),
            sender,
            receiver,
        })))
    }

    /// Returns the file descriptor of the socket to watch.
    fn fileno(&self) -> i32 {
        self.0.receiver.as_raw_fd()
    }

    /// Returns the tokens of operations that have finished since the last call, and
    /// releases the buffers of sent frames.
    fn take(&self) -> Vec<u64> {
        let finished = {
            let mut finished = self.0.finished();
            // Reads under the lock, so that a byte sent after it is left for a later call.
            let mut bytes = [0; 64];
            while matches!((&self.0.receiver).read(&mut bytes), Ok(count) if count != 0) {}
            core::mem::take(&mut *finished)
        };
        drop(finished.sent);
        finished.tokens
    }
}

impl Notifier {
    /// The part shared with other threads.
    pub(crate) fn wakeups(&self) -> &Arc<Wakeups> {
        &self.0
    }
}

impl Wakeups {
    /// Reports that the operation `token` has finished.
    fn wake(&self, token: u64) {
        self.add(|finished| finished.tokens.push(token));
    }

    /// Hands a buffer to the thread of the event loop, which releases it.
    pub(crate) fn release(&self, buffer: PyBuffer<u8>) {
        self.add(|finished| finished.sent.push(buffer));
    }

    fn add(&self, add: impl FnOnce(&mut Finished)) {
        let mut finished = self.finished();
        let is_first = finished.tokens.is_empty() && finished.sent.is_empty();
        add(&mut finished);
        if is_first {
            // Errors can be ignored: a full socket is readable anyway, and any other error
            // means that the loop is closed.
            let _ = (&self.sender).write(&[0]);
        }
    }

    /// Locks the list. It is consistent even after a panic, as each change is one call.
    fn finished(&self) -> MutexGuard<'_, Finished> {
        self.finished.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A waiting operation of an event loop, which is woken once.
pub(crate) struct Waiter {
    wakeups: Arc<Wakeups>,
    token: u64,
}

impl Waiter {
    /// Creates a waiter for the operation `token` of the loop of `wakeups`.
    pub(crate) fn new(wakeups: &Arc<Wakeups>, token: u64) -> Self {
        Self {
            wakeups: Arc::clone(wakeups),
            token,
        }
    }

    /// Wakes the operation.
    pub(crate) fn wake(self) {
        self.wakeups.wake(self.token);
    }
}

/// The result of a task, for an operation that waits for it.
pub(crate) struct Slot<T>(Mutex<State<T>>);

struct State<T> {
    result: Option<T>,
    waiter: Option<Waiter>,
    /// Whether a result that is set later is dropped.
    is_abandoned: bool,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self(Mutex::new(State {
            result: None,
            waiter: None,
            is_abandoned: false,
        }))
    }
}

impl<T> Slot<T> {
    /// Sets the result and wakes the operation that waits for it.
    pub(crate) fn set(&self, result: T) {
        let mut state = self.state();
        if state.is_abandoned {
            return;
        }
        state.result = Some(result);
        let waiter = state.waiter.take();
        drop(state);
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }

    /// Takes the result; if it is not set yet, stores `waiter` to be woken once it is.
    pub(crate) fn take_or_wait(&self, waiter: Waiter) -> Option<T> {
        let mut state = self.state();
        let result = state.result.take();
        if result.is_none() {
            state.waiter = Some(waiter);
        }
        result
    }

    /// Drops the result, now or once it is set.
    pub(crate) fn abandon(&self) {
        let mut state = self.state();
        state.is_abandoned = true;
        let result = state.result.take();
        drop(state);
        drop(result);
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
