//! Random requests about P2P shuffles, whose tasks are random, too.

use super::*;

const SHUFFLES: [&str; 2] = ["a", "b"];

/// What is not done of the requests.
#[derive(Default)]
pub(super) struct Shuffles {
    count: u64,
    open: BTreeSet<RequestId>,
    new: VecDeque<NewRun>,
    last_run: u64,
}

impl Shuffles {
    pub(super) fn request_run(&mut self, run: NewRun) {
        assert!(self.new.is_empty() && run.run_id > self.last_run);
        assert!(!run.workers.is_empty());
        self.last_run = run.run_id;
        self.new.push_back(run);
    }

    pub(super) fn is_reply(
        &mut self,
        id: RequestId,
        reply: &Result<Value, RequestRefusal>,
    ) -> bool {
        let is_known = self.open.remove(&id);
        if is_known {
            let reply = reply.as_ref().expect("a status");
            assert!(reply.get("status").is_some());
        }
        is_known
    }
}

/// Two shuffles of the results of some tasks, and their outputs, of which one is that of both.
pub(super) fn tasks(names: &[String]) -> (Vec<Node>, Vec<String>) {
    let barriers = SHUFFLES.map(|shuffle| format!("shuffle-barrier-{shuffle}"));
    let mut tasks = Vec::new();
    let inputs: Vec<&str> = names.iter().map(String::as_str).collect();
    let half = inputs.len() / 2;
    tasks.push(add(&barriers[0], &inputs[..half]));
    tasks.push(add(&barriers[1], &inputs[half..]));
    let outputs = ["u-0", "u-1", "u-2"];
    tasks.push(add(outputs[0], &[&barriers[0]]));
    tasks.push(add(outputs[1], &[&barriers[1]]));
    tasks.push(add(outputs[2], &[&barriers[0], &barriers[1]]));
    (tasks, outputs.map(str::to_owned).into())
}

impl Simulation {
    pub(super) fn shuffle(&mut self) {
        let shuffle = SHUFFLES[self.number(2)].to_owned();
        let index = self.number(self.workers.len());
        let Some(worker) = self.workers.values().nth(index) else {
            return;
        };
        let address = worker.address.clone();
        let index = self.number(worker.tasks.len());
        let worker = self
            .workers
            .values()
            .find(|worker| worker.address == address);
        let tasks = worker.map(|worker| &worker.tasks);
        let key = tasks.and_then(|tasks| tasks.keys().nth(index).cloned());
        let key = key.unwrap_or_else(|| Key::from("t-00"));
        let run_id = self.shuffles.last_run.saturating_sub(self.number(3) as u64);
        let request: Request = match self.number(12) {
            0 => ShuffleGet {
                id: shuffle,
                worker: address,
                ..ShuffleGet::default()
            }
            .into(),
            1..5 => ShuffleGetOrCreate {
                shuffle_id: shuffle,
                key,
                worker: address,
                ..ShuffleGetOrCreate::default()
            }
            .into(),
            5 | 6 => ShuffleRestrictTask {
                id: shuffle,
                run_id,
                key,
                worker: address,
                ..ShuffleRestrictTask::default()
            }
            .into(),
            7 => return self.handle(SchedulerInput::ShuffleRestarted { shuffle, run_id }),
            8 => {
                let index = self.number(self.shuffles.open.len());
                let id = self.shuffles.open.iter().nth(index).copied();
                if let Some(id) = id {
                    self.shuffles.open.remove(&id);
                    self.handle(SchedulerInput::RequestDropped(id));
                }
                return;
            }
            _ => return self.create_run(),
        };
        self.shuffles.count += 1;
        let id = RequestId((1 << 40) + self.shuffles.count);
        self.shuffles.open.insert(id);
        let request = Box::new(request);
        self.handle(SchedulerInput::Requested { id, request });
    }

    fn create_run(&mut self) {
        let Some(new) = self.shuffles.new.pop_front() else {
            return;
        };
        let run = match self.number(6) {
            0 => Err(RunFailure {
                exception: daskwire_messages::exception::exception("ValueError", "bad"),
                text: "bad".to_owned(),
            }),
            _ => Ok(CreatedRun {
                run_spec: vec![0; 8].into(),
                workers: new.workers.into_iter().take(2).collect(),
            }),
        };
        let run_id = new.run_id;
        self.handle(SchedulerInput::RunCreated { run_id, run });
    }

    /// Creates all runs that are asked for. All requests are answered then.
    pub(super) fn create_runs(&mut self) {
        while !self.shuffles.new.is_empty() {
            self.create_run();
        }
        assert!(self.shuffles.open.is_empty(), "{:?}", self.shuffles.open);
    }
}
