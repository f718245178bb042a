//! Tests of functions in Rust that know their task: keyword arguments, contexts, cancellation, async
//! functions, and functions in collections; with Dask, and with a cluster in this process.

use std::time::Duration;

use crate::support::client::client_at;
use daskwire_peer::client::{TaskError, Workers};
use daskwire_peer::cluster::LocalCluster;
use daskwire_peer::worker::{Context, Functions, Keywords, Signature, Worker};
use daskwire_peer::{Array, RemoteError, Value};
use daskwire_testing::cluster::{Cluster, until};
use tokio::sync::mpsc;

/// What cancelled functions report when they end.
type Ended = mpsc::UnboundedReceiver<&'static str>;

/// Reports the end of a future, even if it is dropped.
struct Guard(mpsc::UnboundedSender<&'static str>);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.send("dropped");
    }
}

fn functions() -> (Functions, Ended) {
    let (sender, ended) = mpsc::unbounded_channel();
    let guards = sender.clone();
    let scale = |array: Array, by: f64, plus: f64| -> Result<Array, RemoteError> {
        let scaled = array.to_vec::<f64>()?;
        let scaled = scaled.iter().map(|x| x * by + plus).collect();
        Ok(Array::from_vec(array.shape(), scaled)?)
    };
    let signature = Signature::new("scale")
        .required("array")
        .optional("by", 2.0)
        .keyword_only("plus", 0.0);
    let functions = Functions::builtins()
        .function(signature, scale)
        .function("doubled", |all: Vec<f64>| -> Vec<f64> {
            all.iter().map(|x| x * 2.0).collect()
        })
        .function("raise", raise)
        .function("raise_as", |class: String| -> Result<(), RemoteError> {
            Err(RemoteError::new(&class, "it failed"))
        })
        .function("parse", || -> Result<(), RemoteError> {
            Err(RemoteError {
                cause: Some(Box::new(RemoteError::new("OSError", "the disk is full"))),
                notes: ["in sales.csv".to_owned()].into(),
                ..RemoteError::new("pandas.errors.ParserError", "expected 3 fields in line 7")
            })
        })
        .function("raise_group", |class: String, members: Vec<String>| {
            let members = members
                .iter()
                .map(|class| RemoteError::new(class, "member"));
            Err::<(), _>(RemoteError {
                exceptions: members.collect(),
                ..RemoteError::new(&class, "several")
            })
        })
        .function("names", |Keywords(rest): Keywords<Value>| rest)
        .function("where", |context: Context| {
            context.log_event("visits", context.key().to_string());
            (context.key().to_string(), context.worker().to_owned())
        })
        .function("poll", move |context: Context| {
            while !context.is_cancelled() {
                std::thread::sleep(Duration::from_millis(1));
            }
            let _ = sender.send("returned");
            context.cancellation().check()
        })
        .async_function("wait", move || {
            let guard = Guard(guards.clone());
            async move {
                core::future::pending::<()>().await;
                drop(guard);
            }
        })
        .async_function("later", |value: f64, seconds: f64| async move {
            tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
            value
        })
        .async_function("fail", || async move { "x".parse::<i64>() })
        // 2 tasks for each call, until a number is below 2.
        .async_function("fibonacci", |context: Context, n: i64| async move {
            if n < 2 {
                return Ok(n);
            }
            let client = context.client().await?;
            context.secede()?;
            let both = client.map("native:fibonacci", [n - 1, n - 2])?;
            let mut sum = 0;
            for value in client.gather(&both).await? {
                sum += i64::try_from(value)?;
            }
            Ok::<_, Box<dyn core::error::Error + Send + Sync>>(sum)
        });
    (functions, ended)
}

/// Raises a group with notes and a chain of causes, one of which has a class with a module.
fn raise() -> Result<(), RemoteError> {
    let disk = RemoteError::new("OSError", "no disk");
    let cause = RemoteError {
        notes: ["in the archive".to_owned()].into(),
        cause: Some(Box::new(disk)),
        ..RemoteError::new("zipfile.BadZipFile", "no zip file")
    };
    let key = RemoteError::new("KeyError", "'x'");
    let inner = RemoteError {
        exceptions: [RemoteError::new("builtins.ValueError", "odd")].into(),
        ..RemoteError::new("ExceptionGroup", "inner")
    };
    Err(RemoteError {
        notes: ["first".to_owned(), "second".to_owned()].into(),
        exceptions: [key, inner].into(),
        cause: Some(Box::new(cause)),
        ..RemoteError::new("ExceptionGroup", "several")
    })
}

async fn worker(cluster: &Cluster, functions: Functions) -> Worker {
    let address = cluster.scheduler.address().parse().expect("an address");
    let builder = Worker::builder(address).name("rust").nthreads(2);
    let starting = builder.functions(functions).start();
    starting.await.expect("worker starts")
}

#[tokio::test(flavor = "multi_thread")]
async fn python_gives_keyword_arguments() {
    let mut cluster = Cluster::new(0);
    let (functions, _ended) = functions();
    let _worker = worker(&cluster, functions).await;
    cluster.python("x = np.arange(3.)");
    for (code, value) in [
        (
            "client.submit(native('scale'), x).result()",
            "array([0., 2., 4.])",
        ),
        (
            "client.submit(native('scale'), x, 3).result()",
            "array([0., 3., 6.])",
        ),
        (
            "client.submit(native('scale'), x, by=3).result()",
            "array([0., 3., 6.])",
        ),
        (
            "client.submit(native('scale'), plus=1, array=x).result()",
            "array([1., 3., 5.])",
        ),
        (
            "client.submit(operator.methodcaller('native:scale', by=5), x).result()",
            "array([ 0.,  5., 10.])",
        ),
        // Those of the call count.
        (
            "client.submit(operator.methodcaller('native:scale', by=5, plus=1), x, by=3).result()",
            "array([1., 4., 7.])",
        ),
        (
            "import functools\n\
             client.submit(functools.partial(native('scale'), by=5), x).result()",
            "array([ 0.,  5., 10.])",
        ),
        (
            "client.submit(native('names'), a=1, b=None).result()",
            "{'a': 1, 'b': None}",
        ),
    ] {
        assert_eq!(cluster.python(code), value, "{code}");
    }
    for (code, error) in [
        (
            "client.submit(native('scale')).result()",
            "TypeError: scale() missing 1 required argument: 'array'",
        ),
        (
            "client.submit(native('scale'), x, bye=1).result()",
            "TypeError: scale() got an unexpected keyword argument 'bye'",
        ),
        (
            "client.submit(native('scale'), x, by='a').result()",
            "TypeError: scale() argument 'by': expected f64, found str",
        ),
    ] {
        assert_eq!(cluster.try_python(code), Err(error.to_owned()), "{code}");
    }
    for (code, words) in [
        (
            "client.submit(operator.methodcaller('native:scale', 5), x).result()",
            "a function in Rust is methodcaller(\"native:NAME\"), with keyword arguments only",
        ),
        (
            "client.submit(native('scale'), pd.DataFrame({'a': [1]})).result()",
            "cannot read argument 1 of native:scale: pandas.DataFrame, which is an object of Python; \
             scatter it",
        ),
        (
            "client.submit(native('scale'), x, by=[pd.Series([1])]).result()",
            "cannot read argument 'by' of native:scale: pandas.Series",
        ),
    ] {
        let error = cluster.try_python(code).expect_err(code);
        assert!(error.contains(words), "{code}: {error}");
    }
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_know_their_task_and_end_with_it() {
    let mut cluster = Cluster::new(0);
    let (functions, mut ended) = functions();
    let worker = worker(&cluster, functions).await;
    let code = "f = client.submit(native('where'), key='here')\n\
                f.result(), [event for _, event in client.get_events('visits')]";
    assert_eq!(cluster.python(code), "(('here', 'rust'), ['here'])");
    for (function, end) in [("poll", "returned"), ("wait", "dropped")] {
        for release in ["f.cancel()", "del f"] {
            cluster.python(&format!(
                "f = client.submit(native('{function}'), pure=False)"
            ));
            until("executing", || worker.task_counts() == [("executing", 1)]).await;
            assert!(ended.try_recv().is_err(), "{function} waits");
            cluster.python(release);
            assert_eq!(ended.recv().await, Some(end), "{release}");
            until("forgetting", || worker.task_counts().is_empty()).await;
        }
    }
    cluster.python("f = client.submit(native('wait'), pure=False)");
    until("executing", || worker.task_counts() == [("executing", 1)]).await;
    worker.close().await;
    assert_eq!(ended.recv().await, Some("dropped"));
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn async_functions_wait_and_submit_tasks() {
    let mut cluster = Cluster::new(1);
    let (functions, _ended) = functions();
    let worker = worker(&cluster, functions).await;
    for (code, value) in [
        ("client.submit(native('later'), 1.5, 0.01).result()", "1.5"),
        // More of them wait than the worker has threads.
        ("client.submit(native('fibonacci'), 7).result()", "13"),
    ] {
        assert_eq!(cluster.python(code), value, "{code}");
    }
    let error = cluster.try_python("client.submit(native('fail')).result()");
    let expected = "RuntimeError: invalid digit found in string";
    assert_eq!(error, Err(expected.to_owned()));
    // Else the scheduler warns of results that the worker takes along.
    let code = "import time\n\
                left = lambda dask_scheduler: any(t.who_has for t in dask_scheduler.tasks.values())\n\
                while client.run_on_scheduler(left): time.sleep(0.01)\n\
                'released'";
    assert_eq!(cluster.python(code), "'released'");
    worker.close().await;
    let code = "f = client.submit(operator.neg, 1)\nf.result()";
    assert_eq!(cluster.python(code), "-1");
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn collections_call_functions_in_rust() {
    let mut cluster = Cluster::new(1);
    let (functions, _ended) = functions();
    let _worker = worker(&cluster, functions).await;
    cluster.python(
        "import dask, dask.array as da, dask.bag as db\n\
         x = da.ones((4, 4), chunks=2)\n\
         y = x.map_blocks(native('scale'), by=3.0, dtype=float)\n\
         z = x.map_blocks(operator.methodcaller('native:scale', by=4.0), dtype=float)",
    );
    for (code, value) in [
        ("float(y.sum().compute(optimize_graph=False))", "48.0"),
        ("float(z.sum().compute(optimize_graph=False))", "64.0"),
        (
            "float(client.persist(y, optimize_graph=False).sum().compute())",
            "48.0",
        ),
        (
            "dask.delayed(native('scale'))(dask.delayed(np.arange)(3.), by=4).compute()",
            "array([0., 4., 8.])",
        ),
        (
            "b = db.from_sequence([1, 2, 3], npartitions=2)\n\
             b.map_partitions(native('doubled')).compute(optimize_graph=False)",
            "[2.0, 4.0, 6.0]",
        ),
    ] {
        assert_eq!(cluster.python(code), value, "{code}");
    }
    let error = cluster.try_python("y.sum().compute()").expect_err("fused");
    let words = "Dask has fused it with a call of native:scale into one task: compute with \
                 optimize_graph=False";
    assert!(error.contains(words), "{error}");
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_know_their_task_in_a_local_cluster() {
    let (functions, mut ended) = functions();
    let cluster = LocalCluster::builder().nthreads(2).functions(functions);
    let cluster = cluster.start().await.expect("a cluster");
    let client = cluster.client().await.expect("a client");
    let mut visits = client.subscribe_topic("visits").await.expect("subscribed");
    let here = client.call("native:where").key("here").submit();
    let here = here.expect("submitted").result().await.expect("a result");
    let (key, worker) = <(String, String)>::try_from(here).expect("two strings");
    assert_eq!(key, "here");
    assert!(!worker.is_empty());
    let visit = visits.next().await.expect("an event");
    assert_eq!(visit.message, Value::from("here"));
    for (function, end) in [("native:poll", "returned"), ("native:wait", "dropped")] {
        let future = client.call(function).impure().submit().expect("submitted");
        let executing = async || {
            let states = client.processing(Workers::All).await.expect("an answer");
            states.iter().any(|(_, keys)| keys.contains(future.key()))
        };
        while !executing().await {}
        future.cancel().expect("connected");
        assert_eq!(ended.recv().await, Some(end));
    }
    let future = client.submit("native:fibonacci", 7).expect("submitted");
    let result = future.result().await.expect("a result");
    assert_eq!(result, Value::from(13));
    client.close().await.expect("closed");
    cluster.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exceptions_keep_their_parts_in_both_directions() {
    let mut cluster = Cluster::new(1);
    let (functions, _ended) = functions();
    let _worker = worker(&cluster, functions).await;
    // From Rust to Python.
    cluster.python("e = client.submit(native('raise'), key='raised').exception()");
    for (code, value) in [
        (
            "type(e).__name__, e.message, e.__notes__",
            "('ExceptionGroup', 'several', ['first', 'second'])",
        ),
        (
            "key, inner = e.exceptions\n[key.args, type(inner).__name__, inner.exceptions]",
            "[('x',), 'ExceptionGroup', (ValueError('odd'),)]",
        ),
        (
            "import zipfile\nc = e.__cause__\ntype(c) is zipfile.BadZipFile, str(c), c.__notes__",
            "(True, 'no zip file', ['in the archive'])",
        ),
        (
            "repr(c.__cause__), e.__suppress_context__",
            "(\"OSError('no disk')\", True)",
        ),
    ] {
        assert_eq!(cluster.python(code), value, "{code}");
    }
    // A class of pandas, which code in Python catches as it catches that of `read_csv`.
    for (code, value) in [
        (
            "try: client.submit(native('parse'), key='parsed').result()\n\
             except pd.errors.ParserError as caught: error = caught\n\
             type(error) is pd.errors.ParserError, isinstance(error, ValueError), str(error)",
            "(True, True, 'expected 3 fields in line 7')",
        ),
        (
            "repr(error.__cause__), error.__suppress_context__, error.__notes__",
            "(\"OSError('the disk is full')\", True, ['in sales.csv'])",
        ),
    ] {
        assert_eq!(cluster.python(code), value, "{code}");
    }
    // A module that fails, what is no class, and a class of something else.
    cluster.python(
        "import pathlib, sys, tempfile\n\
         folder = tempfile.mkdtemp()\n\
         pathlib.Path(folder, 'failing_module.py').write_text('1 / 0')\n\
         sys.path.insert(0, folder)\n\
         def raised(name, *args):\n\
         \x20   return client.submit(native(name), *args).exception()",
    );
    for class in ["failing_module.Error", "os.path.join", "decimal.Decimal"] {
        let (module, name) = class.rsplit_once('.').expect("a path");
        assert_eq!(
            cluster.python(&format!(
                "other = raised('raise_as', '{class}')\n\
                 type(other).__module__, type(other).__name__, type(other).__bases__, str(other)"
            )),
            format!("('{module}', '{name}', (<class 'RuntimeError'>,), 'it failed')")
        );
    }
    // Python decides by the members which of its two classes a group has.
    for (class, member, expected) in [
        ("ExceptionGroup", "BaseException", "BaseExceptionGroup"),
        ("BaseExceptionGroup", "BaseException", "BaseExceptionGroup"),
        (
            "ExceptionGroup",
            "asyncio.CancelledError",
            "BaseExceptionGroup",
        ),
        ("BaseExceptionGroup", "ValueError", "ExceptionGroup"),
    ] {
        let member_name = member.rsplit('.').next().unwrap_or(member);
        assert_eq!(
            cluster.python(&format!(
                "other = raised('raise_group', '{class}', ['KeyError', '{member}'])\n\
                 type(other).__name__, other.message, [type(member).__name__ for member in other.exceptions]"
            )),
            format!("('{expected}', 'several', ['KeyError', '{member_name}'])"),
            "{class} of {member}"
        );
    }
    // From Rust to Rust, by a scheduler in Python.
    let client = client_at(cluster.scheduler.address()).await;
    let raised = async |call: daskwire_peer::client::Call<'_>| {
        let future = call.submit().expect("submitted");
        match future.result().await {
            Err(TaskError::Failed { error, .. }) => error,
            other => panic!("{other:?}"),
        }
    };
    let error = raised(client.call("native:raise").impure()).await;
    let expected = raise().expect_err("it raises");
    assert_eq!(error.notes, expected.notes);
    let (cause, expected) = (error.cause.as_ref(), expected.cause.as_ref());
    let (cause, expected) = (cause.expect("a cause"), expected.expect("a cause"));
    assert_eq!(
        (&cause.class, &cause.notes),
        (&expected.class, &expected.notes)
    );
    let disk = cause.cause.as_ref().expect("a cause").to_string();
    assert_eq!(disk, "OSError: no disk");
    let [key, inner] = &error.exceptions[..] else {
        panic!("{error}");
    };
    assert_eq!(key.to_string(), "KeyError: 'x'");
    assert_eq!(inner.exceptions[0].to_string(), "ValueError: odd");
    // From Rust to Python, whose exception has that of Rust as its cause or context, and to Rust.
    for (how, suppressed) in [
        ("raise TypeError('outer') from e", true),
        ("raise TypeError('outer')", false),
    ] {
        let code = format!(
            "def again(e):\n\
             \x20   try: raise e\n\
             \x20   except Exception:\n\
             \x20       {how}\n\
             again = client.submit(again, e, key='again {suppressed}', workers=['worker-0'])\n\
             error = again.exception()\n\
             inner = error.__cause__ or error.__context__\n\
             repr(error), error.__suppress_context__, type(inner).__name__, inner.__notes__, \
             type(inner.__cause__).__name__"
        );
        let python = if suppressed { "True" } else { "False" };
        let expected = format!(
            "(\"TypeError('outer')\", {python}, 'ExceptionGroup', ['first', 'second'], 'BadZipFile')"
        );
        assert_eq!(cluster.python(&code), expected);
        let again = client
            .call("builtins.len")
            .key(format!("again {suppressed}"));
        let error = raised(again).await;
        let classes: Vec<&str> =
            core::iter::successors(Some(&*error), |error| error.cause.as_deref())
                .map(|error| error.class.as_str())
                .collect();
        let expected = [
            "TypeError",
            "ExceptionGroup",
            "zipfile.BadZipFile",
            "OSError",
        ];
        assert_eq!(classes, expected);
        assert_eq!(
            *error.cause.as_ref().expect("a cause").notes,
            ["first", "second"]
        );
    }
    client.close().await.expect("it closes");
}
