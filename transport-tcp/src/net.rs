//! Connections.

use core::time::Duration;
use std::io;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};

use crate::{Address, Comm, CommError, Options, Phase, Role};

/// Makes a comm to a peer that listens at `address`.
///
/// One attempt is made at each address that the name stands for. Whoever waits
/// for a peer to come up tries again.
///
/// # Cancel safety
///
/// Dropping the future drops the connection.
///
/// # Errors
///
/// * [`CommError::Connect`] if nobody listens there, or the name stands for
///   nothing;
/// * [`CommError::Timeout`] after [`Options::connect_timeout`];
/// * as [`Comm::establish`].
pub async fn connect(address: &Address, options: &Options) -> Result<Comm, CommError> {
    let after = options.connect_timeout;
    let connecting = TcpStream::connect((address.host(), address.port()));
    let failed = |error| CommError::Connect {
        address: address.clone(),
        error,
    };
    let stream = match tokio::time::timeout(after, connecting).await {
        Ok(outcome) => outcome.map_err(failed)?,
        Err(_) => {
            return Err(CommError::Timeout {
                phase: Phase::Connect,
                after,
            });
        }
    };
    establish(stream, Role::Connector, options).await
}

/// Waits for connections.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    options: Options,
}

impl Listener {
    /// Listens at `address`; port 0 stands for any that is free, an empty host
    /// for every interface of IPv4.
    ///
    /// # Errors
    ///
    /// [`CommError::Bind`].
    pub async fn bind(address: &Address, options: Options) -> Result<Self, CommError> {
        let host = match address.host() {
            "" => "0.0.0.0",
            host => host,
        };
        let socket = TcpListener::bind((host, address.port()))
            .await
            .map_err(|error| CommError::Bind {
                address: address.clone(),
                error,
            })?;
        Ok(Self { socket, options })
    }

    /// Waits for the next connection. The handshake is still to be done, by
    /// [`Incoming::handshake`]: in a task of its own, or a peer that says
    /// nothing keeps all others waiting.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: no connection is lost.
    ///
    /// # Errors
    ///
    /// [`CommError::Io`]. The listener goes on: most errors here are about one
    /// connection, or pass (too many open files: wait before the next call).
    pub async fn accept(&self) -> Result<Incoming, CommError> {
        let (stream, _) = self.socket.accept().await.map_err(CommError::Io)?;
        Ok(Incoming {
            stream,
            options: self.options.clone(),
        })
    }

    /// Where it listens, with the port that it got.
    ///
    /// # Errors
    ///
    /// [`CommError::Io`].
    pub fn local_address(&self) -> Result<Address, CommError> {
        let address = self.socket.local_addr().map_err(CommError::Io)?;
        Ok(address.into())
    }
}

/// A connection that was accepted, before its handshake.
#[derive(Debug)]
#[must_use = "a connection is closed when this is dropped"]
pub struct Incoming {
    stream: TcpStream,
    options: Options,
}

impl Incoming {
    /// Does the handshake.
    ///
    /// # Errors
    ///
    /// As [`Comm::establish`]; the connection is closed then.
    pub async fn handshake(self) -> Result<Comm, CommError> {
        establish(self.stream, Role::Listener, &self.options).await
    }

    /// The address of the other end.
    ///
    /// # Errors
    ///
    /// [`CommError::Io`] if the peer is gone.
    pub fn peer_address(&self) -> Result<Address, CommError> {
        let address = self.stream.peer_addr().map_err(CommError::Io)?;
        Ok(address.into())
    }
}

async fn establish(stream: TcpStream, role: Role, options: &Options) -> Result<Comm, CommError> {
    set_options(&stream).map_err(CommError::Io)?;
    let local = stream.local_addr().map_err(CommError::Io)?;
    let peer = stream.peer_addr().map_err(CommError::Io)?;
    let (reader, writer) = stream.into_split();
    let ends = (local.into(), peer.into());
    Comm::establish(reader, writer, ends, role, options).await
}

/// What Dask sets: no delay, and a peer that is gone without a word is found
/// after 30 seconds (`distributed.comm.timeouts.tcp`, `set_tcp_timeout` in
/// `distributed/comm/tcp.py`).
fn set_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(2));
    #[cfg(not(any(target_os = "openbsd", target_os = "redox", target_os = "solaris")))]
    let keepalive = keepalive.with_retries(10);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(Duration::from_secs(30)))?;
    Ok(())
}
