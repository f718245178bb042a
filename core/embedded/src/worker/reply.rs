//! The reply to `get_data`, which may be longer than any buffer.

use daskwire::invariant::OrDefaultIfBug as _;
use daskwire::msgpack::Writer;

use crate::link::Outgoing;
use crate::store::{EntryId, Part, Store};

/// The maximum length of a piece that is not a value: a key, or a header.
const PIECE_LEN: usize = 320;

/// A reply that is being sent, in pieces: the start of the body, an entry of the
/// body for each key, then for each key a header and a value.
#[derive(Clone, Copy, Debug)]
pub(super) struct DataReply<const KEYS: usize> {
    entries: [Option<EntryId>; KEYS],
    count: usize,
    /// Whether the prelude has been sent.
    is_begun: bool,
    /// The piece to send, and the number of its bytes already sent.
    piece: usize,
    offset: usize,
}

impl<const KEYS: usize> DataReply<KEYS> {
    /// A reply with the stored values of these keys; other keys are left out.
    /// The values stay until the reply is [released](Self::release).
    pub(super) fn new<'k, const DATA: usize>(
        keys: impl Iterator<Item = &'k [u8]>,
        store: &mut Store<KEYS, DATA>,
    ) -> Self {
        let mut reply = Self {
            entries: [None; KEYS],
            count: 0,
            is_begun: false,
            piece: 0,
            offset: 0,
        };
        for key in keys {
            let id = store.find(key).filter(|id| store.value(*id).is_some());
            if let Some(id) = id
                && !reply.entries.contains(&Some(id))
                && let Some(place) = reply.entries.get_mut(reply.count)
            {
                *place = Some(id);
                reply.count = reply.count.wrapping_add(1);
                store.pin(id);
            }
        }
        reply
    }

    /// Allows the values to be removed.
    pub(super) fn release<const DATA: usize>(&mut self, store: &mut Store<KEYS, DATA>) {
        for id in self.entries.iter_mut().filter_map(Option::take) {
            store.unpin(id);
        }
    }

    /// The length of the body and of each other frame.
    fn lengths<const DATA: usize>(
        &self,
        store: &Store<KEYS, DATA>,
    ) -> impl ExactSizeIterator<Item = u64> + Clone {
        let len = |piece| self.with_piece(piece, store, <[u8]>::len);
        let body = (0..=self.count).map(len);
        let body = body.fold(0_usize, usize::saturating_add);
        let frames = self.count.saturating_mul(2).saturating_add(1);
        let this = *self;
        (0..frames).map(move |frame| match frame {
            0 => body as u64,
            _ => {
                let piece = this.count.saturating_add(frame);
                this.with_piece(piece, store, <[u8]>::len) as u64
            }
        })
    }

    /// Calls a function with a piece.
    fn with_piece<R, const DATA: usize>(
        &self,
        piece: usize,
        store: &Store<KEYS, DATA>,
        use_piece: impl FnOnce(&[u8]) -> R,
    ) -> R {
        let mut bytes = [0; PIECE_LEN];
        let Some(index) = piece.checked_sub(1) else {
            let len = piece_len(&mut bytes, |writer| {
                writer.map(2).str("status").str("OK");
                writer
                    .str("data")
                    .map(u32::try_from(self.count).or_default_if_bug());
            });
            return use_piece(bytes.get(..len).or_default_if_bug());
        };
        let (index, is_entry, is_header) = match index.checked_sub(self.count) {
            None => (index, true, false),
            Some(rest) => (rest / 2, false, rest % 2 == 0),
        };
        let id = self.entries.get(index).copied().flatten();
        let Some((id, value)) = id.and_then(|id| Some((id, store.value(id)?))) else {
            return use_piece(&[]);
        };
        if is_entry {
            let frame = index.saturating_mul(2).saturating_add(1);
            let len = piece_len(&mut bytes, |writer| {
                writer.encoded(store.part(id, Part::Key));
                writer.map(1).str("__Serialized__").u64(frame as u64);
            });
            use_piece(bytes.get(..len).or_default_if_bug())
        } else if is_header {
            let len = piece_len(&mut bytes, |writer| value.write_header(writer));
            use_piece(bytes.get(..len).or_default_if_bug())
        } else {
            use_piece(value.frame(&mut bytes).unwrap_or_default())
        }
    }

    /// Sends as much of the reply as there is room for; returns whether the
    /// reply is complete.
    pub(super) fn send<const DATA: usize>(
        &mut self,
        store: &Store<KEYS, DATA>,
        outgoing: &mut Outgoing<'_>,
    ) -> bool {
        if !self.is_begun {
            self.is_begun = outgoing.send_prelude(self.lengths(store));
            if !self.is_begun {
                return false;
            }
        }
        let end = self.count.saturating_mul(3);
        while self.piece <= end {
            let offset = self.offset;
            let (sent, left) = self.with_piece(self.piece, store, |piece| {
                let rest = piece.get(offset..).or_default_if_bug();
                let sent = outgoing.append(rest);
                (sent, rest.len().saturating_sub(sent))
            });
            if left != 0 {
                self.offset = offset.saturating_add(sent);
                return false;
            }
            self.piece = self.piece.saturating_add(1);
            self.offset = 0;
        }
        true
    }
}

/// Writes part of a document, and returns its length.
fn piece_len(bytes: &mut [u8], write: impl FnOnce(&mut Writer<'_>)) -> usize {
    let mut writer = Writer::new(bytes);
    write(&mut writer);
    writer.len()
}
