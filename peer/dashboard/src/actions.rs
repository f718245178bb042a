//! What changes the cluster.

use daskwire_messages::protocol::{RestartCluster, RetireWorkers};
use daskwire_scheduler::Scheduler;
use serde::Deserialize;
use std::sync::Arc;

use crate::views::find_key;

/// Maximum number of workers or keys of a request.
const MAX_COUNT: usize = 10_000;

/// What a request asks for.
#[derive(Debug)]
pub(crate) enum Action {
    Retire(Vec<String>),
    Restart,
    Cancel(Vec<String>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Workers {
    workers: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    keys: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

impl Action {
    /// Reads the request for an action by its name; `None` if there is no such action.
    ///
    /// # Errors
    ///
    /// What is wrong with the body.
    pub(crate) fn read(name: &str, body: &[u8]) -> Option<Result<Self, String>> {
        fn parse<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, String> {
            serde_json::from_slice(body).map_err(|error| format!("the body: {error}"))
        }
        let some = |names: Vec<String>, what: &str| match names.len() {
            0 => Err(format!("the list of {what} is empty")),
            1..=MAX_COUNT => Ok(names),
            _ => Err(format!("at most {MAX_COUNT} {what} at once")),
        };
        Some(match name {
            "retire" => parse(body)
                .and_then(|Workers { workers }| some(workers, "workers"))
                .map(Self::Retire),
            "restart" => parse(body).map(|Nothing {}| Self::Restart),
            "cancel" => parse(body)
                .and_then(|Keys { keys }| some(keys, "keys"))
                .map(Self::Cancel),
            _ => return None,
        })
    }

    /// Does it.
    ///
    /// # Errors
    ///
    /// The text of the scheduler's exception.
    pub(crate) async fn perform(self, scheduler: Arc<Scheduler>) -> Result<(), String> {
        match self {
            Self::Retire(workers) => {
                let request = RetireWorkers {
                    workers: Some(workers.into()),
                    close_workers: Some(true),
                    ..RetireWorkers::default()
                };
                scheduler.answer(request).await.map(drop)
            }
            Self::Restart => scheduler.answer(RestartCluster::default()).await.map(drop),
            Self::Cancel(keys) => {
                let finding = Arc::clone(&scheduler);
                let find = move || -> Vec<_> {
                    let keys = keys.iter();
                    keys.filter_map(|text| find_key(&finding, text)).collect()
                };
                let known = tokio::task::spawn_blocking(find).await;
                let known = known.unwrap_or_default();
                if known.is_empty() {
                    return Err("the scheduler knows none of these keys".to_owned());
                }
                scheduler.cancel(known).await;
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_read_strictly() {
        let read = |name: &str, body: &str| Action::read(name, body.as_bytes());
        assert!(matches!(
            read("retire", r#"{"workers":["w"]}"#),
            Some(Ok(Action::Retire(_)))
        ));
        assert!(matches!(read("restart", "{}"), Some(Ok(Action::Restart))));
        assert!(matches!(
            read("cancel", r#"{"keys":["k"]}"#),
            Some(Ok(Action::Cancel(_)))
        ));
        assert!(read("explode", "{}").is_none());
        for (name, body, expected) in [
            ("retire", "", "EOF"),
            ("retire", "{}", "missing field `workers`"),
            ("retire", r#"{"workers":[]}"#, "is empty"),
            ("retire", r#"{"workers":[1]}"#, "expected a string"),
            ("restart", r#"{"workers":["w"]}"#, "unknown field"),
            ("cancel", r#"{"keys":"k"}"#, "expected a sequence"),
        ] {
            let Some(Err(error)) = read(name, body) else {
                panic!("{name} {body}");
            };
            assert!(error.contains(expected), "{error}");
        }
    }
}
