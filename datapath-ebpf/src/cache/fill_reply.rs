//! Creation of the entry for answers of a translated flow from the flow itself, so that the first
//! packet is served like the next ones. The headers that the cache has read, the flow and the pod
//! have all that is needed.

use datapath_common::abi::{FlowKey, PodTuple, TransportAddr, group_of};
use datapath_common::counter::Program;
use datapath_common::headers::lanes;
use datapath_common::outcome::Verdict;
use datapath_common::progress::tcp;

use super::fill::{self, Translation};
use crate::base::code::Code;
use crate::base::maps;
use crate::nat;
use crate::path::deliver::{self, Arrival};
use crate::path::{record, reply};
use crate::scratch::{self, CacheFill, RedirectTarget, edit, scratch};

/// Makes the entry that waits for a packet, if no other step is needed: 1, or 0 for a packet that
/// takes the slow path.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn cache_answered() -> u32 {
    make().is_some().into()
}

#[inline(always)]
fn make() -> Option<()> {
    let scratch = scratch().ok()?;
    let entry = record::awaited(scratch)?;
    let &CacheFill {
        largest, tcp_flags, ..
    } = scratch::read(scratch.pending());
    if tcp_flags & tcp::FIN != 0 {
        return None;
    }
    let (source, destination) = entry.unchecked_ends()?;
    let address = maps::address(&destination).filter(|entry| entry.is_translation())?;
    let eni = address.eni();
    if !reply::is_by_eni(entry.key.device(), eni) {
        return None;
    }
    let [source_port, destination_port] = lanes(entry.key.ports());
    if !nat::in_range(destination_port) {
        return None;
    }
    let key = FlowKey::new(
        eni,
        entry.protocol(),
        TransportAddr::new(source, source_port),
        destination_port,
    );
    scratch::write(scratch.flow(), key);
    let found = |tuple: &PodTuple| record::rest_on(entry, group_of(tuple));
    let inside = nat::answered(scratch::read(scratch.flow()), tcp_flags, found)?;
    // The host is no endpoint.
    let pod = reply::endpoint(inside).ok()?;
    let is_of_stack = matches!(Arrival::of(inside), Arrival::OfStack);
    if is_of_stack || deliver::is_via_stack(pod) || largest > pod.mtu() {
        return None;
    }
    let translation = Translation {
        edit: edit::DESTINATION,
        to: inside.pod,
        to_port: inside.port,
        eni,
    };
    let counter = Code::from(Verdict::Returned).slot(Program::FromNetwork);
    fill::go(entry, counter, &RedirectTarget::of(pod), tcp_flags);
    fill::translate(entry, &translation, tcp_flags);
    fill::begin(entry, scratch);
    Some(())
}
