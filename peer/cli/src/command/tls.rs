//! TLS, from the command line or else from Dask's configuration.

use core::fmt::Display;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use clap::Args;
use daskwire_comm::tls::{Tls, TlsSettings, TlsVersion};
use daskwire_comm::{Address, Transports};
use daskwire_quic::{Quic, QuicOptions};
use daskwire_tcp::{Tcp, TcpOptions};
use daskwire_ws::Ws;
use serde_json::json;

use crate::command::config::Config;
use crate::command::failure::{Failure, Result};
use crate::command::terminal;

/// The transports of the program around the command.
static ADDED: OnceLock<Transports> = OnceLock::new();

/// Has the command use more transports than its own.
pub(crate) fn add_transports(transports: Transports) {
    // A process runs one command.
    let _ = ADDED.set(transports);
}

/// Whether the command has a transport for a scheme.
pub(crate) fn has_transport(scheme: &str) -> bool {
    let is_added = |added: &Transports| added.schemes().any(|added| added == scheme);
    SCHEMES.contains(&scheme) || ADDED.get().is_some_and(is_added)
}

/// The schemes of all transports, for users.
pub(crate) fn schemes() -> String {
    let mut schemes = SCHEMES.to_vec();
    let added = ADDED.get().into_iter().flat_map(Transports::schemes);
    schemes.extend(added.filter(|scheme| *scheme != "inproc" && !SCHEMES.contains(scheme)));
    let last = schemes.pop().unwrap_or_default();
    format!("{} or {last}", schemes.join(", "))
}

/// The transports of the command and of the program around it.
pub(crate) fn all_transports(tls: Option<&Tls>) -> Transports {
    with_added(match tls {
        Some(tls) => daskwire_peer::transports_with_tls(tls),
        None => daskwire_peer::transports(),
    })
}

/// Adds the transports of the program around the command.
pub(crate) fn with_added(transports: Transports) -> Transports {
    match ADDED.get() {
        Some(added) => transports.with_all(added),
        None => transports,
    }
}

/// The schemes of the command's own transports.
const SCHEMES: [&str; 6] = ["tcp", "tls", "quic", "ws", "wss", "unix"];

/// TLS options, named as in Dask's commands.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct TlsArguments {
    /// For tls://, wss:// and quic://: the trusted certificate authorities, a PEM file
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_cert",
        help_heading = "Connection"
    )]
    pub(crate) tls_ca_file: Option<PathBuf>,
    /// For tls://, wss:// and quic://: the certificate to present, a PEM file
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_ca_file",
        help_heading = "Connection"
    )]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The private key of the certificate, a PEM file [default: the file of the
    /// certificate]
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_cert",
        help_heading = "Connection"
    )]
    pub(crate) tls_key: Option<PathBuf>,
}

/// The settings of `distributed.comm.tls`.
#[derive(Clone, Debug)]
pub(crate) struct TlsConfig {
    ca_file: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    ciphers: Option<String>,
    min_version: Option<String>,
    max_version: Option<String>,
}

fn needs_tls(address: &Address) -> bool {
    ["tls", "quic", "wss"].contains(&address.scheme())
}

impl TlsArguments {
    /// The transports of a client for these addresses.
    ///
    /// # Errors
    ///
    /// As [`tls`](Self::tls).
    pub(crate) fn transports(&self, addresses: &[&Address]) -> Result<Transports> {
        Ok(all_transports(self.tls(addresses)?.as_ref()))
    }

    /// The certificates of the command line, or else those of a client in Dask's configuration,
    /// for comms at these addresses.
    ///
    /// # Errors
    ///
    /// As [`or_configured`](Self::or_configured), or if the configuration cannot be read.
    pub(crate) fn tls(&self, addresses: &[&Address]) -> Result<Option<Tls>> {
        let config = match addresses.iter().any(|address| needs_tls(address)) {
            true => Config::load()?,
            false => Config::default(),
        };
        self.or_configured(&TlsConfig::of(&config, "client"), addresses)
    }

    /// The certificates of the command line, or else of the configuration, for comms at these
    /// addresses. Versions and ciphers of the configuration hold for both.
    ///
    /// # Errors
    ///
    /// A usage error if an address needs certificates and there are none, if no address needs
    /// them, or if a file cannot be used.
    pub(crate) fn or_configured(
        &self,
        config: &TlsConfig,
        addresses: &[&Address],
    ) -> Result<Option<Tls>> {
        let settings = match config.settings() {
            Some(settings)
                if self.tls_ca_file.is_none()
                    && addresses.iter().any(|address| needs_tls(address)) =>
            {
                Some(settings)
            }
            _ => self.settings(addresses)?,
        };
        let settings = settings.map(|settings| config.restrict(settings));
        settings.transpose()?.map(build).transpose()
    }

    fn settings(&self, addresses: &[&Address]) -> Result<Option<TlsSettings>> {
        let (Some(ca_file), Some(cert)) = (&self.tls_ca_file, &self.tls_cert) else {
            if let Some(address) = addresses.iter().find(|address| needs_tls(address)) {
                return Err(Failure::usage(format_args!(
                    "{address} needs TLS: give --tls-ca-file and --tls-cert, \
                     and --tls-key if the key is not in the file of the certificate, \
                     or set distributed.comm.tls in Dask's configuration"
                )));
            }
            return Ok(None);
        };
        // Refuse, because a user of these options expects that nothing is sent
        // unencrypted.
        if !addresses.iter().any(|address| needs_tls(address)) {
            let address = addresses.first().map(ToString::to_string);
            return Err(Failure::usage(format_args!(
                "TLS options are given, but {} does not use TLS; use a tls:// address",
                address.unwrap_or_default()
            )));
        }
        let mut settings = TlsSettings::new(ca_file.as_path(), cert.as_path());
        if let Some(key) = &self.tls_key {
            settings = settings.with_key(key.as_path());
        }
        Ok(Some(settings))
    }
}

/// Interval between checks whether certificates were renewed.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(2);

/// Has certificates read again whenever their files have changed, as long as the process runs. `reload`
/// returns whether they have.
///
/// # Errors
///
/// If no thread can be started.
pub(crate) fn renew<E: Display>(
    reload: impl Fn() -> Result<bool, E> + Send + 'static,
) -> Result<()> {
    // A thread of its own, because the files may be on a network.
    let thread = std::thread::Builder::new().name("certificates".to_owned());
    let started = thread.spawn(move || {
        loop {
            std::thread::sleep(RENEWAL_INTERVAL);
            let message = match reload() {
                Ok(false) => continue,
                Ok(true) => "new connections use the renewed certificates".to_owned(),
                Err(error) => {
                    format!("the earlier certificates stay, since the new ones fail: {error}")
                }
            };
            terminal::event("notice", message, json!({}));
        }
    });
    started.map_err(|error| format!("cannot start a thread: {error}"))?;
    Ok(())
}

/// The transports of a role, which end a connection to a silent peer after a timeout, and use
/// renewed certificates.
///
/// # Errors
///
/// If no thread can be started.
pub(crate) fn transports(
    tls: Option<Tls>,
    silence_timeout: Option<Duration>,
) -> Result<Transports> {
    if let Some(tls) = &tls {
        let tls = tls.clone();
        renew(move || tls.reload_if_changed())?;
    }
    let mut transports = all_transports(tls.as_ref());
    if let Some(timeout) = silence_timeout {
        let mut tcp = TcpOptions::default().with_timeout(timeout);
        if let Some(tls) = tls {
            transports = transports.with(Quic::new(
                QuicOptions::default()
                    .with_tls(&tls)
                    .with_idle_timeout(QuicOptions::idle_timeout_for(timeout)),
            ));
            tcp = tcp.with_tls(tls);
        }
        let tcp = Tcp::new(tcp);
        transports = with_added(transports.with(tcp.clone()).with(Ws::new(tcp)));
    }
    Ok(transports)
}

/// Refuses addresses whose comms are not encrypted, as `distributed.comm.require-encryption` asks
/// for.
///
/// # Errors
///
/// A usage error with the first such address.
pub(crate) fn check_encryption<'a>(addresses: impl IntoIterator<Item = &'a Address>) -> Result {
    // The last two do not leave the machine.
    let is_allowed =
        |address: &&Address| ["tls", "quic", "wss", "unix", "inproc"].contains(&address.scheme());
    match addresses.into_iter().find(|address| !is_allowed(address)) {
        Some(address) => Err(Failure::usage(format_args!(
            "{address} is not encrypted, and distributed.comm.require-encryption is set: use \
             tls://, wss:// or quic://"
        ))),
        None => Ok(()),
    }
}

/// Reads the files of certificates and keys.
fn build(settings: TlsSettings) -> Result<Tls> {
    settings.build().map_err(Failure::usage)
}

impl TlsConfig {
    /// The settings for a role of Dask: `client`, `worker` or `scheduler`.
    pub(crate) fn of(config: &Config, role: &str) -> Self {
        let string = |name: &str| config.string(&format!("distributed.comm.tls.{name}"));
        Self {
            ca_file: string("ca-file").map(Into::into),
            cert: string(&format!("{role}.cert")).map(Into::into),
            key: string(&format!("{role}.key")).map(Into::into),
            ciphers: string("ciphers"),
            min_version: string("min-version"),
            max_version: string("max-version"),
        }
    }

    /// The certificates and the key, if they are set.
    fn settings(&self) -> Option<TlsSettings> {
        let mut settings = TlsSettings::new(self.ca_file.as_deref()?, self.cert.as_deref()?);
        if let Some(key) = &self.key {
            settings = settings.with_key(key.as_path());
        }
        Some(settings)
    }

    /// Restricts the versions and ciphers.
    fn restrict(&self, mut settings: TlsSettings) -> Result<TlsSettings> {
        let version = |version: &str| match version {
            "1.2" => Ok(TlsVersion::V1_2),
            "1.3" => Ok(TlsVersion::V1_3),
            other => Err(Failure::usage(format_args!(
                "distributed.comm.tls: the version {other} of TLS is neither 1.2 nor 1.3"
            ))),
        };
        settings.ciphers.clone_from(&self.ciphers);
        if let Some(min_version) = &self.min_version {
            settings.min_version = version(min_version)?;
        }
        if let Some(max_version) = &self.max_version {
            settings.max_version = version(max_version)?;
        }
        Ok(settings)
    }
}
