//! `make bench`: records per CPU second of the main job and of each of its parts alone, on the embedded log and on a real
//! Kafka, so that the limit stands beside the result. Figures, no judgement: what was measured goes into
//! docs/measurements.md.

mod data;
mod embedded;
mod kafka;

fn main() -> anyhow::Result<()> {
    embedded::run()?;
    kafka::run()
}
