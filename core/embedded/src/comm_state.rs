//! What the adapters for blocking and for async streams share.

use daskwire::invariant::OrDefaultIfBug as _;

/// Copies frames to `buffer` after the first `filled` bytes while they fit.
/// Returns the bytes to send, the frame to send after them without copying
/// (empty if there is none), and the remaining frames.
pub(super) fn gather<'b, 'f, 's>(
    buffer: &'b mut [u8],
    mut filled: usize,
    mut frames: &'s [&'f [u8]],
) -> (&'b [u8], &'f [u8], &'s [&'f [u8]]) {
    let mut large: &[u8] = &[];
    while let Some((frame, after)) = frames.split_first() {
        if frame.len() > buffer.len() {
            (large, frames) = (frame, after);
            break;
        }
        let rest = buffer.get_mut(filled..).or_default_if_bug();
        let Some(place) = rest.get_mut(..frame.len()) else {
            break;
        };
        crate::copy(place, frame);
        (filled, frames) = (filled.saturating_add(frame.len()), after);
    }
    (buffer.get(..filled).or_default_if_bug(), large, frames)
}

/// The methods of `MessageReader` and `MessageWriter` that do no I/O, which are the same for
/// blocking and async streams.
macro_rules! without_io {
    () => {
        impl<R: Read, P: PreludeStorage> MessageReader<R, P> {
            /// Creates a reader for `io`, which is at the start of a message.
            ///
            /// `storage` holds the lengths, 8 bytes per frame. `limits` apply
            /// to all messages except the [`handshake`].
            pub const fn new(io: R, prefix: Prefix, storage: P, limits: Limits) -> Self {
                Self {
                    io,
                    receiver: Receiver::new(prefix, storage, limits),
                }
            }
        }

        impl<R, P: PreludeStorage> MessageReader<R, P> {
            /// The lengths of the frames that the last call read; `None` before the
            /// first one, while a message is arriving, and after an end or an error.
            pub fn prelude(&self) -> Option<Prelude<'_>> {
                let prelude = self.receiver.prelude();
                prelude.filter(|_| self.receiver.is_complete())
            }
        }

        impl<R, P> MessageReader<R, P> {
            /// Returns the stream. Between two messages it is at the start of the next
            /// one.
            pub fn into_inner(self) -> R {
                self.io
            }

            /// The underlying stream.
            pub const fn get_ref(&self) -> &R {
                &self.io
            }

            /// The underlying stream. Bytes read from it are lost to this reader.
            pub const fn get_mut(&mut self) -> &mut R {
                &mut self.io
            }
        }

        impl<R, P> fmt::Debug for MessageReader<R, P> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct("MessageReader")
                    .field("receiver", &self.receiver)
                    .finish_non_exhaustive()
            }
        }

        impl<W: Write, S: AsMut<[u8]>> MessageWriter<W, S> {
            /// Creates a writer to `io`, which is between two messages.
            ///
            /// `buffer` must hold the prelude of every message: 8 bytes per frame plus
            /// 16 ([`prelude_len`](daskwire::frame::prelude_len)).
            pub const fn new(io: W, prefix: Prefix, buffer: S) -> Self {
                Self {
                    io,
                    sender: Sender::new(prefix),
                    buffer,
                    is_flushed: false,
                }
            }
        }

        impl<W, S> MessageWriter<W, S> {
            /// The underlying stream.
            pub fn into_inner(self) -> W {
                self.io
            }

            /// The underlying stream.
            pub const fn get_ref(&self) -> &W {
                &self.io
            }

            /// The underlying stream. Bytes written to it are sent between two
            /// messages.
            pub const fn get_mut(&mut self) -> &mut W {
                &mut self.io
            }
        }

        impl<W, S> fmt::Debug for MessageWriter<W, S> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct("MessageWriter")
                    .field("sender", &self.sender)
                    .finish_non_exhaustive()
            }
        }
    };
}
pub(super) use without_io;
