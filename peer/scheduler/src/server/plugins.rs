//! Dask's plugins of workers and nannies. Their pickles are stored and forwarded unopened.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use daskwire_messages::Value;
use daskwire_messages::protocol::{Broadcast, Field as _, RegisterSchedulerPlugin, Unknown};
use daskwire_messages::value::{Object, Serialized};
use daskwire_rpc::channel::Channel;

use super::operations::reason;
use super::reply::{Reply, refused};
use super::{SchedulerInput, Shared};

/// The processes that a plugin is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PluginKind {
    Worker,
    Nanny,
}

impl PluginKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Nanny => "nanny",
        }
    }
}

/// The plugins of workers and nannies: their names and pickles, in the order of their
/// registration.
#[derive(Debug, Default)]
pub(super) struct Plugins {
    workers: Mutex<Vec<(String, Value)>>,
    nannies: Mutex<Vec<(String, Value)>>,
    /// The names of plugins of the scheduler, which have no effect here.
    ignored: Mutex<BTreeSet<String>>,
    /// Number of nannies that have the plugins, and whose workers have not started yet.
    starting_count: AtomicUsize,
    started: Notify,
}

impl Plugins {
    fn list(&self, kind: PluginKind) -> MutexGuard<'_, Vec<(String, Value)>> {
        let list = match kind {
            PluginKind::Worker => &self.workers,
            PluginKind::Nanny => &self.nannies,
        };
        // Nothing that can panic runs under the lock.
        list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ignored(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.ignored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The plugins in the form of Dask's replies.
    pub(super) fn of(&self, kind: PluginKind) -> Value {
        Value::dict(self.list(kind).iter().cloned())
    }

    /// Stores a plugin, unless all plugins of the kind would take more than `max_len` bytes.
    fn insert(
        &self,
        kind: PluginKind,
        (name, plugin): (&str, &Value),
        keep: bool,
        max_len: usize,
    ) -> Inserted {
        let mut list = self.list(kind);
        if keep && list.iter().any(|(known, _)| known == name) {
            return Inserted::Kept;
        }
        let others = list.iter().filter(|(known, _)| known != name);
        let others: usize = others.map(|(name, plugin)| len_of(name, plugin)).sum();
        if others.saturating_add(len_of(name, plugin)) > max_len {
            return Inserted::Full;
        }
        match list.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = plugin.clone(),
            None => list.push((name.to_owned(), plugin.clone())),
        }
        Inserted::Stored
    }

    /// Stores Dask's plugin for P2P shuffles, which workers with Python load.
    #[cfg(target_os = "linux")]
    pub(super) fn add_shuffle(&self) {
        /// A pickle of `distributed.shuffle.ShuffleWorkerPlugin()`.
        const PLUGIN: &[u8] =
            b"\x80\x04cdistributed.shuffle._worker_plugin\nShuffleWorkerPlugin\n)R.";
        let plugin = Value::Bytes(PLUGIN.into());
        self.list(PluginKind::Worker)
            .push(("shuffle".to_owned(), plugin));
    }

    fn remove(&self, kind: PluginKind, name: &str) -> bool {
        let mut list = self.list(kind);
        let len = list.len();
        list.retain(|(known, _)| known != name);
        list.len() < len
    }

    /// Waits until the workers of all nannies that have registered have started.
    async fn nannies_started(&self) {
        loop {
            let mut started = core::pin::pin!(self.started.notified());
            started.as_mut().enable();
            if self.starting_count.load(Ordering::Acquire) == 0 {
                return;
            }
            started.await;
        }
    }
}

/// The outcome of storing a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inserted {
    Stored,
    /// There is a plugin of the name, which stays.
    Kept,
    Full,
}

/// The memory of a plugin in bytes, with that of its entry.
fn len_of(name: &str, plugin: &Value) -> usize {
    const ENTRY_LEN: usize = 64;
    name.len() + plugin.heap_len() + ENTRY_LEN
}

/// Guard that counts a nanny that is starting.
struct StartingNanny<'p>(&'p Plugins);

impl<'p> StartingNanny<'p> {
    fn new(plugins: &'p Plugins) -> Self {
        plugins.starting_count.fetch_add(1, Ordering::AcqRel);
        Self(plugins)
    }
}

impl Drop for StartingNanny<'_> {
    fn drop(&mut self) {
        self.0.starting_count.fetch_sub(1, Ordering::AcqRel);
        self.0.started.notify_waiters();
    }
}

impl Shared {
    /// Sends a nanny its plugins, and waits until its worker has started, or the nanny has
    /// failed.
    pub(super) async fn start_nanny(&self, mut channel: Channel) {
        let starting = StartingNanny::new(&self.plugins);
        let reply = Value::dict([
            ("status", Value::from("OK")),
            ("nanny-plugins", self.plugins.of(PluginKind::Nanny)),
        ]);
        if channel.sender.send(&reply).await.is_ok() {
            // The end of the comm means the same as any message.
            let _ = channel.receiver.receive::<Value>().await;
        }
        drop(starting);
        channel.close().await;
    }

    /// Has the journal say that a plugin of a kind of process is registered, or is not any more.
    pub(super) fn note_plugin(&self, kind: &str, name: &str, is_registered: bool) {
        if self.has_journal() {
            self.handle(SchedulerInput::PluginRegistered {
                name: format!("{name} ({kind})"),
                is_registered,
            });
        }
    }

    /// Stores a plugin, and sends it to all workers or nannies. Returns their replies.
    pub(super) async fn add_plugin(
        self: &Arc<Self>,
        kind: PluginKind,
        name: String,
        plugin: Value,
        idempotent: Option<bool>,
    ) -> Reply {
        let keep = idempotent.unwrap_or(false);
        let max_len = self.options.policy.max_shared_len;
        match self.plugins.insert(kind, (&name, &plugin), keep, max_len) {
            Inserted::Stored => self.note_plugin(kind.name(), &name, true),
            Inserted::Kept => return Reply::Value(Value::Dict([].into())),
            Inserted::Full => {
                let message = format!("the scheduler stores at most {max_len} bytes of plugins");
                return refused("MemoryError", &message);
            }
        }
        let op = match kind {
            PluginKind::Worker => "plugin-add",
            PluginKind::Nanny => "plugin_add",
        };
        let message = Unknown::new(op).field("plugin", plugin);
        self.send_plugin(kind, message.field("name", name)).await
    }

    /// Removes a plugin from all workers or nannies. Returns their replies.
    pub(super) async fn remove_plugin(self: &Arc<Self>, kind: PluginKind, name: String) -> Reply {
        let what = kind.name();
        let op = match kind {
            PluginKind::Worker => "plugin-remove",
            PluginKind::Nanny => "plugin_remove",
        };
        if !self.plugins.remove(kind, &name) {
            let message = format!("The {what} plugin {name} does not exist");
            return refused("ValueError", &message);
        }
        self.note_plugin(what, &name, false);
        self.send_plugin(kind, Unknown::new(op).field("name", name))
            .await
    }

    /// Replies to a request to add a plugin to the scheduler, which runs no Python.
    pub(super) fn add_scheduler_plugin(&self, request: &RegisterSchedulerPlugin) -> Reply {
        /// The class of the plugin that `Client.upload_file` adds besides the one of workers. A file
        /// of Python does not concern this scheduler.
        const UPLOAD: &str = "distributed.diagnostics.plugin.SchedulerUploadFile";
        const MAX_COUNT: usize = 1 << 16;
        let class = match &request.plugin {
            Value::Bytes(plugin) => {
                let plugin = Serialized::of_written_pickle(plugin.clone()).open().ok();
                let plugin = plugin.and_then(|plugin| Object::try_from(plugin).ok());
                plugin.map(|plugin| plugin.class().to_owned())
            }
            _ => None,
        };
        if class.as_deref() != Some(UPLOAD) {
            return refused("NotImplementedError", &reason("register_scheduler_plugin"));
        }
        let mut ignored = self.plugins.ignored();
        if ignored.len() < MAX_COUNT {
            ignored.insert(request.name.clone().unwrap_or_default());
        }
        Reply::Value(Value::None)
    }

    pub(super) fn remove_scheduler_plugin(&self, name: &str) -> Reply {
        if self.plugins.ignored().remove(name) {
            return Reply::Value(Value::None);
        }
        let message = format!("Could not find plugin '{name}' among the current scheduler plugins");
        refused("ValueError", &message)
    }

    async fn send_plugin(self: &Arc<Self>, kind: PluginKind, message: Unknown) -> Reply {
        if kind == PluginKind::Nanny {
            // The scheduler does not know a nanny before its worker has joined.
            self.plugins.nannies_started().await;
        }
        self.broadcast(Broadcast {
            msg: message,
            nanny: Some(kind == PluginKind::Nanny),
            ..Broadcast::default()
        })
        .await
    }
}
