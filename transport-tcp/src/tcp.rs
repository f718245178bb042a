//! `tcp://` and `tls://`.

use core::time::Duration;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

#[cfg(feature = "tls")]
use daskwire_comm::tls::Tls;
use daskwire_comm::{
    Address, BoxFuture, CommError, ConnectError, ConnectOptions, Listen, PendingConnection,
    Transport, host_and_port, runtime,
};

use crate::socket::{Accepted, Listening, SocketStream};

/// The transport of comms over TCP (`tcp://`) and over TLS (`tls://`).
///
/// ```no_run
/// # #[cfg(feature = "ring")]
/// # fn example() -> Result<(), daskwire_comm::tls::TlsError> {
/// use daskwire_comm::Transports;
/// use daskwire_comm::tls::TlsSettings;
/// use daskwire_tcp::{Tcp, TcpOptions};
///
/// let tls = TlsSettings::new("/etc/dask/ca.pem", "/etc/dask/client.pem").build()?;
/// let transports = Transports::new().with(Tcp::new(TcpOptions::default().with_tls(tls)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Tcp {
    options: TcpOptions,
}

/// The options of [`Tcp`].
#[derive(Clone, Debug)]
pub struct TcpOptions {
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
    timeout: Duration,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            #[cfg(feature = "tls")]
            tls: None,
            timeout: Duration::from_secs(30),
        }
    }
}

impl TcpOptions {
    /// Sets the certificates and keys for `tls://`. Default: none, so that `tls://`
    /// addresses are refused ([`CommError::NoTls`]).
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn with_tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Sets the time after which a connection ends whose peer is silent: it answers no
    /// keepalive probe, and on Linux also if it does not acknowledge data
    /// (`distributed.comm.timeouts.tcp`). Probes count in seconds, and at least 11. Default:
    /// 30 seconds.
    #[must_use]
    pub const fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

impl Tcp {
    /// Creates the transport.
    pub const fn new(options: TcpOptions) -> Self {
        Self { options }
    }

    /// The TLS settings, if the address needs TLS.
    #[cfg(feature = "tls")]
    fn tls(&self, address: &Address) -> Result<Option<Tls>, CommError> {
        match &self.options.tls {
            _ if address.scheme() != "tls" => Ok(None),
            Some(tls) => Ok(Some(tls.clone())),
            None => Err(CommError::NoTls {
                address: address.clone(),
            }),
        }
    }
}

impl Transport for Tcp {
    fn schemes(&self) -> &[&'static str] {
        if cfg!(feature = "tls") {
            &["tcp", "tls"]
        } else {
            &["tcp"]
        }
    }

    fn connect<'a>(
        &'a self,
        address: &'a Address,
        options: &'a ConnectOptions,
    ) -> BoxFuture<'a, Result<PendingConnection, ConnectError>> {
        Box::pin(async {
            #[cfg(feature = "tls")]
            let tls = self.tls(address)?;
            let (host, port) = host_and_port(address)?;
            let connecting = SocketStream::connect(host, port, self.options.timeout);
            let connection = match runtime::timeout(options.attempt_timeout, connecting).await {
                Ok(connection) => connection?,
                Err(_) => return Err(ConnectError::NoAnswer),
            };
            #[cfg(feature = "tls")]
            if let Some(tls) = tls {
                let peer = Address::new("tls", connection.peer());
                let opening = crate::tls::connect(tls, connection, address.clone());
                return Ok(PendingConnection::new(peer, opening));
            }
            Ok(connection.into_raw().into())
        })
    }

    fn bind<'a>(
        &'a self,
        address: &'a Address,
    ) -> BoxFuture<'a, Result<Box<dyn Listen>, CommError>> {
        Box::pin(async {
            #[cfg(feature = "tls")]
            let tls = self.tls(address)?;
            let (host, port) = host_and_port(address)?;
            let bound = Sockets::bind(host, port).await;
            let sockets = bound.map_err(|error| CommError::Bind {
                address: address.clone(),
                error,
            })?;
            let listener: Box<dyn Listen> = Box::new(Listener {
                sockets,
                timeout: self.options.timeout,
                #[cfg(feature = "tls")]
                tls,
            });
            Ok(listener)
        })
    }
}

struct Listener {
    sockets: Sockets,
    timeout: Duration,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

impl Listener {
    #[cfg(feature = "tls")]
    const fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "tls" } else { "tcp" }
    }

    #[cfg(not(feature = "tls"))]
    const fn scheme(&self) -> &'static str {
        "tcp"
    }
}

impl Listen for Listener {
    fn accept(&self) -> BoxFuture<'_, Result<PendingConnection, CommError>> {
        Box::pin(async {
            let (accepted, peer) = self.sockets.accept().await.map_err(CommError::Io)?;
            let address = Address::new(self.scheme(), peer);
            let timeout = self.timeout;
            #[cfg(feature = "tls")]
            if let Some(tls) = self.tls.clone() {
                let opening = async move {
                    let connection = accepted.open(timeout).map_err(CommError::Io)?;
                    crate::tls::accept(tls, connection).await
                };
                return Ok(PendingConnection::new(address, opening));
            }
            let opening =
                async move { Ok(accepted.open(timeout).map_err(CommError::Io)?.into_raw()) };
            Ok(PendingConnection::new(address, opening))
        })
    }

    fn local_address(&self) -> io::Result<Address> {
        Ok(Address::new(self.scheme(), self.sockets.local_addr()))
    }
}

/// The listening sockets of one address.
struct Sockets {
    first: Listening,
    /// The socket for every IPv6 interface, if `first` is the one for every IPv4 interface.
    second: Option<Listening>,
}

impl Sockets {
    async fn bind(host: &str, port: u16) -> io::Result<Self> {
        if !host.is_empty() {
            return Ok(Self {
                first: Listening::bind(host, port).await?,
                second: None,
            });
        }
        // Two sockets with the same port, as in Dask.
        let mut attempts = 0..10;
        loop {
            let first = Listening::bind_address((Ipv4Addr::UNSPECIFIED, port).into(), false)?;
            let ipv6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, first.local_addr().port()));
            match Listening::bind_address(ipv6, true) {
                Ok(second) => {
                    let second = Some(second);
                    return Ok(Self { first, second });
                }
                // The port is in use for IPv6: try another one.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && port == 0 => {
                    if attempts.next().is_none() {
                        return Err(error);
                    }
                }
                Err(error) if is_ipv6_missing(&error) => {
                    // This host has no IPv6.
                    return Ok(Self {
                        first,
                        second: None,
                    });
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for the next connection. This method is cancel safe.
    async fn accept(&self) -> io::Result<(Accepted, SocketAddr)> {
        match &self.second {
            None => self.first.accept().await,
            Some(second) => tokio::select! {
                accepted = self.first.accept() => accepted,
                accepted = second.accept() => accepted,
            },
        }
    }

    fn local_addr(&self) -> SocketAddr {
        self.first.local_addr()
    }
}

/// Whether an error means that the host has no IPv6, rather than that the port is in
/// use or forbidden, or that a resource is exhausted.
fn is_ipv6_missing(error: &io::Error) -> bool {
    // EMFILE and ENFILE have no `ErrorKind`, and the same numbers on every Unix.
    !matches!(error.raw_os_error(), Some(23 | 24))
        && !matches!(
            error.kind(),
            io::ErrorKind::AddrInUse | io::ErrorKind::OutOfMemory | io::ErrorKind::PermissionDenied
        )
}
