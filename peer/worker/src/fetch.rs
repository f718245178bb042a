//! Fetches data from other workers.

use std::sync::Arc;

use daskwire_comm::Address;
use daskwire_messages::Key;
use daskwire_messages::protocol::{GetData, Keys, Nullable, ReplyStatus};
use daskwire_rpc::RequestError;
use daskwire_rpc::gather::{Gathering, ask_all};

use super::diagnostics::Level;
use super::state::{Answer, Fetched, Peer, WorkerInput};
use super::{Shared, metrics, now};
use daskwire_store::Datum;

impl Shared {
    /// Fetches data from a peer for the state machine.
    pub(super) async fn fetch(self: Arc<Self>, request: u64, peer: Peer, keys: Vec<Key>) {
        let _guard = self.panic_flag.guard();
        let start = now();
        let (answer, data) = self.ask(&peer, keys).await;
        let stop = now();
        let fetched = WorkerInput::Fetched(Fetched {
            request,
            answer,
            start,
            stop,
        });
        let data = data.iter().map(|(key, datum)| (key, datum.clone()));
        let jobs = self.react(data, [fetched]);
        self.begin(jobs);
    }

    /// Copies data from other workers, and returns the keys that could not be
    /// copied.
    pub(super) async fn gather(self: &Arc<Self>, who_has: Vec<(Key, Vec<String>)>) -> Vec<Key> {
        let is_here = |key: &Key| self.store.get(key).is_some();
        let keys = who_has.iter().map(|(key, _)| key);
        let mut gathering = Gathering::new(keys.filter(|key| !is_here(key)).cloned());
        gathering.locate(who_has.iter().map(|(key, holders)| (key, &holders[..])));
        drop(who_has);
        loop {
            let requests = gathering.requests(|_, _| 0);
            if requests.is_empty() {
                let mut missing = gathering.into_missing();
                // Some may have been fetched for tasks in the meantime.
                missing.retain(|key| !is_here(key));
                return missing;
            }
            let answers = ask_all(requests, |peer, keys| {
                let shared = Arc::clone(self);
                async move {
                    let (answer, data) = shared.ask(&peer, keys).await;
                    shared.store_all(&data);
                    answer
                }
            });
            for (peer, requested, answer) in answers.await {
                let found = match answer {
                    Answer::Busy => {
                        gathering.busy(&peer, &requested);
                        continue;
                    }
                    Answer::Data(found) => found,
                    Answer::Gone => Vec::new(),
                };
                gathering.answered(requested, found.iter().map(|(key, _)| key));
            }
            gathering.pause().await;
        }
    }

    /// Requests data from a peer.
    async fn ask(&self, peer: &str, keys: Vec<Key>) -> (Answer, Vec<(Key, Datum)>) {
        let Ok(address) = peer.parse::<Address>() else {
            return (Answer::Gone, Vec::new());
        };
        let receiving = self.transfers.receiving();
        let request = GetData {
            keys: Keys(keys),
            who: Nullable(Some(self.address.clone())),
            ..GetData::default()
        };
        let reply = self.pool.get_data_with_extra_count(&address, request, None);
        let (reply, unasked_count) = match reply.await {
            Ok((reply, _)) if reply.status == ReplyStatus::Busy => {
                return (Answer::Busy, Vec::new());
            }
            Ok(reply) => reply,
            // The peer is reachable, and could not answer the request.
            Err(RequestError::Remote(error)) => {
                let message = format!("{peer} cannot send data: {error}");
                self.log.add(Level::Warning, &message);
                return (Answer::Data(Vec::new()), Vec::new());
            }
            Err(_) => {
                // Transfers to the peer continue until the scheduler removes it.
                self.pool.close_idle(&address);
                return (Answer::Gone, Vec::new());
            }
        };
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
        receiving.received(peer, data.iter().map(|(_, datum)| datum.nbytes()).sum());
        (Answer::Data(metrics::describe_all(&data)), data)
    }
}
