//! The helper: a Python process of a scheduler that answers requests which only Python can
//! answer, one at a time.

use std::io;
use std::sync::Arc;

use daskwire_messages::protocol::{Field, FromHelper, FromPlugins, HelperErred, StartHelper};

use super::link::Link;
use super::memory::SharedMemory;
use super::process::{self, ChildProcess, too_early};
use super::template::Template;

/// The name and the source of the module that the process runs.
const MODULE: (&str, &str) = ("scheduler", include_str!("../daskwire/scheduler.py"));

/// Those of the process that runs functions and plugins of clients.
const PLUGINS: (&str, &str) = ("plugins", include_str!("../daskwire/plugins.py"));

/// A helper of a scheduler.
#[derive(Debug)]
pub struct Helper {
    /// The process. Another thread may end it while this one waits for an answer.
    pub child: Arc<ChildProcess>,
    link: Link,
}

impl Helper {
    /// Starts a helper, and waits until it is ready. It imports modules from `directory`, too.
    ///
    /// # Errors
    ///
    /// If no process can be started, or it ends or sends anything before it is ready.
    pub fn start(
        template: &Template,
        memory: &Arc<SharedMemory>,
        directory: &str,
    ) -> io::Result<Self> {
        let is_ready = |message: FromHelper| match message {
            FromHelper::PythonReady(_) => Ok(true),
            other => Err(too_early(other.op())),
        };
        let (_, link, child) =
            process::start(template, &start(MODULE, directory), memory, is_ready)?;
        Ok(Self { child, link })
    }

    /// Sends a request, and calls `on` with each part of the answer, and the link to send what the helper
    /// waits for. Blocks. Returns the exception of Python, if the answer ended with one.
    ///
    /// # Errors
    ///
    /// Those of `on`, if the process has ended, or if it has sent anything but messages of an
    /// answer. The helper cannot be used after an error.
    pub fn request(
        &mut self,
        request: &impl Field,
        mut on: impl FnMut(&mut Link, FromHelper) -> io::Result<()>,
    ) -> io::Result<Result<(), HelperErred>> {
        self.link.send(request)?;
        loop {
            match self.link.receive()? {
                FromHelper::HelperFinished(_) => return Ok(Ok(())),
                FromHelper::HelperErred(erred) => return Ok(Err(erred)),
                part => on(&mut self.link, part)?,
            }
        }
    }
}

/// Starts the process that runs functions and plugins of clients, and waits until it is ready. It
/// imports modules from `directory`, too. Returns it, a link to send messages to it, and one to receive
/// [`FromPlugins`](daskwire_messages::protocol::FromPlugins).
///
/// # Errors
///
/// As [`Helper::start`].
pub fn start_plugins(
    template: &Template,
    memory: &Arc<SharedMemory>,
    directory: &str,
) -> io::Result<(Arc<ChildProcess>, Link, Link)> {
    let is_ready = |message: FromPlugins| match message {
        FromPlugins::PythonReady(_) => Ok(true),
        other => Err(too_early(other.op())),
    };
    let start = start(PLUGINS, directory);
    let (_, receiving, child) = process::start(template, &start, memory, is_ready)?;
    let sending = receiving.try_clone()?;
    Ok((child, sending, receiving))
}

/// The first message to a process that runs a module.
fn start((name, source): (&str, &str), directory: &str) -> StartHelper {
    StartHelper {
        module: source.to_owned(),
        name: name.to_owned(),
        local_directory: directory.to_owned(),
        ..StartHelper::default()
    }
}
