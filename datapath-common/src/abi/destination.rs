//! Classes of a destination by its longest prefix.

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
    /// A block of this node: its addresses are its endpoints', or unassigned.
    pub const BLOCK: Self = Self(1);
    /// A service address, which the host's service NAT answers for.
    pub const SERVICE: Self = Self(1 << 1);
    /// A CIDR of the VPC.
    pub const VPC: Self = Self(1 << 2);
    /// A native-routing CIDR of the configuration.
    pub const NATIVE: Self = Self(1 << 3);
    /// A CIDR of the ip-masq-agent file, or of its defaults.
    pub const MASQ_AGENT: Self = Self(1 << 4);
    /// Link-local, and not configured to be masqueraded.
    pub const LINK_LOCAL: Self = Self(1 << 5);
    /// The instance metadata service.
    pub const METADATA: Self = Self(1 << 6);
    /// Nothing that a network routes has such an address, and nothing that is more specific says
    /// otherwise: pods' packets to it are dropped, and those from it.
    pub const UNROUTABLE: Self = Self(1 << 7);
    /// The host's own routes lead there, past every ENI and endpoint. Such a prefix has the class
    /// [`Self::SERVICE`] too, which the programs use. This one gives users the reason.
    pub const ROUTED: Self = Self(1 << 8);
    /// The classes of destinations that are never masqueraded.
    pub const EXEMPT: Self =
        Self(Self::VPC.0 | Self::NATIVE.0 | Self::MASQ_AGENT.0 | Self::LINK_LOCAL.0);

    /// Both sets together.
    #[inline(always)]
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// This set without the classes of `other`.
    #[inline(always)]
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// True if every class of `other` is in this set.
    #[inline(always)]
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// True if any class of `other` is in this set.
    #[inline(always)]
    #[must_use]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The set as a number, for display.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }
}
