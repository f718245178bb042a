//! The executor that commands run on, and the signals that end them.

use std::process::Command;

use crate::command::failure::Result;

/// Runs a command that uses comms.
pub(crate) fn on_cluster(work: impl Future<Output = Result>) -> Result {
    run(&mut tokio::runtime::Builder::new_multi_thread(), work)
}

/// Runs a command that uses comms, on one thread, apart from what blocks. Tasks that hand on small
/// messages to each other take less of the processors than on several, which wake each other.
pub(crate) fn on_thread(work: impl Future<Output = Result>) -> Result {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    run(builder.worker_threads(1), work)
}

fn run(builder: &mut tokio::runtime::Builder, work: impl Future<Output = Result>) -> Result {
    daskwire_comm::raise_descriptor_limit();
    let runtime = builder
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start: {error}"))?;
    let outcome = runtime.block_on(work);
    // Pending name lookups would delay a regular shutdown.
    runtime.shutdown_background();
    outcome
}

/// Returns a command that runs this program again, in a process group of its own, so that
/// Control-C is for this process alone.
///
/// # Errors
///
/// Those of the system for the path of this program.
pub(crate) fn this_program() -> std::io::Result<Command> {
    // The program's file may have been replaced since this process started.
    #[cfg(target_os = "linux")]
    let mut command = Command::new("/proc/self/exe");
    #[cfg(not(target_os = "linux"))]
    let mut command = Command::new(std::env::current_exe()?);
    #[cfg(unix)]
    {
        use std::os::unix::process::CommandExt as _;
        if let Some(name) = std::env::args_os().next() {
            command.arg0(name);
        }
        command.process_group(0);
    }
    Ok(command)
}

/// Returns a future that waits until this process is asked to end: by Control-C, by
/// SIGTERM, or by SIGHUP when its terminal closes. SIGHUP stays ignored if it was ignored
/// when the process started, as under `nohup`.
pub(crate) fn stop_requested() -> Result<impl Future<Output = ()>> {
    #[cfg(unix)]
    let asked = {
        use tokio::signal::unix::{SignalKind, signal};
        let listen =
            |kind| signal(kind).map_err(|error| format!("cannot listen for signals: {error}"));
        let mut terminate = listen(SignalKind::terminate())?;
        let mut interrupt = listen(SignalKind::interrupt())?;
        let mut hangup = match is_hangup_ignored() {
            true => None,
            false => Some(listen(SignalKind::hangup())?),
        };
        async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                Some(()) = async { hangup.as_mut()?.recv().await } => {}
            }
        }
    };
    #[cfg(not(unix))]
    let asked = async {
        if tokio::signal::ctrl_c().await.is_err() {
            // The system's default action then ends the process.
            std::future::pending::<()>().await;
        }
    };
    Ok(asked)
}

/// Whether SIGHUP was ignored when the process started, as far as Linux reports
/// it.
#[cfg(unix)]
fn is_hangup_ignored() -> bool {
    // Listening for the signal later resets this state, so the first result is kept.
    static IS_IGNORED: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *IS_IGNORED.get_or_init(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = status
            .lines()
            .find_map(|line| line.strip_prefix("SigIgn:"))
            .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        // SIGHUP is number 1, which is bit 0.
        ignored.is_some_and(|mask| mask & 1 != 0)
    })
}
