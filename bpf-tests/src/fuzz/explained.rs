//! `towpath masq explain` against the programs: on fuzzed nodes, its explanation of a packet must
//! match the packet's result.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::IpAddr;

use anyhow::{Context as _, Result};
use api::ids::EniNumber;
use api::types::{Explanation, Verdict};
use api::{Peer, Protocol, Tuple};
use datapath_common::abi::{Addr, AddressEntry, EniEntry, map};
use datapath_common::counter::{Counter, Program};
use datapath_common::outcome::{DropReason, Outcome, Verdict as Passed};
use loader::bpf::{DatapathSettings, NatTables};
use loader::kernel::{MapEntry, MapKey};
use policy::{Live, Packet};
use testkit::packet::{Body, ETHERNET, Frame, Macs};
use testkit::random::Random;
use testkit::testrun::Programs;
use testkit::testrun::tables::{Given, Made, Runner};

use super::aim::{Aim, PORTS, REMOTE_PORTS};
use super::batch::mixed;
use super::clock::Clock;
use super::node::{self, ENIS, VETHS, pod_addresses, remotes, translation_addresses};
use super::packet::{OTHERS, once_in, pick};
use super::preload::Preloader;
use super::snapshot::Tables;
use super::variant::Variant;
use crate::model::parse::{SCTP, TCP, UDP};
use crate::model::state::{Inside, State};
use crate::model::world::World;

/// Packets on a node before it is replaced by one with other flows.
const PACKETS: usize = 40;
/// The authentication header of IPv6: its next-header field decides the result.
const AUTHENTICATION: u8 = 51;
/// Offsets of the source address in a frame, of IPv4 and of IPv6.
const SOURCE: [usize; 2] = [ETHERNET + 12, ETHERNET + 8];

/// Number of times that each answer occurred: verdict and reason.
pub type Seen = BTreeMap<(String, String), u64>;

/// A node whose packets are explained and sent.
pub struct Explained {
    programs: Programs,
    nat: NatTables,
    settings: DatapathSettings,
    tables: Tables,
    runners: BTreeMap<Program, Runner>,
    world: World,
    clock: Clock,
    counted: BTreeMap<u32, Counter>,
    /// The answers that occurred.
    pub seen: Seen,
}

/// The programs' result for a packet.
#[derive(Debug)]
struct Done {
    outcome: Outcome,
    made: Made,
}

impl Explained {
    /// A node of this variant. The devices must exist.
    ///
    /// # Errors
    /// When the kernel refuses the programs.
    pub fn new(variant: &Variant) -> Result<Self> {
        let settings = variant.settings()?;
        let mut programs = Programs::load_with(&settings)?;
        let world = node::world(variant)?;
        node::fill(&mut programs, &world)?;
        let mut runners = BTreeMap::new();
        for program in Program::ALL {
            runners.insert(program, programs.runner(program)?);
        }
        let tables = Tables::of(&programs, variant.is_counted)?;
        Ok(Self {
            clock: Clock::read(&runners, &tables)?,
            counted: programs.counters()?,
            nat: programs.nat_tables()?,
            programs,
            settings,
            tables,
            runners,
            world,
            seen: Seen::new(),
        })
    }

    /// Explains and sends the packets of a seed; returns a difference, if any.
    ///
    /// # Errors
    /// When something fails that is not under test.
    pub fn run(&mut self, seed: u64) -> Result<Option<String>> {
        let mut random = Random::new(mixed(seed));
        self.tables.clear()?;
        node::choose_policy(&mut self.programs, &mut self.world, &mut random)?;
        node::choose_shaped(&mut self.programs, &mut self.world, &mut random)?;
        let state = Preloader {
            world: &self.world,
            tables: &self.tables,
            random: &mut random,
            state: State::default(),
            now: self.clock.now()?,
        }
        .preload(&self.programs)?;
        self.tables.count_notes()?;
        if once_in(&mut random, 3) {
            let (missing, _) = pick(&mut random, &ENIS);
            self.programs.put_eni(missing, EniEntry::ABSENT)?;
        }
        let entries = self.entries()?;
        for packet in 0..PACKETS {
            let tuple = self.tuple(&state, &mut random)?;
            if let Some(what) = self.compare(&entries, &tuple)? {
                return Ok(Some(format!("seed {seed:#x}, packet {packet}: {what}")));
            }
        }
        Ok(None)
    }

    /// Explains and sends packets after a pod has a flow on each port towards one destination: on a
    /// node of [`Variant::FEW_PORTS`].
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_out_of_ports(&mut self) -> Result<Option<String>> {
        self.tables.clear()?;
        let entries = self.entries()?;
        let [source, _] = pod_addresses(0);
        let (to, mut different) = ((remotes(true)[0], 53), None);
        let ports = self.world.settings.ports.clone();
        let all = ports.into_iter().flat_map(|(first, last)| first..=last);
        for port in all.chain([5_000]) {
            let tuple = tuple(Protocol::Udp, (source, port), to)?;
            different = different.or(self.compare(&entries, &tuple)?);
        }
        Ok(different)
    }

    /// The contents of the maps.
    fn entries(&self) -> Result<BTreeMap<MapKey, MapEntry>> {
        let mut entries = Vec::new();
        let addresses = self.programs.table::<Addr, AddressEntry>(map::ADDRESSES)?;
        for (address, entry) in addresses.entries()? {
            entries.push(MapEntry::Address(address.into(), entry));
        }
        let enis = self.programs.table::<u32, EniEntry>(map::ENIS)?;
        for (number, entry) in enis.entries()? {
            entries.push(MapEntry::Eni(EniNumber(u8::try_from(number)?), entry));
        }
        for (net, class, _) in node::destinations() {
            entries.push(MapEntry::Destination(net.parse()?, class));
        }
        Ok(entries.into_iter().map(|one| (one.key(), one)).collect())
    }

    /// A packet of a pod: of an existing flow, or any.
    fn tuple(&self, state: &State, random: &mut Random) -> Result<Tuple> {
        if once_in(random, 2)
            && let Some(inside) = known(state, random)
        {
            return tuple_of(&inside);
        }
        let is_v4 = once_in(random, 2);
        let pod = random.below(VETHS.len());
        let destination = if once_in(random, 3) {
            let mut aim = Aim {
                world: &self.world,
                state,
                random,
            };
            aim.any(is_v4)
        } else {
            pick(random, &remotes(is_v4))
        };
        let protocol = match random.below(12) {
            0 => Protocol::Other(pick(random, &OTHERS)),
            1 | 2 => Protocol::Icmp,
            3 => Protocol::Sctp,
            4..8 => Protocol::Udp,
            _ => Protocol::Tcp,
        };
        let protocol = match protocol {
            Protocol::Other(AUTHENTICATION) => Protocol::Other(47),
            other => other,
        };
        let source = pod_addresses(pod)[usize::from(!is_v4)];
        let ports = (pick(random, &PORTS), pick(random, &REMOTE_PORTS));
        tuple(protocol, (source, ports.0), (destination, ports.1))
    }

    /// Explains a packet, sends it, and returns a difference, if any.
    fn compare(
        &mut self,
        entries: &BTreeMap<MapKey, MapEntry>,
        tuple: &Tuple,
    ) -> Result<Option<String>> {
        let live = Live {
            entries,
            settings: &self.settings,
            lookups: self.world.settings.lookups,
            tables: &self.nat,
        };
        let explanation = live.explain(&Packet::from(tuple))?.context("no pod's")?;
        let key = (
            format!("{:?}", explanation.verdict),
            explanation.why.clone(),
        );
        *self.seen.entry(key).or_default() += 1;
        let pod = self.world.pod(tuple.source.address).context("no pod's")?;
        let frame = frame(tuple, Macs::new(pod.mac, pod.host_mac)).bytes();
        let sent = self.send(Program::FromEndpoint, &frame, (pod.ifindex, pod.ifindex), 0)?;
        let mut all = vec![sent];
        if all[0].outcome == Outcome::Passed(Passed::Stack)
            && self.world.pod(tuple.destination.address).is_none()
        {
            let exit = self.world.enis.get(&pod.eni).context("no owner")?.ifindex;
            let (mark, frame) = (all[0].made.mark, all[0].made.frame.clone());
            all.push(self.send(Program::ToNetwork, &frame, (exit, pod.ifindex), mark)?);
        }
        let is_right = agrees(&explanation, tuple, pod.eni, &all);
        Ok((!is_right).then(|| self.describe(tuple, &explanation, &all)))
    }

    fn send(
        &mut self,
        program: Program,
        frame: &[u8],
        (ifindex, ingress_ifindex): (u32, u32),
        mark: u32,
    ) -> Result<Done> {
        let made = self.runners[&program].run(&Given {
            frame,
            ifindex,
            ingress_ifindex,
            mark,
            gso_size: 0,
            is_summed: false,
        })?;
        let now = self.programs.counters()?;
        let first = program.slot(Outcome::Passed(Passed::Local));
        let moved = now
            .iter()
            .find(|(slot, counter)| self.counted.get(slot) != Some(counter));
        let code = moved.and_then(|(slot, _)| u8::try_from(slot.checked_sub(first)?).ok());
        let outcome = code.and_then(Outcome::from_code).context("no counter")?;
        self.counted = now;
        Ok(Done { outcome, made })
    }

    fn describe(&self, tuple: &Tuple, explanation: &Explanation, all: &[Done]) -> String {
        let outcomes: Vec<_> = all.iter().map(|done| done.outcome.name()).collect();
        let source = all.last().map(|done| source(&done.made.frame));
        format!(
            "{tuple:?} came to {outcomes:?} from {source:?}\nnot to {explanation:#?}\n\
             settings {:?}",
            self.world.settings
        )
    }
}

/// True if the explanation of a packet matches the programs' result.
fn agrees(explanation: &Explanation, tuple: &Tuple, owner: u8, all: &[Done]) -> bool {
    let outcomes: Vec<Outcome> = all.iter().map(|done| done.outcome).collect();
    let Some(last) = all.last() else { return false };
    let drops = |reason: DropReason| reason.name() == explanation.why;
    if explanation.verdict == Verdict::Dropped {
        return matches!(
            outcomes[..],
            [Outcome::Dropped(reason)]
                | [Outcome::Passed(Passed::Stack), Outcome::Dropped(reason)] if drops(reason)
        );
    }
    if let Some(then) = &explanation.then {
        let goes_up = outcomes[0] == Outcome::Passed(Passed::Stack);
        return goes_up
            && match (then.verdict, &outcomes[1..]) {
                (Verdict::Delivered, []) => true,
                (verdict, [onward]) => {
                    let claim = Claim {
                        verdict,
                        why: &then.why,
                        eni: then.eni,
                        snat: then.snat,
                        port: then.port,
                    };
                    claim.is_outcome(*onward) && claim.leaves(tuple, owner, last)
                }
                _ => false,
            };
    }
    let claim = Claim {
        verdict: explanation.verdict,
        why: &explanation.why,
        eni: explanation.eni,
        snat: explanation.snat,
        port: explanation.port,
    };
    outcomes.len() == 1 && claim.is_outcome(outcomes[0]) && claim.leaves(tuple, owner, last)
}

/// The claim of an explanation about one packet.
struct Claim<'a> {
    verdict: Verdict,
    why: &'a str,
    eni: Option<EniNumber>,
    snat: Option<IpAddr>,
    /// The source port, if it is known.
    port: Option<u16>,
}

impl Claim<'_> {
    /// True if a verdict stands for an outcome.
    fn is_outcome(&self, outcome: Outcome) -> bool {
        let Outcome::Passed(passed) = outcome else {
            return false;
        };
        match (self.verdict, self.why) {
            (Verdict::Translated, _) => {
                matches!(passed, Passed::Translated | Passed::CarriedTranslated)
            }
            (Verdict::Untranslated, "inbound") => {
                matches!(passed, Passed::Inbound | Passed::Carried)
            }
            (Verdict::Untranslated, _) => matches!(passed, Passed::Eni | Passed::Carried),
            (Verdict::Delivered, _) => passed == Passed::Local,
            (Verdict::Stack, "host") => passed == Passed::Host,
            (Verdict::Stack, "stack-flow") => passed == Passed::StackFlow,
            (Verdict::Stack, _) => {
                matches!(
                    passed,
                    Passed::Service | Passed::Multicast | Passed::LinkLocal
                )
            }
            (Verdict::Dropped, _) => false,
        }
    }

    /// True if a packet leaves with the explained source and port, by the explained ENI.
    fn leaves(&self, tuple: &Tuple, owner: u8, last: &Done) -> bool {
        let is_v4 = tuple.source.address.is_ipv4();
        let (address, out) = source(&last.made.frame);
        match self.verdict {
            Verdict::Translated => {
                let of = |(number, _): &(u8, _)| {
                    translation_addresses(*number)[usize::from(!is_v4)] == Some(address)
                };
                let exit = ENIS.iter().find(|eni| of(eni)).map(|(number, _)| *number);
                let has_port = tuple.number() == UDP || tuple.number() == TCP;
                let is_port = self.port.is_none_or(|port| !has_port || port == out);
                Some(address) == self.snat && exit == self.eni.map(|eni| eni.0) && is_port
            }
            Verdict::Untranslated => {
                address == tuple.source.address
                    && self.eni == Some(EniNumber(owner))
                    && self.snat.is_none()
            }
            Verdict::Delivered | Verdict::Stack | Verdict::Dropped => true,
        }
    }
}

/// The source address of a packet without options, and the bytes at its port.
fn source(frame: &[u8]) -> (IpAddr, u16) {
    let is_v4 = frame[ETHERNET] >> 4 == 4;
    let at = SOURCE[usize::from(!is_v4)];
    let octets = |length: usize| &frame[at..at + length];
    let address = if is_v4 {
        <[u8; 4]>::try_from(octets(4)).map(IpAddr::from)
    } else {
        <[u8; 16]>::try_from(octets(16)).map(IpAddr::from)
    };
    let transport = ETHERNET + if is_v4 { 20 } else { 40 };
    let port = u16::from_be_bytes([frame[transport], frame[transport + 1]]);
    (address.unwrap_or(IpAddr::from([0; 4])), port)
}

/// One of the existing flows.
fn known(state: &State, random: &mut Random) -> Option<Inside> {
    let translated = state.by_inside.keys().map(|(_, inside)| *inside);
    let noted = state.inbound.keys().chain(state.stack.keys()).copied();
    let turned = state.stack.keys().map(|inside| Inside {
        protocol: inside.protocol,
        pod: inside.remote,
        pod_port: inside.remote_port,
        remote: inside.pod,
        remote_port: inside.pod_port,
    });
    let all: Vec<_> = translated
        .chain(noted)
        .chain(turned)
        .filter(|inside| {
            let pods = (0..VETHS.len()).flat_map(pod_addresses);
            pods.into_iter().any(|pod| pod == inside.pod)
        })
        .collect();
    (!all.is_empty()).then(|| pick(random, &all))
}

fn tuple_of(inside: &Inside) -> Result<Tuple> {
    let protocol = match inside.protocol {
        TCP => Protocol::Tcp,
        UDP => Protocol::Udp,
        SCTP => Protocol::Sctp,
        _ => Protocol::Icmp,
    };
    let source = (inside.pod, inside.pod_port);
    tuple(protocol, source, (inside.remote, inside.remote_port))
}

fn tuple(protocol: Protocol, source: (IpAddr, u16), to: (IpAddr, u16)) -> Result<Tuple> {
    let peer = |(address, port)| Peer {
        address,
        port: Some(port),
    };
    Ok(Tuple::new(protocol, peer(source), peer(to))?)
}

/// The packet that a tuple stands for: the first of its flow.
fn frame(tuple: &Tuple, macs: Macs) -> Frame {
    let body = match tuple.protocol {
        Protocol::Tcp => Body::Tcp(8),
        Protocol::Udp => Body::Udp(8),
        Protocol::Sctp => Body::Sctp(8),
        Protocol::Icmp => Body::Echo { asks: true },
        Protocol::Other(number) => Body::Protocol(number),
    };
    let ports = tuple.ports().unwrap_or_default();
    Frame::new(macs, tuple.source.address, tuple.destination.address, body)
        .ports(ports.0, ports.1)
        .tcp(2, 1)
}
