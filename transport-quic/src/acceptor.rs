//! The tasks that accept connections, and comms on them.

use core::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use daskwire_comm::runtime::{Spawner, timeout};
use daskwire_comm::{Address, CommError, Phase, RawConnection};
use tokio::sync::mpsc;

use crate::QuicOptions;
use crate::config::canonical;
use crate::connection::SharedConnection;
use crate::endpoint::Connections;
use crate::error::{self, code};
use crate::stream::{self, Receiver, Sender};

/// Accepts connections, and comms on them.
#[derive(Clone)]
pub(crate) struct Acceptor {
    pub(crate) sender: mpsc::Sender<Incoming>,
    pub(crate) connections: Connections,
    pub(crate) settings: QuicOptions,
    pub(crate) runtime: Spawner,
    /// The counter of unfinished handshakes, each of which holds a clone.
    pub(crate) handshaking: Arc<()>,
}

impl Acceptor {
    pub(crate) async fn run(self, quinn: quinn::Endpoint) {
        loop {
            let incoming = tokio::select! {
                incoming = quinn.accept() => incoming,
                () = self.sender.closed() => None,
            };
            let Some(incoming) = incoming else {
                // New connections are refused.
                return quinn.set_server_config(None);
            };
            if quinn.open_connections() >= self.settings.max_connections {
                incoming.refuse();
            } else if Arc::strong_count(&self.handshaking) > self.settings.retry_threshold
                && incoming.may_retry()
            {
                // Cannot fail, since `may_retry` is true.
                let _ = incoming.retry();
            } else {
                let acceptor = self.clone();
                let quinn = quinn.clone();
                self.runtime.spawn(acceptor.serve(quinn, incoming));
            }
        }
    }

    /// Accepts the comms of one connection.
    async fn serve(mut self, quinn: quinn::Endpoint, incoming: quinn::Incoming) {
        // PROTOCOL QUIC-23
        let after = self.settings.handshake_timeout;
        let handshaking = core::mem::take(&mut self.handshaking);
        let peer = Address::new("quic", canonical(incoming.remote_address()));
        let outcome = timeout(after, incoming.into_future()).await;
        let outcome = match outcome {
            Ok(outcome) => outcome.map_err(|error| CommError::Io(error::lost(error))),
            Err(_) => Err(CommError::Timeout {
                phase: Phase::Handshake,
                timeout: after,
            }),
        };
        let connection = match outcome {
            Ok(connection) => connection,
            Err(error) => {
                // QUIC has notified the peer, or the peer is gone. The listener gets the
                // error in place of a comm, unless the queue of accepted comms is full.
                let _ = self.sender.try_send(Incoming::Failed { peer, error });
                return;
            }
        };
        drop(handshaking);
        let connection = self
            .connections
            .insert(connection, &self.runtime, &self.settings);
        let local_port = quinn.local_addr().map_or(0, |local| local.port());
        // This task alone must not keep the socket open.
        drop(quinn);
        // Runs until the peer that made the connection closes it, even if comms are no
        // longer accepted: new ones must be refused.
        while let Ok((mut send, mut receive)) = connection.quinn.accept_bi().await {
            let Some(entry) = connection.add_comm() else {
                // PROTOCOL QUIC-13. Errors mean that the peer has ended the stream.
                let _ = send.reset(code::REFUSED);
                let _ = receive.stop(code::REFUSED);
                connection.record_reset();
                connection.abandon();
                continue;
            };
            let (receiver, sender) = stream::split(entry, send, receive);
            let incoming = IncomingComm {
                receiver,
                sender,
                connection: Arc::clone(&connection),
                local_port,
            };
            let sent = self.sender.send(Incoming::Comm(incoming)).await;
            if let Err(mpsc::error::SendError(Incoming::Comm(incoming))) = sent {
                incoming.refuse();
            }
        }
    }
}

/// An entry in the queue of a listening endpoint.
pub(crate) enum Incoming {
    Comm(IncomingComm),
    /// A connection whose handshake failed.
    Failed {
        peer: Address,
        error: CommError,
    },
}

/// An accepted comm, before its handshake.
pub(crate) struct IncomingComm {
    pub(crate) receiver: Receiver,
    pub(crate) sender: Sender,
    pub(crate) connection: Arc<SharedConnection>,
    pub(crate) local_port: u16,
}

impl IncomingComm {
    /// Opens the stream without the handshake of Dask.
    pub(crate) fn raw(self) -> RawConnection {
        // Not every system reports the local address of a packet.
        let local = self.connection.quinn.local_ip();
        let local = local.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        let local = canonical(SocketAddr::new(local, self.local_port));
        let peer = canonical(self.connection.quinn.remote_address());
        let ends = (Address::new("quic", local), Address::new("quic", peer));
        self.connection.raw(self.receiver, self.sender, ends)
    }

    pub(crate) fn refuse(mut self) {
        // PROTOCOL QUIC-13
        self.sender.reset(code::REFUSED);
        self.receiver.stop(code::REFUSED);
    }
}
