//! Sequences of packets, read from `tests/sequences/*.txt`.
//!
//! A line is a packet:
//!
//! ```text
//! [label:] out|in PROTOCOL ... [=> OUTCOME | => kernel OUTCOME, ours OUTCOME (DIFFERENCE)]
//! ```
//!
//! * `out tcp 50000 > 80 SA [len N] [skip N] [again] [zero]`: flags `S A F R P`, bytes of payload. Sequence
//!   and acknowledgement numbers follow from the packets before; `skip` adds to the former, `again`
//!   takes that of the side's last packet once more, `zero` makes it 0.
//! * `out udp 50000 > 53 [len N] [no-sum]`
//! * `out echo 700 request|reply [len N]`: 700 is the id as the pod has it.
//! * `out sctp 50000 > 80`: an INIT chunk.
//! * `in KIND about LABEL|PROTOCOL PORT > PORT [quote N] [quoted-options] [router]`: an ICMP error;
//!   KIND as in [`crate::errors::KINDS`].
//! * after any of these: `fragments 3 1 2`, the order in which the fragments are sent.
//!
//! Ports are written as the pod sees them: in packets from the outside, the pod's port stands for
//! the port that the outside has seen of it. `to-pod` sends a packet to the pod's own address.
//!
//! Without an outcome, the packet has to be delivered.

use std::fmt;

use anyhow::{Context as _, Result, bail, ensure};

use crate::errors::{KINDS, Kind};

/// Direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Out,
    In,
}

/// The outcome of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It reaches the other side, translated.
    Delivered,
    /// It reaches the other side with the pod's address in it.
    Untranslated,
    /// It reaches no side.
    Nothing,
    /// The node answers its sender.
    Answered,
    /// Only some of its fragments reach the other side.
    Partly,
}

impl fmt::Display for Outcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Delivered => "delivered",
            Self::Untranslated => "untranslated",
            Self::Nothing => "nothing",
            Self::Answered => "answered",
            Self::Partly => "partly",
        })
    }
}

/// Expected outcome of a packet, on both sides of the comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) kernel: Outcome,
    pub(crate) ours: Outcome,
    /// The name of the difference, if there is one.
    pub(crate) difference: Option<String>,
}

/// Ports of a packet, as the pod sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ports {
    pub(crate) pod: u16,
    pub(crate) remote: u16,
}

/// Properties of a TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) flags: u8,
    /// Added to the sequence number.
    pub(crate) skip: u32,
    /// True if it has the sequence number of the side's last segment.
    pub(crate) is_again: bool,
    /// True if its sequence number is 0, as in a refusal.
    pub(crate) is_zero: bool,
}

/// Contents of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    Tcp {
        ports: Ports,
        segment: Segment,
    },
    Udp {
        ports: Ports,
        is_summed: bool,
    },
    Echo {
        id: u16,
        is_request: bool,
    },
    Sctp {
        ports: Ports,
    },
    Error {
        kind: &'static Kind,
        about: About,
        /// Bytes after the quoted IP header; `None`: all of them.
        quote: Option<usize>,
        has_quoted_options: bool,
        is_from_router: bool,
    },
}

/// Subject of an ICMP error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// A packet of this sequence.
    Step(String),
    /// A packet that was not sent.
    Unknown { protocol: u8, ports: Ports },
}

/// One packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) line: usize,
    pub(crate) text: String,
    pub(crate) label: Option<String>,
    pub(crate) direction: Direction,
    pub(crate) body: Body,
    pub(crate) length: usize,
    /// The order in which its fragments are sent, from 1; empty for a whole packet.
    pub(crate) fragments: Vec<usize>,
    pub(crate) is_to_pod: bool,
    pub(crate) expected: Expected,
}

/// Reads a sequence.
pub(crate) fn parse(text: &str) -> Result<Vec<Step>> {
    text.lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'))
        .map(|(index, line)| step(index + 1, line).with_context(|| format!("line {}", index + 1)))
        .collect()
}

fn step(line: usize, text: &str) -> Result<Step> {
    let (packet, outcome) = match text.split_once("=>") {
        Some((packet, outcome)) => (packet, expected(outcome.trim())?),
        None => (text, both(Outcome::Delivered)),
    };
    let (label, packet) = match packet.split_once(':') {
        Some((label, packet)) => (Some(label.trim().to_owned()), packet),
        None => (None, packet),
    };
    let mut words = Words::new(packet);
    let direction = match words.next()? {
        "out" => Direction::Out,
        "in" => Direction::In,
        other => bail!("{other}: neither out nor in"),
    };
    let mut body = body(direction, &mut words)?;
    let (mut length, mut fragments, mut is_to_pod) = (0, Vec::new(), false);
    while let Some(word) = words.take() {
        match (word, &mut body) {
            ("len", _) => length = words.number()?,
            ("to-pod", _) => is_to_pod = true,
            ("fragments", _) => {
                while let Some(word) = words.take() {
                    fragments.push(word.parse()?);
                }
            }
            ("skip", Body::Tcp { segment, .. }) => segment.skip = words.number()?,
            ("again", Body::Tcp { segment, .. }) => segment.is_again = true,
            ("zero", Body::Tcp { segment, .. }) => segment.is_zero = true,
            ("no-sum", Body::Udp { is_summed, .. }) => *is_summed = false,
            ("quote", Body::Error { quote, .. }) => *quote = Some(words.number()?),
            (
                "quoted-options",
                Body::Error {
                    has_quoted_options, ..
                },
            ) => *has_quoted_options = true,
            ("router", Body::Error { is_from_router, .. }) => *is_from_router = true,
            (other, _) => bail!("{other}: not understood"),
        }
    }
    Ok(Step {
        line,
        text: text.to_owned(),
        label,
        direction,
        body,
        length,
        fragments,
        is_to_pod,
        expected: outcome,
    })
}

fn body(direction: Direction, words: &mut Words) -> Result<Body> {
    let word = words.next()?;
    Ok(match word {
        "tcp" => Body::Tcp {
            ports: words.ports(direction)?,
            segment: Segment {
                flags: flags(words.next()?)?,
                skip: 0,
                is_again: false,
                is_zero: false,
            },
        },
        "udp" => Body::Udp {
            ports: words.ports(direction)?,
            is_summed: true,
        },
        "sctp" => Body::Sctp {
            ports: words.ports(direction)?,
        },
        "echo" => Body::Echo {
            id: words.number()?,
            is_request: match words.next()? {
                "request" => true,
                "reply" => false,
                other => bail!("{other}: neither request nor reply"),
            },
        },
        name => {
            let kind = KINDS.iter().find(|kind| kind.name == name);
            let kind = kind.with_context(|| format!("{name}: no protocol and no error"))?;
            ensure!(words.next()? == "about", "{name}: about what?");
            let about = match words.next()? {
                protocol @ ("tcp" | "udp") => About::Unknown {
                    protocol: if protocol == "tcp" { 6 } else { 17 },
                    // The packet that the error is about went in the other direction.
                    ports: words.ports(match direction {
                        Direction::Out => Direction::In,
                        Direction::In => Direction::Out,
                    })?,
                },
                label => About::Step(label.to_owned()),
            };
            Body::Error {
                kind,
                about,
                quote: None,
                has_quoted_options: false,
                is_from_router: false,
            }
        }
    })
}

fn flags(text: &str) -> Result<u8> {
    text.chars().try_fold(0, |flags, letter| {
        Ok(flags
            | match letter {
                'F' => 0x01,
                'S' => 0x02,
                'R' => 0x04,
                'P' => 0x08,
                'A' => 0x10,
                other => bail!("{other}: no TCP flag"),
            })
    })
}

fn both(outcome: Outcome) -> Expected {
    Expected {
        kernel: outcome,
        ours: outcome,
        difference: None,
    }
}

fn expected(text: &str) -> Result<Expected> {
    let Some(rest) = text.strip_prefix("kernel ") else {
        return Ok(both(outcome(text)?));
    };
    let (kernel, rest) = rest.split_once(", ours ").context("kernel ..., ours ...")?;
    let (ours, difference) = rest.split_once(" (").context("a difference has a name")?;
    let (kernel, ours) = (outcome(kernel)?, outcome(ours)?);
    ensure!(kernel != ours, "{kernel} is no difference");
    Ok(Expected {
        kernel,
        ours,
        difference: Some(difference.trim_end_matches(')').to_owned()),
    })
}

fn outcome(text: &str) -> Result<Outcome> {
    Ok(match text {
        "delivered" => Outcome::Delivered,
        "untranslated" => Outcome::Untranslated,
        "nothing" => Outcome::Nothing,
        "answered" => Outcome::Answered,
        "partly" => Outcome::Partly,
        other => bail!("{other}: no outcome"),
    })
}

/// The words of a line.
struct Words<'a>(std::str::SplitWhitespace<'a>);

impl<'a> Words<'a> {
    fn new(text: &'a str) -> Self {
        Self(text.split_whitespace())
    }

    fn take(&mut self) -> Option<&'a str> {
        self.0.next()
    }

    fn next(&mut self) -> Result<&'a str> {
        self.take().context("the line ends too early")
    }

    fn number<T: std::str::FromStr<Err = std::num::ParseIntError>>(&mut self) -> Result<T> {
        let word = self.next()?;
        word.parse().with_context(|| format!("{word}: no number"))
    }

    /// `SOURCE > DESTINATION`.
    fn ports(&mut self, direction: Direction) -> Result<Ports> {
        let source = self.number()?;
        ensure!(
            self.next()? == ">",
            "ports are written SOURCE > DESTINATION"
        );
        let destination = self.number()?;
        Ok(match direction {
            Direction::Out => Ports {
                pod: source,
                remote: destination,
            },
            Direction::In => Ports {
                pod: destination,
                remote: source,
            },
        })
    }
}
