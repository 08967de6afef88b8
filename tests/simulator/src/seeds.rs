//! Many runs of whatever is simulated.

use std::fmt::Debug;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{env, fs, thread};

use crate::trace::Run;

fn setting(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Runs the seeds below `count` twice each, and up to `MILLRACE_SEEDS` once. The first that fails leaves its trace in
/// `dir`, and says how the test `name` runs it again: with `MILLRACE_SEED`, which prints the trace of that seed alone.
///
/// # Panics
/// At a violation, and when two runs of one seed differ: then the simulator or a core is not deterministic.
pub fn check<V: Debug + Send>(name: &str, dir: &Path, count: u64, run: impl Fn(u64, bool) -> Run<V> + Sync) {
    if let Some(seed) = setting("MILLRACE_SEED") {
        let Run { violation, lines, .. } = run(seed, true);
        println!("{}", lines.join("\n"));
        assert!(violation.is_none(), "seed {seed}: {violation:?}");
        return;
    }
    let fails = |seed| {
        let one = run(seed, false);
        if seed < count {
            assert_eq!(one.hash, run(seed, false).hash, "seed {seed} runs differently the second time");
        }
        one.violation
    };
    if let Some((seed, violation)) = first(0, setting("MILLRACE_SEEDS").unwrap_or(count), fails) {
        let trace = dir.join(format!("{name}-{seed}.txt"));
        fs::write(&trace, run(seed, true).lines.join("\n")).expect("write the trace");
        let again = format!("cargo test --release --workspace --test {name} -- --nocapture");
        panic!("seed {seed}: {violation:?}\ntrace: {}\nto run it again: MILLRACE_SEED={seed} {again}", trace.display());
    }
}

/// The first result of the seeds `from..to`, by seed, on all cores.
pub fn first<T: Send>(from: u64, to: u64, run: impl Fn(u64) -> Option<T> + Sync) -> Option<(u64, T)> {
    let threads = thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let found_at = AtomicU64::new(u64::MAX);
    let search = &|thread: u64| {
        let seeds = (from..to).skip(thread as usize).step_by(threads as usize);
        let (seed, found) = seeds
            .take_while(|seed| *seed < found_at.load(Ordering::Relaxed))
            .find_map(|seed| run(seed).map(|found| (seed, found)))?;
        found_at.fetch_min(seed, Ordering::Relaxed);
        Some((seed, found))
    };
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || search(thread))).collect();
        let found = running.into_iter().filter_map(|handle| handle.join().expect("a run of a seed panicked"));
        found.min_by_key(|(seed, _)| *seed)
    })
}
