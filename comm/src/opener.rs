//! A transport over streams that the program opens itself.

use core::fmt;
use std::io;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::transport::{
    BoxFuture, ConnectError, ConnectOptions, Listen, PendingConnection, Transport,
};
use crate::{Address, CommError, RawConnection};

/// A transport whose connections a function of the program opens, for example through a proxy or a
/// tunnel, or as streams of a connection that the program has. It does not listen.
///
/// Each call of the function opens one more connection to the same peer, as a reading and a writing
/// half. Dropping or shutting down the writing half must end the stream of bytes that the peer reads,
/// as the halves of `TcpStream::into_split` and the streams of quinn do, and those of
/// `tokio::io::split` do not.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use daskwire_comm::{CommOptions, Opener, RawConnection, Transports};
/// use tokio::sync::mpsc;
///
/// // Pipes to another part of the program.
/// let (sender, mut accepted) = mpsc::channel(1);
/// let open = move || {
///     let sender = sender.clone();
///     async move {
///         let ((near_reader, far_writer), (far_reader, near_writer)) =
///             (tokio::io::simplex(1024), tokio::io::simplex(1024));
///         let _ = sender.send((far_reader, far_writer)).await;
///         Ok((near_reader, near_writer))
///     }
/// };
/// let transports = Transports::new().with(Opener::new("pipe", open));
/// let address: daskwire_comm::Address = "pipe://peer".parse()?;
/// let options = CommOptions::default();
/// let (near, far) = tokio::join!(transports.connect(&address, &options), async {
///     let (reader, writer) = accepted.recv().await.expect("a connection");
///     let ends = (address.clone(), address.clone());
///     RawConnection::new(reader, writer, ends).handshake(&options).await
/// });
/// near?.write_message(&[b"\x81\xa2op\xa4ping"]).await?;
/// assert!(far?.read_message().await?.is_some());
/// # Ok(())
/// # }
/// ```
pub struct Opener<F> {
    scheme: [&'static str; 1],
    open: F,
}

impl<F> Opener<F> {
    /// Creates the transport of addresses with this scheme.
    pub const fn new(scheme: &'static str, open: F) -> Self {
        Self {
            scheme: [scheme],
            open,
        }
    }
}

impl<F> fmt::Debug for Opener<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Opener");
        debug
            .field("scheme", &self.scheme[0])
            .finish_non_exhaustive()
    }
}

impl<F, O, R, W> Transport for Opener<F>
where
    F: Fn() -> O + Send + Sync,
    O: Future<Output = io::Result<(R, W)>> + Send,
    R: AsyncRead + Send + Sync + Unpin + 'static,
    W: AsyncWrite + Send + Sync + Unpin + 'static,
{
    fn schemes(&self) -> &[&'static str] {
        &self.scheme
    }

    fn connect<'a>(
        &'a self,
        address: &'a Address,
        _options: &'a ConnectOptions,
    ) -> BoxFuture<'a, Result<PendingConnection, ConnectError>> {
        Box::pin(async {
            let (reader, writer) = (self.open)().await.map_err(ConnectError::Failed)?;
            let ends = (address.clone(), address.clone());
            Ok(RawConnection::new(reader, writer, ends).into())
        })
    }

    fn bind<'a>(
        &'a self,
        _address: &'a Address,
    ) -> BoxFuture<'a, Result<Box<dyn Listen>, CommError>> {
        Box::pin(async {
            let reason = "streams that a program opens cannot be accepted";
            Err(CommError::Io(io::Error::new(
                io::ErrorKind::Unsupported,
                reason,
            )))
        })
    }
}
