//! Entry of one address that the node knows: a pod's, or one of its own.

use crate::masquerade::PoolPolicy;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Owner of an address of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AddressKind {
    /// A pod attachment.
    Endpoint = 1,
    /// The host itself: a packet to it goes to the host's stack.
    Host = 2,
}

/// Further properties of an address; a set.
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
pub struct AddressFlags(u8);

impl AddressFlags {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// A pod's address whose pool is not masqueraded.
    pub const SKIP_MASQUERADE: Self = Self(1);
    /// A host's address that is the translation address of the ENI in the entry.
    pub const SNAT: Self = Self(1 << 1);
    /// A pod's address that no node outside knows: it is masqueraded towards exempt destinations
    /// too.
    pub const ALWAYS_MASQUERADE: Self = Self(1 << 2);
    /// A pod's address whose packets take the host's stack in both directions: foreign
    /// software shapes or inspects them there.
    pub const VIA_STACK: Self = Self(1 << 3);

    /// Both sets together.
    #[inline(always)]
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// True if every flag of `other` is in this set.
    #[inline(always)]
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Value of the `ADDRESSES` map.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct AddressEntry {
    /// An [`AddressKind`].
    kind: u8,
    /// Number of the ENI that owns the address.
    eni: u8,
    /// Bits of [`AddressFlags`].
    flags: AddressFlags,
    reserved: u8,
    /// Host-side device of the endpoint, 0 for an address of the host.
    ifindex: u32,
    /// Device of the owner ENI, 0 while that ENI is not ready.
    eni_ifindex: u32,
    /// Largest packet the endpoint's interface takes, without the Ethernet header, in bytes.
    mtu: u32,
    pod_mac: [u8; 6],
    host_mac: [u8; 6],
    /// One more than the number that the host's namespace has for the endpoint's; 0 if it has none.
    namespace: u32,
}

/// Entry of one endpoint's address as the agent publishes it; see [`AddressEntry::endpoint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointAddress {
    /// Number of the ENI that owns the address.
    pub eni: u8,
    /// Device of that ENI, 0 while it is not ready.
    pub eni_ifindex: u32,
    /// Masquerade policy of its pool.
    pub pool: PoolPolicy,
    /// True if its packets take the host's stack.
    pub via_stack: bool,
    /// Host-side device.
    pub ifindex: u32,
    /// MTU of the endpoint's interface, in bytes.
    pub mtu: u32,
    /// MAC of the pod's interface.
    pub pod_mac: [u8; 6],
    /// MAC of the host-side device.
    pub host_mac: [u8; 6],
    /// The id of the pod's namespace in the host's namespace (`IFLA_LINK_NETNSID`).
    pub namespace: Option<u32>,
}

impl AddressEntry {
    /// An entry for a pod's address.
    #[must_use]
    pub const fn endpoint(of: EndpointAddress) -> Self {
        let pool = match of.pool {
            PoolPolicy::Masquerade => AddressFlags::NONE,
            PoolPolicy::Skip => AddressFlags::SKIP_MASQUERADE,
            PoolPolicy::Always => AddressFlags::ALWAYS_MASQUERADE,
        };
        let path = if of.via_stack {
            AddressFlags::VIA_STACK
        } else {
            AddressFlags::NONE
        };
        Self {
            kind: AddressKind::Endpoint as u8,
            eni: of.eni,
            flags: pool.union(path),
            reserved: 0,
            ifindex: of.ifindex,
            eni_ifindex: of.eni_ifindex,
            mtu: of.mtu,
            pod_mac: of.pod_mac,
            host_mac: of.host_mac,
            namespace: match of.namespace {
                Some(number) => number.wrapping_add(1),
                None => 0,
            },
        }
    }

    /// An entry for an address of the host.
    #[must_use]
    pub const fn host() -> Self {
        Self {
            kind: AddressKind::Host as u8,
            eni: 0,
            flags: AddressFlags::NONE,
            reserved: 0,
            ifindex: 0,
            eni_ifindex: 0,
            mtu: 0,
            pod_mac: [0; 6],
            host_mac: [0; 6],
            namespace: 0,
        }
    }

    /// An entry for an address of the host that is the translation address of an ENI.
    #[must_use]
    pub const fn translation(eni: u8) -> Self {
        Self {
            eni,
            flags: AddressFlags::SNAT,
            ..Self::host()
        }
    }

    /// True if the address is a pod's.
    #[inline(always)]
    #[must_use]
    pub const fn is_endpoint(&self) -> bool {
        self.kind == AddressKind::Endpoint as u8
    }

    /// True if the address is the host's.
    #[inline(always)]
    #[must_use]
    pub const fn is_host(&self) -> bool {
        self.kind == AddressKind::Host as u8
    }

    /// Masquerade policy of the pool of a pod's address.
    #[inline(always)]
    #[must_use]
    pub const fn pool(&self) -> PoolPolicy {
        if self.flags.contains(AddressFlags::SKIP_MASQUERADE) {
            PoolPolicy::Skip
        } else if self.flags.contains(AddressFlags::ALWAYS_MASQUERADE) {
            PoolPolicy::Always
        } else {
            PoolPolicy::Masquerade
        }
    }

    /// True if the packets of a pod's address take the host's stack in both directions.
    #[inline(always)]
    #[must_use]
    pub const fn is_via_stack(&self) -> bool {
        self.flags.contains(AddressFlags::VIA_STACK)
    }

    /// True if the address is the translation address of [`Self::eni`].
    #[inline(always)]
    #[must_use]
    pub const fn is_translation(&self) -> bool {
        self.flags.contains(AddressFlags::SNAT)
    }

    /// Number of the ENI that owns the address.
    #[inline(always)]
    #[must_use]
    pub const fn eni(&self) -> u8 {
        self.eni
    }

    /// Device of the owner ENI, 0 while that ENI is not ready.
    #[inline(always)]
    #[must_use]
    pub const fn eni_ifindex(&self) -> u32 {
        self.eni_ifindex
    }

    /// Host-side device of the endpoint, 0 for an address of the host.
    #[inline(always)]
    #[must_use]
    pub const fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Identity of the endpoint, whatever device it has: it owns its flows by this. Never 0, which
    /// is the host, and never with the highest bit.
    ///
    /// The agent derives both MACs from the endpoint's name, and the identity is taken from the
    /// host side's. A device that is recreated has another index, but the same MAC. The next pod
    /// with the address has neither.
    #[inline(always)]
    #[must_use]
    pub const fn identity(&self) -> u32 {
        let [_, _, a, b, c, d] = self.host_mac;
        let identity = u32::from_be_bytes([a, b, c, d]) & (u32::MAX >> 1);
        if identity == 0 { 1 } else { identity }
    }

    /// MTU of the endpoint's interface, in bytes.
    #[inline(always)]
    #[must_use]
    pub const fn mtu(&self) -> u32 {
        self.mtu
    }

    /// MAC of the pod's interface.
    #[inline(always)]
    #[must_use]
    pub const fn pod_mac(&self) -> &[u8; 6] {
        &self.pod_mac
    }

    /// MAC of the host-side device.
    #[inline(always)]
    #[must_use]
    pub const fn host_mac(&self) -> &[u8; 6] {
        &self.host_mac
    }

    /// One more than the number that the host's namespace has for the endpoint's; 0 if it has none.
    #[inline(always)]
    #[must_use]
    pub const fn namespace(&self) -> u32 {
        self.namespace
    }
}
