//! The connection of a client to its scheduler.

use core::time::Duration;
use daskwire_comm::runtime::{self, Task};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use daskwire_comm::Traffic;

use super::{ConnectError, Reconnect, Shared, Status};
use crate::batched::{BatchSender, BatchWriter};
use crate::channel::{Channel, Ends, Receiver, within};
use crate::dialect::Dialect;
use crate::event::{ClientEvent, Level, emit, in_comm};
use crate::protocol::{
    CloseClient, CloseStream, FromClient, HeartbeatClient, RegisterClient, ReportKey, Request,
    ToClient, Versions,
};
use crate::release::{self, FIRST_FOR_TASKS};
use crate::{BoxFuture, Release, RemoteError, RequestError, Value};

/// Interval of heartbeats until the scheduler sets one.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// Timeout for sending the last messages.
const LEAVING: Duration = Duration::from_secs(10);

/// The reason given after a panic of the client.
const PANICKED: &str = "the client panicked";

/// Registers, and keeps the connection in the background.
pub(super) fn start(shared: &Arc<Shared>) -> BoxFuture<'_, Result<Task<()>, ConnectError>> {
    Box::pin(async {
        let session = register(shared).await?;
        // The task ends when the client is dropped, because futures keep `shared`
        // alive.
        let session = keep(Arc::clone(shared), session);
        let peer = shared.address.to_string();
        Ok(runtime::spawn(in_comm(&peer, session)))
    })
}

struct Session {
    receiver: Receiver,
    writing: BatchWriter,
}

async fn register(shared: &Arc<Shared>) -> Result<Session, ConnectError> {
    let timeout = shared.options.timeout;
    // The scheduler compares versions and warns everybody of differences; there
    // is nothing to compare with here.
    let versions = Versions {
        reply: Some(true),
        ..Versions::default()
    };
    let versions = shared.call("the versions of the scheduler", versions);
    let versions: Value = match versions.await {
        Ok(versions) => versions,
        Err(error) => {
            let explained = release::explain(
                error,
                &shared.address,
                &shared.options.transports,
                &shared.options.comm,
                FIRST_FOR_TASKS,
                "submitting tasks from Rust",
            );
            return Err(explained.await);
        }
    };
    *shared.lock(&shared.release) = Release::of_versions(&versions);
    *shared.lock(&shared.dialect) = Dialect::of_versions(&versions);
    let connecting = shared.connector.connect(&shared.address, Traffic::Control);
    let comm = connecting.await?;
    let ends = Ends::new("client", "scheduler", shared.options.observer.clone());
    let mut channel = Channel::new(comm, ends);
    let request = Request::RegisterClient(RegisterClient {
        client: shared.id.clone(),
        versions,
        reply: Some(false),
        ..RegisterClient::default()
    });
    channel.sender.send(&request).await?;
    let address = shared.address.to_string();
    let first = within(timeout, "the registration of the client", async {
        channel
            .receiver
            .receive_batch::<ToClient>()
            .await?
            .ok_or(RequestError::Closed { peer: address })
    });
    match first.await?.first() {
        Some(ToClient::StreamStart(start)) => {
            if let Some(reason) = start.error.clone().filter(|reason| !reason.is_empty()) {
                return Err(ConnectError::Refused { reason });
            }
        }
        _ => {
            return Err(ConnectError::Refused {
                reason: "the scheduler did not start the client's stream".to_owned(),
            });
        }
    }
    emit(Level::Info, || ClientEvent::Connected {
        scheduler: &shared.address,
    });
    // The queue only has what the program itself submits, which can bound it.
    let (stream, writing) = BatchSender::new(channel.sender, shared.options.interval, usize::MAX);
    *shared.lock(&shared.stream) = Some(stream);
    Ok(Session {
        receiver: channel.receiver,
        writing,
    })
}

/// Ends a client when a panic drops its session, for example one of an observer.
struct SessionGuard(Arc<Shared>);

impl Drop for SessionGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let shared = &self.0;
            shared.failure.set();
            let _ = shared.ended.set(PANICKED.to_owned());
            shared.lock(&shared.stream).take();
            shared.end_all(|| shared.when_disconnected());
        }
    }
}

/// Handles the scheduler's messages until the connection is lost for good.
async fn keep(shared: Arc<Shared>, mut session: Session) {
    let _guard = SessionGuard(Arc::clone(&shared));
    loop {
        let reason = tokio::select! {
            read = read(&shared, &mut session) => match read {
                Ok(reason) => reason,
                Err(error) => error.to_string(),
            },
            () = shared.failure.occurred() => PANICKED.to_owned(),
        };
        emit(Level::Info, || ClientEvent::Disconnected {
            reason: &reason,
        });
        if !shared.is_closing.load(Ordering::Acquire) {
            shared.lock(&shared.stream).take();
            session.writing.abort();
        }
        let next = match shared.options.reconnect {
            Reconnect::Within(time)
                if !shared.is_closing.load(Ordering::Acquire) && !shared.failure.is_set() =>
            {
                shared.end_all(|| Status::Lost);
                reconnected(&shared, time).await
            }
            _ => None,
        };
        match next {
            Some(next) => session = next,
            None => {
                let _ = shared.ended.set(reason);
                shared.end_all(|| shared.when_disconnected());
                // The last messages may still be in transit.
                let _ = session.writing.finished().await;
                return;
            }
        }
    }
}

/// Reconnects within `time`.
async fn reconnected(shared: &Arc<Shared>, time: Duration) -> Option<Session> {
    let until = runtime::later(time);
    shared.pool.close().await;
    let mut pause = Duration::from_millis(50);
    loop {
        let left = until.checked_duration_since(runtime::now())?;
        if let Ok(Ok(session)) = runtime::timeout(left, register(shared)).await {
            return Some(session);
        }
        runtime::sleep(pause.min(left)).await;
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}

/// Reads until the scheduler closes the stream, and returns the reason.
async fn read(shared: &Arc<Shared>, session: &mut Session) -> Result<String, RequestError> {
    let mut heartbeat = HEARTBEAT;
    let mut next = runtime::now() + heartbeat;
    // The mark after the last restart of the cluster.
    let mut restarted = 0;
    loop {
        let batch = tokio::select! {
            batch = session.receiver.receive_batch::<ToClient>() => batch?,
            () = runtime::sleep_until(next) => {
                next += heartbeat;
                let _ = shared.send(HeartbeatClient::default());
                continue;
            }
        };
        let Some(batch) = batch else {
            return Ok("the scheduler closed the connection".to_owned());
        };
        for message in batch {
            match message {
                ToClient::KeyInMemory(message) => {
                    if let Some(entry) = shared.reported(&message.key) {
                        entry.set(Status::Finished);
                    }
                }
                ToClient::TaskErredForClient(message) => {
                    if let Some(entry) = shared.reported(&message.key) {
                        let error =
                            RemoteError::of_fields(&message.exception, message.traceback.as_ref());
                        entry.set(Status::Error(Arc::new(error)));
                    }
                }
                ToClient::LostData(message) => {
                    if let Some(entry) = shared.reported(&message.key) {
                        entry.set(Status::Pending);
                    }
                }
                ToClient::TaskRetried(message) => {
                    if let Some(entry) = shared.reported(&message.key) {
                        entry.set(Status::Pending);
                    }
                }
                ToClient::CancelledKeys(message) => {
                    let reason = match (message.reason, message.msg) {
                        (Some(reason), Some(more)) => format!("{reason}: {more}"),
                        (Some(reason), None) | (None, Some(reason)) => reason,
                        (None, None) if *shared.answered_marks.borrow() < restarted => {
                            "the cluster was restarted".to_owned()
                        }
                        (None, None) => String::new(),
                    };
                    for key in message.keys {
                        if let Some(mark) = shared.mark_of(&key) {
                            shared.answered_marks.send_replace(mark);
                        } else if let Some(entry) = shared.reported(&key) {
                            let reason = reason.clone();
                            shared.end(&entry, Status::Cancelled { reason });
                        }
                    }
                }
                // ROLES CLIENT-8
                ToClient::CancelledKey(message) => {
                    if let Some(mark) = shared.mark_of(&message.key) {
                        shared.answered_marks.send_replace(mark);
                    } else if let Some(entry) = shared.reported(&message.key) {
                        let reason = String::new();
                        shared.end(&entry, Status::Cancelled { reason });
                    }
                }
                // The scheduler has forgotten all tasks, except those that it has
                // read since; it answers for each.
                ToClient::Restart(_) => {
                    for entry in shared.all() {
                        // Without a connection, the session ends.
                        let _ = shared.send(ReportKey {
                            key: entry.key.clone(),
                            ..ReportKey::default()
                        });
                    }
                    let mark = shared.mark(&shared.lock(&shared.entries));
                    restarted = mark.unwrap_or(restarted);
                }
                ToClient::AdjustHeartbeatInterval(message) => {
                    if let Ok(interval) = Duration::try_from_secs_f64(message.interval) {
                        heartbeat = interval.clamp(Duration::from_millis(100), HEARTBEAT * 100);
                    }
                }
                ToClient::Close(message) => {
                    let reason = message.reason.unwrap_or_default();
                    return Ok(format!("the scheduler closed: {reason}"));
                }
                ToClient::StreamClosed(_) | ToClient::CloseStream(_) => {
                    return Ok("the scheduler closed the stream".to_owned());
                }
                ToClient::StreamStart(_) | ToClient::Event(_) => {}
                ToClient::Unknown(unknown) => {
                    emit(Level::Warn, || ClientEvent::UnknownOp { op: &unknown.op });
                    if let Some(hook) = &shared.options.unknown {
                        hook(&unknown);
                    }
                }
            }
        }
    }
}

/// Sends a farewell, and waits until it has arrived.
pub(super) fn close<'a>(
    shared: &'a Arc<Shared>,
    session: &'a mut Task<()>,
) -> BoxFuture<'a, Result<(), RequestError>> {
    Box::pin(close_here(shared, session))
}

async fn close_here(shared: &Arc<Shared>, session: &mut Task<()>) -> Result<(), RequestError> {
    shared.is_closing.store(true, Ordering::Release);
    let _ = shared.ended.set("the client was closed".to_owned());
    let stream = shared.lock(&shared.stream).take();
    if let Some(stream) = stream {
        let said = stream.send(FromClient::from(CloseClient::default()))
            && stream.send(FromClient::from(CloseStream::default()));
        // The writer ends with the last sender; the scheduler then closes the
        // connection, which ends the session.
        drop(stream);
        if said {
            let _ = runtime::timeout(LEAVING, session).await;
        }
    }
    shared.pool.close().await;
    shared.connector.close().await;
    Ok(())
}
