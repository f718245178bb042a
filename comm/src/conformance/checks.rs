//! The checks that `check_comms` runs.

use core::future::poll_fn;
use core::pin::pin;
use core::task::Poll;
use core::time::Duration;

use daskwire::transport::{CommReader, CommWriter, TransportError};

use super::{Frames, Pairs, Settings, echo, expect, join, message, read, spawn_blocking, write};
use crate::runtime::{self, spawn};

/// Messages of many shapes are echoed unchanged, also with empty frames (Dask's
/// test_tcp_client_server, test_large_transfer).
pub(super) async fn messages_of_every_shape_arrive<T: Pairs>(pairs: &T, settings: &Settings) {
    let [(mut reader, mut writer), (far_reader, far_writer)] = pairs.pair().await;
    let far = spawn(echo(far_reader, far_writer));
    let many = vec![3; 2000];
    let shapes: &[&[usize]] = &[
        &[1],
        &[0],
        &[0, 0, 0],
        &[0, 5, 0, 7, 0],
        &[100],
        &[16 << 10, 1, (16 << 10) - 1],
        &[64 << 10, 0, 64 << 10],
        &[1 << 20],
        &many,
        &[10, 3 << 20, 10, 3 << 20],
        &[settings.max_len],
    ];
    let fits = |shape: &&&[usize]| shape.iter().sum::<usize>() <= settings.max_len;
    for (seed, shape) in shapes.iter().filter(fits).enumerate() {
        let sent = message(seed, shape);
        expect(write(&mut writer, &sent).await);
        let back = expect(read(&mut reader).await);
        assert!(back.as_ref() == Some(&sent), "frames of {shape:?}");
    }
    expect(writer.close().await);
    assert_eq!(expect(read(&mut reader).await), None);
    join(far).await;
}

/// Messages arrive in the order in which they were sent (Dask's
/// test_messages_are_ordered_raw).
pub(super) async fn messages_stay_in_order<T: Pairs>(pairs: &T, settings: &Settings) {
    let count = settings.message_count;
    let [(_reader, mut writer), (mut far_reader, _far_writer)] = pairs.pair().await;
    let far = spawn(async move {
        for number in 0..count {
            let frames = expect(read(&mut far_reader).await).unwrap_or_default();
            assert_eq!(frames, [number.to_le_bytes()], "message {number}");
        }
        assert_eq!(expect(read(&mut far_reader).await), None);
    });
    for number in 0..count {
        expect(writer.write_message(&[&number.to_le_bytes()]).await);
    }
    expect(writer.close().await);
    join(far).await;
}

/// Both ends write and read at the same time without a deadlock.
pub(super) async fn both_directions_at_once<T: Pairs>(pairs: &T, settings: &Settings) {
    let len = settings.len(2 << 20) - 1;
    let ends = pairs.pair().await;
    let tasks = ends.map(|(mut reader, mut writer)| {
        let writing = spawn(async move {
            for seed in 0..8 {
                expect(write(&mut writer, &message(seed, &[len, 1])).await);
            }
            writer
        });
        let reading = spawn(async move {
            for seed in 0..8 {
                let frames = expect(read(&mut reader).await);
                assert!(frames == Some(message(seed, &[len, 1])), "message {seed}");
            }
            reader
        });
        (writing, reading)
    });
    let mut ends = Vec::new();
    for (writing, reading) in tasks {
        ends.push((join(writing).await, join(reading).await));
    }
    for (mut writer, _reader) in ends {
        expect(writer.close().await);
    }
}

/// A message without frames is an error of the caller, and leaves the comm usable.
pub(super) async fn messages_without_frames_are_refused<T: Pairs>(pairs: &T, _: &Settings) {
    let [(_reader, mut writer), (mut far_reader, _far_writer)] = pairs.pair().await;
    let Err(error) = writer.write_message(&[]).await else {
        panic!("a message without frames was sent");
    };
    assert!(!error.is_closed(), "{error}");
    let far = spawn(async move {
        assert_eq!(
            expect(read(&mut far_reader).await),
            Some(vec![b"after".to_vec()])
        );
    });
    expect(writer.write_message(&[b"after"]).await);
    join(far).await;
}

/// Messages that were sent before a close arrive (Dask's test_send_before_close;
/// quinn#840).
pub(super) async fn closing_loses_nothing<T: Pairs>(pairs: &T, settings: &Settings) {
    const COUNT: usize = 50;
    let len = settings.len(100_000) - 10;
    let [(_reader, mut writer), (far_reader, _far_writer)] = pairs.pair().await;
    let far = spawn(count_late(far_reader, len));
    for seed in 0..COUNT {
        expect(write(&mut writer, &message(seed, &[len, 10])).await);
    }
    expect(writer.close().await);
    drop((writer, _reader));
    assert_eq!(join(far).await, COUNT);
}

/// An end can close without reading the messages that the peer still sends.
pub(super) async fn closing_with_unread_data_loses_nothing<T: Pairs>(
    pairs: &T,
    settings: &Settings,
) {
    const COUNT: usize = 50;
    let len = settings.len(40_000) - 10;
    for writer_goes_first in [true, false] {
        let [(mut reader, mut writer), (far_reader, mut far_writer)] = pairs.pair().await;
        // A task, since the writer has to wait if the link has small buffers.
        let unread = spawn(async move {
            for seed in 0..5 {
                let outcome = write(&mut far_writer, &message(seed, &[1000])).await;
                if is_closed(outcome) {
                    break;
                }
            }
            far_writer
        });
        let far = spawn(count_late(far_reader, len));
        // The first message has arrived, so the next ones are being sent.
        assert!(expect(read(&mut reader).await) == Some(message(0, &[1000])));
        for seed in 0..COUNT {
            expect(write(&mut writer, &message(seed, &[len, 10])).await);
        }
        expect(writer.close().await);
        if writer_goes_first {
            drop(writer);
            drop(reader);
        } else {
            drop(reader);
            drop(writer);
        }
        assert_eq!(join(far).await, COUNT);
        // The task may wait forever, because nothing reads its messages.
        drop(unread);
    }
}

/// Lets other tasks of this thread run.
async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if core::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Reads messages with frames of `len` and 10 bytes to the end, and counts them. Starts late,
/// so that much is unread when the writer closes.
async fn count_late<R: CommReader>(mut reader: R, len: usize) -> usize {
    runtime::sleep(Duration::from_millis(50)).await;
    let mut count = 0;
    while let Some(frames) = expect(read(&mut reader).await) {
        assert!(frames == message(count, &[len, 10]), "message {count}");
        count += 1;
    }
    count
}

/// Whether a write failed because the peer has gone. Panics on other errors.
#[track_caller]
fn is_closed<E: TransportError>(outcome: Result<(), E>) -> bool {
    match outcome {
        Ok(()) => false,
        Err(error) => {
            assert!(error.is_closed(), "{error}");
            true
        }
    }
}

/// Closing ends one direction; messages of the peer still arrive.
pub(super) async fn closing_leaves_the_other_direction_open<T: Pairs>(
    pairs: &T,
    settings: &Settings,
) {
    const COUNT: usize = 50;
    let len = settings.len(100_000) - 10;
    let [(mut reader, mut writer), (mut far_reader, mut far_writer)] = pairs.pair().await;
    let far = spawn(async move {
        assert_eq!(expect(read(&mut far_reader).await), None);
        for seed in 0..COUNT {
            expect(write(&mut far_writer, &message(seed, &[len, 10])).await);
        }
        expect(far_writer.close().await);
        (far_reader, far_writer)
    });
    expect(writer.close().await);
    for seed in 0..COUNT {
        let frames = expect(read(&mut reader).await);
        assert!(frames == Some(message(seed, &[len, 10])), "message {seed}");
    }
    assert_eq!(expect(read(&mut reader).await), None);
    drop(join(far).await);
}

/// Dropping one half of a comm leaves the other half usable.
pub(super) async fn halves_can_be_dropped_separately<T: Pairs>(pairs: &T, settings: &Settings) {
    const COUNT: usize = 50;
    let len = settings.len(100_000) - 10;
    let [(reader, mut writer), (mut far_reader, far_writer)] = pairs.pair().await;
    drop((reader, far_writer));
    let far = spawn(async move {
        for seed in 0..COUNT {
            let frames = expect(read(&mut far_reader).await);
            assert!(frames == Some(message(seed, &[len, 10])), "message {seed}");
        }
        assert_eq!(expect(read(&mut far_reader).await), None);
        far_reader
    });
    for seed in 0..COUNT {
        expect(write(&mut writer, &message(seed, &[len, 10])).await);
    }
    expect(writer.close().await);
    drop(join(far).await);
}

/// Both ends see a close, and later writes fail (Dask's
/// test_tcp_comm_closed_explicit, _explicit_2).
pub(super) async fn closing_is_seen_by_both<T: Pairs>(pairs: &T, _: &Settings) {
    let [(mut reader, mut writer), (mut far_reader, mut far_writer)] = pairs.pair().await;
    expect(writer.close().await);
    // A second close does nothing.
    expect(writer.close().await);
    let Err(error) = writer.write_message(&[b"late"]).await else {
        panic!("a closed comm has sent a message");
    };
    assert!(error.is_closed(), "{error}");
    let far = spawn(async move {
        assert_eq!(expect(read(&mut far_reader).await), None);
        assert_eq!(expect(read(&mut far_reader).await), None, "a second time");
        expect(far_writer.close().await);
        (far_reader, far_writer)
    });
    assert_eq!(expect(read(&mut reader).await), None);
    drop(join(far).await);
}

/// Dropping a comm ends the reads and writes of the peer (Dask's
/// test_tcp_comm_closed_implicit).
pub(super) async fn dropping_is_seen_by_the_peer<T: Pairs>(pairs: &T, settings: &Settings) {
    let [(mut reader, mut writer), far] = pairs.pair().await;
    drop(far);
    match read(&mut reader).await {
        Ok(None) => {}
        Ok(Some(frames)) => panic!("a message that was never sent: {frames:?}"),
        Err(error) => assert!(error.is_closed(), "{error}"),
    }
    // The first writes may still succeed.
    let data = message(0, &[settings.len(1 << 20)]);
    let error = loop {
        if let Err(error) = write(&mut writer, &data).await {
            break error;
        }
    };
    assert!(error.is_closed(), "{error}");
    let Err(error) = write(&mut writer, &data).await else {
        panic!("a comm that was lost has sent a message");
    };
    assert!(error.is_closed(), "{error}");
}

/// A writer waits while its messages are not read, so that they do not pile up in
/// memory (Dask's test_sending_traffic_jam).
pub(super) async fn a_writer_waits_for_its_reader<T: Pairs>(pairs: &T, settings: &Settings) {
    let len = settings.len(1 << 20);
    let all = 2 * settings.buffered_len / len + 1;
    let [(_reader, mut writer), (mut far_reader, _far_writer)] = pairs.pair().await;
    let (sent, mut progress) = tokio::sync::watch::channel(0);
    let writing = spawn(async move {
        let data = message(1, &[len]);
        for count in 1..=all {
            expect(write(&mut writer, &data).await);
            sent.send_replace(count);
        }
        writer
    });
    // Wait until no more messages are written.
    let still = Duration::from_millis(300);
    while let Ok(Ok(())) = runtime::timeout(still, progress.changed()).await {}
    let piled = *progress.borrow();
    assert!(
        piled < all,
        "{all} messages of {len} bytes were sent without a reader"
    );
    let far = spawn(async move {
        for _ in 0..all {
            let frames = expect(read(&mut far_reader).await).unwrap_or_default();
            assert_eq!(frames.first().map(Vec::len), Some(len));
        }
        // A reader that is dropped before the end may cause a reset.
        assert_eq!(expect(read(&mut far_reader).await), None);
    });
    expect(join(writing).await.close().await);
    join(far).await;
}

/// Many comms are open at the same time (Dask's test_tcp_specific).
pub(super) async fn many_comms_at_once<T: Pairs>(pairs: &T, settings: &Settings) {
    let mut ends = Vec::new();
    let mut echoes = Vec::new();
    for _ in 0..settings.comm_count {
        let [near, (far_reader, far_writer)] = pairs.pair().await;
        ends.push(near);
        if settings.is_cancellable {
            echoes.push(spawn(echo(far_reader, far_writer)));
        } else {
            // A half that blocks needs a thread.
            echoes.push(spawn_blocking(echo(far_reader, far_writer)));
        }
    }
    for (number, (_, writer)) in ends.iter_mut().enumerate() {
        expect(write(writer, &message(number, &[10, 1000])).await);
    }
    for (number, (reader, _)) in ends.iter_mut().enumerate() {
        let frames = expect(read(reader).await);
        assert!(
            frames == Some(message(number, &[10, 1000])),
            "comm {number}"
        );
    }
    for (_, writer) in &mut ends {
        expect(writer.close().await);
    }
    for (reader, _) in &mut ends {
        assert_eq!(expect(read(reader).await), None);
    }
    for echo in echoes {
        join(echo).await;
    }
}

/// A read that is dropped at any point loses nothing (unlike Dask's
/// test_comm_closed_on_read_error).
pub(super) async fn reads_are_cancel_safe<T: Pairs>(pairs: &T, settings: &Settings) {
    let [(_reader, mut writer), (mut far_reader, _far_writer)] = pairs.pair().await;
    let len = settings.len(70_000) - 8;
    let writing = spawn(async move {
        for seed in 0..40 {
            expect(write(&mut writer, &message(seed, &[3, 0, len, 5])).await);
            if seed % 4 == 0 {
                runtime::sleep(Duration::from_millis(1)).await;
            }
        }
        expect(writer.close().await);
    });
    let mut dropped = 0_usize;
    for seed in 0..40 {
        let mut frames = Frames::new();
        let outcome = loop {
            let mut future = pin!(far_reader.read_message(&mut frames));
            // Poll once, then drop the future.
            let polled = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
            if let Poll::Ready(outcome) = polled {
                break outcome;
            }
            dropped += 1;
            yield_now().await;
        };
        assert_eq!(expect(outcome), Some(4), "frames of message {seed}");
        assert!(frames == message(seed, &[3, 0, len, 5]), "message {seed}");
    }
    assert_eq!(expect(read(&mut far_reader).await), None);
    assert!(dropped > 0, "no read was dropped");
    join(writing).await;
}

/// A write that is dropped within a message is the last one of its comm.
pub(super) async fn a_cancelled_write_ends_the_comm<T: Pairs>(pairs: &T, settings: &Settings) {
    // A link that is full at the end of a message takes nothing of the next one, whose
    // write is then dropped without effect. It is not full there for both lengths.
    let mut has_ended = false;
    for len in [settings.max_len, settings.max_len - 1] {
        has_ended |= cancel_a_write(pairs, settings, len).await;
    }
    assert!(has_ended, "a write that waits sends nothing");
}

/// Writes messages without a reader and drops the first write that has to wait.
/// Returns whether this has ended the comm.
pub(super) async fn cancel_a_write<T: Pairs>(pairs: &T, settings: &Settings, len: usize) -> bool {
    let [(_reader, mut writer), (mut far_reader, _far_writer)] = pairs.pair().await;
    let sent = message(0, &[len]);
    let mut count = 0;
    let pause = Duration::from_millis(200);
    while let Ok(outcome) = runtime::timeout(pause, Box::pin(write(&mut writer, &sent))).await {
        expect(outcome);
        count += 1;
        assert!(
            count * len <= settings.buffered_len,
            "{count} messages of {len} bytes were sent without a reader"
        );
    }
    let far = spawn(async move {
        let mut arrived = 0;
        loop {
            match read(&mut far_reader).await {
                Ok(Some(frames)) if frames == [b"after"] => return (arrived, true),
                Ok(Some(frames)) => {
                    assert!(frames == message(0, &[len]), "message {arrived}");
                    arrived += 1;
                }
                Ok(None) => panic!("part of a message has arrived as the end of the comm"),
                Err(error) => {
                    assert!(error.is_closed(), "{error}");
                    return (arrived, false);
                }
            }
        }
    });
    let has_ended = match writer.write_message(&[b"after"]).await {
        Ok(()) => {
            expect(writer.close().await);
            false
        }
        Err(error) => {
            assert!(error.is_closed(), "{error}");
            true
        }
    };
    // The reading half is kept.
    drop(writer);
    let (arrived, has_continued) = join(far).await;
    assert_eq!(has_continued, !has_ended);
    // Dropping a writer may lose messages.
    assert!(
        arrived == count || has_ended && arrived < count,
        "{arrived} of {count} messages"
    );
    has_ended
}

/// A pending read ends when the peer drops the comm (Dask's test_close_properly).
pub(super) async fn a_pending_read_ends_with_the_peer<T: Pairs>(pairs: &T, _: &Settings) {
    let [(mut reader, _writer), far] = pairs.pair().await;
    let mut reading = spawn(async move { read(&mut reader).await.map(|frames| frames.is_none()) });
    let early = runtime::timeout(Duration::from_millis(50), &mut reading).await;
    assert!(early.is_err(), "there was something to read");
    drop(far);
    match join(reading).await {
        Ok(is_end) => assert!(is_end, "a message that was never sent"),
        Err(error) => assert!(error.is_closed(), "{error}"),
    }
}
