//! Instants and dates against a calendar that counts day by day, and against Arrow's own parser.

use arrow::compute::kernels::cast_utils::string_to_timestamp_nanos;
use proptest::prelude::*;

use crate::format::time::{Instant, parse_date, parse_instant, write_date, write_instant};

fn date(days: i64) -> String {
    let mut out = Vec::new();
    write_date(days, &mut out);
    String::from_utf8(out).expect("digits")
}

#[test]
fn every_day_of_1200_years_is_the_day_after_the_day_before() {
    let (mut year, mut month, mut day) = (1400, 1, 1);
    let leap = |year: i64| (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let first = i64::from(parse_date("1400-01-01").expect("a date"));
    for days in first..first + 1200 * 365 {
        let text = format!("{year:04}-{month:02}-{day:02}");
        assert_eq!(date(days), text);
        assert_eq!(parse_date(&text).map(i64::from), Some(days));
        let last = match month {
            2 if leap(year) => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        assert_eq!(parse_date(&format!("{year:04}-{month:02}-{:02}", last + 1)), None);
        day += 1;
        if day > last {
            (day, month) = (1, month + 1);
        }
        if month > 12 {
            (month, year) = (1, year + 1);
        }
    }
    assert_eq!(date(0), "1970-01-01");
}

#[test]
fn the_widest_values_of_each_type_have_a_text() {
    for digits in [3, 6, 9] {
        for value in [i64::MIN, i64::MAX, 0, -1] {
            let mut out = Vec::new();
            write_instant(value, digits, &mut out);
            let text = String::from_utf8(out).expect("digits");
            assert_eq!(parse_instant(&text).and_then(|i| i.to_units(digits)), Some(value), "{text}");
        }
    }
    for days in [i32::MIN, i32::MAX] {
        assert_eq!(parse_date(&date(days.into())), Some(days));
    }
    assert_eq!(parse_date("+9999999-01-01"), None);
}

proptest! {
    #[test]
    fn instants_read_as_arrow_reads_them(nanos in any::<i64>(), digits in 0..10usize, offset in -18 * 60..18 * 60i64) {
        let mut out = Vec::new();
        write_instant(nanos, 9, &mut out);
        let text = String::from_utf8(out).expect("digits");
        prop_assert_eq!(string_to_timestamp_nanos(&text).expect("an instant"), nanos);
        // The same with fewer digits and with an offset.
        let seconds = text.split_once('.').expect("a fraction").0;
        let fraction = &text[seconds.len()..seconds.len() + 1 + digits];
        let fraction = if digits == 0 { "" } else { fraction };
        let sign = if offset < 0 { '-' } else { '+' };
        let text = format!("{seconds}{fraction}{sign}{:02}:{:02}", offset.abs() / 60, offset.abs() % 60);
        let expected = string_to_timestamp_nanos(&text);
        prop_assert_eq!(parse_instant(&text).and_then(|i| i.to_units(9)), expected.ok(), "{}", text);
        prop_assert_eq!(parse_instant(&text.replace('T', " ")), parse_instant(&text));
        prop_assert_eq!(Instant::from_units(nanos, 9).to_units(9), Some(nanos));
    }
}
