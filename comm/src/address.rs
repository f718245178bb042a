//! Addresses: `tcp://host:port`, and the same with other schemes.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::str::FromStr;

/// How a comm is carried: what stands before `://` in an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scheme {
    /// `tcp`: in the clear.
    Tcp,
    /// `tls`: the same within TLS.
    Tls,
    /// `quic`: a stream of a QUIC connection, by the package `daskwire-quic`.
    Quic,
    /// `unix`: a socket in the file system of this machine. Dask has no such
    /// comm.
    Unix,
    /// `inproc`: within this process.
    Inproc,
}

impl Scheme {
    const ALL: [Self; 5] = [Self::Tcp, Self::Tls, Self::Quic, Self::Unix, Self::Inproc];

    /// Its name, as addresses have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Quic => "quic",
            Self::Unix => "unix",
            Self::Inproc => "inproc",
        }
    }

    /// Whether its addresses have a host and a port, and not a path.
    const fn has_host(self) -> bool {
        matches!(self, Self::Tcp | Self::Tls | Self::Quic)
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a comm can be had: `tcp://host:port`.
///
/// Written as Dask writes it: a missing scheme means `tcp`, an IPv6 address
/// stands in brackets, an empty host means every interface (to listen on).
/// Addresses of `unix` and `inproc` have a path in place of host and port.
/// What is parsed and printed again is the same address.
///
/// ```
/// use daskwire_comm::{Address, Scheme};
/// let address: Address = "[::1]:8786".parse()?;
/// assert_eq!(address.to_string(), "tcp://[::1]:8786");
/// assert_eq!((address.host(), address.port()), ("::1", 8786));
/// let scheduler = Address::parse_with_port("tls://10.0.0.7", 8786)?;
/// assert_eq!(scheduler.to_string(), "tls://10.0.0.7:8786");
/// let socket: Address = "unix:///run/dask.sock".parse()?;
/// assert_eq!((socket.scheme(), socket.path()), (Scheme::Unix, "/run/dask.sock"));
/// # Ok::<(), daskwire_comm::AddressError>(())
/// ```
///
/// Source: `distributed/comm/addressing.py`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    scheme: Scheme,
    /// Without brackets; the path where there is no host.
    host: Box<str>,
    port: u16,
}

impl Address {
    /// Parses an address that may lack the port, and takes `port` then.
    ///
    /// # Errors
    ///
    /// As [`Address::from_str`], except for [`AddressError::NoPort`].
    pub fn parse_with_port(text: &str, port: u16) -> Result<Self, AddressError> {
        Self::parse(text, Some(port))
    }

    fn parse(text: &str, default_port: Option<u16>) -> Result<Self, AddressError> {
        let (scheme, location) = match text.split_once("://") {
            Some((name, location)) => {
                let known = Scheme::ALL.into_iter().find(|scheme| scheme.name() == name);
                (known.ok_or(AddressError::Scheme)?, location)
            }
            None => (Scheme::Tcp, text),
        };
        if !scheme.has_host() {
            if location.is_empty() || location.contains(char::is_control) {
                return Err(AddressError::Path);
            }
            return Ok(Self {
                scheme,
                host: location.into(),
                port: 0,
            });
        }
        let (host, port) = if let Some(bracketed) = location.strip_prefix('[') {
            let (host, behind) = bracketed.split_once(']').ok_or(AddressError::Brackets)?;
            let (literal, zone) = match host.split_once('%') {
                Some((literal, zone)) => (literal, Some(zone)),
                None => (host, None),
            };
            let good_zone = zone.is_none_or(|zone| !zone.is_empty() && is_host(zone));
            if literal.parse::<Ipv6Addr>().is_err() || !good_zone {
                return Err(AddressError::Brackets);
            }
            match behind.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if behind.is_empty() => (host, None),
                None => return Err(AddressError::Brackets),
            }
        } else {
            let (host, port) = match location.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (location, None),
            };
            if host.contains("//") {
                return Err(AddressError::Scheme);
            }
            if host.contains(':') {
                return Err(AddressError::Brackets);
            }
            if !is_host(host) {
                return Err(AddressError::Host);
            }
            (host, port)
        };
        let port = match port {
            Some(digits) => parse_port(digits).ok_or(AddressError::Port)?,
            None => default_port.ok_or(AddressError::NoPort)?,
        };
        Ok(Self {
            scheme,
            host: host.into(),
            port,
        })
    }

    /// The address of a socket.
    pub fn new(scheme: Scheme, address: SocketAddr) -> Self {
        let host = match address {
            SocketAddr::V6(v6) if v6.scope_id() != 0 => format!("{}%{}", v6.ip(), v6.scope_id()),
            _ => address.ip().to_string(),
        };
        Self {
            scheme,
            host: host.into(),
            port: address.port(),
        }
    }

    /// An address that has a path and no host.
    pub fn with_path(scheme: Scheme, path: &str) -> Self {
        Self {
            scheme,
            host: path.into(),
            port: 0,
        }
    }

    /// How comms at this address are carried.
    pub const fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The name or number of the host, without brackets; empty for every
    /// interface, and for schemes that have a [path](Self::path) instead.
    pub fn host(&self) -> &str {
        if self.scheme.has_host() {
            &self.host
        } else {
            ""
        }
    }

    /// The port; 0 to listen on any that is free.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// What stands behind the scheme in an address without a host; empty in
    /// one that has a host.
    pub fn path(&self) -> &str {
        if self.scheme.has_host() {
            ""
        } else {
            &self.host
        }
    }

    /// The address to give to others who are to connect to this listener:
    /// Dask's contact address. The host of `self`, unless that is a wildcard
    /// (empty, `0.0.0.0`, `::`), in which case it is `host`, a name or number
    /// by which others reach this machine.
    ///
    /// ```
    /// use daskwire_comm::Address;
    /// let listening: Address = "tcp://0.0.0.0:8786".parse()?;
    /// assert_eq!(listening.contact("10.0.0.7").to_string(), "tcp://10.0.0.7:8786");
    /// # Ok::<(), daskwire_comm::AddressError>(())
    /// ```
    #[must_use]
    pub fn contact(&self, host: &str) -> Self {
        let is_wildcard = self.scheme.has_host()
            && (self.host.is_empty()
                || (self.host.parse()).is_ok_and(|number: IpAddr| number.is_unspecified()));
        Self {
            scheme: self.scheme,
            host: if is_wildcard {
                host.into()
            } else {
                self.host.clone()
            },
            port: self.port,
        }
    }
}

/// Whether there is nothing in it that no host name has and that would make
/// the address ambiguous.
fn is_host(host: &str) -> bool {
    let odd = |c: char| c.is_whitespace() || c.is_control() || "/\\[]@?#%:\"'".contains(c);
    !host.contains(odd)
}

fn parse_port(digits: &str) -> Option<u16> {
    // `u16::from_str` takes a plus sign.
    digits
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| digits.parse().ok())
        .flatten()
}

impl FromStr for Address {
    type Err = AddressError;

    /// Parses `scheme://host:port`, `host:port` or `scheme://path`.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        Self::parse(text, None)
    }
}

impl From<SocketAddr> for Address {
    /// `tcp://` and this socket.
    fn from(address: SocketAddr) -> Self {
        Self::new(Scheme::Tcp, address)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scheme, host, port } = self;
        if !scheme.has_host() {
            write!(f, "{scheme}://{host}")
        } else if host.contains(':') {
            write!(f, "{scheme}://[{host}]:{port}")
        } else {
            write!(f, "{scheme}://{host}:{port}")
        }
    }
}

/// Whether two ends of one connection are on one host: Dask compares their
/// addresses, so a host that talks to itself over its own network is found
/// (PROTOCOL HANDSHAKE-4).
pub(crate) fn same_host(local: &Address, peer: &Address) -> bool {
    let number = |address: &Address| {
        let number: Option<IpAddr> = address.host().parse().ok();
        number.map(|number| number.to_canonical())
    };
    if !local.scheme.has_host() {
        // Neither leaves this machine.
        return true;
    }
    match (number(local), number(peer)) {
        (Some(local), Some(peer)) => local == peer,
        _ => local.host() == peer.host(),
    }
}

/// Text that is no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AddressError {
    /// A scheme that is none of [`Scheme`].
    Scheme,
    /// An IPv6 address without brackets, or something else within them.
    Brackets,
    /// A host with a character that no host has.
    Host,
    /// No port, where one is needed.
    NoPort,
    /// A port that is no number from 0 to 65535.
    Port,
    /// No path behind `unix://` or `inproc://`, or none that can be one.
    Path,
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scheme => {
                "the scheme of an address must be tcp, tls, quic, unix or inproc, \
                 as in tcp://127.0.0.1:8786"
            }
            Self::Brackets => {
                "an IPv6 address in an address needs brackets, as in tcp://[::1]:8786"
            }
            Self::Host => "the host of an address must be a name or a number",
            Self::NoPort => "the address has no port, as in tcp://127.0.0.1:8786",
            Self::Port => "the port of an address must be a number from 0 to 65535",
            Self::Path => "the address needs a path, as in unix:///run/dask.sock",
        })
    }
}

impl core::error::Error for AddressError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_as_dask_parses_them() {
        for (text, host, port, printed) in [
            (
                "tcp://127.0.0.1:456",
                "127.0.0.1",
                456,
                "tcp://127.0.0.1:456",
            ),
            ("127.0.0.1:456", "127.0.0.1", 456, "tcp://127.0.0.1:456"),
            ("localhost:0", "localhost", 0, "tcp://localhost:0"),
            (":456", "", 456, "tcp://:456"),
            ("tcp://[::1]:456", "::1", 456, "tcp://[::1]:456"),
            (
                "[fe80::1%eth0]:65535",
                "fe80::1%eth0",
                65535,
                "tcp://[fe80::1%eth0]:65535",
            ),
            ("tls://10.0.0.1:1", "10.0.0.1", 1, "tls://10.0.0.1:1"),
            ("quic://[::]:0", "::", 0, "quic://[::]:0"),
            ("unix:///a b:c", "", 0, "unix:///a b:c"),
            ("inproc://1.2.3.4/5/6", "", 0, "inproc://1.2.3.4/5/6"),
            (
                "tcp://my_host-1.example.org:080",
                "my_host-1.example.org",
                80,
                "tcp://my_host-1.example.org:80",
            ),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!((address.host(), address.port()), (host, port), "{text}");
            assert_eq!(address.to_string(), printed);
            assert_eq!(printed.parse(), Ok(address));
        }
        for text in ["tcp://[::1]", "[::1]"] {
            let address = Address::parse_with_port(text, 8786).unwrap();
            assert_eq!(address.to_string(), "tcp://[::1]:8786");
        }
        let address = Address::parse_with_port("", 80).unwrap();
        assert_eq!(address.to_string(), "tcp://:80");
    }

    #[test]
    fn what_is_no_address_is_told_apart() {
        use AddressError::*;
        for (text, error) in [
            ("http://127.0.0.1:456", Scheme),
            ("TCP://127.0.0.1:456", Scheme),
            ("unix://", Path),
            ("inproc://a\nb", Path),
            ("://127.0.0.1:456", Scheme),
            ("tcp://tcp://a:1", Scheme),
            ("::1", Brackets),
            ("::1:456", Brackets),
            ("tcp://::1:456", Brackets),
            ("[::1", Brackets),
            ("[::1]456", Brackets),
            ("[localhost]:456", Brackets),
            ("[::1%]:456", Brackets),
            ("[::1%a b]:456", Brackets),
            ("[127.0.0.1]:456", Brackets),
            ("a b:456", Host),
            ("a/b:456", Host),
            ("a]:456", Host),
            ("127.0.0.1", NoPort),
            ("[::1]", NoPort),
            ("", NoPort),
            ("a:", Port),
            ("a:65536", Port),
            ("a:+1", Port),
            ("a:-1", Port),
            ("a:1_0", Port),
            ("a: 1", Port),
            ("[::1]:", Port),
        ] {
            assert_eq!(text.parse::<Address>(), Err(error), "{text:?}");
        }
    }

    #[test]
    fn sockets_print_as_addresses() {
        for (socket, printed) in [
            ("127.0.0.1:5", "tcp://127.0.0.1:5"),
            ("[::1]:5", "tcp://[::1]:5"),
            ("[fe80::1%3]:5", "tcp://[fe80::1%3]:5"),
        ] {
            let socket: SocketAddr = socket.parse().unwrap();
            assert_eq!(Address::from(socket).to_string(), printed);
        }
    }

    #[test]
    fn one_host_is_known_by_its_addresses() {
        let same = |a: &str, b: &str| same_host(&a.parse().unwrap(), &b.parse().unwrap());
        assert!(same("127.0.0.1:1", "127.0.0.1:2"));
        assert!(same("10.1.2.3:1", "[::ffff:10.1.2.3]:1"));
        assert!(same("name:1", "name:2"));
        assert!(same("[fe80::1%3]:1", "[fe80::1%3]:2"));
        assert!(!same("127.0.0.1:1", "127.0.0.2:1"));
        assert!(!same("[::1]:1", "127.0.0.1:1"));
        assert!(!same("name:1", "127.0.0.1:1"));
    }
}
