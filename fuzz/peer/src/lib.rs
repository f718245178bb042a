//! Properties of comms, roles and the library of the command for any input, one
//! function per fuzz target.
//!
//! This crate is separate from `daskwire-fuzz`, whose targets need only the core,
//! because its targets also build tokio and rustls.

mod capture;
mod documents;
mod ends;
mod graphs;
mod input;
mod journal;
mod killed;
mod machines;
mod message;
mod messages;
mod opened;
#[cfg(target_os = "linux")]
mod python;
mod recording;
mod scratch;
mod spill;
mod websocket;

use core::time::Duration;
use std::sync::OnceLock;

use daskwire_comm::Address;
use daskwire_comm::tls::rustls::client::danger::ServerCertVerifier as _;
use daskwire_comm::tls::rustls::crypto::ring;
use daskwire_comm::tls::rustls::pki_types::pem::PemObject as _;
use daskwire_comm::tls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use daskwire_comm::tls::rustls::server::danger::ClientCertVerifier as _;
use daskwire_comm::tls::{Verifier, certificate_names};
use daskwire_fuzz::CORE;

use capture::capture;
use documents::documents;
use ends::ends;
use graphs::graph;
use journal::{journal, journal_files};
use killed::killed_scheduler;
use machines::{client_machine, scheduler_machine, worker_machine};
use messages::messages;
use opened::{pickled, values};
#[cfg(target_os = "linux")]
use python::python_messages;
use recording::recording;
use spill::spill_file;
use websocket::websocket;

daskwire_fuzz::targets! {
    certificate: CORE,
    address: CORE,
    // These expand their input and have their own budgets.
    messages: None,
    python_messages: None,
    values: None,
    pickled: None,
    graph: None,
    journal: None,
    journal_files: None,
    killed_scheduler: None,
    recording: None,
    spill_file: None,
    documents: None,
    capture: CORE,
    // Both ends have buffers for the longest handshake.
    ends: None,
    websocket: None,
    worker_machine: None,
    scheduler_machine: None,
    client_machine: None,
}

/// Does nothing: only workers on Linux have Python processes.
#[cfg(not(target_os = "linux"))]
fn python_messages(_: &[u8]) {}

/// Checks that any bytes as the certificate of a peer are trusted only if they
/// are equal to the certificate of a member of the cluster.
fn certificate(input: &[u8]) {
    static MEMBERS: OnceLock<(Verifier, Vec<CertificateDer<'static>>)> = OnceLock::new();
    let (verifier, known) = MEMBERS.get_or_init(|| {
        let read = |pem: &str| {
            let pem = CertificateDer::pem_slice_iter(pem.as_bytes());
            pem.map(|der| der.expect("a certificate"))
                .collect::<Vec<_>>()
        };
        let mut authorities = read(include_str!("../../../comm/tests/tls/ca.pem"));
        authorities.extend(read(include_str!(
            "../../../comm/tests/tls/self-signed.pem"
        )));
        let mut known = authorities.clone();
        known.extend(read(include_str!("../../../comm/tests/tls/cert.pem")));
        let verifier = Verifier::new(authorities, &ring::default_provider());
        (verifier.expect("good authorities"), known)
    });
    let names = certificate_names(input);
    assert!(names.iter().map(String::len).sum::<usize>() <= input.len());
    let leaf = CertificateDer::from(input);
    let now = UnixTime::since_unix_epoch(Duration::from_secs(1_800_000_000));
    let name = ServerName::try_from("scheduler").expect("a name");
    let outcomes = [
        verifier
            .verify_server_cert(&leaf, &[], &name, &[], now)
            .is_ok(),
        verifier.verify_client_cert(&leaf, &[], now).is_ok(),
    ];
    if outcomes.contains(&true) {
        assert!(
            known.contains(&leaf),
            "a certificate of another authority is trusted"
        );
    }
}

/// Checks that a parsed address is the same after printing and parsing it
/// again.
fn address(input: &[u8]) {
    let Ok(string) = core::str::from_utf8(input) else {
        return;
    };
    if let Ok(address) = string.parse::<Address>() {
        assert_eq!(address.to_string().parse(), Ok(address));
    }
}
