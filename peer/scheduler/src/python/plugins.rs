//! The process that runs functions and plugins of clients, and what it is sent.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::thread;

use daskwire::message::{BuildError, MessageBuilder};
use daskwire_comm::runtime;
use daskwire_messages::Value;
use daskwire_messages::protocol::{
    Field, FromPlugins, PluginCall, PluginEvents, PluginPing, ProtocolError, Source, StartPlugins,
};
use daskwire_python::{ChildProcess, Link, start_plugins};
use daskwire_rpc::TaskEvent;
use daskwire_rpc::story::TaskChange;

use super::Python;

/// Maximum length of the events that wait for the process, in bytes. Further ones are dropped.
const MAX_WAITING_LEN: usize = 64 << 20;

/// Length of an event in bytes without its strings.
const EVENT_LEN: usize = 256;

/// Maximum number of events in a message.
const BATCH_COUNT: usize = 1000;

/// Number of messages of the process that wait to be handled.
const WAITING_COUNT: usize = 64;

/// The process, which runs as long as this exists.
#[derive(Debug)]
pub(crate) struct PluginProcess {
    pub(crate) child: Arc<ChildProcess>,
    pub(crate) sender: PluginSender,
    /// What the process sends, until it ends.
    pub(crate) messages: tokio::sync::mpsc::Receiver<FromPlugins>,
}

/// Sends messages to the process, in their order, without waiting for it.
#[derive(Clone, Debug)]
pub(crate) struct PluginSender {
    commands: mpsc::Sender<Command>,
    waiting: Arc<Waiting>,
}

/// The events that were not sent yet.
#[derive(Debug, Default)]
struct Waiting {
    len: AtomicUsize,
    /// Number of events that were dropped, which the process was not told yet.
    missed_count: AtomicUsize,
}

#[derive(Debug)]
enum Command {
    Call(PluginCall),
    Answer(Answer),
    Ping,
    Event(PluginEvent),
}

/// An event for plugins.
#[derive(Debug)]
pub(crate) enum PluginEvent {
    /// A transition of a task.
    Transition(TaskEvent),
    /// What a worker says about a task that it has run, before the transition.
    Ended(Value),
    /// An event of a topic, and whether the scheduler itself has published it.
    Published {
        topic: String,
        message: Value,
        is_own: bool,
    },
    /// A client's graph: its name, and [`Submission::view`](crate::state::Submission::view).
    Graph(String, Vec<Value>),
    /// All tasks are forgotten.
    Restarted,
}

/// The answer to a request of the process.
#[derive(Debug)]
struct Answer {
    id: u64,
    reply: Box<dyn Encode>,
}

/// A reply of any type.
pub(crate) trait Encode: core::fmt::Debug + Send {
    /// As [`Field::write`].
    fn write<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError>;
}

impl<T: Field + core::fmt::Debug + Send> Encode for T {
    fn write<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
        Field::write(self, to)
    }
}

impl Field for Answer {
    fn read(source: &mut Source<'_>) -> Result<Self, ProtocolError> {
        Ok(Self {
            id: 0,
            reply: Box::new(Value::read(source)?),
        })
    }

    fn write<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
        to.body().map(3);
        to.body().str("op").str("answer").str("id");
        Field::write(&self.id, to)?;
        to.body().str("reply");
        self.reply.write(to)
    }
}

impl Python {
    /// Starts the process.
    ///
    /// # Errors
    ///
    /// If it cannot be started, or ends before it is ready.
    pub(crate) async fn start_plugins(
        self: &Arc<Self>,
        start: StartPlugins,
    ) -> io::Result<PluginProcess> {
        let python = Arc::clone(self);
        let starting = runtime::spawn_blocking(move || {
            let (child, mut sending, receiving) =
                start_plugins(&python.template, &python.memory, &start.local_directory)?;
            sending.send(&start)?;
            let (commands, queue) = mpsc::channel();
            let (reports, messages) = tokio::sync::mpsc::channel(WAITING_COUNT);
            let waiting = Arc::new(Waiting::default());
            let named = |name: &str| thread::Builder::new().name(name.to_owned());
            let (own, queued) = (Arc::downgrade(&child), Arc::clone(&waiting));
            named("plugin-commands").spawn(move || {
                if send_all(sending, &queue, &queued).is_err() {
                    end(&own);
                }
            })?;
            named("plugin-messages").spawn(move || receive_all(receiving, &reports))?;
            Ok(PluginProcess {
                child,
                sender: PluginSender { commands, waiting },
                messages,
            })
        });
        match starting.await {
            Ok(started) => started,
            Err(_) => Err(io::Error::other("the scheduler ends")),
        }
    }
}

impl PluginSender {
    /// Sends a request of a client.
    pub(crate) fn call(&self, call: PluginCall) {
        self.send(Command::Call(call));
    }

    /// Answers a request of the process.
    pub(crate) fn answer(&self, id: u64, reply: impl Encode + 'static) {
        let reply = Box::new(reply);
        self.send(Command::Answer(Answer { id, reply }));
    }

    /// Asks the process whether it handles messages.
    pub(crate) fn ping(&self) {
        self.send(Command::Ping);
    }

    /// Sends an event. If those that wait are too long, it is dropped, and counted.
    pub(crate) fn event(&self, event: PluginEvent) {
        let waiting = &self.waiting;
        let len = event.len();
        if waiting.len.load(Ordering::Relaxed).saturating_add(len) > MAX_WAITING_LEN {
            waiting.missed_count.fetch_add(1, Ordering::Relaxed);
            return;
        }
        waiting.len.fetch_add(len, Ordering::Relaxed);
        self.send(Command::Event(event));
    }

    fn send(&self, command: Command) {
        // An error means that the process has ended, which its messages tell.
        let _ = self.commands.send(command);
    }
}

impl PluginEvent {
    /// The length in bytes, about.
    fn len(&self) -> usize {
        EVENT_LEN
            + match self {
                Self::Transition(event) => event.key.as_msgpack().len(),
                Self::Published { topic, message, .. } => topic.len() + message.heap_len(),
                Self::Graph(_, fields) => fields.heap_len(),
                Self::Ended(record) => record.heap_len(),
                Self::Restarted => 0,
            }
    }

    /// The event as it is sent.
    fn into_value(self) -> Value {
        match self {
            Self::Transition(event) => {
                let TaskChange::State { from, to } = event.change else {
                    return Value::tuple(["none"]);
                };
                Value::tuple([
                    Value::from("transition"),
                    event.key.to_value(),
                    Value::from(from),
                    Value::from(to),
                    Value::from(event.stimulus.to_string()),
                ])
            }
            Self::Published {
                topic,
                message,
                is_own,
            } => Value::tuple([
                Value::from("published"),
                Value::from(topic),
                message,
                Value::from(is_own),
            ]),
            Self::Graph(client, fields) => {
                let head = [Value::from("update-graph"), Value::from(client)];
                Value::tuple(head.into_iter().chain(fields))
            }
            Self::Ended(record) => Value::tuple([Value::from("ended"), record]),
            Self::Restarted => Value::tuple(["restart"]),
        }
    }
}

/// Ends a process that cannot be used any more.
fn end(child: &Weak<ChildProcess>) {
    if let Some(child) = child.upgrade() {
        child.end();
    }
}

fn send_all(mut link: Link, queue: &mpsc::Receiver<Command>, waiting: &Waiting) -> io::Result<()> {
    let mut next = None;
    // A process that runs a function for long does not read meanwhile.
    while let Some(command) = next.take().or_else(|| queue.recv().ok()) {
        match command {
            Command::Call(call) => link.send_without_timeout(&call),
            Command::Answer(answer) => link.send_without_timeout(&answer),
            Command::Ping => link.send_without_timeout(&PluginPing::default()),
            Command::Event(first) => {
                let mut events = Vec::new();
                let mut event = Some(first);
                let mut len = 0;
                while let Some(added) = event.take() {
                    len += added.len();
                    events.push(added.into_value());
                    if events.len() < BATCH_COUNT {
                        match queue.try_recv() {
                            Ok(Command::Event(other)) => event = Some(other),
                            Ok(other) => next = Some(other),
                            Err(_) => {}
                        }
                    }
                }
                let missed_count = waiting.missed_count.swap(0, Ordering::Relaxed);
                if missed_count > 0 {
                    events.push(Value::tuple([
                        Value::from("missed"),
                        Value::from(missed_count),
                    ]));
                }
                let sent = link.send_without_timeout(&PluginEvents {
                    events,
                    ..PluginEvents::default()
                });
                waiting.len.fetch_sub(len, Ordering::Relaxed);
                sent
            }
        }?;
    }
    Ok(())
}

/// Receives messages until the process has ended, or has sent anything else.
fn receive_all(mut link: Link, reports: &tokio::sync::mpsc::Sender<FromPlugins>) {
    while let Ok(message) = link.receive() {
        if reports.blocking_send(message).is_err() {
            return;
        }
    }
}
