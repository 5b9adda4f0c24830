//! Making the packets of a step.

use anyhow::{Context as _, Result, bail, ensure};

use crate::build::{Header, SCTP, TCP, Transport, UDP, icmp, quote};
use crate::canonical::transport_of;
use crate::play::{Flow, Frame, Player, Prepared};
use crate::sequence::{About, Body, Direction, Ports, Step};
use crate::stage::Net;

impl Player<'_> {
    /// The packets of a step; `None` where the family has no such packet.
    pub(crate) fn prepare(&mut self, step: &Step) -> Result<Option<Prepared>> {
        if let Body::Error { .. } = step.body {
            return self.error(step);
        }
        let (protocol, ports) = flow(&step.body, self.net);
        let (source, destination) = match step.direction {
            Direction::Out => (self.net.pod, self.net.remote),
            Direction::In if step.is_to_pod => (self.net.remote, self.net.pod),
            Direction::In => (self.net.remote, self.net.node),
        };
        let pod_port = match step.direction {
            Direction::In if !step.is_to_pod => self.outside_port(protocol, ports),
            Direction::In | Direction::Out => ports.pod,
        };
        let pair = match step.direction {
            Direction::Out => [pod_port, ports.remote],
            Direction::In => [ports.remote, pod_port],
        };
        let payload: Vec<u8> = (1..=u8::MAX).cycle().take(step.length).collect();
        let transport = match &step.body {
            Body::Tcp { segment, .. } => {
                let connections = &mut self.connections;
                let numbers = connections.next(step.direction, ports, *segment, step.length);
                Transport::tcp(pair, segment.flags, numbers.into(), &payload)
            }
            Body::Udp { .. } => Transport::udp(pair, &payload),
            Body::Echo { is_request, .. } => {
                let kind = match (self.net.pod.is_ipv4(), is_request) {
                    (true, true) => 8,
                    (true, false) => 0,
                    (false, true) => 128,
                    (false, false) => 129,
                };
                let word = (u32::from(pod_port) << 16) | 1;
                Transport::icmp(self.net.pod, [kind, 0], word, &payload)
            }
            Body::Sctp { .. } => Transport::sctp(pair),
            Body::Error { .. } => bail!("an error is made elsewhere"),
        };
        let is_summed = !matches!(
            step.body,
            Body::Udp {
                is_summed: false,
                ..
            }
        );
        let transport = if is_summed {
            transport.summed(source, destination)
        } else {
            transport
        };
        let header = self.header(source, destination);
        Ok(Some(Prepared {
            packets: packets(&header, &transport, step)?,
            flow: (protocol, ports),
            original: None,
        }))
    }

    fn error(&mut self, step: &Step) -> Result<Option<Prepared>> {
        let Body::Error {
            kind,
            about,
            quote: length,
            has_quoted_options,
            is_from_router,
        } = &step.body
        else {
            bail!("no error");
        };
        let is_v4 = self.net.pod.is_ipv4();
        let Some(kind_of_family) = (if is_v4 { Some(kind.v4) } else { kind.v6 }) else {
            return Ok(None);
        };
        let (quoted, (protocol, ports)) = match about {
            About::Step(label) => {
                let step = self.labelled.get(label);
                let (frame, flow) = step.with_context(|| format!("no packet came of {label}"))?;
                (frame.get(14..).unwrap_or_default().to_vec(), *flow)
            }
            About::Unknown { protocol, ports } => (
                self.unknown(step.direction, *protocol, *ports),
                (*protocol, *ports),
            ),
        };
        let original = transport_of(&[&[0; 14], &quoted[..]].concat())?;
        let outside = if *is_from_router {
            self.net.router
        } else {
            self.net.remote
        };
        let header = match step.direction {
            Direction::Out => self.header(self.net.pod, self.net.remote),
            Direction::In if step.is_to_pod => self.header(outside, self.net.pod),
            Direction::In => self.header(outside, self.net.node),
        };
        let quoted = quote(&quoted, *length, *has_quoted_options);
        let word = match (is_v4, kind.name) {
            (true, "parameter-problem") => 6 << 24,
            _ => kind.word,
        };
        let transport = Transport::icmp(self.net.pod, kind_of_family.into(), word, &quoted);
        let transport = transport.summed(header.source, header.destination);
        Ok(Some(Prepared {
            packets: packets(&header, &transport, step)?,
            flow: (protocol, ports),
            original: Some(original),
        }))
    }

    /// A packet that was not sent, as the sender of an error would quote it.
    fn unknown(&mut self, direction: Direction, protocol: u8, ports: Ports) -> Vec<u8> {
        let (header, pair) = match direction {
            Direction::Out => (
                self.header(self.net.remote, self.net.pod),
                [ports.remote, ports.pod],
            ),
            Direction::In => (
                self.header(self.net.node, self.net.remote),
                [ports.pod, ports.remote],
            ),
        };
        let transport = if protocol == TCP {
            Transport::tcp(pair, 0x10, [77, 78], &[5; 20])
        } else {
            Transport::udp(pair, &[5; 20])
        };
        header.packet(&transport.summed(header.source, header.destination))
    }
}

fn flow(body: &Body, net: &Net) -> Flow {
    match body {
        Body::Tcp { ports, .. } => (TCP, *ports),
        Body::Udp { ports, .. } => (UDP, *ports),
        Body::Sctp { ports } => (SCTP, *ports),
        Body::Echo { id, .. } => (
            icmp(net.pod),
            Ports {
                pod: *id,
                remote: 0,
            },
        ),
        Body::Error { .. } => (0, Ports { pod: 0, remote: 0 }),
    }
}

/// The packet of a step, or its pieces in the order in which they are sent.
fn packets(header: &Header, transport: &Transport, step: &Step) -> Result<Vec<Frame>> {
    if step.fragments.is_empty() {
        return Ok(vec![header.packet(transport)]);
    }
    ordered(&header.pieces(transport), &step.fragments)
}

fn ordered(pieces: &[Frame], order: &[usize]) -> Result<Vec<Frame>> {
    ensure!(
        order.len() == pieces.len(),
        "{} pieces, not {}",
        pieces.len(),
        order.len()
    );
    let piece = |number: &usize| {
        number
            .checked_sub(1)
            .and_then(|index| pieces.get(index))
            .cloned()
    };
    let ordered: Option<Vec<_>> = order.iter().map(piece).collect();
    ordered.context("pieces are numbered from 1")
}
