//! Comms over TCP, TLS and Unix sockets: the connections between Dask's schedulers,
//! workers and clients.
//!
//! See [`daskwire_comm`] for comms in general.
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
//! `tcp://` neither encrypts nor authenticates, as in Dask without TLS: every host that
//! reaches the port has full access. Bind to the loopback interface or to a trusted
//! network, or use `tls://` with the settings of `daskwire_comm::tls`.
//!
//! # Features
//!
//! * `tls`: `tls://` addresses, with a crypto provider of the caller;
//! * `ring` (default), `aws-lc-rs`: a crypto provider. `ring` is used if both
//!   are on;
//! * `runtime-smol`: smol as the executor outside of tokio runtimes.
//!
//! `tcp://` and `tls://` run on any executor, see [`daskwire_comm::runtime`];
//! `unix://` needs tokio.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
// Sockets need std; only the core crates avoid it.
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

/// The example in the README, tested as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
