//! Messages as frames, and payloads of pickles.

use bytes::Bytes;
use daskwire::message::BuildError;
use daskwire_messages::graph::{Graph, GraphError};
use daskwire_messages::protocol::{Body, Field, Opener, ProtocolError, read_batch};
use daskwire_messages::scratch::MessageScratch;
use daskwire_messages::{Key, Serialized};

/// A type that can be the body of a message.
pub(crate) trait Message: Sized {
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
pub(crate) fn pickle_payload(pickle: Bytes) -> Serialized {
    Serialized::of_written_pickle(pickle)
}

/// Reads the data that the scheduler keeps for each task of a graph: its key,
/// its dependencies, and the `run_spec` for workers.
///
/// # Errors
///
/// As [`Graph::read`].
pub(crate) fn outlines(
    expression: &Serialized,
) -> Result<Vec<(Key, Vec<Key>, Serialized)>, GraphError> {
    let outlines = Graph::read_outline(expression, None)?.into_iter();
    Ok(outlines
        .map(|outline| {
            let run_spec = outline.run_spec.to_serialized();
            (outline.key, outline.dependencies, run_spec)
        })
        .collect())
}
