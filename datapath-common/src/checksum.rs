//! Incremental update of the Internet checksum (RFC 1624).

/// The checksum after one 16-bit word that it covers went from `old` to `new`.
///
/// All three are taken and given as they lie in the packet; one's complement sums do not depend
/// on byte order (RFC 1071 section 2(B)).
#[inline(always)]
#[must_use]
pub const fn update(checksum: u16, old: u16, new: u16) -> u16 {
    // RFC 1624 equation 3: HC' = ~(~HC + ~m + m').
    let mut sum = (!checksum) as u32 + (!old) as u32 + new as u32;
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    #[expect(clippy::cast_possible_truncation, reason = "both folds leave 16 bits")]
    let folded = sum as u16;
    !folded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(words: &[u16]) -> u16 {
        let mut sum: u32 = words.iter().map(|w| u32::from(*w)).sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !u16::try_from(sum).unwrap()
    }

    #[test]
    fn agrees_with_the_full_sum_for_every_ttl() {
        for ttl in 1..=u8::MAX {
            for protocol in [1_u8, 6, 17] {
                let before = [
                    0x4500,
                    0x0054,
                    0x1234,
                    0x4000,
                    u16::from_be_bytes([ttl, protocol]),
                    0x0a00,
                    0x0001,
                    0xc0a8,
                    0x0101,
                ];
                let mut after = before;
                after[4] = u16::from_be_bytes([ttl - 1, protocol]);
                assert_eq!(update(full(&before), before[4], after[4]), full(&after));
            }
        }
    }
}
