//! The records of a scheduler's journal.

use core::time::Duration;

use daskwire_fuzz::budget::{Budget, Linear};
use daskwire_scheduler::state::{Live, Policy, RecordError, Restoring, SchedulerInput, State};

/// Tasks, and what they refer to, are kept in several indexes.
const BUDGET: Budget = Budget {
    memory_len: Linear {
        base: 8 << 20,
        per_byte: 4 << 10,
    },
    allocated_len: Linear {
        base: 16 << 20,
        per_byte: 16 << 10,
    },
    steps: Linear {
        base: 1 << 24,
        per_byte: 1 << 14,
    },
};

/// Checks that any records are refused or make a consistent state, that a state's own journal makes
/// the same one again, and that nothing is left of it without clients.
///
/// The input: records.
pub(crate) fn journal(input: &[u8]) {
    BUDGET.check(input.len(), || {
        let Ok((mut state, written)) = restored(input) else {
            return;
        };
        let (again, rewritten) = restored(&written).expect("a state wrote it");
        assert_eq!(state.task_count(), again.task_count());
        assert_eq!(written, rewritten);
        handle(&mut state, Duration::ZERO, SchedulerInput::Resumed);
        // The grace of all clients is over, and then holders without a stream are gone.
        for seconds in [60, 61] {
            handle(
                &mut state,
                Duration::from_secs(seconds),
                SchedulerInput::Tick,
            );
        }
        assert_eq!(state.grace_count(), 0);
    });
}

/// Makes a state of what still matters of records. Returns also what it has written to its own journal.
pub(crate) fn restored(records: &[u8]) -> Result<(State, Vec<u8>), RecordError> {
    let mut live = Live::default();
    live.note(records)?;
    let mut selected = Vec::new();
    live.select(records, &mut selected)?;
    let mut restoring = Restoring::new(Policy::default(), Duration::ZERO);
    restoring.add(&selected)?;
    let mut written = Vec::new();
    restoring.take_journal(&mut written);
    let state = restoring.finish();
    state.check();
    Ok((state, written))
}

fn handle(state: &mut State, now: Duration, event: SchedulerInput) {
    state.handle(now, event);
    state.check();
    while state.is_pending() {
        state.proceed(now);
        state.check();
    }
}
