//! Our ports, as the programs were loaded with them.

pub(super) mod blocks;
mod fill;
pub(super) mod share;

use aya_ebpf::Global;
use datapath_common::abi::Addr;
use datapath_common::config::PortSlice;
use datapath_common::ports::{Ports, mix};

#[unsafe(no_mangle)]
static OPEN_SLICES: Global<[u32; PortSlice::MAX]> = Global::new(Ports::DEFAULT.open().to_words());

#[unsafe(no_mangle)]
static RESERVE_SLICES: Global<[u32; PortSlice::MAX]> =
    Global::new(Ports::DEFAULT.reserve().to_words());

#[unsafe(no_mangle)]
static KNOWN_SLICES: Global<[u32; PortSlice::MAX]> = Global::new(Ports::DEFAULT.to_words());

/// The ports that any flow may get.
#[inline(always)]
fn open() -> Ports {
    Ports::from_words(OPEN_SLICES.load())
}

/// The ports of which each endpoint gets a share.
#[inline(always)]
fn reserve() -> Ports {
    Ports::from_words(RESERVE_SLICES.load())
}

/// True if there is a reserve.
#[inline(always)]
pub(super) fn has_reserve() -> bool {
    reserve().blocks() != 0
}

/// True if a port, as it lies in a packet, is of the reserve.
#[inline(always)]
pub(super) fn in_reserve(port: u16) -> bool {
    reserve().contains(u16::from_be(port))
}

/// True if a port, as it lies in a packet, may be one of a flow.
#[inline(always)]
pub(crate) fn in_range(port: u16) -> bool {
    let port = u16::from_be(port);
    let known = Ports::from_words(KNOWN_SLICES.load());
    known.contains(port)
}

/// The port that a flow gets if it is free, as it lies in a packet ([`Ports::candidate`]).
#[inline(always)]
pub(super) fn candidate(pod: Addr, pod_port: u16, is_kept: bool) -> u16 {
    let port = u16::from_be(pod_port);
    if open().contains(port) || (is_kept && reserve().contains(port)) {
        pod_port
    } else {
        spread(mix(pod, port))
    }
}

/// The port that evenly spread bits choose, as it lies in a packet.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the function gives a port")]
pub(super) fn spread(bits: u32) -> u16 {
    nat_spread(bits) as u16
}

/// The number of blocks of open ports or of the reserve: at least one, which the configuration and
/// [`has_reserve`] see to.
#[inline(always)]
pub(super) fn block_count(in_reserve: bool) -> u32 {
    nat_blocks(in_reserve.into())
}

/// The number of a block by its index.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the function gives a byte")]
pub(super) fn block(in_reserve: bool, index: u32) -> u8 {
    nat_block(in_reserve.into(), index) as u8
}

// Global functions, which the verifier checks once: a search calls them in each of its rounds.

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nat_spread(bits: u32) -> u32 {
    open().spread(bits).to_be().into()
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nat_blocks(in_reserve: u32) -> u32 {
    let ports = if in_reserve == 0 { open() } else { reserve() };
    ports.blocks().max(1)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nat_block(in_reserve: u32, index: u32) -> u32 {
    let ports = if in_reserve == 0 { open() } else { reserve() };
    ports.block(index).into()
}
