//! Arithmetic and comparisons.

use super::instruction::{Alu, Condition};

/// The result of an operation on 64 bits, or on the lower 32: the upper ones are then 0. Division
/// by zero gives 0, and its remainder is the dividend (RFC 9669 section 4.1).
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
        // They use all 64 bits in either class.
        Alu::ToBig(_) | Alu::ToLittle(_) => return compute_wide(alu, left, right),
        _ => compute_wide(alu, narrow.into(), amount.into()) as u32,
    })
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the lower bytes are the requested part"
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

/// True if a condition holds for 64 bits, or for the lower 32.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a comparison of 32 bits takes the lower ones"
)]
pub(super) fn holds(condition: Condition, wide: bool, left: u64, right: u64) -> bool {
    let (left, right) = if wide {
        (left.cast_signed(), right.cast_signed())
    } else {
        // Sign extension keeps the order of numbers, signed and unsigned.
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

#[cfg(test)]
mod tests {
    use super::{Alu, Condition, compute, holds};

    const MINUS_ONE: u64 = u64::MAX;

    #[test]
    fn what_is_narrow_has_no_upper_half() {
        for (alu, left, right, wide, narrow) in [
            (Alu::Add, MINUS_ONE, 2, 1, 1),
            (Alu::Sub, 0, 1, MINUS_ONE, 0xffff_ffff),
            (Alu::ShiftLeft, 1, 33, 1 << 33, 2),
            (Alu::ShiftRight, MINUS_ONE, 36, 0x0fff_ffff, 0x0fff_ffff),
            (Alu::ShiftSigned, 0x8000_0000, 31, 1, 0xffff_ffff),
            (Alu::Negate, 1, 0, MINUS_ONE, 0xffff_ffff),
            (Alu::Move, 7, MINUS_ONE, MINUS_ONE, 0xffff_ffff),
            (Alu::Div, 7, 0, 0, 0),
            (Alu::Modulo, 1 << 32 | 7, 0, 1 << 32 | 7, 7),
        ] {
            assert_eq!(compute(alu, true, left, right), wide, "{alu:?}");
            assert_eq!(compute(alu, false, left, right), narrow, "{alu:?}");
        }
    }

    #[test]
    fn bytes_change_their_order_and_lose_what_is_above() {
        let value: u64 = 0x0102_0304_0506_0708;
        for (bytes, big) in [
            (2, u64::from(0x0708_u16.to_be())),
            (4, u64::from(0x0506_0708_u32.to_be())),
            (8, value.to_be()),
        ] {
            for wide in [false, true] {
                assert_eq!(compute(Alu::ToBig(bytes), wide, value, 0), big);
            }
        }
        let little = u64::from(0x0708_u16.to_le());
        assert_eq!(compute(Alu::ToLittle(2), false, value, 0), little);
    }

    #[test]
    fn comparisons_know_signs_and_halves() {
        for (condition, wide, left, right, is_so) in [
            (Condition::Above, true, MINUS_ONE, 1, true),
            (Condition::SignedAbove, true, MINUS_ONE, 1, false),
            (Condition::SignedBelow, false, 0xffff_ffff, 1, true),
            (Condition::Below, false, 0xffff_ffff, 1, false),
            (Condition::Equal, false, 1 << 32 | 5, 5, true),
            (Condition::Equal, true, 1 << 32 | 5, 5, false),
            (Condition::AnyBit, true, 6, 2, true),
            (Condition::AnyBit, true, 6, 1, false),
        ] {
            assert_eq!(holds(condition, wide, left, right), is_so, "{condition:?}");
        }
    }
}
