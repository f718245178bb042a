//! Firmware that is a client of a Dask cluster: it submits functions of Python and
//! prints their results.
//!
//! ```text
//! $ client tcp://10.0.2.2:8786
//!     operator.add(20, 1) = 21
//!     operator.mul(operator.add(20, 1), 2) = 42
//!     statistics.stdev(b"\x01\x02\x04") = 1.5275252316519468
//!     operator.truediv(1, 0): ZeroDivisionError: division by zero
//! ```
//!
//! The argument is the address of the scheduler; see `worker.rs` for the network.

#![no_std]
#![no_main]

use core::fmt::{self, Write};

use daskwire_embedded::client::{Argument, Client, Config, Memory, Outcome, Status, TaskId};
use daskwire_embedded::role::{Connections, exchange};
use daskwire_embedded::value::{Failure, Value};
use smoltcp::iface::SocketStorage;

use clock::Clock;
use cortex_m::Semihosting;
use network::{Network, SocketBuffers};
use once::Once;

mod arguments;
mod clock;
#[path = "../../../tests/bare-metal/src/cortex_m.rs"]
mod cortex_m;
mod ethernet;
mod network;
mod once;
mod register;

/// The links of the client, both to the scheduler.
const LINKS: usize = 2;

/// The time limit for the whole program, in seconds.
const PATIENCE: u64 = 30;

/// The memory of the client: 4 tasks, 2 KiB for their keys and results, and
/// results of up to 1 KiB.
static MEMORY: Once<Memory<4, 2048, 1024>> = Once::new(Memory::new());

/// The buffers of the client's sockets.
static BUFFERS: Once<[SocketBuffers<1460, 1024>; LINKS]> =
    Once::new([const { SocketBuffers::EMPTY }; LINKS]);

/// A client on its network.
struct Session<'a> {
    client: Client<'a, 4, 2048>,
    network: Network<'a>,
    connections: Connections<LINKS>,
    clock: Clock,
}

impl Session<'_> {
    /// Drives the client until a condition holds. Returns false if that takes too
    /// long, or if the connection to the scheduler is lost.
    fn until(&mut self, is_so: impl Fn(&Client<'_, 4, 2048>) -> bool) -> bool {
        while !is_so(&self.client) {
            let now = self.clock.now();
            if now.as_secs() > PATIENCE || self.client.status() == Status::Ended {
                return false;
            }
            let has_changed = self.network.poll(now);
            exchange(
                &mut self.client,
                &mut self.network,
                &mut self.connections,
                now,
            );
            if !has_changed {
                clock::sleep();
            }
        }
        true
    }

    /// Submits a task as soon as there is room for it.
    fn submit(&mut self, function: &str, arguments: &[Argument<'_>]) -> Result<TaskId, Failure> {
        self.until(|client| client.has_room());
        self.client.submit(function, arguments)
    }

    /// Waits for a task and prints its outcome.
    fn show(&mut self, call: &str, task: TaskId, out: &mut Semihosting) -> fmt::Result {
        self.until(|client| !matches!(client.outcome(task), Outcome::Pending));
        match self.client.outcome(task) {
            Outcome::Value(Value::Int(value)) => writeln!(out, "    {call} = {value}"),
            Outcome::Value(Value::Float(value)) => writeln!(out, "    {call} = {value}"),
            Outcome::Failed(error) => writeln!(out, "    {call}: {}", error.escape_default()),
            _ => writeln!(out, "    {call}: no result"),
        }
    }
}

fn program(out: &mut Semihosting) -> bool {
    let mut line = [0; 160];
    let mut words = arguments::command_line(&mut line).split_ascii_whitespace();
    // The words are the program, the address of the scheduler and the name.
    let (Some(scheduler), Some(name)) = (words.nth(1), words.next()) else {
        let _ = writeln!(out, "    arguments: SCHEDULER NAME");
        return false;
    };
    let (Some(memory), Some([stream, requests])) = (MEMORY.take(), BUFFERS.take()) else {
        return false;
    };
    let mut storage = [SocketStorage::EMPTY; LINKS];
    let mut handles = [None; LINKS];
    let seed = words.next().and_then(|seed| seed.parse().ok());
    let mut session = Session {
        client: Client::new(Config::new(scheduler, name), memory),
        network: Network::start(&mut storage, &mut handles, seed.unwrap_or_default()),
        connections: Connections::new(),
        clock: Clock::start(),
    };
    session.network.add(stream.socket());
    session.network.add(requests.socket());

    if !session.until(|client| client.status() == Status::Connected) {
        let _ = writeln!(out, "    no connection to {scheduler}");
        return false;
    }
    if let Err(failure) = run(&mut session, out) {
        let _ = writeln!(out, "    {}: {}", failure.class, failure.message);
        return false;
    }
    session.client.close();
    session.until(|client| client.status() == Status::Ended);
    let (flash, stack) = cortex_m::memory_used();
    let printed = writeln!(
        out,
        "    flash {flash} bytes, stack {stack}, static {}",
        cortex_m::static_len(),
    );
    printed.is_ok()
}

fn run(session: &mut Session<'_>, out: &mut Semihosting) -> Result<(), Failure> {
    let int = |value| Argument::Value(Value::Int(value));
    let data = Argument::Value(Value::Bytes(&[1, 2, 4]));
    // The tasks run concurrently; their results are printed in this order.
    let sum = session.submit("operator.add", &[int(20), int(1)])?;
    let twice = [Argument::Task(sum), int(2)];
    let tasks = [
        ("operator.add(20, 1)", sum),
        (
            "operator.mul(operator.add(20, 1), 2)",
            session.submit("operator.mul", &twice)?,
        ),
        (
            "statistics.stdev(b\"\\x01\\x02\\x04\")",
            session.submit("statistics.stdev", &[data])?,
        ),
        (
            "operator.truediv(1, 0)",
            session
                .client
                .submit("operator.truediv", &[int(1), int(0)])?,
        ),
    ];
    for (call, task) in tasks {
        // An error of the output cannot be reported.
        let _ = session.show(call, task, out);
    }
    for (_, task) in tasks {
        session.client.release(task);
    }
    Ok(())
}

/// Called by the panic handler; smoltcp can panic.
#[unsafe(no_mangle)]
extern "C" fn daskwire_panics() -> ! {
    let _ = Semihosting.write_str("    panicked\n");
    loop {
        clock::sleep();
    }
}
