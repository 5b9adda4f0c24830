//! Telling a flow what a cached segment shows of its connection.

use datapath_common::abi::{Addr, FlowKey, PodTuple, TransportAddr};
use datapath_common::counter::Program;
use datapath_common::headers::lanes;
use datapath_common::progress::tcp;

use super::plain::FastPacket;
use crate::base::maps::cache_entry;
use crate::nat::{self, Direction};
use crate::scratch::{Entry, edit};

/// True if the flow has been updated by a segment whose entry is valid. If not, the segment takes
/// the slow path.
#[inline(always)]
pub(super) fn is_told(program: Program, seen: &FastPacket) -> bool {
    let is_from_outside = matches!(program, Program::FromNetwork);
    cache_tell(seen.slot, seen.tcp_flags.into(), is_from_outside.into()) != 0
}

/// 1, or 0.
#[unsafe(no_mangle)]
#[inline(never)]
#[expect(clippy::cast_possible_truncation, reason = "`is_told` gives a byte")]
extern "C" fn cache_tell(slot: u32, tcp_flags: u32, is_from_outside: u32) -> u32 {
    let Some(entry) = cache_entry(slot) else {
        return 0;
    };
    // SAFETY: the slot is this CPU's own, and no program of ours interrupts another one.
    let entry = unsafe { &mut *entry };
    let tcp_flags = tcp_flags as u8;
    // The sequence number of a segment from the outside that ends a connection has to be checked.
    let is_doubtful = tcp_flags & tcp::FIN != 0 && is_from_outside != 0;
    let is_told = tcp_flags & tcp::SYN == 0
        && !is_doubtful
        && tell(entry, tcp_flags, is_from_outside).is_some();
    if is_told {
        entry.watched &= !tcp_flags;
    }
    is_told.into()
}

#[inline(always)]
fn tell(entry: &Entry, tcp_flags: u8, is_from_outside: u32) -> Option<()> {
    let (source, destination) = entry.ends();
    let [source_port, destination_port] = lanes(entry.key.ports());
    let protocol = entry.protocol();
    let (side, pod, remote, port) = match entry.edit {
        edit::SOURCE => (
            Direction::FromPod,
            (source, source_port),
            (destination, destination_port),
            entry.to_port,
        ),
        edit::DESTINATION => (
            Direction::ToPod,
            (Addr::from_words(entry.to), entry.to_port),
            (source, source_port),
            destination_port,
        ),
        // Untranslated packets of a pod are noted nowhere; those to its own address may be.
        _ => return (is_from_outside == 0).then_some(()),
    };
    let key = FlowKey::new(
        entry.eni,
        protocol,
        TransportAddr::new(remote.0, remote.1),
        port,
    );
    let tuple = PodTuple::new(
        protocol,
        TransportAddr::new(pod.0, pod.1),
        TransportAddr::new(remote.0, remote.1),
    );
    nat::tell(&key, &tuple, side, tcp_flags).then_some(())
}
