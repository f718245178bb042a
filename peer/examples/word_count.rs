//! Counts words of files on a Dask cluster: the files are scattered over the
//! workers, which split and count; the counts are added in a tree.
//!
//! ```sh
//! dask scheduler & dask worker tcp://127.0.0.1:8786 &
//! cargo run --release --example word_count -- tcp://127.0.0.1:8786 README.md CHANGELOG.md
//! ```

use std::error::Error;

use daskwire_peer::Client;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: word_count SCHEDULER FILE...";
    let scheduler = arguments.next().ok_or(usage)?;
    let files = arguments.map(std::fs::read_to_string);
    let files = files.collect::<Result<_, _>>()?;
    for (word, count) in most_common(&scheduler, files).await? {
        println!("{count:>8}  {word}");
    }
    Ok(())
}

/// The ten most common words of all files.
pub(crate) async fn most_common(
    scheduler: &str,
    files: Vec<String>,
) -> Result<Vec<(String, i64)>, Box<dyn Error>> {
    let client = Client::connect(scheduler).await?;
    let files = client.scatter(files).await?;
    let mut counts = Vec::new();
    for file in &files {
        let words = client.submit("builtins:str.split", [file])?;
        counts.push(client.submit("collections.Counter", [&words])?);
    }
    // Pairs are added until one is left.
    while counts.len() > 1 {
        let mut sums = Vec::new();
        for pair in counts.chunks(2) {
            sums.push(match pair {
                [one, other] => client.submit("operator.add", [one, other])?,
                alone => alone[0].clone(),
            });
        }
        counts = sums;
    }
    let total = counts.pop().ok_or("no files are given")?;
    let most = client.submit("collections:Counter.most_common", (&total, 10))?;
    let words = most.result_as().await?;
    client.close().await?;
    Ok(words)
}
