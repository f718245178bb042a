//! Comms over TCP and TLS: the connections that Dask's schedulers, workers and clients
//! keep between them, for [tokio].
//!
//! A *comm* is one connection with messages on it, after a handshake. Messages
//! are lists of frames here; what a comm is, see [`daskwire_comm`].
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use daskwire_comm::{Address, CommOptions};
//! use daskwire_tcp::{Listener, connect};
//!
//! let listener = Listener::bind(&"tcp://127.0.0.1:0".parse()?, CommOptions::default()).await?;
//! let address: Address = listener.local_address()?;
//! tokio::spawn(async move {
//!     while let Ok(incoming) = listener.accept().await {
//!         // A task each: a peer that says nothing keeps nobody else waiting.
//!         tokio::spawn(async move {
//!             let mut comm = incoming.handshake().await?;
//!             while let Some(frames) = comm.read_message().await? {
//!                 comm.write_message(&frames).await?;
//!             }
//!             Ok::<_, daskwire_comm::CommError>(())
//!         });
//!     }
//! });
//!
//! let mut comm = connect(&address, &CommOptions::default()).await?;
//! comm.write_message(&[b"\x81\xa2op\xa4ping"]).await?;
//! let echo = comm.read_message().await?.expect("an answer");
//! assert_eq!(echo.len(), 1);
//! assert_eq!(echo[0][..], b"\x81\xa2op\xa4ping"[..]);
//! # Ok(())
//! # }
//! ```
//!
//! Over `tcp://` nothing is encrypted or authenticated, as in Dask without TLS:
//! everybody who reaches the port is in. Bind to the loopback or to a network
//! that you trust, or use `tls://`, with the settings of `daskwire_comm::tls`.
//!
//! # Features
//!
//! * `tls`: `tls://` addresses, with the crypto provider of the caller;
//! * `ring` (default), `aws-lc-rs`: a crypto provider. `ring` is used if both
//!   are on.
#![forbid(unsafe_code)]
// Sockets are std's; only the core can do without it.
#![allow(clippy::std_instead_of_alloc)]

mod net;
#[cfg(feature = "tls")]
mod tls;

pub use net::{Incoming, Listener, connect, connect_raw};
