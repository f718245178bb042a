//! Gathering of data from the workers that hold it.

use core::future::poll_fn;
use core::task::Poll;
use core::time::Duration;
use std::collections::{BTreeMap, HashSet, VecDeque};

use daskwire_comm::runtime::{self, TaskSet};

use daskwire_messages::Key;

/// Time before a busy worker is asked again.
pub const BUSY_PAUSE: Duration = Duration::from_millis(150);

/// Maximum number of holders of a key that are compared in a round, so that many
/// holders that all fail do not take quadratic time.
const MAX_CHOICES: usize = 64;

/// The keys to request from each worker.
pub type Requests = BTreeMap<String, Vec<Key>>;

/// The state of a transfer of keys in rounds: each key is requested from one of its
/// holders, and in the next round from another one, until it is found or no holder is
/// left.
///
/// [`locate`](Self::locate) sets the holders. A round is a call of
/// [`requests`](Self::requests) or [`requests_by`](Self::requests_by), one of
/// [`answered`](Self::answered) or [`busy`](Self::busy) for each request, and one of
/// [`pause`](Self::pause).
///
/// The work is linear in the number of holders.
#[derive(Debug)]
pub struct Gathering {
    /// The keys that are neither found nor missing.
    wanted: BTreeMap<Key, Holders>,
    missing: Vec<Key>,
    is_busy: bool,
}

/// The holders of a key.
#[derive(Debug, Default)]
pub struct Holders {
    /// The holders that were not asked yet.
    left: VecDeque<String>,
    /// All holders that were added and not forgotten, so that none is added twice.
    known: HashSet<String>,
}

impl Holders {
    /// Adds the holders that were not known before.
    pub fn add<H: AsRef<str>>(&mut self, holders: impl IntoIterator<Item = H>) {
        for holder in holders {
            step();
            let holder = holder.as_ref();
            if !self.known.contains(holder) {
                self.known.insert(holder.to_owned());
                self.left.push_back(holder.to_owned());
            }
        }
    }

    /// The number of holders to request the key from.
    pub fn count(&self) -> usize {
        self.left.len()
    }

    /// Takes a holder to request the key from. Takes the same time for any index.
    pub fn take(&mut self, index: usize) -> Option<String> {
        self.left.swap_remove_front(index)
    }

    /// Forgets a holder that was taken and not asked. It may be added again.
    pub fn forget(&mut self, holder: &str) {
        self.known.remove(holder);
    }
}

impl Gathering {
    pub fn new(keys: impl IntoIterator<Item = Key>) -> Self {
        let wanted = keys.into_iter().map(|key| (key, Holders::default()));
        Self {
            wanted: wanted.collect(),
            missing: Vec::new(),
            is_busy: false,
        }
    }

    /// Adds holders of keys.
    pub fn locate<'h>(&mut self, who_has: impl IntoIterator<Item = (&'h Key, &'h [String])>) {
        for (key, holders) in who_has {
            if let Some(known) = self.wanted.get_mut(key) {
                known.add(holders);
            }
        }
    }

    /// The requests of the next round; empty at the end. A key for which no holder is
    /// left is missing from now on.
    ///
    /// `choose` returns the index of a holder, given the requests so far.
    pub fn requests(
        &mut self,
        mut choose: impl FnMut(&VecDeque<String>, &Requests) -> usize,
    ) -> Requests {
        self.requests_by(|_, holders, requests| {
            let last = holders.count().checked_sub(1)?;
            let chosen = choose(&holders.left, requests).min(last);
            holders.take(chosen)
        })
    }

    /// The requests of the next round; empty at the end.
    ///
    /// `take` takes one of the holders of a key, given the requests so far, and may add
    /// further holders first. A key for which it returns `None` is missing from now on.
    pub fn requests_by(
        &mut self,
        mut take: impl FnMut(&Key, &mut Holders, &Requests) -> Option<String>,
    ) -> Requests {
        let mut requests = Requests::new();
        self.wanted.retain(|key, holders| {
            step();
            let Some(holder) = take(key, holders, &requests) else {
                self.missing.push(key.clone());
                return false;
            };
            requests.entry(holder).or_default().push(key.clone());
            true
        });
        requests
    }

    /// Handles the reply to a request, with the keys that it contains; none if the
    /// request failed. Returns the requested keys that are still wanted.
    pub fn answered<'f>(
        &mut self,
        requested: Vec<Key>,
        found: impl IntoIterator<Item = &'f Key>,
    ) -> Vec<Key> {
        for key in found {
            self.wanted.remove(key);
        }
        let is_wanted = |key: &Key| self.wanted.contains_key(key);
        requested.into_iter().filter(is_wanted).collect()
    }

    /// Handles the reply that a worker is busy: the worker is asked again.
    pub fn busy(&mut self, holder: &str, requested: &[Key]) {
        self.is_busy = true;
        for key in requested {
            if let Some(holders) = self.wanted.get_mut(key) {
                holders.left.push_front(holder.to_owned());
            }
        }
    }

    /// Ends a round: waits for [`BUSY_PAUSE`] if a worker was busy, and otherwise lets
    /// other tasks run if there may be another round. Requests may fail immediately, and
    /// many such rounds would block the thread.
    pub async fn pause(&mut self) {
        if core::mem::take(&mut self.is_busy) {
            runtime::sleep(BUSY_PAUSE).await;
        } else if !self.wanted.is_empty() {
            yield_now().await;
        }
    }

    /// The keys that no holder has sent.
    pub fn into_missing(self) -> Vec<Key> {
        self.missing
    }
}

/// Chooses the holder with the fewest keys to send so far, for
/// [`Gathering::requests`]. Compares the first 64 holders.
pub fn least_requested(holders: &VecDeque<String>, requests: &Requests) -> usize {
    let count = |holder: &String| {
        step();
        requests.get(holder).map_or(0, Vec::len)
    };
    let counts = holders.iter().take(MAX_CHOICES).map(count).enumerate();
    let smallest = counts.min_by_key(|(_, count)| *count);
    smallest.map_or(0, |(index, _)| index)
}

/// Lets other tasks run.
async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if core::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Asks workers at the same time, and returns their answers with the requests.
pub async fn ask_all<T, F>(
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

/// Counts a step of work, for tests that compare inputs of different sizes.
fn step() {
    #[cfg(test)]
    tests::STEPS.with(|steps| steps.set(steps.get() + 1));
}

#[cfg(test)]
mod tests {
    use core::task::{Context, Waker};

    use super::*;

    std::thread_local! {
        pub(super) static STEPS: core::cell::Cell<u64> = const { core::cell::Cell::new(0) };
    }

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

    fn gathering(of: &[&str], who_has: &WhoHas) -> Gathering {
        let mut gathering = Gathering::new(keys(of));
        locate(&mut gathering, who_has);
        gathering
    }

    fn locate(gathering: &mut Gathering, who_has: &WhoHas) {
        gathering.locate(who_has.iter().map(|(key, holders)| (key, &holders[..])));
    }

    fn requests(gathering: &mut Gathering) -> Vec<(String, Vec<Key>)> {
        gathering.requests(|_, _| 0).into_iter().collect()
    }

    #[test]
    fn asks_further_holders_for_what_others_did_not_send() {
        let who_has = who_has(&[("x", &["a", "b"]), ("y", &["a", "c"]), ("z", &["b"])]);
        let mut gathering = gathering(&["z", "y", "x", "x"], &who_has);
        let expected = [
            ("a".to_owned(), keys(&["x", "y"])),
            ("b".to_owned(), keys(&["z"])),
        ];
        assert_eq!(requests(&mut gathering), expected);
        // Only one of the two keys was sent.
        let absent = gathering.answered(keys(&["x", "y"]), &keys(&["y"]));
        assert_eq!(absent, keys(&["x"]));
        // The holder sent nothing, and there is no other.
        assert_eq!(gathering.answered(keys(&["z"]), []), keys(&["z"]));
        let left = [("b".to_owned(), keys(&["x"]))];
        assert_eq!(requests(&mut gathering), left);
        assert!(gathering.answered(keys(&["x"]), &keys(&["x"])).is_empty());
        assert!(requests(&mut gathering).is_empty());
        assert_eq!(gathering.into_missing(), keys(&["z"]));
    }

    #[test]
    fn unknown_keys_are_missing_and_unwanted_ones_are_not_requested() {
        let who_has = who_has(&[("y", &[]), ("x", &["a"]), ("x", &["b"]), ("other", &["a"])]);
        let mut gathering = gathering(&["x", "y", "z"], &who_has);
        assert_eq!(requests(&mut gathering), [("a".to_owned(), keys(&["x"]))]);
        gathering.answered(keys(&["x"]), &keys(&["x", "other"]));
        assert!(requests(&mut gathering).is_empty());
        assert_eq!(gathering.into_missing(), keys(&["y", "z"]));
    }

    #[tokio::test(start_paused = true)]
    async fn busy_holders_are_asked_again_after_a_pause() {
        let who_has = who_has(&[("x", &["a", "b"])]);
        let mut gathering = gathering(&["x"], &who_has);
        let from_a = [("a".to_owned(), keys(&["x"]))];
        assert_eq!(requests(&mut gathering), from_a);
        let start = runtime::now();
        gathering.busy("a", &keys(&["x"]));
        gathering.pause().await;
        assert_eq!(runtime::now() - start, BUSY_PAUSE);
        assert_eq!(requests(&mut gathering), from_a);
        gathering.answered(keys(&["x"]), []);
        gathering.pause().await;
        assert_eq!(runtime::now() - start, BUSY_PAUSE);
        assert_eq!(requests(&mut gathering), [("b".to_owned(), keys(&["x"]))]);
    }

    #[test]
    fn the_caller_chooses_among_holders() {
        let who_has = who_has(&[("x", &["a", "b"]), ("y", &["a", "b"]), ("z", &["a"])]);
        let mut gathering = gathering(&["x", "y", "z"], &who_has);
        let requests = gathering.requests(least_requested);
        let requests: Vec<(String, Vec<Key>)> = requests.into_iter().collect();
        let expected = [
            ("a".to_owned(), keys(&["x", "z"])),
            ("b".to_owned(), keys(&["y"])),
        ];
        assert_eq!(requests, expected);
    }

    #[test]
    fn holders_that_were_asked_are_not_asked_again_when_they_are_added_again() {
        let first = who_has(&[("x", &["a", "b", "a"])]);
        let mut gathering = gathering(&["x"], &first);
        let from = |holder: &str| [(holder.to_owned(), keys(&["x"]))];
        assert_eq!(requests(&mut gathering), from("a"));
        gathering.answered(keys(&["x"]), []);
        locate(&mut gathering, &who_has(&[("x", &["a", "c"])]));
        assert_eq!(requests(&mut gathering), from("b"));
        gathering.answered(keys(&["x"]), []);
        // One that is passed over may be added again.
        let passed_over = gathering.requests_by(|_, holders, _| {
            let holder = holders.take(0)?;
            holders.forget(&holder);
            holders.add(["a", "d", "c"]);
            holders.take(1)
        });
        assert!(passed_over.into_iter().eq(from("c")));
        gathering.answered(keys(&["x"]), []);
        assert_eq!(requests(&mut gathering), from("d"));
        gathering.answered(keys(&["x"]), []);
        assert!(requests(&mut gathering).is_empty());
        assert_eq!(gathering.into_missing(), keys(&["x"]));
    }

    #[test]
    fn steps_are_linear_in_the_number_of_holders() {
        let steps = |count: usize, choose: fn(&VecDeque<String>, &Requests) -> usize| {
            STEPS.set(0);
            let holders: Vec<String> = (0..count).map(|number| number.to_string()).collect();
            let mut gathering = gathering(&["x"], &vec![(Key::from("x"), holders)]);
            let mut rounds = 0;
            loop {
                let requests = gathering.requests(choose);
                if requests.is_empty() {
                    break;
                }
                rounds += 1;
                for requested in requests.into_values() {
                    gathering.answered(requested, []);
                }
            }
            assert_eq!(rounds, count);
            assert_eq!(gathering.into_missing(), keys(&["x"]));
            STEPS.get()
        };
        for choose in [|_: &VecDeque<String>, _: &Requests| 0, least_requested] {
            let (one, two) = (steps(1000, choose), steps(2000, choose));
            assert!(two <= one * 9 / 4, "{one} steps, {two} for twice as much");
        }
    }

    #[test]
    fn other_tasks_run_between_rounds() {
        let who_has = who_has(&[("x", &["a", "b"])]);
        let mut gathering = gathering(&["x"], &who_has);
        let mut context = Context::from_waker(Waker::noop());
        requests(&mut gathering);
        gathering.answered(keys(&["x"]), []);
        {
            let mut pause = core::pin::pin!(gathering.pause());
            assert!(pause.as_mut().poll(&mut context).is_pending());
            assert!(pause.as_mut().poll(&mut context).is_ready());
        }
        // Without another round, `pause` does not yield.
        requests(&mut gathering);
        gathering.answered(keys(&["x"]), &keys(&["x"]));
        let pause = core::pin::pin!(gathering.pause());
        assert!(pause.poll(&mut context).is_ready());
    }
}
