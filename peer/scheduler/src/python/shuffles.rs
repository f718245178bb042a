//! Creation of runs of P2P shuffles.

use std::sync::Arc;

use daskwire_messages::Serialized;
use daskwire_messages::exception::exception;
use daskwire_messages::protocol::{CreateShuffleRun, FromHelper};

use super::Python;
use super::graphs::{has_ended, unexpected};
use crate::state::{CreatedRun, NewRun, RunFailure};

impl Python {
    /// Assigns the outputs of a shuffle to workers. Dropping the future ends the creation.
    ///
    /// A run whose process has ended is created again, once.
    ///
    /// # Errors
    ///
    /// If Python cannot create the run, or exceeds a limit.
    pub(crate) async fn create_run(
        self: &Arc<Self>,
        run: NewRun,
    ) -> Result<CreatedRun, RunFailure> {
        let request = Arc::new(CreateShuffleRun {
            barrier: run.barrier,
            run_id: run.run_id,
            workers: run.workers,
            others: run.others,
            ..CreateShuffleRun::default()
        });
        let mut is_again = false;
        let answer = loop {
            let request = Arc::clone(&request);
            let answer = self.ask(&self.shuffle_places, move |helper, _| {
                let mut run = None;
                let erred = helper.request(&*request, |_, part| match part {
                    FromHelper::ShuffleRun(created) => {
                        run = Some(CreatedRun {
                            run_spec: created.run_spec,
                            workers: created.workers,
                        });
                        Ok(())
                    }
                    other => Err(unexpected(&other)),
                })?;
                Ok(erred.map(|()| run))
            });
            match answer.await {
                Err(error) if has_ended(&error) && !is_again => is_again = true,
                answer => break answer,
            }
        };
        let why = match answer {
            Ok(Ok(Some(run))) => return Ok(run),
            Ok(Err(erred)) => {
                return Err(RunFailure {
                    exception: Serialized::of_written_pickle(erred.exception),
                    text: erred.text,
                });
            }
            Ok(Ok(None)) => "it sent no run".to_owned(),
            Err(error) => error.to_string(),
        };
        let message = format!("Python beside the scheduler cannot plan a P2P shuffle: {why}");
        Err(RunFailure {
            exception: exception("RuntimeError", &message),
            text: format!("RuntimeError({message:?})"),
        })
    }
}
