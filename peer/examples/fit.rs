//! Calls numpy on a Dask cluster with arrays of Rust: fits a parabola to points
//! that have some noise.
//!
//! ```sh
//! dask scheduler & dask worker tcp://127.0.0.1:8786 &
//! cargo run --release --example fit -- tcp://127.0.0.1:8786
//! ```

use std::error::Error;

use daskwire_peer::{Array, Client};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let scheduler = std::env::args().nth(1).ok_or("usage: fit SCHEDULER")?;
    let fitted = fit(&scheduler).await?;
    let [a, b, c] = fitted.coefficients;
    println!("y = {a:.3} x² {b:+.3} x {c:+.3}");
    println!("no point is further from it than {:.3}", fitted.largest);
    Ok(())
}

/// A parabola, and the largest distance of a point from it.
#[derive(Debug)]
pub(crate) struct Fit {
    pub(crate) coefficients: [f64; 3],
    pub(crate) largest: f64,
}

pub(crate) async fn fit(scheduler: &str) -> Result<Fit, Box<dyn Error>> {
    let client = Client::connect(scheduler).await?;

    // y = 3 x² - 2 x + 1, and a little wave around it.
    let x: Vec<f64> = (0..10_000).map(|i| f64::from(i) / 1e3).collect();
    let y = |x: &f64| (3.0 * x - 2.0) * x + 1.0 + (x * 99.0).sin() / 10.0;
    let y: Vec<f64> = x.iter().map(y).collect();

    // The arrays go to the workers without a copy, and are numpy arrays there.
    let [x, y] = [x, y].map(|values| Array::from_vec(&[values.len()], values));
    let points = client.scatter([x?, y?]).await?;
    let fit = client
        .call("numpy.polyfit")
        .argument(&points[0])
        .argument(&points[1])
        .keyword("deg", 2)
        .submit()?;
    let fitted = client.submit("numpy.polyval", [&fit, &points[0]])?;
    let residual = client.submit("numpy.subtract", [&points[1], &fitted])?;
    let largest = client.submit("numpy.max", [&residual])?;

    let fitted = Fit {
        coefficients: fit.result_as().await?,
        largest: largest.result_as().await?,
    };
    client.close().await?;
    Ok(fitted)
}
