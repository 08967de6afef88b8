//! Reads one JSON object against a [`Shape`], in a single pass, onto a tape of [`Value`]s.
//!
//! The tape is what makes a bad record harmless: the builders are touched only after the whole record was understood.
//! Broken JSON stops the reader at once ([`Fault`]). A value of the wrong type does not: it becomes [`Value::Bad`] in
//! its place, because the grammar of the rest must be checked too and a later field of the same name replaces it. So
//! the answer depends only on the document: last field wins, broken grammar beats a wrong type.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use super::ErrorCode;
use super::lexer::{Cursor, DEPTH_MAX, Fault, NumberToken, Small, Span, StringToken, unescape};
use super::number::{self, Exact};
use super::shape::{DecimalWire, Mistake, Shape, Value, ValueShape};
use super::time::{self, Instant};

/// Standard alphabet; padding may be absent.
pub(super) const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// An unscaled decimal: 16 bytes are the largest, and sign bytes in front of them are legal.
const UNSCALED_BYTES_MAX: usize = 48;

/// What Debezium writes for a TOAST value that an update left alone (`unavailable.value.placeholder`).
const UNAVAILABLE: &str = "__debezium_unavailable_value";

/// The same as JSON: as text, as base64 of it, as a version 3 UUID of it (for arrays of UUIDs), as an HSTORE in JSON
/// text.
const UNAVAILABLE_STRINGS: [&str; 4] = [
    r#""__debezium_unavailable_value""#,
    r#""X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==""#,
    r#""b68a35a7-17ad-35b3-af2a-ae46edb4545a""#,
    r#""{\"__debezium_unavailable_value\":\"__debezium_unavailable_value\"}""#,
];

#[derive(Debug, Default)]
pub(super) struct Reader {
    tape: Vec<Value>,
    /// Items of the arrays that are open: they move to the tape together, so that they lie side by side.
    items: Vec<Value>,
    text: String,
    bytes: Vec<u8>,
}

impl Reader {
    /// Forgets the record before.
    pub fn clear(&mut self) {
        self.tape.clear();
        self.items.clear();
        self.text.clear();
        self.bytes.clear();
    }

    pub fn values(&self, first: usize, count: usize) -> &[Value] {
        &self.tape[first..first + count]
    }

    pub fn values_mut(&mut self, first: usize, count: usize) -> &mut [Value] {
        &mut self.tape[first..first + count]
    }

    /// Makes room for `count` values, all null.
    pub fn reserve(&mut self, count: usize) -> usize {
        let first = self.tape.len();
        self.tape.resize(first + count, Value::Null);
        first
    }

    pub fn own_text(&self, span: Span) -> &str {
        span.of(&self.text)
    }

    pub fn own_bytes(&self, span: Span) -> &[u8] {
        span.of_bytes(&self.bytes)
    }

    /// True when two values of one column are equal. `text` is the record that both are from.
    pub fn same(&self, a: Value, b: Value, text: &str) -> bool {
        let string = |value| match value {
            Value::Text(span) => Some(span.of(text)),
            Value::OwnText(span) => Some(self.own_text(span)),
            _ => None,
        };
        let children = |first: u32, count: u32| first as usize..(first + count) as usize;
        let all_same =
            |a: &[Value], b: &[Value]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| self.same(*a, *b, text));
        match (a, b) {
            (Value::Null, Value::Null) => true,
            (Value::Boolean(a), Value::Boolean(b)) => a == b,
            (Value::Integer(a), Value::Integer(b)) => a == b,
            (Value::Double(a), Value::Double(b)) => a == b,
            (Value::Decimal(a), Value::Decimal(b)) => a == b,
            (Value::Bytes(a), Value::Bytes(b)) => self.own_bytes(a) == self.own_bytes(b),
            (Value::Array { first: a, count: m }, Value::Array { first: b, count: n }) => {
                all_same(&self.tape[children(a, m)], &self.tape[children(b, n)])
            }
            (Value::Row { first: a, count: m }, Value::Row { first: b, count: n }) => {
                all_same(&self.tape[children(a, m)], &self.tape[children(b, n)])
            }
            _ => string(a).is_some() && string(a) == string(b),
        }
    }

    pub fn keep_bytes(&mut self, bytes: &[u8]) -> Value {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        Value::Bytes(Span::new(start, self.bytes.len()))
    }

    /// Reads the object that comes next; its `shape.fields.len()` values lie on the tape from the answer on.
    /// `depth`: how many objects and arrays enclose it.
    pub fn object(&mut self, shape: &Shape, cursor: &mut Cursor<'_>, depth: usize) -> Result<usize, Fault> {
        self.members(shape, cursor, depth, false)
    }

    /// The same for a row of Debezium's, where a column may hold the placeholder instead of its value.
    pub fn object_with_placeholders(&mut self, shape: &Shape, cursor: &mut Cursor<'_>) -> Result<usize, Fault> {
        self.members(shape, cursor, 0, true)
    }

    fn members(&mut self, shape: &Shape, cursor: &mut Cursor<'_>, depth: usize, holes: bool) -> Result<usize, Fault> {
        if depth >= DEPTH_MAX {
            return Err(cursor.fault(ErrorCode::TooDeep));
        }
        cursor.expect(b'{')?;
        let first = self.reserve(shape.fields.len());
        let mut guess = 0;
        let mut more = !cursor.eat(b'}');
        while more {
            // Producers write their fields in one order, so the next one is nearly always the one that comes next in
            // the shape, and one comparison says so.
            let index = match shape.fields.get(guess).and_then(|f| f.member.as_deref()) {
                Some(member) if cursor.eat_known(member) => Some(guess),
                _ => self.find(shape, cursor)?,
            };
            match index {
                Some(index) => {
                    guess = index + 1;
                    let field = &shape.fields[index];
                    if holes && is_placeholder(*cursor) {
                        cursor.skip(depth + 1)?;
                        self.tape[first + index] = Value::Unavailable;
                    } else {
                        self.value(&field.value, field.id, cursor, depth + 1, first + index)?;
                    }
                }
                None => drop(cursor.skip(depth + 1)?),
            }
            more = cursor.more(b'}')?;
        }
        if shape.any_required {
            self.check_required(shape, first);
        }
        Ok(first)
    }

    fn find(&mut self, shape: &Shape, cursor: &mut Cursor<'_>) -> Result<Option<usize>, Fault> {
        let name = cursor.name()?;
        if !name.escaped {
            return Ok(shape.find(name.span.of(cursor.text)));
        }
        let span = self.unescaped(name, cursor.text).map_err(|code| cursor.fault(code))?;
        Ok(shape.find(self.own_text(span)))
    }

    fn check_required(&mut self, shape: &Shape, first: usize) {
        for (value, field) in self.tape[first..].iter_mut().zip(&shape.fields) {
            if field.required && matches!(value, Value::Null) {
                *value = Value::Bad(Mistake { code: ErrorCode::MissingField, field: field.id });
            }
        }
    }

    /// Reads the value that comes next into `slot` of the tape. `field` is what a mistake is about.
    ///
    /// Each kind of value is stored where it is read. Handing values up in nested results cost a third of the decoder's
    /// time: the processor stalls when it copies 16 bytes that were just written in smaller pieces.
    pub fn value(
        &mut self,
        shape: &ValueShape,
        field: u16,
        cursor: &mut Cursor<'_>,
        depth: usize,
        slot: usize,
    ) -> Result<(), Fault> {
        match cursor.peek() {
            b'"' => {
                let token = cursor.string()?;
                self.string(shape, field, token, cursor.text, slot);
            }
            b'-' | b'0'..=b'9' => {
                let token = cursor.number()?;
                self.number(shape, field, token, cursor.text, slot);
            }
            b'n' => {
                cursor.literal("null")?;
                self.tape[slot] = Value::Null;
            }
            b't' => {
                cursor.literal("true")?;
                self.put(slot, field, boolean(shape, true));
            }
            b'f' => {
                cursor.literal("false")?;
                self.put(slot, field, boolean(shape, false));
            }
            b'{' => {
                let value = self.nested(shape, cursor, depth)?;
                self.put(slot, field, value);
            }
            b'[' => {
                let value = self.array(shape, field, cursor, depth)?;
                self.put(slot, field, value);
            }
            _ => return Err(cursor.fault(ErrorCode::BadJson)),
        }
        Ok(())
    }

    fn put(&mut self, slot: usize, field: u16, value: Result<Value, ErrorCode>) {
        self.tape[slot] = value.unwrap_or_else(|code| Value::Bad(Mistake { code, field }));
    }

    #[inline]
    fn put_integer(&mut self, slot: usize, field: u16, value: Result<i64, ErrorCode>) {
        match value {
            Ok(value) => self.tape[slot] = Value::Integer(value),
            Err(code) => self.tape[slot] = Value::Bad(Mistake { code, field }),
        }
    }

    fn nested(
        &mut self,
        shape: &ValueShape,
        cursor: &mut Cursor<'_>,
        depth: usize,
    ) -> Result<Result<Value, ErrorCode>, Fault> {
        match shape {
            ValueShape::Row(shape) => {
                let first = self.object(shape, cursor, depth)?;
                let bad = self.values(first, shape.fields.len()).iter().find(|v| matches!(v, Value::Bad(_)));
                Ok(Ok(bad.copied().unwrap_or(Value::Row { first: first as u32, count: shape.fields.len() as u32 })))
            }
            ValueShape::Decimal { precision, scale, wire: DecimalWire::Unscaled(_) | DecimalWire::Unknown } => {
                self.variable_scale(*precision, *scale, cursor, depth)
            }
            _ => {
                cursor.skip(depth)?;
                Ok(Err(ErrorCode::WrongType))
            }
        }
    }

    /// Debezium's `VariableScaleDecimal`: `{"scale":1,"value":"aQ=="}`.
    fn variable_scale(
        &mut self,
        precision: u8,
        scale: u8,
        cursor: &mut Cursor<'_>,
        depth: usize,
    ) -> Result<Result<Value, ErrorCode>, Fault> {
        let whole = cursor.skip(depth)?;
        let (mut from, mut value) = (None, None);
        let mut inner = Cursor::over(cursor.text, whole);
        inner.expect(b'{')?;
        let mut more = !inner.eat(b'}');
        while more {
            let name = inner.name()?.span.of(cursor.text);
            let span = inner.skip(depth + 1)?;
            match name {
                "scale" => from = span.of(cursor.text).parse::<i64>().ok(),
                "value" => value = Some(span),
                _ => {}
            }
            more = inner.more(b'}')?;
        }
        let token = value.map(|v| Cursor::over(cursor.text, v)).filter(|c| c.clone().peek() == b'"');
        let (Some(from), Some(mut value)) = (from, token) else { return Ok(Err(ErrorCode::WrongType)) };
        let token = value.string()?;
        Ok(self.with_text(token, cursor.text, |text| unscaled_base64(text, from, precision, scale)))
    }

    fn array(
        &mut self,
        shape: &ValueShape,
        field: u16,
        cursor: &mut Cursor<'_>,
        depth: usize,
    ) -> Result<Result<Value, ErrorCode>, Fault> {
        let ValueShape::Array(item) = shape else {
            cursor.skip(depth)?;
            return Ok(Err(ErrorCode::WrongType));
        };
        if depth >= DEPTH_MAX {
            return Err(cursor.fault(ErrorCode::TooDeep));
        }
        cursor.expect(b'[')?;
        let mark = self.items.len();
        let slot = self.reserve(1);
        let mut bad = None;
        let mut more = !cursor.eat(b']');
        while more {
            self.value(item, field, cursor, depth + 1, slot)?;
            let value = self.tape[slot];
            if let Value::Bad(_) = value {
                bad = bad.or(Some(value));
            }
            self.items.push(value);
            more = cursor.more(b']')?;
        }
        let first = self.tape.len() as u32;
        self.tape.extend(self.items.drain(mark..));
        let count = self.tape.len() as u32 - first;
        Ok(Ok(bad.unwrap_or(Value::Array { first, count })))
    }

    #[inline]
    fn string(&mut self, shape: &ValueShape, field: u16, token: StringToken, text: &str, slot: usize) {
        match shape {
            ValueShape::String { .. } if !token.escaped => self.tape[slot] = Value::Text(token.span),
            ValueShape::String { .. } => {
                let value = self.unescaped(token, text).map(Value::OwnText);
                self.put(slot, field, value);
            }
            ValueShape::Timestamp { digits, .. } => {
                let value = self.with_text(token, text, |text| {
                    let instant = time::parse_instant(text).ok_or(ErrorCode::BadTimestamp)?;
                    instant.to_units(*digits).ok_or(ErrorCode::OutOfRange)
                });
                self.put_integer(slot, field, value);
            }
            ValueShape::Date { .. } => {
                let value = self.with_text(token, text, |text| time::parse_date(text).ok_or(ErrorCode::BadDate));
                self.put_integer(slot, field, value.map(i64::from));
            }
            ValueShape::Decimal { precision, scale, wire } => {
                let value = self.with_text(token, text, |text| decimal_text(text, *precision, *scale, *wire));
                self.put(slot, field, value);
            }
            ValueShape::Bytes => {
                let value = self.base64(token, text);
                self.put(slot, field, value);
            }
            _ => self.put(slot, field, Err(ErrorCode::WrongType)),
        }
    }

    /// Calls `read` with what the string stands for.
    #[inline]
    fn with_text<T>(
        &mut self,
        token: StringToken,
        text: &str,
        read: impl FnOnce(&str) -> Result<T, ErrorCode>,
    ) -> Result<T, ErrorCode> {
        if !token.escaped {
            return read(token.span.of(text));
        }
        let span = self.unescaped(token, text)?;
        read(span.of(&self.text))
    }

    fn unescaped(&mut self, token: StringToken, text: &str) -> Result<Span, ErrorCode> {
        let start = self.text.len();
        unescape(token.span.of(text), &mut self.text).ok_or(ErrorCode::BadUtf8)?;
        Ok(Span::new(start, self.text.len()))
    }

    fn base64(&mut self, token: StringToken, text: &str) -> Result<Value, ErrorCode> {
        let start = self.bytes.len();
        // Some serialisers write `\/`, so an escape in base64 is no mistake.
        let decoded = if token.escaped {
            let span = self.unescaped(token, text)?;
            BASE64.decode_vec(span.of(&self.text), &mut self.bytes)
        } else {
            BASE64.decode_vec(token.span.of(text), &mut self.bytes)
        };
        decoded.map_err(|_| ErrorCode::BadBase64)?;
        Ok(Value::Bytes(Span::new(start, self.bytes.len())))
    }

    #[inline]
    fn number(&mut self, shape: &ValueShape, field: u16, token: NumberToken, text: &str, slot: usize) {
        let (small, text) = (token.small, token.span.of(text));
        match shape {
            ValueShape::Bigint => self.put_integer(slot, field, number::integer(small, text, i64::MIN, i64::MAX)),
            ValueShape::Int | ValueShape::Date { days: true } => {
                self.put_integer(slot, field, number::integer(small, text, i32::MIN.into(), i32::MAX.into()));
            }
            ValueShape::Timestamp { digits, number_digits } => {
                self.put_integer(slot, field, timestamp_number(small, text, *digits, *number_digits));
            }
            ValueShape::Double => match number::double(small, text) {
                Ok(value) => self.tape[slot] = Value::Double(value),
                Err(code) => self.put(slot, field, Err(code)),
            },
            ValueShape::Decimal { precision, scale, .. } => match number::decimal(small, text, *precision, *scale) {
                Ok(value) => self.tape[slot] = Value::Decimal(value),
                Err(code) => self.put(slot, field, Err(code)),
            },
            ValueShape::String { time_digits: None } => self.tape[slot] = Value::Text(token.span),
            ValueShape::String { time_digits: Some(digits) } => {
                let value = self.time_of_day(small, text, *digits);
                self.put(slot, field, value);
            }
            _ => self.put(slot, field, Err(ErrorCode::WrongType)),
        }
    }

    fn time_of_day(&mut self, small: Option<Small>, text: &str, digits: u8) -> Result<Value, ErrorCode> {
        let units = number::integer(small, text, i64::MIN, i64::MAX)?;
        let (start, scratch) = (self.text.len(), self.bytes.len());
        time::write_time_of_day(units, digits, &mut self.bytes);
        self.text.extend(self.bytes.drain(scratch..).map(char::from));
        Ok(Value::OwnText(Span::new(start, self.text.len())))
    }
}

fn boolean(shape: &ValueShape, value: bool) -> Result<Value, ErrorCode> {
    match shape {
        ValueShape::Boolean => Ok(Value::Boolean(value)),
        _ => Err(ErrorCode::WrongType),
    }
}

fn decimal_text(text: &str, precision: u8, scale: u8, wire: DecimalWire) -> Result<Value, ErrorCode> {
    let exact = || Exact::parse(text).ok_or(ErrorCode::BadDecimal)?.to_decimal(precision, scale).map(Value::Decimal);
    match wire {
        DecimalWire::Text => exact(),
        DecimalWire::Unscaled(from) => unscaled_base64(text, from, precision, scale),
        DecimalWire::Unknown => {
            let base64 =
                text.len().is_multiple_of(4) && BASE64.decode_slice(text, &mut [0; UNSCALED_BYTES_MAX]).is_ok();
            match (base64, Exact::parse(text).is_some()) {
                (false, _) => exact(),
                (true, false) => unscaled_base64(text, i64::from(scale), precision, scale),
                // `1500` is a number, and it is base64 too. A guess could be wrong without a sign of it.
                (true, true) => Err(ErrorCode::AmbiguousDecimal),
            }
        }
    }
}

fn unscaled_base64(text: &str, from: i64, precision: u8, scale: u8) -> Result<Value, ErrorCode> {
    let mut bytes = [0; UNSCALED_BYTES_MAX];
    let len = BASE64.decode_slice(text, &mut bytes).map_err(|_| ErrorCode::BadDecimal)?;
    number::unscaled(&bytes[..len], from, precision, scale).map(Value::Decimal)
}

#[inline]
fn timestamp_number(small: Option<Small>, text: &str, digits: u8, number_digits: u8) -> Result<i64, ErrorCode> {
    match small {
        Some(Small { mantissa, scale: 0 }) if digits == number_digits => Ok(mantissa),
        Some(Small { mantissa, scale: 0 }) => {
            Instant::from_units(mantissa, number_digits).to_units(digits).ok_or(ErrorCode::OutOfRange)
        }
        // A fraction of a unit: what a float of milliseconds looks like.
        _ => {
            let exact = Exact::parse(text).ok_or(ErrorCode::BadTimestamp)?;
            let units = exact.floor(i64::from(digits) - i64::from(number_digits)).ok_or(ErrorCode::OutOfRange)?;
            i64::try_from(units).map_err(|_| ErrorCode::OutOfRange)
        }
    }
}

/// True when the value that comes next is Debezium's placeholder, in the form that it has for the column's type: one of
/// the strings; an array of one such item; or, for arrays of numbers, one number for each byte of the text. No real
/// value of a table looks like one of these.
fn is_placeholder(mut cursor: Cursor<'_>) -> bool {
    match cursor.peek() {
        b'"' => eat_placeholder(&mut cursor),
        b'[' if cursor.eat(b'[') => is_placeholder_item(cursor) || is_placeholder_numbers(cursor),
        _ => false,
    }
}

fn eat_placeholder(cursor: &mut Cursor<'_>) -> bool {
    UNAVAILABLE_STRINGS.iter().any(|text| cursor.eat_known(text))
}

fn is_placeholder_item(mut items: Cursor<'_>) -> bool {
    eat_placeholder(&mut items) && items.eat(b']')
}

fn is_placeholder_numbers(mut items: Cursor<'_>) -> bool {
    let text = items.text;
    for (i, byte) in UNAVAILABLE.bytes().enumerate() {
        if i > 0 && !items.eat(b',') || !items.peek().is_ascii_digit() {
            return false;
        }
        let number = items.number().ok().and_then(|n| number::double(n.small, n.span.of(text)).ok());
        if number != Some(f64::from(byte)) {
            return false;
        }
    }
    items.eat(b']')
}
