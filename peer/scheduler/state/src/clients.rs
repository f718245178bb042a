//! Clients, and the results that they hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use daskwire_messages::protocol::{
    AdjustHeartbeatInterval, CancelKeys, CancelledKeys, FromClient, Keys, Restart, StreamStart,
    Unknown,
};
use daskwire_messages::{Key, Value};

use super::few::Few;
use super::grace::{Graphs, Lost};
use super::model::{Client, TaskId, TaskStage};
use super::send::{erred, in_memory};
use super::slices::Job;
use super::submission::Submission;
use super::unknown::UnknownOps;
use super::versions::{self, Packages};
use super::workers::heartbeat_interval;
use super::{Action, ClientId, FIRE_AND_FORGET, Notice, State};

impl State {
    /// Registers a client and sends it `stream-start`, or refuses it. An earlier client
    /// of the same name is removed, unless its keys are kept.
    pub(super) fn add_client(
        &mut self,
        id: ClientId,
        name: &str,
        versions: &Value,
        returning: Option<bool>,
    ) {
        let is_taken = self.clients.contains_key(&id) || self.returned_streams.contains_key(&id);
        if !id.is_of_stream() || is_taken {
            return;
        }
        if let Err(unsupported) = versions::check(versions, "client") {
            let start = StreamStart {
                warning: Some(String::new()),
                error: Some(unsupported.to_string()),
                ..StreamStart::default()
            };
            self.actions.push(Action::ToClient(id, start.into()));
            self.actions.push(Action::EndClient(id));
            return;
        }
        let packages = Packages::read(versions);
        let warning = self.packages.warning(&packages, "Client");
        let mut start = StreamStart {
            warning: Some(warning),
            error: Some(String::new()),
            ..StreamStart::default()
        };
        let old = self.by_name.get(name).copied();
        let client = match old {
            Some(old) if self.is_kept(old) => {
                let graph_count = self.continue_client(old, id, returning, packages);
                if returning == Some(true) {
                    start.graphs_accepted = Some(graph_count);
                    start.lost = self.clients[&old].lost.map(|lost| lost.to_string());
                }
                old
            }
            _ => {
                if let Some(old) = old {
                    self.remove_client(old);
                }
                let lost = self.lost_of(name, returning);
                self.insert_client(id, name, packages, Some(id));
                if let Some(client) = self.clients.get_mut(&id) {
                    client.acknowledges = returning.is_some();
                    client.lost = lost;
                }
                if returning.is_some() {
                    start.lost = lost.map(|lost| lost.to_string());
                }
                self.totals.clients_added += 1;
                self.log(
                    &["all", name],
                    "add-client",
                    [("client", Value::from(name))],
                );
                id
            }
        };
        self.send_client(client, start);
    }

    fn insert_client(
        &mut self,
        id: ClientId,
        name: &str,
        packages: Packages,
        stream: Option<ClientId>,
    ) {
        self.client_packages.add(&packages);
        let shared: Arc<str> = name.into();
        self.by_name.insert(Arc::clone(&shared), id);
        self.topics.client_joined(name);
        let client = Client {
            name: shared,
            stream,
            until: None,
            wants: BTreeMap::new(),
            confirmation: 0,
            lost: None,
            is_leaving: false,
            acknowledges: false,
            is_unacknowledged: false,
            graphs: Graphs::default(),
            done_count: 0,
            is_behind: false,
            unreported: None,
            unknown_ops: UnknownOps::default(),
            packages,
        };
        self.clients.insert(id, client);
        self.journal_client(id, name);
        if stream.is_some() {
            self.journal_graphs(id, 0);
        } else {
            self.idle_holders.insert(id);
        }
    }

    /// Sends a client no more results until it has read its messages.
    pub(super) fn client_behind(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.is_behind = true;
            client.unreported = Some(0);
            let stream = client.stream;
            self.actions.extend(stream.map(Action::NotifyClientDrained));
        }
    }

    /// Sends a client some of the results of which it was not told, now that it has read its
    /// messages. Results that it was told before are sent again.
    pub(super) fn client_drained(&mut self, id: ClientId) {
        const PART: usize = 1 << 10;
        self.set_stimulus("client-drained");
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client.is_behind = false;
        let Some(first) = client.unreported.take() else {
            return;
        };
        let stream = client.stream;
        let mut left = client.wants.range(first..).map(|(task, _)| *task);
        let part: Vec<TaskId> = left.by_ref().take(PART).collect();
        client.unreported = left.next();
        let has_more = client.unreported.is_some();
        for task in part {
            let key = self.tasks[task].key.clone();
            self.report(id, &key);
        }
        if has_more {
            self.actions.extend(stream.map(Action::NotifyClientDrained));
        }
    }

    /// Removes a client, and releases the tasks that only it wanted.
    pub(super) fn remove_client(&mut self, id: ClientId) {
        self.set_stimulus("remove-client");
        let Some(client) = self.clients.remove(&id) else {
            return;
        };
        self.by_name.remove(&client.name);
        self.journal_client_left(id);
        self.client_packages.remove(&client.packages);
        self.topics.client_left(&client.name);
        let name = &*client.name;
        self.log(
            &["all", name],
            "remove-client",
            [("client", Value::from(name))],
        );
        self.abandon_unfinished(id);
        self.start(Job::Unwant(vec![(id, client.wants)]));
        if let Some(until) = client.until {
            self.by_until.remove(&(until, id));
        }
        if let Some(stream) = client.stream {
            self.returned_streams.remove(&stream);
            self.totals.clients_removed += 1;
            self.actions.push(Action::EndClient(stream));
        }
        self.settle();
    }

    /// Forgets all tasks, and informs the clients.
    pub(super) fn restart(&mut self) {
        self.set_stimulus("restart");
        let clients = self.clients.iter_mut();
        let wants = clients.map(|(id, client)| {
            if client.is_in_grace() {
                client.lost = Some(Lost::Restarted);
            }
            (*id, core::mem::take(&mut client.wants))
        });
        let wants = wants.collect();
        for client in self.unfinished.clone() {
            self.end_unfinished(client);
        }
        let holders = self.clients.iter();
        let holders = holders.filter(|(_, client)| client.is_holder());
        self.idle_holders.extend(holders.map(|(id, _)| *id));
        let streams = self.clients.values().filter_map(|client| client.stream);
        let restart = |stream| Action::ToClient(stream, Restart::default().into());
        self.actions.extend(streams.map(restart));
        self.start(Job::Unwant(wants));
        self.settle();
    }

    /// Handles a message on a client's stream.
    pub(super) fn client_message(&mut self, id: ClientId, message: FromClient) {
        if !self.clients.contains_key(&id) {
            return;
        }
        match message.known_op() {
            Some(op) => self.set_stimulus(op),
            None => self.set_stimulus("unknown"),
        }
        match message {
            FromClient::UpdateGraph(message) => match Submission::read(message) {
                Ok(submission) => self.submit(id, submission),
                Err(refusal) => self.refuse(id, &refusal),
            },
            FromClient::ClientDesiresKeys(message) => {
                let holder = self.client_named(id, message.client);
                self.desire(holder, message.keys);
            }
            FromClient::ClientReleasesKeys(message) => {
                let holder = self.client_named(id, message.client);
                self.start(Job::Release(holder, message.keys.0.into_iter()));
            }
            FromClient::ReportKey(message) => self.report(id, &message.key),
            FromClient::CancelKeys(message) => self.cancel(id, message),
            FromClient::HeartbeatClient(_) => {
                // Ten times the interval of as many workers.
                let count = self.totals.clients_added - self.totals.clients_removed;
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                let interval = 10.0 * heartbeat_interval(count);
                let message = AdjustHeartbeatInterval {
                    interval,
                    ..AdjustHeartbeatInterval::default()
                };
                self.send_client(id, message);
            }
            FromClient::VariableReceived(_)
            | FromClient::VariableDelete(_)
            | FromClient::QueueReceived(_)
            | FromClient::QueueRelease(_)
            | FromClient::PublishFlush(_) => self.shared_message(id, message),
            // The stream ends soon, which releases the client's keys.
            FromClient::CloseClient(_) => self.remove_client(id),
            FromClient::CloseStream(_) => {
                if let Some(client) = self.clients.get_mut(&id) {
                    client.is_leaving = true;
                }
            }
            FromClient::KeysConfirmed(_) => {
                if let Some(client) = self.clients.get_mut(&id) {
                    client.lost = None;
                }
                self.keys_confirmed(id);
            }
            FromClient::DataAnnounced(message) => {
                let name = message.client.unwrap_or_else(|| self.client_name(id));
                self.update_data(Some(&name), message.who_has, message.nbytes.0);
            }
            FromClient::SubscribeTopic(message) => self.subscribe(id, &message.topic, true),
            FromClient::UnsubscribeTopic(message) => self.subscribe(id, &message.topic, false),
            // Messages for older schedulers, which are never parsed.
            FromClient::UpdateGraphLayers(_)
            | FromClient::UpdateGraphTasks(_)
            | FromClient::CancelKeysSilently(_) => {}
            FromClient::Unknown(Unknown { op, .. }) => {
                let client = self.clients.get_mut(&id);
                if client.is_some_and(|client| client.unknown_ops.is_new(&op)) {
                    let peer = self.client_name(id);
                    self.notice(Notice::UnknownOp { peer, op });
                }
            }
        }
        self.settle();
    }

    pub(super) fn client_name(&self, id: ClientId) -> String {
        let client = self.clients.get(&id);
        client.map_or_else(String::new, |client| client.name.to_string())
    }

    /// Returns the client on whose behalf a message is sent. As with Dask's scheduler, it need
    /// not be connected.
    pub(super) fn client_named(&mut self, id: ClientId, name: Option<String>) -> ClientId {
        name.map_or(id, |name| self.holder(&name))
    }

    /// Returns the client of this name, which need not be connected.
    pub(super) fn holder(&mut self, name: &str) -> ClientId {
        if let Some(named) = self.by_name.get(name) {
            return *named;
        }
        let id = if name == FIRE_AND_FORGET.1 {
            FIRE_AND_FORGET.0
        } else {
            self.named_count += 1;
            ClientId(ClientId::FIRST_NAMED.0 + self.named_count)
        };
        self.insert_client(id, name, Packages::default(), None);
        id
    }

    /// Forgets clients without a stream that hold nothing any more.
    pub(super) fn drop_idle_holders(&mut self) {
        for id in core::mem::take(&mut self.idle_holders) {
            let client = self.clients.get(&id);
            if client.is_some_and(|client| client.is_holder() && client.wants.is_empty())
                && let Some(client) = self.clients.remove(&id)
            {
                self.by_name.remove(&client.name);
                self.journal_client_left(id);
                self.topics.client_left(&client.name);
            }
        }
    }

    /// Has a client want a task, which it says after it has returned so often.
    pub(super) fn want(&mut self, client: ClientId, confirmation: u32, task: TaskId) {
        let Some(known) = self.clients.get_mut(&client) else {
            return;
        };
        let before = known.wants.get(&task).copied();
        if before.is_none_or(|before| before < confirmation) {
            known.wants.insert(task, confirmation);
        }
        // The client may still be among those that want the task, after a restart.
        if before.is_none() {
            let wanted_by = &mut self.tasks[task].wanted_by;
            if let Err(place) = wanted_by.binary_search(&client) {
                wanted_by.insert(place, client);
                self.journal_wish(client, task, true);
            }
        }
    }

    /// Whether a client has wanted a task since it was last connected.
    pub(super) fn is_confirmed(&self, client: ClientId, task: TaskId) -> bool {
        let client = self.clients.get(&client);
        client.is_some_and(|client| client.wants.get(&task) == Some(&client.confirmation))
    }

    pub(super) fn release(&mut self, client: ClientId, task: TaskId) {
        let wanted_by = &mut self.tasks[task].wanted_by;
        if let Ok(place) = wanted_by.binary_search(&client) {
            wanted_by.remove(place);
            self.journal_wish(client, task, false);
            self.todo.unneeded.push(task);
            if let Some(holder) = self.clients.get_mut(&client) {
                holder.wants.remove(&task);
                if holder.wants.is_empty() && holder.is_holder() {
                    self.idle_holders.insert(client);
                }
            }
        }
    }

    pub(super) fn desire(&mut self, client: ClientId, keys: Keys) {
        let confirmation = self.confirmation_of(client);
        self.start(Job::Desire(client, confirmation, keys.0.into_iter()));
    }

    /// Has a client want some keys, which it says after it has returned so often.
    pub(super) fn desire_part(&mut self, client: ClientId, confirmation: u32, keys: Vec<Key>) {
        let mut unknown = Vec::new();
        for key in keys {
            let Some(id) = self.by_key.get(&key).copied() else {
                unknown.push(key);
                continue;
            };
            self.want(client, confirmation, id);
            if matches!(self.tasks[id].stage, TaskStage::Released) {
                self.activate(id);
            }
            // The task may be done already.
            self.todo.unneeded.push(id);
            self.report(client, &key);
        }
        if !unknown.is_empty() {
            let lost = self.clients.get(&client).and_then(|client| client.lost);
            let lost = lost.map(|lost| lost.to_string());
            self.cancelled(client, unknown, "unknown key", lost);
        }
    }

    /// Reports the current state of a key to a client.
    pub(super) fn report(&mut self, client: ClientId, key: &Key) {
        let Some(id) = self.by_key.get(key) else {
            // Without a reason, as in Dask.
            return self.cancelled(client, vec![key.clone()], "", None);
        };
        let task = &self.tasks[*id];
        match &task.stage {
            TaskStage::Memory => {
                let message = in_memory(task);
                self.send_result(client, message);
            }
            TaskStage::Erred(failure) => {
                let message = erred(key, failure);
                self.send_result(client, message);
            }
            _ => {}
        }
    }

    pub(super) fn cancelled(
        &mut self,
        client: ClientId,
        keys: Vec<Key>,
        reason: &str,
        msg: Option<String>,
    ) {
        let reason = (!reason.is_empty()).then(|| reason.to_owned());
        let message = CancelledKeys {
            keys: Keys(keys),
            reason,
            msg,
            extra: Vec::new(),
        };
        self.send_client(client, message);
    }

    /// Cancels keys and their dependents, unless another client wants them.
    pub(super) fn cancel(&mut self, client: ClientId, mut message: CancelKeys) {
        let name = self.client_name(client);
        let count = Value::from(message.keys.len());
        let fields = [("count", count), ("force", Value::from(message.force))];
        self.log(&[&name], "cancel", fields);
        let keys = core::mem::take(&mut message.keys.0);
        self.start(Job::Cancel(client, keys.into_iter(), Box::new(message)));
    }

    /// Cancels some of the keys of a message.
    pub(super) fn cancel_part(&mut self, client: ClientId, keys: &[Key], message: &CancelKeys) {
        let known = keys.iter().filter_map(|key| self.by_key.get(key));
        let mut todo: Vec<TaskId> = known.copied().collect();
        let mut seen = BTreeSet::new();
        let mut cancelled: BTreeMap<ClientId, Vec<Key>> = BTreeMap::new();
        while let Some(id) = todo.pop() {
            if !seen.insert(id) {
                continue;
            }
            let task = &self.tasks[id];
            let key = task.key.clone();
            let only_this = task.wanted_by.iter().all(|other| *other == client);
            if message.force || only_this {
                todo.extend(&task.dependents);
            }
            let clients = match message.force {
                true => task.wanted_by.clone(),
                false => Few::One(client),
            };
            for client in clients {
                if self.tasks[id].wanted_by.binary_search(&client).is_ok() {
                    self.release(client, id);
                    cancelled.entry(client).or_default().push(key.clone());
                }
            }
        }
        for (client, keys) in cancelled {
            let reason = message.reason.0.as_deref().unwrap_or_default();
            self.cancelled(client, keys, reason, message.msg.0.clone());
        }
    }
}
