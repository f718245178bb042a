//! Replies of a scheduler.

use daskwire::message::{BuildError, MessageBuilder};

use daskwire_messages::exception::exception;
use daskwire_messages::protocol::{
    DataReply, Field, HeartbeatReply, Keys, Nullable, ProtocolError, ReplyStatus, Source, Status,
    TaskState,
};
use daskwire_messages::{Key, Serialized, Value};
use daskwire_rpc::RequestError;

/// A reply to a request.
#[derive(Debug)]
pub(super) enum Reply {
    Value(Value),
    Data(DataReply),
    Status(Box<Status>),
    Heartbeat(HeartbeatReply),
    Keys(Keys),
    WhoHas(Vec<(Key, Vec<String>)>),
    HasWhat(Vec<(String, Vec<Key>)>),
    Counts(Vec<(String, u64)>),
    Stages(Vec<(Key, Nullable<TaskState>)>),
    Sizes(Vec<(Key, u64)>),
    /// `"OK"`, after which the comm is closed.
    CloseComm,
    /// `"OK"`, after which the scheduler ends.
    Terminate,
}

impl Field for Reply {
    fn read(source: &mut Source<'_>) -> Result<Self, ProtocolError> {
        Value::read(source).map(Self::Value)
    }

    fn write<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
        match self {
            Self::Value(value) => value.write(to),
            Self::Data(data) => data.write(to),
            Self::Status(status) => status.write(to),
            Self::Heartbeat(reply) => reply.write(to),
            Self::Keys(keys) => keys.write(to),
            Self::WhoHas(who_has) => who_has.write(to),
            Self::HasWhat(has_what) => has_what.write(to),
            Self::Counts(counts) => counts.write(to),
            Self::Stages(stages) => stages.write(to),
            Self::Sizes(sizes) => sizes.write(to),
            Self::CloseComm | Self::Terminate => {
                to.body().str("OK");
                Ok(())
            }
        }
    }
}

/// Returns the reply that Dask sends when a handler raises an exception.
pub(super) fn refused(class: &str, message: &str) -> Reply {
    Reply::Status(Box::new(raised(class, message)))
}

/// Returns the reply to a malformed request.
pub(super) fn uncaught(message: &str) -> Status {
    raised("TypeError", message)
}

impl Reply {
    /// Returns the reply for a failed request to a worker.
    pub(super) fn raised(worker: &str, error: &RequestError) -> Self {
        let exception = raised_by(worker, error);
        Self::Status(Box::new(uncaught_error(exception, error.to_string())))
    }
}

/// Returns the exception for a failed request to a worker: the worker's exception, a
/// `CommClosedError` if it has closed the comm, or another `OSError`.
pub(super) fn raised_by(worker: &str, error: &RequestError) -> Serialized {
    if let RequestError::Remote(error) = error
        && let Some(exception) = &error.serialized
        && exception
            .pickle()
            .is_ok_and(|(_, buffers)| buffers.is_empty())
    {
        return (**exception).clone();
    }
    let class = match error {
        RequestError::Closed { .. } => "distributed.comm.core.CommClosedError",
        _ => "OSError",
    };
    exception(class, &format!("{worker}: {error}"))
}

fn raised(class: &str, message: &str) -> Status {
    uncaught_error(exception(class, message), format!("{class}({message:?})"))
}

fn uncaught_error(exception: Serialized, exception_text: String) -> Status {
    Status {
        status: Some(ReplyStatus::UncaughtError),
        exception: Some(Value::Serialized(exception)),
        traceback: Some(Value::None),
        exception_text: Some(exception_text),
        traceback_text: Some(String::new()),
        ..Status::default()
    }
}

#[cfg(test)]
mod tests {
    use daskwire_messages::RemoteError;

    use super::*;

    #[test]
    fn a_worker_that_ends_raises_the_error_of_a_closed_comm() {
        let peer = "tcp://10.0.0.7:1";
        let error = RequestError::Closed { peer: peer.into() };
        let raised = Value::Serialized(raised_by(peer, &error));
        let raised = RemoteError::of_fields(&raised, None).to_string();
        let expected = "distributed.comm.core.CommClosedError: tcp://10.0.0.7:1: ";
        assert!(raised.starts_with(expected), "{raised}");
    }
}
