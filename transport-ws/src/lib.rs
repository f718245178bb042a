//! Comms over WebSocket, in the format of Dask: `ws://`, and `wss://` over TLS.
//!
//! WebSockets pass HTTP proxies, such as those of JupyterHub and of Kubernetes. An address may
//! have a path: `wss://hub.example/user/me/proxy/8786`.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use daskwire_comm::{CommOptions, Transports};
//! use daskwire_tcp::Tcp;
//! use daskwire_ws::Ws;
//!
//! let transports = Transports::new().with(Ws::new(Tcp::default()));
//! let options = CommOptions::default();
//! let listener = transports.bind(&"ws://127.0.0.1:0".parse()?, options.clone()).await?;
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
//! `ws://` neither encrypts nor authenticates, as `tcp://`. A listener refuses web pages, and accepts
//! every path.
//!
//! # The format
//!
//! After the request and answer of HTTP, each message of Dask is a binary message with the
//! number of frames, 8 bytes in little-endian order, and a binary message for each frame
//! (`distributed/comm/ws.py`). There is no prelude. Comms read and write streams of bytes with a
//! prelude, so this transport converts: it takes the lengths of frames that are sent from the
//! prelude, and makes one of the lengths that arrive. A frame that arrives is kept until the
//! lengths of all later ones are known; the last one, or the only one, is passed on as it
//! arrives.
//!
//! A WebSocket ends with a close message in each direction. An end that has got one may still
//! send messages until it closes its own direction. An end without a close message is an error
//! ([`WsError::NoClose`]).
//!
//! Messages are neither compressed by the WebSocket nor fragmented. Fragments of peers are
//! joined, and pings are answered while the comm is read.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
// Sockets need std; only the core crates avoid it.
#![allow(clippy::std_instead_of_alloc)]

mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod incoming;
mod mask;
mod outgoing;
mod parser;
mod transport;
mod upgrade;

pub use error::WsError;
pub use transport::{HeaderError, Ws, WsOptions};

/// The example in the README, tested as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
