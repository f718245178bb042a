//! Clients that are disconnected, and for whose return their keys are kept.
//!
//! A client is one of three things: connected, if it has a stream; in grace, if it has none and a
//! time until which its keys are kept; otherwise a holder, a name under which others hold results.
//! One that returns is told how many of its graphs were accepted, and desires the keys that it still
//! wants. The others stay wanted until it has said that these were all, or for the grace once more.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use daskwire_messages::Value;
use daskwire_messages::protocol::GraphsAccepted;

use super::model::TaskId;
use super::slices::Job;
use super::versions::Packages;
use super::{ClientId, FIRE_AND_FORGET, Notice, State};
use crate::Action;

/// Maximum number of clients in grace. For one more, the grace of the one for which it would end first
/// is over.
pub const MAX_IN_GRACE: usize = 1 << 12;

/// The grace of clients that are [expected](super::SchedulerInput::ClientExpected), unless the policy
/// has one.
const EXPECTED_GRACE: Duration = Duration::from_secs(60);

/// Maximum number of clients whose grace is over and that are told so if they return.
const MAX_GONE: usize = 256;

/// Maximum number of clients whose grace ends with one event.
const MAX_ENDED: usize = 64;

/// The reason why a client does not find the keys that it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// The grace was over.
    GraceOver(Duration),
    /// Clients that disconnect have no grace.
    NoGrace,
    /// The client is not known.
    Unknown,
    /// The cluster was restarted while the client was disconnected.
    Restarted,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GraceOver(grace) => write!(
                f,
                "the client was disconnected for longer than the {} s for which the scheduler keeps \
                 the keys of clients (client grace)",
                grace.as_secs_f64()
            ),
            Self::NoGrace => f.write_str(
                "the client was disconnected, and the scheduler does not keep the keys of such \
                 clients (it has no client grace)",
            ),
            Self::Unknown => f.write_str(
                "the scheduler does not know the client from before: it was restarted since, or \
                 the client was disconnected for too long",
            ),
            Self::Restarted => {
                f.write_str("the cluster was restarted while the client was disconnected")
            }
        }
    }
}

impl State {
    /// The time for which the keys of a client are kept that is in grace.
    const fn grace(&self) -> Duration {
        match self.policy.client_grace {
            Duration::ZERO => EXPECTED_GRACE,
            grace => grace,
        }
    }

    /// The client of a stream; `None` if it has another one by now, or none.
    pub(super) fn of_stream(&self, stream: ClientId) -> Option<ClientId> {
        let id = match self.returned_streams.is_empty() {
            true => stream,
            false => *self.returned_streams.get(&stream).unwrap_or(&stream),
        };
        let client = self.clients.get(&id)?;
        (client.stream == Some(stream)).then_some(id)
    }

    /// Whether a client finds its keys if it registers now.
    pub(super) fn is_kept(&self, id: ClientId) -> bool {
        let client = self.clients.get(&id);
        client.is_some_and(|client| match client.stream {
            // The end of its connection was not noticed yet.
            Some(_) => !self.policy.client_grace.is_zero(),
            None => client.until.is_some(),
        })
    }

    /// Sets the time until which something of a client is kept.
    fn keep_until(&mut self, id: ClientId, until: Option<Duration>) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        if let Some(before) = core::mem::replace(&mut client.until, until) {
            self.by_until.remove(&(before, id));
        }
        if let Some(until) = until {
            self.by_until.insert((until, id));
        }
    }

    /// Handles the end of a stream.
    pub(super) fn client_left(&mut self, stream: ClientId) {
        let Some(id) = self.of_stream(stream) else {
            return;
        };
        self.set_stimulus("remove-client");
        if self.policy.client_grace.is_zero() || self.clients[&id].is_leaving {
            return self.remove_client(id);
        }
        self.begin_grace(id);
    }

    /// Begins the grace of a client.
    fn begin_grace(&mut self, id: ClientId) {
        self.end_stream(id);
        let grace = self.grace();
        self.keep_until(id, Some(self.now.saturating_add(grace)));
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client.lost = None;
        let (name, key_count) = (Arc::clone(&client.name), client.wants.len());
        let fields = [
            ("client", Value::from(&*name)),
            ("keys", Value::from(key_count)),
            ("grace", Value::from(grace.as_secs_f64())),
        ];
        self.log(&["all", &name], "client-disconnected", fields);
        self.notice(Notice::ClientDisconnected {
            client: name.to_string(),
            key_count,
            grace,
        });
        while self.by_until.len() > MAX_IN_GRACE
            && let Some((_, first)) = self.by_until.first().copied()
        {
            self.end_grace(first);
        }
    }

    /// Ends the stream of a client, if it has one.
    fn end_stream(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let Some(stream) = client.stream.take() else {
            return;
        };
        client.is_behind = false;
        client.unreported = None;
        client.is_unacknowledged = false;
        self.returned_streams.remove(&stream);
        self.totals.clients_removed += 1;
        self.actions.push(Action::EndClient(stream));
        // The client sends the graph again if it returns.
        self.abandon_unfinished(id);
    }

    /// Gives a client that returns its new stream. Returns the number of its graphs that were
    /// accepted.
    pub(super) fn continue_client(
        &mut self,
        id: ClientId,
        stream: ClientId,
        returning: Option<bool>,
        packages: Packages,
    ) -> u64 {
        self.end_stream(id);
        if stream != id {
            self.returned_streams.insert(stream, id);
        }
        self.client_packages.add(&packages);
        let until = self.now.saturating_add(self.grace());
        let Some(client) = self.clients.get_mut(&id) else {
            return 0;
        };
        let before = core::mem::replace(&mut client.packages, packages);
        client.stream = Some(stream);
        client.confirmation += 1;
        client.acknowledges = returning.is_some();
        client.is_leaving = false;
        if returning != Some(true) {
            // It does not know of graphs of earlier connections.
            client.graphs = Graphs::after(client.graphs);
            client.done_count = 0;
        }
        let (name, key_count, graph_count) = (
            Arc::clone(&client.name),
            client.wants.len(),
            client.graphs.count,
        );
        self.client_packages.remove(&before);
        if graph_count == 0 {
            self.journal_graphs(id, 0);
        }
        self.keep_until(id, Some(until));
        self.totals.clients_added += 1;
        let fields = [
            ("client", Value::from(&*name)),
            ("keys", Value::from(key_count)),
        ];
        self.log(&["all", &name], "client-returned", fields);
        self.notice(Notice::ClientReturned {
            client: name.to_string(),
            key_count,
        });
        graph_count
    }

    /// Keeps the keys of a client that is not connected, but may return.
    pub(super) fn expect_client(&mut self, name: &str, graph_count: u64) {
        self.set_stimulus("client-expected");
        if name == FIRE_AND_FORGET.1 {
            return;
        }
        let id = self.holder(name);
        self.idle_holders.remove(&id);
        if let Some(client) = self.clients.get_mut(&id) {
            client.graphs.count = client.graphs.count.max(graph_count);
            client.done_count = client.done_count.max(graph_count);
        }
        self.journal_graphs(id, graph_count);
        self.begin_grace(id);
    }

    /// Ends what is over by now. If much is, the rest follows with the next event.
    pub(super) fn end_graces(&mut self) {
        for _ in 0..MAX_ENDED {
            match self.by_until.first().copied() {
                Some((until, id)) if until <= self.now => self.end_grace(id),
                _ => break,
            }
        }
    }

    fn end_grace(&mut self, id: ClientId) {
        let Some(client) = self.clients.get(&id) else {
            return;
        };
        if client.stream.is_some() {
            return self.keys_confirmed(id);
        }
        let (name, key_count) = (Arc::clone(&client.name), client.wants.len());
        let grace = self.grace();
        self.notice(Notice::ClientGraceOver {
            client: name.to_string(),
            key_count,
            grace,
        });
        self.remove_client(id);
        self.gone.retain(|gone| *gone != name);
        self.gone.push_back(name);
        if self.gone.len() > MAX_GONE {
            self.gone.pop_front();
        }
    }

    /// The reason why a client does not find keys that it had, when it registers.
    pub(super) fn lost_of(&mut self, name: &str, returning: Option<bool>) -> Option<Lost> {
        let place = self.gone.iter().position(|gone| **gone == *name);
        if let Some(place) = place {
            self.gone.remove(place);
            return Some(Lost::GraceOver(self.grace()));
        }
        let is_returning = returning == Some(true);
        is_returning.then_some(match self.policy.client_grace.is_zero() {
            true => Lost::NoGrace,
            false => Lost::Unknown,
        })
    }

    /// Handles that a client wants no other keys than those that it has desired or submitted on its
    /// current stream.
    pub(super) fn keys_confirmed(&mut self, id: ClientId) {
        self.keep_until(id, None);
        if let Some(client) = self.clients.get(&id) {
            let confirmation = client.confirmation;
            self.start(Job::Confirm(id, confirmation, 0));
        }
    }

    /// Releases some of the keys that a client has not confirmed, from a task on. Returns whether
    /// nothing is left.
    pub(super) fn confirm_part(
        &mut self,
        id: ClientId,
        confirmation: u32,
        first: &mut TaskId,
    ) -> bool {
        let client = self.clients.get(&id);
        // It may have returned once more.
        let Some(client) = client.filter(|client| client.confirmation == confirmation) else {
            return true;
        };
        let is_earlier = |job: &Job| match job {
            Job::Desire(client, at, _) => *client == id && *at < confirmation,
            _ => false,
        };
        if self.is_submitting(id, confirmation) || self.jobs().any(is_earlier) {
            // What its last stream has left adds keys.
            return false;
        }
        let part = client.wants.range(*first..).take(self.slice_len);
        let part: Vec<(TaskId, u32)> = part.map(|(task, at)| (*task, *at)).collect();
        for (task, at) in &part {
            if *at < confirmation {
                self.release(id, *task);
            }
            *first = task + 1;
        }
        part.len() < self.slice_len
    }

    /// Whether a graph is being inserted that a client has sent before it returned for this time. Its
    /// keys may not be known yet.
    pub(super) fn is_submitting(&self, id: ClientId, confirmation: u32) -> bool {
        self.jobs().any(|job| match job {
            Job::Submit(submitting) => submitting.is_before(id, confirmation),
            _ => false,
        })
    }

    /// How often a client has returned.
    pub(super) fn confirmation_of(&self, id: ClientId) -> u32 {
        self.clients
            .get(&id)
            .map_or(0, |client| client.confirmation)
    }

    /// Counts a graph of a client. Returns its number, for [`graph_done`](Self::graph_done).
    pub(super) fn count_graph(&mut self, id: ClientId) -> Graphs {
        let client = self.clients.get_mut(&id);
        client.map_or_else(Graphs::default, |client| {
            client.graphs.count += 1;
            client.graphs
        })
    }

    /// Has a client learn with the next tick that a graph was inserted or refused.
    pub(super) fn graph_done(&mut self, id: ClientId, graph: Graphs) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        if client.graphs.series != graph.series || !client.acknowledges || client.stream.is_none() {
            return;
        }
        client.done_count = graph.count;
        if !core::mem::replace(&mut client.is_unacknowledged, true) {
            self.unacknowledged.push(id);
        }
        self.journal_graphs(id, graph.count);
    }

    /// Tells clients how many of their graphs were inserted or refused.
    pub(super) fn acknowledge(&mut self) {
        for id in core::mem::take(&mut self.unacknowledged) {
            let Some(client) = self.clients.get_mut(&id) else {
                continue;
            };
            if core::mem::replace(&mut client.is_unacknowledged, false) {
                let message = GraphsAccepted {
                    count: client.done_count,
                    ..GraphsAccepted::default()
                };
                self.send_client(id, message);
            }
        }
    }

    /// The number of clients in grace.
    pub fn grace_count(&self) -> usize {
        let clients = self.clients.values();
        clients.filter(|client| client.is_in_grace()).count()
    }

    #[cfg(any(test, feature = "checks"))]
    pub(super) fn check_graces(&self) {
        let mut until_count = 0;
        let mut stream_count = 0;
        for (id, client) in self.clients.iter() {
            if let Some(stream) = client.stream {
                assert_eq!(self.of_stream(stream), Some(*id));
                stream_count += usize::from(stream != *id);
            } else {
                assert!(!client.is_behind && !client.is_unacknowledged);
            }
            if let Some(until) = client.until {
                assert!(self.by_until.contains(&(until, *id)));
                until_count += 1;
            }
            assert!(client.done_count <= client.graphs.count);
            assert!(client.wants.values().all(|at| *at <= client.confirmation));
            let is_listed = self.unacknowledged.contains(id);
            assert!(!client.is_unacknowledged || is_listed);
        }
        assert_eq!(until_count, self.by_until.len());
        assert_eq!(stream_count, self.returned_streams.len());
        assert!(self.by_until.len() <= MAX_IN_GRACE && self.gone.len() <= MAX_GONE);
    }
}

/// The graphs of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Graphs {
    /// The number of the series. A program that starts again under an id begins another one.
    series: u32,
    /// The number of graphs that have arrived.
    pub(super) count: u64,
}

impl Graphs {
    const fn after(before: Self) -> Self {
        Self {
            series: before.series + 1,
            count: 0,
        }
    }
}
