//! The connection of a client to its scheduler.

use core::time::Duration;
use std::sync::Arc;

use daskwire::message::Layout;
use daskwire_comm::runtime::{self, Instant, Task};
use daskwire_comm::{BoxFuture, CommError, Traffic, WireFormat};
use daskwire_messages::dialect::Dialect;
use daskwire_messages::protocol::{RegisterClient, Request, ToClient, Versions};
use daskwire_messages::release::{FIRST_WITH_CLIENTS, UntestedRelease, is_of_rust};
use daskwire_messages::{Release, Value};
use daskwire_rpc::RequestError;
use daskwire_rpc::batched::{BatchSender, BatchWriter};
use daskwire_rpc::channel::{Channel, Ends, Receiver, with_timeout};
use daskwire_rpc::event::{Level, emit, in_comm};
use daskwire_rpc::identity;
use tokio::sync::Mutex;

use super::event::ClientEvent;
use super::shared::{Attempt, PANICKED, RUNTIME_ENDED, Shared};
use super::state::{ClientInput, Kept};
use super::{ClientOptions, ConnectError, Connection};

/// The client's name in errors.
const CLIENT: &str = "a client in Rust";

/// Timeout for sending the last messages.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time to read the last messages of a scheduler that reads nothing any more.
const LAST_MESSAGES: Duration = Duration::from_secs(1);

/// The task that keeps the connection; it ends with the client. Returns an error if
/// the last messages may not have arrived.
pub(super) type SessionTask = Task<Result<(), RequestError>>;

/// What ends the session when the last clone of a client is dropped.
#[derive(Debug)]
pub(super) struct Owner {
    shared: Arc<Shared>,
    /// Locked while the client is closed.
    task: Arc<Mutex<SessionTask>>,
    /// Whether it is that of a client which the session gives to
    /// [`OnReconnect`](super::OnReconnect): it does not keep the session.
    is_borrowed: bool,
}

impl Owner {
    pub(super) fn new(shared: Arc<Shared>, task: SessionTask) -> Self {
        Self {
            shared,
            task: Arc::new(Mutex::new(task)),
            is_borrowed: false,
        }
    }

    /// An owner that does not end the session when it is dropped.
    pub(super) fn borrowed(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            task: Arc::clone(&self.task),
            is_borrowed: true,
        }
    }

    /// Notifies the scheduler that the client leaves, and waits until the message has arrived.
    pub(super) async fn close(&self) -> Result<(), RequestError> {
        let mut task = self.task.lock().await;
        close(&self.shared, &mut task).await
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.is_borrowed {
            return;
        }
        self.shared.handle(ClientInput::End {
            reason: "the client was dropped".to_owned(),
        });
        // A lock that is held is that of `close` of a borrowed client, and ends with the session,
        // which has just been told.
        if let Ok(task) = self.task.try_lock() {
            task.abort();
        }
    }
}

/// Closes the client when it is dropped.
struct Ending<'s>(&'s Shared);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.handle(ClientInput::Close);
    }
}

/// Registers the client, and keeps the connection in a background task.
pub(super) fn start(shared: &Arc<Shared>) -> BoxFuture<'_, Result<SessionTask, ConnectError>> {
    Box::pin(async {
        let session = register(shared, runtime::later(shared.options.timeout)).await?;
        // The task ends when the client is dropped, because futures keep `shared`
        // alive. The guard exists before the first poll, which may never come.
        let session = run(session, SessionGuard(Arc::clone(shared)));
        let peer = shared.address().to_string();
        Ok(runtime::spawn(in_comm(&peer, session)))
    })
}

/// The wire format of a scheduler before 2021.3.0, from the error of connecting to it
/// with the newest one; `None` for other errors.
pub(super) fn older_wire_format(
    error: &ConnectError,
    options: &ClientOptions,
) -> Option<WireFormat> {
    match error {
        ConnectError::Request(RequestError::Comm(error))
            if options.comm.wire == WireFormat::Auto =>
        {
            match **error {
                CommError::Prefix { peer } => Some(WireFormat::Fixed {
                    prefix: peer,
                    layout: Layout::Classic,
                }),
                _ => None,
            }
        }
        _ => None,
    }
}

struct Session {
    receiver: Receiver,
    writing: BatchWriter,
}

/// Connects and registers the client before `deadline`. The error is that of the last attempt
/// to connect.
async fn register(shared: &Arc<Shared>, deadline: Instant) -> Result<Session, ConnectError> {
    let left = || deadline.saturating_duration_since(runtime::now());
    // The scheduler compares versions and warns all clients about differences. A client
    // in Rust has no Python packages to compare, so it sends the scheduler's own
    // versions back.
    let versions = Versions {
        reply: Some(true),
        ..Versions::default()
    };
    let what = "the versions of the scheduler";
    let versions = shared.call_with_timeout(left(), what, versions);
    let versions: Value = match versions.await {
        Ok(versions) => versions,
        Err(error) => {
            let explained = identity::explain(
                error,
                shared.address(),
                &shared.options.transports,
                &shared.options.comm,
                FIRST_WITH_CLIENTS,
                CLIENT,
            );
            return Err(explained.await);
        }
    };
    let (release, dialect) = (
        Release::of_versions(&versions),
        Dialect::of_versions(&versions),
    );
    // Check before the client registers.
    Release::check(release, FIRST_WITH_CLIENTS, CLIENT)?;
    let (connector, control) = (&shared.connector, Traffic::Control);
    let connecting = connector.connect(shared.address(), control, Some(deadline));
    let comm = connecting.await?;
    let ends = Ends::new("client", "scheduler", shared.options.observer.clone());
    let mut channel = Channel::new(comm, ends);
    shared.pool.set_read_hint(dialect.read_hint);
    channel.set_read_hint(dialect.read_hint);
    let keeps_keys = is_of_rust(&versions);
    let (id, is_return) = shared.next_id(keeps_keys);
    let request = Request::RegisterClient(RegisterClient {
        client: id.to_string(),
        versions,
        // ROLES SCHEDULER-18
        returning: keeps_keys.then_some(is_return),
        reply: Some(false),
        ..RegisterClient::default()
    });
    channel.sender.send(&request).await?;
    let address = shared.address().to_string();
    let first = with_timeout(left(), "the registration of the client", async {
        channel
            .receiver
            .receive_batch::<ToClient>()
            .await?
            .ok_or(RequestError::Closed { peer: address })
    });
    let kept = match first.await?.first() {
        Some(ToClient::StreamStart(start)) => {
            if let Some(reason) = start.error.clone().filter(|reason| !reason.is_empty()) {
                return Err(ConnectError::Refused { reason });
            }
            keeps_keys.then(|| Kept {
                graphs_accepted: start.graphs_accepted,
                lost: start.lost.clone(),
            })
        }
        _ => {
            return Err(ConnectError::Refused {
                reason: "the scheduler did not start the client's stream".to_owned(),
            });
        }
    };
    if let (Some(hook), Some(client)) = (&shared.options.on_reconnect, shared.client()) {
        let what = "the function that runs when the client has reconnected";
        let mut states = shared.connection.subscribe();
        let ended = states.wait_for(|state| matches!(state, Connection::Closed { .. }));
        with_timeout(left(), what, async {
            tokio::select! {
                ran = hook.run(client) => {
                    ran.map_err(|reason| ConnectError::OnReconnect { reason })
                }
                _ = ended => Err(ConnectError::OnReconnect {
                    reason: "the client was closed".to_owned(),
                }),
            }
        })
        .await?;
    }
    emit(Level::Info, || ClientEvent::Connected {
        scheduler: shared.address(),
    });
    if let Some(untested) = UntestedRelease::of(release) {
        emit(Level::Warn, || ClientEvent::Untested(untested));
    }
    // The queue is unbounded: it contains only what the program submits, and the program
    // can limit that.
    let (stream, writing) = BatchSender::new(channel.sender, shared.options.interval, usize::MAX);
    shared.connected(stream, id, release, dialect, kept);
    Ok(Session {
        receiver: channel.receiver,
        writing,
    })
}

/// Ends a client whose session is dropped: by a panic, for example in an observer, or with
/// its runtime.
struct SessionGuard(Arc<Shared>);

impl Drop for SessionGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.panic_flag.set();
            end_after_panic(&self.0);
        }
        // Without effect if the client has ended.
        self.0.handle(ClientInput::End {
            reason: RUNTIME_ENDED.to_owned(),
        });
    }
}

fn end_after_panic(shared: &Shared) {
    shared.handle(ClientInput::End {
        reason: PANICKED.to_owned(),
    });
}

/// Handles the scheduler's messages until the connection is lost permanently.
///
/// The guard comes last, and is dropped first: the reason has to be known before the stream fails.
async fn run(mut session: Session, guard: SessionGuard) -> Result<(), RequestError> {
    let shared = Arc::clone(&guard.0);
    loop {
        let read = tokio::select! {
            read = handle_messages(&shared, &mut session) => read,
            () = shared.panic_flag.wait() => {
                end_after_panic(&shared);
                Ok(())
            }
        };
        if !shared.lock().is_closing {
            session.writing.abort();
        }
        let failure = session.writing.failure();
        let reason = match (&read, failure.filter(|error| !is_closed(error))) {
            (_, Some(error)) | (Err(error), None) => error.to_string(),
            (Ok(()), None) => "the scheduler closed the connection".to_owned(),
        };
        shared.handle(ClientInput::Disconnected { reason });
        match reconnect(&shared).await {
            Some(next) => session = next,
            None => {
                // The last messages may still be in transit.
                return match session.writing.finished().await {
                    Err(error) if session.writing.has_unwritten() && !is_closed(&error) => {
                        Err(error)
                    }
                    // A scheduler that closes the connection has read them.
                    written => read.or(written),
                };
            }
        }
    }
}

/// Whether an error is that of a connection which the peer has closed.
fn is_closed(error: &RequestError) -> bool {
    matches!(error, RequestError::Comm(error) if error.is_closed())
}

/// Reconnects when the state machine asks for it; `None` if the client has ended.
async fn reconnect(shared: &Arc<Shared>) -> Option<Session> {
    let mut is_first = true;
    loop {
        let Attempt { at, until } = shared.lock().attempt.take()?;
        if is_first {
            // Idle connections are dropped without waiting for peers, which may not
            // answer any more.
            shared.pool.drop_idle();
            is_first = false;
        }
        runtime::sleep_until(shared.instant(at)).await;
        let deadline = shared
            .instant(until)
            .min(runtime::later(shared.options.timeout));
        match register(shared, deadline).await {
            // The client may have been closed meanwhile. If the connection has broken already,
            // the session notices that.
            Ok(session) => return (!shared.lock().state.has_ended()).then_some(session),
            Err(error) => shared.handle(ClientInput::ConnectFailed {
                reason: error.to_string(),
                is_permanent: matches!(
                    error,
                    ConnectError::Release(_) | ConnectError::Refused { .. }
                ),
            }),
        }
    }
}

/// Handles the scheduler's messages until the connection ends.
async fn handle_messages(shared: &Arc<Shared>, session: &mut Session) -> Result<(), RequestError> {
    let mut is_writing = true;
    // The time at which reading ends because nothing can be written any more.
    let mut end = None;
    loop {
        let (wake_at, is_connected, is_closing) = {
            let machine = shared.lock();
            (
                machine.wake_at,
                machine.state.is_connected(),
                machine.is_closing,
            )
        };
        if !is_connected && !is_closing {
            return Ok(());
        }
        let ending = async {
            match end {
                Some(end) => runtime::sleep_until(end).await,
                None => core::future::pending().await,
            }
        };
        let batch = tokio::select! {
            batch = session.receiver.receive_batch::<ToClient>() => batch?,
            () = session.writing.ended(), if is_writing => {
                is_writing = false;
                match session.writing.failure() {
                    Some(error) if is_closed(error) => {
                        // The last messages of the scheduler may have the reason.
                        end = Some(runtime::now() + LAST_MESSAGES);
                    }
                    Some(_) => return Ok(()),
                    // It has panicked, unless the client is closing.
                    None if !shared.lock().is_closing => return Ok(()),
                    None => {}
                }
                continue;
            }
            () = ending => return Ok(()),
            // A client that is closing only waits for the scheduler: its state machine
            // sets no further timer.
            () = runtime::sleep_until(shared.instant(wake_at)), if is_connected => {
                shared.handle(ClientInput::Tick);
                continue;
            }
        };
        let Some(batch) = batch else {
            return Ok(());
        };
        let mut messages = Vec::with_capacity(batch.len());
        for message in batch {
            match message {
                ToClient::Event(event) => shared.topics.publish(event),
                ToClient::Unknown(unknown) => {
                    emit(Level::Warn, || ClientEvent::UnknownOp { op: &unknown.op });
                }
                message => messages.push(ClientInput::FromScheduler(message)),
            }
        }
        shared.handle_all(messages);
    }
}

fn close<'a>(
    shared: &'a Arc<Shared>,
    session: &'a mut SessionTask,
) -> BoxFuture<'a, Result<(), RequestError>> {
    Box::pin(close_unboxed(shared, session))
}

async fn close_unboxed(
    shared: &Arc<Shared>,
    session: &mut SessionTask,
) -> Result<(), RequestError> {
    let is_connected = {
        let mut machine = shared.lock();
        machine.is_closing = true;
        machine.state.is_connected()
    };
    // Also if the caller does not wait for the rest: the client would be half closed otherwise.
    let ending = Ending(shared);
    let mut releases = core::mem::take(&mut *shared.panic_flag.check(shared.releases.lock()));
    if is_connected {
        let released = async { while releases.join_next().await.is_some() {} };
        // Leases that are not released in time expire.
        let _ = runtime::timeout(CLOSE_TIMEOUT, released).await;
    }
    // Then the scheduler closes the connection, which ends the session.
    drop(ending);
    let left = if is_connected {
        match runtime::timeout(CLOSE_TIMEOUT, session).await {
            Ok(Ok(left)) => left,
            // The session panicked, or the runtime is shutting down.
            Ok(Err(_)) => Err(RequestError::Closed {
                peer: shared.address().to_string(),
            }),
            Err(_) => Err(RequestError::Timeout {
                waiting_for: "the scheduler to read the last messages",
                timeout: CLOSE_TIMEOUT,
            }),
        }
    } else {
        Ok(())
    };
    shared.pool.close().await;
    // Nothing drives the connections of a runtime that has ended.
    let _ = runtime::timeout(CLOSE_TIMEOUT, shared.connector.close()).await;
    left
}
