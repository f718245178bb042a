//! The classes of results, as their pickles, of which most tasks have one of a few.

use std::collections::VecDeque;

use bytes::Bytes;

/// Maximum number of pickles that are kept.
const MAX_COUNT: usize = 8;

/// Maximum length of a pickle that is kept, in bytes.
const MAX_LEN: usize = 1 << 10;

/// The pickles of the classes of recent results, which tasks share.
#[derive(Debug, Default)]
pub(super) struct ResultClasses(VecDeque<Bytes>);

impl ResultClasses {
    /// Returns a pickle that shares the memory of an equal one, if there was one recently.
    pub(super) fn shared(&mut self, class: Bytes) -> Bytes {
        if class.len() > MAX_LEN {
            return class;
        }
        if let Some(known) = self.0.iter().find(|known| **known == class) {
            return known.clone();
        }
        if self.0.len() >= MAX_COUNT {
            self.0.pop_front();
        }
        self.0.push_back(class.clone());
        class
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_classes_share_memory_and_few_are_kept() {
        let mut classes = ResultClasses::default();
        let class = |number: u32| Bytes::from(format!("class {number}"));
        let first = classes.shared(class(0));
        assert_eq!(classes.shared(class(0)).as_ptr(), first.as_ptr());
        for number in 1..100 {
            assert_eq!(classes.shared(class(number)), class(number));
        }
        assert_eq!(classes.0.len(), MAX_COUNT);
        let long = Bytes::from(vec![7; MAX_LEN + 1]);
        assert_eq!(classes.shared(long.clone()), long);
        assert!(!classes.0.contains(&long));
    }
}
