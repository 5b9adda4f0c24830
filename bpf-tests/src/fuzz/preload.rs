//! State at the beginning of a batch: flows of every kind that no packet of the batch has opened,
//! and remains of others. The maps and the model get the same.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::Result;
use datapath_common::abi::{
    Datagram, DatagramKey, Flow, FlowKey, Moved, NatControl, PodTuple, Quota, TrackedFlow,
    TransportAddr, inbound_quota, map,
};
use testkit::random::Random;
use testkit::testrun::Programs;

use super::aim::{PORTS, REMOTE_PORTS};
use super::node::{ENIS, pod_addresses, remotes, translation_addresses};
use super::packet::{WITH_PORTS, once_in, pick};
use super::snapshot::Tables;
use crate::model::parse::{ICMP, ICMPV6};
use crate::model::policy::{Policy, policy};
use crate::model::stack::OfStack;
use crate::model::state::{self, FragmentRecord, Inside, Outside, State};
use crate::model::world::{Address, Settings, World};

/// Jiffies that are long ago: far more than any lifetime.
pub(super) const LONG_AGO: u64 = 10_000_000;

/// Bit that distinguishes the identity of an address's former pod from that of the present one.
pub(super) const FORMER: u32 = 1 << 20;

/// Preloads flows and other state.
pub(super) struct Preloader<'a> {
    pub(super) world: &'a World,
    pub(super) tables: &'a Tables,
    pub(super) random: &'a mut Random,
    pub(super) state: State,
    /// The time, in jiffies.
    pub(super) now: u64,
}

/// The key of a flow in the map.
pub(super) fn flow_key(outside: &Outside) -> FlowKey {
    FlowKey::new(
        outside.eni,
        outside.protocol,
        TransportAddr::new(outside.remote.into(), outside.remote_port.to_be()),
        outside.port.to_be(),
    )
}

/// A tuple in the maps' form.
pub(super) fn pod_tuple(inside: &Inside) -> PodTuple {
    PodTuple::new(
        inside.protocol,
        TransportAddr::new(inside.pod.into(), inside.pod_port.to_be()),
        TransportAddr::new(inside.remote.into(), inside.remote_port.to_be()),
    )
}

impl Preloader<'_> {
    /// Preloads all state.
    pub(super) fn preload(mut self, programs: &Programs) -> Result<State> {
        let control = NatControl {
            may_be_exempt: self.world.settings.lookups.exempt.into(),
            may_be_elsewhere: self.world.settings.lookups.elsewhere.into(),
        };
        programs
            .table::<u32, NatControl>(map::NAT_CONTROL)?
            .put(&0, &control)?;
        for _ in 0..self.random.below(12) {
            self.flow()?;
        }
        for _ in 0..self.random.below(4) {
            self.stale_note()?;
        }
        for _ in 0..self.random.below(6) {
            self.inbound()?;
        }
        for _ in 0..self.random.below(10) {
            self.of_stack()?;
        }
        for _ in 0..self.random.below(4) {
            self.datagram()?;
        }
        self.error_in_pieces()?;
        self.quotas()?;
        Ok(self.state)
    }

    fn protocol(&mut self, is_v4: bool) -> u8 {
        let icmp = if is_v4 { ICMP } else { ICMPV6 };
        if once_in(self.random, 4) {
            icmp
        } else {
            pick(self.random, &WITH_PORTS)
        }
    }

    /// The inside of a flow of a pod, or of the host by an ENI.
    fn inside(&mut self, host_by: Option<u8>) -> Inside {
        let is_v4 = once_in(self.random, 2);
        let family = usize::from(!is_v4);
        let pod = pod_addresses(pick(self.random, &[0, 1, 1, 4]))[family];
        let host = host_by.and_then(|eni| translation_addresses(eni)[family]);
        let protocol = self.protocol(is_v4);
        let is_icmp = matches!(protocol, ICMP | ICMPV6);
        let remote_port = pick(self.random, &REMOTE_PORTS);
        Inside {
            protocol,
            pod: host.unwrap_or(pod),
            pod_port: pick(self.random, &PORTS),
            remote: pick(self.random, &remotes(is_v4)),
            remote_port: if is_icmp { 0 } else { remote_port },
        }
    }

    /// Identity of a flow's endpoint: the pod, or a former pod with its address.
    fn endpoint(&mut self, identity: u32) -> u32 {
        if once_in(self.random, 6) {
            identity | FORMER
        } else {
            identity
        }
    }

    /// A flow by the owner ENI or by the primary one, at its own port, or at another one with an
    /// entry for it. If the programs look only at the policy's ENI, flows at their own port are
    /// there.
    fn flow(&mut self) -> Result<()> {
        let by_host = once_in(self.random, 5).then(|| pick(self.random, &ENIS).0);
        let inside = self.inside(by_host);
        let world = self.world;
        let endpoint = world.pod(inside.pod).map(|pod| (pod.identity(), pod.eni));
        let eni = match (endpoint, by_host) {
            (Some((_, owner)), _) => pick(self.random, &[owner, 0]),
            (None, Some(eni)) => eni,
            (None, None) => return Ok(()),
        };
        let identity = endpoint.map_or(0, |(identity, _)| identity);
        let gets_own =
            |settings: &Settings| settings.is_first(inside.protocol, identity, inside.pod_port);
        let is_first = gets_own(&world.settings)
            && (inside.protocol == crate::model::parse::SCTP || !once_in(self.random, 3));
        let (first, last) = pick(self.random, &world.settings.ports);
        let any = first + u16::try_from(self.random.below(usize::from(last - first) + 1))?;
        let port = if is_first { inside.pod_port } else { any };
        let keeps = port == inside.pod_port;
        if keeps && !gets_own(&world.settings) {
            return Ok(());
        }
        let eni = match endpoint {
            Some((_, owner)) if keeps && !world.settings.lookups.elsewhere => {
                match policy(world, inside.pod, inside.remote) {
                    Policy::Translate(exit) | Policy::TranslateAll(exit) => exit,
                    Policy::Keep | Policy::Block | Policy::Hide => {
                        world.enis[&owner].of(inside.pod).external
                    }
                }
            }
            Some(_) | None => eni,
        };
        let outside = Outside {
            eni,
            protocol: inside.protocol,
            remote: inside.remote,
            remote_port: inside.remote_port,
            port,
        };
        let mut insides = self.state.by_inside.keys();
        let is_taken = insides.any(|(_, of)| *of == inside)
            || self.state.flows.contains_key(&outside)
            || self.state.flows.len() + 4 > world.settings.capacities.flows;
        // A protocol that keeps its port has no flow with another one.
        if is_taken || (inside.protocol == crate::model::parse::SCTP && !keeps) {
            return Ok(());
        }
        self.put_flow(outside, &inside, endpoint.map(|(identity, _)| identity))
    }

    /// Puts a translated flow into the tables and the model.
    fn put_flow(&mut self, outside: Outside, inside: &Inside, identity: Option<u32>) -> Result<()> {
        let keeps = outside.port == inside.pod_port;
        let idle = once_in(self.random, 3);
        let dead = idle && keeps && once_in(self.random, 3);
        let flow = state::Flow {
            pod: inside.pod,
            pod_port: inside.pod_port,
            endpoint: identity.map_or(0, |it| self.endpoint(it)),
            out: pick(self.random, &[1, 2, 3, 7, 10, 11, 15]),
            inward: pick(self.random, &[0, 1, 3, 7, 11, 15]),
            idle,
            dead,
            stack: once_in(self.random, 4),
        };
        let key = flow_key(&outside);
        let mut value = Flow::new(
            &key,
            TransportAddr::new(flow.pod.into(), flow.pod_port.to_be()),
            flow.endpoint,
            self.now - if idle { LONG_AGO } else { 0 },
        );
        value.progress_out = flow.out;
        value.progress_in = flow.inward;
        value.dead = dead.into();
        value.stack = flow.stack.into();
        self.tables.flows_of(inside.remote).put(&key, &value)?;
        if !keeps {
            let moved = Moved::new(outside.eni, outside.port.to_be());
            self.tables
                .moved_of(inside.remote)
                .put(&pod_tuple(inside), &moved)?;
        }
        self.state.put(outside, flow);
        Ok(())
    }

    /// An entry of a flow that no longer exists.
    fn stale_note(&mut self) -> Result<()> {
        let inside = self.inside(None);
        let mut insides = self.state.by_inside.keys();
        if insides.any(|(_, of)| *of == inside) {
            return Ok(());
        }
        let (first, _) = pick(self.random, &self.world.settings.ports);
        let moved = Moved::new(pick(self.random, &ENIS).0, first.to_be());
        self.tables
            .moved_of(inside.remote)
            .put(&pod_tuple(&inside), &moved)
    }

    fn inbound(&mut self) -> Result<()> {
        let inside = self.inside(None);
        if self.state.inbound.len() + 2 > self.world.settings.capacities.inbound {
            return Ok(());
        }
        let shown = pick(self.random, &[0, 1, 2, 3]);
        let idle = once_in(self.random, 2);
        let last_seen = self.now - if idle { LONG_AGO } else { 0 };
        let of = self.world.pod(inside.pod).map_or(0, |pod| pod.identity());
        let endpoint = self.endpoint(of);
        let inward = pick(self.random, &[0, 0, 2, 4, 8, 14]);
        let mut value = TrackedFlow::new(&pod_tuple(&inside), last_seen, endpoint, shown);
        value.progress_in = inward;
        self.tables.inbound.put(&pod_tuple(&inside), &value)?;
        let flow = state::Noted {
            endpoint,
            out: shown,
            inward,
        };
        self.state.inbound.insert(inside, flow);
        Ok(())
    }

    /// A flow that the stack carries: with the outside, another pod or the host.
    fn of_stack(&mut self) -> Result<()> {
        let mut inside = self.inside(None);
        if once_in(self.random, 3) {
            let family = usize::from(inside.pod.is_ipv6());
            let pod = pod_addresses(pick(self.random, &[0, 1, 3]))[family];
            let host = translation_addresses(pick(self.random, &[0, 1]))[family];
            inside.remote = pick(self.random, &[Some(pod), host]).unwrap_or(pod);
        }
        if self.state.stack.len() + 4 > self.world.settings.capacities.stack {
            return Ok(());
        }
        let of = self.world.pod(inside.pod).map_or(0, |pod| pod.identity());
        let idle = once_in(self.random, 2);
        let flow = OfStack {
            noted: state::Noted {
                endpoint: self.endpoint(of),
                out: pick(self.random, &[0, 1, 2, 2, 3, 10, 18]),
                inward: pick(self.random, &[0, 1, 2, 2, 3, 10, 18]),
            },
            eni: (!once_in(self.random, 3)).then(|| pick(self.random, &ENIS).0),
            old: once_in(self.random, 2),
            idle,
            dead: idle && once_in(self.random, 8),
        };
        let tuple = pod_tuple(&inside);
        let noted = flow.noted;
        let ago = |is_long| self.now - if is_long { LONG_AGO } else { 0 };
        // The first time in the value becomes the time of its creation.
        let mut value = TrackedFlow::new(&tuple, ago(flow.old), noted.endpoint, noted.out);
        value.last_seen = ago(flow.idle);
        value.progress_in = noted.inward;
        value = value.by(flow.eni);
        value.dead = flow.dead.into();
        self.tables.stack.put(&tuple, &value)?;
        self.state.stack.insert(inside, flow);
        Ok(())
    }

    /// A datagram whose first fragment has passed, or a later one before it; now or too long ago.
    fn datagram(&mut self) -> Result<()> {
        let inside = self.inside(None);
        let is_v4 = inside.pod.is_ipv4();
        let datagram = state::Datagram {
            source: inside.pod,
            destination: inside.remote,
            id: pick(self.random, &[1, 2, 0xfffe]),
            protocol: if is_v4 { inside.protocol } else { 0 },
        };
        let is_old = once_in(self.random, 2);
        let seen = self.now - if is_old { LONG_AGO } else { 0 };
        let (value, recorded) = if once_in(self.random, 3) {
            (Datagram::reordered(seen), FragmentRecord::Reordered)
        } else {
            let Inside {
                protocol,
                pod_port,
                remote_port,
                ..
            } = inside;
            let value = Datagram::new(seen, protocol, pod_port.to_be(), remote_port.to_be());
            (
                value,
                FragmentRecord::Ports(protocol, pod_port, remote_port),
            )
        };
        self.put_datagram(datagram, &value, (!is_old).then_some(recorded))
    }

    /// A fragmented ICMP error about a flow, whose first fragment has passed.
    fn error_in_pieces(&mut self) -> Result<()> {
        let flows: Vec<Outside> = self.state.flows.keys().copied().collect();
        if flows.is_empty() {
            return Ok(());
        }
        let outside = pick(self.random, &flows);
        let is_v4 = outside.remote.is_ipv4();
        let [v4, v6] = translation_addresses(outside.eni);
        let Some(destination) = (if is_v4 { v4 } else { v6 }) else {
            return Ok(());
        };
        let datagram = state::Datagram {
            source: outside.remote,
            destination,
            id: pick(self.random, &[1, 2, 0xfffe]),
            protocol: if is_v4 { ICMP } else { 0 },
        };
        let remote = TransportAddr::new(outside.remote.into(), outside.remote_port.to_be());
        let value = Datagram::error(self.now, outside.protocol, remote, outside.port.to_be());
        let recorded = FragmentRecord::Error(Outside { eni: 0, ..outside });
        self.put_datagram(datagram, &value, Some(recorded))
    }

    fn put_datagram(
        &mut self,
        datagram: state::Datagram,
        value: &Datagram,
        recorded: Option<FragmentRecord>,
    ) -> Result<()> {
        self.tables.fragments.put(&datagram_key(&datagram), value)?;
        self.state.datagrams.insert(datagram, recorded);
        Ok(())
    }

    /// Quotas of all endpoints: the flows that each has, and nearly the limit for some.
    fn quotas(&mut self) -> Result<()> {
        let pods = self
            .world
            .addresses
            .values()
            .filter_map(|address| match address {
                Address::Pod(pod) => Some(pod.identity()),
                Address::Host { .. } => None,
            });
        let identities: BTreeSet<u32> = pods.collect();
        for identity in identities {
            let most = self.world.settings.quotas.endpoint;
            if once_in(self.random, 8) {
                let used = self.state.quota.entry(identity).or_default();
                *used = (*used).max(most - self.random.below(3) as u64);
            }
        }
        for (endpoint, used) in &self.state.quota {
            self.quota(*endpoint, *used)?;
        }
        let inbound = self.state.inbound.values();
        let endpoints: BTreeSet<u32> = inbound.map(|flow| flow.endpoint).collect();
        for endpoint in endpoints {
            self.quota(inbound_quota(endpoint), self.state.inbound_of(endpoint))?;
        }
        Ok(())
    }

    fn quota(&self, key: u32, used: u64) -> Result<()> {
        let quota = Quota {
            flows: u32::try_from(used)?,
            ..Quota::NONE
        };
        self.tables.quota.put(&key, &quota)
    }
}

/// The key of a datagram in the map.
pub(super) fn datagram_key(datagram: &state::Datagram) -> DatagramKey {
    let is_v4 = datagram.source.is_ipv4();
    let id = match u16::try_from(datagram.id) {
        Ok(id) if is_v4 => u32::from(id.to_be()),
        _ => datagram.id.to_be(),
    };
    let address = |address: IpAddr| address.into();
    DatagramKey::new(
        address(datagram.source),
        address(datagram.destination),
        id,
        datagram.protocol,
    )
}
