//! The routes `/api/v1` of Dask, which others use to scale clusters.

use daskwire_messages::Value;
use daskwire_messages::protocol::{AdaptiveTarget, CheckIdle, RetireWorkers, WorkersToClose};
use daskwire_scheduler::Scheduler;
use serde::Deserialize;
use serde_json::{Value as Json, json};
use std::sync::Arc;

use crate::views::to_json;

/// What `retire_workers` takes. Dask ignores what else there is.
#[derive(Debug, Default, Deserialize)]
struct Retire {
    n: Option<i64>,
    workers: Option<Vec<String>>,
}

/// A route.
#[derive(Debug)]
pub(crate) enum Call {
    RetireWorkers(Vec<u8>),
    GetWorkers,
    AdaptiveTarget,
    CheckIdle,
}

impl Call {
    /// Answers as Dask does.
    ///
    /// # Errors
    ///
    /// What is wrong with the request, or the text of the scheduler's exception.
    pub(crate) async fn answer(self, scheduler: Arc<Scheduler>) -> Result<Json, String> {
        match self {
            Self::RetireWorkers(body) => {
                let Retire { n, workers } =
                    serde_json::from_slice(&body).map_err(|error| format!("the body: {error}"))?;
                let workers = match n.filter(|n| *n != 0) {
                    Some(n) => {
                        let choose = WorkersToClose {
                            n: Some(n),
                            ..WorkersToClose::default()
                        };
                        match scheduler.answer(choose).await? {
                            Value::List(names) | Value::Tuple(names) => {
                                names.iter().map(Value::to_unquoted).collect()
                            }
                            _ => Vec::new(),
                        }
                    }
                    None => workers.unwrap_or_default(),
                };
                let request = RetireWorkers {
                    workers: Some(workers.into()),
                    close_workers: Some(false),
                    ..RetireWorkers::default()
                };
                Ok(to_json(&scheduler.answer(request).await?))
            }
            Self::GetWorkers => {
                let workers = scheduler.inspect(|state| state.overview_workers(None, usize::MAX));
                let listed = workers.iter();
                let listed = listed.map(|it| json!({"name": it.name, "address": it.address}));
                let listed: Vec<Json> = listed.collect();
                Ok(json!({"num_workers": workers.len(), "workers": listed}))
            }
            Self::AdaptiveTarget => {
                let target = scheduler.answer(AdaptiveTarget::default()).await?;
                Ok(json!({"workers": to_json(&target)}))
            }
            Self::CheckIdle => {
                let since = scheduler.answer(CheckIdle::default()).await?;
                Ok(json!({"idle_since": to_json(&since)}))
            }
        }
    }
}
