//! Decoding messages from a stream, compared with copying the same bytes.
//!
//! `cargo bench -p daskwire --bench frames`
//!
//! Every figure is a ratio to a peer that is measured in the same run, round by
//! round in turn: machines differ, and differ from minute to minute.

use std::hint::black_box;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use daskwire::Limits;
use daskwire::frame::{Arena, FrameDecoder, FramedMessage, Prefix, encode_prelude, prelude_len};

#[allow(dead_code, reason = "not every program reads all counters")]
#[path = "../../testing/src/counting.rs"]
mod counting;

use counting::ALLOCATIONS;

const ROUNDS: usize = 31;

/// A message of frames of these lengths, on the wire.
fn message(lengths: &[usize]) -> Vec<u8> {
    let mut stream = vec![0; prelude_len(Prefix::U64, lengths.len()).expect("it fits")];
    let lens = lengths.iter().map(|len| *len as u64);
    encode_prelude(Prefix::U64, lens, &mut stream).expect("it fits");
    let total = stream.len() + lengths.iter().sum::<usize>();
    stream.resize(total, 0x5a);
    stream
}

fn time(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// Runs both in turn and returns the median ratio with the minimum and maximum.
fn ratio(mut ours: impl FnMut(), mut theirs: impl FnMut()) -> (f64, f64, f64) {
    let mut ratios: Vec<f64> = (0..ROUNDS)
        .map(|round| {
            // Each goes first every other time.
            let (a, b) = if round % 2 == 0 {
                let a = time(&mut ours);
                (a, time(&mut theirs))
            } else {
                let b = time(&mut theirs);
                (time(&mut ours), b)
            };
            a.as_secs_f64() / b.as_secs_f64()
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    (ratios[ROUNDS / 2], ratios[0], ratios[ROUNDS - 1])
}

fn print(what: &str, (median, min, max): (f64, f64, f64)) {
    println!("{what:<58} {median:>7.3}   ({min:.3} to {max:.3})");
}

fn main() {
    println!("time of ours as a multiple of the peer's: median (min to max)\n");
    let stream = message(&[100, 300, 64 << 20]);
    let mut storage = vec![0; stream.len()];
    let mut copy = vec![0; stream.len()];

    for piece in [64 << 10, 1 << 20, usize::MAX] {
        let size = if piece == usize::MAX {
            "one piece".into()
        } else {
            format!("pieces of {} KiB", piece >> 10)
        };
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        let result = ratio(
            || {
                let mut decoder = FrameDecoder::new(Prefix::U64, [0; 64], Limits::HOST);
                let mut frames = Arena::new(&mut storage);
                for mut input in black_box(&stream).chunks(piece) {
                    decoder
                        .push(&mut input, &mut frames)
                        .expect("a right stream");
                }
                assert!(decoder.is_complete());
                black_box(frames.filled());
            },
            || {
                for (to, from) in copy.chunks_mut(piece).zip(black_box(&stream).chunks(piece)) {
                    to.copy_from_slice(from);
                }
                black_box(&copy);
            },
        );
        // The ratios themselves take one vector.
        let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before - 1;
        print(
            &format!("64 MiB by FrameDecoder, {size}, of memcpy"),
            result,
        );
        assert_eq!(allocations, 0, "decoding allocated");
    }

    let result = ratio(
        || {
            for _ in 0..1000 {
                black_box(FramedMessage::parse(
                    black_box(&stream),
                    Prefix::U64,
                    &Limits::HOST,
                ))
                .expect("right");
            }
        },
        || copy.copy_from_slice(black_box(&stream)),
    );
    print(
        "1000 times 64 MiB by FramedMessage, in place, of one memcpy",
        result,
    );
}
