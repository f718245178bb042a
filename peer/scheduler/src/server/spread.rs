//! Distribution of scattered data over workers.

use crate::step;

/// Distributes items over workers in turn, and returns the items of each worker.
///
/// A worker has as many turns as threads. Each item goes to `copies` consecutive
/// workers. The first turn is `start`, modulo the number of turns.
pub(super) fn spread<T: Clone>(
    items: Vec<T>,
    threads: &[u64],
    copies: usize,
    start: u64,
) -> Vec<Vec<T>> {
    let mut parts: Vec<Vec<T>> = threads.iter().map(|_| Vec::new()).collect();
    let count = parts.len();
    let turns = |worker: usize| threads.get(worker).map_or(1, |threads| (*threads).max(1));
    let all: u64 = (0..count).map(turns).sum();
    if all == 0 {
        return parts;
    }
    let copies = copies.clamp(1, count);
    let (mut worker, mut turn) = (0, start % all);
    while turn >= turns(worker) {
        turn -= turns(worker);
        worker += 1;
    }
    for item in items {
        for copy in 0..copies {
            step();
            if let Some(part) = parts.get_mut((worker + copy) % count) {
                part.push(item.clone());
            }
        }
        turn += 1;
        if turn == turns(worker) {
            turn = 0;
            worker = (worker + 1) % count;
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::STEPS;

    #[test]
    fn distributes_items_by_thread_count() {
        let parts = spread((0..8).collect(), &[1, 2, 1], 1, 0);
        assert_eq!(parts, [vec![0, 4], vec![1, 2, 5, 6], vec![3, 7]]);
        let parts = spread((0..3).collect(), &[1, 2, 1], 1, 2 + 4 * 7);
        assert_eq!(parts, [vec![2], vec![0], vec![1]]);
    }

    #[test]
    fn copies_go_to_different_workers() {
        let parts = spread(vec![0, 1], &[2, 2, 2], 2, 1);
        assert_eq!(parts, [vec![0], vec![0, 1], vec![1]]);
        assert_eq!(spread(vec![0], &[3, 1], 9, 0), [[0], [0]]);
        assert!(spread(vec![0], &[], 1, 5).is_empty());
    }

    #[test]
    fn takes_one_step_per_copy() {
        for (items, workers, copies) in [(1000, 10, 1), (2000, 10, 1), (10, 500, 500)] {
            STEPS.set(0);
            let parts = spread(
                (0..items).collect(),
                &vec![1 << 16; workers],
                copies,
                u64::MAX,
            );
            let count: usize = parts.iter().map(Vec::len).sum();
            assert_eq!(count, items * copies);
            assert_eq!(STEPS.get(), count as u64);
        }
    }
}
