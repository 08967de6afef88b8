//! The Millrace pipeline runtime: reads a plan's sources, runs its tasks, commits epochs.
//!
//! Data flows one way: log -> engine -> operators -> outbox -> log. State is written after the commit is known.

pub mod cli;
pub mod clock;
pub mod control;
pub mod engine;
pub mod format;
pub mod http;
pub mod log;
pub mod memory;
pub mod metrics;
pub mod operator;
pub mod row;
pub mod rows;
pub mod secrets;
pub mod snapshot;
pub mod state;
pub mod storage;
pub mod worker;
