//! Comms over TCP and TLS: the connections that Dask's schedulers, workers and clients
//! keep between them, for [tokio].
//!
//! A *comm* is one connection with messages on it, after a handshake. Messages
//! are lists of frames here; what a comm is, see [`daskwire_comm`].
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use daskwire_comm::{CommOptions, Transports};
//! use daskwire_tcp::Tcp;
//!
//! let transports = Transports::new().with(Tcp::default());
//! let options = CommOptions::default();
//! let listener = transports.bind(&"tcp://127.0.0.1:0".parse()?, options.clone()).await?;
//! let address = listener.local_address()?;
//! let (near, far) = tokio::join!(transports.connect(&address, &options), async {
//!     listener.accept().await?.handshake().await
//! });
//! let (mut near, mut far) = (near?, far?);
//! near.write_message(&[b"\x81\xa2op\xa4ping"]).await?;
//! let message = far.read_message().await?.expect("a message");
//! assert_eq!(message[0][..], b"\x81\xa2op\xa4ping"[..]);
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
//!   are on;
//! * `runtime-smol`: smol as the executor, where there is no tokio runtime.
//!
//! `tcp://` and `tls://` run on any executor, see [`daskwire_comm::runtime`];
//! `unix://` needs tokio.
#![forbid(unsafe_code)]
// Sockets are std's; only the core can do without it.
#![allow(clippy::std_instead_of_alloc)]

mod socket;
mod tcp;
#[cfg(feature = "tls")]
mod tls;
#[cfg(unix)]
mod unix;

pub use tcp::{Tcp, TcpOptions};
#[cfg(unix)]
pub use unix::Unix;
