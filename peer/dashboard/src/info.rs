//! The pages `/info` of Dask, to which programs and people link.

use std::fmt::Write as _;

use daskwire_messages::protocol::GetLogs;
use serde_json::Value as Json;

use crate::http::decoded_path;
use crate::views::{Question, worker};

/// What answers a request for such a page.
pub(crate) enum Info {
    /// A page of the dashboard that shows the same, relative to the path that was asked for.
    Page(String),
    /// Lines of a log.
    Log(Box<Question>),
}

/// Finds what answers a request for a path.
pub(crate) fn find(path: &str) -> Option<Info> {
    let rest = path.strip_prefix("/info")?;
    // Relative, for proxies that add a path.
    let up = "../".repeat(rest.matches('/').count());
    let page = |target: &str| Some(Info::Page([&*up, target].concat()));
    let named = |start| {
        let name = rest.strip_prefix(start)?.strip_suffix(".html")?;
        Some(decoded_path(name))
    };
    let log = |worker, request| {
        Some(Info::Log(Box::new(Question {
            worker,
            request,
            document: worker::logs,
        })))
    };
    match rest {
        "" | "/main/workers.html" => page("workers"),
        "/main/exceptions.html" => page("tasks?state=erred"),
        "/main/logs.html" => log(None, GetLogs::default().into()),
        _ => {
            if let Some(address) = named("/worker/") {
                page(&format!("worker?address={}", encoded(&address)))
            } else if let Some(address) = named("/call-stacks/") {
                let address = encoded(&address);
                page(&format!("worker?address={address}&part=Call+stacks"))
            } else if let Some(key) = named("/task/").or_else(|| named("/call-stack/")) {
                page(&format!("task?key={}", encoded(&key)))
            } else {
                let address = named("/logs/")?;
                let request = worker::logs_request(&address);
                log(Some(address), request)
            }
        }
    }
}

/// The lines of a log as a text.
pub(crate) fn log(document: &Json) -> String {
    let mut text = String::new();
    for line in document["lines"].as_array().into_iter().flatten() {
        let part = |name: &str| line[name].as_str().unwrap_or_default();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{} {}", part("level"), part("text"));
    }
    text
}

/// A text as a value in a query.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                encoded.push(byte.into());
            }
            // Writing to a string cannot fail.
            byte => drop(write!(encoded, "%{byte:02X}")),
        }
    }
    encoded
}
