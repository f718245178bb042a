//! Firmware that is a worker of a Dask cluster.
//!
//! A Cortex-M3 with 64 KiB of RAM and no heap, with the TCP/IP stack smoltcp on
//! its Ethernet controller. Python submits tasks to it by its name:
//!
//! ```python
//! client.submit(operator.methodcaller("native:hypot"), 3, 4, workers=["mcu"]).result()
//! ```
//!
//! The arguments are the addresses of the scheduler and of this worker, and its name.
//! The emulator has its own network: the scheduler's host is 10.0.2.2 in it, and the
//! address of this worker is that of a port of the host that is forwarded to port 8000
//! of the board. `cluster.sh` starts all of it.
//!
//! To port it to another chip, replace `ethernet.rs` and `clock.rs`.

#![no_std]
#![no_main]

use core::fmt::Write;

use daskwire_embedded::role::{Connections, exchange};
use daskwire_embedded::worker::{Config, Memory, Status, Worker};
use smoltcp::iface::SocketStorage;

use clock::Clock;
use cortex_m::Semihosting;
use functions::FUNCTIONS;
use network::{Network, SocketBuffers};
use once::Once;

mod arguments;
mod clock;
#[path = "../../../tests/bare-metal/src/cortex_m.rs"]
mod cortex_m;
mod ethernet;
mod functions;
mod network;
mod once;
mod register;

/// The maximum number of tasks and values.
const KEYS: usize = 32;

/// The bytes for their keys, arguments and results.
const DATA: usize = 8 << 10;

/// The maximum length of one task.
const MESSAGE: usize = 4 << 10;

/// The number of connections that peers may have to this worker at a time.
const PEERS: usize = 2;

/// The number of links of the worker: two to the scheduler, one to another worker, and
/// those of peers.
const LINKS: usize = 3 + PEERS;

/// The memory of the worker.
static MEMORY: Once<Memory<KEYS, DATA, MESSAGE, PEERS>> = Once::new(Memory::new());

/// The buffers of the worker's sockets, in the order of its links.
struct WorkerBuffers {
    stream: SocketBuffers<1460, 1024>,
    requests: SocketBuffers<512, 1024>,
    fetch: SocketBuffers<1024, 256>,
    peers: [SocketBuffers<1024, 1024>; PEERS],
}

static BUFFERS: Once<WorkerBuffers> = Once::new(WorkerBuffers {
    stream: SocketBuffers::EMPTY,
    requests: SocketBuffers::EMPTY,
    fetch: SocketBuffers::EMPTY,
    peers: [const { SocketBuffers::EMPTY }; PEERS],
});

fn program(out: &mut Semihosting) -> bool {
    let mut line = [0; 160];
    let mut words = arguments::command_line(&mut line).split_ascii_whitespace();
    // The words are the program, the two addresses and the name.
    let (Some(scheduler), Some(contact), Some(name)) = (words.nth(1), words.next(), words.next())
    else {
        let _ = writeln!(out, "    arguments: SCHEDULER CONTACT NAME");
        return false;
    };
    let config = Config::new(scheduler, contact, name);

    let mut clock = Clock::start();
    let (Some(memory), Some(buffers)) = (MEMORY.take(), BUFFERS.take()) else {
        return false;
    };
    let mut storage = [SocketStorage::EMPTY; LINKS];
    let mut handles = [None; LINKS];
    let seed = words.next().and_then(|seed| seed.parse().ok());
    let mut network = Network::start(&mut storage, &mut handles, seed.unwrap_or_default());
    network.add(buffers.stream.socket());
    network.add(buffers.requests.socket());
    network.add(buffers.fetch.socket());
    for peer in &mut buffers.peers {
        network.add(peer.socket());
    }

    let mut worker = Worker::new(config, FUNCTIONS, memory);
    let mut connections = Connections::<LINKS>::new();
    let mut status = None;
    while worker.status() != Status::Ended {
        let now = clock.now();
        let has_changed = network.poll(now);
        exchange(&mut worker, &mut network, &mut connections, now);
        if !has_changed {
            clock::sleep();
        }
        if status != Some(worker.status()) {
            status = Some(worker.status());
            let _ = writeln!(out, "    {name}: {:?}", worker.status());
            if let Some(release) = worker.refused_release() {
                let _ = writeln!(out, "    the scheduler runs distributed {release}");
            }
        }
    }
    let (flash, stack) = cortex_m::memory_used();
    let printed = writeln!(
        out,
        "    flash {flash} bytes, stack {stack}, static {}",
        cortex_m::static_len(),
    );
    printed.is_ok()
}

/// Called by the panic handler. Unlike the worker, smoltcp can panic, so this program
/// does not prove that nothing panics.
#[unsafe(no_mangle)]
extern "C" fn daskwire_panics() -> ! {
    let _ = Semihosting.write_str("    panicked\n");
    loop {
        clock::sleep();
    }
}
