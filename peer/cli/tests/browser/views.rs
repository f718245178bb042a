//! Each view shows what the cluster does, without errors of scripts and for all people.

use std::fs;
use std::path::Path;

use crate::webdriver::{Browser, axe};
use crate::{browser, cluster, encoded, rust_worker};

/// Tasks of several prefixes, with transfers and an error, whose futures stay.
const PROGRAM: &str = "
def load(n):
    time.sleep(0.02 + n % 5 / 100)
    return np.ones(100_000 + 1000 * n)

def clean(x):
    time.sleep(0.03)
    return x * 2

def merge(a, b):
    time.sleep(0.04)
    return float((a[:100_000] + b[:100_000]).sum())

def fail(x):
    raise ValueError('no column \"price\"')

loaded = client.map(load, range(60), key=[f'load-{n}' for n in range(60)])
cleaned = client.map(clean, loaded, key=[f'clean-{n}' for n in range(60)])
merged = client.map(merge, cleaned[:30], cleaned[30:], key=[f'merge-{n}' for n in range(30)])
total = client.submit(sum, merged, key='total')
wait(total)
failed = client.submit(fail, total, key='fail-1')
wait(failed)
after = client.submit(sum, [failed], key='after-1')
waiting = client.submit(sum, [1], key='train-1', resources={'GPU': 1})
client.log_event('notes', {'step': 'trained'})
total.result() > 0
";

/// Saves a picture of the page for the guide, if that was asked for.
fn save(browser: &Browser, name: &str) {
    // The guide does not show where the tests have run.
    browser.run(
        "document.querySelectorAll('pre').forEach((each) => {
            each.textContent = each.textContent.replaceAll(/\\/\\S*site-packages/g, 'site-packages');
        })",
    );
    let size = browser
        .run("return [innerWidth, document.querySelector('main').getBoundingClientRect().bottom]");
    let [width, height] = [&size[0], &size[1]].map(|value| value.as_f64().expect("a number"));
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "pixels"
    )]
    browser.resize(width as u32, height.clamp(300.0, 1120.0) as u32);
    let picture = browser.picture();
    assert!(picture.starts_with(b"\x89PNG"), "{name}");
    if std::env::var_os("DASKWIRE_SCREENSHOTS").is_some() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/dashboard");
        fs::create_dir_all(&folder).expect("the folder of the guide");
        fs::write(folder.join(format!("{name}.png")), picture).expect("it is written");
    }
}

/// Checks a page that has been filled: in light, in dark and on a phone.
fn check(browser: &Browser, axe: &str, name: &str) {
    browser.wait_for_text("#connection", "Live");
    save(browser, name);
    // A detail that is closed is not checked.
    browser.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })");
    browser.check_accessibility(axe, name);
    browser.prefer_dark(true);
    browser.check_accessibility(axe, &format!("{name}, dark"));
    if name == "status" {
        save(browser, "status-dark");
    }
    browser.prefer_dark(false);
    browser.resize(360, 780);
    browser.check_accessibility(axe, &format!("{name}, on a phone"));
    let width = browser.run("return document.documentElement.scrollWidth");
    assert_eq!(width, 360, "{name} is wider than a phone");
    if name == "status" {
        save(browser, "status-phone");
    }
    browser.resize(1100, 900);
    browser.check_log_except(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_view_shows_a_cluster_at_work() {
    let axe = axe();
    let mut cluster = cluster();
    let scheduler = &cluster.scheduler;
    let workers = [
        rust_worker(scheduler, "alice", &["--nthreads", "2"]),
        rust_worker(scheduler, "bob", &["--nthreads", "2"]),
        daskwire_testing::worker(scheduler.address(), "carol"),
    ];
    let browser = browser(scheduler, 1100);
    browser.open("/");
    browser.wait_for_text("#connection", "Live");
    assert_eq!(cluster.python(PROGRAM), "True");

    browser.resize(1100, 1450);
    browser.wait("return Number(document.querySelector('canvas').dataset.records) >= 151");
    browser.wait_for_text(".progress", "load");
    browser.wait_for_text(".progress", "60 / 60");
    for name in ["alice", "bob", "carol"] {
        browser.wait_for_text(".bars", name);
    }
    browser.run("[...document.querySelectorAll('.stream-panel button')].find((each) => each.textContent === 'All').click()");
    browser.run("document.querySelector('details').open = true");
    browser.wait_for_text("details table", "merge");
    browser.run("document.querySelector('details').open = false");
    check(&browser, &axe, "status");

    browser.click("nav a[href=workers]");
    browser.wait_for_text("table.rows", "carol");
    assert_eq!(
        browser.run("return document.querySelectorAll('tbody tr').length"),
        3
    );
    check(&browser, &axe, "workers");
    browser.type_into("input[type=search]", "bo");
    browser.wait("return document.querySelectorAll('tbody tr').length === 1");

    browser.click("tbody a");
    browser.wait_for_text("h1", "bob");
    browser.wait_for_text("[role=tabpanel]", "load-");
    check(&browser, &axe, "worker");
    for (tab, text) in [
        ("Logs", "registered"),
        (
            "Profile",
            "Workers in Rust take no samples of what they run: bob.",
        ),
        ("Details", "Metrics"),
    ] {
        browser.run(&format!(
            "[...document.querySelectorAll('[role=tab]')].find((each) => each.textContent === '{tab}').click()"
        ));
        browser.wait_for_text("[role=tabpanel]", text);
    }

    browser.open("/tasks?query=merge-1");
    browser.wait_for_text("table.rows", "merge-19");
    browser.wait_for_text("[role=status]", "11 found");
    check(&browser, &axe, "tasks");

    browser.open(&format!("/task?key={}", encoded("fail-1")));
    browser.wait_for_text(".exception", "no column \"price\"");
    browser.wait_for_text("pre", "in fail");
    browser.wait_for_text(".keys", "total");
    browser.wait_for_text(".keys", "after-1");
    browser.wait_for_text("table", "erred");
    check(&browser, &axe, "task");

    browser.open("/graph");
    browser.wait_for_text("svg.graph text", "merge");
    check(&browser, &axe, "graph");
    browser.open("/graph?show=tasks");
    browser.wait("return document.querySelectorAll('svg.graph a').length >= 151");
    check(&browser, &axe, "graph-tasks");

    browser.open("/stuck");
    browser.wait_for_text(".sentence", "GPU");
    check(&browser, &axe, "stuck");

    browser.open("/events");
    browser.wait_for_text(".keys", "notes");
    browser.run("[...document.querySelectorAll('.keys button')].find((each) => each.textContent.startsWith('notes')).click()");
    browser.wait_for_text(".log", "trained");
    check(&browser, &axe, "events");

    browser.open("/system");
    browser.wait_for_text(".facts", cluster.scheduler.address());
    browser.run("[...document.querySelectorAll('[role=tab]')].find((each) => each.textContent === 'Profile of all workers').click()");
    browser.wait_for_text(
        "[role=tabpanel]",
        "This shows carol. Workers in Rust take no samples",
    );
    browser.run("[...document.querySelectorAll('[role=tab]')].find((each) => each.textContent === 'Versions').click()");
    browser.wait_for_text("[role=tabpanel] table", "distributed");
    check(&browser, &axe, "system");
    drop(workers);
}
