//! Writing into vectors that grow: the core's writers count on where a buffer
//! ends, so what did not fit is written again into one that is large enough.

use daskwire::message::{BuildError, BuilderScratch, Layout, MessageBuilder};
use daskwire::msgpack;
use daskwire_pickle as pickle;

/// Appends a document to `out`.
pub(crate) fn msgpack(out: &mut Vec<u8>, write: impl Fn(&mut msgpack::Writer<'_>)) {
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

/// Room for pickles, which grows to what they take.
#[derive(Debug)]
pub(crate) struct PickleRoom {
    out: Vec<u8>,
    levels: Vec<pickle::Level>,
}

impl PickleRoom {
    pub(crate) fn new() -> Self {
        Self {
            out: vec![0; 1 << 10],
            levels: vec![pickle::Level::EMPTY; 16],
        }
    }

    /// A pickle, nested as deep as memory allows. What does not fit is written
    /// again.
    pub(crate) fn write<E: From<pickle::WriteError>>(
        &mut self,
        options: pickle::Options,
        mut write: impl FnMut(&mut pickle::Writer<'_, '_>) -> Result<(), E>,
    ) -> Result<&[u8], E> {
        let len = loop {
            let Self { out, levels } = self;
            let mut writer = pickle::Writer::with_options(out, levels, options);
            write(&mut writer)?;
            match writer.finish() {
                Ok(pickle) => break pickle.len(),
                Err(pickle::WriteError::TooDeep { .. }) => {
                    levels.resize(levels.len() * 2, pickle::Level::EMPTY);
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
        Ok(self.out.get(..len).unwrap_or_default())
    }
}

/// One such pickle.
pub(crate) fn pickle<E: From<pickle::WriteError>>(
    options: pickle::Options,
    write: impl FnMut(&mut pickle::Writer<'_, '_>) -> Result<(), E>,
) -> Result<Vec<u8>, E> {
    let mut room = PickleRoom::new();
    let len = room.write(options, write)?.len();
    room.out.truncate(len);
    // It may be kept for long, and there may be many.
    room.out.shrink_to_fit();
    Ok(room.out)
}

/// Something that is written into a message: a whole one, or a value in it.
pub(crate) trait Encode {
    /// Writes it as the next value of the body, payloads where they stand.
    fn encode<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError>;
}

/// Room for building messages, which grows to what they take.
#[derive(Debug)]
pub(crate) struct Room {
    body: Vec<u8>,
    headers: Vec<u8>,
    slot_count: usize,
}

impl Room {
    pub(crate) fn new() -> Self {
        Self {
            body: vec![0; 512],
            headers: vec![0; 512],
            slot_count: 8,
        }
    }

    /// Builds a message and hands its frames to `use_it`.
    pub(crate) fn with_frames<R>(
        &mut self,
        message: &impl Encode,
        use_it: impl FnOnce(&[&[u8]]) -> R,
    ) -> Result<R, BuildError> {
        loop {
            let mut slots = self.slots();
            match self.build(message, &mut slots) {
                Ok(frames) => return Ok(use_it(frames)),
                Err(error) => self.grow(error)?,
            }
        }
    }

    pub(crate) fn slots<'a>(&self) -> Vec<&'a [u8]> {
        vec![&[]; self.slot_count]
    }

    /// How many frames there is room for.
    pub(crate) const fn slot_count(&self) -> usize {
        self.slot_count
    }

    /// The frames of a message. When there is too little room, ask
    /// [`grow`](Self::grow) and try again.
    pub(crate) fn build<'s, 'a>(
        &'a mut self,
        message: &'a impl Encode,
        slots: &'s mut [&'a [u8]],
    ) -> Result<&'s [&'a [u8]], BuildError> {
        let buffers = BuilderScratch {
            body: &mut self.body,
            headers: &mut self.headers,
            slots,
            pending: &mut [],
        };
        let mut builder = MessageBuilder::new(Layout::Modern, buffers);
        message.encode(&mut builder)?;
        builder.finish(&mut [])
    }

    /// Makes the room that was missing, or returns the error if it was not room.
    pub(crate) fn grow(&mut self, error: BuildError) -> Result<(), BuildError> {
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

    /// Gives back what a large message took.
    pub(crate) fn shrink(&mut self) {
        const KEPT: usize = 1 << 20;
        if self.body.len() > KEPT || self.headers.len() > KEPT || self.slot_count > KEPT / 16 {
            *self = Self::new();
        }
    }
}
