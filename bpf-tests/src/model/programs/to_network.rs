//! Packets that the stack sends out of an ENI.

use datapath_common::outcome::{DropReason, Verdict};

use crate::model::egress::{Origin, received};
use crate::model::parse::{FragmentKind, Ip};
use crate::model::policy::is_translated;
use crate::model::rewrite::{self, End, Side};
use crate::model::stack::{Sender, of_packet_by};
use crate::model::state::{New, Outside};
use crate::model::transport::{self, Part, Ports, Transport};
use crate::model::world::Address;
use crate::model::{Decided, Passage, Stop, Way, is_group};

/// A packet of the host, which passes unchanged.
const FROM_HOST: Decided = Ok((Verdict::FromHost, Way::Pass));

impl Passage<'_> {
    pub(in crate::model) fn stack_sends(&mut self) -> Decided {
        let Some(Ok(ip)) = self.version().map(|version| self.parse(version)) else {
            return FROM_HOST;
        };
        if is_group(ip.destination) {
            return FROM_HOST;
        }
        let source = self.world.addresses.get(&ip.source).copied();
        let is_own = self.packet.ingress_ifindex == 0
            && self.packet.mark & self.world.settings.marks.mask == 0;
        match source {
            Some(Address::Pod(pod)) if !is_own => {
                if self.world.classes(ip.destination).service {
                    return Err(DropReason::ServiceNotTranslated.into());
                }
                self.leave(&ip, &pod, Origin::Stack)
            }
            Some(Address::Pod(_)) => self.host(&ip, None),
            Some(Address::Host { translation_of }) => {
                let decided = self.host(&ip, translation_of)?;
                let owner = translation_of.and_then(|eni| self.world.enis.get(&eni));
                match owner {
                    Some(owner) if owner.ifindex != self.packet.ifindex => {
                        self.set_mark(self.world.settings.marks.done);
                        Ok((Verdict::HostMoved, Way::Redirect))
                    }
                    Some(_) | None => Ok(decided),
                }
            }
            None if is_own => self.host(&ip, None),
            None if self.is_sent_back(&ip) => Err(DropReason::ForeignSource.into()),
            None => FROM_HOST,
        }
    }

    /// True if a marked packet leaves by the device that received it, or is a fragment of which no
    /// device is known.
    fn is_sent_back(&self, ip: &Ip) -> bool {
        let device = self.packet.ingress_ifindex;
        let is_same =
            device == self.packet.ifindex || (device == 0 && ip.piece != FragmentKind::Whole);
        is_same && self.packet.mark & self.world.settings.marks.mask != 0
    }

    /// A packet of the host. Its source is the translation address of `eni`, or another address.
    fn host(&mut self, ip: &Ip, eni: Option<u8>) -> Decided {
        let ports = match ip.piece {
            FragmentKind::Later => self.recall(ip),
            FragmentKind::Whole | FragmentKind::First => match transport::read(&self.frame, ip) {
                Ok(Transport::Ports(ports)) => Some((ip.protocol, ports)),
                Ok(Transport::Error) => return self.host_error(ip),
                Ok(Transport::None) | Err(_) => None,
            },
        };
        let is_ours = |ports: &Ports| self.world.settings.has_port(ports.source);
        // Where pods have no flows, the host's ports collide with none.
        let eni = eni.filter(|_| {
            self.world.settings.lookups.exempt || is_translated(self.world, ip.destination)
        });
        match (ports.filter(|(_, ports)| is_ours(ports)), eni) {
            (Some((protocol, ports)), Some(eni)) => self.claim(ip, eni, protocol, ports),
            _ => FROM_HOST,
        }
    }

    /// The host sends from a port for translation.
    fn claim(&mut self, ip: &Ip, eni: u8, protocol: u8, ports: Ports) -> Decided {
        self.note(ip, protocol, ports);
        let inside = of_packet_by(ip, protocol, ports, Sender::Pod);
        let flow = match self.state.goes_out(0, &inside, ports.flags) {
            Some(flow) => flow,
            None if ports.part != Part::Opens => return FROM_HOST,
            None => {
                let new = New {
                    inside,
                    eni,
                    address: ip.source,
                    endpoint: 0,
                    flags: ports.flags,
                };
                let own = Outside {
                    eni,
                    protocol,
                    remote: ip.destination,
                    remote_port: ports.destination,
                    port: ports.source,
                };
                match self.open(ip, &new) {
                    // The host keeps a port that no flow has, even if its own flow does not fit.
                    Err(Stop::Drop(_)) if self.state.quoted(&own).is_none() => return FROM_HOST,
                    opened => opened?,
                }
            }
        };
        if flow.port == ports.source {
            return Ok((Verdict::HostClaimed, Way::Pass));
        }
        let end = End {
            side: Side::Source,
            address: ip.source,
            port: flow.port,
        };
        rewrite::translate(&mut self.frame, ip, end);
        Ok((Verdict::HostTranslated, Way::Pass))
    }

    /// An ICMP error of the host about a translated packet for a pod.
    fn host_error(&mut self, ip: &Ip) -> Decided {
        let Ok(Some(quote)) = self.quote(ip) else {
            return FROM_HOST;
        };
        let Some(pod) = self.world.pod(quote.ip.destination) else {
            return FROM_HOST;
        };
        if self.eni(pod.eni).is_err() {
            return FROM_HOST;
        }
        let Some(flow) = self.state.find(pod.identity(), &received(&quote)) else {
            return FROM_HOST;
        };
        let address = self.translation(flow.eni, ip.source).map_err(Stop::Drop)?;
        let end = End {
            side: Side::Destination,
            address,
            port: flow.port,
        };
        rewrite::translate_quoted(&mut self.frame, ip, &quote.ip, end);
        Ok((Verdict::HostTranslated, Way::Pass))
    }
}
