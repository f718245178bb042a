//! Conversion of messages between the layouts.
//!
//! The roles read and write the modern layout. Releases before 2021.3.1 have the
//! classic one: messages to and from them are converted when they are sent and
//! received.

use std::collections::BTreeMap;

use bytes::Bytes;
use daskwire::Limits;
use daskwire::message::{BuildError, Layout, Message, MessageBuilder, ReadOptions, Workspace};
use daskwire_comm::CommWriter;
use daskwire_messages::protocol::ProtocolError;
use daskwire_messages::scratch::{Encode, MessageScratch};

use crate::RequestError;

/// Converts messages to one layout, and reuses its memory.
#[derive(Debug)]
pub(crate) struct Converter {
    to: Layout,
    options: ReadOptions,
    room: MessageScratch,
    workspace: Workspace,
}

/// A received message, to be written in another layout.
struct Rewritten<'m, T>(Message<'m, T>);

impl<T: AsRef<[u8]>> Encode for Rewritten<'_, T> {
    fn encode<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
        let mut levels = Workspace::new();
        let mut walk = self.0.walk(&mut levels);
        while let Some(item) = walk.next_item().map_err(BuildError::Payload)? {
            to.item(item, &self.0)?;
        }
        Ok(())
    }
}

impl Converter {
    pub(crate) fn new(to: Layout, limits: Limits) -> Self {
        Self {
            to,
            options: ReadOptions::new(limits),
            room: MessageScratch::for_layout(to),
            workspace: Workspace::new(),
        }
    }

    /// The layout of the messages to convert.
    const fn from(&self) -> Layout {
        match self.to {
            Layout::Modern => Layout::Classic,
            Layout::Classic => Layout::Modern,
        }
    }

    /// Converts a message and writes it. Not cancel safe: dropping the future ends the
    /// comm.
    pub(crate) async fn write(
        &mut self,
        frames: &[&[u8]],
        writer: &mut CommWriter,
    ) -> Result<(), RequestError> {
        let options = ReadOptions::default();
        let from = self.from();
        let message = Message::open(frames, from, &options, &mut self.workspace);
        let message = Rewritten(message.map_err(ProtocolError::Message)?);
        loop {
            let mut slots = self.room.slots();
            let error = match self.room.build(&message, &mut slots) {
                Ok(frames) => {
                    writer.write_message(frames).await?;
                    break;
                }
                Err(error) => error,
            };
            drop(slots);
            self.room.grow(error)?;
        }
        self.room.shrink();
        Ok(())
    }

    /// Converts a message that was received. Frames of payloads are not copied.
    pub(crate) fn read(&mut self, frames: &[Bytes]) -> Result<Vec<Bytes>, RequestError> {
        let from = self.from();
        let message = Message::open(frames, from, &self.options, &mut self.workspace);
        let message = Rewritten(message.map_err(ProtocolError::Message)?);
        let sources: BTreeMap<usize, &Bytes> = frames
            .iter()
            .filter(|frame| !frame.is_empty())
            .map(|frame| (frame.as_ptr().addr(), frame))
            .collect();
        let owned = |frame: &&[u8]| {
            let start = frame.as_ptr().addr();
            match sources.range(..=start).next_back() {
                Some((at, source)) if start + frame.len() <= at + source.len() => {
                    source.slice_ref(frame)
                }
                _ => Bytes::copy_from_slice(frame),
            }
        };
        let converted = self.room.with_frames(&message, |frames| {
            frames.iter().map(owned).collect::<Vec<Bytes>>()
        })?;
        self.room.shrink();
        Ok(converted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daskwire_messages::protocol::{Request, Scatter, body, body_in};
    use daskwire_messages::{Key, Serialized, Value};

    // PROTOCOL FORWARD-5, FORWARD-6
    #[test]
    fn a_message_is_the_same_after_two_conversions() {
        let data = [
            (Key::from("number"), Value::from(7)),
            (Key::from("bytes"), Value::bytes(vec![7; 100_000])),
        ];
        let data = data.map(|(key, value)| (key, Serialized::of(&value).expect("a payload")));
        let request = Request::Scatter(Scatter {
            data: data.into(),
            client: "a client".to_owned(),
            ..Scatter::default()
        });
        let modern = MessageScratch::new().with_frames(
            &daskwire_messages::protocol::Body(&request),
            |frames| {
                let copied = frames.iter().map(|frame| Bytes::copy_from_slice(frame));
                copied.collect::<Vec<Bytes>>()
            },
        );
        let modern = modern.expect("a message");
        let classic = Converter::new(Layout::Classic, Limits::HOST)
            .read(&modern)
            .expect("classic");
        assert!(classic[0].is_empty() && body_in(&classic, Layout::Classic).is_ok());
        let last = classic.last().expect("the bytes");
        assert_eq!(last.as_ptr(), modern.last().expect("the bytes").as_ptr());
        let again = Converter::new(Layout::Modern, Limits::HOST)
            .read(&classic)
            .expect("modern");
        let (Value::Dict(before), Value::Dict(after)) = (
            body(&modern).expect("a body"),
            body(&again).expect("a body"),
        ) else {
            panic!("no requests");
        };
        assert_eq!(before.len(), after.len());
        for ((key, value), (other, found)) in before.iter().zip(after.iter()) {
            assert_eq!(key, other);
            let Value::Dict(data) = value else {
                assert_eq!(value, found);
                continue;
            };
            let Value::Dict(found) = found else {
                panic!("{found}");
            };
            for ((_, value), (_, found)) in data.iter().zip(found.iter()) {
                let (Value::Serialized(value), Value::Serialized(found)) = (value, found) else {
                    panic!("{found}");
                };
                assert_eq!(
                    value.open().expect("a value"),
                    found.open().expect("a value")
                );
            }
        }
    }

    #[test]
    fn a_message_of_the_other_layout_is_refused() {
        let modern = [Bytes::from_static(b"\x81\xa2op\xa4ping")];
        assert!(
            Converter::new(Layout::Modern, Limits::HOST)
                .read(&modern)
                .is_err()
        );
        assert!(
            Converter::new(Layout::Modern, Limits::HOST)
                .read(&[])
                .is_err()
        );
    }
}
