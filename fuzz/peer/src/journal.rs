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

/// The most changes to the files of a journal.
const MAX_CHANGES: usize = 8;

/// Checks that any file is read or refused, and that what is read of a journal with damage is all that
/// precedes the damage, which is noticed unless only the end is missing.
///
/// The input: 0 and a file without its beginning, or choices for batches in segments, and for the damage.
pub(crate) fn journal_files(input: &[u8]) {
    let mut choices = Choices(input);
    let directory = scratch::directory().join("journal");
    let _ = fs::remove_dir_all(&directory);
    let segment_count = usize::from(choices.byte() % 4);
    let mut segments = vec![Vec::new(); segment_count.max(1)];
    for batches in segments.iter_mut().take(segment_count) {
        for _ in 0..choices.below(4) {
            let len = choices.below(40) + 1;
            let batch = choices.bytes(len);
            if !batch.is_empty() {
                batches.push(batch);
            }
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
    let written: Vec<Vec<u8>> = (1..=segment_count)
        .map(|number| fs::read(path(number)).expect("it was written"))
        .collect();
    let mut files: Vec<Option<Vec<u8>>> = written.iter().cloned().map(Some).collect();
    for _ in 0..MAX_CHANGES {
        let index = choices.below(segment_count);
        if choices.is_empty() {
            break;
        }
        if let Some(file) = &mut files[index] {
            change(file, &mut choices);
        }
        if choices.below(16) == 1 {
            files[index] = None;
        }
    }
    for (number, file) in (1..).zip(&files) {
        match file {
            Some(file) => fs::write(path(number), file).expect("a writable file"),
            None => fs::remove_file(path(number)).expect("it was written"),
        }
    }
    let last = files.iter().rposition(Option::is_some);
    let mut expected: Vec<&[u8]> = Vec::new();
    // Whether something is missing or damaged before the last file, or of it.
    let mut is_damaged = last.is_none_or(|last| last > 0 && files[0].is_none());
    let mut is_cut = false;
    for index in 0..=last.unwrap_or(0) {
        let (was, file) = (&written[index], files[index].as_deref().unwrap_or_default());
        let same = was
            .iter()
            .zip(file)
            .take_while(|(was, is)| was == is)
            .count();
        let is_last = Some(index) == last;
        is_damaged |= !is_last && file != was;
        let is_unbegun = file.len() < HEAD_LEN || file == [0; HEAD_LEN];
        is_cut |= is_last && (same == file.len() || is_unbegun);
        let mut end = HEAD_LEN;
        for batch in &segments[index] {
            end += BATCH_HEAD_LEN + batch.len();
            if end <= same {
                expected.push(batch);
            }
        }
    }
    match read(&directory) {
        Ok((batches, torn_len)) => {
            assert!(!is_damaged || last.is_none());
            assert!(expected.iter().eq(&batches), "{batches:?} of {expected:?}");
            assert!(is_cut || torn_len > 0 || last.is_none());
        }
        Err(error) => {
            let first_is_short =
                last == Some(0) && files[0].as_ref().is_some_and(|file| file.len() <= HEAD_LEN);
            assert!(is_damaged || !is_cut || first_is_short, "{error}");
        }
    }
}

/// Lengths in the format of a segment.
const HEAD_LEN: usize = 32;
const BATCH_HEAD_LEN: usize = 12;

/// Cuts a file, or changes some of its bytes, or adds some.
fn change(file: &mut Vec<u8>, choices: &mut Choices<'_>) {
    let at = usize::from(choices.u16()) % file.len().max(1);
    match choices.below(4) {
        0 => file.truncate(at),
        1 => file.resize(file.len() + at, 0),
        2 => {
            let end = file[..at].to_vec();
            file.truncate(at);
            file.extend(end);
        }
        _ => {
            let bits = choices.byte();
            if let Some(byte) = file.get_mut(at) {
                *byte ^= bits;
            }
        }
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
