//! Arithmetic and comparisons.

use super::instruction::{Alu, Condition};

/// The result of an operation on 64 bits, or on the lower 32: the upper ones are then 0. Division by
/// zero gives 0, the rest of one what was divided (RFC 9669 section 4.1).
#[expect(
    clippy::cast_possible_truncation,
    reason = "an operation on 32 bits takes the lower ones"
)]
pub(super) fn compute(alu: Alu, wide: bool, left: u64, right: u64) -> u64 {
    if wide {
        return compute_wide(alu, left, right);
    }
    let (narrow, amount) = (left as u32, right as u32);
    u64::from(match alu {
        Alu::ShiftLeft => narrow.wrapping_shl(amount),
        Alu::ShiftRight => narrow.wrapping_shr(amount),
        Alu::ShiftSigned => narrow.cast_signed().wrapping_shr(amount).cast_unsigned(),
        // They take all 64 bits whatever their class.
        Alu::ToBig(_) | Alu::ToLittle(_) => return compute_wide(alu, left, right),
        _ => compute_wide(alu, narrow.into(), amount.into()) as u32,
    })
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the lower bytes are what is asked for"
)]
fn compute_wide(alu: Alu, left: u64, right: u64) -> u64 {
    let amount = right as u32;
    match alu {
        Alu::Add => left.wrapping_add(right),
        Alu::Sub => left.wrapping_sub(right),
        Alu::Mul => left.wrapping_mul(right),
        Alu::Div => left.checked_div(right).unwrap_or(0),
        Alu::Or => left | right,
        Alu::And => left & right,
        Alu::ShiftLeft => left.wrapping_shl(amount),
        Alu::ShiftRight => left.wrapping_shr(amount),
        Alu::Negate => left.wrapping_neg(),
        Alu::Modulo => left.checked_rem(right).unwrap_or(left),
        Alu::Xor => left ^ right,
        Alu::Move => right,
        Alu::ShiftSigned => left.cast_signed().wrapping_shr(amount).cast_unsigned(),
        Alu::ToBig(2) => (left as u16).to_be().into(),
        Alu::ToBig(4) => (left as u32).to_be().into(),
        Alu::ToBig(_) => left.to_be(),
        Alu::ToLittle(2) => (left as u16).to_le().into(),
        Alu::ToLittle(4) => (left as u32).to_le().into(),
        Alu::ToLittle(_) => left.to_le(),
    }
}

/// Whether a condition holds of 64 bits, or of the lower 32.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a comparison of 32 bits takes the lower ones"
)]
pub(super) fn holds(condition: Condition, wide: bool, left: u64, right: u64) -> bool {
    let (left, right) = if wide {
        (left.cast_signed(), right.cast_signed())
    } else {
        // Both orders of numbers, signed and not, survive this.
        let signed = |value: u64| i64::from((value as u32).cast_signed());
        (signed(left), signed(right))
    };
    let (above, below) = (left.cast_unsigned(), right.cast_unsigned());
    match condition {
        Condition::Equal => left == right,
        Condition::NotEqual => left != right,
        Condition::AnyBit => left & right != 0,
        Condition::Above => above > below,
        Condition::AtLeast => above >= below,
        Condition::Below => above < below,
        Condition::AtMost => above <= below,
        Condition::SignedAbove => left > right,
        Condition::SignedAtLeast => left >= right,
        Condition::SignedBelow => left < right,
        Condition::SignedAtMost => left <= right,
    }
}
