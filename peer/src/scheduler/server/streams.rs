//! The streams of clients and workers.

use std::sync::atomic::Ordering;

use daskwire_comm::runtime;

use super::{CLOSE_TIMEOUT, Shared, unix_time};
use crate::batched::{BatchSender, BatchWriter};
use crate::channel::Channel;
use crate::protocol::{
    ClientDesiresKeys, FromClient, FromWorker, Keys, RegisterWorker, RegisterWorkerReply,
    ReplyStatus,
};
use crate::scheduler::{ClientId, Notice, Options, Refusal, Submission, WorkerId};
use crate::{RequestError, Value};

/// A message of a client, after the slow part of reading it.
enum ClientMessage {
    Submission(Submission),
    Refusal(Refusal),
    Other(FromClient),
}

impl ClientMessage {
    /// Reads a message. Many keys with an answer each are split into parts,
    /// between which the answers are sent.
    fn read(message: FromClient) -> Vec<Self> {
        const PART: usize = 1 << 10;
        match message {
            FromClient::UpdateGraph(message) => match Submission::read(message) {
                Ok(submission) => vec![Self::Submission(submission)],
                Err(refusal) => refusal.parts(PART).map(Self::Refusal).collect(),
            },
            FromClient::ClientDesiresKeys(message) if message.keys.len() > PART => {
                let parts = message.keys.chunks(PART);
                let parts = parts.map(|keys| ClientDesiresKeys {
                    keys: Keys(keys.to_vec()),
                    client: message.client.clone(),
                    ..ClientDesiresKeys::default()
                });
                parts.map(|part| Self::Other(part.into())).collect()
            }
            other => vec![Self::Other(other)],
        }
    }
}

impl Shared {
    pub(super) async fn client_stream(&self, mut channel: Channel, name: &str) {
        channel.rename_peer(name);
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
        let id = self.with_core(|core| {
            let id = core.state.add_client(name);
            core.clients.insert(id, stream);
            id
        });
        let ending = StreamGuard::new(self, Member::Client(id));
        loop {
            let batch = async {
                backlog.has_room().await;
                receiver.receive_batch::<FromClient>().await
            };
            let batch = tokio::select! {
                batch = batch => batch,
                () = backlog.closing() => break,
                _ = writing.finished() => break,
            };
            let Some(batch) = self.batch(batch, name) else {
                break;
            };
            let is_last = |message: &FromClient| matches!(message, FromClient::CloseStream(_));
            let is_last = batch.iter().any(is_last);
            let heard: Vec<ClientMessage> =
                batch.into_iter().flat_map(ClientMessage::read).collect();
            self.with_core(|core| {
                for message in heard {
                    match message {
                        ClientMessage::Submission(submission) => core.state.submit(id, submission),
                        ClientMessage::Refusal(refusal) => core.state.refuse(id, &refusal),
                        ClientMessage::Other(message) => core.state.client_says(id, message),
                    }
                    core.dispatch();
                    if backlog.has_overflowed() {
                        break;
                    }
                }
            });
            if is_last {
                break;
            }
        }
        if backlog.has_overflowed() {
            self.notify_not_reading(name);
        }
        self.with(|state| state.remove_client(id));
        farewell(&mut writing).await;
        drop(ending);
    }

    pub(super) async fn worker_stream(&self, mut channel: Channel, register: RegisterWorker) {
        channel.rename_peer(&register.address);
        let address = register.address.clone();
        let Channel {
            mut sender,
            mut receiver,
            ..
        } = channel;
        let joined = self.with_core(|core| match core.state.add_worker(&register) {
            Ok(id) => {
                let reply = RegisterWorkerReply {
                    status: ReplyStatus::Ok,
                    time: Some(unix_time()),
                    heartbeat_interval: Some(core.state.heartbeat_interval()),
                    extra: [
                        ("worker-plugins", Value::Dict([].into())),
                        ("warning", Value::from("")),
                        ("error", Value::from("")),
                    ]
                    .map(|(name, value)| (Value::from(name), value))
                    .into(),
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
                core.workers.insert(id, stream);
                Ok((id, writing, backlog))
            }
            Err(reason) => Err(Box::new((reason, sender))),
        });
        let (id, mut writing, backlog) = match joined {
            Ok(joined) => joined,
            Err(refused) => {
                let (reason, back) = *refused;
                sender = back;
                let reply = RegisterWorkerReply {
                    status: ReplyStatus::Error,
                    message: Some(reason),
                    time: Some(unix_time()),
                    ..RegisterWorkerReply::default()
                };
                if sender.send(&reply).await.is_ok() {
                    let _ = sender.close().await;
                }
                return;
            }
        };
        let ending = StreamGuard::new(self, Member::Worker(id));
        self.changed.notify_waiters();
        loop {
            let batch = tokio::select! {
                batch = receiver.receive_batch::<FromWorker>() => batch,
                () = backlog.drained() => {
                    self.with(|state| state.drained(id));
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
            self.with_core(|core| {
                for message in batch {
                    core.state.worker_says(id, message);
                    core.dispatch();
                    if backlog.has_overflowed() {
                        break;
                    }
                }
            });
            self.changed.notify_waiters();
            if is_last {
                break;
            }
        }
        if backlog.has_overflowed() {
            self.notify_not_reading(&address);
        }
        self.with(|state| state.remove_worker(id));
        if let Ok(address) = address.parse() {
            self.pool.forget(&address);
        }
        self.changed.notify_waiters();
        farewell(&mut writing).await;
        drop(ending);
    }

    fn notify_not_reading(&self, peer: &str) {
        self.notify(&Notice::NotReading {
            peer: peer.to_owned(),
            limit: self.options.max_queued_len,
        });
    }

    /// The messages of a batch, if the stream continues.
    fn batch<T>(&self, batch: Result<Option<Vec<T>>, RequestError>, peer: &str) -> Option<Vec<T>> {
        match batch {
            Ok(batch) => batch,
            Err(error) => {
                if let RequestError::Protocol(_) = &error {
                    self.notify(&Notice::Ignored {
                        peer: peer.to_owned(),
                        reason: error.to_string(),
                    });
                }
                None
            }
        }
    }
}

/// The client or worker of a stream.
#[derive(Clone, Copy)]
enum Member {
    Client(ClientId),
    Worker(WorkerId),
}

/// Counts an open stream, and removes its client or worker if a panic ends it,
/// for example one of an observer.
struct StreamGuard<'s> {
    shared: &'s Shared,
    member: Member,
}

impl<'s> StreamGuard<'s> {
    fn new(shared: &'s Shared, member: Member) -> Self {
        shared.stream_count.fetch_add(1, Ordering::AcqRel);
        Self { shared, member }
    }
}

impl Drop for StreamGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A second panic here would abort the process.
            let _ = self.shared.try_with_core(|core| match self.member {
                Member::Client(id) => core.state.remove_client(id),
                Member::Worker(id) => core.state.remove_worker(id),
            });
            self.shared.changed.notify_waiters();
        }
        self.shared.stream_count.fetch_sub(1, Ordering::AcqRel);
        self.shared.stream_ended.notify_waiters();
    }
}

/// Waits until the last messages are sent.
async fn farewell(writing: &mut BatchWriter) {
    if runtime::timeout(CLOSE_TIMEOUT, writing.finished())
        .await
        .is_err()
    {
        writing.abort();
    }
}
