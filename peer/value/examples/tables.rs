//! Reads a data frame of pandas as a record batch of Arrow, and sends another one to
//! pandas. Workers need pandas and pyarrow.
//!
//! ```sh
//! dask scheduler & dask worker tcp://127.0.0.1:8786 &
//! cargo run -p daskwire-value --example tables --features arrow-60 -- tcp://127.0.0.1:8786
//! ```

use std::error::Error;
use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Float64Array, RecordBatch};
use daskwire_peer::{Client, Value};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let scheduler = std::env::args().nth(1).ok_or("usage: tables SCHEDULER")?;
    println!("{:#?}", run(&scheduler).await?);
    Ok(())
}

/// Returns the turnover of each city.
pub(crate) async fn run(scheduler: &str) -> Result<RecordBatch, Box<dyn Error>> {
    let client = Client::connect(scheduler).await?;
    let sales = Value::dict([
        ("city", Value::from(vec!["Bonn", "Köln", "Bonn"])),
        ("count", Value::from(vec![3, 4, 5])),
        ("price", Value::from(vec![Some(1.5), Some(2.0), None])),
    ]);
    let sales = client.submit("pandas.DataFrame", [sales])?;

    // A data frame becomes a record batch here, without Python: NaN is null.
    let sales = RecordBatch::try_from(sales.await?)?;
    let column = |name| sales.column_by_name(name).ok_or("no such column");
    let counts = column("count")?.as_primitive::<Int64Type>();
    let prices = column("price")?.as_primitive::<Float64Type>();
    let turnovers = counts.iter().zip(prices);
    let turnovers: Float64Array = turnovers
        .map(|(count, price)| Some(count? as f64 * price?))
        .collect();
    let turnovers = RecordBatch::try_from_iter([
        ("city", Arc::clone(column("city")?)),
        ("turnover", Arc::new(turnovers)),
    ])?;

    // A record batch becomes a data frame on the worker that needs it.
    let grouped = client.call("pandas:DataFrame.groupby");
    let grouped = grouped.argument(Value::data_frame(&[turnovers])?);
    let grouped = grouped.argument("city").submit()?;
    let sums = client.submit("pandas.api.typing:DataFrameGroupBy.sum", [&grouped])?;
    let sums = RecordBatch::try_from(sums.await?)?;
    client.close().await?;
    Ok(sums)
}
