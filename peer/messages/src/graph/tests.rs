use daskwire_pickle::tree::Tree;

use super::copy::Effects;
use super::expression::plan;
use super::families::Families;
use super::plan::Converter;
use super::*;
use crate::Serialized;
use crate::value::{Budget, TreeReader};

#[test]
fn graphs_round_trip() {
    let x = Key::list(["x".into(), 0.into()]);
    let partial = Function::Partial {
        function: Box::new(Function::python("operator.mul")),
        arguments: vec![Argument::from(2)],
        keywords: vec![("b".into(), Argument::from(3))],
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
        // One item that is itself a list.
        Task::new("s", "builtins.sorted", [Value::list([3, 1])]).keyword("reverse", true),
        Task::new("c", partial.clone(), [1]),
        Task::new(
            "partial of a partial",
            Function::Partial {
                function: Box::new(partial),
                arguments: vec![Argument::from(4)],
                keywords: Vec::new(),
            },
            [1],
        ),
        Task {
            key: "d".into(),
            work: Work::Argument(Argument::from(&x)),
        },
        Task {
            key: "e".into(),
            work: Work::Argument(Argument::from(7)),
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
    let fused = graph.tasks.last().expect("tasks");
    assert_eq!(fused.dependencies(), [x]);
    let outlines = Graph::read_outline(&graph.to_expression().expect("plain"), None);
    for (outline, task) in outlines.expect("a graph").iter().zip(&graph.tasks) {
        assert_eq!(outline.key, task.key);
        assert_eq!(outline.dependencies, task.dependencies(), "{}", task.key);
        assert_eq!(
            &Task::read(&outline.run_spec.to_serialized(), &task.key).expect("a task"),
            task
        );
    }
}

#[test]
fn copies_tasks_with_unknown_objects() {
    // {"a": Task("a", f, x, x), "b": f, "c": 7} where f is a function that only
    // Python can make, and that refers to itself in its state.
    use daskwire_pickle::{Writer, WriterOptions};
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
        Ok::<(), daskwire_pickle::WriteError>(())
    };
    let pickle = crate::scratch::pickle(WriterOptions::default(), write).expect("writable pickle");
    let expression = Serialized::of_written_pickle(pickle.into());
    let tasks = Graph::read_outline(&expression, None).expect("a graph");
    let [a, c] = &tasks[..] else {
        panic!("{tasks:?}");
    };
    let (copy, _) = a.run_spec.to_serialized().pickle().expect("a pickle");
    let tree = Tree::new(&copy).expect("a pickle");
    let [_, function, one, other] = match tree.root().value() {
        daskwire_pickle::tree::Value::Call { arguments, .. } => {
            arguments.items().exactly().expect("four")
        }
        other => panic!("{other:?}"),
    };
    assert!(one.is_same(other));
    let state = function.operations().find_map(|operation| match operation {
        daskwire_pickle::tree::Operation::State(state) => state.node().get("itself"),
        _ => None,
    });
    assert!(state.expect("its state").is_same(function));
    let seven = Task::read(&c.run_spec.to_serialized(), &c.key).expect("a task");
    assert_eq!(seven.work, Work::Argument(Argument::from(7)));
}

#[test]
fn items_of_a_tuple_become_pickles_with_all_that_they_refer_to() {
    // (f, [f], f) where f is an object that a call fills whose result is dropped.
    let pickle = b"\x80\x05(\x8c\x01m\x8c\x06Filled\x93)R\x94\x8c\x01m\x8c\x04fill\x93h\x00K\x07\x86R0]h\x00ah\x00t.";
    let copies = split_tuple(pickle).expect("a tuple");
    assert_eq!(copies.len(), 3);
    for (copy, in_list) in copies.iter().zip([false, true, false]) {
        let (copy, _) = copy.to_serialized().pickle().expect("a pickle");
        let tree = Tree::new(&copy).expect("a pickle");
        let mut node = tree.root();
        if in_list {
            [node] = node.items().exactly().expect("one");
        }
        // getitem((filled, fill(filled, 7)), 0)
        let (called, arguments) = node.as_call().expect("a call");
        assert!(
            called
                .as_global()
                .expect("a function")
                .is("operator", "getitem")
        );
        let [parts, _] = arguments.exactly().expect("two");
        let [filled, call] = parts.items().exactly().expect("the object and a call");
        let (called, arguments) = call.as_call().expect("a call");
        assert!(called.as_global().expect("a function").is("m", "fill"));
        let [object, seven] = arguments.exactly().expect("two");
        assert!(object.is_same(filled));
        assert_eq!(seven.as_i64(), Some(7));
    }
}

#[test]
fn objects_stay_the_same_in_several_places_and_in_themselves() {
    // (t, [b, b]) where t is ([t],) and b is b"abc", as Python writes it.
    let pickle = b"\x80\x04\x95\x19\x00\x00\x00\x00\x00\x00\x00]\x94h\x00\x85\x94a0h\x01]\x94(C\x03abc\x94h\x03e\x86\x94.";
    let copies = split_tuple(pickle).expect("a tuple");
    let pickles = copies
        .iter()
        .map(|copy| copy.to_serialized().pickle().expect("a pickle").0);
    let pickles: Vec<_> = pickles.collect();
    let trees = pickles.iter().map(|it| Tree::new(it).expect("a pickle"));
    let [recursive, twice] = &trees.collect::<Vec<_>>()[..] else {
        panic!("not two: {copies:?}");
    };
    // getitem((another one, t), 1)
    let (called, arguments) = recursive.root().as_call().expect("a call");
    assert!(
        called
            .as_global()
            .expect("a function")
            .is("operator", "getitem")
    );
    let [both, one] = arguments.exactly().expect("two");
    assert_eq!(one.as_i64(), Some(1));
    let [_, t] = both.items().exactly().expect("two");
    let [list] = t.items().exactly().expect("one");
    let [inner] = list.items().exactly().expect("one");
    let (_, arguments) = inner.as_call().expect("a call, too");
    let [both, _] = arguments.exactly().expect("two");
    let [_, inner] = both.items().exactly().expect("two");
    assert!(inner.is_same(t));
    let [b, again] = twice.root().items().exactly().expect("two");
    assert_eq!(b.as_bytes(), Some(&b"abc"[..]));
    assert!(b.is_same(again));
}

#[test]
fn a_tuple_whose_copies_are_too_long_is_refused() {
    use daskwire_pickle::{WriteError, WriterOptions};
    let split = |count: usize| {
        let pickle = crate::scratch::pickle(WriterOptions::default(), |writer| {
            writer.tuple(count);
            writer.bytearray(&[7; 1 << 20]);
            let shared = writer.memoize();
            for _ in 1..count {
                writer.get(shared);
            }
            Ok::<(), WriteError>(())
        });
        split_tuple(&pickle.expect("writable pickle"))
    };
    assert_eq!(split(10).expect("10 MiB").len(), 10);
    assert!(matches!(split(300), Err(GraphError::Value(_))));
    assert!(matches!(
        split_tuple(b"\x80\x04K\x07."),
        Err(GraphError::Unexpected { .. })
    ));
}

/// A task `a` that calls `len` with the argument written by `write`.
fn task_of(write: impl Fn(&mut daskwire_pickle::Writer<'_, '_>)) -> bytes::Bytes {
    use daskwire_pickle::{WriteError, WriterOptions};
    let pickle = crate::scratch::pickle(WriterOptions::default(), |writer| {
        writer.reduce().global("dask._task_spec", "Task").tuple(3);
        writer.str("a").global("builtins", "len");
        write(writer);
        Ok::<(), WriteError>(())
    });
    pickle.expect("writable pickle").into()
}

/// The function of a task that is `partial(math.hypot, *args)` with these attributes.
fn function_of_partial(args: &[i64], attributes: &[(&str, &str)]) -> Function {
    use daskwire_pickle::{WriteError, WriterOptions};
    let pickle = crate::scratch::pickle(WriterOptions::default(), |writer| {
        writer.reduce().global("dask._task_spec", "Task").tuple(3);
        writer.str("a");
        writer.build().reduce().global("functools", "partial");
        writer.tuple(1).global("math", "hypot");
        writer.tuple(4).global("math", "hypot");
        writer.tuple(args.len());
        args.iter().for_each(|arg| {
            writer.i64(*arg);
        });
        writer.dict(0).dict(attributes.len());
        attributes.iter().for_each(|(name, value)| {
            writer.str(name).str(value);
        });
        writer.i64(3);
        Ok::<(), WriteError>(())
    });
    let spec = Serialized::of_written_pickle(pickle.expect("writable pickle").into());
    match Task::read(&spec, &"a".into()).expect("a task").work {
        Work::Call { function, .. } => function,
        work => panic!("{work:?} is no call"),
    }
}

/// A partial as `daskwire.native` of the Python package writes it.
#[test]
fn a_partial_may_stand_for_a_native_function() {
    let native = [("daskwire_native", "native:hypot")];
    assert_eq!(function_of_partial(&[], &native), Function::native("hypot"));
    for (args, attributes) in [
        (&[][..], &[][..]),
        (&[1], &native),
        (&[], &[("daskwire_native", "hypot")]),
        (&[], &[("other", "native:hypot")]),
        (&[], &[native[0], ("other", "attribute")]),
    ] {
        let function = function_of_partial(args, attributes);
        assert!(matches!(function, Function::Partial { .. }), "{function}");
    }
}

/// `operator.methodcaller("native:hypot", *args, by=2)`, as Python pickles it.
fn function_of_caller(args: &[i64], caller: &str, name: &str) -> Function {
    use daskwire_pickle::{WriteError, WriterOptions};
    let pickle = crate::scratch::pickle(WriterOptions::default(), |writer| {
        writer.reduce().global("dask._task_spec", "Task").tuple(3);
        writer.str("a");
        writer.reduce();
        writer.build().reduce().global("functools", "partial");
        writer.tuple(1).global("_operator", caller);
        writer.tuple(4).global("_operator", caller);
        writer.tuple(1).str(name);
        writer.dict(1).str("by").i64(2);
        writer.none();
        writer.tuple(args.len());
        args.iter().for_each(|arg| {
            writer.i64(*arg);
        });
        writer.i64(3);
        Ok::<(), WriteError>(())
    });
    let spec = Serialized::of_written_pickle(pickle.expect("writable pickle").into());
    match Task::read(&spec, &"a".into()).expect("a task").work {
        Work::Call { function, .. } => function,
        work => panic!("{work:?} is no call"),
    }
}

#[test]
fn a_methodcaller_may_have_keywords() {
    let expected = Function::Partial {
        function: Box::new(Function::native("hypot")),
        arguments: Vec::new(),
        keywords: vec![("by".to_owned(), Argument::from(2))],
    };
    let function = function_of_caller(&[], "methodcaller", "native:hypot");
    assert_eq!(function, expected);
    for (args, caller, name) in [
        // They follow the arguments of the call.
        (&[1][..], "methodcaller", "native:hypot"),
        (&[], "methodcaller", "split"),
        (&[], "attrgetter", "native:hypot"),
    ] {
        let function = function_of_caller(args, caller, name);
        assert!(matches!(function, Function::Unknown(_)), "{function}");
    }
}

/// `x = TaskRef("x")`, then `x = List(x, x)` for each level.
fn shared_lists(writer: &mut daskwire_pickle::Writer<'_, '_>, levels: usize) {
    for _ in 0..levels {
        writer.reduce().global("dask._task_spec", "List").tuple(2);
    }
    writer.reduce().global("dask._task_spec", "TaskRef");
    let mut index = writer.tuple(1).str("x").end().end().memoize();
    for _ in 0..levels {
        index = writer.get(index).end().end().memoize();
    }
}

#[test]
fn a_value_may_be_shared_many_times() {
    let pickle = task_of(|writer| {
        writer.list(50_000);
        let index = writer.str("x").memoize();
        for _ in 1..50_000 {
            writer.get(index);
        }
    });
    let spec = Serialized::of_written_pickle(pickle);
    let task = Task::read(&spec, &"a".into()).expect("a task");
    let all = vec![Value::from("x"); 50_000];
    assert_eq!(task, Task::new("a", "len", [Value::List(all.into())]));
}

#[test]
fn finding_dependencies_of_shared_nodes_takes_linear_time() {
    use super::depends::Dependencies;
    use crate::value::Budget;
    let steps = |levels: usize| {
        let pickle = task_of(|writer| shared_lists(writer, levels));
        let tree = Tree::new(&pickle).expect("a pickle");
        let budget = Budget::new(1 << 20, 1 << 20);
        let found = Dependencies::new(&tree).of_part(&plan::Part::Node(tree.root()), &budget);
        assert_eq!(found.expect("readable task").0, ["x".into()]);
        (1 << 20) - budget.left().0
    };
    for levels in [11, 22, 44] {
        let (few, many) = (steps(levels), steps(levels * 2));
        assert!(many <= few * 2, "{many} steps for twice {few}");
    }
}

// Dask calls a function with such nodes as they are.
#[test]
fn references_in_plain_containers_are_no_dependencies() {
    use super::depends::Dependencies;
    use crate::value::Budget;
    let pickle = task_of(|writer| {
        writer.list(1).reduce();
        writer.global("dask._task_spec", "TaskRef");
        writer.tuple(1).str("x").end().end().end();
    });
    let tree = Tree::new(&pickle).expect("a pickle");
    let found = Dependencies::new(&tree).of_part(
        &plan::Part::Node(tree.root()),
        &Budget::new(1 << 20, 1 << 20),
    );
    assert_eq!(found.expect("a task").0, []);
    drop(tree);
    let run_spec = Serialized::of_written_pickle(pickle);
    let task = Task::read(&run_spec, &Key::from("a")).expect("a task");
    assert_eq!(task.dependencies(), []);
    let Work::Call { arguments, .. } = task.work else {
        panic!("a call");
    };
    assert!(
        matches!(arguments[..], [Argument::Unknown(_)]),
        "{arguments:?}"
    );
}

#[test]
fn bounds_the_size_of_shared_nodes_by_the_pickle_length() {
    let read = |levels: usize| {
        let pickle = task_of(|writer| shared_lists(writer, levels));
        let reading = TreeReader::new(&pickle, &[]);
        let (before, _) = reading.budget.left();
        let tree = Tree::new(&pickle).expect("a pickle");
        let result = read::task(
            &read::TaskReader::new(&reading),
            tree.root(),
            None,
            read::DEPTH,
        );
        (
            result,
            pickle.len(),
            before,
            before - reading.budget.left().0,
        )
    };
    let (task, ..) = read(10);
    assert_eq!(task.expect("a task").dependencies(), ["x".into()]);
    for levels in [20, 40, 80] {
        let (task, len, allowed, spent) = read(levels);
        let too_large = GraphError::Value(ValueError::TooLarge);
        assert_eq!(task, Err(too_large), "{levels} levels");
        assert!(spent <= allowed && allowed <= 4 * len + (1 << 18));
    }
    // The same with Python tuples.
    let pickle = task_of(|writer| {
        for _ in 0..40 {
            writer.tuple(2);
        }
        let mut index = writer.str("x").memoize();
        for _ in 0..40 {
            index = writer.get(index).end().memoize();
        }
    });
    let spec = Serialized::of_written_pickle(pickle);
    Task::read(&spec, &"a".into()).expect_err("too large");
}

#[test]
fn bounds_the_data_shared_by_tasks() {
    use daskwire_pickle::{WriteError, WriterOptions};
    // All tasks have the same data and depend on the same long key.
    let outline = |count: usize, data_len: usize, key_len: usize| {
        let (data, long_key) = (vec![0; data_len], "k".repeat(key_len));
        let pickle = crate::scratch::pickle(WriterOptions::default(), |writer| {
            writer.reduce().global("dask._expr", "LLGExpr").tuple(1);
            writer.dict(count);
            let mut shared = None;
            for number in 0..count {
                writer.i64(number.try_into().expect("small"));
                writer.reduce().global("dask._task_spec", "Task").tuple(4);
                writer.none().global("builtins", "len");
                match shared {
                    None => {
                        let data = writer.bytes(&data).memoize();
                        writer
                            .reduce()
                            .global("dask._task_spec", "TaskRef")
                            .tuple(1);
                        shared = Some((data, writer.str(&long_key).memoize()));
                    }
                    Some((data, key)) => {
                        writer.get(data);
                        writer
                            .reduce()
                            .global("dask._task_spec", "TaskRef")
                            .tuple(1);
                        writer.get(key);
                    }
                }
            }
            Ok::<(), WriteError>(())
        });
        let pickle = pickle.expect("writable pickle");
        Graph::read_outline(&Serialized::of_written_pickle(pickle.into()), None)
    };
    // ROLES SCHEDULER-9: the tasks, and the data that they share.
    assert_eq!(outline(50, 1 << 20, 10).expect("a graph").len(), 51);
    let shared = outline(1000, 1 << 20, 10).expect("a graph");
    let (last, tasks) = shared.split_last().expect("tasks");
    assert!(last.is_shared && last.run_spec.len() > 1 << 20);
    for task in tasks {
        assert_eq!(
            task.dependencies,
            [Key::from("k".repeat(10)), last.key.clone()]
        );
        assert!(task.run_spec.len() < 400);
    }
    outline(1000, 10, 1 << 20).expect_err("a GiB of a MiB");
    let copied_len = |count: usize| -> usize {
        let tasks = outline(count, 1 << 10, 1 << 10).expect("a graph");
        let specs = tasks
            .iter()
            .map(|task| task.run_spec.to_serialized().pickle());
        specs.map(|spec| spec.expect("a pickle").0.len()).sum()
    };
    let (once, twice) = (copied_len(200), copied_len(400));
    assert!(once > 200 << 11, "{once} bytes");
    assert!(
        twice <= once / 4 * 9,
        "{once} bytes, {twice} for twice as many tasks"
    );
}

#[test]
fn a_future_is_a_reference_to_its_key() {
    let pickle = task_of(|writer| {
        writer
            .reduce()
            .global("dask._task_spec", "List")
            .tuple(1)
            .list(2);
        writer
            .reduce()
            .global("distributed.client", "Future")
            .tuple(1);
        let future = writer.str("x").end().end().memoize();
        writer.get(future);
    });
    let spec = Serialized::of_written_pickle(pickle);
    let task = Task::read(&spec, &"a".into()).expect("a task");
    let x = Key::from("x");
    assert_eq!(task, Task::new("a", "len", [Argument::list([&x, &x])]));
    assert_eq!(task.dependencies(), [x]);
}

#[test]
fn results_are_found_at_any_depth() {
    let key = |name: &str| Key::from(name);
    let inner = Function::Partial {
        function: Box::new(Function::python("operator.mul")),
        arguments: vec![Argument::from(key("inner"))],
        keywords: vec![("a".into(), Argument::list([key("inner-keyword")]))],
    };
    let outer = Function::Partial {
        function: Box::new(inner),
        arguments: vec![Argument::Tuple(vec![Argument::Dict(vec![(
            Argument::from(key("outer-key")),
            Argument::from(key("outer-value")),
        )])])],
        keywords: vec![("b".into(), Argument::from(key("outer-keyword")))],
    };
    let within = Task::new("within", outer, [Argument::Set(vec![key("set").into()])]);
    let argument = Argument::Task(Box::new(within));
    let task = Task::new("z", "operator.neg", [argument]).keyword("c", key("keyword"));
    let mut keys = [
        "inner",
        "inner-keyword",
        "outer-key",
        "outer-value",
        "outer-keyword",
        "set",
        "keyword",
    ]
    .map(Key::from);
    keys.sort_unstable();
    assert_eq!(task.dependencies(), keys);
}

/// Dask does not look for results in partials.
#[test]
fn partials_that_need_results_are_written_as_plain_calls() {
    let inner = |keyword: &str| Function::Partial {
        function: Box::new(Function::python("operator.mul")),
        arguments: vec![Argument::from(1)],
        keywords: vec![(keyword.into(), Argument::list([Key::from("x")]))],
    };
    let outer = |keyword: &str| Function::Partial {
        function: Box::new(inner(keyword)),
        arguments: vec![Argument::from(2), Argument::from(Key::from("y"))],
        keywords: vec![("b".into(), Argument::from(5))],
    };
    let read = |task: &Task| {
        let graph: Graph = [task.clone()].into_iter().collect();
        let read = Graph::read(&graph.to_expression().expect("plain")).expect("a graph");
        let spec = task.to_run_spec().expect("plain");
        let alone = Task::read(&spec, &task.key).expect("a task");
        assert_eq!(read.tasks, [alone]);
        read.tasks[0].clone()
    };
    let task = Task::new("z", outer("a"), [3]).keyword("c", 6);
    let arguments = [1.into(), 2.into(), Key::from("y").into(), 3.into()];
    let plain = Task::new("z", "operator.mul", arguments as [Argument; 4])
        .keyword("a", Argument::list([Key::from("x")]))
        .keyword("b", 5)
        .keyword("c", 6);
    assert_eq!(read(&task), plain);
    assert_eq!(task.dependencies(), plain.dependencies());
    // A list that contains the call.
    let argument = |task: Task| Task::new("y", "len", [Argument::Task(Box::new(task))]);
    let within = read(&argument(task));
    let Work::Call { arguments, .. } = &within.work else {
        panic!("{within:?}")
    };
    assert!(
        matches!(&arguments[..], [Argument::Task(task)] if task.work == plain.work),
        "{within:?}"
    );
    // A keyword that is passed twice has the value of the outermost partial.
    let twice = Task::new("z", outer("b"), [3]);
    let arguments = [1.into(), 2.into(), Key::from("y").into(), 3.into()];
    let plain = Task::new("z", "operator.mul", arguments as [Argument; 4]).keyword("b", 5);
    assert_eq!(read(&twice), plain);
}

/// The form sent by `client.get({"z": (sum, ["x", 1])}, "z")`.
#[test]
fn reads_containers_of_old_style_graphs() {
    let read = |class: &str| {
        let pickle = task_of(|writer| {
            writer.build().newobj();
            writer.global("dask._task_spec", "Task").tuple(0).end();
            writer.end().tuple(9);
            for _ in 0..5 {
                writer.none();
            }
            writer.tuple(2);
            writer.reduce().global("dask._task_spec", "TaskRef");
            writer.tuple(1).str("x").end().end();
            writer.i64(1).end();
            writer.global("dask._task_spec", "_identity_cast").none();
            writer.dict(1).str("typ").global("builtins", class).end();
            writer.end().end();
        });
        let spec = Serialized::of_written_pickle(pickle);
        Task::read(&spec, &"a".into()).expect("a task")
    };
    let items = || vec![Argument::from(Key::from("x")), Argument::from(1)];
    for (class, container) in [
        ("list", Argument::List(items())),
        ("tuple", Argument::Tuple(items())),
        ("set", Argument::Set(items())),
    ] {
        let cast = Task {
            key: Key::default(),
            work: Work::Argument(container),
        };
        assert_eq!(
            read(class),
            Task::new("a", "len", [Argument::Task(Box::new(cast))])
        );
    }
    // An unknown class is an argument of an unknown function.
    assert_eq!(read("dict").dependencies(), [Key::from("x")]);
}

#[test]
fn arguments_may_be_nested_deeper_than_the_stack() {
    let deepest = Argument::from(Key::from("x"));
    let nested = (0..500_000).fold(deepest, |argument, _| Argument::List(vec![argument]));
    let task = Task::new("z", "operator.neg", [nested]);
    assert_eq!(task.dependencies(), [Key::from("x")]);
    let function = (0..500_000).fold(Function::python("len"), |function, _| Function::Partial {
        function: Box::new(function),
        arguments: vec![Argument::from(Key::from("y"))],
        keywords: Vec::new(),
    });
    let partial = Task::new("z", function, [Argument::from(1)]);
    assert_eq!(partial.dependencies(), [Key::from("y")]);
    // Dropping them would recurse.
    core::mem::forget((task, partial));
}

/// The tuples that older releases take, as Python shows them.
mod tuples {
    use daskwire_pickle::tree::{Node, Tree, Value as TreeValue};

    use super::*;
    use crate::dialect::{Dialect, TaskForm};

    /// A node roughly as Python would show it.
    fn shown(node: Node<'_, '_>) -> String {
        let all = |nodes: &mut dyn Iterator<Item = Node<'_, '_>>| {
            nodes.map(shown).collect::<Vec<_>>().join(", ")
        };
        match node.value() {
            TreeValue::Str(string) => format!("{:?}", string.to_str().expect("UTF-8")),
            TreeValue::Int(value) => value.to_i64().expect("a small one").to_string(),
            TreeValue::Global(global) => global.name.as_str().unwrap_or_default().to_owned(),
            TreeValue::Tuple(mut items) => format!("({})", all(&mut items)),
            TreeValue::List(mut items) => format!("[{}]", all(&mut items)),
            TreeValue::Set(_) => "set()".to_owned(),
            TreeValue::Dict(entries) => {
                let entries =
                    entries.map(|(key, value)| format!("{}: {}", shown(key), shown(value)));
                format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
            }
            TreeValue::Call {
                callable,
                arguments,
            } => format!("{}{}", shown(callable), shown(arguments)),
            _ => "?".to_owned(),
        }
    }

    fn dialect(release: &str) -> Dialect {
        Dialect::of(release.parse().ok())
    }

    fn graph() -> Graph {
        let x = Key::list([Key::from("x"), Key::from(0)]);
        let arguments = || [Argument::from(&x), Argument::from("a"), Argument::from("y")];
        Graph {
            tasks: vec![
                Task::new(x.clone(), "operator.add", [1, 2]),
                Task::new("y", "f.g", arguments()).keyword("k", "v"),
                Task::new(
                    "z",
                    "f.g",
                    [Argument::list([Argument::from(&Key::from("y"))])],
                ),
            ],
        }
    }

    // ROLES CLIENT-3, CLIENT-5, CLIENT-9
    #[test]
    fn layers_quote_what_could_be_mistaken_for_a_result() {
        let layers = |release, form| {
            let pickle = graph()
                .to_layers(&dialect(release), form)
                .expect("a pickle");
            let shown = {
                let tree = Tree::new(&pickle).expect("a pickle");
                shown(tree.root())
            };
            let start = shown
                .find("('x', 0)")
                .or(shown.find("(\"x\", 0)"))
                .expect("the first key");
            let end = shown.find("}}").expect("the end of the tasks");
            shown[start..end].to_owned()
        };
        assert_eq!(
            layers("2023.8.1", TaskForm::WrappedKeys),
            "('x', 0)\": (add, 1, 2), \
             \"y\": (apply, g, [WrappedKey(\"('x', 0)\"), \"a\", (literal(\"y\"))], \
             (dict, [[\"k\", \"v\"]])), \
             \"z\": (g, [WrappedKey(\"y\")])"
        );
        assert_eq!(
            layers("2024.11.0", TaskForm::References),
            "(\"x\", 0): (add, 1, 2), \
             \"y\": (apply, g, [TaskRef((\"x\", 0)), \"a\", (literal(\"y\"))], \
             (dict, [[\"k\", \"v\"]])), \
             \"z\": (g, [TaskRef(\"y\")])"
        );
        assert!(
            layers("2024.12.0", TaskForm::Nodes)
                .starts_with("(\"x\", 0): Task((\"x\", 0), add, 1, 2)")
        );
    }

    // ROLES CLIENT-4
    #[test]
    fn tasks_by_themselves_are_calls_with_dependencies_and_an_order() {
        let mut graph = graph();
        graph.tasks.reverse();
        let tasks = graph.to_tasks(&dialect("2022.1.0")).expect("pickles");
        let x = Key::from("('x', 0)");
        let (y, z) = (Key::from("y"), Key::from("z"));
        assert_eq!(
            tasks.dependencies,
            [(z.clone(), vec![y.clone()]), (y.clone(), vec![x.clone()])]
        );
        assert_eq!(tasks.priority, [(x, 0), (y, 1), (z, 2)]);
        let calls = tasks.tasks.iter().map(|(_, call)| {
            let open = |pickle: &[u8]| {
                let tree = Tree::new(pickle).expect("a pickle");
                shown(tree.root())
            };
            open(&call.function) + &open(&call.args)
        });
        assert_eq!(
            calls.collect::<Vec<_>>(),
            [
                "execute_task((g, [\"y\"]))",
                "execute_task((apply, g, [\"('x', 0)\", \"a\", \"y\"], (dict, [[\"k\", \"v\"]])))",
                "add(1, 2)",
            ]
        );
    }
}

/// `sorted([3, 1, 2], reverse=True)` as a scheduler of 2024.12.0 sends it, and
/// `add(a, [b, 1], {'c': 2})` of 2024.11.2, where results are in plain containers.
// ROLES WORKER-2
#[test]
fn slots_are_read_by_their_names() {
    const SORTED: &str = "80059541010000000000008c0f6461736b2e5f7461736b5f73706563948c045461736b9493942981944e7d94288c0466756e63948c086275696c74696e73948c06736f727465649493948c04617267739468008c044c6973749493942981947d948c056b6c617373948c086275696c74696e73948c046c697374949394737d9428680e6811680568068c0767657461747472949394680b8c0c746f5f636f6e7461696e6572948694529468094b034b014b0287948c066b7761726773947d948c065f746f6b656e944e8c085f69735f636f726f944e8c055f72657072944e8c036b6579944e8c0d5f646570656e64656e636965739428919475869462859468197d948c0772657665727365948873681b4e681c89681d4e681e8c27736f727465642d373539643438346339303263623932626461356234326565383531336439316694681f6820758694622e";
    const ADD: &str = "8005951a010000000000008c0f6461736b2e5f7461736b5f73706563948c045461736b9493942981944e7d94288c0466756e63948c095f6f70657261746f72948c036164649493948c04617267739468008c05416c6961739493942981944e7d94288c067461726765749468008c075461736b5265669493942981944e7d948c036b6579948c01619473869462681368148c0d5f646570656e64656e63696573942868149194758694625d9428680b2981944e7d9428680e68102981944e7d9468138c016294738694626813681e681628681e9194758694624b01657d948c0163944b027387948c066b7761726773947d948c065f746f6b656e944e8c085f69735f636f726f944e8c055f72657072944e68138c016b94681628681e68149194758694622e";
    let read = |hex: &str| {
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
        let pickle: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
        let run_spec = Serialized::pickled(&pickle);
        Task::read_with_inputs(&run_spec, &Key::from("k"), &|_| false).expect("a task")
    };
    let list = Argument::List(vec![3.into(), 1.into(), 2.into()]);
    let sorted = Task::new("k", "builtins.sorted", [list]).keyword("reverse", true);
    assert_eq!(read(SORTED), sorted);
    let (a, b) = (Key::from("a"), Key::from("b"));
    let list = Argument::List(vec![Argument::from(&b), 1.into()]);
    let dict = Argument::from(Value::dict([("c", 2)]));
    let add = Task::new("k", "operator.add", [Argument::from(&a), list, dict]);
    assert_eq!(read(ADD), add);
}

/// Tasks as schedulers before 2024.11 send them.
mod tuple_tasks {
    use daskwire_pickle::{Writer, WriterOptions};

    use super::*;
    use crate::protocol::{CallPickles, ComputeTask, RunSpec};
    use crate::scratch;
    use crate::value::{Serialized, ValueError};

    fn pickle(write: impl Fn(&mut Writer<'_, '_>)) -> bytes::Bytes {
        let written = scratch::pickle(WriterOptions::default(), |writer| {
            write(writer);
            Ok::<(), ValueError>(())
        });
        written.expect("a pickle").into()
    }

    /// Reads a task with the inputs `x` and `('y', 0)`.
    fn read(run_spec: &Serialized) -> Result<Work, GraphError> {
        let inputs = [Key::from("x"), Key::list([Key::from("y"), Key::from(0)])];
        let task = Task::read_with_inputs(run_spec, &Key::from("k"), &|key| inputs.contains(key));
        task.map(|task| task.work)
    }

    fn call(name: &str, arguments: Vec<Argument>, keywords: Vec<(String, Argument)>) -> Work {
        Work::Call {
            function: Function::python(name),
            arguments,
            keywords,
        }
    }

    fn y() -> Argument {
        Argument::Result(Key::list([Key::from("y"), Key::from(0)]))
    }

    // ROLES WORKER-3, WORKER-4
    #[test]
    fn calls_have_the_keys_of_inputs_among_their_arguments() {
        // (add, ('x', ['z', ('y', 0)], ('x2', 1)), {'k': {'x': 'x'}})
        let run_spec = pickle(|writer| {
            writer.tuple(3).global("_operator", "add");
            writer.tuple(3).str("x");
            writer.list(2).str("z").tuple(2).str("y").i64(0);
            writer.tuple(2).str("x2").i64(1);
            writer.dict(1).str("k").dict(1).str("x").str("x");
        });
        let x = || Argument::from(Key::from("x"));
        let nested = Argument::Dict(vec![("x".into(), x())]);
        let expected = call(
            "operator.add",
            vec![
                x(),
                Argument::List(vec!["z".into(), y()]),
                Argument::Value(Value::Tuple(vec!["x2".into(), 1.into()].into())),
            ],
            vec![("k".to_owned(), nested)],
        );
        assert_eq!(read(&Serialized::pickled(&run_spec)), Ok(expected.clone()));

        // The same as three pickles.
        let field = |name: &str, pickle| (Value::from(name), Value::Bytes(pickle));
        let mut message = ComputeTask {
            extra: vec![
                field(
                    "function",
                    pickle(|writer| {
                        writer.global("_operator", "add");
                    }),
                ),
                field(
                    "args",
                    pickle(|writer| {
                        writer.tuple(3).str("x");
                        writer.list(2).str("z").tuple(2).str("y").i64(0);
                        writer.tuple(2).str("x2").i64(1);
                    }),
                ),
                field(
                    "kwargs",
                    pickle(|writer| {
                        writer.dict(1).str("k").dict(1).str("x").str("x");
                    }),
                ),
            ],
            ..ComputeTask::default()
        };
        let part = |index: usize| match &message.extra[index].1 {
            Value::Bytes(pickle) => pickle.clone(),
            other => panic!("{other}"),
        };
        let call = CallPickles {
            function: part(0),
            args: part(1),
            kwargs: Some(part(2)),
            ..CallPickles::default()
        };
        let mut in_run_spec = ComputeTask {
            run_spec: RunSpec::Call(Box::new(call)),
            ..ComputeTask::default()
        };
        assert_eq!(read(&in_run_spec.take_run_spec()), Ok(expected.clone()));
        assert_eq!(read(&message.take_run_spec()), Ok(expected));
        let mut message = ComputeTask {
            run_spec: RunSpec::Absent,
            ..ComputeTask::default()
        };
        assert!(read(&message.take_run_spec()).is_err(), "no function");
    }

    // ROLES WORKER-4
    #[test]
    fn tasks_among_the_arguments_run_in_place() {
        // (execute_task, ((apply, sum, [('y', 0), (add, 1, 'x')], (dict, [['start', (literal('x'),)]])),), {})
        let run_spec = pickle(|writer| {
            writer.tuple(3).global("dask.core", "_execute_task");
            writer.tuple(1).tuple(4);
            writer
                .global("dask.utils", "apply")
                .global("builtins", "sum");
            writer.list(2).tuple(2).str("y").i64(0);
            writer.tuple(3).global("_operator", "add").i64(1).str("x");
            writer.tuple(2).global("builtins", "dict");
            writer.list(1).list(2).str("start");
            writer
                .tuple(1)
                .reduce()
                .global("dask.core", "literal")
                .tuple(1)
                .str("x");
            writer.dict(0);
        });
        let add = call(
            "operator.add",
            vec![1.into(), Argument::from(Key::from("x"))],
            Vec::new(),
        );
        let add = Task {
            key: Key::default(),
            work: add,
        };
        let expected = call(
            "builtins.sum",
            vec![y(), Argument::Task(Box::new(add))],
            vec![("start".to_owned(), "x".into())],
        );
        let run_spec = Serialized::pickled(&run_spec);
        assert_eq!(read(&run_spec), Ok(expected.clone()));
        // Up to 2022.5 in a field of another name.
        let mut message = ComputeTask {
            extra: vec![("task".into(), Value::Serialized(run_spec))],
            ..ComputeTask::default()
        };
        assert_eq!(read(&message.take_run_spec()), Ok(expected));
        // A key alone: the task is another name of a result.
        let alias = Serialized::of_written_pickle(pickle(|writer| {
            writer.str("x");
        }));
        assert_eq!(
            read(&alias),
            Ok(Work::Argument(Argument::from(Key::from("x"))))
        );
    }

    // ROLES WORKER-5
    #[test]
    fn graphs_that_are_one_function_are_fused_tasks() {
        // (SubgraphCallable({'b': (neg, 'a'), 'a': (add, 'in', 1)}, 'b', ('in',), 'name'), ('x',), {})
        let run_spec = pickle(|writer| {
            writer.tuple(3).reduce();
            writer
                .global("dask.optimization", "SubgraphCallable")
                .tuple(4);
            writer
                .dict(2)
                .str("b")
                .tuple(2)
                .global("_operator", "neg")
                .str("a");
            writer
                .str("a")
                .tuple(3)
                .global("_operator", "add")
                .str("in")
                .i64(1);
            writer.str("b").tuple(1).str("in").str("name");
            writer.tuple(1).str("x").dict(0);
        });
        let result = |key: &str| Argument::from(Key::from(key));
        let expected = Work::Fused {
            tasks: vec![
                Task::new("b", "operator.neg", [result("a")]),
                Task::new("a", "operator.add", [result("in"), 1.into()]),
            ],
            output: Key::from("b"),
            inputs: vec![(Key::from("in"), result("x"))],
        };
        assert_eq!(read(&Serialized::pickled(&run_spec)), Ok(expected));
    }
}

/// Expressions that Dask 2026.8.0 wrote.
mod expressions {
    use super::*;
    use crate::Serialized;

    const MAP: &[u8] = b"\
      \x80\x05\x95\xfc\x00\x00\x00\x00\x00\x00\x00\x8c\x0adask._expr\x94\x8c\x11Expr._reconstr\
      uct\x94\x93\x94(\x8c\x12distributed.client\x94\x8c\x08_MapExpr\x94\x93\x94\x8c\x09_opera\
      tor\x94\x8c\x03add\x94\x93\x94]\x94(K\x01]\x94(h\x03\x8c\x06Future\x94\x93\x94\x8c\x01x\
      \x94\x85\x94R\x94K\x02eK\x03e\x8c\x08builtins\x94\x8c\x05range\x94\x93\x94K\x05K\x07K\
      \x01\x87\x94R\x94\x86\x94\x8c\x03add\x94\x88}\x94}\x94\x8c\x01k\x94}\x94\x8c\x01a\x94h\
      \x0c\x8c\x01y\x94\x85\x94R\x94ss]\x94(\x8c\x02m0\x94\x8c\x02m1\x94\x8c\x02m2\x94e\x8c 6a\
      4bca1405bc2957f151a19c432d7e23\x94}\x94t\x94R\x94.";
    const LEGACY: &[u8] = b"\
      \x80\x05\x95\xaf\x00\x00\x00\x00\x00\x00\x00\x8c\x0adask._expr\x94\x8c\x11Expr._reconstr\
      uct\x94\x93\x94(h\x00\x8c\x07LLGExpr\x94\x93\x94}\x94(\x8c\x01x\x94K\x07\x8c\x01y\x94h\
      \x06\x8c\x01z\x94\x8c\x09_operator\x94\x8c\x03add\x94\x93\x94h\x06h\x09\x8c\x03neg\x94\
      \x93\x94\x8c\x01t\x94K\x00\x86\x94\x86\x94\x87\x94h\x0f]\x94(K\x01h\x07e\x8c\x04self\x94\
      h\x13u\x8c 09f4c4eef1cd59db93560540ee7b260f\x94}\x94t\x94R\x94.";
    const LAYERS: &[u8] = b"\
      \x80\x05\x95\x87\x01\x00\x00\x00\x00\x00\x00\x8c\x0adask._expr\x94\x8c\x11Expr._reconstr\
      uct\x94\x93\x94(h\x00\x8c\x07HLGExpr\x94\x93\x94\x8c\x13dask.highlevelgraph\x94\x8c\x0eH\
      ighLevelGraph\x94\x93\x94)\x81\x94}\x94(\x8c\x0cdependencies\x94}\x94(\x8c\x01a\x94\x8f\
      \x94\x8c\x01b\x94\x8f\x94(h\x0c\x90u\x8c\x10key_dependencies\x94}\x94\x8c\x06layers\x94}\
      \x94(h\x0ch\x05\x8c\x11MaterializedLayer\x94\x93\x94)\x81\x94}\x94(\x8c\x0bannotations\
      \x94N\x8c\x16collection_annotations\x94N\x8c\x07mapping\x94}\x94\x8c\x01x\x94K\x01subh\
      \x0eh\x15)\x81\x94}\x94(h\x18}\x94(\x8c\x07retries\x94K\x02\x8c\x07workers\x94]\x94\x8c\
      \x01w\x94auh\x19Nh\x1a}\x94\x8c\x01y\x94\x8c\x09_operator\x94\x8c\x03neg\x94\x93\x94h\
      \x1c\x86\x94subuubNNNN\x8c bb1523bdb8f3462fa4fcabaf39834aa0\x94}\x94t\x94R\x94.";
    const DELAYED: &[u8] = b"\
      \x80\x05\x95\x84\x02\x00\x00\x00\x00\x00\x00\x8c\x0adask._expr\x94\x8c\x11Expr._reconstr\
      uct\x93\x94(h\x00\x8c\x10_HLGExprSequence\x93h\x01(h\x00\x8c\x07HLGExpr\x93\x8c\x13dask.\
      highlevelgraph\x94\x8c\x0eHighLevelGraph\x93)\x81}(\x8c\x0cdependencies}(\x8c\x01c\x94\
      \x8f(\x8c\x01a\x94\x8c\x01b\x94\x90\x8c\x01n\x94\x8fh\x04\x8f(h\x06\x90h\x05\x8f(h\x06\
      \x90u\x8c\x10key_dependencies}\x8c\x06layers}(h\x03h\x02\x8c\x11MaterializedLayer\x93\
      \x94)\x81}(\x8c\x0bannotations\x94N\x8c\x16collection_annotations\x94N\x8c\x07mapping\
      \x94}h\x03\x8c\x0fdask._task_spec\x94\x8c\x04Task\x93\x94)\x81(\x89(h\x04h\x05\x91NNNh\
      \x0b\x8c\x07TaskRef\x93\x94h\x04\x85Rh\x0dh\x05\x85R\x86\x8c\x09_operator\x94\x8c\x03add\
      \x93\x94h\x03}tbsubh\x06h\x07)\x81}(h\x08Nh\x09Nh\x0a}h\x06h\x0c)\x81(\x89(\x91NNNK\x01\
      \x85h\x0e\x8c\x03neg\x93h\x06}tbsubh\x04h\x07)\x81}(h\x08Nh\x09Nh\x0a}h\x04h\x0c)\x81(\
      \x89(h\x06\x91NNNh\x0dh\x06\x85RK\x01\x86h\x0fh\x04}tbsubh\x05h\x07)\x81}(h\x08Nh\x09Nh\
      \x0a}h\x05h\x0c)\x81(\x89(h\x06\x91NNNh\x0dh\x06\x85RK\x02\x86h\x0fh\x05}tbsubuub\x8c\
      \x0cdask.delayed\x94\x8c\x08optimize\x93]h\x03ah\x10\x8c\x0asingle_key\x93)\x86N\x8c da8\
      3e7a4b3834b59b11a28fd3c44d780}tR\x8c 6f037beb7cb90db497c2c82e583ee75e}tR.";
    const ANNOTATED: &[u8] = b"\
      \x80\x05\x95\x92\x03\x00\x00\x00\x00\x00\x00\x8c\x0adask._expr\x94\x8c\x11Expr._reconstr\
      uct\x93\x94(h\x00\x8c\x10_HLGExprSequence\x93h\x01(h\x00\x8c\x0d_HLGExprGroup\x93\x8c\
      \x13dask.highlevelgraph\x94\x8c\x0eHighLevelGraph\x93)\x81}(\x8c\x0cdependencies}(\x8c\
      \x02x0\x94\x8f\x8c\x02x1\x94\x8f\x8c\x01y\x94\x8f(h\x03h\x04\x90u\x8c\x10key_dependencie\
      s}\x8c\x06layers}(h\x03h\x02\x8c\x11MaterializedLayer\x93\x94)\x81}(\x8c\x0bannotations\
      \x94}(\x8c\x07workers\x94\x8c\x09functools\x8c\x07partial\x93\x94\x8c\x0cdask.delayed\
      \x94\x8c\x0c_get_partial\x93\x94\x85R(h\x0b)}(\x8c\x03dct\x94}\x94(h\x03]\x94\x8c\x01wah\
      \x04h\x0eu\x8c\x07default\x94h\x00\x8c\x15_AnnotationsTombstone\x93\x94)\x81uNtb\x8c\x07\
      retries\x94h\x09h\x0b\x85R(h\x0b)}(h\x0c}\x94(h\x03K\x02h\x04K\x02uh\x0fh\x10)\x81uNtbu\
      \x8c\x16collection_annotations\x94N\x8c\x07mapping\x94}h\x03\x8c\x0fdask._task_spec\x94\
      \x8c\x04Task\x93\x94)\x81(\x89(\x91\x94NNNK\x00\x85\x8c\x09_operator\x8c\x03neg\x93\x94h\
      \x03}tbsubh\x04h\x06)\x81}(h\x07}(h\x08h\x09h\x0b\x85R(h\x0b)}(h\x0ch\x0dh\x0fh\x10)\x81\
      uNtbh\x11h\x09h\x0b\x85R(h\x0b)}(h\x0ch\x12h\x0fh\x10)\x81uNtbuh\x13Nh\x14}h\x04h\x16)\
      \x81(\x89h\x17NNNK\x01\x85h\x18h\x04}tbsubh\x05h\x06)\x81}(h\x07}h\x11K\x03sh\x13Nh\x14}\
      h\x05h\x16)\x81(\x89(h\x03h\x04\x91NNNh\x15\x8c\x04List\x93)\x81](\x89(h\x03h\x04\x91NNN\
      h\x15\x8c\x07TaskRef\x93\x94h\x03\x85Rh\x19h\x04\x85R\x86\x8c\x08builtins\x8c\x04list\
      \x93\x94h\x15\x8c\x1cNestedContainer.to_container\x93Nh\x1a}eb\x85\x8c\x08builtins\x8c\
      \x03sum\x93h\x05}tbsubuubN](]h\x03a]h\x04a]h\x05ae](h\x0a\x8c\x0asingle_key\x93\x94)\x86\
      h\x1b)\x86h\x1b)\x86eN\x8c e03ca27b1f7043fca2e55ca0df63bf2a}tR\x8c 83029da3a11a1d09fd377\
      ee70dec3829}tR.";
    fn outlines(pickle: &'static [u8], wanted: &[&str]) -> Vec<Outline> {
        let mut wanted: Vec<Key> = wanted.iter().copied().map(Key::from).collect();
        let expression = Serialized::of_written_pickle(bytes::Bytes::from_static(pickle));
        Graph::read_outline(&expression, Some(&mut wanted)).expect("a graph")
    }

    fn tasks(pickle: &'static [u8], wanted: &[&str]) -> Vec<Task> {
        let outlines = outlines(pickle, wanted).into_iter();
        let tasks = outlines.map(|outline| {
            let task = Task::read(&outline.run_spec.to_serialized(), &outline.key).expect("a task");
            assert_eq!(task.dependencies(), outline.dependencies, "{task:?}");
            task
        });
        tasks.collect()
    }

    fn result(key: &str) -> Argument {
        Argument::from(Key::from(key))
    }

    // ROLES SCHEDULER-3, SCHEDULER-4
    #[test]
    fn a_map_has_a_task_for_each_item_of_the_shortest_iterable() {
        // map(operator.add, [1, [Future("x"), 2], 3], range(5, 7), k={"a": Future("y")})
        let k = || Argument::Dict(vec![("a".into(), result("y"))]);
        let list = Argument::list([result("x"), 2.into()]);
        let expected = [
            Task::new("m0", "operator.add", [Argument::from(1), 5.into()]).keyword("k", k()),
            Task::new("m1", "operator.add", [list, 6.into()]).keyword("k", k()),
        ];
        assert_eq!(tasks(MAP, &["m0", "m1", "m2"]), expected);
    }

    // ROLES SCHEDULER-5
    #[test]
    fn values_that_equal_keys_are_references() {
        // {"x": 7, "y": "x", "z": (add, "x", (neg, ("t", 0))), ("t", 0): [1, "y"],
        //  "self": "self"}
        let nested = Key::list([Key::from("t"), Key::from(0)]);
        let neg = Task::new(Key::default(), "operator.neg", [&nested]);
        let z = [result("x"), Argument::Task(Box::new(neg))];
        let work = |key: Key, argument| Task {
            key,
            work: Work::Argument(argument),
        };
        let expected = [
            work("x".into(), 7.into()),
            work("y".into(), result("x")),
            Task::new("z", "operator.add", z),
            work(nested, Argument::list([1.into(), result("y")])),
        ];
        assert_eq!(tasks(LEGACY, &["z"]), expected);
        let expression = Serialized::of_written_pickle(bytes::Bytes::from_static(LEGACY));
        assert_eq!(Graph::read(&expression).expect("a graph").tasks, expected);
    }

    // ROLES SCHEDULER-7
    #[test]
    fn tasks_that_no_wanted_key_needs_are_left_out() {
        let keys: Vec<Key> = tasks(LEGACY, &["y"])
            .into_iter()
            .map(|task| task.key)
            .collect();
        assert_eq!(keys, [Key::from("x"), Key::from("y")]);
        assert_eq!(tasks(MAP, &["m1"]).len(), 1);
        assert_eq!(tasks(MAP, &[]), []);
    }

    // ROLES SCHEDULER-6
    #[test]
    fn layers_have_annotations() {
        let all = outlines(LAYERS, &["y"]);
        let [x, y] = &all[..] else { panic!("{all:?}") };
        assert_eq!((&x.key, &x.annotations), (&Key::from("x"), &None));
        let annotations = y.annotations.as_deref().expect("annotations");
        assert_eq!(annotations.get("retries"), Some(&Value::from(2)));
    }

    // ROLES SCHEDULER-6
    #[test]
    fn layers_may_have_the_same_tasks() {
        // n = delayed(neg)(1), a = delayed(add)(n, 1), b = delayed(add)(n, 2),
        // c = delayed(add)(a, b)
        let mut tasks = tasks(DELAYED, &["c"]);
        tasks.sort_by(|one, other| one.key.cmp(&other.key));
        let expected = [
            Task::new("a", "operator.add", [result("n"), 1.into()]),
            Task::new("b", "operator.add", [result("n"), 2.into()]),
            Task::new("c", "operator.add", [result("a"), result("b")]),
            Task::new("n", "operator.neg", [1]),
        ];
        assert_eq!(tasks, expected);
    }

    // ROLES SCHEDULER-6
    #[test]
    fn annotations_may_differ_by_task() {
        // With workers="w" and retries=2, x = [delayed(neg)(0), delayed(neg)(1)]; with retries=3,
        // y = delayed(sum)(x); all persisted.
        let all = outlines(ANNOTATED, &["x0", "x1", "y"]);
        let annotations = all.iter().map(|outline| {
            let annotations = outline.annotations.as_deref().expect("annotations");
            let workers = annotations.get("workers").cloned();
            (
                outline.key.to_string(),
                annotations.get("retries").cloned(),
                workers,
            )
        });
        let mut annotations: Vec<_> = annotations.collect();
        annotations.sort_by(|one, other| one.0.cmp(&other.0));
        let workers = || Some(Value::list(["w"]));
        assert_eq!(
            annotations,
            [
                ("x0".to_owned(), Some(Value::from(2)), workers()),
                ("x1".to_owned(), Some(Value::from(2)), workers()),
                ("y".to_owned(), Some(Value::from(3)), None),
            ]
        );
    }

    #[test]
    fn other_iterables_and_expressions_are_refused() {
        let refusal = |from: &str, to: &str| {
            let mut pickle = MAP.to_vec();
            let (from, to) = (from.as_bytes(), to.as_bytes());
            let at = pickle.windows(from.len()).position(|part| part == from);
            let at = at.expect("a part");
            pickle[at..at + from.len()].copy_from_slice(to);
            let expression = Serialized::of_written_pickle(pickle.into());
            Graph::read_outline(&expression, None)
                .expect_err("refused")
                .to_string()
        };
        let text = refusal("range", "deque");
        assert!(
            text.contains("found builtins.deque") && text.contains("pass a list"),
            "{text}"
        );
        let text = refusal("_MapExpr", "_MapAll_");
        assert!(
            text.contains("_MapAll_, which only Python can convert"),
            "{text}"
        );
    }
}

/// The outlines of a graph, if what is found out about a task is used for those that are alike.
fn outlines(pickle: &[u8], has_families: bool) -> Result<Vec<Outline>, GraphError> {
    Graph::read_outline_in(&Serialized::pickled(pickle), None, has_families)
}

#[test]
fn tasks_that_are_alike_have_a_family() {
    let pickle = include_bytes!("alike.pickle");
    let tree = Tree::new(pickle).expect("a pickle");
    let budget = Budget::new(usize::MAX, usize::MAX);
    let mut families = Families::new(&Effects::of(&tree, pickle));
    let mut converter = Converter::new(&tree, &budget);
    let plan = plan(tree.root(), &mut converter, &mut families, &budget).expect("a graph");
    let alike = plan.tasks.iter().filter(|task| task.family.is_some());
    assert!(alike.count() > 30);
}

#[test]
fn tasks_that_are_alike_are_read_as_others() {
    // `pickle.dumps(LLGExpr(..))` with tasks of 21 forms in random order, each several times.
    let pickle = include_bytes!("alike.pickle");
    let tasks = outlines(pickle, true).expect("a graph");
    assert!(tasks.len() > 90);
    assert_eq!(tasks, outlines(pickle, false).expect("a graph"));
    let mut random = 1_u64;
    let mut next = |limit: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        usize::try_from(random >> 33).unwrap_or(0) % limit
    };
    let mut read_count = 0;
    for _ in 0..300 {
        let mut changed = pickle.to_vec();
        for _ in 0..=next(3) {
            let (from, to) = (next(pickle.len()), next(pickle.len()));
            match next(3) {
                // Numbers and ids, mostly.
                0 => changed[to] = changed[to].wrapping_add(1),
                1 => changed[to] = pickle[from],
                _ => {
                    let len = next(64).min(pickle.len() - from.max(to));
                    changed[to..to + len].copy_from_slice(&pickle[from..from + len]);
                }
            }
        }
        let (one, other) = (outlines(&changed, true), outlines(&changed, false));
        if let (Ok(one), Ok(other)) = (&one, &other) {
            read_count += 1;
            assert_eq!(one.len(), other.len());
            for (one, other) in one.iter().zip(other) {
                let [read, expected] = [one, other].map(|outline| {
                    let run_spec = outline.run_spec.to_serialized();
                    (run_spec, outline.key.clone())
                });
                assert_eq!(one.dependencies, other.dependencies);
                assert_eq!((one.calls, read), (other.calls, expected));
            }
        }
        assert_eq!(one.is_ok(), other.is_ok());
    }
    assert!(read_count > 30, "{read_count}");
}

#[test]
fn tasks_may_refer_to_an_object_that_has_them_all() {
    // Methods of an object, which appends `dask.delayed(self.step)(i)` to a list of its own, 8 times.
    let pickle = include_bytes!("cyclic.pickle");
    let tasks = outlines(pickle, true).expect("a graph");
    assert_eq!(tasks.len(), 8);
    assert_eq!(tasks, outlines(pickle, false).expect("a graph"));
}

/// A graph without frames of two layers, `len(x)` and `hash(x)` of six values of 300 bytes each, with
/// so many bytes in place of these.
fn layers(len: u32) -> Vec<u8> {
    let pickle = include_bytes!("layers.pickle");
    let mut changed = Vec::new();
    let mut rest = &pickle[..];
    while let Some((first, others)) = rest.split_first() {
        // BINBYTES
        if let Some((value, after)) = others.split_at_checked(304)
            && (*first, &value[..4]) == (b'B', &300_u32.to_le_bytes())
        {
            changed.push(b'B');
            changed.extend(len.to_le_bytes());
            changed.resize(changed.len() + len as usize, value[4]);
            rest = after;
        } else {
            changed.push(*first);
            rest = others;
        }
    }
    changed
}

#[test]
fn layers_of_tasks_that_are_alike_share_large_values() {
    let small = layers(310);
    let tasks = outlines(&small, true).expect("a graph");
    assert_eq!(tasks.len(), 12);
    assert_eq!(tasks, outlines(&small, false).expect("a graph"));
    for has_families in [true, false] {
        let tasks = outlines(&layers(40_000), has_families).expect("a graph");
        let shared = tasks.iter().filter(|task| task.is_shared).count();
        assert_eq!((shared, tasks.len()), (6, 18), "families: {has_families}");
        let mut others = tasks.iter().filter(|task| !task.is_shared);
        assert!(others.all(|task| task.dependencies.len() == 1));
    }
}
