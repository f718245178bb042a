//! Growable output buffers. The core's writers keep counting after the end of a
//! buffer, so output that did not fit is written again into a buffer of the right
//! size.

use daskwire::message::{BuildError, BuilderBuffers, Layout, MessageBuilder, Workspace};
use daskwire::msgpack;
use daskwire_pickle as pickle;

/// Appends a document to `out`.
pub fn msgpack(out: &mut Vec<u8>, write: impl Fn(&mut msgpack::Writer<'_>)) {
    let start = out.len();
    out.resize(out.capacity().max(start + 32), 0);
    loop {
        let mut writer = msgpack::Writer::new(&mut out[start..]);
        write(&mut writer);
        let len = writer.len();
        if start + len <= out.len() {
            out.truncate(start + len);
            return;
        }
        out.resize(start + len, 0);
    }
}

/// Reusable buffers for writing pickles.
#[derive(Debug)]
pub struct PickleScratch {
    out: Vec<u8>,
    levels: Vec<pickle::WriterLevel>,
}

impl Default for PickleScratch {
    fn default() -> Self {
        Self {
            out: vec![0; 1 << 10],
            levels: vec![pickle::WriterLevel::EMPTY; 16],
        }
    }
}

impl PickleScratch {
    /// Writes a pickle of any depth. If it does not fit, it is written again.
    pub fn write<E: From<pickle::WriteError>>(
        &mut self,
        options: pickle::WriterOptions,
        mut write: impl FnMut(&mut pickle::Writer<'_, '_>) -> Result<(), E>,
    ) -> Result<&[u8], E> {
        let len = loop {
            let Self { out, levels } = self;
            let mut writer = pickle::Writer::with_options(out, levels, options);
            write(&mut writer)?;
            match writer.finish() {
                Ok(pickle) => break pickle.len(),
                Err(pickle::WriteError::TooDeep { .. }) => {
                    levels.resize(levels.len() * 2, pickle::WriterLevel::EMPTY);
                }
                Err(pickle::WriteError::BufferTooSmall(short)) => {
                    let more = short.needed.saturating_sub(out.len());
                    if out.try_reserve_exact(more).is_err() {
                        return Err(pickle::WriteError::BufferTooSmall(short).into());
                    }
                    out.resize(short.needed, 0);
                }
                Err(error) => return Err(error.into()),
            }
        };
        Ok(&self.out[..len])
    }

    /// The first bytes of the pickle that was written last.
    pub fn written(&self, len: usize) -> &[u8] {
        self.out.get(..len).unwrap_or(&self.out)
    }
}

/// Writes a single pickle.
pub fn pickle<E: From<pickle::WriteError>>(
    options: pickle::WriterOptions,
    write: impl FnMut(&mut pickle::Writer<'_, '_>) -> Result<(), E>,
) -> Result<Vec<u8>, E> {
    let mut room = PickleScratch::default();
    let len = room.write(options, write)?.len();
    room.out.truncate(len);
    // The caller may keep many pickles for a long time.
    room.out.shrink_to_fit();
    Ok(room.out)
}

/// A value that can be written into a message: the whole body, or a part of it.
pub trait Encode {
    /// Writes the value as the next value of the body, with its payloads.
    fn encode<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError>;
}

/// Reusable buffers for building messages.
#[derive(Debug)]
pub struct MessageScratch {
    layout: Layout,
    body: Vec<u8>,
    headers: Vec<u8>,
    slot_count: usize,
    /// The workspace for the classic layout.
    workspace: Workspace,
}

impl Default for MessageScratch {
    fn default() -> Self {
        Self::new()
    }
}

impl MessageScratch {
    pub fn new() -> Self {
        Self::for_layout(Layout::Modern)
    }

    pub fn for_layout(layout: Layout) -> Self {
        Self {
            layout,
            body: vec![0; 512],
            headers: vec![0; 512],
            slot_count: 8,
            workspace: Workspace::new(),
        }
    }

    /// Builds a message and calls `read` with its frames.
    pub fn with_frames<R>(
        &mut self,
        message: &impl Encode,
        read: impl FnOnce(&[&[u8]]) -> R,
    ) -> Result<R, BuildError> {
        loop {
            let mut slots = self.slots();
            match self.build(message, &mut slots) {
                Ok(frames) => return Ok(read(frames)),
                Err(error) => self.grow(error)?,
            }
        }
    }

    pub fn slots<'a>(&self) -> Vec<&'a [u8]> {
        vec![&[]; self.slot_count]
    }

    /// The number of frames that fit.
    pub const fn slot_count(&self) -> usize {
        self.slot_count
    }

    /// Builds a message and returns its frames. If they do not fit, call
    /// [`grow`](Self::grow) and try again.
    pub fn build<'s, 'a>(
        &'a mut self,
        message: &'a impl Encode,
        slots: &'s mut [&'a [u8]],
    ) -> Result<&'s [&'a [u8]], BuildError> {
        let buffers = BuilderBuffers {
            body: &mut self.body,
            headers: &mut self.headers,
            slots,
        };
        let mut builder = MessageBuilder::new(self.layout, buffers);
        if self.layout == Layout::Classic {
            builder = builder.with_scratch(&mut self.workspace);
        }
        message.encode(&mut builder)?;
        builder.finish()
    }

    /// Grows the buffer that was too small; returns other errors.
    pub fn grow(&mut self, error: BuildError) -> Result<(), BuildError> {
        match error {
            BuildError::Body(msgpack::WriteError::BufferTooSmall(short)) => {
                self.body.resize(short.needed.max(2 * self.body.len()), 0);
            }
            BuildError::Headers(short) => {
                self.headers
                    .resize(short.needed.max(2 * self.headers.len()), 0);
            }
            BuildError::Slots(short) => {
                self.slot_count = short.needed.max(2 * self.slot_count);
            }
            error => return Err(error),
        }
        Ok(())
    }

    /// Releases the memory of a large message.
    pub fn shrink(&mut self) {
        const MAX_KEPT_LEN: usize = 1 << 20;
        if self.body.len() > MAX_KEPT_LEN
            || self.headers.len() > MAX_KEPT_LEN
            || self.slot_count > MAX_KEPT_LEN / 16
        {
            *self = Self::for_layout(self.layout);
        }
    }
}
