//! On brokers that nobody breaks, or on some of their own. Most share one, so their topics have names of their own.

mod control;
mod golden;
mod handover;
mod joins;
mod lag;
mod limits;
mod log;
mod preflight;
mod repairs;
mod run;
mod savepoints;
mod secure;
mod snapshots;
mod topics;
