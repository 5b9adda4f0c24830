//! A line per packet, compiled in with the `debug-log` feature only: it costs more than all the
//! rest of a program.

#[cfg(feature = "debug-log")]
use aya_ebpf::{bindings::__sk_buff, programs::TcContext};
use datapath_common::counter::Program;

use crate::packet::Packet;

/// Writes what became of a packet.
#[cfg(feature = "debug-log")]
#[inline(always)]
pub(crate) fn outcome(program: Program, packet: &Packet, code: u32) {
    let _done = log_outcome(packet.skb(), program as u32, code);
}

/// 0. A function, since a program has no stack left for it.
#[cfg(feature = "debug-log")]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn log_outcome(skb: *mut __sk_buff, program: u32, code: u32) -> u32 {
    let packet = Packet::new(TcContext::new(skb));
    aya_log_ebpf::debug!(
        packet.context(),
        "program {} device {} length {} outcome {}",
        program,
        packet.ifindex(),
        packet.length(),
        code
    );
    0
}

/// Nothing is written without the feature.
#[cfg(not(feature = "debug-log"))]
#[inline(always)]
pub(crate) fn outcome(_program: Program, _packet: &Packet, _code: u32) {}
