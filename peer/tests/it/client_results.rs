//! Results with types of Rust, the kinds of errors, and what the scheduler says of itself and its
//! workers; with a real cluster.

use core::time::Duration;
use std::collections::HashMap;

use crate::support::client::client_at;
use daskwire_peer::client::{ConnectError, SubmitError, TaskError, TypedFuture};
use daskwire_peer::scheduler::Scheduler;
use daskwire_peer::value::Optional;
use daskwire_peer::{Array, Client, ErrorKind, Value};
use daskwire_testing::{Environment, Peer};
use serde::Deserialize;

/// A type of the program that a value converts into, with an error of its own.
#[derive(Debug, PartialEq)]
struct Celsius(f64);

impl TryFrom<Value> for Celsius {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        match f64::try_from(value) {
            Ok(kelvin) if kelvin >= 0.0 => Ok(Self(kelvin - 273.0)),
            Ok(_) => Err("colder than nothing".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }
}

#[derive(Debug, Deserialize, PartialEq)]
struct Point {
    x: f64,
    y: f64,
}

#[tokio::test]
async fn results_are_converted_with_and_without_serde() {
    let scheduler = daskwire_testing::scheduler_with_workers(1);
    let client = client_at(scheduler.address()).await;
    let root = client
        .submit_as::<f64>("math.sqrt", 2.0)
        .expect("submitted");
    // A typed future is an argument as any other, and is awaited by reference, too.
    let half: TypedFuture<f64> = client
        .submit_as("operator.truediv", (&root, 2))
        .expect("submitted");
    let root = (&root).await.expect("a number");
    assert_eq!(half.clone().await.expect("a number"), root / 2.0);
    assert_eq!(half.result().await.expect("a number"), root / 2.0);
    assert!(half.is_done() && half.key().to_string().starts_with("truediv-"));

    let counts = client
        .submit("collections.Counter", "aab")
        .expect("submitted");
    let counts: HashMap<char, u32> = counts.result_as().await.expect("counts");
    assert_eq!(counts, HashMap::from([('a', 2), ('b', 1)]));
    let ones = client.submit_as::<Array>("numpy.ones", 3);
    let ones = ones.expect("submitted").await.expect("an array");
    assert_eq!(ones.to_vec::<f64>().expect("numbers"), [1.0; 3]);
    let warm = client.submit_as::<Celsius>("builtins.abs", 300.0);
    assert_eq!(warm.expect("submitted").await.expect("warm"), Celsius(27.0));
    let point = client.submit("builtins.eval", "{'x': 1, 'y': 0.5}");
    let point = point.expect("submitted");
    assert_eq!(
        point.deserialize::<Point>().await.expect("a point"),
        Point { x: 1.0, y: 0.5 }
    );

    let warm = client.submit_as::<Optional<Celsius>>("builtins.abs", 300.0);
    let warm = warm.expect("submitted").await.expect("warm");
    assert_eq!(warm, Optional(Some(Celsius(27.0))));
    let none = client.submit_as::<Optional<Celsius>>("builtins.print", ());
    assert_eq!(none.expect("submitted").await.expect("None").0, None);

    let cold = client.submit_as::<Celsius>("operator.neg", 1.0);
    let error = cold.expect("submitted").await.expect_err("too cold");
    assert!(matches!(error, TaskError::Type { .. }), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Value);
    let message = error.to_string();
    assert!(
        message.ends_with(" is not of the requested type: colder than nothing"),
        "{message}"
    );
    let number = client
        .submit_as::<i64>("builtins.str", 1)
        .expect("submitted");
    let message = number.await.expect_err("a string").to_string();
    assert!(message.ends_with(": expected i64, found str"), "{message}");
    client.close().await.expect("it closes");
}

#[tokio::test]
async fn errors_have_kinds() {
    let scheduler = daskwire_testing::scheduler_with_workers(1);
    let client = client_at(scheduler.address()).await;
    let failed = client
        .submit("operator.truediv", (1, 0))
        .expect("submitted");
    let failed = failed.result().await.expect_err("division by zero");
    assert_eq!(
        (failed.kind(), failed.is_retryable()),
        (ErrorKind::Exception, false)
    );
    let slow = client.submit("time.sleep", 60).expect("submitted");
    let late = slow.result_within(Duration::from_millis(1)).await;
    let late = late.expect_err("it sleeps");
    assert_eq!(
        (late.kind(), late.is_retryable()),
        (ErrorKind::Timeout, true)
    );
    slow.cancel().expect("connected");
    let cancelled = slow.result().await.expect_err("cancelled");
    assert_eq!(cancelled.kind(), ErrorKind::Cancelled);
    let empty = client.call("operator.neg").argument(1).key("").submit();
    let empty = empty.expect_err("an empty key");
    assert_eq!(
        (empty.kind(), empty.is_retryable()),
        (ErrorKind::Invalid, false)
    );
    // The error for all operations has the same kind.
    assert_eq!(daskwire_peer::Error::from(empty).kind(), ErrorKind::Invalid);
    client.close().await.expect("it closes");
    let closed = client.submit("operator.neg", 1).expect_err("closed");
    assert!(matches!(closed, SubmitError::Disconnected(_)), "{closed:?}");
    assert_eq!(
        (closed.kind(), closed.is_retryable()),
        (ErrorKind::Closed, false)
    );

    let address = Client::connect("tcp://").await.expect_err("no host");
    assert_eq!(address.kind(), ErrorKind::Invalid, "{address}");
    let options = daskwire_peer::client::ClientOptions::default()
        .with_comm(daskwire_comm::CommOptions::default().with_connect_retry(false));
    let unused = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = unused.local_addr().expect("an address").to_string();
    drop(unused);
    let refused: ConnectError = Client::connect_with(&address, options)
        .await
        .expect_err("nothing listens");
    assert_eq!(
        (refused.kind(), refused.is_retryable()),
        (ErrorKind::Connection, true)
    );

    let scheduler = format!("tcp://{address}").parse().expect("an address");
    let once = daskwire_peer::identity::options(Duration::from_secs(60));
    let transports = daskwire_peer::transports();
    let unknown = daskwire_peer::identity::identity(&scheduler, &transports, &once);
    let unknown = unknown.await.expect_err("nothing listens");
    assert_eq!(
        (unknown.kind(), unknown.is_retryable()),
        (ErrorKind::Connection, true)
    );
    assert!(daskwire_peer::Error::from(unknown).is_retryable());
    let full = daskwire_peer::relay::RelayError::TooManyConnections { limit: 1 };
    assert_eq!(daskwire_peer::Error::from(full).kind(), ErrorKind::Refused);
    let unheard = Scheduler::start([], Default::default()).expect_err("no listeners");
    assert_eq!(unheard.kind(), ErrorKind::Invalid);
}

/// Arrays with a structured type of numpy, by themselves and in a container.
#[tokio::test]
async fn records_of_numpy_are_tuples_and_structs() {
    #[derive(Debug, Deserialize, PartialEq)]
    struct Station {
        at: (f32, f32),
        name: String,
        id: i64,
    }
    type Row = (i64, [f32; 2], (String,));
    let scheduler = daskwire_testing::scheduler_with_workers(1);
    let client = client_at(scheduler.address()).await;
    let eval = |code: &str| client.submit("builtins.eval", code).expect("submitted");
    let array = "__import__('numpy').array([(7, (1, 2.5), ('a',)), (8, (3, 4), ('bcd',))], \
                 [('id', '>i8'), ('at', 'f4', 2), ('in', [('name', 'U3')])])";
    let expected: [Row; 2] = [
        (7, [1.0, 2.5], ("a".to_owned(),)),
        (8, [3.0, 4.0], ("bcd".to_owned(),)),
    ];
    let rows: Vec<Row> = eval(array).result_as().await.expect("rows");
    assert_eq!(rows, expected);
    // In a pickle.
    let parts = eval(&format!("({array}, object)"));
    let Value::Tuple(parts) = parts.result().await.expect("a tuple") else {
        panic!("{parts:?}");
    };
    assert_eq!(Vec::<Row>::try_from(parts[0].clone()), Ok(rows));
    // Every second row of an array with two dimensions, in the other order.
    let square = eval(&format!("{array}.repeat(2).reshape(2, 2).T[::-1]"));
    let square: Vec<Vec<Row>> = square.result_as().await.expect("rows");
    assert_eq!(square, [expected.clone(), expected]);
    // By the names of fields.
    let stations = eval(
        "__import__('numpy').array([('x', 5, (1, 2))], \
         [('name', 'U8'), ('id', 'u1'), ('at', [('x', 'f4'), ('y', 'f8')])])",
    );
    let stations: Vec<Station> = stations.deserialize().await.expect("structs");
    let station = Station {
        at: (1.0, 2.0),
        name: "x".to_owned(),
        id: 5,
    };
    assert_eq!(stations, [station]);
    // Fields that share bytes, and are no more than their array.
    let shared = eval(
        "__import__('numpy').zeros(3, {'names': ['a', 'b'], 'formats': ['i4', 'i2'], \
         'offsets': [0, 0]})",
    );
    let shared: Vec<(i32, i16)> = shared.result_as().await.expect("rows");
    assert_eq!(shared, [(0, 0); 3]);
    client.close().await.expect("it closes");
}

/// Python sees `operator.methodcaller("native:hypot")`, and says something about attributes.
#[tokio::test]
async fn errors_say_that_a_function_is_one_of_workers_in_rust() {
    let scheduler = daskwire_testing::scheduler_with_workers(1);
    let client = client_at(scheduler.address()).await;
    for (arguments, name) in [(vec![3.0], "hypot"), (vec![3.0, 4.0], "NAME")] {
        let future = client.submit("native:hypot", arguments).expect("submitted");
        let error = future.result().await.expect_err("no worker in Rust");
        let note = format!(
            "\nnative:{name} is a function of workers in Rust, and this task ran in Python: "
        );
        assert!(error.to_string().contains(&note), "{error}");
        // Tasks that need the result have the same exception.
        let next = client.submit("operator.neg", &future).expect("submitted");
        let next = next.result().await.expect_err("its argument failed");
        assert!(next.to_string().contains(&note), "{next}");
    }
    client.close().await.expect("it closes");
}

#[tokio::test]
async fn the_scheduler_and_workers_describe_themselves() {
    let scheduler = daskwire_testing::scheduler_with_workers(1);
    let mut python = Peer::spawn(
        Environment::Current,
        "worker_client.py",
        &[scheduler.address()],
    );
    let client = client_at(scheduler.address()).await;
    let link = client.dashboard_link().await.expect("an answer");
    let question = serde_json::json!({"op": "do", "code": "client.dashboard_link"});
    let (answer, _) = python.ask(&question.to_string(), &[]);
    let answer: serde_json::Value = serde_json::from_str(&answer).expect("a document");
    let expected = answer["value"].as_str().expect("a string");
    assert_eq!(format!("'{}'", link.expect("it has one")), expected);

    let held = client.submit("operator.neg", 1).expect("submitted");
    held.finished().await.expect("a number");
    // The next heartbeat reports it.
    loop {
        let workers = client.workers().await.expect("an answer");
        let [worker] = &workers[..] else {
            panic!("{workers:?}");
        };
        assert_eq!(worker.spilled, 0);
        let memory = worker.metrics.get("memory").cloned();
        assert_eq!(memory, Some(Value::from(worker.memory)));
        if worker.task_counts.get("memory") == Some(&1) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    client.close().await.expect("it closes");
}
