//! Messages between a worker or a scheduler and its Python processes, in the layout of Dask's
//! messages. The Python side is `peer/python/daskwire`.
#![allow(unreachable_pub, reason = "the macros make public types")]

use bytes::Bytes;

use super::field::{Keys, Map, Nullable, maps, ops};
use super::{Request, Unknown};
use crate::value::Serialized;
use crate::{Key, Value};

maps! {
    /// Asks the template to fork a process. The socket of the process is sent with the
    /// message. The reply is [`PythonForked`].
    ForkPython = "fork" {}

    /// Asks the template to kill a process and its process group. There is no reply.
    KillPython = "kill" {
        /// The id of the process.
        id: u64 = "id",
    }

    /// Asks the template whether a process has ended. The reply is [`PythonEnded`].
    WaitForPython = "wait" {
        /// The id of the process.
        id: u64 = "id",
    }

    /// Returns the id of a process that was forked.
    PythonForked = "forked" {
        /// The id of the process; nil if `fork` failed.
        id: Nullable<u64> = "id",
        /// The error of `fork`.
        error: String = "error",
    }

    /// Reports whether a process has ended.
    PythonEnded = "ended" {
        /// Its status as in `waitpid`; nil if it has not ended.
        status: Nullable<i64> = "status",
    }

    /// Describes the worker; the first message to a process.
    StartPython = "start" {
        /// The id of the worker.
        id: String = "id",
        /// The name of the worker: a number or a string.
        name: Value = "name",
        /// The address of the worker.
        address: String = "address",
        /// The address of the scheduler.
        scheduler: String = "scheduler",
        /// Number of tasks that the worker runs at once.
        nthreads: u64 = "nthreads",
        /// The directory of the worker's files.
        local_directory: String = "local_directory",
        /// The resources of the worker.
        resources: Map<String, f64> = "resources",
        /// The worker's memory limit in bytes.
        memory_limit: Nullable<u64> = "memory_limit",
        /// Maximum length of the values that the process caches, in bytes.
        cache_len: u64 = "cache_len",
        /// Whether the process is a host.
        is_host: bool = "is_host",
        /// Whether hosts run all tasks.
        is_shared: bool = "is_shared",
        /// Whether a host takes part in shuffles. Tasks that use them are moved to it.
        has_shuffles: bool = "has_shuffles",
        /// The plugins that a host sets up: names and pickles.
        plugins: Map<String, Bytes> = "plugins",
        /// The shuffles that an earlier host took part in: their ids and last runs.
        stale_shuffles: Map<String, u64> = "stale_shuffles",
        /// Modules, files, and URLs that the process loads before it is ready.
        preload: Vec<String> = "preload",
        /// The arguments of the preloaded modules.
        preload_argv: Vec<String> = "preload_argv",
    }

    /// Makes a process a helper of a scheduler; the first message to it.
    StartHelper = "start-helper" {
        /// The source of the module that the process runs.
        module: String = "module",
        /// The name of the module.
        name: String = "name",
        /// A directory for files that clients upload, from which modules are imported.
        local_directory: String = "local_directory",
    }

    /// Requests a helper to convert a client's expression to tasks. The answer is a number of
    /// [`GraphTasks`], then, once the helper has the [`GraphOrder`], a number of [`GraphPickles`], and the end
    /// of an answer, [`HelperFinished`] or [`HelperErred`].
    ConvertGraph = "convert-graph" {
        /// The expression, as the client sent it.
        expr_ser: Serialized = "expr_ser",
        /// The keys that the client wants.
        keys: Keys = "keys",
        /// The annotations of all tasks, as the client sent them.
        annotations: Nullable<Value> = "annotations",
        /// Whether each task is to have a pickle of its own. Default: false.
        separately: bool = "separately",
    }

    /// Asks a helper for the pickles of tasks that it has named with [`GraphTasks`].
    GraphOrder = "graph-order" {
        /// The tasks, by number from the first of the answer, in the order in which they are to come. A
        /// graph that is refused needs none.
        order: Vec<u64> = "order",
    }

    /// Requests a helper to create a run of a P2P shuffle. The answer is a [`ShuffleRun`] and the end
    /// of an answer, [`HelperFinished`] or [`HelperErred`].
    CreateShuffleRun = "create-shuffle-run" {
        /// The barrier task of the shuffle, which describes it.
        barrier: Serialized = "barrier",
        /// The number of the run.
        run_id: u64 = "run_id",
        /// The addresses of the workers that its outputs are assigned to.
        workers: Vec<String> = "workers",
        /// The pickles of current runs of other shuffles whose outputs the same tasks use. Equal
        /// outputs are assigned to the same workers.
        others: Vec<Bytes> = "others",
    }

    /// Describes the scheduler; the second message to the process that runs functions and plugins of
    /// clients.
    StartPlugins = "start-plugins" {
        /// The address of the scheduler.
        address: String = "address",
        /// The id of the scheduler.
        id: String = "id",
        /// The directory for files that clients upload.
        local_directory: String = "local_directory",
        /// Modules, files, and URLs that the process loads before it handles anything else. It sends
        /// [`PluginsStarted`] once they are set up.
        preload: Vec<String> = "preload",
        /// The arguments of the preloaded modules.
        preload_argv: Vec<String> = "preload_argv",
    }

    /// Requests the process of plugins to serve a request of a client. The answer is a number of
    /// [`PluginReplied`].
    PluginCall = "call" {
        /// A new id.
        id: u64 = "id",
        /// The request.
        request: Unknown = "request",
    }

    /// Reports events to plugins, in their order. The process sends [`PluginPong`] once they are handled.
    PluginEvents = "events" {
        /// A list for each event: its kind, and what belongs to it.
        events: Vec<Value> = "events",
    }

    /// Asks the process of plugins whether it handles messages. The answer is [`PluginPong`].
    PluginPing = "ping" {}

    /// Requests a process to run a task. The reply is [`PythonFinished`],
    /// [`PythonErred`], [`PythonReschedule`] or [`PythonNeedsHost`].
    RunInPython = "run-task" {
        /// The key of the task.
        key: Key = "key",
        /// The task, as the scheduler sent it.
        run_spec: Serialized = "run_spec",
        /// The inputs; nil for those that the process already has.
        data: Map<Key, Nullable<Serialized>> = "data",
        /// The sizes in bytes, as Dask counts them, of inputs that are not nil, where known.
        nbytes: Map<Key, u64> = "nbytes",
        /// Whether the result is an actor, which stays in the process.
        is_actor: bool = "is_actor",
        /// The annotations of the task; nil if it has none.
        annotations: Nullable<Value> = "annotations",
        /// For a host: the number of commands that it must have handled before the task starts,
        /// which are `stream` and `forget`.
        command_count: u64 = "command_count",
        /// For a host that caches values: the number of the result.
        number: u64 = "number",
        /// For a host that caches values: the numbers of the inputs, all of which are in the
        /// message. Equal numbers mean equal values.
        numbers: Map<Key, u64> = "numbers",
    }

    /// Requests a process to drop values and actors.
    ForgetInPython = "forget" {
        /// The keys of the values or actors.
        keys: Keys = "keys",
    }

    /// Requests a process to return to the system all memory that it keeps for further tasks,
    /// its cache included.
    ReturnMemoryInPython = "return-memory" {}

    /// Requests the setup of a plugin, in place of one with the same name.
    AddPluginInPython = "plugin-add" {
        /// The name.
        name: String = "name",
        /// The pickle of the plugin.
        plugin: Bytes = "plugin",
    }

    /// Requests the teardown of a plugin.
    RemovePluginInPython = "plugin-remove" {
        /// The name.
        name: String = "name",
    }

    /// Passes a socket to a host. The socket is sent with the message.
    SocketForPython = "socket" {
        /// Whether the socket carries a comm, rather than tasks.
        is_comm: bool = "is_comm",
    }

    /// Forwards a message of the scheduler's stream to a host.
    StreamForPython = "stream" {
        /// The message.
        message: Unknown = "message",
    }

    /// Reports changes of tasks to a host, for its plugins.
    TransitionsForPython = "transitions" {
        /// The changes, in order.
        transitions: Vec<TransitionForPython> = "transitions",
    }

    /// A change of the state of a task.
    TransitionForPython {
        /// The key of the task.
        key: Key = "key",
        /// The state before.
        start: String = "start",
        /// The state now.
        finish: String = "finish",
        /// For a task that failed, its exception as the scheduler gets it.
        exception: Nullable<Value> = "exception",
        /// The traceback of the exception.
        traceback: Nullable<Value> = "traceback",
        /// The exception as a string.
        exception_text: String = "exception_text",
        /// The traceback as a string.
        traceback_text: String = "traceback_text",
    }

    /// Tells a process that its task counts towards the worker's threads again, and continues.
    /// The reply to [`PythonRejoin`].
    RejoinedInPython = "rejoined" {}

    /// Asks a host to end.
    ClosePython = "close" {}

    /// Reports that the process is ready for tasks.
    PythonReady = "ready" {}

    /// Returns the result of a task. The process keeps it.
    PythonFinished = "task-finished" {
        /// The result.
        result: Serialized = "result",
        /// Size of the result in bytes, as Dask counts it.
        nbytes: u64 = "nbytes",
        /// The pickle of its class.
        class: Nullable<Bytes> = "type",
        /// The name of its class.
        typename: String = "typename",
        /// Start, in seconds since 1970.
        start: f64 = "start",
        /// End, in seconds since 1970.
        stop: f64 = "stop",
        /// Processor time of the thread between these, in seconds.
        cpu: f64 = "cpu",
        /// The keys of values that the process does not keep any more.
        gone: Keys = "gone",
        /// Length of the shared memory that the process can use again, in bytes.
        held: u64 = "held",
        /// Whether the process keeps the value, which cannot be pickled, until it is asked to
        /// drop it. The result is then the error for others that load it.
        is_kept: bool = "is_kept",
    }

    /// Returns the exception of a task.
    PythonErred = "task-erred" {
        /// The pickle of the exception.
        exception: Bytes = "exception",
        /// The pickle of its traceback, unless that is too long.
        traceback: Nullable<Bytes> = "traceback",
        /// The exception as a string.
        exception_text: String = "exception_text",
        /// The traceback as a string.
        traceback_text: String = "traceback_text",
        /// Start, in seconds since 1970.
        start: f64 = "start",
        /// End, in seconds since 1970.
        stop: f64 = "stop",
        /// Processor time of the thread between these, in seconds.
        cpu: f64 = "cpu",
        /// The keys of values that the process does not keep any more.
        gone: Keys = "gone",
    }

    /// Reports that a task asks to be rescheduled.
    PythonReschedule = "reschedule" {
        /// The keys of values that the process does not keep any more.
        gone: Keys = "gone",
    }

    /// Reports that a task needs the host.
    PythonNeedsHost = "needs-host" {
        /// The keys of values that the process does not keep any more.
        gone: Keys = "gone",
    }

    /// Reports that a host takes part in a run of a shuffle.
    PythonShuffle = "shuffle" {
        /// The id of the shuffle.
        id: String = "id",
        /// The number of the run.
        run_id: u64 = "run_id",
    }

    /// Reports whether plugins of a host want [`TransitionsForPython`].
    PythonWatches = "watch" {
        /// Whether they do. Default: false.
        is_watched: bool = "is_watched",
    }

    /// Returns tasks of a graph without their pickles, a part of the answer to [`ConvertGraph`], in any
    /// order. Each list but `annotations` has an item for each task.
    GraphTasks = "graph-tasks" {
        /// The keys.
        keys: Vec<Key> = "keys",
        /// The tasks of this graph that each depends on, by number from the first of the answer.
        dependencies: Vec<Vec<u64>> = "dependencies",
        /// The keys outside of the graph that each depends on.
        outside: Vec<Vec<Key>> = "outside",
        /// The annotations of each, by number from the first of the answer.
        annotated: Vec<u64> = "annotated",
        /// What each calls: the sum of 1 for functions of workers in Rust, 2 for those of Python, and
        /// 4 if it is a value.
        calls: Vec<u64> = "calls",
        /// The annotations that no earlier part of the answer has, each a dictionary.
        annotations: Vec<Value> = "annotations",
        /// Whether these are the last tasks.
        is_last: bool = "is_last",
    }

    /// Returns the pickles of tasks of a graph, a part of the answer to [`ConvertGraph`], in the order of
    /// [`GraphOrder`].
    GraphPickles = "graph-pickles" {
        /// The pickle of a tuple of tasks, as [`split_tuple`](crate::graph::split_tuple) takes it.
        tasks: Bytes = "tasks",
        /// The pickles of tasks, for workers, unless `tasks` has them.
        run_specs: Vec<Bytes> = "run_specs",
        /// The pickle of one more task, if it is large.
        large: Nullable<Serialized> = "large",
    }

    /// Returns a run of a shuffle, the answer to [`CreateShuffleRun`].
    ShuffleRun = "shuffle-run" {
        /// The pickle of the run, for workers.
        run_spec: Bytes = "run_spec",
        /// The workers that outputs are assigned to.
        workers: Vec<String> = "workers",
    }

    /// Ends the answer of a helper.
    HelperFinished = "helper-finished" {}

    /// Ends the answer of a helper with an exception.
    HelperErred = "helper-erred" {
        /// The pickle of the exception.
        exception: Bytes = "exception",
        /// The pickle of its traceback, unless that is too long.
        traceback: Nullable<Bytes> = "traceback",
        /// The exception as a string.
        text: String = "text",
    }

    /// Asks the scheduler to perform a request, for a function or a plugin of a client. The answer has
    /// the same id.
    PluginAsked = "ask" {
        /// A new id.
        id: u64 = "id",
        /// The request.
        request: Option<Request> = "request",
    }

    /// Reads a part of the scheduler's state, for a function or a plugin of a client. The answer has
    /// the same id.
    PluginView = "view" {
        /// A new id.
        id: u64 = "id",
        /// What is read.
        kind: String = "kind",
        /// The key of the task, the address of the worker, or the name of the client.
        name: Nullable<Key> = "name",
        /// The number from which a long list is read.
        after: u64 = "after",
    }

    /// Says that a client has uploaded a file, which is in the directory for them.
    PluginUploaded = "uploaded" {}

    /// Returns a part of the answer to a [`PluginCall`].
    PluginReplied = "reply" {
        /// The id of the call.
        id: u64 = "id",
        /// The part.
        reply: Value = "reply",
        /// Whether it is the last part.
        is_last: bool = "is_last",
    }

    /// Says that the process of plugins handles calls.
    PluginsStarted = "started" {
        /// Why its modules cannot be loaded; nil if they were.
        error: Nullable<String> = "error",
    }

    /// Names the plugins, and what they want to be told.
    PluginsChanged = "plugins" {
        /// The names of all plugins.
        names: Vec<String> = "names",
        /// The pickles of new plugins that no client has registered, by name, for the process that
        /// may follow this one.
        saved: Map<String, Bytes> = "saved",
        /// The names of those that cannot be pickled.
        unsaved: Vec<String> = "unsaved",
        /// Whether one observes the transitions of tasks.
        has_transitions: bool = "has_transitions",
        /// Whether one observes any other events.
        has_events: bool = "has_events",
    }

    /// Says that the process of plugins handles messages.
    PluginPong = "pong" {}

    /// Sends a message on the worker's stream to the scheduler.
    PythonStream = "stream" {
        /// The message.
        message: Unknown = "message",
    }

    /// Reports that the resources of the worker have changed.
    PythonResources = "resources" {
        /// All resources of the worker.
        resources: Map<String, f64> = "resources",
    }

    /// Adds a line to the worker's log.
    PythonLogged = "log" {
        /// The time of the record, in seconds since 1970.
        created: f64 = "created",
        /// The severity, as Python names it.
        level: String = "level",
        /// The formatted record.
        text: String = "text",
    }

    /// Reports that the running task does not count as one of the worker's threads
    /// any more.
    PythonSeceded = "long-running" {
        /// The key of the task.
        key: Key = "key",
        /// The task's run time so far, in seconds.
        compute_duration: f64 = "compute_duration",
    }

    /// Asks for a thread of the worker for the running task, which had seceded and waits for the
    /// reply, [`RejoinedInPython`].
    PythonRejoin = "rejoin" {
        /// The key of the task.
        key: Key = "key",
    }
}

ops! {
    /// A message from a Python process.
    FromPython {
        PythonReady = "ready",
        PythonFinished = "task-finished",
        PythonErred = "task-erred",
        PythonReschedule = "reschedule",
        PythonNeedsHost = "needs-host",
        PythonShuffle = "shuffle",
        PythonWatches = "watch",
        PythonSeceded = "long-running",
        PythonRejoin = "rejoin",
        PythonLogged = "log",
        PythonStream = "stream",
        PythonResources = "resources",
    }
}

ops! {
    /// A message from a helper of a scheduler.
    FromHelper {
        PythonReady = "ready",
        GraphTasks = "graph-tasks",
        GraphPickles = "graph-pickles",
        ShuffleRun = "shuffle-run",
        HelperFinished = "helper-finished",
        HelperErred = "helper-erred",
    }
}

ops! {
    /// A message from the process of a scheduler that runs functions and plugins of clients.
    FromPlugins {
        PythonReady = "ready",
        PluginAsked = "ask",
        PluginView = "view",
        PluginUploaded = "uploaded",
        PluginReplied = "reply",
        PluginsStarted = "started",
        PluginsChanged = "plugins",
        PluginPong = "pong",
        PythonLogged = "log",
    }
}
