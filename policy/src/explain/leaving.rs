//! The egress decision, as the programs make it.

use std::net::IpAddr;

use anyhow::Result;
use api::ids::EniNumber;
use api::types::{Explanation, Verdict};
use datapath_common::abi::{AddressEntry, DestinationClass, EniAddresses, EniEntry, PodTuple};
use datapath_common::masquerade::{
    Decision, Exit, FlowRole, KnownFlow, PolicyInput, PolicyOutcome, PoolPolicy, decide, rule,
};
use datapath_common::outcome::DropReason;
use ipam::Family;

use super::answer::{Trace, with_room};
use super::flows::{IngressEni, Sender};
use super::{Live, Packet};
use loader::bpf::DatapathSettings;

/// From where a packet comes that leaves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// From the pod, past the host's stack.
    Pod,
    /// From the host's stack, which goes by no notes any more.
    Stack,
}

/// A packet that leaves.
pub(super) struct Leaving<'a> {
    pub(super) packet: &'a Packet,
    pub(super) pod: &'a AddressEntry,
    pub(super) owner: &'a EniEntry,
    pub(super) class: DestinationClass,
}

impl Leaving<'_> {
    fn input(&self, settings: &DatapathSettings) -> PolicyInput {
        PolicyInput {
            flow: KnownFlow::None,
            destination: self.class,
            pool: self.pod.pool(),
            is_on: settings.masquerades(Family::of(self.packet.source)),
            metadata: settings.metadata,
            role: if self.packet.has_ports {
                FlowRole::New
            } else {
                FlowRole::Portless
            },
        }
    }

    /// The sender, and the ENIs by which the flow may leave.
    fn sender(&self, outcome: PolicyOutcome) -> Sender {
        Sender {
            endpoint: self.pod.identity(),
            policy: match outcome {
                PolicyOutcome::Translated(Exit::Primary) => EniNumber::PRIMARY.0,
                PolicyOutcome::Translated(Exit::External)
                | PolicyOutcome::Untranslated(_)
                | PolicyOutcome::Drop(_) => addresses(self.owner, self.packet.source).external,
            },
            owner: self.pod.eni(),
        }
    }
}

/// The result of looking for the flow of a packet.
#[derive(Clone, Copy)]
enum Found {
    /// It was not looked up: the ports are unknown, or nothing depends on it.
    Not(&'static str),
    /// There is none.
    Unknown,
    /// It is translated, by this ENI and with this port.
    Translated(u8, u16),
    /// It takes the host's stack.
    Stack(IngressEni),
    /// It was opened from the outside.
    Inbound,
}

impl Live<'_> {
    /// The fate of a packet to a destination outside of this node.
    pub(super) fn leave(
        &self,
        leaving: &Leaving<'_>,
        origin: Origin,
        mut trace: Trace,
    ) -> Result<Explanation> {
        let mut input = leaving.input(self.settings);
        let outcome = rule(&input);
        if let PolicyOutcome::Drop(reason) = outcome {
            tell_policy(leaving.packet, &input, &mut trace);
            return Ok(trace.drop(reason));
        }
        let sender = leaving.sender(outcome);
        let tuple = leaving.packet.tuple();
        let found = self.look(tuple.as_ref(), sender, (outcome, origin))?;
        match found {
            Found::Stack(ingress) => return Ok(trace.of_stack(ingress)),
            Found::Translated(eni, port) => {
                trace.step("flow", format!("translated: ENI {eni}, port {port}"));
                return Ok(self.translate(trace, eni, leaving.packet.source, Some(port)));
            }
            Found::Not(why) => trace.step("flow", format!("not looked for: {why}")),
            Found::Unknown => trace.step("flow", "unknown".to_owned()),
            Found::Inbound => {
                input.flow = KnownFlow::Inbound;
                trace.step("flow", "opened from the outside".to_owned());
            }
        }
        if input.flow == KnownFlow::None {
            tell_policy(leaving.packet, &input, &mut trace);
        }
        match decide(&input) {
            Decision::Untranslated(why) => {
                let (verdict, owner) = (Verdict::Untranslated, EniNumber(sender.owner));
                Ok(trace.leave(verdict, why.name(), owner, None))
            }
            Decision::Translate(exit) => self.open(leaving, (exit, sender), tuple.as_ref(), trace),
            // No packet that opens a flow gets these decisions.
            Decision::NoteInbound | Decision::KnownTranslation => {
                Ok(trace.drop(DropReason::NoFlow))
            }
            Decision::Drop(reason) => Ok(trace.drop(reason)),
        }
    }

    /// Looks up the flow of a packet where the programs do.
    fn look(
        &self,
        tuple: Option<&PodTuple>,
        sender: Sender,
        (outcome, origin): (PolicyOutcome, Origin),
    ) -> Result<Found> {
        let looks_up = matches!(outcome, PolicyOutcome::Translated(_)) || self.lookups.exempt;
        let goes_by_notes = self.notes_stack() && origin == Origin::Pod;
        if !looks_up && !goes_by_notes {
            return Ok(Found::Not("nothing depends on it"));
        }
        let Some(tuple) = tuple else {
            return Ok(Found::Not("tell source and destination port"));
        };
        if looks_up && let Some(known) = self.known(tuple, sender)? {
            return Ok(if known.takes_stack && goes_by_notes {
                Found::Stack(IngressEni::Eni(EniNumber(sender.owner)))
            } else {
                Found::Translated(known.eni, known.port)
            });
        }
        if goes_by_notes && let Some(ingress) = self.stack_note(tuple, sender.endpoint)? {
            return Ok(Found::Stack(ingress));
        }
        if looks_up && self.is_inbound(tuple, sender.endpoint)? {
            return Ok(Found::Inbound);
        }
        Ok(Found::Unknown)
    }

    /// A packet that opens a translated flow.
    fn open(
        &self,
        leaving: &Leaving<'_>,
        (exit, sender): (Exit, Sender),
        tuple: Option<&PodTuple>,
        mut trace: Trace,
    ) -> Result<Explanation> {
        let exit = match exit {
            Exit::Primary => "the primary, as for all metadata",
            Exit::External => "by the external policy for the owner ENI",
        };
        trace.step("exit", format!("ENI {}, {exit}", sender.policy));
        let end = self.translate(trace, sender.policy, leaving.packet.source, None);
        if end.verdict == Verdict::Dropped {
            return Ok(end);
        }
        let room = self.room(leaving.packet, sender, tuple)?;
        Ok(with_room(end, &room.to_string(), room.refuses()))
    }

    fn translate(
        &self,
        mut trace: Trace,
        eni: u8,
        source: IpAddr,
        port: Option<u16>,
    ) -> Explanation {
        let Some(entry) = self.eni(eni) else {
            return trace.without_eni("exit ENI", eni);
        };
        let snat = addresses(entry, source).snat;
        if snat.is_unspecified() {
            return trace.drop(DropReason::NoTranslationAddress);
        }
        let snat = IpAddr::from(snat);
        trace.step("translation address", snat.to_string());
        Explanation {
            port,
            ..trace.leave(
                Verdict::Translated,
                "translated",
                EniNumber(eni),
                Some(snat),
            )
        }
    }
}

/// Adds the relevant inputs of the decision to the explanation.
fn tell_policy(packet: &Packet, input: &PolicyInput, trace: &mut Trace) {
    let class = input.destination;
    if class.contains(DestinationClass::METADATA) {
        let policy = loader::intent::masquerade::metadata_name(input.metadata);
        trace.step("metadata", format!("policy {policy}"));
        if !packet.has_ports && matches!(rule(input), PolicyOutcome::Translated(_)) {
            trace.step("protocol has ports", yes_or_no(false));
        }
        return;
    }
    if input.pool.is_always() {
        trace.step("plain pool, always masqueraded", yes_or_no(true));
    } else {
        let exempt = class.intersects(DestinationClass::EXEMPT);
        trace.step("exempt destination", yes_or_no(exempt));
        if exempt {
            return;
        }
        let skips = input.pool == PoolPolicy::Skip;
        trace.step("pool skips masquerade", yes_or_no(skips));
        if skips {
            return;
        }
    }
    let family = match Family::of(packet.destination) {
        Family::V4 => "IPv4 is masqueraded",
        Family::V6 => "IPv6 is masqueraded",
    };
    trace.step(family, yes_or_no(input.is_on));
    if input.is_on && !packet.has_ports {
        trace.step("protocol has ports", yes_or_no(false));
    }
}

fn addresses(entry: &EniEntry, of: IpAddr) -> &EniAddresses {
    match Family::of(of) {
        Family::V4 => entry.v4(),
        Family::V6 => entry.v6(),
    }
}

fn yes_or_no(yes: bool) -> String {
    if yes { "yes" } else { "no" }.to_owned()
}
