//! Pickles, read without Python: protocols 0 to 5, with out-of-band buffers
//! ([PEP 574]).
//!
//! A pickle is a program for a small stack machine, and loading one runs it: it
//! may import and call anything. Nothing here does. What is here takes the
//! program apart, and writes programs that build plain values.
//!
//! [PEP 574]: https://peps.python.org/pep-0574/

mod opcode;
mod pickle_buffer;
mod writer;

pub use opcode::{Form, Opcode};
pub use pickle_buffer::{Mutability, PickleBuffer, PickleBufferError, Placement};
pub use writer::{Framing, Level, Options, Protocol, WriteError, Writer};
