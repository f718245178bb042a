//! Tests of what tasks of `daskwire worker --python` log and warn, compared with a worker in
//! Python.

use crate::support::worker;

use daskwire_testing::cluster::Cluster;

/// Programs whose results do not depend on the kind of worker. `logged(mark)` returns the lines
/// of the workers' logs that contain a mark, oldest first, without their times.
const PROGRAMS: [&str; 11] = [
    "import logging, warnings\nfrom distributed import get_worker, warn\n\
     def now(mark):\n    logs = client.get_worker_logs().values()\n    \
     return [(level, text.split(' - ', 1)[1]) for log in logs for level, text in reversed(log) if mark in text]\n\
     def logged(mark, count=1):\n    end = time.time() + 60\n    \
     while len(now(mark)) < count and time.time() < end: time.sleep(0.05)\n    \
     return now(mark)",
    // Records of Dask's logger for workers, and of others
    "def tell(n):\n    log = logging.getLogger('distributed.worker')\n    \
     log.debug('marked, but hidden')\n    log.info('marked %s', n)\n    log.warning('marked: warning')\n    \
     logging.getLogger('distributed.worker.own').error('marked below')\n    \
     logging.getLogger('distributed.other').error('marked elsewhere')\n    \
     logging.getLogger('mine').error('marked elsewhere')\n\
     client.submit(tell, 1).result()\nlogged('marked', 3)",
    "def trace():\n    try: 1 / 0\n    except ZeroDivisionError: logging.getLogger('distributed.worker').exception('traced')\n\
     client.submit(trace).result()\n\
     [(level, text.splitlines()[0], text.splitlines()[-1]) for level, text in logged('traced')]",
    // Exceptions of tasks: with arguments, after `secede`, with a long argument, and with an input
    "from distributed import secede\n\
     def divide(x, *, y): return x / y\n\
     def leave(x):\n    secede()\n    return 1 / x\n\
     _ = wait(client.submit(divide, 1, y=0, key='fails'))\n\
     _ = wait(client.submit(leave, 0, key='left'))\n\
     _ = wait(client.submit(divide, 'x' * 5000, y=0, key='long'))\n\
     _ = wait(client.submit(divide, client.submit(int, '1', key='one'), y=0, key='of one'))\n\
     logged('Compute Failed', 4)",
    // Between and outside of tasks
    "import threading\n\
     def later():\n    \
     timer = threading.Timer(0.2, logging.getLogger('distributed.worker').warning, ['logged later'])\n    \
     timer.start()\n\
     client.submit(later).result()\ntime.sleep(0.4)\n\
     client.gather([client.submit(time.sleep, n / 100, pure=False) for n in range(20)])\nlogged('logged later')",
    // The times of records that are sent to the worker later
    "def timed():\n    \
     def tell(): logging.getLogger('distributed.worker').warning('timed: %r', time.time())\n    \
     threading.Timer(0.2, tell).start()\n\
     client.submit(timed).result()\ntime.sleep(2)\n\
     client.gather([client.submit(time.sleep, n / 100, pure=False) for n in range(20)])\n_ = logged('timed: ')\n\
     async def ask(dask_scheduler):\n    \
     return await dask_scheduler.broadcast(msg={'op': 'get_logs', 'timestamps': True})\n\
     lines = [line for log in client.run_on_scheduler(ask).values() for line in log if 'timed: ' in line[2]]\n\
     [(level, abs(created - float(text.split('timed: ')[1])) < 1) for created, level, text in lines]",
    "_ = client.run(lambda: logging.getLogger('distributed.worker').warning('logged by run'))\n\
     logged('logged by run')",
    "class Logs:\n    def log(self): logging.getLogger('distributed.worker').warning('logged by an actor')\n\
     client.submit(Logs, actor=True).result().log().result()\nlogged('logged by an actor')",
    // Warnings for clients
    "warned = []\n\
     warnings.showwarning = lambda message, category, *_: warned.append((str(message), category.__name__))\n\
     client.submit(lambda: warn('careful', FutureWarning)).result()\n\
     end = time.time() + 60\n\
     while not warned and time.time() < end: time.sleep(0.05)\n\
     warned",
    // Records for clients
    "class Keeps(logging.Handler):\n    \
     def emit(self, record): seen.append((record.name, record.levelname, record.getMessage(),\n        \
     record.worker in client.scheduler_info()['workers'], bool(record.exc_text)))\n\
     seen = []\n\
     def see(count):\n    end = time.time() + 60\n    \
     while len(seen) < count and time.time() < end: time.sleep(0.05)\n    return seen\n\
     logging.getLogger('forwarded').addHandler(Keeps())\n\
     logging.getLogger('forwarded').setLevel('INFO')\n\
     def say(what):\n    log = logging.getLogger('forwarded')\n    log.setLevel('INFO')\n    log.info('said %s', what)\n    \
     log.debug('not said')\n    \
     try: 1 / 0\n    except ZeroDivisionError: logging.getLogger('forwarded.inner').exception('failed')\n\
     _ = client.forward_logging('forwarded')\n\
     client.submit(say, 'one').result()\nsee(2)",
    "_ = client.unforward_logging('forwarded')\n\
     client.submit(say, 'two').result()\n\
     _ = client.forward_logging('forwarded')\n\
     client.submit(say, 'three').result()\nsee(4)",
];

#[tokio::test(flavor = "multi_thread")]
async fn logs_and_warnings_are_those_of_a_worker_in_python() {
    let mut python = Cluster::new(1);
    let mut rust = Cluster::new(0);
    let worker = worker::python_worker(rust.scheduler.address(), "rust", &[], &[]);
    for program in PROGRAMS {
        let expected = python.python(program);
        assert_ne!(expected, "[]", "{program}");
        assert_eq!(rust.python(program), expected, "{program}");
    }
    // The exception of a task is logged even if there is no text for its arguments.
    let unclear = "class Unclear:\n    def __repr__(self): raise ValueError('unclear')\n\
                   _ = wait(client.submit(divide, Unclear(), y=0, key='of unclear'))\n\
                   [text.splitlines()[1:4] for _, text in logged('Key:       of unclear')]";
    assert_eq!(
        rust.python(unclear),
        "[['Key:       of unclear', 'State:     executing', 'Task:  < could not convert task to str >']]"
    );
    // Values of any type in a record do not end the process.
    let odd = "def odd():\n    log = logging.getLogger('distributed.worker')\n    \
               record = log.makeRecord(log.name, logging.ERROR, 'file', 1, 'odd', (), None)\n    \
               record.levelname = 7\n    log.handle(record)\n\
               client.submit(odd).result()\n[level for level, _ in logged(' - odd')]";
    assert_eq!(rust.python(odd), "['7']");
    // Other warnings are shown on standard error, where a worker in Python shows them.
    rust.python("client.submit(lambda: warnings.warn('look out', FutureWarning)).result()");
    worker.wait_for_log("FutureWarning: look out");
    // A task that logs without end takes a bounded part of the worker's memory.
    let many = "def many():\n    for n in range(3000): logging.getLogger('distributed.worker').info('x' * 3000)\n\
                client.submit(many).result()\n\
                lines = [text for log in client.get_worker_logs().values() for _, text in log]\n\
                len(lines) <= 1000, sum(map(len, lines)) <= 1 << 20, 'xxx' in lines[0]";
    assert_eq!(rust.python(many), "(True, True, True)");
    rust.check_logs();
}
