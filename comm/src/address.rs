//! Addresses: `tcp://host:port`, and others with any scheme.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::str::FromStr;

/// The address of a listener or of an end of a comm: `scheme://location`.
///
/// Written as Dask writes it: a missing scheme means `tcp`. The meaning of the
/// location is up to the transport of the scheme. Locations of `tcp`, `tls`, `quic`,
/// `ws` and `wss` are `host:port`, and are checked when the address is parsed: an IPv6
/// address needs brackets, and an empty host means every interface (to listen on).
/// Those of `ws` and `wss` may have a path.
/// Printing a parsed address and parsing it again gives the same address.
///
/// ```
/// use daskwire_comm::Address;
/// let address: Address = "[::1]:8786".parse()?;
/// assert_eq!(address.to_string(), "tcp://[::1]:8786");
/// assert_eq!((address.host(), address.port()), ("::1", 8786));
/// let scheduler = Address::parse_with_port("tls://10.0.0.7", 8786)?;
/// assert_eq!(scheduler.to_string(), "tls://10.0.0.7:8786");
/// let line: Address = "serial:///dev/ttyUSB0".parse()?;
/// assert_eq!((line.scheme(), line.location()), ("serial", "/dev/ttyUSB0"));
/// # Ok::<(), daskwire_comm::AddressError>(())
/// ```
///
/// Source: `distributed/comm/addressing.py`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    scheme: Box<str>,
    location: Box<str>,
}

impl Address {
    /// Parses an address, with `port` as the default port.
    ///
    /// The default is used for `tcp`, `tls`, `quic`, `ws` and `wss` only: other schemes may
    /// have no ports. With a path, the default is that of HTTP: 80, or 443 for `wss`.
    ///
    /// # Errors
    ///
    /// As [`Address::from_str`], except for [`AddressError::NoPort`].
    pub fn parse_with_port(address: &str, port: u16) -> Result<Self, AddressError> {
        Self::parse(address, Some(port))
    }

    fn parse(address: &str, default_port: Option<u16>) -> Result<Self, AddressError> {
        let (scheme, location) = address.split_once("://").unwrap_or(("tcp", address));
        if !CHECKED_SCHEMES.contains(&scheme) {
            return Self::with_location(scheme, location);
        }
        let (host, path) = split_path(scheme, location);
        if path.contains(|c: char| c.is_whitespace() || c.is_control() || c == '#') {
            return Err(AddressError::Path);
        }
        let (host, port) = split_host(host)?;
        let default_port = match (scheme, path) {
            (_, "") => default_port,
            ("wss", _) => Some(443),
            _ => Some(80),
        };
        let port = match port {
            Some(digits) => parse_port(digits).ok_or(AddressError::Port)?,
            None => default_port.ok_or(AddressError::NoPort)?,
        };
        Ok(Self {
            scheme: scheme.into(),
            location: (join_host(host, port) + path).into(),
        })
    }

    /// Creates an address of a host, which has no brackets, and a port.
    pub fn of_host(scheme: &str, (host, port): (&str, u16)) -> Self {
        Self {
            scheme: scheme.into(),
            location: join_host(host, port).into(),
        }
    }

    /// The same location with another scheme.
    #[must_use]
    pub fn with_scheme(&self, scheme: &str) -> Self {
        Self {
            scheme: scheme.into(),
            location: self.location.clone(),
        }
    }

    /// Creates the address of a socket.
    pub fn new(scheme: &str, address: SocketAddr) -> Self {
        let host = match address {
            SocketAddr::V6(v6) if v6.scope_id() != 0 => format!("{}%{}", v6.ip(), v6.scope_id()),
            _ => address.ip().to_string(),
        };
        Self {
            scheme: scheme.into(),
            location: join_host(&host, address.port()).into(),
        }
    }

    /// Creates an address with a location that only its transport interprets.
    ///
    /// # Errors
    ///
    /// * [`AddressError::Scheme`] if `scheme` is not a valid scheme name;
    /// * [`AddressError::Location`] if `location` is empty or contains a control
    ///   character.
    pub fn with_location(scheme: &str, location: &str) -> Result<Self, AddressError> {
        let mut letters = scheme.bytes();
        let is_scheme = letters
            .next()
            .is_some_and(|first| first.is_ascii_lowercase())
            && letters.all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'+' | b'-' | b'.'));
        if !is_scheme {
            return Err(AddressError::Scheme);
        }
        if location.is_empty() || location.contains(char::is_control) {
            return Err(AddressError::Location);
        }
        Ok(Self {
            scheme: scheme.into(),
            location: location.into(),
        })
    }

    /// The scheme: the part before `://`.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// The location: the part after `://`.
    pub fn location(&self) -> &str {
        &self.location
    }

    /// The host, without brackets, and the port; `None` if the location is not
    /// `host:port`.
    pub fn host_and_port(&self) -> Option<(&str, u16)> {
        let (host, _) = split_path(&self.scheme, &self.location);
        let (host, port) = split_host(host).ok()?;
        Some((host, parse_port(port?)?))
    }

    /// The path of a location of `ws` or `wss`, such as `/proxy/8786`; empty if there is none,
    /// and for other schemes.
    pub fn path(&self) -> &str {
        split_path(&self.scheme, &self.location).1
    }

    /// The host name or IP address, without brackets; empty for every interface,
    /// and if the location is not `host:port`.
    pub fn host(&self) -> &str {
        self.host_and_port().map_or("", |(host, _)| host)
    }

    /// The port; 0 to listen on any free port, and if the location is not
    /// `host:port`.
    pub fn port(&self) -> u16 {
        self.host_and_port().map_or(0, |(_, port)| port)
    }

    /// The address by which peers connect to this listener: Dask's contact address.
    /// If the host of `self` is a wildcard (empty, `0.0.0.0`, `::`), it is replaced
    /// by `host`, a host name or IP address by which peers reach this machine.
    ///
    /// ```
    /// use daskwire_comm::Address;
    /// let listening: Address = "tcp://0.0.0.0:8786".parse()?;
    /// assert_eq!(listening.contact("10.0.0.7").to_string(), "tcp://10.0.0.7:8786");
    /// # Ok::<(), daskwire_comm::AddressError>(())
    /// ```
    #[must_use]
    pub fn contact(&self, host: &str) -> Self {
        let is_wildcard = |own: &str| {
            own.is_empty()
                || own
                    .parse()
                    .is_ok_and(|number: IpAddr| number.is_unspecified())
        };
        match self.host_and_port() {
            Some((own, port)) if is_wildcard(own) => Self {
                scheme: self.scheme.clone(),
                location: (join_host(host, port) + self.path()).into(),
            },
            _ => self.clone(),
        }
    }
}

/// Splits the path from a location of `ws` or `wss`. A path of `/` alone is none.
fn split_path<'l>(scheme: &str, location: &'l str) -> (&'l str, &'l str) {
    let end = match scheme {
        "ws" | "wss" => location.find('/').unwrap_or(location.len()),
        _ => location.len(),
    };
    match location.split_at(end) {
        (host, "/") => (host, ""),
        split => split,
    }
}

/// Splits `host:port` or `host`. Returns the host without brackets, and the port
/// unparsed.
fn split_host(location: &str) -> Result<(&str, Option<&str>), AddressError> {
    if let Some(bracketed) = location.strip_prefix('[') {
        let (host, rest) = bracketed.split_once(']').ok_or(AddressError::Brackets)?;
        let (literal, zone) = match host.split_once('%') {
            Some((literal, zone)) => (literal, Some(zone)),
            None => (host, None),
        };
        let good_zone = zone.is_none_or(|zone| !zone.is_empty() && is_host(zone));
        if literal.parse::<Ipv6Addr>().is_err() || !good_zone {
            return Err(AddressError::Brackets);
        }
        return match rest.strip_prefix(':') {
            Some(port) => Ok((host, Some(port))),
            None if rest.is_empty() => Ok((host, None)),
            None => Err(AddressError::Brackets),
        };
    }
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
    Ok((host, port))
}

fn join_host(host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// Whether `host` has none of the characters that host names cannot contain and that
/// would make the address ambiguous.
fn is_host(host: &str) -> bool {
    let odd = |c: char| c.is_whitespace() || c.is_control() || "/\\[]@?#%:\"'".contains(c);
    !host.contains(odd)
}

fn parse_port(digits: &str) -> Option<u16> {
    // `u16::from_str` accepts a plus sign.
    digits
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| digits.parse().ok())
        .flatten()
}

impl FromStr for Address {
    type Err = AddressError;

    /// Parses `scheme://location`, or `host:port` for `tcp`.
    fn from_str(address: &str) -> Result<Self, AddressError> {
        Self::parse(address, None)
    }
}

impl From<SocketAddr> for Address {
    /// The `tcp://` address of a socket.
    fn from(address: SocketAddr) -> Self {
        Self::new("tcp", address)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.location)
    }
}

/// The reason why a string is not an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AddressError {
    /// The scheme is not a valid scheme name.
    Scheme,
    /// An IPv6 address has no brackets, or the brackets contain something else.
    Brackets,
    /// The host contains a character that host names cannot contain.
    Host,
    /// The port is missing.
    NoPort,
    /// The port is not a number from 0 to 65535.
    Port,
    /// The location is empty or contains a control character.
    Location,
    /// The path contains a character that paths cannot contain.
    Path,
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scheme => {
                "the scheme of an address must be lowercase letters and digits, \
                 as in tcp://127.0.0.1:8786"
            }
            Self::Brackets => {
                "an IPv6 address in an address needs brackets, as in tcp://[::1]:8786"
            }
            Self::Host => "the host of an address must be a host name or an IP address",
            Self::NoPort => "the address has no port, as in tcp://127.0.0.1:8786",
            Self::Port => "the port of an address must be a number from 0 to 65535",
            Self::Location => "the address needs a location, as in unix:///run/dask.sock",
            Self::Path => "the path of an address must have no spaces and no #",
        })
    }
}

impl core::error::Error for AddressError {}

daskwire::kinds! {
    AddressError: |_| ErrorKind::Invalid;
}

/// Schemes whose locations are checked to be `host:port` when they are parsed.
const CHECKED_SCHEMES: [&str; 5] = ["tcp", "tls", "quic", "ws", "wss"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_as_dask_parses_them() {
        for (input, host, port, printed) in [
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
            ("serial:///dev/ttyUSB0", "", 0, "serial:///dev/ttyUSB0"),
            ("ws://a:1", "a", 1, "ws://a:1"),
            ("ws://a:1/", "a", 1, "ws://a:1"),
            ("ws://[::1]:1/b/c:2?d", "::1", 1, "ws://[::1]:1/b/c:2?d"),
            ("ws://a/b", "a", 80, "ws://a:80/b"),
            ("wss://a/b", "a", 443, "wss://a:443/b"),
            ("inproc://1.2.3.4/5/6", "", 0, "inproc://1.2.3.4/5/6"),
            (
                "tcp://my_host-1.example.org:080",
                "my_host-1.example.org",
                80,
                "tcp://my_host-1.example.org:80",
            ),
        ] {
            let address: Address = input.parse().unwrap();
            assert_eq!((address.host(), address.port()), (host, port), "{input}");
            assert_eq!(address.to_string(), printed);
            assert_eq!(printed.parse(), Ok(address));
        }
        for input in ["tcp://[::1]", "[::1]"] {
            let address = Address::parse_with_port(input, 8786).unwrap();
            assert_eq!(address.to_string(), "tcp://[::1]:8786");
        }
        let address = Address::parse_with_port("", 80).unwrap();
        assert_eq!(address.to_string(), "tcp://:80");
    }

    #[test]
    fn invalid_addresses_are_errors() {
        use AddressError::*;
        for (input, error) in [
            ("sErial://a", Scheme),
            ("1a://a", Scheme),
            ("TCP://127.0.0.1:456", Scheme),
            ("unix://", Location),
            ("inproc://a\nb", Location),
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
            ("ws://a", NoPort),
            ("ws://a/", NoPort),
            ("ws://a:1/b c", Path),
            ("ws://a:1/b#c", Path),
        ] {
            assert_eq!(input.parse::<Address>(), Err(error), "{input:?}");
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
}
