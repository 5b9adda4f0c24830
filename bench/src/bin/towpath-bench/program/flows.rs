//! Translated flows: their packets on the inside and the outside, and the packets' cost.

use std::net::IpAddr;

use anyhow::{Context as _, Result, ensure};
use datapath_common::abi::{Addr, Flow, FlowKey, Moved, PodTuple, TransportAddr, map};
use datapath_common::counter::Program;
use datapath_common::outcome::Verdict;
use datapath_common::ports::Ports;
use testkit::packet::{Body, Frame};
use testkit::testrun::Programs;
use testkit::testrun::scene::{ENI_1, Net, V4, V6, VETH_A, from_a, received};
use testkit::testrun::tables::Table;

use super::floor::Floor;
use super::meter::{Meter, Path, packet};
use super::paths::{ACK, MANY, SYN, TCP, UDP, leaves, numbered, on};
use super::variant::Variants;

/// Choice of a flow's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gets {
    /// The pod's own.
    Own,
    /// Another one, because the pod's is not a port for translation: its first candidate.
    Candidate,
    /// Another one than its first candidate, which is taken.
    Other,
}

impl Gets {
    pub(super) const ALL: [Self; 3] = [Self::Own, Self::Candidate, Self::Other];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Own => "port kept",
            Self::Candidate => "port changed",
            Self::Other => "port taken",
        }
    }
}

/// Protocol of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carries {
    Tcp,
    Udp,
    Echo,
}

impl Carries {
    pub(super) const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Echo];

    fn name(self) -> &'static str {
        match self {
            Self::Tcp => TCP.0,
            Self::Udp => UDP.0,
            Self::Echo => "icmp",
        }
    }

    fn remote_port(self) -> u16 {
        match self {
            Self::Tcp => 80,
            Self::Udp => 53,
            Self::Echo => 0,
        }
    }

    fn protocol(self, net: &Net) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Echo if net.a.is_ipv4() => 1,
            Self::Echo => 58,
        }
    }

    fn body(self, asks: bool) -> Body {
        match self {
            Self::Tcp => TCP.1,
            Self::Udp => UDP.1,
            Self::Echo => Body::Echo { asks },
        }
    }
}

/// Flows of pod A, all alike.
pub(super) struct Flows {
    pub(super) net: Net,
    pub(super) carries: Carries,
    pub(super) gets: Gets,
    /// Each flow's remote and pod port.
    pub(super) ends: Vec<(IpAddr, u16)>,
}

/// Pod ports for each remote.
const PORTS: usize = 100;

impl Flows {
    /// A number of flows.
    pub(super) fn new(net: Net, carries: Carries, gets: Gets, count: usize) -> Self {
        let ports = pod_ports(&net, gets);
        // Each kind of flow has remotes of its own.
        let place = 1 + gets as usize;
        let first = match net.outside {
            IpAddr::V4(v4) => IpAddr::V4(
                (u32::from(v4) & 0xff00_0000 | u32::try_from(place).unwrap_or_default() << 16 | 7)
                    .into(),
            ),
            IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) | (place as u128) << 32).into()),
        };
        let ends = (0..count).map(|number| {
            let remote = numbered(first, number / PORTS);
            (remote, ports[number % PORTS])
        });
        Self {
            ends: ends.collect(),
            net,
            carries,
            gets,
        }
    }

    fn tuple(&self, (remote, port): (IpAddr, u16)) -> PodTuple {
        let (pod_port, remote_port) = match self.carries {
            Carries::Echo => (port.to_be(), 0),
            Carries::Tcp | Carries::Udp => (port.to_be(), self.carries.remote_port().to_be()),
        };
        let protocol = self.carries.protocol(&self.net);
        let (pod, remote) = (Addr::from(self.net.a), Addr::from(remote));
        PodTuple::new(
            protocol,
            TransportAddr::new(pod, pod_port),
            TransportAddr::new(remote, remote_port),
        )
    }

    fn key_at(tuple: &PodTuple, port: u16) -> FlowKey {
        FlowKey::new(
            1,
            tuple.protocol,
            TransportAddr::new(tuple.remote, tuple.remote_port),
            port,
        )
    }

    fn candidate(&self, port: u16) -> u16 {
        Ports::DEFAULT.candidate(self.net.a.into(), port, false)
    }

    /// Takes every first candidate, if the flows must get another one.
    pub(super) fn occupy(&self, programs: &Programs) -> Result<()> {
        if self.gets != Gets::Other {
            return Ok(());
        }
        let table = flows_of(programs, &self.net)?;
        for end in &self.ends {
            let key = Self::key_at(&self.tuple(*end), self.candidate(end.1).to_be());
            preload(&table, &key, self.net.b)?;
        }
        Ok(())
    }

    /// The flows' keys in the table, as the programs have made them.
    pub(super) fn keys(&self, programs: &Programs) -> Result<Vec<FlowKey>> {
        let moved: Table<PodTuple, Moved> = programs.table(if self.net.a.is_ipv4() {
            map::MOVED_V4
        } else {
            map::MOVED_V6
        })?;
        let table = flows_of(programs, &self.net)?;
        let keys = self.ends.iter().map(|end| {
            let tuple = self.tuple(*end);
            let own = Self::key_at(&tuple, self.candidate(end.1).to_be());
            let is_own = |flow: &Flow| flow.pod == tuple.pod && flow.pod_port == tuple.pod_port;
            if table.get(&own)?.as_ref().is_some_and(is_own) {
                return Ok(own);
            }
            let moved = moved
                .get(&tuple)?
                .with_context(|| format!("{tuple:?} has no flow"))?;
            Ok(Self::key_at(&tuple, moved.port))
        });
        keys.collect()
    }

    /// Packets that the pod sends, one for each flow, with these TCP flags.
    pub(super) fn out(&self, flags: u8) -> Vec<Frame> {
        let frames = self.ends.iter().map(|(remote, port)| {
            let frame = from_a(&self.net, *remote, self.carries.body(true));
            frame.ports(*port, self.carries.remote_port()).tcp(flags, 1)
        });
        frames.collect()
    }

    /// Packets that come back, one for each flow.
    fn back(&self, keys: &[FlowKey], flags: u8) -> Vec<Frame> {
        let ends = self.ends.iter().zip(keys);
        let frames = ends.map(|((remote, _), key)| {
            let body = self.carries.body(false);
            let frame = received(ENI_1, *remote, self.net.snat[1], body);
            let port = u16::from_be(key.port);
            frame.ports(self.carries.remote_port(), port).tcp(flags, 1)
        });
        frames.collect()
    }

    fn path(&self, is_out: bool, frames: &[Frame]) -> Path {
        let (what, program, device, verdict) = if is_out {
            ("out", Program::FromEndpoint, VETH_A, Verdict::Translated)
        } else {
            ("back", Program::FromNetwork, ENI_1, Verdict::Returned)
        };
        let many = if self.ends.len() > 1 { MANY } else { "" };
        Path {
            name: format!(
                "masqueraded {what}, {} {}, {}{many}",
                self.carries.name(),
                self.net.family(),
                self.gets.name()
            ),
            program,
            on: on(device),
            packets: frames
                .iter()
                .map(|frame| packet(frame.bytes(), 0))
                .collect(),
            expected: leaves(verdict),
        }
    }

    /// The path on which the pod opens the flows.
    pub(super) fn opening(&self) -> Path {
        self.path(true, &self.out(SYN))
    }
}

/// Ports of the pod with which its flows to one remote do not collide.
fn pod_ports(net: &Net, gets: Gets) -> Vec<u16> {
    let first = match gets {
        Gets::Own | Gets::Other => 45_000,
        Gets::Candidate => 20_000,
    };
    let mut seen = std::collections::BTreeSet::new();
    (first..u16::MAX)
        .filter(|port| seen.insert(Ports::DEFAULT.candidate(net.a.into(), *port, false)))
        .take(PORTS)
        .collect()
}

/// The translated flows of a family.
pub(super) fn flows_of(programs: &Programs, net: &Net) -> Result<Table<FlowKey, Flow>> {
    programs.table(if net.a.is_ipv4() {
        map::FLOWS_V4
    } else {
        map::FLOWS_V6
    })
}

/// Puts a flow of an unrelated pod in a flow's place.
pub(super) fn preload(table: &Table<FlowKey, Flow>, key: &FlowKey, pod: IpAddr) -> Result<()> {
    let nobody = u32::MAX;
    table.put(
        key,
        &Flow::new(key, TransportAddr::new(pod.into(), key.port), nobody, 0),
    )
}

/// Measures packets of established flows.
pub(super) fn measure(meter: &mut Meter, variants: &mut Variants) -> Result<()> {
    for net in [V4, V6] {
        for carries in Carries::ALL {
            for gets in Gets::ALL {
                established(meter, variants, &Flows::new(net, carries, gets, 1))?;
                let is_common = gets == Gets::Own && carries == Carries::Tcp;
                if meter.plan.is_full || is_common {
                    let flows = Flows::new(net, carries, gets, meter.plan.flows);
                    established(meter, variants, &flows)?;
                }
            }
        }
    }
    Ok(())
}

fn established(meter: &mut Meter, variants: &mut Variants, flows: &Flows) -> Result<()> {
    for variant in &variants.0 {
        flows.occupy(&variant.programs)?;
    }
    meter.pass(&flows.opening(), variants.0.iter_mut())?;
    let mut keys = Vec::new();
    for variant in &mut variants.0 {
        let keys_here = flows.keys(&variant.programs)?;
        let kept = keys_here.iter().zip(&flows.ends);
        let kept = kept.filter(|(key, (_, port))| key.port == flows.candidate(*port).to_be());
        let expected = if flows.gets == Gets::Other {
            0
        } else {
            flows.ends.len()
        };
        ensure!(kept.count() == expected, "{:?}: other ports", flows.gets);
        let answers = flows.path(false, &flows.back(&keys_here, SYN | ACK));
        meter.pass(&answers, std::iter::once(&mut *variant))?;
        keys.push(keys_here);
    }
    let out = flows.path(true, &flows.out(ACK));
    let has_floor =
        flows.net.a.is_ipv4() && (flows.carries, flows.gets) == (Carries::Tcp, Gets::Own);
    let floors = |floors: &'static [Floor], path: &Path| {
        // A cache is for few flows.
        let skipped = usize::from(flows.ends.len() > 1);
        let floors = if has_floor { &floors[skipped..] } else { &[] };
        Floor::build_all(floors, &path.packets)
    };
    let many = if flows.ends.len() > 1 { MANY } else { "" };
    let built = floors(&Floor::OUT, &out)?;
    let beside: Vec<_> = built.iter().map(|floor| floor.beside(many)).collect();
    meter.measure(&out, variants.0.iter_mut(), &beside)?;
    let back = |keys: &[FlowKey]| flows.path(false, &flows.back(keys, ACK));
    if keys.iter().all(|other| Some(other) == keys.first()) {
        let back = back(&keys[0]);
        let built = floors(&Floor::BACK, &back)?;
        let beside: Vec<_> = built.iter().map(|floor| floor.beside(many)).collect();
        meter.measure(&back, variants.0.iter_mut(), &beside)?;
    } else {
        // A random port differs between variants.
        for (variant, keys) in variants.0.iter_mut().zip(&keys) {
            meter.measure(&back(keys), std::iter::once(variant), &[])?;
        }
    }
    variants.forget_flows()
}
