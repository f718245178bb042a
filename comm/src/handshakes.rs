//! The limit of unfinished handshakes at a listener.
//!
//! Peers that connect and send nothing would otherwise occupy a file descriptor and a
//! task each until the handshake times out. Beyond the limit the oldest handshake is
//! ended: it had the most time, and a working peer needs a few milliseconds.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::{Closed, CommError};

/// The unfinished handshakes of one listener.
#[derive(Clone, Debug)]
pub(crate) struct Handshakes {
    max_count: usize,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the next handshake.
    next: u64,
    /// The unfinished handshakes by number. Dropping a sender ends its handshake.
    pending: BTreeMap<u64, oneshot::Sender<()>>,
}

impl Handshakes {
    /// Creates a limit of `max_count` unfinished handshakes.
    pub(crate) fn new(max_count: usize) -> Self {
        Self {
            max_count: max_count.max(1),
            state: Arc::default(),
        }
    }

    /// Registers a handshake, and ends the oldest one if there are too many.
    pub(crate) fn register(&self) -> PendingHandshake {
        let (sender, displaced) = oneshot::channel();
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.pending.insert(number, sender);
        let is_full = state.pending.len() > self.max_count;
        let oldest = is_full.then(|| state.pending.pop_first());
        drop(state);
        drop(oldest);
        PendingHandshake {
            number,
            handshakes: self.clone(),
            displaced,
        }
    }

    /// Ends the oldest handshake.
    pub(crate) fn displace_oldest(&self) {
        let oldest = self.lock().pending.pop_first();
        drop(oldest);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Never poisoned: nothing under the lock panics. What may panic is the waker of a
        // handshake, and senders are dropped, which wakes it, without the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A registered handshake; dropping this removes it from the count.
#[derive(Debug)]
pub(crate) struct PendingHandshake {
    number: u64,
    handshakes: Handshakes,
    displaced: oneshot::Receiver<()>,
}

impl PendingHandshake {
    /// Runs the handshake until it is done or displaced.
    ///
    /// # Errors
    ///
    /// Those of the handshake, and [`Closed::Displaced`].
    pub(crate) async fn run<T>(
        mut self,
        handshake: impl Future<Output = Result<T, CommError>>,
    ) -> Result<T, CommError> {
        tokio::select! {
            outcome = handshake => outcome,
            _ = &mut self.displaced => Err(Closed::Displaced.into()),
        }
    }
}

impl Drop for PendingHandshake {
    fn drop(&mut self) {
        let sender = self.handshakes.lock().pending.remove(&self.number);
        drop(sender);
    }
}
