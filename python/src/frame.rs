//! Frames in memory shared by Rust and Python.

// The buffer protocol of CPython consists of raw pointers.
#![allow(unsafe_code)]

use core::ffi::c_int;
use std::sync::Arc;

use daskwire::frame::FrameBuffers;
use memmap2::MmapMut;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyMemoryView, PySlice};

use crate::notify::Wakeups;

/// The size in bytes from which memory is mapped instead of taken from the heap. Mapped pages
/// use memory only once bytes arrive, and are returned to the system when their last view is
/// dropped.
const MIN_MAPPED_LEN: usize = 1 << 20;

/// The size in bytes from which frames are shared with Python. Copying smaller ones is
/// cheaper.
const MIN_SHARED_LEN: usize = 16 << 10;

/// The number of bytes that must arrive in mapped memory before the system is asked for huge
/// pages: each of them takes 2 MiB once a byte of it is written.
const MIN_ARRIVED_LEN: usize = 1 << 20;

/// The memory of a received frame.
enum Memory {
    Heap(Box<[u8]>),
    Pages { map: MmapMut, is_advised: bool },
}

impl Memory {
    /// Allocates zeroed memory, or returns `None` if pages cannot be mapped.
    fn new(len: usize) -> Option<Self> {
        if len >= MIN_MAPPED_LEN {
            return Some(Self::Pages {
                map: MmapMut::map_anon(len).ok()?,
                is_advised: false,
            });
        }
        Some(Self::Heap(vec![0; len].into_boxed_slice()))
    }

    /// Asks the system for huge pages if enough bytes have arrived, of which there are
    /// `arrived_len`.
    fn advise(&mut self, arrived_len: usize) {
        if let Self::Pages { map, is_advised } = self
            && !*is_advised
            && arrived_len >= MIN_ARRIVED_LEN
        {
            *is_advised = true;
            // Only a hint: an error means that the pages are filled more slowly.
            #[cfg(target_os = "linux")]
            let _ = map.advise(memmap2::Advice::HugePage);
            #[cfg(not(target_os = "linux"))]
            let _ = map;
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Pages { map, .. } => map,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Pages { map, .. } => map,
        }
    }
}

/// The location of a received frame in the memory of its message.
pub(crate) struct Part {
    /// The index of the memory in [`Message::memory`].
    memory: usize,
    start: usize,
    len: usize,
}

/// The frames of a received message.
///
/// Dask splits a buffer into frames of `distributed.comm.shard` bytes, and joins them without
/// a copy if they are adjacent in one buffer. So the frame after one of that size is stored
/// directly after it.
pub(crate) struct Message {
    memory: Vec<Memory>,
    parts: Vec<Part>,
    shard_len: usize,
    /// The length of all frames that have no memory yet, in bytes.
    left: u64,
}

impl Message {
    /// Creates a message without frames, from a peer that splits buffers into frames of
    /// `shard_len` bytes.
    pub(crate) const fn new(shard_len: usize) -> Self {
        Self {
            memory: Vec::new(),
            parts: Vec::new(),
            shard_len,
            left: 0,
        }
    }

    /// The length of all frames, in bytes.
    fn len(&self) -> usize {
        self.parts.iter().map(|part| part.len).sum()
    }

    /// The memory that the message takes, in bytes. Frames may be empty.
    pub(crate) fn memory_len(&self) -> usize {
        let parts = self.parts.len().saturating_mul(size_of::<Part>());
        self.len()
            .saturating_add(parts)
            .saturating_add(size_of::<Self>())
    }

    /// Completes the message, which has `count` frames: adds the empty ones at its end, for
    /// which no buffer was requested.
    pub(crate) fn finish(mut self, count: usize) -> Self {
        self.add_empty(count);
        self
    }

    fn add_empty(&mut self, count: usize) {
        while self.parts.len() < count {
            self.parts.push(Part {
                memory: 0,
                start: 0,
                len: 0,
            });
        }
    }

    /// Adds frame `index`, in new memory or directly after the frame before it.
    fn add(&mut self, index: usize, len: usize) -> Option<()> {
        self.add_empty(index);
        let of_shard = |part: &&Part| part.len == self.shard_len;
        let after = self.parts.last().filter(of_shard).and_then(|last| {
            let start = last.start + last.len;
            let end = start.checked_add(len)?;
            let memory = self.memory.get(last.memory)?;
            (end <= memory.bytes().len()).then_some((last.memory, start))
        });
        let (memory, start) = match after {
            Some(after) => after,
            None => {
                // Memory for all frames left costs nothing yet: pages are allocated on the
                // first write.
                let all = usize::try_from(self.left).unwrap_or(len).max(len);
                let capacity = if len == self.shard_len { all } else { len };
                // The system may count memory that is not written to yet.
                let memory = Memory::new(capacity).or_else(|| Memory::new(len))?;
                self.memory.push(memory);
                (self.memory.len() - 1, 0)
            }
        };
        self.left = self.left.saturating_sub(len as u64);
        self.parts.push(Part { memory, start, len });
        Some(())
    }

    /// Converts the frames to a Python list: large ones share memory, small ones are copied.
    pub(crate) fn into_list(self, py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
        let mut views: Vec<Option<Bound<'_, PyAny>>> = Vec::new();
        let list = PyList::empty(py);
        let mut memory: Vec<Option<Memory>> = self.memory.into_iter().map(Some).collect();
        views.resize_with(memory.len(), || None);
        for part in self.parts {
            let end = part.start + part.len;
            if part.len < MIN_SHARED_LEN {
                let bytes = memory.get(part.memory).and_then(Option::as_ref);
                let bytes = bytes.and_then(|memory| memory.bytes().get(part.start..end));
                if let Some(bytes) = bytes {
                    list.append(PyBytes::new(py, bytes))?;
                    continue;
                }
                if part.len == 0 {
                    list.append(PyBytes::new(py, &[]))?;
                    continue;
                }
            }
            let missing = || PyBufferError::new_err("a frame without memory");
            let view = views.get_mut(part.memory).ok_or_else(missing)?;
            if view.is_none() {
                let memory = memory.get_mut(part.memory).and_then(Option::take);
                let frame = Bound::new(py, Frame::new(memory.ok_or_else(missing)?))?;
                *view = Some(PyMemoryView::from(frame.as_any())?.into_any());
            }
            let view = view.as_ref().ok_or_else(missing)?;
            // `PySlice::new` of PyO3 0.30 leaks the numbers.
            let range = py.get_type::<PySlice>().call1((part.start, end))?;
            list.append(view.get_item(range)?)?;
        }
        Ok(list)
    }
}

impl FrameBuffers for Message {
    fn begin(&mut self, frames_len: u64) {
        self.memory.clear();
        self.parts.clear();
        self.left = frames_len;
    }

    fn buffer(&mut self, index: usize, len: usize, filled: usize) -> Option<&mut [u8]> {
        if self.parts.len() <= index {
            self.add(index, len)?;
        }
        let part = self.parts.get(index)?;
        let memory = self.memory.get_mut(part.memory)?;
        memory.advise(part.start + filled);
        memory
            .bytes_mut()
            .get_mut(part.start + filled..part.start + len)
    }
}

/// The memory of received frames. Python's views share it and may modify it.
#[pyclass(module = "daskwire._native")]
pub(crate) struct Frame {
    memory: Memory,
}

impl Frame {
    const fn new(memory: Memory) -> Self {
        Self { memory }
    }
}

#[pymethods]
impl Frame {
    fn __len__(&self) -> usize {
        self.memory.bytes().len()
    }

    /// # Safety
    ///
    /// `view` must be null or point to a `Py_buffer` to fill in.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view"));
        }
        let (start, len) = {
            let mut frame = slf.borrow_mut();
            let bytes = frame.memory.bytes_mut();
            (bytes.as_mut_ptr(), bytes.len())
        };
        let len = isize::try_from(len)?;
        // SAFETY: the memory belongs to this object, never moves, and lives as long as the
        // object, to which the view owns a reference. No method of this type accesses the
        // bytes.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start.cast(), len, 0, flags) };
        if filled == 0 {
            Ok(())
        } else {
            Err(PyErr::fetch(slf.py()))
        }
    }
}

/// A frame to send.
pub(crate) enum Outgoing {
    Copied(Vec<u8>),
    Shared(SharedBuffer),
}

/// A buffer of a Python object. The thread of the event loop releases it.
pub(crate) struct SharedBuffer {
    /// `Some` until this value is dropped.
    buffer: Option<PyBuffer<u8>>,
    start: *const u8,
    len: usize,
    wakeups: Arc<Wakeups>,
}

// SAFETY: the bytes do not move while the buffer is held, and are only read. As with any send
// in Python, modifying them meanwhile sends either the old or the new value.
unsafe impl Send for SharedBuffer {}
// SAFETY: as above.
unsafe impl Sync for SharedBuffer {}

impl Outgoing {
    /// Takes the bytes of `frame`: copies them if they are few, and shares them otherwise.
    ///
    /// # Errors
    ///
    /// `BufferError` if `frame` is not a contiguous buffer of bytes.
    pub(crate) fn new(frame: &Bound<'_, PyAny>, wakeups: &Arc<Wakeups>) -> PyResult<Self> {
        let buffer = PyBuffer::<u8>::get(frame)?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("a frame must be contiguous"));
        }
        let len = buffer.len_bytes();
        if len < MIN_SHARED_LEN {
            return Ok(Self::Copied(buffer.to_vec(frame.py())?));
        }
        Ok(Self::Shared(SharedBuffer {
            start: buffer.buf_ptr().cast(),
            len,
            buffer: Some(buffer),
            wakeups: Arc::clone(wakeups),
        }))
    }
}

impl AsRef<[u8]> for Outgoing {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Copied(bytes) => bytes,
            // SAFETY: the buffer is held, contiguous, and has this length, which is not 0.
            Self::Shared(shared) => unsafe {
                core::slice::from_raw_parts(shared.start, shared.len)
            },
        }
    }
}

impl Drop for SharedBuffer {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.wakeups.release(buffer);
        }
    }
}
