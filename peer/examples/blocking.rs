//! A program without async, with a client that blocks.
//!
//! ```sh
//! dask scheduler & dask worker tcp://127.0.0.1:8786 &
//! cargo run --example blocking -- tcp://127.0.0.1:8786
//! ```

use std::error::Error;

use daskwire_peer::client::blocking::Client;

fn main() -> Result<(), Box<dyn Error>> {
    let scheduler = std::env::args().nth(1).ok_or("usage: blocking SCHEDULER")?;
    println!("the sum of the squares is {}", run(&scheduler)?);
    Ok(())
}

/// Returns the sum of the squares of the numbers below 10.
pub(crate) fn run(scheduler: &str) -> Result<i64, Box<dyn Error>> {
    let client = Client::connect(scheduler)?;
    let workers = client.block_on(client.workers())?;
    println!("{} workers", workers.len());

    // Tasks are submitted at once, and only their results are waited for.
    let squares = client
        .calls("builtins.pow")
        .over(0..10)
        .over([2; 10])
        .submit()?;
    for (index, square) in client.results(squares.clone()) {
        println!("{index}: {}", square?);
    }
    let sum = client.submit(
        "builtins.sum",
        (daskwire_peer::graph::Argument::list(&squares),),
    )?;
    let sum = i64::try_from(client.result(&sum)?)?;
    client.close()?;
    Ok(sum)
}
