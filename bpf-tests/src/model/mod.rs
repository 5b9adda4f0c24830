//! A model of the programs for differential tests: plain Rust, written from the design, that shares
//! only the numbers of outcomes with them. It predicts the result of one packet on a node that is
//! described in full, and the state afterwards.
//!
//! Where the programs may choose, which is a port when the first choice is taken, the model takes
//! the choice from their result. It then checks that the choice was allowed.

pub mod parse;
pub mod policy;
mod programs;
mod progress;
pub mod rewrite;
pub mod stack;
pub mod state;
pub mod transport;
pub mod wire;
pub mod world;

mod egress;

use std::net::IpAddr;

use datapath_common::counter::Program;
use datapath_common::outcome::{DropReason, Outcome, Verdict};

use parse::{ETHERNET, Ip};
use state::State;
use transport::port_at;
use wire::{number16, put};
use world::{Pod, World};

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The frame.
    pub frame: Vec<u8>,
    /// Device of the packet.
    pub ifindex: u32,
    /// Device that received it; 0 for a packet of the host.
    pub ingress_ifindex: u32,
    /// Its mark.
    pub mark: u32,
    /// Payload of each packet that it aggregates, or 0.
    pub gso_size: u32,
}

/// Next step of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// On, to the next program or the stack.
    Pass,
    /// To the target of a redirect helper.
    Redirect,
    /// Nowhere.
    Drop,
}

/// The outcome of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Outcome that is counted; `None`: none.
    pub outcome: Option<Outcome>,
    /// Next step of the packet.
    pub next: Way,
    /// The frame afterwards.
    pub frame: Vec<u8>,
    /// The mark afterwards.
    pub mark: u32,
}

/// Reason for which there is no prediction.
#[derive(Debug, PartialEq, Eq)]
enum Stop {
    /// The packet is dropped.
    Drop(DropReason),
    /// The programs made a choice that is not allowed.
    Illegal(String),
}

impl From<DropReason> for Stop {
    fn from(reason: DropReason) -> Self {
        Self::Drop(reason)
    }
}

/// Decision of a program.
type Decided = Result<Done, Stop>;

/// A packet that goes on.
type Done = (Verdict, Way);

/// A packet that passes through a program.
struct Passage<'a> {
    world: &'a World,
    state: &'a mut State,
    packet: &'a Packet,
    /// The frame with all changes so far.
    frame: Vec<u8>,
    mark: u32,
    /// The frame as the program left it.
    seen: &'a [u8],
}

impl State {
    /// Predicts a program's result for a packet. `seen` is the frame as the program left it; only a
    /// chosen port is read from it.
    ///
    /// # Errors
    /// When the program made a choice that is not allowed.
    pub fn predict(
        &mut self,
        world: &World,
        program: Program,
        packet: &Packet,
        seen: &[u8],
    ) -> Result<Answer, String> {
        let mut passage = Passage {
            world,
            state: self,
            packet,
            frame: packet.frame.clone(),
            mark: packet.mark,
            seen,
        };
        if program == Program::ToNetwork && packet.mark & world.settings.marks.done != 0 {
            return Ok(Answer {
                outcome: None,
                next: Way::Pass,
                frame: passage.frame,
                mark: passage.mark,
            });
        }
        let decided = match program {
            Program::FromEndpoint => passage.pod_sends(),
            Program::FromNetwork => passage.eni_receives(),
            Program::ToNetwork => passage.stack_sends(),
            Program::ToEndpoint => passage.stack_delivers(),
        };
        match decided {
            Ok((verdict, next)) => Ok(Answer {
                outcome: Some(Outcome::Passed(verdict)),
                next,
                frame: passage.frame,
                mark: passage.mark,
            }),
            Err(Stop::Drop(reason)) => Ok(Answer {
                outcome: Some(Outcome::Dropped(reason)),
                next: Way::Drop,
                frame: passage.frame,
                mark: passage.mark,
            }),
            Err(Stop::Illegal(what)) => Err(what),
        }
    }
}

impl Passage<'_> {
    /// The version of the IP header that the ether type promises.
    fn version(&self) -> Option<u8> {
        match number16(&self.frame, 12)? {
            0x0800 => Some(4),
            0x86dd => Some(6),
            _ => None,
        }
    }

    fn parse(&self, version: u8) -> Result<Ip, DropReason> {
        parse::ip(&self.frame, version, self.packet.gso_size != 0)
    }

    /// Replaces our bits of the mark.
    fn set_mark(&mut self, ours: u32) {
        self.mark = (self.mark & !self.world.settings.marks.mask) | ours;
    }

    /// The mark of an ENI.
    fn mark_of(&self, eni: u8) -> u32 {
        (u32::from(eni) + 1) << self.world.settings.marks.shift
    }

    /// The port that the program has put at the source.
    fn chosen(&self, ip: &Ip) -> Option<u16> {
        number16(self.seen, port_at(&self.frame, ip, true)?)
    }

    /// The verdict for a packet that the stack must handle before it leaves by a link of this MTU.
    fn exception(&self, ip: &Ip, mtu: usize) -> Result<Option<Verdict>, DropReason> {
        Ok(if ip.ttl <= 1 {
            Some(Verdict::TtlExpired)
        } else if ip.has_options() {
            Some(Verdict::IpOptions)
        } else if self.largest(ip)? > mtu {
            Some(Verdict::TooBig)
        } else {
            None
        })
    }

    /// Length of the largest packet that this one becomes on the wire.
    fn largest(&self, ip: &Ip) -> Result<usize, DropReason> {
        let segment = usize::try_from(self.packet.gso_size).unwrap_or(usize::MAX);
        if segment == 0 {
            return Ok(self.frame.len() - ETHERNET);
        }
        let header = match ip.protocol {
            parse::TCP => {
                let byte = wire::byte(&self.frame, ip.transport + 12);
                usize::from(byte.ok_or(DropReason::Truncated)? >> 4) * 4
            }
            parse::UDP => 8,
            _ => 60,
        };
        Ok(ip.transport - ETHERNET + header + segment)
    }

    /// Into a pod: one hop fewer, between the MACs of its veth.
    fn deliver(&mut self, ip: &Ip, pod: &Pod) {
        rewrite::lower_ttl(&mut self.frame, ip);
        put(&mut self.frame, 0, &pod.mac);
        put(&mut self.frame, 6, &pod.host_mac);
        self.mark = 0;
    }
}

/// True if an address is multicast, or the limited broadcast.
fn is_group(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_multicast() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_multicast(),
    }
}

/// True if an address is an IPv6 link-local one.
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}
