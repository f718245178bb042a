//! Your own worker: functions in Rust that Python calls by their names.
//!
//! ```sh
//! dask scheduler &
//! cargo run --release --example worker -- tcp://127.0.0.1:8786
//! ```
//!
//! ```python
//! client = distributed.Client("tcp://127.0.0.1:8786")
//! client.submit(operator.methodcaller("native:scale"), np.arange(3.0), 2.0).result()
//! client.submit(operator.methodcaller("native:scale"), np.arange(3.0), by=3.0).result()
//! slow = client.submit(operator.methodcaller("native:factor"), 10**12 + 39)  # a prime
//! slow.cancel()  # the function ends
//! ```

use std::error::Error;

use daskwire_peer::worker::{Context, Functions, Signature, Worker};
use daskwire_peer::{Array, RemoteError};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    work(&std::env::args().nth(1).ok_or("usage: worker SCHEDULER")?).await
}

pub(crate) async fn work(scheduler: &str) -> Result<(), Box<dyn Error>> {
    let worker = Worker::builder(scheduler.parse()?).functions(functions());
    let worker = worker.memory_limit(2 << 30).start().await?; // data beyond goes to disk
    println!("{} works; Control-C to end", worker.address());
    tokio::select! {
        ended = worker.ended() => println!("{ended}"),
        _ = tokio::signal::ctrl_c() => { worker.retire().await?; } // others take what it has
    }
    Ok(())
}

pub(crate) fn functions() -> Functions {
    // Arguments and results are types of Rust; an error is an exception in Python.
    let scale = |array: Array, by: f64| -> Result<Array, RemoteError> {
        let scaled: Vec<f64> = array.view()?.elements::<f64>()?.map(|x| x * by).collect();
        Ok(Array::from_vec(array.shape(), scaled)?)
    };
    // The worker adds the context; callers give the other arguments.
    let factor = |context: Context, number: u64| -> Result<u64, RemoteError> {
        for candidate in 2..number {
            context.cancellation().check()?;
            if number.is_multiple_of(candidate) {
                context.log_event("factors", candidate);
                return Ok(candidate);
            }
        }
        Ok(number)
    };
    // As `def scale(array, by=2.0)`.
    let scale_signature = Signature::new("scale").required("array");
    Functions::builtins()
        .function("hypot", f64::hypot)
        .function(scale_signature.optional("by", 2.0), scale)
        .function("factor", factor)
}
