use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use daskwire_comm::ErrorKind;
use daskwire_comm::tls::rustls;
use daskwire_comm::tls::rustls::pki_types::CertificateDer;
use daskwire_comm::tls::rustls::pki_types::pem::PemObject as _;
use daskwire_scheduler::{Options, Scheduler};
use serde_json::Value as Json;

use super::{Dashboard, DashboardOptions, Https, Server, TlsFiles};

/// A scheduler without workers, and the port of its dashboard.
async fn dashboard() -> (Arc<Scheduler>, u16) {
    dashboard_with(DashboardOptions::default(), None).await
}

async fn dashboard_with(options: DashboardOptions, https: Option<Https>) -> (Arc<Scheduler>, u16) {
    let transports = daskwire_rpc::transports();
    let address = "tcp://127.0.0.1:0".parse().expect("an address");
    let listener = transports.bind(&address, Default::default()).await;
    let scheduler = Scheduler::start([listener.expect("bound")], Options::default());
    let scheduler = Arc::new(scheduler.expect("it starts"));
    let http = "127.0.0.1:0".parse().expect("an address");
    let mut server = Server::bind(&http).await.expect("a free port");
    if let Some(https) = https {
        server = server.with_tls(https);
    }
    let port = server.port();
    let dashboard = Dashboard::new(&scheduler, options);
    let serving = dashboard.serve(server).expect("a thread");
    // As long as the test.
    core::mem::forget(serving);
    (scheduler, port)
}

fn send(port: u16, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    let timeout = Some(Duration::from_secs(20));
    stream.set_read_timeout(timeout).expect("a timeout");
    stream.write_all(request.as_bytes()).expect("it reads");
    stream
}

/// The head and the body of the response to a request.
fn exchange(port: u16, request: &str) -> (String, String) {
    let mut response = String::new();
    let read = send(port, request).read_to_string(&mut response);
    read.expect("UTF-8");
    let (head, body) = response.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), body.to_owned())
}

fn get(port: u16, path: &str) -> (String, String) {
    exchange(port, &format!("GET {path} HTTP/1.1\r\n\r\n"))
}

fn get_json(port: u16, path: &str) -> Json {
    let (head, body) = get(port, path);
    assert!(head.starts_with("HTTP/1.1 200 "), "{path}: {head}\n{body}");
    serde_json::from_str(&body).expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_may_load_only_its_own_files() {
    let (_scheduler, port) = dashboard().await;
    let (head, _) = get(port, "/");
    assert!(head.contains("location: status"), "{head}");
    for path in ["/status", "/task?key=%3Cb%3E", "/assets/page.css"] {
        let (head, body) = get(port, path);
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
        let policy = "content-security-policy: default-src 'none'; script-src 'self';";
        assert!(head.contains(policy), "{head}");
        assert!(head.contains("x-content-type-options: nosniff"), "{head}");
        assert!(!body.is_empty() && !body.contains("<b>"), "{body}");
        let (_, tag) = head.split_once("etag: ").expect("a tag");
        let tag = tag.lines().next().expect("a line");
        let request = format!("GET {path} HTTP/1.1\r\nIf-None-Match: {tag}\r\n\r\n");
        let (head, body) = exchange(port, &request);
        assert!(
            head.starts_with("HTTP/1.1 304 ") && body.is_empty(),
            "{head}"
        );
    }
    for path in ["/assets/../Cargo.toml", "/assets/none.js", "/statusx"] {
        let (head, _) = get(port, path);
        assert!(head.starts_with("HTTP/1.1 404 "), "{path}: {head}");
    }
    assert_eq!(get(port, "/health").1, "ok");
    let (head, metrics) = get(port, "/metrics");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    assert!(
        metrics.contains("dask_scheduler_clients 0.0\n"),
        "{metrics}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_are_answered_with_a_reason() {
    let (_scheduler, port) = dashboard().await;
    for (path, status, reason) in [
        (
            "/data/live?views=cluster,no",
            400,
            "there is no live view \"no\"",
        ),
        (
            "/data/live?views=cluster&cursor=-1",
            400,
            "cursor= takes a number",
        ),
        ("/data/nothing", 404, "there is no such view"),
    ] {
        let (head, body) = get(port, path);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        let error: Json = serde_json::from_str(&body).expect("JSON");
        let error = error["error"].as_str().expect("a text");
        assert!(error.contains(reason), "{error}");
    }
    let (head, _) = exchange(port, "DELETE /status HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 405 "), "{head}");
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(20 << 10));
    let (head, _) = exchange(port, &long);
    assert!(head.starts_with("HTTP/1.1 4"), "{head}");
}

/// Otherwise, requests could have the scheduler connect to any host.
#[tokio::test(flavor = "multi_thread")]
async fn only_workers_are_asked() {
    let (_scheduler, port) = dashboard().await;
    let other = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    other.set_nonblocking(true).expect("it can be set");
    let address = other.local_addr().expect("it listens");
    for view in ["logs", "call-stack", "profile"] {
        let path = format!("/data/worker/{view}?address=tcp://{address}");
        let (head, body) = get(port, &path);
        assert!(head.starts_with("HTTP/1.1 404 "), "{view}: {head}");
        assert!(body.contains("no worker has this address"), "{body}");
        let accepted = other.accept().map(|_| ());
        let accepted = accepted.expect_err("no connection").kind();
        assert_eq!(accepted, std::io::ErrorKind::WouldBlock, "{view}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_other_sites_get_no_data_and_change_nothing() {
    let options = DashboardOptions::default().with_has_api(true);
    let (_scheduler, port) = dashboard_with(options, None).await;
    let status = |headers: &str, request: &str| {
        let request = format!("{request} HTTP/1.1\r\nHost: a:1\r\n{headers}\r\n");
        let (head, _) = exchange(port, &request);
        head.split(' ').nth(1).expect("a status").to_owned()
    };
    let cross_site = "Sec-Fetch-Site: cross-site\r\n";
    for path in ["/data/cluster", "/json/counts.json", "/api/v1/get_workers"] {
        let request = format!("GET {path}");
        assert_eq!(status(cross_site, &request), "403", "{path}");
        assert_eq!(status("", &request), "200", "{path}");
        let same = "Sec-Fetch-Site: same-origin\r\nOrigin: http://a:1\r\n";
        assert_eq!(status(same, &request), "200", "{path}");
    }
    // Links to the page are followed.
    assert_eq!(status(cross_site, "GET /status"), "200");
    let retire = "POST /api/v1/retire_workers";
    for origin in ["http://b:1", "http://a:2", "null"] {
        let headers = format!("Origin: {origin}\r\nContent-Length: 0\r\n");
        assert_eq!(status(&headers, retire), "403", "{origin}");
    }
    let own = "Origin: http://a:1\r\nContent-Length: 0\r\n";
    assert_ne!(status(own, retire), "403");
}

/// Reads the next event of a stream.
fn next_event(stream: &mut impl std::io::BufRead) -> (String, Json) {
    let mut name = String::new();
    loop {
        let mut line = String::new();
        assert_ne!(stream.read_line(&mut line).expect("UTF-8"), 0, "it ended");
        if let Some(event) = line.strip_prefix("event: ") {
            name = event.trim().to_owned();
        } else if let Some(data) = line.strip_prefix("data: ") {
            return (name, serde_json::from_str(data).expect("JSON"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn live_views_are_shown_again_and_again() {
    let (scheduler, port) = dashboard().await;
    let id = scheduler.id().to_owned();
    let shown = tokio::task::spawn_blocking(move || {
        let request = "GET /data/live?views=cluster,workers HTTP/1.1\r\n\r\n";
        let mut stream = BufReader::new(send(port, request));
        let mut times = Vec::new();
        for _ in 0..3 {
            let (name, cluster) = next_event(&mut stream);
            assert_eq!(
                (name.as_str(), &cluster["id"]),
                ("cluster", &Json::from(id.clone()))
            );
            times.push(cluster["time"].as_f64().expect("a time"));
            let (name, workers) = next_event(&mut stream);
            assert_eq!(
                (name.as_str(), &workers["total"]),
                ("workers", &Json::from(0))
            );
        }
        assert!(times.is_sorted_by(|one, two| one + 0.4 < *two), "{times:?}");
        assert_eq!(get_json(port, "/data/cluster")["id"], id);
    });
    shown.await.expect("no panic");
}

#[tokio::test(flavor = "multi_thread")]
async fn viewers_are_bounded_and_others_are_still_served() {
    let (_scheduler, port) = dashboard().await;
    let request = "GET /data/live?views=cluster HTTP/1.1\r\n\r\n";
    let shown = tokio::task::spawn_blocking(move || {
        let mut viewers: Vec<_> = (0..64)
            .map(|_| {
                let mut viewer = BufReader::new(send(port, request));
                next_event(&mut viewer);
                viewer
            })
            .collect();
        let (head, body) = exchange(port, request);
        assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
        assert!(body.contains("close one of its pages"), "{body}");
        assert_eq!(get(port, "/health").1, "ok");
        // More connections than have places end the oldest that is no viewer.
        let idle: Vec<_> = (0..80).map(|_| send(port, "GET ")).collect();
        assert_eq!(get(port, "/health").1, "ok");
        drop(idle);
        next_event(viewers.first_mut().expect("64 viewers"));
        drop(viewers);
        // Their places are free again, as soon as the server has seen them leave.
        loop {
            let mut viewer = BufReader::new(send(port, request));
            let mut status = String::new();
            viewer.read_line(&mut status).expect("UTF-8");
            if status.starts_with("HTTP/1.1 200 ") {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    shown.await.expect("no panic");
}

#[tokio::test]
async fn health_fails_while_the_state_machine_hangs() {
    let (scheduler, port) = dashboard().await;
    // The executor has one thread, which waits for the lock.
    let holding = Arc::clone(&scheduler);
    let holder = std::thread::spawn(move || {
        holding.inspect(|_| {
            assert_eq!(get(port, "/health").1, "ok");
            let (head, reason) = loop {
                let health = get(port, "/health");
                if !health.0.starts_with("HTTP/1.1 200") {
                    break health;
                }
                std::thread::sleep(Duration::from_millis(20));
            };
            assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
            let expected = "the scheduler hangs: it has handled no event for 5.";
            assert!(reason.contains(expected), "{reason}");
        });
    });
    while !holder.is_finished() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    holder.join().expect("it does not panic");
    while get(port, "/health").1 != "ok" {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

const TOKEN: &str = "0123456789abcdef";

fn post(port: u16, path: &str, headers: &str, body: &str) -> (String, String) {
    let len = body.len();
    exchange(
        port,
        &format!("POST {path} HTTP/1.1\r\nContent-Length: {len}\r\n{headers}\r\n{body}"),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_told_or_changed_without_the_token() {
    let token = TOKEN.parse().expect("a token");
    let options = DashboardOptions::default().with_token(Some(token));
    let (_scheduler, port) = dashboard_with(options, None).await;
    let known = format!("Authorization: Bearer {TOKEN}\r\n");
    let wrong = "Authorization: Bearer 0123456789abcdeF\r\n";
    for headers in ["", wrong] {
        for path in [
            "/data/cluster",
            "/data/live?views=cluster",
            "/data/logs",
            "/json/counts.json",
            "/json/identity.json",
        ] {
            let (head, body) = exchange(port, &format!("GET {path} HTTP/1.1\r\n{headers}\r\n"));
            assert!(head.starts_with("HTTP/1.1 401 "), "{path}: {head}");
            assert!(head.contains("www-authenticate: Bearer"), "{head}");
            assert!(body.contains("--dashboard-token"), "{body}");
        }
        let (head, _) = post(port, "/actions/restart", headers, "{}");
        assert!(head.starts_with("HTTP/1.1 401 "), "{head}");
    }
    // What has no data needs none: the page asks for the token.
    for path in ["/status", "/assets/page.css", "/health", "/metrics"] {
        let (head, _) = get(port, path);
        assert!(head.starts_with("HTTP/1.1 200 "), "{path}: {head}");
    }
    let (head, _) = exchange(port, &format!("GET /data/cluster HTTP/1.1\r\n{known}\r\n"));
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    for (path, body, status, expected) in [
        ("/actions/restart", "{}", 200, r#"{"ok":true}"#),
        (
            "/actions/cancel",
            r#"{"keys":["x"]}"#,
            409,
            "knows none of these keys",
        ),
        (
            "/actions/cancel",
            r#"{"keys":[]}"#,
            400,
            "the list of keys is empty",
        ),
        ("/actions/retire", "no JSON", 400, "the body: "),
        ("/actions/explode", "{}", 404, "/actions/retire"),
    ] {
        let (head, answer) = post(port, path, &known, body);
        let status = format!("HTTP/1.1 {status} ");
        assert!(head.starts_with(&status), "{path}: {head}\n{answer}");
        assert!(answer.contains(expected), "{path}: {answer}");
    }
    let long = format!(r#"{{"keys":["{}"]}}"#, "x".repeat(1 << 20));
    let (head, _) = post(port, "/actions/cancel", &known, &long);
    assert!(head.starts_with("HTTP/1.1 413 "), "{head}");
    let (head, _) = exchange(
        port,
        &format!("GET /actions/restart HTTP/1.1\r\n{known}\r\n"),
    );
    assert!(head.starts_with("HTTP/1.1 405 "), "{head}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_is_there_only_if_it_is_asked_for() {
    let (_scheduler, port) = dashboard().await;
    for path in ["/api/v1", "/api/v1/get_workers"] {
        assert!(get(port, path).0.starts_with("HTTP/1.1 404 "), "{path}");
    }
    let (head, _) = post(port, "/api/v1/retire_workers", "", "{}");
    assert!(head.starts_with("HTTP/1.1 405 "), "{head}");
    // Nor can anything else be changed.
    let (head, body) = post(port, "/actions/restart", "", "{}");
    assert!(
        head.starts_with("HTTP/1.1 403 ") && body.contains("--dashboard-token"),
        "{head}"
    );

    let options = DashboardOptions::default().with_has_api(true);
    let (_scheduler, port) = dashboard_with(options, None).await;
    assert_eq!(get(port, "/api/v1").1, "API V1");
    let workers = get_json(port, "/api/v1/get_workers");
    assert_eq!(workers.to_string(), r#"{"num_workers":0,"workers":[]}"#);
    assert_eq!(get_json(port, "/api/v1/adaptive_target")["workers"], 0);
    assert!(get_json(port, "/api/v1/check_idle")["idle_since"].is_number());
    let (head, body) = post(port, "/api/v1/retire_workers", "", r#"{"n":1,"more":0}"#);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}\n{body}");
    let (head, _) = get(port, "/api/v1/nothing");
    assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_views_of_an_empty_cluster_are_documents() {
    let (_scheduler, port) = dashboard().await;
    for (path, field) in [
        ("/data/prefixes", "prefixes"),
        ("/data/graph", "groups"),
        ("/data/bandwidth", "rows"),
        ("/data/graph/tasks", "tasks"),
        ("/data/graph/tasks?group=none", "tasks"),
        ("/data/tasks?query=x&state=memory&from=0", "tasks"),
        ("/data/tasks?from=4294967295", "tasks"),
        ("/data/stuck", "sentences"),
        ("/data/events", "events"),
        ("/data/logs", "lines"),
        ("/data/configuration", "settings"),
        ("/data/versions", "rows"),
        ("/data/worker/profile", "children"),
        ("/json/counts.json", "tasks"),
        ("/json/identity.json", "workers"),
    ] {
        let document = get_json(port, path);
        assert!(document.get(field).is_some(), "{path}: {document}");
    }
    for (path, status) in [
        ("/data/worker", 400),
        ("/data/worker?address=x", 404),
        ("/data/worker/logs?address=x", 404),
        ("/data/worker/call-stack", 400),
        ("/data/task", 400),
        ("/data/task?key=x", 404),
        ("/data/task/story?key=x", 404),
        ("/data/tasks?from=x", 400),
        ("/data/stream", 404),
    ] {
        let (head, body) = get(port, path);
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status} ")),
            "{path}: {head}"
        );
        let error: Json = serde_json::from_str(&body).expect("JSON");
        assert!(error["error"].is_string(), "{path}: {body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_encrypted_if_there_is_a_certificate() {
    let directory = std::env::temp_dir().join(format!("dashboard-tls-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let file = directory.join("cert.pem");
    let issue = || {
        let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]);
        let certified = certified.expect("a certificate");
        let key = certified.signing_key.serialize_pem();
        // As renewal does, so that no one reads half of it.
        let new = directory.join("new.pem");
        std::fs::write(&new, certified.cert.pem() + &key).expect("written");
        std::fs::rename(&new, &file).expect("renamed");
        certified.cert.der().clone()
    };
    let certificate = issue();
    let files = TlsFiles::new(&file, &file);
    let https = Https::new(files.clone()).expect("valid files");
    let options = DashboardOptions::default();
    let (_scheduler, port) = dashboard_with(options.clone(), Some(https.clone())).await;
    let fetch = |port: u16, trusted: &CertificateDer<'static>, has_certificate: bool| {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(trusted.clone()).expect("an authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots);
        let config = match has_certificate {
            false => config.with_no_client_auth(),
            true => {
                let key = rustls::pki_types::PrivateKeyDer::from_pem_file(&file);
                let chain = vec![trusted.clone()];
                let config = config.with_client_auth_cert(chain, key.expect("a key"));
                config.expect("a certificate")
            }
        };
        let name = "localhost".try_into().expect("a name");
        let mut session = rustls::ClientConnection::new(Arc::new(config), name).expect("valid");
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        let mut stream = rustls::Stream::new(&mut session, &mut stream);
        // A client that is refused may learn that only when it reads.
        let _ = stream.write_all(b"GET /data/cluster HTTP/1.1\r\n\r\n");
        let mut response = String::new();
        // The end may come without a message of TLS.
        let _ = stream.read_to_string(&mut response);
        response
    };
    let is_served = |response: String| response.starts_with("HTTP/1.1 200 ");
    assert!(is_served(fetch(port, &certificate, false)));
    // Text that is no TLS is not answered.
    let mut plain = Vec::new();
    let _ = send(port, "GET /status HTTP/1.1\r\n\r\n").read_to_end(&mut plain);
    assert!(!plain.starts_with(b"HTTP"), "{plain:?}");

    // A renewed certificate is used without a restart; one that is none changes nothing.
    assert!(!https.reload_if_changed().expect("valid files"));
    let renewed = issue();
    assert!(https.reload_if_changed().expect("valid files"));
    assert!(is_served(fetch(port, &renewed, false)));
    assert_eq!(fetch(port, &certificate, false), "");
    std::fs::write(&file, "").expect("written");
    let reloaded = https.reload_if_changed();
    assert!(reloaded.is_err_and(|error| error.to_string().ends_with("no certificate in it")));
    assert!(is_served(fetch(port, &renewed, false)));
    assert!(!https.reload_if_changed().expect("the error is told once"));
    // A file that was read while it was written, and has the same stamp since.
    let certificate = issue();
    let content = std::fs::read(&file).expect("it is there");
    let changed = std::fs::metadata(&file).and_then(|metadata| metadata.modified());
    let replace = |content: &[u8]| {
        std::fs::write(&file, content).expect("written");
        let opened = std::fs::File::options().write(true).open(&file);
        let opened = opened.expect("it opens");
        let changed = *changed.as_ref().expect("a time");
        opened.set_modified(changed).expect("it is set");
    };
    replace(&vec![b' '; content.len()]);
    let empty = https.reload_if_changed().expect_err("no certificate");
    assert_eq!(empty.kind(), ErrorKind::Invalid);
    replace(&content);
    assert!(https.reload_if_changed().expect("valid files"));
    assert!(is_served(fetch(port, &certificate, false)));

    // With authorities of clients, those without a certificate are refused.
    let certificate = issue();
    let guarded = Https::new(files.with_ca_file(Some(file.clone())));
    let (_guarded, port) = dashboard_with(options, Some(guarded.expect("valid files"))).await;
    assert_eq!(fetch(port, &certificate, false), "");
    assert!(is_served(fetch(port, &certificate, true)));
    let missing = Https::new(TlsFiles::new(directory.join("none"), &file));
    let missing = missing.expect_err("no file");
    assert!(missing.to_string().contains("none: "), "{missing}");
    assert_eq!(missing.kind(), ErrorKind::System);
    std::fs::remove_dir_all(&directory).expect("removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn links_to_the_pages_of_dask_lead_to_the_same_thing() {
    let (_scheduler, port) = dashboard().await;
    for (path, target) in [
        ("/info", "workers"),
        ("/info/main/workers.html", "../../workers"),
        ("/info/main/exceptions.html", "../../tasks?state=erred"),
        ("/info/main/logs.html", "../../system"),
        (
            "/info/logs/tcp%3A%2F%2Fa%3A1.html",
            "../../worker?address=tcp%3A%2F%2Fa%3A1&part=Logs",
        ),
        (
            "/info/worker/tcp%3A%2F%2F10.0.0.1%3A99.html",
            "../../worker?address=tcp%3A%2F%2F10.0.0.1%3A99",
        ),
        (
            "/info/worker/tcp://10.0.0.1:99.html",
            "../../../../worker?address=tcp%3A%2F%2F10.0.0.1%3A99",
        ),
        (
            "/info/call-stacks/tcp%3A%2F%2Fa%3A1.html",
            "../../worker?address=tcp%3A%2F%2Fa%3A1&part=Call+stacks",
        ),
        ("/info/task/a+b%25.html", "../../task?key=a%2Bb%25"),
        (
            "/info/task/%28%27x%27%2C%200%29.html",
            "../../task?key=%28%27x%27%2C%200%29",
        ),
        ("/info/call-stack/x-1.html", "../../task?key=x-1"),
    ] {
        let (head, _) = get(port, path);
        assert!(head.starts_with("HTTP/1.1 303 "), "{path}: {head}");
        let location = format!("\r\nlocation: {target}\r\n");
        assert!(head.contains(&location), "{path}: {head}");
    }
    for path in ["/info/x.html", "/info/worker/x", "/information"] {
        let (head, _) = get(port, path);
        assert!(head.starts_with("HTTP/1.1 404 "), "{path}: {head}");
    }
}
