//! The tests of this file are in a module, by whose name `make test` leaves them out. `make test-long` runs them, one
//! after another.

mod alone;
