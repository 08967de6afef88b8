//! Expressions as canonical syntax trees over named columns.
//!
//! A canonical expression refers to columns by their exact quoted name, has its types written out, no redundant
//! parentheses and every needed one, and its text parses back to itself. So equal meaning that differs only in spelling
//! has equal text, and the text can stand in a stored plan.
//!
//! Names: a quoted name is exact. An unquoted one is looked up exactly first, then without regard to case, where it must
//! be the only one. `a.b` is column `b` of the relation `a` if there is such a relation, else field `b` of column `a`.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use datafusion_sql::sqlparser::ast::{
    AccessExpr, ArrayElemTypeDef, BinaryOperator, CastKind, DataType as SqlType, ExactNumberInfo, Expr, FunctionArg,
    FunctionArgExpr, FunctionArguments, Ident, ObjectName, ObjectNamePart, Spanned, Subscript, TimezoneInfo, Value,
    visit_expressions,
};
use millrace_core::schema::{Column, DataType};

use crate::bind;
use crate::names::did_you_mean;
use crate::parse::{SIMPLIFY, SQL_BYTES_MAX, SqlError};

/// Levels of an expression, after the columns of earlier steps were put in place of their names. What walks expressions
/// recurses; this keeps it far away from the end of the smallest stack (2 MiB).
const DEPTH_MAX: usize = 40;

/// A column that expressions can name, and what it stands for.
#[derive(Clone, Debug)]
pub struct Named {
    pub name: String,
    /// Canonical, over root columns.
    pub expr: Expr,
    pub data_type: DataType,
    pub nullable: bool,
}

/// What an expression can refer to.
pub struct Scope<'a> {
    pub relations: Vec<(&'a str, &'a [Named])>,
    /// An unqualified name that several relations have: true takes the first, false is a mistake.
    pub first_wins: bool,
}

/// Gives the canonical form of `expr`, in which each column is replaced by what it stands for.
pub fn canonical(expr: Expr, scope: &Scope) -> Result<Expr, SqlError> {
    let start = expr.span().start;
    Canonical { scope, substituted: Cell::new(0) }.expr(expr, 0).map_err(|e| e.or_at(start))
}

/// A column by its exact name.
pub fn column(name: &str) -> Expr {
    Expr::Identifier(Ident::with_quote('"', name))
}

/// `CAST(expr AS data_type)`; `None` where SQL text has no word for the type.
pub fn cast(expr: Expr, data_type: &DataType) -> Option<Expr> {
    let data_type = sql_type(data_type)?;
    Some(Expr::Cast { kind: CastKind::Cast, expr: Box::new(expr), data_type, array: false, format: None })
}

/// The name of the column if the expression is nothing else.
pub fn as_column(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Identifier(ident) => Some(&ident.value),
        _ => None,
    }
}

/// The root columns that a canonical expression uses.
pub fn columns(expr: &Expr) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let _ = visit_expressions(expr, |e| {
        names.extend(as_column(e).map(str::to_owned));
        ControlFlow::<()>::Continue(())
    });
    names
}

/// The smallest parts of an expression that must be carried when it is computed later: columns, and fields of ROW
/// columns, so that one used field does not carry a whole nested record. Keyed by text.
pub fn leaves(expr: &Expr) -> BTreeMap<String, Expr> {
    let mut leaves = BTreeMap::new();
    let mut rest = expr.clone();
    replace(&mut rest, &mut |e| {
        let leaf = is_leaf(e).then(|| e.clone())?;
        leaves.insert(leaf.to_string(), leaf.clone());
        Some(leaf)
    });
    leaves
}

fn is_leaf(expr: &Expr) -> bool {
    match expr {
        Expr::Identifier(_) => true,
        Expr::CompoundFieldAccess { root, access_chain } => {
            as_column(root).is_some()
                && access_chain.iter().all(|access| {
                    matches!(access, AccessExpr::Subscript(Subscript::Index { index: Expr::Value(value) })
                        if matches!(value.value, Value::SingleQuotedString(_)))
                })
        }
        _ => false,
    }
}

/// Puts columns in place of the leaves whose text is a key of `names`, outermost first.
pub fn rename(expr: &Expr, names: &BTreeMap<String, String>) -> Expr {
    let mut result = expr.clone();
    replace(&mut result, &mut |e| if is_leaf(e) { names.get(&e.to_string()).map(|name| column(name)) } else { None });
    result
}

/// Walks down; where `f` gives something, that takes the place of the part and is not walked.
fn replace(expr: &mut Expr, f: &mut dyn FnMut(&Expr) -> Option<Expr>) {
    if let Some(other) = f(expr) {
        *expr = other;
        return;
    }
    let parts = parts(expr).expect("a canonical expression holds only known parts");
    for (part, _) in parts {
        replace(part, f);
    }
}

/// `a AND b AND c` as its terms, each as it would stand alone.
pub fn conjuncts(expr: Expr) -> Vec<Expr> {
    let bare = |term: Expr| match term {
        Expr::Nested(inner) => *inner,
        other => other,
    };
    chain(expr, &BinaryOperator::And).into_iter().map(bare).collect()
}

/// The terms, put together again.
pub fn conjunction(terms: &[Expr]) -> Option<Expr> {
    balanced(terms.iter().cloned().map(wrapped_below(&BinaryOperator::And)).collect(), &BinaryOperator::And)
}

struct Canonical<'a> {
    scope: &'a Scope<'a>,
    /// Bytes of text that columns of earlier steps have brought. Each step may name such a column many times, so without
    /// a bound a few steps grow beyond all memory.
    substituted: Cell<usize>,
}

impl Canonical<'_> {
    fn expr(&self, expr: Expr, depth: usize) -> Result<Expr, SqlError> {
        if depth > DEPTH_MAX {
            return Err(too_deep());
        }
        match expr {
            Expr::Nested(inner) => self.expr(*inner, depth),
            Expr::Identifier(ident) => self.resolve(&[ident], depth),
            Expr::CompoundIdentifier(idents) => self.resolve(&idents, depth),
            Expr::BinaryOp { op: ref op @ (BinaryOperator::And | BinaryOperator::Or), .. } => {
                let op = op.clone();
                let terms = chain(expr, &op)
                    .into_iter()
                    .map(|term| self.expr(term, depth + 1).map(wrapped_below(&op)))
                    .collect::<Result<Vec<_>, _>>()?;
                Ok(balanced(terms, &op).expect("a chain has terms"))
            }
            other => {
                let mut expr = spelled_out(other)?;
                for (part, place) in parts(&mut expr)? {
                    let inner = std::mem::replace(part, Expr::value(Value::Null));
                    *part = self.expr(inner, depth + 1)?;
                    if place == Place::Operand && !is_atom(part) {
                        let inner = std::mem::replace(part, Expr::value(Value::Null));
                        *part = Expr::Nested(Box::new(inner));
                    }
                }
                Ok(expr)
            }
        }
    }

    fn resolve(&self, idents: &[Ident], depth: usize) -> Result<Expr, SqlError> {
        let mut expr = self.scope.resolve(idents)?;
        if matches!(expr, Expr::Identifier(_)) {
            return Ok(expr);
        }
        self.substituted.set(self.substituted.get() + expr.to_string().len());
        if self.substituted.get() > SQL_BYTES_MAX {
            let message = format!(
                "the expression grows beyond {SQL_BYTES_MAX} bytes when what earlier steps compute is put into it"
            );
            return Err(SqlError::new(message, "name computed columns fewer times"));
        }
        if exceeds(&mut expr, DEPTH_MAX - depth) { Err(too_deep()) } else { Ok(expr) }
    }
}

fn too_deep() -> SqlError {
    let message = format!("the expression is nested more than {DEPTH_MAX} deep, with what earlier steps compute");
    SqlError::new(message, SIMPLIFY)
}

/// Whether a canonical expression has more than `levels` below it.
fn exceeds(expr: &mut Expr, levels: usize) -> bool {
    let parts = parts(expr).expect("a canonical expression holds only known parts");
    parts.into_iter().any(|(part, _)| levels == 0 || exceeds(part, levels - 1))
}

impl Scope<'_> {
    fn resolve(&self, idents: &[Ident]) -> Result<Expr, SqlError> {
        let (named, fields) = self.find(idents)?;
        let mut data_type = &named.data_type;
        let mut path = Vec::new();
        for field in fields {
            let DataType::Row(columns) = data_type else {
                let message = format!("'{}' has no field '{}'", named.name, field.value);
                let hint = format!("its type is {data_type}, and only a ROW has fields");
                return Err(SqlError::new(message, hint).or_at(field.span.start));
            };
            let names = columns.iter().map(|c| c.name.as_str());
            let index = lookup(names.clone(), field)?.ok_or_else(|| {
                let message = format!("'{}' has no field '{}'", named.name, field.value);
                SqlError::new(message, did_you_mean(&field.value, names)).or_at(field.span.start)
            })?;
            data_type = &columns[index].data_type;
            path.push(field_access(&columns[index].name));
        }
        Ok(match (path.is_empty(), named.expr.clone()) {
            (true, expr) => expr,
            (false, Expr::CompoundFieldAccess { root, mut access_chain }) => {
                access_chain.extend(path);
                Expr::CompoundFieldAccess { root, access_chain }
            }
            (false, expr) => {
                let root = if is_atom(&expr) { expr } else { Expr::Nested(Box::new(expr)) };
                Expr::CompoundFieldAccess { root: Box::new(root), access_chain: path }
            }
        })
    }

    /// The column that `idents` begin with, and the fields behind it.
    pub fn find<'i>(&self, idents: &'i [Ident]) -> Result<(&Named, &'i [Ident]), SqlError> {
        let first = idents.first().expect("an identifier has a part");
        let at = first.span.start;
        if let [_, second, fields @ ..] = idents
            && let Some(index) = lookup(self.relations.iter().map(|(name, _)| *name), first)?
        {
            let (name, columns) = self.relations[index];
            let names = columns.iter().map(|c| c.name.as_str());
            let column = lookup(names.clone(), second)?.ok_or_else(|| {
                let message = format!("'{name}' has no column '{}'", second.value);
                SqlError::new(message, did_you_mean(&second.value, names)).or_at(at)
            })?;
            return Ok((&columns[column], fields));
        }
        let mut hits = Vec::new();
        for (name, columns) in &self.relations {
            let found = lookup(columns.iter().map(|c| c.name.as_str()), first)?;
            hits.extend(found.map(|index| (*name, &columns[index])));
        }
        match hits.as_slice() {
            [] => Err(self.unknown(first, idents.len() > 1).or_at(at)),
            [(_, named)] => Ok((named, &idents[1..])),
            [(_, named), ..] if self.first_wins => Ok((named, &idents[1..])),
            [(a, _), (b, _), ..] => {
                let name = &first.value;
                let message = format!("'{name}' is a column of '{a}' and of '{b}'");
                Err(SqlError::new(message, format!("write {a}.{name} or {b}.{name}")).or_at(at))
            }
        }
    }

    fn unknown(&self, ident: &Ident, qualified: bool) -> SqlError {
        let columns = self.relations.iter().flat_map(|(_, columns)| columns.iter().map(|c| c.name.as_str()));
        let relations = self.relations.iter().map(|(name, _)| *name);
        if qualified {
            let message = format!("there is no relation or column '{}'", ident.value);
            return SqlError::new(message, did_you_mean(&ident.value, relations.chain(columns)));
        }
        SqlError::new(format!("there is no column '{}'", ident.value), did_you_mean(&ident.value, columns))
    }
}

/// Finds a name by the rule of this module. `Err` says that the case decides between several.
pub fn lookup<'n>(names: impl Iterator<Item = &'n str> + Clone, ident: &Ident) -> Result<Option<usize>, SqlError> {
    if let Some(exact) = names.clone().position(|name| name == ident.value) {
        return Ok(Some(exact));
    }
    if ident.quote_style.is_some() {
        return Ok(None);
    }
    let lower = ident.value.to_lowercase();
    let mut hits = names.clone().enumerate().filter(|(_, name)| name.to_lowercase() == lower);
    match (hits.next(), hits.next()) {
        (Some((_, a)), Some((_, b))) => {
            let message = format!("'{}' may be '{a}' or '{b}'", ident.value);
            Err(SqlError::new(message, format!("write \"{a}\" or \"{b}\", with the quotes")).or_at(ident.span.start))
        }
        (hit, _) => Ok(hit.map(|(index, _)| index)),
    }
}

fn field_access(name: &str) -> AccessExpr {
    let index = Expr::value(Value::SingleQuotedString(name.to_owned()));
    AccessExpr::Subscript(Subscript::Index { index })
}

/// The terms of a chain of one associative operator, without recursion along the chain.
fn chain(expr: Expr, op: &BinaryOperator) -> Vec<Expr> {
    let mut terms = Vec::new();
    let mut stack = vec![expr];
    while let Some(expr) = stack.pop() {
        match expr {
            Expr::BinaryOp { left, op: this, right } if this == *op => {
                stack.push(*right);
                stack.push(*left);
            }
            Expr::Nested(inner) if matches!(&*inner, Expr::BinaryOp { op: this, .. } if this == op) => {
                stack.push(*inner);
            }
            other => terms.push(other),
        }
    }
    terms
}

/// A tree of the terms with the least depth: a condition of 200 terms is 8 deep, not 200.
fn balanced(mut terms: Vec<Expr>, op: &BinaryOperator) -> Option<Expr> {
    while terms.len() > 1 {
        let mut halves = Vec::with_capacity(terms.len().div_ceil(2));
        let mut rest = terms.into_iter();
        while let Some(left) = rest.next() {
            halves.push(match rest.next() {
                Some(right) => Expr::BinaryOp { left: Box::new(left), op: op.clone(), right: Box::new(right) },
                None => left,
            });
        }
        terms = halves;
    }
    terms.pop()
}

/// AND and OR bind weaker than all else, so only each other's chains need parentheses below them.
fn wrapped_below(op: &BinaryOperator) -> impl Fn(Expr) -> Expr {
    let op = op.clone();
    move |term| match &term {
        Expr::BinaryOp { op: inner @ (BinaryOperator::And | BinaryOperator::Or), .. } if *inner != op => {
            Expr::Nested(Box::new(term))
        }
        _ => term,
    }
}

/// One spelling of what has several: casts, typed literals, function names, field access.
fn spelled_out(expr: Expr) -> Result<Expr, SqlError> {
    match expr {
        Expr::Cast { kind, expr, data_type, array: false, format: None } => {
            let kind = match kind {
                CastKind::Cast | CastKind::DoubleColon => CastKind::Cast,
                CastKind::TryCast | CastKind::SafeCast => CastKind::TryCast,
            };
            let data_type = canonical_type(&data_type)?;
            Ok(Expr::Cast { kind, expr, data_type, array: false, format: None })
        }
        Expr::TypedString(literal) => {
            let at = literal.value.span.start;
            let data_type = canonical_type(&literal.data_type).map_err(|e| e.or_at(at))?;
            let text = literal.value.value.into_string();
            let text = text.ok_or_else(|| SqlError::new("a literal with a type holds a string", "").or_at(at))?;
            let expr = Box::new(Expr::value(Value::SingleQuotedString(text)));
            Ok(Expr::Cast { kind: CastKind::Cast, expr, data_type, array: false, format: None })
        }
        Expr::Function(mut function) => {
            let at = function.name.span().start;
            let arguments_only = match &function.args {
                FunctionArguments::None => true,
                FunctionArguments::List(list) => list.duplicate_treatment.is_none() && list.clauses.is_empty(),
                FunctionArguments::Subquery(_) => false,
            };
            let clauses = [
                (function.over.is_some(), "OVER (window functions)"),
                (function.filter.is_some(), "FILTER"),
                (!function.within_group.is_empty(), "WITHIN GROUP"),
                (function.null_treatment.is_some(), "IGNORE NULLS and RESPECT NULLS"),
                (!arguments_only, "a clause between the arguments"),
            ];
            if let Some((_, clause)) = clauses.into_iter().find(|(there, _)| *there) {
                return Err(SqlError::new(format!("{clause} is not supported"), "leave it out").or_at(at));
            }
            let name = function.name.to_string().to_lowercase();
            bind::check_function(&name).map_err(|e| e.or_at(at))?;
            function.name = ObjectName(vec![ObjectNamePart::Identifier(Ident::new(name))]);
            Ok(Expr::Function(function))
        }
        Expr::CompoundFieldAccess { root, access_chain } => {
            let access_chain = access_chain
                .into_iter()
                .map(|access| match access {
                    AccessExpr::Dot(Expr::Identifier(ident)) => field_access(&ident.value),
                    other => other,
                })
                .collect();
            Ok(Expr::CompoundFieldAccess { root, access_chain })
        }
        Expr::Value(value) if matches!(value.value, Value::Placeholder(_)) => {
            let message = format!("the parameter {value} is not supported");
            Err(SqlError::new(message, "write the value itself").or_at(value.span.start))
        }
        Expr::Value(value) => Ok(Expr::value(value.value)),
        other => Ok(other),
    }
}

/// A type as users of Millrace write it, whatever dialect's word was used. TIMESTAMP is TIMESTAMP(3).
fn canonical_type(data_type: &SqlType) -> Result<SqlType, SqlError> {
    let ours = match data_type {
        SqlType::Bytea | SqlType::Bytes(_) => Ok(DataType::Bytes),
        SqlType::DoublePrecision => Ok(DataType::Double),
        other => other.to_string().parse::<DataType>(),
    };
    let ours = ours.map_err(|e| SqlError::new(e.to_string(), ""))?;
    sql_type(&ours).ok_or_else(|| SqlError::new(format!("a cast to {ours} is not supported"), "cast its fields"))
}

fn sql_type(data_type: &DataType) -> Option<SqlType> {
    Some(match data_type {
        DataType::Boolean => SqlType::Boolean,
        DataType::Int => SqlType::Int(None),
        DataType::Bigint => SqlType::BigInt(None),
        DataType::Double => SqlType::Double(ExactNumberInfo::None),
        DataType::Decimal { precision, scale } => {
            SqlType::Decimal(ExactNumberInfo::PrecisionAndScale(u64::from(*precision), i64::from(*scale)))
        }
        DataType::String => SqlType::String(None),
        DataType::Bytes => SqlType::Bytea,
        DataType::Date => SqlType::Date,
        DataType::Timestamp(digits) => SqlType::Timestamp(Some(u64::from(*digits)), TimezoneInfo::None),
        DataType::Array(item) => SqlType::Array(ArrayElemTypeDef::AngleBracket(Box::new(sql_type(item)?))),
        DataType::Row(_) => return None,
    })
}

/// Whether a part stands beside an operator, or between delimiters of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Operand,
    Enclosed,
}

/// True for what needs no parentheses beside an operator.
fn is_atom(expr: &Expr) -> bool {
    matches!(
        expr,
        Expr::Identifier(_)
            | Expr::Value(_)
            | Expr::Function(_)
            | Expr::Cast { .. }
            | Expr::Case { .. }
            | Expr::Extract { .. }
            | Expr::Ceil { .. }
            | Expr::Floor { .. }
            | Expr::Position { .. }
            | Expr::Substring { .. }
            | Expr::Trim { .. }
            | Expr::Overlay { .. }
            | Expr::CompoundFieldAccess { .. }
            | Expr::Array(_)
            | Expr::Nested(_)
    )
}

type Parts<'a> = Vec<(&'a mut Expr, Place)>;

/// The direct parts of an expression. Everything that is not listed here is refused, by name: what the list does not
/// know cannot slip through to the planner.
fn parts(expr: &mut Expr) -> Result<Parts<'_>, SqlError> {
    use Place::{Enclosed, Operand};
    let span = expr.span();
    Ok(match expr {
        Expr::Identifier(_) | Expr::Value(_) => vec![],
        Expr::IsFalse(e)
        | Expr::IsNotFalse(e)
        | Expr::IsTrue(e)
        | Expr::IsNotTrue(e)
        | Expr::IsNull(e)
        | Expr::IsNotNull(e)
        | Expr::IsUnknown(e)
        | Expr::IsNotUnknown(e)
        | Expr::UnaryOp { expr: e, .. } => vec![(e, Operand)],
        Expr::IsDistinctFrom(a, b) | Expr::IsNotDistinctFrom(a, b) => vec![(a, Operand), (b, Operand)],
        Expr::BinaryOp { left, right, .. } => vec![(left, Operand), (right, Operand)],
        Expr::AtTimeZone { timestamp, time_zone } => vec![(timestamp, Operand), (time_zone, Operand)],
        Expr::Between { expr, low, high, .. } => vec![(expr, Operand), (low, Operand), (high, Operand)],
        Expr::Like { any: false, expr, pattern, .. }
        | Expr::ILike { any: false, expr, pattern, .. }
        | Expr::SimilarTo { expr, pattern, .. } => vec![(expr, Operand), (pattern, Operand)],
        Expr::InList { expr, list, .. } => {
            std::iter::once((&mut **expr, Operand)).chain(list.iter_mut().map(|e| (e, Enclosed))).collect()
        }
        Expr::Position { expr, r#in } => vec![(expr, Operand), (r#in, Operand)],
        Expr::Nested(e)
        | Expr::Cast { expr: e, array: false, format: None, .. }
        | Expr::Extract { expr: e, .. }
        | Expr::Ceil { expr: e, .. }
        | Expr::Floor { expr: e, .. } => vec![(e, Enclosed)],
        Expr::Interval(interval) => vec![(&mut interval.value, Operand)],
        Expr::Substring { .. } | Expr::Trim { trim_characters: None, .. } | Expr::Overlay { .. } => text_parts(expr),
        Expr::Array(array) => array.elem.iter_mut().map(|e| (e, Enclosed)).collect(),
        Expr::Case { operand, conditions, else_result, .. } => {
            let whens = conditions.iter_mut().flat_map(|w| [(&mut w.condition, Enclosed), (&mut w.result, Enclosed)]);
            let operand = operand.iter_mut().map(|e| (&mut **e, Enclosed));
            operand.chain(whens).chain(else_result.iter_mut().map(|e| (&mut **e, Enclosed))).collect()
        }
        Expr::Function(function) => {
            let FunctionArguments::List(list) = &mut function.args else { return Ok(vec![]) };
            let arguments = list.args.iter_mut().map(|arg| match arg {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(e)) => Ok((e, Enclosed)),
                other => Err(unsupported(&format!("the argument '{other}' is")).or_at(span.start)),
            });
            arguments.collect::<Result<_, _>>()?
        }
        Expr::CompoundFieldAccess { root, access_chain } => {
            let mut parts: Parts = vec![(root, Operand)];
            for access in access_chain {
                match access {
                    AccessExpr::Subscript(Subscript::Index { index }) => parts.push((index, Enclosed)),
                    AccessExpr::Subscript(Subscript::Slice { lower_bound, upper_bound, stride }) => {
                        let bounds = [lower_bound, upper_bound, stride].into_iter().flatten();
                        parts.extend(bounds.map(|e| (e, Enclosed)));
                    }
                    AccessExpr::Dot(e) => return Err(unsupported(&format!("'.{e}' is")).or_at(span.start)),
                }
            }
            parts
        }
        Expr::Subquery(_) | Expr::Exists { .. } | Expr::InSubquery { .. } => {
            return Err(unsupported("a subquery is").or_at(span.start));
        }
        other => return Err(unsupported(&format!("'{other}' is")).or_at(span.start)),
    })
}

/// The parts of the functions that have a syntax of their own.
fn text_parts(expr: &mut Expr) -> Parts<'_> {
    let parts: Vec<&mut Expr> = match expr {
        Expr::Substring { expr, substring_from, substring_for, .. } => {
            [Some(expr), substring_from.as_mut(), substring_for.as_mut()]
                .into_iter()
                .flatten()
                .map(|e| &mut **e)
                .collect()
        }
        Expr::Trim { expr, trim_what, .. } => trim_what.iter_mut().chain([expr]).map(|e| &mut **e).collect(),
        Expr::Overlay { expr, overlay_what, overlay_from, overlay_for } => {
            [expr, overlay_what, overlay_from].into_iter().chain(overlay_for).map(|e| &mut **e).collect()
        }
        _ => Vec::new(),
    };
    parts.into_iter().map(|part| (part, Place::Enclosed)).collect()
}

fn unsupported(what: &str) -> SqlError {
    SqlError::new(format!("{what} not supported in expressions"), "")
}

/// The columns of a schema as what expressions can name.
pub fn named(columns: &[Column]) -> Vec<Named> {
    columns
        .iter()
        .map(|c| Named {
            name: c.name.clone(),
            expr: column(&c.name),
            data_type: c.data_type.clone(),
            nullable: c.nullable,
        })
        .collect()
}
