//! Messages on a stream of bytes.

use daskwire::frame::{
    FrameBuffers, FrameDecoder, FrameErrorKind, FramedMessage, Prefix, encode_prelude, prelude_len,
};

use super::LIMITS;

/// A prefix, and the rest of the input.
fn prefix(input: &[u8]) -> Option<(Prefix, &[u8])> {
    let (&choice, rest) = input.split_first()?;
    let prefix = if choice & 1 == 0 {
        Prefix::U64
    } else {
        Prefix::None
    };
    Some((prefix, rest))
}

/// Frames in vectors, which check the order and sizes of requests.
#[derive(Default)]
pub(crate) struct Frames(pub(crate) Vec<Vec<u8>>);

impl FrameBuffers for Frames {
    fn buffer(&mut self, index: usize, len: usize, filled: usize) -> Option<&mut [u8]> {
        assert!(filled < len, "asked for a frame that is complete");
        assert!(
            len as u64 <= LIMITS.frame_len,
            "asked before the limits were checked"
        );
        assert!(
            index >= self.0.len().saturating_sub(1),
            "frames come in order"
        );
        self.0.resize_with(index + 1, Vec::new);
        let frame = self.0.last_mut()?;
        frame.resize((filled + 64).min(len), 0);
        frame.get_mut(filled..)
    }
}

/// Checks that any split of a stream gives the same messages and error as the
/// whole.
pub(crate) fn prelude(input: &[u8]) {
    let Some((prefix, rest)) = prefix(input) else {
        return;
    };
    let Some((&step, stream)) = rest.split_first() else {
        return;
    };
    let step = usize::from(step).max(1);

    let mut decoder = FrameDecoder::new(prefix, Vec::new(), LIMITS);
    let mut frames = Frames::default();
    let mut rest = stream;
    loop {
        // Pass the stream in pieces.
        let mut pieces = rest.chunks(step);
        let mut consumed = 0;
        let failed = loop {
            let Some(mut piece) = pieces.next() else {
                break None;
            };
            let len = piece.len();
            let pushed = decoder.push(&mut piece, &mut frames);
            consumed += len - piece.len();
            if let Err(error) = pushed {
                break Some(error);
            }
            if decoder.is_complete() {
                break None;
            }
        };
        let outcome = match failed {
            Some(error) => Err(error),
            None => decoder.end().map(|()| decoder.is_complete()),
        };
        // Parse it as a whole.
        match (FramedMessage::parse(rest, prefix, &LIMITS), outcome) {
            (Ok(framed), Ok(true)) => {
                let lengths: Vec<u64> = framed.prelude.lengths().collect();
                let prelude = decoder.prelude().expect("a complete message has a prelude");
                assert!(prelude.lengths().eq(lengths.iter().copied()));
                assert_eq!(consumed as u64, framed.message_len());
                let mut slots = vec![&[][..]; lengths.len()];
                let cut = framed
                    .prelude
                    .split(framed.frames, &mut slots)
                    .expect("all are there");
                for (index, frame) in cut.iter().enumerate() {
                    let got = frames.0.get(index).map_or(&[][..], Vec::as_slice);
                    assert_eq!(got, *frame, "frame {index}");
                }
                // A rewritten message has the same frames.
                let mut out = vec![0; prelude_len(prefix, cut.len()).expect("it fits")];
                encode_prelude(prefix, lengths.iter().copied(), &mut out).expect("it fits");
                out.extend_from_slice(framed.frames);
                let again = FramedMessage::parse(&out, prefix, &LIMITS).expect("our own");
                assert_eq!(again.frames, framed.frames);
                rest = framed.rest;
                decoder.reset();
                frames.0.clear();
            }
            (Err(whole), Err(pieces)) => {
                assert_eq!(whole, pieces);
                return;
            }
            (Err(whole), Ok(_)) => {
                assert!(rest.is_empty(), "{whole:?} in one piece, none in many");
                assert!(matches!(whole.kind, FrameErrorKind::Truncated { .. }));
                return;
            }
            (Ok(_), other) => panic!("one piece is a message, many are {other:?}"),
        }
    }
}
