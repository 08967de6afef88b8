//! The tests of this file are in a module, by whose name `make test` runs them beside others on brokers.

mod brokers;
