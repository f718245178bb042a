//! Sends a Python module of the user's own to the cluster, and calls its functions.
//!
//! ```sh
//! dask scheduler & dask worker tcp://127.0.0.1:8786 &
//! cargo run --example own_module -- tcp://127.0.0.1:8786
//! ```

use std::error::Error;

use daskwire_peer::{Client, Value};

/// It could be a file as well, for `Client::upload_file`.
const MODULE: &str = "
import collections

def count(text):
    return dict(collections.Counter(text.split()))

def merge(counts, *, least):
    total = collections.Counter()
    for each in counts:
        total.update(each)
    return sorted(word for word, count in total.items() if count >= least)
";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let scheduler = std::env::args()
        .nth(1)
        .ok_or("usage: own_module SCHEDULER")?;
    println!("{}", run(&scheduler).await?);
    Ok(())
}

/// Returns the words that occur at least twice.
pub(crate) async fn run(scheduler: &str) -> Result<Value, Box<dyn Error>> {
    let client = Client::connect(scheduler).await?;
    client.upload("word_counts.py", MODULE).await?;
    let lines = ["a rose is a rose", "is a rose", "what is in a name"];
    let counts = client.map("word_counts.count", lines)?;
    let frequent = client
        .call("word_counts.merge")
        .argument(daskwire_peer::graph::Argument::list(&counts))
        .keyword("least", 2)
        .submit()?;
    let words = frequent.await?;
    client.close().await?;
    Ok(words)
}
