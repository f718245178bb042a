//! Pickles with their out-of-band buffers.

use super::{Description, NumpyError, NumpyErrorKind};
use daskwire::BufferTooSmall;
use daskwire::invariant::OrDefaultIfBug;
use daskwire::message::{ItemList, LogicalFrame, MessageError, Payload, PayloadKind};
use daskwire_pickle::{Mutability, OutOfBandReader, PickleBuffer, Reader};

/// A payload that is a pickle with its out-of-band buffers: of the family
/// pickle, a `__Pickled__`, or a numpy array of objects (PROTOCOL TYPED-5).
///
/// The pickle is never run.
#[derive(Debug)]
pub struct PickledPayload<'a, T> {
    payload: Payload<'a, T>,
    /// The pickle, if it is not the first logical frame.
    in_header: Option<&'a [u8]>,
    buffer_count: usize,
}

impl<T> Clone for PickledPayload<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for PickledPayload<'_, T> {}

impl<'a, T: AsRef<[u8]>> PickledPayload<'a, T> {
    /// Reads the header of `payload`.
    ///
    /// # Errors
    ///
    /// * [`NumpyErrorKind::OtherClass`] if it is not a pickle;
    /// * [`NumpyErrorKind::FrameCount`] if the frame of the pickle is missing;
    /// * a fault in the header.
    pub fn read(payload: &Payload<'a, T>) -> Result<Self, NumpyError> {
        let header = payload.header();
        let (frame, at) = payload.header_location();
        let error = |kind| NumpyError { frame, at, kind };
        let description: Description<'_> = Description::of_kind(header, payload.kind())?;
        if description != Description::Pickle {
            let wanted = "a pickle";
            return Err(error(NumpyErrorKind::OtherClass { wanted }));
        }
        payload.check()?;
        let found = payload.logical_count()?;
        let (in_header, buffer_count) = match payload.kind() {
            PayloadKind::Pickled => (header.pickled_object()?, found),
            PayloadKind::Serialized => {
                let expected = 1;
                let count = found.checked_sub(expected);
                let missing = error(NumpyErrorKind::FrameCount { found, expected });
                (None, count.ok_or(missing)?)
            }
        };
        Ok(Self {
            payload: *payload,
            in_header,
            buffer_count,
        })
    }

    /// The payload.
    pub const fn payload(&self) -> &Payload<'a, T> {
        &self.payload
    }

    /// The number of buffers.
    pub const fn buffer_count(&self) -> usize {
        self.buffer_count
    }

    /// Whether each buffer is writeable; `None` if the sender does not declare
    /// it, as in a `__Pickled__`, where only the pickle does.
    ///
    /// # Errors
    ///
    /// A fault in the header.
    pub fn writeable(
        &self,
    ) -> Result<impl ExactSizeIterator<Item = Option<bool>> + use<'a, T>, NumpyError> {
        let mut flags = self.payload.header().writeable()?;
        // PROTOCOL HEADER-8: earlier releases send one flag per frame,
        // including the pickle.
        if let Some(list) = &mut flags
            && self.in_header.is_none()
            && list.count_left() as usize == self.buffer_count.saturating_add(1)
        {
            list.next();
        }
        let mut flags = flags.into_iter().flat_map(ItemList::flags);
        Ok((0..self.buffer_count).map(move |_| flags.next().flatten()))
    }

    /// The pickle and its buffers without copying, if each is one frame,
    /// neither compressed nor split.
    ///
    /// # Errors
    ///
    /// * [`NumpyErrorKind::Compressed`] and [`NumpyErrorKind::InParts`] if they
    ///   must be merged, see [`merged`](Self::merged);
    /// * a fault in the header.
    pub fn borrowed(&self) -> Result<BorrowedPickle<'a, T>, NumpyError> {
        let mut frames = self.payload.logical_frames()?;
        let pickle = match self.in_header {
            Some(pickle) => pickle,
            None => self.slice(frames.next())?,
        };
        // The buffers as frames of the message, if possible.
        let first = self
            .payload
            .frames()
            .len()
            .saturating_sub(self.buffer_count);
        let buffers = self.payload.frames().get(first..).or_default_if_bug();
        let mut places = buffers.iter();
        for _ in 0..self.buffer_count {
            let frame = self.slice(frames.next())?;
            let same = |place: &T| {
                let place = place.as_ref();
                place.len() == frame.len()
                    && (frame.is_empty() || core::ptr::eq(place.as_ptr(), frame.as_ptr()))
            };
            if !places.next().is_some_and(same) {
                return Err(self.error(NumpyErrorKind::InParts));
            }
        }
        Ok(BorrowedPickle { pickle, buffers })
    }

    fn slice(
        &self,
        frame: Option<Result<LogicalFrame<'a, T>, MessageError>>,
    ) -> Result<&'a [u8], NumpyError> {
        // The count has been checked.
        let frame = frame.ok_or(self.error(NumpyErrorKind::InParts))??;
        if frame.is_compressed() {
            return Err(self.error(NumpyErrorKind::Compressed));
        }
        frame.as_slice().ok_or(self.error(NumpyErrorKind::InParts))
    }

    /// Decompresses and merges the pickle and its buffers to `out`, which needs
    /// [`Payload::merged_len`] bytes, and returns both; `slots` and `ends` need
    /// one entry per logical frame.
    ///
    /// # Errors
    ///
    /// * [`NumpyErrorKind::BufferTooSmall`] if there are too few slots, counted
    ///   in slots;
    /// * as [`Payload::merge_into`].
    pub fn merged<'s, 'o: 's>(
        &self,
        out: &'o mut [u8],
        ends: &'o mut [usize],
        slots: &'s mut [&'o [u8]],
    ) -> Result<BorrowedPickle<'s, &'o [u8]>, NumpyError>
    where
        'a: 'o,
    {
        let frames = self.payload.merge_into(out, ends)?;
        let mut frames = frames.iter();
        let pickle = match self.in_header {
            Some(pickle) => pickle,
            None => frames.next().unwrap_or_default(),
        };
        let (needed, available) = (frames.len(), slots.len());
        let places = slots.get_mut(..needed).ok_or({
            let short = BufferTooSmall { needed, available };
            self.error(NumpyErrorKind::BufferTooSmall(short))
        })?;
        for (place, frame) in places.iter_mut().zip(frames) {
            *place = frame;
        }
        Ok(BorrowedPickle {
            pickle,
            buffers: places,
        })
    }

    fn error(&self, kind: NumpyErrorKind) -> NumpyError {
        let (frame, at) = self.payload.header_location();
        NumpyError { frame, at, kind }
    }
}

/// A pickle and its buffers, each one slice.
#[derive(Debug)]
pub struct BorrowedPickle<'a, T> {
    pickle: &'a [u8],
    buffers: &'a [T],
}

impl<T> Clone for BorrowedPickle<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for BorrowedPickle<'_, T> {}

impl<'a, T: AsRef<[u8]>> BorrowedPickle<'a, T> {
    /// The pickle.
    pub const fn pickle(&self) -> &'a [u8] {
        self.pickle
    }

    /// The buffers.
    pub const fn buffers(&self) -> &'a [T] {
        self.buffers
    }

    /// The buffers with the mutability in the header, for writing them again.
    /// Default: writeable.
    pub fn pickle_buffers(
        &self,
        writeable: impl IntoIterator<Item = Option<bool>>,
    ) -> impl Iterator<Item = PickleBuffer<'a>> {
        self.buffers.iter().zip(writeable).map(|(buffer, flag)| {
            let mutability = match flag {
                Some(false) => Mutability::ReadOnly,
                _ => Mutability::Writable,
            };
            PickleBuffer::new(buffer.as_ref(), mutability)
        })
    }

    /// Reads the opcodes of the pickle, each NEXT_BUFFER with its buffer.
    pub const fn items(&self) -> OutOfBandReader<'a, T> {
        OutOfBandReader::new(Reader::new(self.pickle), self.buffers)
    }
}
