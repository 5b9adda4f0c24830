//! Plays a sequence on a stage, packet by packet.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::{Context as _, Result, bail, ensure};

use crate::build::{Header, Transport, UDP};
use crate::canonical::{Mapping, canonical, source_port};
use crate::numbers::Connections;
use crate::sequence::{Body, Direction, Outcome, Ports, Step};
use crate::stage::{End, Net, Stage};

/// The flow of the marks: a mark that follows another packet comes out after everything that the
/// packet causes.
const MARKS: Ports = Ports {
    pod: 65_001,
    remote: 9,
};

/// The outcome of a packet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Played {
    pub(crate) outcome: Outcome,
    /// Frames that reached the other side, or came back to the sender.
    pub(crate) frames: Vec<Frame>,
}

/// A sequence being played in one family.
pub(crate) struct Player<'a> {
    stage: &'a Stage,
    pub(crate) net: &'a Net,
    /// The port that the outside sees, by protocol and the pod's view.
    mappings: BTreeMap<(u8, u16, u16), u16>,
    pub(crate) connections: Connections,
    /// Packets of the steps with a label, as their receivers got them.
    pub(crate) labelled: BTreeMap<String, (Vec<u8>, Flow)>,
    marks: u32,
    ids: u16,
}

/// Protocol and ports of a packet.
pub(crate) type Flow = (u8, Ports);

/// A packet ready to be sent.
pub(crate) struct Prepared {
    /// The packet, or its fragments.
    pub(crate) packets: Vec<Frame>,
    pub(crate) flow: Flow,
    /// Whole transport part of the packet that an error quotes.
    pub(crate) original: Option<Vec<u8>>,
}

/// The bytes of a frame or packet.
pub(crate) type Frame = Vec<u8>;

impl<'a> Player<'a> {
    pub(crate) fn new(stage: &'a Stage, net: &'a Net) -> Result<Self> {
        let mut player = Self {
            stage,
            net,
            mappings: BTreeMap::new(),
            connections: Connections::default(),
            labelled: BTreeMap::new(),
            marks: 0,
            ids: 0x4000,
        };
        player.mark(End::Pod)?;
        Ok(player)
    }

    /// Plays a step and returns its result; `None` if the family has no such packet.
    pub(crate) fn play(&mut self, step: &Step) -> Result<Option<Played>> {
        let Some(prepared) = self.prepare(step)? else {
            return Ok(None);
        };
        let (from, to) = match step.direction {
            Direction::Out => (End::Pod, End::World),
            Direction::In => (End::World, End::Pod),
        };
        for packet in &prepared.packets {
            self.stage.send(from, packet)?;
        }
        let (far, near) = self.fence(from, to)?;
        let result = self.judge(step, &prepared, far, near)?;
        Ok(Some(result))
    }

    fn judge(
        &mut self,
        step: &Step,
        prepared: &Prepared,
        far: Vec<Frame>,
        near: Vec<Frame>,
    ) -> Result<Played> {
        let (protocol, ports) = prepared.flow;
        let is_untranslated = step.direction == Direction::Out
            && far
                .iter()
                .any(|frame| source(frame) == octets(self.net.pod));
        let outcome = match (far.is_empty(), near.is_empty()) {
            (false, false) => bail!("packets came to both ends: {far:02x?} and {near:02x?}"),
            (false, true) if is_untranslated => Outcome::Untranslated,
            (false, true) if far.len() < prepared.packets.len() => Outcome::Partly,
            (false, true) => {
                ensure!(
                    far.len() == prepared.packets.len(),
                    "{} packets came",
                    far.len()
                );
                Outcome::Delivered
            }
            (true, false) => Outcome::Answered,
            (true, true) => Outcome::Nothing,
        };
        let is_error = matches!(step.body, Body::Error { .. });
        if step.direction == Direction::Out && outcome == Outcome::Delivered && !is_error {
            let first = far.iter().find_map(|frame| source_port(frame));
            self.learn(protocol, ports, first.context("a packet without a port")?)?;
        }
        if let (Some(label), Some(frame)) = (&step.label, far.first()) {
            self.labelled
                .insert(label.clone(), (frame.clone(), prepared.flow));
        }
        let mapping = self.mapping(protocol, ports);
        let is_from_node = outcome == Outcome::Answered;
        let frames = if far.is_empty() { near } else { far };
        let original = prepared.original.as_deref();
        let mut frames = canonical(&frames, mapping.as_ref(), original, is_from_node)?;
        // conntrack sends fragments in order, whatever their order of arrival.
        frames.sort_unstable();
        Ok(Played { outcome, frames })
    }

    /// Records the port that the outside sees; a flow must keep its port.
    fn learn(&mut self, protocol: u8, ports: Ports, port: u16) -> Result<()> {
        let key = (protocol, ports.pod, ports.remote);
        let known = *self.mappings.entry(key).or_insert(port);
        ensure!(known == port, "a flow had port {known}, and has {port} now");
        Ok(())
    }

    fn mapping(&self, protocol: u8, ports: Ports) -> Option<Mapping> {
        let port = self.mappings.get(&(protocol, ports.pod, ports.remote))?;
        Some(Mapping {
            address: self.net.node,
            port: *port,
            inside: self.net.pod,
            inside_port: ports.pod,
        })
    }

    /// The port that replaces the pod's in packets from the outside.
    pub(crate) fn outside_port(&self, protocol: u8, ports: Ports) -> u16 {
        let key = (protocol, ports.pod, ports.remote);
        self.mappings.get(&key).copied().unwrap_or(ports.pod)
    }

    /// Waits until everything that the last packet caused has reached both ends.
    fn fence(&mut self, from: End, to: End) -> Result<(Vec<Frame>, Vec<Frame>)> {
        let far = self.mark(from)?;
        let near = self.mark(to)?;
        Ok((far, near))
    }

    /// Sends a mark from one end, and returns the frames that reached the other one before it.
    fn mark(&mut self, from: End) -> Result<Vec<Frame>> {
        self.marks += 1;
        let text = format!("towpath mark {:08}", self.marks);
        let (header, ports, to) = match from {
            End::Pod => (
                self.header(self.net.pod, self.net.remote),
                [MARKS.pod, MARKS.remote],
                End::World,
            ),
            End::World => (
                self.header(self.net.remote, self.net.node),
                [MARKS.remote, self.outside_port(UDP, MARKS)],
                End::Pod,
            ),
        };
        let transport = Transport::udp(ports, text.as_bytes());
        let transport = transport.summed(header.source, header.destination);
        self.stage.send(from, &header.packet(&transport))?;
        let mut came = self.stage.collect(to, self.net, text.as_bytes())?;
        let mark = came.pop().context("a mark")?;
        if from == End::Pod {
            let port = source_port(&mark).context("a mark without a port")?;
            self.learn(UDP, MARKS, port)?;
        }
        Ok(came)
    }

    pub(crate) fn header(&mut self, source: IpAddr, destination: IpAddr) -> Header {
        self.ids += 1;
        Header {
            source,
            destination,
            id: self.ids,
        }
    }
}

/// The source address of a frame.
fn source(frame: &[u8]) -> Vec<u8> {
    let range = if frame.get(12..14) == Some(&[8, 0]) {
        26..30
    } else {
        22..38
    };
    frame.get(range).unwrap_or_default().to_vec()
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}
