//! `ws://` and `wss://`.

use std::io;
use std::sync::Arc;

use daskwire_comm::{
    Address, BoxFuture, CommError, ConnectError, ConnectOptions, Limits, Listen, PendingConnection,
    Transport,
};
use tungstenite::http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::upgrade;

/// The transport of comms over WebSocket (`ws://`, and `wss://` over TLS), as Dask has it.
///
/// It opens WebSockets on connections of another transport, for which an address of `ws://` is
/// one of `tcp://`, and of `wss://` one of `tls://`. Certificates, timeouts and the executor are
/// those of that transport.
///
/// ```
/// use daskwire_comm::Transports;
/// use daskwire_tcp::Tcp;
/// use daskwire_ws::Ws;
///
/// let tcp = Tcp::default();
/// let transports = Transports::new().with(tcp.clone()).with(Ws::new(tcp));
/// ```
#[derive(Clone, Debug)]
pub struct Ws<T> {
    carrier: T,
    options: WsOptions,
}

/// The options of [`Ws`].
#[derive(Clone, Debug, Default)]
pub struct WsOptions {
    headers: HeaderMap,
    limits: Limits,
}

/// A header that a request cannot have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderError {
    name: Box<str>,
}

impl core::fmt::Display for HeaderError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let name = &self.name;
        write!(
            f,
            "{name:?} is no HTTP header to set, or its value has a control character"
        )
    }
}

impl core::error::Error for HeaderError {}

daskwire::kinds! {
    HeaderError: |_| ErrorKind::Invalid;
}

impl WsOptions {
    /// Adds a header to the requests of connectors, such as `Authorization` for a proxy
    /// (`headers` in `extra_conn_args` of Dask). Its value is not printed.
    ///
    /// ```
    /// use daskwire_comm::Transports;
    /// use daskwire_tcp::Tcp;
    /// use daskwire_ws::{Ws, WsOptions};
    ///
    /// let options = WsOptions::default().with_header("Authorization", "token abc")?;
    /// let transports = Transports::new().with(Ws::with_options(Tcp::default(), options));
    /// # Ok::<(), daskwire_ws::HeaderError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`HeaderError`] if the name or value is not valid, or if the header is one of those that
    /// open a WebSocket.
    pub fn with_header(mut self, name: &str, value: &str) -> Result<Self, HeaderError> {
        let invalid = || HeaderError { name: name.into() };
        let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
        let mut value = HeaderValue::from_str(value).map_err(|_| invalid())?;
        if !upgrade::is_settable(&header) {
            return Err(invalid());
        }
        value.set_sensitive(true);
        self.headers.insert(header, value);
        Ok(self)
    }

    /// Sets the limits for connections without a comm, as a relay has them. Those of comms are in
    /// [`CommOptions`](daskwire_comm::CommOptions). Default: [`Limits::HOST`].
    #[must_use]
    pub const fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }
}

impl<T: Transport> Ws<T> {
    /// Creates the transport, over a transport of `tcp://`, and of `tls://` for `wss://`.
    pub fn new(carrier: T) -> Self {
        Self::with_options(carrier, WsOptions::default())
    }

    /// Creates the transport with options.
    pub const fn with_options(carrier: T, options: WsOptions) -> Self {
        Self { carrier, options }
    }
}

impl<T: Transport> Transport for Ws<T> {
    fn schemes(&self) -> &[&'static str] {
        match self.carrier.schemes().contains(&"tls") {
            true => &["ws", "wss"],
            false => &["ws"],
        }
    }

    fn connect<'a>(
        &'a self,
        address: &'a Address,
        options: &'a ConnectOptions,
    ) -> BoxFuture<'a, Result<PendingConnection, ConnectError>> {
        Box::pin(async {
            let carried = carried(address)?;
            let pending = self.carrier.connect(&carried, options).await;
            let pending = pending.map_err(|error| match error {
                ConnectError::Fatal(error) => ConnectError::Fatal(renamed(error, address)),
                error => error,
            })?;
            let WsOptions { headers, limits } = self.options.clone();
            let scheme = scheme(address.scheme());
            let address = address.clone();
            let peer = pending.peer_address().with_scheme(scheme);
            Ok(pending.and_then(peer, move |mut connection| async move {
                connection.local = connection.local.with_scheme(scheme);
                connection.peer = connection.peer.with_scheme(scheme);
                upgrade::connect(connection, address, headers, limits).await
            }))
        })
    }

    fn bind<'a>(
        &'a self,
        address: &'a Address,
    ) -> BoxFuture<'a, Result<Box<dyn Listen>, CommError>> {
        Box::pin(async {
            let bound = self.carrier.bind(&carried(address)?).await;
            let listener: Box<dyn Listen> = Box::new(Listener {
                carrier: bound.map_err(|error| renamed(error, address))?,
                scheme: scheme(address.scheme()),
                limits: self.options.limits,
            });
            Ok(listener)
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.carrier.close()
    }

    fn with_own_connections(&self) -> Option<Arc<dyn Transport>> {
        let carrier = self.carrier.with_own_connections()?;
        let options = self.options.clone();
        Some(Arc::new(Ws { carrier, options }))
    }
}

struct Listener {
    carrier: Box<dyn Listen>,
    scheme: &'static str,
    limits: Limits,
}

impl Listen for Listener {
    fn accept(&self) -> BoxFuture<'_, Result<PendingConnection, CommError>> {
        Box::pin(async {
            let pending = self.carrier.accept().await?;
            let (scheme, limits) = (self.scheme, self.limits);
            let peer = pending.peer_address().with_scheme(scheme);
            Ok(pending.and_then(peer, move |mut connection| async move {
                connection.local = connection.local.with_scheme(scheme);
                connection.peer = connection.peer.with_scheme(scheme);
                upgrade::accept(connection, limits).await
            }))
        })
    }

    fn local_address(&self) -> io::Result<Address> {
        Ok(self.carrier.local_address()?.with_scheme(self.scheme))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.carrier.close()
    }
}

/// The scheme of an address of this transport.
fn scheme(scheme: &str) -> &'static str {
    if scheme == "wss" { "wss" } else { "ws" }
}

/// The address of the connection on which the WebSocket of this address is opened.
fn carried(address: &Address) -> Result<Address, CommError> {
    let carrier = match address.scheme() {
        "wss" => "tls",
        _ => "tcp",
    };
    let ends = daskwire_comm::host_and_port(address)?;
    Ok(Address::of_host(carrier, ends))
}

/// The error of another transport, for this address.
fn renamed(error: CommError, address: &Address) -> CommError {
    let address = address.clone();
    match error {
        CommError::NoTls { .. } => CommError::NoTls { address },
        CommError::Bind { error, .. } => CommError::Bind { address, error },
        CommError::Address { error, .. } => CommError::Address { address, error },
        error => error,
    }
}
