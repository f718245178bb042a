//! Connecting and listening at addresses of any scheme, so that swapping one
//! transport for another is changing an address.

#[cfg(feature = "quic")]
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[cfg(feature = "quic")]
use daskwire_comm::Scheme;
use daskwire_comm::{Address, Comm, CommError, CommOptions, RawConnection};
#[cfg(feature = "quic")]
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
    #[cfg(feature = "quic")]
    quic_options: QuicOptions,
    /// Made when it is needed; keeps one connection with each peer.
    #[cfg(feature = "quic")]
    quic: Mutex<Option<Arc<Endpoint>>>,
}

impl Connector {
    /// Connects with these options. `tls://` and `quic://` need
    /// [`CommOptions::tls`].
    pub fn new(options: CommOptions) -> Self {
        Self {
            options,
            #[cfg(feature = "quic")]
            quic_options: QuicOptions::default(),
            #[cfg(feature = "quic")]
            quic: Mutex::new(None),
        }
    }

    /// Connects with these options, those for `quic://` included.
    #[cfg(feature = "quic")]
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
        match address.scheme() {
            #[cfg(feature = "quic")]
            Scheme::Quic => self.quic(address)?.connect(address, &self.options).await,
            #[cfg(feature = "tcp")]
            _ => daskwire_tcp::connect(address, &self.options).await,
            #[cfg(not(feature = "tcp"))]
            scheme => Err(CommError::Scheme { scheme }),
        }
    }

    /// Makes a connection without the handshake of Dask.
    ///
    /// # Errors
    ///
    /// As [`daskwire_tcp::connect_raw`] and [`Endpoint::connect_raw`].
    pub async fn connect_raw(&self, address: &Address) -> Result<RawConnection, CommError> {
        match address.scheme() {
            #[cfg(feature = "quic")]
            Scheme::Quic => {
                let quic = self.quic(address)?;
                quic.connect_raw(address, &self.options, Priority::Normal)
                    .await
            }
            #[cfg(feature = "tcp")]
            _ => daskwire_tcp::connect_raw(address, &self.options).await,
            #[cfg(not(feature = "tcp"))]
            scheme => Err(CommError::Scheme { scheme }),
        }
    }

    /// Waits until everything has arrived that went over connections which
    /// several comms share.
    pub async fn close(&self) {
        #[cfg(feature = "quic")]
        {
            let quic = self.lock().take();
            if let Some(quic) = quic {
                quic.close().await;
            }
        }
    }

    #[cfg(feature = "quic")]
    fn lock(&self) -> MutexGuard<'_, Option<Arc<Endpoint>>> {
        // It is set or taken in one step, which no panic leaves half done.
        self.quic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(feature = "quic")]
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
    #[cfg(feature = "tcp")]
    Stream(daskwire_tcp::Listener),
    #[cfg(feature = "quic")]
    Quic(Endpoint),
    #[cfg(not(feature = "tcp"))]
    None(core::convert::Infallible),
}

impl Listener {
    /// Listens. `tls://` and `quic://` need [`CommOptions::tls`].
    ///
    /// # Errors
    ///
    /// As [`daskwire_tcp::Listener::bind`] and [`Endpoint::bind`].
    pub async fn bind(address: &Address, options: CommOptions) -> Result<Self, CommError> {
        match address.scheme() {
            #[cfg(feature = "quic")]
            Scheme::Quic => Self::bind_with_quic(address, options, QuicOptions::default()).await,
            #[cfg(feature = "tcp")]
            _ => {
                let listener = daskwire_tcp::Listener::bind(address, options).await?;
                Ok(Self(Socket::Stream(listener)))
            }
            #[cfg(not(feature = "tcp"))]
            scheme => {
                drop(options);
                Err(CommError::Scheme { scheme })
            }
        }
    }

    /// Listens with these options, those for `quic://` included.
    ///
    /// # Errors
    ///
    /// As [`Listener::bind`].
    #[cfg(feature = "quic")]
    pub async fn bind_with_quic(
        address: &Address,
        options: CommOptions,
        quic: QuicOptions,
    ) -> Result<Self, CommError> {
        if address.scheme() != Scheme::Quic {
            return Box::pin(Self::bind(address, options)).await;
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
    #[cfg_attr(not(feature = "tcp"), allow(unreachable_code))]
    pub async fn accept(&self) -> Result<Incoming, CommError> {
        Ok(Incoming(match &self.0 {
            #[cfg(feature = "tcp")]
            Socket::Stream(listener) => Accepted::Stream(listener.accept().await?),
            #[cfg(feature = "quic")]
            Socket::Quic(endpoint) => Accepted::Quic(endpoint.accept().await?),
            #[cfg(not(feature = "tcp"))]
            Socket::None(never) => match *never {},
        }))
    }

    /// Over QUIC, takes no more comms and waits until everything has arrived that
    /// went over connections which several of them share. Other listeners end
    /// when they are dropped, which is all that they need.
    pub async fn close(&self) {
        match &self.0 {
            // It ends when it is dropped.
            #[cfg(feature = "tcp")]
            Socket::Stream(_) => {}
            #[cfg(feature = "quic")]
            Socket::Quic(endpoint) => endpoint.close().await,
            #[cfg(not(feature = "tcp"))]
            Socket::None(never) => match *never {},
        }
    }

    /// Where it listens, with the port that it got.
    ///
    /// # Errors
    ///
    /// [`CommError::Io`].
    pub fn local_address(&self) -> Result<Address, CommError> {
        match &self.0 {
            #[cfg(feature = "tcp")]
            Socket::Stream(listener) => listener.local_address(),
            #[cfg(feature = "quic")]
            Socket::Quic(endpoint) => endpoint.local_address(),
            #[cfg(not(feature = "tcp"))]
            Socket::None(never) => match *never {},
        }
    }
}

/// A connection that was accepted, before its handshake.
#[derive(Debug)]
#[must_use = "a connection is closed when this is dropped"]
pub struct Incoming(Accepted);

#[derive(Debug)]
enum Accepted {
    #[cfg(feature = "tcp")]
    Stream(daskwire_tcp::Incoming),
    #[cfg(feature = "quic")]
    Quic(daskwire_quic::Incoming),
    #[cfg(not(feature = "tcp"))]
    None(core::convert::Infallible),
}

impl Incoming {
    /// Does the handshake, in a task of its own if others are not to wait.
    ///
    /// # Errors
    ///
    /// As [`Comm::establish`], and those of TLS.
    pub async fn handshake(self) -> Result<Comm, CommError> {
        match self.0 {
            #[cfg(feature = "tcp")]
            Accepted::Stream(incoming) => incoming.handshake().await,
            #[cfg(feature = "quic")]
            Accepted::Quic(incoming) => incoming.handshake().await,
            #[cfg(not(feature = "tcp"))]
            Accepted::None(never) => match never {},
        }
    }

    /// The address of the other end.
    ///
    /// # Errors
    ///
    /// [`CommError::Io`] if the peer is gone.
    pub fn peer_address(&self) -> Result<Address, CommError> {
        match &self.0 {
            #[cfg(feature = "tcp")]
            Accepted::Stream(incoming) => incoming.peer_address(),
            #[cfg(feature = "quic")]
            Accepted::Quic(incoming) => Ok(incoming.peer_address()),
            #[cfg(not(feature = "tcp"))]
            Accepted::None(never) => match *never {},
        }
    }

    /// The connection without the handshake of Dask.
    ///
    /// # Errors
    ///
    /// [`CommError::Io`] if the peer is gone, and those of TLS.
    pub async fn bytes(self) -> Result<RawConnection, CommError> {
        match self.0 {
            #[cfg(feature = "tcp")]
            Accepted::Stream(incoming) => incoming.bytes().await,
            #[cfg(feature = "quic")]
            Accepted::Quic(incoming) => Ok(incoming.bytes(Priority::Normal)),
            #[cfg(not(feature = "tcp"))]
            Accepted::None(never) => match never {},
        }
    }
}

#[cfg(feature = "quic")]
fn tls(address: &Address, options: &CommOptions) -> Result<Tls, CommError> {
    let tls = options.tls.as_ref().map(Tls::from);
    tls.ok_or_else(|| CommError::NoTls {
        address: address.clone(),
    })
}
