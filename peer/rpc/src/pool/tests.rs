use daskwire_messages::Value;
use daskwire_messages::protocol::{Ping, ReplyStatus, Unknown};
use daskwire_messages::value::Serialized;

use super::*;
use daskwire_comm::{CommOptions, Listener};

struct Peer {
    listener: Listener,
    address: Address,
}

impl Peer {
    async fn new() -> Self {
        let at = format!("inproc://{}", daskwire_messages::key::identifier());
        let at = at.parse().expect("an address");
        let listener = crate::transports().bind(&at, CommOptions::default()).await;
        let listener = listener.expect("it is free");
        let address = listener.local_address().expect("it listens");
        Self { listener, address }
    }

    /// The peer's end of the next comm.
    async fn accept(&self) -> Channel {
        let incoming = self.listener.accept().await.expect("a connection");
        let comm = incoming.handshake().await.expect("a comm");
        Channel::new(comm, Ends::new("peer", "pool", None))
    }
}

fn pool() -> Arc<Pool> {
    let connector = Arc::new(Connector::new(crate::transports(), CommOptions::default()));
    Arc::new(Pool::new(connector, "pool", None))
}

fn ping() -> Request {
    Request::from(Ping::default())
}

/// Sends a request in the background.
fn call(
    pool: &Arc<Pool>,
    address: &Address,
) -> tokio::task::JoinHandle<Result<Value, RequestError>> {
    let (pool, address) = (Arc::clone(pool), address.clone());
    tokio::spawn(async move { pool.call(&address, &ping()).await })
}

async fn receive(channel: &mut Channel) -> Option<Request> {
    let request = channel.receiver.receive::<Request>();
    let request = tokio::time::timeout(Duration::from_secs(20), request).await;
    request.expect("in time").expect("a request or the end")
}

async fn answer(channel: &mut Channel, reply: impl Field) {
    assert!(receive(channel).await.is_some());
    channel.sender.send(&reply).await.expect("the pool reads");
}

#[tokio::test]
async fn a_forgotten_peer_has_no_comms_and_its_requests_end() {
    let peer = Peer::new().await;
    let pool = pool();
    // Two comms, one idle and one with a pending request
    let asked = call(&pool, &peer.address);
    let mut owing = peer.accept().await;
    assert!(receive(&mut owing).await.is_some());
    let other = call(&pool, &peer.address);
    let mut idle = peer.accept().await;
    answer(&mut idle, Value::from("pong")).await;
    assert!(other.await.expect("no panic").is_ok());
    pool.forget(&peer.address);
    let ended = asked.await.expect("no panic");
    assert!(
        matches!(ended, Err(RequestError::Closed { .. })),
        "{ended:?}"
    );
    assert_eq!(receive(&mut idle).await, None);
    assert_eq!(receive(&mut owing).await, None);
    assert!(pool.lock().by_address.is_empty());
    // The peer may come back.
    let again = call(&pool, &peer.address);
    let mut comm = peer.accept().await;
    answer(&mut comm, Value::from("pong")).await;
    assert!(again.await.expect("no panic").is_ok());
    assert_eq!(pool.lock().idle_count, 1);
}

#[tokio::test]
async fn peers_that_come_and_go_leave_no_comms() {
    for count in [100, 200] {
        comms_after_peers_have_gone(count).await;
    }
}

async fn comms_after_peers_have_gone(count: usize) {
    let pool = pool();
    let mut ends = Vec::new();
    for _ in 0..count {
        let peer = Peer::new().await;
        let asked = call(&pool, &peer.address);
        let mut comm = peer.accept().await;
        answer(&mut comm, Value::from("pong")).await;
        assert!(asked.await.expect("no panic").is_ok());
        pool.forget(&peer.address);
        ends.push(comm);
    }
    for mut comm in ends {
        assert_eq!(receive(&mut comm).await, None);
    }
    let peers = pool.lock();
    assert_eq!((peers.idle_count, peers.by_address.len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn idle_comms_are_closed_after_a_while() {
    let pool = pool();
    let (old, used) = (Peer::new().await, Peer::new().await);
    let asked = call(&pool, &old.address);
    let mut end = old.accept().await;
    answer(&mut end, Value::from("pong")).await;
    assert!(asked.await.expect("no panic").is_ok());
    tokio::time::advance(IDLE_TIMEOUT).await;
    let asked = call(&pool, &used.address);
    let mut comm = used.accept().await;
    answer(&mut comm, Value::from("pong")).await;
    assert!(asked.await.expect("no panic").is_ok());
    assert_eq!(receive(&mut end).await, None);
    let peers = pool.lock();
    assert_eq!((peers.idle_count, peers.by_address.len()), (1, 1));
}

/// Makes an idle comm of the pool with a peer, and returns the peer's end.
async fn idle_comm(pool: &Arc<Pool>, peer: &Peer) -> Channel {
    let asked = call(pool, &peer.address);
    let mut end = peer.accept().await;
    answer(&mut end, Value::from("pong")).await;
    assert!(asked.await.expect("no panic").is_ok());
    end
}

#[tokio::test]
async fn only_idempotent_requests_are_sent_again() {
    let peer = Peer::new().await;
    let pool = pool();
    // The peer closes an idle comm: nothing was sent on it.
    let end = idle_comm(&pool, &peer).await;
    end.close().await;
    let put = Unknown::new("queue_put").field("name", "queue");
    let put = Request::Unknown(put);
    let asked = {
        let (pool, address, put) = (Arc::clone(&pool), peer.address.clone(), put.clone());
        tokio::spawn(async move { pool.call::<Value>(&address, &put).await })
    };
    let mut end = peer.accept().await;
    answer(&mut end, Value::None).await;
    assert!(asked.await.expect("no panic").is_ok());
    // The peer reads the request, and leaves before it replies.
    let asked = {
        let (pool, address) = (Arc::clone(&pool), peer.address.clone());
        tokio::spawn(async move { pool.call::<Value>(&address, &put).await })
    };
    assert!(receive(&mut end).await.is_some());
    drop(end);
    let failed = asked.await.expect("no panic");
    assert!(
        matches!(&failed, Err(error) if is_closed(error)),
        "{failed:?}"
    );
    // The same with a request that can be repeated.
    let mut end = idle_comm(&pool, &peer).await;
    let asked = call(&pool, &peer.address);
    assert!(receive(&mut end).await.is_some());
    drop(end);
    let mut end = peer.accept().await;
    answer(&mut end, Value::from("pong")).await;
    assert!(asked.await.expect("no panic").is_ok());
}

#[tokio::test]
async fn accepts_only_requested_keys() {
    let peer = Peer::new().await;
    let pool = pool();
    let asked = {
        let (pool, address) = (Arc::clone(&pool), peer.address.clone());
        let request = GetData {
            keys: ["x", "y"].into_iter().collect(),
            ..GetData::default()
        };
        tokio::spawn(async move {
            pool.get_data_with_extra_count(&address, request, None)
                .await
        })
    };
    let mut comm = peer.accept().await;
    let value = |n: i64| Serialized::of(&Value::from(n)).expect("plain");
    let data = [("z", 0), ("x", 1), ("x", 2), ("y", 3)];
    let reply = DataReply {
        status: ReplyStatus::Ok,
        data: Some(data.map(|(key, n)| (key.into(), value(n))).into()),
        ..DataReply::default()
    };
    answer(&mut comm, reply).await;
    let (reply, unasked_count) = asked.await.expect("no panic").expect("a reply");
    let data = reply.data.expect("data").into_iter();
    let data: Vec<(Key, Value)> = data
        .map(|(key, serialized)| (key, serialized.open().expect("plain")))
        .collect();
    assert_eq!(data, [("x".into(), 1.into()), ("y".into(), 3.into())]);
    assert_eq!(unasked_count, 2);
    let acknowledged = comm.receiver.receive::<String>().await;
    assert_eq!(acknowledged.expect("a message").as_deref(), Some("OK"));
}

#[tokio::test]
async fn panic_in_the_pool_only_closes_its_comms() {
    let peer = Peer::new().await;
    let pool = pool();
    let asked = call(&pool, &peer.address);
    let mut first = peer.accept().await;
    answer(&mut first, Value::from("pong")).await;
    assert!(asked.await.expect("no panic").is_ok());
    let poisoning = Arc::clone(&pool);
    let panicked = std::thread::spawn(move || {
        let _peers = poisoning.lock();
        panic!("a panic for the test");
    });
    assert!(panicked.join().is_err());
    let asked = call(&pool, &peer.address);
    let mut second = peer.accept().await;
    answer(&mut second, Value::from("pong")).await;
    assert!(asked.await.expect("no panic").is_ok());
    assert_eq!(receive(&mut first).await, None);
    assert_eq!(pool.lock().idle_count, 1);
}
