//! Messages over a link that loses, repeats, reorders, delays and damages
//! packets: each arrives once and in order.
//!
//! 20,000 messages, or the number in DASKWIRE_MESSAGES;
//! `peer/tests/lossy.sh` has a million.

use core::time::Duration;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use daskwire_comm::CommOptions;
use daskwire_quic::{Congestion, QuicOptions};
use daskwire_testing::Random;
use tokio::net::UdpSocket;
use tokio::time::Instant;

use crate::support::{self, Node};

/// One packet in this many has the fault, on average.
const LOST: usize = 20;
const REPEATED: usize = 50;
const REORDERED: usize = 20;
const DAMAGED: usize = 1000;

/// The delay of a packet: 20 milliseconds, and up to 10 more or less.
fn delay(random: &mut Random) -> Duration {
    Duration::from_micros(10_000 + random.next() % 20_000)
}

/// Forwards one direction, from `from` to `to`, with faults.
async fn carry(from: Arc<UdpSocket>, to: Arc<UdpSocket>, seed: u64) {
    let mut random = Random(seed);
    let mut buffer = vec![0; 1 << 16];
    // Packets by the time when they are due, and a unique number.
    let mut waiting: BTreeMap<(Instant, u64), Vec<u8>> = BTreeMap::new();
    let mut number = 0;
    // The delays of a link keep the order; reordered packets are held back
    // for longer.
    let mut latest = Instant::now();
    loop {
        let due = waiting.keys().next().map(|(due, _)| *due);
        tokio::select! {
            received = from.recv(&mut buffer) => {
                // The system reports packets that were not received.
                let Ok(len) = received else { continue };
                if random.one_in(LOST) {
                    continue;
                }
                let mut packet = buffer[..len].to_vec();
                if random.one_in(DAMAGED) {
                    let at = random.below(len);
                    if let Some(byte) = packet.get_mut(at) {
                        *byte ^= 1 << (random.next() % 8);
                    }
                }
                let mut due = latest.max(Instant::now() + delay(&mut random));
                if random.one_in(REORDERED) {
                    due += delay(&mut random);
                } else {
                    latest = due;
                }
                if random.one_in(REPEATED) {
                    number += 1;
                    waiting.insert((due + delay(&mut random), number), packet.clone());
                }
                number += 1;
                waiting.insert((due, number), packet);
            }
            () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                while let Some(first) = waiting.first_entry() {
                    if first.key().0 > Instant::now() {
                        break;
                    }
                    // A full socket loses another packet.
                    let _ = to.send(&first.remove()).await;
                }
            }
        }
    }
}

/// Starts a link to `far` for one peer, and returns its address.
async fn bad_link(far: SocketAddr) -> SocketAddr {
    let any = "127.0.0.1:0";
    let near_end = Arc::new(UdpSocket::bind(any).await.expect("a port"));
    let far_end = Arc::new(UdpSocket::bind(any).await.expect("a port"));
    far_end.connect(far).await.expect("it has one target");
    let address = near_end.local_addr().expect("it is bound");
    tokio::spawn(async move {
        // The first sender is the peer.
        let peer = near_end.peek_from(&mut [0; 1]).await.expect("a packet").1;
        near_end.connect(peer).await.expect("it has one target");
        tokio::join!(
            carry(Arc::clone(&near_end), Arc::clone(&far_end), 1),
            carry(far_end, near_end, 2)
        );
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_message_arrives_once_and_in_order() {
    let count: u64 = match std::env::var("DASKWIRE_MESSAGES") {
        Ok(count) => count.parse().expect("DASKWIRE_MESSAGES is a number"),
        Err(_) => 20_000,
    };
    let quic = QuicOptions::default().with_congestion(Congestion::Bbr);
    let tls = support::tls();
    let any = "quic://127.0.0.1:0".parse().expect("an address");
    let far = Node::bind(&any, &tls, CommOptions::default(), quic.clone()).await;
    let far = far.expect("it can be listened on");
    let near = Node::client(tls.client.expect("it has both sides"), quic).expect("a socket");
    let bound = far.local_address().expect("it is bound");
    let link = bad_link(
        (
            bound.host().parse::<std::net::IpAddr>().expect("one"),
            bound.port(),
        )
            .into(),
    );
    let address = format!("quic://{}", link.await)
        .parse()
        .expect("an address");

    let receiving = tokio::spawn(async move {
        let mut comm = far
            .accept()
            .await
            .expect("one")
            .handshake()
            .await
            .expect("a comm");
        let mut number = 0_u64;
        while let Some(frames) = comm.read_message().await.expect("a message") {
            let expected = number.to_le_bytes();
            assert!(
                frames.len() == 2
                    && frames[0][..] == expected
                    && frames[1][..] == [expected[0]; 120],
                "message {number} is another one"
            );
            number += 1;
        }
        comm.write_message(&[number.to_le_bytes()])
            .await
            .expect("it is taken");
        comm.close().await.expect("it arrives");
        far.close().await;
    });
    let started = Instant::now();
    let comm = near
        .connect(&address, &CommOptions::default())
        .await
        .expect("a comm");
    let (mut reader, mut writer) = comm.split();
    for number in 0..count {
        let number = number.to_le_bytes();
        let frames: [&[u8]; 2] = [&number, &[number[0]; 120]];
        writer.feed_message(&frames).await.expect("it is taken");
    }
    writer.close().await.expect("it arrives");
    let answer = reader
        .read_message()
        .await
        .expect("an answer")
        .expect("an answer");
    println!(
        "{count} messages in {:.1} s",
        started.elapsed().as_secs_f64()
    );
    assert_eq!(answer[0][..], count.to_le_bytes());
    receiving.await.expect("all is well");
}
