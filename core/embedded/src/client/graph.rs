//! Graphs with one task, for the scheduler.

use daskwire::msgpack::{Reader, Writer};
use daskwire_pickle::Writer as PickleWriter;

use super::Argument;
use crate::link::Outgoing;
use crate::store::{Part, Store};
use crate::value::Failure;

/// The maximum length of the message that submits a task, without the task itself,
/// in bytes.
pub(super) const GRAPH_LEN: usize = 640;

/// Writes the pickle of a graph with one task. It is made by `_reconstruct`, which
/// takes a token for the graph: without one, the scheduler hashes the graph.
pub(super) fn write_graph<const KEYS: usize, const DATA: usize>(
    writer: &mut PickleWriter<'_, '_>,
    key: &str,
    function: &str,
    arguments: &[Argument<'_>],
    store: &Store<KEYS, DATA>,
) -> Result<(), Failure> {
    writer.reduce().global("dask._expr", "Expr._reconstruct");
    writer.tuple(4).global("dask._expr", "LLGExpr");
    writer.dict(1).str(key);
    writer.reduce().global("dask._task_spec", "Task");
    writer.tuple(arguments.len().saturating_add(2)).str(key);
    if function.starts_with("native:") {
        writer.reduce().global("operator", "methodcaller");
        writer.tuple(1).str(function);
    } else {
        let dot = function.bytes().rposition(|byte| byte == b'.');
        let parts = dot.and_then(|dot| function.split_at_checked(dot));
        let (module, name) = parts.ok_or(Failure::value_error("the function has no module"))?;
        writer.global(module, name.trim_start_matches('.'));
    }
    for argument in arguments {
        match argument {
            Argument::Value(value) => value.write_pickle(writer),
            Argument::Task(task) => {
                let id = store.resolve(task.0);
                let key = id.and_then(|id| Reader::new(store.part(id, Part::Key)).str().ok());
                let key = key.ok_or(Failure::value_error("the task has been released"))?;
                writer.reduce().global("dask._task_spec", "TaskRef");
                writer.tuple(1).str(key.to_str());
            }
        }
    }
    writer.str(key).dict(0);
    Ok(())
}

/// Sends a graph with one task. Returns false if there is no room.
pub(super) fn send_graph(outgoing: &mut Outgoing<'_>, key: &[u8], task: &[u8]) -> bool {
    let mut body = [0; GRAPH_LEN - 128];
    let mut writer = Writer::new(&mut body);
    writer.array(1).map(10).str("op").str("update-graph");
    writer.str("expr_ser").map(1).str("__Serialized__").u64(1);
    writer.str("keys").map(2).str("__Set__").bool(true);
    writer.str("as-list").array(1).encoded(key);
    // With priorities, the scheduler does not compute them.
    writer.str("internal_priority").map(1).encoded(key).u64(0);
    writer.str("submitting_task").nil();
    writer.str("fifo_timeout").f64(0.1);
    writer.str("actors").nil();
    writer.str("code").array(0);
    writer.str("annotations").map(0);
    writer.str("span_metadata").nil();
    let Ok(body) = writer.finish() else {
        return false;
    };
    let mut header = [0; 64];
    let mut writer = Writer::new(&mut header);
    writer.map(3).str("serializer").str("pickle");
    writer.str("writeable").array(0);
    writer.str("num-sub-frames").u64(1);
    let Ok(header) = writer.finish() else {
        return false;
    };
    outgoing.send_frames(&[body, header, task])
}
