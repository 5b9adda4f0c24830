//! The maps. User space is the only writer of addresses, destinations and ENIs. The programs are
//! the only writers of counters, and of the state of flows except for flow marks.

use aya_ebpf::bindings::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC};
use aya_ebpf::btf_maps::LruHashMap;
use aya_ebpf::btf_maps::lpm_trie::Key;
use aya_ebpf::btf_maps::{Array, HashMap, LpmTrie, PerCpuArray};
use aya_ebpf::macros::btf_map;
use datapath_common::abi::{
    Addr, AddressEntry, DEFAULT_CACHE, DEFAULT_FLOWS_V4, DEFAULT_FLOWS_V6, DEFAULT_INBOUND,
    DEFAULT_STACK, Datagram, DatagramKey, DestinationClass, EniEntry, Flow, FlowKey, FragmentRing,
    GatewayEntry, LinkLocalKey, LinkLocals, MAX_ADDRESSES, MAX_DESTINATIONS, MAX_ENIS,
    MAX_FRAGMENT_RINGS, MAX_FRAGMENTS, MAX_LINK_LOCALS, MAX_PORT_BLOCKS, MAX_QUOTA, MAX_SHARES,
    Moved, NatControl, PodTuple, PortBlock, PortBlockKey, Quota, Room, SHARED_TABLES, ShareKey,
    TrackedFlow,
};
use datapath_common::counter::{self, Counter};

use crate::scratch::{Entry, PortClaim};

/// Every endpoint's and every host address.
#[btf_map]
static ADDRESSES: HashMap<Addr, AddressEntry, { MAX_ADDRESSES as usize }> = HashMap::new();

/// Facts about a destination by its longest prefix.
#[btf_map]
static DESTINATIONS: LpmTrie<Addr, DestinationClass, { MAX_DESTINATIONS as usize }> =
    LpmTrie::new();

/// The ENIs by number.
#[btf_map]
static ENIS: Array<EniEntry, { MAX_ENIS as usize }> = Array::new();

/// The MACs of their gateways.
#[btf_map]
static GATEWAYS: Array<GatewayEntry, { (MAX_ENIS * GatewayEntry::SLOTS) as usize }> = Array::new();

/// The numbers of secondary ENIs by their devices.
#[btf_map]
static ENI_BY_IFINDEX: HashMap<u32, u32, { MAX_ENIS as usize }> = HashMap::new();

/// The outcome of packets.
#[btf_map]
static COUNTERS: PerCpuArray<Counter, { counter::SLOTS as usize }> = PerCpuArray::new();

/// Memory for an entry is taken when it is made.
const NO_PREALLOC: usize = BPF_F_NO_PREALLOC as usize;

/// Translated flows by what their answers carry.
pub(crate) type Flows<const CAPACITY: usize> = HashMap<FlowKey, Flow, CAPACITY, NO_PREALLOC>;
/// Flows off their first candidate port, as the pod sees them.
pub(crate) type MovedFlows<const CAPACITY: usize> = HashMap<PodTuple, Moved, CAPACITY, NO_PREALLOC>;

/// Translated IPv4 flows.
#[btf_map]
pub(crate) static FLOWS_V4: Flows<{ DEFAULT_FLOWS_V4 as usize }> = HashMap::new();

/// Translated IPv6 flows.
#[btf_map]
pub(crate) static FLOWS_V6: Flows<{ DEFAULT_FLOWS_V6 as usize }> = HashMap::new();

/// IPv4 flows off their first candidate port.
#[btf_map]
pub(crate) static MOVED_V4: MovedFlows<{ DEFAULT_FLOWS_V4 as usize }> = HashMap::new();

/// IPv6 flows off their first candidate port.
#[btf_map]
pub(crate) static MOVED_V6: MovedFlows<{ DEFAULT_FLOWS_V6 as usize }> = HashMap::new();

/// Likely used ports of busy destinations.
#[btf_map]
pub(crate) static PORT_BLOCKS: HashMap<
    PortBlockKey,
    PortBlock,
    { MAX_PORT_BLOCKS as usize },
    NO_PREALLOC,
> = HashMap::new();

/// Translated flows of each endpoint.
#[btf_map]
pub(crate) static QUOTA: HashMap<u32, Quota, { MAX_QUOTA as usize }, NO_PREALLOC> = HashMap::new();

/// Ports that endpoints have of the reserve of a destination.
#[btf_map]
pub(crate) static SHARES: HashMap<ShareKey, Quota, { MAX_SHARES as usize }, NO_PREALLOC> =
    HashMap::new();

/// Room of the tables that endpoints share.
#[btf_map]
pub(crate) static ROOM: Array<Room, { SHARED_TABLES as usize }> = Array::new();

/// Entries of these tables that each CPU may add before it counts them.
#[btf_map]
pub(crate) static CREDIT: PerCpuArray<u64, { SHARED_TABLES as usize }> = PerCpuArray::new();

/// Flows that an endpoint may have beyond its quota, by shared table. Written by user space.
#[btf_map]
pub(crate) static LEND: Array<u32, { SHARED_TABLES as usize }> = Array::new();

/// Flows opened from the outside.
#[btf_map]
pub(crate) static INBOUND: HashMap<
    PodTuple,
    TrackedFlow,
    { DEFAULT_INBOUND as usize },
    NO_PREALLOC,
> = HashMap::new();

/// Flows that take the host's stack both ways.
#[btf_map]
pub(crate) static STACK: HashMap<PodTuple, TrackedFlow, { DEFAULT_STACK as usize }, NO_PREALLOC> =
    HashMap::new();

/// Fragmented datagrams.
#[btf_map]
pub(crate) static FRAGMENTS: LruHashMap<DatagramKey, Datagram, { MAX_FRAGMENTS as usize }> =
    LruHashMap::new();

/// The datagrams of each endpoint that have a record.
#[btf_map]
pub(crate) static FRAGMENT_RINGS: LruHashMap<u32, FragmentRing, { MAX_FRAGMENT_RINGS as usize }> =
    LruHashMap::new();

/// Link-local addresses that endpoints use.
#[btf_map]
pub(crate) static LINK_LOCALS: LruHashMap<LinkLocalKey, LinkLocals, { MAX_LINK_LOCALS as usize }> =
    LruHashMap::new();

/// Each CPU's memory for the flow that it is opening.
#[btf_map]
pub(crate) static ATTEMPT: PerCpuArray<PortClaim, 1> = PerCpuArray::new();

/// Memory that begins with a page, so that an entry lies in two lines of the processor's caches.
const IN_PAGES: usize = BPF_F_MMAPABLE as usize;

/// The entries of the flow cache of all CPUs, one CPU's after another's. In a per-CPU array the
/// kernel would first look up the address of the entry. That would be one more cache line, which
/// the next access has to wait for.
#[btf_map]
static CACHE: Array<Entry, { DEFAULT_CACHE as usize }, IN_PAGES> = Array::new();

/// Settings that user space publishes for translation as a whole.
#[btf_map]
pub(crate) static NAT_CONTROL: Array<NatControl, 1> = Array::new();

/// Counters of translation.
#[btf_map]
pub(crate) static NAT_STATS: PerCpuArray<u64, { counter::NAT_STAT_SLOTS as usize }> =
    PerCpuArray::new();

/// Entry of an address that the node knows.
#[inline(always)]
pub(crate) fn address(address: &Addr) -> Option<&'static AddressEntry> {
    // SAFETY: the entry stays readable while the program runs. When user space deletes it at this
    // very moment its slot may be given to another address; the packet then goes where a packet
    // a few nanoseconds later would have gone, or is dropped by the receiver.
    unsafe { ADDRESSES.get(address) }
}

/// The classes of a destination; none for one that no prefix covers.
#[inline(always)]
pub(crate) fn destination(address: &Addr) -> DestinationClass {
    /// Wrapper of a packed key, whose address follows four bytes. With these four bytes before the
    /// key, the address is aligned and written in two words.
    #[repr(C, align(8))]
    struct Aligned(u32, Key<Addr>);
    let key = Aligned(0, Key::new(128, *address));
    DESTINATIONS
        .get(&key.1)
        .copied()
        .unwrap_or(DestinationClass::NONE)
}

/// An ENI that is ready.
#[inline(always)]
pub(crate) fn eni(number: u8) -> Option<&'static EniEntry> {
    ENIS.get(u32::from(number))
        .filter(|entry| entry.ifindex() != 0)
}

/// Facts about the gateway of an ENI.
#[inline(always)]
pub(crate) fn gateway(eni: u8, is_v4: bool) -> Option<&'static GatewayEntry> {
    GATEWAYS.get(GatewayEntry::slot(eni, is_v4))
}

/// The number of the secondary ENI whose device this is.
#[inline(always)]
pub(crate) fn secondary_eni(ifindex: u32) -> Option<u8> {
    // SAFETY: as for `address`; a packet of a device that goes away is lost in any case.
    let number = unsafe { ENI_BY_IFINDEX.get(ifindex) }?;
    u8::try_from(*number).ok()
}

/// This CPU's counter in a slot.
#[inline(always)]
pub(crate) fn counter(slot: u32) -> Option<*mut Counter> {
    COUNTERS.get_ptr_mut(slot)
}

/// Entry of the flow cache in a slot.
#[inline(always)]
pub(crate) fn cache_entry(slot: u32) -> Option<*mut Entry> {
    CACHE.get_ptr_mut(slot)
}
