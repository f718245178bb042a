//! Tests of the traffic classes of the roles' comms: control precedes bulk data.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use daskwire_comm::{
    Address, BoxFuture, CommError, CommOptions, ConnectError, ConnectOptions, Inproc, Listen,
    PendingConnection, Traffic, Transport, Transports,
};
use daskwire_peer::Value;
use daskwire_peer::client::{Client, Meter, Route};
use daskwire_peer::cluster::{self, LocalCluster};
use tokio::time::timeout;

/// A large value and small tasks share the connection between client and scheduler.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_go_ahead_of_scattered_data_over_quic() {
    const LEN: usize = 256 << 20;
    let cluster = LocalCluster::builder().transport(cluster::ClusterTransport::Quic);
    let cluster = cluster.start().await.expect("a cluster");
    let meter = Arc::new(Meter::default());
    let options = cluster.client_options().with_meter(Arc::clone(&meter));
    let client = Client::connect_with(&cluster.address().to_string(), options).await;
    let client = client.expect("a client");
    {
        let value = Value::bytes(vec![7; LEN]);
        let scattering = client.scatter_by([("large", value)], Route::Scheduler);
        let mut scattering = core::pin::pin!(scattering);
        while meter.sent() < 1 << 20 {
            let waited = timeout(Duration::from_millis(1), &mut scattering).await;
            assert!(waited.is_err(), "all of the value was sent at once");
        }
        let tasks = async {
            for number in 0..5 {
                let future = client.submit("operator.neg", [number]).expect("submitted");
                let result = future.result().await.expect("a result");
                assert_eq!(i64::try_from(result).ok(), Some(-number));
            }
        };
        tokio::select! {
            biased;
            _ = &mut scattering => panic!("five tasks have waited for the value"),
            () = tasks => {}
        }
        assert!(
            meter.sent() < LEN as u64,
            "five tasks have waited for the value"
        );
        scattering.await.expect("the value arrives");
    }
    client.close().await.expect("closed");
    cluster.close().await;
}

/// A record of traffic classes in the order in which they were set, each with the address
/// to which the connection was made.
#[derive(Clone, Default)]
struct Classes(Arc<Mutex<Vec<(Address, Traffic)>>>);

impl Classes {
    fn record(&self, address: &Address, traffic: Traffic) {
        let mut classes = self.0.lock().expect("no panic");
        classes.push((address.clone(), traffic));
    }

    fn take(&self, address: &Address) -> Vec<Traffic> {
        let classes = core::mem::take(&mut *self.0.lock().expect("no panic"));
        let of_address = classes.into_iter().filter(|(to, _)| to == address);
        of_address.map(|(_, traffic)| traffic).collect()
    }

    /// Wraps a connection to record its traffic classes.
    fn wrap(&self, to: Address, pending: PendingConnection) -> PendingConnection {
        let classes = self.clone();
        PendingConnection::new(pending.peer_address().clone(), async move {
            let connection = pending.open(&CommOptions::default()).await?;
            Ok(connection.with_traffic(move |traffic| classes.record(&to, traffic)))
        })
    }
}

/// The transport `inproc://`, which records the traffic classes of both ends.
struct Recording(Classes);

impl Transport for Recording {
    fn schemes(&self) -> &[&'static str] {
        Inproc.schemes()
    }

    fn connect<'a>(
        &'a self,
        address: &'a Address,
        options: &'a ConnectOptions,
    ) -> BoxFuture<'a, Result<PendingConnection, ConnectError>> {
        Box::pin(async {
            let pending = Inproc.connect(address, options).await?;
            Ok(self.0.wrap(address.clone(), pending))
        })
    }

    fn bind<'a>(
        &'a self,
        address: &'a Address,
    ) -> BoxFuture<'a, Result<Box<dyn Listen>, CommError>> {
        Box::pin(async {
            let inner = Inproc.bind(address).await?;
            let listener = RecordingListener(self.0.clone(), inner);
            Ok(Box::new(listener) as Box<dyn Listen>)
        })
    }
}

struct RecordingListener(Classes, Box<dyn Listen>);

impl Listen for RecordingListener {
    fn accept(&self) -> BoxFuture<'_, Result<PendingConnection, CommError>> {
        Box::pin(async {
            let pending = self.1.accept().await?;
            Ok(self
                .0
                .wrap(self.1.local_address().map_err(CommError::Io)?, pending))
        })
    }

    fn local_address(&self) -> std::io::Result<Address> {
        self.1.local_address()
    }
}

#[tokio::test]
async fn roles_set_the_class_of_their_comms() {
    let classes = Classes::default();
    let transports = Transports::new().with(Recording(classes.clone()));
    let cluster = LocalCluster::builder().transports(transports).workers(1);
    let cluster = cluster.start().await.expect("a cluster");
    let scheduler = cluster.address().clone();
    // The worker's stream, at both ends.
    let set = classes.take(&scheduler);
    let control = set.iter().filter(|class| **class == Traffic::Control);
    assert!(control.count() >= 2, "{set:?}");
    assert!(!set.contains(&Traffic::Bulk), "{set:?}");

    let client = cluster.client().await.expect("a client");
    let set = classes.take(&scheduler);
    assert!(set.contains(&Traffic::Control), "{set:?}");
    assert!(!set.contains(&Traffic::Bulk), "{set:?}");

    let future = client.submit("operator.neg", [1]).expect("submitted");
    client.wait([&future]).await;
    let worker: Address = cluster.workers()[0].address().parse().expect("an address");
    classes.take(&scheduler);
    let gathered = client
        .gather_by(core::slice::from_ref(&future), Route::Direct)
        .await;
    gathered.expect("a result");
    let set = classes.take(&worker);
    let bulk = set.iter().filter(|class| **class == Traffic::Bulk);
    assert_eq!(bulk.count(), 2, "both ends: {set:?}");
    client.close().await.expect("closed");
    cluster.close().await;
}
