//! HTTP servers for the roles of a Dask cluster: `/health` and `/metrics` of any of them, and the
//! dashboard of a scheduler.
//!
//! A [`Server`] has a thread of its own, and serves [`Pages`] for a worker, and a [`Dashboard`] for a
//! scheduler. Nothing is collected while no browser looks, and what is shown is read from the
//! scheduler in short steps, between which it goes on.
//!
//! ```
//! use daskwire_dashboard::{Pages, Server};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::bind(&"127.0.0.1:0".parse()?).await?;
//! println!("http://127.0.0.1:{}/health", server.port());
//! Pages::new(|| Ok(()), || Ok("a_metric 1.0\n".to_owned())).serve(server)?;
//! # Ok(())
//! # }
//! ```
//!
//! The command `daskwire` uses this crate for `--dashboard-address`.

mod actions;
mod address;
mod api;
mod assets;
mod dashboard;
mod http;
mod info;
mod live;
mod metrics;
mod pages;
mod process;
mod tls;
mod token;
mod views;

pub use address::HttpAddress;
pub use dashboard::{Dashboard, DashboardOptions, Serving, Setting};
pub use http::Server;
pub use metrics::Metrics;
pub use pages::Pages;
pub use tls::{Https, TlsFiles, TlsFilesError};
pub use token::Token;

#[cfg(test)]
mod tests;
