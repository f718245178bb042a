//! The handshakes under way at a listener, no more than a number of them.
//!
//! Peers that connect and say nothing would otherwise keep a file and a task each
//! until the handshake times out. When there are too many, the oldest gives way: it
//! had the most time, and a peer that means it needs a few milliseconds.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::{Closed, CommError};

/// The handshakes under way at one listener.
#[derive(Clone, Debug)]
pub(crate) struct Handshakes {
    max_count: usize,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the next one.
    next: u64,
    /// Those under way, by number. Dropping the sender ends one.
    under_way: BTreeMap<u64, oneshot::Sender<()>>,
}

impl Handshakes {
    /// For `max_count` handshakes at the same time.
    pub(crate) fn new(max_count: usize) -> Self {
        Self {
            max_count: max_count.max(1),
            state: Arc::default(),
        }
    }

    /// Counts one more, in place of the oldest if there are too many.
    pub(crate) fn begin(&self) -> UnderWay {
        let (sender, displaced) = oneshot::channel();
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.under_way.insert(number, sender);
        if state.under_way.len() > self.max_count {
            state.under_way.pop_first();
        }
        drop(state);
        UnderWay {
            number,
            all: self.clone(),
            displaced,
        }
    }

    /// Ends the oldest.
    pub(crate) fn displace_oldest(&self) {
        self.lock().under_way.pop_first();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No entry depends on another one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A handshake that counts, until this is dropped.
#[derive(Debug)]
pub(crate) struct UnderWay {
    number: u64,
    all: Handshakes,
    displaced: oneshot::Receiver<()>,
}

impl UnderWay {
    /// What the handshake comes to, unless it has to give way before.
    ///
    /// # Errors
    ///
    /// Those of the handshake, and [`Closed::Displaced`].
    pub(crate) async fn limit<T>(
        mut self,
        handshake: impl Future<Output = Result<T, CommError>>,
    ) -> Result<T, CommError> {
        tokio::select! {
            outcome = handshake => outcome,
            _ = &mut self.displaced => Err(Closed::Displaced.into()),
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.all.lock().under_way.remove(&self.number);
    }
}
