//! Checks that dying peers are detected and that resources are released. `check_comms`
//! does not run them.

use core::time::Duration;

use daskwire::transport::CommWriter as _;

use super::{Pairs, echo, expect, join, message, read, write};
use crate::runtime::{self, spawn};

/// Checks that a peer that dies within a message of 1 MiB is detected, at `count`
/// positions: the reader gets an error within a second, and no part of the message.
///
/// [`check_comms`](super::check_comms) does not run this check, because it writes incomplete
/// messages and therefore needs the halves of this crate.
///
/// # Panics
///
/// If the check fails.
pub async fn dying_peers_are_detected<T>(pairs: &T, count: usize)
where
    T: Pairs<Reader = crate::CommReader, Writer = crate::CommWriter>,
{
    const LEN: usize = 1 << 20;
    let frame = vec![7; LEN];
    let mut bytes = Vec::new();
    for number in [16 + LEN, 1, LEN] {
        bytes.extend((number as u64).to_le_bytes());
    }
    bytes.extend(&frame);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for number in 0..count {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // Every position in the prelude, then random ones.
        let len = match number {
            0..24 => number + 1,
            _ => 1 + random as usize % (bytes.len() - 1),
        };
        let [(mut reader, _writer), (far_reader, far_writer)] = pairs.pair().await;
        let mut io = far_writer.into_inner();
        let dying = async {
            use tokio::io::AsyncWriteExt as _;
            expect(io.write_all(&bytes[..len]).await);
            expect(io.flush().await);
            drop((io, far_reader));
            runtime::now()
        };
        let surviving = async {
            let outcome = reader.read_message().await;
            (outcome, runtime::now())
        };
        let both = async { tokio::join!(dying, surviving) };
        let Ok((death, (outcome, noticed))) =
            runtime::timeout(pairs.settings().timeout, both).await
        else {
            panic!("a death after {len} bytes was not detected");
        };
        let late = noticed.saturating_duration_since(death);
        assert!(late < Duration::from_secs(1), "detected after {late:?}");
        match outcome {
            Err(error) => assert!(error.is_closed(), "after {len} bytes: {error}"),
            Ok(frames) => panic!("after {len} bytes: {frames:?} of half a message"),
        }
    }
}

/// The resources that the process holds.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy, Debug)]
struct Resources {
    file_count: usize,
    resident_len: usize,
}

#[cfg(target_os = "linux")]
impl Resources {
    fn now() -> Self {
        let file_count = expect(std::fs::read_dir("/proc/self/fd")).count();
        let status = expect(std::fs::read_to_string("/proc/self/status"));
        let kibibytes = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:")?.strip_suffix("kB"))
            .and_then(|number| number.trim().parse::<usize>().ok());
        Self {
            file_count,
            resident_len: kibibytes.unwrap_or_default() << 10,
        }
    }
}

/// Checks that closed comms release all their resources. Each of up to eight rounds
/// opens `comm_count` comms at the same time, echoes 4 messages on each and closes
/// them. After every round, the process may have at most 1 % more open files than before
/// the first. Its memory must stop growing: over some three rounds in a row it may grow by
/// at most 1 KiB for each comm.
///
/// The memory that the allocator keeps varies by some megabytes, so `comm_count` should be
/// 2,000 or more.
///
/// [`check_comms`](super::check_comms) does not run this check, because it measures the whole
/// process, in which nothing else may run. Linux only.
///
/// # Panics
///
/// If the check fails, or a message is lost.
#[cfg(target_os = "linux")]
pub async fn closed_comms_release_resources<T: Pairs>(pairs: &T, comm_count: usize) {
    const ECHO_COUNT: usize = 4;
    const MAX_ROUND_COUNT: usize = 8;
    const WINDOW: usize = 3;
    const MAX_GROWTH_LEN: usize = 1 << 10;
    // Resources that the transport itself keeps, and one-time allocations.
    drop(pairs.pair().await);
    let mut sizes = Vec::new();
    let before = settled(None).await;
    for round in 0..MAX_ROUND_COUNT {
        let mut tasks = Vec::new();
        for number in 0..comm_count {
            let [(mut reader, mut writer), (far_reader, far_writer)] = pairs.pair().await;
            tasks.push(spawn(echo(far_reader, far_writer)));
            tasks.push(spawn(async move {
                for seed in number..number + ECHO_COUNT {
                    let sent = message(seed, &[10, 100]);
                    expect(write(&mut writer, &sent).await);
                    let back = expect(read(&mut reader).await);
                    assert!(back == Some(sent), "comm {number}");
                }
                expect(writer.close().await);
                assert_eq!(expect(read(&mut reader).await), None);
            }));
        }
        for task in tasks {
            join(task).await;
        }
        let after = settled(Some(before)).await;
        let max_file_count = before.file_count + before.file_count.div_ceil(100);
        assert!(
            after.file_count <= max_file_count,
            "round {round}: {after:?}, and before the first {before:?}"
        );
        sizes.push(after.resident_len);
        // The allocator needs a few rounds to warm up; a leak grows in every round.
        if let Some(start) = round.checked_sub(WINDOW)
            && after.resident_len <= sizes[start] + WINDOW * comm_count * MAX_GROWTH_LEN
        {
            return;
        }
    }
    panic!("the memory after each round, in bytes: {sizes:?}");
}

/// Waits up to 5 seconds until the process has no more open files than `before`, and
/// returns its resources.
#[cfg(target_os = "linux")]
async fn settled(before: Option<Resources>) -> Resources {
    for _ in 0..50 {
        runtime::sleep(Duration::from_millis(100)).await;
        let now = Resources::now();
        if before.is_none_or(|before| now.file_count <= before.file_count) {
            return now;
        }
    }
    Resources::now()
}
