//! Messages for the user while the command connects to a scheduler.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use daskwire::frame::{Prefix, encode_prelude, prelude_len};
use daskwire::msgpack::Writer;
use daskwire_comm::{
    Address, BoxFuture, CommError, CommOptions, ConnectError, ConnectOptions, Listen,
    PendingConnection, Traffic, Transport, Transports,
};
use daskwire_peer::Client;
use daskwire_peer::client::{ClientOptions, Reconnect};
use daskwire_peer::identity::Identity;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::command::cluster_command::message;
use crate::command::failure::{Failure, Result};
use crate::command::terminal;
use crate::command::tls::{has_transport, schemes};

/// Time for the handshake and the registration, after which the command checks whether the
/// peer is an HTTP server or a worker.
const CHECK_DELAY: Duration = Duration::from_secs(2);

/// The timeout of each of these checks.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// The error for the address of a worker.
const NOT_A_SCHEDULER: &str = "this is a worker; give the address of its scheduler";

/// Parses the address of a scheduler.
///
/// # Errors
///
/// A usage error if the address is invalid.
pub(crate) fn address(input: &str) -> Result<Address> {
    if input.starts_with("http://") || input.starts_with("https://") {
        return Err(Failure::usage(format_args!(
            "{input}: this is the address of an HTTP server, such as the dashboard; \
             a scheduler's is tcp://HOST:PORT, by default with port 8786"
        )));
    }
    let address: Address = input
        .parse()
        .map_err(|error| Failure::usage(format_args!("{input}: {error}")))?;
    if !has_transport(address.scheme()) {
        return Err(Failure::usage(format_args!(
            "{input}: expected the scheme {}",
            schemes()
        )));
    }
    Ok(address)
}

/// Parses an address whose scheme may be omitted.
///
/// # Errors
///
/// As [`address`].
pub(crate) fn address_with(input: &str, scheme: &str) -> Result<Address> {
    match input.contains("://") {
        true => address(input),
        false => address(&format!("{scheme}://{input}")),
    }
}

/// The address of a network interface, preferring IPv4.
///
/// # Errors
///
/// A usage error if there is no such interface with an address.
pub(crate) fn interface_address(name: &str) -> Result<String> {
    let interfaces = if_addrs::get_if_addrs()
        .map_err(|error| format!("cannot read the network interfaces: {error}"))?;
    let mut own: Vec<_> = interfaces
        .iter()
        .filter(|interface| interface.name == name)
        .map(if_addrs::Interface::ip)
        .collect();
    own.sort_by_key(std::net::IpAddr::is_ipv6);
    match own.first() {
        Some(std::net::IpAddr::V6(address)) => Ok(format!("[{address}]")),
        Some(address) => Ok(address.to_string()),
        None => {
            let mut names: Vec<&str> = interfaces
                .iter()
                .map(|interface| interface.name.as_str())
                .collect();
            names.sort_unstable();
            names.dedup();
            Err(Failure::usage(format_args!(
                "--interface {name}: no such network interface with an address; there are {}",
                names.join(", ")
            )))
        }
    }
}

/// The message of an error, with the address of the peer unless the error names it.
pub(crate) fn about(peer: &Address, error: impl fmt::Display) -> String {
    let (address, mut error) = (peer.to_string(), error.to_string());
    if !error.contains(&address) {
        error = format!("{address}: {error}");
    }
    let mut endings = ["reset by peer", "closed the connection"].iter();
    let is_closed = endings.any(|ending| error.contains(ending));
    let with_tls = match peer.scheme() {
        "tcp" => Some("tls"),
        "ws" => Some("wss"),
        _ => None,
    };
    if let (Some(with_tls), true) = (with_tls, is_closed) {
        error.push_str(&format!(
            "; it may be a scheduler with TLS: try {with_tls}://{}",
            peer.location()
        ));
    }
    error
}

/// Connects a client. Prints the first failed attempt, if there are more.
///
/// # Errors
///
/// As [`connecting`].
pub(crate) async fn connect(scheduler: &Address, mut options: ClientOptions) -> Result<Client> {
    // The command ends with the connection, and says why.
    options.reconnect = Reconnect::Never;
    let transports = options.transports.clone();
    if options.comm.connect_retry {
        let patience = options.comm.connect_timeout;
        options.transports = report_first_failure(transports.clone(), scheduler, patience);
    }
    let client = async {
        let client = Client::connect_with(&scheduler.to_string(), options).await;
        client.map_err(|error| about(scheduler, message(error)))
    };
    connecting(scheduler, &transports, true, client).await
}

/// Awaits `work`, which connects to a scheduler. Fails early if the peer is an HTTP server,
/// which would wait for the end of a request and never reply, or, with `refuses_workers`, a
/// worker, which ignores clients.
///
/// # Errors
///
/// The failure of `work`.
pub(crate) async fn connecting<T, E: Into<Failure>>(
    scheduler: &Address,
    transports: &Transports,
    refuses_workers: bool,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T> {
    let check = async {
        tokio::time::sleep(CHECK_DELAY).await;
        let checked = tokio::time::timeout(CHECK_TIMEOUT, is_http(scheduler, transports));
        match checked.await {
            Ok(Some(true)) => return CommError::PeerSpeaksHttp.to_string(),
            Ok(None) => {}
            Ok(Some(false)) | Err(_) => {
                let message = format!("{scheduler} does not answer yet; it may be busy");
                terminal::event("waiting", message, serde_json::json!({}));
            }
        }
        if !refuses_workers {
            return std::future::pending().await;
        }
        let options = daskwire_peer::identity::options(CHECK_TIMEOUT);
        match daskwire_peer::identity::identity(scheduler, transports, &options).await {
            Ok((identity, _)) if is_worker(&identity) => NOT_A_SCHEDULER.to_owned(),
            _ => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        done = work => done.map_err(Into::into),
        fault = check => Err(format!("{scheduler}: {fault}").into()),
    }
}

/// Whether the peer is a worker or its nanny.
pub(crate) fn is_worker(identity: &Identity) -> bool {
    ["Worker", "Nanny"].contains(&&*identity.kind)
}

/// Whether a peer replies in HTTP; `None` without a connection.
async fn is_http(peer: &Address, transports: &Transports) -> Option<bool> {
    let options = CommOptions::default()
        .with_connect_timeout(CHECK_TIMEOUT)
        .with_connect_retry(false);
    let connecting = transports.connect_raw(peer, &options, Traffic::Normal);
    let mut connection = connecting.await.ok()?;
    let mut first = [0; 5];
    let written = connection.writer.write_all(&handshake()).await;
    let is_http = written.is_ok()
        && connection.writer.flush().await.is_ok()
        && connection.reader.read_exact(&mut first).await.is_ok()
        && first == *b"HTTP/";
    Some(is_http)
}

/// A handshake that Dask accepts, and that contains an empty line, because an HTTP
/// server replies only after an empty line.
fn handshake() -> Vec<u8> {
    let mut document = [0; 128];
    let mut writer = Writer::new(&mut document);
    writer.map(4).str("compression").nil();
    writer.str("python-version").array(3).u64(3).u64(10).u64(0);
    writer.str("pickle-protocol").u64(4);
    writer.str("\r\n\r\n").nil();
    let document = writer.finish().unwrap_or_default();
    let mut message = vec![0; prelude_len(Prefix::U64, 1).unwrap_or_default()];
    let lengths = [document.len() as u64];
    // `message` has the length of a prelude for one frame.
    let _ = encode_prelude(Prefix::U64, lengths, &mut message);
    message.extend_from_slice(document);
    message
}

/// Wraps transports to print the first failure to connect to `scheduler`. Attempts
/// continue for `patience`.
pub(crate) fn report_first_failure(
    transports: Transports,
    scheduler: &Address,
    patience: Duration,
) -> Transports {
    // The log reports each attempt.
    #[cfg(feature = "tracing")]
    if crate::command::log::is_on() {
        return transports;
    }
    Transports::new().with(ReportingTransport {
        schemes: transports.schemes().collect(),
        inner: transports,
        scheduler: scheduler.clone(),
        patience,
        is_reported: Arc::default(),
    })
}

/// A transport that delegates to `inner` and prints the first failed attempt.
struct ReportingTransport {
    inner: Transports,
    schemes: Vec<&'static str>,
    scheduler: Address,
    patience: Duration,
    is_reported: Arc<AtomicBool>,
}

impl Transport for ReportingTransport {
    fn schemes(&self) -> &[&'static str] {
        &self.schemes
    }

    fn connect<'a>(
        &'a self,
        address: &'a Address,
        options: &'a ConnectOptions,
    ) -> BoxFuture<'a, Result<PendingConnection, ConnectError>> {
        Box::pin(async move {
            let transport = self.inner.for_scheme(address.scheme())?;
            let outcome = transport.connect(address, options).await;
            let reason = match &outcome {
                Err(error @ (ConnectError::NoAnswer | ConnectError::Failed(_))) => error,
                _ => return outcome,
            };
            if *address == self.scheduler && !self.is_reported.swap(true, Ordering::Relaxed) {
                let patience = self.patience.as_secs_f64();
                let message = format!(
                    "cannot connect to {address} yet: {reason}; trying again for {patience} s"
                );
                terminal::event("waiting", message, serde_json::json!({}));
            }
            outcome
        })
    }

    fn bind<'a>(
        &'a self,
        address: &'a Address,
    ) -> BoxFuture<'a, Result<Box<dyn Listen>, CommError>> {
        Box::pin(async move {
            let transport = self.inner.for_scheme(address.scheme())?;
            transport.bind(address).await
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.inner.close())
    }

    fn with_own_connections(&self) -> Option<Arc<dyn Transport>> {
        Some(Arc::new(Self {
            inner: self.inner.with_own_connections(),
            schemes: self.schemes.clone(),
            scheduler: self.scheduler.clone(),
            patience: self.patience,
            is_reported: Arc::clone(&self.is_reported),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_peer_once_and_suggest_tls() {
        let peer = address("tcp://10.0.0.7:8786").expect("an address");
        let refused = "cannot connect to tcp://10.0.0.7:8786: refused";
        assert_eq!(about(&peer, refused), refused);
        assert_eq!(about(&peer, "no answer"), "tcp://10.0.0.7:8786: no answer");
        let reset = "Connection reset by peer";
        let hint = "; it may be a scheduler with TLS: try tls://10.0.0.7:8786";
        let expected = format!("tcp://10.0.0.7:8786: {reset}{hint}");
        assert_eq!(about(&peer, reset), expected);
        let peer = address("tls://10.0.0.7:8786").expect("an address");
        assert_eq!(about(&peer, reset), format!("tls://10.0.0.7:8786: {reset}"));
    }
}
