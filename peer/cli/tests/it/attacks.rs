//! What peers that misbehave can do to `daskwire scheduler` over TLS: crowds that join and leave
//! at once, readers that do not read, floods of comms and of small messages, and garbage.
//!
//! Meanwhile another client gets its replies within [`MAX_DELAY`], and the scheduler takes at most
//! [`MAX_GROWTH`] more bytes of memory. `attacks.sh` runs the same with ten times as many peers
//! and messages.

use std::fs;
use std::future::Future;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use daskwire_comm::{Address, Comm, CommOptions, Traffic, Transports};
use daskwire_messages::Value;
use daskwire_messages::protocol::{
    Identity, Ping, RegisterWorker, RegisterWorkerReply, ReplyStatus, Request, WorkerStatus,
};
use daskwire_peer::tls::TlsSettings;
use daskwire_rpc::channel::{Channel, Ends};
use daskwire_testing::{Environment, Peer, Random, TLS_ARGUMENTS, TLS_PEM, address_after};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// The longest time until another client has a reply, also in a build for tests on a busy machine.
const MAX_DELAY: Duration = Duration::from_secs(15);

/// The memory that an attack may cost, in bytes.
const MAX_GROWTH: u64 = 256 << 20;

/// Number of peers of a crowd.
const CROWD: usize = 500;

/// How many times as many peers and messages: 1, or 10 by `attacks.sh`.
fn scale() -> usize {
    let scale = std::env::var("DASKWIRE_ATTACKS").ok();
    scale.map_or(1, |scale| scale.parse().expect("a number"))
}

/// A scheduler that is attacked.
struct Target {
    scheduler: Peer,
    address: Address,
    transports: Transports,
}

impl Target {
    fn new() -> Self {
        daskwire_comm::raise_descriptor_limit();
        let mut command = Command::new(env!("CARGO_BIN_EXE_daskwire"));
        command.args(["scheduler", "--no-dashboard", "--host", "127.0.0.1"]);
        command.args(["--port", "0", "--protocol", "tls"]);
        command.args(TLS_ARGUMENTS);
        let scheduler = Peer::spawn_command("scheduler", &mut command, |log| {
            address_after(log, "Scheduler at:")
        });
        let tls = TlsSettings::new(TLS_PEM, TLS_PEM).build();
        Self {
            address: scheduler.address().parse().expect("an address"),
            transports: daskwire_peer::transports_with_tls(&tls.expect("valid files")),
            scheduler,
        }
    }

    async fn comm(&self) -> Comm {
        let options = CommOptions::default();
        let comm = self.transports.connect(&self.address, &options);
        comm.await.expect("it accepts")
    }

    async fn channel(&self) -> Channel {
        Channel::new(self.comm().await, Ends::new("test", "scheduler", None))
    }

    /// The number of workers.
    async fn worker_count(&self) -> i64 {
        let request = Identity {
            n_workers: Some(0),
            ..Identity::default()
        };
        let mut channel = self.channel().await;
        let identity: Value = channel.call(&request.into()).await.expect("a reply");
        let count = identity.get("n_workers").expect("a count").clone();
        i64::try_from(count).expect("an integer")
    }

    /// The memory of the scheduler in bytes: now, and at most so far.
    fn memory(&self) -> [u64; 2] {
        let status = format!("/proc/{}/status", self.scheduler.id());
        let status = fs::read_to_string(status).expect("it runs");
        ["VmRSS:", "VmHWM:"].map(|name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok());
            kib.expect("a number") << 10
        })
    }

    /// Runs an attack beside another client, and checks that both bounds hold.
    async fn attacked<T>(&self, name: &str, attack: impl Future<Output = T>) -> T {
        let started = Instant::now();
        let [before, _] = self.memory();
        let mut other = self.channel().await;
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        // A thread of its own, which the attack does not keep busy.
        let runtime = tokio::runtime::Handle::current();
        let other = std::thread::spawn(move || {
            runtime.block_on(async {
                let mut longest = Duration::ZERO;
                while !over.load(Ordering::Acquire) {
                    let asked = Instant::now();
                    let pong = other.call::<Value>(&Request::from(Ping::default())).await;
                    pong.expect("a reply");
                    longest = longest.max(asked.elapsed());
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                longest
            })
        });
        let outcome = attack.await;
        is_over.store(true, Ordering::Release);
        let longest = other.join().expect("it has its replies");
        let [after, peak] = self.memory();
        let grown = peak.saturating_sub(before);
        eprintln!(
            "{name}: {:.1} s, reply within {longest:.1?}, {} MiB more, {} MiB at most",
            started.elapsed().as_secs_f64(),
            after.saturating_sub(before) >> 20,
            grown >> 20,
        );
        assert!(longest < MAX_DELAY, "{name}: a reply took {longest:?}");
        assert!(grown < MAX_GROWTH, "{name}: {grown} bytes more");
        outcome
    }

    /// Checks that a cluster of Dask works, and that no state machine has panicked.
    fn check(&self) {
        let worker = daskwire_testing::worker(self.scheduler.address(), "alice");
        let arguments = [self.scheduler.address(), TLS_PEM, "computes"];
        Peer::spawn(Environment::Current, "operator_client.py", &arguments);
        drop(worker);
        let log = self.scheduler.log();
        assert!(!log.contains("panicked"), "{log}");
    }
}

/// Registers a worker that does nothing.
async fn join(target: &Target, index: usize) -> Channel {
    let address = format!("tls://127.0.{}.{}:1", index / 250, index % 250);
    let register = RegisterWorker {
        name: Value::from(address.as_str()),
        address,
        status: WorkerStatus::Running,
        nthreads: 1,
        ..RegisterWorker::default()
    };
    let mut channel = target.channel().await;
    let sent = channel.sender.send(&Request::from(register)).await;
    sent.expect("it reads");
    // The first message of the stream, which is a list.
    let batch = channel
        .receiver
        .receive_batch::<RegisterWorkerReply>()
        .await;
    let reply = batch.expect("a reply").expect("a reply").remove(0);
    assert_eq!(reply.status, ReplyStatus::Ok, "{reply:?}");
    channel
}

/// Waits until the scheduler has this number of workers.
async fn until_workers(target: &Target, count: usize) {
    while target.worker_count().await != i64::try_from(count).expect("small") {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_joins_and_half_of_it_is_lost_at_once() {
    let target = Arc::new(Target::new());
    let count = CROWD * scale();
    let joining = async {
        let mut joining = JoinSet::new();
        for index in 0..count {
            let target = Arc::clone(&target);
            joining.spawn(async move { join(&target, index).await });
        }
        let joined = joining.join_all().await;
        until_workers(&target, count).await;
        joined
    };
    let mut joined = target.attacked("a crowd joins", joining).await;
    let losing = async {
        drop(joined.split_off(count / 2));
        until_workers(&target, count / 2).await;
    };
    target.attacked("half of it is lost", losing).await;
    drop(joined);
    until_workers(&target, 0).await;
    target.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_that_do_not_read_cost_only_themselves() {
    let target = Arc::new(Target::new());
    let mut workers = Vec::new();
    for index in 0..100 {
        workers.push(join(&target, index).await);
    }
    let mut comms = Vec::new();
    for _ in 0..20 * scale() {
        comms.push(target.comm().await);
    }
    let reading = async {
        let mut asking = JoinSet::new();
        for mut comm in comms {
            asking.spawn(async move {
                // Each reply has about 50 KiB, so that the connection is full soon.
                let identity = b"\x83\xa2op\xa8identity\xa9n_workers\xff\xa5reply\xc3";
                let asking = async {
                    for _ in 0..500 {
                        comm.write_message(&[identity]).await.expect("it is open");
                    }
                };
                let _ = tokio::time::timeout(Duration::from_secs(3), asking).await;
                comm
            });
        }
        let comms = asking.join_all().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        comms
    };
    drop(target.attacked("slow readers", reading).await);
    drop(workers);
    target.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn floods_do_not_hold_up_others() {
    let target = Arc::new(Target::new());
    let at = target.address.location().to_owned();
    let comms = async {
        let mut connections = Vec::new();
        for _ in 0..1_000 * scale() {
            // The system may refuse some of them.
            connections.extend(TcpStream::connect(&at).await.ok());
        }
        // A further peer is accepted meanwhile.
        let pong = target.channel().await;
        drop((connections, pong));
    };
    target.attacked("a flood of connections", comms).await;

    let requests = async {
        let mut sending = JoinSet::new();
        for _ in 0..4 {
            let mut comm = target.comm().await;
            sending.spawn(async move {
                for _ in 0..5_000 * scale() {
                    let ping = b"\x82\xa2op\xa4ping\xa5reply\xc2";
                    comm.write_message(&[ping]).await.expect("it reads");
                }
                comm.close().await
            });
        }
        sending.join_all().await
    };
    target.attacked("a flood of requests", requests).await;

    let messages = async {
        let mut comm = target.comm().await;
        let register =
            b"\x84\xa2op\xafregister-client\xa6client\xa5flood\xa5reply\xc2\xa8versions\xc0";
        comm.write_message(&[register]).await.expect("it reads");
        let start = tokio::time::timeout(Duration::from_secs(60), comm.read_message()).await;
        start.expect("it replies").expect("it accepts the client");
        // Messages about a key that is not known, and with an unknown op, 1,000 in each batch.
        let mut batch = b"\xdc\x03\xe8".to_vec();
        for index in 0..1_000 {
            batch.extend_from_slice(match index % 2 {
                0 => b"\x83\xa2op\xb4client-releases-keys\xa4keys\x91\xa1x\xa6client\xa5flood",
                _ => b"\x81\xa2op\xa9unknown-x",
            });
        }
        for _ in 0..20 * scale() {
            comm.write_message(&[&batch]).await.expect("it reads");
        }
        let _ = comm.close().await;
    };
    target.attacked("a flood of messages", messages).await;
    target.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_ends_its_comm_alone() {
    let target = Arc::new(Target::new());
    let at = target.address.location().to_owned();
    let garbage = async {
        let mut random = Random(7);
        for _ in 0..50 * scale() {
            let len = random.below(20_000);
            let noise: Vec<u8> = (0..len).map(|_| random.next().to_le_bytes()[3]).collect();
            // In place of TLS
            let mut stream = TcpStream::connect(&at).await.expect("it listens");
            let _ = stream.write_all(&noise).await;
            // In place of a message
            let mut comm = target.comm().await;
            let _ = comm.write_message(&[&noise]).await;
            // In place of the handshake of Dask, and a length of many terabytes
            for start in [
                &noise[..],
                &[0xff; 16],
                &[
                    16, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0,
                ],
            ] {
                let options = CommOptions::default();
                let raw = target
                    .transports
                    .connect_raw(&target.address, &options, Traffic::Normal);
                let mut raw = raw.await.expect("it accepts");
                let _ = raw.writer.write_all(start).await;
            }
        }
        // Lists within lists, as deep as a message is long.
        let mut comm = target.comm().await;
        let deep = [
            b"\x82\xa2op\xa4echo\xa4data".to_vec(),
            vec![0x91; 1 << 20],
            vec![0xc0],
        ];
        let _ = comm.write_message(&[&deep.concat()]).await;
        let ended = tokio::time::timeout(Duration::from_secs(60), comm.read_message()).await;
        assert!(!matches!(ended, Ok(Ok(Some(_)))), "it has no reply");
    };
    target.attacked("garbage", garbage).await;
    target.check();
}
