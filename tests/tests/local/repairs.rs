//! Repairs of an Upsert sink against a naive model: a pipeline that goes on and a backfill take turns, each killed at any call
//! to its log, while records arrive. Of each key the versions that are written only grow, whoever computed them, and the
//! last one is the greatest that either of them saw.

use std::collections::{BTreeMap, BTreeSet};

use millrace_core::ids::Timeline;
use millrace_core::plan::{OperatorKind, Plan, StartFrom};
use millrace_core::totals::DropReason;
use millrace_plan::backfill::{Ranges, Repair, bound, repair};
use millrace_runtime::engine::topology::Names;
use millrace_tests::faulty::Faults;
use millrace_tests::{NamedTotals, Outcome, Rec, Ride, life, outcome, plan, scratch, write_topics};
use proptest::prelude::*;

use crate::upserts::{BY_COLUMN, BY_POSITION, By, Keys, Order, number, pipeline, policies, topics, totals_of};
use crate::worlds_config;

/// The name of the backfill.
const AGAIN: &str = "again";

#[derive(Clone, Debug)]
struct World {
    orders: Vec<Order>,
    partitions: i32,
    keys: Keys,
    by: By,
    joined: bool,
    /// The pipeline begins behind so many orders: it never saw them.
    missed: usize,
    /// What the backfill computes again, of each partition: permille of the records that are there when it begins.
    range: (i64, i64),
    /// One life for each: of the backfill or of the pipeline, how many calls it survives, orders that arrive before.
    turns: Vec<(bool, u32, usize)>,
    batch_records: usize,
}

fn worlds() -> impl Strategy<Value = World> {
    let order = (0..5_i64, -3..9_i32, 0..90_i64, 0..3_i32).prop_map(|(id, version, time, partition)| Order {
        id: Some(id),
        version: Some(version),
        time,
        partition,
    });
    let turns = proptest::collection::vec((any::<bool>(), 0..60_u32, 0..12_usize), 0..8);
    let range = (0..1000_i64, 0..1000_i64).prop_map(|(a, b)| (a.min(b), a.max(b) + 1));
    (
        proptest::collection::vec(order, 1..60),
        1..=3_i32,
        policies(),
        any::<bool>(),
        0..40_usize,
        range,
        turns,
        1..20_usize,
    )
        .prop_map(|(orders, partitions, (keys, by), joined, missed, range, turns, batch_records)| World {
            missed: missed.min(orders.len()),
            orders,
            partitions,
            keys,
            by,
            joined,
            range,
            turns,
            batch_records,
        })
}

/// A run of both, and what the backfill computed again: places of orders.
struct Run {
    outcome: Outcome,
    again: BTreeSet<usize>,
}

fn live(world: &World) -> Plan {
    let mode = if world.by == By::Column { BY_COLUMN } else { BY_POSITION };
    let mut live = plan(&pipeline(world.keys, mode, world.joined));
    let orders = live.sources.iter_mut().find(|s| s.name == "orders").expect("the stream");
    // The marks before the orders are no matter.
    let records = &topics(&world.orders[..world.missed], world.partitions, world.keys)["orders"];
    let count = |partition| records.iter().filter(|r| r.partition == partition).count() as i64;
    orders.start_from = StartFrom::Offsets((0..world.partitions).map(|p| (p, count(p))).collect());
    live
}

/// The plan of the backfill, once something is there to read.
fn backfill(world: &World, live: &Plan, records: &[Rec]) -> (Plan, BTreeSet<usize>) {
    let names = Names::new(&live.prefix, Timeline(1));
    let topic = |exchange: &str| names.repartition(exchange);
    let prefix = format!("{}-{AGAIN}", live.prefix);
    let made = repair(live, &Repair { prefix, sinks: &["out".to_owned()], topic: &topic });
    let mut plan = made.unwrap_or_else(|mistakes| panic!("{mistakes:#?}"));
    let (mut ranges, mut again) = (Vec::new(), BTreeSet::new());
    for partition in 0..world.partitions {
        let of: Vec<&Rec> = records.iter().filter(|r| r.partition == partition).collect();
        let at = |permille: i64| of.len() as i64 * permille / 1000;
        let (from, to) = (at(world.range.0), at(world.range.1));
        ranges.push((partition, from, to));
        let place = |record: &&Rec| {
            let value: serde_json::Value = serde_json::from_str(record.value.as_deref()?).expect("JSON");
            value["place"].as_u64().map(|n| n as usize)
        };
        again.extend(of[from as usize..to as usize].iter().filter_map(place));
    }
    bound(&mut plan, &Ranges::from([("orders".to_owned(), ranges)]));
    (plan, again)
}

fn run(world: &World, live: &Plan) -> anyhow::Result<Run> {
    let dir = scratch()?;
    let ride = Ride { batch_records: world.batch_records, ..Ride::smooth() };
    let all = topics(&world.orders, world.partitions, world.keys);
    let marks = world.partitions as usize;
    let mut there = world.missed;
    let arrive = |there: usize| {
        let mut now = all.clone();
        now.get_mut("orders").expect("the stream").truncate(marks + there);
        write_topics(&dir.path().join("topics"), &now).map(|()| now.remove("orders").expect("the stream"))
    };
    let mut records = arrive(there)?;
    // Its topics are there once it has run.
    life(live, (dir.path(), None), &ride, Faults { calls_left: None })?;
    let mut begun: Option<(Plan, BTreeSet<usize>)> = None;
    let mut turn = |backfills: bool, calls_left: Option<u32>, records: &[Rec]| -> anyhow::Result<Option<NamedTotals>> {
        let faults = Faults { calls_left };
        if backfills {
            let (plan, _) = begun.get_or_insert_with(|| backfill(world, live, records));
            return life(plan, (dir.path(), Some(AGAIN)), &ride, faults);
        }
        life(live, (dir.path(), None), &ride, faults)
    };
    for (backfills, calls, arriving) in &world.turns {
        there = (there + arriving).min(world.orders.len());
        records = arrive(there)?;
        turn(*backfills, Some(*calls), &records)?;
    }
    turn(true, None, &records)?;
    arrive(world.orders.len())?;
    let totals = turn(false, None, &[])?.expect("it ends");
    let (_, again) = begun.expect("it has run");
    Ok(Run { outcome: outcome(live, dir.path(), totals)?, again })
}

fn version(world: &World, n: usize) -> i64 {
    match world.by {
        By::Column => i64::from(world.orders[n].version.expect("each has one")),
        By::Position => n as i64,
    }
}

/// Versions of each key in the order in which they were written.
fn written(world: &World, outcome: &Outcome) -> BTreeMap<i64, Vec<i64>> {
    let mut written: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for row in &outcome.topics["out"] {
        let n = usize::try_from(number(row, "place")).expect("not negative");
        written.entry(number(row, "who")).or_default().push(version(world, n));
    }
    written
}

fn only_grow(written: &BTreeMap<i64, Vec<i64>>) -> bool {
    written.values().all(|versions| versions.windows(2).all(|pair| pair[0] < pair[1]))
}

fn check(world: &World) -> Result<(), TestCaseError> {
    let Run { outcome, again } = run(world, &live(world)).map_err(|error| TestCaseError::fail(format!("{error:#}")))?;
    let written = written(world, &outcome);
    prop_assert!(only_grow(&written), "{:?}", written);
    let mut greatest: BTreeMap<i64, i64> = BTreeMap::new();
    for (n, order) in world.orders.iter().enumerate().filter(|(n, _)| *n >= world.missed || again.contains(n)) {
        let most = greatest.entry(order.id.expect("each has one")).or_insert(i64::MIN);
        *most = (*most).max(version(world, n));
    }
    let last = written.iter().map(|(id, versions)| (*id, versions.last().copied().unwrap_or(i64::MIN)));
    prop_assert_eq!(last.collect::<BTreeMap<_, _>>(), greatest);
    // Whatever was computed again came to the guard once, and is accounted for there.
    let repairs = totals_of(&outcome, "out.upsert repairs");
    prop_assert_eq!(repairs.rows_in as usize, again.len());
    prop_assert!(outcome.totals.iter().all(|(_, totals)| totals.balanced()), "{:?}", outcome.totals);
    let live = totals_of(&outcome, "out.upsert");
    prop_assert_eq!(live.rows_in as usize, world.orders.len() - world.missed);
    prop_assert_eq!((live.rows_out + repairs.rows_out) as usize, outcome.topics["out"].len());
    Ok(())
}

proptest! {
    #![proptest_config(worlds_config())]

    #[test]
    fn whoever_computed_them_the_versions_of_a_key_only_grow_to_the_greatest(world in worlds()) {
        check(&world)?;
    }
}

/// Versions 1 and 2 were missed, 5 was not, and all are computed again.
fn missed() -> World {
    let order = |version| Order { id: Some(7), version: Some(version), time: 0, partition: 0 };
    World {
        orders: [1, 2, 5].map(order).to_vec(),
        partitions: 1,
        keys: Keys::Text,
        by: By::Column,
        joined: false,
        missed: 2,
        range: (0, 1000),
        turns: vec![(false, 1000, 1)],
        batch_records: 100,
    }
}

#[test]
fn what_is_older_than_what_is_there_is_left_out_and_counted() {
    let world = missed();
    let Run { outcome, .. } = run(&world, &live(&world)).expect("both end");
    assert_eq!(written(&world, &outcome), BTreeMap::from([(7, vec![5])]));
    let dropped = totals_of(&outcome, "out.upsert repairs").dropped;
    assert_eq!(dropped, BTreeMap::from([(DropReason::Outdated, 2), (DropReason::SameVersion, 1)]));
}

#[test]
fn what_was_missed_is_there_after_a_repair() {
    let world = World { turns: Vec::new(), orders: missed().orders[..2].to_vec(), ..missed() };
    let Run { outcome, .. } = run(&world, &live(&world)).expect("both end");
    assert_eq!(written(&world, &outcome), BTreeMap::from([(7, vec![1, 2])]));
}

/// A mutant: a guard that compares no two rows, as whoever writes last in a toy.
#[test]
fn without_the_guard_a_repair_writes_older_rows_after_newer_ones() {
    let world = missed();
    let mut toy = live(&world);
    for operator in toy.stages.iter_mut().flat_map(|stage| &mut stage.operators) {
        if let OperatorKind::Guard(guard) = &mut operator.kind {
            guard.key.extend(["place", "version"].map(str::to_owned));
        }
    }
    for layout in toy.state.iter_mut().filter(|layout| layout.operator == "out.upsert") {
        let column = |name: &str| layout.value.iter().find(|c| c.name == name).cloned();
        layout.key.extend(column("version"));
    }
    let Run { outcome, .. } = run(&world, &toy).expect("both end");
    let written = written(&world, &outcome);
    assert_eq!(written, BTreeMap::from([(7, vec![5, 1, 2])]));
    assert!(!only_grow(&written));
}
