//! The command line of `daskwire`, and the smaller commands.

mod arguments;
mod cluster_command;
mod config;
mod connect;
mod diagnose;
mod examples;
mod failure;
mod files;
mod generate;
mod heap;
mod identity;
mod inspect_command;
mod json;
#[cfg(feature = "tracing")]
mod log;
mod npy;
mod preload;
mod replay;
mod runtime;
mod scheduler_address;
mod scheduler_command;
mod serve;
mod show;
mod snapshot;
#[cfg(feature = "parquet")]
mod tables;
mod terminal;
mod tls;
mod top;
mod worker_command;

use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use daskwire::message::Layout;
use daskwire_comm::{Address, CommOptions, Transports};
use daskwire_peer::relay::{RelayError, RelayStats};
use daskwire_quic::{Congestion, Quic, QuicOptions};
use serde_json::json;

use crate::encode::{Target, documents};
use crate::printable;
use arguments::{LayoutChoice, PrefixChoice, is_standard_stream, name, read};
use cluster_command::SchedulerArguments;
use failure::{Failure, Result};
use runtime::{on_cluster, stop_requested};
use tls::{TlsArguments, add_transports, all_transports, with_added};

/// The Dask distributed wire protocol on the command line.
#[derive(Debug, Parser)]
#[command(name = "daskwire", version)]
struct Cli {
    /// Log events of clients, workers, schedulers and their connections; -vv: each
    /// step of a task; -vvv: each message. RUST_LOG, if set, overrides this
    #[cfg(feature = "tracing")]
    #[arg(short, action = clap::ArgAction::Count, global = true)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show recorded stream bytes, message by message
    #[command(after_help = examples::INSPECT)]
    Inspect(inspect_command::Inspect),
    /// Encode JSON documents of `inspect --json --data` to stream bytes
    #[command(after_help = examples::ENCODE)]
    Encode(Encode),
    /// Show a scheduler's identity and its workers
    #[command(after_help = examples::IDENTITY)]
    Identity(Identity),
    /// Forward messages unopened between any two transports
    #[command(after_help = examples::RELAY)]
    Relay(Relay),
    /// Run a scheduler for clients and workers, in Python and in Rust
    #[command(after_help = examples::SCHEDULER)]
    Scheduler(Box<scheduler_command::SchedulerCommand>),
    /// Run a scheduler, and workers for it on this machine
    #[command(after_help = examples::CLUSTER)]
    Cluster(scheduler_command::LocalArguments),
    /// Run a worker for a scheduler, with functions in Rust
    #[command(after_help = examples::WORKER)]
    Worker(Box<worker_command::WorkerArguments>),
    /// Follow a task from its submission until it is forgotten, message by
    /// message
    #[command(after_help = examples::JOURNEY)]
    Journey(cluster_command::Journey),
    /// Store files on a cluster, and print their keys
    #[command(after_help = examples::SCATTER)]
    Scatter(cluster_command::Scatter),
    /// Call a function on a cluster, and print its result
    #[command(after_help = examples::SUBMIT)]
    Submit(cluster_command::Submit),
    /// Fetch a result from a cluster
    #[command(after_help = examples::GATHER)]
    Gather(cluster_command::Gather),
    /// Release keys that were scattered or held
    #[command(after_help = examples::RELEASE)]
    Release(cluster_command::Release),
    /// Show a cluster's workers, and its tasks by state
    #[command(after_help = examples::PS)]
    Ps(diagnose::Ps),
    /// Show the log of a scheduler or of workers
    #[command(after_help = examples::LOGS)]
    Logs(diagnose::Logs),
    /// Show what happened to a task, on the scheduler and all workers, in order
    #[command(after_help = examples::STORY)]
    Story(diagnose::Story),
    /// Show what a scheduler has done, step by step, from its recording
    #[command(after_help = examples::REPLAY)]
    Replay(replay::Replay),
    /// Watch a cluster: workers, tasks by state, memory, transfers
    #[command(after_help = examples::TOP)]
    Top(top::Top),
    /// Print a script that completes command lines in a shell
    #[command(after_help = examples::COMPLETIONS)]
    Completions(generate::Completions),
    /// Write manual pages
    #[command(after_help = examples::MAN)]
    Man(generate::Man),
    /// List the opcodes of a pickle without executing them
    #[command(after_help = examples::PICKLE)]
    Pickle(Pickle),
}

#[derive(Debug, Args)]
struct Encode {
    /// JSON documents, each starting on a line of its own, or - for standard
    /// input
    file: PathBuf,
    /// The file for the stream, or - for standard output [default: -]
    #[arg(long, short)]
    output: Option<PathBuf>,
    /// The prefix of the frames; auto: that of the document
    #[arg(long, value_enum, default_value = "auto")]
    prefix: PrefixChoice,
    /// The layout of messages; auto: that of the document
    #[arg(long, value_enum, default_value = "auto")]
    layout: LayoutChoice,
}

#[derive(Debug, Args)]
struct Identity {
    #[command(flatten)]
    scheduler: SchedulerArguments,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Relay {
    /// The address to listen on: tcp://, tls://, quic://, ws:// or
    /// wss://HOST:PORT, or unix://PATH
    #[arg(long, value_name = "ADDRESS")]
    listen: String,
    /// The address to connect to for each incoming connection
    #[arg(long, value_name = "ADDRESS")]
    connect: String,
    /// Congestion control for quic://
    #[arg(long, value_enum, default_value = "cubic")]
    congestion: CongestionChoice,
    /// Print a JSON document for each event
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    tls: TlsArguments,
}

#[derive(Debug, Args)]
struct Pickle {
    /// The pickle, or - for standard input
    file: PathBuf,
    /// A file with an out-of-band buffer of the pickle; may be given several times, in
    /// the order of the buffers
    #[arg(long, value_name = "FILE")]
    buffers: Option<Vec<PathBuf>>,
    /// Print a JSON document for each opcode, and one for the whole pickle
    #[arg(long)]
    json: bool,
    /// Read the text opcodes of protocols 0 and 1, which Dask never writes
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    text_opcodes: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum CongestionChoice {
    /// The algorithm of most TCP implementations
    Cubic,
    /// Follows the measured bandwidth instead of losses, for links that lose packets
    /// without being congested; sends more packets
    Bbr,
}

/// Runs the command with `arguments`, the first of which is its name, and returns the exit
/// status: 0 for success, 2 for wrong arguments, another number for other failures.
///
/// The command handles signals and uses the standard streams as a program does. It may
/// replace or restart this process with the arguments of the process. The process should
/// therefore do nothing else.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    run_main(arguments.into_iter().collect())
}

/// Runs the command like [`main`], also at addresses of other transports than its own.
///
/// `transports` replace those of the command for their schemes. All commands with addresses use
/// them: clients, schedulers, workers and relays. A process calls this once: those of a second call
/// are ignored.
///
/// ```no_run
/// # use daskwire_comm::Transports;
/// // A program that is called as `dask-over-serial worker serial:///dev/ttyUSB0`.
/// let transports = Transports::new(); // .with(Serial::default())
/// let status = daskwire_cli::main_with(std::env::args_os(), transports);
/// std::process::exit(status.into());
/// ```
pub fn main_with(arguments: impl IntoIterator<Item = OsString>, transports: Transports) -> u8 {
    add_transports(transports);
    run_main(arguments.into_iter().collect())
}

fn run_main(arguments: Vec<OsString>) -> u8 {
    let arguments = match scheduler_address::complete(&Cli::command(), arguments) {
        Ok(arguments) => arguments,
        Err(failure) => {
            terminal::error(&failure);
            return failure.code();
        }
    };
    let status = match Cli::try_parse_from(arguments) {
        Ok(cli) => run_on_large_stack(cli),
        Err(error) => {
            // A failure to print cannot be reported.
            let _ = error.print();
            u8::try_from(error.exit_code()).unwrap_or(1)
        }
    };
    // Rust's standard library flushes only at the end of a Rust program's `main`.
    let _ = std::io::stdout().flush();
    status
}

fn run_on_large_stack(cli: Cli) -> u8 {
    #[cfg(feature = "tracing")]
    if let Err(error) = log::start(cli.verbose) {
        let failure = Failure::usage(error);
        terminal::error(&failure);
        return failure.code();
    }
    if matches!(cli.command, Command::Scheduler(_)) {
        heap::use_one_heap();
    }
    // Deeply nested messages become deeply nested JSON, which is printed and
    // dropped recursively: 1024 levels need more than the default stack.
    let work = std::thread::Builder::new()
        .stack_size(256 << 20)
        .spawn(move || run(cli.command));
    let outcome = match work.map(std::thread::JoinHandle::join) {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(panic)) => std::panic::resume_unwind(panic),
        Err(error) => Err(format!("cannot start a thread: {error}").into()),
    };
    match outcome {
        Ok(()) => 0,
        Err(failure) => {
            if !failure.is_silent() {
                terminal::error(&failure);
            }
            failure.code()
        }
    }
}

fn run(command: Command) -> Result {
    match command {
        Command::Inspect(arguments) => inspect_command::run(&arguments),
        Command::Encode(arguments) => encode(&arguments),
        Command::Identity(arguments) => on_cluster(identity(&arguments)),
        Command::Relay(arguments) => on_cluster(relay(&arguments)),
        Command::Pickle(arguments) => pickle(&arguments),
        Command::Scheduler(arguments) => scheduler_command::run(&arguments),
        Command::Cluster(arguments) => scheduler_command::run_local(&arguments),
        Command::Worker(arguments) => worker_command::run(*arguments),
        Command::Journey(arguments) => on_cluster(cluster_command::journey(&arguments)),
        Command::Scatter(arguments) => on_cluster(cluster_command::scatter(&arguments)),
        Command::Submit(arguments) => on_cluster(cluster_command::submit(&arguments)),
        Command::Gather(arguments) => on_cluster(cluster_command::gather(&arguments)),
        Command::Ps(arguments) => on_cluster(diagnose::ps(&arguments)),
        Command::Logs(arguments) => on_cluster(diagnose::logs(&arguments)),
        Command::Story(arguments) => on_cluster(diagnose::story(&arguments)),
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Top(arguments) => on_cluster(top::top(&arguments)),
        Command::Completions(arguments) => generate::completions(&arguments, &mut Cli::command()),
        Command::Man(arguments) => generate::man(&arguments, Cli::command()),
        Command::Release(arguments) => on_cluster(cluster_command::release(&arguments)),
    }
}

fn encode(arguments: &Encode) -> Result {
    let name = name(&arguments.file);
    let input = String::from_utf8(read(&arguments.file)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        format!("{name}: not UTF-8 at byte {at}")
    })?;
    let target = Target {
        prefix: arguments.prefix.get(),
        layout: arguments.layout.get(),
    };
    let mut stream = Vec::new();
    for (line, document) in documents(&input) {
        let message = crate::encode::encode(document, target).map_err(|error| {
            let line = line + error.line() - 1;
            format!("{name}: line {line}: {error}")
        })?;
        stream.extend_from_slice(&message);
    }
    if stream.is_empty() {
        return Err(format!(
            "{name}: the input is empty: expected documents of `daskwire inspect --json --data`"
        )
        .into());
    }
    match &arguments.output {
        Some(path) if !is_standard_stream(path) => {
            std::fs::write(path, stream).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        _ if std::io::stdout().is_terminal() => {
            return Err(Failure::usage(
                "refusing to write binary data to a terminal: give --output FILE",
            ));
        }
        _ => {
            let mut out = std::io::stdout().lock();
            terminal::outcome(out.write_all(&stream).and_then(|()| out.flush()))?;
        }
    }
    Ok(())
}

async fn identity(arguments: &Identity) -> Result {
    let address = connect::address(&arguments.scheduler.scheduler)?;
    let transports = arguments.scheduler.tls.transports(&[&address])?;
    let options = match arguments.scheduler.timeout {
        Some(timeout) => daskwire_peer::identity::options(timeout),
        None => {
            let CommOptions {
                connect_timeout,
                answer_timeout,
                ..
            } = CommOptions::default();
            daskwire_peer::identity::options(answer_timeout).with_connect_timeout(connect_timeout)
        }
    };
    let asked = daskwire_peer::identity::identity(&address, &transports, &options);
    let asked = async { asked.await.map_err(|error| connect::about(&address, error)) };
    let (mut identity, agreement) =
        connect::connecting(&address, &transports, false, asked).await?;
    // A worker does not report its address.
    if identity.address.is_empty() {
        identity.address = address.to_string();
    }
    let release = identity
        .release
        .map(|release| format!("distributed {release}"));
    let rust = identity.rust_version.as_ref();
    let rust = rust.map(|version| format!("daskwire {version}"));
    let python = identity::python_of(&identity, &agreement);
    let python = python.map(|[major, minor, micro]| format!("Python {major}.{minor}.{micro}"));
    let runs_on: Vec<String> = rust.into_iter().chain(release).chain(python).collect();
    let mut facts = String::new();
    if !runs_on.is_empty() {
        facts = format!("\n  runs on    {}", runs_on.join(", "));
    }
    let layout = match agreement.layout {
        Layout::Classic => "classic",
        Layout::Modern => "modern",
    };
    if arguments.json {
        let document = identity::document(&identity, &agreement);
        return Ok(terminal::print(printable::json(&document))?);
    }
    facts.push_str(&format!(
        "\n  comm       {layout} layout, pickle protocol {}\n",
        agreement.negotiated.pickle_protocol
    ));
    let now = terminal::now();
    let table = identity::table(&identity, now).replacen('\n', &facts, 1);
    Ok(terminal::print(table.trim_end())?)
}

async fn relay(arguments: &Relay) -> Result {
    if arguments.json {
        terminal::print_events_as_json();
    }
    let listen = connect::address(&arguments.listen)?;
    let target = connect::address(&arguments.connect)?;
    let tls = arguments.tls.tls(&[&listen, &target])?;
    let quic = QuicOptions::default()
        .with_congestion(match arguments.congestion {
            CongestionChoice::Cubic => Congestion::Cubic,
            CongestionChoice::Bbr => Congestion::Bbr,
        })
        // Shorter than the time that service managers give a process to stop.
        .with_drain_timeout(Duration::from_secs(2))
        .with_tls(
            tls.as_ref()
                .map(daskwire_quic::Tls::from)
                .unwrap_or_default(),
        );
    let mut transports = all_transports(tls.as_ref());
    if tls.is_some() {
        transports = with_added(transports.with(Quic::new(quic)));
    }
    let listener = transports.bind(&listen, CommOptions::default()).await;
    let listener = listener.map_err(|error| error.to_string())?;
    let bound = listener
        .local_address()
        .map_err(|error| error.to_string())?;
    // A signal may arrive as soon as the line has been printed.
    let asked = stop_requested()?;
    terminal::event(
        "forwarding",
        format_args!("forwarding from {bound} to {target}"),
        json!({"from": bound.to_string(), "to": target.to_string()}),
    );
    let report = |peer: &Address, outcome: Result<_, RelayError>| {
        let from = peer.to_string();
        let document =
            |stats: &RelayStats| json!({"messages": stats.message_count, "bytes": stats.len});
        match outcome {
            Ok((there, back)) => {
                let (there, back): (RelayStats, RelayStats) = (there, back);
                terminal::event(
                    "ended",
                    format_args!(
                        "{peer} has ended: {} messages, {} bytes there; {} messages, {} bytes \
                             back",
                        there.message_count, there.len, back.message_count, back.len
                    ),
                    json!({"peer": from, "there": document(&there), "back": document(&back)}),
                );
            }
            Err(error) => terminal::event(
                "disconnected",
                format_args!("{peer} was disconnected: {error}"),
                json!({"peer": from, "error": error.to_string()}),
            ),
        }
    };
    let options = daskwire_peer::relay::Options::default();
    let stop = async {
        asked.await;
        terminal::event("stopping", "stopping; closing all connections", json!({}));
    };
    let patience = options.comm.connect_timeout;
    let reporting = connect::report_first_failure(transports.clone(), &target, patience);
    let serving =
        daskwire_peer::relay::serve(&listener, &reporting, &target, options, report, stop);
    let outcome = serving.await.map_err(|error| error.to_string().into());
    // Closing explicitly notifies peers at once. Otherwise they would notice only by
    // their timeouts.
    let closing = async { tokio::join!(listener.close(), transports.close()) };
    let _ = tokio::time::timeout(Duration::from_secs(5), closing).await;
    outcome
}

fn pickle(arguments: &Pickle) -> Result {
    let pickle = read(&arguments.file)?;
    let paths = arguments.buffers.as_deref();
    let buffers: Option<Vec<Vec<u8>>> = paths
        .map(|paths| paths.iter().map(|path| read(path)).collect())
        .transpose()?;
    let options = crate::pickle::Options {
        buffers: buffers.as_deref(),
        text_opcodes: arguments.text_opcodes,
    };
    let mut out = terminal::stdout();
    let listed = match arguments.json {
        true => crate::pickle::list_json(&pickle, &options, &mut out),
        false => crate::pickle::list(&pickle, &options, &mut out),
    };
    let listed = listed.and_then(|fault| out.flush().map(|()| fault));
    match listed {
        Ok(None) => Ok(()),
        Ok(Some(fault)) => Err(format!("{}: {fault}", name(&arguments.file)).into()),
        // The reader has closed the pipe.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(format!("standard output: {error}").into()),
    }
}

#[cfg(test)]
mod tests {
    use daskwire_comm::{
        BoxFuture, CommError, ConnectError, ConnectOptions, Listen, PendingConnection, Transport,
    };
    use daskwire_peer::cluster::{ClusterTransport, LocalCluster};

    use super::*;

    /// Splits a shell command line into words; single quotes are the only supported syntax.
    fn words(line: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        for (index, part) in line.split('\'').enumerate() {
            let mut pieces = if index % 2 == 0 {
                part.split(' ').collect()
            } else {
                vec![part]
            }
            .into_iter();
            if let (Some(last), Some(piece)) = (words.last_mut(), pieces.next()) {
                last.push_str(piece);
            }
            words.extend(pieces.map(str::to_owned));
        }
        words
    }

    #[test]
    fn every_command_has_examples_which_parse() {
        Cli::command().debug_assert();
        for command in Cli::command().get_subcommands() {
            let name = command.get_name();
            let help = command.get_after_help().unwrap_or_default().to_string();
            let (_, examples) = help
                .split_once("Examples:\n")
                .unwrap_or_else(|| panic!("{name} has no examples"));
            assert!(examples.contains(&format!("daskwire {name}")), "{name}");
            // A narrower terminal breaks lines.
            for line in help.lines() {
                assert!(line.chars().count() <= 80, "{line}");
            }
            for line in examples.lines() {
                let line = line.split(['>', '|']).next().unwrap_or_default();
                let mut words = words(line.trim());
                words.retain(|word| !word.is_empty());
                assert_eq!(
                    words.first().map(String::as_str),
                    Some("daskwire"),
                    "{line}"
                );
                if let Err(error) = Cli::try_parse_from(&words) {
                    panic!("{line}: {error}");
                }
            }
        }
    }

    /// TCP under another scheme.
    struct Renamed(Transports);

    impl Transport for Renamed {
        fn schemes(&self) -> &[&'static str] {
            &["renamed"]
        }

        fn connect<'a>(
            &'a self,
            address: &'a Address,
            options: &'a ConnectOptions,
        ) -> BoxFuture<'a, core::result::Result<PendingConnection, ConnectError>> {
            Box::pin(async move {
                let address = format!("tcp://{}", address.location()).parse();
                let address = address.expect("a host and a port");
                let transport = self.0.for_scheme("tcp")?;
                transport.connect(&address, options).await
            })
        }

        fn bind<'a>(
            &'a self,
            _address: &'a Address,
        ) -> BoxFuture<'a, core::result::Result<Box<dyn Listen>, CommError>> {
            Box::pin(async { Err(daskwire_comm::Closed::Locally.into()) })
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_program_adds_its_transports() {
        let cluster = LocalCluster::builder().transport(ClusterTransport::Tcp);
        let cluster = cluster.start().await.expect("it starts");
        let address = format!("renamed://{}", cluster.address().location());
        let run = move |address: String| {
            tokio::task::spawn_blocking(move || {
                let transports = Transports::new().with(Renamed(daskwire_peer::transports()));
                let arguments = ["daskwire", "submit", &address, "operator.add", "1", "2"];
                main_with(arguments.map(OsString::from), transports)
            })
        };
        assert_eq!(run(address).await.expect("no panic"), 0);
        let other = format!("other://{}", cluster.address().location());
        assert_eq!(run(other).await.expect("no panic"), 2);
        cluster.close().await;
    }
}
