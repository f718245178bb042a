//! A service that outlives its scheduler: it computes again and again, waits while the
//! client reconnects, and submits what was lost once more.
//!
//! ```sh
//! dask scheduler --port 8786 & dask worker tcp://127.0.0.1:8786 &
//! cargo run --example service -- tcp://127.0.0.1:8786
//! # Stop the scheduler and start it again.
//! ```

use std::error::Error;
use std::time::Duration;

use daskwire_peer::client::{ClientOptions, Reconnect, TaskError};
use daskwire_peer::{Client, Value};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let scheduler = std::env::args().nth(1).ok_or("usage: service SCHEDULER")?;
    let client = connect(&scheduler).await?;
    let mut connection = client.watch_connection();
    tokio::spawn(async move {
        while let Some(state) = connection.changed().await {
            eprintln!("{state:?}");
        }
    });
    for number in 0.. {
        println!("{number}: {}", compute(&client, number).await?);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}

/// Connects, and reconnects for an hour when the connection breaks.
pub(crate) async fn connect(scheduler: &str) -> Result<Client, Box<dyn Error>> {
    let options =
        ClientOptions::default().with_reconnect(Reconnect::Within(Duration::from_secs(3600)));
    Ok(Client::connect_with(scheduler, options).await?)
}

/// Computes until it succeeds or fails for a reason of its own.
pub(crate) async fn compute(client: &Client, number: i64) -> Result<Value, Box<dyn Error>> {
    loop {
        let call = client.call("operator.mul").argument(number).argument(2);
        let future = call.submit_when_connected().await?;
        match future.await {
            // The scheduler is gone, and with it the task, or the way to its result.
            Err(TaskError::Lost { .. } | TaskError::Request { .. }) => {}
            result => return Ok(result?),
        }
    }
}
