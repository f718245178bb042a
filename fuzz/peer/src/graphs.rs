//! Graphs and tasks, as pickles.

use crate::message::{outlines, pickle_payload};
use bytes::Bytes;
use daskwire_messages::graph::{Graph, Task, split_tuple};
use daskwire_messages::protocol::UpdateGraph;
use daskwire_messages::{Key, Serialized};
use daskwire_pickle::tree::Tree;
use daskwire_pickle::{WriteError, Writer, WriterLevel, WriterOptions};
use daskwire_scheduler::state::Submission;

use crate::input::{Choices, repeated};
use daskwire_fuzz::budget::{Budget, Linear};

/// The budget for a scheduler, a worker and a client with a graph. The base
/// covers the expansion of shared nodes of a short pickle.
const BUDGET: Budget = Budget {
    memory_len: Linear {
        base: 384 << 20,
        per_byte: 4 << 10,
    },
    allocated_len: Linear {
        base: 2 << 30,
        per_byte: 32 << 10,
    },
    steps: Linear {
        base: 1 << 29,
        per_byte: 1 << 13,
    },
};

/// Length in bytes of a pickle from which tasks may refer to objects that they share by a key.
const LARGE: usize = 32 << 10;

/// Checks that the scheduler's outline of a graph agrees with a full read, that
/// a task is read the same as by a worker, and that the cost of both is linear
/// in the pickle, regardless of sharing.
///
/// The input: a flag, then a pickle or choices for a graph, whose tasks may be alike.
pub(crate) fn graph(input: &[u8]) {
    let mut choices = Choices(input);
    let flag = choices.byte() % 4;
    // Python's functions have effects, for which a task gets a function around them.
    let is_written = flag >= 2;
    let pickle: Bytes = match flag {
        0 => Bytes::copy_from_slice(choices.0),
        1 => repeated(choices.0).into(),
        flag => match written(&mut choices, flag == 3) {
            Ok(pickle) => pickle.into(),
            Err(error) => panic!("the choices make no pickle: {error}"),
        },
    };
    let len = pickle.len();
    BUDGET.check(len, || {
        let expression = pickle_payload(pickle.clone());
        let _ = Submission::read(UpdateGraph {
            expr_ser: expression.clone(),
            ..UpdateGraph::default()
        });
        // As tasks that Python has pickled together. Each copy can be read.
        for copy in split_tuple(&pickle).into_iter().flatten() {
            let mut room = Vec::new();
            let copy = copy.pickle(&mut room).expect("a payload of one pickle");
            Tree::new(copy).expect("a copy of a pickle");
        }
        // As in a worker: the whole pickle as one task.
        task(&expression, &Key::from("x"));
        let outlines = outlines(&expression);
        let Ok(graph) = Graph::read(&expression) else {
            return;
        };
        for task in &graph.tasks {
            write(task);
        }
        let Ok(outlines) = outlines else { return };
        // Data that tasks share comes after them.
        assert!(outlines.len() >= graph.tasks.len());
        for ((key, dependencies, run_spec), read) in outlines.iter().zip(&graph.tasks) {
            assert_eq!(*key, read.key);
            // The outline also has the dependencies in invalid functions.
            let is_listed = |key: &Key| dependencies.contains(key);
            assert!(read.dependencies().iter().all(is_listed), "{read:?}");
            let task = task(run_spec, key);
            if is_written && len < LARGE {
                assert_eq!(task.as_ref(), Some(read));
            }
        }
    });
}

fn task(run_spec: &Serialized, key: &Key) -> Option<Task> {
    let task = Task::read(run_spec, key).ok()?;
    assert_eq!(task.key, *key);
    write(&task);
    Some(task)
}

/// A task that was read can be written and read again.
fn write(task: &Task) {
    let dependencies = task.dependencies();
    if let Ok(run_spec) = task.to_run_spec() {
        let again = Task::read(&run_spec, &task.key)
            .unwrap_or_else(|error| panic!("what was written cannot be read: {error}: {task:?}"));
        // A partial that needs results is written as a plain call, without keywords
        // that are overridden.
        let mut needed = again.dependencies().into_iter();
        assert!(needed.all(|key| dependencies.contains(&key)), "{task:?}");
    }
}

/// The pickle of a graph from these choices. Tasks that are alike are made by the same choices, in other strings
/// and numbers.
fn written(choices: &mut Choices<'_>, are_alike: bool) -> Result<Vec<u8>, WriteError> {
    let copy_count = match are_alike {
        true => 2 + choices.below(4),
        false => 1,
    };
    let len = copy_count * (64 * choices.0.len() + (1 << 10));
    let mut out = vec![0; len];
    let mut levels = vec![WriterLevel::EMPTY; 256];
    let mut writer = Writer::with_options(&mut out, &mut levels, WriterOptions::default());
    let mut nodes = Nodes {
        choices: choices.clone(),
        writer: &mut writer,
        shared: Vec::new(),
        globals: Vec::new(),
        copy: 0,
    };
    let count = nodes.choices.below(8);
    nodes.reduce("dask._expr", "LLGExpr", 1);
    nodes.writer.dict(count * copy_count);
    for key in &KEYS[..count] {
        let (start, shared_count) = (nodes.choices.clone(), nodes.shared.len());
        for copy in 0..copy_count {
            nodes.choices = start.clone();
            nodes.copy = copy;
            match copy {
                0 => nodes.writer.str(key),
                _ => nodes.writer.str(&format!("{key}{copy}")),
            };
            nodes.node(8);
            if copy + 1 < copy_count {
                nodes.shared.truncate(shared_count);
            }
        }
    }
    let len = writer.finish()?.len();
    out.truncate(len);
    Ok(out)
}

const KEYS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

struct Nodes<'n, 'w, 'b, 'c> {
    choices: Choices<'c>,
    writer: &'n mut Writer<'w, 'b>,
    /// The memo indexes of the shared values.
    shared: Vec<u32>,
    /// The classes and functions that were written, with their memo indexes.
    globals: Vec<((&'static str, &'static str), u32)>,
    /// The number of the copy, of tasks that are alike.
    copy: usize,
}

impl Nodes<'_, '_, '_, '_> {
    fn reduce(&mut self, module: &'static str, name: &'static str, argument_count: usize) {
        self.writer.reduce();
        self.global(module, name);
        self.writer.tuple(argument_count);
    }

    /// Writes a class or function, once as Python does.
    fn global(&mut self, module: &'static str, name: &'static str) {
        let known = self
            .globals
            .iter()
            .find(|(known, _)| *known == (module, name));
        if let Some((_, index)) = known {
            self.writer.get(*index);
        } else {
            let index = self.writer.global(module, name).memoize();
            self.globals.push(((module, name), index));
        }
    }

    fn spec(&mut self, class: &'static str, argument_count: usize) {
        self.reduce("dask._task_spec", class, argument_count);
    }

    fn key(&mut self) {
        match self.choices.byte() {
            byte @ 0..=200 => self.writer.str(KEYS[(usize::from(byte) + self.copy) % 8]),
            byte => {
                let number = i64::from(byte) + self.copy as i64;
                self.writer.tuple(2).str("t").i64(number)
            }
        };
    }

    fn many(&mut self, count: usize, depth: usize) {
        for _ in 0..count {
            self.node(depth);
        }
    }

    /// Ends the value begun last and shares it from now on.
    fn share(&mut self) {
        let index = self.writer.end().memoize();
        self.shared.push(index);
    }

    fn function(&mut self, depth: usize) {
        match self.choices.below(6) {
            0 => self.global("operator", "add"),
            1 => self.global("dask._task_spec", "_execute_subgraph"),
            2 => self.global("dask.utils", "apply"),
            3 => {
                self.reduce("operator", "methodcaller", 1);
                self.writer.str("native:f").end().end();
            }
            4 if depth != 0 => {
                let (arguments, keywords) = (self.choices.below(3), self.choices.below(3));
                self.writer.build();
                self.reduce("functools", "partial", 1);
                self.function(depth - 1);
                self.writer.end().end().tuple(4);
                self.function(depth - 1);
                self.writer.tuple(arguments);
                self.many(arguments, depth - 1);
                self.writer.dict(keywords);
                for key in &KEYS[..keywords] {
                    self.writer.str(key);
                    self.node(depth - 1);
                }
                self.writer.none();
                self.writer.end();
                self.share();
            }
            _ => self.node(depth.saturating_sub(1)),
        }
    }

    fn node(&mut self, depth: usize) {
        let kind = self.choices.below(if depth == 0 { 6 } else { 20 });
        let depth = depth.saturating_sub(1);
        match kind {
            0 | 1 => self.key(),
            2 => {
                self.writer.none();
            }
            // A value shared before.
            3..=5 => match self.shared.len() {
                0 => {
                    self.writer.i64(1 + self.copy as i64);
                }
                count => {
                    let index = count - 1 - self.choices.below(count);
                    self.writer.get(self.shared[index]);
                }
            },
            6 => {
                self.spec("TaskRef", 1);
                self.key();
                self.writer.end();
                self.share();
            }
            7 => {
                self.spec("Alias", 2);
                self.key();
                self.key();
                self.writer.end();
                self.share();
            }
            8 => {
                self.spec("DataNode", 2);
                self.key();
                self.node(depth);
                self.writer.end();
                self.share();
            }
            9 | 10 => {
                let count = self.choices.below(6);
                self.spec("Task", count + 2);
                self.key();
                self.function(depth);
                self.many(count, depth);
                self.writer.end();
                self.share();
            }
            11 | 12 => {
                let class = CONTAINERS[self.choices.below(CONTAINERS.len())];
                let count = self.choices.below(6);
                self.spec(class, count);
                self.many(count, depth);
                self.writer.end();
                self.share();
            }
            13 => {
                let count = self.choices.below(6);
                self.spec("List", 1);
                self.writer.list(count);
                self.many(count, depth);
                self.writer.end().end();
                self.share();
            }
            14 => {
                let count = self.choices.below(4);
                self.spec("Dict", 1);
                self.writer.dict(count);
                self.many(2 * count, depth);
                self.writer.end().end();
                self.share();
            }
            15 => self.task_with_state(depth),
            16 => {
                let count = self.choices.below(6);
                let class = CONTAINERS[self.choices.below(CONTAINERS.len())];
                self.writer.build().newobj();
                self.global("dask._task_spec", class);
                self.writer.tuple(0).end();
                self.writer.end().tuple(11);
                for _ in 0..5 {
                    self.writer.none();
                }
                self.writer.tuple(count);
                self.many(count, depth);
                self.writer.end();
                for _ in 0..5 {
                    self.writer.none();
                }
                self.writer.end();
                self.share();
            }
            17 => {
                let count = self.choices.below(6);
                self.writer.list(count);
                self.many(count, depth);
                self.share();
            }
            18 => {
                let count = self.choices.below(6);
                self.writer.tuple(count);
                self.many(count, depth);
                match count {
                    0 => {
                        self.writer.end();
                    }
                    _ => self.share(),
                }
            }
            _ => {
                let count = self.choices.below(4);
                self.writer.dict(count);
                self.many(2 * count, depth);
                self.share();
            }
        }
    }

    /// Writes a task in the form of Python.
    fn task_with_state(&mut self, depth: usize) {
        let (arguments, keywords) = (self.choices.below(4), self.choices.below(3));
        self.writer.build().newobj();
        self.global("dask._task_spec", "Task");
        self.writer.tuple(0).end();
        self.writer.end().tuple(9);
        for _ in 0..5 {
            self.writer.none();
        }
        self.writer.tuple(arguments);
        self.many(arguments, depth);
        self.writer.end();
        self.function(depth);
        self.key();
        self.writer.dict(keywords);
        for key in &KEYS[..keywords] {
            self.writer.str(key);
            self.node(depth);
        }
        self.writer.end().end();
        self.share();
    }
}

const CONTAINERS: [&str; 4] = ["List", "Tuple", "Set", "Dict"];
