//! A cluster in this process whose roles have an interpreter.

use daskwire_peer::cluster::{ClusterTransport, LocalCluster};
use daskwire_peer::scheduler::{Options, PythonOptions};
use daskwire_testing::{Environment, python};

/// Starts a cluster whose scheduler and two workers run Python.
pub(crate) async fn cluster_with_python() -> LocalCluster {
    let interpreter = python(Environment::Current);
    let options = Options::default().with_python(PythonOptions::new(&interpreter));
    LocalCluster::builder()
        .transport(ClusterTransport::Tcp)
        .configure_workers(move |_, worker| worker.python(&interpreter))
        .scheduler(options)
        .start()
        .await
        .expect("a cluster")
}
