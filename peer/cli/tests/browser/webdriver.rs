//! A client of chromedriver, as much of WebDriver as the tests use.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value as Json, json};

/// The longest time until the page shows what a test waits for.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The longest time until chromedriver answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// What identifies an element in messages.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// The page of a dashboard in a browser without a window. The browser ends when this is dropped.
pub(crate) struct Browser {
    driver: Child,
    port: u16,
    session: String,
    profile: PathBuf,
    site: String,
}

impl Browser {
    /// Starts a browser, whose page is `width` pixels wide, for the dashboard at a port.
    pub(crate) fn start(port: &str, width: u32) -> Self {
        // The port that it has chosen may be taken before it listens.
        let started = (0..5).find_map(|_| start_driver());
        let (driver, driver_port) = started.expect("chromedriver listens");

        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let profile = std::env::temp_dir().join(format!("browser-{}-{number}", std::process::id()));
        let mut browser = Self {
            driver,
            port: driver_port,
            session: String::new(),
            site: format!("http://127.0.0.1:{port}"),
            profile,
        };
        let arguments = json!([
            "--headless=new",
            // Which root, as in containers, cannot have.
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
            "--lang=en",
            format!("--user-data-dir={}", browser.profile.display()),
        ]);
        let session = browser.request(
            "POST",
            "/session",
            &json!({"capabilities": {"alwaysMatch": {
                "goog:chromeOptions": {"args": arguments},
                "goog:loggingPrefs": {"browser": "ALL"},
            }}}),
        );
        browser.session = session["sessionId"].as_str().expect("an id").to_owned();
        browser.resize(width, 900);
        browser
    }

    /// Sets the size of the page in pixels.
    pub(crate) fn resize(&self, width: u32, height: u32) {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", size);
    }

    /// Prefers light or dark colours.
    pub(crate) fn prefer_dark(&self, is_dark: bool) {
        let value = if is_dark { "dark" } else { "light" };
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": value}]});
        self.devtools("Emulation.setEmulatedMedia", features);
    }

    /// Opens a path of the dashboard.
    pub(crate) fn open(&self, path: &str) {
        let url = format!("{}{path}", self.site);
        self.command("POST", "/url", &json!({"url": url}));
    }

    /// The result of a function body in the page.
    pub(crate) fn run(&self, script: &str) -> Json {
        self.command(
            "POST",
            "/execute/sync",
            &json!({"script": script, "args": []}),
        )
    }

    /// The result of the body of an async function in the page, or the text of its error.
    pub(crate) fn run_async(&self, script: &str) -> Json {
        let script = format!(
            "const done = arguments[0]; (async () => {{ {script} }})().then(done, (error) => done(String(error)))"
        );
        let body = json!({"script": script, "args": []});
        self.command("POST", "/execute/async", &body)
    }

    /// Waits until a function body in the page returns something else than `null`, `false`, 0 and "".
    pub(crate) fn wait(&self, script: &str) -> Json {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let value = self.run(script);
            let is_false = [json!(null), json!(false), json!(0), json!("")].contains(&value);
            if !is_false {
                return value;
            }
            if Instant::now() > deadline {
                let page = self.run("return document.body.innerText");
                let page: String = page
                    .as_str()
                    .unwrap_or_default()
                    .chars()
                    .take(4000)
                    .collect();
                panic!("timed out: {script}\n{page}\n{:#?}", self.log());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until an element has a text.
    pub(crate) fn wait_for_text(&self, selector: &str, text: &str) {
        self.wait(&format!(
            "return [...document.querySelectorAll({})].some((each) => each.textContent.includes({}))",
            json!(selector),
            json!(text)
        ));
    }

    fn element(&self, selector: &str) -> String {
        let by = json!({"using": "css selector", "value": selector});
        let element = self.command("POST", "/element", &by);
        element[ELEMENT].as_str().expect("an id").to_owned()
    }

    /// Clicks the first element that a selector finds, as a user does: what covers it gets the click.
    pub(crate) fn click(&self, selector: &str) {
        let path = format!("/element/{}/click", self.element(selector));
        self.command("POST", &path, &json!({}));
    }

    /// Types into an element.
    pub(crate) fn type_into(&self, selector: &str, text: &str) {
        let path = format!("/element/{}/value", self.element(selector));
        self.command("POST", &path, &json!({"text": text}));
    }

    /// A picture of the page in the format PNG.
    pub(crate) fn picture(&self) -> Vec<u8> {
        let picture = self.command("GET", "/screenshot", &json!(null));
        let picture = picture.as_str().expect("a picture");
        BASE64.decode(picture).expect("base64")
    }

    /// What the console of the browser has had since the last call, such as errors of scripts and
    /// violations of the content security policy.
    pub(crate) fn log(&self) -> Vec<String> {
        let log = self.command("POST", "/se/log", &json!({"type": "browser"}));
        let lines = log.as_array().into_iter().flatten();
        lines
            .filter_map(|line| Some(line["message"].as_str()?.to_owned()))
            .collect()
    }

    /// Asserts that nothing was logged in the console, except lines with one of `parts`.
    pub(crate) fn check_log_except(&self, parts: &[&str]) {
        let mut log = self.log();
        log.retain(|line| !parts.iter().any(|part| line.contains(part)));
        assert_eq!(log, [""; 0]);
    }

    /// Asserts that axe-core finds nothing that keeps people out. `axe` is its source.
    pub(crate) fn check_accessibility(&self, axe: &str, what: &str) {
        self.run(&format!("if (!window.axe) {{ {axe}\n window.axe = axe; }}"));
        let found = self.run_async(
            "const found = await axe.run(document, {resultTypes: ['violations']});
            return found.violations.map((each) => `${each.id}: ${each.help}: `
                + each.nodes.slice(0, 3).map((node) => node.html.slice(0, 200)
                    + ' ' + node.failureSummary).join(' | '));",
        );
        assert_eq!(found, json!([]), "{what}: {found:#}");
    }

    pub(crate) fn devtools(&self, method: &str, parameters: Json) {
        let command = json!({"cmd": method, "params": parameters});
        self.command("POST", "/goog/cdp/execute", &command);
    }

    fn command(&self, method: &str, path: &str, body: &Json) -> Json {
        self.request(method, &format!("/session/{}{path}", self.session), body)
    }

    fn request(&self, method: &str, path: &str, body: &Json) -> Json {
        let answer = self.exchange(method, path, body);
        let answer =
            answer.unwrap_or_else(|error| panic!("chromedriver: {method} {path}: {error}"));
        let error = &answer["value"]["error"];
        assert!(error.is_null(), "{method} {path}: {:#}", answer["value"]);
        answer["value"].clone()
    }

    fn exchange(&self, method: &str, path: &str, body: &Json) -> std::io::Result<Json> {
        let body = match body {
            Json::Null => String::new(),
            body => body.to_string(),
        };
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.port,
            body.len()
        )?;
        let mut stream = BufReader::new(stream);
        let mut length = 0;
        let mut line = String::new();
        while stream.read_line(&mut line)? > 2 {
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().map_err(std::io::Error::other)?;
            }
            line.clear();
        }
        let mut answer = vec![0; length];
        stream.read_exact(&mut answer)?;
        serde_json::from_slice(&answer).map_err(std::io::Error::other)
    }
}

/// Starts chromedriver at a port of its choice; `None` if it ends.
fn start_driver() -> Option<(Child, u16)> {
    let mut driver = Command::new("chromedriver")
        .args(["--port=0"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| {
            panic!("chromedriver: {error}; apt-get install chromium chromium-driver")
        });
    let stdout = driver.stdout.take().expect("a pipe");
    let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
    let port = lines.find_map(|line| {
        let (_, port) = line.split_once("started successfully on port ")?;
        port.trim_end_matches('.').parse().ok()
    });
    let Some(port) = port else {
        let _ = driver.wait();
        return None;
    };
    // It goes on printing.
    std::thread::spawn(move || lines.count());
    Some((driver, port))
}

impl Drop for Browser {
    fn drop(&mut self) {
        let session = format!("/session/{}", self.session);
        // Ends the browser. If that fails, there is nothing else to do.
        let _ = self.exchange("DELETE", &session, &Json::Null);
        let _ = self.driver.kill();
        let _ = self.driver.wait();
        let _ = fs::remove_dir_all(&self.profile);
    }
}

/// The source of axe-core, which `setup.sh` fetches.
pub(crate) fn axe() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/browser/axe.min.js");
    fs::read_to_string(&path).unwrap_or_else(|error| {
        panic!(
            "{}: {error}; run peer/cli/tests/browser/setup.sh",
            path.display()
        )
    })
}
