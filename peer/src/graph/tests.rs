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
    ]
    .into_iter()
    .collect();
    let read = Graph::read(&graph.to_expression().expect("plain")).expect("a graph");
    assert_eq!(read, graph);
    for task in &graph.tasks {
        let run_spec = task.to_run_spec().expect("plain");
        assert_eq!(&Task::read(&run_spec, &task.key).expect("a task"), task);
    }
    assert_eq!(graph.tasks[1].dependencies(), [x]);
}
