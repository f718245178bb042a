use daskwire_peer::client::*;
use daskwire_peer::*;
#[tokio::main]
async fn main() -> Result<(), PeerError> {
    let client = Client::connect(&std::env::args().nth(1).unwrap()).await?;
    println!("{:?}", client.workers().await?.len());
    let x = client.submit("operator.add", [1, 2])?;
    let y = client.submit("operator.mul", [7, 6])?;
    let z = client.submit("operator.add", [&x, &y])?;
    println!("{}", z.result().await?);
    let bad = client.submit("operator.truediv", [1, 0])?;
    match bad.result().await {
        Err(PeerError::Remote(e)) => println!("{e}\n{}", e.traceback),
        other => println!("{other:?}"),
    }
    let many = client.map("operator.neg", 0..1000)?;
    let started = std::time::Instant::now();
    let all = client.gather(&many).await?;
    println!("{} {:?}", all.len(), started.elapsed());
    let a = Array::from_slice(&[2, 2], &[1.0, 2.0, 3.0, 4.0])?;
    for route in [Route::Scheduler, Route::Direct] {
        let s = client
            .scatter_by([(Key::unique("a"), Value::from(a.clone()))], route)
            .await?;
        let r = client.submit("numpy.linalg.norm", [&s[0]])?;
        println!("{}", r.result().await?);
        let back = client.gather_by(&s, route).await?;
        println!("{:?}", back);
    }
    let k = client
        .call("builtins.sorted")
        .argument(Value::list([3, 1, 2]))
        .keyword("reverse", true)
        .submit()?;
    println!("{}", k.result().await?);
    let df = client
        .call("pandas.DataFrame")
        .argument(Value::dict([("a", Value::list([1, 2, 3]))]))
        .submit()?;
    println!("{}", df.result().await?);
    let s = client.submit("builtins.str", [&df])?;
    println!("{}", s.result().await?);
    let nope = client.submit("nosuchmodule.f", [1])?;
    println!("{:?}", nope.result().await.map_err(|e| e.to_string()));
    drop((x, y, z, bad, many, k, df, s, nope));
    client.close().await
}
