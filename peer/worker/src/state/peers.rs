//! Other workers as holders of data, in the order in which they are asked for it.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use daskwire_messages::Key;

use super::Peer;
use super::task::{Priority, Queue};

/// The peers with queued keys, pending requests, or a reason not to ask them.
///
/// The peers that may be asked are kept in order, so that the next one is found without
/// looking at the others. A change of a peer only marks its place as stale.
#[derive(Debug)]
pub(super) struct Peers {
    /// The address of this worker.
    own: Peer,
    states: BTreeMap<Peer, PeerState>,
    order: BTreeSet<Rank>,
    /// The peers whose place in `order` may be wrong.
    stale: BTreeSet<Peer>,
}

/// The place of a peer in the order in which peers are asked. Of those that have the most
/// urgent key, those on this host come first, as in Dask, then those without a request, then
/// the one with the fewest keys queued; among equals, each worker prefers a different one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    first: (Priority, Key),
    is_elsewhere: bool,
    request_count: usize,
    key_count: usize,
    tie_break: u64,
    peer: Peer,
}

#[derive(Debug, Default)]
pub(super) struct PeerState {
    /// The keys to fetch from this peer.
    pub(super) keys: Queue,
    /// The number of pending requests to the peer.
    pub(super) request_count: usize,
    /// Expected length of their data when they were sent, in bytes.
    pub(super) flight_len: u64,
    pub(super) is_busy: bool,
    /// Whether the peer has refused a request while another was pending, which still is.
    pub(super) refuses_second: bool,
    /// Whether the peer is on another host.
    is_elsewhere: bool,
    tie_break: u64,
    /// The place in the order, unless the peer may not be asked.
    rank: Option<Rank>,
}

impl PeerState {
    /// Whether there is nothing to remember about the peer.
    pub(super) fn is_idle(&self) -> bool {
        self.keys.is_empty() && self.request_count == 0 && !self.is_busy
    }

    /// Whether the peer may be asked for data. While it sends much, it may be asked for more:
    /// on one comm, the receiver copies the data of one request after the other.
    fn is_free(&self) -> bool {
        /// Maximum number of pending requests.
        const MAX_COUNT: usize = 2;
        /// Length of pending data, in bytes, from which a second request is worthwhile.
        const LONG: u64 = 10_000_000;
        let is_sending_much = self.request_count < MAX_COUNT && self.flight_len >= LONG;
        let has_room = is_sending_much && !self.refuses_second;
        !self.is_busy && (self.request_count == 0 || has_room)
    }

    /// The place of the peer, if there is a key to ask it for.
    fn current_rank(&self, peer: &Peer) -> Option<Rank> {
        let first = self.keys.first().filter(|_| self.is_free())?;
        Some(Rank {
            first: first.clone(),
            is_elsewhere: self.is_elsewhere,
            request_count: self.request_count,
            key_count: self.keys.len(),
            tie_break: self.tie_break,
            peer: Arc::clone(peer),
        })
    }
}

impl Peers {
    /// Returns an empty set of peers of the worker at this address.
    pub(super) const fn new(own: Peer) -> Self {
        Self {
            own,
            states: BTreeMap::new(),
            order: BTreeSet::new(),
            stale: BTreeSet::new(),
        }
    }

    /// Returns the state of a peer, if there is anything to remember about it.
    pub(super) fn get(&self, peer: &str) -> Option<&PeerState> {
        self.states.get(peer)
    }

    /// Returns the shared address of a peer.
    pub(super) fn address(&self, peer: &str) -> Peer {
        match self.states.get_key_value(peer) {
            Some((peer, _)) => Arc::clone(peer),
            None => Peer::from(peer),
        }
    }

    /// Returns the state of a peer for a change.
    pub(super) fn get_mut(&mut self, peer: &str) -> Option<&mut PeerState> {
        if !self.stale.contains(peer) {
            let (peer, _) = self.states.get_key_value(peer)?;
            self.stale.insert(Arc::clone(peer));
        }
        self.states.get_mut(peer)
    }

    /// Returns the state of a peer for a change, after adding the peer if it is missing.
    pub(super) fn entry(&mut self, peer: &Peer) -> &mut PeerState {
        self.stale.insert(Arc::clone(peer));
        let own = &self.own;
        self.states
            .entry(Arc::clone(peer))
            .or_insert_with(|| PeerState {
                is_elsewhere: host(peer) != host(own),
                tie_break: tie_break(own, peer),
                ..PeerState::default()
            })
    }

    /// Removes a peer without queued keys or pending requests.
    pub(super) fn remove_if_idle(&mut self, peer: &str) {
        if !self.states.get(peer).is_some_and(PeerState::is_idle) {
            return;
        }
        self.stale.remove(peer);
        let rank = self.states.remove(peer).and_then(|state| state.rank);
        if let Some(rank) = rank {
            self.order.remove(&rank);
        }
    }

    /// Returns the peer to ask next, which has at least one queued key.
    pub(super) fn next(&mut self) -> Option<Peer> {
        for peer in core::mem::take(&mut self.stale) {
            super::step();
            let Some(state) = self.states.get_mut(&peer) else {
                continue;
            };
            if let Some(rank) = state.rank.take() {
                self.order.remove(&rank);
            }
            state.rank = state.current_rank(&peer);
            self.order.extend(state.rank.clone());
        }
        self.order.first().map(|rank| Arc::clone(&rank.peer))
    }

    /// The peers and their states.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Peer, &PeerState)> {
        self.states.iter()
    }

    /// Panics if the order is inconsistent.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn check(&self) {
        let ranks = self.states.values().filter_map(|state| state.rank.as_ref());
        assert!(ranks.collect::<BTreeSet<_>>().into_iter().eq(&self.order));
        assert!(self.stale.iter().all(|peer| self.states.contains_key(peer)));
        for (peer, state) in &self.states {
            let is_stale = self.stale.contains(peer);
            assert!(is_stale || state.rank == state.current_rank(peer), "{peer}");
        }
    }
}

/// The scheme and host of an address.
fn host(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

/// Returns a hash of this worker and a peer, by which each worker prefers a different one
/// of several equal peers.
pub(super) fn tie_break(own: &Peer, peer: &Peer) -> u64 {
    let mut hasher = DefaultHasher::new();
    own.hash(&mut hasher);
    peer.hash(&mut hasher);
    hasher.finish()
}
