//! Functions that run outside of tasks, in workers and in the scheduler, and the
//! installation of plugins and files.

use core::fmt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use daskwire_messages::graph::{Argument, Arguments, Function, call_pickles, instance_pickle};
use daskwire_messages::protocol::{CallPickles, Unknown};
use daskwire_messages::value::ValueError;
use daskwire_messages::{RemoteError, Value};
use daskwire_rpc::RequestError;

use super::operation::Operation;
use super::request::Workers;
use super::{Call, Client};
use daskwire_rpc::{from, kinds};

/// The module of Dask's plugins.
const PLUGINS: &str = "distributed.diagnostics.plugin";

/// The error of running a function outside of tasks, and of installing plugins and
/// files.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RunError {
    /// An argument cannot be pickled.
    Value {
        /// The name of the function.
        function: String,
        /// The fault.
        error: ValueError,
    },
    /// The function raised an exception.
    Failed {
        /// The name of the function, or of the plugin.
        function: String,
        /// The worker; `None` for the scheduler.
        worker: Option<String>,
        /// The exception.
        error: Box<RemoteError>,
    },
    /// A file cannot be read.
    File {
        /// The path.
        path: String,
        /// The cause.
        error: Arc<std::io::Error>,
    },
    /// The scheduler does not answer, or does not support the operation.
    Request(RequestError),
}

kinds! {
    RunError: |error| match error {
        Self::Value { .. } => ErrorKind::Invalid,
        Self::Failed { error, .. } => error.kind(),
        Self::File { .. } => ErrorKind::System,
        Self::Request(error) => error.kind(),
    };
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value { function, error } => write!(f, "{function} cannot be called: {error}"),
            Self::Failed {
                function,
                worker: Some(worker),
                error,
            } => write!(f, "{function} failed on {worker}: {error}"),
            Self::Failed {
                function, error, ..
            } => write!(f, "{function} failed in the scheduler: {error}"),
            Self::File { path, error } => write!(f, "{path} cannot be read: {error}"),
            Self::Request(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for RunError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Request(error) => error.source(),
            _ => None,
        }
    }
}

from! {
    RunError: RequestError, error => Self::Request(error);
}

/// The outcome of a function in each worker, by address.
pub type RunResults = Vec<(String, Result<Value, RemoteError>)>;

/// The processes that have a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PluginKind {
    /// The workers, including those that join later.
    Worker,
    /// The nannies of workers.
    Nanny,
    /// The scheduler.
    Scheduler,
}

impl PluginKind {
    const fn register_op(self) -> &'static str {
        match self {
            Self::Worker => "register_worker_plugin",
            Self::Nanny => "register_nanny_plugin",
            Self::Scheduler => "register_scheduler_plugin",
        }
    }

    const fn unregister_op(self) -> &'static str {
        match self {
            Self::Worker => "unregister_worker_plugin",
            Self::Nanny => "unregister_nanny_plugin",
            Self::Scheduler => "unregister_scheduler_plugin",
        }
    }
}

/// The result in a reply, or the exception that it reports.
fn outcome(reply: Value) -> Result<Value, RemoteError> {
    match &reply {
        // The pickle of an exception of the scheduler.
        Value::Bytes(_) => return Err(RemoteError::of_fields(&reply, None)),
        Value::Dict(_) if reply.get("status").and_then(Value::as_str) == Some("OK") => {}
        _ => {
            let absent = Value::None;
            let exception = reply.get("exception").unwrap_or(&absent);
            return Err(RemoteError::of_fields(exception, reply.get("traceback")));
        }
    }
    Ok(match reply.get("result") {
        Some(Value::Serialized(serialized)) => match serialized.open() {
            Ok(value) => value,
            Err(_) => Value::Serialized(serialized.clone()),
        },
        other => other.cloned().unwrap_or_default(),
    })
}

impl Call<'_> {
    /// Runs the function immediately in workers, outside of tasks. The parameter
    /// `dask_worker` of a function, if it has one, is the worker.
    ///
    /// # Errors
    ///
    /// * [`RunError::Value`] if an argument is a future, or cannot be pickled;
    /// * [`RunError::Request`] before 2022.1.0, or if the scheduler does not answer.
    pub async fn run_on(self, workers: impl Into<Workers>) -> Result<RunResults, RunError> {
        let message = self.message("run")?;
        let replies = self
            .client
            .broadcast(message, workers.into(), Some("return_pickle"));
        let replies = replies.await?.into_iter();
        Ok(replies
            .map(|(worker, reply)| (worker, outcome(reply)))
            .collect())
    }

    /// Runs the function immediately in the scheduler. The parameter `dask_scheduler` of
    /// the function, if it has one, is the scheduler.
    ///
    /// # Errors
    ///
    /// * As [`run_on`](Self::run_on);
    /// * [`RunError::Failed`] if the function raises an exception.
    pub async fn run_on_scheduler(self) -> Result<Value, RunError> {
        let request = self.message("run_function")?.into();
        let reply = self.client.shared.reply(&request).await;
        outcome(reply?).map_err(|error| RunError::Failed {
            function: self.function.to_string(),
            worker: None,
            error: Box::new(error),
        })
    }

    fn message(&self, op: &str) -> Result<Unknown, RunError> {
        self.client.shared.needs(Operation::CALLS)?;
        let value = |argument: &Argument| match argument {
            Argument::Value(value) => Ok(value.clone()),
            _ => Err(ValueError::Unsupported {
                what: "a future as an argument of a function that is not a task".to_owned(),
            }),
        };
        let pickles = || {
            let arguments = self.arguments.iter().map(value);
            let keywords = self.keywords.iter();
            let keywords = keywords
                .map(|(name, argument)| Ok::<_, ValueError>((name.clone(), value(argument)?)));
            call_pickles(
                &self.function,
                &arguments.collect::<Result<Vec<_>, _>>()?,
                &keywords.collect::<Result<Vec<_>, _>>()?,
                self.client.dialect().pickling,
            )
        };
        let CallPickles {
            function,
            args,
            kwargs,
            ..
        } = pickles().map_err(|error| RunError::Value {
            function: self.function.to_string(),
            error,
        })?;
        Ok(Unknown::new(op)
            .field("function", function)
            .field("args", args)
            .field("kwargs", kwargs.unwrap_or_default())
            .field("wait", true))
    }
}

impl Client {
    /// Runs a function immediately in all workers, outside of tasks. Returns the outcome
    /// in each, by address. For keyword arguments and single workers, see
    /// [`Call::run_on`].
    ///
    /// ```no_run
    /// # async fn example(client: &daskwire_peer::Client) -> Result<(), daskwire_peer::Error> {
    /// for (worker, pid) in client.run("os.getpid", ()).await? {
    ///     println!("{worker} is process {}", pid?);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Call::run_on`].
    pub async fn run(
        &self,
        function: impl Into<Function>,
        arguments: impl Arguments,
    ) -> Result<RunResults, RunError> {
        let mut call = self.call(function);
        call.arguments = arguments.into_arguments();
        call.run_on(Workers::All).await
    }

    /// Runs a function immediately in the scheduler. For keyword arguments, see
    /// [`Call::run_on_scheduler`].
    ///
    /// # Errors
    ///
    /// As [`Call::run_on_scheduler`].
    pub async fn run_on_scheduler(
        &self,
        function: impl Into<Function>,
        arguments: impl Arguments,
    ) -> Result<Value, RunError> {
        let mut call = self.call(function);
        call.arguments = arguments.into_arguments();
        call.run_on_scheduler().await
    }

    /// Installs a plugin under a name. Each process imports the class and calls it with
    /// the arguments to make the plugin.
    ///
    /// ```no_run
    /// # async fn example(client: &daskwire_peer::Client) -> Result<(), daskwire_peer::Error> {
    /// use daskwire_peer::Value;
    /// use daskwire_peer::client::PluginKind;
    ///
    /// let class = "distributed.diagnostics.plugin.Environ";
    /// let variables = Value::dict([("OMP_NUM_THREADS", "1")]);
    /// client.register_plugin(PluginKind::Nanny, "environ", class, (variables,)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// * [`RunError::Value`] if an argument is a future, or cannot be pickled;
    /// * [`RunError::Failed`] if the plugin raises an exception;
    /// * [`RunError::Request`] with [`RequestError::Unsupported`] before 2024.1.0.
    pub async fn register_plugin(
        &self,
        kind: PluginKind,
        name: &str,
        class: impl Into<Function>,
        arguments: impl Arguments,
    ) -> Result<(), RunError> {
        let class = class.into();
        let fault = |error| RunError::Value {
            function: class.to_string(),
            error,
        };
        let mut values = Vec::new();
        for argument in arguments.into_arguments() {
            match argument {
                Argument::Value(value) => values.push(value),
                _ => {
                    let what = "a future as an argument of a plugin".to_owned();
                    return Err(fault(ValueError::Unsupported { what }));
                }
            }
        }
        let pickling = self.dialect().pickling;
        let plugin = instance_pickle(&class, Some(&values), &[], pickling).map_err(fault)?;
        self.install(kind, name, plugin).await
    }

    /// Removes a plugin.
    ///
    /// # Errors
    ///
    /// As [`register_plugin`](Self::register_plugin), and [`RequestError::Remote`] if no
    /// plugin has that name.
    pub async fn unregister_plugin(&self, kind: PluginKind, name: &str) -> Result<(), RunError> {
        self.shared.needs(Operation::PLUGINS)?;
        let message = Unknown::new(kind.unregister_op()).field("name", name);
        self.request_plugin_change(name, message).await
    }

    async fn install(&self, kind: PluginKind, name: &str, plugin: Bytes) -> Result<(), RunError> {
        self.shared.needs(Operation::PLUGINS)?;
        let message = Unknown::new(kind.register_op())
            .field("plugin", plugin)
            .field("name", name)
            .field("idempotent", false);
        self.request_plugin_change(name, message).await
    }

    /// Sends a request about a plugin. Fails if the plugin raised an exception in a worker.
    async fn request_plugin_change(&self, name: &str, message: Unknown) -> Result<(), RunError> {
        let reply = self.shared.reply(&message.into()).await?;
        let Value::Dict(replies) = reply else {
            return Ok(());
        };
        for (worker, reply) in &replies {
            outcome(reply.clone()).map_err(|error| RunError::Failed {
                function: name.to_owned(),
                worker: Some(worker.to_unquoted()),
                error: Box::new(error),
            })?;
        }
        Ok(())
    }

    /// Sends a file to the scheduler and all workers, including those that join later: a
    /// Python module (`.py`), whose functions can be called then, an archive (`.zip`,
    /// `.egg`), or any other file. A module that is uploaded again is loaded again.
    ///
    /// # Errors
    ///
    /// * [`RunError::File`] if the file cannot be read;
    /// * [`RunError::Failed`] if the module cannot be imported;
    /// * [`RunError::Request`] with [`RequestError::Unsupported`] before 2024.1.0.
    pub async fn upload_file(&self, path: impl AsRef<Path>) -> Result<(), RunError> {
        let path = path.as_ref();
        let name = path.file_name().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        let owned = path.to_owned();
        let reading = daskwire_comm::runtime::spawn_blocking(move || std::fs::read(owned));
        let data = reading.await.unwrap_or_else(|error| {
            let error = error.to_string();
            Err(std::io::Error::other(error))
        });
        let data = data.map_err(|error| RunError::File {
            path: path.display().to_string(),
            error: Arc::new(error),
        })?;
        self.upload(&name, data).await
    }

    /// Like [`upload_file`](Self::upload_file), with the name and the contents of the
    /// file.
    ///
    /// # Errors
    ///
    /// As [`upload_file`](Self::upload_file).
    pub async fn upload(&self, name: &str, data: impl Into<Bytes>) -> Result<(), RunError> {
        let state = [
            ("filename", Value::from(name)),
            ("load", Value::from(true)),
            ("data", Value::Bytes(data.into())),
        ];
        let unique = format!("{name}{}", daskwire_messages::key::identifier());
        let classes = [
            (PluginKind::Scheduler, "SchedulerUploadFile"),
            (PluginKind::Worker, "UploadFile"),
        ];
        for (kind, class) in classes {
            let class = Function::python(&format!("{PLUGINS}.{class}"));
            let plugin = instance_pickle(&class, None, &state, self.dialect().pickling);
            let plugin = plugin.map_err(|error| RunError::Value {
                function: class.to_string(),
                error,
            })?;
            self.install(kind, &unique, plugin).await?;
        }
        Ok(())
    }
}
