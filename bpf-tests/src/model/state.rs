//! What is remembered: flows, notes of others, fragmented datagrams.

use std::collections::BTreeMap;
use std::net::IpAddr;

use datapath_common::outcome::DropReason;

use super::parse::{SCTP, TCP};
use super::stack::{OfStack, StackCounts};
use super::transport::{ACK, FIN, RST, SYN};
use super::world::World;

/// What has been seen of one direction; the bits are those of the ABI.
pub mod shown {
    /// SYN.
    pub const SYN: u8 = 1;
    /// Anything but a SYN.
    pub const DATA: u8 = 2;
    /// FIN.
    pub const FIN: u8 = 4;
    /// RST.
    pub const RST: u8 = 8;
    /// Of a flow of the stack: a packet has passed long after both sides had spoken.
    pub const STREAM: u8 = 16;
    /// Of a translated flow without connections: a second packet of the inside.
    pub const MORE: u8 = 16;
}

/// A flow as the outside knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Outside {
    /// The ENI whose address it has.
    pub eni: u8,
    /// IP protocol.
    pub protocol: u8,
    /// Who it is with.
    pub remote: IpAddr,
    /// The remote's port.
    pub remote_port: u16,
    /// Our port.
    pub port: u16,
}

/// A flow as the inside knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Inside {
    /// IP protocol.
    pub protocol: u8,
    /// The pod, or the host's translation address.
    pub pod: IpAddr,
    /// Its port.
    pub pod_port: u16,
    /// Who it speaks with.
    pub remote: IpAddr,
    /// The remote's port.
    pub remote_port: u16,
}

/// A datagram that comes in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Datagram {
    /// Source, as seen.
    pub source: IpAddr,
    /// Destination, as seen.
    pub destination: IpAddr,
    /// Identification.
    pub id: u32,
    /// Protocol; of IPv6 0.
    pub protocol: u8,
}

/// A flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The pod.
    pub pod: IpAddr,
    /// Its port.
    pub pod_port: u16,
    /// Whose quota it counts for; 0: the host's.
    pub endpoint: u32,
    /// What packets of the inside have shown.
    pub out: u8,
    /// What packets of the outside have shown.
    pub inward: u8,
    /// True if it has been idle for long, and no packet since.
    pub idle: bool,
    /// True if it is about to be removed.
    pub dead: bool,
    /// True if its answers take the stack.
    pub stack: bool,
}

/// A flow that is not translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noted {
    /// Whose it is.
    pub endpoint: u32,
    /// What the pod has shown.
    pub out: u8,
    /// What the outside has shown.
    pub inward: u8,
}

impl Noted {
    /// The pod shows more; with a SYN it begins anew.
    pub(super) fn pod_shows(&mut self, shown: u8) {
        if shown & shown::SYN != 0 {
            (self.out, self.inward) = (shown, 0);
            return;
        }
        self.out |= shown;
        if shown & shown::RST == 0 {
            self.inward &= !shown::RST;
        }
    }
}

/// What is known of a datagram that comes in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Its protocol, source and destination port.
    Ports(u8, u16, u16),
    /// It is an ICMP error about a flow whose answers look so.
    Error(Outside),
    /// Its first piece has passed, and has no ports.
    Portless,
    /// A later piece came first.
    Reordered,
}

/// What is remembered.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Translated flows.
    pub flows: BTreeMap<Outside, Flow>,
    /// The same by endpoint and inside, without dead ones.
    pub by_inside: BTreeMap<(u32, Inside), Outside>,
    /// Flows from the outside.
    pub inbound: BTreeMap<Inside, Noted>,
    /// Flows that take the stack both ways.
    pub stack: BTreeMap<Inside, OfStack>,
    /// How many of these were noted, and could not be, of IPv4 and of IPv6.
    pub stack_counts: StackCounts,
    /// Fragmented datagrams; `None`: noted too long ago.
    pub datagrams: BTreeMap<Datagram, Option<Told>>,
    /// Link-local addresses that devices have sent from (true) and to, in the order of their first use.
    pub link_locals: BTreeMap<(u32, bool), Vec<IpAddr>>,
    /// Flows of each endpoint.
    pub quota: BTreeMap<u32, u64>,
    /// First choice of port for a pod's port.
    candidates: BTreeMap<(IpAddr, u16), u16>,
}

/// What a packet shows.
#[must_use]
pub fn of_packet(protocol: u8, flags: u8) -> u8 {
    if protocol != TCP {
        return shown::DATA;
    }
    let mut bits = 0;
    for (flag, bit) in [(SYN, shown::SYN), (FIN, shown::FIN), (RST, shown::RST)] {
        if flags & flag != 0 {
            bits |= bit;
        }
    }
    if flags & SYN == 0 && flags & ACK != 0 {
        bits |= shown::DATA;
    }
    bits
}

/// True if a TCP connection is over.
fn is_closed(flow: &Flow, protocol: u8) -> bool {
    let reset = (flow.out | flow.inward) & shown::RST != 0;
    let ended = flow.out & flow.inward & shown::FIN != 0;
    protocol == TCP && (reset || ended)
}

impl Flow {
    /// A packet of the inside passes.
    fn goes_out(&mut self, protocol: u8, flags: u8) {
        self.idle = false;
        let bits = of_packet(protocol, flags);
        if is_closed(self, protocol) && flags & SYN != 0 && flags & ACK == 0 {
            self.out = bits;
            self.inward = 0;
            return;
        }
        if bits & (shown::SYN | shown::RST) == 0 {
            self.inward &= !shown::RST;
        }
        self.out |= bits;
    }
}

impl State {
    /// Puts a flow in, as if it had been opened before.
    pub fn put(&mut self, outside: Outside, flow: Flow) {
        self.flows.insert(outside, flow);
        if !flow.dead {
            self.by_inside
                .insert((flow.endpoint, inside(outside, &flow)), outside);
        }
        *self.quota.entry(flow.endpoint).or_default() += 1;
    }

    /// The flow of a packet of the inside, which passes.
    pub fn goes_out(&mut self, endpoint: u32, inside: &Inside, flags: u8) -> Option<Outside> {
        let outside = self.find(endpoint, inside)?;
        self.flows
            .get_mut(&outside)?
            .goes_out(outside.protocol, flags);
        Some(outside)
    }

    /// The flow of a packet of the inside.
    #[must_use]
    pub fn find(&self, endpoint: u32, inside: &Inside) -> Option<Outside> {
        self.by_inside.get(&(endpoint, *inside)).copied()
    }

    /// The flow of a packet of the outside, which passes.
    pub fn comes_in(&mut self, outside: &Outside, flags: u8) -> Option<Flow> {
        let flow = self.flows.get_mut(outside).filter(|flow| !flow.dead)?;
        flow.inward |= of_packet(outside.protocol, flags);
        if outside.protocol == TCP && flags & SYN != 0 && flags & ACK != 0 {
            flow.inward |= shown::DATA;
        }
        flow.idle = false;
        Some(*flow)
    }

    /// The flow that an error from the outside is about.
    #[must_use]
    pub fn quoted(&self, outside: &Outside) -> Option<Flow> {
        self.flows.get(outside).copied().filter(|flow| !flow.dead)
    }

    /// Opens a flow with the port that the program has chosen.
    ///
    /// # Errors
    /// The inner one: the reason for which the packet is dropped. The outer one: what is wrong
    /// with the port.
    pub fn open(
        &mut self,
        world: &World,
        new: &New,
        chosen: Option<u16>,
    ) -> Result<Result<Outside, DropReason>, String> {
        let used = self.quota.get(&new.endpoint).copied().unwrap_or_default();
        let most = if new.endpoint == 0 {
            world.settings.flows_of_host
        } else {
            world.settings.flows_per_endpoint
        };
        if used >= most {
            return Ok(Err(DropReason::QuotaExceeded));
        }
        let outside = |port| Outside {
            eni: new.eni,
            protocol: new.inside.protocol,
            remote: new.inside.remote,
            remote_port: new.inside.remote_port,
            port,
        };
        let is_free = |state: &Self, port| {
            // The socket that the host itself sends from holds no port against it.
            let is_own = new.endpoint == 0 && port == new.inside.pod_port;
            let held = world.has_socket(new.inside.protocol, new.address, port) && !is_own;
            !state.flows.contains_key(&outside(port)) && !held
        };
        let own = new.inside.pod_port;
        let must_keep = new.inside.protocol == SCTP;
        if must_keep && (!world.settings.has_port(own) || !is_free(self, own)) {
            return Ok(Err(DropReason::SctpPortTaken));
        }
        if self.is_full(world, new.inside.pod.is_ipv4()) {
            return Ok(Err(DropReason::FlowsFull));
        }
        if must_keep {
            return Ok(Ok(self.insert(outside(own), new)));
        }
        let Some(port) = chosen else {
            return Err("there is no port to be seen".to_owned());
        };
        if !world.settings.has_port(port) {
            return Err(format!("port {port} is none of ours"));
        }
        if !is_free(self, port) {
            return Err(format!("port {port} is taken"));
        }
        let is_first = |port| {
            let settings = &world.settings;
            settings.is_first(new.inside.protocol, new.endpoint, port)
        };
        // Never are so many flows made here that the reserve is needed.
        if !is_first(port) {
            return Err(format!("port {port} is of the reserve"));
        }
        let key = (new.inside.pod, own);
        let first = if is_first(own) {
            Some(own)
        } else {
            self.candidates.get(&key).copied()
        };
        match first {
            Some(first) if port != first && is_free(self, first) => {
                return Err(format!("port {port}, although {first} is free"));
            }
            // Nothing was in the way: then it is the first choice, and stays that for this port.
            None if !self.is_crowded(world, &outside(port)) => {
                self.candidates.insert(key, port);
            }
            _ => {}
        }
        Ok(Ok(self.insert(outside(port), new)))
    }

    /// True if there is no room for another flow of a family.
    fn is_full(&self, world: &World, is_v4: bool) -> bool {
        let flows = self
            .flows
            .keys()
            .filter(|outside| outside.remote.is_ipv4() == is_v4)
            .count();
        flows >= world.settings.flow_capacity
    }

    /// True if any port towards the remote may be held by others.
    fn is_crowded(&self, world: &World, new: &Outside) -> bool {
        let is_beside = |other: &Outside| {
            Outside {
                port: new.port,
                ..*other
            } == *new
        };
        self.flows.keys().any(is_beside)
            || world
                .sockets
                .iter()
                .any(|socket| socket.protocol == new.protocol)
    }

    fn insert(&mut self, outside: Outside, new: &New) -> Outside {
        let mut flow = Flow {
            pod: new.inside.pod,
            pod_port: new.inside.pod_port,
            endpoint: new.endpoint,
            out: 0,
            inward: 0,
            idle: false,
            dead: false,
            stack: false,
        };
        flow.goes_out(outside.protocol, new.flags);
        self.put(outside, flow);
        outside
    }

    /// Notes a flow from the outside, or that more of it was seen.
    ///
    /// # Errors
    /// When there is no room.
    pub fn note_inbound(
        &mut self,
        world: &World,
        endpoint: u32,
        inside: Inside,
        shown: u8,
    ) -> Result<(), DropReason> {
        if self.shows_inbound(endpoint, inside, shown) {
            return Ok(());
        }
        if self.inbound_of(endpoint) >= world.settings.inbound_per_endpoint {
            return Err(DropReason::InboundQuotaExceeded);
        }
        // The former pod with the address has no part in it.
        self.inbound.remove(&inside);
        if self.inbound.len() >= world.settings.inbound_capacity {
            return Err(DropReason::InboundFull);
        }
        let noted = Noted {
            endpoint,
            out: shown,
            inward: 0,
        };
        self.inbound.insert(inside, noted);
        Ok(())
    }

    /// The number of flows from the outside that an endpoint has.
    #[must_use]
    pub fn inbound_of(&self, endpoint: u32) -> u64 {
        let of = self
            .inbound
            .values()
            .filter(|flow| flow.endpoint == endpoint);
        u64::try_from(of.count()).unwrap_or(u64::MAX)
    }
}

impl State {
    /// An endpoint shows more of a flow from the outside, if it has it; with a SYN it begins anew.
    pub fn shows_inbound(&mut self, endpoint: u32, inside: Inside, shown: u8) -> bool {
        let found = self.inbound.get_mut(&inside);
        let Some(flow) = found.filter(|flow| flow.endpoint == endpoint) else {
            return false;
        };
        flow.pod_shows(shown);
        true
    }

    /// The outside shows more of it.
    pub fn sees_inbound(&mut self, endpoint: u32, inside: Inside, shown: u8) {
        let found = self.inbound.get_mut(&inside);
        if let Some(flow) = found.filter(|flow| flow.endpoint == endpoint) {
            flow.inward |= shown;
        }
    }
}

/// A flow to be opened.
#[derive(Clone, Copy, Debug)]
pub struct New {
    /// The inside.
    pub inside: Inside,
    /// The ENI whose address it gets.
    pub eni: u8,
    /// That address.
    pub address: IpAddr,
    /// Whose it is; 0: the host's.
    pub endpoint: u32,
    /// Flags of TCP.
    pub flags: u8,
}

/// A flow as the inside knows it.
#[must_use]
pub fn inside(outside: Outside, flow: &Flow) -> Inside {
    Inside {
        protocol: outside.protocol,
        pod: flow.pod,
        pod_port: flow.pod_port,
        remote: outside.remote,
        remote_port: outside.remote_port,
    }
}
