//! Replies to requests.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use daskwire_comm::Incoming;

use super::Shared;
use super::reply::{Reply, refused, uncaught};
use super::streams::MemberComm;
use crate::Value;
use crate::channel::{Channel, Ends};
use crate::event;
use crate::protocol::{HeartbeatReply, Keys, Nullable, ReplyStatus, Request, TaskState};
use crate::rpc::IncomingRequest;
use crate::scheduler::Notice;
use crate::scheduler::state::Event;

impl Shared {
    pub(super) async fn handshake(self: Arc<Self>, incoming: Incoming) {
        // An error is reported as an event of the comm already.
        let Ok(comm) = incoming.handshake().await else {
            return;
        };
        let peer = comm.peer_address().to_string();
        let ends = Ends::new("scheduler", &peer, self.options.observer.clone());
        let serving = self.serve(Channel::new(comm, ends));
        event::in_comm(&peer, serving).await;
    }

    /// Replies to requests until a registration turns the comm into a stream, or the
    /// comm ends.
    async fn serve(self: Arc<Self>, mut channel: Channel) {
        let mut heartbeats = None;
        while let Ok(Some(incoming)) = channel.receiver.receive::<IncomingRequest>().await {
            if self.failure.borrow().is_some() {
                return;
            }
            if let Ok(request) = &incoming.request {
                channel.set_traffic(request.traffic());
            }
            let reply = match incoming.request {
                Ok(Request::RegisterClient(register)) => {
                    return self.client_stream(channel, register).await;
                }
                Ok(Request::RegisterWorker(register)) => {
                    return self.worker_stream(channel, register).await;
                }
                Ok(request) => {
                    if let Request::HeartbeatWorker(_) = request {
                        heartbeats.get_or_insert_with(|| MemberComm::new(&self));
                    }
                    self.reply_to(request, &channel).await
                }
                Err(error) => Reply::Status(Box::new(uncaught(&error.to_string()))),
            };
            let is_end = matches!(reply, Reply::Terminate);
            let is_closing = is_end || incoming.is_last || matches!(reply, Reply::CloseComm);
            let is_sent = !incoming.wants_reply || channel.sender.send(&reply).await.is_ok();
            if is_closing || !is_sent {
                channel.close().await;
                drop(heartbeats);
                if is_end {
                    self.close().await;
                }
                return;
            }
        }
    }

    async fn reply_to(self: &Arc<Self>, request: Request, channel: &Channel) -> Reply {
        match request {
            Request::Identity(request) => self.identity(request.n_workers),
            Request::Ping(_) => Reply::Value(Value::bytes(&b"pong"[..])),
            Request::Echo(request) => Reply::Value(request.data),
            Request::Versions(_) => {
                let none = || Value::Dict([].into());
                Reply::Value(Value::dict([("host", none()), ("packages", none())]))
            }
            Request::HeartbeatWorker(request) => {
                let is_closing = self.is_closing.load(Ordering::Acquire);
                let interval = self.with_machine(|machine| {
                    let is_known = is_closing || machine.state.has_worker(&request.address);
                    machine.handle(Event::Heartbeat {
                        worker: request.address,
                        metrics: request.metrics,
                    });
                    is_known.then(|| machine.state.heartbeat_interval())
                });
                Reply::Heartbeat(HeartbeatReply {
                    status: interval.map_or(ReplyStatus::Missing, |_| ReplyStatus::Ok),
                    time: Some(self.clock.now().as_secs_f64()),
                    heartbeat_interval: interval,
                    ..HeartbeatReply::default()
                })
            }
            Request::Unregister(request) => {
                self.handle(Event::RemoveWorker {
                    worker: request.address,
                    close: false,
                    is_expected: false,
                });
                Reply::Value(Value::None)
            }
            Request::Gather(request) => {
                let keys = request.keys.unwrap_or_default();
                Reply::Data(self.gather(keys, request.serializers).await)
            }
            Request::Scatter(request) => self.scatter(request).await,
            Request::WhoHas(request) => {
                let keys = request.keys.as_ref();
                Reply::WhoHas(self.inspect(|state| state.who_has(keys.map(|keys| &keys[..]))))
            }
            Request::NBytes(request) => {
                let keys = request.keys.as_ref();
                Reply::Sizes(self.inspect(|state| state.nbytes(keys.map(|keys| &keys[..]))))
            }
            Request::HasWhat(request) => {
                Reply::HasWhat(self.inspect(|state| state.has_what(request.workers.as_deref())))
            }
            Request::NCores(request) => {
                let workers = request.workers.as_deref();
                Reply::Counts(self.inspect(|state| state.thread_counts(workers, false)))
            }
            Request::NCoresRunning(request) => {
                let workers = request.workers.as_deref();
                Reply::Counts(self.inspect(|state| state.thread_counts(workers, true)))
            }
            Request::GetTaskStatus(request) => Reply::Stages(self.inspect(|state| {
                let stages = request.keys.into_iter().map(|key| {
                    let stage = state.status(&key);
                    (key, Nullable(stage))
                });
                stages.collect()
            })),
            Request::GetStory(request) => {
                let wanted = request.keys_or_stimuli.unwrap_or_default();
                Reply::Value(self.inspect(|state| state.story_value(&wanted)))
            }
            Request::Broadcast(request) => self.broadcast(request).await,
            Request::UpdateData(request) => {
                self.handle(Event::DataStored {
                    client: request.client,
                    who_has: request.who_has.unwrap_or_default(),
                    nbytes: request.nbytes.unwrap_or_default(),
                });
                self.changed.notify_waiters();
                Reply::Value(Value::None)
            }
            Request::Retry(request) => {
                let mut keys = request.keys.0;
                self.with_machine(|machine| {
                    keys.retain(|key| machine.state.status(key) == Some(TaskState::Erred));
                    machine.handle(Event::Retry(keys.clone()));
                });
                Reply::Keys(Keys(keys))
            }
            Request::RetireWorkers(request) => {
                let close = request.close_workers.unwrap_or(true);
                self.retire(request.workers, close, request.remove.unwrap_or(true))
                    .await
            }
            Request::CloseComm(_) => Reply::CloseComm,
            Request::Terminate(_) => Reply::Terminate,
            other => {
                let op = other.op();
                self.notify(&Notice::UnknownOp {
                    peer: channel.peer.to_string(),
                    op: op.to_owned(),
                });
                // Dask replies with nil, which looks like success to a client.
                let message = format!("this scheduler does not support {op:?}");
                refused("NotImplementedError", &message)
            }
        }
    }

    fn identity(&self, count: Option<i64>) -> Reply {
        // A negative count means all; without a count, Dask lists five.
        let count = usize::try_from(count.unwrap_or(5)).ok();
        let identity = self.inspect(|state| {
            let workers = Value::dict(state.identities(count));
            Value::dict([
                ("type", Value::from("Scheduler")),
                ("id", Value::from(self.id.as_str())),
                ("address", Value::from(self.address.as_str())),
                ("services", Value::Dict([].into())),
                ("started", Value::from(self.clock.start.as_secs_f64())),
                ("n_workers", Value::from(state.worker_count())),
                ("total_threads", Value::from(state.thread_count())),
                ("total_memory", Value::from(state.memory_limit())),
                ("workers", workers),
            ])
        });
        Reply::Value(identity)
    }
}
