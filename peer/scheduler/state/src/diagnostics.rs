//! Queries of clients that look for causes of failures and of waiting.

use std::collections::{BTreeMap, BTreeSet};

use daskwire_messages::{Key, Serialized, Value};

use super::model::TaskStage;
use super::{MetadataError, State};

impl State {
    /// The payload of a task, as it is sent to workers; `None` for data that is not the result of a
    /// task.
    ///
    /// # Errors
    ///
    /// The key, if the task is not known.
    pub fn run_spec(&self, key: &Key) -> Result<Option<Serialized>, Key> {
        let id = self.by_key.get(key).ok_or_else(|| key.clone())?;
        let run_spec = self.tasks[*id].run_spec.as_ref();
        Ok(run_spec.map(|run_spec| run_spec.payload.to_serialized()))
    }

    /// The key of the task whose failure is that of the first failed task among these.
    pub fn error_cause(&self, keys: &[Key]) -> Option<Key> {
        let known = keys.iter().filter_map(|key| self.by_key.get(key));
        let mut failed = known.filter_map(|id| match &self.tasks[*id].stage {
            TaskStage::Erred(failure) => Some(failure.cause.clone()),
            _ => None,
        });
        failed.next().flatten()
    }

    /// The running tasks among those with these keys and among what they wait for, by the address of
    /// their worker.
    ///
    /// # Errors
    ///
    /// The key of a task that is not known.
    pub fn running_for(&self, keys: &[Key]) -> Result<BTreeMap<String, Vec<Key>>, Key> {
        let mut running: BTreeMap<String, Vec<Key>> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        let known = keys
            .iter()
            .map(|key| self.by_key.get(key).copied().ok_or_else(|| key.clone()));
        let mut left = known.collect::<Result<Vec<_>, Key>>()?;
        while let Some(id) = left.pop() {
            if !seen.insert(id) {
                continue;
            }
            let task = &self.tasks[id];
            match task.stage {
                TaskStage::Waiting => left.extend(&task.dependencies),
                TaskStage::Processing(on) => {
                    let address = self.workers[&on].address.to_string();
                    running.entry(address).or_default().push(task.key.clone());
                }
                _ => {}
            }
        }
        Ok(running)
    }

    /// The metadata at a path of keys; all of it for an empty path.
    ///
    /// # Errors
    ///
    /// [`MetadataError`] if there is none.
    pub fn metadata(&self, path: &[Key]) -> Result<Value, MetadataError> {
        self.metadata.get(path)
    }

    /// Sets metadata.
    pub(super) fn set_metadata(&mut self, path: &[Key], value: Value) -> Result<(), MetadataError> {
        let copy = self.journal.is_some().then(|| value.clone());
        self.metadata.set(path, value)?;
        if let Some(value) = copy {
            self.journal_metadata(path, Some(&value));
        }
        Ok(())
    }

    /// The reason why [`SchedulerInput::MetadataSet`](super::SchedulerInput::MetadataSet) would be ignored.
    pub fn metadata_refusal(&self, path: &[Key], value: &Value) -> Option<MetadataError> {
        self.metadata.check(path, value).err()
    }
}
