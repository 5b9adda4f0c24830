//! How a pod's packet leaves the node.

use std::net::IpAddr;

use datapath_common::outcome::{DropReason, Verdict};

use super::parse::{self, Ip, Piece};
use super::policy::{Policy, Unknown, policy, unknown};
use super::rewrite::{self, Side};
use super::state::{Datagram, Inside, New, Outside, of_packet};
use super::transport::{self, Part, Ports, Transport};
use super::world::{Eni, Pod};
use super::{Decided, Done, Passage, Stop, Way};

/// From where a packet comes that leaves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// From the pod itself.
    Pod,
    /// From the stack, on the device where it leaves.
    Stack,
}

/// The packet that an ICMP error quotes.
pub(super) struct Quote {
    pub(super) ip: Ip,
    pub(super) ports: Ports,
}

impl Passage<'_> {
    /// Sends a pod's packet out to something that is none of this node.
    pub(super) fn leave(&mut self, ip: &Ip, source: &Pod, origin: Origin) -> Decided {
        let owner = *self.eni(source.eni)?;
        if origin == Origin::Pod
            && let Some(verdict) = self.exception(ip, owner.mtu)?
        {
            let ours = self.mark_of(source.eni) | self.world.settings.marks.exception;
            return Ok(self.hand_up(ours, verdict));
        }
        let policy = policy(self.world, ip.source, ip.destination);
        match policy {
            Policy::Block => return Err(DropReason::MetadataBlocked.into()),
            Policy::Keep if !self.world.settings.may_be_exempt => {
                return Ok(self.out(ip, &owner, origin, Verdict::Eni));
            }
            Policy::Keep | Policy::Translate(_) => {}
        }
        let (protocol, ports) = match ip.piece {
            Piece::Later => match self.recall(ip) {
                Some(noted) => noted,
                None if policy == Policy::Keep => {
                    return Ok(self.out(ip, &owner, origin, Verdict::Eni));
                }
                None => return Err(DropReason::FragmentUnknown.into()),
            },
            Piece::Whole | Piece::First => match transport::read(&self.frame, ip) {
                Ok(Transport::Ports(ports)) => (ip.protocol, ports),
                Ok(Transport::Error) => {
                    return self.pod_error(ip, source, &owner, policy, origin);
                }
                Ok(Transport::None) => {
                    return self.unknown(ip, &owner, unknown(policy, None), origin);
                }
                // Nothing can be translated of it, and nothing else is to be done to it.
                Err(_) if policy == Policy::Keep => {
                    return Ok(self.out(ip, &owner, origin, Verdict::Eni));
                }
                Err(reason) => return Err(reason.into()),
            },
        };
        if ip.piece == Piece::First {
            self.note(ip, ports);
        }
        let inside = Inside {
            protocol,
            pod: ip.source,
            pod_port: ports.source,
            remote: ip.destination,
            remote_port: ports.destination,
        };
        if let Some(flow) = self.state.goes_out(source.identity(), &inside, ports.flags) {
            return self.translated(ip, &flow, origin);
        }
        let shown = of_packet(protocol, ports.flags);
        if self.state.shows_inbound(source.identity(), inside, shown) {
            return Ok(self.out(ip, &owner, origin, Verdict::Inbound));
        }
        match unknown(policy, Some(ports.part)) {
            Unknown::Open(eni) => {
                let address = self.translation(eni, ip.source)?;
                let new = New {
                    inside,
                    eni,
                    address,
                    endpoint: source.identity(),
                    flags: ports.flags,
                };
                let flow = self.open(ip, &new)?;
                self.translated(ip, &flow, origin)
            }
            Unknown::Inbound(true) => {
                let endpoint = source.identity();
                self.state
                    .note_inbound(self.world, endpoint, inside, shown)?;
                Ok(self.out(ip, &owner, origin, Verdict::Inbound))
            }
            other => self.unknown(ip, &owner, other, origin),
        }
    }

    /// Sends out a packet of no flow.
    fn unknown(&mut self, ip: &Ip, owner: &Eni, what: Unknown, origin: Origin) -> Decided {
        match what {
            Unknown::Keep => Ok(self.out(ip, owner, origin, Verdict::Eni)),
            Unknown::Inbound(_) => Ok(self.out(ip, owner, origin, Verdict::Inbound)),
            Unknown::Open(_) => Err(DropReason::NoFlow.into()),
            Unknown::Drop(reason) => Err(reason.into()),
        }
    }

    /// An ICMP error of a pod, about a packet that it has received.
    fn pod_error(
        &mut self,
        ip: &Ip,
        source: &Pod,
        owner: &Eni,
        policy: Policy,
        origin: Origin,
    ) -> Decided {
        let quote = match self.quote(ip) {
            Ok(quote) => quote,
            // As for a packet that is cut itself.
            Err(_) if policy == Policy::Keep => None,
            Err(reason) => return Err(reason.into()),
        };
        if let Some(quote) = quote.filter(|quote| quote.ip.destination == ip.source) {
            let inside = received(&quote);
            if let Some(flow) = self.state.find(source.identity(), &inside) {
                let address = self.translation(flow.eni, ip.source)?;
                let exit = *self.eni(flow.eni)?;
                let inner = (Side::Destination, address, flow.port);
                let outer = Some((Side::Source, address));
                rewrite::translate_error(&mut self.frame, ip, &quote.ip, inner, outer);
                return Ok(self.out(ip, &exit, origin, Verdict::Translated));
            }
            let inbound = self.state.inbound.get(&inside);
            if inbound.is_some_and(|flow| flow.endpoint == source.identity()) {
                return Ok(self.out(ip, owner, origin, Verdict::Inbound));
            }
        }
        let what = unknown(policy, Some(Part::Belongs));
        self.unknown(ip, owner, what, origin)
    }

    /// Sends a packet out as its flow says.
    fn translated(&mut self, ip: &Ip, flow: &Outside, origin: Origin) -> Decided {
        let address = self.translation(flow.eni, ip.source)?;
        let exit = *self.eni(flow.eni)?;
        rewrite::translate(&mut self.frame, ip, Side::Source, address, flow.port);
        Ok(self.out(ip, &exit, origin, Verdict::Translated))
    }

    /// Sends a packet out of an ENI.
    fn out(&mut self, ip: &Ip, eni: &Eni, origin: Origin, verdict: Verdict) -> Done {
        match origin {
            Origin::Stack if eni.ifindex == self.packet.ifindex => {
                let verdict = match verdict {
                    Verdict::Translated => Verdict::CarriedTranslated,
                    _ => Verdict::Carried,
                };
                return (verdict, Way::Pass);
            }
            Origin::Stack => {}
            Origin::Pod => rewrite::lower_ttl(&mut self.frame, ip),
        }
        self.set_mark(self.world.settings.marks.done);
        (verdict, Way::Redirect)
    }

    /// An ENI that is ready.
    pub(super) fn eni(&self, number: u8) -> Result<&Eni, DropReason> {
        self.world.enis.get(&number).ok_or(DropReason::EniNotReady)
    }

    /// The translation address of an ENI, of the family of `like`.
    pub(super) fn translation(&self, eni: u8, like: IpAddr) -> Result<IpAddr, DropReason> {
        self.eni(eni)?
            .of(like)
            .translation
            .ok_or(DropReason::NoTranslationAddress)
    }

    /// Opens a flow.
    pub(super) fn open(&mut self, ip: &Ip, new: &New) -> Result<Outside, Stop> {
        let chosen = self.chosen(ip);
        match self.state.open(self.world, new, chosen) {
            Ok(Ok(outside)) => Ok(outside),
            Ok(Err(reason)) => Err(Stop::Drop(reason)),
            Err(what) => Err(Stop::Illegal(what)),
        }
    }

    /// The packet that an ICMP error quotes; `None` where it has no ports.
    pub(super) fn quote(&self, ip: &Ip) -> Result<Option<Quote>, DropReason> {
        let inner = parse::quoted(&self.frame, ip.transport + 8, ip.end, ip.version)?;
        let ports = transport::quoted(&self.frame, &inner)?;
        Ok(ports.map(|ports| Quote { ip: inner, ports }))
    }

    /// Notes the ports of a datagram's first fragment.
    pub(super) fn note(&mut self, ip: &Ip, ports: Ports) {
        let key = datagram(ip);
        let noted = Some((ip.protocol, ports.source, ports.destination));
        self.state.datagrams.insert(key, noted);
    }

    /// The protocol and the ports of the datagram of a later fragment.
    pub(super) fn recall(&self, ip: &Ip) -> Option<(u8, Ports)> {
        let key = datagram(ip);
        let (protocol, source, destination) = (*self.state.datagrams.get(&key)?)?;
        let ports = Ports {
            source,
            destination,
            flags: 0,
            part: Part::Belongs,
        };
        Some((protocol, ports))
    }
}

/// The flow of a quoted packet, for who received that packet.
pub(super) fn received(quote: &Quote) -> Inside {
    Inside {
        protocol: quote.ip.protocol,
        pod: quote.ip.destination,
        pod_port: quote.ports.destination,
        remote: quote.ip.source,
        remote_port: quote.ports.source,
    }
}

/// The datagram that a fragment belongs to.
fn datagram(ip: &Ip) -> Datagram {
    Datagram {
        source: ip.source,
        destination: ip.destination,
        id: ip.id,
        // RFC 8200 section 4.5: later fragments of IPv6 may name another one.
        protocol: if ip.version == 4 { ip.protocol } else { 0 },
    }
}
