//! Incremental update of the Internet checksum (RFC 1624).

/// The header checksum of an IPv4 packet, as it lies in it, after its TTL was lowered by one.
///
/// The TTL is the higher byte of its word, so the checksum grows by 0x0100. The result is never
/// 0xffff; equation 3 of RFC 1624 does not give that either.
#[inline(always)]
#[must_use]
pub const fn update_for_ttl(checksum: u16) -> u16 {
    let sum = checksum as u32 + 0x0100_u16.to_be() as u32;
    #[expect(clippy::cast_possible_truncation, reason = "the carry is brought back")]
    let folded = (sum + (sum >= 0xffff) as u32) as u16;
    folded
}

/// By how much the one's complement sum of words grows when they go from `old` to `new`, not
/// folded: what `bpf_l4_csum_replace` and `bpf_csum_update` take, and `bpf_csum_diff` gives.
///
/// The words are taken as they lie in the packet, at even offsets.
#[inline(always)]
#[must_use]
pub const fn growth(old: [u32; 4], new: [u32; 4]) -> u32 {
    // The complements of the old words, and the new ones.
    let sum = 4 * u32::MAX as u64 - total(old) + total(new);
    // Eight words carry at most 7, so the second fold carries no more.
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    #[expect(clippy::cast_possible_truncation, reason = "both folds leave 32 bits")]
    let folded = ((sum & 0xffff_ffff) + (sum >> 32)) as u32;
    folded
}

#[inline(always)]
const fn total([a, b, c, d]: [u32; 4]) -> u64 {
    a as u64 + b as u64 + c as u64 + d as u64
}

/// [`growth`] of one word.
#[inline(always)]
#[must_use]
pub const fn growth_of_word(old: u32, new: u32) -> u32 {
    add(!old, new)
}

/// [`growth`] of one 16-bit word.
#[inline(always)]
#[must_use]
pub const fn growth_of_lane(old: u16, new: u16) -> u32 {
    (!old) as u32 + new as u32
}

/// Two growths together.
#[inline(always)]
#[must_use]
pub const fn add(a: u32, b: u32) -> u32 {
    let (sum, carry) = a.overflowing_add(b);
    // A sum that overflowed is at least one below the largest.
    sum.wrapping_add(carry as u32)
}

/// A growth as one 16-bit word.
#[inline(always)]
#[must_use]
pub const fn fold(growth: u32) -> u16 {
    let sum = (growth & 0xffff) + (growth >> 16);
    #[expect(clippy::cast_possible_truncation, reason = "both folds leave 16 bits")]
    let folded = ((sum & 0xffff) + (sum >> 16)) as u16;
    folded
}

/// The checksum after the sum of what it covers has grown.
#[inline(always)]
#[must_use]
pub const fn update_by(checksum: u16, growth: u32) -> u16 {
    !fold((!checksum) as u32 + (growth & 0xffff) + (growth >> 16))
}

/// [`update_by`] for a growth of one word of 16 bits, which one fold does.
#[inline(always)]
#[must_use]
pub const fn update_by_lane(checksum: u16, growth: u16) -> u16 {
    let sum = (!checksum) as u32 + growth as u32;
    #[expect(clippy::cast_possible_truncation, reason = "the carry is brought back")]
    let folded = (sum + (sum >> 16)) as u16;
    !folded
}

/// The checksum of a UDP datagram after the sum of the covered bytes has grown. 0 stands for no
/// checksum and stays; a sum of 0 is sent in its other form (RFC 768).
#[inline(always)]
#[must_use]
pub const fn update_udp_by(checksum: u16, growth: u32) -> u16 {
    match (checksum, update_by(checksum, growth)) {
        (0, _) => 0,
        (_, 0) => u16::MAX,
        (_, updated) => updated,
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

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
                let lowered = update_for_ttl(full(&before).to_be());
                assert_eq!(lowered.to_be(), full(&after));
            }
        }
    }

    #[test]
    fn a_lowered_ttl_is_right_for_every_checksum() {
        // The identification takes the sum through all its values.
        for identification in 0..=u16::MAX {
            let before = [0x4500, 0x0054, identification, 0, 0x4011, 0, 0, 0, 0];
            let mut after = before;
            after[4] = 0x3f11;
            let lowered = update_for_ttl(full(&before).to_be());
            assert_eq!(lowered.to_be(), full(&after), "{identification:#06x}");
        }
    }

    /// Numbers without a pattern (Knuth's MMIX generator).
    fn numbers() -> impl Iterator<Item = u32> {
        core::iter::successors(Some(1_u64), |x| {
            Some(
                x.wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407),
            )
        })
        .map(|x| u32::try_from(x >> 32).unwrap())
    }

    /// The sum over an address, a port and a constant, as the packet's words.
    fn words(address: [u32; 4], port: u16) -> Vec<u16> {
        let lanes = address.into_iter().flat_map(crate::headers::lanes);
        lanes.chain([port, 0x1234]).collect()
    }

    #[test]
    fn growth_agrees_with_the_full_sum() {
        let mut numbers = numbers();
        for round in 0..100_000 {
            let mut number = || {
                let word = numbers.next().unwrap();
                // Often the words whose sums carry most and least.
                match word % 5 {
                    0 => u32::MAX,
                    1 => 0,
                    _ => word,
                }
            };
            let (old, new) = ([(); 4].map(|()| number()), [(); 4].map(|()| number()));
            let [from, to, ..] = crate::headers::lanes(number());
            let [other, _] = crate::headers::lanes(number());
            let before = full(&words(old, from));
            let grown = add(growth(old, new), growth_of_lane(from, to));
            assert_eq!(
                update_by(before, grown),
                full(&words(new, to)),
                "round {round}: {old:x?} {from:x} -> {new:x?} {to:x}"
            );
            // So does a growth that has been folded before.
            assert_eq!(update_by_lane(before, fold(grown)), full(&words(new, to)));
            // A single lane gives an equal result.
            assert_eq!(
                update_by(before, growth_of_lane(from, other)),
                full(&words(old, other))
            );
        }
    }

    #[test]
    fn the_growth_of_one_word_is_that_of_all() {
        let extremes = [0, u32::MAX, 1, u32::MAX - 1, 0xffff, 0xffff_0000];
        let numbers: Vec<u32> = extremes.into_iter().chain(numbers().take(200)).collect();
        // Both forms of zero are the same.
        let folded = |growth| fold(growth) % u16::MAX;
        for old in &numbers {
            for new in &numbers {
                let of_all = growth([*old, 7, 8, 9], [*new, 7, 8, 9]);
                let of_one = growth_of_word(*old, *new);
                assert_eq!(folded(of_one), folded(of_all), "{old:x} {new:x}");
            }
        }
    }

    #[test]
    fn udp_without_a_checksum_stays_so_and_no_other_becomes_so() {
        assert_eq!(update_udp_by(0, growth_of_lane(1, 2)), 0);
        // The datagram whose words sum up to 0xffff has the checksum 0, sent as 0xffff.
        let before = full(&[0x1234, 0x0001]);
        let grown = growth_of_lane(0x0001, 0xedcb);
        assert_eq!(update_by(before, grown), 0);
        assert_eq!(update_udp_by(before, grown), 0xffff);
        let back = growth_of_lane(0xedcb, 0x0001);
        assert_eq!(update_udp_by(0xffff, back), before);
    }
}
