//! Connections, and the count of the comms on each.

use core::time::Duration;
use std::sync::{Arc, OnceLock};

use daskwire_comm::runtime::{self, Instant, Spawner};
use daskwire_comm::{Address, Bytes, Encryption, RawConnection};
use quinn::VarInt;
use rustls::pki_types::CertificateDer;
use tokio::sync::watch;

use crate::error::code;
use crate::stream::{Receiver, Sender};

/// A connection that is or was established.
#[derive(Debug)]
pub(crate) struct SharedConnection {
    pub(crate) quinn: quinn::Connection,
    state: watch::Sender<State>,
    /// The executor on which streams are drained.
    pub(crate) runtime: Spawner,
    pub(crate) drain_timeout: Duration,
    pub(crate) drain_len: usize,
    /// The encryption, shared by all comms, once it was requested.
    encryption: OnceLock<Arc<Encryption>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// The number of comms of which a half still exists, including draining ones.
    comm_count: usize,
    /// The number of those comms whose directions have both ended properly, but which
    /// the user has not dropped.
    finished_count: usize,
    /// The number of all comms so far.
    total_comm_count: u64,
    /// The number of comms that were closed and dropped locally, and wait for the peer to
    /// close them.
    draining_count: usize,
    /// Whether new comms are refused.
    retired: bool,
    /// Whether data that the peer sent was not received (PROTOCOL QUIC-15).
    abandoned: bool,
    /// The last time that a direction of a comm was reset or stopped.
    last_reset: Option<Instant>,
}

impl SharedConnection {
    pub(crate) fn new(
        quinn: quinn::Connection,
        runtime: Spawner,
        drain_timeout: Duration,
        drain_len: usize,
    ) -> Arc<Self> {
        Arc::new(Self {
            quinn,
            state: watch::Sender::new(State::default()),
            runtime,
            drain_timeout,
            drain_len,
            encryption: OnceLock::new(),
        })
    }

    /// The certificate chain of the peer, its own certificate first.
    pub(crate) fn peer_certificates(&self) -> Vec<CertificateDer<'static>> {
        let identity = self.quinn.peer_identity();
        let certificates = identity.and_then(|identity| identity.downcast().ok());
        certificates.map_or(Vec::new(), |certificates| *certificates)
    }

    /// The encryption of the connection. QUIC always uses TLS 1.3.
    pub(crate) fn encryption(&self) -> Arc<Encryption> {
        let encryption = || {
            let certificates = self.peer_certificates().into_iter();
            let certificates = certificates.map(|der| Bytes::copy_from_slice(&der));
            Arc::new(Encryption::new("TLSv1_3", None, certificates.collect()))
        };
        Arc::clone(self.encryption.get_or_init(encryption))
    }

    /// Combines the halves of a stream of this connection.
    pub(crate) fn raw(
        &self,
        receiver: Receiver,
        sender: Sender,
        ends: (Address, Address),
    ) -> RawConnection {
        let priority = sender.priority();
        RawConnection::new(receiver, sender, ends)
            .with_encryption(self.encryption())
            .with_traffic(move |traffic| priority.set(traffic))
    }

    /// Whether the connection accepts new comms, as far as is known.
    pub(crate) fn is_usable(&self) -> bool {
        !self.state.borrow().retired && self.quinn.close_reason().is_none()
    }

    /// Counts a new comm; `None` if new comms are refused.
    pub(crate) fn add_comm(self: &Arc<Self>) -> Option<CountedComm> {
        let mut entered = false;
        self.state.send_if_modified(|state| {
            if !state.retired {
                state.comm_count += 1;
                state.total_comm_count += 1;
                entered = true;
            }
            false
        });
        entered.then(|| CountedComm {
            connection: Arc::clone(self),
        })
    }

    /// Records that a direction of a comm was reset or stopped, which the peer must
    /// learn.
    pub(crate) fn record_reset(&self) {
        self.state.send_if_modified(|state| {
            state.last_reset = Some(runtime::now());
            false
        });
    }

    /// The time left until resets of dropped comms were sent often enough to have reached
    /// the peer.
    pub(crate) fn notification_time(&self) -> Duration {
        const MIN_WAIT: Duration = Duration::from_millis(50);
        const MAX_WAIT: Duration = Duration::from_secs(1);
        let last_reset = self.state.borrow().last_reset;
        match last_reset {
            Some(last_reset) if self.quinn.close_reason().is_none() => {
                let time = (self.quinn.rtt() * 6).clamp(MIN_WAIT, MAX_WAIT);
                time.saturating_sub(runtime::now().saturating_duration_since(last_reset))
            }
            _ => Duration::ZERO,
        }
    }

    /// The number of UDP datagrams received from the peer.
    pub(crate) fn received(&self) -> u64 {
        self.quinn.stats().udp_rx.datagrams
    }

    /// The time in which a peer acknowledges a packet, if one retransmission suffices.
    pub(crate) fn acknowledgement_time(&self) -> Duration {
        const MIN_WAIT: Duration = Duration::from_millis(250);
        const MAX_WAIT: Duration = Duration::from_secs(2);
        (self.quinn.rtt() * 6).clamp(MIN_WAIT, MAX_WAIT)
    }

    /// Refuses new comms. Existing ones are unaffected.
    pub(crate) fn retire(&self) {
        self.state.send_if_modified(|state| {
            state.retired = true;
            false
        });
    }

    /// Records that data of the peer was not received (PROTOCOL QUIC-15).
    pub(crate) fn abandon(&self) {
        self.state.send_if_modified(|state| {
            state.abandoned = true;
            false
        });
    }

    /// Records that both directions of a comm have ended properly.
    pub(crate) fn finish(&self) {
        self.state.send_if_modified(|state| {
            state.finished_count += 1;
            false
        });
    }

    /// Removes a comm from the count of [`Self::finish`], when it is dropped.
    pub(crate) fn forget_finished(&self) {
        self.state.send_if_modified(|state| {
            state.finished_count -= 1;
            false
        });
    }

    fn drain_begins(&self) {
        self.state.send_if_modified(|state| {
            state.draining_count += 1;
            false
        });
    }

    fn drain_ends(&self) {
        self.state.send_if_modified(|state| {
            state.draining_count -= 1;
            state.draining_count == 0
        });
    }

    /// Waits until no comm is draining.
    pub(crate) async fn drained(&self) {
        let mut state = self.state.subscribe();
        // Never fails: the sender is in `self`.
        let _ = state.wait_for(|state| state.draining_count == 0).await;
    }

    /// Closes the connection some time after its last comm has ended (PROTOCOL
    /// QUIC-14). Called by the end that made the connection.
    pub(crate) async fn close_when_done(self: Arc<Self>, linger: Duration) {
        let mut state = self.state.subscribe();
        loop {
            let total_comm_count = tokio::select! {
                state = state.wait_for(|state| state.comm_count == 0) => match state {
                    Ok(state) => state.total_comm_count,
                    // Never fails: the sender is in `self`.
                    Err(_) => return,
                },
                _ = self.quinn.closed() => return,
            };
            runtime::sleep(linger).await;
            let mut code = None;
            self.state.send_if_modified(|state| {
                if state.comm_count == 0 && state.total_comm_count == total_comm_count {
                    state.retired = true;
                    code = Some(state.close_code());
                }
                false
            });
            if let Some(code) = code {
                return self.quinn.close(code, b"");
            }
        }
    }

    /// Closes the connection and all its comms.
    pub(crate) fn close(&self) {
        self.retire();
        let code = self.state.borrow().close_code();
        self.quinn.close(code, b"");
    }
}

impl State {
    /// The code for closing the connection now (PROTOCOL QUIC-15).
    const fn close_code(&self) -> VarInt {
        if self.comm_count == self.finished_count && !self.abandoned {
            code::DONE
        } else {
            code::GONE
        }
    }
}

/// A counted comm; dropping this removes it from the count.
#[derive(Debug)]
pub(crate) struct CountedComm {
    pub(crate) connection: Arc<SharedConnection>,
}

impl Drop for CountedComm {
    fn drop(&mut self) {
        self.connection.state.send_if_modified(|state| {
            state.comm_count -= 1;
            state.comm_count == 0
        });
    }
}

/// A draining comm; dropping this removes it from the count.
#[derive(Debug)]
pub(crate) struct Draining(Arc<SharedConnection>);

impl Draining {
    pub(crate) fn new(connection: &Arc<SharedConnection>) -> Self {
        connection.drain_begins();
        Self(Arc::clone(connection))
    }
}

impl Drop for Draining {
    fn drop(&mut self) {
        self.0.drain_ends();
    }
}
