//! Buffers for opening messages, on the heap.

use alloc::vec::Vec;

use super::{Layout, Level, Message, MessageError, MessageErrorKind, PayloadSlot, ReadOptions};

/// The buffers of [`Message::open`] in vectors that grow as needed.
///
/// For programs with a heap. Reuse one workspace for all messages.
///
/// ```
/// use daskwire::message::{Layout, ReadOptions, Workspace};
/// let mut workspace = Workspace::new();
/// let op = workspace.with_message(
///     &[&b"\x81\xa2op\xa4ping"[..]], Layout::Modern, &ReadOptions::default(),
///     |message, _levels| message.op().is_some_and(|op| op == "ping"),
/// )?;
/// assert!(op);
/// # Ok::<(), daskwire::message::MessageError>(())
/// ```
#[derive(Debug, Default)]
pub struct Workspace {
    levels: Vec<Level>,
    slots: Vec<PayloadSlot>,
    body: Vec<u8>,
}

impl Workspace {
    /// Creates an empty workspace; it allocates on first use.
    pub const fn new() -> Self {
        Self {
            levels: Vec::new(),
            slots: Vec::new(),
            body: Vec::new(),
        }
    }

    /// Opens a message and calls `use_it` with it and levels to walk it.
    ///
    /// Memory is bounded by the limits of `reading` and grows with the size of
    /// the frames, not with declared sizes.
    ///
    /// # Errors
    ///
    /// As [`Message::open`], except for buffer sizes.
    pub fn with_message<T: AsRef<[u8]>, R>(
        &mut self,
        frames: &[T],
        layout: Layout,
        options: &ReadOptions,
        use_it: impl FnOnce(Message<'_, T>, &mut [Level]) -> R,
    ) -> Result<R, MessageError> {
        loop {
            let opened = Message::open(
                frames,
                layout,
                options,
                &mut self.levels,
                &mut self.slots,
                &mut self.body,
            );
            let error = match opened {
                Ok(message) => return Ok(use_it(message, &mut self.levels)),
                Err(error) => error,
            };
            match error.kind {
                MessageErrorKind::TooFewLevels { available } => {
                    let len = available.saturating_mul(2).max(16);
                    self.levels.resize(len, Level::EMPTY);
                }
                MessageErrorKind::TooFewSlots(short) => {
                    let len = short.needed.max(short.available.saturating_mul(2));
                    self.slots.resize(len, PayloadSlot::EMPTY);
                }
                MessageErrorKind::BodyBuffer(short) => {
                    let len = short.needed.max(short.available.saturating_mul(2));
                    self.body.resize(len.max(4096), 0);
                }
                _ => return Err(error),
            }
        }
    }
}
