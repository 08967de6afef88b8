//! Expressions: types, values, and texts that must not break the compiler.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, StringArray};
use arrow::datatypes::Int64Type;
use arrow::record_batch::RecordBatch;
use arrow::util::display::array_value_to_string;
use millrace_core::schema::Column;
use millrace_plan::arrow_schema::{arrow_schema, arrow_type};
use millrace_plan::{BoundExpr, SqlError, bind};

fn columns() -> Vec<Column> {
    [
        ("id", "BIGINT", false),
        ("small", "INT", true),
        ("amount", "DECIMAL(12,2)", true),
        ("ratio", "DOUBLE", true),
        ("name", "STRING", true),
        ("Name", "STRING", true),
        ("flag", "BOOLEAN", true),
        ("raw", "BYTES", true),
        ("day", "DATE", true),
        ("at", "TIMESTAMP(3)", true),
        ("at6", "TIMESTAMP(6)", true),
        ("tags", "ARRAY<STRING>", true),
        ("address", "ROW<city STRING, geo ROW<lat DOUBLE, lon DOUBLE>>", true),
        ("a.b", "INT", true),
    ]
    .into_iter()
    .map(|(name, data_type, nullable)| Column {
        name: name.to_owned(),
        data_type: data_type.parse().expect(data_type),
        nullable,
    })
    .collect()
}

fn bound(sql: &str) -> BoundExpr {
    bind(sql, &columns()).unwrap_or_else(|e| panic!("{sql}: {e:?}"))
}

fn refused(sql: &str) -> SqlError {
    bind(sql, &columns()).map(|e| panic!("{sql} is {e:?}")).unwrap_err()
}

#[test]
fn an_expression_has_the_type_and_nullability_that_sql_gives_it() {
    for (sql, expected) in [
        ("id", "BIGINT NOT NULL"),
        ("id + 1", "BIGINT NOT NULL"),
        ("small + 1", "BIGINT"),
        ("amount * 2", "DECIMAL(33,2)"),
        ("amount * 0.5", "DECIMAL(14,3)"),
        ("ratio / 3", "DOUBLE"),
        ("ratio * 0.5", "DOUBLE"),
        ("ratio > 0.5 AND amount >= ratio", "BOOLEAN"),
        ("0.1 + 0.2", "DECIMAL(2,1) NOT NULL"),
        ("name || '!'", "STRING"),
        ("coalesce(name, 'nobody')", "STRING NOT NULL"),
        ("nullif(id, 0)", "BIGINT"),
        ("amount > 0 AND flag", "BOOLEAN"),
        ("id IS NULL", "BOOLEAN NOT NULL"),
        ("CASE WHEN flag THEN 1 ELSE 2 END", "BIGINT NOT NULL"),
        ("CASE WHEN flag THEN name END", "STRING"),
        ("CAST(name AS INT)", "INT"),
        ("TRY_CAST(name AS DATE)", "DATE"),
        ("name::timestamp", "TIMESTAMP(3)"),
        ("TIMESTAMP '2026-01-01 00:00:00'", "TIMESTAMP(3) NOT NULL"),
        ("DATE '2026-01-01'", "DATE NOT NULL"),
        ("at + INTERVAL '1' HOUR", "TIMESTAMP(3)"),
        ("at > '2026-01-01'", "BOOLEAN"),
        ("date_trunc('day', at)", "TIMESTAMP(3)"),
        ("EXTRACT(YEAR FROM at)", "INT"),
        ("upper(name)", "STRING"),
        ("length(name)", "INT"),
        ("substring(name, 1, 2)", "STRING"),
        ("SUBSTRING(name FROM 1 FOR 2)", "STRING"),
        ("trim(name)", "STRING"),
        ("regexp_replace(name, 'a', 'b')", "STRING"),
        ("round(ratio)", "DOUBLE"),
        ("abs(small)", "INT"),
        ("greatest(id, small)", "BIGINT"),
        ("tags[1]", "STRING"),
        ("array_length(tags)", "BIGINT"),
        ("address.city", "STRING"),
        ("address.geo.lat", "DOUBLE"),
        ("address['city']", "STRING"),
        ("named_struct('x', id)", "ROW<x BIGINT>"),
        ("[id, 2]", "ARRAY<BIGINT>"),
        ("\"a.b\"", "INT"),
        ("raw", "BYTES"),
    ] {
        let bound = bound(sql);
        let not_null = if bound.nullable { "" } else { " NOT NULL" };
        assert_eq!(format!("{}{not_null}", bound.data_type), expected, "{sql}");
    }
}

#[test]
fn a_canonical_text_binds_to_itself() {
    for (sql, canonical) in [
        ("ID", "\"id\""),
        ("((id)) + (1)", "\"id\" + 1"),
        ("id + 1 * 2", "\"id\" + (1 * 2)"),
        ("(id + 1) * 2", "(\"id\" + 1) * 2"),
        (
            "flag and (flag and (id > 1 or flag)) AND NOT flag",
            "\"flag\" AND \"flag\" AND (\"id\" > 1 OR \"flag\") AND NOT \"flag\"",
        ),
        ("name::int", "CAST(\"name\" AS INT)"),
        ("cast(name as varchar)", "CAST(\"name\" AS STRING)"),
        ("UPPER( name )", "upper(\"name\")"),
        ("Address.City", "\"address\"['city']"),
        ("address.geo.lat", "\"address\"['geo']['lat']"),
        ("`Name`", "\"Name\""),
        ("id between 1 and 2+3", "\"id\" BETWEEN 1 AND (2 + 3)"),
        ("name in ('a', 'it''s')", "\"name\" IN ('a', 'it''s')"),
        ("- - id", "-(-\"id\")"),
        ("at + interval '1' day", "\"at\" + (INTERVAL '1' DAY)"),
        ("case when id = 1 then 'x' else 'y' end", "CASE WHEN \"id\" = 1 THEN 'x' ELSE 'y' END"),
    ] {
        let first = format!("{:?}", bound(sql));
        assert!(first.starts_with(&format!("BoundExpr({canonical}: ")), "{sql} is {first}, not {canonical}");
        assert_eq!(format!("{:?}", bound(canonical)), first);
    }
}

fn batch() -> RecordBatch {
    let columns: Vec<Column> = columns().into_iter().filter(|c| ["id", "name"].contains(&c.name.as_str())).collect();
    let arrays: Vec<ArrayRef> =
        vec![Arc::new(Int64Array::from(vec![0, 5, 10])), Arc::new(StringArray::from(vec![Some("a"), None, Some("7")]))];
    RecordBatch::try_new(arrow_schema(&columns), arrays).expect("batch")
}

fn value(sql: &str) -> Result<Vec<String>, String> {
    let columns: Vec<Column> = columns().into_iter().filter(|c| ["id", "name"].contains(&c.name.as_str())).collect();
    let bound = bind(sql, &columns).expect(sql);
    let array = bound.evaluate(&batch()).map_err(|e| e.to_string())?;
    assert_eq!(array.data_type(), &arrow_type(&bound.data_type), "{sql}");
    assert_eq!(array.len(), batch().num_rows(), "{sql}");
    Ok((0..array.len())
        .map(|i| if array.is_null(i) { "null".to_owned() } else { array_value_to_string(&array, i).expect("text") })
        .collect())
}

#[test]
fn an_expression_has_a_value_for_each_row() {
    assert_eq!(value("id + 1"), Ok(vec!["1".into(), "6".into(), "11".into()]));
    assert_eq!(value("7"), Ok(vec!["7".into(); 3]));
    assert_eq!(value("name || '!'"), Ok(vec!["a!".into(), "null".into(), "7!".into()]));
    assert_eq!(value("TRY_CAST(name AS BIGINT)"), Ok(vec!["null".into(), "null".into(), "7".into()]));
    assert_eq!(value("id > 1 AND name = '7'"), Ok(vec!["false".into(), "null".into(), "true".into()]));
    assert_eq!(value("0.1 + 0.2"), Ok(vec!["0.3".into(); 3]));
    assert_eq!(value("CASE WHEN id = 0 THEN 0 ELSE 10 / id END"), Ok(vec!["0".into(), "2".into(), "1".into()]));
    assert_eq!(value("TIMESTAMP '2026-01-01T00:00:00.123Z'"), Ok(vec!["2026-01-01T00:00:00.123".into(); 3]));
    assert_eq!(value("length(name)"), Ok(vec!["1".into(), "null".into(), "1".into()]));
    assert_eq!(
        value("named_struct('x', id, 'y', name)"),
        Ok(vec!["{x: 0, y: a}".into(), "{x: 5, y: }".into(), "{x: 10, y: 7}".into()])
    );
    assert_eq!(value("named_struct('x', id)['x'] + 1"), Ok(vec!["1".into(), "6".into(), "11".into()]));
    assert_eq!(value("[id, 2]"), Ok(vec!["[0, 2]".into(), "[5, 2]".into(), "[10, 2]".into()]));
    assert_eq!(value("[id, 2][1]"), Ok(vec!["0".into(), "5".into(), "10".into()]));
    assert_eq!(value("substring(name, 1, 1)"), Ok(vec!["a".into(), "null".into(), "7".into()]));
    assert_eq!(value("CAST(NULL AS DATE)"), Ok(vec!["null".into(); 3]));
}

#[test]
fn what_has_no_value_for_a_row_is_an_error_of_the_batch() {
    for (sql, word) in [("10 / id", "ivide"), ("CAST(name AS BIGINT)", "Cannot cast"), ("10 % id", "ivide")] {
        let error = value(sql).expect_err(sql);
        assert!(error.contains(word), "{sql}: {error}");
    }
    // A row alone has its own answer.
    let columns: Vec<Column> = columns().into_iter().filter(|c| ["id", "name"].contains(&c.name.as_str())).collect();
    let divide = bind("10 / id", &columns).expect("bind");
    assert!(divide.evaluate(&batch().slice(0, 1)).is_err());
    let one = divide.evaluate(&batch().slice(1, 1)).expect("10 / 5");
    assert_eq!(one.as_primitive::<Int64Type>().value(0), 2);
}

#[test]
fn what_depends_on_the_moment_or_on_chance_is_refused() {
    for sql in [
        "now()",
        "current_timestamp",
        "CURRENT_DATE",
        "random()",
        "uuid()",
        "at > now()",
        "upper(CAST(uuid() AS STRING))",
    ] {
        let error = refused(sql);
        assert!(error.message.contains("must not depend on when"), "{sql}: {error:?}");
        assert!(error.hint.contains("event time"), "{sql}: {error:?}");
    }
}

#[test]
fn a_wrong_expression_says_what_is_wrong_and_what_to_do() {
    for (sql, message, hint) in [
        ("amuont > 0", "there is no column 'amuont'", "did you mean 'amount'?"),
        ("NAME", "'NAME' may be 'name' or 'Name'", "write \"name\" or \"Name\", with the quotes"),
        ("\"ID\"", "there is no column 'ID'", "did you mean 'id'?"),
        ("address.ctiy", "'address' has no field 'ctiy'", "did you mean 'city'?"),
        ("name.x", "'name' has no field 'x'", "its type is STRING, and only a ROW has fields"),
        ("x.id", "there is no relation or column 'x'", ""),
        ("uper(name)", "there is no function 'uper'", "did you mean 'upper'?"),
        ("sum(id)", "sum() is an aggregate", ""),
        ("row_number() OVER ()", "OVER (window functions) is not supported", ""),
        ("id IN (SELECT 1)", "a subquery is not supported", ""),
        ("(SELECT 1)", "a subquery is not supported", ""),
        ("NULL", "NULL has no type", "CAST(NULL AS STRING)"),
        ("CAST(id AS MONEY)", "unknown type 'MONEY'", ""),
        ("CAST(id AS TIMESTAMP(4))", "TIMESTAMP(4) is not supported", ""),
        ("at - at", "which no column can have", "cast it"),
        ("id +", "Expected", ""),
        ("id id2 id3", "was not expected here", ""),
        ("'open", "Unterminated string", ""),
        ("flag + 1", "Boolean", ""),
        ("$1", "the parameter $1 is not supported", ""),
        ("arrow_typeof(id)", "there is no function 'arrow_typeof'", ""),
        ("count(*)", "count() is an aggregate", ""),
        ("", "Expected", ""),
    ] {
        let error = refused(sql);
        assert!(error.message.contains(message), "{sql}: {error:?}");
        assert!(error.hint.contains(hint), "{sql}: {error:?}");
    }
    assert_eq!(refused("id + amuont").at, Some((1, 6)));
}

/// On the smallest stack that a thread of ours has.
fn on_a_small_stack(check: fn()) {
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(check).expect("spawn");
    thread.join().expect("no overflow and no panic");
}

#[test]
fn poison_text_is_a_mistake_and_not_an_overflow() {
    on_a_small_stack(|| {
        for poison in [
            "(".repeat(60_000),
            "(".repeat(20_000) + "1" + &")".repeat(20_000),
            "1".to_owned() + &"+1".repeat(30_000),
            "1".to_owned() + &" + 1".repeat(450),
            "NOT ".repeat(10_000) + "flag",
            "- ".repeat(30_000) + "1",
            "id".to_owned() + &"::int".repeat(10_000),
            "tags".to_owned() + &"[1]".repeat(20_000),
            "upper(".repeat(10_000) + "name" + &")".repeat(10_000),
            "CASE WHEN ".repeat(6_000),
            "id".to_owned() + &" IS NULL".repeat(400),
            "name || ".repeat(400) + "name",
            "address".to_owned() + &".geo".repeat(10_000),
            "x".repeat(70_000),
            "'".repeat(60_001),
            "[".repeat(60_000),
            "/*".repeat(30_000),
            "\u{0}\u{1f}\u{202e}é∞".repeat(100),
        ] {
            let error = refused(&poison);
            assert!(error.message.len() < 70_500, "{}", &poison[..20]);
        }
    });
}

#[test]
fn long_but_flat_expressions_are_fine() {
    on_a_small_stack(|| {
        let terms: Vec<String> = (0..240).map(|i| format!("id = {i}")).collect();
        assert_eq!(bound(&terms.join(" OR ")).data_type.to_string(), "BOOLEAN");
        let list: Vec<String> = (0..5_000).map(|i| i.to_string()).collect();
        assert_eq!(bound(&format!("id IN ({})", list.join(", "))).data_type.to_string(), "BOOLEAN");
        let whens: Vec<String> = (0..300).map(|i| format!("WHEN id = {i} THEN 'n{i}'")).collect();
        assert_eq!(bound(&format!("CASE {} ELSE name END", whens.join(" "))).data_type.to_string(), "STRING");
        // As deep as it may be.
        let deep = "(".repeat(30) + "id" + &" + 1)".repeat(30);
        assert_eq!(bound(&deep).data_type.to_string(), "BIGINT");
        let calls = "upper(".repeat(30) + "name" + &")".repeat(30);
        assert_eq!(bound(&calls).data_type.to_string(), "STRING");
    });
}
