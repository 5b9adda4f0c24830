//! What is known of a destination by its longest prefix.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Value of the `DESTINATIONS` trie: a set of classes.
///
/// A trie answers with the longest prefix alone, so user space gives each prefix the classes of
/// every prefix that contains it as well. One look-up then answers all questions about a
/// destination.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[repr(transparent)]
pub struct DestinationClass(u32);

impl DestinationClass {
    /// Nothing is known.
    pub const NONE: Self = Self(0);
    /// A block of this node: its addresses are its endpoints', or nobody's.
    pub const BLOCK: Self = Self(1);
    /// A service address, which the host's service NAT answers for.
    pub const SERVICE: Self = Self(1 << 1);
    /// A CIDR of the VPC.
    pub const VPC: Self = Self(1 << 2);

    /// Both sets together.
    #[inline(always)]
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether every class of `other` is in this set.
    #[inline(always)]
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The set as a number, for display.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }
}
