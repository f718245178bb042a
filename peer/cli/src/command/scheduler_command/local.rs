//! The command `daskwire cluster`: a scheduler, and workers for it on this machine.

use std::path::PathBuf;
use std::process::Stdio;

use clap::Args;
use daskwire_comm::Address;
use serde_json::json;
use tokio::process::{Child, Command};

use super::settings::{PORT, Settings};
use crate::command::connect::address;
use crate::command::failure::Result;
use crate::command::runtime::{on_cluster, stop_requested, this_program};
use crate::command::serve::{DashboardArguments, TOKEN_VARIABLE};
use crate::command::terminal;
use crate::command::tls::TlsArguments;
use daskwire_dashboard::HttpAddress;

/// The arguments of `daskwire cluster`.
#[derive(Debug, Args)]
pub(crate) struct LocalArguments {
    /// Number of workers, each a process; auto for a number of processes and threads that
    /// fits the processors
    #[arg(long, value_name = "COUNT", default_value = "auto")]
    workers: String,
    /// Number of tasks that run at once in each worker [default: the processors, divided by
    /// the number of workers]
    #[arg(long, value_name = "COUNT")]
    nthreads: Option<usize>,
    /// Memory limit of each worker, as that of `daskwire worker`
    #[arg(long, value_name = "SIZE")]
    memory_limit: Option<String>,
    /// Run functions of Python, and convert the graphs of collections, in processes of this
    /// interpreter, which has distributed
    #[cfg(target_os = "linux")]
    #[arg(long, value_name = "PYTHON")]
    python: Option<PathBuf>,
    /// The port of the scheduler at 127.0.0.1; 0 for any free one
    #[arg(long, default_value_t = PORT)]
    port: u16,
    /// The address of the scheduler's dashboard, with /health and /metrics
    #[arg(long, value_name = "HOST:PORT")]
    dashboard_address: Option<HttpAddress>,
    #[command(flatten)]
    dashboard: DashboardArguments,
    /// Print a JSON document for each event
    #[arg(long)]
    json: bool,
    /// Further arguments of `daskwire worker`
    #[arg(last = true, value_name = "WORKER_ARGUMENT")]
    worker_arguments: Vec<String>,
}

pub(crate) fn run(arguments: &LocalArguments) -> Result {
    if arguments.json {
        terminal::print_events_as_json();
    }
    on_cluster(cluster(arguments))
}

async fn cluster(arguments: &LocalArguments) -> Result {
    let mut stopped = core::pin::pin!(stop_requested()?);
    let listen = address(&format!("tcp://127.0.0.1:{}", arguments.port))?;
    let settings = Settings::local(
        listen,
        (arguments.dashboard_address.clone(), &arguments.dashboard),
        #[cfg(target_os = "linux")]
        arguments.python.as_deref(),
    )?;
    let starting = super::start(&settings, &TlsArguments::default()).await?;
    #[cfg(target_os = "linux")]
    let Some(starting) = starting.preloaded(stopped.as_mut()).await? else {
        return Ok(());
    };
    let (scheduler, serving, _) = super::publish(starting, &settings, None)?;
    let workers = workers(arguments, scheduler.address());
    let mut workers = workers.map_err(|error| format!("cannot start workers: {error}"))?;
    let outcome = tokio::select! {
        ended = scheduler.closed() => super::report_end(ended),
        () = &mut stopped => {
            terminal::event("stopping", "closing workers and clients", json!({}));
            Ok(())
        }
        ended = workers.wait() => Err(match ended {
            Ok(status) => format!("the workers have ended ({status})"),
            Err(error) => format!("cannot wait for workers: {error}"),
        }
        .into()),
    };
    drop(serving);
    super::close(scheduler, false).await?;
    // They end with the scheduler. Otherwise they are killed when this is dropped.
    let _ = tokio::time::timeout(super::WORKERS_TIMEOUT, workers.wait()).await;
    outcome
}

/// Starts a process with the workers and their nanny.
fn workers(arguments: &LocalArguments, scheduler: &Address) -> std::io::Result<Child> {
    // Control-C is for this process, which closes the workers.
    let mut command = Command::from(this_program()?);
    command
        // Tasks could read it.
        .env_remove(TOKEN_VARIABLE)
        .arg("worker")
        .arg(scheduler.to_string())
        .args(["--nworkers", &arguments.workers]);
    if let Some(count) = arguments.nthreads {
        command.args(["--nthreads", &count.to_string()]);
    }
    if let Some(limit) = &arguments.memory_limit {
        command.args(["--memory-limit", limit]);
    }
    #[cfg(target_os = "linux")]
    if let Some(python) = &arguments.python {
        command.arg("--python").arg(python);
    }
    if arguments.json {
        // Two processes would mix their documents.
        command.stdout(Stdio::null()).arg("--json");
    }
    command
        .args(&arguments.worker_arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()
}
