//! An IP address of either family as a map key.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, transmute};

/// An IPv4 or IPv6 address in 16 bytes, IPv4 in the v4-mapped form of RFC 4291 section 2.5.5.2.
///
/// One form for both families lets one map and one piece of code serve them. The two halves have
/// the bytes in network order on any host, so a program copies and compares as many as it can at a
/// time.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[repr(C)]
pub struct Addr([u64; 2]);

/// A transport address: one end of a flow. Its port lies as in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportAddr {
    /// The IP address.
    pub address: Addr,
    /// The port, or the id of an ICMP query.
    pub port: u16,
}

impl TransportAddr {
    /// An address with a port.
    #[inline(always)]
    #[must_use]
    pub const fn new(address: Addr, port: u16) -> Self {
        Self { address, port }
    }
}

impl Addr {
    /// The unspecified IPv6 address, `::`.
    pub const UNSPECIFIED: Self = Self([0; 2]);

    /// The third word of a v4-mapped address, `::ffff:0:0/96`, as it lies in memory.
    const V4_MAPPED: u32 = 0x0000_ffff_u32.to_be();

    /// An IPv4 address from the word as it lies in the packet.
    #[inline(always)]
    #[must_use]
    pub const fn from_v4_word(word: u32) -> Self {
        Self([0, transmute!([Self::V4_MAPPED, word])])
    }

    /// An IPv6 address from its halves as they lie in the packet.
    #[inline(always)]
    #[must_use]
    pub const fn from_v6_halves(halves: [u64; 2]) -> Self {
        Self(halves)
    }

    /// An address from the result of [`Self::words`], or an IPv6 address from its words in the
    /// packet.
    #[inline(always)]
    #[must_use]
    pub const fn from_words(words: [u32; 4]) -> Self {
        Self(transmute!(words))
    }

    /// The words as they lie in a packet; an IPv4 address is the last one.
    #[inline(always)]
    #[must_use]
    pub const fn words(self) -> [u32; 4] {
        transmute!(self.0)
    }

    /// The words combined in one. This is exact for IPv4, of which three words are constant. Two
    /// IPv6 addresses agree in it by chance, once in 2^32.
    #[inline(always)]
    #[must_use]
    pub const fn fold(self) -> u32 {
        let [first, second] = self.0;
        let [one, other]: [u32; 2] = transmute!(first ^ second);
        one ^ other
    }

    /// True if this is an IPv4 address.
    #[inline(always)]
    #[must_use]
    pub const fn is_v4(self) -> bool {
        let [first, second] = self.0;
        let [mapped, _]: [u32; 2] = transmute!(second);
        first == 0 && mapped == Self::V4_MAPPED
    }

    /// True if this is a multicast address, or the limited broadcast address of IPv4.
    #[inline(always)]
    #[must_use]
    pub const fn is_multicast_or_broadcast(self) -> bool {
        let [first, _, _, last] = self.words();
        if self.is_v4() {
            let highest = u32::from_be(last) >> 24;
            // RFC 5771: 224.0.0.0/4; RFC 919: 255.255.255.255.
            (highest & 0xf0) == 0xe0 || last == u32::MAX
        } else {
            u32::from_be(first) >> 24 == 0xff
        }
    }

    /// True if this is an IPv6 link-local address, `fe80::/10` (RFC 4291 section 2.5.6).
    #[inline(always)]
    #[must_use]
    pub const fn is_v6_link_local(self) -> bool {
        let [first, ..] = self.words();
        u32::from_be(first) >> 22 == 0xfe80 >> 6
    }

    /// True if this may be an address of [`DestinationClass::UNROUTABLE`]; most others are not.
    ///
    /// [`DestinationClass::UNROUTABLE`]: super::DestinationClass::UNROUTABLE
    #[inline(always)]
    #[must_use]
    pub const fn may_be_unroutable(self) -> bool {
        let [first, _, _, last] = self.words();
        if self.is_v4() {
            let highest = u32::from_be(last) >> 24;
            matches!(highest, 0 | 127 | 192 | 240..=255)
        } else {
            let highest = u32::from_be(first) >> 16;
            matches!(highest, 0 | 0x100 | 0xfec0..=0xfeff)
        }
    }

    /// True if this is `::`.
    #[inline(always)]
    #[must_use]
    pub const fn is_unspecified(self) -> bool {
        let [first, second] = self.0;
        first | second == 0
    }
}
