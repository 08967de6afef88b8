//! Which Pipeline is looked at next.
//!
//! There are two lanes: what a person did comes before what is looked at from time to time, and of the places that work
//! some take nothing else, so that an edit is never behind a thousand routine looks. A Pipeline is in one place at a time;
//! what comes for it meanwhile is done after.
//!
//! While another process leads nothing is queued. Who leads begins with all Pipelines as routine, so that an edit of
//! that moment does not wait behind a thousand others.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::cache::Key;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// A person waits.
    Edit,
    Routine,
}

/// What is to be looked at, and since when it waits.
#[derive(Debug, PartialEq, Eq)]
pub struct Taken {
    pub key: Key,
    pub lane: Lane,
    pub since: Instant,
}

#[derive(Default)]
struct State {
    begun: bool,
    edits: VecDeque<Key>,
    routine: VecDeque<Key>,
    waiting: HashMap<Key, (Lane, Instant)>,
    running: HashMap<Key, Instant>,
    later: BTreeMap<(Instant, Key), ()>,
    due: HashMap<Key, Instant>,
    /// How often the last looks in a row have failed.
    failures: HashMap<Key, u32>,
}

#[derive(Default)]
pub struct Queue {
    state: Mutex<State>,
    changed: Notify,
}

impl Queue {
    /// From now on somebody works, and looks at all of these first.
    pub fn begin(&self, all: Vec<Key>, now: Instant) {
        let mut state = self.state();
        state.begun = true;
        all.into_iter().for_each(|key| state.push(key, Lane::Routine, now));
        drop(state);
        self.changed.notify_waiters();
    }

    pub fn push(&self, key: Key, lane: Lane, now: Instant) {
        let mut state = self.state();
        if state.begun {
            state.push(key, lane, now);
            drop(state);
            self.changed.notify_waiters();
        }
    }

    /// Takes the next one that is not being looked at, once it is due.
    pub fn try_take(&self, lanes: &[Lane], now: Instant) -> Option<Taken> {
        let mut state = self.state();
        state.wake(now);
        lanes.iter().find_map(|lane| state.take(*lane, now))
    }

    /// The look is over; the next is due after `again`.
    pub fn done(&self, key: &Key, again: Option<Duration>, now: Instant) {
        let mut state = self.state();
        state.running.remove(key);
        if let Some(again) = again {
            state.later(key.clone(), now + again);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    pub fn succeeded(&self, key: &Key) {
        self.state().failures.remove(key);
    }

    /// How often it had failed before, in a row.
    pub fn failed(&self, key: &Key) -> u32 {
        let mut state = self.state();
        let failures = state.failures.entry(key.clone()).or_default();
        *failures += 1;
        *failures - 1
    }

    /// Ends when something has changed, or the first one is due.
    pub async fn wait(&self, now: Instant) {
        let notified = self.changed.notified();
        let next = self.state().later.keys().next().map(|(due, _)| due.saturating_duration_since(now));
        let next = next.unwrap_or(Duration::from_secs(1)).min(Duration::from_secs(1));
        // A change between the look and the wait is seen a second later at worst.
        drop(tokio::time::timeout(next.max(Duration::from_millis(1)), notified).await);
    }

    pub fn len(&self) -> usize {
        self.state().waiting.len()
    }

    /// How long the oldest one has waited or been looked at: no progress, if it is long.
    pub fn oldest(&self, now: Instant) -> Duration {
        let state = self.state();
        let since = state.waiting.values().map(|(_, since)| since).chain(state.running.values()).min();
        since.map_or(Duration::ZERO, |since| now.saturating_duration_since(*since))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics while it holds the lock")
    }
}

impl State {
    fn push(&mut self, key: Key, lane: Lane, now: Instant) {
        let since = match self.waiting.get(&key) {
            Some((before, _)) if *before <= lane => return,
            // The same one in the other lane is passed over when it comes.
            Some((_, since)) => *since,
            None => now,
        };
        self.waiting.insert(key.clone(), (lane, since));
        match lane {
            Lane::Edit => self.edits.push_back(key),
            Lane::Routine => self.routine.push_back(key),
        }
    }

    fn later(&mut self, key: Key, due: Instant) {
        if let Some(before) = self.due.insert(key.clone(), due) {
            self.later.remove(&(before, key.clone()));
        }
        self.later.insert((due, key), ());
    }

    /// Those that are due wait from now on.
    fn wake(&mut self, now: Instant) {
        while let Some(entry) = self.later.first_entry().filter(|entry| entry.key().0 <= now) {
            let ((due, key), ()) = entry.remove_entry();
            self.due.remove(&key);
            self.push(key, Lane::Routine, due);
        }
    }

    fn take(&mut self, lane: Lane, now: Instant) -> Option<Taken> {
        let queue = match lane {
            Lane::Edit => &mut self.edits,
            Lane::Routine => &mut self.routine,
        };
        // Those that are being looked at are left for when that is over.
        for _ in 0..queue.len() {
            let key = queue.pop_front()?;
            match self.waiting.get(&key) {
                Some((of, _)) if *of == lane && self.running.contains_key(&key) => queue.push_back(key),
                Some((of, since)) if *of == lane => {
                    let since = *since;
                    self.waiting.remove(&key);
                    self.running.insert(key.clone(), now);
                    return Some(Taken { key, lane, since });
                }
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Lane; 2] = [Lane::Edit, Lane::Routine];

    fn key(name: &str) -> Key {
        Key { namespace: "shop".to_owned(), name: name.to_owned() }
    }

    fn begun(names: &[&str], now: Instant) -> Queue {
        let queue = Queue::default();
        // Whatever came before, it begins with all.
        queue.push(key("a"), Lane::Edit, now);
        queue.begin(names.iter().map(|name| key(name)).collect(), now);
        queue
    }

    fn taken(queue: &Queue, now: Instant) -> Option<(String, Lane)> {
        queue.try_take(&ALL, now).map(|taken| (taken.key.name, taken.lane))
    }

    #[test]
    fn an_edit_overtakes_what_is_routine_and_is_done_once() {
        let now = crate::clock::instant();
        let queue = begun(&["a", "b", "c"], now);
        queue.push(key("c"), Lane::Edit, now);
        queue.push(key("c"), Lane::Routine, now);
        let order: Vec<_> = std::iter::from_fn(|| taken(&queue, now)).collect();
        let expected = [("c", Lane::Edit), ("a", Lane::Routine), ("b", Lane::Routine)];
        assert_eq!(order, expected.map(|(name, lane)| (name.to_owned(), lane)));
    }

    #[test]
    fn what_is_being_looked_at_waits_until_that_is_over() {
        let now = crate::clock::instant();
        let queue = begun(&[], now);
        queue.push(key("a"), Lane::Edit, now);
        assert!(taken(&queue, now).is_some());
        queue.push(key("a"), Lane::Edit, now);
        queue.push(key("b"), Lane::Edit, now);
        assert_eq!(taken(&queue, now), Some(("b".to_owned(), Lane::Edit)));
        assert_eq!(taken(&queue, now), None);
        queue.done(&key("a"), None, now);
        assert_eq!(taken(&queue, now), Some(("a".to_owned(), Lane::Edit)));
    }

    #[test]
    fn a_later_look_comes_when_it_is_due_and_a_new_time_replaces_the_old_one() {
        let now = crate::clock::instant();
        let queue = begun(&[], now);
        let at = |s| now + Duration::from_secs(s);
        queue.done(&key("a"), Some(Duration::from_secs(5)), now);
        queue.done(&key("a"), Some(Duration::from_secs(9)), now);
        assert_eq!(taken(&queue, at(8)), None);
        assert_eq!(taken(&queue, at(9)), Some(("a".to_owned(), Lane::Routine)));
        assert_eq!(taken(&queue, at(99)), None);
    }
}
