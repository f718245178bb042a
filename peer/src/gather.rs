//! Data that is gathered from the workers that hold it.

use core::time::Duration;
use std::collections::{BTreeMap, HashSet};

use daskwire_comm::runtime::{self, TaskSet};

use crate::Key;

/// Time before a busy worker is asked again.
pub(crate) const BUSY_PAUSE: Duration = Duration::from_millis(150);

/// The keys to request from each worker.
pub(crate) type Requests = BTreeMap<String, Vec<Key>>;

/// Gathers keys in rounds: each key is requested from one of its holders, and in
/// the next round from another one, until it is found or no holder is left.
///
/// Each round is a call of [`requests`](Self::requests), one of
/// [`answered`](Self::answered) or [`busy`](Self::busy) for each request, and one of
/// [`pause`](Self::pause).
#[derive(Debug)]
pub(crate) struct Gathering {
    /// The keys that are neither found nor missing, with the holders that did not
    /// send them.
    wanted: BTreeMap<Key, Vec<String>>,
    missing: Vec<Key>,
    is_busy: bool,
}

impl Gathering {
    pub(crate) fn new(keys: impl IntoIterator<Item = Key>) -> Self {
        Self {
            wanted: keys.into_iter().map(|key| (key, Vec::new())).collect(),
            missing: Vec::new(),
            is_busy: false,
        }
    }

    /// The keys that are neither found nor missing.
    pub(crate) fn wanted(&self) -> impl Iterator<Item = &Key> {
        self.wanted.keys()
    }

    /// The requests of the next round; empty at the end. A key without a holder
    /// that may have it is missing from now on.
    ///
    /// `choose` returns the index of a holder, given the requests so far.
    pub(crate) fn requests<'h>(
        &mut self,
        who_has: impl IntoIterator<Item = (&'h Key, &'h [String])>,
        mut choose: impl FnMut(&[&'h String], &Requests) -> usize,
    ) -> Requests {
        let mut requests = Requests::new();
        let mut located = HashSet::new();
        for (key, holders) in who_has {
            let Some(failed) = self.wanted.get(key) else {
                continue;
            };
            let holders = holders.iter().filter(|holder| !failed.contains(holder));
            let holders: Vec<&String> = holders.collect();
            if holders.is_empty() || !located.insert(key) {
                continue;
            }
            let chosen = choose(&holders, &requests).min(holders.len() - 1);
            let keys = requests.entry(holders[chosen].clone()).or_default();
            keys.push(key.clone());
        }
        self.wanted.retain(|key, _| {
            let is_located = located.contains(key);
            if !is_located {
                self.missing.push(key.clone());
            }
            is_located
        });
        requests
    }

    /// Handles the answer to a request, or its failure, with which nothing is found.
    /// Returns the keys that are not found.
    pub(crate) fn answered<'f>(
        &mut self,
        holder: &str,
        requested: Vec<Key>,
        found: impl IntoIterator<Item = &'f Key>,
    ) -> Vec<Key> {
        for key in found {
            self.wanted.remove(key);
        }
        let is_wanted = |key: &Key| match self.wanted.get_mut(key) {
            Some(failed) => {
                failed.push(holder.to_owned());
                true
            }
            None => false,
        };
        requested.into_iter().filter(is_wanted).collect()
    }

    /// Handles the answer that a worker is busy: it is asked again.
    pub(crate) const fn busy(&mut self) {
        self.is_busy = true;
    }

    /// Ends a round: waits a little if a worker was busy.
    pub(crate) async fn pause(&mut self) {
        if core::mem::take(&mut self.is_busy) {
            runtime::sleep(BUSY_PAUSE).await;
        }
    }

    /// The keys that no holder has sent.
    pub(crate) fn into_missing(self) -> Vec<Key> {
        self.missing
    }
}

/// Chooses the holder with the fewest keys to send so far, for
/// [`Gathering::requests`].
pub(crate) fn least_requested(holders: &[&String], requests: &Requests) -> usize {
    let count = |holder: &&String| requests.get(*holder).map_or(0, Vec::len);
    let counts = holders.iter().map(count).enumerate();
    let least = counts.min_by_key(|(_, count)| *count);
    least.map_or(0, |(index, _)| index)
}

/// Asks workers at the same time, and returns their answers with the requests.
pub(crate) async fn ask_all<T, F>(
    requests: Requests,
    ask: impl Fn(String, Vec<Key>) -> F,
) -> Vec<(String, Vec<Key>, T)>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let one = |worker: String, keys: Vec<Key>| {
        let asking = ask(worker.clone(), keys.clone());
        async move { (worker, keys, asking.await) }
    };
    let mut requests = requests.into_iter();
    if requests.len() == 1
        && let Some((worker, keys)) = requests.next()
    {
        return vec![one(worker, keys).await];
    }
    let mut asking = TaskSet::new();
    for (worker, keys) in requests {
        asking.spawn(one(worker, keys));
    }
    asking.join_all().await
}

#[cfg(test)]
mod tests {
    use super::*;

    type WhoHas = Vec<(Key, Vec<String>)>;

    fn keys(keys: &[&str]) -> Vec<Key> {
        keys.iter().map(|key| Key::from(*key)).collect()
    }

    fn who_has(entries: &[(&str, &[&str])]) -> WhoHas {
        let holders = |holders: &[&str]| holders.iter().map(ToString::to_string).collect();
        let entries = entries.iter();
        let entries = entries.map(|(key, of_key)| (Key::from(*key), holders(of_key)));
        entries.collect()
    }

    fn requests(gathering: &mut Gathering, who_has: &WhoHas) -> Vec<(String, Vec<Key>)> {
        let who_has = who_has.iter().map(|(key, holders)| (key, &holders[..]));
        let requests = gathering.requests(who_has, |_, _| 0);
        requests.into_iter().collect()
    }

    #[test]
    fn asks_further_holders_for_what_others_did_not_send() {
        let who_has = who_has(&[("x", &["a", "b"]), ("y", &["a", "c"]), ("z", &["b"])]);
        let mut gathering = Gathering::new(keys(&["z", "y", "x", "x"]));
        let expected = [
            ("a".to_owned(), keys(&["x", "y"])),
            ("b".to_owned(), keys(&["z"])),
        ];
        assert_eq!(requests(&mut gathering, &who_has), expected);
        // One of two
        let absent = gathering.answered("a", keys(&["x", "y"]), &keys(&["y"]));
        assert_eq!(absent, keys(&["x"]));
        // Gone
        assert_eq!(gathering.answered("b", keys(&["z"]), []), keys(&["z"]));
        let left = [("b".to_owned(), keys(&["x"]))];
        assert_eq!(requests(&mut gathering, &who_has), left);
        assert!(
            gathering
                .answered("b", keys(&["x"]), &keys(&["x"]))
                .is_empty()
        );
        assert!(requests(&mut gathering, &who_has).is_empty());
        assert_eq!(gathering.into_missing(), keys(&["z"]));
    }

    #[test]
    fn unknown_keys_are_missing_and_unwanted_ones_are_not_requested() {
        let mut gathering = Gathering::new(keys(&["x", "y", "z"]));
        let who_has = who_has(&[("y", &[]), ("x", &["a"]), ("x", &["b"]), ("other", &["a"])]);
        assert_eq!(
            requests(&mut gathering, &who_has),
            [("a".to_owned(), keys(&["x"]))]
        );
        assert!(gathering.wanted().eq(&keys(&["x"])));
        gathering.answered("a", keys(&["x"]), &keys(&["x", "other"]));
        assert!(requests(&mut gathering, &who_has).is_empty());
        assert_eq!(gathering.into_missing(), keys(&["y", "z"]));
    }

    #[tokio::test(start_paused = true)]
    async fn busy_holders_are_asked_again_after_a_pause() {
        let who_has = who_has(&[("x", &["a", "b"])]);
        let mut gathering = Gathering::new(keys(&["x"]));
        let from_a = [("a".to_owned(), keys(&["x"]))];
        assert_eq!(requests(&mut gathering, &who_has), from_a);
        let start = runtime::now();
        gathering.busy();
        gathering.pause().await;
        assert_eq!(runtime::now() - start, BUSY_PAUSE);
        assert_eq!(requests(&mut gathering, &who_has), from_a);
        gathering.answered("a", keys(&["x"]), []);
        gathering.pause().await;
        assert_eq!(runtime::now() - start, BUSY_PAUSE);
        assert_eq!(
            requests(&mut gathering, &who_has),
            [("b".to_owned(), keys(&["x"]))]
        );
    }

    #[test]
    fn the_caller_chooses_among_holders() {
        let who_has = who_has(&[("x", &["a", "b"]), ("y", &["a", "b"]), ("z", &["a"])]);
        let mut gathering = Gathering::new(keys(&["x", "y", "z"]));
        let who_has = who_has.iter().map(|(key, holders)| (key, &holders[..]));
        let requests = gathering.requests(who_has, least_requested);
        let requests: Vec<(String, Vec<Key>)> = requests.into_iter().collect();
        let expected = [
            ("a".to_owned(), keys(&["x", "z"])),
            ("b".to_owned(), keys(&["y"])),
        ];
        assert_eq!(requests, expected);
    }
}
