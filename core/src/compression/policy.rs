//! When compressing pays: the rule of the documents, and those of the releases.

use super::{Compression, CompressionError};
use crate::BufferTooSmall;

/// Whether a frame is sent compressed (PROTOCOL COMPRESS-5).
///
/// Data that does not compress is not worth the time to find out, so samples of
/// a long frame are tried first. A frame that is not much longer than the
/// samples is compressed right away, which costs no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Frames shorter than this, in bytes, are sent as they are.
    pub min_len: u64,
    /// Frames longer than this, in bytes, are sent as they are.
    pub max_len: u64,
    /// What compressed data may be of the original at most, in percent.
    pub max_percent: u32,
    /// How many samples are taken.
    pub sample_count: u32,
    /// Bytes of each sample.
    pub sample_len: u32,
}

impl Policy {
    /// distributed 2023.5.0 and later: 10 kB to 2 GiB, at most 70 %.
    pub const DASK: Self = Self {
        min_len: 10_000,
        max_len: 1 << 31,
        max_percent: 70,
        sample_count: 5,
        sample_len: 10_000,
    };

    /// distributed 1.9.3 to 2023.4.1: 10 kB to 2 GiB, at most 90 %.
    pub const DASK_BEFORE_2023: Self = Self {
        max_percent: 90,
        ..Self::DASK
    };

    /// The protocol page: more than 1 kB, a gain of 10 %, five samples of
    /// 10 kB.
    pub const DOCUMENTED: Self = Self {
        min_len: 1001,
        max_len: u64::MAX,
        max_percent: 90,
        sample_count: 5,
        sample_len: 10_000,
    };

    /// Up to this many times the samples, the whole is compressed at once.
    const DIRECT: usize = 2;

    /// Bytes of scratch that [`maybe_compress`](Self::maybe_compress) needs for
    /// a frame of `len` bytes; 0 for one that it never compresses.
    pub fn scratch_len(&self, compression: &dyn Compression, len: usize) -> usize {
        if !self.covers(len) {
            return 0;
        }
        let whole = compression.max_compressed_len(len).unwrap_or(0);
        let samples = self.samples_len();
        let sampling = compression
            .max_compressed_len(samples)
            .map_or(0, |packed| packed.saturating_add(samples));
        if self.is_sampled(len) {
            whole.max(sampling)
        } else {
            whole
        }
    }

    /// Compresses `frame` into `scratch` if it is worth it.
    ///
    /// `random` gives a number below its argument, for the places of the
    /// samples; it is called only for frames that are sampled. `None` means
    /// that the frame is to be sent as it is.
    ///
    /// ```
    /// # #[cfg(feature = "snappy")] {
    /// use daskwire::compression::{Policy, Snappy, SnappyTable};
    /// let frame = [0; 20_000];
    /// let mut table = SnappyTable::new();
    /// let mut snappy = Snappy::new(&mut table);
    /// let mut scratch = [0; 24_000];
    /// let mut no_samples = |_bound: u64| 0;
    /// let packed = Policy::DASK.maybe_compress(&mut snappy, &frame, &mut scratch, &mut no_samples)?;
    /// assert!(packed.is_some_and(|packed| packed.len() < 1000));
    /// # }
    /// # Ok::<(), daskwire::compression::CompressionError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CompressionError::BufferTooSmall`] if `scratch` is shorter than
    /// [`scratch_len`](Self::scratch_len).
    pub fn maybe_compress<'d>(
        &self,
        compression: &mut dyn Compression,
        frame: &[u8],
        scratch: &'d mut [u8],
        random: &mut dyn FnMut(u64) -> u64,
    ) -> Result<Option<&'d [u8]>, CompressionError> {
        if !self.covers(frame.len()) || compression.max_compressed_len(frame.len()).is_none() {
            return Ok(None);
        }
        let needed = self.scratch_len(compression, frame.len());
        let available = scratch.len();
        if available < needed {
            return Err(BufferTooSmall { needed, available }.into());
        }
        if self.is_sampled(frame.len()) && !self.samples_pay(compression, frame, scratch, random)? {
            return Ok(None);
        }
        let len = compression.compress(frame, scratch)?;
        Ok(self
            .pays(frame.len(), len)
            .then(|| scratch.get(..len).unwrap_or_default()))
    }

    fn covers(&self, len: usize) -> bool {
        (self.min_len..=self.max_len).contains(&(len as u64))
    }

    fn samples_len(&self) -> usize {
        let len = u64::from(self.sample_count).saturating_mul(u64::from(self.sample_len));
        usize::try_from(len).unwrap_or(usize::MAX)
    }

    fn is_sampled(&self, len: usize) -> bool {
        len > self.samples_len().saturating_mul(Self::DIRECT)
    }

    fn pays(&self, len: usize, compressed_len: usize) -> bool {
        let most = (len as u128).saturating_mul(u128::from(self.max_percent));
        (compressed_len as u128).saturating_mul(100) <= most
    }

    /// Joins the samples at the end of `scratch` and compresses them.
    fn samples_pay(
        &self,
        compression: &mut dyn Compression,
        frame: &[u8],
        scratch: &mut [u8],
        random: &mut dyn FnMut(u64) -> u64,
    ) -> Result<bool, CompressionError> {
        let sample_len = self.sample_len as usize;
        let start = scratch.len().saturating_sub(self.samples_len());
        let Some((packed, joined)) = scratch.split_at_mut_checked(start) else {
            return Ok(true);
        };
        let places = (frame.len() as u64).saturating_sub(u64::from(self.sample_len));
        for sample in joined.chunks_mut(sample_len.max(1)) {
            let at = random(places.saturating_add(1)).min(places);
            let from = usize::try_from(at)
                .ok()
                .and_then(|at| frame.get(at..))
                .and_then(|rest| rest.get(..sample.len()));
            if let Some(from) = from {
                sample.copy_from_slice(from);
            }
        }
        let len = compression.compress(joined, packed)?;
        Ok(self.pays(joined.len(), len))
    }
}
