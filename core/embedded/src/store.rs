//! The tasks and values of a role, in memory of fixed size.

use crate::link::shift;
use crate::value::{Failure, NO_ROOM, Out, TypeName, Value};
use daskwire::invariant::OrDefaultIfBug as _;

/// The maximum number of inputs of a task.
pub(crate) const MAX_INPUTS: usize = 8;

/// The maximum length of a key, encoded, in bytes. Dask's own have some 50.
pub(crate) const MAX_KEY: usize = 200;

/// The index of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryId(u8);

/// A reference to an entry that may have been removed since, and whose index may
/// have been reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    id: EntryId,
    serial: u32,
}

/// The state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The entry is not in use.
    Free,
    /// A task of a worker whose pickle has not arrived; a task of a client that
    /// has not finished.
    Announced,
    /// A task that may lack inputs.
    Waiting,
    /// A task that can run.
    Ready,
    /// A value.
    Memory,
    /// A value that another worker has.
    Wanted,
    /// A task of a client that has failed; its value is a string about the error.
    Failed,
}

/// The parts of an entry whose length varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The key, encoded as MessagePack.
    Key,
    /// The task of a [`State::Waiting`] or [`State::Ready`] entry: its pickle and
    /// buffers, each after its length.
    Spec,
    /// The value of a [`State::Memory`] entry.
    Value,
    /// The address of a worker that has the value of a [`State::Wanted`] entry.
    /// Empty if none is known.
    Holder,
}

const PARTS: usize = 4;

/// A key and its state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) state: State,
    /// The ordinal number of this entry among all that were added.
    serial: u32,
    /// The number that the scheduler assigned to the run of a task.
    pub(crate) run_id: i64,
    /// The frame with the pickle of a task that is announced.
    pub(crate) spec_frame: u64,
    inputs: [Option<EntryId>; MAX_INPUTS],
    /// The number of replies that are sending the value.
    pins: u8,
    /// Whether the scheduler wants the value here, even if no task here needs it.
    pub(crate) is_replica: bool,
    /// Whether to remove the entry once no reply needs it.
    is_removed: bool,
    parts: [Span; PARTS],
}

#[derive(Clone, Copy, Debug, Default)]
struct Span {
    start: usize,
    len: usize,
}

const FREE: Entry = Entry {
    state: State::Free,
    serial: 0,
    run_id: 0,
    spec_frame: 0,
    inputs: [None; MAX_INPUTS],
    pins: 0,
    is_replica: false,
    is_removed: false,
    parts: [Span { start: 0, len: 0 }; PARTS],
};

/// Up to `KEYS` entries, whose keys, tasks and values take up to `DATA` bytes.
pub(crate) struct Store<const KEYS: usize, const DATA: usize> {
    entries: [Entry; KEYS],
    /// The parts of all entries without gaps, in the order of their creation.
    bytes: [u8; DATA],
    used: usize,
    /// The number of entries added so far.
    added: u32,
    /// The type of the last value that was refused.
    pub(crate) refused: TypeName,
}

/// The failure of a task with a key of more than [`MAX_KEY`] bytes.
const LONG_KEY: Failure = Failure {
    class: "MemoryError",
    message: "a key is longer than 200 bytes, the maximum of this role",
};

const FULL_TEXT: &[u8] = b"the role holds at most ";
const FULL_REST: &[u8] = b" tasks and results (KEYS of its Memory)";
const FULL_LEN: usize = FULL_TEXT.len() + 3 + FULL_REST.len();

/// Writes the message about the number of entries, which is less than 1000, to the end of
/// an array.
#[allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "it is evaluated at compile time"
)]
const fn full_message(mut keys: usize) -> [u8; FULL_LEN] {
    let mut message = [b' '; FULL_LEN];
    let mut end = FULL_LEN;
    let mut left = FULL_REST.len();
    while left != 0 {
        (end, left) = (end - 1, left - 1);
        message[end] = FULL_REST[left];
    }
    loop {
        end -= 1;
        message[end] = b'0' + (keys % 10) as u8;
        keys /= 10;
        if keys == 0 {
            break;
        }
    }
    left = FULL_TEXT.len();
    while left != 0 {
        (end, left) = (end - 1, left - 1);
        message[end] = FULL_TEXT[left];
    }
    message
}

impl<const KEYS: usize, const DATA: usize> Store<KEYS, DATA> {
    /// The failure of a task without a free entry.
    pub(crate) const FULL: Failure = Failure {
        class: "MemoryError",
        message: Self::FULL_MESSAGE,
    };

    const FULL_MESSAGE: &str = match core::str::from_utf8(&Self::FULL_BYTES) {
        Ok(message) => message.trim_ascii_start(),
        Err(_) => "",
    };

    /// The message, after a space for each digit that the number lacks.
    const FULL_BYTES: [u8; FULL_LEN] = full_message(KEYS);

    pub(crate) const fn new() -> Self {
        const { assert!(KEYS <= u8::MAX as usize, "an index has to fit in a byte") }
        Self {
            entries: [FREE; KEYS],
            bytes: [0; DATA],
            used: 0,
            added: 0,
            refused: TypeName::new(),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.entries = [FREE; KEYS];
        self.used = 0;
    }

    /// Checks the invariants.
    ///
    /// # Panics
    ///
    /// If one does not hold.
    pub(crate) fn check(&self) {
        let spans = || self.entries.iter().flat_map(|entry| &entry.parts);
        let len = spans().fold(0_usize, |sum, span| sum.saturating_add(span.len));
        assert_eq!(len, self.used, "the parts have gaps or overlap");
        for span in spans().filter(|span| span.len != 0) {
            let end = span.start.saturating_add(span.len);
            let overlaps = spans().filter(|other| (span.start..end).contains(&other.start));
            assert!(end <= self.used, "a part is outside of the memory in use");
            assert_eq!(overlaps.filter(|other| other.len != 0).count(), 1);
        }
        for id in self.ids() {
            let entry = self.get(id);
            let inputs = || entry.inputs.iter().flatten();
            let mut states = inputs().map(|input| self.get(*input).state);
            match entry.state {
                State::Free => {
                    assert!(entry.parts.iter().all(|part| part.len == 0));
                    assert!(entry.pins == 0 && inputs().next().is_none());
                    continue;
                }
                State::Announced | State::Waiting => {
                    assert!(
                        states.all(|state| state != State::Free),
                        "an input was removed"
                    );
                }
                State::Ready => {
                    assert!(
                        states.all(|state| state == State::Memory),
                        "an input was removed"
                    );
                }
                State::Memory | State::Failed | State::Wanted => {
                    assert!(
                        inputs().next().is_none(),
                        "an entry with a value has inputs"
                    );
                }
            }
            if entry.state == State::Memory {
                assert!(self.value(id).is_some(), "a value cannot be read");
            }
            assert!(entry.pins != 0 || !entry.is_removed);
            let key = self.part(id, Part::Key);
            assert!(
                entry.is_removed || self.find(key) == Some(id),
                "two entries have the same key"
            );
        }
    }

    /// The number of bytes in use.
    pub(crate) const fn used(&self) -> usize {
        self.used
    }

    /// All entries, in use or not.
    pub(crate) fn ids(&self) -> impl Iterator<Item = EntryId> + Clone + use<KEYS, DATA> {
        (0..u8::MAX).take(KEYS).map(EntryId)
    }

    /// The number of bytes that are free.
    pub(crate) const fn room(&self) -> usize {
        DATA.saturating_sub(self.used)
    }

    pub(crate) fn get(&self, id: EntryId) -> &Entry {
        self.entries.get(usize::from(id.0)).unwrap_or(&FREE)
    }

    pub(crate) fn get_mut(&mut self, id: EntryId) -> Option<&mut Entry> {
        self.entries.get_mut(usize::from(id.0))
    }

    /// The entry in a state that was added first.
    pub(crate) fn first(&self, state: State) -> Option<EntryId> {
        let found = self.ids().filter(|id| self.get(*id).state == state);
        found.min_by_key(|id| self.get(*id).serial)
    }

    /// A handle of an entry that is in use.
    pub(crate) fn handle(&self, id: EntryId) -> Handle {
        let serial = self.get(id).serial;
        Handle { id, serial }
    }

    /// The entry of a handle, unless it has been removed.
    pub(crate) fn resolve(&self, handle: Handle) -> Option<EntryId> {
        let entry = self.get(handle.id);
        let is_same = entry.state != State::Free && entry.serial == handle.serial;
        is_same.then_some(handle.id)
    }

    /// The entry of a key.
    pub(crate) fn find(&self, key: &[u8]) -> Option<EntryId> {
        let mut ids = self.ids();
        ids.find(|id| self.part(*id, Part::Key) == key && !self.get(*id).is_removed)
    }

    /// A part of an entry.
    pub(crate) fn part(&self, id: EntryId, part: Part) -> &[u8] {
        let span = self.get(id).parts.get(part as usize);
        let span = span.copied().or_default_if_bug();
        let end = span.start.saturating_add(span.len);
        self.bytes.get(span.start..end).or_default_if_bug()
    }

    /// The value of an entry, if it has one.
    pub(crate) fn value(&self, id: EntryId) -> Option<Value<'_>> {
        match self.get(id).state {
            State::Memory => Value::parse(self.part(id, Part::Value)),
            _ => None,
        }
    }

    /// Adds an entry for a key that has none.
    pub(crate) fn add(&mut self, key: &[u8], state: State) -> Result<EntryId, Failure> {
        let index = self
            .entries
            .iter()
            .position(|entry| entry.state == State::Free)
            .ok_or(Self::FULL)?;
        let id = EntryId(u8::try_from(index).map_err(|_| NO_ROOM)?);
        if key.len() > MAX_KEY {
            return Err(LONG_KEY);
        }
        let entry = self.entries.get_mut(index).ok_or(NO_ROOM)?;
        self.added = self.added.wrapping_add(1);
        let serial = self.added;
        *entry = Entry {
            state,
            serial,
            ..FREE
        };
        if let Err(failure) = self.set(id, Part::Key, &[key]) {
            self.remove(id);
            return Err(failure);
        }
        Ok(id)
    }

    /// Sets a part of an entry to these bytes, which follow each other.
    pub(crate) fn set(&mut self, id: EntryId, part: Part, bytes: &[&[u8]]) -> Result<(), Failure> {
        self.clear_part(id, part);
        let len = bytes
            .iter()
            .fold(0_usize, |sum, next| sum.saturating_add(next.len()));
        let start = self.used;
        let end = start.checked_add(len).ok_or(NO_ROOM)?;
        let mut space = self.bytes.get_mut(start..end).ok_or(NO_ROOM)?;
        for next in bytes {
            crate::copy(space, next);
            space = space.split_at_mut_checked(next.len()).ok_or(NO_ROOM)?.1;
        }
        self.note(id, part, Span { start, len });
        Ok(())
    }

    /// Adds bytes to the end of a part of an entry.
    pub(crate) fn append(
        &mut self,
        id: EntryId,
        part: Part,
        bytes: &[&[u8]],
    ) -> Result<(), Failure> {
        let old = self
            .get(id)
            .parts
            .get(part as usize)
            .copied()
            .or_default_if_bug();
        let added = bytes
            .iter()
            .fold(0_usize, |sum, next| sum.saturating_add(next.len()));
        let len = old.len.saturating_add(added);
        let start = self.used;
        let end = start.checked_add(len).ok_or(NO_ROOM)?;
        let (before, space) = self.bytes.split_at_mut_checked(start).ok_or(NO_ROOM)?;
        let mut space = space.get_mut(..len).ok_or(NO_ROOM)?;
        let old_end = old.start.saturating_add(old.len);
        let old_bytes = before.get(old.start..old_end).or_default_if_bug();
        for next in core::iter::once(&old_bytes).chain(bytes) {
            crate::copy(space, next);
            space = space.split_at_mut_checked(next.len()).ok_or(NO_ROOM)?.1;
        }
        self.clear_part(id, part);
        shift(&mut self.bytes, start, end, self.used);
        let start = self.used;
        self.note(id, part, Span { start, len });
        Ok(())
    }

    /// Whether a task can run: its completion frees memory.
    pub(crate) fn will_have_room(&mut self) -> bool {
        self.update_ready();
        self.first(State::Ready).is_some()
    }

    /// Sets the value of an entry to the output of `make`. `make` also gets the rest
    /// of the store.
    pub(crate) fn make_value(
        &mut self,
        id: EntryId,
        make: impl FnOnce(&StoreView<'_>, &mut Out<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let start = self.used;
        let (before, space) = self.bytes.split_at_mut_checked(start).ok_or(NO_ROOM)?;
        let mut out = Out::new(space)?;
        let view = StoreView {
            entries: &self.entries,
            bytes: before,
        };
        let made = make(&view, &mut out);
        let (len, refused) = (out.len(), out.refused);
        if made.is_err() {
            self.refused = refused;
            return made;
        }
        self.clear_part(id, Part::Value);
        // The new value follows the remaining parts.
        shift(&mut self.bytes, start, start.saturating_add(len), self.used);
        let start = self.used;
        self.note(id, Part::Value, Span { start, len });
        if let Some(entry) = self.get_mut(id) {
            entry.state = State::Memory;
        }
        self.clear_part(id, Part::Spec);
        self.clear_part(id, Part::Holder);
        self.clear_inputs(id);
        Ok(())
    }

    /// Makes a task wait for an input.
    pub(crate) fn add_input(&mut self, id: EntryId, input: EntryId) -> Result<(), Failure> {
        let entry = self.get_mut(id).ok_or(NO_ROOM)?;
        let place = entry.inputs.iter_mut().find(|place| place.is_none());
        *place.ok_or(Failure {
            class: "MemoryError",
            message: "the task has more inputs than this worker allows",
        })? = Some(input);
        Ok(())
    }

    /// Whether a task that waits or can run needs this entry.
    pub(crate) fn is_needed(&self, id: EntryId) -> bool {
        self.ids().any(|task| self.needs(task, id))
    }

    /// Whether a task that waits or can run has this input.
    pub(crate) fn needs(&self, id: EntryId, input: EntryId) -> bool {
        let entry = self.get(id);
        matches!(
            entry.state,
            State::Announced | State::Waiting | State::Ready
        ) && entry.inputs.contains(&Some(input))
    }

    /// Makes tasks that need this entry wait, because its value was removed.
    pub(crate) fn block_dependents(&mut self, input: EntryId) {
        for id in self.ids() {
            if self.needs(id, input)
                && let Some(entry) = self.get_mut(id)
                && entry.state == State::Ready
            {
                entry.state = State::Waiting;
            }
        }
    }

    /// Forgets the inputs of a task, and removes those that nothing else needs.
    pub(crate) fn clear_inputs(&mut self, id: EntryId) {
        let Some(entry) = self.get_mut(id) else {
            return;
        };
        let inputs = core::mem::replace(&mut entry.inputs, [None; MAX_INPUTS]);
        for input in inputs.into_iter().flatten() {
            self.remove_unneeded(input);
        }
    }

    /// Removes an entry whose value another worker has, if nothing wants it.
    pub(crate) fn remove_unneeded(&mut self, id: EntryId) {
        let entry = self.get(id);
        // Wanted entries have no inputs, so nothing else becomes unneeded.
        if entry.state == State::Wanted && !entry.is_replica && !self.is_needed(id) {
            self.free(id);
        }
    }

    /// Replaces an entry whose value a reply is sending by another one for its
    /// key, which is [`State::Wanted`]; tasks get it as their input. An entry that
    /// no reply needs is returned as it is.
    pub(crate) fn replace_pinned(&mut self, id: EntryId) -> Result<EntryId, Failure> {
        if self.get(id).pins == 0 {
            return Ok(id);
        }
        let mut key = [0; MAX_KEY];
        let old = self.part(id, Part::Key);
        let len = old.len();
        crate::copy(&mut key, old);
        let new = self.add(key.get(..len).or_default_if_bug(), State::Wanted)?;
        if let Some(entry) = self.get_mut(id) {
            entry.is_removed = true;
        }
        for input in self.entries.iter_mut().flat_map(|entry| &mut entry.inputs) {
            if *input == Some(id) {
                *input = Some(new);
            }
        }
        Ok(new)
    }

    /// Changes an entry whose value or task was removed to [`State::Wanted`], so that
    /// its value is fetched from another worker. Tasks that need the value wait.
    pub(crate) fn set_wanted(&mut self, id: EntryId) -> Result<(), Failure> {
        let id = self.replace_pinned(id)?;
        if let Some(entry) = self.get_mut(id) {
            entry.state = State::Wanted;
            entry.is_replica = false;
        }
        self.clear_part(id, Part::Value);
        self.clear_part(id, Part::Spec);
        self.clear_inputs(id);
        self.block_dependents(id);
        Ok(())
    }

    /// Finds the tasks that can run.
    pub(crate) fn update_ready(&mut self) {
        for id in self.ids() {
            if self.get(id).state != State::Waiting {
                continue;
            }
            let inputs = self.get(id).inputs;
            let mut inputs = inputs.iter().flatten();
            if inputs.all(|input| self.get(*input).state == State::Memory)
                && let Some(entry) = self.get_mut(id)
            {
                entry.state = State::Ready;
            }
        }
    }

    /// Keeps an entry until it is [unpinned](Self::unpin).
    pub(crate) fn pin(&mut self, id: EntryId) {
        if let Some(entry) = self.get_mut(id) {
            entry.pins = entry.pins.saturating_add(1);
        }
    }

    /// Reverses [`pin`](Self::pin).
    pub(crate) fn unpin(&mut self, id: EntryId) {
        if let Some(entry) = self.get_mut(id) {
            entry.pins = entry.pins.saturating_sub(1);
            if entry.is_removed && entry.pins == 0 {
                self.remove(id);
            }
        }
    }

    /// Removes an entry. Its memory is free immediately, unless it is pinned.
    pub(crate) fn remove(&mut self, id: EntryId) {
        if let Some(entry) = self.get_mut(id)
            && entry.pins != 0
        {
            entry.is_removed = true;
            return;
        }
        self.clear_inputs(id);
        self.free(id);
    }

    fn free(&mut self, id: EntryId) {
        for part in [Part::Key, Part::Spec, Part::Value, Part::Holder] {
            self.clear_part(id, part);
        }
        if let Some(entry) = self.get_mut(id) {
            *entry = FREE;
        }
    }

    fn note(&mut self, id: EntryId, part: Part, span: Span) {
        self.used = span.start.saturating_add(span.len);
        if let Some(entry) = self.get_mut(id)
            && let Some(place) = entry.parts.get_mut(part as usize)
        {
            *place = span;
        }
    }

    /// Removes the bytes of a part and closes the gap.
    pub(crate) fn clear_part(&mut self, id: EntryId, part: Part) {
        let place = self
            .get_mut(id)
            .and_then(|entry| entry.parts.get_mut(part as usize));
        let span = place.map(core::mem::take).or_default_if_bug();
        if span.len == 0 {
            return;
        }
        let after = span.start.saturating_add(span.len);
        shift(&mut self.bytes, after, self.used, span.start);
        self.used = self.used.saturating_sub(span.len);
        for other in self.entries.iter_mut().flat_map(|entry| &mut entry.parts) {
            if other.start >= after {
                other.start = other.start.saturating_sub(span.len);
            }
        }
    }
}

/// The entries of a store while a value is made.
pub(crate) struct StoreView<'v> {
    entries: &'v [Entry],
    bytes: &'v [u8],
}

impl<'v> StoreView<'v> {
    fn part(&self, entry: &Entry, part: Part) -> &'v [u8] {
        let span = entry.parts.get(part as usize).copied().or_default_if_bug();
        let end = span.start.saturating_add(span.len);
        self.bytes.get(span.start..end).or_default_if_bug()
    }

    /// The task of an entry.
    pub(crate) fn spec(&self, id: EntryId) -> &'v [u8] {
        let entry = self.entries.get(usize::from(id.0));
        entry
            .map(|entry| self.part(entry, Part::Spec))
            .or_default_if_bug()
    }

    /// The value of a key.
    pub(crate) fn value(&self, key: &[u8]) -> Option<Value<'v>> {
        let mut entries = self.entries.iter();
        let entry = entries.find(|entry| {
            entry.state == State::Memory && !entry.is_removed && self.part(entry, Part::Key) == key
        })?;
        Value::parse(self.part(entry, Part::Value))
    }
}

#[cfg(test)]
#[allow(clippy::expect_used)]
mod tests {
    use super::*;

    fn store() -> Store<4, 256> {
        Store::new()
    }

    #[test]
    fn a_value_that_is_sent_outlives_its_replacement() {
        let mut store = store();
        let old = store.add(b"a", State::Wanted).expect("there is room");
        let stored = store.make_value(old, |_, out| out.int(1));
        stored.expect("there is room");
        let task = store.add(b"b", State::Waiting).expect("there is room");
        store.add_input(task, old).expect("it is the first");
        store.pin(old);
        let new = store.replace_pinned(old).expect("there is room");
        assert_eq!(store.find(b"a"), Some(new));
        assert!(store.needs(task, new) && !store.needs(task, old));
        let stored = store.make_value(new, |view, out| {
            assert!(view.value(b"a").is_none(), "the old one is removed");
            out.int(2)
        });
        stored.expect("there is room");
        assert!(matches!(store.value(old), Some(Value::Int(1))));
        assert!(matches!(store.value(new), Some(Value::Int(2))));
        store.unpin(old);
        assert_eq!(store.get(old).state, State::Free);
        assert!(matches!(store.value(new), Some(Value::Int(2))));
    }

    #[test]
    fn a_released_task_that_others_need_forgets_its_inputs() {
        let mut store = store();
        let input = store.add(b"x", State::Wanted).expect("there is room");
        let task = store.add(b"y", State::Waiting).expect("there is room");
        store.add_input(task, input).expect("it is the first");
        store.set(task, Part::Spec, &[b"task"]).expect("room");
        let other = store.add(b"z", State::Waiting).expect("there is room");
        store.add_input(other, task).expect("it is the first");
        store.set_wanted(task).expect("there is room");
        assert_eq!(store.get(task).state, State::Wanted);
        assert_eq!(store.part(task, Part::Spec), b"");
        assert!(!store.needs(task, input) && store.needs(other, task));
        assert_eq!(store.find(b"x"), None, "nothing needs it");
        // A value that is stored later does not release the new entry, which has the
        // index of the former input.
        let new = store.add(b"n", State::Wanted).expect("there is room");
        let stored = store.make_value(task, |_, out| out.int(1));
        stored.expect("there is room");
        assert_eq!(store.get(new).state, State::Wanted);
    }

    #[test]
    fn a_removed_task_takes_its_wanted_inputs_along() {
        let mut store = store();
        let task = store.add(b"t", State::Waiting).expect("there is room");
        for (key, is_replica) in [(b"x", false), (b"y", true)] {
            let input = store.add(key, State::Wanted).expect("there is room");
            store.get_mut(input).expect("it is there").is_replica = is_replica;
            store.add_input(task, input).expect("there is room");
        }
        let handle = store.handle(task);
        store.remove(task);
        assert_eq!(store.find(b"x"), None);
        assert!(store.find(b"y").is_some());
        assert_eq!(store.resolve(handle), None);
        let other = store.add(b"z", State::Waiting).expect("there is room");
        assert_eq!((other, store.resolve(handle)), (task, None));
    }
}
