//! What the formats promise, line by line. Rows of the collection of reported faults are tests named `case_<row>_…`.

mod debezium;
mod debezium_property;
mod encoder;
mod json;
mod json_property;
mod schema_changes;
mod support;
mod time;
