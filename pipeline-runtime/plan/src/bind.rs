//! From a canonical expression to its type and to something that evaluates: DataFusion's planner, type coercion,
//! simplifier and physical expressions.
//!
//! An answer must not depend on when or where it was computed, so functions that read the clock, draw random numbers or
//! look at the engine are refused.
//!
//! What fails at run time fails as an error of [`BoundExpr::evaluate`], for the whole batch: division of integers or
//! decimals by zero, a cast of a value that does not fit (`CAST('x' AS INT)`; `TRY_CAST` gives null), decimal overflow, a
//! function's own complaint about a value. Integer `+ - *` wrap around, as in Arrow. A caller that must know the row
//! evaluates again row by row.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use arrow::array::ArrayRef;
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::DataType as ArrowType;
use arrow::record_batch::RecordBatch;
use datafusion_common::config::ConfigOptions;
use datafusion_common::tree_node::TreeNode;
use datafusion_common::{DFSchema, DataFusionError, TableReference};
use datafusion_expr::execution_props::ExecutionProps;
use datafusion_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion_expr::planner::ExprPlanner;
use datafusion_expr::simplify::SimplifyContext;
use datafusion_expr::{
    AggregateUDF, Expr as LogicalExpr, ExprSchemable, HigherOrderUDF, Operator, ScalarUDF, TableSource, WindowUDF,
};
use datafusion_functions::core::planner::CoreFunctionPlanner;
use datafusion_functions::datetime::planner::DatetimeFunctionPlanner;
use datafusion_functions::unicode::planner::UnicodeFunctionPlanner;
use datafusion_functions_nested::planner::{FieldAccessPlanner, NestedFunctionPlanner};
use datafusion_optimizer::simplify_expressions::ExprSimplifier;
use datafusion_physical_expr::{PhysicalExpr, create_physical_expr};
use datafusion_sql::planner::{ContextProvider, ParserOptions, PlannerContext, SqlToRel};
use datafusion_sql::sqlparser::ast::Expr;
use millrace_core::schema::{Column, DataType};

use crate::arrow_schema::{arrow_schema, arrow_type, column_type};
use crate::expr::{self, Scope};
use crate::names::did_you_mean;
use crate::parse::{self, SqlError};

/// Functions whose answer depends on the moment, on chance, or on the engine.
const NOT_REPEATABLE: [&str; 11] = [
    "now",
    "current_timestamp",
    "current_date",
    "current_time",
    "today",
    "localtime",
    "localtimestamp",
    "random",
    "uuid",
    "input_file_name",
    "file_row_index",
];
/// Functions that speak of Arrow's types or of the engine's version instead of ours, and generators of whole lists from
/// two numbers, which no batch size bounds.
const NOT_OURS: [&str; 19] = [
    "arrow_cast",
    "arrow_field",
    "arrow_metadata",
    "arrow_try_cast",
    "arrow_typeof",
    "cast_to_type",
    "element_at",
    "generate_series",
    "map",
    "map_entries",
    "map_extract",
    "map_keys",
    "map_values",
    "range",
    "try_cast_to_type",
    "union_extract",
    "union_tag",
    "version",
    "with_metadata",
];
const AGGREGATES: [&str; 12] = [
    "any_value",
    "array_agg",
    "avg",
    "count",
    "first_value",
    "last_value",
    "max",
    "median",
    "min",
    "stddev",
    "string_agg",
    "sum",
];

/// Why an expression has no value for a batch.
#[derive(Debug, thiserror::Error)]
#[error("evaluate {sql}: {message}")]
pub struct EvaluateError {
    pub sql: String,
    pub message: String,
}

/// What is known about an expression before it runs.
#[derive(Clone, Debug)]
pub struct Typed {
    pub data_type: DataType,
    pub nullable: bool,
    /// False if the expression has a value for every row.
    pub can_fail: bool,
    /// The value comes in another Arrow type than the one of `data_type`, and must be cast.
    pub narrowed: bool,
    simplified: LogicalExpr,
}

/// An expression that evaluates on Arrow batches.
#[derive(Clone)]
pub struct BoundExpr {
    sql: String,
    expr: Arc<dyn PhysicalExpr>,
    target: ArrowType,
    pub data_type: DataType,
    pub nullable: bool,
}

impl fmt::Debug for BoundExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BoundExpr({}: {})", self.sql, self.data_type)
    }
}

impl BoundExpr {
    /// The value for each row, in the Arrow type of [`Self::data_type`]. `batch` has the columns that the expression was
    /// bound to. An error is about some row of the batch.
    pub fn evaluate(&self, batch: &RecordBatch) -> Result<ArrayRef, EvaluateError> {
        let error = |message: String| EvaluateError { sql: self.sql.clone(), message };
        let value = self.expr.evaluate(batch).and_then(|value| value.into_array(batch.num_rows()));
        let array = value.map_err(|e| error(plain(&e)))?;
        if *array.data_type() == self.target {
            return Ok(array);
        }
        let options = CastOptions { safe: false, ..CastOptions::default() };
        cast_with_options(&array, &self.target, &options).map_err(|e| error(e.to_string()))
    }
}

/// Makes SQL text over `input` ready to run. Text that a plan holds binds without mistakes; a user's may not.
pub fn bind(sql: &str, input: &[Column]) -> Result<BoundExpr, SqlError> {
    parse::with_stack(|| bind_here(sql, input))
}

fn bind_here(sql: &str, input: &[Column]) -> Result<BoundExpr, SqlError> {
    let named = expr::named(input);
    let scope = Scope { relations: vec![("input", &named)], first_wins: true };
    let canonical = expr::canonical(parse::expression(sql)?, &scope)?;
    let typed = typed(&canonical, input)?;
    let schema = df_schema(input)?;
    let expr =
        create_physical_expr(&typed.simplified, &schema, &ExecutionProps::new(), &PhysicalPlanningContext::default());
    Ok(BoundExpr {
        sql: canonical.to_string(),
        expr: expr.map_err(|e| SqlError::new(plain(&e), ""))?,
        target: arrow_type(&typed.data_type),
        data_type: typed.data_type,
        nullable: typed.nullable,
    })
}

/// The type of a canonical expression over `input`.
pub fn typed(expr: &Expr, input: &[Column]) -> Result<Typed, SqlError> {
    let error = |e: DataFusionError| SqlError::new(plain(&e), "");
    let schema = df_schema(input)?;
    let options = ParserOptions::new().with_parse_float_as_decimal(true).with_map_string_types_to_utf8view(false);
    let planner = SqlToRel::new_with_options(&*FUNCTIONS, options);
    let logical = planner.sql_to_expr(expr.clone(), &schema, &mut PlannerContext::new()).map_err(error)?;
    let context = SimplifyContext::builder().with_schema(Arc::new(schema.clone())).build();
    let simplifier = ExprSimplifier::new(context);
    let coerced = simplifier.coerce(logical, &schema).map_err(error)?;
    let simplified = simplifier.simplify(coerced).map_err(error)?;
    let arrow = simplified.get_type(&schema).map_err(error)?;
    let data_type = column_type(&arrow).ok_or_else(|| match &arrow {
        ArrowType::Null => SqlError::new("NULL has no type", "write CAST(NULL AS STRING), or the type that you mean"),
        other => SqlError::new(format!("the result has type {other}, which no column can have"), "cast it"),
    })?;
    let nullable = simplified.nullable(&schema).map_err(error)?;
    let can_fail = simplified.exists(|e| Ok(node_can_fail(e, &schema))).map_err(error)?;
    let narrowed = arrow_type(&data_type) != arrow;
    Ok(Typed { data_type, nullable, can_fail, narrowed, simplified })
}

/// Whether a canonical expression is the same for every row, and then its value as a condition.
pub fn constant_condition(typed: &Typed) -> Option<bool> {
    match &typed.simplified {
        LogicalExpr::Literal(datafusion_common::ScalarValue::Boolean(value), _) => Some(value.unwrap_or(false)),
        _ => None,
    }
}

/// Refuses functions that we do not have, with a reason. `name` is in lower case.
pub fn check_function(name: &str) -> Result<(), SqlError> {
    if NOT_REPEATABLE.contains(&name) {
        let message = format!("{name}() is refused: the answer must not depend on when or where it was computed");
        return Err(SqlError::new(message, "use a column, such as the event time"));
    }
    if AGGREGATES.contains(&name) {
        return Err(SqlError::new(format!("{name}() is an aggregate, which is not available in this version"), ""));
    }
    if FUNCTIONS.by_name.contains_key(name) {
        return Ok(());
    }
    let hint = did_you_mean(name, FUNCTIONS.by_name.keys().map(String::as_str));
    Err(SqlError::new(format!("there is no function '{name}'"), hint))
}

fn df_schema(input: &[Column]) -> Result<DFSchema, SqlError> {
    DFSchema::try_from(arrow_schema(input)).map_err(|e| SqlError::new(plain(&e), ""))
}

/// The message of the innermost error, without DataFusion's own prefixes and backtrace.
fn plain(error: &DataFusionError) -> String {
    let message = error.find_root().message().into_owned();
    let first = message.lines().next().unwrap_or_default();
    first.trim_start_matches("Error during planning: ").trim_end_matches('.').to_owned()
}

/// True for a node that has no value for some inputs. Comparisons, logic and casts that cannot lose anything always have
/// one; what is not known to is taken as one that can fail.
fn node_can_fail(expr: &LogicalExpr, schema: &DFSchema) -> bool {
    match expr {
        LogicalExpr::Column(_)
        | LogicalExpr::Literal(..)
        | LogicalExpr::Not(_)
        | LogicalExpr::IsNull(_)
        | LogicalExpr::IsNotNull(_)
        | LogicalExpr::IsTrue(_)
        | LogicalExpr::IsFalse(_)
        | LogicalExpr::IsUnknown(_)
        | LogicalExpr::IsNotTrue(_)
        | LogicalExpr::IsNotFalse(_)
        | LogicalExpr::IsNotUnknown(_)
        | LogicalExpr::Between(_)
        | LogicalExpr::InList(_)
        | LogicalExpr::Case(_)
        | LogicalExpr::TryCast(_)
        | LogicalExpr::Alias(_) => false,
        LogicalExpr::Like(like) => !matches!(*like.pattern, LogicalExpr::Literal(..)),
        LogicalExpr::BinaryExpr(binary) => !matches!(
            binary.op,
            Operator::Eq
                | Operator::NotEq
                | Operator::Lt
                | Operator::LtEq
                | Operator::Gt
                | Operator::GtEq
                | Operator::And
                | Operator::Or
                | Operator::IsDistinctFrom
                | Operator::IsNotDistinctFrom
                | Operator::StringConcat
        ),
        LogicalExpr::Cast(cast) => match cast.expr.get_type(schema) {
            Ok(from) => !widens(&from, cast.field.data_type()),
            Err(_) => true,
        },
        LogicalExpr::ScalarFunction(function) => function.name() != "get_field",
        _ => true,
    }
}

/// True if every value of `from` has a place in `to`.
fn widens(from: &ArrowType, to: &ArrowType) -> bool {
    use ArrowType::{Decimal128, Float64, Int32, Int64, Utf8};
    match (from, to) {
        (Int32, Int64 | Float64) | (Int64, Float64) => true,
        (Int32, Decimal128(precision, scale)) => i16::from(*precision) - i16::from(*scale) >= 10,
        (Int64, Decimal128(precision, scale)) => i16::from(*precision) - i16::from(*scale) >= 19,
        (Decimal128(..), Float64) => true,
        (Decimal128(p, s), Decimal128(to_p, to_s)) => {
            to_s >= s && i16::from(*to_p) - i16::from(*to_s) >= i16::from(*p) - i16::from(*s)
        }
        (ArrowType::Boolean | Int32 | Int64, Utf8) => true,
        (a, b) => a == b,
    }
}

/// What the planner may ask about its surroundings: our functions, and nothing else.
struct Functions {
    by_name: BTreeMap<String, Arc<ScalarUDF>>,
    planners: Vec<Arc<dyn ExprPlanner>>,
    options: ConfigOptions,
}

/// Never changes; built once, because a spec may have thousands of expressions.
static FUNCTIONS: LazyLock<Functions> = LazyLock::new(Functions::new);

impl Functions {
    fn new() -> Self {
        let mut by_name = BTreeMap::new();
        let nested = datafusion_functions_nested::all_default_nested_functions();
        for function in datafusion_functions::all_default_functions().into_iter().chain(nested) {
            for name in std::iter::once(function.name()).chain(function.aliases().iter().map(String::as_str)) {
                if !NOT_REPEATABLE.contains(&name) && !NOT_OURS.contains(&name) {
                    by_name.insert(name.to_owned(), Arc::clone(&function));
                }
            }
        }
        let planners: Vec<Arc<dyn ExprPlanner>> = vec![
            Arc::new(CoreFunctionPlanner::default()),
            Arc::new(NestedFunctionPlanner),
            Arc::new(FieldAccessPlanner),
            Arc::new(DatetimeFunctionPlanner),
            Arc::new(UnicodeFunctionPlanner),
        ];
        Self { by_name, planners, options: ConfigOptions::default() }
    }
}

impl ContextProvider for Functions {
    fn get_table_source(&self, name: TableReference) -> Result<Arc<dyn TableSource>, DataFusionError> {
        Err(DataFusionError::Plan(format!("an expression cannot read table {name}")))
    }

    fn get_expr_planners(&self) -> &[Arc<dyn ExprPlanner>] {
        &self.planners
    }

    fn get_function_meta(&self, name: &str) -> Option<Arc<ScalarUDF>> {
        self.by_name.get(name).cloned()
    }

    fn get_higher_order_meta(&self, _: &str) -> Option<Arc<HigherOrderUDF>> {
        None
    }

    fn get_aggregate_meta(&self, _: &str) -> Option<Arc<AggregateUDF>> {
        None
    }

    fn get_window_meta(&self, _: &str) -> Option<Arc<WindowUDF>> {
        None
    }

    fn get_variable_type(&self, _: &[String]) -> Option<ArrowType> {
        None
    }

    fn options(&self) -> &ConfigOptions {
        &self.options
    }

    fn udf_names(&self) -> Vec<String> {
        self.by_name.keys().cloned().collect()
    }

    fn higher_order_function_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn udaf_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn udwf_names(&self) -> Vec<String> {
        Vec::new()
    }
}
