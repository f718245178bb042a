//! Submission of tasks.

use sha2::{Digest as _, Sha256};

use super::state::Event;
use super::update::update_graph;
use super::{Client, SubmitError, TaskFuture};
use crate::graph::{Argument, Function, Graph, Task, Work};
use crate::value::ValueError;
use crate::{Key, Value};

/// Where, in which order, and how often tasks are to be run.
///
/// ```
/// use daskwire_peer::client::Submission;
/// let submission = Submission::default().workers(["tcp://10.0.0.8:40331"]).retries(3);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Submission {
    annotations: Vec<(Value, Value)>,
    pub(super) priority: Option<f64>,
}

impl Submission {
    fn annotate(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.annotations
            .retain(|(key, _)| key.as_str() != Some(name));
        self.annotations.push((Value::from(name), value.into()));
        self
    }

    /// Restricts the tasks to workers with these addresses or names.
    #[must_use]
    pub fn workers<'w>(self, workers: impl IntoIterator<Item = &'w str>) -> Self {
        self.annotate("workers", Value::list(workers))
    }

    /// Allows other workers while none of the named ones is available.
    #[must_use]
    pub fn allow_other_workers(self) -> Self {
        self.annotate("allow_other_workers", true)
    }

    /// Requires an amount of a resource while the task runs.
    #[must_use]
    pub fn resource(mut self, name: &str, amount: f64) -> Self {
        let resource = (Value::from(name), Value::from(amount));
        let all = self.annotations.iter_mut();
        for (key, value) in all {
            if key.as_str() == Some("resources")
                && let Value::Dict(resources) = value
            {
                let mut all = core::mem::take(resources).into_vec();
                all.push(resource);
                *resources = all.into();
                return self;
            }
        }
        self.annotate("resources", Value::dict([resource]))
    }

    /// Sets the priority; higher values run earlier. Default: 0.
    #[must_use]
    pub const fn priority(mut self, priority: f64) -> Self {
        self.priority = Some(priority);
        self
    }

    /// Sets how often a failing task is retried. Default: 0.
    #[must_use]
    pub fn retries(self, count: u32) -> Self {
        self.annotate("retries", count)
    }

    /// The value of an annotation.
    pub(super) fn annotation(&self, name: &str) -> Option<&Value> {
        let mut annotations = self.annotations.iter();
        let found = annotations.find(|(key, _)| key.as_str() == Some(name));
        found.map(|(_, value)| value)
    }

    pub(super) fn annotations(&self) -> Option<Value> {
        let some = !self.annotations.is_empty();
        some.then(|| Value::dict(self.annotations.clone()))
    }
}

/// A builder of a call, see [`Client::call`].
#[derive(Debug)]
#[must_use = "nothing is called before it is submitted"]
pub struct Call<'c> {
    client: &'c Client,
    function: Function,
    arguments: Vec<Argument>,
    keywords: Vec<(String, Argument)>,
    key: Option<Key>,
    is_impure: bool,
    submission: Submission,
}

impl Call<'_> {
    /// Adds a positional argument.
    pub fn argument(mut self, argument: impl Into<Argument>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Adds a keyword argument.
    pub fn keyword(mut self, name: &str, argument: impl Into<Argument>) -> Self {
        self.keywords.push((name.to_owned(), argument.into()));
        self
    }

    /// Sets the key. A key has one result in the cluster: an existing result is
    /// not computed again.
    pub fn key(mut self, key: impl Into<Key>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Runs the call each time it is submitted. Without this, calls of the same
    /// function with the same arguments have the same key, and share a result.
    pub const fn impure(mut self) -> Self {
        self.is_impure = true;
        self
    }

    /// Sets where and when to run.
    pub fn with(mut self, submission: Submission) -> Self {
        self.submission = submission;
        self
    }

    /// Submits the call.
    ///
    /// # Errors
    ///
    /// * [`SubmitError::Value`] if an argument is serialized and cannot be opened:
    ///   scatter it, and use its future;
    /// * [`SubmitError::Disconnected`].
    pub fn submit(self) -> Result<TaskFuture, SubmitError> {
        let mut task = Task {
            key: Key::default(),
            work: Work::Call {
                function: self.function,
                arguments: self.arguments,
                keywords: self.keywords,
            },
        };
        task.key = match self.key {
            Some(key) => key,
            None if self.is_impure => Key::unique(prefix(&task)),
            None => pure_key(&task)?,
        };
        let keys = vec![task.key.clone()];
        let graph = Graph { tasks: vec![task] };
        let mut futures = self.client.submit_graph(&graph, keys, &self.submission)?;
        futures
            .pop()
            .ok_or_else(|| self.client.shared.disconnected().into())
    }
}

fn prefix(task: &Task) -> &str {
    match &task.work {
        Work::Call { function, .. } => function.short_name(),
        Work::Fused { .. } => "fused",
        Work::Is(_) => "data",
    }
}

/// The key of a call, which is the same for equal calls.
fn pure_key(task: &Task) -> Result<Key, ValueError> {
    let run_spec = task.to_run_spec()?;
    let hash = Sha256::digest(run_spec.header());
    let string: String = hash
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Ok(Key::from(format!("{}-{string}", prefix(task))))
}

impl Client {
    /// Calls a function on the cluster. Arguments are values, or futures for
    /// results:
    ///
    /// ```no_run
    /// # use daskwire_peer::client::{Client, SubmitError};
    /// # fn example(client: &Client) -> Result<(), SubmitError> {
    /// let x = client.submit("operator.add", [1, 2])?;
    /// let y = client.submit("operator.neg", [&x])?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// For arguments of different types, keyword arguments and settings, see
    /// [`call`](Self::call).
    ///
    /// # Errors
    ///
    /// As [`Call::submit`].
    pub fn submit(
        &self,
        function: impl Into<Function>,
        arguments: impl IntoIterator<Item = impl Into<Argument>>,
    ) -> Result<TaskFuture, SubmitError> {
        let mut call = self.call(function);
        call.arguments.extend(arguments.into_iter().map(Into::into));
        call.submit()
    }

    /// Builds a call with arguments of different types, and settings.
    ///
    /// ```no_run
    /// # use daskwire_peer::client::{Client, Submission, SubmitError};
    /// # fn example(client: &Client) -> Result<(), SubmitError> {
    /// # let x = client.submit("operator.add", [1, 2])?;
    /// let rounded = client
    ///     .call("builtins.round")
    ///     .argument(&x)
    ///     .keyword("ndigits", 2)
    ///     .with(Submission::default().retries(3))
    ///     .submit()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn call(&self, function: impl Into<Function>) -> Call<'_> {
        Call {
            client: self,
            function: function.into(),
            arguments: Vec::new(),
            keywords: Vec::new(),
            key: None,
            is_impure: false,
            submission: Submission::default(),
        }
    }

    /// Calls a function once for each argument, in one message.
    ///
    /// # Errors
    ///
    /// As [`Call::submit`].
    pub fn map(
        &self,
        function: impl Into<Function>,
        arguments: impl IntoIterator<Item = impl Into<Argument>>,
    ) -> Result<Vec<TaskFuture>, SubmitError> {
        self.map_with(function, arguments, &Submission::default())
    }

    /// Like [`map`](Self::map), with settings.
    ///
    /// # Errors
    ///
    /// As [`Call::submit`].
    pub fn map_with(
        &self,
        function: impl Into<Function>,
        arguments: impl IntoIterator<Item = impl Into<Argument>>,
        submission: &Submission,
    ) -> Result<Vec<TaskFuture>, SubmitError> {
        let function = function.into();
        let mut tasks = Vec::new();
        for argument in arguments {
            let mut task = Task::new(Key::default(), &function, [argument.into()]);
            task.key = pure_key(&task)?;
            tasks.push(task);
        }
        let keys = tasks.iter().map(|task| task.key.clone()).collect();
        // Equal calls are one task.
        let mut seen = std::collections::HashSet::new();
        tasks.retain(|task| seen.insert(task.key.clone()));
        self.submit_graph(&Graph { tasks }, keys, submission)
    }

    /// Submits tasks that depend on each other in one message, and returns
    /// futures for `keys`. Other results are forgotten as soon as no task of the
    /// graph needs them.
    ///
    /// # Errors
    ///
    /// As [`Call::submit`].
    pub fn submit_graph(
        &self,
        graph: &Graph,
        keys: Vec<Key>,
        submission: &Submission,
    ) -> Result<Vec<TaskFuture>, SubmitError> {
        let shared = &self.shared;
        let dialect = self.dialect();
        let keys: Vec<Key> = keys.iter().map(|key| dialect.key(key)).collect();
        let message = update_graph(graph, keys.clone(), submission, &dialect)?;
        let event = Event::Submit {
            keys: keys.clone(),
            message: Box::new(message),
        };
        Ok(shared.hold(event, &keys)?)
    }
}
