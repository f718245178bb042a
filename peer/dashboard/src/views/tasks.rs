//! Single tasks: a search, and all that is known of one.

use daskwire_messages::protocol::Keys;
use daskwire_messages::{Key, RemoteError};
use daskwire_rpc::TaskEvent;
use daskwire_rpc::story::TaskChange;
use daskwire_scheduler::state::TaskDetails;
use serde_json::{Value as Json, json};

use super::values::to_json;
use super::{Failed, Viewed, cut, key_text, long};

/// Maximum number of tasks in a list.
const MAX_LISTED: usize = 200;

/// Maximum number of tasks that are looked through for a request.
const MAX_SEARCHED: u32 = 50_000;

/// Maximum number of steps of a story.
const MAX_STEPS: usize = 500;

/// Searches for tasks with a text in their keys, and in a state.
pub(super) fn search(
    viewed: &Viewed<'_>,
    query: &str,
    state: Option<&str>,
    from: u32,
) -> Result<Json, Failed> {
    let is_wanted = |key: &Key, its_state: &'static str| {
        let is_in_state = state.is_none_or(|state| state == its_state);
        is_in_state
            && (query.is_empty()
                || match key.as_str() {
                    Some(key) => key.contains(query),
                    None => key.to_string().contains(query),
                })
    };
    let mut tasks = Vec::new();
    let mut place = Some(from);
    while let Some(start) = place.filter(|place| place.saturating_sub(from) < MAX_SEARCHED)
        && tasks.len() < MAX_LISTED
    {
        let left = MAX_LISTED - tasks.len();
        let (part, next) = viewed.inspect(|state| state.find_tasks(start, left, is_wanted));
        tasks.extend(part);
        place = next;
        viewed.scheduler.give_way();
    }
    let searched = place.map_or_else(
        || viewed.inspect(|state| state.task_count() as u64),
        |place| u64::from(place - from),
    );
    let tasks = tasks.iter().map(|task| {
        json!({
            "key": key_text(viewed, &task.key),
            "prefix": cut(&task.prefix),
            "group": cut(&task.group),
            "state": task.state,
            "worker": task.worker.as_deref().map(cut),
            "nbytes": task.nbytes,
        })
    });
    let tasks: Vec<Json> = tasks.collect();
    Ok(json!({"tasks": tasks, "next": place, "searched": searched}))
}

/// The task whose key is displayed as a text.
pub(super) fn find(viewed: &Viewed<'_>, text: &str) -> Result<TaskDetails, Failed> {
    let key = super::find_key(viewed.scheduler, text);
    let found = key.and_then(|key| viewed.inspect(|state| state.task_details(&key, MAX_LISTED)));
    found.ok_or_else(|| {
        Failed::missing("the scheduler knows no task with this key; it may have been released")
    })
}

/// All that is known of a task.
pub(super) fn task(viewed: &Viewed<'_>, text: &str) -> Result<Json, Failed> {
    let task = find(viewed, text)?;
    let key = &task.overview.key;
    let wanted = Keys(vec![key.clone()]);
    let story: Vec<TaskEvent> = viewed.inspect(|state| {
        let steps: Vec<&TaskEvent> = state.story(&wanted).collect();
        let excess = steps.len().saturating_sub(MAX_STEPS);
        steps[excess..].iter().copied().cloned().collect()
    });
    let story = story.iter().map(|step| {
        let (from, to) = match &step.change {
            TaskChange::State { from, to } => (*from, *to),
            TaskChange::ComputeRequested { state } => (*state, "compute-task"),
            _ => ("", ""),
        };
        json!({
            "time": step.time,
            "key": key_text(viewed, &step.key),
            "from": from,
            "to": to,
            "stimulus": cut(&step.stimulus.to_string()),
            "worker": step.worker.as_deref().map(cut),
        })
    });
    let story: Vec<Json> = story.collect();
    let error = task.failure.as_ref().map(|failure| {
        let error = RemoteError::of_fields(&failure.exception, failure.traceback.as_ref());
        let traceback = Some(long(&error.traceback)).filter(|text| !text.is_empty());
        let text = match error.message.is_empty() {
            true => error.class.clone(),
            false => format!("{}: {}", error.class, error.message),
        };
        (long(&text), traceback)
    });
    let (exception, traceback) = error.unzip();
    let cause = task
        .failure
        .as_ref()
        .and_then(|failure| failure.cause.as_ref());
    let related = |tasks: &[(Key, &'static str)]| -> Vec<Json> {
        let tasks = tasks.iter();
        tasks
            .map(|(key, state)| json!({"key": key_text(viewed, key), "state": state}))
            .collect()
    };
    let names = |names: &[String]| -> Vec<String> {
        names.iter().map(|name| cut(name).into_owned()).collect()
    };
    let (user, generation, order) = task.priority;
    Ok(json!({
        "key": key_text(viewed, key),
        "name": long(&super::keys::shown(key)),
        "prefix": cut(&task.overview.prefix),
        "group": cut(&task.overview.group),
        "state": task.overview.state,
        "since": task.changed,
        "wanted_by": names(&task.wanted_by),
        "workers": names(&task.holders),
        "processing_on": task.processing_on.as_deref().map(cut),
        "priority": [json!(user), json!(generation), json!(order)],
        "restrictions": {
            "workers": names(&task.workers),
            "allow_other_workers": task.allow_other_workers,
        },
        "resources": task.resources,
        "annotations": to_json(&task.annotations),
        "retries": task.retries,
        "suspicious": task.kill_count,
        "nbytes": task.overview.nbytes,
        "type": task.class.as_deref().and_then(class_name),
        "code": task.code.as_deref().map(long),
        "exception": exception,
        "traceback": traceback.flatten(),
        "cause": cause.map(|key| key_text(viewed, key)),
        "dependencies": related(&task.dependencies),
        "dependencies_total": task.dependency_count,
        "dependents": related(&task.dependents),
        "dependents_total": task.dependent_count,
        "story": story,
    }))
}

/// The name of a class of Python that is pickled as Python does it; `None` for other pickles.
fn class_name(pickle: &[u8]) -> Option<String> {
    let (_, mut rest) = pickle.split_at_checked(2)?;
    let mut names = Vec::new();
    loop {
        let (opcode, after) = rest.split_first()?;
        rest = after;
        match opcode {
            // The length of a frame, which is the rest.
            0x95 => (_, rest) = rest.split_at_checked(8)?,
            // A string, by its length.
            0x8c => {
                let (len, after) = rest.split_first()?;
                let (name, after) = after.split_at_checked(usize::from(*len))?;
                names.push(core::str::from_utf8(name).ok()?);
                rest = after;
            }
            // The string is remembered.
            0x94 => {}
            // The global with the two names before.
            0x93 => {
                let [module, name] = names[..] else {
                    return None;
                };
                let is_builtin = module == "builtins";
                return Some(if is_builtin {
                    name.to_owned()
                } else {
                    format!("{module}.{name}")
                });
            }
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_named() {
        let pickle = b"\x80\x05\x95\x14\0\0\0\0\0\0\0\x8c\x08builtins\x94\x8c\x03int\x94\x93\x94.";
        assert_eq!(class_name(pickle).as_deref(), Some("int"));
        let pickle = b"\x80\x04\x8c\x05numpy\x94\x8c\x07ndarray\x94\x93\x94.";
        assert_eq!(class_name(pickle).as_deref(), Some("numpy.ndarray"));
        for end in 0..pickle.len() - 2 {
            assert_eq!(class_name(&pickle[..end]), None, "{end}");
        }
        assert_eq!(class_name(b"\x80\x04K\x01."), None);
    }
}
