//! A worker and a client over sockets that are opaque to the compiler.
//!
//! It links only if neither role allocates or panics for any input.
//! When run, both wait for connections that are never made.

#![no_std]
#![no_main]

use core::fmt::Write;
use core::hint::black_box;
use core::time::Duration;

use daskwire_embedded::client::{self, Argument, Client};
use daskwire_embedded::role::{Connections, SocketState, Sockets, exchange};
use daskwire_embedded::value::{Args, Failure, Out, Value};
use daskwire_embedded::worker::{self, Function, Worker};

use cortex_m::Semihosting;

#[path = "../../../tests/bare-metal/src/cortex_m.rs"]
mod cortex_m;
#[cfg(feature = "defmt")]
mod logging;

/// Sockets that could do anything.
struct Unknown;

impl Sockets for Unknown {
    fn connect(&mut self, link: usize, address: &str) {
        black_box((link, address));
    }

    fn accept(&mut self, link: usize) {
        black_box(link);
    }

    fn close(&mut self, link: usize) {
        black_box(link);
    }

    fn abort(&mut self, link: usize) {
        black_box(link);
    }

    fn state(&mut self, _: usize) -> SocketState {
        black_box(SocketState::Opening)
    }

    fn read(&mut self, _: usize, into: &mut [u8]) -> usize {
        black_box(into);
        black_box(0)
    }

    fn write(&mut self, _: usize, bytes: &[u8]) -> usize {
        black_box(bytes);
        black_box(0)
    }
}

const FUNCTIONS: &[(&str, Function)] = &[("copy", copy)];

/// Returns its argument.
fn copy(args: &Args<'_>, out: &mut Out<'_>) -> Result<(), Failure> {
    match args.exactly()? {
        [Value::None] => out.none(),
        [Value::Bool(value)] => out.bool(*value),
        [Value::Int(value)] => out.int(*value),
        [Value::Float(value)] => out.float(*value),
        [Value::Str(string)] => out.str(string),
        [Value::Bytes(bytes)] => out.bytes(bytes),
        [Value::Array(array)] => out.floats(array.to_f64s()),
    }
}

fn program(out: &mut Semihosting) -> bool {
    #[cfg(feature = "break-no-panic")]
    core::hint::black_box(core::hint::black_box([1_u8; 3])[core::hint::black_box(3)]);

    let mut memory = worker::Memory::<16, 4096, 2048, 1>::new();
    let config = worker::Config::new(
        black_box("tcp://10.0.2.2:8786"),
        black_box("tcp://10.0.2.15:8000"),
        black_box("mcu"),
    );
    let mut worker = Worker::new(config, FUNCTIONS, &mut memory);
    let mut connections = Connections::<4>::new();
    for second in 0..black_box(10) {
        let now = Duration::from_secs(second);
        exchange(&mut worker, &mut Unknown, &mut connections, now);
    }
    let key_count = black_box(worker.key_count());

    let mut memory = client::Memory::<4, 2048, 1024>::new();
    let config = client::Config::new(black_box("tcp://10.0.2.2:8786"), black_box("mcu-client"));
    let mut client = Client::new(config, &mut memory);
    let mut connections = Connections::<2>::new();
    for second in 0..black_box(10) {
        let now = Duration::from_secs(second);
        exchange(&mut client, &mut Unknown, &mut connections, now);
        let value = Argument::Value(black_box(Value::Int(1)));
        if let Ok(task) = client.submit(black_box("operator.neg"), &[value]) {
            let again = client.submit(black_box("operator.neg"), &[Argument::Task(task)]);
            let _ = black_box(again);
            black_box(client.outcome(task));
            black_box(client.release(task));
        }
    }
    client.close();
    black_box(client.status());
    #[cfg(feature = "defmt")]
    if logging::log_everything(Failure::type_error(""), worker.status(), client.status()) == 0 {
        return false;
    }
    let (flash, stack) = cortex_m::memory_used();
    let printed = writeln!(
        out,
        "    flash {flash} bytes, stack {stack}, static {}",
        cortex_m::static_len(),
    );
    printed.is_ok() && key_count == 0
}
