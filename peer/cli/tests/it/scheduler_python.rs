//! Tests of `daskwire scheduler --python`, which converts the graphs of collections.

use std::path::Path;
use std::process::Command;

use crate::support::worker::python_worker;
use daskwire_testing::process::{children, python_processes};
use daskwire_testing::{Environment, Peer, address_after, python, warnings_except, worker};

/// Starts `daskwire scheduler`, with the current release of Dask beside it if `has_python`.
fn scheduler(has_python: bool, arguments: &[&str]) -> Peer {
    let mut command = command(arguments);
    if has_python {
        command.arg("--python").arg(python(Environment::Current));
    }
    start(&mut command)
}

/// The command `daskwire scheduler` with arguments.
fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_daskwire"));
    command.args(["scheduler", "--host", "127.0.0.1", "--port", "0"]);
    command.arg("--no-dashboard").args(arguments);
    command
}

fn start(command: &mut Command) -> Peer {
    Peer::spawn_command("scheduler", command, |log| {
        address_after(log, "Scheduler at:")
    })
}

/// Runs checks of a client in Python with collections.
fn check(scheduler: &Peer, checks: &[&str]) {
    check_with("collections_client.py", scheduler, checks);
}

/// Runs checks of a client in Python with functions and plugins.
fn check_functions(scheduler: &Peer, checks: &[&str]) {
    check_with("functions_client.py", scheduler, checks);
}

fn check_with(script: &str, scheduler: &Peer, checks: &[&str]) {
    let arguments = [&[scheduler.address()][..], checks].concat();
    drop(Peer::spawn(Environment::Current, script, &arguments));
}

const CHECKS: [&str; 9] = [
    "array",
    "bag",
    "delayed_values",
    "persisted",
    "futures",
    "annotated",
    "unoptimized",
    "shared",
    "pickled",
];

#[test]
fn collections_are_computed_by_workers_in_python() {
    let scheduler = scheduler(true, &[]);
    let worker = worker(scheduler.address(), "one");
    assert_eq!(python_processes(scheduler.id()), [""; 0]);
    check(&scheduler, &CHECKS[..1]);
    // The template, and the helper for one client.
    assert_eq!(children(scheduler.id()).len(), 1, "{}", scheduler.log());
    let helper = python_processes(scheduler.id());
    assert_eq!(helper.len(), 1);
    check(&scheduler, &CHECKS[1..]);
    assert_eq!(python_processes(scheduler.id()), helper);
    // What cannot be taken apart is pickled by another one.
    check(&scheduler, &["deep"]);
    assert_ne!(python_processes(scheduler.id()), helper);
    assert_eq!(warnings_except(&scheduler.log(), &[]), [""; 0]);
    assert_eq!(warnings_except(&worker.log(), &[]), [""; 0]);
}

#[test]
fn collections_are_computed_by_workers_in_rust_with_python() {
    let scheduler = scheduler(true, &[]);
    let worker = python_worker(scheduler.address(), "one", &[], &[]);
    check(&scheduler, &CHECKS);
    assert_eq!(warnings_except(&worker.log(), &[]), [""; 0]);
}

#[test]
fn tasks_run_while_the_rest_of_their_graph_is_converted() {
    let scheduler = scheduler(true, &[]);
    let _worker = worker(scheduler.address(), "one");
    check(&scheduler, &["early"]);
}

#[test]
fn graphs_that_raise_fail_with_the_errors_of_dask() {
    let scheduler = scheduler(true, &[]);
    let _worker = worker(scheduler.address(), "one");
    check(&scheduler, &["errors"]);
}

#[test]
fn graphs_fail_whose_process_is_killed_or_exceeds_a_limit() {
    let limits = [
        "--python-time-limit",
        "10s",
        "--python-memory-limit",
        "500MiB",
    ];
    let scheduler = scheduler(true, &limits);
    let _worker = worker(scheduler.address(), "one");
    check(&scheduler, &["limits"]);
}

#[test]
fn other_clients_do_not_wait_for_a_graph_that_is_converted() {
    let scheduler = scheduler(true, &["--python-import", "dask.array"]);
    let _worker = worker(scheduler.address(), "one");
    check(&scheduler, &["others"]);
}

#[test]
fn without_python_no_code_of_a_client_is_run() {
    let scheduler = scheduler(false, &[]);
    let _worker = worker(scheduler.address(), "one");
    check(&scheduler, &["needs_python"]);
    check_functions(&scheduler, &["refused"]);
    assert_eq!(children(scheduler.id()), [""; 0]);
}

#[test]
fn functions_run_on_the_scheduler() {
    let scheduler = scheduler(true, &[]);
    let worker = worker(scheduler.address(), "one");
    assert_eq!(python_processes(scheduler.id()), [""; 0]);
    check_functions(&scheduler, &["functions", "state", "acts"]);
    assert_eq!(warnings_except(&scheduler.log(), &[]), [""; 0]);
    // One of the tasks fails, and another one still runs when the worker is retired; a heartbeat of the
    // worker may be on its way then.
    let expected = [
        "Compute Failed",
        "execute('block')",
        "Scheduler was unaware of this worker",
    ];
    assert_eq!(warnings_except(&worker.log(), &expected), [""; 0]);
}

#[test]
fn a_function_that_hangs_or_ends_its_process_costs_only_itself() {
    let scheduler = scheduler(true, &["--python-time-limit", "4s"]);
    let _worker = worker(scheduler.address(), "one");
    check_functions(&scheduler, &["ends"]);
}

#[test]
fn plugins_of_the_scheduler_observe_it() {
    let scheduler = scheduler(true, &[]);
    let _worker = worker(scheduler.address(), "one");
    check_functions(&scheduler, &["plugins", "failing", "many"]);
}

#[test]
fn plugins_are_registered_again_after_their_process_has_ended() {
    let scheduler = scheduler(true, &["--python-time-limit", "4s"]);
    let _worker = worker(scheduler.address(), "one");
    check_functions(&scheduler, &["hanging"]);
}

#[test]
fn plugins_that_functions_add_are_added_again_after_their_process_has_ended() {
    let scheduler = scheduler(true, &[]);
    let _worker = worker(scheduler.address(), "one");
    check_functions(&scheduler, &["kept"]);
}

#[test]
fn plugins_of_dask_and_its_reports_get_what_they_need() {
    let scheduler = scheduler(true, &[]);
    let _worker = worker(scheduler.address(), "one");
    check_functions(&scheduler, &["details", "reports", "dumps"]);
    assert_eq!(warnings_except(&scheduler.log(), &[]), [""; 0]);
}

/// A module of `--preload` whose plugin has the value of an argument, and counts transitions. The
/// file LIVES exists while it is set up.
const PRELOADED: &str = "\
import asyncio, click, os
from distributed.diagnostics.plugin import SchedulerPlugin

class Preloaded(SchedulerPlugin):
    name = 'preloaded'
    count = 0

    def __init__(self, value):
        self.value = value

    def transition(self, *args, **kwargs):
        self.count += 1

@click.command()
@click.option('--value', default='default')
async def dask_setup(scheduler, value):
    await asyncio.sleep(0.1)
    scheduler.add_plugin(Preloaded(value))
    open(LIVES, 'w').close()

async def dask_teardown(scheduler):
    await asyncio.sleep(0.1)
    os.remove(LIVES)
";

#[test]
fn preloaded_modules_are_set_up_in_the_scheduler() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("preload-scheduler");
    std::fs::create_dir_all(&folder).expect("a folder");
    let (file, lives) = (folder.join("preloaded.py"), folder.join("lives"));
    let _ = std::fs::remove_file(&lives);
    let source = format!("LIVES = {:?}\n{PRELOADED}", lives.display().to_string());
    std::fs::write(&file, source).expect("written");
    let file = file.to_str().expect("a path of text");
    let python = python(Environment::Current);
    let python = python.to_str().expect("a path of text");
    // The configuration and the command line mean the same.
    let given = [
        "--python",
        python,
        "--preload",
        file,
        "--",
        "--value",
        "given",
    ];
    let configured = [
        ("DASK_DISTRIBUTED__SCHEDULER__PRELOAD", file),
        (
            "DASK_DISTRIBUTED__SCHEDULER__PRELOAD_ARGV",
            "['--value=given']",
        ),
    ];
    for (arguments, variables) in [(&given[..], &[][..]), (&given[..2], &configured)] {
        let mut command = command(arguments);
        command.envs(variables.iter().copied());
        let mut scheduler = start(&mut command);
        // It is set up before the address is printed.
        assert!(lives.exists(), "{}", scheduler.log());
        let worker = worker(scheduler.address(), "one");
        check_functions(&scheduler, &["preloads"]);
        drop(worker);
        scheduler.signal("TERM");
        assert!(scheduler.ended(), "{}", scheduler.log());
        assert!(!lives.exists(), "{}", scheduler.log());
    }
}

/// A module whose setup waits for an event, and which says what is called.
const SLOWLY_SET_UP: &str = "\
import asyncio, os

def say(text):
    # At once, so that the log's lines do not come between.
    os.write(2, f'{text}\\n'.encode())

async def dask_setup(scheduler):
    say('setup begins')
    await asyncio.sleep(SECONDS)
    say('setup ends')

async def dask_teardown(scheduler):
    say('teardown')
";

#[test]
fn modules_are_torn_down_though_the_scheduler_is_stopped_while_they_are_set_up() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("preload-stopped");
    std::fs::create_dir_all(&folder).expect("a folder");
    let python = python(Environment::Current);
    let python = python.to_str().expect("a path of text");
    for (seconds, said) in [
        // Torn down in their turn.
        ("1", &["setup begins", "setup ends", "teardown"][..]),
        // As in Dask.
        ("3600", &["setup begins", "teardown"]),
    ] {
        let file = folder.join(format!("slow_{seconds}.py"));
        let source = format!("SECONDS = {seconds}\n{SLOWLY_SET_UP}");
        std::fs::write(&file, source).expect("written");
        let file = file.to_str().expect("a path of text");
        let mut command = command(&["--python", python, "--preload", file]);
        let mut scheduler = Peer::spawn_command("scheduler", &mut command, |log| {
            log.contains("setup begins").then(String::new)
        });
        scheduler.signal("TERM");
        assert!(scheduler.ended(), "{}", scheduler.log());
        let log = scheduler.log();
        let lines = log.lines().filter(|line| SAID.contains(line));
        assert_eq!(lines.collect::<Vec<_>>(), said, "{log}");
    }
}

/// What a [module](SLOWLY_SET_UP) may say.
const SAID: [&str; 3] = ["setup begins", "setup ends", "teardown"];

#[test]
fn modules_that_cannot_be_loaded_end_the_start() {
    let python = python(Environment::Current);
    let python = python.to_str().expect("a path of text");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (wrong, arguments) = (folder.join("wrong.py"), folder.join("takes_none.py"));
    std::fs::write(&wrong, "raise ValueError('this module is wrong')").expect("written");
    let takes_none = "import click\n@click.command()\ndef dask_setup(scheduler): pass";
    std::fs::write(&arguments, takes_none).expect("written");
    let [wrong, arguments] = [&wrong, &arguments].map(|path| path.to_str().expect("text"));
    for (preload, expected) in [
        (
            &["no_such_module"][..],
            "ModuleNotFoundError: No module named 'no_such_module'",
        ),
        (&[wrong], "ValueError: this module is wrong"),
        (&[arguments, "--", "--value", "3"], "No such option"),
    ] {
        let mut command = command(&["--python", python, "--preload"]);
        let ran = command.args(preload).output().expect("it runs");
        let error = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(1), "{error}");
        assert!(error.contains(expected), "{error}");
        assert!(
            error.contains("the preloaded modules cannot be loaded"),
            "{error}"
        );
    }
}

#[test]
fn progress_bars_and_uploaded_modules_work() {
    let scheduler = scheduler(true, &["--python-import", "dask.array"]);
    let _worker = worker(scheduler.address(), "one");
    check_functions(&scheduler, &["progresses", "uploads"]);
}

#[test]
fn plugins_see_workers_come_and_go_and_the_scheduler_close() {
    let scheduler = scheduler(true, &[]);
    let _worker = worker(scheduler.address(), "one");
    check_functions(&scheduler, &["members", "closes"]);
}
