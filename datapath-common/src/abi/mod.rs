//! Keys and values of the pinned maps.
//!
//! Every type derives zerocopy's `IntoBytes`, which refuses a type with hidden padding; that is
//! what makes handing it to the kernel byte by byte sound.

mod addr;
mod address;
mod destination;
mod eni;

pub use addr::Addr;
pub use address::{AddressEntry, AddressKind, EndpointAddress};
pub use destination::DestinationClass;
pub use eni::EniEntry;

/// Version of the pinned layout. It is part of the pin path, so that an agent with another layout
/// never opens these maps.
pub const VERSION: u32 = 1;

/// Names of the maps in the ELF object and below the pin folder.
pub mod map {
    /// `Addr` -> [`super::AddressEntry`]: every endpoint's and every host address.
    pub const ADDRESSES: &str = "ADDRESSES";
    /// Longest prefix of an `Addr` -> [`super::DestinationClass`]. Its length counts from the first
    /// of the 128 bits, so an IPv4 length is raised by 96.
    pub const DESTINATIONS: &str = "DESTINATIONS";
    /// ENI number -> [`super::EniEntry`].
    pub const ENIS: &str = "ENIS";
    /// Interface index of a secondary ENI's device (`u32`) -> ENI number (`u32`).
    pub const ENI_BY_IFINDEX: &str = "ENI_BY_IFINDEX";
    /// Outcome -> per-CPU [`crate::counter::Counter`].
    pub const COUNTERS: &str = "COUNTERS";
}

/// Capacity of `ADDRESSES`: far above what one node's pods and host addresses come to
/// (Kubernetes recommends 110 pods, EC2's largest instance types allow 737).
pub const MAX_ADDRESSES: u32 = 16_384;
/// Capacity of `DESTINATIONS`: VPC CIDRs, blocks, service CIDRs and load balancer addresses.
pub const MAX_DESTINATIONS: u32 = 16_384;
/// Slots of `ENIS` and capacity of `ENI_BY_IFINDEX`; the mark's field must be able to hold every number plus one.
pub const MAX_ENIS: u32 = 256;
