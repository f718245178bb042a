//! Shows results as they come, with a progress bar, and cancels the rest when it has
//! seen enough.
//!
//! ```sh
//! dask scheduler & dask worker tcp://127.0.0.1:8786 &
//! cargo run --example progress -- tcp://127.0.0.1:8786
//! ```

use std::error::Error;
use std::io::Write as _;

use daskwire_peer::Client;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let scheduler = std::env::args().nth(1).ok_or("usage: progress SCHEDULER")?;
    let (seen, cancelled) = run(&scheduler).await?;
    println!("\n{seen} results, then {cancelled} tasks were cancelled");
    Ok(())
}

/// Returns the number of results that were looked at, and of tasks that were cancelled.
pub(crate) async fn run(scheduler: &str) -> Result<(usize, usize), Box<dyn Error>> {
    const COUNT: usize = 200;
    const ENOUGH: i64 = 1_000_000;
    let client = Client::connect(scheduler).await?;
    let numbers = 0..i64::try_from(COUNT)?;
    let futures = client
        .calls("operator.mul")
        .over(numbers.clone())
        .over(numbers);
    let futures = futures.submit()?;
    let mut results = client.as_completed(futures.clone()).results();
    let (mut seen, mut total) = (0, 0);
    while let Some((index, result)) = results.next().await {
        seen += 1;
        total += i64::try_from(result?)?;
        let done = 40 * seen / COUNT;
        print!("\r[{}{}] {index}", "#".repeat(done), ".".repeat(40 - done));
        std::io::stdout().flush()?;
        if total > ENOUGH {
            break;
        }
    }
    drop(results);
    client.cancel(&futures, false)?;
    client.close().await?;
    Ok((seen, COUNT - seen))
}
