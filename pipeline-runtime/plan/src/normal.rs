//! Brings the logical form into one shape, so that the same meaning gives the same plan.
//!
//! Conditions go as far down as they may. For every join it is worked out which columns must come out of it: what is
//! used above and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use datafusion_sql::sqlparser::ast::Expr;

use crate::expr;
use crate::logical::{Base, Filter, Flow, Logical};

/// Leaves by their text: columns and fields of columns.
pub type Leaves = BTreeMap<String, Expr>;

/// Moves conditions below joins whose table they don't use. That keeps the answer of inner and of left joins, and rows
/// that will be dropped are not moved, kept and joined before.
///
/// A condition may guard another one that can fail (`x <> 0 AND 10 / x > 1`), so one that can fail never passes one that
/// was written before it. A join with several readers keeps its conditions above it: they are not those of the others.
pub fn push_filters(logical: &mut Logical) {
    for join in (0..logical.joins.len()).rev() {
        if logical.readers(join) != 1 {
            continue;
        }
        let table: BTreeSet<String> = logical.joins[join].table_roots.iter().map(|(_, root)| root.clone()).collect();
        let reader = logical.flows_mut().find(|flow| flow.base == Base::Join(join)).expect("it has one reader");
        let mut kept: Vec<Filter> = Vec::new();
        let mut moved = Vec::new();
        for filter in std::mem::take(&mut reader.filters) {
            let free = expr::columns(&filter.expr).is_disjoint(&table);
            if free && (kept.is_empty() || !filter.can_fail) {
                moved.push(filter);
            } else {
                kept.push(filter);
            }
        }
        reader.filters = kept;
        logical.joins[join].input.filters.extend(moved);
    }
}

/// One order of the terms of a condition: those that cannot fail by their text, each once; then those that can as they
/// were written.
pub fn order_filters(logical: &mut Logical) {
    for flow in logical.flows_mut() {
        let (can_fail, mut safe): (Vec<_>, Vec<_>) =
            std::mem::take(&mut flow.filters).into_iter().partition(|f| f.can_fail);
        safe.sort_by_cached_key(|f| f.expr.to_string());
        safe.dedup_by_key(|f| f.expr.to_string());
        flow.filters = safe.into_iter().chain(can_fail).collect();
    }
}

/// For each join: the leaves that its readers use.
pub fn needed(logical: &Logical) -> Vec<Leaves> {
    let mut needed = vec![Leaves::new(); logical.joins.len()];
    for (_, flow) in &logical.outputs {
        if let Base::Join(join) = flow.base {
            needed[join].extend(used(flow, flow.columns.iter().map(|c| &c.expr)));
        }
    }
    for above in (0..logical.joins.len()).rev() {
        let input = &logical.joins[above].input;
        if let Base::Join(join) = input.base {
            let through = carried(logical, above, &needed[above]);
            let keys = logical.joins[above].keys.iter().map(|(key, ..)| key);
            needed[join].extend(used(input, keys));
            needed[join].extend(through);
        }
    }
    needed.into_iter().map(covered).collect()
}

/// The leaves that must go through a join's stream side: what is needed above and does not come from its table.
pub fn carried(logical: &Logical, join: usize, needed: &Leaves) -> Leaves {
    let node = &logical.joins[join];
    let own = |leaf: &Expr| {
        let columns = expr::columns(leaf);
        node.table_roots.iter().any(|(_, root)| columns.contains(root))
    };
    let mut carried: Leaves =
        needed.iter().filter(|(_, leaf)| !own(leaf)).map(|(text, leaf)| (text.clone(), leaf.clone())).collect();
    for (key, ..) in &node.keys {
        if expr::as_column(key).is_some() {
            carried.insert(key.to_string(), key.clone());
        }
    }
    covered(carried)
}

/// The leaves of a flow's conditions and of `expressions`.
pub fn used<'e>(flow: &'e Flow, expressions: impl Iterator<Item = &'e Expr>) -> Leaves {
    flow.filters.iter().map(|f| &f.expr).chain(expressions).flat_map(expr::leaves).collect()
}

/// A field needs no place of its own where its whole column is carried.
fn covered(leaves: Leaves) -> Leaves {
    let whole: BTreeSet<String> = leaves.values().filter_map(|leaf| expr::as_column(leaf).map(str::to_owned)).collect();
    leaves
        .into_iter()
        .filter(|(_, leaf)| expr::as_column(leaf).is_some() || expr::columns(leaf).is_disjoint(&whole))
        .collect()
}

impl Logical {
    fn flows_mut(&mut self) -> impl Iterator<Item = &mut Flow> {
        self.joins.iter_mut().map(|j| &mut j.input).chain(self.outputs.iter_mut().map(|(_, flow)| flow))
    }

    pub fn flows(&self) -> impl Iterator<Item = &Flow> {
        self.joins.iter().map(|j| &j.input).chain(self.outputs.iter().map(|(_, flow)| flow))
    }

    fn readers(&self, join: usize) -> usize {
        self.flows().filter(|flow| flow.base == Base::Join(join)).count()
    }
}
