//! The one form that both front ends lower into.
//!
//! Everything between two joins is a [`Flow`]: conditions and named columns over *root columns*, those of the stream's
//! source and of the tables that were joined so far. Steps that project are substituted away as they are lowered, so
//! there is nothing to merge later, and however a user cut the work into steps the same meaning has the same form. A
//! root column of a table is called `<table>.<column>` inside of this form.

use std::collections::BTreeMap;

use datafusion_sql::sqlparser::ast::{Expr, Ident, SelectItem, SelectItemQualifiedWildcardKind, Spanned};
use millrace_core::plan::{Emit, JoinKind, Late, Missing};
use millrace_core::schema::{Column, DataType};

use crate::bind::{self, Typed};
use crate::catalog::Catalog;
use crate::expr::{self, Named, Scope};
use crate::names::did_you_mean;
use crate::parse::SqlError;

/// Rows of one stream on their way.
#[derive(Clone)]
pub struct Flow {
    /// Index of the stream's source in the catalog.
    pub source: usize,
    pub base: Base,
    pub roots: Vec<Column>,
    /// All must be true, in this order.
    pub filters: Vec<Filter>,
    /// What the next step can name.
    pub columns: Vec<Named>,
    /// The step that shaped the rows last, if it only projects.
    pub project: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Base {
    Source,
    /// Index into [`Logical::joins`].
    Join(usize),
}

/// One term of a condition.
#[derive(Clone)]
pub struct Filter {
    pub expr: Expr,
    pub can_fail: bool,
}

pub struct JoinNode {
    pub name: String,
    pub input: Flow,
    /// Index of the table's source in the catalog.
    pub table: usize,
    /// Column of the table to root column, in the order of the table's columns.
    pub table_roots: Vec<(Column, String)>,
    pub kind: JoinKind,
    /// (expression over the input's roots, its type, column of the table) in the order of the primary key.
    pub keys: Vec<(Expr, Column, String)>,
    pub temporal: Option<(Emit, Late)>,
    pub missing: Missing,
}

#[derive(Default)]
pub struct Logical {
    /// In topological order.
    pub joins: Vec<JoinNode>,
    /// (index of the sink in the spec, its rows)
    pub outputs: Vec<(usize, Flow)>,
}

/// What a front end says about a join. Its keys come as text of both sides.
pub struct JoinSpec {
    pub name: String,
    pub table: usize,
    pub kind: JoinKind,
    /// (expression over the input's roots, column of the table)
    pub keys: Vec<(Expr, String)>,
    pub temporal: Option<(Emit, Late)>,
    pub missing: Missing,
}

impl Flow {
    pub fn of_source(catalog: &Catalog, source: usize) -> Self {
        let entry = &catalog.sources[source];
        Self {
            source,
            base: Base::Source,
            roots: entry.source.columns.clone(),
            filters: Vec::new(),
            columns: entry.named.clone(),
            project: None,
        }
    }

    /// Adds a condition to the rows.
    pub fn filter(&mut self, condition: Expr, scope: &Scope) -> Result<(), SqlError> {
        let at = condition.span().start;
        let condition = expr::canonical(condition, scope)?;
        let typed = bind::typed(&condition, &self.roots).map_err(|e| e.or_at(at))?;
        if typed.data_type != DataType::Boolean {
            let message = format!("a condition is BOOLEAN, but this is {}", typed.data_type);
            return Err(SqlError::new(message, "compare it with something").or_at(at));
        }
        for term in expr::conjuncts(condition) {
            let typed = bind::typed(&term, &self.roots).map_err(|e| e.or_at(at))?;
            if bind::constant_condition(&typed) != Some(true) {
                self.filters.push(Filter { expr: term, can_fail: typed.can_fail });
            }
        }
        Ok(())
    }

    /// The columns that one item of a select list gives.
    pub fn select(&self, item: SelectItem, scope: &Scope) -> Result<Vec<Named>, SqlError> {
        let at = item.span().start;
        let (expr, name) = match item {
            SelectItem::UnnamedExpr(expr) => {
                let name = implied_name(&expr, scope)?;
                (expr, name)
            }
            SelectItem::ExprWithAlias { expr, alias } => (expr, alias.value),
            SelectItem::Wildcard(options) if options.to_string().is_empty() => {
                return all_columns(scope).map_err(|e| e.or_at(at));
            }
            SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(name), options)
                if options.to_string().is_empty() =>
            {
                let ident = name.0.first().and_then(|part| part.as_ident()).cloned().unwrap_or_else(|| Ident::new(""));
                let names = scope.relations.iter().map(|(name, _)| *name);
                return match expr::lookup(names.clone(), &ident)? {
                    Some(index) => Ok(scope.relations[index].1.to_vec()),
                    None => {
                        let hint = did_you_mean(&ident.value, names);
                        Err(SqlError::new(format!("there is no relation '{name}'"), hint).or_at(at))
                    }
                };
            }
            other => {
                let message = format!("'{other}' is not supported in a select list");
                return Err(SqlError::new(message, "list expressions, each with AS name").or_at(at));
            }
        };
        let expr = expr::canonical(expr, scope)?;
        let typed = self.typed(&expr).map_err(|e| e.or_at(at))?;
        // What DataFusion computes in a type that we don't have is brought into ours here, in the text, so that the same
        // value goes into whatever is computed from this column.
        let expr = match typed.narrowed.then(|| expr::cast(expr.clone(), &typed.data_type)).flatten() {
            Some(cast) => cast,
            None => expr,
        };
        Ok(vec![Named { name, expr, data_type: typed.data_type, nullable: typed.nullable }])
    }

    pub fn typed(&self, expr: &Expr) -> Result<Typed, SqlError> {
        bind::typed(expr, &self.roots)
    }
}

impl Logical {
    /// The columns of `table` as a join of `input` would give them.
    pub fn table_columns(catalog: &Catalog, input: &Flow, table: usize, kind: JoinKind) -> Vec<Named> {
        let source = &catalog.sources[table].source;
        let root = |column: &Column| {
            let mut root = format!("{}.{}", source.name, column.name);
            while input.roots.iter().any(|c| c.name == root) {
                root.push('\'');
            }
            root
        };
        let named = |c: &Column| Named {
            name: c.name.clone(),
            expr: expr::column(&root(c)),
            data_type: c.data_type.clone(),
            nullable: c.nullable || kind == JoinKind::Left,
        };
        source.columns.iter().map(named).collect()
    }

    /// Joins `input` with a table whose columns are `table_columns`. The result has no named columns yet; a problem with
    /// the keys does not stop the rest of the spec from being checked.
    pub fn join(
        &mut self,
        catalog: &Catalog,
        input: Flow,
        table_columns: &[Named],
        join: JoinSpec,
        problems: &mut Vec<SqlError>,
    ) -> Flow {
        let table = &catalog.sources[join.table].source;
        let keys = checked_keys(catalog, &input, &join, problems);
        let table_roots: Vec<(Column, String)> = table
            .columns
            .iter()
            .zip(table_columns)
            .map(|(column, named)| (column.clone(), expr::as_column(&named.expr).expect("a root column").to_owned()))
            .collect();
        let mut roots = input.roots.clone();
        roots.extend(table_columns.iter().zip(&table_roots).map(|(named, (_, root))| Column {
            name: root.clone(),
            data_type: named.data_type.clone(),
            nullable: named.nullable,
        }));
        let flow = Flow {
            source: input.source,
            base: Base::Join(self.joins.len()),
            roots,
            filters: Vec::new(),
            columns: Vec::new(),
            project: None,
        };
        self.joins.push(JoinNode {
            name: join.name,
            input,
            table: join.table,
            table_roots,
            kind: join.kind,
            keys,
            temporal: join.temporal,
            missing: join.missing,
        });
        flow
    }
}

/// The keys in the order of the primary key, which they must be; and of its types, because keys are compared as bytes.
fn checked_keys(
    catalog: &Catalog,
    input: &Flow,
    join: &JoinSpec,
    problems: &mut Vec<SqlError>,
) -> Vec<(Expr, Column, String)> {
    let table = &catalog.sources[join.table].source;
    let primary_key = table.table.as_ref().map(|t| t.primary_key.as_slice()).unwrap_or_default();
    let mut given: BTreeMap<&str, &Expr> = BTreeMap::new();
    for (left, right) in &join.keys {
        if given.insert(right, left).is_some() {
            problems.push(SqlError::new(format!("'{}.{right}' is compared twice", table.name), "keep one of them"));
        }
    }
    if given.len() != primary_key.len() || !primary_key.iter().all(|name| given.contains_key(name.as_str())) {
        let keys: Vec<&str> = join.keys.iter().map(|(_, right)| right.as_str()).collect();
        problems.push(SqlError::new(
            format!("the keys ({}) are not the primary key of table '{}'", keys.join(", "), table.name),
            format!("compare exactly these columns of it: {}", primary_key.join(", ")),
        ));
        return Vec::new();
    }
    let mut keys = Vec::new();
    for name in primary_key {
        let left = given[name.as_str()];
        let right = table.columns.iter().find(|c| c.name == *name);
        match (input.typed(left), right) {
            (Ok(typed), Some(right)) if typed.data_type == right.data_type => {
                let column = Column { name: left.to_string(), data_type: typed.data_type, nullable: typed.nullable };
                keys.push((left.clone(), column, name.clone()));
            }
            (Ok(typed), Some(right)) => problems.push(SqlError::new(
                format!("{left} is {}, but '{}.{name}' is {}", typed.data_type, table.name, right.data_type),
                format!("write CAST({left} AS {}): in SQL in ON, else in a project step before", right.data_type),
            )),
            (Err(error), _) => problems.push(error),
            // The catalog has said so.
            (Ok(_), None) => {}
        }
    }
    keys
}

/// The name of a select item that gives none: that of the column, or of the field, which it is.
fn implied_name(expr: &Expr, scope: &Scope) -> Result<String, SqlError> {
    let idents = match expr {
        Expr::Identifier(ident) => std::slice::from_ref(ident),
        Expr::CompoundIdentifier(idents) => idents.as_slice(),
        _ => {
            let error = SqlError::new("the column has no name", format!("write {expr} AS name"));
            return Err(error.or_at(expr.span().start));
        }
    };
    let (column, fields) = scope.find(idents)?;
    Ok(fields.last().map_or_else(|| column.name.clone(), |field| field.value.clone()))
}

/// `*`: all columns of all relations. Of two with one name the first is taken, if the scope says that the first wins.
fn all_columns(scope: &Scope) -> Result<Vec<Named>, SqlError> {
    let mut columns: Vec<Named> = Vec::new();
    for (relation, named) in &scope.relations {
        for column in *named {
            match columns.iter().find(|c| c.name == column.name) {
                None => columns.push(column.clone()),
                Some(_) if scope.first_wins => {}
                Some(_) => {
                    let name = &column.name;
                    return Err(SqlError::new(
                        format!("'*' would give the column '{name}' twice"),
                        format!("list the columns, with {relation}.{name} AS another name"),
                    ));
                }
            }
        }
    }
    Ok(columns)
}

/// Refuses two columns of one name.
pub fn check_unique(columns: &[Named]) -> Result<(), SqlError> {
    for (i, column) in columns.iter().enumerate() {
        if columns[..i].iter().any(|c| c.name == column.name) {
            return Err(SqlError::new(format!("there are two columns '{}'", column.name), "rename one with AS"));
        }
    }
    Ok(())
}
