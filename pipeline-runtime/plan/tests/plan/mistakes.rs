//! A table of mistakes: a good spec, one or more replacements of its text, and what a person must read.

use crate::{compiled, mistakes_of};

const STEPS: &str = include_str!("../golden/api-steps.yaml");
const SQL: &str = include_str!("../golden/api-sql.yaml");
const UPSERTS: &str = include_str!("../golden/upsert-steps.yaml");

fn edited(yaml: &str, edits: &[(&str, &str)]) -> String {
    let mut text = yaml.to_owned();
    for (from, to) in edits {
        assert!(text.contains(from), "the spec has no '{from}'");
        text = text.replace(from, to);
    }
    text
}

/// (from, to) of an edit; or (path, part of the text) of a mistake.
type Pairs<'a> = &'a [(&'a str, &'a str)];

/// Each edit of the base gives exactly the mistakes that are listed, in any order; a mistake is known by its path and a
/// part of its text.
fn check(base: &str, table: &[(Pairs<'_>, Pairs<'_>)]) {
    let mut wrong = Vec::new();
    for (edits, expected) in table {
        let mistakes = mistakes_of(&edited(base, edits));
        let found = |(path, part): &(&str, &str)| {
            mistakes.iter().any(|m| m.starts_with(&format!("{path}: ")) && m.contains(part))
        };
        if mistakes.len() != expected.len() || !expected.iter().all(found) {
            wrong.push(format!("{edits:?}\n  expected {expected:#?}\n  found {mistakes:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_bases_have_no_mistakes() {
    assert!(compiled(STEPS).warnings.is_empty());
    assert!(compiled(SQL).warnings.is_empty());
    assert!(compiled(UPSERTS).warnings.is_empty());
}

#[test]
fn names_that_lead_nowhere_are_mistakes_with_the_nearest_name() {
    check(
        STEPS,
        &[
            (
                &[("from: real_orders", "from: real_order")],
                &[("spec.steps[1].from", "did you mean 'real_orders'?"), ("spec.steps[0].name", "leads to no sink")],
            ),
            (
                &[("from: enriched", "from: enrichd")],
                &[
                    ("spec.sinks[0].from", "did you mean 'enriched'?"),
                    ("spec.steps[0].name", "leads to no sink"),
                    ("spec.steps[1].name", "leads to no sink"),
                ],
            ),
            (
                &[("        table: customers", "        table: customer")],
                &[(
                    "spec.steps[1].temporalJoin.table",
                    "there is no table 'customer' (value: \"customer\"); did you mean 'customers'?",
                )],
            ),
            (
                &[("        table: customers", "        table: orders")],
                &[("spec.steps[1].temporalJoin.table", "'orders' is a stream")],
            ),
            (
                &[("left: customer_id", "left: custmer_id")],
                &[(
                    "spec.steps[1].temporalJoin.keys[0].left",
                    "is not a column of the input (value: \"custmer_id\"); did you mean 'customer_id'?",
                )],
            ),
            (
                &[("right: customer_id", "right: id")],
                &[("spec.steps[1].temporalJoin.keys[0].right", "is not a column of the table")],
            ),
            (
                &[("name AS customer_name", "nam AS customer_name")],
                &[("spec.steps[1].temporalJoin.select[2]", "did you mean 'name'?")],
            ),
            (&[("amount > 0", "amuont > 0")], &[("spec.steps[0].project.where", "did you mean 'amount'?")]),
            (&[("      from: orders\n", "      from: customers\n")], &[("spec.steps[0].from", "is a table")]),
            (
                &[("eventTime: {column: order_time,", "eventTime: {column: order_tme,")],
                &[("spec.sources[0].eventTime.column", "did you mean 'order_time'?")],
            ),
            (
                &[("primaryKey: [customer_id]", "primaryKey: [customer]")],
                &[
                    ("spec.sources[1].table.primaryKey[0]", "did you mean 'customer_id'?"),
                    ("spec.steps[1].temporalJoin.keys", "are not the primary key"),
                ],
            ),
            (
                &[(
                    "key: {columns: [customer_id], format: {type: String}",
                    "key: {columns: [customerid], format: {type: String}",
                )],
                &[("spec.sources[0].key.columns[0]", "did you mean 'customer_id'?")],
            ),
            (
                &[("key: {columns: [order_id]", "key: {columns: [customer_id]")],
                &[("spec.sinks[0].key.columns[0]", "is not a column of the rows")],
            ),
        ],
    );
}

#[test]
fn names_that_say_two_things_are_mistakes() {
    check(
        STEPS,
        &[
            (
                &[("name: real_orders", "name: orders"), ("from: real_orders", "from: orders")],
                &[
                    ("spec.steps[0].name", "spec.sources[0].name has this name already"),
                    ("spec.steps[0].name", "leads to no sink"),
                ],
            ),
            (
                &[("name AS customer_name", "name AS amount")],
                &[("spec.steps[1].temporalJoin.select", "two columns 'amount'")],
            ),
            (&[("from: orders\n", "from: enriched\n")], &[("spec.steps[0].from", "circle")]),
            (
                &[("topic: orders-enriched}", "topic: orders}")],
                &[("spec.sinks[0].kafka.topic", "source 'orders' reads this topic")],
            ),
            (
                &[("topic: orders-enriched}", "topic: orders-enriched.dead}")],
                &[("spec.sinks[0].kafka.topic", "spec.deadLetter")],
            ),
            (
                &[("topic: orders-enriched.dead}", "topic: orders}")],
                &[("spec.deadLetter.kafka.topic", "source 'orders'")],
            ),
        ],
    );
}

#[test]
fn types_that_do_not_fit_are_mistakes() {
    check(
        STEPS,
        &[
            (
                &[(
                    "{name: customer_id, type: BIGINT}\n        - {name: amount",
                    "{name: customer_id, type: STRING}\n        - {name: amount",
                )],
                &[(
                    "spec.steps[1].temporalJoin.keys",
                    "\"customer_id\" is STRING, but 'customers.customer_id' is BIGINT; write CAST(\"customer_id\" AS BIGINT)",
                )],
            ),
            (
                &[("amount > 0", "amount")],
                &[("spec.steps[0].project.where", "a condition is BOOLEAN, but this is DECIMAL(12,2)")],
            ),
            (
                &[("{name: order_time, type: \"TIMESTAMP(3)\"}", "{name: order_time, type: \"TIMESTAMP(9)\"}")],
                &[("spec.sources[0].eventTime.column", "has type TIMESTAMP(9)")],
            ),
            (
                &[("DECIMAL(12,2)", "DECIMAL(99,2)")],
                &[("spec.sources[0].columns[2].type", "precision is 1 to 38"), ("spec.steps[0].project.where", "")]
                    [..1],
            ),
            (
                &[("{name: name, type: STRING}", "{name: name, type: \"MAP<STRING>\"}")],
                &[("spec.sources[1].columns[1].type", "unknown type 'MAP'")],
            ),
            (
                &[("{name: order_id, type: BIGINT}", "{name: order_id, type: BYTES}")],
                &[("spec.sinks[0].key.columns[0]", "has type BYTES")],
            ),
            (
                &[("select: [order_id, amount,", "select: [order_id, amount + 1,")],
                &[("spec.steps[1].temporalJoin.select[1]", "has no name")],
            ),
        ],
    );
}

#[test]
fn joins_need_what_they_rest_on() {
    check(
        STEPS,
        &[
            (
                &[(
                    "table: {primaryKey: [customer_id], versions: {retention: 7d}}",
                    "table: {primaryKey: [customer_id]}",
                )],
                &[(
                    "spec.steps[1].temporalJoin.table",
                    "keep (value: \"customers\"); set spec.sources[1].table.versions.retention",
                )],
            ),
            (
                &[("      eventTime: {column: updated_at}\n", "")],
                &[("spec.steps[1].temporalJoin.table", "set spec.sources[1].eventTime")],
            ),
            (
                &[("      eventTime: {column: order_time, maxOutOfOrderness: 5s, idleTimeout: 30s}\n", "")],
                &[("spec.steps[1].temporalJoin.table", "set spec.sources[0].eventTime")],
            ),
            (
                &[("primaryKey: [customer_id]", "primaryKey: [customer_id, name]")],
                &[("spec.steps[1].temporalJoin.keys", "compare exactly these columns of it: customer_id, name")],
            ),
            (
                &[("right: customer_id", "right: name")],
                &[("spec.steps[1].temporalJoin.keys", "the keys (name) are not the primary key")],
            ),
            (
                &[("table: {primaryKey: [customer_id], versions: {retention: 7d}}", "")],
                &[
                    ("spec.sources[1].format.type", "add table: {primaryKey: [...]}"),
                    ("spec.steps[1].temporalJoin.table", "is a stream"),
                ],
            ),
            (
                &[
                    ("  deadLetter: {kafka: {topic: orders-enriched.dead}}\n", ""),
                    ("late: JoinNow", "late: DeadLetter\n        missing: DeadLetter"),
                ],
                &[
                    ("spec.steps[1].temporalJoin.late", "set spec.deadLetter.kafka.topic"),
                    ("spec.steps[1].temporalJoin.missing", "set spec.deadLetter.kafka.topic"),
                ],
            ),
            (
                &[
                    ("  deadLetter: {kafka: {topic: orders-enriched.dead}}\n", ""),
                    ("format: {type: DebeziumJson}", "format: {type: DebeziumJson}\n      onError: DeadLetter"),
                ],
                &[("spec.sources[1].onError", "set spec.deadLetter.kafka.topic")],
            ),
        ],
    );
}

#[test]
fn an_upsert_needs_a_version_that_can_be_compared() {
    check(
        UPSERTS,
        &[
            (
                &[("column: changed_at", "column: changed")],
                &[("spec.sinks[1].write.version.column", "did you mean 'changed_at'?")],
            ),
            (
                &[("column: changed_at", "column: status")],
                &[("spec.sinks[1].write.version.column", "has type STRING, which no version can have")],
            ),
            (
                &[("{mode: Upsert, version: {policy: Column, column: changed_at}}", "{mode: Upsert}")],
                &[(
                    "spec.sinks[1].write.version",
                    "does not hold (customer_id) of the stream's key as it is (value: \"SourcePosition\"); add it to the sink's key, or write version: {policy: Column",
                )],
            ),
            (
                &[("customer_id AS customer,", "customer_id + 0 AS customer,")],
                &[("spec.sinks[0].write.version", "within one partition of 'orders' only")],
            ),
            (
                &[(
                    "      kafka: {topic: orders}\n      key: {columns: [customer_id]}\n",
                    "      kafka: {topic: orders}\n",
                )],
                &[("spec.sinks[0].write.version", "declare the key of source 'orders', or write version")],
            ),
            (
                &[("{name: order_id, type: BIGINT}", "{name: order_id, type: DOUBLE}")],
                &[
                    ("spec.sinks[0].key.columns[1]", "has type DOUBLE, which no upsert key can have"),
                    ("spec.sinks[1].key.columns[0]", "has type DOUBLE, which no upsert key can have"),
                ],
            ),
            (
                &[("kafka: {topic: latest}", "kafka: {topic: statuses}")],
                &[
                    ("spec.sinks[0].kafka.topic", "sink 'latest' writes to this topic too"),
                    ("spec.sinks[1].kafka.topic", "sink 'statuses' writes to this topic too"),
                ],
            ),
        ],
    );
}

#[test]
fn all_mistakes_are_told_at_once() {
    let mistakes = mistakes_of(&edited(
        STEPS,
        &[
            ("amount > 0", "amuont > 0"),
            ("DECIMAL(12,2)", "DECIMAL(0,2)"),
            ("column: updated_at", "column: updated"),
            ("topic: orders-enriched}", "topic: orders}"),
            ("left: customer_id", "left: customer"),
            ("name: real_orders", "name: unreal"),
        ],
    ));
    let paths: Vec<&str> = mistakes.iter().filter_map(|m| m.split(": ").next()).collect();
    for path in [
        "spec.sources[0].columns[2].type",
        "spec.sources[1].eventTime.column",
        "spec.sinks[0].kafka.topic",
        "spec.steps[1].from",
        "spec.steps[0].name",
        "spec.steps[0].project.where",
    ] {
        assert!(paths.contains(&path), "{path} is not in {mistakes:#?}");
    }
}

#[test]
fn sql_mistakes_have_a_line_and_a_column() {
    check(
        SQL,
        &[
            (&[("c.loyalty_tier", "c.loyalty")], &[("spec.sql:2:55", "did you mean 'loyalty_tier'?")]),
            (&[("INSERT INTO out", "INSERT INTO outt")], &[("spec.sql:1:13", "did you mean 'out'?")]),
            (&[("FROM orders AS o", "FROM order AS o")], &[("spec.sql:3:6", "did you mean 'orders'?")]),
            (&[("FROM orders AS o", "FROM ordrs AS o")], &[("spec.sql:3:6", "did you mean 'orders'?")]),
            (&[("JOIN customers FOR", "JOIN customrs FOR")], &[("spec.sql:4:11", "did you mean 'customers'?")]),
            (&[("AS OF o.order_time", "AS OF o.amount")], &[("spec.sql:4:43", "write AS OF o.order_time")]),
            (
                &[("ON o.customer_id = c.customer_id", "ON o.customer_id = c.customer_id AND o.amount > 5")],
                &[("spec.sql:5:40", "put other conditions into WHERE")],
            ),
            (
                &[("ON o.customer_id = c.customer_id", "ON o.customer_id = o.order_id")],
                &[("spec.sql:5:6", "does not compare")],
            ),
            (
                &[("ON o.customer_id = c.customer_id", "ON o.customer_id = c.name")],
                &[("spec.sql:4:11", "are not the primary key")],
            ),
            (&[("WHERE o.amount > 0", "WHERE o.amount")], &[("spec.sql:6:7", "a condition is BOOLEAN")]),
            (&[("o.amount,", "o.amount, customer_id,")], &[("spec.sql:2:30", "write o.customer_id or c.customer_id")]),
            (&[("c.name AS customer_name", "c.name AS amount")], &[("spec.sql:2:1", "two columns 'amount'")]),
            (
                &[("SELECT o.order_id, o.amount, c.name AS customer_name, c.loyalty_tier", "SELECT *")],
                &[("spec.sql:2:8", "twice")],
            ),
            (&[("WHERE o.amount > 0;", "WHERE o.amount >;")], &[("spec.sql:6:17", "Expected")]),
            (
                &[("WHERE o.amount > 0;", "WHERE o.amount > 0; SELECT 1")],
                &[("spec.sql:6:21", "begins with INSERT INTO")],
            ),
            (&[("    INSERT INTO out", "    INSERT INTO out (a, b)")], &[("spec.sql:1:13", "list of columns")]),
            (
                &[("LEFT JOIN customers", "LEFT JOIN /*+ broadcast */ customers")],
                &[("spec.sql:4:11", "there is no hint 'broadcast'")],
            ),
        ],
    );
}

#[test]
fn every_clause_that_is_not_supported_is_named() {
    let statement = "WHERE o.amount > 0;";
    for (sql, name) in [
        ("WHERE o.amount > 0 GROUP BY o.order_id;", "GROUP BY"),
        ("WHERE o.amount > 0 HAVING o.amount > 0;", "HAVING"),
        ("WHERE o.amount > 0 ORDER BY o.order_id;", "ORDER BY"),
        ("WHERE o.amount > 0 LIMIT 5;", "LIMIT"),
        ("WHERE o.amount > 0 OFFSET 5;", "LIMIT"),
        ("WHERE o.amount > 0 UNION ALL SELECT 1;", "UNION"),
        ("WHERE o.amount > 0 WINDOW w AS (PARTITION BY o.order_id);", "WINDOW"),
        ("WHERE o.amount > 0 QUALIFY 1 = 1;", "QUALIFY"),
        ("WHERE o.amount > 0 FOR UPDATE;", "FOR UPDATE"),
        ("WHERE EXISTS (SELECT 1);", "a subquery"),
        ("WHERE o.amount IN (SELECT 1);", "a subquery"),
    ] {
        let mistakes = mistakes_of(&edited(SQL, &[(statement, sql)]));
        assert_eq!(mistakes.len(), 1, "{sql}: {mistakes:#?}");
        assert!(mistakes[0].contains(name) && mistakes[0].contains("not supported"), "{sql}: {mistakes:#?}");
        assert!(mistakes[0].starts_with("spec.sql:"), "{mistakes:#?}");
    }
    for (from, to, name) in [
        ("LEFT JOIN", "RIGHT JOIN", "RIGHT JOIN"),
        ("LEFT JOIN", "FULL OUTER JOIN", "FULL JOIN"),
        ("ON o.customer_id = c.customer_id", "USING (customer_id)", "USING"),
        ("FROM orders AS o", "FROM orders AS o NATURAL JOIN customers", "NATURAL JOIN"),
        ("SELECT o.", "SELECT DISTINCT o.", "DISTINCT"),
        ("FROM orders AS o", "FROM (SELECT * FROM orders) AS o", "subquery"),
        ("FROM orders AS o", "FROM orders AS o CROSS JOIN customers", "CROSS JOIN"),
        ("c.loyalty_tier", "row_number() OVER () AS n", "window functions"),
        ("INSERT INTO out\n", "INSERT INTO out WITH x AS (SELECT 1)\n", "WITH"),
    ] {
        let mistakes = mistakes_of(&edited(SQL, &[(from, to)]));
        assert!(mistakes.iter().any(|m| m.contains(name)), "{to}: {mistakes:#?}");
    }
}

#[test]
fn poison_sql_is_a_mistake_and_not_an_overflow() {
    let check = || {
        for poison in [
            format!("INSERT INTO out SELECT {}1 FROM orders", "(".repeat(50_000)),
            format!("INSERT INTO out SELECT * FROM {}orders", "(".repeat(50_000)),
            format!("INSERT INTO out SELECT * FROM {}orders", "(".repeat(40)),
            format!("INSERT INTO out SELECT * FROM {}orders{}", "(".repeat(40), ")".repeat(40)),
            format!("INSERT INTO out {}", "SELECT * FROM (".repeat(20)),
            format!("INSERT INTO out SELECT CAST(1 AS {}", "ARRAY<".repeat(900)),
            format!("INSERT INTO out SELECT {}1 FROM orders", "CASE WHEN (".repeat(30)),
            format!("INSERT INTO out SELECT {}1 FROM orders", "ARRAY<(".repeat(40)),
            format!("INSERT INTO out SELECT {}1 FROM orders", "INTERVAL (".repeat(40)),
            format!("INSERT INTO out {}", "SELECT * FROM (".repeat(4_000)),
            "INSERT INTO out SELECT 1 FROM orders UNION ".repeat(1_400),
            ";".repeat(60_000),
            format!("INSERT INTO out SELECT * FROM orders {}", "JOIN customers c ON 1 = 1 ".repeat(2_000)),
        ] {
            let sql = serde_json::to_string(&poison).expect("text");
            let start = SQL.find("  sql: |").expect("sql");
            let end = SQL.find("  sinks:").expect("sinks");
            let yaml = format!("{}  sql: {sql}\n{}", &SQL[..start], &SQL[end..]);
            assert!(!mistakes_of(&yaml).is_empty(), "{}", &poison[..60]);
        }
    };
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(check).expect("spawn");
    thread.join().expect("no overflow and no panic");
}

#[test]
fn steps_that_multiply_an_expression_are_stopped_in_time() {
    let mut steps = String::new();
    for i in 0..60 {
        let from = if i == 0 { "orders".to_owned() } else { format!("s{}", i - 1) };
        let column = if i == 0 { "order_id" } else { "x" };
        steps += &format!("    - {{name: s{i}, from: {from}, project: {{select: [\"{column} + {column} AS x\"]}}}}\n");
    }
    let start = STEPS.find("    - name: real_orders").expect("steps");
    let end = STEPS.find("  sinks:").expect("sinks");
    let yaml = format!("{}{steps}{}", &STEPS[..start], &STEPS[end..]);
    let yaml = edited(
        &yaml,
        &[("from: enriched", "from: s59"), ("key: {columns: [order_id], format: {type: String}}\n", "\n")],
    );
    let mistakes = mistakes_of(&yaml);
    assert!(mistakes[0].contains("grows beyond") || mistakes[0].contains("nested more than"), "{mistakes:#?}");
}
