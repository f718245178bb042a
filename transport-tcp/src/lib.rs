//! Comms over TCP and TLS: the connections that Dask's schedulers, workers and clients
//! keep between them, for [tokio].
//!
//! A *comm* is one connection with messages on it, after a handshake. Messages
//! are lists of frames here; what is in them is the business of the
//! [`daskwire`](wire) crate.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use daskwire_tcp::{Address, Listener, Options, connect};
//!
//! let listener = Listener::bind(&"tcp://127.0.0.1:0".parse()?, Options::default()).await?;
//! let address: Address = listener.local_address()?;
//! tokio::spawn(async move {
//!     while let Ok(incoming) = listener.accept().await {
//!         // A task each: a peer that says nothing keeps nobody else waiting.
//!         tokio::spawn(async move {
//!             let mut comm = incoming.handshake().await?;
//!             while let Some(frames) = comm.read_message().await? {
//!                 comm.write_message(&frames).await?;
//!             }
//!             Ok::<_, daskwire_tcp::CommError>(())
//!         });
//!     }
//! });
//!
//! let mut comm = connect(&address, &Options::default()).await?;
//! comm.write_message(&[b"\x81\xa2op\xa4ping"]).await?;
//! let echo = comm.read_message().await?.expect("an answer");
//! assert_eq!(echo.len(), 1);
//! assert_eq!(echo[0][..], b"\x81\xa2op\xa4ping"[..]);
//! # Ok(())
//! # }
//! ```
//!
//! # What a peer can do to us
//!
//! * Before the handshake it gets [`Limits::HANDSHAKE`](wire::Limits::HANDSHAKE)
//!   and a deadline, afterwards the limits of [`Options`]. Memory grows with
//!   what arrives, never with what is announced.
//! * Over `tcp://` nothing is encrypted or authenticated, as in Dask without
//!   TLS: whoever reaches the port is in. Bind to the loopback or to a network
//!   that you trust, or use `tls://`; the module [`tls`] says whom that lets
//!   in.
//!
//! # Features
//!
//! * `tls`: the module [`tls`] and `tls://` addresses, with the crypto provider
//!   of the caller;
//! * `ring` (default), `aws-lc-rs`: a crypto provider. `ring` is used if both
//!   are on.
//!
//! # Other streams
//!
//! [`CommReader`], [`CommWriter`] and [`Comm::establish`] work over everything
//! that is [`AsyncRead`](tokio::io::AsyncRead) and
//! [`AsyncWrite`](tokio::io::AsyncWrite); TCP is the default.
#![forbid(unsafe_code)]
// Sockets are std's; only the core can do without it.
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
mod net;
mod pool;
mod reader;
#[cfg(feature = "tls")]
pub mod tls;
mod writer;

pub use address::{Address, AddressError, Scheme};
pub use comm::{Agreement, Comm, Connection, Encryption, Options, ReadHalf, Wire, WriteHalf};
pub use error::{Closed, CommError, Phase};
pub use frames::Frames;
pub use net::{Incoming, Listener, connect, connect_bytes};
pub use pool::BufferPool;
pub use reader::CommReader;
pub use writer::CommWriter;

pub use bytes::Bytes;
