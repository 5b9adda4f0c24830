//! Packets and their targets: most give the programs something to do, in flows that exist and in
//! new ones.

use std::net::IpAddr;

use datapath_common::counter::Program;
use testkit::packet::Macs;
use testkit::random::Random;

use super::node::{
    DEVICES, ENIS, OTHER, VETHS, others, pod_addresses, remotes, translation_addresses,
};
use super::packet::{Load, OTHERS, Spec, WITH_PORTS, framed, mutate, once_in, pick};
use crate::model::Packet;
use crate::model::parse::{ICMP, ICMPV6};
use crate::model::state::{Flow, Inside, Outside, State};
use crate::model::world::World;

/// Ports of pods and of the host: inside and outside of the variants' ports for translation, and
/// the limits of those.
pub(super) const PORTS: [u16; 16] = [
    40_000, 1024, 1100, 1535, 1536, 33_333, 40_959, 40_960, 41_000, 49_152, 49_160, 60_416, 61_439,
    61_440, 65_535, 0,
];
/// Ports of remotes.
pub(super) const REMOTE_PORTS: [u16; 4] = [53, 443, 0, 40_000];

/// Inputs from which packets are made.
pub(super) struct Aim<'a> {
    pub(super) world: &'a World,
    pub(super) state: &'a State,
    pub(super) random: &'a mut Random,
}

/// A packet with its devices.
pub(super) struct Sent {
    pub(super) macs: Macs,
    pub(super) ifindex: u32,
    pub(super) ingress_ifindex: u32,
    pub(super) spec: Spec,
}

impl Aim<'_> {
    /// A packet, for a program.
    pub(super) fn packet(&mut self) -> (Program, Packet) {
        // A packet that the stack sends to pods matters only where flows through the stack are
        // stored.
        let programs = if self.world.settings.service_nat {
            24
        } else {
            21
        };
        let program = match self.random.below(programs) {
            0..8 => Program::FromEndpoint,
            8..16 => Program::FromNetwork,
            16..20 => Program::ToNetwork,
            _ => Program::ToEndpoint,
        };
        let sent = match (self.flow_of_stack(), program) {
            (Some(inside), _) => self.on_stack(program, &inside),
            (None, Program::FromEndpoint) => self.of_pod(),
            (None, Program::FromNetwork) => self.of_vpc(),
            (None, Program::ToNetwork) => self.of_stack(),
            (None, Program::ToEndpoint) => self.delivered_by_stack(),
        };
        let mut frame = framed(sent.macs, &sent.spec.packet(self.random));
        mutate(self.random, &mut frame);
        let gso_size = match self.random.below(24) {
            0 => 1 + self.random.below(1500),
            1 => 1400,
            _ => 0,
        };
        let packet = Packet {
            frame,
            ifindex: sent.ifindex,
            ingress_ifindex: sent.ingress_ifindex,
            mark: self.mark(program),
            gso_size: u32::try_from(gso_size).unwrap_or_default(),
        };
        (program, packet)
    }

    fn mark(&mut self, program: Program) -> u32 {
        let marks = self.world.settings.marks;
        let any = u32::try_from(self.random.number() >> 32).unwrap_or_default();
        let eni = (u32::from(pick(self.random, &ENIS).0) + 1) << marks.shift;
        let mut mark = pick(self.random, &[0, 0x4880, 0x4880 | eni, 0xff00_4880, any]);
        if matches!(program, Program::FromEndpoint | Program::FromNetwork) {
            return mark;
        }
        if !once_in(self.random, 16) {
            mark &= !marks.done;
        }
        if !once_in(self.random, 4) {
            mark &= !marks.exception;
        }
        mark
    }

    /// A flow from the outside.
    fn noted(&mut self) -> Option<Inside> {
        let insides = &self.state.inbound;
        let number = self.random.below(insides.len().max(1));
        insides.keys().nth(number).copied()
    }

    /// A translated flow.
    fn flow(&mut self) -> Option<(Outside, Flow)> {
        let count = self.state.flows.len();
        if count == 0 {
            return None;
        }
        let (outside, flow) = self.state.flows.iter().nth(self.random.below(count))?;
        Some((*outside, *flow))
    }

    pub(super) fn is_v4(&mut self) -> bool {
        once_in(self.random, 2)
    }

    fn remote(&mut self, is_v4: bool) -> IpAddr {
        pick(self.random, &remotes(is_v4))
    }

    /// Any address with a role on the node.
    pub(super) fn any(&mut self, is_v4: bool) -> IpAddr {
        let family = usize::from(!is_v4);
        match self.random.below(4) {
            0 => self.remote(is_v4),
            1 => pod_addresses(self.random.below(VETHS.len()))[family],
            2 => self.translation(is_v4),
            _ => pick(self.random, &others(is_v4)),
        }
    }

    fn translation(&mut self, is_v4: bool) -> IpAddr {
        let (eni, _) = pick(self.random, &ENIS);
        translation_addresses(eni)[usize::from(!is_v4)].unwrap_or(others(is_v4)[0])
    }

    /// A transport with these ports, or with unknown ones.
    pub(super) fn load(&mut self, is_v4: bool, from_inside: bool) -> Load {
        let icmp = if is_v4 { ICMP } else { ICMPV6 };
        let (inside, outside) = (pick(self.random, &PORTS), pick(self.random, &REMOTE_PORTS));
        let (source, destination) = if from_inside {
            (inside, outside)
        } else {
            (outside, inside)
        };
        match self.random.below(12) {
            0 => Load::Other(pick(self.random, &OTHERS)),
            1 if once_in(self.random, 2) => Load::Other(icmp),
            1..4 if once_in(self.random, 2) => Load::Ports(icmp, inside, 0),
            1..4 => Load::Ports(icmp, 0, inside),
            _ => Load::Ports(pick(self.random, &WITH_PORTS), source, destination),
        }
    }

    /// The beginning of a packet, as an ICMP error quotes it.
    pub(super) fn quote(&mut self, source: IpAddr, destination: IpAddr, load: Load) -> Vec<u8> {
        let mut packet = Spec::new(source, destination, load).packet(self.random);
        let header = if source.is_ipv4() { 20 } else { 40 };
        let length = match self.random.below(6) {
            0 => self.random.below(header + 12),
            1 | 2 => header + 8,
            3 => 128,
            _ => 548,
        };
        packet.truncate(length);
        packet
    }

    /// Packet that a pod sends.
    fn of_pod(&mut self) -> Sent {
        let mut veth = pick(self.random, &VETHS);
        let mut is_v4 = self.is_v4();
        let family = |is_v4: bool| usize::from(!is_v4);
        let pod = VETHS.iter().position(|one| one.ifindex == veth.ifindex);
        let mut source = pod_addresses(pod.unwrap_or_default())[family(is_v4)];
        let mut destination = match self.random.below(16) {
            0..11 => self.remote(is_v4),
            _ => self.any(is_v4),
        };
        let mut load = self.load(is_v4, true);
        match self.flow() {
            Some((outside, flow)) if once_in(self.random, 2) => {
                is_v4 = flow.pod.is_ipv4();
                // Packets of the present pod look like those of the former one.
                let pod = self.world.pod(flow.pod).map(|pod| pod.ifindex);
                if let Some(device) = VETHS.iter().find(|one| Some(one.ifindex) == pod) {
                    veth = *device;
                }
                source = flow.pod;
                destination = outside.remote;
                load = Load::Ports(outside.protocol, flow.pod_port, outside.remote_port);
                if once_in(self.random, 4) {
                    let load = Load::Ports(outside.protocol, outside.remote_port, flow.pod_port);
                    let quote = self.quote(outside.remote, flow.pod, load);
                    // Another pod must have no influence on the flow.
                    if once_in(self.random, 4) {
                        let other = self.random.below(VETHS.len());
                        veth = VETHS[other];
                        source = pod_addresses(other)[family(is_v4)];
                    }
                    let spec = Spec::new(source, destination, Load::Error(quote));
                    return self.sent(veth, spec);
                }
            }
            _ if once_in(self.random, 12) => {
                let load = self.load(is_v4, false);
                let quote = self.quote(destination, source, load);
                let spec = Spec::new(source, destination, Load::Error(quote));
                return self.sent(veth, spec);
            }
            _ => {}
        }
        if once_in(self.random, 24) {
            source = self.any(is_v4);
        }
        self.sent(veth, Spec::new(source, destination, load))
    }

    pub(super) fn sent(&mut self, veth: super::Device, spec: Spec) -> Sent {
        let veth = if once_in(self.random, 32) {
            pick(self.random, &DEVICES)
        } else {
            veth
        };
        Sent {
            macs: Macs::new([2, 0, 0, 0, 0, 1], veth.mac),
            ifindex: veth.ifindex,
            ingress_ifindex: veth.ifindex,
            spec,
        }
    }

    /// Packet that the VPC sends.
    fn of_vpc(&mut self) -> Sent {
        let (mut eni, mut device) = pick(self.random, &ENIS);
        let mut is_v4 = self.is_v4();
        let mut source = match self.random.below(16) {
            0 => self.any(is_v4),
            _ => self.remote(is_v4),
        };
        let mut destination = match self.random.below(8) {
            0..3 => translation_addresses(eni)[usize::from(!is_v4)].unwrap_or(source),
            3..7 => pod_addresses(self.random.below(VETHS.len()))[usize::from(!is_v4)],
            _ => self.any(is_v4),
        };
        let mut load = self.load(is_v4, false);
        if let Some(inside) = self.noted()
            && once_in(self.random, 8)
        {
            let owner = self.world.pod(inside.pod).map(|pod| pod.eni_ifindex);
            if let Some((_, found)) = ENIS.iter().find(|(_, eni)| Some(eni.ifindex) == owner) {
                device = *found;
            }
            let load = Load::Ports(inside.protocol, inside.remote_port, inside.pod_port);
            return self.received(device, Spec::new(inside.remote, inside.pod, load));
        }
        if let Some((outside, _)) = self.flow()
            && once_in(self.random, 2)
        {
            is_v4 = outside.remote.is_ipv4();
            eni = outside.eni;
            if let Some((_, found)) = ENIS.iter().find(|(number, _)| *number == eni) {
                device = *found;
            }
            let ours = translation_addresses(eni)[usize::from(!is_v4)];
            destination = ours.unwrap_or(destination);
            source = outside.remote;
            load = Load::Ports(outside.protocol, outside.remote_port, outside.port);
            if once_in(self.random, 3) {
                let load = Load::Ports(outside.protocol, outside.port, outside.remote_port);
                let quoted = if once_in(self.random, 16) {
                    self.any(is_v4)
                } else {
                    destination
                };
                let quote = self.quote(quoted, outside.remote, load);
                source = self.remote(is_v4);
                return self.received(device, Spec::new(source, destination, Load::Error(quote)));
            }
        }
        if source.is_ipv4() != destination.is_ipv4() {
            source = remotes(destination.is_ipv4())[0];
        }
        self.received(device, Spec::new(source, destination, load))
    }

    pub(super) fn received(&mut self, device: super::Device, spec: Spec) -> Sent {
        let device = match self.random.below(24) {
            0 => OTHER,
            1 => pick(self.random, &ENIS).1,
            _ => device,
        };
        let mac = if once_in(self.random, 48) {
            [2, 9, 9, 9, 9, 9]
        } else {
            device.mac
        };
        Sent {
            macs: Macs::new([2, 0, 0, 0, 0, 2], mac),
            ifindex: device.ifindex,
            ingress_ifindex: device.ifindex,
            spec,
        }
    }

    /// Packet that the stack sends out of an ENI.
    fn of_stack(&mut self) -> Sent {
        let (_, device) = pick(self.random, &ENIS);
        let is_v4 = self.is_v4();
        let from_host = once_in(self.random, 2);
        let mut source = if from_host {
            self.translation(is_v4)
        } else {
            pod_addresses(self.random.below(VETHS.len()))[usize::from(!is_v4)]
        };
        if once_in(self.random, 16) {
            source = self.any(is_v4);
        }
        let mut destination = match self.random.below(12) {
            0 => self.any(is_v4),
            _ => self.remote(is_v4),
        };
        let mut load = self.load(is_v4, true);
        if let Some((outside, flow)) = self.flow()
            && once_in(self.random, 2)
        {
            let pod = if once_in(self.random, 3) {
                let ours = translation_addresses(outside.eni)[usize::from(!flow.pod.is_ipv4())];
                ours.unwrap_or(flow.pod)
            } else {
                flow.pod
            };
            source = pod;
            destination = outside.remote;
            // The host uses the pod's port, or the port that the outside sees.
            let port = pick(self.random, &[flow.pod_port, outside.port]);
            load = Load::Ports(outside.protocol, port, outside.remote_port);
            if once_in(self.random, 4) {
                let load = Load::Ports(outside.protocol, outside.remote_port, flow.pod_port);
                let quote = self.quote(outside.remote, flow.pod, load);
                source = self.translation(flow.pod.is_ipv4());
                return self.carried(device, Spec::new(source, destination, Load::Error(quote)));
            }
        }
        self.carried(device, Spec::new(source, destination, load))
    }

    pub(super) fn carried(&mut self, device: super::Device, spec: Spec) -> Sent {
        let ingress = match self.random.below(4) {
            0 => 0,
            1 => pick(self.random, &DEVICES).ifindex,
            _ if self.world.pod(spec.source).is_some() => VETHS[0].ifindex,
            _ => 0,
        };
        Sent {
            macs: Macs::new(device.mac, [2, 0, 0, 0, 0, 3]),
            ifindex: device.ifindex,
            ingress_ifindex: ingress,
            spec,
        }
    }
}
