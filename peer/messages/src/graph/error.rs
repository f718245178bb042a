//! The error of reading a graph.

use core::fmt;

use daskwire_pickle::PickleError;
use daskwire_pickle::tree::Node;

use crate::value::ValueError;

/// The error of reading a graph or a task.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum GraphError {
    /// The payload or its pickle is malformed.
    Value(ValueError),
    /// The object is not an expression with a materialized graph, or not a task.
    Unknown {
        /// The type of the object.
        what: String,
    },
    /// An iterable of `client.map` that is not read as data.
    Iterable {
        /// The type of the object.
        what: String,
    },
    /// A tuple in a graph that is a task if its first item is callable, which only Python
    /// knows.
    Callable {
        /// The type of the first item.
        what: String,
    },
    /// An annotation of a layer that is not plain data, such as a function of the key.
    Annotation {
        /// The type of the object.
        what: String,
    },
    /// A part differs from what Dask 2026.8.0 writes.
    Unexpected {
        /// Offset in the pickle, in bytes.
        at: usize,
        /// The expected part.
        expected: &'static str,
    },
}

impl fmt::Display for GraphError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(error) => error.fmt(f),
            Self::Unknown { what } => {
                write!(
                    f,
                    "expected a graph of tasks, found {what}, which only Python can convert to tasks"
                )
            }
            Self::Iterable { what } => {
                write!(
                    f,
                    "client.map: expected a list, tuple, range, set, dict or string of \
                     arguments, found {what}, which only Python can iterate: pass a list"
                )
            }
            Self::Callable { what } => {
                write!(
                    f,
                    "a tuple in the graph begins with {what}, of which only Python knows whether \
                     it is callable: use dask.delayed, or a Task of dask._task_spec"
                )
            }
            Self::Annotation { what } => {
                write!(f, "an annotation of a layer is {what}: expected plain data")
            }
            Self::Unexpected { at, expected } => {
                write!(f, "at byte {at} of the pickle: expected {expected}")
            }
        }
    }
}

impl core::error::Error for GraphError {}

daskwire::kinds! {
    GraphError: |error| match error {
        Self::Value(error) => error.kind(),
        Self::Unknown { .. }
        | Self::Iterable { .. }
        | Self::Callable { .. }
        | Self::Annotation { .. }
        | Self::Unexpected { .. } => ErrorKind::Value,
    };
}

impl From<ValueError> for GraphError {
    fn from(error: ValueError) -> Self {
        Self::Value(error)
    }
}

impl From<daskwire_pickle::WriteError> for GraphError {
    fn from(error: daskwire_pickle::WriteError) -> Self {
        Self::Value(error.into())
    }
}

impl From<PickleError> for GraphError {
    fn from(error: PickleError) -> Self {
        Self::Value(error.into())
    }
}

pub(super) fn unexpected(node: Node<'_, '_>, expected: &'static str) -> GraphError {
    GraphError::Unexpected {
        at: node.offset(),
        expected,
    }
}
