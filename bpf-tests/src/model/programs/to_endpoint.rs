//! Packets that the stack sends to a pod.

use datapath_common::outcome::Verdict;

use crate::model::parse::FragmentKind;
use crate::model::stack::{Passing, Sender, of_packet_by};
use crate::model::transport::{self, Transport};
use crate::model::world::Address;
use crate::model::{Decided, Passage, Way, is_link_local};

/// No flow is stored for the packet.
const TO_POD: Decided = Ok((Verdict::ToPod, Way::Pass));

impl Passage<'_> {
    /// Handles a packet that the stack sends to a pod: unless it is the host's own, its flow takes
    /// the stack.
    pub(in crate::model) fn stack_delivers(&mut self) -> Decided {
        let settings = &self.world.settings;
        let (mark, marks) = (self.packet.mark, settings.marks);
        if !settings.service_nat || mark & marks.exception != 0 {
            return TO_POD;
        }
        let Some(Ok(ip)) = self.version().map(|version| self.parse(version)) else {
            return TO_POD;
        };
        // A packet of the host: no device received it, it has no mark, and netfilter left its
        // source alone.
        let is_hosts = self.packet.ingress_ifindex == 0 && mark & marks.mask == 0;
        let source = self.world.addresses.get(&ip.source);
        let is_own = matches!(source, Some(Address::Host { .. })) || is_link_local(ip.source);
        if is_hosts && is_own {
            return Ok((Verdict::FromHost, Way::Pass));
        }
        let pod = self.world.pod(ip.destination);
        let Some(pod) = pod.filter(|pod| pod.ifindex == self.packet.ifindex) else {
            return TO_POD;
        };
        // It is an answer of a service, and the pod's packets to services take the stack in any
        // case.
        if self.world.classes(ip.source).service || ip.piece == FragmentKind::Later {
            return TO_POD;
        }
        let Ok(Transport::Ports(ports)) = transport::read(&self.frame, &ip) else {
            return TO_POD;
        };
        let inside = of_packet_by(&ip, ip.protocol, ports, Sender::Remote);
        let device = self.packet.ingress_ifindex;
        let passing = Passing {
            inside,
            sender: Sender::Remote,
            flags: ports.flags,
            endpoint: pod.identity(),
            eni: self.world.eni_of_device(device),
        };
        self.state.note_stack(self.world, passing)?;
        Ok((Verdict::Noted, Way::Pass))
    }
}
