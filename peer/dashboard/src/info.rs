//! The pages `/info` of Dask, to which programs and people link.

use std::fmt::Write as _;

use crate::http::decoded_path;

/// The page of the dashboard that shows the same as a path of Dask's, relative to that path.
pub(crate) fn find(path: &str) -> Option<String> {
    let rest = path.strip_prefix("/info")?;
    // Relative, for proxies that add a path.
    let up = "../".repeat(rest.matches('/').count());
    let named = |start| {
        let name = rest.strip_prefix(start)?.strip_suffix(".html")?;
        Some(encoded(&decoded_path(name)))
    };
    let page = match rest {
        "" | "/main/workers.html" => "workers".to_owned(),
        "/main/exceptions.html" => "tasks?state=erred".to_owned(),
        "/main/logs.html" => "system".to_owned(),
        _ => {
            if let Some(address) = named("/worker/") {
                format!("worker?address={address}")
            } else if let Some(address) = named("/logs/") {
                format!("worker?address={address}&part=Logs")
            } else if let Some(address) = named("/call-stacks/") {
                format!("worker?address={address}&part=Call+stacks")
            } else {
                let key = named("/task/").or_else(|| named("/call-stack/"))?;
                format!("task?key={key}")
            }
        }
    };
    Some(up + &page)
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
