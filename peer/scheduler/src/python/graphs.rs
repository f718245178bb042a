//! Conversion of clients' graphs to tasks.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use daskwire_messages::graph::GraphError;
use daskwire_messages::protocol::{ConvertGraph, FromHelper, GraphOrder, Nullable, UpdateGraph};
use daskwire_python::Helper;
use tokio::sync::mpsc;

use super::Python;
use super::watch::Watched;
use crate::state::{ClientId, Conversion, Refusal, RefusalReason, SchedulerInput};

impl Python {
    /// Converts the graph of a client's message to tasks. Sends them to `parts` as they are made, so that
    /// they run meanwhile, and returns the event with the last of them, or all if there is no `parts`.
    /// Dropping the future ends the conversion.
    ///
    /// A graph whose process has ended is converted again, once, and so is one whose tasks cannot be
    /// pickled together.
    ///
    /// # Errors
    ///
    /// [`Refusal`] if Python cannot convert the graph, or exceeds a limit. Parts may have been sent.
    pub(crate) async fn convert(
        self: &Arc<Self>,
        client: ClientId,
        mut message: UpdateGraph,
        parts: Option<mpsc::Sender<SchedulerInput>>,
    ) -> Result<SchedulerInput, Refusal> {
        let request = ConvertGraph {
            expr_ser: core::mem::take(&mut message.expr_ser),
            keys: message.keys.clone(),
            annotations: Nullable(message.annotations.take()),
            ..ConvertGraph::default()
        };
        let mut request = Arc::new(request);
        let keys = message.keys.0.clone();
        let sink = Arc::new(Sink {
            client,
            message,
            parts,
            task_count: AtomicUsize::new(0),
        });
        let mut is_again = false;
        let answer = loop {
            let (sent, sink) = (Arc::clone(&request), Arc::clone(&sink));
            let answer = self.ask(&self.graph_places, move |helper, watched| {
                sink.convert(helper, watched, &sent)
            });
            match answer.await {
                Err(error) if has_ended(&error) && !is_again => is_again = true,
                Err(error) if is_inseparable(&error) && !request.separately => {
                    Arc::make_mut(&mut request).separately = true;
                }
                answer => break answer,
            }
        };
        answer.unwrap_or_else(|error| {
            let error = error.to_string();
            Err(Refusal::new(keys, RefusalReason::Helper { error }))
        })
    }
}

/// Where the tasks of a graph go while it is converted.
struct Sink {
    client: ClientId,
    /// The client's message, without its expression.
    message: UpdateGraph,
    parts: Option<mpsc::Sender<SchedulerInput>>,
    /// The number of tasks that were sent.
    task_count: AtomicUsize,
}

impl Sink {
    /// Has a helper convert the graph. Returns the event with the last part, or with all tasks.
    fn convert(
        &self,
        helper: &mut Helper,
        watched: &Watched,
        request: &ConvertGraph,
    ) -> io::Result<Result<SchedulerInput, Refusal>> {
        // Another conversion may sort or name the tasks otherwise than the one of which these are.
        let earlier_count = self.task_count.load(Ordering::Relaxed);
        let parts = self.parts.as_ref().filter(|_| earlier_count == 0);
        let mut conversion = Some(Conversion::new(self.message.clone()));
        let mut converted = None;
        let answer = helper.request(request, |link, answer| match (answer, &mut converted) {
            (FromHelper::GraphTasks(batch), None) => {
                let is_last = batch.is_last;
                let known = conversion.as_mut().ok_or_else(incomplete)?;
                known.add(batch)?;
                if !is_last {
                    return Ok(());
                }
                known.check()?;
                let conversion = conversion.take().ok_or_else(incomplete)?;
                let (order, ordered) = match watched.during(|| conversion.order()) {
                    Ok((order, ordered)) => (order, Ok(ordered)),
                    Err(refusal) => (Vec::new(), Err(refusal)),
                };
                converted = Some(ordered);
                link.send(&GraphOrder {
                    order,
                    ..GraphOrder::default()
                })
            }
            (FromHelper::GraphPickles(pickles), Some(Ok(converted))) => {
                converted.add(pickles)?;
                if let Some(parts) = parts
                    && !converted.is_complete()
                {
                    let count = converted.ready_count();
                    self.task_count.fetch_add(count, Ordering::Relaxed);
                    let part = converted.take(self.client);
                    // Without a receiver, the client has left, and this process is about to be ended.
                    let _ = watched.during(|| parts.blocking_send(part).is_ok());
                }
                Ok(())
            }
            (other, _) => Err(unexpected(&other)),
        })?;
        if let Err(erred) = answer {
            return Ok(Err(Refusal::raised(self.message.keys.0.clone(), erred)));
        }
        match converted.ok_or_else(incomplete)? {
            Ok(mut converted) if converted.is_complete() => {
                if earlier_count > 0 {
                    converted.continue_after(earlier_count);
                }
                Ok(Ok(converted.take(self.client)))
            }
            Ok(_) => Err(incomplete()),
            Err(refusal) => Ok(Err(refusal)),
        }
    }
}

/// The error for an answer that ends too early.
fn incomplete() -> io::Error {
    io::Error::other("it sent a part of the graph")
}

/// The error for a message that is no part of an answer.
pub(super) fn unexpected(message: &FromHelper) -> io::Error {
    io::Error::other(format!("it sent {:?} in an answer", message.op()))
}

/// Whether an error says that tasks that were pickled together cannot be separated.
fn is_inseparable(error: &io::Error) -> bool {
    error
        .get_ref()
        .is_some_and(|cause| cause.is::<GraphError>())
}

/// Whether an error says that the process has ended by itself, or was ended by others.
pub(super) fn has_ended(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}
