//! Comms over TLS, with the kinds of certificates that clusters use.
//!
//! The files in `comm/tests/tls/` are made by `make.sh` there, all others by these tests.
#![allow(clippy::unwrap_used, clippy::std_instead_of_alloc)]

use core::time::Duration;
use std::path::Path;
use std::sync::Arc;

use daskwire_comm::tls::rustls::client::Resumption;
use daskwire_comm::tls::rustls::client::danger::ServerCertVerifier as _;
use daskwire_comm::tls::rustls::crypto::{CryptoProvider, ring};
use daskwire_comm::tls::rustls::pki_types::pem::PemObject as _;
use daskwire_comm::tls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use daskwire_comm::tls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use daskwire_comm::tls::rustls::version::{TLS12, TLS13};
use daskwire_comm::tls::rustls::{
    self, AlertDescription, CertificateError, ClientConfig, ServerConfig, SupportedProtocolVersion,
};
use daskwire_comm::tls::{
    ClusterRole, Pem, Security, Tls, TlsError, TlsProblem, TlsSettings, TlsVersion, Verifier,
};
use daskwire_comm::{Address, Closed, Comm, CommError, CommOptions, Listener, Phase, Transports};
use daskwire_tcp::{Tcp, TcpOptions};
use daskwire_testing::certificate;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const CA: &str = include_str!("../../../comm/tests/tls/ca.pem");
const CERT: &str = include_str!("../../../comm/tests/tls/cert.pem");
const KEY: &str = include_str!("../../../comm/tests/tls/key.pem");
const V1: &str = include_str!("../../../comm/tests/tls/v1.pem");
const SELF_SIGNED: &str = include_str!("../../../comm/tests/tls/self-signed.pem");

/// The certificate and the key of a member, by OpenSSL.
fn member() -> String {
    format!("{CERT}{KEY}")
}

// Certificates.

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

fn authority(name: &str, change: impl FnOnce(&mut CertificateParams)) -> Authority {
    let mut params = CertificateParams::new([]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    change(&mut params);
    let key = KeyPair::generate().unwrap();
    Authority {
        pem: params.self_signed(&key).unwrap().pem(),
        issuer: Issuer::new(params, key),
    }
}

impl Authority {
    /// A certificate and its key.
    fn leaf(&self, change: impl FnOnce(&mut CertificateParams)) -> String {
        self.leaf_with_key(&KeyPair::generate().unwrap(), change)
    }

    fn leaf_with_key(&self, key: &KeyPair, change: impl FnOnce(&mut CertificateParams)) -> String {
        let mut params = CertificateParams::new([]).unwrap();
        params.distinguished_name.push(DnType::CommonName, "leaf");
        change(&mut params);
        let certificate = params.signed_by(key, &self.issuer).unwrap();
        certificate.pem() + &key.serialize_pem()
    }
}

/// A certificate like those of Dask's `Security.temporary()`.
fn temporary(change: impl FnOnce(&mut CertificateParams)) -> String {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(["dask-internal".into()]).unwrap();
    params
        .distinguished_name
        .push(DnType::CommonName, "dask-internal");
    change(&mut params);
    params.self_signed(&key).unwrap().pem() + &key.serialize_pem()
}

fn certificates(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .map(Result::unwrap)
        .collect()
}

/// The configurations of [`TlsSettings`], for certificates that it refuses.
fn unchecked(
    authorities: &str,
    chain: &str,
    key: &str,
    versions: &[&'static SupportedProtocolVersion],
) -> Tls {
    let provider: Arc<CryptoProvider> = ring::default_provider().into();
    let verifier = Verifier::new(certificates(authorities), &provider).unwrap();
    let verifier = Arc::new(verifier);
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let key = provider.key_provider.load_private_key(key).unwrap();
    let identity = SingleCertAndKey::from(CertifiedKey::new(certificates(chain), key));
    let identity = Arc::new(identity);
    let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(verifier.clone())
        .with_client_cert_resolver(identity.clone());
    client.resumption = Resumption::disabled();
    let server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(identity);
    Tls::from_configs(client.into(), server.into())
}

const BOTH: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];

// Connections.

/// The settings of one side.
#[derive(Clone, Debug, Default)]
struct Options {
    tls: Option<Tls>,
    comm: CommOptions,
}

impl Options {
    fn transports(&self) -> Transports {
        let tls = self.tls.iter().cloned();
        let options = tls.fold(TcpOptions::default(), TcpOptions::with_tls);
        Transports::new().with(Tcp::new(options))
    }
}

fn options(tls: Tls) -> Options {
    Options {
        tls: Some(tls),
        ..Options::default()
    }
}

async fn connect(address: &Address, options: &Options) -> Result<Comm, CommError> {
    options.transports().connect(address, &options.comm).await
}

async fn bind(address: &Address, options: Options) -> Result<Listener, CommError> {
    options.transports().bind(address, options.comm).await
}

async fn listen(host: &str, tls: Tls) -> (Listener, Address) {
    let address = format!("tls://{host}:0").parse().unwrap();
    let listener = bind(&address, options(tls)).await.unwrap();
    let address = listener.local_address().unwrap();
    (listener, address)
}

/// The results of both ends of a connection.
async fn meet(listens: Tls, connects: Tls) -> (Result<Comm, CommError>, Result<Comm, CommError>) {
    let (listener, address) = listen("127.0.0.1", listens).await;
    let options = options(connects);
    tokio::join!(connect(&address, &options), async {
        listener.accept().await?.handshake().await
    })
}

/// Checks that messages arrive in both directions, and then the end.
async fn converse((ours, theirs): (Result<Comm, CommError>, Result<Comm, CommError>), name: &str) {
    let mut ours = ours.unwrap_or_else(|error| panic!("{name}: connecting: {error}"));
    let mut theirs = theirs.unwrap_or_else(|error| panic!("{name}: listening: {error}"));
    let echo = tokio::spawn(async move {
        while let Some(frames) = theirs.read_message().await.unwrap() {
            theirs.write_message(&frames).await.unwrap();
        }
        theirs.close().await.unwrap();
    });
    for len in [1, 100, 100_000] {
        let frames = [vec![1; 1], vec![7; len]];
        ours.write_message(&frames).await.unwrap();
        let answer = ours.read_message().await.unwrap().unwrap();
        assert!(answer.as_slices() == frames, "{name}: {answer:?}");
    }
    ours.close().await.unwrap();
    assert!(ours.read_message().await.unwrap().is_none(), "{name}");
    echo.await.unwrap();
}

#[track_caller]
fn tls_error(outcome: Result<Comm, CommError>) -> rustls::Error {
    match outcome.unwrap_err() {
        CommError::Tls(failure) => failure.error().clone(),
        error => panic!("{error:?}"),
    }
}

// Accepted certificates.

/// Authorities, and certificate and key of a member.
fn good_shapes() -> Vec<(&'static str, String, String)> {
    let cluster = authority("cluster", |_| {});
    let middle_key = KeyPair::generate().unwrap();
    let mut middle = CertificateParams::new([]).unwrap();
    middle.distinguished_name.push(DnType::CommonName, "middle");
    middle.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let middle_pem = middle
        .signed_by(&middle_key, &cluster.issuer)
        .unwrap()
        .pem();
    let middle = Authority {
        pem: middle_pem.clone(),
        issuer: Issuer::new(middle, middle_key),
    };
    let ed25519 = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let p384 = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
    let own = temporary(|_| {});
    let own_ca_false = temporary(|params| params.is_ca = IsCa::ExplicitNoCa);
    let expired = authority("old", |params| params.not_after = date_time_ymd(2020, 1, 1));
    let ca = || cluster.pem.clone();
    vec![
        ("leaf", ca(), cluster.leaf(|_| {})),
        (
            "leaf for both purposes",
            ca(),
            cluster.leaf(|params| {
                params.extended_key_usages = vec![
                    ExtendedKeyUsagePurpose::ServerAuth,
                    ExtendedKeyUsagePurpose::ClientAuth,
                ];
            }),
        ),
        ("Ed25519", ca(), cluster.leaf_with_key(&ed25519, |_| {})),
        ("P-384", ca(), cluster.leaf_with_key(&p384, |_| {})),
        ("one between", ca(), middle.leaf(|_| {}) + &middle_pem),
        (
            "an old authority beside the right one",
            expired.pem + &cluster.pem,
            cluster.leaf(|_| {}),
        ),
        ("as Security.temporary() makes them", own.clone(), own),
        ("the same with CA:FALSE", own_ca_false.clone(), own_ca_false),
        ("by OpenSSL", CA.into(), member()),
        ("a member that is trusted itself", CERT.into(), member()),
        ("one self-signed", SELF_SIGNED.into(), SELF_SIGNED.into()),
    ]
}

#[tokio::test]
async fn certificates_that_dask_accepts_are_accepted() {
    for (name, ca, cert) in good_shapes() {
        let tls = TlsSettings::new(ca.as_str(), cert.as_str()).build();
        let tls = tls.unwrap_or_else(|error| panic!("{name}: {error}"));
        converse(meet(tls.clone(), tls).await, name).await;
    }
}

/// test_tls_specific: the contents of `extra_info`.
#[tokio::test]
async fn comms_tell_how_they_are_encrypted_and_who_the_peer_is() {
    let tls = TlsSettings::new(SELF_SIGNED, SELF_SIGNED).build().unwrap();
    let (near, far) = meet(tls.clone(), tls).await;
    let own = &certificates(SELF_SIGNED)[0];
    for comm in [near.unwrap(), far.unwrap()] {
        let encryption = comm.encryption().unwrap();
        assert_eq!(encryption.version, "TLSv1_3");
        assert_eq!(encryption.cipher, Some("TLS13_AES_256_GCM_SHA384"));
        assert_eq!(encryption.peer_certificates.len(), 1);
        assert_eq!(encryption.peer_certificates[0][..], own[..]);
        let shown = format!("{comm:?}");
        assert!(shown.contains("tls://") && shown.len() < 600, "{shown}");
    }
}

#[tokio::test]
async fn they_are_accepted_in_both_versions_of_tls() {
    for (name, ca, cert) in good_shapes() {
        for version in [&TLS12, &TLS13] {
            let tls = unchecked(&ca, &cert, &cert, &[version]);
            let any = unchecked(&ca, &cert, &cert, BOTH);
            converse(meet(tls.clone(), any.clone()).await, name).await;
            converse(meet(any, tls).await, name).await;
        }
    }
}

#[tokio::test]
async fn shapes_may_be_mixed() {
    let cluster = authority("cluster", |_| {});
    let ca = format!("{}{CA}{SELF_SIGNED}", cluster.pem);
    let tls = |cert: &str| TlsSettings::new(ca.as_str(), cert).build().unwrap();
    let members = [tls(&cluster.leaf(|_| {})), tls(&member()), tls(SELF_SIGNED)];
    for listens in &members {
        for connects in &members {
            converse(meet(listens.clone(), connects.clone()).await, "mixed").await;
        }
    }
}

#[tokio::test]
async fn files_text_and_keys_beside_or_within_the_certificate() {
    let from = |settings: TlsSettings| settings.build().unwrap();
    let ca = certificate("ca.pem");
    let (cert, key) = (certificate("cert.pem"), certificate("key.pem"));
    let text = member();
    let turned = format!("{KEY}{CERT}");
    for tls in [
        from(TlsSettings::new(&*ca, &*cert).with_key(&*key)),
        from(TlsSettings::new(ca.to_str().unwrap(), cert.to_str().unwrap()).with_key(KEY)),
        from(TlsSettings::new(CA, &*cert).with_key(text.as_str())),
        from(TlsSettings::new(&*ca, text)),
        from(TlsSettings::new(CA, turned)),
    ] {
        converse(meet(tls.clone(), tls).await, "settings").await;
    }
    let own = certificate("self-signed.pem");
    let tls = from(TlsSettings::new(&*own, &*own));
    converse(meet(tls.clone(), tls).await, "one file").await;
}

#[tokio::test]
async fn large_messages_in_both_directions_at_once() {
    let tls = TlsSettings::new(SELF_SIGNED, SELF_SIGNED).build().unwrap();
    let (ours, theirs) = meet(tls.clone(), tls).await;
    let (ours, theirs) = (ours.unwrap(), theirs.unwrap());
    let frames: Arc<[Vec<u8>]> = [5 << 20, 0, 17 << 20, 3, (64 << 10) - 1]
        .into_iter()
        .map(|len| (0..len).map(|at: usize| (at ^ (at >> 8)) as u8).collect())
        .collect();
    let mut tasks = tokio::task::JoinSet::new();
    for comm in [ours, theirs] {
        let (mut reader, mut writer) = comm.split();
        let (sent, expected) = (Arc::clone(&frames), Arc::clone(&frames));
        tasks.spawn(async move {
            writer.write_message(&sent).await.unwrap();
            writer.close().await.unwrap();
        });
        tasks.spawn(async move {
            let read = reader.read_message().await.unwrap().unwrap();
            assert!(read.as_slices() == &expected[..], "{read:?}");
            assert!(reader.read_message().await.unwrap().is_none());
        });
    }
    while let Some(outcome) = tasks.join_next().await {
        outcome.unwrap();
    }
}

/// A task of a dropped comm would keep the connection open, for up to 10 seconds.
#[tokio::test]
async fn dropped_comms_end_without_a_task() {
    let tls = TlsSettings::new(SELF_SIGNED, SELF_SIGNED).build().unwrap();
    let (ours, theirs) = meet(tls.clone(), tls).await;
    let (ours, mut theirs) = (ours.unwrap(), theirs.unwrap());
    let metrics = tokio::runtime::Handle::current().metrics();
    let before = metrics.num_alive_tasks();
    ours.abort();
    assert_eq!(metrics.num_alive_tasks(), before);
    assert!(theirs.read_message().await.unwrap().is_none());
    theirs.close().await.unwrap();
    drop(theirs);
    assert_eq!(metrics.num_alive_tasks(), before);
}

#[tokio::test]
async fn addresses_say_tls() {
    let tls = TlsSettings::new(SELF_SIGNED, SELF_SIGNED).build().unwrap();
    let (listener, address) = listen("[::1]", tls.clone()).await;
    assert_eq!(address.scheme(), "tls");
    let options = options(tls);
    let (ours, (seen, theirs)) = tokio::join!(connect(&address, &options), async {
        let incoming = listener.accept().await.unwrap();
        (incoming.peer_address().clone(), incoming.handshake().await)
    });
    let (ours, theirs) = (ours.unwrap(), theirs.unwrap());
    assert_eq!(ours.peer_address(), &address);
    assert_eq!(theirs.local_address(), &address);
    assert_eq!(theirs.peer_address(), ours.local_address());
    assert_eq!(&seen, ours.local_address());
    assert_eq!(seen.scheme(), "tls");
}

// Refused certificates.

struct Refusal {
    name: &'static str,
    /// The certificate and key of the peer, and the authorities of the side
    /// that refuses it.
    peer: (String, String),
    authorities: String,
    /// Whether an error is the expected reason for the refusal.
    why: fn(&rustls::Error) -> bool,
    /// The alert that the peer receives.
    alert: AlertDescription,
    /// A part of the error message.
    says: &'static str,
}

fn refusals() -> Vec<Refusal> {
    use rustls::Error::InvalidCertificate as Invalid;
    let cluster = authority("cluster", |_| {});
    let other = authority("other", |_| {});
    let twin = authority("cluster", |_| {});
    let old = authority("old", |params| params.not_after = date_time_ymd(2020, 1, 1));
    let own = temporary(|_| {});
    let own_expired = temporary(|params| params.not_after = date_time_ymd(2020, 1, 1));
    let same = |pem: String| (pem.clone(), pem);
    // A trusted certificate that is not an authority signs another.
    let (member, signed_by_member) = {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([]).unwrap();
        params.distinguished_name.push(DnType::CommonName, "member");
        let pem = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        let member = Authority { pem, issuer };
        let leaf = member.leaf(|_| {});
        (member.pem, leaf)
    };
    vec![
        Refusal {
            name: "another authority",
            peer: same(other.leaf(|_| {})),
            authorities: cluster.pem.clone(),
            why: |error| matches!(error, Invalid(CertificateError::UnknownIssuer)),
            alert: AlertDescription::UnknownCA,
            says: "both sides need the same authority",
        },
        Refusal {
            name: "another authority of the same name",
            peer: same(twin.leaf(|_| {})),
            authorities: cluster.pem.clone(),
            why: |error| matches!(error, Invalid(CertificateError::BadSignature)),
            alert: AlertDescription::DecryptError,
            says: "did not sign it",
        },
        Refusal {
            name: "another self-signed one",
            peer: same(temporary(|_| {})),
            authorities: cluster.pem.clone(),
            why: |error| matches!(error, Invalid(CertificateError::UnknownIssuer)),
            alert: AlertDescription::UnknownCA,
            says: "nor among the certificates there",
        },
        Refusal {
            name: "version 1",
            peer: same(V1.into()),
            authorities: CA.into(),
            why: |error| matches!(error, Invalid(CertificateError::Other(_))),
            alert: AlertDescription::CertificateUnknown,
            says: "openssl x509 -req -extfile FILE",
        },
        Refusal {
            name: "expired, itself among the authorities",
            peer: same(own_expired.clone()),
            authorities: format!("{CA}{own_expired}"),
            why: |error| matches!(error, Invalid(CertificateError::ExpiredContext { .. })),
            alert: AlertDescription::CertificateExpired,
            says: "expired",
        },
        Refusal {
            name: "expired",
            peer: same(cluster.leaf(|params| params.not_after = date_time_ymd(2020, 1, 1))),
            authorities: cluster.pem.clone(),
            why: |error| matches!(error, Invalid(CertificateError::ExpiredContext { .. })),
            alert: AlertDescription::CertificateExpired,
            says: "expired",
        },
        Refusal {
            name: "not valid yet",
            peer: same(cluster.leaf(|params| params.not_before = date_time_ymd(3000, 1, 1))),
            authorities: cluster.pem.clone(),
            why: |error| matches!(error, Invalid(CertificateError::NotValidYetContext { .. })),
            alert: AlertDescription::CertificateExpired,
            says: "not valid yet",
        },
        Refusal {
            name: "of an authority that has expired",
            peer: same(old.leaf(|_| {})),
            authorities: old.pem.clone(),
            why: |error| matches!(error, Invalid(CertificateError::Other(_))),
            alert: AlertDescription::CertificateUnknown,
            says: "whose own certificate has expired",
        },
        Refusal {
            name: "signed by a member",
            peer: same(signed_by_member),
            authorities: format!("{}{member}", cluster.pem),
            why: |error| matches!(error, Invalid(CertificateError::Other(_))),
            alert: AlertDescription::CertificateUnknown,
            says: "may not sign others",
        },
        Refusal {
            name: "an authority that the authority signed",
            peer: same(cluster.leaf(|params| {
                params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            })),
            authorities: cluster.pem.clone(),
            why: |error| matches!(error, Invalid(CertificateError::Other(_))),
            alert: AlertDescription::CertificateUnknown,
            says: "CA:TRUE",
        },
        Refusal {
            name: "for another purpose",
            peer: same(cluster.leaf(|params| {
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::CodeSigning];
            })),
            authorities: cluster.pem.clone(),
            why: |error| matches!(error, Invalid(CertificateError::InvalidPurpose)),
            alert: AlertDescription::UnsupportedCertificate,
            says: "serverAuth and clientAuth",
        },
        Refusal {
            name: "another key",
            peer: (CERT.into(), SELF_SIGNED.into()),
            authorities: CA.into(),
            why: |error| matches!(error, Invalid(CertificateError::BadSignature)),
            alert: AlertDescription::DecryptError,
            says: "does not have its key",
        },
        Refusal {
            name: "one self-signed, with another key",
            peer: (SELF_SIGNED.into(), KEY.into()),
            authorities: SELF_SIGNED.into(),
            why: |error| matches!(error, Invalid(CertificateError::BadSignature)),
            alert: AlertDescription::DecryptError,
            says: "does not have its key",
        },
        Refusal {
            name: "Security.temporary() with another key",
            peer: (own.clone(), KeyPair::generate().unwrap().serialize_pem()),
            authorities: own,
            why: |error| matches!(error, Invalid(CertificateError::BadSignature)),
            alert: AlertDescription::DecryptError,
            says: "does not have its key",
        },
    ]
}

#[tokio::test]
async fn both_ends_report_refused_certificates() {
    for refusal in refusals() {
        for version in [&TLS12, &TLS13] {
            let name = format!("{}, {version:?}", refusal.name);
            let (chain, key) = &refusal.peer;
            // The peer accepts the certificate of the end that refuses.
            let peer_believes = format!("{SELF_SIGNED}{CA}");
            let peer = unchecked(&peer_believes, chain, key, &[version]);
            let this = unchecked(&refusal.authorities, SELF_SIGNED, SELF_SIGNED, BOTH);
            let (connector, listener) = meet(peer.clone(), this.clone()).await;
            let (refused, reported) = (connector.unwrap_err(), tls_error(listener));
            assert_eq!(
                reported,
                rustls::Error::AlertReceived(refusal.alert),
                "{name}"
            );
            assert!(
                refused.to_string().contains(refusal.says),
                "{name}: {refused}"
            );
            assert!((refusal.why)(&tls_error(Err(refused))), "{name}");

            let (connector, listener) = meet(this, peer).await;
            let (refused, reported) = (listener.unwrap_err(), tls_error(connector));
            assert_eq!(
                reported,
                rustls::Error::AlertReceived(refusal.alert),
                "{name}"
            );
            assert!(
                refused.to_string().contains(refusal.says),
                "{name}: {refused}"
            );
            assert!(!refused.is_closed(), "{name}");
            assert!((refusal.why)(&tls_error(Err(refused))), "{name}");
        }
    }
}

/// The signature covers every significant bit, and DER is unique.
#[test]
fn a_certificate_with_any_bit_changed_is_refused() {
    let provider = ring::default_provider();
    let verifier = Verifier::new(certificates(CA), &provider).unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let verify = |certificate: &[u8]| {
        let certificate = CertificateDer::from(certificate);
        verifier.verify_server_cert(&certificate, &[], &name, &[], UnixTime::now())
    };
    let der = certificates(CERT).remove(0);
    verify(&der).unwrap();
    for bit in 0..der.len() * 8 {
        let mut changed = der.to_vec();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(verify(&changed).is_err(), "bit {bit}");
    }
    for len in 0..der.len() {
        assert!(verify(&der[..len]).is_err(), "{len} bytes");
    }
}

#[tokio::test]
async fn a_certificate_for_one_side_is_refused_on_the_other() {
    let cluster = authority("cluster", |_| {});
    let only = |purpose| {
        let cert = cluster.leaf(|params| params.extended_key_usages = vec![purpose]);
        TlsSettings::new(cluster.pem.as_str(), cert)
            .build()
            .unwrap()
    };
    let server = only(ExtendedKeyUsagePurpose::ServerAuth);
    let client = only(ExtendedKeyUsagePurpose::ClientAuth);
    converse(meet(server.clone(), client.clone()).await, "as meant").await;
    let (_, listener) = meet(server.clone(), server).await;
    let wrong = rustls::Error::InvalidCertificate(CertificateError::InvalidPurpose);
    assert_eq!(tls_error(listener), wrong);
    let (connector, _) = meet(client.clone(), client).await;
    assert_eq!(tls_error(connector), wrong);

    let own = temporary(|params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    });
    let own = TlsSettings::new(own.as_str(), own.as_str())
        .build()
        .unwrap();
    let (_, listener) = meet(own.clone(), own).await;
    assert_eq!(tls_error(listener), wrong);
}

#[tokio::test]
async fn clients_without_certificate_are_refused() {
    let tls = TlsSettings::new(CA, member()).build().unwrap();
    let (listener, address) = listen("127.0.0.1", tls.clone()).await;
    let provider: Arc<CryptoProvider> = ring::default_provider().into();
    let verifier = Verifier::new(certificates(CA), &provider).unwrap();
    for version in [&TLS12, &TLS13] {
        let verifier = Verifier::new(certificates(CA), &provider).unwrap();
        let bare = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[version])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        let bare = Tls::from_configs(bare.into(), Arc::clone(tls.server_config()));
        let options = options(bare);
        let (connector, listened) = tokio::join!(connect(&address, &options), async {
            listener.accept().await?.handshake().await
        });
        assert_eq!(tls_error(listened), rustls::Error::NoCertificatesPresented);
        let error = connector.unwrap_err();
        let says = error.to_string();
        assert!(
            says.contains("settings cert and key") || says.contains("Handshake"),
            "{says}"
        );
        assert!(matches!(
            tls_error(Err(error)),
            rustls::Error::AlertReceived(_)
        ));
    }
    drop(verifier);
    let options = options(tls);
    let both = tokio::join!(connect(&address, &options), async {
        listener.accept().await?.handshake().await
    });
    converse(both, "afterwards").await;
}

#[tokio::test]
async fn renewed_certificates_are_used_after_a_reload() {
    let scratch =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("reload-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).unwrap();
    let [ca, cert] = ["ca.pem", "cert.pem"].map(|name| scratch.join(name));
    let [old, new] = ["old", "new"].map(|name| authority(name, |_| {}));
    let write = |authority: &Authority| {
        std::fs::write(&ca, &authority.pem).unwrap();
        std::fs::write(&cert, authority.leaf(|_| {})).unwrap();
    };
    let member = |authority: &Authority| {
        let settings = TlsSettings::new(authority.pem.as_str(), authority.leaf(|_| {}));
        settings.build().unwrap()
    };
    write(&old);
    let tls = TlsSettings::new(ca.as_path(), cert.as_path()).build();
    let tls = tls.unwrap();
    // The transports of a role, which are made before.
    let (listener, address) = listen("127.0.0.1", tls.clone()).await;
    let ours = options(tls.clone());
    let both_ways = async |peer: &Authority| {
        let peer = member(peer);
        let theirs = options(peer.clone());
        let (near, far) = tokio::join!(connect(&address, &theirs), async {
            listener.accept().await?.handshake().await
        });
        let is_accepted = near.is_ok() && far.is_ok();
        let (theirs, at) = listen("127.0.0.1", peer).await;
        let (near, far) = tokio::join!(connect(&at, &ours), async {
            theirs.accept().await?.handshake().await
        });
        [is_accepted, near.is_ok() && far.is_ok()]
    };
    assert_eq!(both_ways(&old).await, [true; 2]);
    write(&new);
    assert_eq!(both_ways(&new).await, [false; 2], "without a reload");
    assert!(tls.reload_if_changed().unwrap());
    assert_eq!(both_ways(&new).await, [true; 2]);
    assert_eq!(both_ways(&old).await, [false; 2]);
    assert!(!tls.reload_if_changed().unwrap());
    std::fs::write(&cert, "").unwrap();
    for error in [
        tls.reload_if_changed().unwrap_err(),
        tls.reload().unwrap_err(),
    ] {
        assert_eq!(error.setting(), "cert", "{error}");
    }
    assert!(!tls.reload_if_changed().unwrap());
    assert_eq!(both_ways(&new).await, [true; 2], "after an error");
    write(&old);
    assert!(tls.reload_if_changed().unwrap());
    assert_eq!(both_ways(&old).await, [true; 2]);
    std::fs::remove_dir_all(&scratch).unwrap();
}

#[tokio::test]
async fn names_are_checked_only_if_asked_for() {
    let cluster = authority("cluster", |_| {});
    let named = |name: &str| {
        let name = rcgen::string::Ia5String::try_from(name).unwrap();
        let cert = cluster.leaf(|params| {
            params.subject_alt_names = vec![rcgen::SanType::DnsName(name)];
        });
        TlsSettings::new(cluster.pem.as_str(), cert)
    };
    let listens = || named("scheduler").build().unwrap();
    let connects = named("client").build().unwrap();
    converse(meet(listens(), connects).await, "unchecked").await;

    let mut strict = named("client");
    strict.check_name = true;
    let strict = strict.build().unwrap();
    let (connector, _) = meet(listens(), strict.clone()).await;
    assert!(matches!(
        tls_error(connector),
        rustls::Error::InvalidCertificate(CertificateError::NotValidForNameContext { .. })
    ));
    let name = ServerName::try_from("scheduler").unwrap();
    converse(
        meet(listens(), strict.with_server_name(name)).await,
        "named",
    )
    .await;
}

// Peers that do not speak TLS, or stop.

#[tokio::test]
async fn mixing_tcp_and_tls_gives_clear_errors() {
    let tls = TlsSettings::new(SELF_SIGNED, SELF_SIGNED).build().unwrap();
    let (listener, address) = listen("127.0.0.1", tls.clone()).await;
    let plain: Address = address.to_string().replace("tls", "tcp").parse().unwrap();
    let defaults = Options::default();
    let (connector, listened) = tokio::join!(connect(&plain, &defaults), async {
        listener.accept().await?.handshake().await
    });
    let listened = listened.unwrap_err();
    assert!(
        listened.to_string().contains("does not speak TLS"),
        "{listened}"
    );
    let connector = connector.unwrap_err();
    assert!(
        matches!(connector, CommError::PeerSpeaksTls),
        "{connector:?}"
    );

    let plain = bind(&"tcp://127.0.0.1:0".parse().unwrap(), defaults)
        .await
        .unwrap();
    let address = plain.local_address().unwrap();
    let address: Address = address.to_string().replace("tcp", "tls").parse().unwrap();
    let mut options = options(tls);
    options.comm.connect_retry = false;
    let (connector, listened) = tokio::join!(connect(&address, &options), async {
        plain.accept().await?.handshake().await
    });
    let listened = listened.unwrap_err();
    assert!(matches!(listened, CommError::PeerSpeaksTls), "{listened:?}");
    let connector = connector.unwrap_err();
    // The listener sends its handshake first, but its reset may overtake it.
    assert!(
        connector.to_string().contains("during the TLS handshake")
            || connector.to_string().contains("does not speak TLS"),
        "{connector}"
    );

    // A listener of Dask sends its handshake first too.
    let raw = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Address::new("tls", raw.local_addr().unwrap());
    let (connector, ()) = tokio::join!(connect(&address, &options), async {
        let (mut stream, _) = raw.accept().await.unwrap();
        stream
            .write_all(b"\x3d\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0")
            .await
            .unwrap();
        let _ = stream.read_to_end(&mut Vec::new()).await;
    });
    let connector = connector.unwrap_err();
    assert!(
        connector.to_string().contains("does not speak TLS"),
        "{connector}"
    );
}

/// A proxy accepts connections while its server restarts, and closes or resets them.
#[tokio::test]
async fn connections_lost_within_the_tls_handshake_are_retried() {
    let tls = TlsSettings::new(SELF_SIGNED, SELF_SIGNED).build().unwrap();
    let (listener, address) = listen("127.0.0.1", tls.clone()).await;
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let front = Address::new("tls", proxy.local_addr().unwrap());
    tokio::spawn(async move {
        for number in 0.. {
            let (mut near, _) = proxy.accept().await.unwrap();
            match number % 3 {
                // Closing a socket with unread data resets the connection.
                0 => near.readable().await.unwrap(),
                1 => drop(near.read(&mut [0; 1 << 14]).await.unwrap()),
                _ => {
                    let far = (address.host(), address.port());
                    let mut far = TcpStream::connect(far).await.unwrap();
                    tokio::spawn(async move {
                        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                    });
                }
            }
        }
    });
    let mut options = options(tls);
    let both = tokio::try_join!(connect(&front, &options), async {
        listener.accept().await?.handshake().await
    });
    let (ours, theirs) = both.unwrap();
    converse((Ok(ours), Ok(theirs)), "a comm").await;

    let transports = options.transports();
    let traffic = daskwire_comm::Traffic::Normal;
    let both = tokio::try_join!(
        transports.connect_raw(&front, &options.comm, traffic),
        async { listener.accept().await?.open().await }
    );
    both.unwrap();

    options.comm.connect_retry = false;
    for _ in 0..2 {
        let error = connect(&front, &options).await.unwrap_err();
        assert!(matches!(error, CommError::Connect { .. }), "{error:?}");
        let says = "during the TLS handshake";
        assert!(error.to_string().contains(says), "{error}");
    }
}

/// A listener reports the error itself.
#[tokio::test]
async fn peers_that_end_within_the_tls_handshake_are_reported() {
    let tls = TlsSettings::new(SELF_SIGNED, SELF_SIGNED).build().unwrap();
    let (listener, address) = listen("127.0.0.1", tls).await;
    let host = (address.host(), address.port());
    drop(TcpStream::connect(host).await.unwrap());
    let listened = listener.accept().await.unwrap().handshake().await;
    let error = listened.unwrap_err();
    assert!(
        matches!(error, CommError::Closed(Closed::WithinTlsHandshake)),
        "{error:?}"
    );
}

#[tokio::test]
async fn tls_needs_settings() {
    let address: Address = "tls://127.0.0.1:0".parse().unwrap();
    let connector = connect(&address, &Options::default()).await.unwrap_err();
    let listener = bind(&address, Options::default()).await.unwrap_err();
    for error in [connector, listener] {
        assert!(matches!(&error, CommError::NoTls { address: of } if *of == address));
        assert!(
            error.to_string().contains("a ca-file, a cert and its key"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn both_handshakes_have_one_deadline() {
    let tls = TlsSettings::new(SELF_SIGNED, SELF_SIGNED).build().unwrap();
    let after = Duration::from_millis(200);
    let mut options = options(tls);
    options.comm.handshake_timeout = after;
    options.comm.connect_retry = false;
    let address = "tls://127.0.0.1:0".parse().unwrap();
    let listener = bind(&address, options.clone()).await.unwrap();
    let address = listener.local_address().unwrap();
    let silent = TcpStream::connect((address.host(), address.port()))
        .await
        .unwrap();
    let listened = listener.accept().await.unwrap().handshake().await;
    drop(silent);
    let raw = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Address::new("tls", raw.local_addr().unwrap());
    let connector = connect(&address, &options).await;
    for outcome in [listened, connector] {
        assert!(matches!(
            outcome.unwrap_err(),
            CommError::Timeout { phase: Phase::Handshake, timeout: of } if of == after
        ));
    }
}

/// A comm over a forwarded connection. Its listening side sends `frames`, of which the
/// connection passes the first `passed` bytes before it is cut.
async fn cut(passed: usize, frames: &[Vec<u8>]) -> (Comm, Comm) {
    let tls = TlsSettings::new(SELF_SIGNED, SELF_SIGNED).build().unwrap();
    let (listener, address) = listen("127.0.0.1", tls.clone()).await;
    let between = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let front = Address::new("tls", between.local_addr().unwrap());
    let (cut, mut is_cut) = tokio::sync::watch::channel(None::<usize>);
    let forwarding = tokio::spawn(async move {
        let (near, _) = between.accept().await.unwrap();
        let far = TcpStream::connect((address.host(), address.port()))
            .await
            .unwrap();
        let (mut near, mut far) = (near, far);
        tokio::select! {
            outcome = tokio::io::copy_bidirectional(&mut near, &mut far) => {
                panic!("{outcome:?}")
            }
            _ = is_cut.changed() => {}
        }
        let left = is_cut.borrow().unwrap();
        let mut bytes = vec![0; left];
        far.read_exact(&mut bytes).await.unwrap();
        near.write_all(&bytes).await.unwrap();
        near.shutdown().await.unwrap();
        // Wait until the near side has closed too: dropping the socket before could cause a
        // reset.
        let _ = near.read_to_end(&mut Vec::new()).await;
    });
    let options = options(tls);
    let (ours, theirs) = tokio::join!(connect(&front, &options), async {
        listener.accept().await?.handshake().await
    });
    let (ours, mut theirs) = (ours.unwrap(), theirs.unwrap());
    cut.send(Some(passed)).unwrap();
    tokio::task::yield_now().await;
    theirs.write_message(frames).await.unwrap();
    drop(forwarding);
    (ours, theirs)
}

#[tokio::test]
async fn an_end_without_close_notify_is_valid_between_messages_only() {
    let (mut ours, _theirs) = cut(0, &[vec![7; 100]]).await;
    assert!(ours.read_message().await.unwrap().is_none());

    // One record and its overhead, so that only a part of the message arrives.
    let (mut ours, _theirs) = cut(17_000, &[vec![7; 40_000]]).await;
    let error = ours.read_message().await.unwrap_err();
    assert!(
        matches!(error, CommError::Closed(Closed::WithinMessage(_))),
        "{error:?}"
    );
}

// Invalid settings.

#[test]
fn errors_of_settings_name_the_file() {
    let scratch =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tls-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).unwrap();
    let file = |name: &str, text: &str| {
        let path = scratch.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let ca = certificate("ca.pem");
    let cert = certificate("cert.pem");
    let key = certificate("key.pem");
    let other_key = file("other-key.pem", SELF_SIGNED);
    let expired = temporary(|params| params.not_after = date_time_ymd(2020, 1, 31));
    let expired = file("expired.pem", &expired);
    let v1 = certificate("v1.pem");
    let late = temporary(|params| params.not_before = date_time_ymd(3000, 1, 1));
    let late = file("late.pem", &late);
    let empty = file("empty.pem", "");
    let broken = file("broken.pem", &CERT.replace("MII", "M-I"));
    let short = file(
        "short.pem",
        "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n",
    );
    let missing = scratch.join("missing.pem");
    let encrypted = certificate("encrypted-key.pem");
    let encrypted_rsa = certificate("encrypted-rsa-key.pem");
    let both = file(
        "both.pem",
        &(CERT.to_owned() + &std::fs::read_to_string(&encrypted_rsa).unwrap()),
    );

    let with = |ca: &Path, cert: &Path, key: Option<&Path>| {
        let settings = TlsSettings::new(ca, cert);
        match key {
            Some(key) => settings.with_key(key),
            None => settings,
        }
    };
    use TlsProblem as P;
    type Expected = fn(&TlsProblem) -> bool;
    let cases: Vec<(TlsSettings, &str, &Path, Expected, &str)> = vec![
        (
            with(&missing, &cert, Some(&key)),
            "ca-file",
            &missing,
            |p| matches!(p, P::Read(_)),
            "cannot be read",
        ),
        (
            with(&empty, &cert, Some(&key)),
            "ca-file",
            &empty,
            |p| matches!(p, P::NoCertificate { is_key: false }),
            "no certificate",
        ),
        (
            with(&key, &cert, Some(&key)),
            "ca-file",
            &key,
            |p| matches!(p, P::NoCertificate { is_key: true }),
            "swapped",
        ),
        (
            with(&broken, &cert, Some(&key)),
            "ca-file",
            &broken,
            |p| matches!(p, P::Pem(_)),
            "not valid PEM",
        ),
        (
            with(&short, &cert, Some(&key)),
            "ca-file",
            &short,
            |p| matches!(p, P::Certificate { index: 0 }),
            "certificate 1",
        ),
        (
            with(&expired, &cert, Some(&key)),
            "ca-file",
            &expired,
            |p| matches!(p, P::Expired { .. }),
            "expired at 2020-01-31 00:00:00 UTC",
        ),
        (
            with(&v1, &cert, Some(&key)),
            "ca-file",
            &v1,
            |p| matches!(p, P::Version { index: 0 }),
            "basicConstraints=CA:FALSE",
        ),
        (
            with(&ca, &v1, None),
            "cert",
            &v1,
            |p| matches!(p, P::Version { index: 0 }),
            "sign it again",
        ),
        (
            with(&ca, &missing, Some(&key)),
            "cert",
            &missing,
            |p| matches!(p, P::Read(_)),
            "cannot be read",
        ),
        (
            with(&ca, &key, Some(&cert)),
            "cert",
            &key,
            |p| matches!(p, P::NoCertificate { is_key: true }),
            "swapped",
        ),
        (
            with(&ca, &expired, None),
            "cert",
            &expired,
            |p| matches!(p, P::Expired { .. }),
            "make a new one",
        ),
        (
            with(&ca, &late, None),
            "cert",
            &late,
            |p| matches!(p, P::NotValidYet { .. }),
            "before 3000-01-01 00:00:00 UTC",
        ),
        (
            with(&ca, &cert, None),
            "cert",
            &cert,
            |p| matches!(p, P::NoKey { is_in_cert: true }),
            "append the key",
        ),
        (
            with(&ca, &cert, Some(&ca)),
            "key",
            &ca,
            |p| matches!(p, P::NoKey { is_in_cert: false }),
            "no private key",
        ),
        (
            with(&ca, &cert, Some(&encrypted)),
            "key",
            &encrypted,
            |p| matches!(p, P::EncryptedKey),
            "passphrase",
        ),
        (
            with(&ca, &cert, Some(&encrypted_rsa)),
            "key",
            &encrypted_rsa,
            |p| matches!(p, P::EncryptedKey),
            "openssl pkey",
        ),
        (
            with(&ca, &both, None),
            "cert",
            &both,
            |p| matches!(p, P::EncryptedKey),
            "passphrase",
        ),
        (
            with(&ca, &cert, Some(&other_key)),
            "key",
            &other_key,
            |p| matches!(p, P::KeyMismatch),
            "does not belong to the certificate",
        ),
    ];
    for (settings, setting, path, expected, says) in cases {
        let error: TlsError = settings.build().unwrap_err();
        assert_eq!(error.setting(), setting, "{error}");
        assert!(expected(error.problem()), "{error:?}");
        let text = error.to_string();
        assert!(text.starts_with(&path.display().to_string()), "{text}");
        assert!(text.contains(says), "{text}");
    }
    std::fs::remove_dir_all(&scratch).unwrap();
}

/// test_min_max_version_*, and the forced cipher of test_tls_listen_connect.
#[tokio::test]
async fn versions_and_ciphers_can_be_chosen() {
    let with = |min, max, ciphers: Option<&str>| {
        let mut settings = TlsSettings::new(SELF_SIGNED, SELF_SIGNED);
        (settings.min_version, settings.max_version) = (min, max);
        settings.ciphers = ciphers.map(Into::into);
        settings.build().unwrap()
    };
    use TlsVersion::{V1_2, V1_3};
    let any = || with(V1_2, V1_3, None);
    // The key of this certificate decides which of the suites can be used.
    let (aes_128, aes_256) = (
        "ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES128-GCM-SHA256",
        "ECDHE-RSA-AES256-GCM-SHA384, ECDHE-ECDSA-AES256-GCM-SHA384",
    );
    for (name, tls) in [
        ("only 1.2", with(V1_2, V1_2, None)),
        ("only 1.3", with(V1_3, V1_3, None)),
        ("one cipher", with(V1_2, V1_2, Some(aes_128))),
        // The suites of TLS 1.3 cannot be chosen.
        ("a cipher of 1.2, and 1.3", with(V1_3, V1_3, Some(aes_128))),
    ] {
        converse(meet(tls.clone(), any()).await, name).await;
        converse(meet(any(), tls.clone()).await, name).await;
        converse(meet(tls.clone(), tls).await, name).await;
    }
    for (ours, theirs) in [
        (with(V1_2, V1_2, None), with(V1_3, V1_3, None)),
        (
            with(V1_2, V1_2, Some(aes_128)),
            with(V1_2, V1_2, Some(aes_256)),
        ),
    ] {
        let (listens, connects) = meet(ours, theirs).await;
        assert!(matches!(listens, Err(CommError::Tls(_))), "{listens:?}");
        assert!(matches!(connects, Err(CommError::Tls(_))), "{connects:?}");
    }

    let mut security = Security::default();
    security.ca_file = Some(SELF_SIGNED.into());
    security.client.cert = Some(SELF_SIGNED.into());
    security.min_version = Some(V1_3);
    security.max_version = Some(V1_2);
    let error = security
        .role(ClusterRole::Client)
        .unwrap()
        .build()
        .unwrap_err();
    assert!(error.to_string().contains("min-version"), "{error}");
    security.max_version = None;
    security.ciphers = Some("what is not spoken needs no ciphers".into());
    security.role(ClusterRole::Client).unwrap().build().unwrap();
    security.min_version = None;
    security.ciphers = Some("ECDHE-RSA-AES128-GCM-SHA256:DES-CBC3-SHA".into());
    let error = security
        .role(ClusterRole::Client)
        .unwrap()
        .build()
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("\"DES-CBC3-SHA\"") && text.contains(CHACHA),
        "{text}"
    );
    security.ciphers = Some(" : ".into());
    let error = security
        .role(ClusterRole::Client)
        .unwrap()
        .build()
        .unwrap_err();
    assert!(matches!(error.problem(), TlsProblem::NoCipher), "{error}");
}

const CHACHA: &str = "ECDHE-RSA-CHACHA20-POLY1305";

#[test]
fn roles_have_settings_of_their_own() {
    let mut security = Security::default();
    let error = security.role(ClusterRole::Client).unwrap_err();
    assert!(
        error.to_string().contains("distributed.comm.tls.ca-file"),
        "{error}"
    );
    security.ca_file = Some(CA.into());
    security.scheduler.cert = Some(CERT.into());
    security.scheduler.key = Some(KEY.into());
    security.client.cert = Some(SELF_SIGNED.into());
    security
        .role(ClusterRole::Scheduler)
        .unwrap()
        .build()
        .unwrap();
    security.role(ClusterRole::Client).unwrap().build().unwrap();
    let error = security.role(ClusterRole::Worker).unwrap_err();
    assert!(matches!(error.problem(), TlsProblem::NotSet));
    assert!(
        error
            .to_string()
            .contains("distributed.comm.tls.worker.cert"),
        "{error}"
    );
}

#[test]
fn keys_are_never_printed() {
    let settings = TlsSettings::new(CA, CERT).with_key(KEY);
    let tls = settings.build().unwrap();
    let mut security = Security::default();
    security.worker.key = Some(Pem::from(KEY));
    let error = TlsSettings::new(CA, CERT)
        .with_key("PRIVATE KEY\n")
        .build()
        .unwrap_err();
    for text in [
        format!("{settings:?}"),
        format!("{security:?}"),
        format!("{tls:?}"),
        format!("{:?}", options(tls)),
        format!("{error:?} {error}"),
    ] {
        assert!(!text.contains("PRIVATE KEY"), "{text}");
    }
}
