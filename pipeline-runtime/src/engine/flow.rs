//! The operators of one task and how rows pass through them, from the inputs to the outputs.

use millrace_core::event_time::{Upstream, WATERMARK_MAX, WATERMARK_MIN};
use millrace_core::plan::Port;
use millrace_core::totals::Totals;

use super::changes::Changes;
use super::exchange::ExchangeWriter;
use super::sink::SinkWriter;
use crate::log::Outbox;
use crate::operator::guard::Guard;
use crate::operator::project::Project;
use crate::operator::table_join::TableJoin;
use crate::operator::temporal_join::TemporalJoin;
use crate::operator::{Context, OperatorError, Outcome};
use crate::rows::Rows;

pub enum Kind {
    Project(Project),
    TableJoin(TableJoin),
    TemporalJoin(Box<TemporalJoin>),
    Guard(Guard),
}

pub struct Operator {
    pub name: String,
    pub input: Port,
    pub kind: Kind,
    pub totals: Totals,
    pub repairs: Option<Repairs>,
}

/// Where rows of a backfill come to a guard, and what became of them.
pub struct Repairs {
    pub from: Port,
    pub totals: Totals,
}

pub enum Writer {
    Sink(SinkWriter),
    Exchange(ExchangeWriter),
}

pub struct Output {
    pub from: Port,
    pub writer: Writer,
    /// What the rows that came by have said about time.
    pub watermark: i64,
}

pub struct Flow {
    pub operators: Vec<Operator>,
    pub outputs: Vec<Output>,
}

impl Flow {
    /// Passes rows on from `from`, through everything behind it.
    pub fn rows(&mut self, from: Port, rows: Rows, cx: &mut Context<'_>) -> Result<(), OperatorError> {
        for output in self.outputs.iter_mut().filter(|o| o.from == from) {
            match &mut output.writer {
                Writer::Sink(sink) => sink.rows(&rows, cx)?,
                Writer::Exchange(exchange) => exchange.rows(&rows, cx.outbox)?,
            }
            if rows.watermark < WATERMARK_MAX {
                output.watermark = output.watermark.max(rows.watermark);
            }
        }
        for i in 0..self.operators.len() {
            let Some(out) = self.operators[i].run(from, &rows, cx) else { continue };
            self.rows(Port::Operator(i), out?, cx)?;
        }
        Ok(())
    }

    /// Passes a table's changes on to the exchanges that carry them.
    pub fn changes(
        &mut self,
        from: Port,
        changes: &Changes,
        watermark: i64,
        outbox: &mut Outbox,
    ) -> Result<(), OperatorError> {
        for output in self.outputs.iter_mut().filter(|o| o.from == from) {
            if let Writer::Exchange(exchange) = &mut output.writer {
                exchange.changes(changes, outbox)?;
                output.watermark = output.watermark.max(watermark);
            }
        }
        Ok(())
    }

    /// Lets rows go that waited for a table or for the stream's idleness.
    pub fn advance(&mut self, cx: &mut Context<'_>) -> Result<(), OperatorError> {
        for i in 0..self.operators.len() {
            let Operator { kind: Kind::TemporalJoin(join), totals, .. } = &mut self.operators[i] else { continue };
            let out = join.advance(totals, cx)?;
            self.rows(Port::Operator(i), out, cx)?;
        }
        Ok(())
    }

    /// Writes what waits to the state.
    pub fn persist(&mut self, cx: &mut Context<'_>) -> Result<(), OperatorError> {
        for operator in &mut self.operators {
            if let Kind::TemporalJoin(join) = &mut operator.kind {
                join.persist(cx)?;
            }
        }
        Ok(())
    }

    pub fn restore(&mut self, cx: &mut Context<'_>) -> Result<(), OperatorError> {
        for operator in &mut self.operators {
            if let Kind::TemporalJoin(join) = &mut operator.kind {
                join.restore(cx)?;
            }
        }
        Ok(())
    }

    /// Versions of the table at `input` that ended before this are not needed any more.
    pub fn horizon(&self, input: usize) -> i64 {
        let joins = self.operators.iter().filter_map(|operator| match &operator.kind {
            Kind::TemporalJoin(join) if join.table_input() == input => Some(join.horizon()),
            _ => None,
        });
        joins.min().unwrap_or(i64::MAX)
    }

    pub fn waiting(&self) -> u64 {
        self.operators.iter().map(|o| o.totals.waiting).sum()
    }

    /// What an output tells downstream, given how the input behind it stands.
    fn progress(&self, output: &Output, input: Upstream) -> Upstream {
        Upstream {
            watermark: output.watermark,
            idle: input.idle && self.waiting() == 0,
            ended: input.ended && self.waiting() == 0,
            ..input
        }
    }

    /// True when an exchange has rows to send or progress to tell. `inputs` is how each stage input stands.
    pub fn due(&self, origin: &dyn Fn(Port) -> Upstream, steady_ms: u64) -> bool {
        self.outputs.iter().any(|output| match &output.writer {
            Writer::Exchange(exchange) => exchange.due(self.progress(output, origin(output.from)), steady_ms),
            Writer::Sink(_) => false,
        })
    }

    pub fn flush(&mut self, origin: &dyn Fn(Port) -> Upstream, steady_ms: u64, outbox: &mut Outbox) {
        let said: Vec<Upstream> = self.outputs.iter().map(|o| self.progress(o, origin(o.from))).collect();
        for (output, said) in self.outputs.iter_mut().zip(said) {
            if let Writer::Exchange(exchange) = &mut output.writer {
                exchange.flush(said, steady_ms, outbox);
            }
        }
    }
}

impl Operator {
    /// `None`: rows from there are not for it.
    fn run(&mut self, from: Port, rows: &Rows, cx: &mut Context<'_>) -> Option<Outcome> {
        let totals = match &mut self.repairs {
            Some(repairs) if repairs.from == from => &mut repairs.totals,
            _ if self.input == from => &mut self.totals,
            _ => return None,
        };
        let rows = rows.clone();
        Some(match &mut self.kind {
            Kind::Project(project) => project.run(rows, totals, cx),
            Kind::TableJoin(join) => join.run(rows, totals, cx),
            Kind::TemporalJoin(join) => join.run(rows, totals, cx),
            Kind::Guard(guard) => guard.run(rows, totals, cx),
        })
    }
}

impl Output {
    pub fn new(from: Port, writer: Writer) -> Self {
        Self { from, writer, watermark: WATERMARK_MIN }
    }
}
