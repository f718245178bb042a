//! A piece of data, and its forms: serialized, deserialized, on disk.

use core::fmt;
use core::ops::Deref;
#[cfg(target_os = "linux")]
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::Instant;
use std::{io, thread};

use bytes::Bytes;
use daskwire_comm::BufferPool;
use daskwire_messages::value::{Serialized, Value, ValueError};
use daskwire_messages::{Key, RemoteError};
use daskwire_rpc::panic_flag::lock_counter;

use super::file::{self, ReadError, SpillFile};
use super::ledger::Common;
#[cfg(target_os = "linux")]
use daskwire_python::Host;

/// A piece of data. Clones share it.
#[derive(Clone, Debug)]
pub struct Datum(Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    /// Size in bytes as Dask counts it; exact if the datum arrived serialized.
    nbytes: u64,
    common: Arc<Common>,
    forms: Mutex<Forms>,
    /// Notified when a form was created, or creating it failed.
    changed: Condvar,
    #[cfg(target_os = "linux")]
    origin: Origin,
}

/// What Python processes know a datum by.
#[cfg(target_os = "linux")]
#[derive(Debug)]
pub struct Origin {
    /// A number that no other datum of this process has.
    pub number: u64,
    /// The Python process that has the value, if it cannot be pickled.
    pub home: Option<Weak<Host>>,
}

#[cfg(target_os = "linux")]
impl Origin {
    /// Returns the origin of a datum that has a new number.
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            home: None,
        }
    }
}

/// The forms of a datum; at least one exists unless the datum is lost. Rarely
/// used fields are boxed, because a worker may hold millions of data.
#[derive(Debug, Default)]
struct Forms {
    serialized: Option<Serialized>,
    value: Option<Arc<Value>>,
    /// Memory that the value uses, in bytes.
    value_len: u64,
    /// The spill file. Data is immutable, so the file stays valid after it is
    /// read, and the datum can leave memory again without being written.
    file: Option<Box<SpillFile>>,
    /// The error of deserializing the datum, which would fail again.
    unopenable: Option<Box<ValueError>>,
    /// The error of serializing the datum, which would fail again.
    unserializable: Option<Box<ValueError>>,
    /// Whether a thread is creating a form, for which other threads wait.
    is_creating: bool,
    /// Whether threads wait for the form that is being created.
    is_awaited: bool,
    /// Whether the datum is being written to disk. Tasks do not wait for this.
    is_spilling: bool,
    /// Whether the spill file was damaged or missing.
    is_lost: bool,
    /// Number of keys under which the datum is in the store.
    stored_count: usize,
    /// The first of these keys.
    key: Option<Key>,
    /// Number of tasks that currently use the datum.
    use_count: usize,
    /// Number of bytes copied by deserializing.
    copied_len: u64,
    /// Memory that the ledger counts for this datum, in bytes.
    memory_len: u64,
    /// Length of the file that the ledger counts, if the datum is only on disk, in bytes.
    disk_len: Option<u64>,
    /// Position in the ledger's order of use, if the datum can leave memory.
    position: Option<u64>,
}

/// The reason why a datum is not available.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum DatumError {
    /// A task cannot use its value.
    Value(ValueError),
    /// The datum is lost.
    Lost,
}

impl fmt::Display for DatumError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(error) => error.fmt(f),
            Self::Lost => f.write_str("its spill file is damaged or missing"),
        }
    }
}

impl From<DatumError> for RemoteError {
    fn from(error: DatumError) -> Self {
        match error {
            DatumError::Value(error) => error.into(),
            DatumError::Lost => Self::new("OSError", &error.to_string()),
        }
    }
}

/// An operation on a datum for a task or a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Its file was read.
    DiskRead,
    /// Its value was created from its serialized form.
    Deserialize,
    /// Its serialized form was created from its value.
    Serialize,
}

/// A completed step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Done {
    /// The operation.
    pub step: Step,
    /// Length in serialized bytes.
    pub len: u64,
    /// When it started, in seconds since 1970.
    pub start: f64,
    /// When it ended, in seconds since 1970.
    pub stop: f64,
}

impl Done {
    /// How long it took.
    pub fn time(&self) -> Duration {
        Duration::try_from_secs_f64(self.stop - self.start).unwrap_or_default()
    }
}

/// The completed operations on data for one task or transfer.
#[derive(Debug, Default)]
pub struct Steps(Mutex<Vec<Done>>);

impl Steps {
    fn add(&self, step: Step, len: u64, since: Instant) {
        let stop = daskwire_rpc::clock::unix_time().as_secs_f64();
        let start = stop - since.elapsed().as_secs_f64();
        self.lock().push(Done {
            step,
            len,
            start,
            stop,
        });
    }

    /// Removes and returns the operations so far.
    pub fn take(&self) -> Vec<Done> {
        core::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Done>> {
        lock_counter(&self.0)
    }
}

/// A reference to the value of a datum, which stays in memory while the reference exists.
#[derive(Clone, Debug)]
pub struct Opened(Arc<Value>);

impl Deref for Opened {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.0
    }
}

/// Keeps a datum in memory while it exists.
#[derive(Debug)]
pub struct InUse(Datum);

impl Drop for InUse {
    fn drop(&mut self) {
        let mut forms = self.0.0.lock();
        forms.use_count = forms.use_count.saturating_sub(1);
    }
}

/// The outcome of moving a datum out of memory.
#[derive(Debug)]
pub(super) enum Evicted {
    /// Number of bytes freed.
    Bytes(u64),
    /// Nothing was freed: the datum is in use, not in memory, or not in the store any more.
    Nothing,
    /// Writing the file failed.
    Failed(io::Error),
}

/// The result of looking up a form: an existing one, or the lock for creating it.
enum Found<'f, T> {
    Existing(T),
    Missing(MutexGuard<'f, Forms>),
}

/// Guard that ends the creation of a form, even after a panic.
struct CreationGuard<'d>(&'d Inner);

impl Drop for CreationGuard<'_> {
    fn drop(&mut self) {
        let mut forms = self.0.lock();
        forms.is_creating = false;
        // Notify only if threads wait: each notification costs a system call.
        let is_awaited = core::mem::take(&mut forms.is_awaited);
        drop(forms);
        if is_awaited {
            self.0.changed.notify_all();
        }
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Forms> {
        self.common.panic_flag.check(self.forms.lock())
    }

    /// Reports the current sizes to the ledger, and also a use of the datum if `is_used`.
    fn account(self: &Arc<Self>, forms: &mut Forms, is_used: bool) {
        let memory_len = forms.len();
        let is_evictable = self.common.directory.is_some()
            && forms.stored_count != 0
            && memory_len != 0
            && forms.unserializable.is_none();
        let disk_len = forms.file.as_ref().map(|file| file.len);
        let disk_len = disk_len.filter(|_| forms.value.is_none() && forms.serialized.is_none());
        let is_as_it_was = memory_len == forms.memory_len && disk_len == forms.disk_len;
        if is_as_it_was && !is_evictable && forms.position.is_none() {
            return;
        }
        let mut ledger = self.common.lock();
        ledger.holdings.memory_len = ledger
            .holdings
            .memory_len
            .saturating_sub(forms.memory_len)
            .saturating_add(memory_len);
        if let Some(len) = forms.disk_len {
            ledger.left_disk(self.nbytes, len);
        }
        if let Some(len) = disk_len {
            ledger.entered_disk(self.nbytes, len);
        }
        if !is_evictable || is_used || forms.position.is_none() {
            if let Some(position) = forms.position.take() {
                ledger.order.remove(&position);
            }
            if is_evictable {
                forms.position = Some(ledger.enqueue(Arc::downgrade(self)));
            }
        }
        let is_too_much = memory_len > forms.memory_len && self.common.is_above(&ledger);
        let is_news = is_too_much || self.common.is_relieved(&ledger);
        drop(ledger);
        forms.memory_len = memory_len;
        forms.disk_len = disk_len;
        if is_news {
            self.common.wake.notify_all();
        }
    }
}

impl Forms {
    /// The memory of all forms, in bytes. A value that was deserialized without copying shares
    /// memory with the serialized form.
    fn len(&self) -> u64 {
        let serialized = self.serialized.as_ref().map_or(0, Serialized::len);
        let value = if self.value.is_some() {
            self.value_len
        } else {
            0
        };
        if self.copied_len == 0 {
            serialized.max(value)
        } else {
            serialized.saturating_add(value)
        }
    }

    /// Takes the forms out of memory. They are returned so that the caller can drop
    /// them where this may take time.
    const fn forget(&mut self) -> (Option<Serialized>, Option<Arc<Value>>) {
        self.copied_len = 0;
        (self.serialized.take(), self.value.take())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let forms = self.common.panic_flag.check(self.forms.get_mut());
        let mut ledger = self.common.lock();
        let memory_len = &mut ledger.holdings.memory_len;
        *memory_len = memory_len.saturating_sub(forms.memory_len);
        if let Some(len) = forms.disk_len {
            ledger.left_disk(self.nbytes, len);
        }
        if let Some(position) = forms.position {
            ledger.order.remove(&position);
        }
        if let Some(file) = forms.file.take() {
            // The file is not removed here, because this may run on the thread that
            // reads messages.
            ledger.files_len = ledger.files_len.saturating_sub(file.len);
            ledger.unused_files.push(file.path);
            self.common.wake.notify_all();
        } else if self.common.is_relieved(&ledger) {
            self.common.wake.notify_all();
        }
    }
}

/// Reads a file. If the system reports an error, such as that the process has no file
/// descriptors left, tries again for some seconds, since giving up loses the data.
fn read_file(file: &SpillFile, pool: Option<&BufferPool>) -> Result<Serialized, ReadError> {
    const ATTEMPTS: u32 = 50;
    const PAUSE: Duration = Duration::from_millis(100);
    let is_permanent = |error: &ReadError| match error {
        ReadError::Io(error) => error.kind() == io::ErrorKind::NotFound,
        ReadError::Damaged(_) => true,
    };
    let mut attempt = 1;
    loop {
        match file::read(file, pool) {
            Err(error) if !is_permanent(&error) && attempt < ATTEMPTS => thread::sleep(PAUSE),
            read => return read,
        }
        attempt += 1;
    }
}

impl Datum {
    pub(super) fn new(
        common: &Arc<Common>,
        nbytes: u64,
        serialized: Option<Serialized>,
        value: Option<Value>,
    ) -> Self {
        Self::with_origin(
            common,
            nbytes,
            serialized,
            value,
            #[cfg(target_os = "linux")]
            Origin::unique(),
        )
    }

    pub(super) fn with_origin(
        common: &Arc<Common>,
        nbytes: u64,
        serialized: Option<Serialized>,
        value: Option<Value>,
        #[cfg(target_os = "linux")] origin: Origin,
    ) -> Self {
        let inner = Arc::new(Inner {
            nbytes,
            common: Arc::clone(common),
            forms: Mutex::new(Forms {
                serialized,
                value: value.map(Arc::new),
                value_len: nbytes,
                ..Forms::default()
            }),
            changed: Condvar::new(),
            #[cfg(target_os = "linux")]
            origin,
        });
        inner.account(&mut inner.lock(), true);
        Self(inner)
    }

    pub(super) fn of(inner: &Weak<Inner>) -> Option<Self> {
        inner.upgrade().map(Self)
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Size in bytes as Dask counts it.
    pub fn nbytes(&self) -> u64 {
        self.0.nbytes
    }

    /// Counts one more key of the store. Only data in the store may be moved to disk.
    pub(super) fn enter(&self, key: &Key) {
        let mut forms = self.0.lock();
        if forms.key.is_none() {
            forms.key = Some(key.clone());
        }
        forms.stored_count = forms.stored_count.saturating_add(1);
        self.0.account(&mut forms, true);
    }

    /// Counts one key of the store less.
    pub(super) fn leave(&self) {
        let mut forms = self.0.lock();
        forms.stored_count = forms.stored_count.saturating_sub(1);
        self.0.account(&mut forms, false);
    }

    /// Returns a guard that keeps the datum in memory, as soon as it is in memory.
    pub fn in_use(&self) -> InUse {
        let mut forms = self.0.lock();
        forms.use_count = forms.use_count.saturating_add(1);
        InUse(self.clone())
    }

    /// Whether the datum is known to be lost.
    pub fn is_lost(&self) -> bool {
        #[cfg(target_os = "linux")]
        if let Some(home) = &self.0.origin.home
            && home.upgrade().is_none_or(|home| home.has_ended())
        {
            return true;
        }
        self.0.lock().is_lost
    }

    /// What Python processes know the datum by.
    #[cfg(target_os = "linux")]
    pub fn origin(&self) -> &Origin {
        &self.0.origin
    }

    /// Returns the value, deserialized on first use. An object that only Python can
    /// deserialize is returned in serialized form.
    ///
    /// Blocks while another thread creates the same value, and while reading from
    /// disk.
    ///
    /// # Errors
    ///
    /// [`DatumError`] if the datum is lost or cannot be deserialized.
    pub fn open(&self, steps: &Steps) -> Result<Opened, DatumError> {
        let existing = |forms: &Forms| match (&forms.value, &forms.unopenable) {
            (Some(value), _) => Some(Ok(Opened(Arc::clone(value)))),
            (None, Some(error)) => Some(Err(ValueError::clone(error))),
            (None, None) => None,
        };
        let mut forms = match self.unless(existing)? {
            Found::Existing(opened) => return Ok(opened),
            Found::Missing(forms) => forms,
        };
        forms.is_creating = true;
        let creation = CreationGuard(&self.0);
        let (serialized, file) = (forms.serialized.clone(), forms.file.clone());
        drop(forms);
        let is_on_disk = serialized.is_none();
        let serialized = match serialized {
            Some(serialized) => serialized,
            None => self.read(file.as_deref(), steps)?,
        };
        let meters = &self.0.common.meters;
        let start = Instant::now();
        let mut copied_len = 0;
        let value = match serialized.open_measuring(&mut copied_len) {
            Err(ValueError::Unknown { .. }) => Ok(Value::Serialized(serialized.clone())),
            value => value,
        };
        meters.deserialized.add(serialized.len(), start);
        meters.copied_len.fetch_add(copied_len, Ordering::Relaxed);
        steps.add(Step::Deserialize, serialized.len(), start);
        let value = value.map(|value| (value.nbytes(), Arc::new(value)));
        let mut forms = self.0.lock();
        let opened = match value {
            Ok((value_len, value)) => {
                forms.value_len = value_len;
                forms.value = Some(Arc::clone(&value));
                forms.copied_len = copied_len;
                // Copied data would use memory twice; the serialized form is in the file.
                if is_on_disk && copied_len == 0 {
                    forms.serialized = Some(serialized);
                }
                Ok(Opened(value))
            }
            Err(error) => {
                forms.unopenable = Some(Box::new(error.clone()));
                Err(DatumError::Value(error))
            }
        };
        self.0.account(&mut forms, true);
        drop(forms);
        drop(creation);
        opened
    }

    /// Whether the datum has no serialized form yet, and making it may fail.
    pub fn needs_check(&self) -> bool {
        let forms = self.0.lock();
        let has_form = forms.serialized.is_some() || forms.file.is_some();
        !has_form && forms.value.as_deref().is_some_and(Value::needs_check)
    }

    /// Returns the serialized form, created on first use.
    ///
    /// Blocks while another thread creates it, and while reading from disk. Data that
    /// is read from disk for this call is not kept in memory.
    ///
    /// # Errors
    ///
    /// [`DatumError`] if the datum is lost or cannot be serialized.
    pub fn serialize(&self, steps: &Steps) -> Result<Serialized, DatumError> {
        let existing = |forms: &Forms| match (&forms.serialized, &forms.unserializable) {
            (Some(serialized), _) => Some(Ok(serialized.clone())),
            (None, Some(error)) => Some(Err(ValueError::clone(error))),
            (None, None) => None,
        };
        let mut forms = match self.unless(existing)? {
            Found::Existing(serialized) => return Ok(serialized),
            Found::Missing(forms) => forms,
        };
        // The data is not kept: only the receiver needs it, not this worker.
        if let Some(file) = forms.file.clone() {
            drop(forms);
            match self.read(Some(&file), steps) {
                // The value is still in memory; serialize that instead.
                Err(DatumError::Lost) if !self.is_lost() => return self.serialize(steps),
                read => return read,
            }
        }
        forms.is_creating = true;
        let creation = CreationGuard(&self.0);
        let value = forms.value.clone();
        drop(forms);
        let start = Instant::now();
        let serialized = match &value {
            Some(value) => Serialized::with_pickling(value, self.0.common.pickling),
            None => Ok(Serialized::default()),
        };
        drop(value);
        let mut forms = self.0.lock();
        match &serialized {
            Ok(serialized) => {
                self.0.common.meters.serialized.add(serialized.len(), start);
                steps.add(Step::Serialize, serialized.len(), start);
                forms.serialized = Some(serialized.clone());
            }
            Err(error) => forms.unserializable = Some(Box::new(error.clone())),
        }
        self.0.account(&mut forms, true);
        drop(forms);
        drop(creation);
        serialized.map_err(DatumError::Value)
    }

    /// Returns the serialized form, after `share` has moved it to memory that another process
    /// can map. The moved form replaces the one in private memory. If `share` returns `None`,
    /// the form is not moved. Unlike by [`serialize`](Self::serialize), data that is read from
    /// disk is kept in memory: further tasks may use it.
    ///
    /// Blocks like [`open`](Self::open).
    ///
    /// # Errors
    ///
    /// As [`serialize`](Self::serialize).
    #[cfg(target_os = "linux")]
    pub fn shared(
        &self,
        steps: &Steps,
        share: impl FnOnce(&Serialized) -> Option<Serialized>,
    ) -> Result<Serialized, DatumError> {
        let serialized = self.serialize(steps)?;
        let shared = share(&serialized);
        let mut forms = self.0.lock();
        let shared = match (shared, &forms.serialized) {
            (Some(shared), _) => shared,
            // Another thread may have read it, too.
            (None, Some(serialized)) => return Ok(serialized.clone()),
            (None, None) => serialized,
        };
        if forms.value.is_some() {
            // The value refers to other memory than the form: bytes from which it was copied, or
            // an earlier form.
            forms.copied_len = shared.len();
        }
        forms.serialized = Some(shared.clone());
        self.0.account(&mut forms, true);
        Ok(shared)
    }

    /// Returns a form found by `existing`, after waiting for another thread that
    /// creates one; otherwise locks the forms, for the caller to create it.
    fn unless<T>(
        &self,
        existing: impl Fn(&Forms) -> Option<Result<T, ValueError>>,
    ) -> Result<Found<'_, T>, DatumError> {
        let mut forms = self.0.lock();
        loop {
            match existing(&forms) {
                Some(Ok(form)) => {
                    self.0.account(&mut forms, true);
                    return Ok(Found::Existing(form));
                }
                Some(Err(error)) => return Err(DatumError::Value(error)),
                None if forms.is_lost => return Err(DatumError::Lost),
                None if !forms.is_creating => return Ok(Found::Missing(forms)),
                None => {
                    forms.is_awaited = true;
                    forms = self.0.common.panic_flag.check(self.0.changed.wait(forms));
                }
            }
        }
    }

    fn read(&self, file: Option<&SpillFile>, steps: &Steps) -> Result<Serialized, DatumError> {
        let common = &self.0.common;
        let start = Instant::now();
        let Some(file) = file else {
            // A datum in no form at all is an empty payload.
            return Ok(Serialized::default());
        };
        match read_file(file, common.buffers.get()) {
            Ok(serialized) => {
                common.meters.unspilled.add(file.len, start);
                steps.add(Step::DiskRead, file.len, start);
                Ok(serialized)
            }
            Err(error) => {
                let mut forms = self.0.lock();
                // Another thread may have found the same damage.
                let Some(file) = forms.file.take() else {
                    return Err(DatumError::Lost);
                };
                let is_lost = forms.value.is_none() && forms.serialized.is_none();
                forms.is_lost = is_lost;
                self.0.account(&mut forms, false);
                drop(forms);
                let name = file.path.display().to_string();
                let mut ledger = common.lock();
                ledger.files_len = ledger.files_len.saturating_sub(file.len);
                ledger.unused_files.push(file.path);
                drop(ledger);
                common.wake.notify_all();
                if is_lost {
                    let count = &common.meters.lost_count;
                    count.fetch_add(1, Ordering::Relaxed);
                }
                common.notice(&format!(
                    "a spill file cannot be used, and its data is {}: {name}: {error}",
                    if is_lost { "lost" } else { "still in memory" }
                ));
                Err(DatumError::Lost)
            }
        }
    }

    /// Moves the datum out of memory, and writes its file unless it exists.
    ///
    /// Blocks until the file is written; other threads can use the datum meanwhile.
    pub(super) fn evict(&self) -> Evicted {
        let common = &self.0.common;
        let Some(directory) = &common.directory else {
            return Evicted::Nothing;
        };
        let is_idle = |forms: &Forms| {
            forms.stored_count != 0
                && forms.use_count == 0
                && !forms.is_creating
                && forms.memory_len != 0
        };
        let mut forms = self.0.lock();
        if !is_idle(&forms) || forms.is_spilling {
            return Evicted::Nothing;
        }
        if let Some(file) = &forms.file {
            common.meters.dropped.add(file.len, Instant::now());
            return self.forget(forms);
        }
        forms.is_spilling = true;
        let (serialized, value) = (forms.serialized.clone(), forms.value.clone());
        drop(forms);
        let start = Instant::now();
        let made = match (serialized, &value) {
            (Some(serialized), _) => Ok(serialized),
            (None, Some(value)) => {
                let made = Serialized::with_pickling(value, common.pickling);
                if let Ok(serialized) = &made {
                    common.meters.serialized.add(serialized.len(), start);
                }
                made
            }
            (None, None) => Ok(Serialized::default()),
        };
        drop(value);
        let written = made.map(|serialized| {
            let start = Instant::now();
            let written = file::write(&directory.next_file(), &serialized);
            if let Ok(file) = &written {
                common.meters.spilled.add(file.len, start);
            }
            written
        });
        let mut forms = self.0.lock();
        forms.is_spilling = false;
        match written {
            Ok(Ok(file)) => {
                let mut ledger = common.lock();
                ledger.files_len = ledger.files_len.saturating_add(file.len);
                drop(ledger);
                forms.file = Some(Box::new(file));
                if is_idle(&forms) {
                    return self.forget(forms);
                }
                Evicted::Nothing
            }
            Ok(Err(error)) => {
                let failures = &common.meters.spill_failure_count;
                failures.fetch_add(1, Ordering::Relaxed);
                Evicted::Failed(error)
            }
            Err(error) => {
                forms.unserializable = Some(Box::new(error));
                self.0.account(&mut forms, false);
                Evicted::Nothing
            }
        }
    }

    fn forget(&self, mut forms: MutexGuard<'_, Forms>) -> Evicted {
        let len = forms.memory_len;
        let key = forms.key.clone();
        let forgotten = forms.forget();
        self.0.account(&mut forms, false);
        drop(forms);
        drop(forgotten);
        if let (Some(key), Some(spilled)) = (key, self.0.common.spilled.get()) {
            spilled(key, len);
        }
        Evicted::Bytes(len)
    }

    #[cfg(test)]
    pub(super) fn forget_bytes(&self) {
        let mut forms = self.0.lock();
        forms.serialized = None;
        self.0.account(&mut forms, false);
    }

    /// The value, if it is in memory.
    pub fn value(&self) -> Option<Opened> {
        self.0.lock().value.clone().map(Opened)
    }

    /// Whether the datum has a spill file.
    pub(super) fn has_file(&self) -> bool {
        self.0.lock().file.is_some()
    }

    /// Whether the datum is only on disk.
    pub fn is_on_disk(&self) -> bool {
        self.0.lock().disk_len.is_some()
    }

    /// The serialized form, if it is in memory.
    pub fn serialized(&self) -> Option<Serialized> {
        self.0.lock().serialized.clone()
    }

    /// The header of the serialized form, if it is known without serializing or reading:
    /// also if the serialized form is only on disk.
    pub fn header(&self) -> Option<Bytes> {
        let forms = self.0.lock();
        let file = forms.file.as_ref().map(|file| file.header.clone());
        file.or_else(|| {
            let header = forms.serialized.as_ref()?.header();
            Some(Bytes::copy_from_slice(header))
        })
    }
}
