//! A line per packet, compiled in with the `debug-log` feature only: it costs more than all the
//! rest of a program.

use datapath_common::counter::Program;

use crate::packet::Packet;

/// Writes what became of a packet.
#[cfg(feature = "debug-log")]
#[inline(always)]
pub(crate) fn outcome(program: Program, packet: &Packet, code: u32) {
    aya_log_ebpf::debug!(
        packet.context(),
        "program {} device {} length {} outcome {}",
        program as u8,
        packet.ifindex(),
        packet.length(),
        code
    );
}

/// Nothing is written without the feature.
#[cfg(not(feature = "debug-log"))]
#[inline(always)]
pub(crate) fn outcome(_program: Program, _packet: &Packet, _code: u32) {}
