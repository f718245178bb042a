//! Recordings of the storms, from which another state does the same.

use super::*;

/// What a state has done with recorded events.
#[derive(Default)]
pub(super) struct Done {
    bytes: Vec<u8>,
    actions: Vec<String>,
}

impl Simulation {
    /// Keeps what the state has recorded, and the actions.
    pub(super) fn note(&mut self, actions: &[Action]) {
        if let Some(done) = &mut self.recorded {
            self.state.take_recording(&mut done.bytes);
            done.actions.push(decisions(actions));
        }
    }
}

/// The actions without reports of transitions, which a state that replays makes in any case.
fn decisions(actions: &[Action]) -> String {
    let decisions = actions.iter();
    let decisions = decisions.filter(|action| !matches!(action, Action::Task(_)));
    format!("{:?}", decisions.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Recorded, Recording};

    /// Runs a storm, and the recording of it. Returns the length of the recording.
    fn recorded(seed: u64, has_payloads: bool) -> usize {
        let mut simulation = Simulation::begin(seed, Some(has_payloads));
        simulation.add_worker();
        for _ in 0..400 {
            simulation.step();
        }
        simulation.finish(seed);
        let done = simulation.recorded.expect("recorded");
        let mut recording = Recording::new(&done.bytes);
        let mut state = State::new(Policy::default());
        let mut actions = Vec::new();
        while let Some(entry) = recording.next().expect("it was written") {
            match entry {
                Recorded::Beginning(beginning) => {
                    assert_eq!(beginning.has_payloads, has_payloads);
                    state = beginning.state;
                }
                Recorded::Event(now, event) => {
                    actions.push(decisions(&state.handle(now, *event)));
                    state.check();
                }
                Recorded::Slice(now) => {
                    actions.push(decisions(&state.proceed(now)));
                    state.check();
                }
                Recorded::Outcome(outcome) => {
                    assert_eq!(
                        state.outcome(),
                        outcome,
                        "seed {seed}: {:?}",
                        actions.last()
                    );
                }
                Recorded::Unwritten(error) => panic!("seed {seed}: {error}"),
            }
        }
        assert_eq!(recording.remaining_len(), 0);
        assert_eq!(actions.len(), done.actions.len());
        if has_payloads {
            for (index, (replayed, recorded)) in actions.iter().zip(&done.actions).enumerate() {
                assert_eq!(replayed, recorded, "seed {seed}, event {index}");
            }
        }
        done.bytes.len()
    }

    #[test]
    fn recorded_events_lead_to_the_same_actions() {
        for seed in 0..8 {
            recorded(seed, true);
        }
    }

    #[test]
    fn recorded_events_without_payloads_lead_to_the_same_state() {
        for seed in 0..8 {
            assert!(recorded(seed, false) > 0);
        }
    }
}
