//! Trains a classifier of scikit-learn on a Dask cluster with arrays of Rust.
//!
//! ```sh
//! dask scheduler & dask worker tcp://127.0.0.1:8786 &
//! cargo run --example learn -- tcp://127.0.0.1:8786
//! ```

use std::error::Error;

use daskwire_peer::{Array, Client};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let scheduler = std::env::args().nth(1).ok_or("usage: learn SCHEDULER")?;
    let (score, labels) = run(&scheduler).await?;
    println!("{:.1} % are classified correctly", 100.0 * score);
    println!("the center and a corner: {labels:?}");
    Ok(())
}

/// Points that cover a square evenly, each with whether it is in a circle.
fn points(range: core::ops::Range<u32>) -> Result<[Array; 2], Box<dyn Error>> {
    let coordinate = |i: u32, step: f64| (f64::from(i) * step).fract() * 2.0 - 1.0;
    let points: Vec<[f64; 2]> = range
        .map(|i| [coordinate(i, 0.754_877_67), coordinate(i, 0.569_840_29)])
        .collect();
    let labels: Vec<bool> = points.iter().map(|[x, y]| x * x + y * y < 0.5).collect();
    let points_array = Array::from_slice(&[points.len(), 2], points.as_flattened())?;
    Ok([points_array, Array::from_slice(&[labels.len()], &labels)?])
}

/// Returns the share of points that the model classifies correctly, and the labels
/// of two more points.
pub(crate) async fn run(scheduler: &str) -> Result<(f64, Vec<bool>), Box<dyn Error>> {
    let client = Client::connect(scheduler).await?;
    let training = client.scatter(points(0..2_000)?).await?;
    let test = client.scatter(points(2_000..3_000)?).await?;
    let new = Array::from_slice(&[2, 2], &[0.0, 0.0, 0.9, -0.9])?;

    // A class is called as a function is; a method takes its object first.
    let model = client
        .call("sklearn.neighbors.KNeighborsClassifier")
        .keyword("n_neighbors", 3);
    let fit = client.call("sklearn.neighbors:KNeighborsClassifier.fit");
    let model = fit.argument(&model.submit()?).argument(&training[0]);
    let model = model.argument(&training[1]).submit()?;
    let score = client.call("sklearn.neighbors:KNeighborsClassifier.score");
    let score = score.argument(&model).argument(&test[0]);
    let score = score.argument(&test[1]).submit()?;
    let predict = client.call("sklearn.neighbors:KNeighborsClassifier.predict");
    let labels = predict.argument(&model).argument(new).submit()?;

    let labels = Array::try_from(labels.await?)?.to_vec()?;
    let score = f64::try_from(score.await?)?;
    client.close().await?;
    Ok((score, labels))
}
