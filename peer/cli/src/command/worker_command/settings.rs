//! The settings of a worker, from the command line or else from Dask's configuration.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use daskwire_comm::{Address, Codec, Transports};
use daskwire_peer::worker::{MemoryThresholds, TransferLimits};
use serde_json::Value;

use super::quantity;
use super::{OWN_TUNABLES, TUNABLES, WorkerArguments, machine};
use crate::command::config::Config;
use crate::command::connect::{address_with, interface_address};
use crate::command::failure::{Failure, Result};
use crate::command::preload::preload;
use crate::command::tls::{TlsArguments, TlsConfig, check_encryption, transports};
use daskwire_dashboard::HttpAddress;

/// The way to find the scheduler.
#[derive(Clone, Debug)]
pub(super) enum Scheduler {
    At(Address),
    /// The address in a file that `dask scheduler --scheduler-file` writes.
    File(PathBuf),
}

/// The addresses at which a worker listens.
#[derive(Clone, Debug)]
pub(super) enum Listen {
    /// The first of these addresses that is free.
    At(Vec<Address>),
    /// The first of these ports that is free, on the interface that reaches the scheduler.
    /// Any port if the list is empty.
    Ports(Vec<u16>),
}

/// Whether addresses were given with a scheme.
#[derive(Clone, Copy, Debug)]
struct HasScheme {
    listen: bool,
    contact: bool,
}

/// The settings of a worker, or of all workers of a nanny.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) scheduler: Scheduler,
    pub(super) has_nanny: bool,
    /// Number of processes.
    pub(super) nworkers: usize,
    pub(super) nthreads: usize,
    pub(super) name: Option<String>,
    pub(super) memory_limit: Option<u64>,
    pub(super) thresholds: MemoryThresholds,
    pub(super) max_spill: Option<u64>,
    pub(super) transfers: TransferLimits,
    pub(super) resources: BTreeMap<String, f64>,
    pub(super) listen: Listen,
    pub(super) contact: Option<Address>,
    /// Whether the addresses to listen on, and the contact address, were given with a scheme.
    has_scheme: HasScheme,
    pub(super) local_directory: Option<PathBuf>,
    pub(super) connect_timeout: Option<Duration>,
    /// The codec to name in handshakes.
    pub(super) compression: Option<Codec>,
    pub(super) death_timeout: Option<Duration>,
    /// The lifetime before the stagger is applied.
    pub(super) lifetime: Option<Duration>,
    pub(super) stagger: Duration,
    pub(super) restarts_after_lifetime: bool,
    /// The address of the HTTP server, if it is enabled.
    pub(super) dashboard: Option<HttpAddress>,
    /// The prefix of metric names.
    pub(super) namespace: String,
    /// Variables for the environment of Python processes.
    pub(super) python_variables: BTreeMap<String, String>,
    /// The modules that Python processes load.
    pub(super) preload: Vec<String>,
    /// Number of Python processes that may end with a task, if it is set.
    pub(super) allowed_failures: Option<u64>,
    /// The time after which a connection to a silent peer ends.
    silence_timeout: Option<Duration>,
    requires_encryption: bool,
    tls: TlsConfig,
}

impl Settings {
    /// Combines the command line with the configuration, which it reads.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), or if the configuration cannot be read.
    pub(super) fn load(arguments: &WorkerArguments) -> Result<Self> {
        let config = Config::load()?;
        #[cfg(feature = "tracing")]
        crate::command::log::configure(&config)?;
        Self::new(arguments, &config)
    }

    /// Combines the command line with the configuration.
    ///
    /// # Errors
    ///
    /// A usage error, or a setting that is invalid.
    pub(super) fn new(arguments: &WorkerArguments, config: &Config) -> Result<Self> {
        refuse(arguments)?;
        #[cfg(target_os = "linux")]
        let has_python = arguments.python.is_some();
        #[cfg(not(target_os = "linux"))]
        let has_python = false;
        let modules = (&arguments.preload[..], &arguments.preload_argv[..]);
        let preload = preload("worker", modules, has_python, config)?;
        let scheme = config
            .string("distributed.comm.default-scheme")
            .unwrap_or_else(|| "tcp".to_owned());
        let scheduler = scheduler(arguments, config, &scheme)?;
        let processors = machine::processors();
        let (nworkers, nthreads) = match arguments.nworkers.as_deref() {
            None => (1, arguments.nthreads),
            Some("auto") => {
                let (processes, threads) = machine::processes_and_threads(processors);
                (processes, threads)
            }
            Some(count) => (nworkers(count, processors)?, arguments.nthreads),
        };
        let has_nanny = cfg!(unix) && !arguments.no_nanny;
        if nworkers > 1 && !has_nanny {
            return Err(Failure::usage("--no-nanny is for one worker only"));
        }
        if nworkers > 1 && arguments.listen_address.is_some() {
            return Err(Failure::usage(
                "--listen-address is for one worker only; give --worker-port FIRST:LAST",
            ));
        }
        if nworkers > 1 && arguments.contact_address.is_some() {
            return Err(Failure::usage(
                "--contact-address is for one worker only; give --host or --interface",
            ));
        }
        let nthreads = match nthreads {
            0 => (processors / nworkers).max(1),
            nthreads => nthreads,
        };
        let ports = arguments.worker_port.iter().map(|ports| &ports.0[..]);
        if ports
            .clone()
            .any(|ports| ports != [0] && ports.len() < nworkers)
        {
            return Err(Failure::usage(format_args!(
                "--worker-port: expected at least {nworkers} ports, one for each worker"
            )));
        }
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let share = (nthreads as f64 / processors as f64).min(1.0);
        let memory_limit = arguments.memory_limit.bytes(share);
        let lifetime =
            |name: &str| setting(config, &format!("lifetime.{name}"), quantity::duration);
        let stagger = match arguments.lifetime_stagger {
            Some(stagger) => Some(stagger),
            None => lifetime("stagger")?,
        };
        let protocol = arguments.protocol.as_deref();
        let protocol = protocol.map(|protocol| protocol.trim_end_matches("://"));
        let own_scheme = protocol.unwrap_or(&scheme);
        let mut settings = Self {
            has_nanny,
            nworkers,
            nthreads,
            name: arguments.name.clone().filter(|name| !name.is_empty()),
            memory_limit,
            thresholds: thresholds(config, has_nanny)?,
            max_spill: match config.bool("distributed.worker.memory.max-spill") {
                Some(false) => None,
                _ => setting(config, "memory.max-spill", quantity::size)?,
            },
            transfers: transfers(config)?,
            resources: match &arguments.resources {
                Some(resources) => resources.0.iter().cloned().collect(),
                None => resources(config)?,
            },
            listen: listen(arguments, protocol, own_scheme)?,
            contact: match &arguments.contact_address {
                Some(contact) => Some(address_with(contact, own_scheme)?),
                None => None,
            },
            has_scheme: HasScheme {
                listen: protocol.is_some()
                    || [&arguments.listen_address, &arguments.host]
                        .into_iter()
                        .flatten()
                        .any(|address| address.contains("://")),
                contact: protocol.is_some()
                    || arguments
                        .contact_address
                        .as_ref()
                        .is_some_and(|address| address.contains("://")),
            },
            local_directory: arguments
                .local_directory
                .clone()
                .or_else(|| config.string("temporary-directory").map(Into::into)),
            compression: config.compression()?,
            connect_timeout: config
                .parse("distributed.comm.timeouts.connect", quantity::duration)?,
            death_timeout: arguments.death_timeout,
            lifetime: match arguments.lifetime {
                Some(lifetime) => Some(lifetime),
                None => lifetime("duration")?,
            }
            .filter(|lifetime| !lifetime.is_zero()),
            stagger: stagger.unwrap_or_default(),
            restarts_after_lifetime: match (
                arguments.lifetime_restart,
                arguments.no_lifetime_restart,
            ) {
                (false, false) => config
                    .bool("distributed.worker.lifetime.restart")
                    .unwrap_or_default(),
                (restarts, _) => restarts,
            },
            dashboard: arguments
                .dashboard_address
                .clone()
                .or_else(|| arguments.dashboard.then(HttpAddress::any_port))
                .filter(|_| !arguments.no_dashboard),
            namespace: config
                .string("distributed.dashboard.prometheus.namespace")
                .unwrap_or_else(|| "dask".to_owned()),
            python_variables: {
                let own = std::env::vars_os().filter_map(|(name, value)| {
                    Some((name.into_string().ok()?, value.into_string().ok()?))
                });
                python_variables(arguments, config, &own.collect())
            },
            preload,
            allowed_failures: config.parse("distributed.scheduler.allowed-failures", |count| {
                let expected = |_| "expected a number of at least 0".to_owned();
                count.parse().map_err(expected)
            })?,
            requires_encryption: config.requires_encryption(),
            silence_timeout: config.parse("distributed.comm.timeouts.tcp", quantity::duration)?,
            tls: TlsConfig::of(config, "worker"),
            scheduler,
        };
        // The address in a scheduler's file is read later.
        if let Scheduler::At(scheduler) = settings.scheduler.clone() {
            settings.complete(&scheduler)?;
        }
        Ok(settings)
    }

    /// Completes the settings for a scheduler at this address. Addresses to listen on that were
    /// given without a scheme get that of the scheduler, and a contact address that of the
    /// addresses to listen on.
    ///
    /// # Errors
    ///
    /// If the worker would have unencrypted comms with other machines in spite of
    /// `distributed.comm.require-encryption`.
    pub(super) fn complete(&mut self, scheduler: &Address) -> Result {
        let adopt = |address: &mut Address, scheme: &str| {
            // Other addresses, such as those of unix://, have no host and port.
            if ["tcp", "tls", "quic", "ws", "wss"].contains(&scheme)
                && let Some(ends) = address.host_and_port()
            {
                *address = Address::of_host(scheme, ends);
            }
        };
        let mut scheme = scheduler.scheme();
        if let Listen::At(addresses) = &mut self.listen {
            for address in addresses.iter_mut().filter(|_| !self.has_scheme.listen) {
                adopt(address, scheme);
            }
            scheme = addresses.first().map_or(scheme, Address::scheme);
        }
        if let (Some(contact), false) = (&mut self.contact, self.has_scheme.contact) {
            adopt(contact, scheme);
        }
        self.check_encryption(scheduler)
    }

    fn check_encryption(&self, scheduler: &Address) -> Result {
        let listen: &[Address] = match &self.listen {
            Listen::At(addresses) => addresses,
            Listen::Ports(_) => &[],
        };
        let addresses = core::iter::once(scheduler).chain(listen);
        match self.requires_encryption {
            true => check_encryption(addresses.chain(&self.contact)),
            false => Ok(()),
        }
    }

    /// Adapts the settings to the nanny's worker `index`: its name, addresses and ports.
    pub(super) fn for_process(&mut self, index: usize) {
        if self.nworkers == 1 {
            return;
        }
        if let Some(name) = &mut self.name {
            name.push_str(&format!("-{index}"));
        }
        let nth = |position: usize| position % self.nworkers == index;
        match &mut self.listen {
            Listen::At(addresses) => {
                let mut position = 0..;
                let is_fixed = addresses.iter().any(|address| address.port() != 0);
                addresses.retain(|_| !is_fixed || position.next().is_some_and(nth));
            }
            Listen::Ports(ports) => {
                let mut position = 0..;
                ports.retain(|port| *port == 0 || position.next().is_some_and(nth));
            }
        }
    }

    /// Waits for the end of some work, until the death timeout.
    ///
    /// # Errors
    ///
    /// That of the work, or the message `late` with the number of seconds.
    pub(super) async fn before_death<T>(
        &self,
        work: impl Future<Output = Result<T>>,
        late: impl FnOnce(f64) -> String,
    ) -> Result<T> {
        let timeout = self.death_timeout.unwrap_or(Duration::MAX);
        match tokio::time::timeout(timeout, work).await {
            Ok(done) => done,
            Err(_) => Err(late(timeout.as_secs_f64()).into()),
        }
    }

    /// The transports for comms at these addresses, with certificates of files.
    pub(super) fn transports(
        &self,
        tls: &TlsArguments,
        addresses: &[Address],
    ) -> Result<Transports> {
        let addresses: Vec<&Address> = addresses.iter().collect();
        let tls = tls.or_configured(&self.tls, &addresses)?;
        transports(tls, self.silence_timeout)
    }

    /// The lifetime of this worker, staggered so that the workers of a cluster do not all
    /// leave at once.
    pub(super) fn staggered_lifetime(&self) -> Option<Duration> {
        let lifetime = self.lifetime?;
        let parts = f64::from(uniform());
        // From `lifetime - stagger` to `lifetime + stagger`.
        let earliest = lifetime.as_secs_f64() - self.stagger.as_secs_f64();
        let seconds = earliest + 2.0 * self.stagger.as_secs_f64() * parts / f64::from(u32::MAX);
        Duration::try_from_secs_f64(seconds.max(0.0)).ok()
    }
}

/// A random number.
fn uniform() -> u32 {
    use std::hash::{BuildHasher as _, RandomState};
    // The hash has random seeds.
    let hash = RandomState::new().hash_one(std::process::id());
    (hash >> 32) as u32
}

/// The variables that Dask's nannies set, except those in the environment `own`, and
/// variables for the certificates of the command line.
fn python_variables(
    arguments: &WorkerArguments,
    config: &Config,
    own: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut variables: BTreeMap<String, Option<String>> = DEFAULT_VARIABLES
        .map(|(name, value)| (name.to_owned(), Some(value.to_owned())))
        .into();
    for setting in ["pre-spawn-environ", "environ"] {
        let setting = config.get(&format!("distributed.nanny.{setting}"));
        for (name, value) in setting.and_then(Value::as_object).into_iter().flatten() {
            let value = match value {
                Value::Null => None,
                Value::String(value) => Some(value.clone()),
                // Booleans are spelled as in Python.
                Value::Bool(true) => Some("True".to_owned()),
                Value::Bool(false) => Some("False".to_owned()),
                value => Some(value.to_string()),
            };
            variables.insert(name.clone(), value);
        }
    }
    let seed = variables.remove(HASH_SEED).flatten();
    let seed = seed.map(|seed| own.get(HASH_SEED).cloned().unwrap_or(seed));
    let seed = seed.filter(|seed| seed != "0");
    variables.retain(|name, _| !own.contains_key(name));
    variables.insert(HASH_SEED.to_owned(), seed);
    // Remove the tunables that are for this process only.
    if let Some(others) = own
        .get(TUNABLES)
        .and_then(|tunables| tunables.strip_suffix(OWN_TUNABLES))
    {
        let others = others.trim_end_matches(':').to_owned();
        variables.insert(TUNABLES.to_owned(), Some(others));
    }
    let tls = &arguments.tls;
    let certificate = tls.tls_cert.as_ref();
    let key = tls.tls_key.as_ref().or(certificate);
    for (names, file) in [
        (&["CA_FILE"][..], tls.tls_ca_file.as_ref()),
        (&["WORKER__CERT", "CLIENT__CERT"], certificate),
        (&["WORKER__KEY", "CLIENT__KEY"], key),
    ] {
        // Dask parses the variable: an absolute path is not a valid Python literal, and so
        // remains a string.
        let file = file.and_then(|file| std::path::absolute(file).ok());
        let Some(file) = file.and_then(|file| file.into_os_string().into_string().ok()) else {
            continue;
        };
        for name in names {
            let name = format!("DASK_DISTRIBUTED__COMM__TLS__{name}");
            variables.insert(name, Some(file.clone()));
        }
    }
    let set = |(name, value): (_, Option<_>)| Some((name, value?));
    variables.into_iter().filter_map(set).collect()
}

/// Dask's default of `distributed.nanny.pre-spawn-environ`.
const DEFAULT_VARIABLES: [(&str, &str); 4] = [
    ("MALLOC_TRIM_THRESHOLD_", "65536"),
    ("OMP_NUM_THREADS", "1"),
    ("MKL_NUM_THREADS", "1"),
    ("OPENBLAS_NUM_THREADS", "1"),
];

/// The seed of hashes of strings. As in Dask, it is only taken from the environment if it is
/// configured, and 0 stands for the default.
const HASH_SEED: &str = "PYTHONHASHSEED";

/// Rejects options of `dask worker` that a worker in Rust cannot support.
fn refuse(arguments: &WorkerArguments) -> Result<()> {
    let refused = [
        (
            !arguments.preload_nanny.is_empty(),
            "--preload-nanny: the nanny loads no Python modules",
        ),
        (
            arguments.worker_class.is_some(),
            "--worker-class: this worker is none of Python's classes; a worker of your own is a \
             program with the crate daskwire-peer",
        ),
        (
            arguments.scheduler_sni.is_some(),
            "--scheduler-sni: names in certificates are not compared, as in Dask",
        ),
    ];
    match refused.iter().find(|(is_given, _)| *is_given) {
        Some((_, reason)) => Err(Failure::usage(reason)),
        None => Ok(()),
    }
}

/// Parses a setting of `distributed.worker`, if it is set.
fn setting<T>(
    config: &Config,
    name: &str,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Option<T>> {
    config.parse(&format!("distributed.worker.{name}"), parse)
}

fn thresholds(config: &Config, has_nanny: bool) -> Result<MemoryThresholds> {
    let default = MemoryThresholds::default();
    let fraction = |name: &str, default: Option<f64>| {
        let name = format!("memory.{name}");
        let expected = || "expected a fraction such as 0.6, or false".to_owned();
        let value = setting(config, &name, |value| match value {
            "false" => Ok(None),
            value => match value.parse::<f64>() {
                Ok(fraction) if fraction >= 0.0 => Ok(Some(fraction)),
                _ => Err(expected()),
            },
        })?;
        Ok::<_, Failure>(value.unwrap_or(default))
    };
    let terminate = fraction("terminate", Some(0.95))?;
    Ok(MemoryThresholds::default()
        .with_target(fraction("target", default.target)?)
        .with_spill(fraction("spill", default.spill)?)
        .with_pause(fraction("pause", default.pause)?)
        // Without a nanny, nothing would restart the worker.
        .with_terminate(terminate.filter(|_| has_nanny))
        .with_transfer(fraction("transfer", default.transfer)?)
        .with_monitor_interval(
            setting(config, "memory.monitor-interval", quantity::duration)?
                .unwrap_or(default.monitor_interval)
                .max(Duration::from_millis(10)),
        ))
}

fn transfers(config: &Config) -> Result<TransferLimits> {
    let default = TransferLimits::default();
    let count = |value: &str| match value.parse::<u32>() {
        Ok(count) if count > 0 => Ok(count),
        _ => Err("expected a number of connections".to_owned()),
    };
    // `outgoing` limits the connections that a worker opens to fetch data.
    let receiving = setting(config, "connections.outgoing", count)?;
    let sending = setting(config, "connections.incoming", count)?;
    Ok(TransferLimits::default()
        .with_receiving_count(receiving.map_or(default.receiving_count, |count| count as usize))
        .with_sending_count(sending.map_or(default.sending_count, u64::from))
        .with_message_len(
            setting(config, "transfer.message-bytes-limit", quantity::size)?
                .unwrap_or(default.message_len),
        ))
}

fn resources(config: &Config) -> Result<BTreeMap<String, f64>> {
    let Some(resources) = config.get("distributed.worker.resources") else {
        return Ok(BTreeMap::new());
    };
    let read = || -> Option<BTreeMap<String, f64>> {
        let resources = resources.as_object()?.iter();
        resources
            .map(|(name, amount)| Some((name.clone(), amount.as_f64()?)))
            .collect()
    };
    read().ok_or_else(|| {
        Failure::usage(format_args!(
            "distributed.worker.resources: {resources}: expected a mapping from names to numbers"
        ))
    })
}

fn nworkers(count: &str, processors: usize) -> Result<usize> {
    let count = count.parse::<isize>().ok().and_then(|count| match count {
        1.. => Some(count.unsigned_abs()),
        0 => None,
        // -1 means one for each processor, the same as in Dask.
        _ => (processors + 1).checked_sub(count.unsigned_abs()),
    });
    count.filter(|count| *count > 0).ok_or_else(|| {
        Failure::usage("--nworkers: expected a number of workers of at least 1, or auto")
    })
}

fn scheduler(arguments: &WorkerArguments, config: &Config, scheme: &str) -> Result<Scheduler> {
    if let Some(file) = &arguments.scheduler_file {
        return Ok(Scheduler::File(file.clone()));
    }
    let configured = config.string("scheduler-address");
    match arguments.scheduler.as_ref().or(configured.as_ref()) {
        Some(scheduler) => Ok(Scheduler::At(address_with(scheduler, scheme)?)),
        None => Err(Failure::usage(
            "the address of a scheduler is missing: give it as an argument, by --scheduler-file, \
             or in DASK_SCHEDULER_ADDRESS",
        )),
    }
}

/// The addresses to listen on. Those without a scheme get `scheme`, which is `protocol` if that was
/// given.
fn listen(arguments: &WorkerArguments, protocol: Option<&str>, scheme: &str) -> Result<Listen> {
    let ports = arguments.worker_port.as_ref().map(|ports| ports.0.clone());
    for (option, address) in [
        ("--listen-address", &arguments.listen_address),
        ("--host", &arguments.host),
    ] {
        let own = address
            .as_ref()
            .and_then(|address| address.split_once("://"));
        if let (Some((own, _)), Some(protocol)) = (own, protocol)
            && own != protocol
        {
            return Err(Failure::usage(format_args!(
                "{option} has the scheme {own}, but --protocol is {protocol}"
            )));
        }
    }
    if let Some(listen) = &arguments.listen_address {
        return Ok(Listen::At(vec![address_with(listen, scheme)?]));
    }
    let host = match (&arguments.host, &arguments.interface) {
        (Some(host), _) => host.clone(),
        (None, Some(interface)) => interface_address(interface)?,
        (None, None) if protocol.is_some() => {
            return Err(Failure::usage("--protocol needs --host or --interface"));
        }
        (None, None) => return Ok(Listen::Ports(ports.unwrap_or_default())),
    };
    let (scheme, host) = host.split_once("://").unwrap_or((scheme, &host));
    let ports = ports.unwrap_or_else(|| vec![0]);
    let addresses = ports.into_iter().map(|port| {
        let address = format!("{scheme}://{host}");
        Address::parse_with_port(&address, port)
            .map_err(|error| Failure::usage(format_args!("--host {host}: {error}")))
    });
    Ok(Listen::At(addresses.collect::<Result<_>>()?))
}
