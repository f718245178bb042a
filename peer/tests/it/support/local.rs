//! A cluster in this process whose roles have an interpreter.

use daskwire_peer::cluster::LocalCluster;
use daskwire_testing::{Environment, python};

/// Starts a cluster whose scheduler and two workers run Python.
pub(crate) async fn cluster_with_python() -> LocalCluster {
    let builder = LocalCluster::builder().python(python(Environment::Current));
    builder.start().await.expect("a cluster")
}
