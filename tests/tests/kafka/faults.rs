//! `millrace run` on a real Kafka, under load, through what happens to brokers, to the network and to topics: what a
//! `read_committed` reader sees is the naive model's answer, each row once.
//!
//! All tests share a cluster of three. Those that take brokers away have it for themselves.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_core::ids::{Offset, Partition};
use millrace_kafka_harness::{Kafka, Message, Options, Signal, wait};
use millrace_runtime::log::kafka::connection::{Connection, FETCHED_BYTES};
use millrace_runtime::log::kafka::{InternalTopics, KafkaLog, KafkaLogConfig};
use millrace_runtime::log::{Assignment, Log};
use millrace_tests::proxy::{Cut, Proxy};
use millrace_tests::story::{DEADLINE, Shape, Story, Worker};

/// Of a worker's producer.
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Stories that take long write so often: the whole output is read at each look.
const PACE: Duration = Duration::from_millis(20);

fn kafka() -> &'static Kafka {
    static KAFKA: OnceLock<Kafka> = OnceLock::new();
    KAFKA.get_or_init(|| {
        let properties = [
            // A replica that stands still leaves the ones in sync before its broker is given up: between the two a
            // commit is answered, and its markers are not written where that broker leads.
            ("replica.lag.time.max.ms", "1500"),
            ("broker.session.timeout.ms", "6000"),
            // Who comes back leads again what it led, soon: one more change of leaders.
            ("leader.imbalance.check.interval.seconds", "3"),
            // Transactions that time out are ended within a second, not ten.
            ("transaction.abort.timed.out.transaction.cleanup.interval.ms", "1000"),
        ];
        let properties = properties.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let options = Options { brokers: 3, proxied_listener: true, properties, ..Options::default() };
        Kafka::start(&options).expect("three brokers start")
    })
}

static TURNS: RwLock<()> = RwLock::new(());

/// The cluster, together with other tests that leave it whole.
fn shared() -> (&'static Kafka, RwLockReadGuard<'static, ()>) {
    let turn = TURNS.read().unwrap_or_else(PoisonError::into_inner);
    (kafka(), turn)
}

/// The cluster and its proxied listeners, for one test at a time. The proxy is last: what is bound last is dropped first,
/// and the next one needs its ports.
fn proxied() -> (&'static Kafka, (MutexGuard<'static, ()>, RwLockReadGuard<'static, ()>), Proxy) {
    static PROXY: Mutex<()> = Mutex::new(());
    let (kafka, turn) = shared();
    let only = PROXY.lock().unwrap_or_else(PoisonError::into_inner);
    (kafka, (only, turn), Proxy::start(kafka).unwrap())
}

/// The cluster for one test, which may do what it likes to the brokers. Afterwards it is whole again.
struct Alone {
    kafka: &'static Kafka,
    _turn: RwLockWriteGuard<'static, ()>,
}

fn alone() -> Alone {
    let turn = TURNS.write().unwrap_or_else(PoisonError::into_inner);
    Alone { kafka: kafka(), _turn: turn }
}

impl Alone {
    fn heal(&self) -> anyhow::Result<()> {
        for id in ids(self.kafka) {
            if self.kafka.is_running(id) {
                self.kafka.signal(id, Signal::Continue)?;
            } else {
                self.kafka.launch_again(id)?;
            }
        }
        self.kafka.wait_ready()?;
        ["__transaction_state", "__consumer_offsets"].iter().try_for_each(|topic| self.kafka.wait_in_sync(topic))
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        // A test that failed has said why, and a cluster that stays broken fails the next one.
        drop(self.heal());
    }
}

fn ids(kafka: &Kafka) -> impl Iterator<Item = u32> + use<> {
    1..=kafka.brokers() as u32
}

/// A worker that reaches the brokers by the proxy alone.
fn proxied_worker(story: &Story, proxy: &Proxy, state: &str, more: &[&str]) -> anyhow::Result<Worker> {
    let file = story.dir().join("proxied.yaml");
    std::fs::write(&file, story.yaml(&proxy.servers()))?;
    let mut worker = Worker::start(&file, &story.dir().join(state), more)?;
    worker.wait_ready()?;
    Ok(worker)
}

/// A story under load, and its worker, which has begun to work.
fn begun(story: &mut Story, seed: u64, more: &[&str]) -> anyhow::Result<Worker> {
    story.pace = PACE;
    let mut worker = story.worker("state", more)?;
    worker.wait_ready()?;
    story.generate(seed);
    story.wait_rows(50)?;
    Ok(worker)
}

/// Waits until all that was written so far has come out, and something more was written.
fn goes_on(story: &Story) -> anyhow::Result<()> {
    story.wait_written(50)?;
    story.wait_rows(story.written())
}

/// Nothing that happened has ended the worker or spoilt the answer.
fn ends_well(mut story: Story, worker: Worker) -> anyhow::Result<()> {
    story.stop_generating()?;
    story.check()?;
    worker.stop()?;
    story.check()
}

/// The worker ends by itself, and says why.
fn ends_with(mut worker: Worker, words: &[&str]) -> anyhow::Result<()> {
    let status = worker.wait()?;
    let log = worker.log();
    ensure!(!status.success(), "it ended well: {log}");
    ensure!(words.iter().all(|word| log.contains(word)), "{words:?} are not all in: {log}");
    Ok(())
}

#[test]
fn brokers_that_are_killed_in_turn_cost_no_row() {
    let Alone { kafka, .. } = &alone();
    let mut story = Story::new(kafka, "kills", Shape::Repartitioned, 6).unwrap();
    let worker = begun(&mut story, 1, &["--lanes", "2"]).unwrap();
    // Each one leads transactions, group offsets and topics, and one of them is the controller.
    for id in ids(kafka) {
        kafka.kill(id).unwrap();
        goes_on(&story).unwrap();
        kafka.restart(id).unwrap();
        for topic in
            ["__transaction_state", "__consumer_offsets", &format!("{}-control", story.prefix()), &story.topic("out")]
        {
            kafka.wait_in_sync(topic).unwrap();
        }
    }
    ends_well(story, worker).unwrap();
}

#[test]
fn too_few_replicas_hold_the_output_up_until_they_are_back() {
    let Alone { kafka, .. } = &alone();
    let mut story = Story::new(kafka, "replicas", Shape::Aligned, 3).unwrap();
    // All three must have the output.
    kafka.delete_topic(&story.topic("out")).unwrap();
    kafka.create_topic(&story.topic("out"), 3, &[("min.insync.replicas", "3")]).unwrap();
    let mut worker = begun(&mut story, 2, &[]).unwrap();
    kafka.kill(3).unwrap();
    worker.wait_log("commit an epoch", 1).unwrap();
    kafka.restart(3).unwrap();
    goes_on(&story).unwrap();
    // One of three can neither write nor choose leaders.
    for topic in ["__transaction_state", "__consumer_offsets"] {
        kafka.wait_in_sync(topic).unwrap();
    }
    kafka.kill(1).unwrap();
    kafka.kill(2).unwrap();
    let lost = worker.log().matches("the producer is lost").count();
    worker.wait_log("the producer is lost", lost + 1).unwrap();
    kafka.launch_again(1).unwrap();
    kafka.launch_again(2).unwrap();
    kafka.wait_ready().unwrap();
    goes_on(&story).unwrap();
    ends_well(story, worker).unwrap();
}

/// Cuts end after end of transactions: first a few, which the client library gets over by asking again (on a machine that
/// is busy the worker may be faster), and then so many that an outcome stays unknown.
fn cut(kafka: &'static Kafka, proxy: &Proxy, name: &str, cut: Cut, resolution: &str) -> anyhow::Result<()> {
    let mut story = Story::new(kafka, name, Shape::Aligned, 3)?;
    story.pace = PACE;
    let mut worker = proxied_worker(&story, proxy, "state", &[])?;
    story.generate(3);
    for times in 1..=3 {
        let before = proxy.cut_count();
        proxy.cut_end_txn(cut, times);
        wait::until("ends of transactions to be cut", DEADLINE, || Ok(proxy.cut_count() >= before + times))?;
        goes_on(&story)?;
    }
    let lost = worker.log().matches("the producer is lost").count();
    proxy.cut_end_txn(cut, usize::MAX);
    worker.wait_log("the producer is lost", lost + 1)?;
    proxy.cut_end_txn(cut, 0);
    worker.wait_log(resolution, 1)?;
    goes_on(&story)?;
    ends_well(story, worker)
}

#[test]
fn a_commit_that_was_done_and_not_answered_is_found_done() {
    let (kafka, _turn, proxy) = proxied();
    cut(kafka, &proxy, "unanswered", Cut::Answer, "resolution=Committed").unwrap();
}

#[test]
fn a_commit_that_never_arrived_is_found_not_done() {
    let (kafka, _turn, proxy) = proxied();
    cut(kafka, &proxy, "unheard", Cut::Request, "resolution=NotCommitted").unwrap();
}

#[test]
fn a_record_behind_an_end_that_was_reached_is_not_passed_by() {
    const PARTITIONS: i32 = 30;
    let (kafka, _turn, proxy) = proxied();
    kafka.create_topic("behind", PARTITIONS, &[]).unwrap();
    let mut log = KafkaLog::open(KafkaLogConfig {
        connection: Connection::plain(proxy.servers()),
        transactional_id: "behind".to_owned(),
        group: "behind-readers".to_owned(),
        transaction_timeout_ms: TRANSACTION_TIMEOUT.as_millis() as u32,
        outputs: Vec::new(),
        internal: InternalTopics { create: false, replication_factor: 1 },
        until_end: false,
        fetched_bytes: FETCHED_BYTES,
        trim_every_ms: 0,
    })
    .unwrap();
    let assigned = (0..PARTITIONS).map(|partition| {
        let (topic, group) = ("behind".to_owned(), "behind-readers".to_owned());
        log.assign(Assignment { topic, partition: Partition(partition), next: Offset(0), rank: 0, group })
    });
    let inputs = assigned.collect::<Result<Vec<_>, _>>().unwrap();
    proxy.delay(Duration::from_millis(100));
    let mut read = 0;
    let mut look = |log: &mut KafkaLog| {
        // As a lane does: where inputs end, and what there is.
        let ends = inputs.iter().map(|input| log.end(*input)).collect::<Result<Vec<_>, _>>()?;
        while let Some(fetch) = log.poll(&|_| Some(Offset(i64::MAX)), 10)? {
            assert_eq!((fetch.records.len(), fetch.next), (1, Offset(1)));
            read += 1;
        }
        anyhow::Ok((ends[0].as_of_ms, read))
    };
    // Long enough for each partition to tell that it is empty.
    let begin = look(&mut log).unwrap().0;
    wait::until("a while", DEADLINE, || Ok(look(&mut log)?.0 > begin + 2_000)).unwrap();
    kafka.produce("behind", (0..PARTITIONS).map(|partition| Message::new("k", "v").on(partition).at(1))).unwrap();
    wait::until("the records", DEADLINE, || Ok(look(&mut log)?.1 == PARTITIONS)).unwrap();
}

#[test]
fn slow_brokers_cost_time_and_no_row() {
    let (kafka, _turn, proxy) = proxied();
    let mut story = Story::new(kafka, "slow", Shape::Aligned, 3).unwrap();
    story.pace = PACE;
    let mut worker = proxied_worker(&story, &proxy, "state", &[]).unwrap();
    story.generate(4);
    proxy.delay(Duration::from_millis(300));
    goes_on(&story).unwrap();
    // A transaction takes five answers at least, one after the other.
    proxy.delay(Duration::from_secs(3));
    worker.wait_log("commit an epoch", 1).unwrap();
    proxy.delay(Duration::ZERO);
    goes_on(&story).unwrap();
    ends_well(story, worker).unwrap();
}

#[test]
fn an_outage_that_outlasts_a_transaction_ends_nothing() {
    let (kafka, _turn, proxy) = proxied();
    let mut story = Story::new(kafka, "outage", Shape::Repartitioned, 3).unwrap();
    story.pace = PACE;
    let mut worker = proxied_worker(&story, &proxy, "state", &["--lanes", "2"]).unwrap();
    story.generate(5);
    goes_on(&story).unwrap();
    proxy.interrupt();
    worker.wait_log("the producer is lost", 2).unwrap();
    proxy.mend();
    goes_on(&story).unwrap();
    ends_well(story, worker).unwrap();
}

/// Stops a worker as a debugger would, for longer than a transaction may be open.
fn sleep_long<T>(zombie: &Worker, meanwhile: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    zombie.signal("STOP")?;
    let start = Instant::now();
    let done = meanwhile()?;
    let timed_out = TRANSACTION_TIMEOUT + Duration::from_secs(2);
    wait::until("the transaction to time out", DEADLINE, || Ok(start.elapsed() > timed_out))?;
    zombie.signal("CONT")?;
    Ok(done)
}

/// While a worker sleeps, number 0 takes its tasks. It wakes up and ends, with these words.
fn taken(name: &str, shape: Shape, seed: u64, more: &[&str], words: &[&str]) -> anyhow::Result<()> {
    let (kafka, _turn) = shared();
    let mut story = Story::new(kafka, name, shape, 3)?;
    let zombie = begun(&mut story, seed, more)?;
    let taker = sleep_long(&zombie, || {
        let mut taker = story.worker("taker", &[])?;
        taker.wait_ready()?;
        goes_on(&story)?;
        Ok(taker)
    })?;
    ends_with(zombie, words)?;
    goes_on(&story)?;
    ends_well(story, taker)
}

#[test]
fn a_zombie_that_slept_longer_than_its_transaction_never_commits_under_its_old_number() {
    let words = ["two processes must not have the same worker number"];
    taken("zombie-same", Shape::Aligned, 6, &[], &words).unwrap();
}

#[test]
fn a_zombie_that_slept_longer_than_its_transaction_never_commits_what_another_one_took() {
    taken("zombie-other", Shape::Repartitioned, 7, &["--worker", "1"], &[]).unwrap();
}

#[test]
fn a_sleeper_whose_transaction_timed_out_goes_on_with_its_tasks() {
    let (kafka, _turn) = shared();
    let mut story = Story::new(kafka, "sleeper", Shape::Aligned, 3).unwrap();
    let mut sleeper = begun(&mut story, 8, &[]).unwrap();
    let changelog = changelog(kafka, &story).unwrap();
    let is_open = || -> anyhow::Result<bool> {
        let hides = (0..3).map(|partition| kafka.hides(&changelog, partition)).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(hides.contains(&true))
    };
    wait::until("it to sleep within a transaction", DEADLINE, || {
        sleeper.signal("STOP")?;
        let asleep = is_open()?;
        if !asleep {
            sleeper.signal("CONT")?;
        }
        Ok(asleep)
    })
    .unwrap();
    wait::until("the brokers to end the transaction", DEADLINE, || Ok(!is_open()?)).unwrap();
    sleeper.signal("CONT").unwrap();
    sleeper.wait_log("the producer is lost", 1).unwrap();
    goes_on(&story).unwrap();
    ends_well(story, sleeper).unwrap();
}

/// How the brokers find the partition of an id: by Java's hash of a string.
fn coordinator(kafka: &Kafka, transactional_id: &str) -> anyhow::Result<u32> {
    let hash = transactional_id.bytes().fold(0_i32, |hash, byte| hash.wrapping_mul(31).wrapping_add(i32::from(byte)));
    kafka.leader("__transaction_state", (hash & i32::MAX) % 4)
}

/// A broker that leads changelog partitions, and not what a commit of worker 0 and a claim need.
fn bystander(kafka: &Kafka, story: &Story) -> anyhow::Result<Option<u32>> {
    let (prefix, changelog) = (story.prefix(), changelog(kafka, story)?);
    let needed = [coordinator(kafka, &format!("{prefix}-t1-w0-l0"))?, kafka.leader(&format!("{prefix}-control"), 0)?];
    let leaders = (0..6).map(|partition| kafka.leader(&changelog, partition)).collect::<anyhow::Result<Vec<_>>>()?;
    Ok(leaders.into_iter().find(|leader| !needed.contains(leader)))
}

/// Has the leader of a changelog partition stand still just before the end of a transaction, whose marker then comes
/// late: `leave` ends the worker once that commit was answered, and another worker goes on.
fn late_marker(
    (alone, proxy): (&Alone, &Proxy),
    story: &mut Story,
    (worker, leave): (Worker, fn(Worker) -> anyhow::Result<()>),
    next: (&str, &[&str]),
) -> anyhow::Result<Worker> {
    let kafka = alone.kafka;
    story.stop_generating()?;
    story.check()?;
    let mut broker = 0;
    wait::until("a broker that leads changelogs only", DEADLINE, || {
        broker = bystander(kafka, story)?.unwrap_or(0);
        Ok(broker > 0)
    })?;
    // All that comes into the epoch is written before its end, so that nothing else waits for the broker.
    worker.signal("STOP")?;
    story.generate(9);
    story.wait_written(100)?;
    story.stop_generating()?;
    let before = proxy.answered_count();
    proxy.before_end_txn(move || kafka.signal(broker, Signal::Stop).expect("the broker runs"));
    worker.signal("CONT")?;
    wait::until("a commit to be answered", DEADLINE, || Ok(proxy.answered_count() > before))?;
    leave(worker)?;
    let worker = proxied_worker(story, proxy, next.0, next.1)?;
    kafka.signal(broker, Signal::Continue)?;
    alone.heal()?;
    story.generate(9);
    goes_on(story)?;
    Ok(worker)
}

#[test]
fn markers_that_come_late_are_waited_for() {
    let alone = alone();
    let proxy = Proxy::start(alone.kafka).unwrap();
    let mut story = Story::new(alone.kafka, "late", Shape::Aligned, 6).unwrap();
    story.pace = PACE;
    // Long enough for all that lies in the topics, so that nothing comes after the commit whose marker is late.
    story.commit_interval = "2s";
    let worker = proxied_worker(&story, &proxy, "state", &[]).unwrap();
    story.generate(9);
    goes_on(&story).unwrap();
    let (tools, killed) = ((&alone, &proxy), (worker, Worker::kill as fn(Worker) -> _));
    let worker = late_marker(tools, &mut story, killed, ("killed", &[])).unwrap();
    // Where it gives its tasks back in time nobody fences it: only its release says which marker must come.
    let left = (worker, Worker::leave as fn(Worker) -> _);
    let worker = late_marker(tools, &mut story, left, ("left", &["--worker", "1"])).unwrap();
    ends_well(story, worker).unwrap();
}

/// The changelog of a pipeline of one stage.
fn changelog(kafka: &Kafka, story: &Story) -> anyhow::Result<String> {
    let ours = |topic: &String| topic.starts_with(&story.prefix()) && topic.ends_with("-changelog");
    kafka.topics()?.into_iter().find(ours).context("the pipeline has a changelog")
}

#[test]
fn records_that_expired_before_they_were_read_are_an_error_that_names_them() {
    let (kafka, _turn) = shared();
    let mut story = Story::new(kafka, "expired", Shape::Aligned, 2).unwrap();
    let worker = begun(&mut story, 10, &[]).unwrap();
    worker.kill().unwrap();
    story.wait_written(500).unwrap();
    story.stop_generating().unwrap();
    let orders = story.topic("orders");
    let end = kafka.end(&orders, 1).unwrap();
    kafka.delete_records(&orders, 1, end).unwrap();
    let gone = ["partition 1 of topic 'expired-orders' is gone", "the record at offset"];
    ends_with(story.worker("state", &[]).unwrap(), &gone).unwrap();
    ends_with(story.worker("elsewhere", &[]).unwrap(), &gone).unwrap();
    // The task of the other partition goes on until its worker ends.
    story.check_part().unwrap();
}

#[test]
fn records_that_expired_under_a_running_worker_are_an_error_that_names_them() {
    let (kafka, _turn) = shared();
    let mut story = Story::new(kafka, "expired-live", Shape::Aligned, 2).unwrap();
    let worker = begun(&mut story, 11, &[]).unwrap();
    worker.signal("STOP").unwrap();
    // More than it may have fetched already.
    story.wait_written(2_000).unwrap();
    story.stop_generating().unwrap();
    let orders = story.topic("orders");
    for partition in 0..2 {
        kafka.delete_records(&orders, partition, kafka.end(&orders, partition).unwrap()).unwrap();
    }
    worker.signal("CONT").unwrap();
    ends_with(worker, &["topic 'expired-live-orders' is gone", "the record at offset"]).unwrap();
}

/// Takes the positions away that a group shows, or sets one to where it is wrong.
fn spoil(kafka: &Kafka, group: &str, topic: &str, round: usize) -> anyhow::Result<()> {
    wait::until("the group's offsets", DEADLINE, || Ok(!kafka.group_offsets(group, topic)?.is_empty()))?;
    match round {
        // Kafka refuses it while a transaction of the worker holds offsets of the group.
        0 => wait::until("the group to be deleted", DEADLINE, || Ok(kafka.delete_group(group).is_ok())),
        1 => kafka.set_group_offset(group, topic, 0, 0),
        _ => kafka.set_group_offset(group, topic, 0, kafka.end(topic, 0)? + 1_000),
    }
}

#[test]
fn group_offsets_that_are_deleted_or_reset_change_nothing() {
    let (kafka, _turn) = shared();
    let mut story = Story::new(kafka, "groups", Shape::Aligned, 2).unwrap();
    let mut worker = begun(&mut story, 12, &[]).unwrap();
    let orders = story.topic("orders");
    let group = changelog(kafka, &story).unwrap().replace("-changelog", "");
    for round in 0..3 {
        spoil(kafka, &group, &orders, round).unwrap();
        goes_on(&story).unwrap();
        worker.kill().unwrap();
        story.wait_written(100).unwrap();
        spoil(kafka, &group, &orders, round).unwrap();
        // Without the local state, too.
        worker = story.worker(&format!("state{round}"), &[]).unwrap();
        worker.wait_ready().unwrap();
        goes_on(&story).unwrap();
    }
    ends_well(story, worker).unwrap();
}

#[test]
fn where_to_start_from_is_asked_once() {
    let (kafka, _turn) = shared();
    let mut story = Story::new(kafka, "once", Shape::Aligned, 2).unwrap();
    let yaml = story.yaml(&kafka.bootstrap_servers());
    let latest = yaml.replace("{topic: once-orders}", "{topic: once-orders, startFrom: {policy: Latest}}");
    assert_ne!(latest, yaml);
    std::fs::write(story.file(), latest).unwrap();
    let mut worker = begun(&mut story, 13, &[]).unwrap();
    for state in ["state", "elsewhere"] {
        worker.kill().unwrap();
        story.wait_written(200).unwrap();
        worker = story.worker(state, &[]).unwrap();
        worker.wait_ready().unwrap();
    }
    ends_well(story, worker).unwrap();
}

#[test]
fn a_changelog_that_was_made_again_is_an_error_and_doubles_nothing() {
    let (kafka, _turn) = shared();
    let mut story = Story::new(kafka, "remade", Shape::Aligned, 2).unwrap();
    let worker = begun(&mut story, 14, &[]).unwrap();
    worker.kill().unwrap();
    story.stop_generating().unwrap();
    let changelog = changelog(kafka, &story).unwrap();
    kafka.delete_topic(&changelog).unwrap();
    let rows = story.rows().unwrap().len();
    let words = [changelog.as_str(), "was deleted and made again"];
    ends_with(story.worker("state", &[]).unwrap(), &words).unwrap();
    kafka.delete_topic(&changelog).unwrap();
    kafka.create_topic(&changelog, 2, &[("cleanup.policy", "compact")]).unwrap();
    ends_with(story.worker("elsewhere", &[]).unwrap(), &words).unwrap();
    assert_eq!(story.rows().unwrap().len(), rows);
}

#[test]
fn a_changelog_that_is_deleted_under_a_running_worker_is_an_error_and_doubles_nothing() {
    let (kafka, _turn) = shared();
    let mut story = Story::new(kafka, "deleted", Shape::Aligned, 2).unwrap();
    let worker = begun(&mut story, 15, &[]).unwrap();
    let changelog = changelog(kafka, &story).unwrap();
    kafka.delete_topic(&changelog).unwrap();
    ends_with(worker, &[changelog.as_str()]).unwrap();
    story.stop_generating().unwrap();
    story.check_part().unwrap();
}

#[test]
fn a_control_topic_that_is_gone_is_an_error_and_doubles_nothing() {
    let (kafka, _turn) = shared();
    let mut story = Story::new(kafka, "uncontrolled", Shape::Aligned, 2).unwrap();
    let worker = begun(&mut story, 16, &[]).unwrap();
    kafka.delete_topic("test.uncontrolled-control").unwrap();
    ends_with(worker, &["test.uncontrolled-control"]).unwrap();
    story.stop_generating().unwrap();
    let rows = story.rows().unwrap().len();
    let words = ["holds records, but the control log does not know", "the control topic was deleted"];
    ends_with(story.worker("state", &[]).unwrap(), &words).unwrap();
    assert_eq!(story.rows().unwrap().len(), rows);
    story.check_part().unwrap();
}
