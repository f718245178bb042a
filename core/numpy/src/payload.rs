//! Payloads as values: a description, and borrowed data.

use super::{
    Array, Description, MAX_DIMENSIONS, MaskedArray, MaskedHeader, NumpyError, NumpyErrorKind,
};
use daskwire::BufferTooSmall;
use daskwire::message::{LogicalFrame, MessageError, MessageErrorKind, Payload};

/// A payload with the description of its value.
///
/// The data is accessed on request. Data in one uncompressed frame is borrowed;
/// other data can be read [in parts](Self::parts) or [copied](Self::copy_into).
///
/// `MAX` is the largest number of [dimensions](crate::Dimensions) of arrays.
/// Default: all that numpy supports.
#[derive(Debug)]
pub struct PayloadValue<'a, T, const MAX: usize = MAX_DIMENSIONS> {
    payload: Payload<'a, T>,
    description: Description<'a, MAX>,
}

impl<T, const MAX: usize> Clone for PayloadValue<'_, T, MAX> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, const MAX: usize> Copy for PayloadValue<'_, T, MAX> {}

impl<'a, T: AsRef<[u8]>> PayloadValue<'a, T> {
    /// Reads the header of `payload`.
    ///
    /// # Errors
    ///
    /// A fault in the header, or a wrong number of logical frames: an array has
    /// one, a mask another.
    pub fn read(payload: &Payload<'a, T>) -> Result<Self, NumpyError> {
        Self::read_sized(payload)
    }
}

impl<'a, T: AsRef<[u8]>, const MAX: usize> PayloadValue<'a, T, MAX> {
    /// Like [`read`](PayloadValue::read), for any `MAX`.
    ///
    /// # Errors
    ///
    /// As [`read`](PayloadValue::read).
    pub fn read_sized(payload: &Payload<'a, T>) -> Result<Self, NumpyError> {
        let header = payload.header();
        let description = Description::of_kind(header, payload.kind())?;
        payload.check()?;
        let this = Self {
            payload: *payload,
            description,
        };
        let expected = match &description {
            Description::Array(_) => Some(1),
            Description::MaskedArray(header) => {
                let data_count = usize::try_from(header.data_frame_count()).unwrap_or(usize::MAX);
                Some(data_count.saturating_add(usize::from(header.has_mask())))
            }
            Description::Masked => Some(0),
            _ => None,
        };
        if let Some(expected) = expected {
            let found = payload.logical_count()?;
            if found != expected {
                return Err(this.error(NumpyErrorKind::FrameCount { found, expected }));
            }
        }
        Ok(this)
    }

    /// The description of the value.
    pub const fn description(&self) -> &Description<'a, MAX> {
        &self.description
    }

    /// The payload.
    pub const fn payload(&self) -> &Payload<'a, T> {
        &self.payload
    }

    /// The length of the data in bytes; `None` if it is unknown without
    /// decompression.
    ///
    /// # Errors
    ///
    /// As [`Payload::merged_len`].
    pub fn data_len(&self) -> Result<Option<u64>, NumpyError> {
        Ok(self.payload.merged_len()?)
    }

    /// The data without copying: one part per frame, in order, without empty
    /// ones.
    ///
    /// Dask splits data of more than 64 MiB (PROTOCOL SPLIT-1), between whole
    /// elements unless these are of more than 8 bytes.
    ///
    /// # Errors
    ///
    /// A fault in the header. Items can be errors too:
    /// [`NumpyErrorKind::Compressed`], and [`NumpyErrorKind::Message`] as those
    /// of [`Payload::logical_frames`].
    pub fn parts(
        &self,
    ) -> Result<impl Iterator<Item = Result<&'a [u8], NumpyError>> + use<'a, T, MAX>, NumpyError>
    {
        let this = *self;
        let mut frames = self.payload.logical_frames()?;
        let mut now: &'a [T] = &[];
        Ok(core::iter::from_fn(move || {
            loop {
                if let Some((first, rest)) = now.split_first() {
                    now = rest;
                    let part = first.as_ref();
                    if part.is_empty() {
                        continue;
                    }
                    return Some(Ok(part));
                }
                match this.plain(frames.next()?) {
                    Ok(frame) => now = frame.parts(),
                    Err(error) => return Some(Err(error)),
                }
            }
        }))
    }

    fn plain(
        &self,
        frame: Result<LogicalFrame<'a, T>, MessageError>,
    ) -> Result<LogicalFrame<'a, T>, NumpyError> {
        match frame? {
            frame if frame.is_compressed() => Err(self.error(NumpyErrorKind::Compressed)),
            frame => Ok(frame),
        }
    }

    /// All data as one slice, without copying.
    ///
    /// # Errors
    ///
    /// As the items of [`parts`](Self::parts), and [`NumpyErrorKind::InParts`].
    pub fn as_slice(&self) -> Result<&'a [u8], NumpyError> {
        let mut found: &[u8] = &[];
        for part in self.parts()? {
            let part = part?;
            if !found.is_empty() {
                return Err(self.error(NumpyErrorKind::InParts));
            }
            found = part;
        }
        Ok(found)
    }

    /// Decompresses and joins all data at the start of `out`, which needs
    /// [`data_len`](Self::data_len) bytes, and returns it.
    ///
    /// # Errors
    ///
    /// * [`NumpyErrorKind::BufferTooSmall`];
    /// * [`NumpyErrorKind::Message`] as [`Payload::merge_into`].
    pub fn copy_into<'o>(&self, out: &'o mut [u8]) -> Result<&'o [u8], NumpyError> {
        let available = out.len();
        if let Some(len) = self.data_len()? {
            let needed = usize::try_from(len).unwrap_or(usize::MAX);
            if needed > available {
                let short = BufferTooSmall { needed, available };
                return Err(self.error(NumpyErrorKind::BufferTooSmall(short)));
            }
        }
        self.payload.join_into(out).map_err(|error| {
            let mut error = NumpyError::from(error);
            if let NumpyErrorKind::Message(MessageErrorKind::DataBuffer(short)) = error.kind {
                error.kind = NumpyErrorKind::BufferTooSmall(short);
            }
            error
        })
    }

    /// The array or `memoryview` as an array over the borrowed data.
    ///
    /// # Errors
    ///
    /// * [`NumpyErrorKind::OtherClass`] if the value is neither;
    /// * as [`as_slice`](Self::as_slice) and
    ///   [`ArrayHeader::over`](super::ArrayHeader::over).
    pub fn array(&self) -> Result<Array<'a, MAX>, NumpyError> {
        self.check_array()?;
        self.array_over(self.as_slice()?)
    }

    /// The array or `memoryview` as an array over a copy of the data in `out`.
    ///
    /// # Errors
    ///
    /// * [`NumpyErrorKind::OtherClass`] if the value is neither;
    /// * as [`copy_into`](Self::copy_into) and
    ///   [`ArrayHeader::over`](super::ArrayHeader::over).
    pub fn array_into<'o>(&self, out: &'o mut [u8]) -> Result<Array<'o, MAX>, NumpyError> {
        self.check_array()?;
        self.array_over(self.copy_into(out)?)
    }

    /// Checks the class before the data is accessed.
    fn check_array(&self) -> Result<(), NumpyError> {
        match &self.description {
            Description::Array(_) | Description::MemoryView(_) => Ok(()),
            _ => Err(self.no_array()),
        }
    }

    fn array_over<'d>(&self, bytes: &'d [u8]) -> Result<Array<'d, MAX>, NumpyError> {
        match &self.description {
            Description::Array(header) => header.over(bytes),
            Description::MemoryView(header) => header.over(bytes),
            _ => Err(self.no_array()),
        }
    }

    fn no_array(&self) -> NumpyError {
        let wanted = "an array of numpy, or a memoryview";
        self.error(NumpyErrorKind::OtherClass { wanted })
    }

    /// The masked array over its borrowed frames: one for the data and
    /// optionally one for the mask.
    ///
    /// # Errors
    ///
    /// * [`NumpyErrorKind::OtherClass`] if the value is not a masked array, or
    ///   has objects, whose data is a pickle;
    /// * [`NumpyErrorKind::Compressed`] and [`NumpyErrorKind::InParts`] if
    ///   frames must be copied with
    ///   [`masked_array_into`](Self::masked_array_into);
    /// * a fault in the header or the array.
    pub fn masked_array(&self) -> Result<MaskedArray<'a, MAX>, NumpyError> {
        let header = self.masked_header()?;
        let mut frames = self.payload.logical_frames()?;
        let mut next = || {
            // The number of frames has been checked.
            let missing = self.error(NumpyErrorKind::InParts);
            let frame = self.plain(frames.next().ok_or(missing)?)?;
            frame.as_slice().ok_or(missing)
        };
        let data = next()?;
        let mask = if header.has_mask() { next()? } else { &[] };
        masked_over(header, data, mask)
    }

    /// The masked array over a copy of its frames in `out`.
    ///
    /// # Errors
    ///
    /// * [`NumpyErrorKind::OtherClass`] as [`masked_array`](Self::masked_array);
    /// * as [`copy_into`](Self::copy_into);
    /// * a fault in the header or the array.
    pub fn masked_array_into<'o>(
        &self,
        out: &'o mut [u8],
    ) -> Result<MaskedArray<'o, MAX>, NumpyError> {
        let header = self.masked_header()?;
        let whole = self.copy_into(out)?;
        let len = match header.data_sized::<MAX>()? {
            Description::Array(data) => data.stored_len(),
            _ => None,
        };
        let parts = len.and_then(|len| whole.split_at_checked(len));
        // If the split fails, the check of the array reports the error.
        let (data, mask) = parts.unwrap_or((whole, &[]));
        masked_over(header, data, mask)
    }

    fn masked_header(&self) -> Result<&MaskedHeader<'a>, NumpyError> {
        match &self.description {
            Description::MaskedArray(header) if header.data_frame_count() == 1 => Ok(header),
            _ => {
                let wanted = "a masked array of numpy, not of objects";
                Err(self.error(NumpyErrorKind::OtherClass { wanted }))
            }
        }
    }

    fn error(&self, kind: NumpyErrorKind) -> NumpyError {
        let (frame, at) = self.payload.header_location();
        NumpyError { frame, at, kind }
    }
}

fn masked_over<'d, const MAX: usize>(
    header: &MaskedHeader<'_>,
    data: &'d [u8],
    mask: &'d [u8],
) -> Result<MaskedArray<'d, MAX>, NumpyError> {
    let Description::Array(array) = header.data_sized::<MAX>()? else {
        let wanted = "a masked array of numpy, not of objects";
        return Err(header.fault(NumpyErrorKind::OtherClass { wanted }));
    };
    let data = array.over(data)?;
    let mask = match header.mask_sized::<MAX>()? {
        Some(header) => Some(header.over(mask)?),
        None => None,
    };
    MaskedArray::new(data, mask).map_err(|error| header.fault(error.kind))
}
