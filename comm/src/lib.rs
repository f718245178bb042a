//! Comms of Dask over any stream of bytes: the connections between schedulers, workers
//! and clients, and the interface of transports.
//!
//! A *comm* is a connection that carries messages, after a handshake. Messages are
//! lists of frames here; the [`daskwire`] crate encodes and decodes their
//! contents; its module [`comm`](daskwire::comm) has the types of the same names without
//! I/O. Transports are separate crates: `daskwire-tcp`
//! has `tcp://`, `tls://` and `unix://`, `daskwire-quic` has `quic://`, `daskwire-ws` has
//! `ws://` and `wss://`.
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
//!         // A task for each comm, so that a silent peer does not block others.
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
//! # Untrusted peers
//!
//! * Until the handshake is done, a peer is limited by
//!   [`Limits::HANDSHAKE`](daskwire::Limits::HANDSHAKE) and a deadline, afterwards by the
//!   limits of [`CommOptions`]. Memory grows with the bytes that arrive, not with
//!   announced lengths.
//! * `tcp://` neither encrypts nor authenticates, as in Dask without TLS: every host
//!   that reaches the port has full access. Bind to the loopback interface or to a
//!   trusted network, or use `tls://`; the module `tls` describes which peers that
//!   accepts.
//!
//! # Features
//!
//! * `tls`: the module `tls`, with a crypto provider of the caller;
//! * `ring`, `aws-lc-rs`: a crypto provider. `ring` is used if both are on;
//! * `conformance`: the conformance checks that every transport must pass;
//! * `runtime-tokio` (on by default): tokio as the executor, within its runtimes;
//! * `runtime-smol`: smol as the executor outside of tokio runtimes;
//! * `tracing`: events of connections and comms, with the target `daskwire_comm` and the
//!   field `peer`: attempts to connect, handshakes and how comms end, none for single
//!   messages.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
// Streams need std; only the core crates avoid it.
#![allow(clippy::std_instead_of_alloc)]

/// Methods that set a public field of options, for structs that will get more fields. A field
/// of type `Option<T>` whose method takes `impl Into<Option<T>>` is set with or without `Some`.
#[doc(hidden)]
#[macro_export]
macro_rules! with_fields {
    ($($(#[$attribute:meta])* $method:ident($field:ident: $type:ty);)*) => {$(
        $(#[$attribute])*
        #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
        #[must_use]
        pub fn $method(mut self, $field: $type) -> Self {
            self.$field = ::core::convert::Into::into($field);
            self
        }
    )*};
}

mod address;
mod comm;
#[cfg(feature = "conformance")]
pub mod conformance;
mod descriptors;
mod error;
mod event;
mod frames;
mod handshakes;
mod inproc;
mod linger;
mod listener;
mod listeners;
mod opener;
mod pool;
mod reader;
pub mod runtime;
#[cfg(feature = "tls")]
pub mod tls;
mod transport;
mod writer;

pub use address::{Address, AddressError};
pub use comm::{Comm, CommOptions, Encryption, RawConnection, ReadHalf, WireFormat, WriteHalf};
pub use descriptors::{descriptor_limit, raise_descriptor_limit};
pub use error::{Closed, CommError, Phase, kind_of_io};
pub use frames::Frames;
pub use inproc::Inproc;
pub use linger::{linger_permit, lingering};
pub use listener::{Incoming, Listener};
pub use listeners::Listeners;
pub use opener::Opener;
pub use pool::{BufferPool, FrameBlock, FrameMemory};
pub use reader::CommReader;
pub use transport::{
    BoxFuture, ConnectError, ConnectOptions, Listen, PendingConnection, Traffic, Transport,
    Transports, Wrap, connect, connect_raw, host_and_port, is_permanent,
};
pub use writer::CommWriter;

pub use bytes::Bytes;
pub use daskwire::comm::Agreement;
pub use daskwire::compression::Codec;
pub use daskwire::{ErrorKind, Limits};

/// The example in the README, tested as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
