//! The commands that use a cluster's data and tasks: `daskwire scatter`, `gather`,
//! `submit`, `release` and `journey`.

use core::fmt;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::journey::{Form, Recorder, time};
use clap::{Args, ValueEnum};
use daskwire::display::Printable;
use daskwire_comm::Address;
use daskwire_peer::TaskState;
use daskwire_peer::client::{ClientOptions, Meter, Route, SubmitOptions, TaskError};
use daskwire_peer::cluster::{ClusterTransport, LocalCluster};
use daskwire_peer::graph::Argument;
use daskwire_peer::{Client, Error, Key, RequestError, Value};
use indicatif::{ProgressBar, ProgressState, ProgressStyle};

use crate::command::connect::{address, connect};
use crate::command::failure::{Failure, Result};
use crate::command::show::{ResultArguments, extension, key_json, value_json};
#[cfg(feature = "parquet")]
use crate::command::tables;
use crate::command::tls::TlsArguments;
use crate::command::worker_command::quantity;
use crate::command::{json, npy, terminal};
use crate::format::{bytes, count, duration};
use crate::printable;

/// The time after which `submit` says why a task does not run.
const WAITING: Duration = Duration::from_secs(2);

/// The time by which the timeout of a request exceeds that of connecting.
const MARGIN: Duration = Duration::from_millis(100);

/// The time for the scheduler to read the last messages of a command that has its result.
const LEAVING: Duration = Duration::from_secs(1);

/// The time for the scheduler to read that keys are released, without `--timeout`.
const RELEASING: Duration = Duration::from_secs(30);

/// The client id that holds keys between two commands.
const HOLDER: &str = "daskwire-shell";

/// The arguments for connecting to a scheduler.
#[derive(Debug, Args)]
pub(crate) struct SchedulerArguments {
    /// The scheduler, as tcp://HOST:PORT, tls://, ws://, wss:// or, for a relay,
    /// quic://HOST:PORT [default: that of --scheduler-file, or scheduler-address of Dask's
    /// configuration, such as the variable DASK_SCHEDULER_ADDRESS]
    pub(crate) scheduler: String,
    /// The file that `dask scheduler --scheduler-file` writes, in place of SCHEDULER
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    scheduler_file: Option<PathBuf>,
    /// Timeout of connections and short replies, such as 5s [default: 30s for a connection,
    /// 5 minutes for replies, because the scheduler may be busy]
    #[arg(long, value_name = "DURATION", value_parser = quantity::duration, help_heading = "Connection")]
    pub(crate) timeout: Option<Duration>,
    #[command(flatten)]
    pub(crate) tls: TlsArguments,
}

/// The arguments for transfers to and from a cluster.
#[derive(Debug, Args)]
pub(crate) struct ClusterArguments {
    #[command(flatten)]
    scheduler: SchedulerArguments,
    /// Transfer data directly to and from workers, bypassing the scheduler
    #[arg(long)]
    direct: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Scatter {
    #[command(flatten)]
    cluster: ClusterArguments,
    /// The files
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Store what the files contain instead of their bytes: .npy as an array of numpy, .csv and
    /// .parquet as a table of pyarrow, .json as a value
    #[arg(long)]
    values: bool,
    /// A key that the cluster does not have yet, for a single file [default: a unique key
    /// for each file]
    #[arg(long, allow_hyphen_values = true)]
    key: Option<String>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Gather {
    #[command(flatten)]
    cluster: ClusterArguments,
    /// The key of the result
    #[arg(allow_hyphen_values = true)]
    key: String,
    #[command(flatten)]
    result: ResultArguments,
}

#[derive(Debug, Args)]
pub(crate) struct Submit {
    #[command(flatten)]
    cluster: ClusterArguments,
    /// The function: MODULE.NAME for Python, builtins:CLASS.NAME for a method,
    /// native:NAME for a function of a Rust worker
    function: String,
    /// Its arguments: JSON, such as 3, [1, 2] or null; @KEY for an existing result;
    /// a string needs no quotes if it is not valid JSON; a string that begins with @ is
    /// given as '"@home"'
    #[arg(allow_negative_numbers = true)]
    arguments: Vec<String>,
    /// A keyword argument; may be given several times
    #[arg(long, value_name = "NAME=ARGUMENT")]
    keyword: Vec<String>,
    /// The key of the result; a result that the cluster already has is kept [default: the
    /// same for equal calls]
    #[arg(long, allow_hyphen_values = true, conflicts_with = "impure")]
    key: Option<String>,
    /// Run the call even if the cluster has a result of an equal call
    #[arg(long)]
    impure: bool,
    /// Run on one of these workers, given by addresses or names
    #[arg(long, value_name = "WORKER", value_delimiter = ',')]
    workers: Vec<String>,
    /// Maximum number of times to run the task again if it fails
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    retries: u32,
    /// Run where these amounts of resources are free, such as GPU=1,MEMORY=2e9
    #[arg(long, value_name = "NAME=AMOUNT", value_delimiter = ',')]
    resources: Vec<String>,
    /// Keep the result on the cluster, and print its key instead of the result
    #[arg(long, conflicts_with_all = ["output", "raw"])]
    hold: bool,
    #[command(flatten)]
    result: ResultArguments,
}

#[derive(Debug, Args)]
pub(crate) struct Release {
    #[command(flatten)]
    cluster: ClusterArguments,
    /// The keys that were scattered or held; after -- if they begin with a dash
    #[arg(required = true)]
    keys: Vec<String>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Journey {
    /// A real scheduler, as tcp://HOST:PORT, tls://HOST:PORT or, for a relay,
    /// quic://HOST:PORT [default: a cluster in this process]
    #[arg(long, value_name = "ADDRESS")]
    scheduler: Option<String>,
    /// The transport of the cluster in this process
    #[arg(long, value_enum, default_value = "mem", conflicts_with = "scheduler")]
    transport: TransportChoice,
    /// Show the bodies of messages
    #[arg(long, alias = "verbose")]
    bodies: bool,
    /// Print a JSON document for each message, and one for the result
    #[arg(long, conflicts_with = "bodies")]
    json: bool,
    #[command(flatten)]
    tls: TlsArguments,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TransportChoice {
    /// Memory
    Mem,
    /// TCP on this machine
    Tcp,
    /// TLS on this machine
    Tls,
    /// QUIC on this machine
    Quic,
}

impl TransportChoice {
    const fn get(self) -> ClusterTransport {
        match self {
            Self::Mem => ClusterTransport::Memory,
            Self::Tcp => ClusterTransport::Tcp,
            Self::Tls => ClusterTransport::Tls,
            Self::Quic => ClusterTransport::Quic,
        }
    }
}

/// Prints a warning if the scheduler's release is untested, unless a log is enabled,
/// which reports it.
fn warn_of_release(client: &Client) {
    #[cfg(feature = "tracing")]
    if crate::command::log::is_on() {
        return;
    }
    if let Some(warning) = client.untested_release() {
        terminal::note(warning);
    }
}

/// Closes a client that needs nothing more from the scheduler, which may be busy. Without
/// the last messages, it forgets the client when the connection ends.
pub(crate) async fn leave(client: Client) {
    let _ = tokio::time::timeout(LEAVING, client.close()).await;
}

impl SchedulerArguments {
    /// Connects, and prints the progress of connecting.
    pub(crate) async fn connect(&self) -> Result<Client> {
        self.connect_with(ClientOptions::default()).await
    }

    /// Connects with additional options.
    async fn connect_with(&self, some: ClientOptions) -> Result<Client> {
        let scheduler = address(&self.scheduler)?;
        let options = self.options(&scheduler, some)?;
        let client = connect(&scheduler, options).await?;
        warn_of_release(&client);
        Ok(client)
    }

    /// Completes client options with those of the command line.
    pub(crate) fn options(
        &self,
        scheduler: &Address,
        some: ClientOptions,
    ) -> Result<ClientOptions> {
        let mut options = some.with_transports(self.tls.transports(&[scheduler])?);
        if let Some(timeout) = self.timeout {
            options.comm.connect_timeout = timeout;
            options.comm.answer_timeout = timeout;
            options.comm = options.comm.within(timeout);
            // Includes the connection and its handshake, whose errors say more.
            options.timeout = timeout.saturating_add(MARGIN);
        }
        Ok(options)
    }
}

impl ClusterArguments {
    async fn connect(&self, meter: &Arc<Meter>) -> Result<Client> {
        let options = ClientOptions::default()
            .with_route(self.route())
            .with_meter(Arc::clone(meter));
        self.scheduler.connect_with(options).await
    }

    const fn route(&self) -> Route {
        if self.direct {
            Route::Direct
        } else {
            Route::Scheduler
        }
    }
}

/// The message of an error; for a failed task, with the traceback.
pub(crate) fn message(error: impl Into<Error>) -> String {
    match error.into() {
        Error::Task(TaskError::Failed { error, .. }) if !error.traceback.is_empty() => {
            format!("the task failed\n{}{error}", error.traceback)
        }
        error => error.to_string(),
    }
}

/// Parses a key. A list is written in JSON, such as `["x", 0]`, or as a tuple of Python,
/// such as `('x', 0)`. `name` is that of the argument in errors.
///
/// # Errors
///
/// A usage error if the key is empty.
pub(crate) fn key(name: &str, input: &str) -> Result<Key> {
    fn of(value: &serde_json::Value) -> Option<Key> {
        match value {
            serde_json::Value::String(input) => Some(Key::from(input.as_str())),
            serde_json::Value::Number(number) => number.as_i64().map(Key::from),
            serde_json::Value::Array(parts) => {
                let parts: Option<Vec<Key>> = parts.iter().map(of).collect();
                parts.map(Key::list)
            }
            _ => None,
        }
    }
    let list = match input.as_bytes() {
        [b'[', ..] => Some(input.to_owned()),
        [b'(', ..] => tuple_to_json(input),
        _ => None,
    };
    let list = list.and_then(|list| serde_json::from_str(&list).ok());
    let key = list.as_ref().and_then(of);
    let key = key.unwrap_or_else(|| Key::from(input));
    if key.is_empty() {
        return Err(Failure::usage(format_args!(
            "{name}: a key must not be empty"
        )));
    }
    Ok(key)
}

/// Converts a tuple of Python, of strings, integers, tuples and lists, to a list in JSON. The
/// result is not valid JSON, or `None`, if the input is something else.
fn tuple_to_json(input: &str) -> Option<String> {
    let mut json = String::new();
    // The open brackets, and whether there is a comma in them.
    let mut brackets: Vec<(char, bool)> = Vec::new();
    let mut quote = None;
    let mut characters = input.chars();
    while let Some(character) = characters.next() {
        match (quote, character) {
            (None, '(' | '[') => {
                brackets.push((character, false));
                json.push('[');
            }
            (None, ')') => {
                let (bracket, has_comma) = brackets.pop()?;
                let parts = json.trim_end();
                // `(1)` is a number, and `(1,)` has one part.
                if bracket != '(' || !(has_comma || parts.ends_with('[')) {
                    return None;
                }
                json.truncate(parts.strip_suffix(',').unwrap_or(parts).len());
                json.push(']');
            }
            (None, ']') => {
                brackets.pop().filter(|(bracket, _)| *bracket == '[')?;
                json.push(']');
            }
            (None, ',') if !json.trim_end().ends_with('[') => {
                brackets.last_mut()?.1 = true;
                json.push(',');
            }
            (None, '\'' | '"') => {
                quote = Some(character);
                json.push('"');
            }
            (Some(open), _) if open == character => {
                quote = None;
                json.push('"');
            }
            (Some(_), '"') => json.push_str("\\\""),
            (Some(_), '\\') => match characters.next() {
                Some('\'') => json.push('\''),
                other => {
                    json.push('\\');
                    json.extend(other);
                }
            },
            (Some(_), _) | (None, '0'..='9' | '-' | ' ') => json.push(character),
            (None, _) => return None,
        }
    }
    Some(json)
}

fn existing(key: &Key) -> String {
    let key = shown(key);
    format!("the cluster already has a task with the key {key}")
}

/// Formats a key as [`key`] parses it.
pub(crate) fn shown(key: &Key) -> String {
    key.as_str()
        .map_or_else(|| key_json(key).to_string(), str::to_owned)
}

/// Parses an argument of a call.
fn argument(input: &str) -> Result<Argument> {
    if let Some(name) = input.strip_prefix('@') {
        return Ok(Argument::from(key(input, name)?));
    }
    let fault = match input {
        "None" | "True" | "False" => "JSON is expected, which has null, true and false".to_owned(),
        "null" | "true" | "false" => return json::parse(input).map(Argument::Value).map_err(usage),
        _ if input.starts_with(|first: char| "[{\"-0123456789".contains(first)) => {
            match json::parse(input) {
                Ok(value) => return Ok(Argument::Value(value)),
                Err(fault) => fault,
            }
        }
        _ => return Ok(Argument::Value(Value::from(input))),
    };
    let quoted = serde_json::Value::from(input);
    Err(Failure::usage(format_args!(
        "argument {input}: {fault}; if it is a string, write '{quoted}'"
    )))
}

fn usage(fault: String) -> Failure {
    Failure::usage(fault)
}

/// Splits an option such as `--keyword NAME=ARGUMENT`.
fn pair<'t>(option: &str, input: &'t str, value: &str) -> Result<(&'t str, &'t str)> {
    let parts = input.split_once('=').filter(|(name, _)| !name.is_empty());
    parts.ok_or_else(|| Failure::usage(format_args!("--{option} {input}: expected NAME={value}")))
}

/// Runs `work`, which transfers `total` bytes, and shows its progress. Shows nothing if
/// standard error is not a terminal or is used by a log, or if the work is quick.
async fn with_progress<T>(
    what: &str,
    total: u64,
    done: impl Fn() -> u64,
    work: impl Future<Output = T>,
) -> T {
    const SLOW: Duration = Duration::from_millis(300);
    #[cfg(feature = "tracing")]
    if crate::command::log::is_on() {
        return work.await;
    }
    let (start, started) = (done(), Instant::now());
    let mut work = core::pin::pin!(work);
    if let Ok(output) = tokio::time::timeout(SLOW, work.as_mut()).await {
        return output;
    }
    let style = "{msg} {bar:30} {bytes} of {total_bytes}{speed}";
    let bar = ProgressBar::new(total).with_message(what.to_owned());
    if let Ok(style) = ProgressStyle::with_template(style) {
        let speed = move |state: &ProgressState, to: &mut dyn fmt::Write| {
            let speed = speed(state.pos(), total, started.elapsed());
            // Writing to a string cannot fail.
            let _ = to.write_str(&speed);
        };
        bar.set_style(style.with_key("speed", speed));
    }
    let output = loop {
        bar.set_position((done() - start).min(total));
        if let Ok(output) = tokio::time::timeout(SLOW / 3, work.as_mut()).await {
            break output;
        }
    };
    bar.finish_and_clear();
    output
}

/// Formats the mean rate of a transfer since it began, and the time that remains at
/// this rate; empty until data has been transferred. Once all of it is, says that the
/// command waits for the other side, whose time is unknown.
// The bar's own estimate counts what was sent before the bar was shown as one burst.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "for display"
)]
fn speed(done: u64, total: u64, elapsed: Duration) -> String {
    if done >= total {
        return ", waiting for the reply".to_owned();
    }
    let rate = done as f64 / elapsed.as_secs_f64();
    if done == 0 || !rate.is_finite() {
        return String::new();
    }
    let left = total.saturating_sub(done) as f64 / rate;
    format!(", {}/s, {} left", bytes(rate as u64), duration(left))
}

pub(crate) async fn scatter(arguments: &Scatter) -> Result {
    if arguments.key.is_some() && arguments.files.len() != 1 {
        return Err(Failure::usage("--key is for a single file"));
    }
    let mut data = Vec::new();
    let mut total = 0;
    for file in &arguments.files {
        let bytes = crate::command::arguments::read(file)?;
        total += bytes.len() as u64;
        let name = match (&arguments.key, file.file_name()) {
            (Some(name), _) => key("--key", name)?,
            // A name that begins with a dash would be parsed as an option.
            (None, _) if crate::command::arguments::is_standard_stream(file) => {
                Key::unique("stdin")
            }
            (None, Some(name)) => Key::unique(&name.to_string_lossy()),
            (None, None) => Key::unique("data"),
        };
        let value = match arguments.values {
            true => contents(file, bytes)?,
            false => Value::bytes(bytes),
        };
        data.push((name, value));
    }
    let meter = Arc::new(Meter::default());
    let client = arguments.cluster.connect(&meter).await?;
    if let (Some(_), [(key, _)]) = (&arguments.key, &data[..]) {
        let status = client.task_status([key]).await.map_err(message)?;
        if without_task(&status).is_empty() {
            return Err(existing(key).into());
        }
    }
    let sending = client.scatter_by(data, arguments.cluster.route());
    let sent = with_progress("sending", total, || meter.sent(), sending).await;
    let futures = sent.map_err(message)?;
    client.hold_as(HOLDER, &futures).await.map_err(message)?;
    if arguments.json {
        let keys: Vec<_> = futures
            .iter()
            .map(|future| key_json(future.key()))
            .collect();
        terminal::print(printable::json(&serde_json::json!({"keys": keys})))?;
    } else {
        for future in &futures {
            terminal::print(Printable(&shown(future.key())))?;
        }
    }
    leave(client).await;
    Ok(())
}

/// The value that a file contains, by its extension.
fn contents(file: &Path, bytes: Vec<u8>) -> Result<Value> {
    let name = file.display();
    let read = match &*extension(file) {
        "npy" => npy::read(bytes),
        #[cfg(feature = "parquet")]
        "csv" => tables::read_csv(&bytes).map_err(|error| error.to_string()),
        #[cfg(feature = "parquet")]
        "parquet" => tables::read_parquet(bytes).map_err(|error| error.to_string()),
        #[cfg(not(feature = "parquet"))]
        "csv" | "parquet" => {
            return Err(Failure::usage(format_args!(
                "--values {name}: {}",
                super::show::NO_TABLES
            )));
        }
        "json" => match core::str::from_utf8(&bytes) {
            Ok(text) => json::parse(text),
            Err(error) => Err(error.to_string()),
        },
        _ => {
            return Err(Failure::usage(format_args!(
                "--values {name}: expected a name that ends with .npy, .csv, .parquet or .json"
            )));
        }
    };
    read.map_err(|error| format!("{name}: {error}").into())
}

pub(crate) async fn gather(arguments: &Gather) -> Result {
    arguments.result.check()?;
    let key = key("KEY", &arguments.key)?;
    let meter = Arc::new(Meter::default());
    let client = arguments.cluster.connect(&meter).await?;
    let status = client.task_status([key.clone()]).await.map_err(message)?;
    // Requesting a key that does not exist would create a task that never runs.
    if !without_task(&status).is_empty() {
        return Err(unknown_keys(&[key]));
    }
    let future = client.future(key).map_err(message)?;
    future.finished().await.map_err(message)?;
    let size = client
        .nbytes(core::slice::from_ref(&future))
        .await
        .map_err(message)?;
    let total = size.first().map_or(0, |(_, len)| *len);
    let receiving = client.gather(core::slice::from_ref(&future));
    let received = with_progress("receiving", total, || meter.received(), receiving).await;
    let result = received.map_err(message)?.pop().unwrap_or_default();
    arguments.result.show(future.key(), &result)?;
    drop(future);
    leave(client).await;
    Ok(())
}

pub(crate) async fn submit(arguments: &Submit) -> Result {
    // Report a wrong command line before anything is sent.
    arguments.result.check()?;
    let positional: Vec<Argument> = arguments
        .arguments
        .iter()
        .map(|input| argument(input))
        .collect::<Result<_>>()?;
    let mut keywords = Vec::new();
    for input in &arguments.keyword {
        let (name, value) = pair("keyword", input, "ARGUMENT")?;
        keywords.push((name, argument(value)?));
    }
    let inputs = positional
        .iter()
        .chain(keywords.iter().map(|(_, value)| value));
    let inputs = inputs.filter_map(|input| match input {
        Argument::Result(key) => Some(key.clone()),
        _ => None,
    });
    let inputs: Vec<Key> = inputs.collect();
    let workers = arguments.workers.iter().map(String::as_str);
    let mut options = SubmitOptions::default();
    if !arguments.workers.is_empty() {
        options = options.workers(workers);
    }
    if arguments.retries > 0 {
        options = options.retries(arguments.retries);
    }
    for input in &arguments.resources {
        let (name, amount) = pair("resources", input, "AMOUNT")?;
        let amount: Option<f64> = amount.parse().ok();
        let amount = amount.filter(|amount| amount.is_finite() && *amount >= 0.0);
        let expected = || format!("--resources {input}: expected an amount of at least 0");
        options = options.resource(name, amount.ok_or_else(expected).map_err(usage)?);
    }
    let name = arguments.key.as_deref();
    let name = name.map(|name| key("--key", name)).transpose()?;
    let client = arguments.cluster.connect(&Arc::default()).await?;
    if !inputs.is_empty() {
        let status = client.task_status(inputs).await.map_err(message)?;
        let unknown = without_task(&status);
        if !unknown.is_empty() {
            return Err(unknown_keys(&unknown));
        }
    }
    if let Some(name) = &name {
        let status = client.task_status([name]).await.map_err(message)?;
        if without_task(&status).is_empty() {
            terminal::note(format_args!("{}, whose result is kept", existing(name)));
        }
    }
    let mut call = client.call(arguments.function.as_str()).with(options);
    for value in positional {
        call = call.argument(value);
    }
    for (name, value) in keywords {
        call = call.keyword(name, value);
    }
    if let Some(name) = name {
        call = call.key(name);
    }
    if arguments.impure {
        call = call.impure();
    }
    let future = call.submit().map_err(message)?;
    let reporting = async {
        tokio::time::sleep(WAITING).await;
        report_waiting(&client, future.key(), arguments).await;
    };
    tokio::select! {
        _ = future.finished() => {}
        () = reporting => {}
    }
    let failed = |error| failed_call(&arguments.function, error);
    if arguments.hold {
        let held = client.hold_as(HOLDER, core::slice::from_ref(&future));
        held.await.map_err(failed)?;
        if arguments.result.json {
            let document = serde_json::json!({"key": key_json(future.key())});
            terminal::print(printable::json(&document))?;
        } else {
            terminal::print(Printable(&shown(future.key())))?;
        }
    } else {
        let result = future.result().await.map_err(failed)?;
        arguments.result.show(future.key(), &result)?;
    }
    drop(future);
    leave(client).await;
    Ok(())
}

/// The message of a call that failed. Python reports only indirectly that it lacks the
/// functions of workers in Rust: by an error of `operator.methodcaller`.
fn failed_call(function: &str, error: TaskError) -> String {
    let is_missing = matches!(
        &error,
        TaskError::Failed { error, .. } if !error.traceback.is_empty()
            && [function, "methodcaller"].iter().any(|name| error.message.contains(name))
    );
    let mut failure = message(error);
    if function.starts_with("native:") && is_missing {
        failure
            .push_str("\nno worker in Rust runs this function; start one with `daskwire worker`");
    }
    failure
}

/// Prints why a task does not run, unless it runs or waits for its inputs.
async fn report_waiting(client: &Client, key: &Key, arguments: &Submit) {
    // The command continues without an answer.
    let (Ok(status), Ok(workers)) = (client.task_status([key]).await, client.workers().await)
    else {
        return;
    };
    let reason = match (&status[..], &arguments.workers[..]) {
        ([(_, Some(TaskState::Processing | TaskState::Memory | TaskState::Erred))], _) => return,
        _ if workers.is_empty() => "the cluster has no workers".to_owned(),
        ([(_, Some(TaskState::NoWorker))], []) => "no worker can run the task".to_owned(),
        ([(_, Some(TaskState::NoWorker))], workers) => {
            format!(
                "no worker of --workers {} can run the task",
                workers.join(",")
            )
        }
        _ => return,
    };
    terminal::note(format_args!("waiting: {reason}"));
}

pub(crate) async fn release(arguments: &Release) -> Result {
    let keys = arguments.keys.iter().map(|input| key("KEYS", input));
    let keys: Vec<Key> = keys.collect::<Result<_>>()?;
    let client = arguments.cluster.connect(&Arc::default()).await?;
    let status = client.task_status(&keys).await.map_err(message)?;
    let unknown = without_task(&status);
    // A scheduler may refuse to say which keys are held.
    let held = match client.keys_held_by(HOLDER).await {
        Ok(held) => Some(held),
        Err(RequestError::Remote(_) | RequestError::Reply { .. }) => None,
        Err(error) => return Err(message(error).into()),
    };
    let is_held = |key: &Key| held.as_ref().is_none_or(|held| held.contains(key));
    // In the form of the scheduler's release.
    let known = status.into_iter().filter(|(_, status)| status.is_some());
    let (keys, others): (Vec<Key>, Vec<Key>) = known.map(|(key, _)| key).partition(is_held);
    let document = serde_json::json!({
        "released": keys.iter().map(key_json).collect::<Vec<_>>(),
    });
    if !keys.is_empty() {
        client.release_as(HOLDER, keys).map_err(message)?;
    }
    // The scheduler does not confirm that it has released keys.
    let timeout = arguments.cluster.scheduler.timeout.unwrap_or(RELEASING);
    let closed = tokio::time::timeout(timeout, client.close()).await;
    closed
        .map_err(|_| {
            let seconds = timeout.as_secs_f64();
            format!("the scheduler has not read the request after {seconds} seconds")
        })?
        .map_err(message)?;
    if arguments.json {
        terminal::print(printable::json(&document))?;
    }
    let mut faults = Vec::new();
    if !unknown.is_empty() {
        faults.push(unknown_keys(&unknown).to_string());
    }
    if !others.is_empty() {
        let others = list(&others);
        faults.push(format!(
            "not held by `scatter` or `submit --hold`: {others}"
        ));
    }
    match faults.is_empty() {
        true => Ok(()),
        false => Err(faults.join("; ").into()),
    }
}

pub(crate) fn list(keys: &[Key]) -> String {
    keys.iter().map(shown).collect::<Vec<_>>().join(", ")
}

/// The keys without a task.
fn without_task(status: &[(Key, Option<TaskState>)]) -> Vec<Key> {
    let unknown = status.iter().filter(|(_, status)| status.is_none());
    unknown.map(|(key, _)| key.clone()).collect()
}

/// The error for keys that the cluster does not have.
fn unknown_keys(keys: &[Key]) -> Failure {
    format!("the cluster has no result with the key {}", list(keys)).into()
}

pub(crate) async fn journey(arguments: &Journey) -> Result {
    let recorder = Arc::new(Recorder::new(arguments.scheduler.is_none()));
    let mut out = terminal::stdout();
    let mut written = Ok(());
    let mut show = |line: &str| {
        if written.is_ok() {
            written = out.write_all(line.as_bytes()).and_then(|()| out.flush());
        }
    };
    let form = match arguments.json {
        true => Form::Json,
        false => Form::Text {
            verbose: arguments.bodies,
        },
    };
    let heading;
    let (client, cluster) = match &arguments.scheduler {
        Some(scheduler) => {
            let address = address(scheduler)?;
            let options = ClientOptions::default()
                .with_transports(arguments.tls.transports(&[&address])?)
                .with_observer(Arc::<Recorder>::clone(&recorder));
            let client = connect(&address, options).await?;
            warn_of_release(&client);
            let workers = client.workers().await.map_err(message)?;
            if workers.is_empty() {
                return Err(
                    format!("{scheduler} has no workers to run the task: start one first").into(),
                );
            }
            recorder.set_name(&address.to_string(), "scheduler");
            heading = format!(
                "A real cluster at {scheduler} with {}; what passes between the \
                 scheduler and these is not seen from here\n\n",
                count(workers.len(), "worker")
            );
            (client, None)
        }
        None => {
            let cluster = LocalCluster::builder()
                .transport(arguments.transport.get())
                .observer(Arc::<Recorder>::clone(&recorder))
                .start()
                .await
                .map_err(message)?;
            heading = format!(
                "A scheduler at {} and 2 workers, all in this process\n\n",
                cluster.address()
            );
            let client = cluster.client().await.map_err(message)?;
            recorder.set_name(&cluster.address().to_string(), "scheduler");
            recorder.set_name(client.id(), "client");
            for worker in cluster.workers() {
                recorder.set_name(worker.address(), worker.name());
            }
            (client, Some(cluster))
        }
    };
    if !arguments.json {
        show(&heading);
    }
    let outcome = crate::journey::journey(&client, &recorder, form, &mut show);
    let outcome = outcome.await.map_err(message)?;
    leave(client).await;
    if let Some(cluster) = cluster {
        cluster.close().await;
    }
    let (result, took) = (outcome.result, outcome.took);
    if arguments.json {
        let result = value_json(&result).map_err(|error| error.to_string())?;
        let document = serde_json::json!({"result": result, "took": took.as_secs_f64()});
        show(&format!("{}\n", printable::json(&document)));
    } else {
        show(&format!("\nz = {result} took {}\n", time(took)));
    }
    Ok(terminal::outcome(written)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use daskwire_peer::RemoteError;

    #[test]
    fn rates_are_those_since_the_start() {
        let of = |done, millis| speed(done, 100 << 20, Duration::from_millis(millis));
        assert_eq!(of(10 << 20, 500), ", 20.0 MiB/s, 4 s left");
        assert_eq!(of(99 << 20, 990), ", 100.0 MiB/s, 0 s left");
        assert_eq!(of(100 << 20, 500), ", waiting for the reply");
        assert_eq!(of(0, 500), "");
        assert_eq!(of(10, 0), "");
    }

    #[test]
    fn only_errors_about_a_function_say_that_no_worker_runs_it() {
        let failed = |message: &str, traceback: &str| {
            let error = RemoteError {
                traceback: traceback.to_owned(),
                ..RemoteError::new("Error", message)
            };
            let (key, error) = (Key::from("x"), Arc::new(error));
            let failure = failed_call("native:norm", TaskError::Failed { key, error });
            failure.contains("no worker in Rust runs this function")
        };
        assert!(failed(
            "'int' object has no attribute 'native:norm'",
            "in f"
        ));
        assert!(failed("methodcaller expected 1 argument, got 0", "in f"));
        assert!(!failed("division by zero", "in f"));
        assert!(!failed("native:norm takes an array", ""));
    }

    #[test]
    fn lists_are_json_or_tuples_of_python() {
        let block = |x| Key::list([Key::from(x), Key::from(0), Key::list([Key::from(-1)])]);
        for (input, expected) in [
            (r#"["x", 0, [-1]]"#, block("x")),
            ("('x', 0, (-1,))", block("x")),
            (r#"("it's", 0, (-1,))"#, block("it's")),
            (r#"('it\'s', 0, [-1])"#, block("it's")),
            (r#"('say "x"', 0, (-1, ))"#, block("say \"x\"")),
            ("([0], )", Key::list([Key::list([Key::from(0)])])),
        ] {
            let key = key("KEY", input).expect("not empty");
            assert_eq!(key, expected, "{input}");
            assert_eq!(super::key("KEY", &shown(&key)).expect("not empty"), key);
        }
        for string in [
            "5",
            "[x",
            "(x, 0)",
            "(1, 2]",
            "[1, 2)",
            "(1,,)",
            "(,)",
            "('a')",
            "(1)",
            "(1, 2",
            "(1, 2))",
            "('a' 'b',)",
            "(1.5, 2)",
            "(0, true)",
        ] {
            assert_eq!(key("KEY", string).expect("not empty"), Key::from(string));
        }
        for input in ["", "[]", "()", "[[]]"] {
            let error = key("--key", input).expect_err(input).to_string();
            assert_eq!(error, "--key: a key must not be empty", "{input}");
        }
    }
}
