//! The client of fixed size in a cluster with a scheduler and a worker of Python.

mod support;

use std::net::TcpListener;
use std::time::{Duration, Instant};

use daskwire_embedded::client::{Argument, Client, Config, Memory, Outcome, Status, TaskId};
use daskwire_embedded::role::{Connections, exchange};
use daskwire_embedded::value::{Array, ElementType, Value};
use support::StdSockets;

/// A client with its sockets.
struct Session<'b> {
    client: Client<'b, 8, 4096>,
    sockets: StdSockets,
    connections: Connections<2>,
    start: Instant,
}

impl Session<'_> {
    /// Drives the client until a condition holds.
    fn until(&mut self, what: &str, is_so: impl Fn(&Client<'_, 8, 4096>) -> bool) {
        while !is_so(&self.client) {
            let now = self.start.elapsed();
            assert!(now < Duration::from_secs(30), "timed out: {what}");
            exchange(
                &mut self.client,
                &mut self.sockets,
                &mut self.connections,
                now,
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn submit(&mut self, function: &str, arguments: &[Argument<'_>]) -> TaskId {
        let task = self.client.submit(function, arguments);
        task.unwrap_or_else(|failure| panic!("{function}: {failure:?}"))
    }

    /// The result or the error of a call, as text.
    fn call(&mut self, function: &str, arguments: &[Argument<'_>]) -> String {
        let task = self.submit(function, arguments);
        let text = self.result(task);
        assert!(self.client.release(task));
        text
    }

    fn result(&mut self, task: TaskId) -> String {
        self.until("a result", |client| {
            !matches!(client.outcome(task), Outcome::Pending)
        });
        match self.client.outcome(task) {
            Outcome::Value(Value::Array(array)) => {
                format!("{:?}", array.to_f64s().collect::<Vec<_>>())
            }
            Outcome::Value(value) => format!("{value:?}"),
            outcome => format!("{outcome:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_submits_waits_and_gathers() {
    let scheduler = daskwire_testing::scheduler_with_workers(1);
    let mut memory = Memory::<8, 4096, 2048>::new();
    let config = Config::new(scheduler.address(), "mcu-client");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut session = Session {
        client: Client::new(config, &mut memory),
        sockets: StdSockets::new(listener, 2),
        connections: Connections::new(),
        start: Instant::now(),
    };
    assert!(session.client.submit("operator.add", &[]).is_err());
    session.until("connected", |client| client.status() == Status::Connected);

    let int = |value| Argument::Value(Value::Int(value));
    assert_eq!(session.call("operator.add", &[int(1), int(2)]), "Int(3)");
    assert_eq!(
        session.call("math.sqrt", &[int(2)]),
        "Float(1.4142135623730951)"
    );
    let string = Value::Str("abc").into();
    assert_eq!(
        session.call("operator.add", &[string, string]),
        "Str(\"abcabc\")"
    );
    let bytes = Value::Bytes(b"ab").into();
    assert_eq!(
        session.call("operator.mul", &[bytes, int(2)]),
        format!("{:?}", Value::Bytes(b"abab"))
    );
    let elements = [1.0_f64, 2.0].map(f64::to_le_bytes);
    let array = Array::new(ElementType::F64, &[2], elements.as_flattened()).expect("it fits");
    let array = Value::Array(array).into();
    assert_eq!(
        session.call("numpy.multiply", &[array, int(3)]),
        "[3.0, 6.0]"
    );
    assert_eq!(session.call("numpy.sum", &[array]), "Float(3.0)");

    // The result of one task is an argument of another.
    let first = session.submit("operator.add", &[int(20), int(1)]);
    let second = session.submit("operator.mul", &[Argument::Task(first), int(2)]);
    assert_eq!(session.result(second), "Int(42)");
    assert!(session.client.release(first) && session.client.release(second));

    let error = session.call("operator.truediv", &[int(1), int(0)]);
    assert_eq!(error, "Failed(\"ZeroDivisionError: division by zero\")");
    // Several errors at once, each with its own text; and the index of a task
    // that is released is used again.
    let zero = session.submit("operator.truediv", &[int(1), int(0)]);
    let index = session.submit("operator.getitem", &[string, int(7)]);
    assert_eq!(
        session.result(index),
        "Failed(\"IndexError: string index out of range\")"
    );
    assert_eq!(session.result(zero), error);
    assert!(session.client.release(zero));
    let next = session.submit("operator.neg", &[int(1)]);
    assert!(matches!(session.client.outcome(zero), Outcome::Released));
    assert!(session.client.release(zero), "there is nothing to do");
    assert!(
        session
            .client
            .submit("operator.neg", &[Argument::Task(zero)])
            .is_err()
    );
    assert_eq!(session.result(next), "Int(-1)");
    assert!(session.client.release(next) && session.client.release(index));

    let error = session.call("builtins.bytes", &[int(5000)]);
    assert_eq!(error, "Failed(\"the result could not be received\")");
    let error = session.call("builtins.list", &[]);
    assert!(error.contains("type that this worker"), "{error}");
    assert_eq!(session.call("operator.neg", &[int(7)]), "Int(-7)");

    session.client.close();
    session.until("ended", |client| client.status() == Status::Ended);
    scheduler.wait_for_log("Remove client mcu-client");
    assert_eq!(scheduler.warnings(), Vec::<String>::new());
}
