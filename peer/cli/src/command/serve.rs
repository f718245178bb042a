//! The HTTP server of `--dashboard-address`.

use std::env::VarError;
use std::path::PathBuf;

use clap::Args;
use daskwire_dashboard::{DashboardOptions, HttpAddress, Https, Server, TlsFiles, Token};
use serde_json::json;

use crate::command::config::Config;
use crate::command::failure::{Failure, Result};
use crate::command::{terminal, tls};

/// The variable with the token, in place of a file.
pub(crate) const TOKEN_VARIABLE: &str = "DASKWIRE_DASHBOARD_TOKEN";

/// The options of a scheduler's dashboard.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct DashboardArguments {
    /// A file with a token of at least 16 characters, which the dashboard then needs for data, and with
    /// which it can retire and restart workers, and cancel tasks [default: the variable
    /// DASKWIRE_DASHBOARD_TOKEN, or none: all who reach the dashboard may look, and no one may
    /// change anything]
    #[arg(long, value_name = "FILE", help_heading = "Dashboard")]
    dashboard_token: Option<PathBuf>,
    /// Serve the dashboard by HTTPS, with the certificate in this PEM file [default:
    /// distributed.scheduler.dashboard.tls.cert and key]
    #[arg(long, value_name = "FILE", help_heading = "Dashboard")]
    dashboard_cert: Option<PathBuf>,
    /// The private key of --dashboard-cert [default: the same file]
    #[arg(
        long,
        value_name = "FILE",
        requires = "dashboard_cert",
        help_heading = "Dashboard"
    )]
    dashboard_key: Option<PathBuf>,
    /// Serve only browsers that have a certificate of an authority in this PEM file
    #[arg(long, value_name = "FILE", help_heading = "Dashboard")]
    dashboard_ca_file: Option<PathBuf>,
    /// Serve /api/v1, with which dask-kubernetes and others retire workers, without a token if there is
    /// none [default: if distributed.scheduler.http.routes has distributed.http.scheduler.api]
    #[arg(long, help_heading = "Dashboard")]
    dashboard_api: bool,
}

impl DashboardArguments {
    /// Whether /api/v1 is asked for.
    pub(crate) const fn has_api(&self) -> bool {
        self.dashboard_api
    }

    /// The files for HTTPS: those of the command line, or of Dask's settings for its dashboard.
    ///
    /// # Errors
    ///
    /// If there are authorities of clients, and no certificate.
    pub(crate) fn tls(&self, config: &Config) -> Result<Option<TlsFiles>> {
        let file = |name| config.string(&format!("distributed.scheduler.dashboard.tls.{name}"));
        let files = match &self.dashboard_cert {
            Some(cert) => {
                let key = self.dashboard_key.as_ref().unwrap_or(cert);
                Some(TlsFiles::new(cert, key))
            }
            None => file("cert").map(|cert| {
                let key = file("key").unwrap_or_else(|| cert.clone());
                TlsFiles::new(cert, key)
            }),
        };
        match (files, &self.dashboard_ca_file) {
            (None, Some(_)) => Err(Failure::usage(
                "--dashboard-ca-file needs --dashboard-cert, or distributed.scheduler.dashboard.tls.cert",
            )),
            (files, authorities) => Ok(files.map(|files| files.with_ca_file(authorities.clone()))),
        }
    }

    /// Adds the token to options.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or its content is no token.
    pub(crate) fn options(&self, options: DashboardOptions) -> Result<DashboardOptions> {
        let (place, token) = match &self.dashboard_token {
            Some(file) => {
                let place = format!("--dashboard-token {}", file.display());
                let token = std::fs::read_to_string(file);
                let token = token.map_err(|error| Failure::usage(format!("{place}: {error}")))?;
                (place, token)
            }
            None => match std::env::var(TOKEN_VARIABLE) {
                Ok(token) => (TOKEN_VARIABLE.to_owned(), token),
                Err(VarError::NotPresent) => return Ok(options),
                Err(error) => {
                    return Err(Failure::usage(format!("{TOKEN_VARIABLE}: {error}")));
                }
            },
        };
        let token: Token =
            (token.parse()).map_err(|reason| Failure::usage(format_args!("{place}: {reason}")))?;
        Ok(options.with_token(token))
    }
}

/// Binds the server, and reports when its port was in use.
pub(crate) async fn bind(address: &HttpAddress, files: Option<&TlsFiles>) -> Result<Server> {
    let server = Server::bind(address).await;
    let mut server = server.map_err(|error| format!("--dashboard-address {address}: {error}"))?;
    if let Some(files) = files {
        let https = Https::new(files.clone());
        let https = https.map_err(|error| format!("--dashboard-cert: {error}"))?;
        server = server.with_tls(https.clone());
        tls::renew(move || https.reload_if_changed())?;
    }
    if server.is_replaced() {
        let other = address.with_port(server.port());
        let port = address.port();
        let scheme = scheme(files);
        terminal::event(
            "notice",
            format_args!(
                "port {port} is in use; the dashboard, health and metrics are at {scheme}://{other}"
            ),
            json!({}),
        );
    }
    Ok(server)
}

/// The scheme of a server's URL.
pub(crate) const fn scheme(tls: Option<&TlsFiles>) -> &'static str {
    match tls {
        Some(_) => "https",
        None => "http",
    }
}
