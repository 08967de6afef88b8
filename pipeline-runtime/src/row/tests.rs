//! Rows and keys against random columns and values.

mod keys;
mod rows;
mod values;
