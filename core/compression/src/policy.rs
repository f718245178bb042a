//! The sampling rules that decide whether to compress a frame.

use crate::invariant::OrDefaultIfBug as _;
use crate::{BufferTooSmall, Compression, CompressionError};

/// The rule that decides whether a frame is sent compressed
/// (PROTOCOL COMPRESS-7, COMPRESS-8).
///
/// To save time on incompressible data, samples are compressed first; they are
/// drawn and evaluated exactly as in Dask. A frame that is not longer than one
/// sample is compressed without sampling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Policy {
    /// The minimum length of frames to compress, in bytes.
    pub min_len: u64,
    /// The maximum length of frames to compress, in bytes.
    pub max_len: u64,
    /// The maximum length of compressed data relative to the original, in
    /// percent.
    pub max_percent: u32,
    /// The number of samples.
    pub sample_count: u32,
    /// The length of each sample in bytes. A sample ends earlier where the next
    /// one begins.
    pub sample_len: u32,
}

impl Policy {
    /// Dask's policy since distributed 2023.5.0: frames of 10 kB to 2 GiB, compressed to at
    /// most 70 % of their length.
    pub const DASK: Self = Self {
        min_len: 10_000,
        max_len: 1 << 31,
        max_percent: 70,
        sample_count: 5,
        sample_len: 10_000,
    };

    with_fields! {
        with_min_len(min_len: u64);
        with_max_len(max_len: u64);
        with_max_percent(max_percent: u32);
        with_sample_count(sample_count: u32);
        with_sample_len(sample_len: u32);
    }

    /// The length of the scratch buffer that
    /// [`maybe_compress`](Self::maybe_compress) needs for a frame of `len`
    /// bytes, in bytes; 0 if it never compresses such a frame.
    pub fn scratch_len(&self, compression: &dyn Compression, len: usize) -> usize {
        if !self.applies_to(len) {
            return 0;
        }
        let whole = compression.max_compressed_len(len).unwrap_or(0);
        if !self.is_sampled(len) {
            return whole;
        }
        let samples = self.samples_len();
        let sampling = compression
            .max_compressed_len(samples)
            .map_or(0, |packed| packed.saturating_add(samples));
        whole.max(sampling)
    }

    /// Compresses `frame` into `scratch` if that is worthwhile under this
    /// policy.
    ///
    /// `random` returns a random number below its argument, from which the
    /// positions of the samples are chosen; larger numbers are reduced modulo
    /// the argument. It is called once per sample, and only for frames that are
    /// sampled. Returns `None` if the frame should be sent uncompressed.
    ///
    /// ```
    /// # #[cfg(feature = "snappy")] {
    /// use daskwire_compression::{Policy, Snappy};
    /// let frame = [0; 20_000];
    /// let mut snappy = Snappy::new();
    /// let mut scratch = vec![0; Policy::DASK.scratch_len(&snappy, frame.len())];
    /// let mut random = |bound: u64| bound / 2; // use a random generator here
    /// let packed = Policy::DASK.maybe_compress(&mut snappy, &frame, &mut scratch, &mut random)?;
    /// assert!(packed.is_some_and(|packed| packed.len() < 1000));
    /// # }
    /// # Ok::<(), daskwire_compression::CompressionError>(())
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
        if !self.applies_to(frame.len()) || compression.max_compressed_len(frame.len()).is_none() {
            return Ok(None);
        }
        BufferTooSmall::check(scratch, self.scratch_len(compression, frame.len()))?;
        if self.is_sampled(frame.len())
            && !self.are_samples_worthwhile(compression, frame, scratch, random)?
        {
            return Ok(None);
        }
        let len = compression.compress(frame, scratch)?;
        Ok(self
            .is_worthwhile(frame.len(), len)
            .then(|| scratch.get(..len).unwrap_or_default()))
    }

    fn applies_to(&self, len: usize) -> bool {
        (self.min_len..=self.max_len).contains(&(len as u64))
    }

    fn samples_len(&self) -> usize {
        let len = u64::from(self.sample_count).saturating_mul(u64::from(self.sample_len));
        usize::try_from(len).unwrap_or(usize::MAX)
    }

    fn is_sampled(&self, len: usize) -> bool {
        self.sample_count != 0 && len as u64 > u64::from(self.sample_len)
    }

    fn is_worthwhile(&self, len: usize, compressed_len: usize) -> bool {
        let max = (len as u128).saturating_mul(u128::from(self.max_percent));
        (compressed_len as u128).saturating_mul(100) <= max
    }

    /// Whether the samples compress well enough. Joins them at the end of
    /// `scratch` to compress them.
    fn are_samples_worthwhile(
        &self,
        compression: &mut dyn Compression,
        frame: &[u8],
        scratch: &mut [u8],
        random: &mut dyn FnMut(u64) -> u64,
    ) -> Result<bool, CompressionError> {
        let start = scratch.len().saturating_sub(self.samples_len());
        let Some((packed, joined)) = scratch.split_at_mut_checked(start) else {
            return Ok(true);
        };
        let position_count = (frame.len() as u64)
            .saturating_sub(u64::from(self.sample_len))
            .saturating_add(1);
        let mut draw_position = || {
            let drawn = random(position_count).checked_rem(position_count);
            usize::try_from(drawn.or_default_if_bug()).or_default_if_bug()
        };
        let mut len = 0_usize;
        let mut at = draw_position();
        for left in (0..self.sample_count).rev() {
            // Samples stay in the order drawn. If the next one begins before
            // this one, this one is empty.
            let mut end = at.saturating_add(self.sample_len as usize);
            let mut next = at;
            if left != 0 {
                next = draw_position();
                end = end.min(next);
            }
            let sample = frame.get(at..end).unwrap_or_default();
            let room = joined.get_mut(len..).or_default_if_bug();
            if let Some(room) = room.get_mut(..sample.len()) {
                crate::copy::copy(room, sample);
                len = len.saturating_add(sample.len());
            }
            at = next;
        }
        let joined = joined.get(..len).or_default_if_bug();
        let packed_len = compression.compress(joined, packed)?;
        Ok(self.is_worthwhile(len, packed_len))
    }
}

impl Default for Policy {
    /// Returns [`Policy::DASK`].
    fn default() -> Self {
        Self::DASK
    }
}
