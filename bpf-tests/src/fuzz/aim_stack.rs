//! Packets of flows through the host's stack, and packets that the stack sends to pods.

use datapath_common::counter::Program;
use testkit::packet::Macs;

use super::Device;
use super::aim::{Aim, Sent};
use super::node::{DEVICES, ENIS, VETHS, pod_addresses};
use super::packet::{Load, Spec, once_in, pick};
use crate::model::state::Inside;

impl Aim<'_> {
    /// A flow through the stack, sometimes.
    pub(super) fn flow_of_stack(&mut self) -> Option<Inside> {
        let insides = &self.state.stack;
        if insides.is_empty() || self.random.below(3) != 0 {
            return None;
        }
        insides
            .keys()
            .nth(self.random.below(insides.len()))
            .copied()
    }

    /// A packet of such a flow, at a program's hook.
    pub(super) fn on_stack(&mut self, program: Program, inside: &Inside) -> Sent {
        let pod = self.world.pod(inside.pod);
        let of = |devices: &[Device], ifindex: Option<u32>| {
            let mut devices = devices.iter();
            devices
                .find(|device| Some(device.ifindex) == ifindex)
                .copied()
        };
        let veth = of(&VETHS, pod.map(|pod| pod.ifindex)).unwrap_or(VETHS[0]);
        let enis = ENIS.map(|(_, device)| device);
        let eni = of(&enis, pod.map(|pod| pod.eni_ifindex)).unwrap_or(enis[0]);
        let there = (inside.pod, inside.pod_port);
        let back = (inside.remote, inside.remote_port);
        let (from, to) = match program {
            Program::FromEndpoint | Program::ToNetwork => (there, back),
            Program::FromNetwork | Program::ToEndpoint => (back, there),
        };
        let (source, mut destination) = (from.0, to.0);
        let mut load = Load::Ports(inside.protocol, from.1, to.1);
        if once_in(self.random, 4) {
            let quoted = Load::Ports(inside.protocol, to.1, from.1);
            let mut receiver = source;
            // Other pods must have no influence on the flow.
            if once_in(self.random, 6) {
                receiver = self.any(source.is_ipv4());
            }
            load = Load::Error(self.quote(destination, receiver, quoted));
            if once_in(self.random, 4) {
                destination = self.any(source.is_ipv4());
            }
        }
        let spec = Spec::new(source, destination, load);
        match program {
            Program::FromEndpoint => self.sent(veth, spec),
            Program::FromNetwork => self.received(eni, spec),
            Program::ToNetwork => self.carried(eni, spec),
            Program::ToEndpoint => self.delivered(veth, spec),
        }
    }

    /// Packet that the stack sends to a pod.
    pub(super) fn delivered_by_stack(&mut self) -> Sent {
        let pod = self.random.below(VETHS.len());
        let is_v4 = self.is_v4();
        let destination = pod_addresses(pod)[usize::from(!is_v4)];
        let source = self.any(is_v4);
        let load = self.load(is_v4, false);
        let spec = Spec::new(source, destination, load);
        self.delivered(VETHS[pod], spec)
    }

    fn delivered(&mut self, veth: Device, spec: Spec) -> Sent {
        let device = if once_in(self.random, 24) {
            pick(self.random, &DEVICES)
        } else {
            veth
        };
        let ingress_ifindex = match self.random.below(6) {
            0 => 0,
            1 => pick(self.random, &DEVICES).ifindex,
            _ => pick(self.random, &ENIS).1.ifindex,
        };
        Sent {
            macs: Macs::new(device.mac, [2, 0, 0, 0, 0, 4]),
            ifindex: device.ifindex,
            ingress_ifindex,
            spec,
        }
    }
}
