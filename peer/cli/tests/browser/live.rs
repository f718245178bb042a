//! What happens in the cluster appears without loading the page again.

use crate::{browser, cluster, dashboard_port, rust_worker, scheduler};

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_dies_leaves_the_table_whose_rows_stay_clickable() {
    let cluster = cluster(&[]);
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
    browser.check_log_except(&[]);
    drop(alice);
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

#[test]
fn a_page_that_is_hidden_does_not_look() {
    let scheduler = scheduler("0", "0", &[]);
    let browser = browser(&scheduler, 1100);
    browser.open("/workers");
    browser.wait_for_text("#connection", "Live");
    let hide = |is_hidden: bool| {
        browser.run(&format!(
            "Object.defineProperty(document, 'hidden', {{configurable: true, get: () => {is_hidden}}});
             document.dispatchEvent(new Event('visibilitychange'))"
        ));
    };
    hide(true);
    browser.wait_for_text("#connection", "Paused");
    hide(false);
    browser.wait_for_text("#connection", "Live");
    browser.check_log_except(&[]);
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
