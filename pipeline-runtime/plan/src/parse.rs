//! From SQL text to a syntax tree, with bounds.
//!
//! The parser and everything behind it recurse over the tree, so a spec must not be able to choose how deep it is. Three
//! bounds hold, in this order: the length of the text, the number of tokens between two commas (it bounds chains such as
//! `1+1+1+...`, which the parser builds without recursion), and the parser's own limit for nesting. What is within the
//! bounds still takes more stack than a thread may have, so all of it runs in [`with_stack`].

use std::cell::Cell;

use datafusion_sql::sqlparser::ast::{Expr, Ident, SelectItem, Statement};
use datafusion_sql::sqlparser::dialect::Dialect;
use datafusion_sql::sqlparser::keywords::Keyword;
use datafusion_sql::sqlparser::parser::{Parser, ParserError};
use datafusion_sql::sqlparser::tokenizer::{Location, Token, TokenWithSpan, Tokenizer, Whitespace};

/// The bound of `spec.sql` in the API.
pub const SQL_BYTES_MAX: usize = 64 * 1024;
/// Tokens without a comma, WHEN, JOIN and the like between them. An operator takes at least two, so no chain is deeper
/// than half of this; conditions of a few hundred terms still fit.
const RUN_TOKENS_MAX: usize = 1_000;
/// Levels of parentheses and calls that the parser follows.
const NESTING_MAX: usize = 50;
/// Attempts to read an operand, for each token: right text takes one or two, and an ordinary mistake a few more.
const ATTEMPTS_PER_TOKEN: usize = 16;
/// The parser is built without optimisation and takes up to 80 KiB for a nested call, so 4 MiB for [`NESTING_MAX`]; a
/// chain of [`RUN_TOKENS_MAX`] tokens takes 5 KiB for each of its 500 levels, so 2.5 MiB. The rest is reserve: pages that
/// are not touched cost nothing.
const STACK_BYTES: usize = 32 << 20;
/// What to do about an expression beyond a bound.
pub const SIMPLIFY: &str = "compute parts of it in steps before, or simplify it";

/// What is wrong with a piece of SQL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SqlError {
    /// What is wrong.
    pub message: String,
    /// What to do about it; may be empty.
    pub hint: String,
    /// Line and column in the text, both from 1.
    pub at: Option<(u64, u64)>,
}

impl SqlError {
    pub fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into(), at: None }
    }

    /// Says where, unless that is known already.
    pub fn or_at(mut self, location: Location) -> Self {
        if self.at.is_none() && location.line > 0 {
            self.at = Some((location.line, location.column));
        }
        self
    }
}

/// Does the work on a thread of its own with a stack that every text within the bounds leaves intact, and waits for it.
#[expect(clippy::disallowed_methods, reason = "the thread is joined here; all that it changes is the stack")]
pub fn with_stack<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("plan".to_owned()).stack_size(STACK_BYTES);
        let thread =
            builder.spawn_scoped(scope, work).expect("a process that cannot start a thread cannot run lanes either");
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The SQL we read: standard names and literals, and `FOR SYSTEM_TIME AS OF`, which the generic dialect lacks.
/// Identifiers are quoted with `"` or `` ` ``.
///
/// It also ends the parser's search: the parser tries several readings of some words and, where the text is wrong behind
/// them, tries all combinations, which takes for ever. So the attempts to read an operand are counted.
#[derive(Debug)]
struct Millrace {
    attempts_left: Cell<usize>,
}

impl Dialect for Millrace {
    fn is_delimited_identifier_start(&self, ch: char) -> bool {
        ch == '"' || ch == '`'
    }

    fn is_identifier_start(&self, ch: char) -> bool {
        ch.is_alphabetic() || ch == '_'
    }

    fn is_identifier_part(&self, ch: char) -> bool {
        ch.is_alphanumeric() || ch == '_'
    }

    fn supports_table_versioning(&self) -> bool {
        true
    }

    fn parse_prefix(&self, _: &mut Parser) -> Option<Result<Expr, ParserError>> {
        match self.attempts_left.get().checked_sub(1) {
            Some(left) => {
                self.attempts_left.set(left);
                None
            }
            // The one error that the parser does not take for a wrong reading.
            None => Some(Err(ParserError::RecursionLimitExceeded)),
        }
    }

    // Parsed only so that the mistake can name the clause.
    fn supports_filter_during_aggregation(&self) -> bool {
        true
    }
}

/// One statement, and the names that hints gave.
pub struct ParsedStatement {
    pub statement: Statement,
    /// Where the statement begins.
    pub start: Location,
    /// `/*+ name('x') */` behind SELECT.
    pub select_hint: Option<Ident>,
    /// For each JOIN of the text, in order: the hint behind it.
    pub join_hints: Vec<Option<Ident>>,
}

/// Statements that are separated by `;`. Each is parsed on its own, so that one mistake does not hide the next.
pub fn statements(sql: &str) -> Vec<Result<ParsedStatement, SqlError>> {
    let tokens = match tokens(sql) {
        Ok(tokens) => tokens,
        Err(error) => return vec![Err(error)],
    };
    tokens
        .split(|t| t.token == Token::SemiColon)
        .filter(|tokens| tokens.iter().any(|t| !matches!(t.token, Token::Whitespace(_))))
        .map(statement)
        .collect()
}

/// `expression` or `expression AS name`.
pub fn select_item(sql: &str) -> Result<SelectItem, SqlError> {
    whole(sql, |parser| parser.parse_select_item())
}

pub fn expression(sql: &str) -> Result<Expr, SqlError> {
    whole(sql, |parser| parser.parse_expr())
}

fn whole<T>(sql: &str, parse: impl FnOnce(&mut Parser) -> Result<T, ParserError>) -> Result<T, SqlError> {
    parsed(tokens(sql)?, parse)
}

/// Parses all tokens as one thing.
fn parsed<T>(
    tokens: Vec<TokenWithSpan>,
    parse: impl FnOnce(&mut Parser) -> Result<T, ParserError>,
) -> Result<T, SqlError> {
    // Where the text ends too early there is no token to point to.
    let end = tokens.last().map_or(Location::new(1, 1), |t| t.span.end);
    let dialect = Millrace { attempts_left: Cell::new((tokens.len() + 1) * ATTEMPTS_PER_TOKEN) };
    let mut parser = Parser::new(&dialect).with_recursion_limit(NESTING_MAX).with_tokens_with_locations(tokens);
    let result = parse(&mut parser);
    if dialect.attempts_left.get() == 0 {
        return Err(SqlError::new("the expression cannot be read", "look for a missing parenthesis, or simplify it"));
    }
    let result = result.map_err(|e| parser_error(&e).or_at(end))?;
    match parser.peek_token() {
        TokenWithSpan { token: Token::EOF, .. } => Ok(result),
        rest => Err(not_expected(&rest)),
    }
}

fn not_expected(token: &TokenWithSpan) -> SqlError {
    SqlError::new(format!("'{token}' was not expected here"), "").or_at(token.span.start)
}

fn statement(tokens: &[TokenWithSpan]) -> Result<ParsedStatement, SqlError> {
    let start =
        tokens.iter().find(|t| !matches!(t.token, Token::Whitespace(_))).map_or(Location::new(1, 1), |t| t.span.start);
    let (select_hint, join_hints) = hints(tokens)?;
    let statement = parsed(tokens.to_vec(), |parser| parser.parse_statement()).map_err(|e| e.or_at(start))?;
    Ok(ParsedStatement { statement, start, select_hint, join_hints })
}

fn tokens(sql: &str) -> Result<Vec<TokenWithSpan>, SqlError> {
    if sql.len() > SQL_BYTES_MAX {
        let message = format!("the SQL text has {} bytes", sql.len());
        return Err(SqlError::new(message, format!("at most {SQL_BYTES_MAX} are allowed")));
    }
    let tokens = Tokenizer::new(&Millrace { attempts_left: Cell::new(0) }, sql)
        .tokenize_with_location()
        .map_err(|e| SqlError::new(e.message.clone(), "").or_at(e.location))?;
    bound_runs(&tokens)?;
    Ok(tokens)
}

/// Refuses long chains: on the way down to any place of the tree there are no more operators than tokens since the last
/// separator, summed over the open parentheses.
fn bound_runs(tokens: &[TokenWithSpan]) -> Result<(), SqlError> {
    let mut runs = vec![0usize];
    let mut depth = 0usize;
    for token in tokens {
        match (&token.token, runs.as_mut_slice()) {
            (Token::Whitespace(_), _) => {}
            (Token::LParen | Token::LBracket, _) => runs.push(0),
            (Token::RParen | Token::RBracket, [_, .., _]) => depth -= runs.pop().unwrap_or_default(),
            (separator, [.., run]) if separates(separator) => depth -= std::mem::take(run),
            (_, [.., run]) => {
                *run += 1;
                depth += 1;
            }
            (_, []) => {}
        }
        if depth > RUN_TOKENS_MAX {
            let message = format!("the expression has more than {RUN_TOKENS_MAX} words in a row");
            return Err(SqlError::new(message, SIMPLIFY).or_at(token.span.start));
        }
    }
    Ok(())
}

fn separates(token: &Token) -> bool {
    match token {
        Token::Comma | Token::SemiColon => true,
        Token::Word(word) => matches!(
            word.keyword,
            Keyword::SELECT
                | Keyword::FROM
                | Keyword::JOIN
                | Keyword::ON
                | Keyword::WHERE
                | Keyword::WHEN
                | Keyword::THEN
        ),
        _ => false,
    }
}

/// The hints behind SELECT and behind each JOIN. The parser itself takes hints for comments.
fn hints(tokens: &[TokenWithSpan]) -> Result<(Option<Ident>, Vec<Option<Ident>>), SqlError> {
    let mut select = None;
    let mut joins = Vec::new();
    let mut last = Keyword::NoKeyword;
    for token in tokens {
        match &token.token {
            Token::Whitespace(Whitespace::MultiLineComment(comment)) => {
                let Some(hint) = comment.strip_prefix('+') else { continue };
                let name = hint_name(hint).map_err(|e| e.or_at(token.span.start))?;
                let name = Ident { value: name, quote_style: Some('"'), span: token.span };
                match last {
                    Keyword::SELECT => select = Some(name),
                    Keyword::JOIN => *joins.last_mut().expect("pushed at JOIN") = Some(name),
                    _ => {
                        let error = SqlError::new("a name hint stands here", "put it right behind JOIN or SELECT");
                        return Err(error.or_at(token.span.start));
                    }
                }
            }
            Token::Whitespace(_) => {}
            Token::Word(word) => {
                last = word.keyword;
                if last == Keyword::JOIN {
                    joins.push(None);
                }
            }
            _ => last = Keyword::NoKeyword,
        }
    }
    Ok((select, joins))
}

fn hint_name(hint: &str) -> Result<String, SqlError> {
    let name = hint
        .trim()
        .strip_prefix("name(")
        .and_then(|rest| rest.strip_suffix(')'))
        .map(str::trim)
        .and_then(|rest| rest.strip_prefix('\'')?.strip_suffix('\''));
    match name {
        Some(name) if is_name(name) => Ok(name.to_owned()),
        _ => Err(SqlError::new(
            format!("there is no hint '{}'", hint.trim()),
            "use /*+ name('x') */ with at most 40 of a-z, 0-9, '-' and '_'",
        )),
    }
}

/// The rule for names of steps, which state belongs to.
fn is_name(name: &str) -> bool {
    (1..=40).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_')
}

fn parser_error(error: &ParserError) -> SqlError {
    match error {
        ParserError::RecursionLimitExceeded => {
            SqlError::new(format!("the expression is nested more than {NESTING_MAX} deep"), SIMPLIFY)
        }
        ParserError::TokenizerError(text) | ParserError::ParserError(text) => match text.split_once(" at Line: ") {
            Some((message, place)) => {
                let mut numbers = place.split(", Column: ").map(|n| n.trim().parse().unwrap_or(0));
                let (line, column) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
                SqlError::new(message, "").or_at(Location::new(line, column))
            }
            None => SqlError::new(text, ""),
        },
    }
}
