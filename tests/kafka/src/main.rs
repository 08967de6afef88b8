//! Runs a Kafka until its standard input ends: for demos and for trying things out by hand.
//!
//! `millrace-kafka [BROKERS]` prints `bootstrap.servers=...` once it is ready, then `pid=...` for each broker.

use std::io::{self, Read};

use anyhow::Context;
use millrace_kafka_harness::{Kafka, Options};

fn main() -> anyhow::Result<()> {
    let brokers = match std::env::args().nth(1) {
        Some(text) => text.parse().with_context(|| format!("'{text}' is no number of brokers"))?,
        None => 1,
    };
    let kafka = Kafka::start(&Options { brokers, ..Options::default() })?;
    println!("bootstrap.servers={}", kafka.bootstrap_servers());
    println!("dir={}", kafka.dir().display());
    for id in 1..=brokers {
        println!("pid={}", kafka.pid(id).context("a broker has ended")?);
    }
    io::stdin().read_to_end(&mut Vec::new()).context("wait for the end of standard input")?;
    Ok(())
}
