//! Speed of the codecs, as ratios to named peers in the same run.
//!
//! `cargo bench -p daskwire-compression --bench compression [-- SUBSTRING]` on five kinds of 16 MiB. Every
//! round runs all contestants one after the other; a figure is the median over
//! the rounds of (time of the peer / our time), with the smallest and largest:
//! 1.00 is as fast, 2.00 twice as fast. `DASKWIRE_BENCH_ROUNDS` and
//! `DASKWIRE_BENCH_MIB` change the defaults, 11 and 16.
#![allow(missing_docs)]

use core::hint::black_box;
use std::time::Instant;

use daskwire_compression::{Codec, Compression, Lz4, Snappy, decompress};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Sum of twelve uniform numbers: close enough to a normal distribution.
    fn gaussian(&mut self) -> f64 {
        let uniform = |bits: u64| (bits >> 11) as f64 / (1u64 << 53) as f64;
        (0..12).map(|_| uniform(self.next())).sum::<f64>() - 6.0
    }
}

/// Words of a fixed vocabulary, the common ones more often, with punctuation.
fn text(random: &mut Random, len: usize) -> Vec<u8> {
    let vocabulary: Vec<Vec<u8>> = (0..4000)
        .map(|_| {
            let len = 2 + random.next() % 9;
            (0..len)
                .map(|_| b"etaoinshrdlcumwfgypbvk"[(random.next() % 22) as usize])
                .collect()
        })
        .collect();
    let mut text = Vec::with_capacity(len + 16);
    while text.len() < len {
        let uniform = (random.next() >> 11) as f64 / (1u64 << 53) as f64;
        let word = &vocabulary[(uniform.powi(4) * 4000.0) as usize];
        text.extend_from_slice(word);
        text.push(match random.next() % 12 {
            0 => b',',
            1 => b'\n',
            _ => b' ',
        });
    }
    text.truncate(len);
    text
}

fn payloads(len: usize) -> Vec<(&'static str, Vec<u8>)> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let floats = |mut value: Box<dyn FnMut() -> f64>| -> Vec<u8> {
        (0..len / 8).flat_map(|_| value().to_le_bytes()).collect()
    };
    let ones = floats(Box::new(|| 1.0));
    let mut source = Random(1);
    let gaussian = floats(Box::new(move || source.gaussian()));
    let arange = (0..len as u64 / 8).flat_map(u64::to_le_bytes).collect();
    let text = text(&mut random, len);
    let noise = (0..len / 8)
        .flat_map(|_| random.next().to_le_bytes())
        .collect();
    vec![
        ("float64 ones", ones),
        ("float64 gaussian", gaussian),
        ("int64 arange", arange),
        ("text", text),
        ("random", noise),
    ]
}

type Contestant<'a> = (&'static str, Box<dyn FnMut() + 'a>);

/// The first one is ours; prints it against each of the others.
fn race(
    payload: &str,
    work: &str,
    len: usize,
    rounds: usize,
    mut contestants: Vec<Contestant<'_>>,
) {
    let mut seconds = vec![Vec::new(); contestants.len()];
    for round in 0..=rounds {
        for (times, (_, run)) in seconds.iter_mut().zip(&mut contestants) {
            let start = Instant::now();
            run();
            if round > 0 {
                times.push(start.elapsed().as_secs_f64());
            }
        }
    }
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        (
            values[values.len() / 2],
            values[0],
            values[values.len() - 1],
        )
    };
    let (ours, ..) = median(seconds[0].clone());
    print!(
        "{payload:17} {work:18} {:7.0} MB/s",
        len as f64 / ours / 1e6
    );
    for (times, (name, _)) in seconds.iter().zip(&contestants).skip(1) {
        let ratios = times
            .iter()
            .zip(&seconds[0])
            .map(|(peer, ours)| peer / ours);
        let (ratio, min, max) = median(ratios.collect());
        print!("   {name} {ratio:.2} ({min:.2} to {max:.2})");
    }
    println!();
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

fn main() {
    let rounds = number("DASKWIRE_BENCH_ROUNDS", 11);
    let len = number("DASKWIRE_BENCH_MIB", 16) << 20;
    let wanted = std::env::args().skip(1).find(|arg| !arg.starts_with("--"));
    println!("{len} bytes, {rounds} rounds; peer's time / ours: median (min to max)");
    for (name, payload) in payloads(len) {
        if wanted
            .as_ref()
            .is_none_or(|wanted| name.contains(wanted.as_str()))
        {
            run(name, &payload, rounds);
        }
    }
}

fn run(name: &str, payload: &[u8], rounds: usize) {
    let limits = 1 << 31;
    let len = payload.len();
    let mut lz4 = Lz4::new();
    let mut snappy = Snappy::new();
    let mut snap_encoder = snap::raw::Encoder::new();
    let mut snap_decoder = snap::raw::Decoder::new();
    // Touched once, so that no round pays for page faults.
    let room = len + len / 6 + 100_000;
    let [mut a, mut b, mut c] = [vec![1; room], vec![2; room], vec![3; room]];

    let lz4_work: Vec<Contestant<'_>> = vec![
        (
            "",
            Box::new(|| _ = black_box(lz4.compress(payload, &mut a).unwrap())),
        ),
        ("C lz4", Box::new(|| _ = black_box(c_lz4(payload, &mut c)))),
    ];
    race(name, "lz4 compress", len, rounds, lz4_work);
    let ours_len = lz4.compress(payload, &mut a).unwrap();
    let c_len = c_lz4(payload, &mut c);
    let percent = |compressed: usize| compressed as f64 * 100.0 / len as f64;
    println!(
        "{name:17} lz4 size              {:5.1} %      C lz4 {:.1} %",
        percent(ours_len),
        percent(c_len)
    );

    // All three decompress what the C library wrote, as Python peers send it.
    let block = c[..c_len].to_vec();
    let mut frame = (len as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(&block);
    let lz4_work: Vec<Contestant<'_>> = vec![
        (
            "",
            Box::new(|| _ = black_box(decompress(Codec::Lz4, &frame, &mut a, limits).unwrap())),
        ),
        (
            "lz4_flex safe",
            Box::new(|| {
                let written = lz4_flex::block::decompress_into(&block, &mut b[..len]);
                assert_eq!(black_box(written.unwrap()), len);
            }),
        ),
        (
            "C lz4",
            Box::new(|| {
                let size = Some(len as i32);
                let written = ::lz4::block::decompress_to_buffer(&block, size, &mut c[..len]);
                assert_eq!(black_box(written.unwrap()), len);
            }),
        ),
    ];
    race(name, "lz4 decompress", len, rounds, lz4_work);
    assert!(a[..len] == *payload && b[..len] == *payload && c[..len] == *payload);

    let snappy_work: Vec<Contestant<'_>> = vec![
        (
            "",
            Box::new(|| _ = black_box(snappy.compress(payload, &mut a).unwrap())),
        ),
        (
            "snap",
            Box::new(|| _ = black_box(snap_encoder.compress(payload, &mut b).unwrap())),
        ),
    ];
    race(name, "snappy compress", len, rounds, snappy_work);
    let frame_len = snap_encoder.compress(payload, &mut c).unwrap();
    let frame = c[..frame_len].to_vec();
    let snappy_work: Vec<Contestant<'_>> = vec![
        (
            "",
            Box::new(|| _ = black_box(decompress(Codec::Snappy, &frame, &mut a, limits).unwrap())),
        ),
        (
            "snap",
            Box::new(|| _ = black_box(snap_decoder.decompress(&frame, &mut b).unwrap())),
        ),
    ];
    race(name, "snappy decompress", len, rounds, snappy_work);
    assert!(a[..len] == *payload && b[..len] == *payload);
}

fn c_lz4(payload: &[u8], out: &mut [u8]) -> usize {
    ::lz4::block::compress_to_buffer(payload, None, false, out).unwrap()
}
