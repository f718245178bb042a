//! Streams: messages that leave in batches.

use core::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::PeerError;
use crate::channel::Sender;
use crate::protocol::Field;

/// How many messages go into one batch at most, so that one of a million does
/// not take a gigabyte.
const BATCH: usize = 10_000;

/// The writing end of a stream: what is sent within an interval leaves as one
/// message, the first of an idle time at once.
#[derive(Debug)]
pub(crate) struct Batched<T> {
    queue: mpsc::UnboundedSender<T>,
}

impl<T> Clone for Batched<T> {
    fn clone(&self) -> Self {
        Self {
            queue: self.queue.clone(),
        }
    }
}

/// The task that writes a stream.
#[derive(Debug)]
pub(crate) struct Writing {
    /// Until it has ended: a handle gives its result once.
    task: Option<JoinHandle<()>>,
    failure: Option<oneshot::Receiver<PeerError>>,
}

impl<T: Field + Send + Sync + 'static> Batched<T> {
    /// Writes to `sender` in the background. When all clones are dropped, what
    /// is left is sent and the comm closed.
    pub(crate) fn new(sender: Sender, interval: Duration) -> (Self, Writing) {
        Self::after(None::<()>, sender, interval)
    }

    /// The same behind a message that is no batch, as the reply to a registration.
    pub(crate) fn after<G: Field + Send + Sync + 'static>(
        greeting: Option<G>,
        mut sender: Sender,
        interval: Duration,
    ) -> (Self, Writing) {
        let (queue, mut messages) = mpsc::unbounded_channel();
        let (failed, failure) = oneshot::channel();
        let task = tokio::spawn(async move {
            if let Some(greeting) = greeting
                && let Err(error) = sender.send(&greeting).await
            {
                let _ = failed.send(error);
                return;
            }
            let mut batch: Vec<T> = Vec::new();
            let mut next = Instant::now();
            loop {
                if messages.recv_many(&mut batch, BATCH).await == 0 {
                    break;
                }
                // Dask's BatchedSend: not before an interval after the last one.
                if Instant::now() < next {
                    tokio::time::sleep_until(next).await;
                    while batch.len() < BATCH
                        && let Ok(message) = messages.try_recv()
                    {
                        batch.push(message);
                    }
                }
                next = Instant::now() + interval;
                if let Err(error) = sender.send(&batch).await {
                    let _ = failed.send(error);
                    return;
                }
                batch.clear();
                batch.shrink_to(1 << 10);
            }
            if let Err(error) = sender.close().await {
                let _ = failed.send(error);
            }
        });
        let writing = Writing {
            task: Some(task),
            failure: Some(failure),
        };
        (Self { queue }, writing)
    }

    /// Puts a message into the next batch. `false` if the stream is gone.
    pub(crate) fn send(&self, message: impl Into<T>) -> bool {
        self.queue.send(message.into()).is_ok()
    }
}

impl Writing {
    /// Waits until everything has been sent and the comm is closed. Cancel safe; an
    /// error is told once.
    pub(crate) async fn finished(&mut self) -> Result<(), PeerError> {
        if let Some(task) = &mut self.task {
            let _ = task.await;
            self.task = None;
        }
        match self.failure.take() {
            Some(mut failure) => failure.try_recv().map_or(Ok(()), Err),
            None => Ok(()),
        }
    }

    /// Ends it at once.
    pub(crate) fn abort(&self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}
