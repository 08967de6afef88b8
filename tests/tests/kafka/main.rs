//! What runs on real brokers, in one program: it is linked once, and those that wait do so beside each other. By the
//! names of its modules `make test` runs some beside other tests, and those that break brokers when nothing else runs.

mod brokers;
mod faults;
