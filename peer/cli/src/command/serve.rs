//! The HTTP server of `--dashboard-address`.

use daskwire_dashboard::{HttpAddress, Server};
use serde_json::json;

use crate::command::failure::Result;
use crate::command::terminal;

/// Binds the server, and reports when its port was in use.
pub(crate) async fn bind(address: &HttpAddress) -> Result<Server> {
    let server = Server::bind(address).await;
    let server = server.map_err(|error| format!("--dashboard-address {address}: {error}"))?;
    if server.is_replaced() {
        let other = address.with_port(server.port());
        let port = address.port();
        terminal::event(
            "notice",
            format_args!("port {port} is in use; health and metrics are at http://{other}"),
            json!({}),
        );
    }
    Ok(server)
}
