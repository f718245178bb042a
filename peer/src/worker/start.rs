//! Starting a worker.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use crate::pickling::Pickling;
#[cfg(target_os = "linux")]
use daskwire_comm::BufferPool;
use daskwire_comm::runtime::{self, Spawner};
use daskwire_comm::{Address, CommError, CommOptions, Listener, Traffic, Transports};
use tokio::sync::{Notify, watch};

use super::diagnostics::{Level, Log, Notifier};
use super::driver::Machine;
#[cfg(target_os = "linux")]
use super::executor::{Executors, Interpreter, SharedMemory};
use super::metrics::{TasksDone, Transfers};
use super::scheduler_plugin::{self, OtherWorkers};
use super::session::{Parts, REGISTER_TIMEOUT, supervise};
use super::state::{Event, Limits, State};
use super::store::{SpillDirectory, Store};
use super::threads::{self, Queue};
use super::{Builder, MemoryThresholds, Shared, StartError, Worker};
use crate::batched::{BatchSender, MAX_QUEUED_LEN};
use crate::channel::{Channel, Ends, within};
use crate::dialect::Dialect;
use crate::event::{self, WorkerEvent, emit};
use crate::net::Connector;
use crate::pool::Pool;
#[cfg(target_os = "linux")]
use crate::protocol::{Nullable, StartPython};
use crate::protocol::{Request, Versions};
use crate::release::{self, FIRST_SUPPORTED, UntestedRelease};
use crate::{Release, Value};

pub(super) async fn start(builder: Builder) -> Result<Worker, StartError> {
    let Builder {
        scheduler,
        listen,
        ports,
        contact,
        name,
        number,
        nthreads,
        memory_limit,
        thresholds,
        local_directory,
        notify,
        resources,
        services,
        max_spill,
        transfers,
        max_comms,
        start_timeout,
        is_restartable,
        functions,
        #[cfg(target_os = "linux")]
        python,
        options,
        transports,
        observer,
        batch_interval,
        installs_plugin,
    } = builder;
    // A worker with Python runs all tasks.
    #[cfg(target_os = "linux")]
    let installs_plugin = installs_plugin && python.interpreter.is_none();
    #[cfg(target_os = "linux")]
    let (memory, options) = share_frames(options, python.interpreter.is_some());
    let id = format!("Worker-{}", crate::identifier());
    let party = name.clone().unwrap_or_else(|| "worker".to_owned());
    let transports = transports.separate();
    let notify = Notifier(notify);
    let timeout = start_timeout.unwrap_or(options.connect_timeout);
    let retrying = || format!("no connection to {scheduler} yet, retrying");
    let patient = CommOptions {
        connect_timeout: timeout,
        ..options.clone()
    };
    let connecting = transports.connect_for(&scheduler, &patient, Traffic::Control);
    let comm = match notify.with_notice(retrying, timeout, connecting).await {
        Ok(comm) => comm,
        Err(error) => {
            let what = "a worker in Rust";
            let explained = release::explain(
                error.into(),
                &scheduler,
                &transports,
                &options,
                FIRST_SUPPORTED,
                what,
            );
            return Err(explained.await);
        }
    };
    let ends = Ends::new(&party, "scheduler", observer.clone());
    let mut channel = Channel::new(comm, ends);
    let host = own_host(&channel);
    let no_listener = |error| StartError::Listen(Arc::new(error));
    let listen = match (listen.is_empty(), ports.is_empty()) {
        (false, _) => listen,
        (true, true) => vec![listen_address(&scheduler, &host, &id, 0)],
        (true, false) => ports
            .into_iter()
            .map(|port| listen_address(&scheduler, &host, &id, port))
            .collect(),
    };
    let listener = listen_on_first(&transports, &listen, &options).await;
    let listener = listener.map_err(no_listener)?;
    let listening = listener.local_address().map_err(no_listener)?;
    let address = match contact {
        Some(contact) => with_port(contact, &listening),
        None => listening.contact(&host),
    };
    let address = address.to_string();
    // No retries: if a peer does not listen, its data is fetched from another peer.
    let options = CommOptions {
        connect_retry: false,
        ..options
    };
    let buffers = options.pool.clone();
    let connector = Arc::new(Connector::new(transports.clone(), options));
    let pool = Pool::new(connector, &party, observer.clone());
    // The scheduler's own versions are sent back, to avoid a warning about
    // mismatches.
    let versions = Request::Versions(Versions {
        reply: Some(true),
        ..Versions::default()
    });
    let versions = within(
        REGISTER_TIMEOUT,
        "the versions of the scheduler",
        pool.call::<Value>(&scheduler, &versions),
    );
    let waiting = || format!("{scheduler} does not answer yet, waiting");
    let versions = notify
        .with_notice(waiting, REGISTER_TIMEOUT, versions)
        .await?;
    // The worker must not register with a scheduler that is too old.
    let release = Release::of_versions(&versions);
    Release::check(release, FIRST_SUPPORTED, "a worker in Rust")?;
    let dialect = Dialect::of_versions(&versions);
    // Install the plugin before the scheduler can assign tasks to the worker.
    let installed = match release {
        Some(_) if installs_plugin => scheduler_plugin::install(&pool, &scheduler).await,
        _ => Ok(()),
    };
    let versions = match versions {
        versions @ Value::Dict(_) => versions,
        _ => Value::dict([
            ("host", Value::Dict([].into())),
            ("packages", Value::Dict([].into())),
        ]),
    };
    let name = name.unwrap_or_else(|| address.clone());
    let title = if name == address {
        address.clone()
    } else {
        format!("{name} at {address}")
    };
    let limits = Limits {
        nthreads,
        transfer_count: transfers.receiving_count.max(1),
        transfer_len: transfers.message_len,
        transfer_total_len: memory_limit.map_or(u64::MAX, |limit| thresholds.transfer_len(limit)),
        ..Limits::default()
    };
    let state = State::new(&address, limits, resources.clone());
    #[cfg(target_os = "linux")]
    let needs_directory = python.interpreter.is_some();
    #[cfg(not(target_os = "linux"))]
    let needs_directory = false;
    let parent = local_directory;
    let limits = (memory_limit, thresholds);
    let made = make_store(limits, parent, needs_directory, &id, dialect.pickling);
    let StoreParts {
        store,
        path: store_directory,
        directory,
    } = made.await?;
    #[cfg(not(target_os = "linux"))]
    drop(directory);
    if let Some(max_spill) = max_spill {
        store.limit_disk(max_spill);
    }
    let failure = store.failure().clone();
    #[cfg(target_os = "linux")]
    let executors = match python.interpreter {
        Some(path) => {
            let interpreter = Interpreter {
                path,
                variables: python.variables,
            };
            let start = StartPython {
                id: id.clone(),
                name: name.clone(),
                address: address.clone(),
                scheduler: scheduler.to_string(),
                nthreads: nthreads as u64,
                local_directory: store_directory.display().to_string(),
                memory_limit: Nullable(memory_limit),
                cache_len: cache_len(memory_limit, nthreads),
                preload: python.preload,
                preload_argv: python.preload_argv,
                ..StartPython::default()
            };
            let count = if python.is_warm { nthreads } else { 1 };
            let executors = Executors::new(
                interpreter,
                start,
                python.allowed_failures,
                memory,
                directory,
                failure.clone(),
            );
            Some(start_python(executors, count).await?)
        }
        None => None,
    };
    let shared = Arc::new(Shared {
        id,
        address,
        name,
        number,
        title,
        scheduler,
        nthreads,
        memory_limit,
        thresholds,
        local_directory: store_directory,
        functions,
        #[cfg(target_os = "linux")]
        executors,
        versions,
        dialect,
        gives_back: release.is_some(),
        others: OtherWorkers::default(),
        store,
        tasks_done: TasksDone::default(),
        log: Log::default(),
        notify,
        machine: Mutex::new(Machine::new(state)),
        queue: Queue::new(failure.clone()),
        pool,
        buffers,
        observer,
        transfers: Transfers::default(),
        sending_count: transfers.sending_count.max(1),
        max_comms,
        services,
        is_restartable,
        restart: OnceLock::new(),
        answering: tokio::sync::RwLock::new(()),
        failure,
        runtime: Spawner::current(),
        stop: Notify::new(),
        heartbeat: tokio::sync::Mutex::new(()),
        is_retiring: AtomicBool::new(false),
    });
    start_store(&shared)?;
    #[cfg(target_os = "linux")]
    if let Some(executors) = &shared.executors {
        shared.handle_host_events(executors);
    }
    let waiting = || {
        format!(
            "{} does not register the worker yet, waiting",
            shared.scheduler
        )
    };
    let registering = shared.register(&mut channel, resources);
    let registering = shared
        .notify
        .with_notice(waiting, REGISTER_TIMEOUT, registering);
    let (interval, plugins) = registering.await?;
    shared.log.add(
        Level::Info,
        &format!("{} works for {}", shared.title, shared.scheduler),
    );
    emit(event::Level::Info, || WorkerEvent::Started {
        worker: &shared.title,
        scheduler: &shared.scheduler,
    });
    let Channel {
        sender, receiver, ..
    } = channel;
    let (stream, writing) = BatchSender::new(sender, batch_interval, MAX_QUEUED_LEN);
    shared.machine().stream = Some(stream);
    // Set up plugins before messages of the scheduler are handled.
    #[cfg(target_os = "linux")]
    shared.set_up_plugins(plugins).await;
    #[cfg(not(target_os = "linux"))]
    drop(plugins);
    if let Err(error) = installed {
        let message = format!(
            "the scheduler does not keep tasks of Python away from the worker, which gives them \
             back: {error}"
        );
        shared.notice(&message);
    }
    if let Some(untested) = UntestedRelease::of(release) {
        shared.notice(&untested.to_string());
    }
    threads::start(&shared).map_err(|error| StartError::Thread(Arc::new(error)))?;
    let (end, ended) = watch::channel(None);
    let parts = Parts {
        transports,
        listener,
        receiver,
        writing,
        interval,
    };
    runtime::spawn(supervise(Arc::clone(&shared), parts, end));
    Ok(Worker { shared, ended })
}

/// Creates the memory that is shared with Python processes. With Python, the returned options
/// make comms receive large frames into it.
#[cfg(target_os = "linux")]
fn share_frames(options: CommOptions, has_python: bool) -> (Arc<SharedMemory>, CommOptions) {
    let memory = Arc::new(SharedMemory::new());
    let shared = |pool: BufferPool| BufferPool::with_memory(pool.max_len(), memory.for_frames());
    let pool = match has_python {
        true => options.pool.map(shared),
        false => options.pool,
    };
    (memory, CommOptions { pool, ..options })
}

/// A store, and the directory of the worker.
struct StoreParts {
    store: Store,
    /// The directory, existing or not.
    path: PathBuf,
    /// The directory, if the store does not own it.
    directory: Option<SpillDirectory>,
}

async fn make_store(
    (memory_limit, thresholds): (Option<u64>, MemoryThresholds),
    parent: PathBuf,
    needs_directory: bool,
    id: &str,
    pickling: Pickling,
) -> Result<StoreParts, StartError> {
    let limit = memory_limit.filter(|_| thresholds.spills());
    if limit.is_none() && !needs_directory {
        return Ok(StoreParts {
            store: Store::in_memory(pickling),
            path: parent,
            directory: None,
        });
    }
    let id = id.to_owned();
    let made = runtime::spawn_blocking(move || SpillDirectory::new(&parent, &id));
    let made = made
        .await
        .unwrap_or_else(|error| Err(io::Error::other(error.to_string())));
    let directory = made.map_err(|error| StartError::Directory(Arc::new(error)))?;
    let path = directory.path().to_owned();
    let Some(limit) = limit else {
        return Ok(StoreParts {
            store: Store::in_memory(pickling),
            path,
            directory: Some(directory),
        });
    };
    let store = Store::spilling(
        directory,
        thresholds.target_len(limit),
        thresholds.full_len(limit),
        pickling,
    );
    Ok(StoreParts {
        store,
        path,
        directory: None,
    })
}

/// Maximum length of the values that each Python process caches, in bytes.
#[cfg(target_os = "linux")]
fn cache_len(memory_limit: Option<u64>, nthreads: usize) -> u64 {
    /// Length without a memory limit.
    const DEFAULT: u64 = 256 << 20;
    memory_limit.map_or(DEFAULT, |limit| limit / 8 / nthreads as u64)
}

/// Starts the first Python processes.
#[cfg(target_os = "linux")]
async fn start_python(executors: Executors, count: usize) -> Result<Executors, StartError> {
    let started = runtime::spawn_blocking(move || {
        executors.warm(count)?;
        Ok(executors)
    });
    let started = started.await;
    let started = started.unwrap_or_else(|error| Err(io::Error::other(error.to_string())));
    started.map_err(|error| StartError::Python(Arc::new(error)))
}

/// Starts the store's thread, which moves data to disk.
fn start_store(shared: &Arc<Shared>) -> Result<(), StartError> {
    // Weak, so that the thread does not keep the worker alive.
    let own: Weak<Shared> = Arc::downgrade(shared);
    let needed = {
        let own = own.clone();
        move || {
            let Some(shared) = own.upgrade() else {
                return Vec::new();
            };
            let needed = shared.machine().state.needed_soon();
            let data = needed.iter().filter_map(|key| shared.store.get(key));
            data.collect()
        }
    };
    let notify = move |message: &str| {
        if let Some(shared) = own.upgrade() {
            shared.notice(message);
        }
    };
    let own = Arc::downgrade(shared);
    let spilled = move |key, len| {
        if let Some(shared) = own.upgrade() {
            #[cfg(target_os = "linux")]
            if let Some(executors) = &shared.executors {
                executors.forget([&key]);
            }
            let jobs = shared.react([], [Event::Spilled { key, len }]);
            // The jobs run on other threads: this one has data to write.
            jobs.into_iter().for_each(|job| shared.queue.push(job));
        }
    };
    let own = Arc::downgrade(shared);
    let relieved = move || {
        if let Some(shared) = own.upgrade() {
            let handling = Arc::clone(&shared);
            let handling = async move { handling.handle([]) };
            shared.machine().spawn(handling, &shared.runtime);
        }
    };
    shared
        .store
        .start(needed, notify, spilled, relieved)
        .map_err(|error| StartError::Thread(Arc::new(error)))
}

/// Returns the IP address by which the peer of a comm reaches this machine; empty for
/// transports without hosts.
fn own_host(channel: &Channel) -> String {
    let host = channel.local.host();
    let number: Option<IpAddr> = host.parse().ok();
    if !number.is_some_and(|number| number.is_unspecified()) {
        return host.to_owned();
    }
    // A QUIC socket is bound to all interfaces: ask the system for the route's
    // source address, which sends nothing.
    let (peer, port) = (channel.peer.host(), channel.peer.port());
    let any: [IpAddr; 2] = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
    let found = any.into_iter().find_map(|any| {
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect((peer, port)).ok()?;
        Some(socket.local_addr().ok()?.ip().to_canonical().to_string())
    });
    found.unwrap_or_else(|| host.to_owned())
}

/// Listens on the first address that is not in use.
async fn listen_on_first(
    transports: &Transports,
    addresses: &[Address],
    options: &CommOptions,
) -> Result<Listener, CommError> {
    let mut in_use = None;
    for address in addresses {
        match transports.bind(address, options.clone()).await {
            Err(error @ CommError::Bind { .. }) if is_in_use(&error) => in_use = Some(error),
            bound => return bound,
        }
    }
    Err(in_use.unwrap_or_else(|| CommError::Io(io::ErrorKind::AddrNotAvailable.into())))
}

fn is_in_use(error: &CommError) -> bool {
    matches!(error, CommError::Bind { error, .. } if error.kind() == io::ErrorKind::AddrInUse)
}

/// Returns the contact address, with the port of the listener if its own is 0.
fn with_port(contact: Address, listening: &Address) -> Address {
    match contact.host_and_port() {
        Some((host, 0)) => {
            let host = match host.contains(':') {
                true => format!("[{host}]"),
                false => host.to_owned(),
            };
            let address = format!("{}://{host}:{}", contact.scheme(), listening.port());
            address.parse().unwrap_or(contact)
        }
        _ => contact,
    }
}

fn listen_address(scheduler: &Address, host: &str, id: &str, port: u16) -> Address {
    let scheme = scheduler.scheme();
    let listen = match scheme {
        "inproc" => format!("inproc://{id}"),
        _ if host.is_empty() => {
            let path = std::env::temp_dir().join(format!("{id}.socket"));
            format!("{scheme}://{}", path.display())
        }
        _ if host.contains(':') => format!("{scheme}://[{host}]:{port}"),
        _ => format!("{scheme}://{host}:{port}"),
    };
    // If this is not a valid address, binding to the scheduler's own reports why.
    listen.parse().unwrap_or_else(|_| scheduler.clone())
}
