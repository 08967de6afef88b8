//! The tests of this file are in a module, by whose name `make test` runs them when nothing else does.

mod lifecycle;
