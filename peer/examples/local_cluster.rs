//! A cluster in this process: a scheduler and two workers with functions in Rust.
//! Neither Dask nor an address is needed.
//!
//! ```sh
//! cargo run --example local_cluster
//! ```

use std::error::Error;

use daskwire_peer::cluster::LocalCluster;
use daskwire_peer::graph::Argument;
use daskwire_peer::worker::Functions;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    println!("{} primes are below 100,000", run().await?);
    Ok(())
}

/// Counts the primes below 100,000, in ten tasks and one that adds their results.
pub(crate) async fn run() -> Result<u64, Box<dyn Error>> {
    let functions = Functions::builtins().function("count_primes", |first: u64, end: u64| {
        (first.max(2)..end)
            .filter(|n| (2..).take_while(|d| d * d <= *n).all(|d| n % d != 0))
            .count()
    });
    let cluster = LocalCluster::builder().functions(functions).start().await?;
    let client = cluster.client().await?;
    println!("{} workers", client.workers().await?.len());

    let firsts = (0..10_u64).map(|part| part * 10_000);
    let ends = firsts.clone().map(|first| first + 10_000);
    let counts = client
        .calls("native:count_primes")
        .over(firsts)
        .over(ends)
        .submit()?;
    let sum = client.submit("builtins.sum", (Argument::list(&counts),))?;
    let sum = u64::try_from(sum.await?)?;
    client.close().await?;
    cluster.close().await;
    Ok(sum)
}
