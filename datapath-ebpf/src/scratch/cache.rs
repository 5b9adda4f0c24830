//! Entries of the flow cache, and the outcome that becomes one.

/// A next hop in the helper's format: the address family, and an address, of which IPv4 uses the
/// first word. The helper reads all words.
pub(crate) type NextHop = [u32; 5];

/// The current packet on the slow path, if its outcome may be cached.
pub(crate) struct CacheFill {
    /// Not 0 if it may; its entry then has its key and stamp.
    pub(crate) is_wanted: u32,
    pub(crate) slot: u32,
    pub(crate) now: u64,
    /// The largest IP packet that goes on the wire for it, in bytes.
    pub(crate) largest: u32,
    pub(crate) tcp_flags: u8,
    /// Largest packet that the owner ENI takes, in bytes, if the packet leaves the node.
    pub(crate) limit: u32,
    /// The ENI of the flow that the packet is translated by.
    pub(crate) eni: u8,
    /// Not 0 if it is of the flow that the slot had before.
    pub(crate) is_known: u8,
}

/// Where a packet was redirected to.
pub(crate) struct RedirectTarget {
    pub(crate) exit: u8,
    /// True if the pool of the endpoint that the packet is for skips masquerade.
    pub(crate) skips_masquerade: bool,
    pub(crate) device: u32,
    pub(crate) mtu: u32,
    pub(crate) hop: NextHop,
}

/// The outcome of the packets of one direction of a flow.
#[repr(C)]
pub(crate) struct Entry {
    pub(crate) key: Key,
    pub(crate) stamp: Stamp,
    /// The jiffy from which on it is not good any more.
    pub(crate) until: u64,
    /// The protocol, and bits of [`FAMILY`].
    pub(crate) kind: u32,
    /// Slot of the counter.
    pub(crate) counter: u16,
    /// MTU of the device without the Ethernet header, in bytes.
    ///
    /// No IP packet is longer than the largest number.
    pub(crate) mtu: u16,
    /// The device that the packet is redirected to.
    pub(crate) device: u32,
    pub(crate) exit: u8,
    pub(crate) edit: u8,
    /// As it lies in a packet.
    pub(crate) to_port: u16,
    /// The address to write.
    pub(crate) to: [u32; 4],
    /// By how much that makes checksums grow.
    pub(crate) growth: u32,
    /// By how much it does together with the TTL.
    pub(crate) header_growth: u16,
    /// TCP flags with which a segment is not served before the flow has been updated. Without FIN,
    /// this side has ended the connection.
    pub(crate) watched: u8,
    /// The ENI of the flow that a translation is of.
    pub(crate) eni: u8,
    /// Group of the last packet that competed for the slot: two flows of a slot are rarely of the
    /// same group.
    pub(crate) candidate: u32,
    /// The gateway, or both MACs as they lie in a frame if those are known.
    pub(crate) hop: NextHop,
}

const _: () = assert!(size_of::<Entry>() <= 128);

/// Fields that all packets of an entry have in common.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Key {
    /// As they lie in a packet: source and destination, of IPv4 both in the last word.
    pub(crate) addresses: [u64; 4],
    /// The device, and source and destination port as they lie in a packet.
    pub(crate) place: u64,
}

/// When the entry was made, as its changes count.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Stamp {
    pub(crate) epoch: u64,
    pub(crate) generation: u32,
    /// The group of the flow.
    pub(crate) group: u32,
}

/// Bits of [`Entry::kind`].
pub(crate) const FAMILY: u32 = 0x300;
/// Of IPv4.
pub(crate) const FAMILY_V4: u32 = 0x100;
/// Of IPv6.
pub(crate) const FAMILY_V6: u32 = 0x200;

/// Values of [`Entry::exit`].
pub(crate) mod exit {
    /// Into the namespace of an endpoint.
    pub(crate) const PEER: u8 = 1;
    /// To a gateway whose MAC the kernel is to find.
    pub(crate) const GATEWAY: u8 = 2;
    /// To one whose MAC is known.
    pub(crate) const FRAME: u8 = 3;
}

/// Values of [`Entry::edit`].
pub(crate) mod edit {
    /// The packet is not translated.
    pub(crate) const NONE: u8 = 0;
    /// Its source is.
    pub(crate) const SOURCE: u8 = 1;
    /// Its destination is.
    pub(crate) const DESTINATION: u8 = 2;
}
