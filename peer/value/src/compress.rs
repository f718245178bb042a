//! Payloads with compressed frames.

use std::hash::{BuildHasher as _, RandomState};

use bytes::Bytes;
use daskwire::compression::{Compression, Policy};
use daskwire::message::PayloadKind;
use daskwire::msgpack::{Reader, Token, Writer};

use super::Serialized;
use crate::scratch;

impl Serialized {
    /// The length of the frames that [`compressed`](Self::compressed) tries to compress, in
    /// bytes.
    pub fn compressible_len(&self) -> u64 {
        // PROTOCOL MODERN-4: some releases do not decompress the buffers of `__Pickled__`.
        if self.kind() == PayloadKind::Pickled {
            return 0;
        }
        let lens = self.frames().iter().map(|frame| frame.len() as u64);
        lens.filter(|len| (Policy::DASK.min_len..=Policy::DASK.max_len).contains(len))
            .sum()
    }

    /// The same payload with the frames compressed that this makes shorter, by Dask's rules
    /// ([`Policy::DASK`]). Frames that are compressed already stay as they are, as does a
    /// payload without a compressible frame, and one that is malformed.
    ///
    /// Source: `maybe_compress` of `distributed/protocol/compression.py`.
    #[must_use]
    pub fn compressed(&self, compression: &mut dyn Compression) -> Self {
        if self.compressible_len() == 0 {
            return self.clone();
        }
        self.try_compressed(compression)
            .unwrap_or_else(|| self.clone())
    }

    /// The payload, if any frame was compressed.
    fn try_compressed(&self, compression: &mut dyn Compression) -> Option<Self> {
        let mut own = Vec::new();
        let codec = compression.codec();
        scratch::msgpack(&mut own, |writer| {
            writer.str(codec.name());
        });
        let mut reader = Reader::new(self.header());
        let mut entries = Vec::new();
        for _ in 0..reader.map().ok()? {
            entries.push((reader.skip().ok()?, reader.skip().ok()?));
        }
        let is_codecs = |key: &[u8]| {
            Reader::new(key)
                .raw_str()
                .is_ok_and(|key| key == "compression")
        };
        let mut codecs = None;
        for (key, value) in &entries {
            if is_codecs(key) {
                codecs = Some(Reader::new(value));
            }
        }
        if let Some(codecs) = &mut codecs
            && codecs.array().ok()? as usize != self.frames().len()
        {
            return None;
        }
        let mut any = false;
        let mut names: Vec<&[u8]> = Vec::with_capacity(self.frames().len());
        let mut frames = Vec::with_capacity(self.frames().len());
        for frame in self.frames() {
            let name = match &mut codecs {
                Some(codecs) => codecs.skip().ok()?,
                None => NIL,
            };
            let is_plain = matches!(
                Reader::new(name).peek(),
                Ok(Token::Nil | Token::Bool(false))
            );
            match is_plain.then(|| compress(compression, frame)).flatten() {
                Some(shorter) => {
                    any = true;
                    names.push(&own);
                    frames.push(shorter);
                }
                None => {
                    names.push(name);
                    frames.push(frame.clone());
                }
            }
        }
        let others = entries.iter().filter(|(key, _)| !is_codecs(key));
        let count = others.clone().count() + 1;
        let write = |writer: &mut Writer<'_>| {
            writer.map(u32::try_from(count).unwrap_or(u32::MAX));
            for (key, value) in others.clone() {
                writer.encoded(key).encoded(value);
            }
            writer.str("compression");
            writer.array(u32::try_from(names.len()).unwrap_or(u32::MAX));
            for name in &names {
                writer.encoded(name);
            }
        };
        any.then(|| {
            let mut header = Vec::new();
            scratch::msgpack(&mut header, write);
            Self::of_parts(header.into(), frames)
        })
    }
}

const NIL: &[u8] = b"\xc0";

/// The compressed frame, if it is worthwhile and there is memory for it.
fn compress(compression: &mut dyn Compression, frame: &[u8]) -> Option<Bytes> {
    let policy = Policy::DASK;
    // Zeroed memory of this length comes from the system as it is first written to, so that
    // a frame whose samples do not compress costs little.
    let mut scratch = vec![0; policy.scratch_len(compression, frame.len())];
    let state = RandomState::new();
    let mut draw_count = 0_u64;
    let mut random = |bound: u64| {
        draw_count += 1;
        state.hash_one(draw_count) % bound.max(1)
    };
    let compressed = policy.maybe_compress(compression, frame, &mut scratch, &mut random);
    let len = compressed.ok()??.len();
    scratch.truncate(len);
    scratch.shrink_to_fit();
    Some(scratch.into())
}

#[cfg(test)]
mod tests {
    use daskwire::compression::{Lz4, Snappy};

    use super::*;
    use crate::{Array, Value};

    /// The names of the codecs in the header.
    fn codecs(payload: &Serialized) -> Vec<Option<String>> {
        let names = payload.with_payload(|payload| {
            let list = payload.header().list("compression").expect("a list");
            let names = list.expect("an entry").codec_names().map(|name| {
                let name = name.expect("a name");
                name.map(|name| String::from_utf8_lossy(name.as_bytes()).into_owned())
            });
            names.collect()
        });
        names.expect("a payload")
    }

    // PROTOCOL COMPRESS-6, COMPRESS-7, COMPRESS-8
    #[test]
    fn frames_are_compressed_where_that_is_worthwhile() {
        let mut state = 7_u64;
        let noise = (0..5_000).map(|_| {
            // The generator of MMIX, of which the upper bits are random.
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 32) as u32
        });
        let noise: Vec<u32> = noise.collect();
        let arrays = [vec![7_u32; 5_000], noise, vec![7; 2_499], vec![7; 2_500]];
        let arrays =
            arrays.map(|items| Array::from_slice(&[items.len()], &items).expect("an array"));
        let value = Value::list(arrays.map(Value::Array));
        let plain = Serialized::of(&value).expect("a payload");
        let lz4 = plain.compressed(&mut Lz4::new());
        let name = Some("lz4".to_owned());
        assert_eq!(codecs(&lz4), [None, name.clone(), None, None, name]);
        assert_eq!(plain.frames()[2], lz4.frames()[2]);
        assert!(lz4.len() < plain.len() - 25_000, "{} bytes", lz4.len());
        assert_eq!(lz4.open().expect("a value"), value);
        // What is compressed stays as it is.
        assert_eq!(lz4.compressed(&mut Snappy::new()), lz4);
        assert_eq!(plain.compressible_len(), 20_000 + 20_000 + 10_000);
    }

    #[test]
    fn other_payloads_are_not_changed() {
        let zeros = vec![0; 100_000];
        let pickled = Serialized::pickled(&zeros);
        let short = Serialized::of(&Value::bytes(vec![0; 9_999])).expect("a payload");
        let lists = [
            &b"\x82\xabcompression\x90\xaenum-sub-frames\x01"[..],
            b"\x81\xa1x",
        ];
        let malformed = lists.map(|header| {
            Serialized::of_parts(Bytes::from_static(header), vec![zeros.clone().into()])
        });
        for payload in [pickled, short].into_iter().chain(malformed) {
            assert_eq!(payload.compressed(&mut Lz4::new()), payload);
        }
    }

    #[test]
    fn a_header_without_codecs_gets_them() {
        let header = b"\x82\xaaserializer\xa6pickle\xaenum-sub-frames\x01";
        let frame = vec![0; 100_000].into();
        let payload = Serialized::of_parts(Bytes::from_static(header), vec![frame]);
        let compressed = payload.compressed(&mut Lz4::new());
        assert_eq!(codecs(&compressed), [Some("lz4".to_owned())]);
        let read = compressed.with_payload(|payload| {
            let (mut out, mut ends) = (Vec::new(), Vec::new());
            payload.merge_onto(&mut out, &mut ends).map(|()| out)
        });
        assert_eq!(read.expect("a payload"), Ok(vec![0; 100_000]));
    }
}
