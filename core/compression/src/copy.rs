//! Copying between and within slices, without panics.

/// Copies as many bytes as both slices have. `copy_from_slice` panics for
/// different lengths, and the compiler keeps that panic when it optimises for
/// size.
#[inline]
pub fn copy(to: &mut [u8], from: &[u8]) {
    if cfg!(debug_assertions) {
        // The loop below becomes one call of `memcpy`, but only with
        // optimisation.
        let len = to.len().min(from.len());
        if let (Some(to), Some(from)) = (to.get_mut(..len), from.get(..len)) {
            to.copy_from_slice(from);
        }
        return;
    }
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
}

/// Copies `len` bytes from `at - offset` to `at`, both in `out`. If the ranges
/// overlap, bytes that were just written are copied again, as lz4 and snappy
/// define.
///
/// `None` if the source or the target is outside `out`.
#[cfg(any(feature = "lz4", feature = "snappy"))]
#[inline]
pub(crate) fn copy_back(out: &mut [u8], at: usize, offset: usize, len: usize) -> Option<()> {
    let from = at.checked_sub(offset)?;
    let end = at.checked_add(len)?;
    // Most copies are short and do not overlap. Bytes written past `end` are
    // overwritten by later elements; without these the frame is too short and
    // refused.
    if offset >= 16 && len <= 16 {
        let source = *out.get(from..)?.first_chunk::<16>()?;
        if let Some(place) = out.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<16>) {
            *place = source;
            return (end <= out.len()).then_some(());
        }
    }
    if end > out.len() || offset == 0 {
        return None;
    }
    if offset >= len {
        return copy_ahead(out, from, at, len);
    }
    if offset == 1 {
        // A run of one byte, for example zeros.
        let byte = *out.get(from)?;
        out.get_mut(at..end)?.fill(byte);
        return Some(());
    }
    // Doubles the copied part each time, in whole periods.
    let mut done = 0_usize;
    while done < len {
        let step = offset.checked_add(done)?.min(len.checked_sub(done)?);
        let to = at.checked_add(done)?;
        copy_ahead(out, from, to, step)?;
        done = done.checked_add(step)?;
    }
    Some(())
}

/// Copies `len` bytes forward from `from` to `to`; the ranges do not overlap.
/// Written without panicking operations, which the bare-metal test checks.
#[cfg(any(feature = "lz4", feature = "snappy"))]
#[inline]
fn copy_ahead(out: &mut [u8], from: usize, to: usize, len: usize) -> Option<()> {
    let (before, after) = out.split_at_mut_checked(to)?;
    let source = before.get(from..)?.get(..len)?;
    copy(after.get_mut(..len)?, source);
    Some(())
}

/// Copies `data` to `out[at..]`. `None` if it does not fit.
#[cfg(any(feature = "lz4", feature = "snappy"))]
#[inline]
pub(crate) fn copy_literal(out: &mut [u8], at: usize, data: &[u8]) -> Option<()> {
    copy(out.get_mut(at..)?.get_mut(..data.len())?, data);
    Some(())
}
