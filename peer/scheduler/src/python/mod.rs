//! Python beside the scheduler: processes that do what only Python can do.
//!
//! A [`Helper`] is started when it is first needed, and answers one request at a time. Requests
//! wait for one of a limited number of helpers, in their order. A helper that takes too long, or
//! too much memory, is ended, and another one is started for the next request. Functions and
//! plugins of clients share one more process, a [`PluginProcess`]. None of the code of clients runs
//! in this process.

mod graphs;
mod options;
mod plugins;
mod shuffles;
mod watch;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::{env, fs, io};

use daskwire_comm::runtime;
use daskwire_messages::key::identifier;
use daskwire_python::{Helper, SharedMemory, Template};
use daskwire_rpc::panic_flag::lock_counter;
use tokio::sync::Semaphore;

pub use options::PythonOptions;
pub(crate) use plugins::{PluginEvent, PluginProcess, PluginSender};
use watch::{Watch, Watched};

/// The helpers of a scheduler.
#[derive(Debug)]
pub(crate) struct Python {
    template: Template,
    memory: Arc<SharedMemory>,
    options: PythonOptions,
    /// The number of helpers that may be started or taken from the idle ones, for graphs.
    graph_places: Semaphore,
    /// The same, for runs of shuffles, which do not wait for graphs.
    shuffle_places: Semaphore,
    idle: Mutex<Vec<Helper>>,
    uploads: Uploads,
}

/// The path of the directory of files that clients upload, which the first upload creates. It is
/// removed on drop.
#[derive(Debug)]
struct Uploads(PathBuf);

impl Drop for Uploads {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Python {
    /// Describes the helpers, and starts none.
    ///
    /// # Errors
    ///
    /// If the system provides no file in memory.
    pub(crate) fn new(options: PythonOptions) -> io::Result<Self> {
        let memory = Arc::new(SharedMemory::default());
        let interpreter = options.interpreter.clone();
        Ok(Self {
            template: Template::new(interpreter, Arc::clone(&memory), Default::default())?,
            memory,
            graph_places: Semaphore::new(options.max_processes.get()),
            shuffle_places: Semaphore::new(1),
            options,
            idle: Mutex::default(),
            uploads: Uploads(env::temp_dir().join(format!("daskwire-{}", identifier()))),
        })
    }

    pub(crate) const fn options(&self) -> &PythonOptions {
        &self.options
    }

    /// The directory of files that clients upload.
    pub(crate) fn upload_directory(&self) -> String {
        self.uploads.0.to_string_lossy().into_owned()
    }

    /// Has graphs converted by new processes, which import the modules that were uploaded.
    pub(crate) fn forget_modules(&self) {
        lock_counter(&self.idle).clear();
    }

    /// Has a helper answer a request, once there is a place for it: calls `ask` with it, and with what
    /// limits its time, on a thread for what blocks. The helper is used again after `ask` has succeeded. Dropping the future ends the helper.
    ///
    /// # Errors
    ///
    /// Those of `ask`, if no helper can be started, or if it exceeds a limit.
    async fn ask<T: Send + 'static>(
        self: &Arc<Self>,
        places: &Semaphore,
        ask: impl FnOnce(&mut Helper, &Watched) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        // Never closed.
        let _place = places.acquire().await.map_err(io::Error::other)?;
        let watch = Watch::new(&self.options);
        let watched = watch.process();
        let python = Arc::clone(self);
        let answering = runtime::spawn_blocking(move || {
            let idle = lock_counter(&python.idle).pop();
            let mut helper = match idle {
                Some(helper) if !helper.child.has_ended() => helper,
                _ => {
                    let directory = python.upload_directory();
                    Helper::start(&python.template, &python.memory, &directory)?
                }
            };
            watched.set(&helper.child)?;
            let answer = ask(&mut helper, &watched)?;
            watched.clear();
            lock_counter(&python.idle).push(helper);
            Ok(answer)
        });
        watch.limit(answering).await
    }
}
