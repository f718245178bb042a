//! The message that submits a graph, in the form of the scheduler's release.

use daskwire_messages::dialect::{self, Dialect};
use daskwire_messages::graph::Graph;
use daskwire_messages::protocol::{
    Actors, FromClient, Keys, Nullable, UpdateGraph, UpdateGraphLayers, UpdateGraphTasks,
};
use daskwire_messages::value::ValueError;
use daskwire_messages::{Key, Value};

use super::SubmitOptions;

/// The `update-graph` that submits `graph` and asks for `keys`.
pub(super) fn update_graph(
    graph: &Graph,
    keys: Vec<Key>,
    options: &SubmitOptions,
    dialect: &Dialect,
) -> Result<FromClient, ValueError> {
    let user_priority = options.priority;
    Ok(match dialect.graph_form {
        // ROLES CLIENT-2
        dialect::GraphForm::Expression => UpdateGraph {
            expr_ser: graph.to_expression_for(dialect.pickling)?,
            keys: Keys(keys),
            user_priority,
            annotations: options.annotations(),
            internal_priority: Nullable(None),
            submitting_task: Nullable(None),
            span_metadata: Nullable(None),
            actors: Actors::None,
            extra: Vec::new(),
        }
        .into(),
        // ROLES CLIENT-3
        dialect::GraphForm::Layers(form) => {
            let header = [
                ("serializer", Value::from("pickle")),
                ("writeable", Value::list([0; 0])),
            ];
            UpdateGraphLayers {
                graph_header: Value::dict(header),
                graph_frames: vec![graph.to_layers(dialect, form)?],
                keys: Keys(keys),
                span_metadata: dialect.has_span_metadata.then_some(Value::None),
                user_priority,
                annotations: options.annotations(),
                ..UpdateGraphLayers::default()
            }
            .into()
        }
        // ROLES CLIENT-4
        dialect::GraphForm::Tasks => {
            let tasks = graph.to_tasks(dialect)?;
            let all = || tasks.tasks.iter().map(|(key, _)| key.clone());
            let each = |name| {
                let value = options.annotation(name)?;
                Some(all().map(|key| (key, value.clone())).collect())
            };
            UpdateGraphTasks {
                restrictions: each("workers"),
                loose_restrictions: options
                    .annotation("allow_other_workers")
                    .map(|_| all().collect()),
                resources: each("resources"),
                retries: each("retries"),
                tasks: tasks.tasks.clone(),
                dependencies: tasks.dependencies,
                keys: Keys(keys),
                priority: tasks.priority,
                user_priority,
                extra: Vec::new(),
            }
            .into()
        }
    })
}
