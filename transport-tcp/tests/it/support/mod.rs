//! Helpers shared by several test files.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::Once;

use daskwire_comm::conformance::{Bound, Settings};
use daskwire_comm::{Address, Comm, CommError, CommOptions, Listener, Transport, Transports};
use daskwire_tcp::{Tcp, TcpOptions};

/// All transports of this package, with `options` for TCP.
pub(crate) fn transports(options: TcpOptions) -> Transports {
    let transports = Transports::new().with(Tcp::new(options));
    #[cfg(unix)]
    let transports = transports.with(daskwire_tcp::Unix);
    transports
}

pub(crate) async fn connect(address: &Address, options: &CommOptions) -> Result<Comm, CommError> {
    let transports = transports(TcpOptions::default());
    transports.connect(address, options).await
}

pub(crate) async fn bind(address: &Address, options: CommOptions) -> Result<Listener, CommError> {
    transports(TcpOptions::default())
        .bind(address, options)
        .await
}

/// The transport for the scheme of `address`.
fn transport(address: &Address, options: TcpOptions) -> Box<dyn Transport> {
    match address.scheme() {
        #[cfg(unix)]
        "unix" => Box::new(daskwire_tcp::Unix),
        "inproc" => Box::new(daskwire_comm::Inproc),
        _ => Box::new(Tcp::new(options)),
    }
}

/// Raises the limit of open files to two for each of 2,000 comms, in six tests at once. Calls
/// at the same time with different limits could lower the limit.
pub(crate) fn raise_file_limit() {
    static RAISED: Once = Once::new();
    RAISED.call_once(|| {
        rlimit::increase_nofile_limit(30_000).expect("30,000 open files");
    });
}

/// A transport and one listener at `address`.
pub(crate) async fn bound(address: &str, options: TcpOptions) -> Bound<Box<dyn Transport>> {
    raise_file_limit();
    let address = address.parse().expect("an address");
    let mut settings = Settings::default();
    settings.comm_count = 2000;
    Bound::new(transport(&address, options), &address, settings).await
}

/// TLS options with one self-signed certificate, which is also the authority. The key is on an
/// elliptic curve, because thousands of RSA signatures take seconds.
#[cfg(feature = "ring")]
pub(crate) fn with_tls() -> TcpOptions {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut certificate = rcgen::CertificateParams::default();
    certificate.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let certificate = certificate.self_signed(&key).expect("a certificate");
    let pem = key.serialize_pem() + &certificate.pem();
    let tls = daskwire_comm::tls::TlsSettings::new(&*pem, &*pem).build();
    TcpOptions::default().with_tls(tls.expect("a certificate and its key"))
}
