//! Starting a worker.

#[cfg(target_os = "linux")]
use core::num::NonZeroUsize;
use core::time::Duration;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use daskwire_comm::BufferPool;
use daskwire_comm::runtime::{self, Instant, Spawner};
use daskwire_comm::{Address, Comm, CommError, CommOptions, Listener, Traffic, Transports};
use daskwire_messages::dialect::Dialect;
#[cfg(target_os = "linux")]
use daskwire_messages::pickling::Pickling;
use daskwire_messages::protocol::{Request, Versions};
use daskwire_messages::release::{FIRST_SUPPORTED, UntestedRelease};
use daskwire_messages::{Release, Value};
use daskwire_rpc::RequestError;
use daskwire_rpc::batched::{BatchSender, BatchWriter, MAX_QUEUED_LEN};
use daskwire_rpc::channel::{Channel, Ends, Receiver};
use daskwire_rpc::event::{self, emit};
use daskwire_rpc::identity;
use daskwire_rpc::net::Connector;
use daskwire_rpc::pool::{Deadlines, Pool};
use tokio::sync::{Notify, watch};

use super::diagnostics::{Level, Log, Notifier};
use super::driver::WorkerMachine;
use super::event::WorkerEvent;
use super::metrics::{TasksDone, Transfers};
#[cfg(target_os = "linux")]
use super::nanny_plugins;
#[cfg(target_os = "linux")]
use super::python::PythonProcesses;
use super::rejoin::Rejoin;
use super::scheduler_plugin::{self, OtherWorkers};
use super::session::{Parts, Registered, supervise};
use super::state::{Limits, State, WorkerInput};
use super::threads::{self, Queue};
use super::{Builder, Shared, StartError, Worker};
#[cfg(target_os = "linux")]
use daskwire_messages::protocol::{Nullable, StartPython};
#[cfg(target_os = "linux")]
use daskwire_python::{Interpreter, SharedMemory};
#[cfg(target_os = "linux")]
use daskwire_rpc::panic_flag::PanicFlag;
use daskwire_store::{SpillDirectory, Store};

/// Starts a worker: connects to the scheduler, listens, makes the store, starts Python
/// processes, and registers.
pub(super) async fn start(mut builder: Builder) -> Result<Worker, StartError> {
    let id = format!("Worker-{}", daskwire_messages::key::identifier());
    let party = builder.name.clone();
    let party = party.unwrap_or_else(|| "worker".to_owned());
    let transports = builder.transports.with_own_connections();
    let notify = Notifier(builder.notify.take());
    #[cfg(target_os = "linux")]
    let memory = share_frames(&mut builder);
    let deadline = builder.start_timeout.map(runtime::later);
    let comm = connect(&builder, &transports, &notify).await?;
    let ends = Ends::new(&party, "scheduler", builder.observer.clone());
    let channel = Channel::new(comm, ends);
    let (listener, address) = listen(&builder, &transports, &own_host(&channel), &id).await?;
    let connector = Connector::new(
        transports.clone(),
        // No retries: if a peer does not listen, its data is fetched from another peer.
        builder.options.clone().with_connect_retry(false),
    );
    let pool = Pool::new(Arc::new(connector), &party, builder.observer.clone());
    let SchedulerVersions {
        versions,
        release,
        is_own,
        dialect,
    } = scheduler_versions(&builder, &pool, &notify, deadline).await?;
    let rejoin = Rejoin {
        transports: transports.clone(),
        options: builder.options.clone(),
        batch_interval: builder.batch_interval,
        timeout: builder.reconnect_timeout,
        find: builder.find_scheduler.take(),
        release,
        is_own,
        installs_plugin: builder.installs_plugin && !builder.runs_python(),
    };
    pool.set_read_hint(dialect.read_hint);
    // Install the plugin before the scheduler can assign tasks to the worker.
    let is_installing = release.is_some() && builder.installs_plugin && !builder.runs_python();
    let installed = match is_installing {
        true => scheduler_plugin::install(&pool, &builder.scheduler).await,
        false => Ok(()),
    };
    let name = builder.name.take().unwrap_or_else(|| address.clone());
    let title = if name == address {
        address.clone()
    } else {
        format!("{name} at {address}")
    };
    let StoreParts {
        store,
        path: local_directory,
        directory,
    } = make_store(&builder, &id, dialect.pickling).await?;
    #[cfg(not(target_os = "linux"))]
    drop(directory);
    #[cfg(target_os = "linux")]
    let environ_plugins = match builder.is_restartable && builder.runs_python() {
        true => {
            let asked =
                nanny_plugins::variables_of_scheduler(&pool, &builder.scheduler, &address, &notify);
            let (names, variables) = asked.await;
            builder.python.variables.extend(variables);
            names
        }
        false => Vec::new(),
    };
    #[cfg(target_os = "linux")]
    let python = match builder.python.interpreter.take() {
        Some(path) => {
            let start = StartPython {
                id: id.clone(),
                name: super::name_value(&name, builder.number),
                address: address.clone(),
                local_directory: local_directory.display().to_string(),
                resources: builder.resources.clone().into_iter().collect(),
                ..StartPython::default()
            };
            let panic_flag = store.panic_flag().clone();
            Some(start_python(&mut builder, path, start, memory, directory, panic_flag).await?)
        }
        None => None,
    };
    let patience = builder.options.answer_timeout;
    let state = State::new(&address, limits(&builder), builder.resources.clone());
    let panic_flag = store.panic_flag().clone();
    let shared = Arc::new(Shared {
        id,
        address,
        name,
        number: builder.number,
        title,
        scheduler: Mutex::new(builder.scheduler),
        nthreads: builder.nthreads,
        memory_limit: builder.memory_limit,
        thresholds: builder.thresholds,
        local_directory,
        functions: builder.functions,
        #[cfg(target_os = "linux")]
        python,
        versions,
        dialect,
        gives_back: match release {
            Some(_) => scheduler_plugin::GivesBack::ToOthers,
            None if is_own => scheduler_plugin::GivesBack::Always,
            None => scheduler_plugin::GivesBack::Never,
        },
        sends_reasons: (is_installing && installed.is_ok()) || (release.is_none() && is_own),
        others: OtherWorkers::default(),
        store,
        tasks_done: TasksDone::default(),
        log: Log::default(),
        notify,
        machine: Mutex::new(WorkerMachine::new(state)),
        queue: Queue::new(panic_flag.clone()),
        pool,
        #[cfg(feature = "client")]
        client: tokio::sync::Mutex::default(),
        #[cfg(feature = "client")]
        client_options: daskwire_client::ClientOptions::default()
            .with_transports(builder.transports.clone())
            .with_comm(builder.options.clone()),
        buffers: builder.options.pool,
        observer: builder.observer,
        transfers: Transfers::default(),
        sending_count: builder.transfers.sending_count.max(1),
        max_comms: builder.max_comms,
        services: builder.services,
        is_restartable: builder.is_restartable,
        #[cfg(target_os = "linux")]
        environ_plugins,
        restart: OnceLock::new(),
        answering: tokio::sync::RwLock::new(()),
        panic_flag,
        runtime: Spawner::current(),
        stop: Notify::new(),
        heartbeat: tokio::sync::Mutex::new(()),
        is_retiring: AtomicBool::new(false),
    });
    start_store(&shared)?;
    #[cfg(target_os = "linux")]
    if let Some(python) = &shared.python {
        shared.handle_host_events(python);
    }
    let answer_timeout = answer_timeout(patience, deadline);
    let interval = builder.batch_interval;
    let joined = join(&shared, channel, None, interval, answer_timeout).await?;
    if let Err(error) = installed {
        let message = format!(
            "the plugin that keeps Python tasks away from this worker cannot be installed in the \
             scheduler; the worker returns such tasks: {error}"
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
        joined,
        rejoin,
    };
    runtime::spawn(supervise(Arc::clone(&shared), parts, end));
    Ok(Worker { shared, ended })
}

/// Connects to the scheduler. An error says whether its release is too old for workers in
/// Rust.
async fn connect(
    builder: &Builder,
    transports: &Transports,
    notify: &Notifier,
) -> Result<Comm, StartError> {
    let Builder {
        scheduler, options, ..
    } = builder;
    let timeout = builder.start_timeout.unwrap_or(options.connect_timeout);
    let patient = options
        .clone()
        .with_connect_timeout(timeout)
        .with_answer_timeout(builder.start_timeout.unwrap_or(options.answer_timeout))
        .with_handshake_timeout(options.handshake_timeout.min(timeout));
    let retrying = || format!("no connection to {scheduler} yet, retrying");
    let connecting = transports.connect_for(scheduler, &patient, Traffic::Control);
    match notify.with_notice(retrying, timeout, connecting).await {
        Ok(comm) => Ok(comm),
        Err(error) => {
            let what = "a worker in Rust";
            let explained = identity::explain(
                error.into(),
                scheduler,
                transports,
                options,
                FIRST_SUPPORTED,
                what,
            );
            Err(explained.await)
        }
    }
}

/// Listens for peers. Returns the listener and the worker's address, by which peers reach it
/// on `host`.
async fn listen(
    builder: &Builder,
    transports: &Transports,
    host: &str,
    id: &str,
) -> Result<(Listener, String), StartError> {
    let any_port = [0];
    let ports = match builder.ports.is_empty() {
        true => &any_port,
        false => &builder.ports[..],
    };
    let own = || {
        ports
            .iter()
            .map(|port| listen_address(&builder.scheduler, host, id, *port))
    };
    let addresses = match builder.listen.is_empty() {
        true => own().collect(),
        false => builder.listen.clone(),
    };
    let no_listener = |error| StartError::Listen(Arc::new(error));
    let listener = listen_on_first(transports, &addresses, &builder.options).await;
    let listener = listener.map_err(no_listener)?;
    let listening = listener.local_address().map_err(no_listener)?;
    let address = match &builder.contact {
        Some(contact) => resolve(with_port(contact.clone(), &listening), host).await,
        None => listening.contact(host),
    };
    Ok((listener, address.to_string()))
}

/// The scheduler's reply to a question for versions, and what follows from it.
pub(super) struct SchedulerVersions {
    pub(super) versions: Value,
    /// The release, if the scheduler runs Dask.
    pub(super) release: Option<Release>,
    /// Whether it is a scheduler of this project.
    pub(super) is_own: bool,
    dialect: Dialect,
}

/// The time to wait for an answer of the scheduler, which may be busy.
fn answer_timeout(patience: Duration, deadline: Option<Instant>) -> Duration {
    let left = |deadline: Instant| deadline.saturating_duration_since(runtime::now());
    deadline.map_or(patience, left)
}

/// Asks for the scheduler's versions, and checks that its release serves workers in Rust.
async fn scheduler_versions(
    builder: &Builder,
    pool: &Pool,
    notify: &Notifier,
    deadline: Option<Instant>,
) -> Result<SchedulerVersions, StartError> {
    let timeout = answer_timeout(builder.options.answer_timeout, deadline);
    ask_versions(pool, &builder.scheduler, notify, timeout).await
}

/// Like [`scheduler_versions`], of a scheduler at this address.
pub(super) async fn ask_versions(
    pool: &Pool,
    scheduler: &Address,
    notify: &Notifier,
    timeout: Duration,
) -> Result<SchedulerVersions, StartError> {
    const WHAT: &str = "the versions of the scheduler";
    let request = Request::Versions(Versions {
        reply: Some(true),
        ..Versions::default()
    });
    let deadlines = Deadlines::with_timeout(timeout, WHAT);
    let versions = async {
        loop {
            match pool
                .call_until::<Value>(scheduler, &request, deadlines)
                .await
            {
                // The pool of a worker makes one attempt only.
                Err(RequestError::Comm(error))
                    if matches!(*error, CommError::Timeout { .. }) && !deadlines.have_passed() => {}
                versions => return versions,
            }
        }
    };
    let waiting = || format!("{scheduler} does not answer yet, waiting");
    let versions = notify.with_notice(waiting, timeout, versions).await?;
    let release = Release::of_versions(&versions);
    Release::check(release, FIRST_SUPPORTED, "a worker in Rust")?;
    let dialect = Dialect::of_versions(&versions);
    let own = versions
        .get("packages")
        .and_then(|packages| packages.get("daskwire"));
    let is_own = own.is_some_and(|version| version.as_str().is_some());
    // The worker registers with the scheduler's own versions, to avoid a warning about
    // mismatches.
    let versions = match versions {
        versions @ Value::Dict(_) => versions,
        _ => Value::dict([
            ("host", Value::Dict([].into())),
            ("packages", Value::Dict([].into())),
        ]),
    };
    Ok(SchedulerVersions {
        versions,
        release,
        is_own,
        dialect,
    })
}

/// The limits of the state machine.
fn limits(builder: &Builder) -> Limits {
    let transfer_len = |limit| builder.thresholds.transfer_len(limit);
    Limits::default()
        .with_nthreads(builder.nthreads)
        .with_transfer_count(builder.transfers.receiving_count.max(1))
        .with_transfer_len(builder.transfers.message_len)
        .with_transfer_total_len(builder.memory_limit.map_or(u64::MAX, transfer_len))
}

/// The stream to and from a scheduler that has registered the worker.
pub(super) struct Joined {
    pub(super) receiver: Receiver,
    pub(super) writing: BatchWriter,
    pub(super) heartbeat_interval: Duration,
}

/// Registers the worker, and sets up the scheduler's plugins. `versions` are those of the scheduler
/// if the worker registers again.
pub(super) async fn join(
    shared: &Arc<Shared>,
    mut channel: Channel,
    versions: Option<Value>,
    batch_interval: Duration,
    timeout: Duration,
) -> Result<Joined, StartError> {
    let waiting = || {
        format!(
            "{} does not register the worker yet, waiting",
            shared.scheduler()
        )
    };
    let is_first = versions.is_none();
    let registering = shared.register(&mut channel, versions, timeout);
    let registering = shared.notify.with_notice(waiting, timeout, registering);
    let Registered {
        heartbeat_interval,
        plugins,
        returns,
    } = registering.await?;
    let scheduler = shared.scheduler();
    shared.log.add(
        Level::Info,
        &format!("{} is registered with {scheduler}", shared.title),
    );
    emit(event::Level::Info, || WorkerEvent::Started {
        worker: &shared.title,
        scheduler: &scheduler,
    });
    let Channel {
        sender, receiver, ..
    } = channel;
    let (stream, writing) = BatchSender::new(sender, batch_interval, MAX_QUEUED_LEN);
    shared.machine().stream = Some(stream);
    if !is_first {
        shared.handle([WorkerInput::Registered { returns }]);
    }
    // Set up plugins before messages of the scheduler are handled.
    #[cfg(target_os = "linux")]
    shared.set_up_plugins(plugins).await;
    #[cfg(not(target_os = "linux"))]
    drop(plugins);
    Ok(Joined {
        receiver,
        writing,
        heartbeat_interval,
    })
}

/// Creates the memory that is shared with Python processes. With Python, comms receive large
/// frames into it.
#[cfg(target_os = "linux")]
fn share_frames(builder: &mut Builder) -> Arc<SharedMemory> {
    let memory = Arc::new(SharedMemory::default());
    if builder.runs_python() {
        let shared =
            |pool: BufferPool| BufferPool::with_memory(pool.max_len(), memory.for_frames());
        builder.options.pool = builder.options.pool.take().map(shared);
    }
    memory
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
    builder: &Builder,
    id: &str,
    pickling: Pickling,
) -> Result<StoreParts, StartError> {
    let parent = builder.local_directory.clone();
    let thresholds = builder.thresholds;
    let limit = builder.memory_limit.filter(|_| thresholds.spills());
    if limit.is_none() && !builder.runs_python() {
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
    if let Some(max_spill) = builder.max_spill {
        store.limit_disk(max_spill);
    }
    Ok(StoreParts {
        store,
        path,
        directory: None,
    })
}

/// Maximum length of the values that each Python process caches, in bytes.
#[cfg(target_os = "linux")]
fn cache_len(memory_limit: Option<u64>, count: usize) -> u64 {
    /// Length without a memory limit.
    const DEFAULT: u64 = 256 << 20;
    memory_limit.map_or(DEFAULT, |limit| limit / 8 / count as u64)
}

/// Starts the first Python processes. `start` has the names of the worker.
#[cfg(target_os = "linux")]
async fn start_python(
    builder: &mut Builder,
    path: PathBuf,
    start: StartPython,
    memory: Arc<SharedMemory>,
    directory: Option<SpillDirectory>,
    panic_flag: PanicFlag,
) -> Result<PythonProcesses, StartError> {
    let options = core::mem::take(&mut builder.python);
    let nthreads = builder.nthreads;
    let interpreter = Interpreter {
        path,
        variables: options.variables,
        imports: options.imports,
    };
    let start = StartPython {
        scheduler: builder.scheduler.to_string(),
        nthreads: nthreads as u64,
        memory_limit: Nullable(builder.memory_limit),
        cache_len: cache_len(
            builder.memory_limit,
            options.process_count.map_or(nthreads, NonZeroUsize::get),
        ),
        is_shared: options.process_count.is_some(),
        preload: options.preload,
        preload_argv: options.preload_argv,
        ..start
    };
    let python = PythonProcesses::new(
        interpreter,
        start,
        options.allowed_failures,
        memory,
        directory,
        panic_flag,
        options.process_count,
    )
    .map_err(|error| StartError::Python(Arc::new(error)))?;
    let count = if options.is_warm { nthreads } else { 1 };
    let started = runtime::spawn_blocking(move || {
        python.warm(count)?;
        Ok(python)
    });
    let started = started.await;
    let started = started.unwrap_or_else(|error| Err(io::Error::other(error.to_string())));
    started.map_err(|error| StartError::Python(Arc::new(error)))
}

/// Starts the store's thread, which moves data to disk.
fn start_store(shared: &Arc<Shared>) -> Result<(), StartError> {
    if let Some(buffers) = &shared.buffers {
        shared.store.read_into(buffers.clone());
    }
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
            if let Some(python) = &shared.python {
                python.forget([&key]);
            }
            let jobs = shared.react([], [WorkerInput::Spilled { key, len }]);
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

/// Returns an address with the IP address of its host, preferably of IPv4, as schedulers of
/// Dask do: otherwise they do not recognise the worker in requests that name its address.
/// `own` is the address of the interface that reaches the scheduler.
async fn resolve(address: Address, own: &str) -> Address {
    let (Some((host, port)), "tcp" | "tls" | "quic" | "ws" | "wss") =
        (address.host_and_port(), address.scheme())
    else {
        return address;
    };
    // A name may be known to other hosts only.
    let found = runtime::lookup_host(host, port).await.unwrap_or_default();
    let is_loopback = |ip: IpAddr| ip.is_loopback();
    match found.iter().min_by_key(|found| found.is_ipv6()) {
        // Many systems give their own name an address that no other host reaches.
        Some(found) if is_loopback(found.ip()) && !own.parse().is_ok_and(is_loopback) => address,
        Some(found) => Address::new(address.scheme(), *found),
        None => address,
    }
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
