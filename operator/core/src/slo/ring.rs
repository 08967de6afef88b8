//! Counts over a window that moves, in buckets of equal length; and as a short text.

use std::collections::VecDeque;
use std::fmt::Write;

/// 24 bytes for each bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Slices of a bucket.
    length: i64,
    buckets_max: usize,
    /// Number of the first bucket: that of slice 0 is 0.
    first: i64,
    buckets: VecDeque<Counts>,
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Slices that had a verdict and count.
    pub slices: u32,
    /// Slices too, or records.
    pub observations: u64,
    pub bad: u64,
}

impl Counts {
    /// One slice, as one observation.
    pub fn slice(is_good: bool) -> Self {
        Self { slices: 1, observations: 1, bad: u64::from(!is_good) }
    }

    /// One slice, with records.
    pub fn records(all: u64, bad: u64) -> Self {
        Self { slices: 1, observations: all, bad }
    }

    /// Share that is bad; `None` of nothing.
    pub fn ratio(self) -> Option<f64> {
        (self.observations > 0).then(|| self.bad as f64 / self.observations as f64)
    }

    pub(super) fn add(&mut self, other: Self) {
        self.slices += other.slices;
        self.observations += other.observations;
        self.bad += other.bad;
    }
}

impl Ring {
    pub fn new(length: i64, buckets_max: usize) -> Self {
        Self { length, buckets_max, first: 0, buckets: VecDeque::new() }
    }

    /// Adds to the bucket of a slice. What is older than the window is left out.
    pub fn add(&mut self, index: i64, counts: Counts) {
        let bucket = index.div_euclid(self.length);
        self.forget(index);
        if self.buckets.is_empty() {
            self.first = bucket;
        }
        let Ok(place) = usize::try_from(bucket - self.first) else { return };
        // No longer than the window, since what is before it was forgotten.
        self.buckets.resize(self.buckets.len().max(place + 1), Counts::default());
        self.buckets[place].add(counts);
    }

    /// Over the window that ends with a slice.
    pub fn sum(&self, index: i64) -> Counts {
        let begin = self.begin(index);
        let inside = self.buckets.iter().zip(self.first..).filter(|(_, number)| *number >= begin);
        inside.fold(Counts::default(), |mut sum, (counts, _)| {
            sum.add(*counts);
            sum
        })
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<Counts>()
    }

    fn begin(&self, index: i64) -> i64 {
        index.div_euclid(self.length) - self.buckets_max as i64 + 1
    }

    fn forget(&mut self, index: i64) {
        while self.first < self.begin(index) && self.buckets.pop_front().is_some() {
            self.first += 1;
        }
    }

    /// The number of the first bucket, and each as `slices/observations!bad`; what equals the former number or 0 is left
    /// out, and equal buckets are written once, with how often.
    pub fn text(&self) -> String {
        let mut text = self.first.to_string();
        let mut rest = self.buckets.iter().peekable();
        while let Some(counts) = rest.next() {
            let mut times = 1;
            while rest.next_if_eq(&counts).is_some() {
                times += 1;
            }
            let Counts { slices, observations, bad } = *counts;
            let part = |sign: char, number: u64, default: u64| {
                if number == default { String::new() } else { format!("{sign}{number}") }
            };
            let (observations, bad) = (part('/', observations, slices.into()), part('!', bad, 0));
            let times = part('*', times, 1);
            write!(text, " {slices}{observations}{bad}{times}").expect("a String takes everything");
        }
        text
    }

    /// The buckets of a text, into an empty ring. `None` if it is none.
    pub fn read(mut self, text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        self.first = words.next()?.parse().ok()?;
        for word in words {
            let (word, times) = word.split_once('*').unwrap_or((word, "1"));
            let (word, bad) = word.split_once('!').unwrap_or((word, "0"));
            let (slices, observations) = word.split_once('/').unwrap_or((word, word));
            let times: usize = times.parse().ok()?;
            let counts = Counts {
                slices: slices.parse().ok()?,
                observations: observations.parse().ok()?,
                bad: bad.parse().ok()?,
            };
            if self.buckets.len() + times > self.buckets_max {
                return None;
            }
            self.buckets.extend(std::iter::repeat_n(counts, times));
        }
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> Ring {
        Ring::new(10, 3)
    }

    #[test]
    fn what_leaves_the_window_is_counted_no_more() {
        let mut ring = ring();
        for index in [100, 109, 110, 125] {
            ring.add(index, Counts::slice(index != 109));
        }
        let sums = [125, 129, 130, 140, 150].map(|index| (ring.sum(index).observations, ring.sum(index).bad));
        assert_eq!(sums, [(4, 1), (4, 1), (2, 0), (1, 0), (0, 0)]);
        ring.add(131, Counts::slice(false));
        assert_eq!((ring.sum(131).observations, ring.buckets.len()), (3, 3));
        ring.add(1_000, Counts::slice(false));
        assert_eq!((ring.sum(1_000), ring.buckets.len()), (Counts::slice(false), 1));
    }

    #[test]
    fn what_is_older_than_the_first_bucket_is_left_out() {
        let mut ring = ring();
        ring.add(100, Counts::slice(true));
        ring.add(99, Counts::slice(true));
        assert_eq!(ring.sum(100), Counts::slice(true));
    }

    #[test]
    fn a_text_reads_back_and_is_short_where_buckets_are_equal() {
        let mut ring = Ring::new(2, 120);
        (0..200).for_each(|index| ring.add(index, Counts::slice(true)));
        assert_eq!(ring.text(), "0 2*100");
        ring.add(200, Counts::slice(false));
        ring.add(206, Counts::records(1_000, 7));
        assert_eq!(ring.text(), "0 2*100 1!1 0*2 1/1000!7");
        assert_eq!(Ring::new(2, 120).read(&ring.text()), Some(ring));
    }

    #[test]
    fn a_text_that_is_none_is_not_read() {
        for text in ["", "x", "0 1!", "0 1/x", "0 2*121", "0 -1", "0 1*99999999999999999999", "0  1"] {
            assert_eq!(Ring::new(2, 120).read(text), None, "{text}");
        }
    }

    #[test]
    fn the_largest_text_of_a_ring_fits_many_times_into_a_configmap() {
        let mut ring = Ring::new(1, 120);
        (0..120).for_each(|index| ring.add(index, Counts { slices: 8_640, observations: 10 << 40, bad: index as u64 }));
        // Ten SLOs in the megabyte of an object.
        assert!(ring.text().len() < 4_096, "{}", ring.text().len());
    }
}
