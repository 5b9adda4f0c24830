//! Arithmetic on our ports: which ports there are, which one a flow gets first, and the bits of a
//! block.
//!
//! Ports are numbers here; flows have them as they lie in a packet.

use crate::abi::{Addr, PORTS_PER_BLOCK};
use crate::config::PortSlice;

/// Words of a block.
pub const WORDS: u32 = PORTS_PER_BLOCK / u64::BITS;

/// Most blocks that slices can have: all ports but those below 1024.
pub const MAX_BLOCKS: u32 = (65_536 - 1024) / PORTS_PER_BLOCK;

/// One block in so many is of the reserve.
const RESERVE: u32 = 8;

/// The least that an endpoint may have of the reserve of a destination.
const LEAST_SHARE: u32 = 4;

/// Fewest sharers of a reserve, above Kubernetes' recommendation of 110 pods.
const FEWEST_SHARERS: usize = 128;

/// Number of endpoints among which the reserves of an ENI's destinations are divided if the ENI
/// carries the flows of so many. There are more sharers than endpoints: a flow is never evicted, so
/// an endpoint that comes later finds its share only if nobody had it before.
#[must_use]
pub fn sharers(endpoints: usize) -> usize {
    let more = endpoints.saturating_add(1).checked_next_power_of_two();
    more.unwrap_or(usize::MAX).max(FEWEST_SHARERS)
}

/// True if a flow of this protocol and endpoint has to keep its port where it is one of ours: the
/// checksum of SCTP covers the ports, and the host's own sockets have theirs already.
#[inline(always)]
#[must_use]
pub const fn keeps_port(protocol: u8, endpoint: u32) -> bool {
    protocol == crate::headers::protocol::SCTP || endpoint == crate::abi::HOST
}

/// The ports that translation may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    slices: [PortSlice; PortSlice::MAX],
}

impl Ports {
    /// The default.
    pub const DEFAULT: Self = Self {
        slices: [
            PortSlice::DEFAULT,
            PortSlice::NONE,
            PortSlice::NONE,
            PortSlice::NONE,
        ],
    };

    /// The ports from the words of [`Self::to_words`].
    #[inline(always)]
    #[must_use]
    pub const fn from_words([a, b, c, d]: [u32; PortSlice::MAX]) -> Self {
        Self {
            slices: [
                PortSlice::from_word(a),
                PortSlice::from_word(b),
                PortSlice::from_word(c),
                PortSlice::from_word(d),
            ],
        }
    }

    /// The slices as the programs take them.
    #[inline(always)]
    #[must_use]
    pub const fn to_words(self) -> [u32; PortSlice::MAX] {
        let [a, b, c, d] = self.slices;
        [a.to_word(), b.to_word(), c.to_word(), d.to_word()]
    }

    /// The first seven eighths of the blocks, and the rest.
    const fn split(self) -> (Self, Self) {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "at most 128 blocks divided by 8"
        )]
        let last = (self.blocks() / RESERVE) as u8;
        let [a, b, c, d] = self.slices;
        let (d, of_d) = d.split(last);
        let last = last - of_d.blocks();
        let (c, of_c) = c.split(last);
        let last = last - of_c.blocks();
        let (b, of_b) = b.split(last);
        let last = last - of_b.blocks();
        let (a, of_a) = a.split(last);
        let rest = Self {
            slices: [a, b, c, d],
        };
        let last = Self {
            slices: [of_a, of_b, of_c, of_d],
        };
        (rest, last)
    }

    /// The ports that any flow may get: all but the reserve.
    #[must_use]
    pub const fn open(self) -> Self {
        self.split().0
    }

    /// The reserve: the last eighth of the blocks. If all others are used towards a destination,
    /// each endpoint gets a share of the reserve, so that no endpoint uses up the common ports.
    #[must_use]
    pub const fn reserve(self) -> Self {
        self.split().1
    }

    /// Number of ports of a destination's reserve that each of so many sharers may have.
    #[must_use]
    pub fn share(self, sharers: usize) -> u16 {
        let sharers = u32::try_from(sharers).unwrap_or(u32::MAX).max(1);
        let share = self.reserve().count() / sharers;
        u16::try_from(share.max(LEAST_SHARE)).unwrap_or(u16::MAX)
    }

    /// True if a port is among them.
    #[inline(always)]
    #[must_use]
    pub const fn contains(self, port: u16) -> bool {
        let [a, b, c, d] = self.slices;
        a.contains(port) || b.contains(port) || c.contains(port) || d.contains(port)
    }

    /// The number of blocks.
    #[inline(always)]
    #[must_use]
    pub const fn blocks(self) -> u32 {
        let [a, b, c, d] = self.slices;
        a.blocks() as u32 + b.blocks() as u32 + c.blocks() as u32 + d.blocks() as u32
    }

    /// The number of ports.
    #[inline(always)]
    #[must_use]
    pub const fn count(self) -> u32 {
        self.blocks() * PORTS_PER_BLOCK
    }

    /// The number of the block at an index below [`Self::blocks`].
    #[inline(always)]
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "there are at most 128 blocks"
    )]
    pub const fn block(self, index: u32) -> u8 {
        let [a, b, c, d] = self.slices;
        let mut index = index;
        let mut slice = a;
        // Written out: an array at a variable index would have to lie on the programs' stack.
        if index >= a.blocks() as u32 {
            index -= a.blocks() as u32;
            slice = b;
            if index >= b.blocks() as u32 {
                index -= b.blocks() as u32;
                slice = c;
                if index >= c.blocks() as u32 {
                    index -= c.blocks() as u32;
                    slice = d;
                }
            }
        }
        slice.first_block().wrapping_add(index as u8)
    }

    /// The port that 32 evenly spread bits choose.
    #[inline(always)]
    #[must_use]
    pub const fn spread(self, bits: u32) -> u16 {
        let index = scale(bits, self.count());
        port_of(self.block(index / PORTS_PER_BLOCK), index % PORTS_PER_BLOCK)
    }

    /// The port that a flow gets if it is free: its own if that is open, or is to be kept;
    /// otherwise an open one that depends on the pod and its port. Packets find their flow by it,
    /// so it depends on nothing else.
    #[must_use]
    pub const fn candidate(self, pod: Addr, pod_port: u16, is_kept: bool) -> u16 {
        let (open, reserve) = self.split();
        if open.contains(pod_port) || (is_kept && reserve.contains(pod_port)) {
            pod_port
        } else {
            open.spread(mix(pod, pod_port))
        }
    }
}

/// A number below `limit` from 32 evenly spread bits.
#[inline(always)]
#[must_use]
pub const fn scale(bits: u32, limit: u32) -> u32 {
    ((bits as u64 * limit as u64) >> 32) as u32
}

/// Evenly distributed bits of a pod and its port: a multiplication for the address, then the
/// finaliser of `MurmurHash3`.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the upper half is wanted")]
#[must_use]
pub const fn mix(address: Addr, port: u16) -> u32 {
    let [a, b, c, d] = address.words();
    let mut hash = ((a ^ c) as u64) << 32 | (b ^ d) as u64;
    hash = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ port as u64;
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^= hash >> 33;
    (hash >> 32) as u32 ^ hash as u32
}

/// The block of a port.
#[inline(always)]
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    reason = "a port divided by 512 is below 128"
)]
pub const fn block_of(port: u16) -> u8 {
    (port as u32 / PORTS_PER_BLOCK) as u8
}

/// The port at an index of a block.
#[inline(always)]
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    reason = "a block below 128 and an index below 512 make 16 bits"
)]
pub const fn port_of(block: u8, index: u32) -> u16 {
    (block as u32 * PORTS_PER_BLOCK + index) as u16
}

/// Where a port's bit is in its block: the word, below [`WORDS`], and the bit.
#[inline(always)]
#[must_use]
pub const fn bit_of(port: u16) -> (u32, u64) {
    let index = port as u32 % PORTS_PER_BLOCK;
    (index / u64::BITS, 1 << (index % u64::BITS))
}

/// The lowest bit of a word that is not set; 0 when all are.
#[inline(always)]
#[must_use]
pub const fn free_bit(word: u64) -> u64 {
    !word & word.wrapping_add(1)
}

/// The index in its block of a bit of a word.
#[inline(always)]
#[must_use]
pub const fn index_of(word: u32, bit: u64) -> u32 {
    word * u64::BITS + bit.trailing_zeros()
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::*;

    fn ports(ranges: &[(u16, u16)]) -> Ports {
        let mut slices = [PortSlice::NONE; PortSlice::MAX];
        for (slice, (first, last)) in slices.iter_mut().zip(ranges) {
            *slice = PortSlice::new(*first, *last).unwrap();
        }
        Ports { slices }
    }

    fn several() -> Vec<Ports> {
        vec![
            Ports::DEFAULT,
            ports(&[(1024, 65535)]),
            ports(&[(2048, 2559)]),
            ports(&[(2048, 2559), (40960, 43007), (1024, 1535), (65024, 65535)]),
        ]
    }

    fn pods() -> Vec<Addr> {
        let v4 = (0..40_u32).map(|host| Addr::from_v4_word((0x0a00_0100 + host).to_be()));
        let v6 = (0..40).map(|host: u32| Addr::from_words([0xfd00, 0, 0, host.to_be()]));
        v4.chain(v6).collect()
    }

    #[test]
    fn words_survive_the_round_trip() {
        for ports in several() {
            assert_eq!(Ports::from_words(ports.to_words()), ports);
        }
        assert_eq!(MAX_BLOCKS, 126);
    }

    #[test]
    fn the_reserve_is_the_last_eighth_of_the_blocks() {
        for (ports, blocks) in several().into_iter().zip([6, 15, 0, 0]) {
            let (open, reserve) = (ports.open(), ports.reserve());
            assert_eq!(reserve.blocks(), blocks);
            assert_eq!(open.blocks() + blocks, ports.blocks());
            for port in 0..=u16::MAX {
                let is_of_one = open.contains(port) != reserve.contains(port);
                assert_eq!(is_of_one, ports.contains(port), "{port}");
            }
        }
        assert!(Ports::DEFAULT.reserve().contains(62_464));
        assert!(Ports::DEFAULT.open().contains(62_463));
        let spread = ports(&[(2048, 2559), (40960, 44031), (65024, 65535)]);
        assert_eq!(spread.reserve().blocks(), 1);
        assert_eq!(spread.reserve().block(0), block_of(65_024));
    }

    #[test]
    fn a_share_is_an_endpoints_part_of_the_reserve_and_four_at_least() {
        let share = |endpoints| Ports::DEFAULT.share(endpoints);
        assert_eq!(
            [0, 1, 2, 100, 768, 5000].map(share),
            [3072, 3072, 1536, 30, 4, 4]
        );
    }

    #[test]
    fn all_endpoints_and_one_more_find_their_share() {
        let counts = [0, 1, 127, 128, 250, 255, 256, 700];
        assert_eq!(
            counts.map(|count| Ports::DEFAULT.share(sharers(count))),
            [24, 24, 24, 12, 12, 12, 6, 4]
        );
        for endpoints in 0..767 {
            let all = (endpoints + 1) * usize::from(Ports::DEFAULT.share(sharers(endpoints)));
            assert!(all <= Ports::DEFAULT.reserve().count() as usize);
        }
        assert_eq!(sharers(usize::MAX - 1), usize::MAX);
    }

    #[test]
    fn blocks_and_ports_are_all_of_the_slices_and_nothing_else() {
        for ports in several() {
            let all: Vec<u16> = (0..=u16::MAX)
                .filter(|port| ports.contains(*port))
                .collect();
            assert_eq!(all.len(), ports.count() as usize);
            let mut from_blocks: Vec<u16> = (0..ports.blocks())
                .flat_map(|index| (0..PORTS_PER_BLOCK).map(move |bit| (index, bit)))
                .map(|(index, bit)| port_of(ports.block(index), bit))
                .collect();
            from_blocks.sort_unstable();
            assert_eq!(from_blocks, all);
        }
    }

    #[test]
    fn a_candidate_is_the_own_port_where_it_can_be_and_always_one_of_ours() {
        for ports in several() {
            for pod in pods() {
                for port in 0..=u16::MAX {
                    let candidate = ports.candidate(pod, port, false);
                    assert!(ports.open().contains(candidate), "{pod:?} {port}");
                    assert!(!ports.open().contains(port) || candidate == port);
                    let kept = ports.candidate(pod, port, true);
                    assert_eq!(kept == port, ports.contains(port) || candidate == port);
                }
            }
        }
    }

    #[test]
    fn folded_candidates_are_spread() {
        let ports = Ports::DEFAULT;
        let mut uses = vec![0_u32; 65536];
        for pod in pods() {
            for port in 1024..40960 {
                uses[usize::from(ports.candidate(pod, port, false))] += 1;
            }
        }
        // 80 * 39936 / 21504 = 149 on average, with a standard deviation of 12.2.
        let used = &uses[40960..62464];
        assert!(used.iter().all(|uses| (80..220).contains(uses)));
        assert!(uses[62464..].iter().all(|uses| *uses == 0), "the reserve");
    }

    #[test]
    fn a_port_has_one_bit_and_a_bit_one_port() {
        for port in 0..=u16::MAX {
            let (word, bit) = bit_of(port);
            assert!(word < WORDS);
            assert_eq!(port_of(block_of(port), index_of(word, bit)), port);
        }
    }

    #[test]
    fn free_bits_are_found_until_there_is_none() {
        let mut word = 0;
        for _ in 0..u64::BITS {
            let bit = free_bit(word);
            assert_eq!(bit.count_ones(), 1);
            assert_eq!(word & bit, 0);
            word |= bit;
        }
        assert_eq!(free_bit(word), 0);
        assert_eq!(free_bit(!(1 << 63)), 1 << 63);
        assert_eq!(free_bit(0b1011), 0b100);
    }
}
