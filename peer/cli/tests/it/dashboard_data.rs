//! What the dashboard of a scheduler tells of a cluster, and what it changes.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use daskwire_peer::client::SubmitOptions;
use daskwire_peer::graph::{Argument, Graph, Task};
use daskwire_peer::worker::{Functions, Worker};
use daskwire_peer::{Client, Key};
use daskwire_testing::{Environment, Peer, address_after};
use serde_json::{Value as Json, json};

use crate::support::http::{get, request};
use crate::support::scratch::Scratch;

/// A key that a page must not interpret.
const HOSTILE: &str = "<b onload='x()'>&amp;\u{1b}[31m\"\n%00";

struct Cluster {
    scheduler: Peer,
    port: String,
    worker: Worker,
    client: Client,
}

impl Cluster {
    async fn start(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_daskwire"));
        command.args(["scheduler", "--host", "127.0.0.1", "--port", "0"]);
        command.args(["--dashboard-address", "127.0.0.1:0"]);
        command.args(arguments).envs(variables.iter().copied());
        let scheduler = Peer::spawn_command("scheduler", &mut command, |log| {
            address_after(log, "Scheduler at:")
        });
        let log = scheduler.log();
        let (_, rest) = log.split_once("http://127.0.0.1:").expect("a dashboard");
        let port = rest.chars().take_while(char::is_ascii_digit).collect();
        let functions = Functions::builtins()
            .function("echo", |text: String| text)
            .function("fails", |text: String| -> Result<i64, String> { Err(text) })
            .function("sleep", |seconds: f64| {
                std::thread::sleep(Duration::from_secs_f64(seconds));
            });
        let worker = Worker::builder(scheduler.address().parse().expect("an address"));
        let worker = worker.name("one").nthreads(2).functions(functions);
        let worker = worker.start().await.expect("it starts");
        let client = Client::connect(scheduler.address()).await;
        Self {
            port,
            worker,
            client: client.expect("it connects"),
            scheduler,
        }
    }

    fn json(&self, path: &str) -> Json {
        let (status, body) = get(&self.port, path);
        assert_eq!(status, "HTTP/1.1 200 OK", "{path}: {body}");
        serde_json::from_str(&body).expect("JSON")
    }

    /// Waits until a document is as expected.
    async fn until(&self, path: &str, is_expected: impl Fn(&Json) -> bool) -> Json {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let document = tokio::task::block_in_place(|| self.json(path));
            if is_expected(&document) {
                return document;
            }
            assert!(Instant::now() < deadline, "{path}: {document}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn end(self) {
        self.client.close().await.expect("it is connected");
        self.worker.close().await;
        drop(self.scheduler);
    }
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_and_workers_are_told_as_they_are() {
    let cluster = Cluster::start(&[], &[]).await;
    let list = Key::list([Key::from("x-3f"), Key::from(0)]);
    let graph: Graph = [
        Task::new(list.clone(), "native:echo", [Argument::from("text")]),
        Task::new(HOSTILE, "native:echo", [Argument::from(&list)]),
        Task::new("fails-1", "native:fails", [Argument::from("<i>why</i>")]),
    ]
    .into_iter()
    .collect();
    let keys = vec![Key::from(HOSTILE), Key::from("fails-1")];
    let futures = cluster
        .client
        .submit_graph(&graph, keys, &SubmitOptions::default());
    let futures = futures.expect("it is connected");
    futures[0].result().await.expect("a text");
    futures[1].result().await.expect_err("it fails");

    let found = cluster
        .until("/data/cluster", |it| it["tasks"]["erred"] == 1)
        .await;
    assert_eq!(
        (&found["workers"], &found["threads"]),
        (&json!(1), &json!(2))
    );
    assert_eq!(
        (&found["clients"], &found["finished"]),
        (&json!(1), &json!(2))
    );
    let task = cluster.json(&format!("/data/task?key={}", encoded(HOSTILE)));
    assert_eq!(
        (&task["key"], &task["state"]),
        (&json!(HOSTILE), &json!("memory"))
    );
    let needed = json!([{"key": "('x-3f', 0)", "state": "released"}]);
    let needed_in_memory = json!([{"key": "('x-3f', 0)", "state": "memory"}]);
    let dependencies = &task["dependencies"];
    assert!(
        [needed, needed_in_memory].contains(dependencies),
        "{dependencies}"
    );
    let story = task["story"].as_array().expect("a list");
    let last = story.last().expect("steps");
    assert_eq!(
        (&last["from"], &last["to"]),
        (&json!("processing"), &json!("memory"))
    );
    let address = cluster.worker.address().to_string();
    let workers = story.iter().map(|step| (&step["to"], &step["worker"]));
    for (state, worker) in workers {
        let expected = match state.as_str() {
            Some("processing" | "memory") => json!(address),
            _ => Json::Null,
        };
        assert_eq!(*worker, expected, "{state}: {}", task["story"]);
    }
    assert_eq!(task["code"], Json::Null);
    let other = cluster.json(&format!("/data/task?key={}", encoded("('x-3f', 0)")));
    assert_eq!(
        (&other["prefix"], &other["group"]),
        (&json!("x"), &json!("x-3f"))
    );
    let failed = cluster.json("/data/task?key=fails-1");
    let exception = failed["exception"].as_str().expect("a text");
    assert!(exception.contains("<i>why</i>"), "{exception}");
    assert_eq!(failed["cause"], "fails-1");
    let stories = cluster.json(&format!("/data/task/story?key={}", encoded(HOSTILE)));
    let steps = &stories["worker_stories"][0]["steps"];
    assert!(steps.to_string().contains("executing"), "{stories}");

    let found = cluster.json("/data/tasks?query=fails&state=erred");
    assert_eq!(found["tasks"][0]["key"], "fails-1");
    assert_eq!(
        (&found["next"], &found["searched"]),
        (&Json::Null, &json!(3))
    );
    assert_eq!(
        cluster.json("/data/tasks?query=nothing")["tasks"],
        json!([])
    );
    let groups = cluster.json("/data/graph");
    let groups = groups["groups"].as_array().expect("a list");
    let with_edge = groups
        .iter()
        .find(|group| group["dependencies"] != json!([]));
    let needed = with_edge.expect("an edge")["dependencies"][0]
        .as_u64()
        .expect("a place");
    assert_eq!(groups[needed as usize]["name"], "x-3f");
    let nodes = cluster.json("/data/graph/tasks?group=x-3f");
    assert_eq!(
        (&nodes["total"], &nodes["tasks"][0]["key"]),
        (&json!(1), &json!("('x-3f', 0)"))
    );
    let workers = cluster.json("/data/workers");
    let worker = &workers["workers"][0];
    assert_eq!(
        (&worker["name"], &worker["kind"]),
        (&json!("one"), &json!("rust"))
    );
    let address = worker["address"].as_str().expect("a text");
    let page = cluster.json(&format!("/data/worker?address={address}"));
    assert!(page["in_memory"].to_string().contains("onload"), "{page}");
    let log = cluster.json(&format!("/data/worker/logs?address={address}"));
    assert!(
        log["lines"].to_string().contains("is registered with"),
        "{log}"
    );
    let log = cluster.json("/data/logs");
    assert!(log["lines"].to_string().contains("joined"), "{log}");
    let events = cluster.json("/data/events");
    assert!(
        events["events"].to_string().contains("update-graph"),
        "{events}"
    );
    let counts = cluster.json("/json/counts.json");
    assert_eq!(
        (&counts["erred"], &counts["workers"]),
        (&json!(1), &json!(1))
    );
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_code_that_has_submitted_a_task_is_told() {
    let cluster = Cluster::start(&[], &[]).await;
    let scratch = Scratch::new("code");
    let source = "def first(client):\n    return second(client)\n\n\n\
                  def second(client):\n    return client.submit(sum, [1], key='sum-1')\n";
    fs::write(format!("{}/steps.py", scratch.path()), source).expect("written");
    let address = cluster.scheduler.address();
    let client = Peer::spawn(Environment::Current, "worker_client.py", &[address]);
    let mut python = daskwire_testing::cluster::Cluster {
        client,
        scheduler: cluster.scheduler,
    };
    python.python(&format!(
        "__name__ = 'test'\nimport dask, sys\nsys.path.insert(0, {:?})\nimport steps\n\
         setting = {{'distributed.diagnostics.computations.nframes': 2}}\n\
         with dask.config.set(setting):\n    kept = steps.first(client)\n\
         kept = [kept, client.submit(sum, [1], key='sum-2')]\nNone",
        scratch.path()
    ));
    let task = |key: &str| {
        let path = format!("/data/task?key={key}");
        loop {
            let (status, body) = get(&cluster.port, &path);
            if status == "HTTP/1.1 200 OK" {
                return serde_json::from_str::<Json>(&body).expect("JSON");
            }
        }
    };
    let file = format!("{}/steps.py", scratch.path());
    let expected = format!(
        "# {file}, line 2\ndef first(client):\n    return second(client)\n\n\
         # {file}, line 6\ndef second(client):\n    return client.submit(sum, [1], key='sum-1')"
    );
    assert_eq!(task("sum-1")["code"], expected);
    assert_eq!(task("sum-2")["code"], Json::Null);
    drop(python);
    cluster.worker.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_keeps_tasks_from_running_is_told() {
    let cluster = Cluster::start(&[], &[]).await;
    assert_eq!(cluster.json("/data/stuck")["sentences"], json!([]));
    let options = SubmitOptions::default().resource("GPU", 2.0);
    let call = cluster
        .client
        .call("native:echo")
        .argument("x")
        .with(options);
    let future = call.submit().expect("it is connected");
    let stuck = cluster
        .until("/data/stuck", |it| it["sentences"] != json!([]))
        .await;
    let sentence = &stuck["sentences"][0];
    assert_eq!(
        (&sentence["kind"], &sentence["count"]),
        (&json!("no-worker"), &json!(1))
    );
    assert_eq!(sentence["keys"], json!([future.key().to_string()]));
    let detail = sentence["detail"].to_string();
    assert!(
        detail.contains("They need 2 of the resource GPU."),
        "{detail}"
    );
    let idle = &stuck["sentences"][1];
    assert_eq!((&idle["kind"], &idle["count"]), (&json!("idle"), &json!(1)));
    drop(future);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_are_retired_and_tasks_cancelled_with_the_token() {
    let scratch = Scratch::new("dashboard-token");
    let file = format!("{}/token", scratch.path());
    fs::write(&file, "0123456789abcdef\n").expect("written");
    let cluster = Cluster::start(&["--dashboard-token", &file], &[]).await;
    let authorization = "Authorization: Bearer 0123456789abcdef\r\n";
    let (status, _) = get(&cluster.port, "/data/workers");
    assert_eq!(status, "HTTP/1.1 401 Unauthorized");
    let future = cluster
        .client
        .submit("native:sleep", [60.0])
        .expect("it is connected");
    let key = future.key().to_string();
    let body = json!({"keys": [key]}).to_string();
    let cancelled = loop {
        let (_, answer) = request(
            &cluster.port,
            "POST",
            "/actions/cancel",
            authorization,
            &body,
        );
        if answer == r#"{"ok":true}"# {
            break future.result().await;
        }
        // The task is not submitted yet.
        assert!(answer.contains("knows none"), "{answer}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let error = cancelled.expect_err("it is cancelled").to_string();
    assert!(error.contains("cancelled"), "{error}");
    let (_, workers) = request(&cluster.port, "GET", "/data/workers", authorization, "");
    let workers: Json = serde_json::from_str(&workers).expect("JSON");
    let body = json!({"workers": [workers["workers"][0]["address"]]}).to_string();
    let (status, answer) = request(
        &cluster.port,
        "POST",
        "/actions/retire",
        authorization,
        &body,
    );
    assert_eq!((&*status, &*answer), ("HTTP/1.1 200 OK", r#"{"ok":true}"#));
    tokio::task::block_in_place(|| cluster.scheduler.wait_for_line(&["left: retired"]));
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dasks_setting_of_routes_has_the_api_served() {
    let routes = r#"["distributed.http.scheduler.api"]"#;
    let variable = ("DASK_DISTRIBUTED__SCHEDULER__HTTP__ROUTES", routes);
    let cluster = Cluster::start(&[], &[variable]).await;
    let workers = cluster.json("/api/v1/get_workers");
    assert_eq!(
        (&workers["num_workers"], &workers["workers"][0]["name"]),
        (&json!(1), &json!("one"))
    );
    let body = json!({"n": 1}).to_string();
    let (status, answer) = request(&cluster.port, "POST", "/api/v1/retire_workers", "", &body);
    assert_eq!(status, "HTTP/1.1 200 OK", "{answer}");
    cluster
        .until("/api/v1/get_workers", |it| it["num_workers"] == 0)
        .await;
    let log = cluster.scheduler.log();
    assert!(!log.contains("no effect here"), "{log}");
    cluster.end().await;
}

/// The names of metrics in the queries of a dashboard for Grafana.
fn queried(document: &Json, names: &mut BTreeSet<String>) {
    match document {
        Json::Array(items) => items.iter().for_each(|item| queried(item, names)),
        Json::Object(fields) => {
            if let Some(query) = fields.get("expr").and_then(Json::as_str) {
                let words = query.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
                let found = words.filter(|word| word.starts_with("dask_"));
                names.extend(found.map(str::to_owned));
            }
            fields.values().for_each(|field| queried(field, names));
        }
        _ => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_metric_of_the_dashboard_for_grafana_exists() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/grafana.json");
    let document = fs::read_to_string(file).expect("a file");
    let document: Json = serde_json::from_str(&document).expect("JSON");
    let mut names = BTreeSet::new();
    queried(&document, &mut names);
    assert!(names.len() > 10, "{names:?}");
    let cluster = Cluster::start(&[], &[]).await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_daskwire"));
    command.args(["worker", cluster.scheduler.address(), "--no-nanny"]);
    command.args(["--dashboard-address", "127.0.0.1:0", "--name", "two"]);
    let worker = Peer::spawn_command("worker", &mut command, |log| {
        log.contains("is registered").then(String::new)
    });
    let workers = cluster
        .until("/json/identity.json", |it| it["n_workers"] == 2)
        .await;
    let mut workers = workers["workers"].as_object().expect("an object").values();
    let port = workers.find_map(|worker| worker["services"]["dashboard"].as_u64());
    let port = port.expect("a server").to_string();
    let metrics = get(&cluster.port, "/metrics").1 + &get(&port, "/metrics").1;
    for name in names {
        let is_there = metrics.lines().any(|line| {
            let rest = line
                .strip_prefix("# TYPE ")
                .and_then(|line| line.strip_prefix(&*name));
            rest.is_some_and(|rest| rest.starts_with(' '))
        });
        assert!(is_there, "{name}: {metrics}");
    }
    drop(worker);
    cluster.end().await;
}
