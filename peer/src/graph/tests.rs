use super::*;

#[test]
fn graphs_come_back_as_they_were() {
    let x = Key::list(["x".into(), 0.into()]);
    let partial = Function::Partial {
        function: Box::new(Function::python("operator.mul")),
        arguments: vec![Argument::from(2)],
        keywords: vec![("b".into(), Argument::from(&x))],
    };
    let graph: Graph = [
        Task::new(
            "a",
            "operator.add",
            [Argument::from(&x), Argument::from(2.5)],
        ),
        Task::new(
            "b",
            "native:hypot",
            [Argument::list([&x, &x]), Argument::from("text")],
        )
        .keyword("name", Value::list([1, 2]))
        .keyword("other", &x),
        // One item that is a list itself.
        Task::new("s", "builtins.sorted", [Value::list([3, 1])]).keyword("reverse", true),
        Task::new("c", partial, [1]),
        Task {
            key: "d".into(),
            work: Work::Is(Argument::from(&x)),
        },
        Task {
            key: "e".into(),
            work: Work::Is(Argument::from(7)),
        },
        Task {
            key: "f".into(),
            work: Work::Fused {
                tasks: vec![
                    Task::new("g", "operator.neg", [&Key::from("within")]),
                    Task::new("f", "operator.neg", [&Key::from("g")]),
                ],
                output: "f".into(),
                inputs: vec![("within".into(), Argument::from(&x))],
            },
        },
    ]
    .into_iter()
    .collect();
    let read = Graph::read(&graph.to_expression().expect("plain")).expect("a graph");
    assert_eq!(read, graph);
    for task in &graph.tasks {
        let run_spec = task.to_run_spec().expect("plain");
        assert_eq!(&Task::read(&run_spec, &task.key).expect("a task"), task);
    }
    assert_eq!(graph.tasks[1].dependencies(), core::slice::from_ref(&x));
    let fused = graph.tasks.last().expect("there are some");
    assert_eq!(fused.dependencies(), [x]);
    let outlines = Graph::read_outline(&graph.to_expression().expect("plain"));
    for (outline, task) in outlines.expect("a graph").iter().zip(&graph.tasks) {
        assert_eq!(outline.key, task.key);
        assert_eq!(outline.dependencies, task.dependencies(), "{}", task.key);
        assert_eq!(
            &Task::read(&outline.run_spec, &task.key).expect("a task"),
            task
        );
    }
}

#[test]
fn tasks_are_copied_with_what_nobody_here_understands() {
    // {"a": Task("a", f, x, x), "b": f, "c": 7} where f is a function that only
    // Python can make, and that is part of its own state.
    use daskwire::pickle::{Options, Writer};
    let write = |writer: &mut Writer<'_, '_>| {
        writer.reduce().global("dask._expr", "LLGExpr").tuple(1);
        writer.dict(2);
        writer.str("a");
        writer.reduce().global("dask._task_spec", "Task").tuple(4);
        writer.str("a");
        writer.build().reduce();
        writer.global("cloudpickle.cloudpickle", "_make_function");
        writer.tuple(2).tuple(0).end().bytes(b"code").end();
        let function = writer.end().memoize();
        writer.dict(1).str("itself").get(function);
        let shared = writer.list(2).memoize();
        writer.i64(1 << 40).f64(0.5);
        writer.get(shared);
        writer.str("c").i64(7);
        Ok::<(), daskwire::pickle::WriteError>(())
    };
    let pickle = crate::growing::pickle(Options::default(), write).expect("it is written");
    let expression = crate::Serialized::of_written_pickle(pickle.into());
    let tasks = Graph::read_outline(&expression).expect("a graph");
    let [a, c] = &tasks[..] else {
        panic!("{tasks:?}");
    };
    let (copy, _) = a.run_spec.pickle().expect("a pickle");
    let tree = daskwire::pickle::tree::Tree::new(&copy).expect("a pickle");
    let [_, function, one, other] = match tree.root().value() {
        daskwire::pickle::tree::Value::Call { arguments, .. } => {
            arguments.items().exactly().expect("four")
        }
        other => panic!("{other:?}"),
    };
    assert!(one.is_same(other));
    let state = function.operations().find_map(|operation| match operation {
        daskwire::pickle::tree::Operation::State(state) => state.node().get("itself"),
        _ => None,
    });
    assert!(state.expect("its state").is_same(function));
    let seven = Task::read(&c.run_spec, &c.key).expect("a task");
    assert_eq!(seven.work, Work::Is(Argument::from(7)));
}
