//! JSON as tokens: a cursor over one record that checks the grammar of RFC 8259 to the letter and copies nothing.
//!
//! The record was checked to be UTF-8 as a whole before, so a token is a range of its text. Everything that is walked
//! over is checked, also the values of fields that nobody asked for: a record is either JSON or a dead letter, never
//! "JSON as far as we looked". One thing is checked only where a string is needed as text: that its `\u` escapes don't
//! hold half a surrogate pair, which the grammar allows.

use super::ErrorCode;

/// Objects and arrays inside each other, the record's own object included. It bounds the recursion of everything that
/// reads such a document later, and it is the width of the bit stack in [`Cursor::skip`].
pub(super) const DEPTH_MAX: usize = 64;

/// Where a record stops being what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub code: ErrorCode,
    /// Byte position in the record.
    pub at: usize,
}

/// A range of the record's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub start: u32,
    pub end: u32,
}

impl Span {
    /// Records are shorter than 4 GiB (the decoder refuses longer ones), so positions fit.
    pub fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    pub fn of(self, text: &str) -> &str {
        &text[self.start as usize..self.end as usize]
    }

    pub fn of_bytes(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.start as usize..self.end as usize]
    }
}

/// The text between the quotes of a string.
#[derive(Clone, Copy, Debug)]
pub(super) struct StringToken {
    pub span: Span,
    pub escaped: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct NumberToken {
    pub span: Span,
    /// `mantissa * 10^-scale` is the number, exactly; `None` for exponents and for more than 18 digits.
    pub small: Option<Small>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Small {
    pub mantissa: i64,
    pub scale: u8,
}

/// 10^18 - 1 fits into an i64, 10^19 - 1 does not.
const SMALL_DIGITS_MAX: usize = 18;

#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    pub text: &'a str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(text: &'a str) -> Self {
        Self { text, bytes: text.as_bytes(), at: 0 }
    }

    /// A cursor over one value inside of `text`; its tokens are ranges of the whole text.
    pub fn over(text: &'a str, span: Span) -> Self {
        Self { text, bytes: &text.as_bytes()[..span.end as usize], at: span.start as usize }
    }

    pub fn at(&self) -> usize {
        self.at
    }

    pub fn fault(&self, code: ErrorCode) -> Fault {
        Fault { code, at: self.at }
    }

    /// The next byte that is not white space; 0, which is never valid there, at the end.
    #[inline]
    pub fn peek(&mut self) -> u8 {
        loop {
            match self.bytes.get(self.at) {
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.at += 1,
                Some(byte) => return *byte,
                None => return 0,
            }
        }
    }

    #[inline]
    pub fn eat(&mut self, byte: u8) -> bool {
        let hit = self.peek() == byte;
        self.at += usize::from(hit);
        hit
    }

    #[inline]
    pub fn expect(&mut self, byte: u8) -> Result<(), Fault> {
        if self.eat(byte) { Ok(()) } else { Err(self.fault(ErrorCode::BadJson)) }
    }

    /// Nothing but white space is left.
    pub fn end(&mut self) -> Result<(), Fault> {
        self.peek();
        if self.at == self.bytes.len() { Ok(()) } else { Err(self.fault(ErrorCode::BadJson)) }
    }

    pub fn literal(&mut self, word: &'static str) -> Result<(), Fault> {
        if self.bytes[self.at..].starts_with(word.as_bytes()) {
            self.at += word.len();
            Ok(())
        } else {
            Err(self.fault(ErrorCode::BadJson))
        }
    }

    /// Goes past `text` if it comes next.
    #[inline]
    pub fn eat_known(&mut self, text: &str) -> bool {
        self.peek();
        let hit = self.bytes[self.at..].starts_with(text.as_bytes());
        self.at += if hit { text.len() } else { 0 };
        hit
    }

    /// The name of the next member and the colon behind it.
    #[inline]
    pub fn name(&mut self) -> Result<StringToken, Fault> {
        if self.peek() != b'"' {
            return Err(self.fault(ErrorCode::BadJson));
        }
        let name = self.string()?;
        self.expect(b':')?;
        Ok(name)
    }

    /// True when another member or item follows, false when `close` ended the list.
    #[inline]
    pub fn more(&mut self, close: u8) -> Result<bool, Fault> {
        if self.eat(b',') {
            return Ok(true);
        }
        self.expect(close)?;
        Ok(false)
    }

    /// A string; the cursor is at its opening quote.
    #[inline]
    pub fn string(&mut self) -> Result<StringToken, Fault> {
        let start = self.at + 1;
        let mut at = start;
        let mut escaped = false;
        loop {
            at += plain_len(&self.bytes[at..]);
            match self.bytes.get(at) {
                Some(b'"') => {
                    self.at = at + 1;
                    return Ok(StringToken { span: Span::new(start, at), escaped });
                }
                Some(b'\\') => {
                    escaped = true;
                    at += escape_len(&self.bytes[at..]).ok_or(Fault { code: ErrorCode::BadJson, at })?;
                }
                // A control character, or the end of the record.
                _ => return Err(Fault { code: ErrorCode::BadJson, at }),
            }
        }
    }

    /// A number; the cursor is at its minus sign or first digit.
    #[inline]
    pub fn number(&mut self) -> Result<NumberToken, Fault> {
        let start = self.at;
        let negative = self.bytes[start] == b'-';
        let mut mantissa = 0u64;
        self.at += usize::from(negative);
        let leading_zero = self.bytes.get(self.at) == Some(&b'0');
        let whole = self.digits(&mut mantissa)?;
        if leading_zero && whole > 1 {
            return Err(self.fault(ErrorCode::BadJson));
        }
        let mut scale = 0;
        if self.bytes.get(self.at) == Some(&b'.') {
            self.at += 1;
            scale = self.digits(&mut mantissa)?;
        }
        let mut small = whole + scale <= SMALL_DIGITS_MAX;
        if let Some(b'e' | b'E') = self.bytes.get(self.at) {
            small = false;
            self.at += 1;
            self.at += usize::from(matches!(self.bytes.get(self.at), Some(b'+' | b'-')));
            self.digits(&mut mantissa)?;
        }
        let small = small.then(|| {
            let mantissa = mantissa as i64;
            Small { mantissa: if negative { -mantissa } else { mantissa }, scale: scale as u8 }
        });
        Ok(NumberToken { span: Span::new(start, self.at), small })
    }

    /// At least one digit. The sum wraps; it is used only while it cannot have.
    #[inline]
    fn digits(&mut self, sum: &mut u64) -> Result<usize, Fault> {
        let start = self.at;
        while let Some(digit) = self.bytes.get(self.at).map(|b| b.wrapping_sub(b'0')).filter(|d| *d < 10) {
            *sum = sum.wrapping_mul(10).wrapping_add(u64::from(digit));
            self.at += 1;
        }
        if self.at == start { Err(self.fault(ErrorCode::BadJson)) } else { Ok(self.at - start) }
    }

    /// Walks over one value of any kind, `depth` objects and arrays deep already. No recursion: what is open is a bit
    /// each, 1 for an object.
    pub fn skip(&mut self, depth: usize) -> Result<Span, Fault> {
        self.peek();
        let start = self.at;
        let mut objects = 0u64;
        let mut open = 0;
        loop {
            match self.peek() {
                bracket @ (b'{' | b'[') => {
                    if depth + open >= DEPTH_MAX {
                        return Err(self.fault(ErrorCode::TooDeep));
                    }
                    self.at += 1;
                    let object = bracket == b'{';
                    if !self.eat(if object { b'}' } else { b']' }) {
                        objects = objects << 1 | u64::from(object);
                        open += 1;
                        if object {
                            self.name()?;
                        }
                        continue;
                    }
                }
                b'"' => drop(self.string()?),
                b'-' | b'0'..=b'9' => drop(self.number()?),
                b't' => self.literal("true")?,
                b'f' => self.literal("false")?,
                b'n' => self.literal("null")?,
                _ => return Err(self.fault(ErrorCode::BadJson)),
            }
            // A value has ended: close what ends with it, up to the next comma.
            loop {
                if open == 0 {
                    return Ok(Span::new(start, self.at));
                }
                let object = objects & 1 == 1;
                if self.more(if object { b'}' } else { b']' })? {
                    if object {
                        self.name()?;
                    }
                    break;
                }
                objects >>= 1;
                open -= 1;
            }
        }
    }
}

/// Length of the prefix that needs no escape in JSON: no quote, no backslash, no control character.
///
/// Eight bytes at a time in a register. A search for two bytes (`memchr2`) would be faster on long text, but it would
/// let control characters through, and most strings in records are shorter than its set-up.
#[inline]
pub(super) fn plain_len(bytes: &[u8]) -> usize {
    let (words, rest) = bytes.as_chunks::<8>();
    for (i, word) in words.iter().enumerate() {
        let hits = special_bytes(u64::from_le_bytes(*word));
        if hits != 0 {
            return i * 8 + hits.trailing_zeros() as usize / 8;
        }
    }
    let tail = rest.iter().position(|b| matches!(b, b'"' | b'\\' | 0..0x20)).unwrap_or(rest.len());
    words.len() * 8 + tail
}

/// The high bit of each byte that is a quote, a backslash or below 0x20. A borrow can set bits above a true hit, never
/// below it, so the lowest set bit is exact.
#[inline]
fn special_bytes(word: u64) -> u64 {
    const ONES: u64 = u64::MAX / 0xff;
    const HIGH: u64 = ONES << 7;
    let quote = word ^ (ONES * b'"' as u64);
    let backslash = word ^ (ONES * b'\\' as u64);
    let is_quote = quote.wrapping_sub(ONES) & !quote;
    let is_backslash = backslash.wrapping_sub(ONES) & !backslash;
    let is_control = word.wrapping_sub(ONES * 0x20) & !word;
    (is_quote | is_backslash | is_control) & HIGH
}

/// Length of the escape that `bytes` begins with.
fn escape_len(bytes: &[u8]) -> Option<usize> {
    match bytes.get(1)? {
        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(2),
        b'u' => bytes.get(2..6)?.iter().all(u8::is_ascii_hexdigit).then_some(6),
        _ => None,
    }
}

/// Appends the text that `raw`, the inside of a checked string, stands for. `None`: it holds half a surrogate pair.
pub(super) fn unescape(raw: &str, out: &mut String) -> Option<()> {
    let mut rest = raw;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let escape = rest.as_bytes()[at + 1];
        rest = &rest[at + 2..];
        out.push(match escape {
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let (character, after) = unicode_escape(rest)?;
                rest = after;
                character
            }
            itself => itself as char,
        });
    }
    out.push_str(rest);
    Some(())
}

/// `rest` begins with the four digits of a `\u` escape; a high surrogate takes the escape behind it too.
fn unicode_escape(rest: &str) -> Option<(char, &str)> {
    let unit = |text: &str| u32::from_str_radix(text.get(..4)?, 16).ok();
    let first = unit(rest)?;
    let rest = &rest[4..];
    if !(0xd800..0xdc00).contains(&first) {
        // A low surrogate alone is no character.
        return Some((char::from_u32(first)?, rest));
    }
    let second = unit(rest.strip_prefix("\\u")?)?;
    if !(0xdc00..0xe000).contains(&second) {
        return None;
    }
    Some((char::from_u32(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00))?, &rest[6..]))
}
