//! Packets that an ENI receives.

use datapath_common::outcome::{DropReason, Verdict};

use crate::model::parse::{FragmentKind, Ip, TCP};
use crate::model::policy::{PRIMARY, Policy, policy};
use crate::model::rewrite::{self, End, Side};
use crate::model::stack::{Path, Sender, of_packet_by};
use crate::model::state::{Flow, FragmentRecord, Outside, of_packet};
use crate::model::transport::{self, FIN, Part, Ports, RST, SYN, Transport};
use crate::model::wire::byte;
use crate::model::world::{Address, Pod, Pool};
use crate::model::{Decided, Done, Passage, Way, is_group, is_link_local};

impl Passage<'_> {
    pub(in crate::model) fn eni_receives(&mut self) -> Decided {
        let own = self.world.macs.get(&self.packet.ifindex);
        let is_for_host = own.is_some_and(|mac| self.frame.starts_with(mac));
        let Some(version) = self.version().filter(|_| is_for_host) else {
            return Ok((Verdict::ForeignFrame, Way::Pass));
        };
        let ip = self.parse(version)?;
        if is_group(ip.destination) {
            return Ok(self.up(Verdict::Multicast));
        }
        if is_link_local(ip.destination) {
            return Ok(self.up(Verdict::NotForPod));
        }
        match self.world.addresses.get(&ip.destination).copied() {
            Some(Address::Pod(pod)) => self.for_pod(&ip, &pod),
            Some(Address::Host {
                translation_of: Some(eni),
            }) => self.answer(&ip, eni),
            None if self.world.classes(ip.destination).block => Err(DropReason::NoEndpoint.into()),
            Some(Address::Host { .. }) | None => Ok(self.up(Verdict::NotForPod)),
        }
    }

    /// A packet to a pod's own address.
    fn for_pod(&mut self, ip: &Ip, pod: &Pod) -> Decided {
        if pod.eni_ifindex == 0 {
            return Err(DropReason::EniNotReady.into());
        }
        if pod.eni_ifindex != self.packet.ifindex {
            return Err(DropReason::WrongEni.into());
        }
        if is_group(ip.source) || self.world.classes(ip.source).unroutable {
            return Err(DropReason::UnroutableSource.into());
        }
        let ours = self.ingress_mark(pod.eni);
        match self.path(ip, pod, Sender::Remote) {
            Path::Direct => {}
            Path::Stack(_) => return Ok(self.hand_up(ours, Verdict::StackFlow)),
            Path::Reordered => {
                self.note_opened(ip, pod)?;
                return Ok(self.reorder(ip, ours));
            }
        }
        self.note_opened(ip, pod)?;
        self.inward(ip, pod, pod.eni, Verdict::Local)
    }

    /// Stores a flow from the outside if the pod's answers would be translated. A TCP flow is
    /// stored when the pod accepts it.
    fn note_opened(&mut self, ip: &Ip, pod: &Pod) -> Result<(), DropReason> {
        let answers = policy(self.world, ip.destination, ip.source);
        let may_open = matches!(answers, Policy::Translate(_))
            && self.world.settings.masquerades(ip.source)
            && pod.pool == Pool::Masqueraded;
        if !may_open {
            return Ok(());
        }
        if ip.protocol == TCP {
            self.note_segment(ip, pod);
            return Ok(());
        }
        if ip.piece == FragmentKind::Later {
            return Ok(());
        }
        let Ok(Transport::Ports(ports)) = transport::read(&self.frame, ip) else {
            return Ok(());
        };
        if ports.part != Part::Opens {
            return Ok(());
        }
        let inside = of_packet_by(ip, ip.protocol, ports, Sender::Remote);
        self.state
            .note_inbound(self.world, pod.identity(), inside, 0)
    }

    /// Adds the bits of a segment that the pod need not answer.
    fn note_segment(&mut self, ip: &Ip, pod: &Pod) {
        let Ok(Transport::Ports(ports)) = transport::read(&self.frame, ip) else {
            return;
        };
        let words = byte(&self.frame, ip.transport + 12).map_or(0, |byte| byte >> 4);
        let is_bare = ip.transport + usize::from(words) * 4 >= ip.end;
        let ends = ports.flags & (FIN | RST) != 0;
        if ip.piece != FragmentKind::Whole || ports.flags & SYN != 0 || !(is_bare || ends) {
            return;
        }
        let inside = of_packet_by(ip, TCP, ports, Sender::Remote);
        let shown = of_packet(TCP, ports.flags);
        self.state.sees_inbound(pod.identity(), inside, shown);
    }

    fn inward(&mut self, ip: &Ip, pod: &Pod, eni: u8, verdict: Verdict) -> Decided {
        if self.takes_stack(pod) {
            self.set_mark(self.ingress_mark(eni));
            let verdict = match verdict {
                Verdict::Local => Verdict::Stack,
                _ => Verdict::StackReturned,
            };
            return Ok((verdict, Way::Pass));
        }
        if verdict == Verdict::StackFlowReturned {
            let ours = self.ingress_mark(eni);
            return Ok(self.hand_up(ours, verdict));
        }
        if let Some(exception) = self.exception(ip, pod.mtu)? {
            self.set_mark(self.ingress_mark(eni) | self.world.settings.marks.exception);
            return Ok((exception, Way::Pass));
        }
        self.deliver(ip, pod);
        Ok((verdict, Way::Redirect))
    }

    /// A packet to the translation address of an ENI: the answer to a flow, or one for the host.
    fn answer(&mut self, ip: &Ip, eni: u8) -> Decided {
        if self.world.eni_of_device(self.packet.ifindex) != Some(eni) {
            return Ok(self.up(Verdict::NotForPod));
        }
        let ports = match ip.piece {
            FragmentKind::Later => match self.recorded(ip) {
                Some(FragmentRecord::Error(outside)) => {
                    return self.rest_of_error(ip, Outside { eni, ..outside });
                }
                _ => self.recall(ip),
            },
            FragmentKind::Whole | FragmentKind::First => match transport::read(&self.frame, ip) {
                Ok(Transport::Ports(ports)) => Some((ip.protocol, ports)),
                Ok(Transport::Error) => return self.error_in(ip, eni),
                Ok(Transport::None) | Err(_) => None,
            },
        };
        let is_ours = |ports: &Ports| self.world.settings.has_port(ports.destination);
        let Some((protocol, ports)) = ports.filter(|(_, ports)| is_ours(ports)) else {
            return Ok(self.up(Verdict::NotForPod));
        };
        let outside = Outside {
            eni,
            protocol,
            remote: ip.source,
            remote_port: ports.source,
            port: ports.destination,
        };
        let Some(flow) = self.state.comes_in(&outside, ports.flags) else {
            return Ok(self.up(Verdict::NotForPod));
        };
        self.note(ip, protocol, ports);
        if flow.endpoint == 0 {
            if flow.pod_port != outside.port {
                let end = End {
                    side: Side::Destination,
                    address: ip.destination,
                    port: flow.pod_port,
                };
                rewrite::translate(&mut self.frame, ip, end);
            }
            return Ok(self.up(Verdict::HostReturned));
        }
        let pod = self.endpoint(&flow)?;
        let end = End {
            side: Side::Destination,
            address: flow.pod,
            port: flow.pod_port,
        };
        rewrite::translate(&mut self.frame, ip, end);
        self.inward(ip, &pod, eni, self.returned(&flow))
    }

    /// An ICMP error about a packet that left with the translation address.
    fn error_in(&mut self, ip: &Ip, eni: u8) -> Decided {
        let quote = self.quote(ip).ok().flatten().filter(|quote| {
            quote.ip.source == ip.destination && self.world.settings.has_port(quote.ports.source)
        });
        let Some(quote) = quote else {
            return Ok(self.up(Verdict::NotForPod));
        };
        let outside = Outside {
            eni,
            protocol: quote.ip.protocol,
            remote: quote.ip.destination,
            remote_port: quote.ports.destination,
            port: quote.ports.source,
        };
        let Some(flow) = self.state.quoted(&outside) else {
            return Ok(self.up(Verdict::NotForPod));
        };
        self.note_error(ip, outside);
        if flow.endpoint == 0 {
            if flow.pod_port != outside.port {
                let end = End {
                    side: Side::Source,
                    address: ip.destination,
                    port: flow.pod_port,
                };
                rewrite::translate_quoted(&mut self.frame, ip, &quote.ip, end);
            }
            return Ok(self.up(Verdict::HostReturned));
        }
        let pod = self.endpoint(&flow)?;
        let end = End {
            side: Side::Source,
            address: flow.pod,
            port: flow.pod_port,
        };
        rewrite::translate_quoted(&mut self.frame, ip, &quote.ip, end);
        rewrite::replace_address(&mut self.frame, ip, Side::Destination, flow.pod);
        self.inward(ip, &pod, eni, self.returned(&flow))
    }

    /// A later fragment of an ICMP error, which follows the first one.
    fn rest_of_error(&mut self, ip: &Ip, outside: Outside) -> Decided {
        let Some(flow) = self.state.quoted(&outside) else {
            return Ok(self.up(Verdict::NotForPod));
        };
        if flow.endpoint == 0 {
            return Ok(self.up(Verdict::HostReturned));
        }
        let pod = self.endpoint(&flow)?;
        let end = End {
            side: Side::Destination,
            address: flow.pod,
            port: outside.port,
        };
        rewrite::translate(&mut self.frame, ip, end);
        self.inward(ip, &pod, outside.eni, self.returned(&flow))
    }

    /// Verdict for a flow's answer.
    fn returned(&self, flow: &Flow) -> Verdict {
        if flow.stack && self.world.settings.service_nat {
            Verdict::StackFlowReturned
        } else {
            Verdict::Returned
        }
    }

    /// The pod that has the flow, but not a later one with its address.
    fn endpoint(&self, flow: &Flow) -> Result<Pod, DropReason> {
        self.world
            .pod(flow.pod)
            .filter(|pod| pod.identity() == flow.endpoint)
            .ok_or(DropReason::NoEndpoint)
    }

    /// Passes a packet up to the stack; on a secondary ENI with its mark.
    fn up(&mut self, verdict: Verdict) -> Done {
        if let Some(eni) = self.world.eni_of_device(self.packet.ifindex)
            && eni != PRIMARY
        {
            self.set_mark(self.mark_of(eni));
        }
        (verdict, Way::Pass)
    }

    /// Mark bits for packets that an ENI received: none for the primary.
    fn ingress_mark(&self, eni: u8) -> u32 {
        if eni == PRIMARY { 0 } else { self.mark_of(eni) }
    }
}
