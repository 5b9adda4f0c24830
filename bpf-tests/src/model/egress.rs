//! Egress of a pod's packet from the node.

use std::net::IpAddr;

use datapath_common::outcome::{DropReason, Verdict};

use super::parse::{self, FragmentKind, Ip};
use super::policy::{Policy, Unknown, policy, unknown};
use super::rewrite::{self, End, Side};
use super::stack::{Passing, Sender, of_packet_by};
use super::state::{Datagram, FragmentRecord, Inside, New, Outside, of_packet};
use super::transport::{self, Part, Ports, Transport};
use super::world::{Eni, Pod, Pool};
use super::{Decided, Done, Passage, Stop, Way};

/// Origin of a packet that leaves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// From the pod itself.
    Pod,
    /// From the stack, on the device where it leaves.
    Stack,
}

/// A pod's packet that leaves.
struct Leaving<'a> {
    source: &'a Pod,
    owner: &'a Eni,
    policy: Policy,
    /// True if the packet may belong to a translated flow.
    looks_up: bool,
    origin: Origin,
}

/// Verdict for an answer to the outside; a pod that is hidden from the outside gives none.
fn answers_outside(source: &Pod) -> Result<Verdict, DropReason> {
    match source.pool {
        Pool::Masqueraded | Pool::Skips => Ok(Verdict::Inbound),
        Pool::Hidden => Err(DropReason::NoFlow),
    }
}

/// The packet that an ICMP error quotes.
pub(super) struct Quote {
    pub(super) ip: Ip,
    pub(super) ports: Ports,
}

impl Passage<'_> {
    /// Sends a pod's packet out to a destination outside of this node.
    pub(super) fn leave(&mut self, ip: &Ip, source: &Pod, origin: Origin) -> Decided {
        let owner = *self.eni(source.eni)?;
        if origin == Origin::Pod
            && let Some(verdict) = self.exception(ip, owner.mtu)?
        {
            let ours = self.mark_of(source.eni) | self.world.settings.marks.exception;
            return Ok(self.hand_up(ours, verdict));
        }
        let policy = policy(self.world, ip.source, ip.destination);
        let settings = &self.world.settings;
        // The stack has carried the packets that it sends.
        let by_notes = settings.service_nat && origin == Origin::Pod;
        let looks_up = policy != Policy::Keep || settings.lookups.exempt;
        if let Some(reason) = policy.refusal() {
            return Err(reason.into());
        }
        if !looks_up && !settings.service_nat {
            return Ok(self.out(ip, &owner, origin, Verdict::Eni));
        }
        if by_notes && self.is_reordered(ip) {
            return Ok(self.reorder(ip, self.mark_of(source.eni)));
        }
        let leaving = Leaving {
            source,
            owner: &owner,
            policy,
            looks_up,
            origin,
        };
        let (protocol, ports) = match ip.piece {
            FragmentKind::Later => match (self.recorded(ip), policy) {
                (Some(FragmentRecord::Ports(protocol, source, destination)), _) => {
                    (protocol, later(source, destination))
                }
                (Some(FragmentRecord::Portless), _) => {
                    return self.unknown(ip, &owner, unknown(policy, None), origin);
                }
                (_, Policy::Keep) => return Ok(self.out(ip, &owner, origin, Verdict::Eni)),
                _ => return Err(DropReason::FragmentUnknown.into()),
            },
            FragmentKind::Whole | FragmentKind::First => {
                match self.read_ports(ip, by_notes) {
                    Ok(Transport::Ports(ports)) => (ip.protocol, ports),
                    Ok(Transport::Error) => return self.pod_error(ip, &leaving),
                    Ok(Transport::None) => {
                        return self.unknown(ip, &owner, unknown(policy, None), origin);
                    }
                    // It cannot be translated, and needs no other change.
                    Err(_) if policy == Policy::Keep => {
                        return Ok(self.out(ip, &owner, origin, Verdict::Eni));
                    }
                    Err(reason) => return Err(reason.into()),
                }
            }
        };
        self.note(ip, protocol, ports);
        self.with_ports(ip, &leaving, protocol, ports)
    }

    /// Reads a packet's ports. Where flows of the stack are noted, a packet without any is told of.
    fn read_ports(&mut self, ip: &Ip, by_notes: bool) -> Result<Transport, DropReason> {
        let read = transport::read(&self.frame, ip);
        if by_notes && !matches!(read, Ok(Transport::Ports(_))) {
            self.tell_portless(ip);
        }
        read
    }

    /// Decides on a packet of a flow that is known.
    fn of_known(
        &mut self,
        ip: &Ip,
        leaving: &Leaving<'_>,
        inside: Inside,
        flags: u8,
    ) -> Option<Decided> {
        let endpoint = leaving.source.identity();
        let by_notes = self.world.settings.service_nat && leaving.origin == Origin::Pod;
        if leaving.looks_up
            && let Some(flow) = self.state.goes_out(endpoint, &inside, flags)
        {
            let of_stack = self.state.flows.get(&flow).is_some_and(|flow| flow.stack);
            if by_notes && of_stack {
                let owner = self.mark_of(leaving.source.eni);
                return Some(Ok(self.hand_up(owner, Verdict::StackFlow)));
            }
            return Some(self.translated(ip, &flow, leaving.origin));
        }
        if !by_notes {
            return None;
        }
        let flow = self
            .state
            .passes_stack(endpoint, inside, Sender::Pod, flags)?;
        Some(Ok(
            self.hand_up(self.mark_in_stack(flow.eni), Verdict::StackFlow)
        ))
    }

    /// Sends out a packet with ports.
    fn with_ports(
        &mut self,
        ip: &Ip,
        leaving: &Leaving<'_>,
        protocol: u8,
        ports: Ports,
    ) -> Decided {
        let endpoint = leaving.source.identity();
        let inside = of_packet_by(ip, protocol, ports, Sender::Pod);
        let shown = of_packet(protocol, ports.flags);
        if let Some(decided) = self.of_known(ip, leaving, inside, ports.flags) {
            return decided;
        }
        let verdict = if !leaving.looks_up {
            Verdict::Eni
        } else if self.state.shows_inbound(endpoint, inside, shown) {
            answers_outside(leaving.source)?
        } else {
            match unknown(leaving.policy, Some(ports.part)) {
                Unknown::Open(eni) => {
                    let address = self.translation(eni, ip.source)?;
                    let new = New {
                        inside,
                        eni,
                        address,
                        endpoint,
                        flags: ports.flags,
                    };
                    let flow = self.open(ip, &new)?;
                    return self.translated(ip, &flow, leaving.origin);
                }
                Unknown::Inbound(is_noted) => {
                    if is_noted {
                        self.state
                            .note_inbound(self.world, endpoint, inside, shown)?;
                    }
                    Verdict::Inbound
                }
                Unknown::Keep => Verdict::Eni,
                Unknown::Drop(reason) => return Err(reason.into()),
            }
        };
        if self.is_carried(leaving.origin) {
            let passing = Passing {
                inside,
                sender: Sender::Pod,
                flags: ports.flags,
                endpoint,
                eni: Some(leaving.source.eni),
            };
            self.state.note_stack(self.world, passing)?;
        }
        Ok(self.out(ip, leaving.owner, leaving.origin, verdict))
    }

    /// True if the stack has carried a packet as its flow, and not as an exception.
    fn is_carried(&self, origin: Origin) -> bool {
        let settings = &self.world.settings;
        let is_exception = self.packet.mark & settings.marks.exception != 0;
        settings.service_nat && origin == Origin::Stack && !is_exception
    }

    /// Sends out a packet of an unknown flow.
    fn unknown(&mut self, ip: &Ip, owner: &Eni, what: Unknown, origin: Origin) -> Decided {
        match what {
            Unknown::Keep => Ok(self.out(ip, owner, origin, Verdict::Eni)),
            Unknown::Inbound(_) => Ok(self.out(ip, owner, origin, Verdict::Inbound)),
            Unknown::Open(_) => Err(DropReason::NoFlow.into()),
            Unknown::Drop(reason) => Err(reason.into()),
        }
    }

    /// An ICMP error from a pod, about a packet that the pod has received.
    fn pod_error(&mut self, ip: &Ip, leaving: &Leaving<'_>) -> Decided {
        let Leaving {
            source,
            owner,
            policy,
            origin,
            ..
        } = *leaving;
        let quote = match self.quote(ip) {
            Ok(quote) => quote,
            // As for a packet that is itself truncated.
            Err(_) if policy == Policy::Keep => None,
            Err(reason) => return Err(reason.into()),
        };
        if let Some(quote) = quote.filter(|quote| quote.ip.destination == ip.source) {
            let (endpoint, inside) = (source.identity(), received(&quote));
            let flow = self.state.find(endpoint, &inside);
            if let Some(flow) = flow.filter(|_| leaving.looks_up) {
                let address = self.translation(flow.eni, ip.source)?;
                let exit = *self.eni(flow.eni)?;
                let end = End {
                    side: Side::Destination,
                    address,
                    port: flow.port,
                };
                rewrite::translate_quoted(&mut self.frame, ip, &quote.ip, end);
                rewrite::replace_address(&mut self.frame, ip, Side::Source, address);
                return Ok(self.out(ip, &exit, origin, Verdict::Translated));
            }
            let of_stack = self.state.quoted_of_stack(endpoint, &inside);
            if let Some(flow) = of_stack
                && self.world.settings.service_nat
                && origin == Origin::Pod
            {
                return Ok(self.hand_up(self.mark_in_stack(flow.eni), Verdict::StackFlow));
            }
            let inbound = self.state.inbound.get(&inside);
            if leaving.looks_up && inbound.is_some_and(|flow| flow.endpoint == endpoint) {
                let verdict = answers_outside(source)?;
                return Ok(self.out(ip, owner, origin, verdict));
            }
        }
        let what = unknown(policy, Some(Part::Belongs));
        self.unknown(ip, owner, what, origin)
    }

    /// Sends a packet out by its flow.
    fn translated(&mut self, ip: &Ip, flow: &Outside, origin: Origin) -> Decided {
        if self.is_carried(origin)
            && let Some(flow) = self.state.flows.get_mut(flow)
        {
            flow.stack = true;
        }
        let address = self.translation(flow.eni, ip.source)?;
        let exit = *self.eni(flow.eni)?;
        let end = End {
            side: Side::Source,
            address,
            port: flow.port,
        };
        rewrite::translate(&mut self.frame, ip, end);
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

    /// Stores the ports of a datagram's first fragment.
    pub(super) fn note(&mut self, ip: &Ip, protocol: u8, ports: Ports) {
        if ip.piece == FragmentKind::First {
            let recorded = FragmentRecord::Ports(protocol, ports.source, ports.destination);
            self.state.datagrams.insert(datagram(ip), Some(recorded));
        }
    }

    /// Stores the flow that the first fragment of an ICMP error quotes.
    pub(super) fn note_error(&mut self, ip: &Ip, outside: Outside) {
        if ip.piece == FragmentKind::First {
            // The ENI of the flow follows from the datagram's receiver.
            let recorded = FragmentRecord::Error(Outside { eni: 0, ..outside });
            self.state.datagrams.insert(datagram(ip), Some(recorded));
        }
    }

    /// Stored transport of a fragment's datagram.
    pub(super) fn recorded(&self, ip: &Ip) -> Option<FragmentRecord> {
        *self.state.datagrams.get(&datagram(ip))?
    }

    /// The protocol and the ports of the datagram of a later fragment.
    pub(super) fn recall(&self, ip: &Ip) -> Option<(u8, Ports)> {
        match self.recorded(ip)? {
            FragmentRecord::Ports(protocol, source, destination) => {
                Some((protocol, later(source, destination)))
            }
            FragmentRecord::Portless | FragmentRecord::Reordered | FragmentRecord::Error(_) => None,
        }
    }
}

/// The ports of a later fragment.
fn later(source: u16, destination: u16) -> Ports {
    Ports {
        source,
        destination,
        flags: 0,
        part: Part::Belongs,
    }
}

/// The flow of a quoted packet, for its receiver.
pub(super) fn received(quote: &Quote) -> Inside {
    Inside {
        protocol: quote.ip.protocol,
        pod: quote.ip.destination,
        pod_port: quote.ports.destination,
        remote: quote.ip.source,
        remote_port: quote.ports.source,
    }
}

/// The flow of a quoted packet, for its sender.
pub(super) fn sent(quote: &Quote) -> Inside {
    Inside {
        protocol: quote.ip.protocol,
        pod: quote.ip.source,
        pod_port: quote.ports.source,
        remote: quote.ip.destination,
        remote_port: quote.ports.destination,
    }
}

/// The datagram that a fragment belongs to.
pub(super) fn datagram(ip: &Ip) -> Datagram {
    Datagram {
        source: ip.source,
        destination: ip.destination,
        id: ip.id,
        // RFC 8200 section 4.5: later fragments of IPv6 may name another protocol.
        protocol: if ip.version == 4 { ip.protocol } else { 0 },
    }
}
