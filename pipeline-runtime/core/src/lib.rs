//! The words and the decisions of the runtime: pure data and pure functions.
//!
//! Nothing here reads a clock, draws a random number, does I/O or iterates a hash map: `now` is an argument, and the
//! same input gives the same answer. That is what lets a simulator run these decisions a million times.

pub mod assignment;
pub mod control;
pub mod epoch;
pub mod event_time;
pub mod fingerprint;
pub mod ids;
pub mod lag;
pub mod leave;
pub mod marker;
pub mod ownership;
pub mod pace;
pub mod partitioner;
pub mod plan;
pub mod report;
pub mod schema;
pub mod slices;
pub mod totals;
