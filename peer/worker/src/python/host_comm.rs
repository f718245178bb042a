//! Requests that need Python, answered by the [host](Host).

use std::io;
use std::sync::{Arc, Weak};

use daskwire_comm::runtime;
use daskwire_comm::{CommOptions, RawConnection};
use daskwire_messages::protocol::{PythonStream, Unknown};
use daskwire_messages::{RemoteError, Value};
use daskwire_python::{Host, HostEvent};
use daskwire_rpc::RequestError;
use daskwire_rpc::channel::{Channel, Ends};
use tokio::net::UnixStream;

use super::{PythonProcesses, RunError};
use crate::Shared;
use crate::state::WorkerInput;

/// A comm to the host. Each comm of a peer has its own, so that requests stay in order.
#[derive(Debug, Default)]
pub(crate) struct HostComm(Option<(Channel, Weak<Host>)>);

impl HostComm {
    /// Forwards a request to the host, and returns its reply.
    ///
    /// # Errors
    ///
    /// If the host cannot be started, or ends.
    pub(crate) async fn answer(
        &mut self,
        shared: &Arc<Shared>,
        mut request: Unknown,
    ) -> Result<Value, RemoteError> {
        let failed = |error: &dyn core::fmt::Display| {
            let worker = &shared.title;
            let message = format!("the Python host process of the worker {worker}: {error}");
            RemoteError::new("OSError", &message)
        };
        // Both fields concern the peer's comm. The host always replies to a request without
        // `reply`.
        let is_own = |key: &Value| matches!(key.as_str(), Some("reply" | "close"));
        request.extra.retain(|(key, _)| !is_own(key));
        let lives = |host: &Weak<Host>| host.upgrade().is_some_and(|host| !host.has_ended());
        let (mut channel, host) = match self.0.take() {
            Some((channel, host)) if lives(&host) => (channel, host),
            _ => {
                let opened = open(shared).await;
                opened.map_err(|error| failed(&error))?
            }
        };
        let answered = async {
            channel.sender.send(&request).await?;
            channel.receiver.receive::<Value>().await
        };
        let reply = match answered.await {
            Ok(Some(reply)) => reply,
            Ok(None) => return Err(failed(&"the process ended")),
            Err(error) => return Err(failed(&error)),
        };
        self.0 = Some((channel, host));
        shared.record_plugin_change(&request, &reply);
        Ok(reply)
    }
}

async fn open(shared: &Arc<Shared>) -> Result<(Channel, Weak<Host>), RequestError> {
    if runtime::sockets().is_some() {
        let reason = "it requires tokio as the executor of the worker";
        return Err(io_error(io::Error::new(io::ErrorKind::Unsupported, reason)));
    }
    let host = shared.host().await?;
    let socket = host.open_comm().and_then(|socket| {
        socket.set_nonblocking(true)?;
        UnixStream::from_std(socket)
    });
    let (reader, writer) = socket.map_err(io_error)?.into_split();
    // The ends of the socket have no names.
    let address = shared.scheduler();
    let connection = RawConnection::new(reader, writer, (address.clone(), address));
    let comm = connection.handshake(&CommOptions::default()).await?;
    let ends = Ends::new(&shared.name, "host", shared.observer.clone());
    Ok((Channel::new(comm, ends), Arc::downgrade(&host)))
}

fn io_error(error: io::Error) -> RequestError {
    daskwire_comm::CommError::Io(error).into()
}

impl Shared {
    /// Returns the host, and starts it if none is running.
    async fn host(self: &Arc<Self>) -> Result<Arc<Host>, RequestError> {
        let shared = Arc::clone(self);
        let started = runtime::spawn_blocking(move || match &shared.python {
            Some(python) => python.host(),
            None => Err(RunError::Closed),
        });
        let started = started.await.unwrap_or(Err(RunError::Closed));
        started.map_err(|error| match error {
            RunError::Start(error) => io_error(error),
            error => io_error(io::Error::other(error.to_string())),
        })
    }

    /// Records the scheduler's worker plugins, and starts the host to set them up if needed.
    pub(crate) async fn set_up_plugins(self: &Arc<Self>, plugins: Option<Value>) {
        let Some(python) = &self.python else {
            return;
        };
        if let Some(Value::Dict(plugins)) = plugins {
            for (name, plugin) in &*plugins {
                if let (Some(name), Value::Bytes(plugin)) = (name.as_str(), plugin) {
                    python.change_plugin(name, Some(plugin.clone()));
                }
            }
        }
        if python.needs_host()
            && let Err(error) = self.host().await
        {
            self.notice(&format!("worker plugins cannot be set up: {error}"));
            return;
        }
        let shared = Arc::clone(self);
        let starting = move || shared.python.as_ref().map(PythonProcesses::start_shared);
        if let Ok(Some(Err(error))) = runtime::spawn_blocking(starting).await {
            self.notice(&format!(
                "further Python processes cannot be started: {error}"
            ));
        }
    }

    /// Records a change of plugins that the host has made, for the other processes.
    fn record_plugin_change(&self, request: &Unknown, reply: &Value) {
        let is_done = reply.get("status").and_then(Value::as_str) == Some("OK");
        let name = request.value("name").and_then(Value::as_str);
        let (Some(python), Some(name), true) = (&self.python, name, is_done) else {
            return;
        };
        match (&*request.op, request.value("plugin")) {
            ("plugin-add", Some(Value::Bytes(plugin))) => {
                python.change_plugin(name, Some(plugin.clone()));
            }
            ("plugin-remove", _) => python.change_plugin(name, None),
            _ => {}
        }
    }

    /// Registers a callback that handles events of the host while the worker exists.
    pub(crate) fn handle_host_events(self: &Arc<Self>, python: &PythonProcesses) {
        let own = Arc::downgrade(self);
        python.on_host(move |event| {
            if let Some(shared) = own.upgrade() {
                shared.on_host(event);
            }
        });
    }

    /// Sends a message of Python code to the scheduler.
    pub(crate) fn send_from_python(&self, message: PythonStream) {
        if let Some(stream) = &self.machine().stream {
            stream.send(message.message);
        }
    }

    fn on_host(self: &Arc<Self>, event: HostEvent) {
        match event {
            HostEvent::Stream(message) => self.send_from_python(message),
            HostEvent::Resources(resources) => {
                if let Some(python) = &self.python {
                    python.set_resources(resources.clone());
                }
                self.handle([WorkerInput::Resources(resources.into_iter().collect())]);
            }
            HostEvent::Line(line) => self.log.add_logged(&line),
            HostEvent::Watches(is_watched) => self.machine().has_watching_host = is_watched,
            HostEvent::Ended {
                how,
                kept,
                has_shuffles,
            } => {
                let Some(python) = &self.python else {
                    return;
                };
                if python.is_closed() {
                    return;
                }
                let count = kept.len();
                let lost = if python.is_shared() {
                    "actors and results that cannot be pickled"
                } else {
                    "actors"
                };
                self.notice(&format!("{how}, which was the host of {count} {lost}"));
                if count != 0 {
                    let jobs = self.react([], [WorkerInput::Lost(kept)]);
                    jobs.into_iter().for_each(|job| self.queue.push(job));
                }
                // The next host asks the scheduler to restart the shuffles.
                if (has_shuffles || python.needs_host())
                    && let Err(error) = python.host()
                {
                    let message =
                        format!("the host of shuffles and plugins cannot be restarted: {error}");
                    self.notice(&message);
                }
            }
        }
    }
}
