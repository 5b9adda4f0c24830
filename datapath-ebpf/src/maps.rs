//! The maps. User space is the only writer of all but `COUNTERS`, which only the programs write.

use aya_ebpf::btf_maps::lpm_trie::Key;
use aya_ebpf::btf_maps::{Array, HashMap, LpmTrie, PerCpuArray};
use aya_ebpf::macros::btf_map;
use datapath_common::abi::{
    Addr, AddressEntry, DestinationClass, EniEntry, MAX_ADDRESSES, MAX_DESTINATIONS, MAX_ENIS,
};
use datapath_common::counter::{self, Counter};

/// Every endpoint's and every host address.
#[btf_map]
static ADDRESSES: HashMap<Addr, AddressEntry, { MAX_ADDRESSES as usize }> = HashMap::new();

/// What is known of a destination by its longest prefix.
#[btf_map]
static DESTINATIONS: LpmTrie<Addr, DestinationClass, { MAX_DESTINATIONS as usize }> =
    LpmTrie::new();

/// The ENIs by number.
#[btf_map]
static ENIS: Array<EniEntry, { MAX_ENIS as usize }> = Array::new();

/// The numbers of secondary ENIs by their devices.
#[btf_map]
static ENI_BY_IFINDEX: HashMap<u32, u32, { MAX_ENIS as usize }> = HashMap::new();

/// What became of packets.
#[btf_map]
static COUNTERS: PerCpuArray<Counter, { counter::SLOTS as usize }> = PerCpuArray::new();

/// What the node knows of an address.
#[inline(always)]
pub(crate) fn address(address: Addr) -> Option<&'static AddressEntry> {
    // SAFETY: the entry stays readable while the program runs. When user space deletes it at this
    // very moment its slot may be given to another address; the packet then goes where a packet
    // a few nanoseconds later would have gone, or is dropped by the receiver.
    unsafe { ADDRESSES.get(address) }
}

/// The classes of a destination; none for one that no prefix covers.
#[inline(always)]
pub(crate) fn destination(address: Addr) -> DestinationClass {
    /// The key is packed; written at a known alignment it takes words instead of bytes.
    #[repr(align(8))]
    struct Aligned(Key<Addr>);
    DESTINATIONS
        .get(&Aligned(Key::new(128, address)).0)
        .copied()
        .unwrap_or(DestinationClass::NONE)
}

/// An ENI that is ready.
#[inline(always)]
pub(crate) fn eni(number: u8) -> Option<&'static EniEntry> {
    ENIS.get(u32::from(number))
        .filter(|entry| entry.ifindex() != 0)
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
