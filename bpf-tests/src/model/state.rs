//! State of the model: translated flows, flows from the outside or through the stack, fragmented
//! datagrams.

use std::collections::BTreeMap;
use std::net::IpAddr;

use datapath_common::outcome::DropReason;

use super::parse::{SCTP, TCP};
use super::progress::comes;
use super::stack::{OfStack, StackCounts};
use super::transport::{ACK, SYN};
use super::world::World;

pub use super::progress::{of_packet, shown};

/// A flow as the outside sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Outside {
    /// The ENI whose address it has.
    pub eni: u8,
    /// IP protocol.
    pub protocol: u8,
    /// Address of the remote.
    pub remote: IpAddr,
    /// The remote's port.
    pub remote_port: u16,
    /// Our port.
    pub port: u16,
}

/// A flow as the inside sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Inside {
    /// IP protocol.
    pub protocol: u8,
    /// The pod, or the host's translation address.
    pub pod: IpAddr,
    /// Its port.
    pub pod_port: u16,
    /// Address of the remote.
    pub remote: IpAddr,
    /// The remote's port.
    pub remote_port: u16,
}

/// A fragmented datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Datagram {
    /// Source, as seen.
    pub source: IpAddr,
    /// Destination, as seen.
    pub destination: IpAddr,
    /// Identification.
    pub id: u32,
    /// Protocol; 0 for IPv6.
    pub protocol: u8,
}

/// A flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The pod.
    pub pod: IpAddr,
    /// Its port.
    pub pod_port: u16,
    /// The endpoint whose quota the flow counts for; 0: the host.
    pub endpoint: u32,
    /// Bits of [`shown`] that packets from the inside have set.
    pub out: u8,
    /// Bits of [`shown`] that packets from the outside have set.
    pub inward: u8,
    /// True if the flow has been idle for long, without a packet since.
    pub idle: bool,
    /// True if the flow is about to be removed.
    pub dead: bool,
    /// True if the flow's answers take the stack.
    pub stack: bool,
}

/// A flow that is not translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noted {
    /// The endpoint that has the flow.
    pub endpoint: u32,
    /// Bits of [`shown`] that the pod's packets have set.
    pub out: u8,
    /// Bits of [`shown`] that packets from the outside have set.
    pub inward: u8,
}

impl Noted {
    /// Adds bits of a packet from the pod; a SYN begins a new connection.
    pub(super) fn pod_shows(&mut self, shown: u8) {
        if shown & shown::SYN != 0 {
            (self.out, self.inward) = (shown, 0);
            return;
        }
        self.out |= shown;
        if shown & shown::RST == 0 {
            self.inward &= !(shown::RST | shown::DOUBT);
        }
    }
}

/// Transport of a fragmented datagram, as its fragments have shown it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentRecord {
    /// Protocol, source and destination port.
    Ports(u8, u16, u16),
    /// An ICMP error that quotes an answer of this flow.
    Error(Outside),
    /// The first fragment has passed, and has no ports.
    Portless,
    /// A later fragment came first.
    Reordered,
}

/// State of the model.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Translated flows.
    pub flows: BTreeMap<Outside, Flow>,
    /// Keys of live translated flows, by endpoint and inside.
    pub by_inside: BTreeMap<(u32, Inside), Outside>,
    /// Flows from the outside.
    pub inbound: BTreeMap<Inside, Noted>,
    /// Flows that take the stack both ways.
    pub stack: BTreeMap<Inside, OfStack>,
    /// Numbers of flows through the stack that were stored, and that could not be, per family.
    pub stack_counts: StackCounts,
    /// Fragmented datagrams; `None`: the entry is too old.
    pub datagrams: BTreeMap<Datagram, Option<FragmentRecord>>,
    /// Link-local addresses that devices have sent from (true) and to, in the order of first use.
    pub link_locals: BTreeMap<(u32, bool), Vec<IpAddr>>,
    /// Flows of each endpoint.
    pub quota: BTreeMap<u32, u64>,
    /// First choice of port for a pod's port.
    candidates: BTreeMap<(IpAddr, u16), u16>,
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
            self.inward &= !(shown::RST | shown::DOUBT);
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
        flow.inward = comes(of_packet(outside.protocol, flags), flow.inward);
        if outside.protocol == TCP && flags & SYN != 0 && flags & ACK != 0 {
            flow.inward |= shown::DATA;
        }
        flow.idle = false;
        Some(*flow)
    }

    /// The flow that an ICMP error from the outside quotes.
    #[must_use]
    pub fn quoted(&self, outside: &Outside) -> Option<Flow> {
        self.flows.get(outside).copied().filter(|flow| !flow.dead)
    }

    /// Opens a flow with the port that the program has chosen.
    ///
    /// # Errors
    /// The inner one: the reason for which the packet is dropped. The outer one: the fault of the
    /// port.
    pub fn open(
        &mut self,
        world: &World,
        new: &New,
        chosen: Option<u16>,
    ) -> Result<Result<Outside, DropReason>, String> {
        let used = self.quota.get(&new.endpoint).copied().unwrap_or_default();
        if used >= world.settings.quotas.of(new.endpoint) {
            return Ok(Err(DropReason::QuotaExceeded));
        }
        let is_free = |state: &Self, port| {
            // A socket that the host itself sends from does not block that port.
            let is_own = new.endpoint == 0 && port == new.inside.pod_port;
            let held = world.has_socket(new.inside.protocol, new.address, port) && !is_own;
            !state.flows.contains_key(&new.outside(port)) && !held
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
            return Ok(Ok(self.insert(new.outside(own), new)));
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
        // The model never opens so many flows that it needs the reserve.
        if !is_first(port) {
            return Err(format!("port {port} is of the reserve"));
        }
        let first = if is_first(own) {
            Some(own)
        } else {
            self.candidates.get(&(new.inside.pod, own)).copied()
        };
        match first {
            Some(first) if port != first && is_free(self, first) => {
                return Err(format!("port {port}, although {first} is free"));
            }
            None => self.learn_candidate(world, &new.outside(port), (new.inside.pod, own)),
            Some(_) => {}
        }
        Ok(Ok(self.insert(new.outside(port), new)))
    }

    /// Without competing flows the port of a flow is the first choice, and remains that for the
    /// pod's port.
    fn learn_candidate(&mut self, world: &World, flow: &Outside, of: (IpAddr, u16)) {
        if !self.is_crowded(world, flow) {
            self.candidates.insert(of, flow.port);
        }
    }

    /// True if there is no room for another flow of a family.
    fn is_full(&self, world: &World, is_v4: bool) -> bool {
        let flows = self
            .flows
            .keys()
            .filter(|outside| outside.remote.is_ipv4() == is_v4)
            .count();
        flows >= world.settings.capacities.flows
    }

    /// True if other flows or sockets may hold a port towards the remote.
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

    /// Stores a flow from the outside, or adds bits to it.
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
        if self.inbound_of(endpoint) >= world.settings.quotas.inbound {
            return Err(DropReason::InboundQuotaExceeded);
        }
        // An entry of the address's former pod does not count.
        self.inbound.remove(&inside);
        if self.inbound.len() >= world.settings.capacities.inbound {
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
    /// Adds bits of an endpoint's packet to a flow from the outside, if the endpoint has it; a SYN
    /// begins a new connection.
    pub fn shows_inbound(&mut self, endpoint: u32, inside: Inside, shown: u8) -> bool {
        let found = self.inbound.get_mut(&inside);
        let Some(flow) = found.filter(|flow| flow.endpoint == endpoint) else {
            return false;
        };
        flow.pod_shows(shown);
        true
    }

    /// Adds bits of a packet from the outside to the flow.
    pub fn sees_inbound(&mut self, endpoint: u32, inside: Inside, shown: u8) {
        let found = self.inbound.get_mut(&inside);
        if let Some(flow) = found.filter(|flow| flow.endpoint == endpoint) {
            flow.inward = comes(shown, flow.inward);
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
    /// The endpoint that has the flow; 0: the host.
    pub endpoint: u32,
    /// Flags of TCP.
    pub flags: u8,
}

impl New {
    /// The flow under a port.
    fn outside(&self, port: u16) -> Outside {
        Outside {
            eni: self.eni,
            protocol: self.inside.protocol,
            remote: self.inside.remote,
            remote_port: self.inside.remote_port,
            port,
        }
    }
}

/// A flow as the inside sees it.
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
