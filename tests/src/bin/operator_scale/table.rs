//! What was measured, each figure beside its bar.

use std::fmt;

#[derive(Default)]
pub struct Table {
    rows: Vec<Row>,
}

struct Row {
    what: &'static str,
    measured: String,
    /// Empty where there is none.
    bar: String,
    holds: bool,
}

impl Table {
    /// A figure that has no bar.
    pub fn tell(&mut self, what: &'static str, measured: String) {
        self.rows.push(Row { what, measured, bar: String::new(), holds: true });
    }

    /// A figure that must not be above its bar.
    pub fn judge(&mut self, what: &'static str, measured: f64, most: f64, unit: &str) {
        let holds = measured <= most;
        let verdict = if holds { "holds" } else { "MISSED" };
        let (measured, bar) = (format!("{measured:.2} {unit}"), format!("at most {most} {unit}: {verdict}"));
        self.rows.push(Row { what, measured, bar, holds });
    }

    pub fn holds(&self) -> bool {
        self.rows.iter().all(|row| row.holds)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |of: fn(&Row) -> usize| self.rows.iter().map(of).max().unwrap_or_default();
        let (what, measured) = (width(|row| row.what.len()), width(|row| row.measured.len()));
        for row in &self.rows {
            let line = format!("{:what$}  {:>measured$}  {}", row.what, row.measured, row.bar);
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}
