//! `tcp://` and `tls://`.

use core::future::poll_fn;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::Poll;
use core::time::Duration;
use std::collections::HashSet;
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
        Ok(Address::new(self.scheme(), self.sockets.local_addr()?))
    }
}

/// The listening sockets of one address, those of IPv4 first. There is at least one.
struct Sockets {
    sockets: Vec<Listening>,
    /// The number of calls of [`Sockets::accept`].
    accept_count: AtomicUsize,
}

impl Sockets {
    /// Listens at all addresses of the host, with the same port, as Dask does.
    async fn bind(host: &str, port: u16) -> io::Result<Self> {
        let mut addresses = if host.is_empty() {
            let every = |ip| SocketAddr::new(ip, port);
            vec![
                every(Ipv4Addr::UNSPECIFIED.into()),
                every(Ipv6Addr::UNSPECIFIED.into()),
            ]
        } else {
            runtime::lookup_host(host, port).await?
        };
        // Of each family in the resolver's order, which may have an address twice: the first
        // one is reported as the address of the listener.
        addresses.sort_by_key(SocketAddr::is_ipv6);
        let mut seen = HashSet::new();
        addresses.retain(|address| seen.insert(*address));
        let mut attempts = 0..10;
        loop {
            match Self::bind_all(&addresses) {
                // The port that was free at the first address is in use at another one.
                Err(error)
                    if error.kind() == io::ErrorKind::AddrInUse
                        && port == 0
                        && attempts.next().is_some() => {}
                outcome => return outcome,
            }
        }
    }

    fn bind_all(addresses: &[SocketAddr]) -> io::Result<Self> {
        let mut sockets: Vec<Listening> = Vec::with_capacity(addresses.len());
        let mut failure = None;
        for address in addresses {
            let mut address = *address;
            if let Some(first) = sockets.first() {
                address.set_port(first.local_addr().port());
            }
            match Listening::bind(address) {
                Ok(socket) => sockets.push(socket),
                Err(error) if is_address_missing(&error) => {
                    failure.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        if sockets.is_empty() {
            return Err(failure.unwrap_or_else(|| io::ErrorKind::NotFound.into()));
        }
        Ok(Self {
            sockets,
            accept_count: AtomicUsize::new(0),
        })
    }

    /// Waits for the next connection. This method is cancel safe.
    async fn accept(&self) -> io::Result<(Accepted, SocketAddr)> {
        if let [socket] = &self.sockets[..] {
            return socket.accept().await;
        }
        // Another socket is first each time, so that a busy one does not block the others.
        let first = self.accept_count.fetch_add(1, Ordering::Relaxed) % self.sockets.len();
        let (last, first) = self.sockets.split_at(first);
        let sockets = first.iter().chain(last);
        let mut accepting: Vec<_> = sockets.map(|socket| Box::pin(socket.accept())).collect();
        poll_fn(|context| {
            let polls = accepting.iter_mut();
            polls
                .map(|accepting| accepting.as_mut().poll(context))
                .find(Poll::is_ready)
                .unwrap_or(Poll::Pending)
        })
        .await
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        let first = self.sockets.first().ok_or(io::ErrorKind::NotConnected)?;
        Ok(first.local_addr())
    }
}

/// Whether an error means that the host does not have the address, or its family.
fn is_address_missing(error: &io::Error) -> bool {
    // EAFNOSUPPORT of Linux, and of macOS and the BSDs, has no `ErrorKind`.
    matches!(error.raw_os_error(), Some(97 | 47))
        || matches!(
            error.kind(),
            io::ErrorKind::AddrNotAvailable | io::ErrorKind::Unsupported
        )
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;

    use super::*;

    /// The addresses of a name such as `localhost`, in the order of a resolver.
    #[cfg(target_os = "linux")] // Others have no 127.0.0.2.
    #[tokio::test]
    async fn all_addresses_of_a_host_are_bound_to_one_port() {
        let address = |ip: &str| SocketAddr::new(ip.parse().expect("an address"), 0);
        let sockets = Sockets::bind_all(&[
            // Reserved for documentation, so no host has it.
            address("192.0.2.1"),
            address("127.0.0.1"),
            address("127.0.0.2"),
        ])
        .expect("loopback");
        let local = sockets.local_addr().expect("a socket");
        assert_eq!(local.ip(), Ipv4Addr::LOCALHOST);
        for ip in ["127.0.0.1", "127.0.0.2"] {
            let connecting = TcpStream::connect((ip, local.port()));
            let (near, far) = tokio::join!(connecting, sockets.accept());
            let (near, (_, peer)) = (near.expect("listens"), far.expect("accepts"));
            assert_eq!(near.local_addr().expect("connected"), peer);
        }
        let error = Sockets::bind_all(&[address("192.0.2.1")]).map(|_| ());
        let error = error.expect_err("no address").kind();
        assert_eq!(error, io::ErrorKind::AddrNotAvailable);
    }

    /// As Dask, which sets `IPV6_V6ONLY`.
    #[tokio::test]
    async fn ipv6_sockets_leave_the_port_free_for_ipv4() {
        if std::net::TcpListener::bind("[::1]:0").is_err() {
            return; // This host has no IPv6.
        }
        // Another program may use the port over IPv4.
        for _ in 0..10 {
            let sockets = Sockets::bind("::", 0).await.expect("IPv6");
            let port = sockets.local_addr().expect("a socket").port();
            if Sockets::bind("0.0.0.0", port).await.is_ok() {
                return;
            }
        }
        panic!("sockets of IPv6 take the port of IPv4, too");
    }
}
