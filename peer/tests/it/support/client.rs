//! A client that connects to a real cluster.

use std::path::Path;

use daskwire_comm::tls::TlsSettings;
use daskwire_peer::Client;
use daskwire_peer::client::{ClientOptions, Reconnect};
use daskwire_testing::TLS_PEM;

/// Connects to the scheduler at `address`, with the certificates of [`TLS_PEM`] if the
/// address needs them.
pub(crate) async fn client_at(address: &str) -> Client {
    let settings = TlsSettings::new(Path::new(TLS_PEM), Path::new(TLS_PEM));
    let options = ClientOptions::default()
        .with_transports(daskwire_peer::transports_with_tls(
            &settings.build().expect("certificates"),
        ))
        // A broken connection is a failure of the test.
        .with_reconnect(Reconnect::Never);
    let client = Client::connect_with(address, options).await;
    client.expect("it connects")
}
