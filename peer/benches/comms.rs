//! Comms over TCP, TLS and QUIC beside each other, and beside Dask's own.
//!
//! `cargo bench -p daskwire-peer --bench comms [-- PYTHON]`
//!
//! First 2,000 idle comms are made over each, both ends in this process, and what
//! the process has grown by is divided by their number. Then in every round each
//! transport does the same once, one after the other: moves a message of 64 MiB
//! and gets a byte back, does the same with 100 bytes, and makes a new comm with
//! one question and answer. A figure is the median over the rounds of its time
//! over that of TCP, with the least and the most.
//!
//! PYTHON is an interpreter that has `distributed`, such as those that the tests
//! make in `target/python`; with it, Dask's own comm does the same before the
//! others do.
#![allow(missing_docs)]

use std::path::Path;
use std::time::{Duration, Instant};

use daskwire_comm::tls::TlsSettings;
use daskwire_comm::{Address, Comm, CommOptions, Transports};
use daskwire_testing::bench::{median, memory};

const SCHEMES: [&str; 3] = ["tcp", "tls", "quic"];
const LARGE: usize = 64 << 20;
const SMALL: usize = 100;
const IDLE_COUNT: usize = 2000;

/// Comms of one scheme, with a peer that replies.
struct Lane {
    transports: Transports,
    address: Address,
    comm: Comm,
}

fn transports() -> Transports {
    let pem = daskwire_testing::certificate("self-signed.pem");
    let settings = TlsSettings::new(&*pem, &*pem);
    daskwire_peer::transports_with_tls(&settings.build().expect("a certificate and its key"))
}

/// A byte for each message.
async fn answer(mut comm: Comm) {
    while let Ok(Some(_)) = comm.read_message().await {
        if comm.write_message(&[[1]]).await.is_err() {
            break;
        }
    }
    // The peer may be gone by now.
    let _ = comm.close().await;
}

impl Lane {
    async fn new(scheme: &str) -> Self {
        let address = format!("{scheme}://127.0.0.1:0")
            .parse()
            .expect("an address");
        let (transports, options) = (transports(), CommOptions::default());
        let listener = transports.bind(&address, options.clone()).await;
        let listener = listener.expect("a port");
        let address = listener.local_address().expect("bound address");
        tokio::spawn(async move {
            while let Ok(incoming) = listener.accept().await {
                tokio::spawn(async move {
                    if let Ok(comm) = incoming.handshake().await {
                        answer(comm).await;
                    }
                });
            }
        });
        let comm = transports.connect(&address, &options).await;
        let comm = comm.expect("a comm");
        Self {
            transports,
            address,
            comm,
        }
    }

    async fn connect(&self) -> Comm {
        let options = CommOptions::default();
        let comm = self.transports.connect(&self.address, &options).await;
        comm.expect("a comm")
    }

    async fn round(&mut self, payload: &[u8]) -> Duration {
        let started = Instant::now();
        self.comm
            .write_message(&[payload])
            .await
            .expect("it is taken");
        self.comm
            .read_message()
            .await
            .expect("an answer")
            .expect("an answer");
        started.elapsed()
    }

    async fn new_comm(&mut self) -> Duration {
        let started = Instant::now();
        let mut comm = self.connect().await;
        comm.write_message(&[[0]]).await.expect("it is taken");
        comm.read_message()
            .await
            .expect("an answer")
            .expect("an answer");
        let time = started.elapsed();
        comm.close().await.expect("it ends well");
        time
    }
}

/// `times[scheme][round]` in seconds.
fn show(title: &str, python: Option<f64>, times: [Vec<f64>; 3]) {
    let (tcp, ..) = median(times[0].clone());
    println!("{title}: TCP takes {:.1} us", tcp * 1e6);
    for (scheme, seconds) in SCHEMES.iter().zip(&times).skip(1) {
        let ratios = seconds.iter().zip(&times[0]).map(|(time, tcp)| time / tcp);
        let (middle, least, most) = median(ratios.collect());
        println!("  {scheme:6} {middle:6.2}   ({least:.2} to {most:.2})");
    }
    if let Some(python) = python {
        println!("  Dask   {:6.2}   (its median over ours)", python / tcp);
    }
}

async fn idle(lane: &Lane) -> usize {
    // Once before, so that what is kept for later is there already.
    let mut kept = Vec::new();
    for _ in 0..100 {
        kept.push(lane.connect().await);
    }
    let before = memory("self");
    for _ in 0..IDLE_COUNT {
        kept.push(lane.connect().await);
    }
    (memory("self") - before).max(0.0) as usize / IDLE_COUNT
}

fn main() {
    let python = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'));
    let dask: Option<serde_json::Value> = python.map(|python| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/comm_bench.py");
        let output = std::process::Command::new(&python).arg(script).output();
        let output = output.unwrap_or_else(|error| panic!("{python}: {error}"));
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
    });
    let of_dask = |key: &str| dask.as_ref().and_then(|dask| dask[key].as_f64());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let mut lanes = Vec::new();
        for scheme in SCHEMES {
            lanes.push(Lane::new(scheme).await);
        }
        println!("memory of an idle comm, both ends:");
        for (scheme, lane) in SCHEMES.iter().zip(&lanes) {
            println!("  {scheme:6} {:6.1} KiB", idle(lane).await as f64 / 1024.0);
        }
        println!("time as a multiple of TCP's: median (least to most)");
        for (title, key, len, rounds) in [
            ("one message of 64 MiB and an answer", "large", LARGE, 15),
            (
                "one message of 100 bytes and an answer",
                "small",
                SMALL,
                3000,
            ),
        ] {
            let payload = vec![7; len];
            let mut times = [const { Vec::new() }; 3];
            for round in 0..=rounds {
                for (lane, times) in lanes.iter_mut().zip(&mut times) {
                    let time = lane.round(&payload).await.as_secs_f64();
                    if round > 0 {
                        times.push(time);
                    }
                }
            }
            show(title, of_dask(key), times);
        }
        let mut times = [const { Vec::new() }; 3];
        for round in 0..=200 {
            for (lane, times) in lanes.iter_mut().zip(&mut times) {
                let time = lane.new_comm().await.as_secs_f64();
                if round > 0 {
                    times.push(time);
                }
            }
        }
        show(
            "a new comm, one question and its answer",
            of_dask("new"),
            times,
        );
    });
}
