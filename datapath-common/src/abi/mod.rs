//! Keys and values of the pinned maps.
//!
//! Every type derives zerocopy's `IntoBytes`, which refuses a type with hidden padding; that is
//! what makes handing it to the kernel byte by byte sound.

mod addr;
mod address;
mod cache;
mod datagram;
mod destination;
mod eni;
mod flow;
mod gateway;
mod link_local;
mod reap;
mod room;
mod tracked_flow;

pub use addr::{Addr, TransportAddr};
pub use address::{AddressEntry, AddressFlags, AddressKind, EndpointAddress};
pub use cache::{
    CACHE_GROUPS, CacheControl, DEFAULT_CACHE, GROUP_COUNTED, GROUP_NOTE, cache_digest, cache_hash,
    cache_slot, given_up, group, group_of, may_be_noted,
};
pub use datagram::ring::FragmentRing;
pub use datagram::{Datagram, DatagramKey};
pub use destination::DestinationClass;
pub use eni::{EniAddresses, EniEntry};
pub use flow::{
    Flow, FlowKey, Moved, NatControl, PORTS_PER_BLOCK, PodTuple, PortBlock, PortBlockKey,
    bpf_spin_lock,
};
pub use gateway::GatewayEntry;
pub use link_local::{LinkLocalKey, LinkLocals};
pub use reap::{REAP_BATCH, ReapFlow, ReapHeader, ReapKind, ReapNote};
pub use room::quota::{FlowQuotas, HOST, Quota, endpoint_of_quota, inbound_quota};
pub use room::share::ShareKey;
pub use room::{Room, SHARED_TABLES, SharedTable};
pub use tracked_flow::TrackedFlow;

/// Version of the pinned layout. It is part of the pin path, so that an agent with another layout
/// never opens these maps.
pub const VERSION: u32 = 8;

/// Names of the maps in the ELF object and below the pin folder.
pub mod map {
    /// `Addr` -> [`super::AddressEntry`]: every endpoint's and every host address.
    pub const ADDRESSES: &str = "ADDRESSES";
    /// Longest prefix of an `Addr` -> [`super::DestinationClass`]. Its length counts from the first
    /// of the 128 bits, so an IPv4 length is raised by 96.
    pub const DESTINATIONS: &str = "DESTINATIONS";
    /// ENI number -> [`super::EniEntry`].
    pub const ENIS: &str = "ENIS";
    /// [`super::GatewayEntry::slot`] -> [`super::GatewayEntry`]: the gateways' MACs.
    pub const GATEWAYS: &str = "GATEWAYS";
    /// Interface index of a secondary ENI's device (`u32`) -> ENI number (`u32`).
    pub const ENI_BY_IFINDEX: &str = "ENI_BY_IFINDEX";
    /// Outcome -> per-CPU [`crate::counter::Counter`].
    pub const COUNTERS: &str = "COUNTERS";
    /// [`super::FlowKey`] -> [`super::Flow`]: translated IPv4 flows.
    pub const FLOWS_V4: &str = "FLOWS_V4";
    /// [`super::FlowKey`] -> [`super::Flow`]: translated IPv6 flows.
    pub const FLOWS_V6: &str = "FLOWS_V6";
    /// [`super::PodTuple`] -> [`super::Moved`]: IPv4 flows off their first candidate port.
    pub const MOVED_V4: &str = "MOVED_V4";
    /// [`super::PodTuple`] -> [`super::Moved`]: IPv6 flows off their first candidate port.
    pub const MOVED_V6: &str = "MOVED_V6";
    /// [`super::PortBlockKey`] -> [`super::PortBlock`]: likely used ports of busy destinations.
    pub const PORT_BLOCKS: &str = "PORT_BLOCKS";
    /// Identity of an endpoint (`u32`, 0 for the host), or [`super::inbound_quota`] of it ->
    /// [`super::Quota`].
    pub const QUOTA: &str = "QUOTA";
    /// [`super::ShareKey`] -> [`super::Quota`]: ports that endpoints have of the reserve of a
    /// destination, and entries of the reserve of a table.
    pub const SHARES: &str = "SHARES";
    /// [`super::SharedTable`] -> [`super::Room`]. User space writes it, and the programs count.
    pub const ROOM: &str = "ROOM";
    /// [`super::SharedTable`] -> per-CPU `u64`: entries that a CPU may add before it counts each.
    /// User space writes it, and the programs spend.
    pub const CREDIT: &str = "CREDIT";
    /// [`super::SharedTable`] -> `u32`: flows that an endpoint may have beyond its quota. Written by
    /// user space.
    pub const LEND: &str = "LEND";
    /// [`super::PodTuple`] -> [`super::TrackedFlow`]: flows opened from the outside.
    pub const INBOUND: &str = "INBOUND";
    /// [`super::PodTuple`] -> [`super::TrackedFlow`]: flows by the host's stack in both directions.
    pub const STACK: &str = "STACK";
    /// [`super::DatagramKey`] -> [`super::Datagram`]: fragmented datagrams.
    pub const FRAGMENTS: &str = "FRAGMENTS";
    /// [`super::FragmentRing::sent`] or [`super::FragmentRing::received`] of an endpoint ->
    /// [`super::FragmentRing`]: the datagrams that have a record. Every load of the programs has
    /// its own.
    pub const FRAGMENT_RINGS: &str = "FRAGMENT_RINGS";
    /// [`super::LinkLocalKey`] -> [`super::LinkLocals`]: link-local addresses that endpoints use.
    /// Every load of the programs has its own.
    pub const LINK_LOCALS: &str = "LINK_LOCALS";
    /// One slot, [`super::NatControl`]. Written by user space.
    pub const NAT_CONTROL: &str = "NAT_CONTROL";
    /// [`crate::counter::NatStat`] or [`crate::counter::nat_at_once_slot`] -> per-CPU `u64`.
    pub const NAT_STATS: &str = "NAT_STATS";
    /// One slot, [`super::CacheControl`]. Written by user space.
    pub const CACHE_CONTROL: &str = "CACHE_CONTROL";
    /// The words (`u64`) of [`super::CACHE_GROUPS`] groups of flows. The programs add to them. User
    /// space writes them to enable the counts of flow marks, and to disable them.
    pub const CACHE_EPOCHS: &str = "CACHE_EPOCHS";
    /// Cache of recent decisions: the entries of one CPU after another's. Each load of the programs
    /// has its own map.
    pub const CACHE: &str = "CACHE";
    /// The maps that are pinned: all that outlive the agent.
    pub const PINNED: [&str; 23] = [
        ADDRESSES,
        DESTINATIONS,
        ENIS,
        GATEWAYS,
        ENI_BY_IFINDEX,
        COUNTERS,
        FLOWS_V4,
        FLOWS_V6,
        MOVED_V4,
        MOVED_V6,
        PORT_BLOCKS,
        QUOTA,
        SHARES,
        ROOM,
        CREDIT,
        LEND,
        INBOUND,
        STACK,
        FRAGMENTS,
        NAT_CONTROL,
        NAT_STATS,
        CACHE_CONTROL,
        CACHE_EPOCHS,
    ];
}

/// Capacity of `ADDRESSES`: far above the pods' and host's addresses of one node (Kubernetes
/// recommends 110 pods, EC2's largest instance types allow 737).
pub const MAX_ADDRESSES: u32 = 16_384;
/// Capacity of `DESTINATIONS`: VPC CIDRs, blocks, service CIDRs and load balancer addresses.
pub const MAX_DESTINATIONS: u32 = 16_384;
/// Slots of `ENIS` and capacity of `ENI_BY_IFINDEX`; the mark's field must be able to hold every number plus one.
pub const MAX_ENIS: u32 = 256;

/// Default capacity of `FLOWS_V4` and `MOVED_V4`; a setting.
pub const DEFAULT_FLOWS_V4: u32 = 262_144;
/// Default capacity of `FLOWS_V6` and `MOVED_V6`; a setting.
pub const DEFAULT_FLOWS_V6: u32 = 65_536;
/// Default capacity of `INBOUND`; a setting.
pub const DEFAULT_INBOUND: u32 = 65_536;
/// Capacity of `STACK` if the kernel's limit of tracked connections is unknown: the kernel's
/// default for a machine with 4 GiB or more (`nf_conntrack_init_start` in
/// `net/netfilter/nf_conntrack_core.c`).
pub const DEFAULT_STACK: u32 = 262_144;
/// Capacity of `PORT_BLOCKS`: 340 destinations that use every port of the default slice. Where it
/// is full, allocation goes on by chance alone.
pub const MAX_PORT_BLOCKS: u32 = 16_384;
/// Capacity of `QUOTA`: as many endpoints as addresses, with two kinds of flows each.
pub const MAX_QUOTA: u32 = 2 * MAX_ADDRESSES;
/// Capacity of `SHARES`: a full table of IPv4 flows has room for the open ports of twelve destinations, and
/// this for a thousand endpoints at each of them.
pub const MAX_SHARES: u32 = 16_384;
/// Capacity of `FRAGMENTS`, whose oldest entries are evicted. Cilium's default
/// (`bpf-fragments-map-max`).
pub const MAX_FRAGMENTS: u32 = 8_192;
/// Capacity of `FRAGMENT_RINGS`, whose oldest entries are evicted: both directions of 256
/// endpoints, the most that a node is likely to have.
pub const MAX_FRAGMENT_RINGS: u32 = 512;
/// Capacity of `LINK_LOCALS`, whose oldest entries are evicted: two for each endpoint of a node
/// with many more than EC2's largest instance types allow.
pub const MAX_LINK_LOCALS: u32 = 4_096;
