//! Arguments that several commands share, and the files that they name.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use daskwire::frame::Prefix;
use daskwire::message::Layout;
use daskwire_comm::tls::{Tls, TlsSettings};
use daskwire_comm::{Address, Transports};

use crate::command::failure::{Failure, Result};

/// The prefix of a message's frames.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum PrefixChoice {
    /// No prefix: distributed up to 2021.2.0
    None,
    /// A length of 8 bytes: distributed 2021.3.0 and later
    U64,
    /// Detected from the input
    Auto,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LayoutChoice {
    /// Header, body, payload header: distributed 1.14.0 to 2021.3.0
    Classic,
    /// Body with placeholders: distributed 2021.3.1 and later
    Modern,
    /// Detected for each message
    Auto,
}

/// TLS options, named as in Dask's commands.
#[derive(Debug, Args)]
pub(crate) struct TlsArguments {
    /// For tls:// and quic://: the trusted certificate authorities, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_ca_file: Option<PathBuf>,
    /// For tls:// and quic://: the certificate to present, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_ca_file")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The private key of the certificate, a PEM file [default: the file of the
    /// certificate]
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
}

impl TlsArguments {
    /// The transports for comms at these addresses, with TLS as configured.
    pub(crate) fn transports(&self, addresses: &[&Address]) -> Result<Transports> {
        Ok(match self.tls(addresses)? {
            Some(tls) => daskwire_peer::transports_with_tls(&tls),
            None => daskwire_peer::transports(),
        })
    }

    pub(crate) fn tls(&self, addresses: &[&Address]) -> Result<Option<Tls>> {
        let build = |settings: TlsSettings| settings.build().map_err(|error| error.to_string());
        Ok(self.settings(addresses)?.map(build).transpose()?)
    }

    /// The certificates and keys for comms at these addresses.
    pub(crate) fn settings(&self, addresses: &[&Address]) -> Result<Option<TlsSettings>> {
        let needs = |address: &&&Address| {
            let scheme = address.scheme();
            scheme == "tls" || scheme == "quic"
        };
        let (Some(ca_file), Some(cert)) = (&self.tls_ca_file, &self.tls_cert) else {
            if let Some(address) = addresses.iter().find(needs) {
                return Err(Failure::usage(format_args!(
                    "{address} needs TLS: give --tls-ca-file and --tls-cert, \
                     and --tls-key if the key is not in the file of the certificate"
                )));
            }
            return Ok(None);
        };
        // Refuse, because a user of these options expects that nothing is sent
        // unencrypted.
        if !addresses.iter().any(|address| needs(&address)) {
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

impl PrefixChoice {
    pub(crate) const fn get(self) -> Option<Prefix> {
        match self {
            Self::None => Some(Prefix::None),
            Self::U64 => Some(Prefix::U64),
            Self::Auto => None,
        }
    }
}

impl LayoutChoice {
    pub(crate) const fn get(self) -> Option<Layout> {
        match self {
            Self::Classic => Some(Layout::Classic),
            Self::Modern => Some(Layout::Modern),
            Self::Auto => None,
        }
    }
}

pub(crate) fn is_standard_input(file: &Path) -> bool {
    file.as_os_str() == "-"
}

/// The name of the input file in messages.
pub(crate) fn name(file: &Path) -> String {
    if is_standard_input(file) {
        "standard input".to_owned()
    } else {
        file.display().to_string()
    }
}

pub(crate) fn read(file: &Path) -> Result<Vec<u8>> {
    let bytes = if is_standard_input(file) {
        let mut bytes = Vec::new();
        let read = std::io::stdin().lock().read_to_end(&mut bytes);
        read.map(|_| bytes)
    } else {
        std::fs::read(file)
    };
    Ok(bytes.map_err(|error| format!("{}: {error}", name(file)))?)
}
