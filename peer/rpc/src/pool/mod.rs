//! A pool of comms for requests.
//!
//! An idle comm is closed
//! * when the peer is [forgotten](Pool::forget), which also ends the pending requests to
//!   the peer;
//! * when another request to the peer [fails](Pool::close_idle);
//! * at the first use of the pool after a minute without a request;
//! * when it would exceed the maximum number of idle comms.

use core::time::Duration;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use daskwire::frame::ReadHint;
use daskwire_comm::runtime::{self, Instant};
use daskwire_comm::{Address, BoxFuture, CommError, Traffic};
use daskwire_messages::Key;
use daskwire_messages::protocol::{DataReply, Field, GetData, ReplyStatus, Request};
use tokio::sync::watch;

use crate::RequestError;
use crate::channel::{Channel, Ends, Observer};
use crate::meter::Meter;
use crate::net::Connector;

/// Maximum number of idle comms with one peer.
const MAX_IDLE_PER_PEER: usize = 8;

/// Maximum number of idle comms in total, as in Dask's connection pool.
const MAX_IDLE: usize = 512;

/// Time after which an idle comm is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Connects to peers as needed, and reuses the comms.
pub struct Pool {
    connector: Arc<Connector>,
    /// The name of this end, for observers.
    local: String,
    names: Arc<dyn Fn(&Address) -> String + Send + Sync>,
    observer: Option<Arc<dyn Observer>>,
    meter: Option<Arc<Meter>>,
    /// Whether the data that is sent comes from other processes, which decide on its
    /// compression.
    forwards: bool,
    /// Whether the cluster's release reads large frames apart, see [`ReadHint`].
    reads_apart: AtomicBool,
    peers: Mutex<Peers>,
}

#[derive(Debug, Default)]
struct Peers {
    /// Peers with idle comms or pending requests.
    by_address: HashMap<Address, PeerComms>,
    /// Number of idle comms with all peers.
    idle_count: usize,
    swept_at: Option<Instant>,
}

#[derive(Debug)]
struct PeerComms {
    idle: Vec<Idle>,
    /// A channel on which nothing is sent. Dropping it notifies pending requests that
    /// the peer was forgotten.
    known: watch::Sender<()>,
}

#[derive(Debug)]
struct Idle {
    channel: Channel,
    since: Instant,
}

impl Default for PeerComms {
    fn default() -> Self {
        Self {
            idle: Vec::new(),
            known: watch::Sender::new(()),
        }
    }
}

impl PeerComms {
    fn is_unused(&self) -> bool {
        self.idle.is_empty() && self.known.receiver_count() == 0
    }
}

impl Peers {
    fn take_idle(&mut self) -> Vec<Idle> {
        self.idle_count = 0;
        let comms = self.by_address.values_mut();
        let idle = comms.flat_map(|comms| comms.idle.drain(..)).collect();
        self.by_address.retain(|_, comms| !comms.is_unused());
        idle
    }

    /// Takes the comms that have been idle for too long.
    fn sweep(&mut self, now: Instant) -> Vec<Idle> {
        let is_due = |at| now.saturating_duration_since(at) >= IDLE_TIMEOUT / 4;
        if !self.swept_at.is_none_or(is_due) {
            return Vec::new();
        }
        self.swept_at = Some(now);
        let mut old = Vec::new();
        self.by_address.retain(|_, comms| {
            let is_old =
                |idle: &mut Idle| now.saturating_duration_since(idle.since) >= IDLE_TIMEOUT;
            old.extend(comms.idle.extract_if(.., is_old));
            !comms.is_unused()
        });
        self.idle_count -= old.len();
        old
    }
}

/// A use of a peer, which ends when the pool forgets the peer.
#[derive(Debug)]
pub struct PoolUse<'p> {
    pool: &'p Pool,
    address: &'p Address,
    /// `None` only while the lease is dropped.
    known: Option<watch::Receiver<()>>,
}

impl PoolUse<'_> {
    /// Waits for `work`, at most until the peer is forgotten.
    ///
    /// # Errors
    ///
    /// The errors of `work`, and [`RequestError::Closed`].
    pub async fn run<T>(
        &mut self,
        work: impl Future<Output = Result<T, RequestError>>,
    ) -> Result<T, RequestError> {
        let forgotten = async {
            if let Some(known) = &mut self.known {
                while known.changed().await.is_ok() {}
            }
        };
        tokio::select! {
            result = work => result,
            () = forgotten => Err(RequestError::Closed {
                peer: self.address.to_string(),
            }),
        }
    }

    /// Keeps a comm for the next request, unless the peer was forgotten.
    fn give_back(&self, channel: Channel) {
        let now = runtime::now();
        let mut peers = self.pool.lock();
        let old = peers.sweep(now);
        let is_known = self
            .known
            .as_ref()
            .is_some_and(|known| known.has_changed().is_ok());
        let is_full = peers.idle_count >= MAX_IDLE;
        let comms = peers.by_address.get_mut(self.address);
        let comms = comms.filter(|comms| comms.idle.len() < MAX_IDLE_PER_PEER);
        let mut closed = Some(channel);
        if is_known
            && !is_full
            && let Some(comms) = comms
        {
            let since = now;
            comms
                .idle
                .extend(closed.take().map(|channel| Idle { channel, since }));
            peers.idle_count += 1;
        }
        drop(peers);
        drop((old, closed));
    }
}

impl Drop for PoolUse<'_> {
    fn drop(&mut self) {
        let mut peers = self.pool.lock();
        self.known = None;
        if let Some(comms) = peers.by_address.get(self.address)
            && comms.is_unused()
        {
            peers.by_address.remove(self.address);
        }
    }
}

/// The times until which a request waits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Deadlines {
    /// For a connection. Default: that of the connector's options.
    pub connect: Option<Instant>,
    /// For the reply. Default: none.
    pub reply: Option<ReplyDeadline>,
}

/// The time until which a request waits for its reply.
#[derive(Clone, Copy, Debug)]
pub struct ReplyDeadline {
    pub at: Instant,
    /// The awaited reply, as a noun phrase, and the timeout, for the error.
    pub waiting_for: &'static str,
    pub timeout: Duration,
}

impl Deadlines {
    /// Waits at most `timeout`, for the connection and the reply together.
    pub fn with_timeout(timeout: Duration, waiting_for: &'static str) -> Self {
        let at = runtime::later(timeout);
        Self {
            connect: Some(at),
            reply: Some(ReplyDeadline {
                at,
                waiting_for,
                timeout,
            }),
        }
    }

    /// Whether the deadline for the connection has passed.
    pub fn have_passed(&self) -> bool {
        self.connect.is_some_and(|at| at <= runtime::now())
    }
}

impl ReplyDeadline {
    const fn error(&self) -> RequestError {
        RequestError::Timeout {
            waiting_for: self.waiting_for,
            timeout: self.timeout,
        }
    }
}

impl core::fmt::Debug for Pool {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Pool")
            .field("local", &self.local)
            .finish_non_exhaustive()
    }
}

impl Pool {
    pub fn new(
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
            forwards: false,
            reads_apart: AtomicBool::new(false),
            peers: Mutex::default(),
        }
    }

    /// Sends data as it was received, also over comms with compression, as the scheduler does.
    pub fn forwarding(mut self) -> Self {
        self.forwards = true;
        self
    }

    /// Sets a byte counter.
    pub fn metered(mut self, meter: Option<Arc<Meter>>) -> Self {
        self.meter = meter;
        self
    }

    /// Sets the read hint of messages on comms to come, by the release of the cluster. A peer of
    /// another release cannot be told apart before its first message.
    // PROTOCOL FRAME-9
    pub fn set_read_hint(&self, hint: ReadHint) {
        self.reads_apart
            .store(hint == ReadHint::Apart, Ordering::Relaxed);
    }

    /// The read hint of messages to peers of the cluster.
    pub fn read_hint(&self) -> ReadHint {
        match self.reads_apart.load(Ordering::Relaxed) {
            true => ReadHint::Apart,
            false => ReadHint::Whole,
        }
    }

    /// Connects to a peer without using idle comms. The comm does not belong to
    /// the pool.
    pub fn connect<'a>(
        &'a self,
        address: &'a Address,
    ) -> BoxFuture<'a, Result<Channel, CommError>> {
        self.connect_until(address, None)
    }

    /// Connects as [`connect`](Self::connect) until `deadline`. The error is that of the last
    /// attempt.
    pub fn connect_until<'a>(
        &'a self,
        address: &'a Address,
        deadline: Option<Instant>,
    ) -> BoxFuture<'a, Result<Channel, CommError>> {
        Box::pin(self.connect_unboxed(address, deadline))
    }

    async fn connect_unboxed(
        &self,
        address: &Address,
        deadline: Option<Instant>,
    ) -> Result<Channel, CommError> {
        let connector = &self.connector;
        let comm = match &self.meter {
            None => {
                let connecting = connector.connect(address, Traffic::Normal, deadline);
                connecting.await?
            }
            Some(meter) => {
                let wrap = |connection| meter.attach(connection);
                connector.connect_through(address, deadline, &wrap).await?
            }
        };
        let ends = Ends::new(&self.local, &(self.names)(address), self.observer.clone());
        let mut channel = Channel::new(comm, ends);
        channel.set_read_hint(self.read_hint());
        channel.codec = channel.codec.filter(|_| !self.forwards);
        Ok(channel)
    }

    /// Sends a request to a peer and waits for the reply. When a comm that was idle
    /// turns out to be closed, the request is sent on another one, unless the peer may
    /// have executed it and the request is not idempotent.
    ///
    /// # Errors
    ///
    /// As [`Channel::call`], those of connecting, and [`RequestError::Closed`] if the
    /// peer is [forgotten](Self::forget) meanwhile.
    pub async fn call<T: Field>(
        &self,
        address: &Address,
        request: &Request,
    ) -> Result<T, RequestError> {
        self.call_until(address, request, Deadlines::default())
            .await
    }

    /// Sends a request as [`call`](Self::call), and waits for the reply at most until the
    /// deadlines.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call): if no connection is made in time, the error of the last
    /// attempt; and [`RequestError::Timeout`] if there is no reply in time.
    pub async fn call_until<T: Field>(
        &self,
        address: &Address,
        request: &Request,
        deadlines: Deadlines,
    ) -> Result<T, RequestError> {
        let mut lease = self.lease(address);
        let exchange = self.exchange(address, request, deadlines);
        let (reply, channel) = lease.run(exchange).await?;
        lease.give_back(channel);
        reply
    }

    /// Requests data from a worker, and acknowledges the reply. The result contains only
    /// requested keys, each once.
    ///
    /// With `connect_timeout`, the request fails if connecting takes longer.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    pub async fn get_data(
        &self,
        address: &Address,
        keys: Vec<Key>,
        connect_timeout: Option<Duration>,
    ) -> Result<DataReply, RequestError> {
        let request = GetData {
            keys: daskwire_messages::protocol::Keys(keys),
            ..GetData::default()
        };
        let (reply, _) = self
            .get_data_with_extra_count(address, request, connect_timeout)
            .await?;
        Ok(reply)
    }

    /// Requests data from a worker, as `get_data` does. Also returns the number of
    /// unrequested keys in the reply.
    pub async fn get_data_with_extra_count(
        &self,
        address: &Address,
        request: GetData,
        connect_timeout: Option<Duration>,
    ) -> Result<(DataReply, usize), RequestError> {
        let mut wanted: HashSet<Key> = request.keys.iter().cloned().collect();
        let request = Request::GetData(GetData {
            reply: Some(true),
            ..request
        });
        let deadlines = Deadlines {
            connect: connect_timeout.map(runtime::later),
            reply: None,
        };
        let mut lease = self.lease(address);
        let asked = async {
            let exchange = self.exchange::<DataReply>(address, &request, deadlines);
            let (reply, mut channel) = exchange.await?;
            let reply = reply?;
            // Without an acknowledgement, the worker counts the transfer as in
            // progress; after `busy` there is no transfer.
            let is_acknowledged = reply.status != ReplyStatus::Ok
                || channel.sender.send(&"OK".to_owned()).await.is_ok();
            // The data has arrived, even if its sender has left meanwhile.
            Ok((reply, is_acknowledged.then_some(channel)))
        };
        let (mut reply, channel) = lease.run(asked).await?;
        if let Some(channel) = channel {
            lease.give_back(channel);
        }
        let mut extra_count = 0;
        if let Some(data) = &mut reply.data {
            let count = data.len();
            data.retain(|(key, _)| wanted.remove(key));
            extra_count = count - data.len();
        }
        Ok((reply, extra_count))
    }

    /// Sends a request and receives its reply; also returns the comm if it can be
    /// reused.
    async fn exchange<T: Field>(
        &self,
        address: &Address,
        request: &Request,
        deadlines: Deadlines,
    ) -> Result<(Result<T, RequestError>, Channel), RequestError> {
        loop {
            let idle = self.take(address);
            let was_idle = idle.is_some();
            let mut channel = match idle {
                Some(channel) => channel,
                None => self.connect_until(address, deadlines.connect).await?,
            };
            if was_idle && !channel.is_quiet() {
                continue;
            }
            let mut is_repeatable = was_idle;
            let exchanging = async {
                channel.send_request(request).await?;
                is_repeatable &= request.is_idempotent();
                channel.receive_reply().await
            };
            let reply = match deadlines.reply {
                None => exchanging.await,
                Some(deadline) => {
                    let timeout = runtime::timeout_at(deadline.at, exchanging);
                    // The comm is dropped with its reply.
                    timeout.await.map_err(|_| deadline.error())?
                }
            };
            match reply {
                Err(error) if is_repeatable && is_closed(&error) => {}
                Err(error @ (RequestError::Closed { .. } | RequestError::Comm(_))) => {
                    return Err(error);
                }
                reply => return Ok((reply, channel)),
            }
        }
    }

    /// Registers a use of a peer, for work other than [`call`](Self::call).
    pub fn lease<'p>(&'p self, address: &'p Address) -> PoolUse<'p> {
        let mut peers = self.lock();
        let comms = match peers.by_address.get(address) {
            Some(comms) => comms,
            None => peers.by_address.entry(address.clone()).or_default(),
        };
        PoolUse {
            pool: self,
            address,
            known: Some(comms.known.subscribe()),
        }
    }

    /// Closes all comms with a peer that has left. Pending requests to it end with
    /// [`RequestError::Closed`]; later ones connect again.
    pub fn forget(&self, address: &Address) {
        let mut peers = self.lock();
        let comms = peers.by_address.remove(address);
        peers.idle_count -= comms.as_ref().map_or(0, |comms| comms.idle.len());
        drop(peers);
        drop(comms);
    }

    /// Closes the idle comms with a peer after a failed request. Other requests
    /// and uses continue.
    pub fn close_idle(&self, address: &Address) {
        let mut peers = self.lock();
        let Some(comms) = peers.by_address.get_mut(address) else {
            return;
        };
        let idle = core::mem::take(&mut comms.idle);
        let is_unused = comms.is_unused();
        peers.idle_count -= idle.len();
        if is_unused {
            peers.by_address.remove(address);
        }
        drop(peers);
        drop(idle);
    }

    /// The number of peers with idle comms or requests.
    pub fn peer_count(&self) -> usize {
        self.lock().by_address.len()
    }

    /// Closes all idle comms.
    pub async fn close(&self) {
        let idle = self.lock().take_idle();
        for idle in idle {
            idle.channel.close().await;
        }
    }

    /// Drops all idle comms, without waiting for their peers.
    pub fn drop_idle(&self) {
        let idle = self.lock().take_idle();
        drop(idle);
    }

    fn take(&self, address: &Address) -> Option<Channel> {
        let mut peers = self.lock();
        let old = peers.sweep(runtime::now());
        let idle = peers.by_address.get_mut(address)?.idle.pop();
        peers.idle_count -= usize::from(idle.is_some());
        drop(peers);
        drop(old);
        idle.map(|idle| {
            // The release may have become known since.
            let mut channel = idle.channel;
            channel.set_read_hint(self.read_hint());
            channel
        })
    }

    fn lock(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(|poisoned| {
            // Continue without idle comms.
            self.peers.clear_poison();
            let mut peers = poisoned.into_inner();
            *peers = Peers::default();
            peers
        })
    }
}

/// Whether a request failed because its comm is closed.
fn is_closed(error: &RequestError) -> bool {
    match error {
        RequestError::Closed { .. } => true,
        RequestError::Comm(error) => error.is_closed(),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
