//! The records of a scheduler's journal, and its files.

use core::time::Duration;
use std::fs;

use daskwire_fuzz::budget::{Budget, Linear};
use daskwire_scheduler::journal_files::{read, write};
use daskwire_scheduler::state::{Live, Policy, RecordError, Restoring, SchedulerInput, State};

use crate::input::Choices;
use crate::scratch;

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

/// Checks that any file is read or refused, and that of a journal with damage all is read but what follows
/// the last whole batch, or nothing: never something else, and never with a gap.
///
/// The input: 0 and a file without its beginning, or choices for batches in segments, and for the damage.
pub(crate) fn journal_files(input: &[u8]) {
    let mut choices = Choices(input);
    let directory = scratch::directory().join("journal");
    let _ = fs::remove_dir_all(&directory);
    let kind = choices.byte();
    let segment_count = usize::from(kind % 4);
    let mut segments = vec![Vec::new(); segment_count.max(1)];
    for batches in segments.iter_mut().take(segment_count) {
        for _ in 0..choices.below(4) {
            let len = choices.below(40);
            batches.push(choices.bytes(len));
        }
    }
    write(&directory, &segments).expect("a writable directory");
    let path = |number: usize| directory.join(format!("{number:08}.segment"));
    if segment_count == 0 {
        let mut file = fs::read(path(1)).expect("it was written");
        file.extend_from_slice(choices.0);
        fs::write(path(1), &file).expect("a writable file");
        BUDGET.check(input.len(), || {
            let _ = read(&directory);
        });
        return;
    }
    let mut is_damaged = false;
    while !choices.is_empty() {
        let path = path(choices.below(segment_count) + 1);
        let Ok(mut file) = fs::read(&path) else {
            continue;
        };
        let was = file.clone();
        let at = usize::from(choices.u16()) % file.len().max(1);
        match choices.below(4) {
            0 => file.truncate(at),
            1 => file.resize(file.len() + at, 0),
            2 => drop(file.splice(at.., was[..at].iter().copied())),
            _ => {
                let bits = choices.byte();
                if let Some(byte) = file.get_mut(at) {
                    *byte ^= bits;
                }
            }
        }
        let is_removed = choices.below(16) == 0;
        is_damaged |= is_removed || file != was;
        match is_removed {
            true => fs::remove_file(&path).expect("it is there"),
            false => fs::write(&path, &file).expect("a writable file"),
        }
    }
    let written: Vec<&[u8]> = segments
        .concat()
        .into_iter()
        .filter(|batch| !batch.is_empty())
        .collect();
    match read(&directory) {
        Ok((batches, torn_len)) => {
            assert!(written.starts_with(&batches.iter().map(Vec::as_slice).collect::<Vec<_>>()));
            assert!(is_damaged || (torn_len == 0 && batches.len() == written.len()));
        }
        Err(error) => assert!(is_damaged, "{error}"),
    }
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
