//! Comms of Dask over any stream of bytes: what Dask's schedulers, workers and
//! clients keep between them, and what transports have in common.
//!
//! A *comm* is one connection with messages on it, after a handshake. Messages
//! are lists of frames here; what is in them is the business of the
//! [`daskwire`](wire) crate. Transports are crates of their own: `daskwire-tcp`
//! has `tcp://`, `tls://` and `unix://`, `daskwire-quic` has `quic://`.
//!
//! [`Transports`] makes comms and listens for them at addresses of any scheme;
//! [`Comm::establish`] makes one over any two streams.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use daskwire_comm::{CommError, CommOptions, Transports};
//!
//! // And `.with(Tcp::default())` of `daskwire-tcp`, for `tcp://`.
//! let transports = Transports::new();
//! let options = CommOptions::default();
//! let listener = transports.bind(&"inproc://echo".parse()?, options.clone()).await?;
//! let address = listener.local_address()?;
//! tokio::spawn(async move {
//!     while let Ok(incoming) = listener.accept().await {
//!         // A task each: a peer that says nothing keeps nobody else waiting.
//!         tokio::spawn(async move {
//!             let mut comm = incoming.handshake().await?;
//!             while let Some(frames) = comm.read_message().await? {
//!                 comm.write_message(&frames).await?;
//!             }
//!             Ok::<_, CommError>(())
//!         });
//!     }
//! });
//!
//! let mut comm = transports.connect(&address, &options).await?;
//! comm.write_message(&[b"\x81\xa2op\xa4ping"]).await?;
//! let echo = comm.read_message().await?.expect("an answer");
//! assert_eq!(echo[0][..], b"\x81\xa2op\xa4ping"[..]);
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
mod listener;
mod pool;
mod reader;
pub mod runtime;
#[cfg(feature = "tls")]
pub mod tls;
mod transport;
mod writer;

pub use address::{Address, AddressError};
pub use comm::{
    Agreement, Comm, CommOptions, Encryption, RawConnection, ReadHalf, WireFormat, WriteHalf,
};
pub use error::{Closed, CommError, Phase};
pub use frames::Frames;
pub use inproc::Inproc;
pub use linger::lingering;
pub use listener::{Incoming, Listener};
pub use pool::BufferPool;
pub use reader::CommReader;
pub use transport::{
    BoxFuture, ConnectError, ConnectOptions, Listen, PendingConnection, Traffic, Transport,
    Transports, connect, connect_raw, host_and_port,
};
pub use writer::CommWriter;

pub use bytes::Bytes;
