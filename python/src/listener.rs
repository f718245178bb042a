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

/// Accepted connections that Python has not taken yet.
#[derive(Default)]
struct Accepted {
    connections: VecDeque<Connection>,
    /// The error that ended the listener.
    error: Option<CommError>,
    waiter: Option<Waiter>,
}

/// The pause after an error that may be temporary, such as too many open files.
const PAUSE: Duration = Duration::from_millis(50);

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
            loop {
                match listener.accept().await {
                    Ok(incoming) => {
                        let own = Arc::clone(&own);
                        let wakeups = Arc::clone(&wakeups);
                        // A task for each connection, so that a silent peer does not block
                        // others.
                        tokio::spawn(async move {
                            if let Ok(raw) = incoming.open().await {
                                let connection = Connection::start(raw, shard_len, wakeups);
                                add(&own, |accepted| accepted.connections.push_back(connection));
                            }
                        });
                    }
                    Err(CommError::Io(_)) => daskwire_comm::runtime::sleep(PAUSE).await,
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

    /// Returns the next connection; if there is none yet, returns `None` and later wakes the
    /// operation `token`.
    fn accept(&self, notifier: &Notifier, token: u64) -> PyResult<Option<Connection>> {
        let mut accepted = lock(&self.accepted);
        if let Some(connection) = accepted.connections.pop_front() {
            return Ok(Some(connection));
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
        let connections = core::mem::take(&mut lock(&self.accepted).connections);
        drop(connections);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}
