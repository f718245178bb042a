//! Helpers shared by several test files.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::Once;

use daskwire_comm::Transports;
use daskwire_comm::conformance::{Bound, Settings};
use daskwire_comm::tls::TlsSettings;
use daskwire_tcp::{Tcp, TcpOptions};
use daskwire_ws::Ws;

/// Raises the limit of open files to two for each of 2,000 comms, in several tests at once.
pub(crate) fn raise_file_limit() {
    static RAISED: Once = Once::new();
    RAISED.call_once(|| {
        rlimit::increase_nofile_limit(30_000).expect("30,000 open files");
    });
}

/// The transport, and one listener at `address`.
pub(crate) async fn bound(address: &str, tcp: TcpOptions) -> Bound<Ws<Tcp>> {
    raise_file_limit();
    let address = address.parse().expect("an address");
    let mut settings = Settings::default();
    settings.comm_count = 2000;
    Bound::new(Ws::new(Tcp::new(tcp)), &address, settings).await
}

/// TCP and WebSocket over TCP.
pub(crate) fn transports() -> Transports {
    let tcp = Tcp::default();
    Transports::new().with(tcp.clone()).with(Ws::new(tcp))
}

/// TLS options with one self-signed certificate, which is also the authority.
pub(crate) fn with_tls() -> TcpOptions {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut certificate = rcgen::CertificateParams::default();
    certificate.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let certificate = certificate.self_signed(&key).expect("a certificate");
    let pem = key.serialize_pem() + &certificate.pem();
    let tls = TlsSettings::new(&*pem, &*pem).build();
    TcpOptions::default().with_tls(tls.expect("a certificate and its key"))
}
