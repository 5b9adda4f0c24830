//! Our ports, as the programs were loaded with them.

use crate::fault;
use aya_ebpf::Global;
use datapath_common::abi::Addr;
use datapath_common::config::PortSlice;
use datapath_common::fault::Fault;
use datapath_common::ports::Ports;

#[unsafe(no_mangle)]
static PORT_SLICES: Global<[u32; PortSlice::MAX]> = Global::new(Ports::DEFAULT.to_words());

#[unsafe(no_mangle)]
static KNOWN_SLICES: Global<[u32; PortSlice::MAX]> = Global::new(Ports::DEFAULT.to_words());

#[inline(always)]
fn all() -> Ports {
    Ports::from_words(PORT_SLICES.load())
}

/// True if a port, as it lies in a packet, may be one of a flow.
#[inline(always)]
pub(crate) fn in_range(port: u16) -> bool {
    let port = u16::from_be(port);
    let known = Ports::from_words(KNOWN_SLICES.load());
    known.contains(port.wrapping_add(u16::from(fault::has(Fault::LastPort))))
}

/// The port that a flow gets if it is free, as it lies in a packet.
#[inline(always)]
pub(super) fn candidate(pod: Addr, pod_port: u16) -> u16 {
    all().candidate(pod, u16::from_be(pod_port)).to_be()
}

/// The port that evenly spread bits choose, as it lies in a packet.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the function gives a port")]
pub(super) fn spread(bits: u32) -> u16 {
    nat_spread(bits) as u16
}

/// The number of blocks of ports: at least one, which the configuration sees to.
#[inline(always)]
pub(super) fn blocks() -> u32 {
    nat_blocks()
}

/// The number of a block by its index.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the function gives a byte")]
pub(super) fn block(index: u32) -> u8 {
    nat_block(index) as u8
}

// Global functions, which the verifier looks at once: a search calls them in each of its rounds.

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nat_spread(bits: u32) -> u32 {
    all().spread(bits).to_be().into()
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nat_blocks() -> u32 {
    all().blocks().max(1)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nat_block(index: u32) -> u32 {
    all().block(index).into()
}
