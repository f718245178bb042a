//! A client on smol: the same program as on tokio, but for the line that runs it.
//!
//! ```sh
//! dask scheduler & dask worker tcp://127.0.0.1:8786 &
//! cargo run --release --example smol -- tcp://127.0.0.1:8786
//! ```
//!
//! Without an address it starts a scheduler and two workers in this process, on
//! smol as well.

use std::error::Error;

use daskwire_peer::Client;
use daskwire_peer::client::Route;
use daskwire_peer::cluster::LocalCluster;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let sum = match std::env::args().nth(1) {
        Some(scheduler) => smol::block_on(sum_of_squares(&scheduler))?,
        None => smol::block_on(sum_on_local_cluster())?,
    };
    println!("the sum of the squares of 0 to 99 is {sum}");
    Ok(())
}

/// Sums the squares of 0 to 99 on a cluster.
pub(crate) async fn sum_of_squares(scheduler: &str) -> Result<i64> {
    let client = Client::connect(scheduler).await?;
    let sum = submit(&client).await;
    client.close().await?;
    sum
}

/// Sums them on a scheduler and two workers in this process.
pub(crate) async fn sum_on_local_cluster() -> Result<i64> {
    let cluster = LocalCluster::start().await?;
    let client = cluster.client().await?;
    let sum = submit(&client).await;
    client.close().await?;
    cluster.close().await;
    sum
}

async fn submit(client: &Client) -> Result<i64> {
    let mut sum = client.submit("operator.add", [0, 0])?;
    for number in 0..100 {
        let square = client.submit("operator.mul", [number, number])?;
        sum = client.submit("operator.add", [&sum, &square])?;
    }
    // Directly from the worker that has it, without the scheduler in between.
    let sum = client.gather_by(&[sum], Route::Direct).await?.remove(0);
    Ok(i64::try_from(sum)?)
}
