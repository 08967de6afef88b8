//! How fast an error budget may burn: the tiers of multi-window, multi-burn-rate alerts, and which objectives they can
//! watch.
//!
//! A tier fires while the share of bad observations is above `factor * budget` in its long window (so that it matters) and
//! in its short one (so that it ends soon after the harm does). The factor is chosen so that the long window has spent
//! a fixed share of the whole budget by then: `factor = share * SLO window / long window`. Shares and windows are those of
//! Google's Site Reliability Workbook, chapter *Alerting on SLOs*, table 5-8.
//!
//! Everything is exact: an objective has at most four decimals of a percent, so that it is a whole number of millionths.

use std::fmt;
use std::str::FromStr;

use crate::duration::Duration;

/// A slice of time that is good or bad as a whole.
pub const SLICE: Duration = Duration::from_secs(10);
/// A page for fewer bad slices would wake somebody for one hiccup.
pub const SLICES_OF_A_PAGE_MIN: u64 = 3;

const MILLION: u64 = 1_000_000;
const DAY_MS: u64 = 86_400_000;
/// What the SLO windows range over, in days.
const WINDOW_DAYS: std::ops::RangeInclusive<u64> = 7..=90;

/// Whom an alert asks for help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Somebody now.
    Page,
    /// Somebody within the next days.
    Ticket,
}

impl Severity {
    /// As the labels of alerts say it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Page => "page",
            Self::Ticket => "ticket",
        }
    }
}

/// One speed of burning that is worth an alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tier {
    pub severity: Severity,
    /// Share of the whole budget that the long window has spent when the tier fires, in percent.
    pub share_percent: u64,
    pub long: Duration,
    /// A twelfth of the long window.
    pub short: Duration,
}

const fn tier(severity: Severity, share_percent: u64, long_hours: u64) -> Tier {
    let long = Duration::from_secs(long_hours * 3_600);
    Tier { severity, share_percent, long, short: Duration::from_secs(long_hours * 300) }
}

/// All of them, fastest first.
pub const TIERS: [Tier; 4] = [
    tier(Severity::Page, 2, 1),
    tier(Severity::Page, 5, 6),
    tier(Severity::Ticket, 10, 24),
    tier(Severity::Ticket, 10, 72),
];

impl Tier {
    /// How many times faster than the objective allows the budget burns when the tier fires.
    pub fn factor(&self, window: Duration) -> f64 {
        (self.share_percent * ms(window)) as f64 / (100 * ms(self.long)) as f64
    }

    /// Below a factor of 1 the budget lasts for the window: nothing is wrong. A window of which a quarter is one look
    /// back is better watched by itself.
    fn fits(&self, window: Duration) -> bool {
        self.share_percent * ms(window) >= 100 * ms(self.long) && 4 * ms(self.long) <= ms(window)
    }

    /// The largest budget, in millionths, at which the tier can fire: `factor * budget` must be below 1, since no more
    /// than all observations can be bad.
    fn budget_max(&self, window: Duration) -> u64 {
        (100 * MILLION * ms(self.long) - 1) / (self.share_percent * ms(window))
    }

    /// The smallest budget, in millionths, at which the tier needs [`SLICES_OF_A_PAGE_MIN`] bad slices. It fires at the
    /// first whole number above `share * budget * window / slice`, whatever its long window.
    fn budget_min(&self, window: Duration) -> u64 {
        ((SLICES_OF_A_PAGE_MIN - 1) * ms(SLICE) * 100 * MILLION).div_ceil(self.share_percent * ms(window))
    }
}

/// The tiers that an SLO over this window has, fastest first.
pub fn tiers(window: Duration) -> impl Iterator<Item = Tier> {
    TIERS.into_iter().filter(move |tier| tier.fits(window))
}

/// Share of the observations that must be good, in millionths; from 0 to less than all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Objective(u64);

/// Why a text is not an objective.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not an objective: write percent below 100 with at most four decimals, such as 99.9")]
pub struct ObjectiveError(pub String);

impl Objective {
    /// 0.999 for an objective of 99.9 percent.
    pub fn ratio(self) -> f64 {
        self.0 as f64 / MILLION as f64
    }

    /// Share that may be bad: 0.001 for an objective of 99.9 percent.
    pub fn budget(self) -> f64 {
        self.budget_millionths() as f64 / MILLION as f64
    }

    const fn budget_millionths(self) -> u64 {
        MILLION - self.0
    }

    const fn of_budget(millionths: u64) -> Self {
        Self(MILLION - millionths)
    }
}

impl FromStr for Objective {
    type Err = ObjectiveError;

    fn from_str(text: &str) -> Result<Self, ObjectiveError> {
        let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
        let digits =
            |text: &str, max| (1..=max).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole, 2) || !digits(decimals, 4) {
            return Err(ObjectiveError(text.to_owned()));
        }
        format!("{whole}{decimals:0<4}").parse().map(Self).map_err(|_| ObjectiveError(text.to_owned()))
    }
}

impl fmt::Display for Objective {
    /// As percent.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:04}", self.0 / 10_000, self.0 % 10_000);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// What an SLO counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observation {
    /// Slices of time.
    Slice,
    /// Records.
    Record,
}

/// What is wrong with an objective for this window, as (message, hint): tiers that can never fire, and pages that a
/// hiccup would fire. A text that is no objective has the schema's mistake, and none here.
pub fn mistakes(objective: &str, window: Duration, observed: Observation) -> Vec<(String, String)> {
    let Ok(objective) = objective.parse::<Objective>() else { return Vec::new() };
    let budget = objective.budget_millionths();
    // Both bounds are tightest for the fastest tier: it has the largest factor, and the smallest share.
    let Some(fastest) = tiers(window).next() else { return Vec::new() };
    let mut found = Vec::new();
    let (budget_max, budget_min) = (fastest.budget_max(window), fastest.budget_min(window));
    if budget > budget_max {
        let message = format!(
            "has an alert that can never fire: its factor over {} is {}, and at this objective it must be below {}",
            fastest.long,
            rounded(fastest.factor(window)),
            rounded(1.0 / objective.budget()),
        );
        let days = (100 * MILLION * ms(fastest.long) - 1) / (fastest.share_percent * budget * DAY_MS);
        let hint = format!("write {} or more{}", Objective::of_budget(budget_max), or_window(days, "less"));
        found.push((message, hint));
    }
    if observed == Observation::Slice && budget < budget_min {
        let message = format!(
            "would page for fewer than {SLICES_OF_A_PAGE_MIN} bad slices of {SLICE}: {} % of the budget is {} of them",
            fastest.share_percent,
            rounded((fastest.share_percent * ms(window) * budget) as f64 / (100 * MILLION * ms(SLICE)) as f64),
        );
        let enough = (SLICES_OF_A_PAGE_MIN - 1) * ms(SLICE) * 100 * MILLION;
        let days = enough.div_ceil(fastest.share_percent * budget * DAY_MS);
        let hint = format!("write {} or less{}", Objective::of_budget(budget_min), or_window(days, "more"));
        found.push((message, hint));
    }
    found
}

/// The other way out, where it is one.
fn or_window(days: u64, or: &str) -> String {
    if WINDOW_DAYS.contains(&days) { format!(", or a window of {days}d or {or}") } else { String::new() }
}

/// With two decimals at most.
fn rounded(number: f64) -> String {
    let text = format!("{number:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

const fn ms(duration: Duration) -> u64 {
    duration.ms() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn days(days: u64) -> Duration {
        Duration::from_days(days)
    }

    #[test]
    fn the_factors_are_those_of_the_workbook() {
        let of = |window| tiers(window).map(|tier| (tier.long.to_string(), tier.factor(window))).collect::<Vec<_>>();
        let hours =
            |factors: &[(&str, f64)]| factors.iter().map(|(long, by)| ((*long).to_owned(), *by)).collect::<Vec<_>>();
        assert_eq!(of(days(30)), hours(&[("1h", 14.4), ("6h", 6.0), ("1d", 3.0), ("3d", 1.0)]));
        assert_eq!(of(days(90)), hours(&[("1h", 43.2), ("6h", 18.0), ("1d", 9.0), ("3d", 3.0)]));
        // A factor below 1.
        assert_eq!(of(days(28)), hours(&[("1h", 13.44), ("6h", 5.6), ("1d", 2.8)]));
        assert_eq!(of(days(7)), hours(&[("1h", 3.36), ("6h", 1.4)]));
    }

    #[test]
    fn a_long_window_is_a_quarter_of_the_slo_window_at_most() {
        // Six hours with a share of a half would fit a day by its factor of 2 alone.
        let six_hours = Tier { share_percent: 50, ..TIERS[1] };
        assert!(six_hours.fits(days(1)));
        assert!(!six_hours.fits(Duration::from_secs(23 * 3_600)));
    }

    #[test]
    fn short_windows_are_a_twelfth_and_the_first_two_tiers_page() {
        let shorts = TIERS.map(|tier| (tier.short.to_string(), tier.severity.name()));
        let expected = [("5m", "page"), ("30m", "page"), ("2h", "ticket"), ("6h", "ticket")];
        assert_eq!(shorts, expected.map(|(short, severity)| (short.to_owned(), severity)));
    }

    #[test]
    fn an_objective_reads_back_as_it_was_written() {
        for text in ["99.9", "99.95", "99.9999", "90", "0", "7.5"] {
            assert_eq!(text.parse::<Objective>().expect(text).to_string(), text);
        }
        for (text, same) in [("99.0", "99"), ("99.9900", "99.99"), ("05", "5")] {
            assert_eq!(text.parse::<Objective>().expect(text).to_string(), same);
        }
        for text in ["", "100", "99.", ".9", "99.99999", "-1", "+9", "99,9", "9 9", "९९"] {
            assert!(text.parse::<Objective>().is_err(), "{text}");
        }
        let objective: Objective = "99.9".parse().expect("99.9");
        assert_eq!((objective.ratio(), objective.budget()), (0.999, 0.001));
    }

    #[test]
    fn objectives_that_no_alert_can_watch_are_refused_with_the_nearest_that_one_can() {
        let never = |factor, below, hint: &str| {
            let message = format!(
                "has an alert that can never fire: its factor over 1h is {factor}, and at this objective it must be below {below}"
            );
            (message, hint.to_owned())
        };
        let hiccup = |slices, hint: &str| {
            let message =
                format!("would page for fewer than 3 bad slices of 10s: 2 % of the budget is {slices} of them");
            (message, hint.to_owned())
        };
        let cases = [
            ("90", 30, Some(never("14.4", "10", "write 93.0556 or more, or a window of 20d or less"))),
            ("93.0555", 30, Some(never("14.4", "14.4", "write 93.0556 or more, or a window of 29d or less"))),
            ("93.0556", 30, None),
            ("97", 90, Some(never("43.2", "33.33", "write 97.6852 or more, or a window of 69d or less"))),
            ("50", 7, Some(never("3.36", "2", "write 70.2381 or more"))),
            ("0", 30, Some(never("14.4", "1", "write 93.0556 or more"))),
            ("99.9", 30, None),
            ("99.96", 30, None),
            ("99.9614", 30, None),
            ("99.9615", 30, Some(hiccup("2", "write 99.9614 or less, or a window of 31d or more"))),
            ("99.99", 30, Some(hiccup("0.52", "write 99.9614 or less"))),
            ("99.9", 7, Some(hiccup("1.21", "write 99.8346 or less, or a window of 12d or more"))),
            ("99.5", 7, None),
            ("99.9999", 90, Some(hiccup("0.02", "write 99.9871 or less"))),
        ];
        for (objective, window, expected) in cases {
            let found = mistakes(objective, days(window), Observation::Slice);
            assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{objective} % over {window}d");
        }
    }

    #[test]
    fn what_a_hint_names_is_feasible_and_a_step_further_is_not() {
        for window in (7..=90).map(days) {
            let fastest = tiers(window).next().expect("a tier");
            let (max, min) = (fastest.budget_max(window), fastest.budget_min(window));
            let refused =
                |budget| !mistakes(&Objective::of_budget(budget).to_string(), window, Observation::Slice).is_empty();
            assert_eq!([min - 1, min, max, max + 1].map(refused), [true, false, false, true], "{window}");
            // The bounds of the fastest tier hold for all.
            for tier in tiers(window) {
                assert!(tier.factor(window) * Objective::of_budget(max).budget() < 1.0);
                assert!(tier.budget_min(window) <= min);
            }
        }
    }

    #[test]
    fn records_may_be_better_than_slices_and_can_not_be_worse() {
        assert_eq!(mistakes("99.9999", days(30), Observation::Record), []);
        assert_eq!(mistakes("90", days(30), Observation::Record).len(), 1);
    }

    #[test]
    fn a_text_that_is_no_objective_has_no_second_mistake() {
        assert_eq!(mistakes("100", days(30), Observation::Slice), []);
    }
}
