//! Comms of Dask over any stream of bytes: what Dask's schedulers, workers and
//! clients keep between them, and what transports have in common.
//!
//! A *comm* is one connection with messages on it, after a handshake. Messages
//! are lists of frames here; what is in them is the business of the
//! [`daskwire`](wire) crate. Transports are crates of their own: `daskwire-tcp`
//! has `tcp://`, `tls://` and `unix://`, `daskwire-quic` has `quic://`.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use daskwire_comm::{Address, Comm, CommOptions};
//!
//! // Any stream: one pipe for each direction.
//! let (near_writer, far_reader) = tokio::io::duplex(1024);
//! let (far_writer, near_reader) = tokio::io::duplex(1024);
//! let address: Address = "inproc://example".parse()?;
//! let ends = || (address.clone(), address.clone());
//! let options = CommOptions::default();
//! let (near, far) = tokio::join!(
//!     Comm::establish(near_reader, near_writer, ends(), &options),
//!     Comm::establish(far_reader, far_writer, ends(), &options),
//! );
//! let (mut near, mut far) = (near?, far?);
//! near.write_message(&[b"\x81\xa2op\xa4ping"]).await?;
//! let message = far.read_message().await?.expect("a message");
//! assert_eq!(message[0][..], b"\x81\xa2op\xa4ping"[..]);
//! # Ok(())
//! # }
//! ```
//!
//! # What a peer can do to us
//!
//! * Before the handshake it gets [`Limits::HANDSHAKE`](wire::Limits::HANDSHAKE)
//!   and a deadline, afterwards the limits of [`CommOptions`]. Memory grows with
//!   what arrives, never with what is announced.
//! * Over `tcp://` nothing is encrypted or authenticated, as in Dask without
//!   TLS: everybody who reaches the port is in. Bind to the loopback or to a
//!   network that you trust, or use `tls://`; the module `tls` says whom that
//!   lets in.
//!
//! # Features
//!
//! * `tls`: the module `tls`, with the crypto provider of the caller;
//! * `ring`, `aws-lc-rs`: a crypto provider. `ring` is used if both are on;
//! * `conformance`: the battery of checks that every transport must pass.
#![forbid(unsafe_code)]
// Streams are std's; only the core can do without it.
#![allow(clippy::std_instead_of_alloc)]

mod address;
mod comm;
#[cfg(feature = "conformance")]
pub mod conformance;
mod error;
mod frames;
mod handshakes;
mod inproc;
mod linger;
mod pool;
mod reader;
#[cfg(feature = "tls")]
pub mod tls;
mod writer;

pub use address::{Address, AddressError, Scheme};
pub use comm::{
    Agreement, Comm, CommOptions, Encryption, RawConnection, ReadHalf, Role, WireFormat, WriteHalf,
};
pub use error::{Closed, CommError, Phase};
pub use frames::Frames;
pub use handshakes::{Handshakes, UnderWay};
pub use inproc::{InprocListener, InprocStream};
pub use linger::lingering;
pub use pool::BufferPool;
pub use reader::CommReader;
pub use writer::CommWriter;

pub use bytes::Bytes;
