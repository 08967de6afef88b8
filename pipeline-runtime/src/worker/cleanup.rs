//! Deletes what a pipeline made: the topics of its stages and exchanges, the groups that show its positions, the snapshots
//! that no savepoint needs, and at last its control topic, so that whoever is interrupted still knows whose the rest is.
//!
//! A topic of the user's is never deleted, whatever its name.

use std::collections::BTreeSet;

use millrace_core::ids::Timeline;
use millrace_core::ownership::{ControlLog, Identity, Rules};
use millrace_core::plan::Plan;
use millrace_core::report::CleanupReport;

use super::preflight::{conflict, refused};
use super::{Job, read_all};
use crate::engine::chain;
use crate::engine::topology::{Names, outputs};
use crate::log::LogError;
use crate::log::kafka::InternalTopics;
use crate::log::kafka::control::ControlTopic;
use crate::log::kafka::survey::{Deleted, Survey, reach};
use crate::snapshot::{self, SnapshotError};
use crate::storage::Storage;

const CHANGELOG: &str = "-changelog";
const REPARTITION: &str = "-repartition";

/// Deletes what there is. What cannot be deleted is left, and said; to be called again does no harm.
pub fn clean(job: &Job) -> CleanupReport {
    let mut report = CleanupReport::default();
    match reach(&job.connection, &|| false) {
        Ok(survey) => {
            if let Err(error) = try_clean(job, &survey, &mut report) {
                report.errors.push(chain(&error));
            }
        }
        Err(refusal) => report.errors.push(refused(&job.connection, &refusal)),
    }
    report
}

fn try_clean(job: &Job, survey: &Survey, report: &mut CleanupReport) -> Result<(), LogError> {
    let control = Names::new(&job.plan.prefix, job.timeline).control();
    let there: BTreeSet<String> = survey.all_topics()?.into_iter().collect();
    let mut known = ControlLog::new(Rules::ALL);
    if there.contains(&control) {
        let existing = InternalTopics { create: false, ..job.internal };
        read_all(&mut ControlTopic::open(&job.connection, &control, &existing)?, &mut known)?;
    }
    let topics = ours(&job.plan, &known, &there);
    // Where nobody has said whose it is, it is ours.
    if let Identity::Conflict(owner) = known.identity(&job.owner, job.adopt) {
        report.errors.push(conflict(&job.plan.prefix, &owner));
        report.left = topics;
        report.left.extend(there.contains(&control).then_some(control));
        return Ok(());
    }
    let groups: Vec<String> = topics.iter().filter_map(|t| t.strip_suffix(CHANGELOG)).map(str::to_owned).collect();
    note("topic", survey.delete_topics(&topics)?, report);
    note("group", survey.delete_groups(&groups)?, report);
    if let Some(storage) = &job.storage
        && let Err(error) = clean_storage(storage, report)
    {
        report.errors.push(format!("delete snapshots: {}", chain(&error)));
        report.left.push(storage.address(""));
    }
    if there.contains(&control) {
        if report.left.is_empty() {
            note("topic", survey.delete_topics(&[control])?, report);
        } else {
            report.left.push(control);
        }
    }
    Ok(())
}

fn clean_storage(storage: &Storage, report: &mut CleanupReport) -> Result<(), SnapshotError> {
    let store = storage.connect()?;
    for (timeline, task) in snapshot::tasks(&store)? {
        snapshot::delete_all(&store, timeline, &task)?;
        report.deleted.push(format!("snapshots of task {task}, timeline {timeline}"));
    }
    Ok(())
}

fn note(what: &str, deleted: Vec<Deleted>, report: &mut CleanupReport) {
    for (name, outcome) in deleted {
        match outcome {
            Ok(true) => report.deleted.push(name),
            Ok(false) => {}
            Err(why) => {
                report.errors.push(format!("delete {what} '{name}': {why}"));
                report.left.push(name);
            }
        }
    }
}

/// The topics of stages and exchanges among those that are there: what the control log says that we made, and what has
/// a name that only we give, since a topic is made before that is written down.
fn ours(plan: &Plan, known: &ControlLog, there: &BTreeSet<String>) -> Vec<String> {
    let users: BTreeSet<&str> =
        plan.sources.iter().map(|s| s.topic.as_str()).chain(outputs(plan).map(|(_, topic)| topic)).collect();
    let ours = |topic: &&String| {
        let made = known.created(topic).is_some() || named_by_us(&plan.prefix, topic, there);
        made && !users.contains(topic.as_str())
    };
    there.iter().filter(ours).cloned().collect()
}

/// True for `<prefix>-t<timeline>-<name>-changelog` and `-repartition`, unless it is the same of a longer prefix.
fn named_by_us(prefix: &str, topic: &str, there: &BTreeSet<String>) -> bool {
    let Some(rest) = topic.strip_prefix(prefix).and_then(|rest| rest.strip_prefix("-t")) else { return false };
    let Some((timeline, name)) = rest.split_once('-') else { return false };
    let name = name.strip_suffix(CHANGELOG).or_else(|| name.strip_suffix(REPARTITION));
    let numbered = !timeline.is_empty() && timeline.bytes().all(|b| b.is_ascii_digit());
    let mut longer = topic.match_indices("-t").map(|(at, _)| &topic[..at]).filter(|p| p.len() > prefix.len());
    numbered
        && name.is_some_and(|name| !name.is_empty())
        && longer.all(|longer| !there.contains(&Names::new(longer, Timeline(1)).control()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(topic: &str, there: &[&str]) -> bool {
        named_by_us("shop.orders", topic, &there.iter().map(|t| (*t).to_owned()).collect())
    }

    #[test]
    fn our_topics_are_known_by_their_names() {
        assert!(named("shop.orders-t1-joined-changelog", &[]));
        assert!(named("shop.orders-t12-by-customer-repartition", &[]));
        for other in [
            "shop.orders",
            "shop.orders-control",
            "shop.orders-t1-joined",
            "shop.orders-t1-changelog",
            "shop.orders-total-joined-changelog",
            "shop.orders-t-joined-changelog",
            "shop.orders2-t1-joined-changelog",
            "other-shop.orders-t1-joined-changelog",
        ] {
            assert!(!named(other, &[]), "{other}");
        }
    }

    #[test]
    fn a_pipeline_whose_prefix_begins_with_ours_keeps_its_topics() {
        let topic = "shop.orders-t1-eu-t1-joined-changelog";
        assert!(named(topic, &["shop.orders-control"]));
        assert!(!named(topic, &["shop.orders-control", "shop.orders-t1-eu-control"]));
    }
}
