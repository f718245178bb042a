//! Listeners, and attempts to bind them.

use core::time::Duration;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use daskwire_comm::CommError;
use pyo3::prelude::*;
use tokio::task::AbortHandle;

use crate::connection::Connection;
use crate::error::to_python;
use crate::notify::{Notifier, Waiter, Wakeups};
use crate::transports::{Operation, Outcome};

/// A listener that is being bound.
#[pyclass(frozen, module = "daskwire._native")]
pub(crate) struct Binding {
    outcome: Outcome<Listener>,
}

impl Binding {
    pub(crate) fn start(operation: Operation) -> io::Result<Self> {
        let (outcome, _) = operation.start(async |own| {
            let listener = own.transports.bind(&own.address, own.options).await?;
            Listener::start(listener, own.shard_len, own.wakeups)
        })?;
        Ok(Self { outcome })
    }
}

#[pymethods]
impl Binding {
    /// Returns the listener; if it is not bound yet, returns `None` and later wakes the
    /// operation `token`.
    fn take(&self, notifier: &Notifier, token: u64) -> PyResult<Option<Listener>> {
        let waiter = Waiter::new(notifier.wakeups(), token);
        let result = self.outcome.take_or_wait(waiter);
        result.transpose().map_err(to_python)
    }
}

/// A listener. Dropping it stops it.
#[pyclass(frozen, module = "daskwire._native")]
pub(crate) struct Listener {
    host: String,
    port: u16,
    accepted: Arc<Mutex<Accepted>>,
    task: AbortHandle,
}

/// Accepted connections and failures that Python has not taken yet.
#[derive(Default)]
struct Accepted {
    connections: VecDeque<Connection>,
    /// The peers of failed connections, and the errors.
    failures: VecDeque<(String, String)>,
    /// The error that ended the listener.
    error: Option<CommError>,
    waiter: Option<Waiter>,
    /// Whether the listener was stopped. Connections whose handshake ends later are dropped.
    is_stopped: bool,
}

impl Accepted {
    fn accept(&mut self, connection: Connection) {
        if !self.is_stopped {
            self.connections.push_back(connection);
        }
    }

    /// Adds a failure. If Python does not take them as fast as peers cause them, later ones
    /// are dropped.
    fn fail(&mut self, peer: String, error: &CommError) {
        if self.failures.len() < MAX_FAILURE_COUNT {
            self.failures.push_back((peer, error.to_string()));
        }
    }
}

/// An accepted connection, or a failed one: its peer and the error.
#[derive(IntoPyObject)]
pub(crate) enum Arrival {
    Connection(Connection),
    Failure(String, String),
}

/// The pause after an error that may be temporary, such as too many open files.
const PAUSE: Duration = Duration::from_millis(50);

/// The maximum number of failures that wait for Python.
const MAX_FAILURE_COUNT: usize = 100;

impl Listener {
    /// Starts to accept connections. Must be called on the runtime.
    fn start(
        listener: daskwire_comm::Listener,
        shard_len: usize,
        wakeups: Arc<Wakeups>,
    ) -> Result<Self, CommError> {
        let address = listener.local_address()?;
        let accepted = Arc::new(Mutex::new(Accepted::default()));
        let own = Arc::clone(&accepted);
        let task = tokio::spawn(async move {
            // Whether the last call failed. Only the first error of several is reported,
            // since the same one may follow after every pause.
            let mut has_failed = false;
            loop {
                match listener.accept().await {
                    Ok(incoming) => {
                        has_failed = false;
                        let own = Arc::clone(&own);
                        let wakeups = Arc::clone(&wakeups);
                        // A task for each connection, so that a silent peer does not block
                        // others.
                        tokio::spawn(async move {
                            let peer = incoming.peer_address().location().to_owned();
                            match incoming.open().await {
                                Ok(raw) => {
                                    let connection = Connection::start(raw, shard_len, wakeups);
                                    add(&own, |accepted| accepted.accept(connection));
                                }
                                Err(error) => add(&own, |accepted| accepted.fail(peer, &error)),
                            }
                        });
                    }
                    Err(error @ CommError::Io(_)) => {
                        if !core::mem::replace(&mut has_failed, true) {
                            add(&own, |accepted| accepted.fail(String::new(), &error));
                        }
                        daskwire_comm::runtime::sleep(PAUSE).await;
                    }
                    Err(error) => {
                        add(&own, |accepted| accepted.error = Some(error));
                        return;
                    }
                }
            }
        });
        Ok(Self {
            host: address.host().to_owned(),
            port: address.port(),
            accepted,
            task: task.abort_handle(),
        })
    }
}

fn lock(accepted: &Mutex<Accepted>) -> MutexGuard<'_, Accepted> {
    accepted.lock().unwrap_or_else(PoisonError::into_inner)
}

fn add(accepted: &Mutex<Accepted>, add: impl FnOnce(&mut Accepted)) {
    let mut accepted = lock(accepted);
    add(&mut accepted);
    let waiter = accepted.waiter.take();
    drop(accepted);
    if let Some(waiter) = waiter {
        waiter.wake();
    }
}

#[pymethods]
impl Listener {
    /// The host that the listener is bound to.
    #[getter]
    fn host(&self) -> &str {
        &self.host
    }

    /// The port that the listener is bound to.
    #[getter]
    fn port(&self) -> u16 {
        self.port
    }

    /// Returns the next connection or failed connection; if there is none yet, returns
    /// `None` and later wakes the operation `token`.
    fn accept(&self, notifier: &Notifier, token: u64) -> PyResult<Option<Arrival>> {
        let mut accepted = lock(&self.accepted);
        if let Some(connection) = accepted.connections.pop_front() {
            return Ok(Some(Arrival::Connection(connection)));
        }
        if let Some((peer, error)) = accepted.failures.pop_front() {
            return Ok(Some(Arrival::Failure(peer, error)));
        }
        if let Some(error) = accepted.error.take() {
            return Err(to_python(error));
        }
        accepted.waiter = Some(Waiter::new(notifier.wakeups(), token));
        Ok(None)
    }

    /// Stops accepting connections.
    fn stop(&self) {
        self.task.abort();
        let mut accepted = lock(&self.accepted);
        accepted.is_stopped = true;
        let connections = core::mem::take(&mut accepted.connections);
        drop(accepted);
        drop(connections);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}
