//! Modules of Python that processes of a worker or a scheduler load.

use serde_json::{Value, json};

use crate::command::config::Config;
use crate::command::failure::{Failure, Result};
use crate::command::terminal;

/// The modules of `--preload` and of the setting of a role, `worker` or `scheduler`. Those of the
/// setting are ignored without a process of Python.
///
/// # Errors
///
/// A usage error, if there are arguments without modules, the setting is invalid, or modules are
/// given without a process of Python.
pub(crate) fn preload(
    role: &str,
    (modules, arguments): (&[String], &[String]),
    has_python: bool,
    config: &Config,
) -> Result<Vec<String>> {
    if !arguments.is_empty() && modules.is_empty() {
        return Err(Failure::usage("arguments after -- need a --preload"));
    }
    let setting = format!("distributed.{role}.preload");
    let mut preload = modules.to_vec();
    if preload.is_empty() {
        let string = |value: &Value| value.as_str().map(str::to_owned);
        let named = match config.get(&setting) {
            Some(Value::Array(names)) => names.iter().map(string).collect(),
            Some(Value::Null) | None => Some(Vec::new()),
            Some(name) => string(name).map(|name| vec![name]),
        };
        let invalid = || Failure::usage(format_args!("{setting}: expected names of modules"));
        preload = named.ok_or_else(invalid)?;
    }
    if has_python {
        return Ok(preload);
    }
    if !modules.is_empty() {
        return Err(Failure::usage(format_args!(
            "--preload: only a {role} with --python loads modules: add --python PYTHON, an \
             interpreter that has distributed"
        )));
    }
    if !preload.is_empty() {
        terminal::event(
            "notice",
            format_args!("{setting} has no effect: only a {role} with --python loads modules"),
            json!({}),
        );
    }
    Ok(Vec::new())
}
