//! A scheduler without Python, for workers and clients of any kind:
//!
//! ```text
//! cargo run -p daskwire-peer --example scheduler -- tcp://127.0.0.1:8786
//! dask worker tcp://127.0.0.1:8786
//! ```

use daskwire_peer::scheduler::{Notice, Options, Scheduler};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    serve(std::env::args().skip(1).collect()).await
}

/// Serves at these addresses until Control-C.
pub(crate) async fn serve(addresses: Vec<String>) -> Result<(), Box<dyn std::error::Error>> {
    let transports = daskwire_peer::transports();
    let mut listeners = Vec::new();
    for address in addresses {
        listeners.push(
            transports
                .bind(&address.parse()?, Default::default())
                .await?,
        );
    }
    if listeners.is_empty() {
        return Err("where to listen, as tcp://127.0.0.1:8786?".into());
    }
    let options = Options::default().with_on_notice(std::sync::Arc::new(|notice: &Notice| {
        eprintln!("{notice:?}");
    }));
    let scheduler = Scheduler::start(listeners, options)?;
    println!("ready {}", scheduler.address());
    tokio::select! {
        ended = scheduler.closed() => ended?,
        _ = tokio::signal::ctrl_c() => {}
    }
    scheduler.close().await;
    Ok(())
}
