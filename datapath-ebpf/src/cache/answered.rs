//! Making the entry of what answers a translated flow from the flow itself, so that the first packet is served
//! as the next ones are: what the cache has seen of it, its flow and its pod are all that there is to know.

use datapath_common::abi::FlowKey;
use datapath_common::counter::Program;
use datapath_common::headers::lanes;
use datapath_common::outcome::Verdict;

use super::entry::{Entry, edit};
use super::keep::{self, Target, Translation};
use super::seen::Seen;
use super::slot;
use crate::answer;
use crate::deliver;
use crate::maps;
use crate::nat;
use crate::verdict::Code;
use crate::work::{self, work};

/// Whether the entry that waits for a packet is made. If not, the packet is to be looked at.
#[inline(always)]
pub(super) fn is_made(program: Program, seen: &Seen) -> bool {
    matches!(program, Program::FromNetwork)
        && cache_answered(seen.hash, seen.tcp_flags.into(), seen.largest as u64) != 0
}

/// 1, or 0.
#[unsafe(no_mangle)]
#[inline(never)]
#[expect(clippy::cast_possible_truncation, reason = "`is_made` gives a byte")]
extern "C" fn cache_answered(hash: u32, tcp_flags: u32, largest: u64) -> u32 {
    let Some(entry) = slot(hash) else {
        return 0;
    };
    // SAFETY: the slot is this CPU's own, and no program of ours interrupts another one.
    let entry = unsafe { &mut *entry };
    make(entry, tcp_flags as u8, largest).is_some().into()
}

#[inline(always)]
fn make(entry: &mut Entry, tcp_flags: u8, largest: u64) -> Option<()> {
    let (source, destination) = entry.ends();
    let address = maps::address(destination).filter(|entry| entry.is_translation())?;
    let eni = address.eni();
    if !answer::is_by_eni(entry.key.device(), eni) {
        return None;
    }
    let [source_port, destination_port] = lanes(entry.key.ports());
    if !nat::in_range(destination_port) {
        return None;
    }
    let work = work().ok()?;
    let key = FlowKey::new(eni, entry.protocol(), source, source_port, destination_port);
    work::write(work.flow(), key);
    let inside = nat::answered(work::read(work.flow()), tcp_flags)?;
    if inside.is_host() || inside.stack {
        return None;
    }
    let pod = answer::endpoint(inside).ok()?;
    if deliver::is_via_stack(pod) || largest > u64::from(pod.mtu()) {
        return None;
    }
    let translation = Translation {
        edit: edit::DESTINATION,
        from: destination,
        to: inside.pod,
        to_port: inside.port,
        eni,
    };
    let counter = Code::from(Verdict::Returned).slot(Program::FromNetwork);
    keep::go(entry, counter, &Target::of(pod), tcp_flags);
    keep::translate(entry, &translation, tcp_flags);
    keep::begin(entry, work);
    Some(())
}
