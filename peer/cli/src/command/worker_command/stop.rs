//! Requests to stop a worker.

use tokio::sync::mpsc;

use super::WorkerArguments;
use super::nanny::{self, Order};
use crate::command::failure::Result;
use crate::command::runtime::stop_requested;

/// The source of requests to stop: signals, and orders of a nanny.
pub(super) struct Stops {
    orders: Option<mpsc::UnboundedReceiver<Order>>,
    counts: StopCounts,
}

impl Stops {
    pub(super) fn new(arguments: &WorkerArguments) -> Self {
        Self {
            orders: arguments.worker_process.map(|_| nanny::orders()),
            counts: StopCounts::default(),
        }
    }

    /// Waits for the end of some work, or for the next request. In the latter case, drops the work
    /// and returns `None`.
    pub(super) async fn before<T>(
        &mut self,
        work: impl Future<Output = Result<T>>,
    ) -> Result<Option<T>> {
        tokio::select! {
            done = work => done.map(Some),
            order = self.next() => order.map(|_| None),
        }
    }

    /// Waits for the next request.
    pub(super) async fn next(&mut self) -> Result<Order> {
        loop {
            let signal = stop_requested()?;
            let order = async {
                match &mut self.orders {
                    Some(orders) => orders.recv().await.unwrap_or(Order::Gone),
                    None => core::future::pending().await,
                }
            };
            tokio::select! {
                () = signal => self.counts.signals += 1,
                order = order => match order {
                    Order::Stop => self.counts.orders += 1,
                    Order::Gone => return Ok(Order::Gone),
                },
            }
            if self.counts.is_next() {
                return Ok(Order::Stop);
            }
        }
    }
}

/// Counts of requests to stop.
#[derive(Debug, Default)]
struct StopCounts {
    signals: u32,
    orders: u32,
    /// Number of requests that were followed.
    stops: u32,
}

impl StopCounts {
    /// Whether a request is still to be followed; counts it as followed. Service managers
    /// send a signal to all processes of a service, so that one request reaches a worker as
    /// a signal and as the nanny's order.
    fn is_next(&mut self) -> bool {
        let is_next = self.signals.max(self.orders) > self.stops;
        self.stops += u32::from(is_next);
        is_next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_and_an_order_are_one_request() {
        let mut counts = StopCounts::default();
        counts.signals += 1;
        assert!(counts.is_next());
        counts.orders += 1;
        assert!(!counts.is_next());
        // Once more to the nanny only, and then to all processes
        counts.orders += 1;
        assert!(counts.is_next());
        counts.orders += 1;
        assert!(counts.is_next());
        counts.signals += 1;
        assert!(!counts.is_next());
    }
}
