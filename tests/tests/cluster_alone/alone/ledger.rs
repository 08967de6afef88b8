//! SLOs are counted right, whatever happens to worker, broker and operator: an outside ledger of the same load
//! ([`millrace_tests::ledger`] says what it knows, and why one slice for each event may differ) is held against the books
//! and against the counters.
//!
//! One event follows another, with calm between them. What the ledger is held against:
//!
//! - the **counters** `millrace_slo_observations_total` and `millrace_slo_bad_observations_total`, event by event. Each
//!   leader counts from 0, so what each said last is summed, by all samples that a Prometheus has of it. Bad slices differ
//!   by one at most for each event, of which a change of the leader is one, also one that nobody has asked for;
//! - the **books** in the ConfigMap, over all events together: bad slices as above, and every slice counted once. An edit
//!   of an objective makes the operator write them, before the first event and behind the last one.
//!
//! Any moment between two events is as good as another to divide slices by, since those around it are good: so it does not
//! matter that a reading of the counters may not have the last slice or two yet.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use millrace_kafka_harness::{Kafka, Message, Record, wait};
use millrace_operator_core::slo::books::BUCKETS;
use millrace_operator_core::slo::ring::Ring;
use millrace_tests::kubernetes::{Deployed, deployed};
use millrace_tests::ledger::{Bad, Ledger, Made, Row, SLICE_MS, counted, slice};
use millrace_tests::prometheus::Prometheus;
use millrace_tests::shop::now_ms;
use millrace_tests::story::{DEADLINE, Shape};
use rdkafka::message::Message as _;
use serde_json::{Value, json};

/// In the order of [`Bad::within`].
const SLOS: [&str; 2] = ["fresh", "behind"];
/// Much longer than anything takes while all is well, and half a slice.
const THRESHOLD_MS: i64 = 5_000;
const WINDOW_DAYS: i64 = 7;
/// One order for each partition.
const TICK: Duration = Duration::from_millis(100);
/// How long a look for the next row may wait.
const LOOK: Duration = Duration::from_millis(100);
/// Prometheus is asked so often, which scrapes once a second.
const ASK: Duration = Duration::from_secs(1);
/// The open slice, one that has just ended, and one that counters have not taken up yet: so far a reading may be behind.
const BEHIND_MAX: i64 = 3;

/// What an event does to SLOs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    /// Slices are bad, for each of them.
    Sure,
    /// Nothing: no slice may be counted as bad that the ledger does not find so.
    Never,
    /// Perhaps.
    Possible,
}

struct Event {
    what: &'static str,
    harm: Harm,
    /// How many slices may differ. What a change of leaders may cost is allowed for by how many there were.
    allowed: u64,
    act: fn(&mut Scene<'_>) -> anyhow::Result<()>,
}

const CHANGE: Event = Event { what: "another leader", harm: Harm::Possible, allowed: 0, act: change_leader };
const EVENTS: [Event; 7] = [
    Event { what: "a worker stands still", harm: Harm::Sure, allowed: 1, act: stop_worker },
    Event { what: "the broker is stopped", harm: Harm::Sure, allowed: 1, act: stop_broker },
    Event { what: "the operator is cut off from a worker", harm: Harm::Never, allowed: 1, act: cut_off },
    CHANGE,
    CHANGE,
    CHANGE,
    Event { what: "from 2 to 3 workers", harm: Harm::Possible, allowed: 1, act: rescale },
];

/// What there is to act on.
struct Scene<'a> {
    it: &'a mut Deployed,
    prometheus: Prometheus<'static>,
    flow: &'a Flow,
}

/// How far the load and its reader are.
#[derive(Default)]
struct Flow {
    made: AtomicU64,
    seen: AtomicU64,
    made_all: AtomicBool,
    seen_all: AtomicBool,
}

/// What all leaders together have counted by the end of a calm.
#[derive(Clone, Copy, Debug)]
struct Reading {
    /// In which it was taken.
    slice: i64,
    leaders: u64,
    observations: [u64; 2],
    bad: [u64; 2],
}

/// The books as they were written down.
#[derive(Clone, Copy, Debug)]
struct Books {
    /// The last slice that is in them.
    judged: i64,
    observations: [u64; 2],
    bad: [u64; 2],
}

/// What the operator says: a reading before each event and one behind the last, and the books then.
struct Told {
    readings: Vec<Reading>,
    books: [Books; 2],
}

#[test]
fn slices_are_counted_as_an_outside_ledger_says_whatever_happens_to_worker_broker_and_operator() {
    let mut it = deployed("ledger", Shape::Aligned);
    it.world.install(&["--set=replicas=2"]).unwrap();
    let (rows, told) = tell(&mut it).with_context(|| it.world.cluster.diagnostics()).unwrap();
    let bad = Ledger::new(&made(&it).unwrap(), &rows).unwrap().bad(THRESHOLD_MS);
    let mistakes = mistakes(&told, &bad);
    assert!(mistakes.is_empty(), "{mistakes:#?}; by the ledger these slices are bad: {bad:?}");
    it.delete().unwrap();
    it.world.install(&[]).unwrap();
    it.world.scale_operator(1).unwrap();
}

/// Lets everything happen while records are written and rows are read.
fn tell(it: &mut Deployed) -> anyhow::Result<(Vec<Row>, Told)> {
    let (world, flow, load) = (it.world, Flow::default(), Load::new(it)?);
    it.start(&[("/replicas", json!(2)), ("/slos", slos("99"))])?;
    let prometheus = Prometheus::start(&world.cluster)?;
    prometheus.discover()?;
    let out = it.story.topic("out");
    thread::scope(|scope| {
        let writer = scope.spawn(|| load.write(&world.kafka, &flow));
        let reader = scope.spawn(|| read(&world.kafka, &out, &flow));
        let told = happen(&mut Scene { it, prometheus, flow: &flow });
        flow.made_all.store(true, Ordering::Relaxed);
        let written = writer.join();
        let seen = told.as_ref().map_or(Ok(()), |_| level(&flow));
        // Whatever has failed, the threads end first.
        flow.seen_all.store(true, Ordering::Relaxed);
        let rows = reader.join();
        let told = told?;
        written.map_err(|_| anyhow::anyhow!("the thread that writes panicked"))??;
        let rows = rows.map_err(|_| anyhow::anyhow!("the thread that reads panicked"))??;
        seen.map(|()| (rows, told))
    })
}

/// What is in the topic of the source.
fn made(it: &Deployed) -> anyhow::Result<Vec<Made>> {
    let records = it.world.kafka.read_committed(&it.story.topic("orders"))?;
    let made = |record: &Record| {
        let order: Value = serde_json::from_slice(record.value.as_deref().unwrap_or_default())?;
        let id = order["id"].as_u64().context("an order has an id")?;
        Ok(Made { id, partition: record.partition, at_ms: record.timestamp_ms.context("a record has a time")? })
    };
    records.iter().map(made).collect()
}

fn slos(objective: &str) -> Value {
    let indicators = [json!({"freshness": {"threshold": "5s"}}), json!({"lag": {"threshold": "5s"}})];
    let slo = |(name, mut slo): (&str, Value)| {
        (slo["name"], slo["objective"], slo["window"]) =
            (json!(name), json!(objective), json!(format!("{WINDOW_DAYS}d")));
        slo
    };
    SLOS.into_iter().zip(indicators).map(slo).collect()
}

/// Orders of one customer for each partition, with the time at which they are made.
struct Load {
    topic: String,
    /// By partition.
    customers: Vec<u64>,
}

impl Load {
    /// Writes the customers. They never change: what waits is an order.
    fn new(it: &Deployed) -> anyhow::Result<Self> {
        let (story, now_ms) = (&it.story, now_ms()?);
        let is_of = |customer: &u64, partition| story.by_key(customer.to_string().as_bytes()) == partition;
        let customer =
            |partition| (0..).find(|customer| is_of(customer, partition)).expect("keys are of any partition");
        let customers: Vec<u64> = (0..story.partitions()).map(customer).collect();
        let change = |(customer, partition): (&u64, i32)| {
            let value = json!({"customer": customer, "name": "somebody", "since": now_ms});
            Message::new(customer.to_string(), value.to_string()).on(partition).at(now_ms)
        };
        it.world.kafka.produce(&story.topic("customers"), customers.iter().zip(0..).map(change))?;
        Ok(Self { topic: story.topic("orders"), customers })
    }

    /// Writes orders until it is told that these are all, also while nobody takes them.
    fn write(&self, kafka: &Kafka, flow: &Flow) -> anyhow::Result<()> {
        let writer = kafka.writer()?;
        while !flow.made_all.load(Ordering::Relaxed) {
            let (at_ms, made) = (now_ms()?, flow.made.load(Ordering::Relaxed));
            let order = |((customer, partition), id): ((&u64, i32), u64)| {
                let value = json!({"id": id, "customer": customer, "time": at_ms});
                Message::new(customer.to_string(), value.to_string()).on(partition).at(at_ms)
            };
            writer.enqueue(&self.topic, self.customers.iter().zip(0..).zip(made..).map(order))?;
            flow.made.store(made + self.customers.len() as u64, Ordering::Relaxed);
            thread::park_timeout(TICK);
        }
        writer.delivered()
    }
}

/// Reads rows, each with the time at which it is seen, until it is told that these are all.
fn read(kafka: &Kafka, topic: &str, flow: &Flow) -> anyhow::Result<Vec<Row>> {
    let (reader, mut rows) = (kafka.reader(topic)?, Vec::new());
    while !flow.seen_all.load(Ordering::Relaxed) {
        // The broker goes and comes back. Whatever else keeps rows away will be missed in the end.
        let Some(Ok(record)) = reader.poll(LOOK) else { continue };
        let seen_ms = now_ms()?;
        let row: Value = serde_json::from_slice(record.payload().unwrap_or_default()).context("read a row")?;
        ensure!(row["name"] == "somebody", "a row of an order without its customer: {row}");
        let id = row["id"].as_u64().context("a row has an id")?;
        rows.push(Row { id, of_ms: record.timestamp().to_millis().context("a row has a time")?, seen_ms });
        flow.seen.store(rows.len() as u64, Ordering::Relaxed);
    }
    Ok(rows)
}

/// Waits until a row has come of each record that was made before.
fn level(flow: &Flow) -> anyhow::Result<()> {
    let made = flow.made.load(Ordering::Relaxed);
    wait::until("rows to come out", DEADLINE, || Ok(flow.seen.load(Ordering::Relaxed) >= made))
}

fn happen(scene: &mut Scene<'_>) -> anyhow::Result<Told> {
    level(scene.flow)?;
    let begin = scene.read()?;
    let mut readings = vec![scene.read_behind(&begin, slice(now_ms()?))?];
    let (before, lives) = (scene.books("98.9")?, scene.it.lives()?);
    for Event { what, act, .. } in &EVENTS {
        eprintln!("{what}, in slice {}", slice(now_ms()?));
        act(scene).context(*what)?;
        level(scene.flow).context(*what)?;
        let calm = slice(now_ms()?);
        let last = readings.last().context("there is one from before")?;
        readings.push(scene.read_behind(last, calm).context(*what)?);
    }
    let after = scene.books("98.8")?;
    // What a process has seen and was not written down would be gone with it.
    ensure!(scene.it.lives()?.starts_with(&lives), "a worker was started again: {lives} became {}", scene.it.lives()?);
    Ok(Told { readings, books: [before, after] })
}

impl Scene<'_> {
    /// All samples of a counter, as what each process that led said last.
    fn counted(&self, counter: &str, slo: &str) -> anyhow::Result<Vec<u64>> {
        let Deployed { namespace, story, .. } = &*self.it;
        let of = format!("namespace=\"{namespace}\",pipeline=\"{}\",slo=\"{slo}\"", story.name);
        let series = self.prometheus.samples(&format!("{counter}{{{of}}}[1h]"))?;
        Ok(series.iter().flat_map(|samples| counted(samples)).collect())
    }

    fn read(&self) -> anyhow::Result<Reading> {
        let of = |counter| -> anyhow::Result<[Vec<u64>; 2]> {
            Ok([self.counted(counter, SLOS[0])?, self.counted(counter, SLOS[1])?])
        };
        let sums = |counted: &[Vec<u64>; 2]| [&counted[0], &counted[1]].map(|counted| counted.iter().sum());
        let observations = of("millrace_slo_observations_total")?;
        Ok(Reading {
            slice: slice(now_ms()?),
            leaders: observations[0].len() as u64,
            observations: sums(&observations),
            bad: sums(&of("millrace_slo_bad_observations_total")?),
        })
    }

    /// Waits until the counters have taken up a slice and all before it. `last` is a reading that was taken before.
    fn read_behind(&self, last: &Reading, slice: i64) -> anyhow::Result<Reading> {
        let mut reading = *last;
        self.it.until(&format!("slice {slice} in the counters"), || {
            thread::park_timeout(ASK);
            reading = self.read()?;
            // A leader may have counted again what the one before it had.
            let changes = reading.leaders.saturating_sub(last.leaders);
            let enough = (slice - last.slice + BEHIND_MAX).unsigned_abs() + changes;
            Ok(grown(reading.observations, last.observations).iter().all(|grown| *grown >= enough))
        })?;
        Ok(reading)
    }

    /// The books, which are written at once when an SLO is edited.
    fn books(&mut self, objective: &str) -> anyhow::Result<Books> {
        let since_ms = now_ms()?;
        self.it.apply(&[("/slos", slos(objective))])?;
        let (name, mut books) = (format!("configmap/{}-slos", self.it.story.name), Value::Null);
        self.it.until("the books to be written", || {
            let text = self.it.kubectl(&["get", &name, "-o", "jsonpath={.data.books\\.json}"])?;
            books = serde_json::from_str(&text).context("read the books")?;
            Ok(books["writtenMs"].as_i64().is_some_and(|ms| ms >= since_ms))
        })?;
        let judged = books["judged"].as_i64().context("books say how far they are")?;
        let length = WINDOW_DAYS * 86_400_000 / SLICE_MS / BUCKETS as i64;
        let window = |slo: &str| {
            let text = books["slos"][slo]["window"].as_str().unwrap_or_default();
            let ring =
                Ring::new(length, BUCKETS).read(text).with_context(|| format!("read the window of {slo}: {books}"))?;
            Ok::<_, anyhow::Error>(ring.sum(judged))
        };
        let counts = [window(SLOS[0])?, window(SLOS[1])?];
        Ok(Books {
            judged,
            observations: counts.map(|counts| counts.observations),
            bad: counts.map(|counts| counts.bad),
        })
    }
}

/// Waits for a moment, milliseconds since 1970.
fn wait_for(ms: i64) -> anyhow::Result<()> {
    wait::until("a moment of a slice", DEADLINE, || Ok(now_ms()? >= ms))
}

/// Waits until a slice is so old, and says when it began.
fn into_slice(age_ms: i64) -> anyhow::Result<i64> {
    let begun_ms = slice(now_ms()? - age_ms - 1) * SLICE_MS + SLICE_MS;
    wait_for(begun_ms + age_ms)?;
    Ok(begun_ms)
}

/// For less than the 30 s after which kubelet would end it. The threshold is passed a second into the next slice, the first
/// of which the worker tells nothing; and when it goes on there is time left in the slice to catch up.
fn stop_worker(scene: &mut Scene<'_>) -> anyhow::Result<()> {
    let begun_ms = into_slice(6_000)?;
    scene.it.signal_worker(1, "STOP")?;
    let waited = wait_for(begun_ms + 3 * SLICE_MS + 1_500);
    scene.it.signal_worker(1, "CONT")?;
    waited
}

/// It ends by itself, within some seconds. The threshold is passed early in the next slice, and 10 s without a look at the
/// ends late in it.
fn stop_broker(scene: &mut Scene<'_>) -> anyhow::Result<()> {
    let (kafka, begun_ms) = (&scene.it.world.kafka, into_slice(5_000)?);
    kafka.stop(1)?;
    let waited = wait_for(begun_ms + 3 * SLICE_MS + 500);
    kafka.restart(1)?;
    waited
}

/// The worker works on, and tells of its slices once it is reached: till then no slice is judged.
fn cut_off(scene: &mut Scene<'_>) -> anyhow::Result<()> {
    let begun_ms = into_slice(5_000)?;
    let (cut, before) = (scene.it.cut_off(1)?, scene.read()?);
    wait_for(begun_ms + 4 * SLICE_MS + 5_000)?;
    let after = scene.read()?;
    drop(cut);
    let [judged, _] = grown(after.observations, before.observations);
    ensure!(judged < 3, "{judged} slices were judged without the word of a worker");
    Ok(())
}

fn change_leader(scene: &mut Scene<'_>) -> anyhow::Result<()> {
    scene.it.world.change_leader()?;
    // The pod that came for the former one leads next.
    scene.prometheus.discover()
}

fn rescale(scene: &mut Scene<'_>) -> anyhow::Result<()> {
    scene.it.start(&[("/replicas", json!(3))])?;
    scene.it.wait_scaled(3)
}

/// All that the operator has counted otherwise than the ledger.
fn mistakes(told: &Told, bad: &Bad) -> Vec<String> {
    let (mut mistakes, mut allowed_all) = (Vec::new(), 0);
    for (event, pair) in EVENTS.iter().zip(told.readings.windows(2)) {
        let (before, after) = (&pair[0], &pair[1]);
        let (slices, ledger) = stretch(before.slice..after.slice, bad);
        let counters = grown(after.bad, before.bad);
        let allowed = event.allowed + after.leaders.saturating_sub(before.leaders);
        allowed_all += allowed;
        for (slo, ledger, counters) in (0..2).map(|i| (SLOS[i], ledger[i], counters[i])) {
            let line =
                format!("{}, {slices}: {slo}: ledger {ledger} bad, counters {counters}, {allowed} allowed", event.what);
            eprintln!("{line}");
            let wrong = match event.harm {
                Harm::Sure => ledger == 0 || counters == 0,
                Harm::Never => counters > ledger,
                Harm::Possible => false,
            };
            mistakes.extend((wrong || ledger.abs_diff(counters) > allowed).then_some(line));
        }
    }
    let [before, after] = told.books;
    let (slices, ledger) = stretch(before.judged + 1..after.judged + 1, bad);
    let (observations, books) = (grown(after.observations, before.observations), grown(after.bad, before.bad));
    let passed = after.judged.abs_diff(before.judged);
    for (i, slo) in SLOS.iter().enumerate() {
        let of = format!("the books, {slices}: {slo}: ledger {} bad of {passed}", ledger[i]);
        let line = format!("{of}, books {} of {}, {allowed_all} allowed", books[i], observations[i]);
        eprintln!("{line}");
        mistakes.extend((observations[i] != passed || ledger[i].abs_diff(books[i]) > allowed_all).then_some(line));
    }
    mistakes.extend(totals(told, allowed_all));
    mistakes
}

/// How a stretch of slices is called, and how many of it are bad.
fn stretch(slices: Range<i64>, bad: &Bad) -> (String, [u64; 2]) {
    (format!("slices {} to {}", slices.start, slices.end - 1), bad.within(&slices))
}

fn grown(after: [u64; 2], before: [u64; 2]) -> [u64; 2] {
    [0, 1].map(|i| after[i].saturating_sub(before[i]))
}

/// Slices that the counters have too many or too few, of all.
fn totals(told: &Told, allowed: u64) -> Vec<String> {
    let (Some(first), Some(last)) = (told.readings.first(), told.readings.last()) else { return Vec::new() };
    let (passed, counted) = (last.slice.abs_diff(first.slice), grown(last.observations, first.observations));
    let all = SLOS.iter().zip(counted);
    let wrong = all.filter(|(_, counted)| counted.abs_diff(passed) > allowed);
    wrong.map(|(slo, counted)| format!("{slo}: {passed} slices, counters {counted}, {allowed} allowed")).collect()
}
