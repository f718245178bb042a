//! Data that clients have scattered, with and without TLS, after the scheduler was killed.

use std::path::Path;

use daskwire_comm::tls::TlsSettings;
use daskwire_peer::client::{ClientOptions, SubmitOptions};
use daskwire_peer::graph::{Argument, Graph, Task};
use daskwire_peer::{Client, Key, transports_with_tls};
use daskwire_testing::{Peer, TLS_ARGUMENTS, TLS_PEM};

use crate::scheduler_command::scheduler_at;
use crate::support::scratch::Scratch;
use crate::support::worker::rust_worker;

/// Kills a scheduler, and starts one with the same arguments at the same port.
fn kill(mut scheduler: Peer, arguments: &[&str]) -> Peer {
    let address = scheduler.address().to_owned();
    scheduler.signal("KILL");
    assert!(!scheduler.ended());
    drop(scheduler);
    let (_, port) = address.rsplit_once(':').expect("a port");
    let next = scheduler_at(port, arguments);
    assert_eq!(next.address(), address);
    next
}

#[tokio::test(flavor = "multi_thread")]
async fn scattered_data_and_results_outlive_a_scheduler_with_and_without_tls() {
    for scheme in ["tcp", "tls"] {
        let scratch = Scratch::new(&format!("journal-{scheme}"));
        let tls = match scheme {
            "tcp" => &[][..],
            _ => &TLS_ARGUMENTS[..],
        };
        let journal = ["--journal", scratch.path(), "--journal-sync", "always"];
        let arguments = [&journal[..], &["--protocol", scheme], tls].concat();
        let first = scheduler_at("0", &arguments);
        let address = first.address().to_owned();
        assert!(address.starts_with(scheme), "{address}");
        let threads = [&["--nthreads", "1"][..], tls].concat();
        let _worker = rust_worker(&address, "kept", None, &threads, &[]);
        let settings = TlsSettings::new(Path::new(TLS_PEM), Path::new(TLS_PEM));
        let transports = transports_with_tls(&settings.build().expect("valid files"));
        let options = ClientOptions::default().with_transports(transports);
        let client = Client::connect_with(&address, options)
            .await
            .expect("it connects");
        let mut futures = client.scatter([40]).await.expect("it is stored");
        let add = |name: &str, number: i64| {
            let arguments = [Argument::from(futures[0].key()), Argument::from(number)];
            let graph: Graph = [Task::new(name, "operator.add", arguments)]
                .into_iter()
                .collect();
            let options = SubmitOptions::default();
            let added = client.submit_graph(&graph, vec![Key::from(name)], &options);
            added.expect("it is connected").remove(0)
        };
        let sum = add("before", 2);
        client
            .gather(core::slice::from_ref(&sum))
            .await
            .expect("it is computed");
        let second = tokio::task::block_in_place(|| kill(first, &arguments));
        // Waits until the client is connected again.
        client
            .gather(core::slice::from_ref(&sum))
            .await
            .expect("it is kept");
        let later = add("after", 3);
        futures.extend([sum, later]);
        let results = client.gather(&futures).await;
        let results = results.unwrap_or_else(|error| panic!("{scheme}: {error}\n{}", second.log()));
        let results: Result<Vec<i64>, _> = results.into_iter().map(i64::try_from).collect();
        assert_eq!(results.expect("numbers"), [40, 42, 43], "{scheme}");
        let log = second.log();
        assert!(log.contains("continues with 2 tasks"), "{scheme}: {log}");
        client.close().await.expect("it is connected");
    }
}
