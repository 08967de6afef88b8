//! The declarative front end: `spec.steps` and `sinks[].from`.
//!
//! Inside of a join step an unqualified name is the input's column if the input has one of that name, else the table's;
//! `table.column` and `input.column` say it outright.

use datafusion_sql::sqlparser::ast::{Expr, Ident};
use millrace_core::plan::{Emit, JoinKind, Late, Missing};
use millrace_crds::pipeline as api;
use millrace_crds::pipeline::StepKind;

use crate::catalog::Catalog;
use crate::expr::{Named, Scope};
use crate::joins::{emit, late, missing, table, temporal_problems};
use crate::logical::{Flow, JoinSpec, Logical, check_unique};
use crate::mistakes::Mistakes;
use crate::names::did_you_mean;
use crate::parse::{self, SqlError};

/// Lowers all steps and sinks.
pub fn lower(catalog: &Catalog, mistakes: &mut Mistakes) -> Logical {
    let steps = catalog.spec.steps();
    let mut lowering =
        Lowering { catalog, steps, states: vec![State::New; steps.len()], logical: Logical::default(), mistakes };
    for (i, sink) in catalog.spec.sinks.iter().enumerate() {
        let path = format!("spec.sinks[{i}].from");
        let Some(from) = &sink.from else {
            lowering.mistakes.add(path, "", "is required", "name the source or step whose rows the sink takes");
            continue;
        };
        if let Some(flow) = lowering.input(from, &path) {
            lowering.logical.outputs.push((i, flow));
        }
    }
    lowering.check_unreached();
    lowering.logical
}

#[derive(Clone)]
enum State {
    New,
    /// Its input is being lowered: meeting it again is a cycle.
    Open,
    /// `None`: it has mistakes, which are not told again for each step behind it.
    Done(Option<Flow>),
}

struct Lowering<'a, 'm> {
    catalog: &'a Catalog<'a>,
    steps: &'a [api::Step],
    states: Vec<State>,
    logical: Logical,
    mistakes: &'m mut Mistakes,
}

impl<'a> Lowering<'a, '_> {
    /// The rows of the source or step `from`, which the field at `path` names.
    fn input(&mut self, from: &str, path: &str) -> Option<Flow> {
        if let Some(index) = self.catalog.source(from) {
            if self.catalog.sources[index].source.table.is_some() {
                self.mistakes.add(path, from, "is a table", "use it in a join; rows come from a source without table");
                return None;
            }
            return Some(Flow::of_source(self.catalog, index));
        }
        let Some(index) = self.steps.iter().position(|s| s.name == from) else {
            let streams = self.catalog.sources.iter().filter(|s| s.source.table.is_none());
            let names = self.steps.iter().map(|s| s.name.as_str()).chain(streams.map(|s| s.spec.name.as_str()));
            self.mistakes.add(path, from, "is not a step or a source", did_you_mean(from, names));
            return None;
        };
        match &self.states[index] {
            State::Done(flow) => flow.clone(),
            State::Open => {
                self.mistakes.add(
                    path,
                    from,
                    "makes the steps a circle",
                    "no step can take rows that come from itself",
                );
                None
            }
            State::New => {
                self.states[index] = State::Open;
                let flow = self.step(index);
                self.states[index] = State::Done(flow.clone());
                flow
            }
        }
    }

    fn check_unreached(&mut self) {
        for index in 0..self.steps.len() {
            if matches!(self.states[index], State::New) {
                let name = &self.steps[index].name;
                let path = format!("spec.steps[{index}].name");
                self.mistakes.add(path, name, "leads to no sink", "add a sink with from, or remove the step");
                // Its own mistakes are told all the same.
                self.input(&self.steps[index].name.clone(), &format!("spec.steps[{index}].from"));
            }
        }
    }

    fn step(&mut self, index: usize) -> Option<Flow> {
        let step = &self.steps[index];
        let path = format!("spec.steps[{index}]");
        let input = self.input(&step.from, &format!("{path}.from"));
        let Some(kind) = step.kind() else {
            let hint = "write exactly one of project, tableJoin and temporalJoin";
            self.mistakes.add(path, &step.name, "has not exactly one kind", hint);
            return None;
        };
        match kind {
            StepKind::Project(project) => self.project(step, project, input?, &format!("{path}.project")),
            StepKind::TableJoin(join) => {
                let path = format!("{path}.tableJoin");
                let table = self.table(&join.table, &path)?;
                let missing = self.missing(table, join.missing, &path);
                let parts = JoinParts { keys: &join.keys, kind: join.join_type, temporal: None, missing };
                self.join(step, parts, table, join.select.as_deref(), input?, &path)
            }
            StepKind::TemporalJoin(join) => {
                let path = format!("{path}.temporalJoin");
                let table = self.table(&join.table, &path)?;
                let missing = self.missing(table, join.missing, &path);
                let defaults = &self.catalog.sources[table].spec.table.as_ref()?.defaults;
                let emit = emit(&defaults.emit(join.emit.as_ref()));
                let late = self.policy(late(self.catalog.spec, defaults.late(join.late)), &format!("{path}.late"));
                let input = input?;
                for problem in temporal_problems(self.catalog, &input, table) {
                    self.mistakes.add_expression(format!("{path}.table"), &join.table, &problem);
                }
                let temporal = Some((emit, late));
                let parts = JoinParts { keys: &join.keys, kind: join.join_type, temporal, missing };
                self.join(step, parts, table, join.select.as_deref(), input, &path)
            }
        }
    }

    fn project(&mut self, step: &api::Step, project: &api::Project, input: Flow, path: &str) -> Option<Flow> {
        let mut flow = input.clone();
        flow.project = Some(step.name.clone());
        let scope = Scope { relations: vec![(&step.from, &input.columns)], first_wins: true };
        let mut fine = true;
        if let Some(text) = &project.filter {
            let result = parse::expression(text).and_then(|condition| flow.filter(condition, &scope));
            if let Err(error) = result {
                self.mistakes.add_expression(format!("{path}.where"), text, &error);
                fine = false;
            }
        }
        if let Some(select) = &project.select {
            flow.columns = self.select(&flow, select, &scope, path)?;
        }
        fine.then_some(flow)
    }

    fn join(
        &mut self,
        step: &api::Step,
        parts: JoinParts,
        table: usize,
        select: Option<&[String]>,
        input: Flow,
        path: &str,
    ) -> Option<Flow> {
        let kind = match parts.kind {
            api::JoinType::Inner => JoinKind::Inner,
            api::JoinType::Left => JoinKind::Left,
        };
        let left = input.columns.clone();
        let keys = self.keys(parts.keys, &input, table, path);
        let right = Logical::table_columns(self.catalog, &input, table, kind);
        let complete = keys.len() == parts.keys.len();
        let JoinParts { temporal, missing, .. } = parts;
        let join = JoinSpec { name: step.name.clone(), table, kind, keys, temporal, missing };
        let mut problems = Vec::new();
        let mut flow = self.logical.join(self.catalog, input, &right, join, &mut problems);
        if complete {
            for problem in problems {
                self.mistakes.add_expression(format!("{path}.keys"), "", &problem);
            }
        }
        let table_name = self.catalog.sources[table].spec.name.as_str();
        let scope = Scope { relations: vec![(&step.from, &left), (table_name, &right)], first_wins: true };
        flow.columns = match select {
            Some(select) => self.select(&flow, select, &scope, path)?,
            None => {
                let new = right.iter().filter(|c| left.iter().all(|l| l.name != c.name));
                left.iter().chain(new).cloned().collect()
            }
        };
        Some(flow)
    }

    fn keys(&mut self, keys: &[api::JoinKey], input: &Flow, table: usize, path: &str) -> Vec<(Expr, String)> {
        let mut found = Vec::new();
        let right_columns = &self.catalog.sources[table].source.columns;
        for (i, key) in keys.iter().enumerate() {
            let path = format!("{path}.keys[{i}]");
            let left = input.columns.iter().find(|c| c.name == key.left);
            if left.is_none() {
                let hint = did_you_mean(&key.left, input.columns.iter().map(|c| c.name.as_str()));
                self.mistakes.add(format!("{path}.left"), &key.left, "is not a column of the input", hint);
            }
            let right = right_columns.iter().find(|c| c.name == key.right);
            if right.is_none() {
                let hint = did_you_mean(&key.right, right_columns.iter().map(|c| c.name.as_str()));
                self.mistakes.add(format!("{path}.right"), &key.right, "is not a column of the table", hint);
            }
            found.extend(left.zip(right).map(|(left, right)| (left.expr.clone(), right.name.clone())));
        }
        found
    }

    /// All columns of a select list, or none if one has a mistake.
    fn select(&mut self, flow: &Flow, select: &[String], scope: &Scope, path: &str) -> Option<Vec<Named>> {
        let mut columns = Some(Vec::new());
        for (i, text) in select.iter().enumerate() {
            match parse::select_item(text).and_then(|item| flow.select(item, scope)) {
                Ok(named) => {
                    columns.iter_mut().for_each(|columns: &mut Vec<Named>| columns.extend(named.iter().cloned()))
                }
                Err(error) => {
                    self.mistakes.add_expression(format!("{path}.select[{i}]"), text, &error);
                    columns = None;
                }
            }
        }
        let columns = columns?;
        if let Err(error) = check_unique(&columns) {
            self.mistakes.add_expression(format!("{path}.select"), "", &error);
        }
        Some(columns)
    }

    fn table(&mut self, name: &str, path: &str) -> Option<usize> {
        let found = table(self.catalog, &Ident::with_quote('"', name));
        found.map_err(|e| self.mistakes.add_expression(format!("{path}.table"), name, &e)).ok()
    }

    fn missing(&mut self, table: usize, own: Option<api::Missing>, path: &str) -> Missing {
        let defaults = self.catalog.sources[table].spec.table.as_ref().map(|t| t.defaults.clone()).unwrap_or_default();
        self.policy(missing(self.catalog.spec, defaults.missing(own)), &format!("{path}.missing"))
    }

    /// Tells the problem of a policy, if it has one.
    fn policy<T>(&mut self, (policy, problem): (T, Option<SqlError>), path: &str) -> T {
        if let Some(problem) = problem {
            self.mistakes.add_expression(path, "", &problem);
        }
        policy
    }
}

struct JoinParts<'a> {
    keys: &'a [api::JoinKey],
    kind: api::JoinType,
    temporal: Option<(Emit, Late)>,
    missing: Missing,
}
