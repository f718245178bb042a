//! Helpers for measuring writers: copying without panics, and writing that
//! keeps counting past the end of the buffer, for the crates of this workspace.
//!
//! Each function takes the length so far and returns the new one. It writes
//! nothing if there is no space; the length saturates.

use crate::copy;

/// Writes a marker and a number.
#[inline]
pub fn head<const N: usize>(out: &mut [u8], at: usize, marker: u8, bytes: [u8; N]) -> usize {
    let Some(end) = at.checked_add(N.wrapping_add(1)) else {
        return usize::MAX;
    };
    if let Some([first, rest @ ..]) = out.get_mut(at..end)
        && let Ok(rest) = <&mut [u8; N]>::try_from(rest)
    {
        *first = marker;
        *rest = bytes;
    }
    end
}

/// Writes bytes.
#[inline]
pub fn append(out: &mut [u8], at: usize, bytes: &[u8]) -> usize {
    let Some(end) = at.checked_add(bytes.len()) else {
        return usize::MAX;
    };
    if let Some(place) = out.get_mut(at..end) {
        copy(place, bytes);
    }
    end
}

/// Writes a head of fixed length and short data.
#[inline]
pub fn short<const N: usize>(out: &mut [u8], at: usize, head: [u8; N], data: &[u8]) -> usize {
    let Some(end) = at.checked_add(data.len().saturating_add(N)) else {
        return usize::MAX;
    };
    if let Some(place) = out.get_mut(at..end)
        && let Some((first, rest)) = place.split_first_chunk_mut()
    {
        *first = head;
        copy_short(rest, data);
    }
    end
}

/// Copies `from` to `to`, which have the same length. Up to 64 bytes take two
/// or four overlapping moves of a fixed size and no call.
#[inline]
fn copy_short(to: &mut [u8], from: &[u8]) {
    let len = to.len();
    if cfg!(not(target_pointer_width = "64")) || len > 64 || len != from.len() {
        copy(to, from);
    } else if len >= 32 {
        ends::<32>(to, from);
    } else if len >= 16 {
        ends::<16>(to, from);
    } else if len >= 8 {
        ends::<8>(to, from);
    } else if len >= 4 {
        ends::<4>(to, from);
    } else if len >= 2 {
        ends::<2>(to, from);
    } else {
        ends::<1>(to, from);
    }
}

/// Copies the first and the last `N` bytes, if there are as many.
#[inline]
fn ends<const N: usize>(to: &mut [u8], from: &[u8]) {
    if let (Some(from), Some(to)) = (from.first_chunk::<N>(), to.first_chunk_mut()) {
        *to = *from;
    }
    if let (Some(from), Some(to)) = (from.last_chunk::<N>(), to.last_chunk_mut()) {
        *to = *from;
    }
}
