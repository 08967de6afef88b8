//! The schemas of texts that occur in many places: names, topics, columns, expressions. They are markers for
//! `#[schemars(with = ...)]`; the fields themselves are plain strings.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

/// Longest name of a source, step or sink: names become parts of topic names, labels and metrics.
pub const NAME_LENGTH_MAX: usize = 40;
/// DNS-1035 with underscores, because names of sources and sinks are also names in SQL.
pub const NAME_PATTERN: &str = "^[a-z]([-_a-z0-9]*[a-z0-9])?$";
/// Kafka's own rule for topics.
pub const TOPIC_PATTERN: &str = "^[a-zA-Z0-9._-]+$";
/// DNS-1123 subdomain.
pub const KUBERNETES_NAME_PATTERN: &str = "^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$";
/// Kubernetes' own rule for keys of a Secret.
pub const SECRET_KEY_PATTERN: &str = "^[-._a-zA-Z0-9]+$";
/// Kubernetes' own rule for quantities.
pub const QUANTITY_PATTERN: &str = "^[+-]?([0-9]+([.][0-9]*)?|[.][0-9]+)(([KMGTPE]i)|[numkMGTPE]|([eE][+-]?[0-9]+))?$";
/// `0.3`, `0.3.1` or `0.3.1-rc.1`.
pub const VERSION_PATTERN: &str = "^[0-9]+([.][0-9]+){1,2}(-[0-9A-Za-z.-]+)?$";
/// The address of an object store.
pub const ENDPOINT_PATTERN: &str = "^https?://[^/].*$";
/// A folder, from the root.
pub const PATH_PATTERN: &str = "^/.+";
/// Whole days from 7 to 90: rules and alerts are made for these.
pub const WINDOW_PATTERN: &str = "^([7-9]|[1-8][0-9]|90)d$";
/// A percentage below 100 as text, since an API has no floats.
pub const OBJECTIVE_PATTERN: &str = "^[0-9]{1,2}([.][0-9]{1,4})?$";

macro_rules! texts {
    ($($(#[$doc:meta])* $name:ident = $schema:tt;)*) => {$(
        $(#[$doc])*
        pub struct $name;

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    )*};
}

texts! {
    /// A name of ours.
    NameText = {"type": "string", "minLength": 1, "maxLength": NAME_LENGTH_MAX, "pattern": NAME_PATTERN};
    /// A column, or a field of a row.
    ColumnText = {"type": "string", "minLength": 1, "maxLength": 128};
    /// SQL text of one expression; 4 KiB is far above what a person writes, and bounds what the parser must take.
    ExpressionText = {"type": "string", "minLength": 1, "maxLength": 4096};
    /// A Kafka topic, by the broker's own rule.
    TopicText = {"type": "string", "minLength": 1, "maxLength": 249, "pattern": TOPIC_PATTERN};
    /// The name of a Kubernetes object (DNS-1123 subdomain).
    ObjectNameText = {"type": "string", "minLength": 1, "maxLength": 253, "pattern": KUBERNETES_NAME_PATTERN};
    /// A key of a Secret, by Kubernetes' own rule.
    SecretKeyText = {"type": "string", "minLength": 1, "maxLength": 253, "pattern": SECRET_KEY_PATTERN};
    /// A Kubernetes quantity, as text or as a whole number.
    QuantityText = {
        "x-kubernetes-int-or-string": true,
        "pattern": QUANTITY_PATTERN,
        "maxLength": 32
    };
    /// The window of an SLO.
    WindowText = {"type": "string", "minLength": 1, "maxLength": 40, "pattern": WINDOW_PATTERN};
    /// A whole object that we pass on as it is.
    RawObject = {"type": "object", "x-kubernetes-preserve-unknown-fields": true};
}
