//! Flows that take the host's stack both ways: the entries for them, and their effect.

use datapath_common::outcome::{DropReason, Verdict};

use super::egress::{datagram, received, sent};
use super::parse::{FragmentKind, Ip, TCP};
use super::state::{FragmentRecord, Inside, Noted, State, of_packet, shown};
use super::transport::{self, ACK, Part, Ports, RST, SYN, Transport};
use super::world::{Pod, World};
use super::{Done, Passage};

/// A flow that takes the stack both ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfStack {
    /// Endpoint of the flow, and the packets seen of it.
    pub noted: Noted,
    /// The ENI whose mark the pod's packets get; none for one that came by another device.
    pub eni: Option<u8>,
    /// True if the entry was made more than two seconds ago.
    pub old: bool,
    /// True if the flow has been idle for long, without a packet since.
    pub idle: bool,
    /// True if the flow is about to be removed.
    pub dead: bool,
}

/// Numbers of events, for IPv4 and for IPv6.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackCounts {
    /// A new flow was stored.
    pub noted: [u64; 2],
    /// A flow could not be stored.
    pub failed: [u64; 2],
}

/// Sender of a packet in a flow through the stack.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sender {
    /// The pod.
    Pod,
    /// The other side.
    Remote,
}

/// A packet of a flow that the stack carries.
#[derive(Clone, Copy)]
pub(super) struct Passing {
    pub(super) inside: Inside,
    pub(super) sender: Sender,
    /// TCP flags.
    pub(super) flags: u8,
    pub(super) endpoint: u32,
    /// The ENI whose mark the pod's packets get; none for one that came by another device.
    pub(super) eni: Option<u8>,
}

/// Path of a packet.
pub(super) enum Path {
    /// Past the stack.
    Direct,
    /// Through the stack, as a flow with this ENI or with none.
    Stack(Option<u8>),
    /// Through the stack, which puts the datagram in order.
    Reordered,
}

impl OfStack {
    /// Updates the flow for a packet.
    fn passes(&mut self, protocol: u8, sender: Sender, flags: u8) {
        let mut shows = of_packet(protocol, flags);
        let both = self.noted.out & self.noted.inward;
        if protocol != TCP && self.old && both & shown::DATA != 0 {
            shows |= shown::STREAM;
        }
        self.idle = false;
        match sender {
            Sender::Pod => self.noted.pod_shows(shows),
            Sender::Remote => self.noted.inward |= shows,
        }
    }
}

impl State {
    /// Updates and returns an endpoint's flow through the stack, for a packet.
    pub(super) fn passes_stack(
        &mut self,
        endpoint: u32,
        inside: Inside,
        sender: Sender,
        flags: u8,
    ) -> Option<OfStack> {
        let found = self.stack.get_mut(&inside);
        let flow = found.filter(|flow| !flow.dead && flow.noted.endpoint == endpoint)?;
        flow.passes(inside.protocol, sender, flags);
        Some(*flow)
    }

    /// An endpoint's flow through the stack that an ICMP error quotes.
    pub(super) fn quoted_of_stack(&self, endpoint: u32, inside: &Inside) -> Option<OfStack> {
        let found = self.stack.get(inside);
        let flow = found.filter(|flow| !flow.dead && flow.noted.endpoint == endpoint)?;
        Some(*flow)
    }

    /// Stores a flow that the stack carries, or updates it for a packet.
    ///
    /// # Errors
    /// When there is no room.
    pub(super) fn note_stack(&mut self, world: &World, passing: Passing) -> Result<(), DropReason> {
        let Passing {
            inside,
            sender,
            flags,
            endpoint,
            eni,
        } = passing;
        let known = self.passes_stack(endpoint, inside, sender, flags);
        if known.is_some() {
            return Ok(());
        }
        let shows = of_packet(inside.protocol, flags);
        let (out, inward) = match sender {
            Sender::Pod => (shows, 0),
            Sender::Remote => (0, shows),
        };
        let flow = OfStack {
            noted: Noted {
                endpoint,
                out,
                inward,
            },
            eni,
            old: false,
            idle: false,
            dead: false,
        };
        let family = usize::from(inside.pod.is_ipv6());
        let is_full = self.stack.len() >= world.settings.capacities.stack;
        match self.stack.get_mut(&inside) {
            // The entry is about to be free; the next packet stores the flow.
            Some(dying) if dying.dead => {}
            Some(former_pods) => *former_pods = flow,
            None if is_full => {
                self.stack_counts.failed[family] += 1;
                return Err(DropReason::StackFull);
            }
            None => {
                self.stack_counts.noted[family] += 1;
                self.stack.insert(inside, flow);
            }
        }
        Ok(())
    }
}

impl Passage<'_> {
    /// Path of a packet between a pod and another end, neither of which is translated.
    pub(super) fn path(&mut self, ip: &Ip, pod: &Pod, sender: Sender) -> Path {
        if !self.world.settings.service_nat {
            return Path::Direct;
        }
        if self.is_reordered(ip) {
            return Path::Reordered;
        }
        let (protocol, ports) = match ip.piece {
            FragmentKind::Later => match self.recall(ip) {
                Some(recorded) => recorded,
                // No ports, like its first fragment.
                None => return Path::Direct,
            },
            FragmentKind::Whole | FragmentKind::First => match transport::read(&self.frame, ip) {
                Ok(Transport::Ports(ports)) => (ip.protocol, ports),
                Ok(Transport::Error) => {
                    self.tell_portless(ip);
                    return self.path_of_error(ip, pod, sender);
                }
                Ok(Transport::None) | Err(_) => {
                    self.tell_portless(ip);
                    return Path::Direct;
                }
            },
        };
        self.note(ip, protocol, ports);
        let inside = of_packet_by(ip, protocol, ports, sender);
        let endpoint = pod.identity();
        match self
            .state
            .passes_stack(endpoint, inside, sender, ports.flags)
        {
            Some(flow) => Path::Stack(flow.eni),
            None if sender == Sender::Pod && self.has_used(ip, protocol, ports) => {
                Path::Stack(None)
            }
            None => Path::Direct,
        }
    }

    /// True if a pod's packet begins a flow with another pod of the node, and that pod's answers on
    /// these ports take the stack.
    fn has_used(&self, ip: &Ip, protocol: u8, ports: Ports) -> bool {
        let begins = match protocol {
            TCP => ports.flags & (SYN | ACK | RST) == SYN,
            _ => ports.part == Part::Opens && ip.piece != FragmentKind::Later,
        };
        let Some(other) = self.world.pod(ip.destination) else {
            return false;
        };
        let answers = of_packet_by(ip, protocol, ports, Sender::Remote);
        let found = self.state.quoted_of_stack(other.identity(), &answers);
        begins && found.is_some()
    }

    /// Mark of a pod's packets in a flow through the stack.
    pub(super) fn mark_in_stack(&self, eni: Option<u8>) -> u32 {
        eni.map_or(0, |eni| self.mark_of(eni))
    }

    /// Path of an ICMP error: that of the quoted flow, if the flow is the pod's own.
    fn path_of_error(&self, ip: &Ip, pod: &Pod, sender: Sender) -> Path {
        let Ok(Some(quote)) = self.quote(ip) else {
            return Path::Direct;
        };
        let (is_own, inside) = match sender {
            Sender::Pod => (quote.ip.destination == ip.source, received(&quote)),
            Sender::Remote => (quote.ip.source == ip.destination, sent(&quote)),
        };
        let flow = self.state.quoted_of_stack(pod.identity(), &inside);
        match flow.filter(|_| is_own) {
            Some(flow) => Path::Stack(flow.eni),
            None => Path::Direct,
        }
    }

    /// True if the stack must put a fragment and the rest of its datagram in order, because a later
    /// fragment came before the first. If the first one's path is known, the others take the same
    /// path.
    pub(super) fn is_reordered(&self, ip: &Ip) -> bool {
        let recorded = self.state.datagrams.get(&datagram(ip)).copied().flatten();
        match ip.piece {
            FragmentKind::Whole => false,
            FragmentKind::First => recorded == Some(FragmentRecord::Reordered),
            FragmentKind::Later => matches!(recorded, None | Some(FragmentRecord::Reordered)),
        }
    }

    /// Passes a fragment to the stack, which puts its datagram in order. No entry is made for the
    /// result.
    pub(super) fn reorder(&mut self, ip: &Ip, ours: u32) -> Done {
        self.tell_reordered(ip);
        self.hand_up(
            ours | self.world.settings.marks.exception,
            Verdict::Reordered,
        )
    }

    /// Marks a datagram that begins with a later fragment as out of order.
    pub(super) fn tell_reordered(&mut self, ip: &Ip) {
        if ip.piece == FragmentKind::Later {
            self.tell(ip, FragmentRecord::Reordered);
        }
    }

    /// Makes the fragments of a datagram without ports follow its first one.
    pub(super) fn tell_portless(&mut self, ip: &Ip) {
        if ip.piece == FragmentKind::First {
            self.tell(ip, FragmentRecord::Portless);
        }
    }

    fn tell(&mut self, ip: &Ip, recorded: FragmentRecord) {
        self.state.datagrams.insert(datagram(ip), Some(recorded));
    }
}

/// The flow of a packet between a pod and a remote.
pub(super) fn of_packet_by(ip: &Ip, protocol: u8, ports: Ports, sender: Sender) -> Inside {
    let (source, destination) = (
        (ip.source, ports.source),
        (ip.destination, ports.destination),
    );
    let (pod, remote) = match sender {
        Sender::Pod => (source, destination),
        Sender::Remote => (destination, source),
    };
    Inside {
        protocol,
        pod: pod.0,
        pod_port: pod.1,
        remote: remote.0,
        remote_port: remote.1,
    }
}
