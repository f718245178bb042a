//! Comms for requests, kept for the next one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use daskwire_tcp::{Address, CommError, Options, Role};

use crate::channel::{Channel, Observer, Parties};
use crate::meter::Meter;
use crate::net::Connector;
use crate::protocol::{DataReply, Field, GetData, Keys, Nullable, Request};
use crate::{Key, PeerError};

/// How many comms that nobody uses are kept with one peer.
const IDLE: usize = 8;

/// Makes comms to peers as they are needed, and keeps them.
pub(crate) struct Pool {
    connector: Arc<Connector>,
    /// Who we are, for whoever watches.
    local: String,
    names: Arc<dyn Fn(&Address) -> String + Send + Sync>,
    observer: Option<Arc<dyn Observer>>,
    meter: Option<(Arc<Meter>, Options)>,
    idle: Mutex<HashMap<Address, Vec<Channel>>>,
}

impl core::fmt::Debug for Pool {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Pool")
            .field("local", &self.local)
            .finish_non_exhaustive()
    }
}

impl Pool {
    pub(crate) fn new(
        connector: Arc<Connector>,
        local: &str,
        observer: Option<Arc<dyn Observer>>,
    ) -> Self {
        Self {
            connector,
            local: local.to_owned(),
            names: Arc::new(|address| address.to_string()),
            observer,
            meter: None,
            idle: Mutex::default(),
        }
    }

    /// The same with what counts bytes, and the options of the connector.
    pub(crate) fn metered(mut self, meter: Option<Arc<Meter>>, options: Options) -> Self {
        self.meter = meter.map(|meter| (meter, options));
        self
    }

    /// Connects to a peer, whatever is idle.
    pub(crate) async fn connect(&self, address: &Address) -> Result<Channel, CommError> {
        let comm = match &self.meter {
            None => self.connector.connect(address).await?,
            Some((meter, options)) => {
                let connection = self.connector.connect_bytes(address).await?;
                let connection = meter.attach(connection);
                connection.handshake(Role::Connector, options).await?
            }
        };
        let parties = Parties::new(&self.local, &(self.names)(address), self.observer.clone());
        Ok(Channel::new(comm, parties))
    }

    /// Asks a peer. A comm that was idle and turns out to be closed is replaced:
    /// the peer has not read the request then.
    pub(crate) async fn call<T: Field>(
        &self,
        address: &Address,
        request: &Request,
    ) -> Result<T, PeerError> {
        loop {
            let idle = self.take(address);
            let was_idle = idle.is_some();
            let mut channel = match idle {
                Some(channel) => channel,
                None => self.connect(address).await?,
            };
            match channel.call(request).await {
                Err(PeerError::Closed { .. } | PeerError::Comm(_)) if was_idle => {}
                result => {
                    if !matches!(result, Err(PeerError::Closed { .. } | PeerError::Comm(_))) {
                        self.give_back(address, channel);
                    }
                    return result;
                }
            }
        }
    }

    /// Asks a worker for data, and acknowledges it.
    pub(crate) async fn get_data(
        &self,
        address: &Address,
        keys: Vec<Key>,
        who: Option<String>,
    ) -> Result<DataReply, PeerError> {
        let request = Request::GetData(GetData {
            keys: Keys(keys),
            who: Nullable(who),
            reply: Some(true),
            ..GetData::default()
        });
        loop {
            let idle = self.take(address);
            let was_idle = idle.is_some();
            let mut channel = match idle {
                Some(channel) => channel,
                None => self.connect(address).await?,
            };
            let reply: Result<DataReply, _> = channel.call(&request).await;
            match reply {
                Err(PeerError::Closed { .. } | PeerError::Comm(_)) if was_idle => {}
                Ok(reply) => {
                    // Without it the worker counts the transfer as going on; with
                    // `busy` there is none.
                    let is_acknowledged =
                        reply.status != "OK" || channel.sender.send(&"OK".to_owned()).await.is_ok();
                    if is_acknowledged {
                        self.give_back(address, channel);
                    }
                    // The data is there even if its sender is gone by now.
                    return Ok(reply);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Forgets the comms with a peer that is gone.
    pub(crate) fn forget(&self, address: &Address) {
        self.lock().remove(address);
    }

    /// Closes all comms that nobody uses.
    pub(crate) async fn close(&self) {
        let all = core::mem::take(&mut *self.lock());
        for channel in all.into_values().flatten() {
            channel.close().await;
        }
    }

    fn take(&self, address: &Address) -> Option<Channel> {
        self.lock().get_mut(address)?.pop()
    }

    fn give_back(&self, address: &Address, channel: Channel) {
        let mut idle = self.lock();
        let channels = idle.entry(address.clone()).or_default();
        if channels.len() < IDLE {
            channels.push(channel);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Address, Vec<Channel>>> {
        // Whoever panicked did not leave it half done.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
