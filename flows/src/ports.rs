//! A change of our ports, and its effect on existing flows.

use anyhow::Result;
use datapath_common::abi::{Flow, FlowKey, Moved, PodTuple, TransportAddr};
use datapath_common::ports::{Ports, keeps_port};
use ipam::Family;

use super::tables::Tables;

/// Effect of new programs on the flows of earlier ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Renewed {
    /// Flows off their first candidate port, of each of which there is a note now.
    pub moved: u64,
    /// Flows whose port is none of ours any more: replies to them find no flow.
    pub lost: u64,
}

/// Prepares flows that other programs have made for programs with these ports. A packet finds its
/// flow by the flow's first candidate port, which follows from our ports, or by a note. To be
/// called before such programs run. `known` has all ports at which they look for flows.
///
/// # Errors
/// When the kernel refuses.
pub fn renew(tables: &(impl Tables + ?Sized), ports: Ports, known: Ports) -> Result<Renewed> {
    let mut renewed = Renewed::default();
    for family in Family::ALL {
        let mut notes = Vec::new();
        tables.flows(family, &mut |key, flow| {
            let port = u16::from_be(key.port);
            if !known.contains(port) {
                renewed.lost += 1;
            } else if first_port(ports, key, flow) != port {
                let (pod, pod_port) = (flow.pod, flow.pod_port);
                let tuple = PodTuple::new(
                    key.protocol,
                    TransportAddr::new(pod, pod_port),
                    TransportAddr::new(key.remote, key.remote_port),
                );
                notes.push((tuple, Moved::new(key.eni, key.port)));
            }
        })?;
        for (tuple, moved) in &notes {
            tables.note_moved(family, tuple, moved)?;
            renewed.moved += 1;
        }
    }
    Ok(renewed)
}

/// The port at which the programs look up a flow first.
fn first_port(ports: Ports, key: &FlowKey, flow: &Flow) -> u16 {
    let is_kept = keeps_port(key.protocol, flow.endpoint);
    ports.candidate(flow.pod, u16::from_be(flow.pod_port), is_kept)
}

#[cfg(test)]
mod tests {
    use datapath_common::abi::Addr;
    use datapath_common::config::PortSlice;
    use datapath_common::headers::protocol;

    use super::*;
    use crate::model::Model;

    const POD: Addr = Addr::from_v4_word(u32::from_ne_bytes([10, 0, 0, 20]));
    const REMOTE: Addr = Addr::from_v4_word(u32::from_ne_bytes([192, 0, 2, 1]));

    fn ports(first: u16, last: u16) -> Ports {
        let slice = PortSlice::new(first, last).unwrap();
        let none = PortSlice::NONE;
        let words = [slice, none, none, none].map(PortSlice::to_word);
        Ports::from_words(words)
    }

    #[test]
    fn what_is_off_its_first_candidate_is_noted_and_what_is_out_of_range_is_told() {
        let model = Model::new();
        let (old, new) = (Ports::DEFAULT, ports(32_768, 65_535));
        let put = |pod_port: u16, port: u16| {
            let remote_port = 443_u16.to_be();
            let key = FlowKey::new(
                1,
                protocol::TCP,
                TransportAddr::new(REMOTE, remote_port),
                port.to_be(),
            );
            let flow = Flow::new(&key, TransportAddr::new(POD, pod_port.to_be()), 7, 0);
            model.maps().flows.insert(key, flow);
            PodTuple::new(
                protocol::TCP,
                TransportAddr::new(POD, pod_port.to_be()),
                TransportAddr::new(REMOTE, remote_port),
            )
        };
        let folded = old.candidate(POD, 20_000, false);
        assert_ne!(new.candidate(POD, 20_000, false), folded);
        let tuple = put(20_000, folded);
        put(50_000, 50_000);
        let renewed = |ports| renew(&model, ports, ports).unwrap();
        assert_eq!(renewed(old), Renewed::default());
        assert_eq!(renewed(new), Renewed { moved: 1, lost: 0 });
        let notes = model.maps().moved.clone();
        let moved = Moved::new(1, folded.to_be());
        assert_eq!(notes.into_iter().collect::<Vec<_>>(), [(tuple, moved)]);
        let high = renewed(ports(60_928, 65_535));
        assert_eq!(high.moved + high.lost, 2);
        assert!(high.lost >= 1);
        let known = renew(&model, ports(60_928, 65_535), old).unwrap();
        assert_eq!(known, Renewed { moved: 2, lost: 0 });
    }
}
