//! Instants and dates as text. The calendar is the proleptic Gregorian one, every instant is UTC.
//!
//! Reading accepts ISO-8601 (`2026-01-01T00:00:00.123Z`, an offset, or none, which means UTC; seconds may be absent)
//! and the SQL form with a space. Years have four digits, or a sign and up to nine, as in ISO's expanded form; so every
//! value that a column can hold is written as text that reads back as the same value. Digits finer than the column are
//! cut off. Leap seconds and `24:00` are refused.

const SECONDS_PER_DAY: i64 = 86_400;
const NANOS_DIGITS: u32 = 9;

/// An instant: whole seconds since the epoch, rounded down, and the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instant {
    pub seconds: i64,
    pub nanos: u32,
}

impl Instant {
    /// The instant that is `value` units of `10^-digits` seconds after the epoch.
    pub fn from_units(value: i64, digits: u8) -> Self {
        let per_second = 10i64.pow(u32::from(digits));
        let rest = value.rem_euclid(per_second) as u32;
        Self { seconds: value.div_euclid(per_second), nanos: rest * 10u32.pow(NANOS_DIGITS - u32::from(digits)) }
    }

    /// Units of `10^-digits` seconds, finer digits cut off. `None`: the column's type cannot hold it.
    pub fn to_units(self, digits: u8) -> Option<i64> {
        let whole = i128::from(self.seconds) * 10i128.pow(u32::from(digits));
        let rest = i128::from(self.nanos / 10u32.pow(NANOS_DIGITS - u32::from(digits)));
        i64::try_from(whole + rest).ok()
    }
}

/// What is left of a text while it is read.
struct Text<'a>(&'a [u8]);

impl Text<'_> {
    fn eat(&mut self, byte: u8) -> Option<()> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        (*first == byte).then_some(())
    }

    fn next_is(&self, byte: u8) -> bool {
        self.0.first() == Some(&byte)
    }

    fn two_digits(&mut self, max: i64) -> Option<i64> {
        let (pair, rest) = self.0.split_first_chunk::<2>()?;
        self.0 = rest;
        let [tens, ones] = pair.map(|b| b.wrapping_sub(b'0'));
        let value = i64::from(tens) * 10 + i64::from(ones);
        (tens < 10 && ones < 10 && value <= max).then_some(value)
    }

    fn year(&mut self) -> Option<i64> {
        let negative = self.next_is(b'-');
        let signed = negative || self.next_is(b'+');
        self.0 = &self.0[usize::from(signed)..];
        let digits = self.0.iter().take(10).take_while(|b| b.is_ascii_digit()).count();
        if digits != 4 && !(signed && (4..=9).contains(&digits)) {
            return None;
        }
        let (year, rest) = self.0.split_at(digits);
        self.0 = rest;
        let year = year.iter().fold(0, |sum, b| sum * 10 + i64::from(b - b'0'));
        Some(if negative { -year } else { year })
    }

    /// Days since the epoch.
    fn date(&mut self) -> Option<i64> {
        let year = self.year()?;
        self.eat(b'-')?;
        let month = self.two_digits(12)?;
        self.eat(b'-')?;
        let day = self.two_digits(31)?;
        (month > 0 && day > 0 && day <= days_in_month(year, month)).then(|| days_from_civil(year, month, day))
    }

    /// Seconds of the day and nanoseconds.
    fn time_of_day(&mut self) -> Option<(i64, u32)> {
        let hours = self.two_digits(23)?;
        self.eat(b':')?;
        let minutes = self.two_digits(59)?;
        let mut seconds = 0;
        let mut nanos = 0;
        if self.next_is(b':') {
            self.eat(b':')?;
            seconds = self.two_digits(59)?;
            if self.next_is(b'.') {
                self.eat(b'.')?;
                nanos = self.fraction()?;
            }
        }
        Some((hours * 3600 + minutes * 60 + seconds, nanos))
    }

    fn fraction(&mut self) -> Option<u32> {
        let digits = self.0.iter().take_while(|b| b.is_ascii_digit()).count();
        let (fraction, rest) = self.0.split_at(digits);
        self.0 = rest;
        let kept = fraction.len().min(NANOS_DIGITS as usize);
        let value = fraction[..kept].iter().fold(0, |sum, b| sum * 10 + u32::from(b - b'0'));
        (digits > 0).then(|| value * 10u32.pow(NANOS_DIGITS - kept as u32))
    }

    /// Seconds east of UTC: `Z`, `+hh`, `+hh:mm`, `+hhmm`, or nothing.
    fn offset(&mut self) -> Option<i64> {
        let sign = match self.0.first() {
            None => return Some(0),
            Some(b'Z' | b'z') => {
                self.0 = &self.0[1..];
                return Some(0);
            }
            Some(b'+') => 1,
            Some(b'-') => -1,
            Some(_) => return None,
        };
        self.0 = &self.0[1..];
        let hours = self.two_digits(18)?;
        let mut minutes = 0;
        if !self.0.is_empty() {
            if self.next_is(b':') {
                self.eat(b':')?;
            }
            minutes = self.two_digits(59)?;
        }
        Some(sign * (hours * 3600 + minutes * 60))
    }
}

/// Days since the epoch of `2026-01-31`. Debezium's `IsoDate` has a `Z` behind it.
pub(super) fn parse_date(text: &str) -> Option<i32> {
    let mut text = Text(text.as_bytes());
    let days = text.date()?;
    if text.next_is(b'Z') {
        text.eat(b'Z')?;
    }
    text.0.is_empty().then(|| i32::try_from(days).ok()).flatten()
}

pub(super) fn parse_instant(text: &str) -> Option<Instant> {
    let mut text = Text(text.as_bytes());
    let days = text.date()?;
    match text.0.first()? {
        b'T' | b't' | b' ' => text.0 = &text.0[1..],
        _ => return None,
    }
    let (second_of_day, nanos) = text.time_of_day()?;
    let offset = text.offset()?;
    text.0.is_empty().then_some(Instant { seconds: days * SECONDS_PER_DAY + second_of_day - offset, nanos })
}

/// Appends `2026-01-31`.
pub(super) fn write_date(days: i64, out: &mut Vec<u8>) {
    let (year, month, day) = civil_from_days(days);
    if (0..=9999).contains(&year) {
        write_padded(year as u64, 4, out);
    } else {
        out.push(if year < 0 { b'-' } else { b'+' });
        write_padded(year.unsigned_abs(), 6, out);
    }
    out.push(b'-');
    write_padded(month as u64, 2, out);
    out.push(b'-');
    write_padded(day as u64, 2, out);
}

/// Appends `2026-01-31T12:00:00.123Z` with as many digits of the second as the type has.
pub(super) fn write_instant(units: i64, digits: u8, out: &mut Vec<u8>) {
    let instant = Instant::from_units(units, digits);
    write_date(instant.seconds.div_euclid(SECONDS_PER_DAY), out);
    out.push(b'T');
    write_time(instant.seconds.rem_euclid(SECONDS_PER_DAY) as u64, out);
    out.push(b'.');
    let fraction = instant.nanos / 10u32.pow(NANOS_DIGITS - u32::from(digits));
    write_padded(u64::from(fraction), usize::from(digits), out);
    out.push(b'Z');
}

/// Appends a duration or a time of day, `units` of `10^-digits` seconds: `12:30:00.500`. It may be negative or beyond a
/// day, as MySQL's TIME may.
pub(super) fn write_time_of_day(units: i64, digits: u8, out: &mut Vec<u8>) {
    if units < 0 {
        out.push(b'-');
    }
    let per_second = 10u64.pow(u32::from(digits));
    write_time(units.unsigned_abs() / per_second, out);
    out.push(b'.');
    write_padded(units.unsigned_abs() % per_second, usize::from(digits), out);
}

fn write_time(seconds: u64, out: &mut Vec<u8>) {
    write_padded(seconds / 3600, 2, out);
    out.push(b':');
    write_padded(seconds / 60 % 60, 2, out);
    out.push(b':');
    write_padded(seconds % 60, 2, out);
}

/// At least `width` digits.
fn write_padded(value: u64, width: usize, out: &mut Vec<u8>) {
    let mut digits = [b'0'; 20];
    let mut at = digits.len();
    let mut rest = value;
    while rest > 0 {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    out.extend_from_slice(&digits[at.min(digits.len() - width)..]);
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

// Both conversions count in years that begin in March, so that the leap day is the last of its year, and in eras of 400
// years, which all have 146,097 days. 719,468 days lie between 0000-03-01 and 1970-01-01.
const DAYS_PER_ERA: i64 = 146_097;
const DAYS_TO_EPOCH: i64 = 719_468;

fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    // Month lengths from March repeat 31, 30, 31, 30, 31: 153 days in five months.
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * DAYS_PER_ERA + day_of_era - DAYS_TO_EPOCH
}

fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + DAYS_TO_EPOCH;
    let (era, day_of_era) = (days.div_euclid(DAYS_PER_ERA), days.rem_euclid(DAYS_PER_ERA));
    // Takes the leap days of 4, 100 and 400 years out, so that every year has 365 days.
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}
