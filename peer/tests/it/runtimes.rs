//! Runs the example `smol` on each executor, with a real cluster over TCP and with a
//! cluster in this process.

#[path = "../../examples/smol.rs"]
#[expect(dead_code, reason = "its main function")]
mod example;

use example::{sum_of_squares, sum_on_local_cluster};

/// The sum of the squares of 0 to 99.
const SUM: i64 = 328_350;

#[test]
fn tokio_with_dask() {
    let scheduler = daskwire_testing::scheduler_with_workers(1);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let sum = runtime.block_on(sum_of_squares(scheduler.address()));
    assert_eq!(sum.unwrap(), SUM);
    assert_eq!(scheduler.warnings(), [""; 0]);
}

#[test]
fn smol_with_dask() {
    let scheduler = daskwire_testing::scheduler_with_workers(1);
    let sum = smol::block_on(sum_of_squares(scheduler.address()));
    assert_eq!(sum.unwrap(), SUM);
    assert_eq!(scheduler.warnings(), [""; 0]);
}

#[test]
fn tokio_within_the_process() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    assert_eq!(runtime.block_on(sum_on_local_cluster()).unwrap(), SUM);
}

#[test]
fn smol_within_the_process() {
    assert_eq!(smol::block_on(sum_on_local_cluster()).unwrap(), SUM);
}
