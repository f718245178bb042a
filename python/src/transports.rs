//! Transports with the TLS settings of one role.

use core::time::Duration;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use daskwire_comm::tls::rustls::pki_types::ServerName;
use daskwire_comm::tls::{Pem, TlsSettings, TlsVersion};
use daskwire_comm::{Address, CommError, CommOptions};
use daskwire_quic::{Congestion, Quic, QuicOptions};
use daskwire_tcp::{Tcp, TcpOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tokio::task::AbortHandle;

use crate::connection::Connecting;
use crate::listener::Binding;
use crate::notify::{Notifier, Slot, Wakeups};
use crate::runtime;

/// The transports for `tcp`, `tls` and `quic`. Comms made with one value of this type share
/// the QUIC connection to a peer.
#[pyclass(frozen, weakref, module = "daskwire._native")]
pub(crate) struct Transports {
    transports: Arc<daskwire_comm::Transports>,
    shard_len: usize,
}

#[pymethods]
impl Transports {
    /// Creates transports for peers that split buffers into frames of `shard_len` bytes.
    /// `ca_file`, `cert` and `key` are each a path or PEM; without a CA and a certificate, the
    /// encrypted transports refuse to connect or listen. `congestion` is QUIC's algorithm for
    /// congestion control, `cubic` or `bbr`. Default: `cubic`. A connection whose peer is silent
    /// ends after `timeout` seconds. Default: 30. `server_name` is sent to listeners (SNI) in place
    /// of the host in their address.
    #[new]
    #[pyo3(signature = (shard_len, timeout=30.0, ca_file=None, cert=None, key=None, ciphers=None, min_version=None, max_version=None, congestion=None, server_name=None))]
    #[expect(clippy::too_many_arguments, reason = "Python passes most by name")]
    fn new(
        shard_len: usize,
        timeout: f64,
        ca_file: Option<String>,
        cert: Option<String>,
        key: Option<String>,
        ciphers: Option<String>,
        min_version: Option<&str>,
        max_version: Option<&str>,
        congestion: Option<&str>,
        server_name: Option<String>,
    ) -> PyResult<Self> {
        let timeout = Duration::try_from_secs_f64(timeout)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        let tcp = TcpOptions::default().with_timeout(timeout);
        let (Some(ca_file), Some(cert)) = (ca_file, cert) else {
            let transports = daskwire_comm::Transports::new()
                .with(Tcp::new(tcp))
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
        let mut tls = tls.map_err(|error| PyValueError::new_err(error.to_string()))?;
        if let Some(name) = server_name {
            let name = ServerName::try_from(name)
                .map_err(|error| PyValueError::new_err(error.to_string()))?;
            tls = tls.with_server_name(name);
        }
        let quic = QuicOptions::default()
            .with_tls(&tls)
            .with_congestion(algorithm(congestion.unwrap_or("cubic"))?)
            .with_idle_timeout(QuicOptions::idle_timeout_for(timeout));
        let transports = daskwire_comm::Transports::new()
            .with(Tcp::new(tcp.with_tls(tls)))
            .with(Quic::new(quic));
        Ok(Self {
            transports: Arc::new(transports),
            shard_len,
        })
    }

    /// Begins an attempt to connect, which takes at most `timeout` seconds.
    fn connect(
        &self,
        notifier: &Notifier,
        scheme: &str,
        location: &str,
        timeout: f64,
    ) -> PyResult<Connecting> {
        let mut operation = self.operation(notifier, scheme, location, timeout)?;
        operation.options.connect_timeout = operation.options.handshake_timeout;
        operation.options.connect_retry = false;
        Ok(Connecting::start(operation)?)
    }

    /// Begins to listen. The handshake of the transport (such as TLS) with each peer takes at
    /// most `timeout` seconds.
    fn listen(
        &self,
        notifier: &Notifier,
        scheme: &str,
        location: &str,
        timeout: f64,
    ) -> PyResult<Binding> {
        let operation = self.operation(notifier, scheme, location, timeout)?;
        Ok(Binding::start(operation)?)
    }
}

impl Transports {
    fn operation(
        &self,
        notifier: &Notifier,
        scheme: &str,
        location: &str,
        timeout: f64,
    ) -> PyResult<Operation> {
        Ok(Operation {
            transports: Arc::clone(&self.transports),
            wakeups: Arc::clone(notifier.wakeups()),
            shard_len: self.shard_len,
            address: address(scheme, location)?,
            options: CommOptions::default().with_handshake_timeout(to_duration(timeout)?),
        })
    }
    pub(crate) fn inner(&self) -> Arc<daskwire_comm::Transports> {
        Arc::clone(&self.transports)
    }
}

/// The parameters of an attempt to connect or to listen.
pub(crate) struct Operation {
    pub(crate) transports: Arc<daskwire_comm::Transports>,
    pub(crate) wakeups: Arc<Wakeups>,
    pub(crate) shard_len: usize,
    pub(crate) address: Address,
    pub(crate) options: CommOptions,
}

/// The result of an operation, for the event loop that waits for it.
pub(crate) type Outcome<T> = Arc<Slot<Result<T, CommError>>>;

impl Operation {
    /// Runs `steps` on the runtime.
    pub(crate) fn start<T, F>(
        self,
        steps: impl FnOnce(Self) -> F,
    ) -> io::Result<(Outcome<T>, AbortHandle)>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, CommError>> + Send + 'static,
    {
        let outcome = Arc::new(Slot::default());
        let own = Arc::clone(&outcome);
        let steps = steps(self);
        let task = runtime::handle()?.spawn(async move { own.set(steps.await) });
        Ok((outcome, task.abort_handle()))
    }
}

fn address(scheme: &str, location: &str) -> PyResult<Address> {
    let address = Address::with_location(scheme, location);
    address.map_err(|error| PyValueError::new_err(format!("{scheme}://{location}: {error}")))
}

/// Converts a number of seconds to a duration.
///
/// # Errors
///
/// `ValueError` if `seconds` is negative, too large, or not a number.
pub(crate) fn to_duration(seconds: f64) -> PyResult<Duration> {
    let duration = Duration::try_from_secs_f64(seconds);
    duration.map_err(|error| PyValueError::new_err(format!("timeout: {error}")))
}

/// Parses a string as Dask's `Security` does: PEM has line breaks, a path has none.
fn pem(text: String) -> Pem {
    if text.contains('\n') {
        Pem::from(text)
    } else {
        Pem::from(PathBuf::from(text))
    }
}

fn algorithm(name: &str) -> PyResult<Congestion> {
    match name {
        "cubic" => Ok(Congestion::Cubic),
        "bbr" => Ok(Congestion::Bbr),
        _ => Err(PyValueError::new_err(format!(
            "distributed.comm.quic.congestion is {name:?}, not 'cubic' or 'bbr'"
        ))),
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
