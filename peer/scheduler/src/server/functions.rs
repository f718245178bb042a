//! Functions and plugins of clients, which run in a process of Python.

use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use daskwire_comm::runtime::{self, Instant, TaskSet};
use daskwire_messages::protocol::{
    FromPlugins, PluginAsked, PluginCall, PluginView, RegisterSchedulerPlugin, Request,
    StartPlugins, Unknown,
};
use daskwire_messages::{Key, Value};
use daskwire_python::anonymous_memory;
use daskwire_rpc::channel::Channel;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OnceCell, mpsc, watch};

use super::Shared;
use super::reply::{Reply, refused};
use crate::Notice;
use crate::python::{PluginEvent, PluginProcess, PluginSender, Python};
use crate::state::{SchedulerInput, UnknownOps};

/// Interval at which the process is asked whether it answers, and its memory is measured.
const PAUSE: Duration = Duration::from_millis(500);

/// Maximum number of times that the process is started again for its plugins without a pause of
/// [`RESTART_INTERVAL`] between them.
const MAX_RESTARTS: u32 = 3;
const RESTART_INTERVAL: Duration = Duration::from_secs(600);

/// Pause after an attempt to start the process again that fails, for each of them.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// Time for plugins to close, after which their process is ended.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(30);

/// The requests of clients that the process is to serve.
#[derive(Debug)]
pub(super) struct Calls {
    sender: mpsc::UnboundedSender<Call>,
    /// Taken by [`Shared::serve_plugins`].
    receiver: Mutex<Option<mpsc::UnboundedReceiver<Call>>>,
    /// Whether the preloaded modules have been set up, or why they could not be loaded, once this
    /// has been tried.
    preloaded: watch::Sender<Option<Result<(), String>>>,
    /// Set once plugins have been told that the scheduler closes. Closing is asked for by a client,
    /// and again by the program that runs the scheduler.
    plugins_closed: OnceCell<()>,
}

#[derive(Debug)]
struct Call {
    request: Unknown,
    parts: Parts,
}

/// Where the parts of an answer go, or the reason why there is none.
type Parts = mpsc::Sender<Result<Value, String>>;

/// Maximum number of parts that wait for a client: one of a feed, whose function is not called again
/// before the client has it, and the last. All but feeds have one part.
const MAX_PARTS: usize = 2;

/// What the process of plugins is told about.
#[derive(Debug)]
pub(super) struct Observer {
    sender: PluginSender,
    has_transitions: bool,
    has_events: bool,
}

impl Default for Calls {
    fn default() -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let receiver = Mutex::new(Some(receiver));
        Self {
            sender,
            receiver,
            preloaded: watch::Sender::new(None),
            plugins_closed: OnceCell::new(),
        }
    }
}

impl Calls {
    /// Says how the first attempt to load the preloaded modules has ended.
    fn preloaded(&self, outcome: Result<(), &str>) {
        self.preloaded.send_if_modified(|known| {
            let is_first = known.is_none();
            known.get_or_insert_with(|| outcome.map_err(str::to_owned));
            is_first
        });
    }

    /// Has the process serve a request. Returns the parts of the answer.
    fn start(&self, request: Unknown) -> mpsc::Receiver<Result<Value, String>> {
        let (parts, receiver) = mpsc::channel(MAX_PARTS);
        // Without a receiver, the scheduler ends.
        let _ = self.sender.send(Call { request, parts });
        receiver
    }
}

impl Observer {
    pub(super) const fn has_transitions(&self) -> bool {
        self.has_transitions
    }

    pub(super) const fn has_events(&self) -> bool {
        self.has_events
    }

    pub(super) fn observe(&self, event: PluginEvent) {
        let is_wanted = match event {
            PluginEvent::Transition(_) | PluginEvent::Ended(_) => self.has_transitions,
            _ => self.has_events,
        };
        if is_wanted {
            self.sender.event(event);
        }
    }
}

/// The process, and what belongs to it.
struct Running {
    process: PluginProcess,
    calls: HashMap<u64, Parts>,
    last_id: u64,
    /// Whether it handles calls: its modules are loaded.
    is_started: bool,
    /// The registrations of plugins that are not answered yet, by the id of the call, with the names
    /// of those that are repeated.
    registering: HashMap<u64, (Option<String>, Unknown)>,
    /// Since when the process has not answered.
    silent_since: Option<Instant>,
    /// The reason why it has to end.
    end: Option<String>,
}

/// The plugins by name, and how they are added when the process is started again. Those without were
/// added in the process, and cannot be pickled.
type Registered = Vec<(String, Option<Unknown>)>;

impl Shared {
    /// Has the process of plugins serve a request, and returns the reply.
    pub(super) async fn call_python(&self, request: Unknown) -> Reply {
        let mut parts = self.calls.start(request);
        match parts.recv().await {
            Some(Ok(value)) => Reply::Value(value),
            Some(Err(why)) => refused("RuntimeError", &why),
            None => refused("RuntimeError", "the scheduler ends"),
        }
    }

    /// Registers a plugin of the scheduler.
    pub(super) async fn register_plugin(&self, request: RegisterSchedulerPlugin) -> Reply {
        let mut call = Unknown::new("register_scheduler_plugin").field("plugin", request.plugin);
        if let Some(name) = request.name {
            call = call.field("name", name);
        }
        let is_idempotent = request.idempotent.unwrap_or(false);
        match self
            .call_python(call.field("idempotent", is_idempotent))
            .await
        {
            Reply::Value(reply) if reply.get("registered").is_some() => Reply::Value(Value::None),
            reply => reply,
        }
    }

    /// Sends a client what its function returns, again and again, until the comm ends.
    pub(super) async fn feed(&self, mut channel: Channel, mut request: Unknown) {
        request.extra.retain(|(name, _)| {
            let name = name.as_str();
            name.is_some_and(|name| FEED_FIELDS.contains(&name))
        });
        let mut parts = self.calls.start(request);
        loop {
            tokio::select! {
                part = parts.recv() => {
                    let part = match part {
                        Some(Ok(part)) => Reply::Value(part),
                        Some(Err(why)) => refused("RuntimeError", &why),
                        None => break,
                    };
                    if channel.sender.send(&part).await.is_err() {
                        break;
                    }
                }
                // The client sends nothing.
                _ = channel.receiver.receive::<Value>() => break,
                () = self.closed() => break,
            }
        }
        // Dropping the parts stops the function.
        drop(parts);
        channel.close().await;
    }

    /// Reports an event to plugins, if they observe any.
    pub(super) fn observe(&self, event: PluginEvent) {
        self.with_machine(|machine| {
            if let Some(observer) = &machine.outbox.observer {
                observer.observe(event);
            }
        });
    }

    /// Whether plugins observe events.
    pub(super) fn is_observed(&self) -> bool {
        self.with_machine(|machine| {
            let observer = machine.outbox.observer.as_ref();
            observer.is_some_and(Observer::has_events)
        })
    }

    /// The graphs of a client among events, for plugins that observe them.
    pub(super) fn graphs_of(
        &self,
        client: &str,
        events: &[SchedulerInput],
    ) -> VecDeque<PluginEvent> {
        let graphs = events.iter().filter_map(|event| match event {
            // One of which a part came before the first plugin is none that it observes.
            SchedulerInput::Submitted(_, graph) if graph.is_whole() => Some(graph),
            _ => None,
        });
        let mut graphs = graphs.peekable();
        if graphs.peek().is_none() || !self.is_observed() {
            return VecDeque::new();
        }
        graphs
            .map(|graph| PluginEvent::Graph(client.to_owned(), graph.view()))
            .collect()
    }

    /// Serves the requests of clients that need the process of plugins, which is started with the
    /// first of them, and again after it has ended.
    pub(crate) async fn serve_plugins(self: Arc<Self>) {
        let receiver = self.calls.receiver.lock();
        let receiver = receiver.unwrap_or_else(PoisonError::into_inner).take();
        let (Some(python), Some(mut calls)) = (self.python.clone(), receiver) else {
            return;
        };
        let mut registered = Registered::new();
        let (mut restart_count, mut started) = (0, runtime::now());
        let has_preloads = !python.options().preload.is_empty();
        let mut loads_first = has_preloads;
        let mut has_started = false;
        loop {
            let mut first = None;
            if registered.is_empty() && !loads_first {
                first = calls.recv().await;
                if first.is_none() {
                    return;
                }
            }
            let start = StartPlugins {
                address: self.address.clone(),
                id: self.id.clone(),
                local_directory: python.upload_directory(),
                preload: python.options().preload.clone(),
                preload_argv: python.options().preload_argv.clone(),
                ..StartPlugins::default()
            };
            if elapsed(started) >= RESTART_INTERVAL {
                restart_count = 0;
                started = runtime::now();
            }
            let process = match python.start_plugins(start).await {
                Ok(process) => process,
                Err(error) => {
                    let why = format!("the Python process for plugins cannot be started: {error}");
                    self.plugins_failed(&why, &mut registered);
                    self.calls.preloaded(Err(&why));
                    loads_first = false;
                    if let Some(call) = first {
                        deliver(&call.parts, Err(why));
                    }
                    continue;
                }
            };
            let mut running = Running::new(process);
            // They wait until the process has loaded its modules.
            let mut waiting: VecDeque<(Call, Option<String>)> = VecDeque::new();
            for (name, request) in core::mem::take(&mut registered) {
                let Some(request) = request else {
                    continue;
                };
                let (parts, _) = mpsc::channel(1);
                waiting.push_back((Call { request, parts }, Some(name)));
            }
            waiting.extend(first.map(|call| (call, None)));
            self.run_plugins(
                &python,
                &mut running,
                &mut waiting,
                &mut calls,
                &mut registered,
            )
            .await;
            self.observe_with(None);
            for (name, request) in core::mem::take(&mut running.registering).into_values() {
                registered.extend(name.map(|name| (name, Some(request))));
            }
            has_started |= running.is_started;
            let starts_slowly = !running.is_started;
            let ended = running.ended().await;
            for (Call { request, parts }, name) in waiting {
                registered.extend(name.map(|name| (name, Some(request))));
                deliver(&parts, Err(ended.clone()));
            }
            self.calls.preloaded(Err(&ended));
            if self.is_closing.load(Ordering::Acquire) {
                return;
            }
            restart_count += 1;
            loads_first = has_preloads && has_started && restart_count <= MAX_RESTARTS;
            if restart_count > MAX_RESTARTS || !has_started {
                self.plugins_failed(&ended, &mut registered);
            } else {
                let lost = registered.iter().filter(|(_, request)| request.is_none());
                let lost: Vec<&str> = lost.map(|(name, _)| name.as_str()).collect();
                let lost = match lost.is_empty() {
                    true => String::new(),
                    false => format!(
                        "; these plugins are lost, since they cannot be pickled: {}",
                        lost.join(", ")
                    ),
                };
                let message = format!("{ended}{lost}");
                self.notify(&Notice::Plugins { message });
                registered.retain(|(_, request)| request.is_some());
                if starts_slowly {
                    // What its modules need may be there again then.
                    runtime::sleep(RESTART_PAUSE * restart_count).await;
                }
            }
        }
    }

    /// Gives up plugins, which cannot be registered again.
    fn plugins_failed(&self, why: &str, registered: &mut Registered) {
        let names = registered.drain(..).map(|(name, _)| {
            self.note_plugin("scheduler", &name, false);
            name
        });
        let names = names.collect::<Vec<_>>().join(", ");
        let lost = match names.is_empty() {
            true => String::new(),
            false => format!("; these plugins are removed: {names}"),
        };
        let message = format!("{why}{lost}");
        self.notify(&Notice::Plugins { message });
    }

    /// Serves requests until the process has ended, or has to end.
    async fn run_plugins(
        self: &Arc<Self>,
        python: &Arc<Python>,
        running: &mut Running,
        waiting: &mut VecDeque<(Call, Option<String>)>,
        calls: &mut mpsc::UnboundedReceiver<Call>,
        registered: &mut Registered,
    ) {
        let mut asking: TaskSet<Option<Taken>> = TaskSet::new();
        let mut tick = runtime::later(PAUSE);
        loop {
            // Modules that are set up slowly are told that the scheduler closes.
            let serves = running.is_started || self.is_closing.load(Ordering::Acquire);
            tokio::select! {
                biased;
                () = runtime::sleep_until(tick) => {
                    tick = runtime::later(PAUSE);
                    if running.has_to_end(python) {
                        return;
                    }
                }
                message = running.process.messages.recv() => {
                    let Some(message) = message else {
                        return;
                    };
                    self.on_message(python, message, running, registered, &mut asking);
                    if running.end.is_some() {
                        return;
                    }
                    if running.is_started {
                        for (call, repeated) in waiting.drain(..) {
                            running.call(call, repeated);
                        }
                    }
                }
                call = calls.recv(), if serves => match call {
                    Some(call) => running.call(call, None),
                    None => return,
                },
                Some(done) = asking.join_next() => {
                    if let Ok(Some(taken)) = done {
                        running.taken(&taken);
                    }
                }
            }
        }
    }

    fn on_message(
        self: &Arc<Self>,
        python: &Arc<Python>,
        message: FromPlugins,
        running: &mut Running,
        registered: &mut Registered,
        asking: &mut TaskSet<Option<Taken>>,
    ) {
        match message {
            FromPlugins::PluginPong(_) => running.silent_since = None,
            FromPlugins::PluginReplied(part) => {
                if let Some((repeated, request)) = running.registering.remove(&part.id) {
                    if let Some(name) = part.reply.get("registered").and_then(Value::as_str) {
                        registered.retain(|(known, _)| known != name);
                        registered.push((name.to_owned(), Some(request)));
                        self.note_plugin("scheduler", name, true);
                    } else if let Some(name) = repeated {
                        let why = part.reply.get("exception_text").and_then(Value::as_str);
                        let why = why.unwrap_or("no reason");
                        let message = format!("the plugin {name} cannot be added again: {why}");
                        self.notify(&Notice::Plugins { message });
                    }
                }
                let id = part.id;
                if let Some(parts) = running.reply(id, part.reply, part.is_last) {
                    asking.spawn(async move {
                        let is_wanted = parts.reserve_many(MAX_PARTS).await.is_ok();
                        Some(Taken { id, is_wanted })
                    });
                }
            }
            FromPlugins::PluginsStarted(started) => match started.error.0 {
                None => {
                    running.is_started = true;
                    self.calls.preloaded(Ok(()));
                }
                Some(error) => {
                    self.calls.preloaded(Err(&error));
                    running.end = Some(format!("its modules cannot be loaded: {error}"));
                }
            },
            FromPlugins::PluginsChanged(plugins) => {
                registered.retain(|(name, _)| {
                    let is_kept = plugins.names.contains(name);
                    if !is_kept {
                        self.note_plugin("scheduler", name, false);
                    }
                    is_kept
                });
                let saved = plugins.saved.into_iter().map(|(name, plugin)| {
                    let request = Unknown::new("restore_plugin");
                    let request = request.field("plugin", Value::Bytes(plugin));
                    (name.clone(), Some(request.field("name", name)))
                });
                let unsaved = plugins.unsaved.into_iter().map(|name| (name, None));
                for (name, request) in saved.chain(unsaved) {
                    self.note_plugin("scheduler", &name, true);
                    registered.retain(|(known, _)| *known != name);
                    registered.push((name, request));
                }
                self.observe_with(Some(Observer {
                    sender: running.process.sender.clone(),
                    has_transitions: plugins.has_transitions,
                    has_events: plugins.has_events,
                }));
            }
            FromPlugins::PythonLogged(line) => {
                let message = line.text;
                self.notify(&Notice::Plugins { message });
            }
            FromPlugins::PluginAsked(asked) => {
                let shared = Arc::clone(self);
                let sender = running.process.sender.clone();
                asking.spawn(async move {
                    let PluginAsked { id, request, .. } = asked;
                    let reply = match request {
                        Some(request) => shared.answer_plugin(request).await,
                        None => Reply::Value(Value::None),
                    };
                    sender.answer(id, reply);
                    None
                });
            }
            FromPlugins::PluginView(view) => {
                let viewed = self.view(&view);
                running.process.sender.answer(view.id, viewed);
            }
            FromPlugins::PluginUploaded(_) => python.forget_modules(),
            FromPlugins::PythonReady(_) | FromPlugins::Unknown(_) => {}
        }
    }

    /// Sets what the process of plugins is told about.
    fn observe_with(&self, observer: Option<Observer>) {
        self.with_machine(|machine| {
            let has_events = observer.as_ref().is_some_and(Observer::has_events);
            let has_transitions = observer.as_ref().is_some_and(Observer::has_transitions);
            machine.outbox.observer = observer;
            machine.handle(SchedulerInput::ObserveEnds(has_transitions));
            machine.handle(SchedulerInput::ObserveTopics(has_events));
        });
    }

    /// Replies to a request of the process of plugins.
    async fn answer_plugin(self: &Arc<Self>, request: Request) -> Reply {
        match request {
            Request::Terminate(_) => {
                let shared = Arc::clone(self);
                // Waits for this process, too.
                drop(runtime::spawn(async move { shared.close().await }));
                Reply::Value(Value::None)
            }
            request => {
                let mut unknown_ops = UnknownOps::default();
                let replying = self.reply_to(request, &"a plugin", &mut unknown_ops);
                Box::pin(replying).await
            }
        }
    }

    /// Reads a part of the state. The reply to what is unknown is nil.
    fn view(&self, view: &PluginView) -> Value {
        let from = u32::try_from(view.after).unwrap_or(u32::MAX);
        let key = view.name.0.as_ref();
        let name = key.and_then(Key::as_str);
        let viewed = self.inspect(|state| match (view.kind.as_str(), key, name) {
            ("workers", ..) => Some(state.view_workers()),
            ("clients", ..) => Some(state.view_clients()),
            ("tasks", ..) => Some(state.view_tasks(from)),
            ("task-count", ..) => Some(Value::from(state.task_count())),
            ("worker", _, Some(address)) => state.view_worker(address),
            ("client", _, Some(name)) => state.view_client(name),
            ("wants_what", _, Some(name)) => Some(state.view_wanted(name, from)),
            ("task", Some(key), _) => state.view_task(key),
            ("dependents", Some(key), _) => Some(state.view_dependents(key, from)),
            _ => None,
        });
        viewed.unwrap_or_default()
    }

    /// Waits until the preloaded modules are set up.
    ///
    /// # Errors
    ///
    /// Why they cannot be loaded.
    pub(crate) async fn preloaded(&self) -> Result<(), String> {
        let python = self.python.as_ref();
        if python.is_none_or(|python| python.options().preload.is_empty()) {
            return Ok(());
        }
        let mut preloaded = self.calls.preloaded.subscribe();
        let preloaded = preloaded.wait_for(Option::is_some).await;
        // There is a sender as long as this exists.
        preloaded.map_or(Ok(()), |outcome| outcome.clone().unwrap_or(Ok(())))
    }

    /// Whether preloaded modules are being set up.
    fn is_preloading(&self) -> bool {
        let python = self.python.as_ref();
        python.is_some_and(|python| !python.options().preload.is_empty())
            && self.calls.preloaded.borrow().is_none()
    }

    /// Tells plugins once that the scheduler closes, and waits for them for a short time.
    pub(super) async fn close_plugins(&self) {
        let closing = async {
            let has_plugins = self.with_machine(|machine| machine.outbox.observer.is_some());
            if has_plugins || self.is_preloading() {
                let closing = self.call_python(Unknown::new("close-plugins"));
                if runtime::timeout(CLOSE_TIMEOUT, closing).await.is_err() {
                    let message = format!("plugins have not closed within {CLOSE_TIMEOUT:?}");
                    self.notify(&Notice::Plugins { message });
                }
            }
        };
        self.calls.plugins_closed.get_or_init(|| closing).await;
    }
}

/// A part of an answer that a client has taken.
#[derive(Debug)]
struct Taken {
    /// The id of the call.
    id: u64,
    /// Whether the client still needs parts.
    is_wanted: bool,
}

/// Passes on a part of an answer. A part that finds too many others waiting is dropped, but the process
/// makes none before the one before it was taken. Returns whether the client still needs parts.
fn deliver(parts: &Parts, part: Result<Value, String>) -> bool {
    !matches!(parts.try_send(part), Err(TrySendError::Closed(_)))
}

/// The fields of a request of a feed that the process needs.
const FEED_FIELDS: [&str; 4] = ["function", "setup", "teardown", "interval"];

fn elapsed(since: Instant) -> Duration {
    runtime::now().saturating_duration_since(since)
}

impl Running {
    fn new(process: PluginProcess) -> Self {
        Self {
            process,
            calls: HashMap::new(),
            last_id: 0,
            is_started: false,
            registering: HashMap::new(),
            silent_since: None,
            end: None,
        }
    }

    fn call(&mut self, call: Call, repeated: Option<String>) {
        let Call { request, parts } = call;
        let id = self.next_id();
        if repeated.is_some() || request.op == "register_scheduler_plugin" {
            self.registering.insert(id, (repeated, request.clone()));
        }
        self.calls.insert(id, parts);
        self.process.sender.call(PluginCall {
            id,
            request,
            ..PluginCall::default()
        });
    }

    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Passes on a part of an answer. Returns where it waits to be [taken](Self::taken), unless it is
    /// the last.
    fn reply(&mut self, id: u64, reply: Value, is_last: bool) -> Option<Parts> {
        let parts = self.calls.get(&id)?.clone();
        deliver(&parts, Ok(reply));
        if is_last {
            self.calls.remove(&id);
        }
        (!is_last).then_some(parts)
    }

    /// Has a function called again whose client has taken what it returned last. Stops one that the
    /// client does not need any more.
    // As Dask, which waits until the answer is written to the client.
    fn taken(&mut self, Taken { id, is_wanted }: &Taken) {
        if *is_wanted {
            let request = Unknown::new("taken").field("call", *id);
            let call = PluginCall {
                id: self.next_id(),
                request,
                ..PluginCall::default()
            };
            self.process.sender.call(call);
        } else if self.calls.remove(id).is_some() {
            self.stop(*id);
        }
    }

    /// Stops a function that is called again and again.
    fn stop(&mut self, id: u64) {
        let request = Unknown::new("stop").field("call", id);
        let call = PluginCall {
            id: self.next_id(),
            request,
            ..PluginCall::default()
        };
        self.process.sender.call(call);
    }

    /// Whether the process exceeds a limit. Asks it whether it answers.
    fn has_to_end(&mut self, python: &Python) -> bool {
        let options = python.options();
        if let Some(limit) = options.memory_limit
            && anonymous_memory(&self.process.child.id.to_string()) > limit
        {
            let why = format!("it took more memory than the limit of {limit} bytes");
            self.end = Some(why);
            return true;
        }
        match self.silent_since {
            Some(since) if elapsed(since) >= options.time_limit => {
                let limit = options.time_limit.as_secs_f64();
                let why = format!(
                    "a function or a hook of a plugin took longer than the limit of {limit} s"
                );
                self.end = Some(why);
                return true;
            }
            Some(_) => {}
            None => {
                self.silent_since = Some(runtime::now());
                self.process.sender.ping();
            }
        }
        false
    }

    /// Ends the process, if it has not ended, and tells those who wait for it why.
    async fn ended(self) -> String {
        let child = Arc::clone(&self.process.child);
        let how = runtime::spawn_blocking(move || child.end()).await;
        let how = how.unwrap_or_else(|_| "the scheduler ends".to_owned());
        let why = self.end.unwrap_or(how);
        let ended = format!("the process of functions and plugins has ended: {why}");
        for parts in self.calls.into_values() {
            deliver(&parts, Err(ended.clone()));
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feed_has_room_for_its_last_part() {
        let (parts, mut receiver) = mpsc::channel(MAX_PARTS);
        assert!(deliver(&parts, Ok(Value::from(1))));
        let failed = Err("the process has ended".to_owned());
        assert!(deliver(&parts, failed.clone()));
        assert_eq!(receiver.try_recv(), Ok(Ok(Value::from(1))));
        assert_eq!(receiver.try_recv(), Ok(failed));
        drop(receiver);
        assert!(!deliver(&parts, Ok(Value::None)));
    }
}
