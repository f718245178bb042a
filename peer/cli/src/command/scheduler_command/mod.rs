//! The commands `daskwire scheduler`, which takes the options and the configuration of
//! `dask scheduler`, and `daskwire cluster`, which starts workers with it.

mod local;
mod settings;

use std::collections::BTreeSet;
#[cfg(target_os = "linux")]
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Args;
use daskwire_comm::{Address, CommError, Listener};
use daskwire_peer::Key;
use daskwire_peer::scheduler::{JournalSync, Notice, Options, Scheduler, ServeError};
use serde_json::json;

use crate::command::failure::Result;
use crate::command::runtime::{on_thread, stop_requested};
use crate::command::serve::DashboardArguments;
use crate::command::tls::TlsArguments;
#[cfg(target_os = "linux")]
use crate::command::worker_command::quantity::size;
use crate::command::worker_command::quantity::{MemoryLimit, duration, memory_limit};
use crate::command::{files, serve, terminal};
use daskwire_dashboard::{Dashboard, HttpAddress, Server, Serving};
use settings::Settings;

pub(crate) use local::{LocalArguments, run as run_local};

/// Time for workers to end with the scheduler.
const WORKERS_TIMEOUT: Duration = Duration::from_secs(30);

/// The arguments of `daskwire scheduler`.
// Named and grouped as in `dask scheduler --help`, where they mean the same.
#[derive(Debug, Args)]
pub(crate) struct SchedulerCommand {
    /// The address to listen on: an IP address, a host name, or an address with a scheme
    /// such as tls://10.0.0.7; several, separated by commas [default: all interfaces]
    #[arg(
        long,
        value_delimiter = ',',
        conflicts_with = "interface",
        help_heading = "Network"
    )]
    host: Vec<String>,
    /// The port to listen on; 0 for any free one; several, separated by commas [default:
    /// 8786, and free ones for further addresses]
    #[arg(long, value_delimiter = ',', help_heading = "Network")]
    port: Vec<u16>,
    /// The network interface to listen on, such as eth0; several, separated by commas
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        help_heading = "Network"
    )]
    interface: Vec<String>,
    /// The scheme to listen with, such as tcp, tls, quic or ws; several, separated by commas
    /// [default: tcp, or tls with --tls-cert]
    #[arg(
        long,
        value_name = "SCHEME",
        value_delimiter = ',',
        help_heading = "Network"
    )]
    protocol: Vec<String>,
    /// The address of the dashboard, with /health and /metrics for Prometheus; a free port if the
    /// port is in use
    #[arg(
        long,
        value_name = "HOST:PORT",
        default_value = ":8787",
        help_heading = "Network"
    )]
    dashboard_address: HttpAddress,
    /// Start the HTTP server. This is the default
    #[arg(long, overrides_with = "no_dashboard", help_heading = "Network")]
    dashboard: bool,
    /// Do not start the HTTP server
    #[arg(long, overrides_with = "dashboard", help_heading = "Network")]
    no_dashboard: bool,
    #[command(flatten)]
    dashboard_arguments: DashboardArguments,

    /// A file for the address of the scheduler, for the --scheduler-file of workers and
    /// clients, which is removed at the end
    #[arg(long, value_name = "FILE", help_heading = "Lifetime")]
    scheduler_file: Option<PathBuf>,
    /// A file for the id of this process, which is removed at the end
    #[arg(long, value_name = "FILE", help_heading = "Lifetime")]
    pid_file: Option<PathBuf>,
    /// End after this time without any tasks, such as 1h [default:
    /// distributed.scheduler.idle-timeout, or never]
    #[arg(long, value_name = "DURATION", value_parser = duration, help_heading = "Lifetime")]
    idle_timeout: Option<Duration>,
    /// Keep the keys of a client whose connection breaks for this time, such as 60s. A client in Rust
    /// that returns by then finds its futures again; one in Python finds the results if it submits
    /// the same tasks again
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "0s", help_heading = "Lifetime")]
    client_grace: Duration,
    /// Keep a journal in this directory, from which the next scheduler with the same option continues,
    /// also if this one is killed: workers and clients in Rust return to it with what they have. A
    /// signal then ends the scheduler only, and `Client.shutdown` the whole cluster
    #[arg(long, value_name = "DIR", help_heading = "Lifetime")]
    journal: Option<PathBuf>,
    /// When the journal is on disk: before anything is answered, at most 50 ms later, or when the
    /// system writes it
    #[arg(
        long,
        value_name = "WHEN",
        value_enum,
        requires = "journal",
        default_value_t,
        help_heading = "Lifetime"
    )]
    journal_sync: SyncMode,
    /// Maximum time to wait for the workers of the last scheduler before the tasks of the journal run
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "journal", default_value = "15s", help_heading = "Lifetime")]
    journal_wait: Duration,
    /// Record each event that the scheduler handles in this file, for `daskwire replay`: keys, names,
    /// addresses, annotations and sizes, but no data, functions or texts of errors. A file that exists
    /// is kept as FILE.previous
    #[arg(long, value_name = "FILE", help_heading = "Lifetime")]
    record: Option<PathBuf>,
    /// Record also what tasks call, take, return and raise, and what clients store
    #[arg(long, requires = "record", help_heading = "Lifetime")]
    record_payloads: bool,

    /// Memory that tasks may take: auto (three quarters of the machine's), 0 for no limit, a
    /// fraction of it, or a size such as 8GiB. Submissions beyond it fail with a MemoryError
    #[arg(long, value_name = "SIZE", default_value = "auto", value_parser = memory_limit, help_heading = "Limits")]
    memory_limit: MemoryLimit,

    /// Convert the graphs of collections, such as arrays and data frames, to tasks, and run
    /// functions and plugins of clients, in processes of this interpreter, which needs
    /// distributed, and what the graphs need. They start when they are first needed
    #[cfg(target_os = "linux")]
    #[arg(long, value_name = "PYTHON", help_heading = "Python")]
    python: Option<PathBuf>,
    /// Maximum number of graphs that are converted at once, each in a process [default: 2]
    #[cfg(target_os = "linux")]
    #[arg(
        long,
        value_name = "COUNT",
        requires = "python",
        help_heading = "Python"
    )]
    python_processes: Option<NonZeroUsize>,
    /// Import a module, such as dask.dataframe, once for all Python processes. May be repeated
    #[cfg(target_os = "linux")]
    #[arg(
        long,
        value_name = "MODULE",
        requires = "python",
        help_heading = "Python"
    )]
    python_import: Vec<String>,
    /// Time that the conversion of a graph, or a function that does not await, may take, after
    /// which it fails [default: 10m]
    #[cfg(target_os = "linux")]
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = duration,
        requires = "python",
        help_heading = "Python"
    )]
    python_time_limit: Option<Duration>,
    /// Memory that a Python process may use, such as 4GiB, after which what it does fails
    /// [default: no limit]
    #[cfg(target_os = "linux")]
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = size,
        requires = "python",
        help_heading = "Python"
    )]
    python_memory_limit: Option<u64>,

    /// With --python: a module, file or URL that the process of functions and plugins loads, which
    /// starts at once; its dask_setup and dask_teardown are called with the scheduler. May be
    /// repeated [default: distributed.scheduler.preload]
    #[arg(long, value_name = "MODULE", help_heading = "Python")]
    preload: Vec<String>,
    /// Arguments for the dask_setup of a --preload [default:
    /// distributed.scheduler.preload-argv]
    #[arg(last = true, value_name = "PRELOAD_ARGUMENT")]
    preload_argv: Vec<String>,

    /// Print a JSON document for each event
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    tls: TlsArguments,

    // Options of `dask scheduler` that are refused with a reason, or have no effect.
    #[arg(long, hide = true)]
    jupyter: bool,
    #[arg(long, hide = true)]
    no_jupyter: bool,
    #[arg(long, hide = true)]
    dashboard_prefix: Option<String>,
    #[arg(long, hide = true)]
    show: bool,
    #[arg(long, hide = true)]
    no_show: bool,
    #[arg(long, hide = true)]
    use_xheaders: Option<String>,
}

/// When a journal is on disk.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum SyncMode {
    Always,
    #[default]
    Interval,
    Never,
}

impl From<SyncMode> for JournalSync {
    fn from(mode: SyncMode) -> Self {
        match mode {
            SyncMode::Always => Self::Always,
            SyncMode::Interval => Self::Interval,
            SyncMode::Never => Self::Never,
        }
    }
}

pub(crate) fn run(arguments: &SchedulerCommand) -> Result {
    if arguments.json {
        terminal::print_events_as_json();
    }
    let settings = Settings::load(arguments)?;
    let pid_file = arguments.pid_file.as_deref().map(files::PidFile::new);
    let _pid_file = pid_file.transpose()?;
    on_thread(scheduler(&settings, arguments))
}

async fn scheduler(settings: &Settings, arguments: &SchedulerCommand) -> Result {
    // A signal may arrive as soon as the first line has been printed.
    let mut stopped = core::pin::pin!(stop_requested()?);
    let starting = tokio::select! {
        starting = start(settings, &arguments.tls) => starting?,
        () = &mut stopped => return Ok(()),
    };
    #[cfg(target_os = "linux")]
    let Some(starting) = starting.preloaded(stopped.as_mut()).await? else {
        return Ok(());
    };
    let file = arguments.scheduler_file.as_deref();
    let (scheduler, serving, _file) = publish(starting, settings, file)?;
    tokio::select! {
        ended = scheduler.closed() => report_end(ended)?,
        () = stopped => match &settings.journal {
            None => terminal::event("stopping", "closing workers and clients", json!({})),
            Some(journal) => {
                let directory = journal.directory.display().to_string();
                let text = format!("workers and clients may return, to the journal {directory}");
                terminal::event("stopping", &text, json!({"journal": directory}));
                drop(serving);
                return close(scheduler, true).await;
            }
        },
    }
    drop(serving);
    close(scheduler, false).await
}

/// A scheduler whose preloaded modules may not be set up yet.
struct Starting {
    scheduler: Scheduler,
    /// The addresses of all listeners.
    bound: Vec<Address>,
    server: Option<Server>,
}

#[cfg(target_os = "linux")]
impl Starting {
    /// Waits until the preloaded modules are set up, which may take long. Returns `None` if the
    /// scheduler was stopped before that, and has ended.
    async fn preloaded(self, stopped: impl Future<Output = ()>) -> Result<Option<Self>> {
        tokio::select! {
            loaded = self.scheduler.preloaded() => match loaded {
                Ok(()) => Ok(Some(self)),
                Err(error) => {
                    self.scheduler.close().await;
                    Err(error.to_string().into())
                }
            },
            () = stopped => {
                terminal::event("stopping", "the preloaded modules are torn down", json!({}));
                close(Arc::new(self.scheduler), false).await.map(|()| None)
            }
        }
    }
}

/// Starts the scheduler, and binds its HTTP server.
async fn start(settings: &Settings, tls: &TlsArguments) -> Result<Starting> {
    settings.warn();
    let transports = settings.transports(tls)?;
    let mut listeners = Vec::with_capacity(settings.listen.len());
    for address in &settings.listen {
        let listener = transports.bind(address, settings.listen_options()).await;
        let listener = listener.map_err(|error| terminal_error(address, &error))?;
        listeners.push(listener);
    }
    let bound = listeners.iter().map(Listener::local_address);
    let bound: Result<Vec<Address>, CommError> = bound.collect();
    let bound: Vec<Address> = bound
        .map_err(|error| error.to_string())?
        .into_iter()
        .map(settings::reachable)
        .collect();
    let server = match &settings.dashboard {
        Some(address) => Some(serve::bind(address, settings.dashboard_tls.as_ref()).await?),
        None => None,
    };
    let http_port = server.as_ref().map(Server::port);
    let contact = settings.contact.clone();
    let services = http_port.map(|port| ("dashboard".to_owned(), port));
    let mut options = Options::default()
        .with_policy(settings.policy.clone())
        .with_blocked_ops(settings.blocked_ops.clone())
        .with_transports(transports)
        .with_comm(settings.comm_options())
        .with_contact_address(contact.or_else(|| bound.first().cloned()))
        .with_services(services.into_iter().collect())
        .with_idle_timeout(settings.idle_timeout)
        .with_journal(settings.journal.clone())
        .with_recording(settings.recording.clone())
        .with_on_notice(Arc::new(report));
    options.permit = settings.permit.clone();
    #[cfg(target_os = "linux")]
    let options = options.with_python(settings.python.clone());
    let scheduler = Scheduler::start(listeners, options).map_err(|error| error.to_string())?;
    Ok(Starting {
        scheduler,
        bound,
        server,
    })
}

/// Starts the HTTP server, writes the scheduler file, and prints where scheduler and server are.
fn publish<'f>(
    starting: Starting,
    settings: &Settings,
    file: Option<&'f Path>,
) -> Result<(Arc<Scheduler>, Option<Serving>, Option<SchedulerFile<'f>>)> {
    let Starting {
        scheduler,
        bound,
        server,
    } = starting;
    let http_port = server.as_ref().map(Server::port);
    let scheduler = Arc::new(scheduler);
    let serving = server.map(|server| {
        let options = settings.dashboard_options.clone();
        let serving = Dashboard::new(&scheduler, options).serve(server);
        serving.map_err(|error| format!("--dashboard-address: {error}"))
    });
    let serving = serving.transpose()?;
    let contact = scheduler.address().to_string();
    let others = bound.iter().skip(1).map(ToString::to_string);
    let addresses: Vec<String> = core::iter::once(contact).chain(others).collect();
    // Programs that wait for the first line read the file next.
    let file = file.map(|path| SchedulerFile::new(path, &scheduler, http_port));
    let file = file.transpose()?;
    let host = scheduler.address().host();
    let scheme = serve::scheme(settings.dashboard_tls.as_ref());
    let http = settings.dashboard.as_ref().zip(http_port);
    let http = http.map(|(address, port)| {
        let address = address.reachable_at(host).with_port(port);
        format!("{scheme}://{address}")
    });
    announce(&addresses, http.as_deref());
    Ok((scheduler, serving, file))
}

fn terminal_error(address: &Address, error: &CommError) -> String {
    let address = address.to_string();
    match error.to_string() {
        error if error.contains(&address) => error,
        error => format!("cannot listen on {address}: {error}"),
    }
}

/// Prints the lines of the log of Dask's scheduler that other programs wait for, such as
/// `Scheduler at:` in `SSHCluster`.
fn announce(addresses: &[String], http: Option<&str>) {
    terminal::event(
        "started",
        match http {
            Some(http) => format!("the scheduler has started; its dashboard is at {http}/status"),
            None => "the scheduler has started".to_owned(),
        },
        json!({"addresses": addresses, "http": http}),
    );
    if !terminal::are_events_json() {
        for address in addresses {
            terminal::note(format_args!("{:>14} {address:>25}", "Scheduler at:"));
        }
    }
}

/// Reports a notice, unless the log does.
fn report(notice: &Notice) {
    if terminal::is_logging() {
        return;
    }
    let (event, fields) = match notice {
        Notice::WorkerJoined { worker, name } => {
            ("joined", json!({"address": worker, "name": name}))
        }
        Notice::WorkerLeft {
            worker,
            name,
            reason,
            tasks,
        } => {
            let keys = |keys: &[Key]| keys.iter().map(ToString::to_string).collect::<Vec<_>>();
            let fields = json!({
                "address": worker,
                "name": name,
                "reason": reason.to_string(),
                "processing": keys(&tasks.processing),
                "recomputed": keys(&tasks.recomputed),
                "lost": keys(&tasks.lost),
            });
            ("left", fields)
        }
        // Workers log events for plugins of schedulers, which are not for people.
        Notice::Event { .. } => return,
        // Each client sends the same ones.
        Notice::UnknownOp { op, .. } if !is_new(op) => return,
        _ => ("notice", json!({})),
    };
    terminal::event(event, notice, fields);
}

/// Whether an unknown op is seen for the first time. After many different ones, none is new.
fn is_new(op: &str) -> bool {
    const MAX_COUNT: usize = 64;
    static SEEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    seen.len() < MAX_COUNT && seen.insert(op.to_owned())
}

/// Reports why a scheduler has ended by itself.
fn report_end(ended: Result<(), ServeError>) -> Result {
    match ended {
        Ok(()) => {
            terminal::event("stopping", "the scheduler has been closed", json!({}));
            Ok(())
        }
        Err(error) => Err(error.to_string().into()),
    }
}

/// Closes workers and their nannies, clients and the scheduler. A second request to stop ends
/// this at once.
async fn close(mut scheduler: Arc<Scheduler>, is_continued: bool) -> Result {
    let closing = async {
        loop {
            match Arc::try_unwrap(scheduler) {
                Ok(scheduler) if is_continued => return scheduler.suspend().await,
                Ok(scheduler) => return scheduler.close().await,
                // A request for metrics is being answered.
                Err(shared) => scheduler = shared,
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let again = stop_requested()?;
    tokio::select! {
        () = closing => {}
        () = again => {}
    }
    terminal::event("ended", "the scheduler has ended", json!({}));
    Ok(())
}

/// A file with the identity of the scheduler. Removed when dropped.
struct SchedulerFile<'a>(&'a Path);

impl<'a> SchedulerFile<'a> {
    /// Writes the file. A reader sees all of it or nothing.
    fn new(path: &'a Path, scheduler: &Scheduler, http_port: Option<u16>) -> Result<Self> {
        let services = http_port.map(|port| json!({"dashboard": port}));
        let identity = json!({
            "type": "Scheduler",
            "id": scheduler.id(),
            "address": scheduler.address().to_string(),
            "services": services.unwrap_or_else(|| json!({})),
            "started": terminal::now(),
            "n_workers": 0,
            "total_threads": 0,
            "total_memory": 0,
            "workers": {},
        });
        let mut new = path.as_os_str().to_owned();
        new.push(format!(".{}", std::process::id()));
        let document = serde_json::to_string_pretty(&identity).unwrap_or_default();
        let written = std::fs::write(&new, document).and_then(|()| std::fs::rename(&new, path));
        written.map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for SchedulerFile<'_> {
    fn drop(&mut self) {
        // The file may have been removed already.
        let _ = std::fs::remove_file(self.0);
    }
}
