//! The command `daskwire worker`, which takes the options and the configuration of
//! `dask worker`.

mod allocator;
mod functions;
mod machine;
mod metrics;
mod nanny;
pub(super) mod quantity;
mod report;
mod settings;
mod stop;

use core::fmt::Display;
#[cfg(target_os = "linux")]
use core::num::NonZeroUsize;
use core::pin::pin;
use std::fs::Metadata;
use std::io::{self, ErrorKind, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use clap::Args;
use daskwire_comm::{Address, BufferPool, CommOptions};
use daskwire_dashboard::{HttpAddress, Pages};
use daskwire_peer::worker::{Builder, Ended, StartError, Worker};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::command::connect::{about, address, connecting};
use crate::command::failure::{Failure, Result};
use crate::command::tls::TlsArguments;
use crate::command::{files, serve, terminal};
use crate::printable;
use allocator::{OWN_TUNABLES, TUNABLES, allocator_settings, tune_allocator};
use nanny::{Order, RESTART};
use quantity::MemoryLimit;
use report::{progress, table};
use settings::{Listen, Scheduler, Settings};
use stop::Stops;

/// The interval at which the progress line is redrawn.
const REFRESH: Duration = Duration::from_millis(200);

/// Maximum number of bytes of freed buffers that are kept for received data: allocating
/// from the system takes several times as long.
const POOL_LEN: usize = 256 << 20;

/// The divisor of the memory limit that bounds the bytes kept this way.
const POOL_PART: u64 = 16;

/// Timeout for handing data over when the worker is asked to stop, for example by a
/// service manager, which does not wait for long.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval at which a missing scheduler file is looked for.
const FILE_INTERVAL: Duration = Duration::from_millis(100);

/// Time after which the wait for a file that is being read is reported.
const SLOW_READ: Duration = Duration::from_secs(1);

/// The arguments of `daskwire worker`.
// Named and grouped as in `dask worker --help`, where they mean the same.
#[derive(Debug, Args)]
pub(crate) struct WorkerArguments {
    /// The scheduler, as tcp://HOST:PORT, tls://, ws://, wss:// or, for a relay,
    /// quic://HOST:PORT [default: scheduler-address of Dask's configuration, such as
    /// the variable DASK_SCHEDULER_ADDRESS]
    scheduler: Option<String>,
    /// The file that `dask scheduler --scheduler-file` writes
    #[arg(long, value_name = "FILE", conflicts_with = "scheduler")]
    scheduler_file: Option<PathBuf>,
    /// How long to try to reach the scheduler, such as 60s: at the start, and again whenever
    /// the connection is lost, while the worker keeps its data and finishes its tasks
    /// [default: without an end at the start, and 60s later]
    #[arg(long, value_name = "DURATION", value_parser = quantity::duration)]
    death_timeout: Option<Duration>,
    /// A name that is unique in the cluster; with --nworkers, -0, -1 and so on are added
    /// [default: the worker's address]
    #[arg(long)]
    name: Option<String>,

    /// Number of tasks that run at once in each worker; 0 for all processors
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 0,
        hide_default_value = true,
        allow_negative_numbers = true,
        help_heading = "Resources"
    )]
    nthreads: usize,
    /// Number of workers, each a process; -1 for one for each processor, auto for a
    /// number of processes and threads that fits the processors [default: 1]
    #[arg(
        long,
        value_name = "COUNT",
        allow_negative_numbers = true,
        help_heading = "Resources"
    )]
    nworkers: Option<String>,
    /// Memory limit of each worker, such as 4GiB, 500MB or 0.5 of the machine: data is
    /// spilled to disk above 60 % of it, tasks pause above 80 %, and the worker restarts
    /// above 95 %. auto: memory in proportion to nthreads, such as half of it for half
    /// of the processors. 0: no limit, and data stays in memory
    #[arg(long, value_name = "SIZE", default_value = "auto", value_parser = quantity::memory_limit, help_heading = "Resources")]
    memory_limit: MemoryLimit,
    /// Resources that tasks may ask for, such as GPU=2,MEM=1e9 [default:
    /// distributed.worker.resources]
    #[arg(long, value_parser = resources, help_heading = "Resources")]
    resources: Option<Resources>,
    /// The directory for spilled data, in which the worker makes a directory of
    /// its own [default: temporary-directory, or that of the system]
    #[arg(long, value_name = "DIRECTORY", help_heading = "Resources")]
    local_directory: Option<PathBuf>,

    /// The address to listen on, as tcp://HOST:PORT or of another scheme
    /// [default: a free port of the interface that reaches the scheduler]
    #[arg(long, value_name = "ADDRESS", visible_alias = "listen", conflicts_with_all = ["worker_port", "host", "interface"], help_heading = "Network")]
    listen_address: Option<String>,
    /// The port to listen on, or the first and last of several, of which each worker
    /// takes a free one: 9000:9010
    #[arg(long, value_name = "PORT", value_parser = ports, help_heading = "Network")]
    worker_port: Option<Ports>,
    /// The host name or IP address to listen on
    #[arg(long, conflicts_with = "interface", help_heading = "Network")]
    host: Option<String>,
    /// The network interface to listen on, such as eth0
    #[arg(long, value_name = "NAME", help_heading = "Network")]
    interface: Option<String>,
    /// The scheme to listen with, such as tcp or tls, with --host or --interface
    /// [default: that of the scheduler]
    #[arg(long, value_name = "SCHEME", help_heading = "Network")]
    protocol: Option<String>,
    /// The address by which others reach the worker [default: the address to listen on]
    #[arg(long, value_name = "ADDRESS", help_heading = "Network")]
    contact_address: Option<String>,
    /// The address of an HTTP server with /health and /metrics for Prometheus, such as
    /// :8790
    #[arg(long, value_name = "HOST:PORT", help_heading = "Network")]
    dashboard_address: Option<HttpAddress>,
    /// Start the HTTP server at a free port, unless --dashboard-address gives another
    /// one
    #[arg(long, overrides_with = "no_dashboard", help_heading = "Network")]
    dashboard: bool,
    /// Do not start the HTTP server
    #[arg(long, overrides_with = "dashboard", help_heading = "Network")]
    no_dashboard: bool,

    /// Run the worker in a process of its own, which is started again when it crashes,
    /// takes too much memory, or when a client restarts the cluster. This is the default
    #[arg(long, overrides_with = "no_nanny", help_heading = "Lifetime")]
    nanny: bool,
    /// Run the worker in this process
    #[arg(long, overrides_with = "nanny", help_heading = "Lifetime")]
    no_nanny: bool,
    /// Hand data over and end after this time, such as 1h [default:
    /// distributed.worker.lifetime.duration, or never]
    #[arg(long, value_name = "DURATION", value_parser = quantity::duration, help_heading = "Lifetime")]
    lifetime: Option<Duration>,
    /// Lengthen or shorten the lifetime by a random time of up to this
    #[arg(long, value_name = "DURATION", value_parser = quantity::duration, help_heading = "Lifetime")]
    lifetime_stagger: Option<Duration>,
    /// Start again after the lifetime
    #[arg(
        long,
        overrides_with = "no_lifetime_restart",
        help_heading = "Lifetime"
    )]
    lifetime_restart: bool,
    /// End for good after the lifetime
    #[arg(long, overrides_with = "lifetime_restart", help_heading = "Lifetime")]
    no_lifetime_restart: bool,
    /// A file for the id of this process, which is removed at the end
    #[arg(long, value_name = "FILE", help_heading = "Lifetime")]
    pid_file: Option<PathBuf>,

    /// Run functions of Python in processes of this interpreter, which needs
    /// distributed of the scheduler's release: one process for each thread, started
    /// when it is first needed
    #[cfg(target_os = "linux")]
    #[arg(long, value_name = "PYTHON")]
    python: Option<PathBuf>,
    /// Run the tasks of all threads in this number of Python processes. 1: as a worker of
    /// Dask does, where results need not be picklable and tasks see what Client.run has
    /// changed [default: a process for each thread]
    #[cfg(target_os = "linux")]
    #[arg(long, value_name = "COUNT", requires = "python")]
    python_processes: Option<NonZeroUsize>,
    /// Start all Python processes at once
    #[cfg(target_os = "linux")]
    #[arg(long, requires = "python")]
    python_warm: bool,
    /// Import a module, such as pandas, once for all Python processes, which share its
    /// memory; may be given several times
    #[cfg(target_os = "linux")]
    #[arg(long, value_name = "MODULE", requires = "python")]
    python_import: Vec<String>,
    /// With --python: a module, file or URL that each Python process loads; its dask_setup
    /// and dask_teardown are called with the worker [default: distributed.worker.preload]
    #[arg(long, value_name = "MODULE")]
    preload: Vec<String>,
    /// Arguments for the dask_setup of a --preload [default:
    /// distributed.worker.preload-argv]
    #[arg(last = true, value_name = "PRELOAD_ARGUMENT")]
    preload_argv: Vec<String>,

    /// List the worker's functions, and exit
    #[arg(long)]
    functions: bool,
    /// Print a JSON document for each event, or with --functions for each function
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    tls: TlsArguments,

    // Options of `dask worker` that are refused with a reason, or have no effect.
    #[arg(long, hide = true)]
    preload_nanny: Vec<String>,
    #[arg(long, hide = true)]
    worker_class: Option<String>,
    #[arg(long, hide = true)]
    scheduler_sni: Option<String>,
    #[arg(long, hide = true)]
    nanny_port: Option<String>,
    #[arg(long, hide = true)]
    dashboard_prefix: Option<String>,
    /// This process runs the worker of this number for a nanny.
    #[arg(long, hide = true)]
    worker_process: Option<usize>,
}

// clap takes a vector for an option that may be repeated.

#[derive(Clone, Debug)]
struct Ports(Vec<u16>);

#[derive(Clone, Debug)]
struct Resources(Vec<(String, f64)>);

fn ports(input: &str) -> Result<Ports, String> {
    quantity::ports(input).map(Ports)
}

fn resources(input: &str) -> Result<Resources, String> {
    quantity::resources(input).map(Resources)
}

pub(crate) fn run(arguments: WorkerArguments) -> Result {
    if arguments.functions {
        return list(arguments.json);
    }
    if arguments.json {
        terminal::print_events_as_json();
    }
    if let Some(index) = arguments.worker_process {
        #[cfg(target_os = "linux")]
        nanny::name_process();
        return crate::command::runtime::on_cluster(worker_of_nanny(arguments, index));
    }
    let settings = Settings::load(&arguments)?;
    if !settings.has_nanny {
        tune_allocator(&settings);
    }
    let pid_file = arguments.pid_file.as_deref().map(files::PidFile::new);
    let _pid_file = pid_file.transpose()?;
    if settings.has_nanny {
        let variables = allocator_settings(&settings).into_iter().collect();
        return crate::command::runtime::on_cluster(nanny::run(settings.nworkers, variables));
    }
    let mut stops = Stops::new(&arguments);
    crate::command::runtime::on_cluster(async { worker(&arguments, settings, &mut stops).await })
}

/// Runs the worker `index` of a nanny. It ends with the nanny also while it reads its settings.
async fn worker_of_nanny(arguments: WorkerArguments, index: usize) -> Result {
    let mut stops = Stops::new(&arguments);
    let arguments = Arc::new(arguments);
    let own = Arc::clone(&arguments);
    let loading = files::blocking(move || Settings::load(&own));
    let Some(mut settings) = stops.before(loading).await? else {
        return Ok(());
    };
    settings.for_process(index);
    worker(&arguments, settings, &mut stops).await
}

/// Waits until the scheduler has written its file, and reads the address.
async fn scheduler_of_file(path: &Path) -> Result<Address> {
    let name = path.display();
    let mut reported = None;
    let mut report = |waiting: String| {
        if reported.as_ref() != Some(&waiting) {
            terminal::event("waiting", &waiting, json!({}));
            reported = Some(waiting);
        }
    };
    loop {
        let file = path.to_owned();
        let mut reading = pin!(files::blocking(move || Ok(files::scheduler_document(
            &file
        ))));
        let read = match tokio::time::timeout(SLOW_READ, &mut reading).await {
            Ok(read) => read?,
            Err(_) => {
                report(format!("waiting for {name}"));
                reading.await?
            }
        };
        match read {
            Ok(document) => return address(files::address_of(&document, path)?),
            Err(error) => match error.kind() {
                // In the latter case, the scheduler is still writing it.
                ErrorKind::NotFound | ErrorKind::UnexpectedEof => {
                    report(format!("waiting for {name}"));
                }
                ErrorKind::FileTooLarge => return Err(format!("{name}: {error}").into()),
                ErrorKind::InvalidData => {
                    report(format!("waiting for {name}, which is not JSON: {error}"));
                }
                // It may be temporary in a file system of several machines.
                _ => report(format!("waiting for {name}: {error}")),
            },
        }
        tokio::time::sleep(FILE_INTERVAL).await;
    }
}

/// Returns a worker builder with these settings.
fn builder(settings: &Settings, scheduler: Address) -> Builder {
    // A small memory limit leaves less room for freed buffers.
    let pool_len = match settings.memory_limit {
        Some(limit) => usize::try_from(limit / POOL_PART).map_or(POOL_LEN, |len| len.min(POOL_LEN)),
        None => POOL_LEN,
    };
    let mut options = CommOptions::default()
        .with_pool(BufferPool::new(pool_len))
        .with_compression(settings.compression);
    if let Some(timeout) = settings.connect_timeout {
        options.connect_timeout = timeout;
        options.handshake_timeout = timeout;
    }
    let mut builder = Worker::builder(scheduler)
        .functions(functions::functions())
        .options(options)
        .start_timeout(settings.death_timeout.unwrap_or(Duration::MAX))
        .nthreads(settings.nthreads)
        .memory_thresholds(settings.thresholds)
        .transfer_limits(settings.transfers);
    if let Some(timeout) = settings.death_timeout {
        builder = builder.reconnect_timeout(timeout);
    }
    if let Scheduler::File(path) = &settings.scheduler {
        let path = path.clone();
        // A file that is missing or incomplete may be written soon. A FIFO has been read.
        builder = builder.find_scheduler(move || {
            path.metadata().ok().filter(Metadata::is_file)?;
            let document = files::scheduler_document(&path).ok()?;
            address(files::address_of(&document, &path).ok()?).ok()
        });
    }
    if let Some(limit) = settings.memory_limit {
        builder = builder.memory_limit(limit);
    }
    if let Some(max_spill) = settings.max_spill {
        builder = builder.max_spill(max_spill);
    }
    if let Some(directory) = &settings.local_directory {
        builder = builder.local_directory(directory);
    }
    if let Some(name) = &settings.name {
        builder = match name.parse() {
            Ok(number) => builder.number(number),
            Err(_) => builder.name(name),
        };
    }
    for (name, amount) in &settings.resources {
        builder = builder.resource(name, *amount);
    }
    builder = match &settings.listen {
        Listen::At(addresses) => builder.listen_any(addresses.clone()),
        Listen::Ports(ports) => builder.ports(ports.clone()),
    };
    if let Some(contact) = &settings.contact {
        builder = builder.contact(contact.clone());
    }
    if settings.has_nanny {
        builder = builder.restartable();
    }
    builder
}

async fn worker(arguments: &WorkerArguments, mut settings: Settings, stops: &mut Stops) -> Result {
    let start = Instant::now();
    let scheduler = match &settings.scheduler {
        Scheduler::At(address) => address.clone(),
        Scheduler::File(path) => {
            let name = path.display();
            let late = |after| format!("{name}: the scheduler has not written it within {after} s");
            let found = settings.before_death(scheduler_of_file(path), late);
            match stops.before(found).await? {
                Some(found) => found,
                None => return Ok(()),
            }
        }
    };
    settings.complete(&scheduler)?;
    let listen: &[Address] = match &settings.listen {
        Listen::At(addresses) => addresses,
        Listen::Ports(_) => &[],
    };
    let addresses = core::iter::once(&scheduler).chain(listen);
    let addresses: Vec<Address> = addresses.cloned().collect();
    let (own, tls) = (settings.clone(), arguments.tls.clone());
    let reading = files::blocking(move || own.transports(&tls, &addresses));
    let late = |after| format!("the certificates could not be read within {after} s");
    let reading = settings.before_death(reading, late);
    let Some(transports) = stops.before(reading).await? else {
        return Ok(());
    };
    // The bar draws nothing unless standard error is a terminal.
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
        bar.set_style(style);
    }
    let notices = bar.clone();
    let mut builder = builder(&settings, scheduler.clone())
        .transports(transports.clone())
        .on_notice(move |message| {
            // The log reports notices.
            if !terminal::is_logging() {
                notices.suspend(|| terminal::event("notice", message, json!({})));
            }
        });
    let started: Arc<OnceLock<Arc<Worker>>> = Arc::default();
    if let Some(dashboard) = &settings.dashboard {
        let server = serve::bind(dashboard, None).await?;
        builder = builder.service("dashboard", server.port());
        let (worker, namespace) = (Arc::clone(&started), settings.namespace.clone());
        let metrics = move || match worker.get() {
            Some(worker) => Ok(metrics::metrics(worker, &namespace)),
            None => Err("the worker is not registered yet".to_owned()),
        };
        let served = Pages::new(|| Ok(()), metrics).serve(server);
        served.map_err(|error| format!("--dashboard-address {dashboard}: {error}"))?;
    }
    #[cfg(target_os = "linux")]
    if let Some(python) = &arguments.python {
        builder = builder.python(python).warm_python(arguments.python_warm);
        if let Some(count) = arguments.python_processes {
            builder = builder.python_processes(count);
        }
        for module in &arguments.python_import {
            builder = builder.python_import(module);
        }
        builder = builder.preload(settings.preload.clone(), arguments.preload_argv.clone());
        if let Some(count) = settings.allowed_failures {
            builder = builder.allowed_failures(count);
        }
        for (name, value) in &settings.python_variables {
            builder = builder.python_variable(name, value);
        }
        if scheduler.scheme() == "quic" {
            terminal::event(
                "notice",
                "tasks of Python cannot reach the scheduler over QUIC: get_client, locks and the \
                 like fail in them",
                json!({}),
            );
        }
    }
    let starting = async {
        let started = builder.start().await;
        started.map_err(|error| start_failure(arguments, &scheduler, &error))
    };
    // Python may still start after the scheduler has answered.
    #[cfg(target_os = "linux")]
    let refuses_workers = arguments.python.is_none();
    #[cfg(not(target_os = "linux"))]
    let refuses_workers = true;
    let worker = tokio::select! {
        started = connecting(&scheduler, &transports, refuses_workers, starting) => started?,
        stop = stops.next() => {
            stop?;
            let message = format!("stopped before registering with {scheduler}");
            terminal::event("stopping", message, json!({}));
            return Ok(());
        }
    };
    let worker = Arc::clone(started.get_or_init(|| Arc::new(worker)));
    terminal::event(
        "registered",
        format_args!(
            "worker {} at {} is registered with {scheduler}",
            worker.name(),
            worker.address()
        ),
        json!({
            "name": worker.name(),
            "address": worker.address(),
            "scheduler": scheduler.to_string(),
        }),
    );
    if !arguments.json {
        log_as_dask(worker.address(), &scheduler);
    }
    let showing = async {
        // A log and a progress line would interleave.
        while io::stderr().is_terminal() && !terminal::is_logging() && settings.nworkers == 1 {
            bar.set_message(progress(&worker));
            bar.tick();
            tokio::time::sleep(REFRESH).await;
        }
        core::future::pending().await
    };
    let lifetime = async {
        match settings.staggered_lifetime() {
            Some(lifetime) => tokio::time::sleep(lifetime.saturating_sub(start.elapsed())).await,
            None => core::future::pending().await,
        }
    };
    let ended = tokio::select! {
        ended = worker.ended() => End::Itself(ended),
        order = stops.next() => End::Order(order?),
        () = lifetime => End::Lifetime,
        () = showing => End::Lifetime,
    };
    bar.finish_and_clear();
    let is_supervised = arguments.worker_process.is_some();
    let outcome = match ended {
        End::Itself(ended) => outcome(&ended, is_supervised),
        End::Order(Order::Stop) => {
            leave(&worker, stops, Some(HANDOVER_TIMEOUT)).await?;
            Ok(())
        }
        End::Order(Order::Gone) => {
            let message = "the worker's nanny has ended, and so does the worker";
            terminal::event("stopping", message, json!({}));
            worker.close().await;
            Ok(())
        }
        End::Lifetime => {
            terminal::event("stopping", "the lifetime of the worker is over", json!({}));
            let is_stopped = leave(&worker, stops, None).await?;
            match settings.restarts_after_lifetime && !is_stopped {
                true => Err(Failure::silent(RESTART)),
                false => Ok(()),
            }
        }
    };
    let counters = worker.task_counters();
    let tasks = counters.iter().map(|(prefix, done)| {
        json!({"prefix": prefix, "count": done.count, "seconds": done.time.as_secs_f64()})
    });
    let tasks = json!({"tasks": tasks.collect::<Vec<_>>()});
    terminal::event("ended", progress(&worker), tasks);
    if !arguments.json {
        terminal::write_stderr(table(counters));
    }
    outcome
}

/// Prints the lines of the log of Dask's workers that other programs wait for:
/// `Registered to:` in dask-jobqueue's `LocalCluster`, and `worker at:` before the address in
/// dask-cloudprovider.
fn log_as_dask(address: &str, scheduler: &Address) {
    let lines: [(&str, &dyn Display); 3] = [
        ("Start worker at:", &address),
        ("Listening to:", &address),
        ("Registered to:", scheduler),
    ];
    for (what, address) in lines {
        let address = address.to_string();
        terminal::note(format_args!("{what:>21} {address:>26}"));
    }
}

/// The failure to start a worker.
fn start_failure(arguments: &WorkerArguments, scheduler: &Address, error: &StartError) -> Failure {
    #[cfg(not(target_os = "linux"))]
    let _ = arguments;
    #[cfg(target_os = "linux")]
    if let (StartError::Python(cause), Some(python)) = (error, &arguments.python) {
        let python = python.display();
        return match cause.kind() {
            ErrorKind::NotFound | ErrorKind::PermissionDenied => {
                Failure::usage(format_args!("--python {python}: {cause}"))
            }
            _ => format!("--python {python}: {error}").into(),
        };
    }
    about(scheduler, error).into()
}

/// The reason why a worker ends.
enum End {
    Itself(Ended),
    Order(Order),
    Lifetime,
}

/// The exit code of a worker: 0 if the scheduler has closed it, 1 if it has failed, and
/// [`RESTART`] if it should start again.
fn outcome(ended: &Ended, is_supervised: bool) -> Result {
    match ended {
        Ended::Restart { .. } | Ended::OutOfMemory { .. } => {
            terminal::event("stopping", ended, json!({}));
            Err(Failure::silent(RESTART))
        }
        // Only a new worker can continue, and a nanny starts one.
        Ended::Forgotten | Ended::Panicked if is_supervised => {
            terminal::event("stopping", ended, json!({}));
            Err(Failure::silent(RESTART))
        }
        Ended::Lost(_) | Ended::ListenerFailed(_) | Ended::Panicked | Ended::Forgotten => {
            Err(ended.to_string().into())
        }
        _ => {
            terminal::event("stopping", ended, json!({}));
            Ok(())
        }
    }
}

fn list(is_json: bool) -> Result {
    if is_json {
        for (name, what) in functions::LIST {
            let function = name.split('(').next().unwrap_or_default();
            let document = json!({
                "function": format!("native:{function}"),
                "signature": name,
                "description": what,
            });
            terminal::print(printable::json(&document))?;
        }
        return Ok(());
    }
    terminal::print(
        "Functions besides some of Python's operator and builtins.\n\
         Python calls them with operator.methodcaller(\"native:NAME\").\n",
    )?;
    for (name, what) in functions::LIST {
        terminal::print(format_args!("  {name:<34}  {what}"))?;
    }
    Ok(())
}

/// Hands over the worker's data, until a timeout or a request to stop. Returns whether
/// such a request was received.
async fn leave(worker: &Worker, stops: &mut Stops, timeout: Option<Duration>) -> Result<bool> {
    let timeout = async {
        match timeout {
            Some(timeout) => tokio::time::sleep(timeout).await,
            None => core::future::pending().await,
        }
    };
    let notice = |message: &dyn Display| terminal::event("notice", message, json!({}));
    notice(&"handing over data; stop again to exit at once");
    tokio::select! {
        retired = worker.retire() => match retired {
            Ok(true) => notice(&"other workers have copies of all data"),
            Ok(false) => notice(&"no other worker can take the data"),
            Err(error) => notice(&format_args!("cannot hand over data: {error}")),
        },
        again = stops.next() => {
            again?;
            worker.close().await;
            return Ok(true);
        }
        () = timeout => {
            notice(&"handing over data timed out");
            worker.close().await;
        }
    }
    Ok(false)
}
