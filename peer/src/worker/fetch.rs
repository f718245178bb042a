//! Fetches data from other workers.

use std::sync::Arc;

use daskwire_comm::Address;

use super::diagnostics::Level;
use super::state::{Answer, Event, Fetched, Peer};
use super::store::Datum;
use super::{Shared, metrics, now};
use crate::protocol::ReplyStatus;
use crate::{Key, RequestError};

impl Shared {
    /// Fetches data from a peer.
    pub(super) async fn fetch(self: Arc<Self>, peer: Peer, keys: Vec<Key>) {
        let _guard = self.failure.guard();
        let start = now();
        let (answer, data) = self.ask(&peer, keys).await;
        let stop = now();
        let (answer, data) = match answer {
            Answered::Data => {
                let descriptions = data
                    .iter()
                    .map(|(key, datum)| (key.clone(), metrics::describe(datum)));
                (Answer::Data(descriptions.collect()), data)
            }
            Answered::Busy => (Answer::Busy, data),
            Answered::Gone => (Answer::Gone, data),
        };
        let fetched = Event::Fetched(Fetched {
            peer,
            answer,
            start,
            stop,
        });
        let data = data.iter().map(|(key, datum)| (key, datum.clone()));
        let jobs = self.react(data, [fetched]);
        self.begin(jobs);
    }

    pub(super) async fn ask(&self, peer: &str, keys: Vec<Key>) -> (Answered, Vec<(Key, Datum)>) {
        let Ok(address) = peer.parse::<Address>() else {
            return (Answered::Gone, Vec::new());
        };
        let receiving = self.transfers.receiving();
        let who = Some(self.address.clone());
        match self
            .pool
            .get_data_with_extra_count(&address, keys, who)
            .await
        {
            Ok((reply, _)) if reply.status == ReplyStatus::Busy => (Answered::Busy, Vec::new()),
            Ok((reply, unasked_count)) => {
                if unasked_count != 0 {
                    let message = format!(
                        "{peer} sent {unasked_count} keys that it was not asked for; they are ignored"
                    );
                    self.log.add(Level::Warning, &message);
                }
                let data = reply.data.unwrap_or_default().into_iter();
                let data: Vec<(Key, Datum)> = data
                    .map(|(key, serialized)| (key, self.store.received(serialized)))
                    .collect();
                let len = data.iter().map(|(_, datum)| datum.nbytes()).sum();
                receiving.received(peer, len);
                (Answered::Data, data)
            }
            // The peer is reachable, and could not answer the request.
            Err(RequestError::Remote(_)) => (Answered::Data, Vec::new()),
            Err(_) => {
                // Transfers to the peer continue until the scheduler removes it.
                self.pool.close_idle(&address);
                (Answered::Gone, Vec::new())
            }
        }
    }
}

/// The outcome of a request to a peer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Answered {
    Data,
    Busy,
    Gone,
}
