//! The nanny: a process that runs each worker in a process of its own, and restarts
//! workers that ask for a restart or crash.

use std::io::{self, Read as _, Write as _};
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::command::failure::{Failure, Result};
use crate::command::runtime::this_program;
use crate::command::terminal;

/// The exit code with which a worker asks to be restarted.
pub(super) const RESTART: u8 = 3;

/// The option that makes a process run as a worker of a nanny.
const PROCESS: &str = "--worker-process";

/// A worker that crashes within this time after its start is restarted after a pause.
const QUICK_CRASH: Duration = Duration::from_secs(10);

/// The maximum pause before a restart.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// An order of a nanny to its workers, sent to their standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Hand over data and leave. A second order: leave at once.
    Stop,
    /// The nanny has ended.
    Gone,
}

/// The byte that encodes [`Order::Stop`].
const STOP: u8 = b's';

/// Receives the orders of the nanny that started this process.
pub(super) fn orders() -> mpsc::UnboundedReceiver<Order> {
    let (sender, orders) = mpsc::unbounded_channel();
    thread::spawn(move || {
        for byte in io::stdin().lock().bytes() {
            if byte.is_ok_and(|byte| byte == STOP) && sender.send(Order::Stop).is_err() {
                return;
            }
        }
        // Fails only if the worker has ended.
        let _ = sender.send(Order::Gone);
    });
    orders
}

/// Names this process after the command, for `ps` and `top`. The system named it after
/// `/proc/self/exe`, which it was started as.
#[cfg(target_os = "linux")]
pub(super) fn name_process() {
    let command = std::env::args_os().next();
    let command = command.as_deref().map(std::path::Path::new);
    if let Some(name) = command.and_then(std::path::Path::file_name) {
        // The name is only shown to people.
        let _ = std::fs::write("/proc/self/comm", name.as_encoded_bytes());
    }
}

/// Runs `count` workers with the arguments of this process until they end for good.
///
/// # Errors
///
/// The exit code of the first worker that failed.
pub(super) async fn run(count: usize, variables: Vec<(String, String)>) -> Result {
    let (stop, stopping) = watch::channel(0_u32);
    let mut workers = JoinSet::new();
    for index in 0..count {
        workers.spawn(keep(index, variables.clone(), stopping.clone()));
    }
    let mut outcome = Ok(());
    loop {
        let requested = crate::command::runtime::stop_requested()?;
        tokio::select! {
            () = requested => stop.send_modify(|times| *times = times.saturating_add(1)),
            ended = workers.join_next() => match ended {
                None => return outcome,
                Some(Ok(ended)) => outcome = outcome.and(ended),
                Some(Err(error)) => outcome = outcome.and(Err(error.to_string().into())),
            },
        }
    }
}

/// Runs a worker, and restarts it until it ends for good.
async fn keep(
    index: usize,
    variables: Vec<(String, String)>,
    mut stopping: watch::Receiver<u32>,
) -> Result {
    let mut pause = Duration::ZERO;
    loop {
        let start = Instant::now();
        let mut child = spawn(index, &variables)
            .map_err(|error| format!("cannot start a process for a worker: {error}"))?;
        let process = child.id();
        let mut orders = child.stdin.take();
        let mut ended = watch_child(child);
        let status = loop {
            tokio::select! {
                status = &mut ended => break status,
                Ok(()) = stopping.changed() => order_to_stop(&mut orders),
            }
        };
        let status = match status {
            Ok(Ok(status)) => status,
            Ok(Err(error)) => return Err(format!("cannot wait for a worker: {error}").into()),
            Err(_) => return Err("cannot wait for a worker".to_owned().into()),
        };
        let is_stopping = *stopping.borrow() > 0;
        match status.code() {
            Some(0) => return Ok(()),
            _ if is_stopping => return Ok(()),
            Some(code) if code == i32::from(RESTART) => {
                terminal::event("restarting", "the worker starts again", json!({}));
                continue;
            }
            // 101 is the exit code of a panic.
            Some(code) if code != 101 => {
                return Err(Failure::silent(u8::try_from(code).unwrap_or(1)));
            }
            _ => {}
        }
        pause = match start.elapsed() < QUICK_CRASH {
            true => (pause * 2).clamp(Duration::from_secs(1), MAX_PAUSE),
            false => Duration::ZERO,
        };
        let after = match pause {
            Duration::ZERO => String::new(),
            pause => format!(" in {} s", pause.as_secs()),
        };
        terminal::event(
            "restarting",
            format_args!(
                "the worker's process {process} has crashed ({status}), and starts again{after}"
            ),
            json!({}),
        );
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            Ok(()) = stopping.changed() => return Ok(()),
        }
    }
}

fn spawn(index: usize, variables: &[(String, String)]) -> io::Result<Child> {
    // Control-C is for the nanny, which passes it on.
    let mut command = this_program()?;
    // Arguments of preloaded modules stay last, after `--`.
    let mut options: Vec<_> = std::env::args_os().skip(1).collect();
    let end = options.iter().position(|option| option == "--");
    let arguments = options.split_off(end.unwrap_or(options.len()));
    command
        .args(options)
        .args([PROCESS, &index.to_string()])
        .args(arguments)
        .envs(variables.iter().cloned())
        .stdin(Stdio::piped())
        .spawn()
}

/// Waits for a process in a thread.
fn watch_child(mut child: Child) -> oneshot::Receiver<io::Result<ExitStatus>> {
    let (sender, ended) = oneshot::channel();
    thread::spawn(move || {
        // Fails only if the receiver is gone, because this process is ending.
        let _ = sender.send(child.wait());
    });
    ended
}

fn order_to_stop(orders: &mut Option<ChildStdin>) {
    if let Some(pipe) = orders {
        // Writing fails only if the worker is already ending.
        let _ = pipe.write_all(&[STOP]).and_then(|()| pipe.flush());
    }
}
