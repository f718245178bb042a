//! What happens in the cluster appears without loading the page again.

use std::time::Duration;

use serde_json::Value as Json;

use crate::{browser, cluster, dashboard_port, rust_worker, scheduler, with_client};

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_dies_leaves_the_table_whose_rows_stay_clickable() {
    let cluster = cluster();
    let alice = rust_worker(&cluster.scheduler, "alice", &[]);
    let browser = browser(&cluster.scheduler, 1100);
    browser.open("/workers");
    browser.wait_for_text("table.rows", "alice");
    browser.run("window.row = document.querySelector('tbody tr')");
    let bob = rust_worker(&cluster.scheduler, "bob", &[]);
    browser.wait_for_text("table.rows", "bob");
    // The row of the other worker is the same element.
    assert_eq!(browser.run("return window.row.isConnected"), true);
    drop(bob);
    browser.wait("return !document.querySelector('table.rows').textContent.includes('bob')");
    browser.click("tbody a");
    browser.wait_for_text("h1", "alice");
    drop(alice);
    browser.wait_for_text("#notice", "not in the cluster any more");
    // Of the requests about a worker that has gone
    browser.check_log_except(&["404"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_scheduler_is_said_and_survived() {
    let first = scheduler("0", "0", &[]);
    let port = first
        .address()
        .rsplit_once(':')
        .expect("a port")
        .1
        .to_owned();
    let dashboard = dashboard_port(&first);
    let browser = browser(&first, 1100);
    browser.open("/status");
    browser.wait_for_text("#connection", "Live");
    drop(first);
    browser.wait_for_text("#connection", "Not connected");
    let second = scheduler(&port, &dashboard, &[]);
    browser.wait_for_text("#connection", "Live");
    browser.wait_for_text("#notice", "was restarted");
    drop(second);
    browser.log();
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_and_the_task_stream_grow_while_tasks_run() {
    let mut cluster = cluster();
    let worker = rust_worker(&cluster.scheduler, "alice", &["--nthreads", "2"]);
    let browser = browser(&cluster.scheduler, 1100);
    browser.open("/status");
    browser.wait_for_text("#connection", "Live");
    for count in [10, 20] {
        cluster.python(&format!(
            "kept = [client.submit(operator.neg, n, key=f'step-{{n}}') for n in range({count})]\nwait(kept) and None"
        ));
        browser.wait(&format!(
            "return Number(document.querySelector('canvas').dataset.records) >= {count}"
        ));
        browser.wait_for_text(".progress", &format!("{count} / {count}"));
    }
    browser.check_log_except(&[]);
    drop(worker);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_the_token_can_look_and_change_the_cluster() {
    let token = format!("token-of-the-tests-{}", std::process::id());
    let file = std::env::temp_dir().join(&token);
    std::fs::write(&file, &token).expect("it is written");
    let scheduler = scheduler(
        "0",
        "0",
        &["--dashboard-token", file.to_str().expect("UTF-8")],
    );
    let mut cluster = with_client(scheduler);
    let mut alice = rust_worker(&cluster.scheduler, "alice", &[]);
    cluster.python("kept = client.submit(sum, [1], key='wait-1', resources={'GPU': 1})");
    let browser = browser(&cluster.scheduler, 1100);
    // A dialog that is dismissed stays closed, although each request is refused.
    browser.open("/stuck");
    browser.wait_for_text("dialog", "Token");
    browser.click("dialog button[value=cancel]");
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(
        browser.run("return document.querySelector('dialog')"),
        Json::Null
    );
    browser.click("#token");
    browser.wait_for_text("dialog", "Token");
    browser.open("/workers");
    for wrong in ["wrong", &token] {
        browser.wait_for_text("dialog", "Token");
        browser.type_into("dialog input", wrong);
        browser.click("dialog .primary");
    }
    browser.wait_for_text("table.rows", "alice");
    browser.open("/task?key=wait-1");
    browser.wait_for_text(".state", "no-worker");
    browser.click(".page-head .action");
    browser.click("dialog .danger");
    browser.wait_for_text(".state", "forgotten");
    assert_eq!(cluster.python("kept.cancelled()"), "True");

    browser.click("nav a[href=workers]");
    browser.wait_for_text("table.rows", "alice");
    browser.click("tbody .action button");
    // Nothing is done before the answer.
    browser.click("dialog button[value=cancel]");
    browser.wait_for_text("table.rows", "alice");
    browser.click("tbody .action button");
    browser.click("dialog .danger");
    browser.wait_for_text("main", "None");
    assert!(alice.ended());
    // Of requests with the wrong token, and about the task that was cancelled
    browser.check_log_except(&["401", "404"]);
    std::fs::remove_file(file).expect("it is there");
}

#[test]
fn a_page_that_is_hidden_does_not_look() {
    let scheduler = scheduler("0", "0", &[]);
    let browser = browser(&scheduler, 1100);
    // This view has both kinds of requests: for the live stream, and again and again.
    browser.open("/stuck");
    browser.wait_for_text("#connection", "Live");
    browser.run(
        "window.sent = [];
         const { fetch } = window;
         window.fetch = (path, options) => {
             window.sent.push({ path, signal: options.signal });
             return fetch(path, options);
         };",
    );
    let hide = |is_hidden: bool| {
        browser.run(&format!(
            "Object.defineProperty(document, 'hidden', {{configurable: true, get: () => {is_hidden}}});
             document.dispatchEvent(new Event('visibilitychange'))"
        ));
    };
    let sent = || {
        let sent = browser.run("return window.sent.map((each) => each.path.split('?')[0])");
        sent.as_array().expect("a list").clone()
    };
    hide(true);
    browser.wait_for_text("#connection", "Paused");
    hide(false);
    browser.wait_for_text("#connection", "Live");
    browser.wait("return window.sent.some((each) => each.path === 'data/stuck')");
    hide(true);
    browser.wait_for_text("#connection", "Paused");
    // One that was under way may have ended.
    let before = sent();
    assert!(before.contains(&Json::from("data/live")), "{before:?}");
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(sent(), before);
    let open = "return window.sent.filter((each) => each.path.startsWith('data/live') && !each.signal.aborted).length";
    assert_eq!(browser.run(open), 0);
    hide(false);
    browser.wait_for_text("#connection", "Live");
    browser.wait(&format!("return window.sent.length > {}", before.len() + 1));
    browser.check_log_except(&[]);
}

/// As in private windows of some browsers.
#[tokio::test(flavor = "multi_thread")]
async fn a_browser_that_stores_nothing_shows_all() {
    let mut cluster = cluster();
    let worker = rust_worker(&cluster.scheduler, "alice", &[]);
    let browser = browser(&cluster.scheduler, 1100);
    let source = "for (const name of ['getItem', 'setItem', 'removeItem']) {
            Storage.prototype[name] = () => { throw new DOMException('denied', 'SecurityError'); };
        }";
    browser.devtools(
        "Page.addScriptToEvaluateOnNewDocument",
        serde_json::json!({"source": source}),
    );
    browser.open("/status");
    browser.wait_for_text("#connection", "Live");
    cluster.python("kept = client.submit(operator.neg, 1, key='step-1')\nwait(kept) and None");
    browser.wait_for_text(".progress", "1 / 1");
    browser.wait_for_text(".chips", "step");
    browser.click("#theme");
    browser.wait_for_text("#theme", "light");
    browser.check_log_except(&[]);
    drop(worker);
}

#[test]
fn colours_are_those_of_the_system_until_the_user_chooses() {
    let scheduler = scheduler("0", "0", &[]);
    let browser = browser(&scheduler, 1100);
    browser.open("/system");
    let ground = || browser.run("return getComputedStyle(document.body).backgroundColor");
    let light = ground();
    browser.prefer_dark(true);
    let dark = ground();
    assert_ne!(light, dark);
    browser.click("#theme");
    assert_eq!(ground(), light);
    // Also after the page is loaded again.
    browser.open("/system");
    assert_eq!(ground(), light);
    browser.click("#theme");
    browser.prefer_dark(false);
    assert_eq!(ground(), dark);
}
