//! Streams that yield futures in the order in which they are done.

use core::future::poll_fn;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::collections::VecDeque;
use std::sync::Arc;

use daskwire_messages::Value;
use futures_util::Stream;
use tokio::sync::mpsc;

use super::future::Watcher;
use super::{TaskError, TaskFuture};
use daskwire_comm::BoxFuture;

/// A future that is done, with its index: the position in the list given to
/// [`Client::as_completed`](super::Client::as_completed), or the number that
/// [`AsCompleted::add`] returned.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Completed {
    /// The index.
    pub index: usize,
    /// The future, which is done, successfully or not.
    pub future: TaskFuture,
}

/// A stream that yields futures in the order in which they are done.
///
/// ```no_run
/// # async fn example(client: &daskwire_peer::Client) -> Result<(), daskwire_peer::Error> {
/// let squares = client.map("native:square", 0..100_i64)?;
/// let mut results = client.as_completed(squares).results();
/// while let Some((index, result)) = results.next().await {
///     println!("{index}: {}", result?);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AsCompleted {
    futures: Vec<Option<TaskFuture>>,
    /// Number of futures that were not yielded yet.
    left: usize,
    sender: mpsc::UnboundedSender<usize>,
    done: mpsc::UnboundedReceiver<usize>,
}

impl AsCompleted {
    pub(super) fn new(futures: impl IntoIterator<Item = TaskFuture>) -> Self {
        let (sender, done) = mpsc::unbounded_channel();
        let mut this = Self {
            futures: Vec::new(),
            left: 0,
            sender,
            done,
        };
        for future in futures {
            this.add(future);
        }
        this
    }

    /// Adds a future, for example of a task that was submitted because of a result.
    /// Returns its index: the number of futures added before.
    pub fn add(&mut self, future: TaskFuture) -> usize {
        let index = self.futures.len();
        future.watch(Watcher::Many(index, self.sender.clone()));
        self.futures.push(Some(future));
        self.left += 1;
        index
    }

    /// Number of futures that have not been yielded yet. `count()` in Dask.
    pub const fn len(&self) -> usize {
        self.left
    }

    /// Whether all futures were yielded.
    pub const fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// The next future that is done, successfully or not; `None` if all were yielded.
    /// Cancel safe.
    pub async fn next(&mut self) -> Option<Completed> {
        poll_fn(|context| self.poll_completed(context)).await
    }

    /// The futures that are done, at least one; `None` if all were yielded. Cancel safe.
    pub async fn next_batch(&mut self) -> Option<Vec<Completed>> {
        let first = self.next().await?;
        let mut batch = vec![first];
        while let Some(completed) = self.try_next() {
            batch.push(completed);
        }
        Some(batch)
    }

    /// The next future that is done; `None` if no further one is done at the moment.
    pub fn try_next(&mut self) -> Option<Completed> {
        loop {
            let index = self.done.try_recv().ok()?;
            if let Some(completed) = self.take(index) {
                return Some(completed);
            }
        }
    }

    /// Converts this into a stream of results. Results that are ready at the same time
    /// are fetched together.
    pub fn results(self) -> Results {
        Results {
            completed: self,
            fetching: None,
            ready: VecDeque::new(),
        }
    }

    fn take(&mut self, index: usize) -> Option<Completed> {
        let future = self.futures.get_mut(index)?.take()?;
        self.left -= 1;
        Some(Completed { index, future })
    }

    fn poll_completed(&mut self, context: &mut Context<'_>) -> Poll<Option<Completed>> {
        while self.left > 0 {
            let Some(index) = ready!(self.done.poll_recv(context)) else {
                break;
            };
            if let Some(completed) = self.take(index) {
                return Poll::Ready(Some(completed));
            }
        }
        Poll::Ready(None)
    }
}

impl Stream for AsCompleted {
    type Item = Completed;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Completed>> {
        self.poll_completed(context)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

/// The result of the future with an index.
type Indexed = (usize, Result<Value, TaskError>);

/// A stream that yields results in the order in which they are done, see
/// [`AsCompleted::results`].
pub struct Results {
    completed: AsCompleted,
    fetching: Option<BoxFuture<'static, VecDeque<Indexed>>>,
    ready: VecDeque<Indexed>,
}

impl core::fmt::Debug for Results {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Results")
            .field("completed", &self.completed)
            .finish_non_exhaustive()
    }
}

impl Results {
    /// Adds a future, as [`AsCompleted::add`].
    pub fn add(&mut self, future: TaskFuture) -> usize {
        self.completed.add(future)
    }

    /// The next result with the index of its future; `None` after the last. Cancel
    /// safe.
    pub async fn next(&mut self) -> Option<(usize, Result<Value, TaskError>)> {
        poll_fn(|context| self.poll_result(context)).await
    }

    fn poll_result(&mut self, context: &mut Context<'_>) -> Poll<Option<Indexed>> {
        loop {
            if let Some(result) = self.ready.pop_front() {
                return Poll::Ready(Some(result));
            }
            if let Some(fetching) = &mut self.fetching {
                self.ready = ready!(fetching.as_mut().poll(context));
                self.fetching = None;
                continue;
            }
            let Some(first) = ready!(self.completed.poll_completed(context)) else {
                return Poll::Ready(None);
            };
            let mut batch = vec![first];
            while let Some(next) = self.completed.try_next() {
                batch.push(next);
            }
            self.fetching = Some(Box::pin(fetch(batch)));
        }
    }
}

impl Stream for Results {
    type Item = (usize, Result<Value, TaskError>);

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_result(context)
    }
}

/// Fetches the results of futures that are done, with their indexes.
async fn fetch(batch: Vec<Completed>) -> VecDeque<Indexed> {
    let mut results = VecDeque::with_capacity(batch.len());
    let mut finished: Vec<Completed> = Vec::with_capacity(batch.len());
    for completed in batch {
        match completed.future.finished().await {
            Ok(()) => finished.push(completed),
            Err(error) => results.push_back((completed.index, Err(error))),
        }
    }
    let futures: Vec<TaskFuture> = finished
        .iter()
        .map(|completed| completed.future.clone())
        .collect();
    let Some(shared) = futures.first().map(|future| Arc::clone(future.shared())) else {
        return results;
    };
    let is_of_one_client = futures
        .iter()
        .all(|future| Arc::ptr_eq(future.shared(), &shared));
    let together = match is_of_one_client {
        true => shared.gather(&futures, shared.route()).await.ok(),
        false => None,
    };
    match together {
        Some(all) => {
            for (completed, serialized) in finished.into_iter().zip(all) {
                let result = super::data::opened(completed.future.key(), serialized, &mut 0);
                results.push_back((completed.index, result));
            }
        }
        // A result is lost: fetch the others one by one.
        None => {
            for completed in finished {
                results.push_back((completed.index, completed.future.result().await));
            }
        }
    }
    results
}
