//! A web service that answers each request with a model of scikit-learn, which is on the cluster.
//!
//! ```sh
//! dask scheduler & dask worker tcp://127.0.0.1:8786 &
//! cargo run --example web -- tcp://127.0.0.1:8786 &
//! curl http://127.0.0.1:8000/0.9,0.8
//! ```

use daskwire_peer::client::TaskFuture;
use daskwire_peer::{Array, Client};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Result<()> {
    let scheduler = std::env::args().nth(1).ok_or("usage: web SCHEDULER")?;
    serve(&scheduler, TcpListener::bind("127.0.0.1:8000").await?).await
}

/// Fits the model, and serves until the listener fails.
pub(crate) async fn serve(scheduler: &str, listener: TcpListener) -> Result<()> {
    let client = Client::connect(scheduler).await?;
    let points = Array::from_slice(&[4, 2], &[0.0, 0.0, 0.1, 0.2, 0.9, 1.0, 1.0, 0.8])?;
    let labels = Array::from_slice(&[4], &[0_i64, 0, 1, 1])?;
    let model = client.call("sklearn.neighbors.KNeighborsClassifier");
    let model = model.keyword("n_neighbors", 1).submit()?;
    let fit = client.call("sklearn.neighbors:KNeighborsClassifier.fit");
    let model = fit.argument(&model).argument(points).argument(labels);
    let model = model.submit()?; // stays on the cluster
    loop {
        let (stream, _) = listener.accept().await?;
        let (client, model) = (client.clone(), model.clone());
        tokio::spawn(async move { answer(stream, &client, &model).await });
    }
}

async fn answer(mut stream: TcpStream, client: &Client, model: &TaskFuture) -> Result<()> {
    let mut request = String::new();
    let mut reader = BufReader::new((&mut stream).take(1024));
    reader.read_line(&mut request).await?;
    let (status, text) = match label(&request, client, model).await {
        Ok(label) => ("200 OK", label.to_string()),
        Err(error) => ("400 Bad Request", error.to_string()),
    };
    let reply = format!("HTTP/1.1 {status}\r\nConnection: close\r\n\r\n{text}");
    Ok(stream.write_all(reply.as_bytes()).await?)
}

/// The label of the point in `GET /0.9,0.8 HTTP/1.1`.
async fn label(request: &str, client: &Client, model: &TaskFuture) -> Result<i64> {
    let path = request.split(' ').nth(1).ok_or("not a request")?;
    let point = path.trim_start_matches('/').split(',').map(str::parse);
    let point = point.collect::<std::result::Result<Vec<f64>, _>>()?;
    let predict = client.call("sklearn.neighbors:KNeighborsClassifier.predict");
    let labels = predict.argument(model).argument(vec![point]).submit()?;
    let [label]: [i64; 1] = labels.result_as().await?;
    Ok(label)
}
