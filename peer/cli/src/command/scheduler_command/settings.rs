//! The settings of a scheduler, from the command line or else from Dask's configuration.

use std::net::{IpAddr, UdpSocket};
#[cfg(target_os = "linux")]
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use daskwire_comm::tls::certificate_names;
use daskwire_comm::{Address, Codec, CommOptions, Encryption, Transports};
use daskwire_dashboard::{DashboardOptions, HttpAddress, Setting, TlsFiles};
#[cfg(target_os = "linux")]
use daskwire_peer::scheduler::PythonOptions;
use daskwire_peer::scheduler::{
    JournalOptions, MemoryMeasure, Permissions, Permit, Policy, RecordingOptions,
};
use serde_json::{Value, json};

use super::SchedulerCommand;
use crate::command::config::Config;
use crate::command::connect::{address_with, interface_address};
use crate::command::failure::{Failure, Result};
use crate::command::preload::preload;
use crate::command::serve::DashboardArguments;
use crate::command::terminal;
use crate::command::tls::{TlsArguments, TlsConfig, check_encryption, transports};
use crate::command::worker_command::quantity::{MemoryLimit, duration};

/// The port of a scheduler, as in Dask.
pub(super) const PORT: u16 = 8786;

/// The host that stands for all interfaces.
const ANY: &str = "0.0.0.0";

/// The settings of a scheduler.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) listen: Vec<Address>,
    /// The address that clients and workers use, if it is not that of the first listener.
    pub(super) contact: Option<Address>,
    pub(super) policy: Policy,
    /// Ops of requests that are refused.
    pub(super) blocked_ops: Vec<String>,
    /// What peers may do, by their certificates; `None` for everything.
    pub(super) permit: Option<Permit>,
    pub(super) idle_timeout: Option<Duration>,
    pub(super) journal: Option<JournalOptions>,
    pub(super) recording: Option<RecordingOptions>,
    /// The interpreter for the graphs of collections.
    #[cfg(target_os = "linux")]
    pub(super) python: Option<PythonOptions>,
    /// The address of the HTTP server, if it is enabled.
    pub(super) dashboard: Option<HttpAddress>,
    pub(super) dashboard_options: DashboardOptions,
    /// The files for HTTPS.
    pub(super) dashboard_tls: Option<TlsFiles>,
    /// Settings of Dask's scheduler that have no effect here.
    ignored: Vec<String>,
    connect_timeout: Option<Duration>,
    compression: Option<Codec>,
    /// The time after which a connection to a silent peer ends.
    silence_timeout: Option<Duration>,
    tls: TlsConfig,
}

impl Settings {
    /// Combines the command line with the configuration, which it reads.
    ///
    /// # Errors
    ///
    /// A usage error, a setting that is invalid, or if the configuration cannot be read.
    pub(super) fn load(arguments: &SchedulerCommand) -> Result<Self> {
        let config = Config::load()?;
        #[cfg(feature = "tracing")]
        crate::command::log::configure(&config)?;
        Self::new(arguments, &config)
    }

    fn new(arguments: &SchedulerCommand, config: &Config) -> Result<Self> {
        refuse(arguments)?;
        let listen = listen(arguments, config)?;
        if config.requires_encryption() {
            check_encryption(&listen)?;
        }
        let scheme = listen.first().map_or("tcp", Address::scheme);
        let contact = config.string(&setting("contact-address"));
        let contact = contact.map(|contact| address_with(&contact, scheme));
        #[cfg(target_os = "linux")]
        let has_python = arguments.python.is_some();
        #[cfg(not(target_os = "linux"))]
        let has_python = false;
        let modules = (&arguments.preload[..], &arguments.preload_argv[..]);
        #[cfg_attr(
            not(target_os = "linux"),
            expect(unused_variables, reason = "for Python")
        )]
        let preload = preload("scheduler", modules, has_python, config)?;
        let idle_timeout = match arguments.idle_timeout {
            Some(timeout) => Some(timeout),
            None => config.parse(&setting("idle-timeout"), duration)?,
        };
        let policy = with_limit(policy(config)?, arguments.memory_limit)
            .with_client_grace(arguments.client_grace);
        Ok(Self {
            contact: contact.transpose()?,
            blocked_ops: blocked_ops(config)?,
            permit: permit(config, &listen)?,
            idle_timeout: idle_timeout.filter(|timeout| !timeout.is_zero()),
            journal: arguments.journal.as_ref().map(|directory| {
                JournalOptions::new(directory)
                    .with_sync(arguments.journal_sync.into())
                    .with_wait(arguments.journal_wait)
            }),
            recording: recording(arguments),
            #[cfg(target_os = "linux")]
            python: python(arguments, preload),
            dashboard: Some(arguments.dashboard_address.clone())
                .filter(|_| !arguments.no_dashboard),
            dashboard_options: dashboard_options(
                &arguments.dashboard_arguments,
                config,
                shown(&policy, config, arguments),
            )?,
            dashboard_tls: arguments.dashboard_arguments.tls(config)?,
            policy,
            ignored: ignored(config),
            connect_timeout: config.parse("distributed.comm.timeouts.connect", duration)?,
            compression: config.compression()?,
            silence_timeout: config.parse("distributed.comm.timeouts.tcp", duration)?,
            tls: TlsConfig::of(config, "scheduler"),
            listen,
        })
    }

    /// The settings of a scheduler at this address, for workers and clients on this machine.
    ///
    /// # Errors
    ///
    /// A setting that is invalid, or if the configuration cannot be read.
    pub(super) fn local(
        address: Address,
        (dashboard, arguments): (Option<HttpAddress>, &DashboardArguments),
        #[cfg(target_os = "linux")] python: Option<&Path>,
    ) -> Result<Self> {
        let config = Config::load()?;
        #[cfg(feature = "tracing")]
        crate::command::log::configure(&config)?;
        let policy = with_limit(policy(&config)?, MemoryLimit::Auto);
        Ok(Self {
            listen: vec![address],
            contact: None,
            blocked_ops: blocked_ops(&config)?,
            permit: None,
            idle_timeout: None,
            journal: None,
            recording: None,
            #[cfg(target_os = "linux")]
            python: {
                let preload = preload("scheduler", (&[], &[]), python.is_some(), &config)?;
                let mut options = python.map(PythonOptions::new);
                if let Some(options) = &mut options {
                    options.preload = preload;
                }
                options
            },
            dashboard,
            dashboard_options: dashboard_options(
                arguments,
                &config,
                policy_settings(&policy, &config),
            )?,
            dashboard_tls: arguments.tls(&config)?,
            policy,
            ignored: ignored(&config),
            connect_timeout: None,
            compression: None,
            silence_timeout: None,
            tls: TlsConfig::of(&Config::default(), "scheduler"),
        })
    }

    /// Prints what the user should know before the scheduler starts.
    pub(super) fn warn(&self) {
        let is_exposed = |address: &&Address| {
            let ip: Option<IpAddr> = address.host().parse().ok();
            ["tcp", "ws"].contains(&address.scheme())
                && !ip.map_or(address.host() == "localhost", |ip| ip.is_loopback())
        };
        if let Some(address) = self.listen.iter().find(is_exposed) {
            terminal::event(
                "notice",
                format_args!(
                    "{address} is neither encrypted nor protected: any program can run \
                     code on the workers through it. Give --host 127.0.0.1 for this machine only, or \
                     --tls-ca-file and --tls-cert"
                ),
                json!({}),
            );
        }
        if !self.ignored.is_empty() {
            terminal::event(
                "notice",
                format_args!(
                    "settings of Dask's scheduler that have no effect here: {}",
                    self.ignored.join(", ")
                ),
                json!({"ignored": self.ignored}),
            );
        }
    }

    /// The transports for the addresses of this scheduler, with certificates of files.
    ///
    /// # Errors
    ///
    /// As [`TlsArguments::or_configured`].
    pub(super) fn transports(&self, tls: &TlsArguments) -> Result<Transports> {
        let addresses: Vec<&Address> = self.listen.iter().collect();
        let tls = tls.or_configured(&self.tls, &addresses)?;
        transports(tls, self.silence_timeout)
    }

    /// The options of comms that workers and clients open.
    pub(super) fn listen_options(&self) -> CommOptions {
        CommOptions::default().with_compression(self.compression)
    }

    /// The options of comms to workers.
    pub(super) fn comm_options(&self) -> CommOptions {
        let mut options = self.listen_options();
        if let Some(timeout) = self.connect_timeout {
            options.connect_timeout = timeout;
            options.handshake_timeout = timeout;
        }
        options
    }
}

/// The options of the dashboard.
fn dashboard_options(
    arguments: &DashboardArguments,
    config: &Config,
    settings: Vec<Setting>,
) -> Result<DashboardOptions> {
    /// The module of `/api/v1` in the routes of Dask's scheduler.
    const API: &str = "distributed.http.scheduler.api";
    let namespace = config.string("distributed.dashboard.prometheus.namespace");
    let routes = names(config, &setting("http.routes"))?.unwrap_or_default();
    let has_api = arguments.has_api() || routes.iter().any(|route| route == API);
    let options = DashboardOptions::default()
        .with_namespace(namespace.unwrap_or_else(|| "dask".to_owned()))
        .with_settings(settings)
        .with_has_api(has_api);
    arguments.options(options)
}

/// The settings of the policy, as the dashboard shows them.
fn policy_settings(policy: &Policy, config: &Config) -> Vec<Setting> {
    let time = |time: Option<Duration>| time.map_or("none".to_owned(), |time| format!("{time:?}"));
    let settings = [
        ("allowed-failures", policy.allowed_failures.to_string()),
        ("worker-saturation", policy.saturation.to_string()),
        ("work-stealing", policy.is_stealing.to_string()),
        (
            "work-stealing-interval",
            time(Some(policy.stealing_interval)),
        ),
        ("worker-ttl", time(policy.worker_ttl)),
        ("no-workers-timeout", time(policy.no_worker_timeout)),
        (
            "active-memory-manager.interval",
            time(policy.replica_interval),
        ),
        (
            "dashboard.tasks.task-stream-length",
            policy.task_stream_length.to_string(),
        ),
        ("events-log-length", policy.topic_length.to_string()),
    ];
    let settings = settings.into_iter().map(|(name, value)| {
        let name = setting(name);
        let is_set = config.get(&name).is_some_and(|value| !value.is_null());
        let source = if is_set { "configuration" } else { "default" };
        Setting::new(name, value, source)
    });
    let limit = match policy.max_tasks_len {
        usize::MAX => "none".to_owned(),
        limit => format!("{limit} bytes"),
    };
    let own = Setting::new("memory of tasks", limit, "command line or default");
    settings.chain([own]).collect()
}

/// The settings that the dashboard shows.
fn shown(policy: &Policy, config: &Config, arguments: &SchedulerCommand) -> Vec<Setting> {
    let path = |path: &Option<PathBuf>| match path {
        Some(path) => path.display().to_string(),
        None => "none".to_owned(),
    };
    let mut settings = policy_settings(policy, config);
    #[cfg(target_os = "linux")]
    settings.push(Setting::new(
        "--python",
        path(&arguments.python),
        "command line",
    ));
    settings.extend([
        Setting::new("--journal", path(&arguments.journal), "command line"),
        Setting::new("--record", path(&arguments.record), "command line"),
        Setting::new(
            "--client-grace",
            format!("{:?}", arguments.client_grace),
            "command line",
        ),
    ]);
    settings
}

fn recording(arguments: &SchedulerCommand) -> Option<RecordingOptions> {
    let file = arguments.record.as_ref()?;
    Some(RecordingOptions::new(file).with_has_payloads(arguments.record_payloads))
}

/// The name of a setting of Dask's scheduler.
fn setting(name: &str) -> String {
    format!("{SETTINGS}.{name}")
}

const SETTINGS: &str = "distributed.scheduler";

const REBALANCE: &str = "distributed.worker.memory.rebalance";

/// Rejects options of `dask scheduler` that a scheduler without Python cannot support.
fn refuse(arguments: &SchedulerCommand) -> Result {
    let refused = [(
        arguments.jupyter,
        "--jupyter: this scheduler runs no Python, and no server of Jupyter",
    )];
    match refused.iter().find(|(is_given, _)| *is_given) {
        Some((_, reason)) => Err(Failure::usage(reason)),
        None => Ok(()),
    }
}

/// The interpreter for the graphs of collections, with its limits.
#[cfg(target_os = "linux")]
fn python(arguments: &SchedulerCommand, preload: Vec<String>) -> Option<PythonOptions> {
    let mut options = PythonOptions::new(arguments.python.as_ref()?);
    options.preload = preload;
    options.preload_argv = arguments.preload_argv.clone();
    options.interpreter.imports = arguments.python_import.clone();
    options.memory_limit = arguments.python_memory_limit.filter(|limit| *limit > 0);
    if let Some(count) = arguments.python_processes {
        options.max_processes = count;
    }
    if let Some(limit) = arguments.python_time_limit {
        options.time_limit = limit;
    }
    Some(options)
}

/// The ops of requests that are refused.
fn blocked_ops(config: &Config) -> Result<Vec<String>> {
    Ok(names(config, &setting("blocked-handlers"))?.unwrap_or_default())
}

/// The list of names of a setting, if it is set.
fn names(config: &Config, name: &str) -> Result<Option<Vec<String>>> {
    let names = match config.get(name) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(names)) => names.iter().map(|name| name.as_str().map(str::to_owned)),
        // Anything else would have no effect.
        Some(other) => {
            return Err(Failure::usage(format_args!(
                "{name}: {other}: expected a list of names"
            )));
        }
    };
    let names: Option<Vec<String>> = names.collect();
    let names =
        names.ok_or_else(|| Failure::usage(format_args!("{name}: expected a list of names")));
    names.map(Some)
}

/// What peers may do by the names in their certificates, if names of clients or workers are set.
fn permit(config: &Config, listen: &[Address]) -> Result<Option<Permit>> {
    let [clients, workers] = CERTIFICATE_NAMES.map(|name| names(config, name));
    let (clients, workers) = (clients?, workers?);
    if clients.is_none() && workers.is_none() {
        return Ok(None);
    }
    let mut listen = listen.iter();
    if let Some(open) = listen.find(|address| !["tls", "quic", "wss"].contains(&address.scheme())) {
        return Err(Failure::usage(format_args!(
            "{} and {} need tls://, wss:// or quic:// addresses: peers have no certificates at {open}",
            CERTIFICATE_NAMES[0], CERTIFICATE_NAMES[1]
        )));
    }
    Ok(Some(Arc::new(move |encryption: Option<&Encryption>| {
        let certificates = encryption.map_or(&[][..], |encryption| &encryption.peer_certificates);
        let own = certificates.first().map(|der| certificate_names(der));
        let own = own.unwrap_or_default();
        let is_one_of = |names: &Option<Vec<String>>| {
            let is_named = |names: &Vec<String>| own.iter().any(|name| names.contains(name));
            names.as_ref().is_none_or(is_named)
        };
        Permissions::new(format!("the certificate of {:?}", own.join(", ")))
            .with_is_client(is_one_of(&clients))
            .with_is_worker(is_one_of(&workers))
    })))
}

/// The settings with the names in the certificates of clients and of workers.
const CERTIFICATE_NAMES: [&str; 2] = [
    "distributed.comm.tls.client.names",
    "distributed.comm.tls.worker.names",
];

/// Limits the memory of tasks.
fn with_limit(mut policy: Policy, memory_limit: MemoryLimit) -> Policy {
    /// The part of the machine's memory that tasks may take unless a limit is given.
    const AUTO: f64 = 0.75;
    if let Some(limit) = memory_limit.bytes(AUTO) {
        policy.max_tasks_len = usize::try_from(limit).unwrap_or(usize::MAX);
    }
    policy
}

fn policy(config: &Config) -> Result<Policy> {
    let mut policy = Policy::default();
    let count = |count: &str| {
        let expected = |_| "expected a number of at least 0".to_owned();
        count.parse().map_err(expected)
    };
    if let Some(count) = config.parse(&setting("allowed-failures"), count)? {
        policy.allowed_failures = count;
    }
    if let Some(length) = config.parse("distributed.admin.low-level-log-length", count)? {
        policy.topic_length = length as usize;
    }
    match config.parse(&setting("worker-ttl"), duration)? {
        Some(ttl) => policy.worker_ttl = Some(ttl).filter(|ttl| !ttl.is_zero()),
        None if config.is_nil(&setting("worker-ttl")) => policy.worker_ttl = None,
        None => {}
    }
    let saturation = |number: &str| match number.trim_start_matches('.').parse() {
        Ok(number) if number > 0.0 => Ok(number),
        _ => Err("expected a number above 0".to_owned()),
    };
    if let Some(saturation) = config.parse(&setting("worker-saturation"), saturation)? {
        policy.saturation = saturation;
    }
    if let Some(interval) = config.parse(&setting("active-memory-manager.interval"), duration)? {
        policy.replica_interval = Some(interval);
    }
    if config.bool(&setting("active-memory-manager.start")) == Some(false) {
        policy.replica_interval = None;
    }
    let measure = |name: &str| {
        MemoryMeasure::of_name(name).ok_or_else(|| "expected a measure of memory".to_owned())
    };
    if let Some(measure) = config.parse(&setting("active-memory-manager.measure"), measure)? {
        policy.replica_measure = measure;
    }
    if let Some(timeout) = config.parse(&setting("no-workers-timeout"), duration)? {
        policy.no_worker_timeout = Some(timeout);
    }
    if let Some(is_stealing) = config.bool(&setting("work-stealing")) {
        policy.is_stealing = is_stealing;
    }
    if let Some(interval) = config.parse(&setting("work-stealing-interval"), duration)? {
        policy.stealing_interval = interval;
    }
    let rebalancing = &mut policy.rebalancing;
    for (name, value) in [
        ("sender-min", &mut rebalancing.sender_min),
        ("recipient-max", &mut rebalancing.recipient_max),
        ("sender-recipient-gap", &mut rebalancing.gap),
    ] {
        let share = |number: &str| match number.parse() {
            Ok(number) if (0.0..=1.0).contains(&number) => Ok(number),
            _ => Err("expected a number from 0 to 1".to_owned()),
        };
        if let Some(set) = config.parse(&format!("{REBALANCE}.{name}"), share)? {
            *value = set;
        }
    }
    // The other measures of Dask count memory as `optimistic` does, or nearly so.
    let measure = config.string(&format!("{REBALANCE}.measure"));
    rebalancing.is_of_data = measure.as_deref() == Some("managed");
    let durations = setting("default-task-durations");
    let prefixes = config.get(&durations).and_then(Value::as_object);
    for prefix in prefixes.into_iter().flat_map(|prefixes| prefixes.keys()) {
        if let Some(duration) = config.parse(&format!("{durations}.{prefix}"), duration)? {
            policy.durations.retain(|(known, _)| known != prefix);
            policy.durations.push((prefix.clone(), duration));
        }
    }
    Ok(policy)
}

/// The addresses to listen on. As in Dask, the items of lists belong together by their position;
/// unlike there, a single item holds for all of them.
fn listen(arguments: &SchedulerCommand, config: &Config) -> Result<Vec<Address>> {
    let has_tls = arguments.tls.tls_ca_file.is_some();
    let scheme = match config.string("distributed.comm.default-scheme") {
        _ if has_tls => "tls".to_owned(),
        Some(scheme) => scheme,
        None => "tcp".to_owned(),
    };
    let interfaces = arguments.interface.iter();
    let interfaces: Result<Vec<String>> = interfaces.map(|name| interface_address(name)).collect();
    let interfaces = interfaces?;
    let hosts = match arguments.host.is_empty() {
        true => &interfaces,
        false => &arguments.host,
    };
    let (protocols, ports) = (&arguments.protocol, &arguments.port);
    let lens = [hosts.len(), protocols.len(), ports.len()];
    let count = lens.into_iter().max().unwrap_or_default().max(1);
    if lens.into_iter().any(|len| len > 1 && len != count) {
        return Err(Failure::usage(format_args!(
            "--host, --interface, --protocol and --port: expected one item or {count} in each list"
        )));
    }
    let addresses = (0..count).map(|index| {
        let host = item(hosts, index).map_or("", String::as_str);
        let protocol = item(protocols, index).map(|protocol| protocol.trim_end_matches("://"));
        let port = item(ports, index).copied().unwrap_or(match index {
            0 => PORT,
            _ => 0,
        });
        address_of(host, protocol, &scheme, port)
    });
    addresses.collect()
}

/// The item of a list for a listener.
fn item<T>(list: &[T], index: usize) -> Option<&T> {
    match list {
        [one] => Some(one),
        _ => list.get(index),
    }
}

/// The address for a `--host`, which may have a scheme and a port.
fn address_of(host: &str, protocol: Option<&str>, scheme: &str, port: u16) -> Result<Address> {
    let (own, host) = match host.split_once("://") {
        Some((scheme, host)) => (Some(scheme), host),
        None => (None, host),
    };
    let host = match host.strip_prefix(':') {
        _ if host.is_empty() => ANY.to_owned(),
        Some(port) => format!("{ANY}:{port}"),
        None => host.to_owned(),
    };
    if let (Some(own), Some(protocol)) = (own, protocol)
        && own != protocol
    {
        return Err(Failure::usage(format_args!(
            "--host has the scheme {own}, but --protocol is {protocol}"
        )));
    }
    let scheme = protocol.or(own).unwrap_or(scheme);
    let address = format!("{scheme}://{host}");
    if ["tcp", "tls", "quic", "ws", "wss"].contains(&scheme) {
        let invalid = |error| Failure::usage(format_args!("--host {host}: {error}"));
        Address::parse_with_port(&address, port).map_err(invalid)
    } else {
        address_with(&address, scheme)
    }
}

/// The address by which others reach a listener. For one at all interfaces, it has the address of
/// the interface that leads to other networks, as in Dask.
pub(super) fn reachable(bound: Address) -> Address {
    let is_any = bound
        .host()
        .parse::<IpAddr>()
        .is_ok_and(|ip| ip.is_unspecified());
    if !is_any {
        return bound;
    }
    // Nothing is sent: the system only looks up the route to the address.
    let route = UdpSocket::bind((ANY, 0)).and_then(|socket| {
        socket.connect(("8.8.8.8", 80))?;
        socket.local_addr()
    });
    let ip = route.map_or_else(|_| "127.0.0.1".to_owned(), |own| own.ip().to_string());
    let location = format!("{ip}:{}", bound.port());
    Address::with_location(bound.scheme(), &location).unwrap_or(bound)
}

/// The settings that are honoured, by clients those of locks.
const HONOURED: [&str; 18] = [
    "active-memory-manager.interval",
    "active-memory-manager.measure",
    "active-memory-manager.start",
    "allowed-failures",
    "blocked-handlers",
    "contact-address",
    "dashboard.tls.cert",
    "dashboard.tls.key",
    "http.routes",
    "idle-timeout",
    "locks.lease-timeout",
    "no-workers-timeout",
    "preload",
    "preload-argv",
    "work-stealing",
    "work-stealing-interval",
    "worker-saturation",
    "worker-ttl",
];

/// The names of all settings of Dask's scheduler that have no effect, and differ from Dask's
/// default.
fn ignored(config: &Config) -> Vec<String> {
    let defaults: Value = serde_json::from_str(DEFAULTS).unwrap_or_default();
    let set = config.below(SETTINGS).into_iter();
    let ignored = set.filter(|(name, value)| {
        let own = name.strip_prefix(SETTINGS).unwrap_or(name);
        let own = own.trim_start_matches('.');
        let default = defaults.get(own).unwrap_or(&Value::Null);
        !HONOURED.contains(&own)
            && !own.starts_with("default-task-durations.")
            && spelled(value) != spelled(default)
    });
    ignored.map(|(name, _)| name).collect()
}

/// A value as a string, in which numbers and strings of numbers are the same.
fn spelled(value: &Value) -> String {
    match value {
        Value::String(value) => value.to_lowercase().replace(' ', ""),
        Value::Number(number) => number.as_f64().unwrap_or_default().to_string(),
        other => other.to_string(),
    }
}

/// Dask's defaults of the other settings, which a process that Dask has started inherits.
const DEFAULTS: &str = r#"{
    "bandwidth": 100000000,
    "blocked-handlers": [],
    "default-data-size": "1kiB",
    "reuse-broadcast-comm": true,
    "events-cleanup-delay": "1h",
    "rootish-taskgroup": 5,
    "rootish-taskgroup-dependencies": 5,
    "unknown-task-duration": "500ms",
    "locks.lease-validation-interval": "10s",
    "validate": false,
    "dashboard.status.task-stream-length": 1000,
    "dashboard.tasks.task-stream-length": 100000,
    "dashboard.bokeh-application.allow-websocket-origin": ["*"],
    "dashboard.bokeh-application.keep-alive-milliseconds": 500,
    "dashboard.bokeh-application.check-unused-sessions-milliseconds": 500,
    "http.routes": [
        "distributed.http.scheduler.prometheus",
        "distributed.http.scheduler.info",
        "distributed.http.scheduler.json",
        "distributed.http.health",
        "distributed.http.proxy",
        "distributed.http.statics"
    ],
    "allowed-imports": ["dask", "distributed"],
    "active-memory-manager.policies": [
        {"class": "distributed.active_memory_manager.ReduceReplicas"}
    ]
}"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rebalancing_follows_the_settings_of_workers() {
        let of = |settings: Value| {
            let memory = json!({"memory": {"rebalance": settings}});
            let policy = policy(&Config::of_json(json!({"distributed": {"worker": memory}})));
            policy.map(|policy| policy.rebalancing)
        };
        let set = json!({"measure": "managed", "sender-min": 0, "sender-recipient-gap": 0.2});
        let set = of(set).expect("valid settings");
        assert!(set.is_of_data && set.sender_min == 0.0 && set.gap == 0.2);
        assert_eq!(set.recipient_max, 0.6);
        let error = of(json!({"sender-min": 2})).expect_err("it is wrong");
        assert!(
            error.to_string().contains("rebalance.sender-min"),
            "{error}"
        );
    }

    #[test]
    fn blocked_ops_are_a_list_of_names() {
        let of = |value: Value| {
            blocked_ops(&Config::of_json(
                json!({"distributed": {"scheduler": {"blocked-handlers": value}}}),
            ))
        };
        assert_eq!(of(json!(["feed", "run_function"])).expect("names").len(), 2);
        assert!(of(json!([])).expect("no names").is_empty());
        assert!(of(json!(null)).expect("no names").is_empty());
        for wrong in [json!("feed"), json!([1]), json!({"feed": 1})] {
            let error = of(wrong).expect_err("it is wrong").to_string();
            assert!(error.contains("expected a list of names"), "{error}");
        }
    }

    #[test]
    fn the_policy_follows_the_settings() {
        let of = |settings: Value| {
            policy(&Config::of_json(
                json!({"distributed": {"scheduler": settings}}),
            ))
        };
        let default = of(json!({})).expect("no settings");
        assert_eq!(default, Policy::default());
        let set = of(json!({
            "worker-saturation": ".inf",
            "work_stealing": false,
            "work-stealing-interval": "2s",
            "default-task-durations": {"my_load": "2 s", "split-stage": "1ms"},
            "worker-ttl": null,
            "active-memory-manager": {"interval": "5s", "measure": "managed"},
            "no-workers-timeout": "1 minute",
        }));
        let set = set.expect("valid settings");
        assert_eq!(set.stealing_interval, Duration::from_secs(2));
        assert!(set.saturation.is_infinite() && !set.is_stealing && set.worker_ttl.is_none());
        assert_eq!(set.replica_interval, Some(Duration::from_secs(5)));
        assert_eq!(set.replica_measure, MemoryMeasure::Managed);
        assert_eq!(set.no_worker_timeout, Some(Duration::from_secs(60)));
        of(json!({"active-memory-manager": {"measure": "all"}})).expect_err("no measure");
        let stopped = of(json!({"active-memory-manager": {"start": false, "interval": "5s"}}));
        assert_eq!(stopped.expect("valid settings").replica_interval, None);
        let of_prefix = |prefix| {
            let known = set.durations.iter();
            let mut known = known.filter(|(known, _)| known == prefix);
            (known.next().map(|(_, duration)| *duration), known.count())
        };
        assert_eq!(of_prefix("my_load"), (Some(Duration::from_secs(2)), 0));
        assert_eq!(
            of_prefix("split-stage"),
            (Some(Duration::from_millis(1)), 0)
        );
        assert_eq!(
            of_prefix("rechunk-split"),
            (Some(Duration::from_micros(1)), 0)
        );
        for wrong in [json!("much"), json!(0), json!(-1.5)] {
            let error = of(json!({"worker-saturation": wrong})).expect_err("it is wrong");
            assert!(
                error.to_string().contains("expected a number above 0"),
                "{error}"
            );
        }
    }
}
