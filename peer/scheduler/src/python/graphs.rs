//! Conversion of clients' graphs to tasks.

use std::io;
use std::sync::Arc;

use daskwire_messages::graph::GraphError;
use daskwire_messages::protocol::{ConvertGraph, FromHelper, Nullable, UpdateGraph};

use super::Python;
use crate::state::{Conversion, Refusal, RefusalReason, Submission};

impl Python {
    /// Converts the graph of a client's message to tasks. Dropping the future ends the conversion.
    ///
    /// A graph whose process has ended is converted again, once, and so is one whose tasks cannot be
    /// pickled together.
    ///
    /// # Errors
    ///
    /// [`Refusal`] if Python cannot convert the graph, or exceeds a limit.
    pub(crate) async fn convert(
        self: &Arc<Self>,
        mut message: UpdateGraph,
    ) -> Result<Submission, Refusal> {
        let request = ConvertGraph {
            expr_ser: core::mem::take(&mut message.expr_ser),
            keys: message.keys.clone(),
            annotations: Nullable(message.annotations.take()),
            ..ConvertGraph::default()
        };
        let mut request = Arc::new(request);
        let mut is_again = false;
        let answer = loop {
            let (sent, mut conversion) = (Arc::clone(&request), Conversion::new(&message));
            let answer = self.ask(&self.graph_places, move |helper| {
                let erred = helper.request(&*sent, |part| match part {
                    FromHelper::GraphTasks(batch) => conversion.add(batch),
                    other => Err(unexpected(&other)),
                })?;
                if erred.is_ok() {
                    conversion.check()?;
                }
                Ok(erred.map(|()| conversion))
            });
            match answer.await {
                Err(error) if has_ended(&error) && !is_again => is_again = true,
                Err(error) if is_inseparable(&error) && !request.separately => {
                    Arc::make_mut(&mut request).separately = true;
                }
                answer => break answer,
            }
        };
        match answer {
            Ok(Ok(conversion)) => conversion.finish(message),
            Ok(Err(erred)) => Err(Refusal::raised(message.keys.0, erred)),
            Err(error) => {
                let error = error.to_string();
                let reason = RefusalReason::Helper { error };
                Err(Refusal::new(message.keys.0, reason))
            }
        }
    }
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
