//! Submits a graph of tasks, one of which fails, and shows what became of each.
//!
//! ```sh
//! dask scheduler & dask worker tcp://127.0.0.1:8786 &
//! cargo run --example graph -- tcp://127.0.0.1:8786
//! ```

use std::error::Error;

use daskwire_peer::client::{SubmitOptions, TaskError};
use daskwire_peer::graph::{Argument, Graph, Task};
use daskwire_peer::{Client, Key};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let scheduler = std::env::args().nth(1).ok_or("usage: graph SCHEDULER")?;
    for line in run(&scheduler).await? {
        println!("{line}");
    }
    Ok(())
}

/// Runs the graph, and returns a line for each result.
pub(crate) async fn run(scheduler: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let client = Client::connect(scheduler).await?;
    let (x, y) = (Key::from("x"), Key::from("y"));
    let tasks = [
        Task::new(&x, "operator.add", [40, 2]),
        Task::new(&y, "operator.sub", [Argument::from(&x), Argument::from(42)]),
        Task::new("good", "operator.mul", [&x, &y]),
        Task::new("bad", "operator.truediv", [&x, &y]),
        Task::new("after-bad", "operator.neg", [Key::from("bad")]),
    ];
    let graph: Graph = tasks.into_iter().collect();
    let keys = ["x", "y", "good", "bad", "after-bad"].map(Key::from).into();
    let futures = client.submit_graph(&graph, keys, &SubmitOptions::default())?;

    let mut lines = Vec::new();
    for future in &futures {
        lines.push(match future.await {
            Ok(value) => format!("{}: {value}", future.key()),
            // The exception of Python, with its traceback; the task that raised it may be
            // another one, which this one depends on.
            Err(TaskError::Failed { key, error }) => {
                let last = error.traceback.lines().last().unwrap_or_default();
                format!("{key}: {}, raised in {}", error.class, last.trim())
            }
            Err(error) => return Err(error.into()),
        });
    }
    client.close().await?;
    Ok(lines)
}
