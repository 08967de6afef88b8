//! The search for the row that keeps an epoch from being committed.
//!
//! A stack of parts, the next one on top; when one is committed it goes, when one is aborted, what was really read is cut
//! in two. The first half always lies above the second, so every input is read in its order. A part is only an upper
//! bound: an epoch may be closed early, or begin before it after a restart. No harm is done, since a row is condemned only
//! when an epoch that held nothing else was aborted.

use std::mem;

use crate::ids::{Offset, TaskId};

/// Rows of one input of one task: `from..to`. Offsets that hold no row cost a step and do no harm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub task: TaskId,
    pub input: usize,
    pub from: Offset,
    pub to: Offset,
}

/// How far an input may be read in this epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Free,
    Below(Offset),
    /// Its turn comes later.
    Nothing,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Again,
    /// The row was condemned already, and was refused once more.
    Hopeless(TaskId),
}

#[derive(Debug, Default)]
pub(super) struct Bisection {
    parts: Vec<Vec<Span>>,
    condemned: bool,
}

impl Bisection {
    pub(super) fn active(&self) -> bool {
        !self.parts.is_empty()
    }

    pub(super) fn passed(&mut self) {
        self.parts.pop();
        self.condemned = false;
    }

    /// An epoch that had read this was aborted.
    pub(super) fn failed(&mut self, read: Vec<Span>) -> Verdict {
        self.parts.pop();
        let condemned = mem::take(&mut self.condemned);
        match read.first() {
            Some(row) if condemned && rows(&read) == 1 => return Verdict::Hopeless(row.task.clone()),
            Some(_) => self.split(read),
            None => {}
        }
        Verdict::Again
    }

    /// Pushes the two halves of a part, or the single row that it is, condemned.
    fn split(&mut self, part: Vec<Span>) {
        let total = rows(&part);
        if total == 1 {
            self.condemned = true;
            self.parts.push(part);
            return;
        }
        let (mut first, mut second, mut left) = (Vec::new(), Vec::new(), total / 2);
        for span in part {
            let cut = Offset(span.from.0 + left.clamp(0, span.to.0 - span.from.0));
            left -= span.to.0 - span.from.0;
            if span.from < cut {
                first.push(Span { to: cut, ..span.clone() });
            }
            if cut < span.to {
                second.push(Span { from: cut, ..span });
            }
        }
        self.parts.extend([second, first]);
    }

    fn span(&self, task: &TaskId, input: usize) -> Option<&Span> {
        self.parts.last()?.iter().find(|span| span.task == *task && span.input == input)
    }

    pub(super) fn limit(&self, task: &TaskId, input: usize) -> Limit {
        match self.span(task, input) {
            _ if !self.active() => Limit::Free,
            Some(span) => Limit::Below(span.to),
            None => Limit::Nothing,
        }
    }

    pub(super) fn condemned(&self, task: &TaskId, input: usize, offset: Offset) -> bool {
        self.condemned && self.span(task, input).is_some_and(|span| (span.from..span.to).contains(&offset))
    }
}

fn rows(spans: &[Span]) -> i64 {
    spans.iter().map(|span| span.to.0 - span.from.0).sum()
}
