//! What the stack sends to a pod.

use datapath_common::outcome::Verdict;

use super::parse::Piece;
use super::stack::{Sender, of_packet_by};
use super::transport::{self, Transport};
use super::world::Address;
use super::{Decided, Passage, Way, is_link_local};

/// Nothing is to be noted of it.
const TO_POD: Decided = Ok((Verdict::ToPod, Way::Pass));

impl Passage<'_> {
    /// What came from elsewhere is of a flow of the stack, and what netfilter made look so.
    pub(super) fn stack_delivers(&mut self) -> Decided {
        let settings = &self.world.settings;
        let (mark, marks) = (self.packet.mark, settings.marks);
        if !settings.service_nat || mark & marks.exception != 0 {
            return TO_POD;
        }
        let Some(Ok(ip)) = self.version().map(|version| self.parse(version)) else {
            return TO_POD;
        };
        // The host's own: nobody received it, nobody marked it, and netfilter left its source alone.
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
        // The pod has asked a service, and asks it again: that takes the stack in any case.
        if self.world.classes(ip.source).service || ip.piece == Piece::Later {
            return TO_POD;
        }
        let Ok(Transport::Ports(ports)) = transport::read(&self.frame, &ip) else {
            return TO_POD;
        };
        let inside = of_packet_by(&ip, ip.protocol, ports, Sender::Remote);
        let device = self.packet.ingress_ifindex;
        let whose = (pod.identity(), self.world.eni_of_device(device));
        self.state
            .note_stack(self.world, (inside, ports.flags), Sender::Remote, whose)?;
        Ok((Verdict::Noted, Way::Pass))
    }
}
