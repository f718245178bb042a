//! A script of clients, on a scheduler that is killed at any step and on one that is not: the results,
//! the errors and what clients share are the same at the end.

use core::hash::{Hash, Hasher};
use std::collections::hash_map::DefaultHasher;

use daskwire_extensions::Change;
use daskwire_messages::protocol::RunSpec;

use super::*;
use crate::model::TaskStage;

/// What is the same in each run of a script, and what a client has to repeat.
#[derive(Default)]
pub(super) struct Script {
    /// The value of each key that was computed or scattered.
    values: BTreeMap<Key, u64>,
    /// The graphs that the client has sent, and how many of them were accepted.
    graphs: Vec<UpdateGraph>,
    accepted_count: u64,
    /// A request without a reply yet.
    request: Option<(RequestId, Request)>,
    kill_count: usize,
}

impl Script {
    /// The script for another run, in which each key has the same value.
    fn again(self) -> Self {
        Self {
            values: self.values,
            ..Self::default()
        }
    }

    /// Computes a task. Each run of the script has the same value.
    pub(super) fn computed(&mut self, task: &ComputeTask) {
        let RunSpec::Payload(payload) = &task.run_spec else {
            panic!("{task:?}");
        };
        let mut hasher = DefaultHasher::new();
        payload.message().hash(&mut hasher);
        let mut inputs: Vec<&Key> = task.nbytes.iter().map(|(key, _)| key).collect();
        inputs.sort_unstable();
        for input in inputs {
            let value = self.values.get(input).expect("a worker has it");
            (input, value).hash(&mut hasher);
        }
        let value = hasher.finish();
        let known = *self.values.entry(task.key.clone()).or_insert(value);
        assert_eq!(known, value, "{}", task.key);
    }
}

/// What a client does.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "there are few steps")]
enum Step {
    Scatter(Key),
    Submit(UpdateGraph),
    Release(Vec<Key>),
    Request(Request),
    SetMetadata(Vec<Key>, i64),
}

/// What a run leads to.
#[derive(Debug, PartialEq)]
struct Outcome {
    /// The values of the keys that the client wants, or their errors.
    keys: BTreeMap<Key, Result<u64, String>>,
    objects: Vec<String>,
    /// The results that are held for them.
    held: BTreeSet<(String, Key)>,
    metadata: Value,
}

/// The client that runs the script.
const CLIENT: &str = NAMES[0];

const TASK_COUNT: usize = 30;

/// Makes a script.
struct Author {
    choices: Choices,
    /// The dependencies of each task.
    inputs: BTreeMap<String, Vec<String>>,
    wanted: BTreeSet<String>,
    has_put: bool,
    has_lock: bool,
}

impl Author {
    fn number(&mut self, below: usize) -> usize {
        self.choices.number(below)
    }

    fn write(choices: Choices, has_data: bool) -> Vec<Step> {
        let mut author = Self {
            choices,
            inputs: BTreeMap::new(),
            wanted: BTreeSet::new(),
            has_put: false,
            has_lock: false,
        };
        let data = (0..if has_data { 3 } else { 0 }).map(|number| format!("data-{number}"));
        let mut names: Vec<String> = data.collect();
        author.wanted.extend(names.clone());
        let mut steps: Vec<Step> = names
            .iter()
            .map(|name| Step::Scatter(name[..].into()))
            .collect();
        let tasks = (0..TASK_COUNT).map(|number| format!("t-{number:02}"));
        for name in ["bad-0".to_owned()].into_iter().chain(tasks) {
            // Each task has an input of its own, and most do not fail.
            let count = author.number(4);
            let inputs = (0..count).filter_map(|_| {
                let input = names.get(author.number(names.len()))?;
                let is_used = input != "bad-0" || author.number(4) == 0;
                is_used.then(|| input.clone())
            });
            let mut inputs: Vec<String> = inputs.collect();
            inputs.sort_unstable();
            inputs.dedup();
            author.inputs.insert(name.clone(), inputs);
            names.push(name);
        }
        for _ in 0..30 {
            steps.push(author.step());
        }
        steps
    }

    fn task(&mut self) -> String {
        match self.number(12) {
            0 => "bad-0".to_owned(),
            _ => format!("t-{:02}", self.number(TASK_COUNT)),
        }
    }

    fn step(&mut self) -> Step {
        let name = Key::from(["v", "w"][self.number(2)]);
        let index = self.number(self.wanted.len());
        let wanted = self.wanted.iter().nth(index).map(|key| Key::from(&key[..]));
        match (self.number(16), wanted) {
            (0, Some(key)) => Step::Request(
                VariableSet {
                    name,
                    key: Some(key),
                    ..VariableSet::default()
                }
                .into(),
            ),
            // The queue has space for one that is put again.
            (1, Some(key)) if !self.has_put => {
                self.has_put = true;
                let put = QueuePut {
                    name: Key::from("q"),
                    key: Some(key),
                    ..QueuePut::default()
                };
                Step::Request(put.into())
            }
            (2, Some(key)) => Step::Request(
                PublishPut {
                    name: Some(name),
                    keys: vec![key],
                    data: Value::from(self.number(9)),
                    override_existing: Some(true),
                    ..PublishPut::default()
                }
                .into(),
            ),
            (3, _) => Step::Request(
                EventSet {
                    name,
                    ..EventSet::default()
                }
                .into(),
            ),
            (4, _) => Step::Request(
                EventClear {
                    name,
                    ..EventClear::default()
                }
                .into(),
            ),
            (5, _) => {
                self.has_lock = !self.has_lock;
                let id = Key::from("h");
                Step::Request(match self.has_lock {
                    true => MultiLockAcquire {
                        id,
                        locks: vec![name],
                        num_locks: Some(1),
                        ..MultiLockAcquire::default()
                    }
                    .into(),
                    false => MultiLockRelease {
                        id,
                        ..MultiLockRelease::default()
                    }
                    .into(),
                })
            }
            (7, _) => {
                let below = Key::from(self.number(2) as i64);
                let path = match self.number(2) {
                    0 => vec![name],
                    _ => vec![name, below],
                };
                Step::SetMetadata(path, self.number(9) as i64)
            }
            (8..11, _) => {
                let all = core::mem::take(&mut self.wanted);
                let (kept, released) = all
                    .into_iter()
                    .partition(|name| name.starts_with("data") || self.number(4) != 0);
                self.wanted = kept;
                let released: BTreeSet<String> = released;
                Step::Release(released.iter().map(|name| Key::from(&name[..])).collect())
            }
            _ => self.submit(),
        }
    }

    fn submit(&mut self) -> Step {
        let mut names = BTreeSet::new();
        let mut left: Vec<String> = (0..self.number(4) + 1).map(|_| self.task()).collect();
        let wanted = left.clone();
        while let Some(name) = left.pop() {
            if let Some(inputs) = self.inputs.get(&name)
                && names.insert(name)
            {
                left.extend(inputs.iter().cloned());
            }
        }
        let tasks = names.iter().map(|name| {
            let inputs = &self.inputs[name];
            let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
            add(name, &inputs)
        });
        let graph: Graph = tasks.collect();
        let message = UpdateGraph {
            expr_ser: graph.to_expression().expect("plain values"),
            keys: wanted.iter().map(String::as_str).collect(),
            ..UpdateGraph::default()
        };
        self.wanted.extend(wanted);
        Step::Submit(message)
    }
}

impl Simulation {
    /// Notes how many graphs of a client were accepted.
    pub(super) fn accept(&mut self, client: ClientId, count: u64) {
        if self.names.get(&client).is_some_and(|name| name == CLIENT)
            && let Some(script) = &mut self.script
        {
            script.accepted_count = count;
        }
    }

    fn script(&mut self) -> &mut Script {
        self.script.as_mut().expect("there is one")
    }

    fn script_client(&self) -> ClientId {
        let mut clients = self.clients.keys();
        let is_it = |client: &&ClientId| self.names[*client] == CLIENT;
        *clients.find(is_it).expect("it is connected")
    }

    /// Runs a script. Without choices for them, there are no kills.
    fn run_script(
        seed: u64,
        steps: &[Step],
        script: Script,
        kills: Option<Choices>,
        loses_workers: bool,
    ) -> (Outcome, Script) {
        let mut simulation = Self::new(seed);
        simulation.is_plain = true;
        simulation.state.policy.client_grace = Duration::from_secs(1);
        // Workers send no heartbeats.
        simulation.state.policy.worker_ttl = None;
        simulation.script = Some(script);
        simulation.restart_with_journal();
        for _ in 0..3 {
            simulation.add_worker();
        }
        let has_kills = kills.is_some();
        if let Some(choices) = kills {
            simulation.choices = choices;
            simulation.state.slice_len = simulation.number(4) + 1;
        }
        for step in steps {
            simulation.follow(step.clone());
            let mut left = simulation.number(20);
            for count in 0.. {
                assert!(count < 1000, "seed {seed}: {step:?} has no reply");
                if has_kills && simulation.number(30) == 0 {
                    simulation.kill_script(loses_workers);
                }
                simulation.note_reply();
                // The client waits for the reply.
                if left == 0 && simulation.script().request.is_none() {
                    break;
                }
                left = left.saturating_sub(1);
                simulation.advance();
            }
        }
        simulation.complete();
        let outcome = simulation.outcome();
        simulation.finish(seed);
        let script = simulation.script.take().expect("there is one");
        (outcome, script)
    }

    /// Advances something that is not the client.
    fn advance(&mut self) {
        let worker = self.pick_worker();
        match (self.number(10), worker) {
            (0, _) => {
                self.now += Duration::from_millis(10);
                self.handle(SchedulerInput::Tick);
            }
            (1, _) => self.handle(SchedulerInput::ReduceReplicas),
            (2, _) if self.number(8) == 0 => self.merge_journal(),
            (2..5, _) => self.proceed(),
            (5..7, Some(worker)) => self.work(worker),
            (7..9, Some(worker)) => self.deliver(worker),
            (_, Some(worker)) => self.workers.get_mut(&worker).expect("exists").read(),
            _ => self.add_worker(),
        }
        if self.number(2) == 0 {
            let client = self.script_client();
            self.next_part(client);
        }
    }

    fn follow(&mut self, step: Step) {
        let client = self.script_client();
        match step {
            Step::Scatter(key) => {
                self.script().values.insert(key.clone(), 0);
                let worker = self.pick_worker().expect("there are three");
                self.scatter_to(worker, client, key);
            }
            Step::Submit(message) => {
                let views = self.clients.get_mut(&client).expect("exists");
                views.extend(message.keys.iter().map(|key| (key.clone(), View::Pending)));
                self.script().graphs.push(message.clone());
                self.submit_graph(client, message);
            }
            Step::Release(keys) => {
                let views = self.clients.get_mut(&client).expect("exists");
                views.retain(|key, _| !keys.contains(key));
                let message = ClientReleasesKeys {
                    keys: Keys(keys),
                    ..ClientReleasesKeys::default()
                };
                self.handle(SchedulerInput::FromClient(client, message.into()));
            }
            Step::Request(request) => {
                // Else a request about a future would be handled before its graph.
                self.complete_work_of(client);
                self.request_of_script(request);
            }
            Step::SetMetadata(path, value) => {
                let value = Value::from(value);
                self.handle(SchedulerInput::MetadataSet { path, value });
            }
        }
    }

    fn request_of_script(&mut self, request: Request) {
        // It may be answered at once.
        self.request(request.clone());
        let id = self.last_request();
        self.script().request = Some((id, request));
    }

    /// Ends the request of the client, if it has a reply.
    fn note_reply(&mut self) {
        let Some((id, _)) = self.script().request else {
            return;
        };
        if self.shared.replies.remove(&id).is_some() {
            self.script().request = None;
            self.close_request(id);
            self.handle(SchedulerInput::Replied(id));
        }
    }

    /// Kills the scheduler at this step. The client repeats what was not acknowledged.
    fn kill_script(&mut self, loses_workers: bool) {
        self.script().kill_count += 1;
        if let Some(id) = self.pick_worker()
            && let Some(message) = self
                .workers
                .get_mut(&id)
                .and_then(|worker| worker.outbox.pop_front())
        {
            // An event is handled, and maybe stored, but has no consequences.
            let is_all = !self.state.is_pending();
            self.state
                .handle(self.now, SchedulerInput::FromWorker(id, message));
            if is_all && self.number(2) == 0 {
                self.state.take_journal(&mut Vec::new());
            }
        }
        if loses_workers
            && self.number(3) == 0
            && let Some(id) = self.pick_worker()
        {
            self.workers.remove(&id);
        }
        let clients = core::mem::take(&mut self.clients);
        self.kill_scheduler(0);
        self.return_reader();
        for (client, views) in clients {
            let name = self.names[&client].clone();
            match &name[..] {
                CLIENT => self.return_script_client(views),
                name => drop(self.add_client(name, Some(true))),
            }
        }
        if let Some((_, request)) = self.script().request.take() {
            let client = self.script_client();
            self.complete_work_of(client);
            self.request_of_script(request);
        }
    }

    fn return_script_client(&mut self, views: BTreeMap<Key, View>) {
        let client = self.add_client(CLIENT, Some(true));
        let script = self.script();
        let accepted_count = script.accepted_count as usize;
        let graphs = script.graphs[accepted_count..].to_vec();
        let accepted = script.graphs[..accepted_count].iter();
        let accepted: BTreeSet<Key> = accepted
            .flat_map(|graph| graph.keys.iter().cloned())
            .collect();
        let is_data = |key: &Key| key.prefix() == "data";
        let desired = views
            .keys()
            .filter(|key| accepted.contains(key) || is_data(key));
        let message = ClientDesiresKeys {
            keys: desired.collect(),
            ..ClientDesiresKeys::default()
        };
        let wanted: BTreeSet<Key> = views.keys().cloned().collect();
        let views = views.into_keys().map(|key| (key, View::Pending)).collect();
        self.clients.insert(client, views);
        self.handle(SchedulerInput::FromClient(client, message.into()));
        for mut graph in graphs {
            graph.keys.0.retain(|key| wanted.contains(key));
            self.submit_graph(client, graph);
        }
        self.handle(SchedulerInput::FromClient(
            client,
            KeysConfirmed::default().into(),
        ));
    }

    fn outcome(&self) -> Outcome {
        let values = &self.script.as_ref().expect("there is one").values;
        let views = &self.clients[&self.script_client()];
        let keys = views.keys().map(|key| {
            let id = *self.state.by_key.get(key).expect("a client wants it");
            let result = match &self.state.tasks[id].stage {
                TaskStage::Memory => Ok(values[key]),
                TaskStage::Erred(failure) => {
                    Err(format!("{:?} of {:?}", failure.exception, failure.cause))
                }
                stage => panic!("{key} is {stage:?}"),
            };
            (key.clone(), result)
        });
        let (objects, held) = self.shared_objects();
        let objects = objects.into_iter().map(|object| match object {
            // A value may be put twice, if only the reply was lost.
            Change::Item { value, .. } => format!("{value:?}"),
            other => format!("{other:?}"),
        });
        let mut objects: Vec<String> = objects.collect();
        objects.dedup();
        Outcome {
            keys: keys.collect(),
            objects,
            held,
            metadata: self.state.metadata(&[]).expect("a dictionary"),
        }
    }
}

/// Runs a script of clients twice: on a scheduler that is killed, and on one that is not. Checks that the
/// results, the errors and what clients share are the same at the end.
///
/// The input: whether workers end, too; the script, of 128 bytes; then a byte for each choice of the run
/// with kills. Pseudo-random choices follow.
pub fn compare_killed(input: &[u8]) {
    let (first, input) = input.split_first().unwrap_or((&0, &[]));
    let loses_workers = first % 2 == 0;
    let (script, kills) = input.split_at(input.len().min(128));
    let steps = Author::write(script.into(), !loses_workers);
    let run = |script, kills| Simulation::run_script(0, &steps, script, kills, loses_workers);
    let (expected, done) = run(Script::default(), None);
    let (outcome, _) = run(done.again(), Some(kills.into()));
    assert_eq!(outcome, expected);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_scheduler_leads_to_is_what_another_one_does() {
        let [
            mut kill_count,
            mut value_count,
            mut error_count,
            mut object_count,
        ] = [0; 4];
        for seed in 0..8 {
            let loses_workers = seed % 2 == 0;
            let steps = Author::write(seed.into(), !loses_workers);
            let (expected, mut script) =
                Simulation::run_script(seed, &steps, Script::default(), None, loses_workers);
            let errors = expected.keys.values().filter(|result| result.is_err());
            error_count += errors.count();
            value_count += expected.keys.len();
            object_count += expected.objects.len();
            for kills in 1..3 {
                let choices = Choices::from(seed ^ (kills << 32));
                let (outcome, run) = Simulation::run_script(
                    seed,
                    &steps,
                    script.again(),
                    Some(choices),
                    loses_workers,
                );
                assert_eq!(outcome, expected, "seed {seed}, kills {kills}");
                script = run;
                kill_count += script.kill_count;
            }
        }
        let counts = [kill_count, value_count, error_count, object_count];
        assert!(kill_count > 100 && value_count > 50, "{counts:?}");
        assert!(error_count > 5 && object_count > 20, "{counts:?}");
    }
}
