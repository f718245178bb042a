//! Dask's plugins of nannies. The worker answers the requests to its nanny, which runs no
//! Python; of the plugins, it knows `Environ`, which sets environment variables.

use bytes::Bytes;
use daskwire_comm::Address;
use daskwire_messages::protocol::{Request, Unknown};
use daskwire_messages::value::{Object, Serialized};
use daskwire_messages::{RemoteError, Value};
use daskwire_rpc::RequestError;
use daskwire_rpc::channel::with_timeout;
use daskwire_rpc::pool::Pool;

use super::Shared;
use super::diagnostics::{Level, Notifier};
use super::session::REGISTER_TIMEOUT;

/// Requests to nannies about their plugins.
pub(super) const REQUESTS: [&str; 2] = ["plugin_add", "plugin_remove"];

/// Environment variables and their values.
type Variables = Vec<(String, String)>;

/// Returns the variables that a pickled plugin sets; `None` for plugins other than `Environ`.
fn variables(plugin: &Bytes) -> Option<Variables> {
    let plugin = Serialized::of_written_pickle(plugin.clone()).open().ok()?;
    let plugin = Object::try_from(plugin).ok()?;
    if plugin.class() != "distributed.diagnostics.plugin.Environ" {
        return None;
    }
    let Some(Value::Dict(variables)) = plugin.get("environ") else {
        return None;
    };
    let string = |value: &Value| value.as_str().map(str::to_owned);
    let variables = variables.iter();
    variables
        .map(|(name, value)| Some((string(name)?, string(value)?)))
        .collect()
}

/// Whether a request adds a plugin that takes effect when the worker starts again.
pub(super) fn needs_restart(shared: &Shared, request: &Request) -> bool {
    let Request::Unknown(request) = request else {
        return false;
    };
    let is_supported = shared.is_restartable && shared.runs_python();
    is_supported && request.op == REQUESTS[0] && added_variables(request).is_some()
}

fn added_variables(request: &Unknown) -> Option<Variables> {
    match request.value("plugin") {
        Some(Value::Bytes(plugin)) => variables(plugin),
        _ => None,
    }
}

/// Asks the scheduler for its plugins of nannies. Returns the names of those that set
/// variables, and all their variables.
pub(super) async fn variables_of_scheduler(
    pool: &Pool,
    scheduler: &Address,
    own: &str,
    notify: &Notifier,
) -> (Vec<String>, Variables) {
    let with_address = Unknown::new("register_nanny").field("address", own);
    let plugins = match ask(pool, scheduler, with_address, true).await {
        Ok(reply) => Ok(reply),
        // Older releases do not take the address, and want no acknowledgement.
        Err(RequestError::Remote(_)) => {
            ask(pool, scheduler, Unknown::new("register_nanny"), false).await
        }
        Err(error) => Err(error),
    };
    let (mut names, mut all) = (Vec::new(), Vec::new());
    // Schedulers that do not run Dask have no such plugins.
    let Ok(reply) = plugins else {
        return (names, all);
    };
    let Some(Value::Dict(plugins)) = reply.get("nanny-plugins") else {
        return (names, all);
    };
    for (name, plugin) in plugins {
        let name = name.as_str().unwrap_or_default();
        let variables = match plugin {
            Value::Bytes(plugin) => variables(plugin),
            _ => None,
        };
        match variables {
            Some(variables) => {
                names.push(name.to_owned());
                all.extend(variables);
            }
            None => notify.notify(&format!(
                "the plugin {name} of nannies is ignored: the worker's nanny runs no Python"
            )),
        }
    }
    (names, all)
}

async fn ask(
    pool: &Pool,
    scheduler: &Address,
    request: Unknown,
    is_acknowledged: bool,
) -> Result<Value, RequestError> {
    let asking = async {
        let mut channel = pool.connect(scheduler).await?;
        let reply = channel.call(&Request::Unknown(request)).await?;
        if is_acknowledged {
            channel.sender.send(&"OK".to_owned()).await?;
        }
        channel.close().await;
        Ok(reply)
    };
    with_timeout(REGISTER_TIMEOUT, "the plugins of nannies", asking).await
}

impl Shared {
    /// Answers a request to the nanny about its plugins.
    pub(super) fn answer_for_nanny(&self, request: &Unknown) -> Result<Value, RemoteError> {
        let name = request.value("name").and_then(Value::as_str);
        let name = name.unwrap_or_default();
        let title = &self.title;
        let is_done = match &*request.op {
            "plugin_add" => added_variables(request).is_some(),
            _ => self.environ_plugins.iter().any(|known| known == name),
        };
        if !is_done {
            let message = format!("the nanny of the worker {title} runs no Python");
            return Err(RemoteError::new("NotImplementedError", &message));
        }
        if !self.runs_python() {
            let message = format!("the worker {title} runs no Python and ignores {name:?}");
            self.log.add(Level::Warning, &message);
        }
        Ok(Value::dict([("status", "OK")]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_variables_of_environ_are_known() {
        // `pickle.dumps(Environ({"A": 1, "B": "x"}), protocol=5)`, in distributed 2026.8.0
        const ENVIRON: &[u8] = b"\x80\x05\x95S\x00\x00\x00\x00\x00\x00\x00\
            \x8c\x1edistributed.diagnostics.plugin\x94\x8c\x07Environ\x94\x93\x94)\x81\x94}\x94\
            \x8c\x07environ\x94}\x94(\x8c\x01A\x94\x8c\x011\x94\x8c\x01B\x94\x8c\x01x\x94usb.";
        let expected = [("A", "1"), ("B", "x")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(
            variables(&Bytes::from_static(ENVIRON)),
            Some(expected.into())
        );
        let other = ENVIRON.to_vec();
        let other: Vec<u8> = other
            .iter()
            .map(|byte| if *byte == b'E' { b'e' } else { *byte })
            .collect();
        assert_eq!(variables(&other.into()), None);
        assert_eq!(variables(&Bytes::from_static(b"\x80\x05N.")), None);
    }
}
