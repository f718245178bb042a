//! Access to internals for fuzz targets.

use std::collections::BTreeSet;

use bytes::Bytes;
use daskwire::message::BuildError;

use crate::graph::{Graph, GraphError};
use crate::protocol::{Body, read_batch};
use crate::protocol::{Field, Opener, ProtocolError};
use crate::scheduler::state::State;
use crate::scratch::MessageScratch;
use crate::{Key, Serialized, client, worker};

#[cfg(target_os = "linux")]
pub use crate::worker::python_fuzzing::read_from_python;
pub use crate::worker::store_fuzzing::{Spilled, checksum, read_spill_file};

/// A type that can be the body of a message.
pub trait Message: Sized {
    /// Reads a message, as from a comm.
    ///
    /// # Errors
    ///
    /// If the message is malformed.
    fn decode(frames: &[Bytes]) -> Result<Self, ProtocolError>;

    /// Reads a batch, as from a stream.
    ///
    /// # Errors
    ///
    /// If the batch is malformed.
    fn decode_batch(frames: &[Bytes]) -> Result<Vec<Self>, ProtocolError>;

    /// Encodes a message to frames.
    ///
    /// # Errors
    ///
    /// If the message cannot be built.
    fn encode(&self) -> Result<Vec<Bytes>, BuildError>;
}

impl<T: Field> Message for T {
    fn decode(frames: &[Bytes]) -> Result<Self, ProtocolError> {
        Opener::default().read(frames, T::read)
    }

    fn decode_batch(frames: &[Bytes]) -> Result<Vec<Self>, ProtocolError> {
        Opener::default().read(frames, read_batch)
    }

    fn encode(&self) -> Result<Vec<Bytes>, BuildError> {
        MessageScratch::new().with_frames(&Body(self), |frames| {
            let copy = |frame: &&[u8]| Bytes::copy_from_slice(frame);
            frames.iter().map(copy).collect()
        })
    }
}

/// Makes a payload of a pickle without buffers.
pub fn pickle_payload(pickle: Bytes) -> Serialized {
    Serialized::of_written_pickle(pickle)
}

/// Reads the data that the scheduler keeps for each task of a graph: its key,
/// its dependencies, and the `run_spec` for workers.
///
/// # Errors
///
/// As [`Graph::read`].
pub fn outlines(expression: &Serialized) -> Result<Vec<(Key, Vec<Key>, Serialized)>, GraphError> {
    let outlines = Graph::read_outline(expression, None)?.into_iter();
    Ok(outlines
        .map(|outline| (outline.key, outline.dependencies, outline.run_spec))
        .collect())
}

/// Panics if a scheduler's state is inconsistent. Called between events.
pub fn check_scheduler(state: &State) {
    state.check();
}

/// The names of a scheduler's clients, also of those that are not connected.
pub fn client_names(state: &State) -> Vec<String> {
    state.client_names()
}

/// Panics if a client's state is inconsistent; returns the number of holds with
/// handles. Called between events.
pub fn check_client(state: &client::state::State) -> usize {
    state.check();
    state.hold_count()
}

/// Panics if a worker's state is inconsistent, or if it assumes that other keys
/// than `stored` are in the store. Called between events.
pub fn check_worker(state: &worker::state::State, stored: &BTreeSet<Key>) {
    state.check();
    assert_eq!(state.in_memory(), *stored);
}

/// The keys in a worker's state.
pub fn worker_keys(state: &worker::state::State) -> Vec<Key> {
    state.keys()
}
