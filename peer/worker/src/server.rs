//! Requests from peers to a worker.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use daskwire::message::{BuildError, MessageBuilder};
use daskwire_comm::runtime::{self, TaskSet};
use daskwire_comm::{Address, CommError, Incoming, Listener};
use daskwire_messages::pickling::Pickling;
use daskwire_messages::protocol::{
    DataReply, Field, FreeKeys, GetData, Keys, ProtocolError, ReplyStatus, Request, Source, Status,
    ToWorker, UpdateData, UpdateDataReply, WorkerStatus,
};
use daskwire_messages::value::Serialized;
use daskwire_messages::{Key, RemoteError, Value};
use daskwire_rpc::RequestError;
use daskwire_rpc::channel::{Channel, Ends};
use daskwire_rpc::event;
use daskwire_rpc::request::IncomingRequest;
use daskwire_rpc::story;

use super::diagnostics::{self, Level};
#[cfg(target_os = "linux")]
use super::nanny_plugins;
#[cfg(target_os = "linux")]
use super::python::HostComm;
use super::state::WorkerInput;
use super::{Ended, Shared, metrics};
#[cfg(target_os = "linux")]
use daskwire_messages::protocol::{Unknown, Versions};
use daskwire_store::{Datum, DatumError, Steps};

/// Requests that a worker without Python accepts and ignores.
const IGNORED: [&str; 3] = ["plugin-add", "plugin-remove", "upload_file"];

/// Delay before connections are accepted again after an error.
const ACCEPT_PAUSE: Duration = Duration::from_millis(150);

/// Maximum time to wait for the end of a comm before a further one is refused.
const FULL_PAUSE: Duration = Duration::from_millis(100);

/// Time after which a transfer that its receiver has not acknowledged no longer counts
/// as in progress. The comm stays open, since the receiver may only be slow.
const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum length in bytes of values that are serialized on the thread that reads messages.
const MAX_INLINE_LEN: u64 = 64 << 10;

/// Accepts comms and answers their requests, until the listener fails permanently.
pub(super) async fn serve(shared: Arc<Shared>, listener: Arc<Listener>) -> Ended {
    let mut comms = TaskSet::new();
    let mut is_failing = false;
    let mut is_full = false;
    loop {
        tokio::select! {
            incoming = listener.accept() => match incoming {
                Ok(incoming) => {
                    is_failing = false;
                    while comms.try_join_next().is_some() {}
                    let limit = shared.max_comms;
                    if comms.len() >= limit {
                        // Handshakes that were ended for newer ones may end only now.
                        let _ = runtime::timeout(FULL_PAUSE, comms.join_next()).await;
                    }
                    if comms.len() < limit {
                        is_full = false;
                        comms.spawn(serve_comm(Arc::clone(&shared), incoming));
                    } else if !core::mem::replace(&mut is_full, true) {
                        shared.notice(&format!(
                            "the worker refuses connections: it already serves {limit} comms, \
                             the maximum"
                        ));
                    }
                }
                // The process may be out of descriptors; other comms may close in
                // the meantime.
                Err(error @ CommError::Io(_)) => {
                    if !core::mem::replace(&mut is_failing, true) {
                        shared.notice(&format!(
                            "the worker cannot accept connections, and will retry: {error}"
                        ));
                    }
                    runtime::sleep(ACCEPT_PAUSE).await;
                }
                Err(error) => return Ended::ListenerFailed(Arc::new(error)),
            },
            Some(_) = comms.join_next() => {}
        }
    }
}

async fn serve_comm(shared: Arc<Shared>, incoming: Incoming) {
    // An error is reported as an event of the comm already.
    let Ok(comm) = incoming.handshake().await else {
        return;
    };
    let peer = comm.peer_address().to_string();
    let ends = Ends::new(&shared.name, &peer, shared.observer.clone());
    let mut channel = Channel::new(comm, ends);
    channel.set_read_hint(shared.pool.read_hint());
    let answering = async {
        // A peer that has disconnected needs no reply.
        let _ = answer_all(&shared, &mut channel).await;
        channel.close().await;
    };
    event::in_comm(&peer, answering).await;
}

async fn answer_all(shared: &Arc<Shared>, channel: &mut Channel) -> Result<(), RequestError> {
    #[cfg(target_os = "linux")]
    let mut host = HostComm::default();
    loop {
        // The connection is closed after a message that is not a request, as in Dask.
        let Some(incoming) = channel.receiver.receive::<IncomingRequest>().await? else {
            return Ok(());
        };
        let IncomingRequest {
            request,
            wants_reply,
            is_last,
        } = incoming;
        let request = match request {
            Ok(request) => request,
            Err(error) => {
                if wants_reply {
                    let error = RemoteError::new("ValueError", &error.to_string());
                    channel.sender.send(&error.to_status()).await?;
                }
                if is_last {
                    return Ok(());
                }
                continue;
            }
        };
        channel.set_traffic(daskwire_rpc::request::traffic(&request));
        let is_close = matches!(request, Request::CloseComm(_));
        let is_kill = shared.is_restartable && matches!(request, Request::Kill(_));
        let is_terminate = is_kill || matches!(request, Request::Terminate(_));
        #[cfg(target_os = "linux")]
        let needs_restart = nanny_plugins::needs_restart(shared, &request);
        // No task starts without the variables once the scheduler has the reply.
        #[cfg(target_os = "linux")]
        if needs_restart {
            shared.handle([WorkerInput::Paused(true)]);
        }
        // Tasks use the packages of the interpreter, which the host knows, as it does its state.
        #[cfg(target_os = "linux")]
        let is_versions = matches!(request, Request::Versions(_));
        #[cfg(target_os = "linux")]
        let request = match request {
            Request::Versions(Versions { packages, .. }) if shared.python.is_some() => {
                let packages = packages.map_or(Value::None, Value::list);
                Request::Unknown(Unknown::new("versions").field("packages", packages))
            }
            Request::DumpState(request) if shared.python.is_some() => {
                let exclude = Value::list(request.exclude);
                Request::Unknown(Unknown::new("dump_state").field("exclude", exclude))
            }
            request => request,
        };
        // The scheduler closes the worker before it has the reply to this request.
        let _answering = match is_kill {
            true => Some(shared.answering.read().await),
            false => None,
        };
        let sent = match request {
            Request::GetData(request) => send_data_while_member(shared, channel, request).await,
            #[cfg(target_os = "linux")]
            Request::Unknown(request)
                if shared.python.is_some() && !nanny_plugins::REQUESTS.contains(&&*request.op) =>
            {
                let is_of_shuffle = request.op.starts_with("shuffle_");
                let reply = match host.answer(shared, request).await {
                    Ok(reply) => Reply::Value(reply),
                    // Dask retries after the end of a worker, but not after an error.
                    Err(_) if is_of_shuffle => return Ok(()),
                    // Those with which the worker has registered.
                    Err(_) if is_versions => Reply::Value(shared.versions.clone()),
                    Err(error) => Reply::Failed(Box::new(error.to_status())),
                };
                match wants_reply {
                    true => channel.sender.send(&reply).await,
                    false => Ok(()),
                }
            }
            request => {
                let reply = match answer(shared, request).await {
                    Ok(reply) => reply,
                    Err(error) => Reply::Failed(Box::new(error.to_status())),
                };
                match wants_reply {
                    true => channel.sender.send(&reply).await,
                    false => Ok(()),
                }
            }
        };
        // After the reply, since the scheduler closes its comms with a worker that it removes.
        #[cfg(target_os = "linux")]
        if needs_restart {
            let reason = "a plugin of nannies sets variables of the environment".to_owned();
            // The scheduler also learns of the end from the stream.
            let _ = shared.unregister(Some(reason)).await;
            shared.stop.notify_one();
        }
        if is_terminate {
            shared.stop.notify_one();
        }
        sent?;
        if is_close || is_last {
            return Ok(());
        }
    }
}

enum Reply {
    Value(Value),
    Updated(UpdateDataReply),
    Data(DataReply),
    Failed(Box<Status>),
}

impl Field for Reply {
    fn read(source: &mut Source<'_>) -> Result<Self, ProtocolError> {
        Value::read(source).map(Self::Value)
    }

    fn write<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
        match self {
            Self::Value(value) => Field::write(value, to),
            Self::Updated(reply) => reply.write(to),
            Self::Data(reply) => reply.write(to),
            Self::Failed(status) => status.write(to),
        }
    }
}

async fn answer(shared: &Arc<Shared>, request: Request) -> Result<Reply, RemoteError> {
    Ok(Reply::Value(match request {
        Request::UpdateData(request) => return Ok(Reply::Updated(update(shared, request))),
        Request::Gather(request) => {
            let who_has = request.who_has.unwrap_or_default();
            let failed = shared.gather(who_has).await;
            let is_whole = failed.is_empty();
            return Ok(Reply::Data(DataReply {
                status: if is_whole {
                    ReplyStatus::Ok
                } else {
                    ReplyStatus::PartialFail
                },
                keys: (!is_whole).then_some(Keys(failed)),
                ..DataReply::default()
            }));
        }
        Request::FreeKeysRequest(request) => {
            shared.handle([WorkerInput::FromScheduler(ToWorker::FreeKeys(FreeKeys {
                keys: request.keys,
                stimulus_id: request
                    .stimulus_id
                    .unwrap_or_else(|| "free-keys".to_owned()),
                ..FreeKeys::default()
            }))]);
            Value::None
        }
        Request::KeysRequest(_) => {
            let keys = shared.store.keys();
            Value::List(keys.iter().map(Key::to_value).collect())
        }
        Request::Identity(_) => Value::dict([
            ("type", Value::from("Worker")),
            ("id", Value::from(shared.id.as_str())),
            ("name", shared.name_value()),
            ("address", Value::from(shared.address.as_str())),
            ("scheduler", Value::from(shared.scheduler().to_string())),
            ("nthreads", Value::from(shared.nthreads)),
            ("memory_limit", Value::from(shared.memory_limit)),
            // Read by Python's `daskwire.native`.
            ("functions", Value::list(shared.functions.names())),
        ]),
        Request::GetLogs(request) => shared.log.answer(&request),
        Request::GetCallStack(request) => shared.call_stack(request.keys.as_ref()),
        // There is no Python interpreter to sample.
        Request::GetProfile(_) => daskwire_rpc::profile::empty(),
        Request::GetProfileMetadata(_) => diagnostics::profile_metadata(),
        Request::GetMonitorInfo(_) => diagnostics::monitor_info(),
        Request::GetStory(request) => {
            let wanted = request.keys_or_stimuli.unwrap_or_default();
            story::of_worker(shared.machine().state.story(&wanted))
        }
        Request::Ping(_) => Value::bytes(&b"pong"[..]),
        Request::Echo(request) => request.data,
        Request::Versions(_) => shared.versions.clone(),
        Request::Kill(request) if shared.is_restartable => {
            let left = shared.unregister(request.reason).await;
            left.map_err(|error| RemoteError::new("OSError", &error.to_string()))?;
            Value::None
        }
        Request::Terminate(_) | Request::CloseComm(_) => Value::from("OK"),
        // Python's modules and plugins do not concern tasks in Rust, and an error would fail
        // the call for all workers.
        Request::Unknown(request) if IGNORED.contains(&&*request.op) => {
            let (title, op) = (&shared.title, &request.op);
            let message = format!("the worker {title} runs no Python and ignores {op:?}");
            shared.log.add(Level::Warning, &message);
            let data = request.extra.iter();
            let data = data.filter(|(key, _)| key.as_str() == Some("data"));
            let nbytes = data.map(|(_, data)| match data {
                Value::Bytes(data) => data.len(),
                Value::Str(data) => data.len(),
                _ => 0,
            });
            let nbytes = nbytes.sum::<usize>() as u64;
            Value::dict([
                ("status", Value::from("OK")),
                ("nbytes", Value::from(nbytes)),
            ])
        }
        #[cfg(target_os = "linux")]
        Request::Unknown(request) if nanny_plugins::REQUESTS.contains(&&*request.op) => {
            shared.answer_for_nanny(&request)?
        }
        request => {
            let message = format!(
                "the worker {} only runs functions in Rust, and does not support the request {:?}",
                shared.title,
                request.op()
            );
            shared.log.add(Level::Info, &message);
            return Err(RemoteError::new("NotImplementedError", &message));
        }
    }))
}

/// Stores data sent by a client.
fn update(shared: &Arc<Shared>, request: UpdateData) -> UpdateDataReply {
    let data: Vec<(Key, Datum)> = request
        .data
        .unwrap_or_default()
        .into_iter()
        .map(|(key, serialized)| (key, shared.store.received(serialized)))
        .collect();
    shared.store_all(&data);
    UpdateDataReply {
        status: ReplyStatus::Ok,
        nbytes: data
            .into_iter()
            .map(|(key, datum)| (key, datum.nbytes()))
            .collect(),
        ..UpdateDataReply::default()
    }
}

/// Sends data to a client, or to a worker until the worker leaves the cluster.
async fn send_data_while_member(
    shared: &Arc<Shared>,
    channel: &mut Channel,
    request: GetData,
) -> Result<(), RequestError> {
    let requester = request.who.0.as_ref();
    match requester.and_then(|address| address.parse::<Address>().ok()) {
        Some(address) => {
            let mut lease = shared.pool.lease(&address);
            lease.run(send_data(shared, channel, request)).await
        }
        None => send_data(shared, channel, request).await,
    }
}

async fn send_data(
    shared: &Arc<Shared>,
    channel: &mut Channel,
    request: GetData,
) -> Result<(), RequestError> {
    let is_same_host = channel.peer.host() == channel.local.host();
    let is_running = *shared.machine().state.status() != WorkerStatus::Paused;
    let limit = match (is_running, is_same_host) {
        (false, _) => 1,
        (true, false) => shared.sending_count,
        (true, true) => shared.sending_count.saturating_mul(2),
    };
    let Some(mut sending) = shared.transfers.sending(limit) else {
        let busy = DataReply {
            status: ReplyStatus::Busy,
            ..DataReply::default()
        };
        return channel.sender.send(&busy).await;
    };
    let pickling = shared.dialect.pickling;
    let mut data = Vec::with_capacity(request.keys.len());
    let mut lost = Vec::new();
    // Each key once, even if requested repeatedly.
    let keys: BTreeSet<Key> = request.keys.into_iter().collect();
    let held = keys.into_iter();
    let held = held.filter_map(|key| Some((shared.store.get(&key)?, key)));
    let families = request.serializers.map(|families| (families, pickling));
    for (key, serialized) in serialize(held.collect(), families).await {
        match serialized {
            Ok(serialized) => {
                sending.add_len(serialized.len());
                data.push((key, serialized));
            }
            // The requester looks elsewhere for keys that the reply lacks.
            Err(DatumError::Lost) => lost.push(key),
            // The requester learns the reason with the key: after an error of the whole request,
            // it would not get the other keys, and ask again for ever.
            Err(error) => {
                let worker = &shared.title;
                let reason = format!("the worker {worker} cannot serialize {key}: {error}");
                shared.log.add(Level::Warning, &reason);
                data.push((key, Serialized::not_sent(&reason)));
            }
        }
    }
    if !lost.is_empty() {
        shared.handle([WorkerInput::Lost(lost)]);
    }
    let reply = DataReply {
        status: ReplyStatus::Ok,
        data: Some(channel.compress(data).await),
        ..DataReply::default()
    };
    channel.sender.send(&reply).await?;
    drop(reply);
    // The peer acknowledges with "OK"; until then the transfer counts as in progress.
    let acknowledging = channel.receiver.receive::<Value>();
    let acknowledged = match runtime::timeout(ACKNOWLEDGE_TIMEOUT, acknowledging).await {
        Ok(acknowledged) => acknowledged,
        Err(_) => {
            drop(sending);
            channel.receiver.receive::<Value>().await
        }
    };
    if acknowledged?.is_none() {
        let peer = channel.peer.to_string();
        return Err(RequestError::Closed { peer });
    }
    Ok(())
}

/// Serializes data, on another thread if it has to be read from disk or is long. `families`
/// are those that the receiver reads, if it does not read all.
async fn serialize(
    data: Vec<(Datum, Key)>,
    families: Option<(Vec<String>, Pickling)>,
) -> Vec<(Key, Result<Serialized, DatumError>)> {
    let takes_time = data.iter().any(|(datum, _)| {
        let is_ready = datum.serialized().is_some() && families.is_none();
        datum.is_on_disk() || (datum.nbytes() > MAX_INLINE_LEN && !is_ready)
    });
    let all = move || {
        let steps = Steps::default();
        let one = |datum: Datum| {
            let serialized = datum.serialize(&steps)?;
            match &families {
                None => Ok(serialized),
                Some((families, pickling)) => serialized
                    .for_families(families, *pickling)
                    .map_err(DatumError::Value),
            }
        };
        let data = data.into_iter();
        data.map(|(datum, key)| (key, one(datum))).collect()
    };
    if !takes_time {
        return all();
    }
    let elsewhere = runtime::spawn_blocking(all);
    // Fails if the runtime is shutting down, when the result is not needed.
    elsewhere.await.unwrap_or_default()
}

impl Shared {
    /// Stores data that was not fetched for a task.
    pub(super) fn store_all(self: &Arc<Self>, data: &[(Key, Datum)]) {
        let stored = WorkerInput::Stored(metrics::describe_all(data));
        let data = data.iter().map(|(key, datum)| (key, datum.clone()));
        let jobs = self.react(data, [stored]);
        self.begin(jobs);
    }
}
