//! The SQL front end: `INSERT INTO sink SELECT ... FROM stream [JOIN table ...] [WHERE ...]`, one statement a sink.
//!
//! `JOIN table FOR SYSTEM_TIME AS OF stream.event_time` is a temporal join, a join without it takes the latest row. What
//! SQL has no words for (emit, late, missing) comes from the table's `defaults`. A join's identity, which its state
//! belongs to, is the sink's name with the aliases of both inputs and the kind, so that the order of joins can change; the
//! hint `JOIN /*+ name('x') */ table` sets it.

use datafusion_sql::sqlparser::ast::{
    BinaryOperator, Expr, GroupByExpr, Ident, Insert, Join, JoinConstraint, JoinOperator, ObjectName, Query, Select,
    SelectFlavor, SetExpr, Spanned, Statement, TableFactor, TableObject, TableVersion,
};
use datafusion_sql::sqlparser::tokenizer::Location;
use millrace_core::plan::JoinKind;

use crate::catalog::Catalog;
use crate::expr::{self, Named, Scope, lookup};
use crate::joins;
use crate::logical::{Flow, JoinSpec, Logical, check_unique};
use crate::mistakes::Mistakes;
use crate::names::did_you_mean;
use crate::parse::{self, ParsedStatement, SqlError};

/// Lowers all statements of `sql`.
pub fn lower(catalog: &Catalog, sql: &str, mistakes: &mut Mistakes) -> Logical {
    let mut logical = Logical::default();
    for parsed in parse::statements(sql) {
        let mut problems = Vec::new();
        match parsed {
            Ok(parsed) => {
                let start = parsed.start;
                let insert = Insertion { catalog, logical: &mut logical, problems: &mut problems, parsed: &parsed };
                if let Err(error) = insert.lower() {
                    problems.push(error);
                }
                problems = problems.into_iter().map(|p| p.or_at(start)).collect();
            }
            Err(error) => problems.push(error),
        }
        for problem in &problems {
            mistakes.add_sql(problem);
        }
    }
    if mistakes.is_empty() {
        for (i, sink) in catalog.spec.sinks.iter().enumerate() {
            if !logical.outputs.iter().any(|(output, _)| *output == i) {
                let hint = format!("add INSERT INTO {} SELECT ..., or remove the sink", sink.name);
                mistakes.add(
                    format!("spec.sinks[{i}].name"),
                    &sink.name,
                    "no statement of spec.sql writes to it",
                    hint,
                );
            }
        }
    }
    logical
}

/// One statement on its way. Problems that let the rest be checked are collected, others end it.
struct Insertion<'a> {
    catalog: &'a Catalog<'a>,
    logical: &'a mut Logical,
    problems: &'a mut Vec<SqlError>,
    parsed: &'a ParsedStatement,
}

/// The relations that the statement has named so far. The stream is the first.
struct Relations {
    named: Vec<(String, Vec<Named>)>,
}

impl Relations {
    fn scope(&self) -> Scope<'_> {
        let relations = self.named.iter().map(|(name, columns)| (name.as_str(), columns.as_slice())).collect();
        Scope { relations, first_wins: false }
    }

    fn add(&mut self, name: &Ident, columns: Vec<Named>) -> Result<(), SqlError> {
        if self.named.iter().any(|(other, _)| other.eq_ignore_ascii_case(&name.value)) {
            let message = format!("'{}' names two relations", name.value);
            return Err(SqlError::new(message, "give one of them another name with AS").or_at(name.span.start));
        }
        self.named.push((name.value.clone(), columns));
        Ok(())
    }
}

impl Insertion<'_> {
    fn lower(mut self) -> Result<(), SqlError> {
        let Statement::Insert(insert) = &self.parsed.statement else {
            let words = self.parsed.statement.to_string();
            let first = words.split_whitespace().next().unwrap_or_default().to_owned();
            let message = format!("a statement begins with INSERT INTO, not with {first}");
            return Err(SqlError::new(message, "write INSERT INTO sink SELECT ..."));
        };
        let (sink, select) = self.sink_and_select(insert)?;
        let sink_name = self.catalog.spec.sinks[sink].name.as_str();
        let [from] = select.from.as_slice() else {
            let hint = "write FROM stream, and JOIN for each table";
            return Err(SqlError::new("FROM names not exactly one relation", hint).or_at(select.span().start));
        };
        let (source, alias) = self.stream(&from.relation)?;
        let mut flow = Flow::of_source(self.catalog, source);
        let mut relations = Relations { named: Vec::new() };
        relations.add(&alias, flow.columns.clone())?;
        for (i, join) in from.joins.iter().enumerate() {
            let hint = self.parsed.join_hints.get(i).cloned().flatten();
            let hint = hint.or_else(|| self.parsed.select_hint.clone().filter(|_| from.joins.len() == 1));
            let at = join.relation.span().start;
            let known = self.problems.len();
            let joined = self.join(join, flow, &mut relations, sink_name, hint);
            for problem in &mut self.problems[known..] {
                *problem = problem.clone().or_at(at);
            }
            flow = joined.map_err(|e| e.or_at(at))?;
        }
        if let Some(hint) = self.parsed.select_hint.as_ref().filter(|_| from.joins.len() != 1) {
            let error = SqlError::new("a hint behind SELECT names the only join of a statement", "put it behind JOIN");
            self.problems.push(error.or_at(hint.span.start));
        }
        if let Some(condition) = &select.selection
            && let Err(error) = flow.filter(condition.clone(), &relations.scope())
        {
            self.problems.push(error);
        }
        let mut columns = Some(Vec::new());
        for item in &select.projection {
            match flow.select(item.clone(), &relations.scope()) {
                Ok(named) => columns.iter_mut().for_each(|columns| columns.extend(named.iter().cloned())),
                Err(error) => {
                    self.problems.push(error);
                    columns = None;
                }
            }
        }
        // Without a column that has a mistake, the sink would seem to lack it.
        let Some(columns) = columns else { return Ok(()) };
        check_unique(&columns).map_err(|e| e.or_at(select.span().start))?;
        flow.columns = columns;
        if self.logical.outputs.iter().any(|(output, _)| *output == sink) {
            let message = format!("two statements write to sink '{sink_name}'");
            return Err(SqlError::new(message, "give each its own sink"));
        }
        self.logical.outputs.push((sink, flow));
        Ok(())
    }

    fn sink_and_select<'s>(&self, insert: &'s Insert) -> Result<(usize, &'s Select), SqlError> {
        let TableObject::TableName(name) = &insert.table else {
            return Err(SqlError::new(format!("'{}' is no sink", insert.table), "write INSERT INTO sink SELECT ..."));
        };
        let name = single(name)?;
        let sinks = self.catalog.spec.sinks.iter().map(|s| s.name.as_str());
        let Some(sink) = lookup(sinks.clone(), name)? else {
            let error = SqlError::new(format!("there is no sink '{}'", name.value), did_you_mean(&name.value, sinks));
            return Err(error.or_at(name.span.start));
        };
        if !insert.columns.is_empty() {
            let error = SqlError::new("a list of columns behind the sink is not supported", "name columns with AS");
            return Err(error.or_at(name.span.start));
        }
        let Some(query) = &insert.source else {
            return Err(SqlError::new("the statement has no SELECT", "write INSERT INTO sink SELECT ..."));
        };
        let select = select_of(query)?;
        check_select(select).map(|()| (sink, select))
    }

    fn stream(&self, relation: &TableFactor) -> Result<(usize, Ident), SqlError> {
        let (name, alias, version) = relation_parts(relation)?;
        let at = name.span.start;
        let names = self.catalog.sources.iter().map(|s| s.spec.name.as_str());
        let Some(source) = lookup(names, name)? else {
            let streams = self.catalog.sources.iter().filter(|s| s.source.table.is_none());
            let hint = did_you_mean(&name.value, streams.map(|s| s.spec.name.as_str()));
            return Err(SqlError::new(format!("there is no source '{}'", name.value), hint).or_at(at));
        };
        if self.catalog.sources[source].source.table.is_some() {
            let error = SqlError::new(format!("'{}' is a table", name.value), "FROM names a stream; JOIN tables to it");
            return Err(error.or_at(at));
        }
        if version.is_some() {
            let error =
                SqlError::new("FOR SYSTEM_TIME AS OF stands behind the stream", "put it behind the joined table");
            return Err(error.or_at(at));
        }
        Ok((source, alias))
    }

    fn join(
        &mut self,
        join: &Join,
        input: Flow,
        relations: &mut Relations,
        sink: &str,
        hint: Option<Ident>,
    ) -> Result<Flow, SqlError> {
        let (kind, condition) = join_kind(&join.join_operator)?;
        let (name, alias, version) = relation_parts(&join.relation)?;
        let table = joins::table(self.catalog, name).map_err(|e| e.or_at(name.span.start))?;
        let spec = self.catalog.spec;
        let defaults = self.catalog.sources[table].spec.table.as_ref().map(|t| t.defaults.clone()).unwrap_or_default();
        let (missing, problem) = joins::missing(spec, defaults.missing(None));
        self.problems.extend(problem);
        let temporal = match version {
            None => None,
            Some(TableVersion::ForSystemTimeAsOf(time)) => {
                self.problems.extend(joins::temporal_problems(self.catalog, &input, table));
                self.check_as_of(time, &input, relations)?;
                let (late, problem) = joins::late(spec, defaults.late(None));
                self.problems.extend(problem);
                Some((joins::emit(&defaults.emit(None)), late))
            }
            Some(other) => {
                let message = format!("'{other}' is not supported");
                return Err(SqlError::new(message, "write FOR SYSTEM_TIME AS OF stream.event_time"));
            }
        };
        let columns = Logical::table_columns(self.catalog, &input, table, kind);
        let stream_alias = relations.named[0].0.clone();
        relations.add(&alias, columns.clone())?;
        let keys = self.keys(condition, relations, &columns)?;
        let word = if temporal.is_some() { "temporaljoin" } else { "tablejoin" };
        let name = hint.map_or_else(|| identity(&[sink, &stream_alias, &alias.value, word]), |hint| hint.value);
        let join = JoinSpec { name, table, kind, keys, temporal, missing };
        Ok(self.logical.join(self.catalog, input, &columns, join, self.problems))
    }

    /// Rows are joined as of their event time, so that is what must be named.
    fn check_as_of(&mut self, time: &Expr, input: &Flow, relations: &Relations) -> Result<(), SqlError> {
        let stream = &self.catalog.sources[input.source];
        let Some(event_time) = stream.source.event_time.as_ref() else { return Ok(()) };
        let alias = &relations.named[0].0;
        let at = time.span().start;
        let Some(column) = &event_time.column else {
            let message =
                format!("the event time of '{}' is the record's timestamp, which SQL cannot name", stream.spec.name);
            return Err(SqlError::new(message, format!("set {}.eventTime.column", stream.path)).or_at(at));
        };
        let resolved = expr::canonical(time.clone(), &relations.scope())?;
        if expr::as_column(&resolved) != Some(column) {
            let message = format!("AS OF names {time}, which is not the event time of '{}'", stream.spec.name);
            self.problems.push(SqlError::new(message, format!("write AS OF {alias}.{column}")).or_at(at));
        }
        Ok(())
    }

    /// `ON a.x = c.y AND ...` as (expression over the stream, column of the table).
    fn keys(
        &mut self,
        condition: &Expr,
        relations: &Relations,
        table_columns: &[Named],
    ) -> Result<Vec<(Expr, String)>, SqlError> {
        let scope = relations.scope();
        let of_table = |expr: &Expr| {
            let root = expr::as_column(expr)?;
            let named = table_columns.iter().find(|c| expr::as_column(&c.expr) == Some(root))?;
            Some(named.name.clone())
        };
        let uses_table = |expr: &Expr| {
            table_columns.iter().filter_map(|c| expr::as_column(&c.expr)).any(|c| expr::columns(expr).contains(c))
        };
        let mut keys = Vec::new();
        let mut terms = vec![condition];
        while let Some(term) = terms.pop() {
            let at = term.span().start;
            let (left, right) = match term {
                Expr::Nested(inner) => {
                    terms.push(inner);
                    continue;
                }
                Expr::BinaryOp { left, op: BinaryOperator::And, right } => {
                    terms.extend([&**right, &**left]);
                    continue;
                }
                Expr::BinaryOp { left, op: BinaryOperator::Eq, right } => (left, right),
                other => {
                    let message = format!("ON takes only equalities with columns of the table, not {other}");
                    return Err(SqlError::new(message, "put other conditions into WHERE").or_at(at));
                }
            };
            let left = expr::canonical((**left).clone(), &scope)?;
            let right = expr::canonical((**right).clone(), &scope)?;
            match (of_table(&left), of_table(&right)) {
                (Some(column), None) if !uses_table(&right) => keys.push((right, column)),
                (None, Some(column)) if !uses_table(&left) => keys.push((left, column)),
                _ => {
                    let message = format!("{term} does not compare a column of the table with one of the stream");
                    return Err(SqlError::new(message, "write stream.column = table.column").or_at(at));
                }
            }
        }
        Ok(keys)
    }
}

/// A name that is fit for topics, from parts that may hold anything.
fn identity(parts: &[&str]) -> String {
    let fit = |c: char| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c.to_ascii_lowercase() } else { '_' };
    parts.iter().map(|part| part.chars().map(fit).collect::<String>()).collect::<Vec<_>>().join("-")
}

fn single(name: &ObjectName) -> Result<&Ident, SqlError> {
    match name.0.as_slice() {
        [part] => part.as_ident().ok_or_else(|| SqlError::new(format!("'{name}' is no name"), "")),
        _ => Err(SqlError::new(format!("'{name}' has several parts"), "names are those of sources and sinks")),
    }
}

/// Name, alias and version of a plain relation.
fn relation_parts(relation: &TableFactor) -> Result<(&Ident, Ident, Option<&TableVersion>), SqlError> {
    let at = relation.span().start;
    let (name, alias, version) = match relation {
        TableFactor::Table {
            name,
            alias,
            args: None,
            with_hints,
            version,
            with_ordinality: false,
            partitions,
            json_path: None,
            sample: None,
            index_hints,
        } if with_hints.is_empty() && partitions.is_empty() && index_hints.is_empty() => (name, alias, version),
        TableFactor::Derived { .. } => return Err(not_supported("a subquery in FROM", at)),
        TableFactor::NestedJoin { .. } => return Err(not_supported("a join in parentheses", at)),
        other => return Err(not_supported(&format!("'{other}'"), at)),
    };
    let name = single(name).map_err(|e| e.or_at(at))?;
    if alias.as_ref().is_some_and(|alias| !alias.columns.is_empty()) {
        return Err(not_supported("a list of column names behind an alias", at));
    }
    let alias = alias.as_ref().map_or_else(|| name.clone(), |alias| alias.name.clone());
    Ok((name, alias, version.as_ref()))
}

fn join_kind(operator: &JoinOperator) -> Result<(JoinKind, &Expr), SqlError> {
    let (kind, constraint) = match operator {
        JoinOperator::Join(constraint) | JoinOperator::Inner(constraint) => (JoinKind::Inner, constraint),
        JoinOperator::Left(constraint) | JoinOperator::LeftOuter(constraint) => (JoinKind::Left, constraint),
        other => {
            let kind = match other {
                JoinOperator::Right(_) | JoinOperator::RightOuter(_) => "RIGHT JOIN",
                JoinOperator::FullOuter(_) => "FULL JOIN",
                JoinOperator::CrossJoin(_) => "CROSS JOIN",
                JoinOperator::AsOf { .. } => "ASOF JOIN",
                _ => "this kind of join",
            };
            return Err(SqlError::new(format!("{kind} is not supported"), "use JOIN or LEFT JOIN"));
        }
    };
    match constraint {
        JoinConstraint::On(condition) => Ok((kind, condition)),
        JoinConstraint::Using(_) => Err(SqlError::new("USING is not supported", "write ON a.x = c.x")),
        JoinConstraint::Natural => Err(SqlError::new("NATURAL JOIN is not supported", "write ON a.x = c.x")),
        JoinConstraint::None => Err(SqlError::new("the join has no condition", "write ON a.x = c.x")),
    }
}

fn not_supported(what: &str, at: Location) -> SqlError {
    SqlError::new(format!("{what} is not supported"), "a statement is INSERT INTO, SELECT, FROM, JOIN, WHERE").or_at(at)
}

/// The SELECT of a query that has nothing else.
fn select_of(query: &Query) -> Result<&Select, SqlError> {
    let clauses = [
        (query.with.is_some(), "WITH"),
        (query.order_by.is_some(), "ORDER BY"),
        (query.limit_clause.is_some() || query.fetch.is_some(), "LIMIT"),
        (!query.locks.is_empty(), "FOR UPDATE"),
        (query.for_clause.is_some(), "FOR"),
        (query.settings.is_some(), "SETTINGS"),
        (query.format_clause.is_some(), "FORMAT"),
        (!query.pipe_operators.is_empty(), "a pipe operator"),
    ];
    refuse(&clauses, query.span().start)?;
    match &*query.body {
        SetExpr::Select(select) => Ok(select),
        SetExpr::SetOperation { op, .. } => Err(not_supported(&op.to_string(), query.span().start)),
        SetExpr::Query(_) => Err(not_supported("a query in parentheses", query.span().start)),
        SetExpr::Values(_) => Err(not_supported("VALUES", query.span().start)),
        _ => Err(not_supported("this statement", query.span().start)),
    }
}

fn check_select(select: &Select) -> Result<(), SqlError> {
    let grouped = match &select.group_by {
        GroupByExpr::All(_) => true,
        GroupByExpr::Expressions(expressions, modifiers) => !expressions.is_empty() || !modifiers.is_empty(),
    };
    let clauses = [
        (select.distinct.is_some(), "DISTINCT"),
        (select.top.is_some(), "TOP"),
        (select.into.is_some(), "INTO"),
        (select.exclude.is_some(), "EXCLUDE"),
        (select.prewhere.is_some(), "PREWHERE"),
        (grouped, "GROUP BY"),
        (select.having.is_some(), "HAVING"),
        (!select.named_window.is_empty(), "WINDOW"),
        (select.qualify.is_some(), "QUALIFY"),
        (!select.lateral_views.is_empty(), "LATERAL VIEW"),
        (!select.connect_by.is_empty(), "CONNECT BY"),
        (!select.cluster_by.is_empty(), "CLUSTER BY"),
        (!select.distribute_by.is_empty(), "DISTRIBUTE BY"),
        (!select.sort_by.is_empty(), "SORT BY"),
        (select.value_table_mode.is_some(), "SELECT AS"),
        (select.flavor != SelectFlavor::Standard, "FROM before SELECT"),
        (select.select_modifiers.is_some(), "a modifier behind SELECT"),
    ];
    refuse(&clauses, select.span().start)
}

/// The first clause that is there names the mistake.
fn refuse(clauses: &[(bool, &str)], at: Location) -> Result<(), SqlError> {
    match clauses.iter().find(|(there, _)| *there) {
        Some((_, clause)) => Err(not_supported(clause, at)),
        None => Ok(()),
    }
}
