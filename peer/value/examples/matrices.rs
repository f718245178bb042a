//! Sends arrays of ndarray to numpy, and reads what it returns as such.
//!
//! ```sh
//! dask scheduler & dask worker tcp://127.0.0.1:8786 &
//! cargo run -p daskwire-value --example matrices --features ndarray-017 -- tcp://127.0.0.1:8786
//! ```

use std::error::Error;

use daskwire_peer::Client;
use ndarray_017::{Array1, Array2, array};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let scheduler = std::env::args().nth(1).ok_or("usage: matrices SCHEDULER")?;
    println!("{}", run(&scheduler).await?);
    Ok(())
}

/// Returns the solution of two equations.
pub(crate) async fn run(scheduler: &str) -> Result<Array1<f64>, Box<dyn Error>> {
    let client = Client::connect(scheduler).await?;
    let matrix = array![[4.0, 1.0], [1.0, 3.0]];
    let inverse = client.submit("numpy.linalg.inv", matrix.clone())?;
    let inverse: Array2<f64> = inverse.result_as().await?;
    let solution = inverse.dot(&array![1.0, 2.0]);

    // The same on the cluster.
    let product = client.submit("numpy.dot", (inverse, vec![1.0, 2.0]))?;
    let there: Array1<f64> = product.result_as().await?;
    assert!(
        (there - &solution)
            .iter()
            .all(|difference| difference.abs() < 1e-12)
    );
    client.close().await?;
    Ok(solution)
}
