use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use daskwire_messages::protocol::{
    ReplyStatus, Returned, ReturnedResult, TaskState, UpdateData, WorkerStatus,
};

use super::*;
use crate::journal::{self, Journal, JournalStatus, fuzzing};

/// A directory that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("daskwire-journal-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        Self(path)
    }

    fn options(&self) -> JournalOptions {
        JournalOptions::new(&self.0).with_wait(Duration::from_millis(100))
    }

    /// The segments, in order.
    fn segments(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.0).expect("it exists");
        let paths = entries.map(|entry| entry.expect("it is there").path());
        let mut paths: Vec<PathBuf> = paths
            .filter(|path| path.extension().is_some_and(|kind| kind == "segment"))
            .collect();
        paths.sort();
        paths
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A state whose journal is written, without a server.
struct Journaled {
    journal: Journal,
    state: State,
    /// The number of the last event to wait for.
    number: u64,
    client_count: u64,
}

impl Journaled {
    fn open(options: &JournalOptions) -> Self {
        let (journal, state, _) = open(options).expect("it can be read");
        Self {
            journal,
            state,
            number: 0,
            client_count: 0,
        }
    }

    fn handle(&mut self, event: SchedulerInput) {
        self.state.handle(Duration::ZERO, event);
        while self.state.is_pending() {
            self.state.proceed(Duration::ZERO);
        }
        self.number = self.journal.take(&mut self.state);
    }

    /// Submits the next tasks at once, as `t-0` to the last.
    fn submit_many(&mut self, number: usize, count: usize) {
        let names = (number * count..)
            .take(count)
            .map(|number| format!("t-{number}"));
        let names: Vec<String> = names.collect();
        let client = self.client(&names[0]);
        self.submit_graph(client, &names);
    }

    /// Submits a task for a new client, which stays.
    fn submit(&mut self, key: &str) -> ClientId {
        let client = self.client(key);
        self.submit_graph(client, &[key.to_owned()]);
        client
    }

    fn client(&mut self, name: &str) -> ClientId {
        self.client_count += 1;
        let client = ClientId(self.client_count);
        self.handle(SchedulerInput::ClientJoined {
            id: client,
            name: name.to_owned(),
            versions: Value::None,
            returning: None,
        });
        client
    }

    fn submit_graph(&mut self, client: ClientId, names: &[String]) {
        let tasks = names
            .iter()
            .map(|name| Task::new(name.as_str(), "operator.add", [1, 2]));
        let graph: Graph = tasks.collect();
        let message = UpdateGraph {
            expr_ser: graph.to_expression().expect("plain values"),
            keys: names.iter().map(String::as_str).collect(),
            ..UpdateGraph::default()
        };
        self.handle(SchedulerInput::FromClient(client, message.into()));
    }
}

fn open(options: &JournalOptions) -> Result<(Journal, State, journal::Restored), JournalError> {
    let (journal, mut state, restored) =
        journal::open(options, Policy::default(), Duration::ZERO, None)?;
    state.handle(Duration::ZERO, SchedulerInput::Resumed);
    while state.is_pending() {
        state.proceed(Duration::ZERO);
    }
    Ok((journal, state, restored))
}

fn has(state: &State, key: &str) -> bool {
    state.status(&Key::from(key)).is_some()
}

/// The keys of a journal, of which all are `t-0` to the last.
fn keys_of(options: &JournalOptions) -> Result<usize, JournalError> {
    let (_, state, _) = open(options)?;
    let count = state.task_count();
    for number in 0..count {
        assert!(has(&state, &format!("t-{number}")), "{number} of {count}");
    }
    Ok(count)
}

async fn start(options: JournalOptions, at: &str) -> Scheduler {
    scheduler_with(at, Options::default().with_journal(options)).await
}

/// Registers a client that has been connected to an earlier scheduler.
async fn returning(scheduler: &Scheduler, name: &str) -> Client {
    Client::register(
        scheduler.address(),
        RegisterClient {
            client: name.to_owned(),
            reply: Some(false),
            returning: Some(true),
            ..RegisterClient::default()
        },
    )
    .await
}

#[tokio::test]
async fn a_scheduler_continues_from_its_journal() {
    let syncs = [
        JournalSync::Always,
        JournalSync::Interval,
        JournalSync::Never,
    ];
    for sync in syncs {
        let scratch = Scratch::new(&format!("{sync:?}"));
        let options = scratch.options().with_sync(sync);
        let first = start(options.clone(), "inproc://journal-first").await;
        let mut client = Client::new(first.address(), "me").await;
        let [x, y] = ["x", "y"].map(|key| Task::new(key, "operator.add", [1, 2]));
        let sum = [Key::from("x"), Key::from("y")];
        let z = Task::new(
            "z",
            "operator.add",
            [Argument::from(&sum[0]), Argument::from(&sum[1])],
        );
        client.submit([x, y, z], &["z"]);
        let bad = Task::new("bad", "operator.truediv", [1, 0]);
        client.submit([bad], &["bad"]);
        until(|| first.inspect(State::task_count) == 4).await;
        first.suspend().await;
        assert!(
            client
                .try_next()
                .await
                .is_none_or(|last| last.op() == "close-stream")
        );

        let second = start(options, "inproc://journal-second").await;
        assert_eq!(second.inspect(State::task_count), 4);
        let _worker = Worker::new(second.address(), "inproc://journal-worker").await;
        let mut client = returning(&second, "me").await;
        client.send(ClientDesiresKeys {
            keys: ["z"].into_iter().collect(),
            ..ClientDesiresKeys::default()
        });
        let mut is_done = false;
        while !is_done {
            is_done = matches!(client.next().await,
                ToClient::KeyInMemory(message) if message.key == Key::from("z"));
        }
        assert_eq!(client.gather("z").await, Value::from(6));
        second.close().await;
    }
}

/// Data that a client has stored is lost without the worker that holds it.
#[tokio::test]
async fn a_worker_that_has_begun_to_return_is_waited_for() {
    let scratch = Scratch::new("slow-return");
    // The worker takes longer to say what it holds than others are waited for.
    let options = scratch.options().with_wait(Duration::from_millis(500));
    let first = start(options.clone(), "inproc://slow-return-first").await;
    let (stream, address) = register(&first, "slow-return-worker").await;
    let mut client = Client::new(first.address(), "me").await;
    let stored = UpdateData {
        who_has: Some(vec![(Key::from("x"), vec![address])]),
        nbytes: Some(vec![(Key::from("x"), 1)]),
        client: Some("me".to_owned()),
        ..UpdateData::default()
    };
    client.call::<()>(stored).await.expect("it is done");
    first.suspend().await;
    drop(stream);

    let second = start(options, "inproc://slow-return-second").await;
    let (mut stream, _) = register(&second, "slow-return-worker").await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert!(second.inspect(State::is_held));
    let result = ReturnedResult {
        key: Key::from("x"),
        nbytes: 1,
        class: None,
    };
    let returned = FromWorker::from(Returned {
        results: vec![result],
        is_last: true,
        ..Returned::default()
    });
    stream.sender.send(&vec![returned]).await.expect("it reads");
    until(|| !second.inspect(State::is_held)).await;
    let status = second.inspect(|state| state.status(&Key::from("x")));
    assert_eq!(status, Some(TaskState::Memory));
    second.close().await;
}

/// Registers a worker that can return, of which the test sends the messages. Returns its stream and
/// its address.
async fn register(scheduler: &Scheduler, name: &str) -> (Channel, String) {
    let mut stream = connect(scheduler.address()).await;
    let kinds = ["native", "python", "returning"];
    let address = format!("inproc://{name}");
    let register = Request::from(RegisterWorker {
        extra_information: Value::dict([("daskwire", Value::list(kinds))]),
        address: address.clone(),
        server_id: Some(name.to_owned()),
        status: WorkerStatus::Running,
        nthreads: 1,
        ..RegisterWorker::default()
    });
    let reply: RegisterWorkerReply = stream.call(&register).await.expect("it replies");
    assert_eq!(reply.status, ReplyStatus::Ok);
    (stream, address)
}

#[test]
fn a_journal_has_one_scheduler_at_a_time() {
    let scratch = Scratch::new("in-use");
    let first = open(&scratch.options()).expect("it is new");
    let error = open(&scratch.options())
        .map(drop)
        .expect_err("it is in use");
    assert!(
        error.to_string().starts_with("another scheduler uses"),
        "{error}"
    );
    drop(first);
    open(&scratch.options()).expect("it is free");
}

/// Writes a journal, and returns its only segment with its content.
fn written(scratch: &Scratch, count: usize) -> (PathBuf, Vec<u8>) {
    let mut journaled = Journaled::open(&scratch.options().with_sync(JournalSync::Always));
    let mut stored = journaled.journal.stored();
    for number in 0..count {
        journaled.submit(&format!("t-{number}"));
        // Each submission is a batch of its own.
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let last = journaled.number;
        let is_stored = stored.wait_for(|stored| *stored >= last);
        runtime
            .expect("it starts")
            .block_on(is_stored)
            .expect("it is written");
    }
    drop(journaled);
    let [path] = &scratch.segments()[..] else {
        panic!("{:?}", scratch.segments());
    };
    (path.clone(), fs::read(path).expect("it is there"))
}

fn replace(scratch: &Scratch, path: &Path, content: &[u8]) {
    for old in scratch.segments() {
        fs::remove_file(old).expect("it is there");
    }
    fs::write(path, content).expect("there is space");
}

#[test]
fn a_journal_that_is_cut_continues_from_the_last_whole_batch() {
    let scratch = Scratch::new("cut");
    let (path, content) = written(&scratch, 4);
    let mut counts = BTreeSet::new();
    for len in (0..content.len()).rev() {
        replace(&scratch, &path, &content[..len]);
        if len < 32 {
            // It had its name only after all of its beginning was on disk.
            assert!(keys_of(&scratch.options()).is_err());
            continue;
        }
        counts.insert(keys_of(&scratch.options()).expect("only its end is missing"));
    }
    assert_eq!(counts.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
}

#[test]
fn damage_is_found() {
    let scratch = Scratch::new("damage");
    let (path, content) = written(&scratch, 4);
    let mut error_count = 0;
    for at in 0..content.len() {
        let mut damaged = content.clone();
        damaged[at] ^= 1 << (at % 8);
        replace(&scratch, &path, &damaged);
        match keys_of(&scratch.options()) {
            // The last batch may be one that was not written whole.
            Ok(count) => assert!((3..=4).contains(&count), "byte {at}: {count}"),
            Err(_) => error_count += 1,
        }
    }
    assert!(
        error_count > content.len() / 2,
        "{error_count} of {}",
        content.len()
    );
    // What follows the last whole batch was not written whole, whatever it is.
    for end in [&[0; 100][..], b"garbage of some length"] {
        let longer = [&content[..], end].concat();
        replace(&scratch, &path, &longer);
        assert_eq!(keys_of(&scratch.options()).expect("no batch is damaged"), 4);
    }
    let mut damaged = content.clone();
    damaged[50] ^= 1;
    replace(&scratch, &path, &damaged);
    let error = keys_of(&scratch.options())
        .expect_err("it is damaged")
        .to_string();
    assert!(error.contains("cut the file to 32 bytes"), "{error}");
    replace(&scratch, &path, b"something else that is long enough");
    let error = keys_of(&scratch.options())
        .expect_err("it is another file")
        .to_string();
    assert!(error.contains("not part of a journal"), "{error}");
}

#[test]
fn damage_to_any_segment_loses_nothing_unnoticed() {
    let scratch = Scratch::new("segments");
    let segments: [Vec<&[u8]>; 3] = [vec![b"one", b"two"], vec![b"three"], vec![b"four", b"five"]];
    let all: Vec<Vec<u8>> = segments
        .concat()
        .iter()
        .map(|batch| batch.to_vec())
        .collect();
    fuzzing::write(&scratch.0, &segments).expect("there is space");
    let files: Vec<(PathBuf, Vec<u8>)> = scratch
        .segments()
        .into_iter()
        .map(|path| (path.clone(), fs::read(path).expect("it is there")))
        .collect();
    let read = |changed: &Path, content: Option<&[u8]>| {
        for (path, whole) in &files {
            fs::write(path, whole).expect("there is space");
        }
        match content {
            Some(content) => fs::write(changed, content).expect("there is space"),
            None => fs::remove_file(changed).expect("it is there"),
        }
        fuzzing::read(&scratch.0)
    };
    assert_eq!(
        read(&files[0].0, Some(&files[0].1)).expect("whole"),
        (all.clone(), 0)
    );
    for (path, whole) in &files {
        let is_last = path == &files[2].0;
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut content = whole.clone();
                content[at] ^= 1 << bit;
                match read(path, Some(&content)) {
                    // The last batch may be one that was not written whole.
                    Ok((batches, torn_len)) => {
                        assert!(is_last && torn_len > 0, "{}, byte {at}", path.display());
                        assert_eq!(batches, all[..4]);
                    }
                    Err(JournalError::Damaged { .. } | JournalError::NotASegment { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            match read(path, Some(&whole[..at])) {
                Ok((batches, _)) => {
                    assert!(is_last);
                    assert!((3..5).contains(&batches.len()));
                    assert_eq!(batches, all[..batches.len()]);
                }
                Err(JournalError::Damaged { .. } | JournalError::NotASegment { .. }) => {
                    assert!(!is_last, "byte {at}");
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    // Without the first segment, or with a gap, what is left has no beginning.
    for (path, _) in &files[..2] {
        let error = read(path, None).expect_err("one is missing");
        assert!(matches!(error, JournalError::Missing { .. }), "{error}");
    }
    let (batches, _) = read(&files[2].0, None).expect("it may not have been begun");
    assert_eq!(batches, all[..3]);
}

/// Killed at each write, and at each change of the directory, while segments begin and are merged.
#[test]
fn a_scheduler_that_is_killed_at_any_write_continues() {
    const TASK_COUNT: usize = 40;
    let scratch = Scratch::new("copies");
    let options = scratch.options().with_sync(JournalSync::Always);
    let mut journaled = Journaled::open(&options);
    fs::create_dir(scratch.0.join("copies")).expect("there is space");
    let copies = || -> BTreeSet<PathBuf> {
        let entries = fs::read_dir(scratch.0.join("copies")).expect("it is there");
        entries
            .map(|entry| entry.expect("it is there").path())
            .collect()
    };
    let mut known = copies();
    let mut numbers = BTreeSet::new();
    for count in 1..=40 {
        journaled.submit_many(count - 1, TASK_COUNT);
        while !journaled.journal.is_stored(journaled.number) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let all = copies();
        for copy in all.difference(&known) {
            // What was stored before is there, and at most what was being stored.
            let found = keys_of(&JournalOptions::new(copy));
            let found = found.unwrap_or_else(|error| panic!("{}: {error}", copy.display()));
            let expected = [count - 1, count].map(|count| count * TASK_COUNT);
            assert!(
                expected.contains(&found),
                "{}: {found} of {expected:?}",
                copy.display()
            );
        }
        known = all;
        numbers.extend(scratch.segments());
    }
    drop(journaled);
    // Twice, another one began, and those before were merged.
    assert!(numbers.len() > 2, "{numbers:?}");
    assert_eq!(keys_of(&options).expect("it is whole"), 40 * TASK_COUNT);
}

#[test]
fn the_length_of_a_journal_is_bounded() {
    let scratch = Scratch::new("bounded");
    let mut journaled = Journaled::open(&scratch.options());
    let mut longest = 0;
    let mut clients = std::collections::VecDeque::new();
    for number in 0..4000 {
        // All but the last ten are released.
        clients.push_back(journaled.submit(&format!("t-{number}")));
        if number >= 10 {
            journaled.handle(SchedulerInput::ClientLeft(
                clients.pop_front().expect("it is there"),
            ));
        }
        if number % 100 == 0 {
            std::thread::sleep(Duration::from_millis(60));
            let lens = scratch.segments().into_iter();
            let lens = lens.filter_map(|path| Some(fs::metadata(path).ok()?.len()));
            longest = longest.max(lens.sum::<u64>());
        }
    }
    drop(journaled);
    assert!(longest > 64 << 10 && longest < 300 << 10, "{longest}");
    let (_, state, restored) = open(&scratch.options()).expect("it can be read");
    assert_eq!((state.task_count(), restored.task_count), (10, 10));
    assert!((3990..4000).all(|number| has(&state, &format!("t-{number}"))));
}

impl Journaled {
    fn status(&self) -> JournalStatus {
        self.journal.status().borrow().clone()
    }

    /// Submits tasks until something is the case.
    fn submit_until(&mut self, mut is_over: impl FnMut(&Self) -> bool) {
        for number in 0.. {
            assert!(number < 100_000, "{:?}", self.status());
            self.submit(&format!("t-{}", self.client_count));
            if is_over(self) {
                return;
            }
            if number % 10 == 9 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

fn len_of(segments: Vec<PathBuf>) -> u64 {
    let lens = segments.into_iter();
    lens.filter_map(|path| Some(fs::metadata(path).ok()?.len()))
        .sum()
}

#[test]
fn what_a_disk_could_not_store_is_written_elsewhere() {
    let scratch = Scratch::new("failing");
    let options = scratch.options().with_sync(JournalSync::Always);
    let mut journaled = Journaled::open(&options);
    for number in 0..5 {
        if number % 2 == 1 {
            fs::write(scratch.0.join("failing"), "").expect("there is space");
        }
        journaled.submit(&format!("t-{number}"));
        while fs::exists(scratch.0.join("failing")).expect("it can be read")
            || journaled.status() != JournalStatus::Written
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    drop(journaled);
    assert_eq!(keys_of(&options).expect("it is whole"), 5);
}

#[test]
fn what_waits_for_a_disk_that_hangs_is_bounded() {
    let scratch = Scratch::new("hanging");
    let options = scratch.options().with_sync(JournalSync::Always);
    let mut journaled = Journaled::open(&options);
    journaled.submit("t-0");
    let mut stored = journaled.journal.stored();
    while *stored.borrow_and_update() < journaled.number {
        std::thread::sleep(Duration::from_millis(1));
    }
    fs::write(scratch.0.join("hanging"), "").expect("there is space");
    let mut longest = 0;
    journaled.submit_until(|journaled| {
        longest = longest.max(journaled.journal.waiting_len());
        assert!(longest < 2 << 18, "{longest}");
        matches!(journaled.status(), JournalStatus::Ended(_))
    });
    assert!(longest > 1 << 17, "{longest}");
    let JournalStatus::Ended(reason) = journaled.status() else {
        panic!("{:?}", journaled.status());
    };
    assert!(
        reason.starts_with("the disk has not answered for"),
        "{reason}"
    );
    // Nothing waits any more.
    let count = journaled.client_count;
    journaled.submit(&format!("t-{count}"));
    assert!(journaled.journal.is_stored(journaled.number));
    assert_eq!(journaled.journal.waiting_len(), 0);
    fs::remove_file(scratch.0.join("hanging")).expect("it is there");
    drop(journaled);
    // What was being written is whole, and nothing follows.
    let kept = keys_of(&options).expect("it is whole") as u64;
    assert!((1..count / 2).contains(&kept), "{kept} of {count}");
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_wait_for_a_disk_that_hangs_which_is_reported() {
    let scratch = Scratch::new("slow");
    let options = scratch.options().with_sync(JournalSync::Always);
    let notices: Arc<Mutex<Vec<String>>> = Arc::default();
    let kept = Arc::clone(&notices);
    let on_notice = Arc::new(move |notice: &Notice| lock(&kept).push(notice.to_string()));
    let all = Options::default()
        .with_journal(options)
        .with_on_notice(on_notice);
    let scheduler = scheduler_with("inproc://journal-slow", all).await;
    let mut client = Client::new(scheduler.address(), "me").await;
    fs::write(scratch.0.join("hanging"), "").expect("there is space");
    let slow = "the disk of the journal has not answered for 0 s; nothing is answered until it does, or \
                too much waits to be written";
    let is_said = |text: &str| {
        lock(&notices)
            .iter()
            .filter(|notice| *notice == text)
            .count()
            == 1
    };
    {
        let set = client.call::<Value>(EventSet {
            name: Key::from("n"),
            ..EventSet::default()
        });
        let mut set = core::pin::pin!(set);
        tokio::select! {
            reply = &mut set => panic!("{reply:?}"),
            () = until(|| is_said(slow)) => {}
        }
        fs::remove_file(scratch.0.join("hanging")).expect("it is there");
        set.await.expect("it replies");
    }
    until(|| is_said("the journal is written again")).await;
    assert!(is_said(slow));
    scheduler.close().await;
}

#[test]
fn a_journal_whose_parts_cannot_be_merged_is_bounded() {
    for is_repaired in [false, true] {
        let scratch = Scratch::new("unmerged");
        let options = scratch.options();
        let mut journaled = Journaled::open(&options);
        // What is not finished is removed first, which fails for a directory.
        let obstacle = scratch.0.join("7.new");
        fs::create_dir(&obstacle).expect("there is space");
        journaled
            .submit_until(|journaled| matches!(journaled.status(), JournalStatus::Unmerged(_)));
        let mut longest = 0;
        if is_repaired {
            journaled.submit_until(|_| len_of(scratch.segments()) > 512 << 10);
            fs::remove_dir(&obstacle).expect("it is there");
            journaled.submit_until(|journaled| journaled.status() == JournalStatus::Written);
        } else {
            journaled.submit_until(|journaled| {
                longest = longest.max(len_of(scratch.segments()));
                matches!(journaled.status(), JournalStatus::Ended(_))
            });
            assert!(longest < 2 << 20, "{longest}");
            // None begins before those that there are were merged.
            assert_eq!(scratch.segments().len(), 2);
            fs::remove_dir(&obstacle).expect("it is there");
        }
        let count = journaled.client_count;
        drop(journaled);
        let kept = keys_of(&options).expect("it is whole") as u64;
        match is_repaired {
            true => assert_eq!(kept, count),
            false => assert!((100..count).contains(&kept), "{kept} of {count}"),
        }
    }
}

#[test]
fn no_segment_has_a_number_that_none_can_follow() {
    let scratch = Scratch::new("last");
    let (path, content) = written(&scratch, 1);
    let last = scratch.0.join(format!("{}.segment", u64::MAX));
    fs::write(&last, &content).expect("there is space");
    let error = keys_of(&scratch.options()).expect_err("it is not ours");
    assert!(
        matches!(&error, JournalError::NotASegment { path } if *path == last),
        "{error}"
    );
    fs::remove_file(&last).expect("it is there");
    assert!(path.exists());
    assert_eq!(keys_of(&scratch.options()).expect("it is whole"), 1);
}

#[tokio::test]
async fn a_scheduler_continues_with_what_clients_share() {
    let scratch = Scratch::new("shared");
    let options = scratch.options().with_sync(JournalSync::Always);
    let first = start(options.clone(), "inproc://journal-shared-first").await;
    let mut client = Client::new(first.address(), "me").await;
    client.submit([Task::new("x", "operator.add", [1, 2])], &["x"]);
    until(|| first.inspect(State::task_count) == 1).await;
    let name = || Key::from("n");
    let requests: [Request; 8] = [
        VariableSet {
            name: name(),
            key: Some(Key::from("x")),
            ..VariableSet::default()
        }
        .into(),
        QueueCreate {
            name: name(),
            ..QueueCreate::default()
        }
        .into(),
        put(1),
        put(2),
        EventSet {
            name: name(),
            ..EventSet::default()
        }
        .into(),
        SemaphoreRegister {
            name: name(),
            max_leases: 1,
            lease_timeout: Some(30.0),
            ..SemaphoreRegister::default()
        }
        .into(),
        acquire("one"),
        RegisterWorkerPlugin {
            name: "mine".to_owned(),
            plugin: Value::Bytes(b"pickle".to_vec().into()),
            ..RegisterWorkerPlugin::default()
        }
        .into(),
    ];
    for request in requests {
        client.call::<Value>(request).await.expect("it replies");
    }
    let published = client.call::<Value>(PublishPut {
        name: Some(name()),
        keys: vec![Key::from("x")],
        data: Value::list([1, 2]),
        ..PublishPut::default()
    });
    published.await.expect("it replies");
    assert_eq!(value_of(client.call(get()).await), Value::from(1));
    first.suspend().await;

    let notices: Arc<Mutex<Vec<String>>> = Arc::default();
    let kept = Arc::clone(&notices);
    let on_notice = Arc::new(move |notice: &Notice| lock(&kept).push(notice.to_string()));
    let all = Options::default()
        .with_journal(options)
        .with_on_notice(on_notice);
    let second = scheduler_with("inproc://journal-shared-second", all).await;
    let missing = "these plugins were registered, and have to be registered again: mine (worker)";
    until(|| lock(&notices).iter().any(|notice| notice == missing)).await;
    let mut client = Client::new(second.address(), "other").await;
    let read = VariableGet {
        name: name(),
        ..VariableGet::default()
    };
    assert_eq!(value_of(client.call(read).await), Value::from("x"));
    assert_eq!(value_of(client.call(get()).await), Value::from(2));
    let is_set = EventIsSet {
        name: name(),
        ..EventIsSet::default()
    };
    let is_set: Value = client.call(is_set).await.expect("it replies");
    assert_eq!(is_set, Value::from(true));
    for (lease_id, is_granted) in [("two", false), ("one", true)] {
        let granted: Value = client.call(acquire(lease_id)).await.expect("it replies");
        assert_eq!(granted, Value::from(is_granted), "{lease_id}");
    }
    let dataset = PublishGet {
        name: Some(name()),
        ..PublishGet::default()
    };
    let dataset: Value = client.call(dataset).await.expect("it replies");
    assert_eq!(dataset.get("data"), Some(&Value::list([1, 2])));
    second.close().await;
}

fn put(value: i64) -> Request {
    let put = QueuePut {
        name: Key::from("n"),
        data: Some(Value::from(value)),
        ..QueuePut::default()
    };
    put.into()
}

fn get() -> Request {
    let get = QueueGet {
        name: Key::from("n"),
        timeout: Some(5.0),
        ..QueueGet::default()
    };
    get.into()
}

fn acquire(lease_id: &str) -> Request {
    let acquire = SemaphoreAcquire {
        name: Key::from("n"),
        lease_id: Key::from(lease_id),
        timeout: Some(0.0),
        ..SemaphoreAcquire::default()
    };
    acquire.into()
}

/// The value of a record that clients share.
fn value_of<E: fmt::Debug>(reply: Result<Value, E>) -> Value {
    let record = reply.expect("it replies");
    record.get("value").expect("a record").clone()
}
