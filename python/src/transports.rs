//! Transports with the settings of one role.

use core::time::Duration;
use std::path::PathBuf;
use std::sync::Arc;

use daskwire_comm::tls::{Pem, TlsSettings, TlsVersion};
use daskwire_comm::{Address, CommOptions};
use daskwire_quic::{Quic, QuicOptions};
use daskwire_tcp::{Tcp, TcpOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::connection::Connecting;
use crate::listener::Binding;
use crate::notify::Notifier;

/// The transports for `tcp`, `tls` and `quic`. Connections over QUIC to one peer are shared
/// by all that are made with one of these.
#[pyclass(frozen, module = "daskwire._native")]
pub(crate) struct Transports {
    transports: Arc<daskwire_comm::Transports>,
    shard_len: usize,
}

#[pymethods]
impl Transports {
    /// Makes transports for peers that split buffers into frames of `shard_len` bytes, with
    /// these certificates, each a path or PEM; without, those that need them refuse
    /// addresses.
    #[new]
    #[pyo3(signature = (shard_len, ca_file=None, cert=None, key=None, ciphers=None, min_version=None, max_version=None))]
    fn new(
        shard_len: usize,
        ca_file: Option<String>,
        cert: Option<String>,
        key: Option<String>,
        ciphers: Option<String>,
        min_version: Option<&str>,
        max_version: Option<&str>,
    ) -> PyResult<Self> {
        let (Some(ca_file), Some(cert)) = (ca_file, cert) else {
            let transports = daskwire_comm::Transports::new()
                .with(Tcp::default())
                .with(Quic::default());
            return Ok(Self {
                transports: Arc::new(transports),
                shard_len,
            });
        };
        let mut settings = TlsSettings::new(pem(ca_file), pem(cert));
        settings.key = key.map(pem);
        settings.ciphers = ciphers;
        if let Some(version) = min_version {
            settings.min_version = tls_version(version)?;
        }
        if let Some(version) = max_version {
            settings.max_version = tls_version(version)?;
        }
        let tls = settings.build();
        let tls = tls.map_err(|error| PyValueError::new_err(error.to_string()))?;
        let quic = QuicOptions {
            tls: (&tls).into(),
            ..QuicOptions::default()
        };
        let transports = daskwire_comm::Transports::new()
            .with(Tcp::new(TcpOptions::default().with_tls(tls)))
            .with(Quic::new(quic));
        Ok(Self {
            transports: Arc::new(transports),
            shard_len,
        })
    }

    /// Begins one attempt to connect, which takes at most `timeout` seconds.
    fn connect(
        &self,
        notifier: &Notifier,
        scheme: &str,
        location: &str,
        timeout: f64,
    ) -> PyResult<Connecting> {
        let address = address(scheme, location)?;
        let options = CommOptions {
            connect_timeout: seconds(timeout)?,
            connect_retry: false,
            handshake_timeout: seconds(timeout)?,
            ..CommOptions::default()
        };
        Ok(Connecting::start(
            Arc::clone(&self.transports),
            Arc::clone(notifier.wakeups()),
            self.shard_len,
            address,
            options,
        )?)
    }

    /// Begins to listen. Handshakes of a transport, such as that of TLS, take at most
    /// `timeout` seconds.
    fn listen(
        &self,
        notifier: &Notifier,
        scheme: &str,
        location: &str,
        timeout: f64,
    ) -> PyResult<Binding> {
        let address = address(scheme, location)?;
        let options = CommOptions {
            handshake_timeout: seconds(timeout)?,
            ..CommOptions::default()
        };
        Ok(Binding::start(
            Arc::clone(&self.transports),
            Arc::clone(notifier.wakeups()),
            self.shard_len,
            address,
            options,
        )?)
    }
}

fn address(scheme: &str, location: &str) -> PyResult<Address> {
    let address = Address::with_location(scheme, location);
    address.map_err(|error| PyValueError::new_err(format!("{scheme}://{location}: {error}")))
}

fn seconds(seconds: f64) -> PyResult<Duration> {
    let duration = Duration::try_from_secs_f64(seconds);
    duration.map_err(|error| PyValueError::new_err(format!("timeout: {error}")))
}

/// As in Dask's `Security`: PEM has lines, a path has none.
fn pem(text: String) -> Pem {
    if text.contains('\n') {
        Pem::from(text)
    } else {
        Pem::from(PathBuf::from(text))
    }
}

fn tls_version(version: &str) -> PyResult<TlsVersion> {
    match version {
        "1.2" => Ok(TlsVersion::V1_2),
        "1.3" => Ok(TlsVersion::V1_3),
        other => Err(PyValueError::new_err(format!(
            "TLS version {other:?}: 1.2 and 1.3 are supported"
        ))),
    }
}
