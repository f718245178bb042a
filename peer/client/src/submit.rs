//! Submission of tasks.

use core::fmt;

use daskwire_messages::brief::bounded;
use daskwire_messages::graph::{Argument, Arguments, Function, Graph, Task, Work};
use daskwire_messages::value::ValueError;
use daskwire_messages::{Key, Value};
use sha2::{Digest as _, Sha256};

use super::state::ClientInput;
use super::update::update_graph;
use super::{Client, SubmitError, TaskFuture};

/// Settings of tasks: workers, resources, priority and retries.
///
/// ```
/// use daskwire_peer::client::SubmitOptions;
/// let options = SubmitOptions::default().workers(["tcp://10.0.0.8:40331"]).retries(3);
/// ```
#[derive(Clone, Debug, Default)]
pub struct SubmitOptions {
    annotations: Vec<(Value, Value)>,
    pub(super) priority: Option<f64>,
}

impl SubmitOptions {
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

    /// Allows other workers while none of the workers given to
    /// [`workers`](Self::workers) is available.
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
#[derive(Clone)]
#[must_use = "nothing is called before it is submitted"]
pub struct Call<'c> {
    pub(super) client: &'c Client,
    pub(super) function: Function,
    pub(super) arguments: Vec<Argument>,
    pub(super) keywords: Vec<(String, Argument)>,
    key: Option<Key>,
    is_impure: bool,
    is_resolved_by_workers: bool,
    options: SubmitOptions,
}

impl fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bounded(f, |f| {
            f.debug_struct("Call")
                .field("function", &self.function)
                .field("arguments", &self.arguments)
                .field("keywords", &self.keywords)
                .field("key", &self.key)
                .field("options", &self.options)
                .finish_non_exhaustive()
        })
    }
}

/// Methods of [`Call`] and [`Calls`].
macro_rules! settings {
    () => {
        /// Adds a keyword argument.
        pub fn keyword(mut self, name: &str, argument: impl Into<Argument>) -> Self {
            self.keywords.push((name.to_owned(), argument.into()));
            self
        }

        /// Runs the call each time it is submitted. Without this, calls of the same
        /// function with the same arguments have the same key, and share a result.
        pub const fn impure(mut self) -> Self {
            self.is_impure = true;
            self
        }

        /// Makes the workers import the function, and not the scheduler: for modules that
        /// only workers have. The name must be that of a function in a module.
        pub const fn resolve_on_workers(mut self) -> Self {
            self.is_resolved_by_workers = true;
            self
        }

        /// Sets the workers, resources, priority and retries.
        pub fn with(mut self, options: SubmitOptions) -> Self {
            self.options = options;
            self
        }
    };
}

impl Call<'_> {
    /// Adds a positional argument. An object that was fetched and that is
    /// [`Value::Serialized`] is opened by the worker.
    pub fn argument(mut self, argument: impl Into<Argument>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Sets the key. A key has one result in the cluster: an existing result is
    /// not computed again.
    pub fn key(mut self, key: impl Into<Key>) -> Self {
        self.key = Some(key.into());
        self
    }

    settings!();

    /// Submits the call; waits while the client reconnects. Cancel safe.
    ///
    /// # Errors
    ///
    /// As [`submit`](Self::submit), except [`SubmitError::Reconnecting`].
    pub async fn submit_when_connected(self) -> Result<TaskFuture, SubmitError> {
        loop {
            match self.clone().submit() {
                Err(SubmitError::Reconnecting { .. }) => self.client.connected().await?,
                submitted => return submitted,
            }
        }
    }

    /// Submits the call.
    ///
    /// # Errors
    ///
    /// * [`SubmitError::Value`] if a list or dictionary in the arguments has a serialized
    ///   value that cannot be opened: scatter it, and use its future;
    /// * [`SubmitError::EmptyKey`];
    /// * [`SubmitError::Reconnecting`] while the client reconnects;
    /// * [`SubmitError::Disconnected`] if the client is not connected any more.
    pub fn submit(self) -> Result<TaskFuture, SubmitError> {
        let task = task(
            self.function,
            self.arguments,
            self.keywords,
            self.is_resolved_by_workers,
            |task| match self.key {
                Some(key) => Ok(key),
                None => chosen_key(task, self.is_impure),
            },
        )?;
        let keys = vec![task.key.clone()];
        let graph = Graph { tasks: vec![task] };
        let mut futures = self.client.submit_graph(&graph, keys, &self.options)?;
        futures
            .pop()
            .ok_or_else(|| self.client.shared.disconnected().into())
    }
}

/// A builder of calls of one function with many arguments, see [`Client::calls`].
#[derive(Clone)]
#[must_use = "nothing is called before it is submitted"]
pub struct Calls<'c> {
    client: &'c Client,
    function: Function,
    sequences: Vec<Vec<Argument>>,
    keywords: Vec<(String, Argument)>,
    keys: Option<Vec<Key>>,
    is_impure: bool,
    is_resolved_by_workers: bool,
    options: SubmitOptions,
}

impl fmt::Debug for Calls<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bounded(f, |f| {
            f.debug_struct("Calls")
                .field("function", &self.function)
                .field("sequences", &self.sequences)
                .field("keywords", &self.keywords)
                .field("keys", &self.keys)
                .field("options", &self.options)
                .finish_non_exhaustive()
        })
    }
}

impl Calls<'_> {
    /// Adds a sequence: its n-th item is an argument of the n-th call. The shortest
    /// sequence determines the number of calls.
    pub fn over(mut self, sequence: impl IntoIterator<Item = impl Into<Argument>>) -> Self {
        let sequence = sequence.into_iter().map(Into::into);
        self.sequences.push(sequence.collect());
        self
    }

    /// Sets the key of each call.
    pub fn keys(mut self, keys: impl IntoIterator<Item = impl Into<Key>>) -> Self {
        self.keys = Some(keys.into_iter().map(Into::into).collect());
        self
    }

    settings!();

    /// Submits the calls; waits while the client reconnects. Cancel safe.
    ///
    /// # Errors
    ///
    /// As [`submit`](Self::submit), except [`SubmitError::Reconnecting`].
    pub async fn submit_when_connected(self) -> Result<Vec<TaskFuture>, SubmitError> {
        loop {
            match self.clone().submit() {
                Err(SubmitError::Reconnecting { .. }) => self.client.connected().await?,
                submitted => return submitted,
            }
        }
    }

    /// Submits the calls in one message. Returns a future for each, in their order.
    ///
    /// # Errors
    ///
    /// * As [`Call::submit`];
    /// * [`SubmitError::KeyCount`] if there are not as many keys as calls.
    pub fn submit(self) -> Result<Vec<TaskFuture>, SubmitError> {
        let count = self.sequences.iter().map(Vec::len).min().unwrap_or(0);
        if let Some(keys) = self.keys.as_ref().filter(|keys| keys.len() != count) {
            return Err(SubmitError::KeyCount {
                keys: keys.len(),
                tasks: count,
            });
        }
        let mut sequences: Vec<_> = self.sequences.into_iter().map(Vec::into_iter).collect();
        let mut given = self.keys.unwrap_or_default().into_iter();
        let mut tasks = Vec::with_capacity(count);
        for _ in 0..count {
            let arguments = sequences.iter_mut().filter_map(Iterator::next).collect();
            tasks.push(task(
                self.function.clone(),
                arguments,
                self.keywords.clone(),
                self.is_resolved_by_workers,
                |task| match given.next() {
                    Some(key) => Ok(key),
                    None => chosen_key(task, self.is_impure),
                },
            )?);
        }
        let keys = tasks.iter().map(|task| task.key.clone()).collect();
        // Equal calls are one task.
        let mut seen = std::collections::HashSet::new();
        tasks.retain(|task| seen.insert(task.key.clone()));
        let graph = Graph { tasks };
        self.client.submit_graph(&graph, keys, &self.options)
    }
}

/// Builds the task of a call. `key` chooses its key, given the task with the prefix of
/// the key.
fn task(
    function: Function,
    arguments: Vec<Argument>,
    keywords: Vec<(String, Argument)>,
    is_resolved_by_workers: bool,
    key: impl FnOnce(&Task) -> Result<Key, SubmitError>,
) -> Result<Task, SubmitError> {
    let mut arguments: Vec<Argument> = arguments.into_iter().map(opened_by_worker).collect();
    let keywords = keywords.into_iter();
    let keywords: Vec<(String, Argument)> = keywords
        .map(|(name, argument)| (name, opened_by_worker(argument)))
        .collect();
    let mut task = Task {
        // The prefix of the final key.
        key: Key::from(function.short_name()),
        work: Work::Call {
            function,
            arguments: Vec::new(),
            keywords: Vec::new(),
        },
    };
    if let Work::Call {
        function,
        arguments: all,
        keywords: all_keywords,
    } = &mut task.work
    {
        match function {
            Function::Python { module, name } if is_resolved_by_workers => {
                let name = Value::from(format!("{module}.{name}"));
                let import = Task::new("import", "distributed.utils.import_term", [name]);
                let keywords = keywords
                    .into_iter()
                    .map(|(name, argument)| (Argument::from(name), argument));
                *function = Function::python("dask.utils.apply");
                *all = vec![
                    Argument::Task(Box::new(import)),
                    Argument::List(core::mem::take(&mut arguments)),
                    Argument::Dict(keywords.collect()),
                ];
            }
            _ => (*all, *all_keywords) = (arguments, keywords),
        }
    }
    task.key = key(&task)?;
    Ok(task)
}

/// Replaces a pickle that cannot be opened in Rust by a call that opens it on the
/// worker.
fn opened_by_worker(argument: Argument) -> Argument {
    let Argument::Value(Value::Serialized(serialized)) = &argument else {
        return argument;
    };
    if serialized.open().is_ok() {
        return argument;
    }
    let Ok((pickle, buffers)) = serialized.pickle() else {
        return argument;
    };
    let mut loads = Task::new("loads", "pickle.loads", [Value::Bytes(pickle)]);
    if !buffers.is_empty() {
        let buffers = Value::list(buffers.into_iter().map(Value::Bytes));
        loads = loads.keyword("buffers", buffers);
    }
    Argument::Task(Box::new(loads))
}

/// The key of a call without an explicit one. The task's key is its prefix.
fn chosen_key(task: &Task, is_impure: bool) -> Result<Key, SubmitError> {
    let prefix = task.key.as_str().unwrap_or_default();
    if is_impure {
        return Ok(Key::unique(prefix));
    }
    pure_key(prefix, task).map_err(|error| SubmitError::Value {
        task: prefix.to_owned(),
        error,
    })
}

/// The key of a call, which is the same for equal calls.
fn pure_key(prefix: &str, task: &Task) -> Result<Key, ValueError> {
    let run_spec = task.to_run_spec()?;
    let hash = Sha256::digest(run_spec.header());
    let string: String = hash
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Ok(Key::from(format!("{prefix}-{string}")))
}

/// The key of the first task that cannot be pickled.
fn first_unpicklable(graph: &Graph) -> String {
    let mut tasks = graph.tasks.iter();
    let found = tasks.find(|task| task.to_run_spec().is_err());
    found.map_or_else(String::new, |task| task.key.to_string())
}

impl Client {
    /// Calls a function on the cluster. Arguments are values, or futures for
    /// results:
    ///
    /// ```no_run
    /// # use daskwire_peer::client::{Client, SubmitError};
    /// # fn example(client: &Client) -> Result<(), SubmitError> {
    /// let x = client.submit("operator.add", [1, 2])?;
    /// let y = client.submit("operator.add", (&x, 0.5))?;
    /// let z = client.submit("math.sqrt", &y)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// For keyword arguments and settings, see [`call`](Self::call).
    ///
    /// # Errors
    ///
    /// As [`Call::submit`].
    pub fn submit(
        &self,
        function: impl Into<Function>,
        arguments: impl Arguments,
    ) -> Result<TaskFuture, SubmitError> {
        let mut call = self.call(function);
        call.arguments = arguments.into_arguments();
        call.submit()
    }

    /// Builds a call with keyword arguments and settings.
    ///
    /// ```no_run
    /// # use daskwire_peer::client::{Client, SubmitOptions, SubmitError};
    /// # fn example(client: &Client) -> Result<(), SubmitError> {
    /// # let x = client.submit("operator.add", [1, 2])?;
    /// let rounded = client
    ///     .call("builtins.round")
    ///     .argument(&x)
    ///     .keyword("ndigits", 2)
    ///     .with(SubmitOptions::default().retries(3))
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
            is_resolved_by_workers: false,
            options: SubmitOptions::default(),
        }
    }

    /// Builds calls of one function with many arguments: over several sequences, with
    /// keyword arguments, keys or settings.
    ///
    /// ```no_run
    /// # use daskwire_peer::client::{Client, SubmitError};
    /// # fn example(client: &Client) -> Result<(), SubmitError> {
    /// let bases = [2, 3, 5];
    /// let powers = client.calls("builtins.pow").over(bases).over([10, 10, 10]).submit()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn calls(&self, function: impl Into<Function>) -> Calls<'_> {
        Calls {
            client: self,
            function: function.into(),
            sequences: Vec::new(),
            keywords: Vec::new(),
            keys: None,
            is_impure: false,
            is_resolved_by_workers: false,
            options: SubmitOptions::default(),
        }
    }

    /// Calls a function once for each argument, in one message. For several arguments
    /// and settings, see [`calls`](Self::calls).
    ///
    /// # Errors
    ///
    /// As [`Call::submit`].
    pub fn map(
        &self,
        function: impl Into<Function>,
        arguments: impl IntoIterator<Item = impl Into<Argument>>,
    ) -> Result<Vec<TaskFuture>, SubmitError> {
        self.calls(function).over(arguments).submit()
    }

    /// Submits the tasks of a graph in one message, and returns futures for `keys`.
    /// Other results are forgotten as soon as no task of the graph needs them.
    ///
    /// # Errors
    ///
    /// As [`Call::submit`].
    pub fn submit_graph(
        &self,
        graph: &Graph,
        keys: Vec<Key>,
        options: &SubmitOptions,
    ) -> Result<Vec<TaskFuture>, SubmitError> {
        let shared = &self.shared;
        let dialect = self.dialect();
        if graph.tasks.iter().any(|task| task.key.is_empty()) {
            return Err(SubmitError::EmptyKey);
        }
        let keys: Vec<Key> = keys.iter().map(|key| dialect.key(key)).collect();
        let message = update_graph(graph, keys.clone(), options, &dialect);
        let message = message.map_err(|error| SubmitError::Value {
            task: first_unpicklable(graph),
            error,
        })?;
        let event = ClientInput::Submit {
            keys: keys.clone(),
            message: Box::new(message),
        };
        Ok(shared.hold(event, &keys)?)
    }

    /// Submits a graph as [`submit_graph`](Self::submit_graph); waits while the client
    /// reconnects. Cancel safe.
    ///
    /// # Errors
    ///
    /// As [`Call::submit`], except [`SubmitError::Reconnecting`].
    pub async fn submit_graph_when_connected(
        &self,
        graph: &Graph,
        keys: Vec<Key>,
        options: &SubmitOptions,
    ) -> Result<Vec<TaskFuture>, SubmitError> {
        loop {
            match self.submit_graph(graph, keys.clone(), options) {
                Err(SubmitError::Reconnecting { .. }) => self.connected().await?,
                submitted => return submitted,
            }
        }
    }
}
