//! The address of an HTTP server.

use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;

/// The host and port to bind: `HOST:PORT`, `:PORT` or `PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAddress {
    host: String,
    port: u16,
}

impl HttpAddress {
    /// Any free port of all interfaces.
    pub fn any_port() -> Self {
        Self {
            host: "0.0.0.0".to_owned(),
            port: 0,
        }
    }

    /// The host to bind.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port to bind; 0 for any free one.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The address for clients: with another host if this one stands for all interfaces.
    #[must_use]
    pub fn reachable_at(&self, host: &str) -> Self {
        let ip = self.host.parse::<IpAddr>();
        let host = match ip.is_ok_and(|ip| ip.is_unspecified()) {
            true => host.to_owned(),
            false => self.host.clone(),
        };
        let port = self.port;
        Self { host, port }
    }

    /// Another port of the same host.
    #[must_use]
    pub fn with_port(&self, port: u16) -> Self {
        let host = self.host.clone();
        Self { host, port }
    }
}

impl FromStr for HttpAddress {
    type Err = &'static str;

    fn from_str(input: &str) -> Result<Self, Self::Err> {
        let location = input.trim_start_matches("http://");
        let location = location.trim_start_matches("https://");
        let (host, port) = location.rsplit_once(':').unwrap_or(("", location));
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Ok(Self {
            host: if host.is_empty() { "0.0.0.0" } else { host }.to_owned(),
            port: port
                .parse()
                .map_err(|_| "expected HOST:PORT, :PORT or PORT")?,
        })
    }
}

impl fmt::Display for HttpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}
