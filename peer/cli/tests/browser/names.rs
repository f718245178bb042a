//! Names of peers are shown as text, whatever they are.

use crate::{browser, cluster, encoded, rust_worker};

/// Names that would be markup, turn text around, or control a terminal.
const HOSTILE: [&str; 4] = [
    "<img src=x onerror=\"window.hacked=1\">",
    "\"><script>window.hacked=1</script>",
    "\u{202e}gnp.exe",
    "\u{1b}[31mred\u{7}",
];

#[tokio::test(flavor = "multi_thread")]
async fn hostile_names_are_text() {
    let mut cluster = cluster();
    let worker = rust_worker(&cluster.scheduler, HOSTILE[0], &[]);
    let browser = browser(&cluster.scheduler, 1100);
    browser.open("/status");
    browser.wait_for_text("#connection", "Live");
    // A string of JSON is one of Python, too.
    let keys = serde_json::json!(serde_json::json!(HOSTILE).to_string());
    cluster.python(&format!(
        "import json\nkeys = json.loads({keys})\n\
         def fail(name):\n    raise ValueError(name)\n\
         kept = [client.submit(fail, name, key=f'{{name}}-1') for name in keys]\n\
         others = [client.submit(operator.neg, 1, key=key) for key in ('x' * 1_000_000, 1.5)]\n\
         client.log_event(keys[0], keys[1])\nwait(kept + others) and None"
    ));
    let check = |shown: &str| {
        browser.wait_for_text("main", shown);
        assert_eq!(
            browser.run("return [window.hacked ?? null, document.querySelectorAll('main img, main script').length, document.documentElement.scrollWidth]"),
            serde_json::json!([null, 0, 1100])
        );
        browser.check_log_except(&[]);
    };
    check(HOSTILE[0]);
    check("\\u{202e}gnp.exe");
    for path in ["/workers", "/tasks"] {
        browser.open(path);
        check(HOSTILE[0]);
    }
    // The prefix of that key is `img`.
    for path in ["/graph", "/graph?show=tasks"] {
        browser.open(path);
        check("script>window.hacked=1</script>");
        check("\\u{202e}gnp.exe");
    }
    browser.open("/tasks?query=xxxxxxxxxx");
    check("xxxxxxxxxxxxxxxx");
    // Each key has a page, also one that does not fit into an address, or is no text.
    for query in ["xxxxxxxxxx", "1.5"] {
        browser.open(&format!("/tasks?query={}", encoded(query)));
        browser.wait("return document.querySelector('table.rows tbody a')");
        browser.click("table.rows tbody a");
        browser.wait_for_text(".page-head .state", "memory");
        browser.wait_for_text("h1", query);
        browser.check_log_except(&[]);
    }
    for name in HOSTILE {
        let key = format!("{name}-1");
        browser.open(&format!("/task?key={}", encoded(&key)));
        browser.wait_for_text(".exception", "ValueError");
        browser.check_log_except(&[]);
    }
    check("\\u{1b}[31mred");
    browser.open(&format!("/events?topic={}", encoded(HOSTILE[0])));
    check(HOSTILE[1]);
    drop(worker);
}
