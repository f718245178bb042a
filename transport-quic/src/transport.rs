//! The transport for addresses of the scheme `quic`.

use std::sync::{Arc, Mutex};

use daskwire_comm::{
    Address, BoxFuture, CommError, ConnectError, ConnectOptions, Listen, PendingConnection,
    Transport,
};

use crate::QuicOptions;
use crate::endpoint::{Endpoint, listen, lock};

/// The transport of comms over QUIC (`quic://`). All connections are made by one endpoint,
/// which is created at first use; every listener has its own endpoint.
#[derive(Debug, Default)]
pub struct Quic {
    options: QuicOptions,
    client: Mutex<Option<Arc<Endpoint>>>,
    /// Endpoints that [`Transport::close`] has not closed yet.
    closing: Mutex<Vec<Arc<Endpoint>>>,
}

impl Quic {
    /// Creates the transport, which needs [`QuicOptions::tls`].
    pub const fn new(options: QuicOptions) -> Self {
        Self {
            options,
            client: Mutex::new(None),
            closing: Mutex::new(Vec::new()),
        }
    }

    fn client(&self, address: &Address) -> Result<Arc<Endpoint>, CommError> {
        let mut client = lock(&self.client);
        if let Some(endpoint) = &*client {
            return Ok(Arc::clone(endpoint));
        }
        if self.options.tls.client.is_none() {
            return Err(CommError::NoTls {
                address: address.clone(),
            });
        }
        let endpoint = Endpoint::client(self.options.clone())?;
        Ok(Arc::clone(client.insert(Arc::new(endpoint))))
    }

    /// Removes an endpoint, unless another one has replaced it.
    fn remove(&self, endpoint: &Arc<Endpoint>) {
        lock(&self.client).take_if(|client| Arc::ptr_eq(client, endpoint));
    }
}

impl Transport for Quic {
    fn schemes(&self) -> &[&'static str] {
        &["quic"]
    }

    fn connect<'a>(
        &'a self,
        address: &'a Address,
        options: &'a ConnectOptions,
    ) -> BoxFuture<'a, Result<PendingConnection, ConnectError>> {
        Box::pin(async {
            let client = self.client(address)?;
            let outcome = Transport::connect(&*client, address, options).await;
            if outcome.is_ok() || !client.is_stopped() {
                return outcome;
            }
            // The executor of the endpoint has ended, or the endpoint was closed meanwhile.
            self.remove(&client);
            let client = self.client(address)?;
            Transport::connect(&*client, address, options).await
        })
    }

    fn bind<'a>(
        &'a self,
        address: &'a Address,
    ) -> BoxFuture<'a, Result<Box<dyn Listen>, CommError>> {
        Box::pin(listen(address, &self.options))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            // A comm that is made meanwhile gets a new endpoint.
            let client = lock(&self.client).take();
            lock(&self.closing).extend(client);
            let closing = lock(&self.closing).clone();
            for endpoint in closing {
                endpoint.close().await;
                lock(&self.closing).retain(|other| !Arc::ptr_eq(other, &endpoint));
            }
        })
    }

    fn with_own_connections(&self) -> Option<Arc<dyn Transport>> {
        Some(Arc::new(Self::new(self.options.clone())))
    }
}
