//! Comms over QUIC: one connection for each address, and on it a stream for each comm. A
//! new comm needs no TLS handshake, and a lost packet delays only its own comm.
//!
//! A comm is a [`daskwire_comm::Comm`] as over TCP, and messages are lists of frames. The
//! mapping to QUIC is specified in
//! [`PROTOCOL.md`](https://github.com/daskwire/daskwire/blob/main/transport-quic/PROTOCOL.md).
//! No release of Dask implements it.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//! use daskwire_quic::rustls::{ClientConfig, RootCertStore, ServerConfig, crypto, version};
//! use daskwire_comm::{CommOptions, Transports};
//! use daskwire_quic::{Quic, QuicOptions, Tls};
//!
//! // A self-signed certificate for the server, and none for clients.
//! let own = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
//! let certificate = own.cert.der().clone();
//! let key = own.signing_key.serialize_der().try_into()?;
//! let mut authorities = RootCertStore::empty();
//! authorities.add(certificate.clone())?;
//! let provider = Arc::new(crypto::ring::default_provider());
//! let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
//!     .with_protocol_versions(&[&version::TLS13])?
//!     .with_no_client_auth()
//!     .with_single_cert(vec![certificate], key)?;
//! let client = ClientConfig::builder_with_provider(provider)
//!     .with_protocol_versions(&[&version::TLS13])?
//!     .with_root_certificates(authorities)
//!     .with_no_client_auth();
//!
//! let tls = Tls::default().with_client(Arc::new(client)).with_server(Arc::new(server));
//! let transports = Transports::new().with(Quic::new(QuicOptions::default().with_tls(tls)));
//! let options = CommOptions::default();
//! let listener = transports.bind(&"quic://127.0.0.1:0".parse()?, options.clone()).await?;
//! let port = listener.local_address()?.port();
//! tokio::spawn(async move {
//!     while let Ok(incoming) = listener.accept().await {
//!         // A task for each comm, so that a silent peer does not block others.
//!         tokio::spawn(async move {
//!             let mut comm = incoming.handshake().await?;
//!             while let Some(frames) = comm.read_message().await? {
//!                 comm.write_message(&frames).await?;
//!             }
//!             comm.close().await
//!         });
//!     }
//! });
//!
//! let address = format!("quic://localhost:{port}").parse()?;
//! let mut comm = transports.connect(&address, &options).await?;
//! comm.write_message(&[b"\x81\xa2op\xa4ping"]).await?;
//! let echo = comm.read_message().await?.expect("an answer");
//! assert_eq!(echo[0][..], b"\x81\xa2op\xa4ping"[..]);
//!
//! // Returns when the peer has received everything.
//! comm.close().await?;
//! drop(comm);
//! transports.close().await;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }
//! ```
//!
//! # Differences from TCP
//!
//! * Closing a comm waits until the peer has acknowledged everything, and so waits for
//!   a peer that does not read. The peer of a comm that is dropped without closing gets
//!   an error, not an end.
//! * Early data (0-RTT) is always off: it can be replayed, and most of Dask's messages
//!   are not idempotent.
//! * The TLS configuration decides which peers are accepted. A server requests client
//!   certificates only if its configuration does; otherwise every client that reaches
//!   the port is accepted.
//!
//! # Features
//!
//! * `ring` (default), `aws-lc-rs`: the crypto that QUIC itself needs;
//! * `runtime-smol`: endpoints on executors other than tokio, with the timers and
//!   sockets of smol. Without it, endpoints need tokio.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
// Sockets need std; only the core crates avoid it.
#![allow(clippy::std_instead_of_alloc)]

#[cfg(not(any(feature = "ring", feature = "aws-lc-rs")))]
compile_error!("daskwire-quic needs one of its features `ring` and `aws-lc-rs`");

mod acceptor;
mod config;
mod connection;
mod endpoint;
mod error;
mod options;
mod runtime;
mod stream;
mod transport;

#[doc(hidden)]
pub use endpoint::Endpoint; // for the tests and benchmarks of this package
pub use options::{Congestion, QuicOptions, Tls};
pub use transport::Quic;

/// The implementation of TLS, for the configurations in [`Tls`].
pub use rustls;

/// The ALPN token of both ends: the protocol of `PROTOCOL.md` and its version, which is
/// the number at the end.
pub const ALPN: &[u8] = b"dask-comm/1";
