//! The addresses of a host, and attempts to connect to them.

use core::net::SocketAddr;
use core::time::Duration;
use std::io;

use futures_util::stream::{FuturesUnordered, StreamExt as _};

use super::{ended, spawn_blocking, timeout};

/// Resolves a host name or IP address, and a port, to socket addresses.
///
/// # Cancel safety
///
/// Dropping the future discards the result; the call of the resolver still ends by itself.
///
/// # Errors
///
/// Those of the system's resolver.
pub async fn lookup_host(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let host = host.to_owned();
    let lookup = spawn_blocking(move || {
        let found = std::net::ToSocketAddrs::to_socket_addrs(&(host.as_str(), port))?;
        Ok(found.collect())
    });
    lookup.await.unwrap_or_else(|_| Err(ended()))
}

/// Makes attempts with all addresses of a host, as RFC 8305 ("Happy Eyeballs") describes,
/// and returns the result of the first that succeeds; the others are dropped. An attempt
/// begins 250 milliseconds after the one before it, or at once if one has failed, with
/// IPv6 and IPv4 in turn.
///
/// # Cancel safety
///
/// Dropping the future drops all attempts.
///
/// # Errors
///
/// Those of all attempts, in the order in which they failed; an empty vector if `addresses`
/// is empty.
pub async fn first_to_connect<T, E, F: Future<Output = Result<T, E>>>(
    addresses: Vec<SocketAddr>,
    mut attempt: impl FnMut(SocketAddr) -> F,
) -> Result<T, Vec<E>> {
    let mut addresses = alternate(addresses).into_iter();
    let mut attempts = FuturesUnordered::new();
    let mut errors = Vec::new();
    loop {
        match addresses.next() {
            Some(address) => attempts.push(attempt(address)),
            None if attempts.is_empty() => return Err(errors),
            None => {}
        }
        let outcome = if addresses.as_slice().is_empty() {
            attempts.next().await
        } else {
            match timeout(NEXT_ADDRESS, attempts.next()).await {
                Ok(outcome) => outcome,
                Err(_) => continue,
            }
        };
        match outcome {
            Some(Ok(connection)) => return Ok(connection),
            Some(Err(error)) => errors.push(error),
            None => {}
        }
    }
}

/// Sorts addresses so that both families take turns, beginning with that of the first,
/// while addresses of one family keep their order.
fn alternate(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let count = addresses.len();
    let is_first_ipv6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) = addresses
        .into_iter()
        .partition(|address| address.is_ipv6() == is_first_ipv6);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut sorted = Vec::with_capacity(count);
    while sorted.len() < count {
        sorted.extend(first.next());
        sorted.extend(second.next());
    }
    sorted
}

/// The time until an attempt with the next address begins.
const NEXT_ADDRESS: Duration = Duration::from_millis(250);
