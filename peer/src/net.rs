//! Connecting and listening at addresses of any scheme, so that swapping one
//! transport for another is changing an address.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use daskwire_comm::{Address, Comm, CommError, CommOptions, RawConnection, Scheme};
use daskwire_quic::{Endpoint, Priority, QuicOptions, Tls};

/// Makes comms to addresses of any scheme.
///
/// ```no_run
/// # async fn example() -> Result<(), daskwire_comm::CommError> {
/// use daskwire_peer::net::Connector;
/// use daskwire_comm::CommOptions;
/// let connector = Connector::new(CommOptions::default());
/// # let address = "tcp://10.0.0.7:8786".parse().expect("an address");
/// let mut comm = connector.connect(&address).await?;
/// comm.write_message(&[b"\x81\xa2op\xa8identity"]).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Connector {
    options: CommOptions,
    quic_options: QuicOptions,
    /// Made when it is needed; keeps one connection with each peer.
    quic: Mutex<Option<Arc<Endpoint>>>,
}

impl Connector {
    /// Connects with these options. `tls://` and `quic://` need
    /// [`CommOptions::tls`].
    pub fn new(options: CommOptions) -> Self {
        Self::with_quic(options, QuicOptions::default())
    }

    /// Connects with these options, those for `quic://` included.
    pub const fn with_quic(options: CommOptions, quic_options: QuicOptions) -> Self {
        Self {
            options,
            quic_options,
            quic: Mutex::new(None),
        }
    }

    /// Makes a comm.
    ///
    /// # Errors
    ///
    /// As [`daskwire_tcp::connect`] and [`Endpoint::connect`].
    pub async fn connect(&self, address: &Address) -> Result<Comm, CommError> {
        if address.scheme() != Scheme::Quic {
            return daskwire_tcp::connect(address, &self.options).await;
        }
        self.quic(address)?.connect(address, &self.options).await
    }

    /// Makes a connection without the handshake of Dask.
    ///
    /// # Errors
    ///
    /// As [`daskwire_tcp::connect_raw`] and [`Endpoint::connect_raw`].
    pub async fn connect_raw(&self, address: &Address) -> Result<RawConnection, CommError> {
        if address.scheme() != Scheme::Quic {
            return daskwire_tcp::connect_raw(address, &self.options).await;
        }
        let quic = self.quic(address)?;
        quic.connect_raw(address, &self.options, Priority::Normal)
            .await
    }

    /// Waits until everything has arrived that went over connections which
    /// several comms share.
    pub async fn close(&self) {
        let quic = self.lock().take();
        if let Some(quic) = quic {
            quic.close().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Endpoint>>> {
        // It is set or taken in one step, which no panic leaves half done.
        self.quic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn quic(&self, address: &Address) -> Result<Arc<Endpoint>, CommError> {
        let mut quic = self.lock();
        if let Some(endpoint) = &*quic {
            return Ok(Arc::clone(endpoint));
        }
        let tls = tls(address, &self.options)?;
        let endpoint = Endpoint::client(tls, self.quic_options.clone())?;
        Ok(Arc::clone(quic.insert(Arc::new(endpoint))))
    }
}

/// Waits for comms at an address of any scheme.
#[derive(Debug)]
pub struct Listener(Socket);

#[derive(Debug)]
enum Socket {
    Stream(daskwire_tcp::Listener),
    Quic(Endpoint),
}

impl Listener {
    /// Listens. `tls://` and `quic://` need [`CommOptions::tls`].
    ///
    /// # Errors
    ///
    /// As [`daskwire_tcp::Listener::bind`] and [`Endpoint::bind`].
    pub async fn bind(address: &Address, options: CommOptions) -> Result<Self, CommError> {
        Self::bind_with_quic(address, options, QuicOptions::default()).await
    }

    /// Listens with these options, those for `quic://` included.
    ///
    /// # Errors
    ///
    /// As [`Listener::bind`].
    pub async fn bind_with_quic(
        address: &Address,
        options: CommOptions,
        quic: QuicOptions,
    ) -> Result<Self, CommError> {
        if address.scheme() != Scheme::Quic {
            let listener = daskwire_tcp::Listener::bind(address, options).await?;
            return Ok(Self(Socket::Stream(listener)));
        }
        let tls = tls(address, &options)?;
        let endpoint = Endpoint::bind(address, &tls, options, quic).await?;
        Ok(Self(Socket::Quic(endpoint)))
    }

    /// Waits for the next connection. Cancel safe.
    ///
    /// # Errors
    ///
    /// As [`daskwire_tcp::Listener::accept`] and [`Endpoint::accept`].
    pub async fn accept(&self) -> Result<Incoming, CommError> {
        Ok(Incoming(match &self.0 {
            Socket::Stream(listener) => Accepted::Stream(listener.accept().await?),
            Socket::Quic(endpoint) => Accepted::Quic(endpoint.accept().await?),
        }))
    }

    /// Over QUIC, takes no more comms and waits until everything has arrived that
    /// went over connections which several of them share. Other listeners end
    /// when they are dropped, which is all that they need.
    pub async fn close(&self) {
        match &self.0 {
            // It ends when it is dropped.
            Socket::Stream(_) => {}
            Socket::Quic(endpoint) => endpoint.close().await,
        }
    }

    /// Where it listens, with the port that it got.
    ///
    /// # Errors
    ///
    /// [`CommError::Io`].
    pub fn local_address(&self) -> Result<Address, CommError> {
        match &self.0 {
            Socket::Stream(listener) => listener.local_address(),
            Socket::Quic(endpoint) => endpoint.local_address(),
        }
    }
}

/// A connection that was accepted, before its handshake.
#[derive(Debug)]
#[must_use = "a connection is closed when this is dropped"]
pub struct Incoming(Accepted);

#[derive(Debug)]
enum Accepted {
    Stream(daskwire_tcp::Incoming),
    Quic(daskwire_quic::Incoming),
}

impl Incoming {
    /// Does the handshake, in a task of its own if others are not to wait.
    ///
    /// # Errors
    ///
    /// As [`Comm::establish`], and those of TLS.
    pub async fn handshake(self) -> Result<Comm, CommError> {
        match self.0 {
            Accepted::Stream(incoming) => incoming.handshake().await,
            Accepted::Quic(incoming) => incoming.handshake().await,
        }
    }

    /// The address of the other end.
    ///
    /// # Errors
    ///
    /// [`CommError::Io`] if the peer is gone.
    pub fn peer_address(&self) -> Result<Address, CommError> {
        match &self.0 {
            Accepted::Stream(incoming) => incoming.peer_address(),
            Accepted::Quic(incoming) => Ok(incoming.peer_address()),
        }
    }

    /// The connection without the handshake of Dask.
    ///
    /// # Errors
    ///
    /// [`CommError::Io`] if the peer is gone, and those of TLS.
    pub async fn bytes(self) -> Result<RawConnection, CommError> {
        match self.0 {
            Accepted::Stream(incoming) => incoming.bytes().await,
            Accepted::Quic(incoming) => Ok(incoming.bytes(Priority::Normal)),
        }
    }
}

fn tls(address: &Address, options: &CommOptions) -> Result<Tls, CommError> {
    let tls = options.tls.as_ref().map(Tls::from);
    tls.ok_or_else(|| CommError::NoTls {
        address: address.clone(),
    })
}
