//! Numbers without loss: decimals never pass through a float, and what doesn't fit is an error, never a rounded value.

use super::ErrorCode;
use super::lexer::Small;

const POWERS: [i128; 39] = {
    let mut powers = [1; 39];
    let mut n = 1;
    while n < 39 {
        powers[n] = powers[n - 1] * 10;
        n += 1;
    }
    powers
};

/// Exponents beyond this are all alike: no column holds such a number. The sum with the length of a record cannot
/// overflow.
const EXPONENT_LIMIT: i64 = 1 << 40;

/// A number as it was written: `digits * 10^exponent`, without trailing zeros in `digits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exact {
    negative: bool,
    /// Meaningless when `count` is above 38, which no column can hold.
    digits: i128,
    /// How many digits `digits` has. 0: the number is zero.
    count: i64,
    exponent: i64,
}

impl Exact {
    /// JSON's numbers, and of what else people write into strings: a plus sign, leading zeros, `.5` and `5.`.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let negative = bytes.first() == Some(&b'-');
        let mut at = usize::from(matches!(bytes.first(), Some(b'-' | b'+')));
        let mut number = Self { negative, digits: 0, count: 0, exponent: 0 };
        let (mut any, mut point, mut zeros) = (false, false, 0);
        while let Some(byte) = bytes.get(at) {
            match byte {
                b'.' if !point => point = true,
                b'0'..=b'9' => {
                    any = true;
                    number.exponent -= i64::from(point);
                    number.push_digit(byte - b'0', &mut zeros);
                }
                _ => break,
            }
            at += 1;
        }
        number.exponent += zeros;
        if let Some(b'e' | b'E') = bytes.get(at) {
            number.exponent += exponent(&bytes[at + 1..])?;
            at = bytes.len();
        }
        (any && at == bytes.len()).then_some(number)
    }

    /// `zeros` counts those at the end: they become digits only when another digit follows.
    fn push_digit(&mut self, digit: u8, zeros: &mut i64) {
        if digit == 0 {
            *zeros += i64::from(self.count > 0);
            // A zero in front of the first digit moves nothing but the point, which `exponent` counts already.
            return;
        }
        let step = *zeros + 1;
        self.count += step;
        if self.count <= 38 {
            self.digits = self.digits * POWERS[step as usize] + i128::from(digit);
        }
        *zeros = 0;
    }

    /// The unscaled value of a DECIMAL(precision, scale).
    pub fn to_decimal(self, precision: u8, scale: u8) -> Result<i128, ErrorCode> {
        let (precision, scale) = (i64::from(precision), i64::from(scale));
        if self.count == 0 {
            return Ok(0);
        }
        if self.count + self.exponent > precision - scale {
            return Err(ErrorCode::OutOfRange);
        }
        if self.exponent < -scale {
            return Err(ErrorCode::PrecisionLoss);
        }
        // From the two checks: count <= count + exponent + scale <= precision <= 38.
        Ok(self.signed(self.digits * POWERS[(self.exponent + scale) as usize]))
    }

    /// The number times `10^scale`, rounded down. `None`: beyond 38 digits.
    pub fn floor(self, scale: i64) -> Option<i128> {
        let shift = self.exponent + scale;
        if self.count == 0 {
            return Some(0);
        }
        if self.count > 38 || self.count + shift > 38 {
            return None;
        }
        let value = self.signed(self.digits);
        if shift >= 0 {
            return Some(value * POWERS[shift as usize]);
        }
        Some(match POWERS.get(-shift as usize) {
            Some(power) => value.div_euclid(*power),
            None => -i128::from(self.negative),
        })
    }

    fn signed(self, value: i128) -> i128 {
        if self.negative { -value } else { value }
    }
}

fn exponent(bytes: &[u8]) -> Option<i64> {
    let negative = bytes.first() == Some(&b'-');
    let digits = &bytes[usize::from(matches!(bytes.first(), Some(b'-' | b'+')))..];
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let size = digits.iter().fold(0i64, |sum, d| (sum * 10 + i64::from(d - b'0')).min(EXPONENT_LIMIT));
    Some(if negative { -size } else { size })
}

/// The unscaled value of a DECIMAL(precision, scale) for a number as it stands in a record.
#[inline]
pub(super) fn decimal(small: Option<Small>, text: &str, precision: u8, scale: u8) -> Result<i128, ErrorCode> {
    if let Some(small) = small
        && small.scale <= scale
    {
        let value = i128::from(small.mantissa) * POWERS[usize::from(scale - small.scale).min(19)];
        // 18 digits and up to 19 zeros stay below 10^38; more zeros go the slow way.
        if scale - small.scale <= 19 {
            return in_precision(value, precision);
        }
    }
    Exact::parse(text).ok_or(ErrorCode::BadDecimal)?.to_decimal(precision, scale)
}

/// An integer between `min` and `max`. `1e3` and `2.0` are integers; `1.5` is not.
#[inline]
pub(super) fn integer(small: Option<Small>, text: &str, min: i64, max: i64) -> Result<i64, ErrorCode> {
    let value = match small {
        Some(Small { mantissa, scale: 0 }) => mantissa,
        _ => {
            // 19 digits: as many as an i64 can have.
            let value = Exact::parse(text).ok_or(ErrorCode::BadJson)?.to_decimal(19, 0)?;
            i64::try_from(value).map_err(|_| ErrorCode::OutOfRange)?
        }
    };
    if (min..=max).contains(&value) { Ok(value) } else { Err(ErrorCode::OutOfRange) }
}

/// The nearest double. Beyond the largest one is an error, not infinity.
#[inline]
pub(super) fn double(small: Option<Small>, text: &str) -> Result<f64, ErrorCode> {
    const EXACT_MAX: u64 = 1 << 53;
    // Both numbers are exact as doubles, and powers of ten are up to 10^22, so one division rounds once: correctly.
    if let Some(Small { mantissa, scale }) = small
        && mantissa != 0
        && mantissa.unsigned_abs() <= EXACT_MAX
    {
        return Ok(mantissa as f64 / POWERS[usize::from(scale)] as f64);
    }
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(value),
        _ => Err(ErrorCode::OutOfRange),
    }
}

/// Java's `BigInteger.toByteArray` times `10^-from`, as a DECIMAL(precision, scale). A negative `from` is legal there.
pub(super) fn unscaled(bytes: &[u8], from: i64, precision: u8, scale: u8) -> Result<i128, ErrorCode> {
    let first = *bytes.first().ok_or(ErrorCode::BadDecimal)?;
    let sign = if first & 0x80 == 0 { 0 } else { 0xff };
    let padding = bytes.iter().take_while(|b| **b == sign).count().min(bytes.len() - 1);
    let significant = &bytes[padding..];
    // The 16th byte must hold the sign bit too.
    if significant.len() > 16 || (significant.len() == 16 && (significant[0] ^ sign) & 0x80 != 0) {
        return Err(ErrorCode::OutOfRange);
    }
    let mut wide = [sign; 16];
    wide[16 - significant.len()..].copy_from_slice(significant);
    rescale(i128::from_be_bytes(wide), from, precision, scale)
}

fn rescale(value: i128, from: i64, precision: u8, scale: u8) -> Result<i128, ErrorCode> {
    if value == 0 {
        return Ok(0);
    }
    let shift = i64::from(scale).saturating_sub(from);
    let power = usize::try_from(shift.unsigned_abs()).ok().and_then(|n| POWERS.get(n));
    if shift >= 0 {
        let scaled = power.and_then(|p| value.checked_mul(*p)).ok_or(ErrorCode::OutOfRange)?;
        return in_precision(scaled, precision);
    }
    match power {
        Some(power) if value % power == 0 => in_precision(value / power, precision),
        _ => Err(ErrorCode::PrecisionLoss),
    }
}

fn in_precision(value: i128, precision: u8) -> Result<i128, ErrorCode> {
    if value.unsigned_abs() < POWERS[usize::from(precision)].unsigned_abs() {
        Ok(value)
    } else {
        Err(ErrorCode::OutOfRange)
    }
}

/// Appends a decimal with all digits of its scale: `12.50`, `-0.05`.
pub(super) fn write_decimal(value: i128, scale: u8, out: &mut Vec<u8>) {
    // 39 digits of an i128.
    let mut digits = [b'0'; 40];
    let mut at = digits.len();
    let mut rest = value.unsigned_abs();
    // Divisions of 128 bits are slow: one for each 19 digits, the rest in 64 bits.
    const CHUNK: u128 = 10u128.pow(19);
    loop {
        let mut low = (rest % CHUNK) as u64;
        rest /= CHUNK;
        let end = at;
        while low > 0 {
            at -= 1;
            digits[at] = b'0' + (low % 10) as u8;
            low /= 10;
        }
        if rest == 0 {
            break;
        }
        at = end - 19;
    }
    // At least one digit stands in front of the point.
    at = at.min(digits.len() - 1 - usize::from(scale));
    let point = digits.len() - usize::from(scale);
    if value < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[at..point]);
    if scale > 0 {
        out.push(b'.');
        out.extend_from_slice(&digits[point..]);
    }
}
