//! The streams of clients and workers.

use core::fmt;
#[cfg(target_os = "linux")]
use core::pin::pin;
use core::time::Duration;
use std::panic::resume_unwind;
use std::sync::atomic::Ordering;

use daskwire_comm::runtime;
use daskwire_messages::Value;
#[cfg(target_os = "linux")]
use daskwire_messages::protocol::UpdateGraph;
use daskwire_messages::protocol::{
    ClientDesiresKeys, Field as _, FromClient, FromWorker, Keys, RegisterClient, RegisterWorker,
    RegisterWorkerReply, ReplyStatus, StreamStart, ToClient,
};
use daskwire_rpc::RequestError;
use daskwire_rpc::batched::{Backlog, BatchSender, BatchWriter};
use daskwire_rpc::channel::{Channel, Sender};

#[cfg(target_os = "linux")]
use tokio::sync::mpsc;

use super::plugins::PluginKind;
use super::{CLOSE_TIMEOUT, SchedulerMachine, Shared};
use crate::state::{
    Action, ClientId, Refusal, SchedulerInput, Submission, WorkId, WorkerId, WorkerRefusal,
};
use crate::{Notice, Options};

/// Maximum number of messages of a client or worker that are handled before others may come between.
const MAX_AT_ONCE: usize = 64;

/// Maximum number of parts of a graph that wait to be handled while Python makes the next one.
#[cfg(target_os = "linux")]
const MAX_PARTS: usize = 4;

impl Shared {
    pub(super) async fn client_stream(&self, mut channel: Channel, register: RegisterClient) {
        let RegisterClient {
            client,
            versions,
            returning,
            ..
        } = register;
        let name = client.as_str();
        channel.rename_peer(name);
        self.resumed().await;
        let Channel {
            sender,
            mut receiver,
            ..
        } = channel;
        let Options {
            client_interval,
            max_queued_len,
            ..
        } = self.options;
        let (stream, mut writing) = BatchSender::new(sender, client_interval, max_queued_len);
        let backlog = stream.backlog();
        let id = self.with_machine(|machine| {
            let id = ClientId(machine.next_id());
            machine.outbox.clients.insert(id, stream);
            let name = name.to_owned();
            machine.handle(SchedulerInput::ClientJoined {
                id,
                name,
                versions,
                returning,
            });
            id
        });
        let ending = StreamGuard::new(self, Member::Client(id));
        let mut work = None;
        'stream: loop {
            let batch = async {
                // The events of a client keep their order.
                self.ended(work).await;
                backlog.has_room().await;
                receiver.receive_batch::<FromClient>().await
            };
            let batch = tokio::select! {
                batch = batch => batch,
                () = backlog.drained() => {
                    self.handle(SchedulerInput::ClientDrained(id));
                    continue;
                }
                () = backlog.closing() => break,
                _ = writing.finished() => break,
            };
            let Some(batch) = self.batch(batch, name) else {
                break;
            };
            let is_last = |message: &FromClient| matches!(message, FromClient::CloseStream(_));
            let is_last = batch.iter().any(is_last);
            let mut events = Vec::with_capacity(batch.len());
            for message in batch {
                match self.read(id, message).await {
                    Parsed::Events(parsed) => events.extend(parsed),
                    #[cfg(target_os = "linux")]
                    Parsed::ForPython(message) => {
                        let Some(python) = &self.python else {
                            continue;
                        };
                        // Earlier messages do not wait for Python.
                        self.handle_all(name, &mut events, &backlog, &mut work)
                            .await;
                        // A plugin takes graphs as a whole.
                        let (sender, mut parts) = mpsc::channel(MAX_PARTS);
                        let sender = (!self.is_observed()).then_some(sender);
                        let mut converting = pin!(python.convert(id, *message, sender));
                        let converted = loop {
                            let mut part = tokio::select! {
                                Some(part) = parts.recv() => vec![part],
                                converted = &mut converting => break converted,
                                () = backlog.closing() => break 'stream,
                                _ = writing.finished() => break 'stream,
                            };
                            self.handle_all(name, &mut part, &backlog, &mut work).await;
                        };
                        while let Ok(part) = parts.try_recv() {
                            events.push(part);
                        }
                        match converted {
                            Ok(last) => events.push(last),
                            Err(refusal) => events.extend(refused(id, refusal)),
                        }
                    }
                }
            }
            self.handle_all(name, &mut events, &backlog, &mut work)
                .await;
            if is_last {
                break;
            }
        }
        self.ended(work).await;
        if backlog.has_overflowed() {
            self.notify_not_reading(name);
        }
        self.complete(SchedulerInput::ClientLeft(id)).await;
        finish_writing(&mut writing).await;
        drop(ending);
    }

    /// Parses a client's message, a large graph on a thread for what blocks: tasks that wait for the
    /// same thread of the executor would wait until it is done.
    async fn read(&self, id: ClientId, message: FromClient) -> Parsed {
        /// Length in bytes of a graph that takes about a millisecond.
        const LARGE: usize = 64 << 10;
        let is_large = match &message {
            FromClient::UpdateGraph(message) => message.expr_ser.heap_len() > LARGE,
            _ => false,
        };
        #[cfg(target_os = "linux")]
        let has_python = self.python.is_some();
        #[cfg(not(target_os = "linux"))]
        let has_python = false;
        if !is_large {
            return read_message(id, message, has_python);
        }
        match runtime::spawn_blocking(move || read_message(id, message, has_python)).await {
            Ok(parsed) => parsed,
            Err(error) => match error.into_panic() {
                Some(panic) => resume_unwind(panic),
                // The executor ends.
                None => Parsed::Events(Vec::new()),
            },
        }
    }

    /// Handles the events of a client, unless it does not read its messages. Leaves `work`.
    #[cfg_attr(not(target_os = "linux"), allow(unused_variables))]
    async fn handle_all(
        &self,
        name: &str,
        events: &mut Vec<SchedulerInput>,
        backlog: &Backlog,
        work: &mut Option<WorkId>,
    ) {
        #[cfg(target_os = "linux")]
        let mut graphs = self.graphs_of(name, events);
        let mut events = core::mem::take(events).into_iter();
        while events.len() > 0 && !backlog.has_overflowed() {
            self.ended(*work).await;
            *work = self.with_machine(|machine| {
                let mut events = events.by_ref().take(MAX_AT_ONCE);
                events.find_map(|event| {
                    #[cfg(target_os = "linux")]
                    if let SchedulerInput::Submitted(_, submission) = &event
                        && submission.is_whole()
                        && let (Some(graph), Some(observer)) =
                            (graphs.pop_front(), &machine.outbox.observer)
                    {
                        observer.observe(graph);
                    }
                    machine.handle(event)
                })
            });
            if events.len() > 0 {
                self.give_way().await;
            }
        }
    }

    pub(super) async fn worker_stream(&self, mut channel: Channel, register: RegisterWorker) {
        channel.rename_peer(&register.address);
        let address = register.address.clone();
        let Channel {
            sender,
            mut receiver,
            ..
        } = channel;
        let joined = self.with_machine(|machine| self.join(machine, register, sender));
        let (id, mut writing, backlog) = match joined {
            Ok(joined) => joined,
            Err(refused) => {
                let (refusal, sender) = *refused;
                return self.refuse_worker(sender, &refusal).await;
            }
        };
        let ending = StreamGuard::new(self, Member::Worker(id));
        self.changed.notify_waiters();
        let mut work = None;
        loop {
            let batch = tokio::select! {
                batch = receiver.receive_batch::<FromWorker>() => batch,
                () = backlog.drained() => {
                    self.handle(SchedulerInput::Drained(id));
                    continue;
                }
                () = backlog.closing() => break,
                _ = writing.finished() => break,
            };
            let Some(batch) = self.batch(batch, &address) else {
                break;
            };
            let is_last = |message: &FromWorker| matches!(message, FromWorker::CloseStream(_));
            let is_last = batch.iter().any(is_last);
            let mut batch = batch.into_iter();
            while batch.len() > 0 && !backlog.has_overflowed() {
                // The events of a worker keep their order.
                self.ended(work).await;
                work = self.with_machine(|machine| {
                    let mut messages = batch.by_ref().take(MAX_AT_ONCE);
                    messages
                        .find_map(|message| machine.handle(SchedulerInput::FromWorker(id, message)))
                });
                if batch.len() > 0 {
                    self.give_way().await;
                }
            }
            self.changed.notify_waiters();
            if is_last {
                break;
            }
        }
        if backlog.has_overflowed() {
            self.notify_not_reading(&address);
        }
        self.complete(SchedulerInput::WorkerLeft(id)).await;
        if let Ok(address) = address.parse() {
            self.pool.forget(&address);
        }
        self.changed.notify_waiters();
        finish_writing(&mut writing).await;
        drop(ending);
    }

    /// Refuses to register a worker.
    pub(super) async fn refuse_worker(&self, mut sender: Sender, refusal: &impl fmt::Display) {
        let reply = RegisterWorkerReply {
            status: ReplyStatus::Error,
            message: Some(refusal.to_string()),
            time: Some(self.clock.now().as_secs_f64()),
            ..RegisterWorkerReply::default()
        };
        if sender.send(&reply).await.is_ok() {
            let _ = sender.close().await;
        }
    }

    /// Refuses to register a client.
    pub(super) async fn refuse_client(&self, channel: Channel, refusal: &impl fmt::Display) {
        let Channel { sender, .. } = channel;
        let max_len = self.options.max_queued_len;
        let (stream, mut writing) = BatchSender::<ToClient>::new(sender, Duration::ZERO, max_len);
        let _ = stream.send(StreamStart {
            warning: Some(String::new()),
            error: Some(refusal.to_string()),
            ..StreamStart::default()
        });
        drop(stream);
        finish_writing(&mut writing).await;
    }

    /// Registers a worker. If it is accepted, the reply is the first message of its stream.
    fn join(
        &self,
        machine: &mut SchedulerMachine,
        registration: RegisterWorker,
        sender: Sender,
    ) -> Result<(WorkerId, BatchWriter, Backlog), Box<(WorkerRefusal, Sender)>> {
        let id = WorkerId(machine.next_id());
        let registration = Box::new(registration);
        let joined = SchedulerInput::WorkerJoined { id, registration };
        let mut actions = machine.state.handle(machine.now, joined).into_iter();
        let (heartbeat_interval, warning) = match actions.next() {
            Some(Action::AcceptWorker {
                heartbeat_interval,
                warning,
                ..
            }) => (heartbeat_interval, warning),
            Some(Action::RefuseWorker(_, refusal)) => return Err(Box::new((refusal, sender))),
            other => unreachable!("the first action replies to the registration, not {other:?}"),
        };
        let reply = RegisterWorkerReply {
            status: ReplyStatus::Ok,
            time: Some(machine.now.as_secs_f64()),
            heartbeat_interval: Some(heartbeat_interval),
            extra: [
                ("worker-plugins", self.plugins.of(PluginKind::Worker)),
                ("warning", Value::from(warning)),
                ("error", Value::from("")),
            ]
            .map(|(name, value)| (Value::from(name), value))
            .into(),
            returns: Some(true),
            ..RegisterWorkerReply::default()
        };
        let Options {
            worker_interval,
            max_queued_len,
            ..
        } = self.options;
        let (stream, writing) =
            BatchSender::after(Some(reply), sender, worker_interval, max_queued_len);
        let backlog = stream.backlog();
        machine.outbox.workers.insert(id, stream);
        machine.perform(actions.collect());
        Ok((id, writing, backlog))
    }

    fn notify_not_reading(&self, peer: &str) {
        self.notify(&Notice::NotReading {
            peer: peer.to_owned(),
            limit: self.options.max_queued_len,
        });
    }

    /// Returns the messages of a batch, or `None` if the stream has to end.
    fn batch<T>(&self, batch: Result<Option<Vec<T>>, RequestError>, peer: &str) -> Option<Vec<T>> {
        match batch {
            Ok(batch) => batch,
            Err(error) => {
                if let RequestError::Protocol(error) = error {
                    self.notify(&Notice::Malformed {
                        peer: peer.to_owned(),
                        error,
                    });
                }
                None
            }
        }
    }
}

/// A message of a client that was parsed.
enum Parsed {
    Events(Vec<SchedulerInput>),
    /// A graph that only Python may be able to read.
    #[cfg(target_os = "linux")]
    ForPython(Box<UpdateGraph>),
}

/// Maximum number of keys of an event about many keys with a reply each. Between such events, the
/// replies are sent.
const PART: usize = 1 << 10;

/// Parses a client's message, which is the slow part of handling it.
fn read_message(id: ClientId, message: FromClient, has_python: bool) -> Parsed {
    Parsed::Events(match message {
        FromClient::UpdateGraph(message) => {
            // The payloads are shared.
            let copy = has_python.then(|| Box::new(message.clone()));
            match (Submission::read(message), copy) {
                (Ok(submission), _) => vec![SchedulerInput::Submitted(id, submission)],
                #[cfg(target_os = "linux")]
                (Err(refusal), Some(copy)) if refusal.may_need_python() => {
                    return Parsed::ForPython(copy);
                }
                (Err(refusal), _) => refused(id, refusal),
            }
        }
        FromClient::ClientDesiresKeys(message) if message.keys.len() > PART => {
            let parts = message.keys.chunks(PART);
            let parts = parts.map(|keys| ClientDesiresKeys {
                keys: Keys(keys.to_vec()),
                client: message.client.clone(),
                ..ClientDesiresKeys::default()
            });
            parts
                .map(|part| SchedulerInput::FromClient(id, part.into()))
                .collect()
        }
        other => vec![SchedulerInput::FromClient(id, other)],
    })
}

/// The events for a submission that is refused.
fn refused(id: ClientId, refusal: Refusal) -> Vec<SchedulerInput> {
    let parts = refusal.parts(PART);
    parts
        .map(|part| SchedulerInput::SubmissionRefused(id, part))
        .collect()
}

/// The client or worker of a stream.
#[derive(Clone, Copy)]
enum Member {
    Client(ClientId),
    Worker(WorkerId),
}

/// Guard that counts a comm for which [`Shared::close`] waits.
pub(super) struct MemberComm<'s>(&'s Shared);

impl<'s> MemberComm<'s> {
    pub(super) fn new(shared: &'s Shared) -> Self {
        shared.member_comm_count.fetch_add(1, Ordering::AcqRel);
        Self(shared)
    }
}

impl Drop for MemberComm<'_> {
    fn drop(&mut self) {
        self.0.member_comm_count.fetch_sub(1, Ordering::AcqRel);
        self.0.member_comm_ended.notify_waiters();
    }
}

/// Guard that counts an open stream, and removes its client or worker if a panic ends it,
/// for example a panic of an observer.
struct StreamGuard<'s> {
    member: Member,
    comm: MemberComm<'s>,
}

impl<'s> StreamGuard<'s> {
    fn new(shared: &'s Shared, member: Member) -> Self {
        let comm = MemberComm::new(shared);
        Self { member, comm }
    }
}

impl Drop for StreamGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let shared = self.comm.0;
            // A second panic here would abort the process.
            let _ = shared.try_with_machine(|machine| {
                machine.handle(match self.member {
                    Member::Client(id) => SchedulerInput::ClientLeft(id),
                    Member::Worker(id) => SchedulerInput::WorkerLeft(id),
                })
            });
            shared.changed.notify_waiters();
        }
    }
}

/// Waits until the last messages are sent.
async fn finish_writing(writing: &mut BatchWriter) {
    if runtime::timeout(CLOSE_TIMEOUT, writing.finished())
        .await
        .is_err()
    {
        writing.abort();
    }
}
