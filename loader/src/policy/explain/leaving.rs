//! The egress decision, as the programs make it.

use std::net::IpAddr;

use anyhow::Result;
use api::ids::EniNumber;
use api::types::{Explanation, Verdict};
use datapath_common::abi::{AddressEntry, DestinationClass, EniAddresses, EniEntry, PodTuple};
use datapath_common::masquerade::{
    Decision, Exit, KnownFlow, Opening, PoolPolicy, Question, Ruling, decide, rule,
};
use datapath_common::outcome::DropReason;
use ipam::Family;

use super::answer::{Told, with_room};
use super::flows::{Came, Sender};
use super::{Asked, Live};
use crate::bpf::DatapathSettings;

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
    pub(super) asked: &'a Asked,
    pub(super) pod: &'a AddressEntry,
    pub(super) owner: &'a EniEntry,
    pub(super) class: DestinationClass,
}

impl Leaving<'_> {
    fn question(&self, settings: &DatapathSettings) -> Question {
        Question {
            flow: KnownFlow::None,
            destination: self.class,
            pool: self.pod.pool(),
            is_on: settings.masquerades(Family::of(self.asked.source)),
            metadata: settings.metadata,
            opening: if self.asked.has_ports {
                Opening::Opens
            } else {
                Opening::Portless
            },
        }
    }

    /// The sender, and the ENIs by which the flow may leave.
    fn sender(&self, ruling: Ruling) -> Sender {
        Sender {
            endpoint: self.pod.identity(),
            policy: match ruling {
                Ruling::Translated(Exit::Primary) => EniNumber::PRIMARY.0,
                Ruling::Translated(Exit::External) | Ruling::Untranslated(_) | Ruling::Drop(_) => {
                    addresses(self.owner, self.asked.source).external
                }
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
    Stack(Came),
    /// It was opened from the outside.
    Inbound,
}

impl Live<'_> {
    /// The fate of a packet to a destination outside of this node.
    pub(super) fn leave(
        &self,
        leaving: &Leaving<'_>,
        origin: Origin,
        mut told: Told,
    ) -> Result<Explanation> {
        let mut question = leaving.question(self.settings);
        let ruling = rule(&question);
        if let Ruling::Drop(reason) = ruling {
            tell_policy(leaving.asked, &question, &mut told);
            return Ok(told.drop(reason));
        }
        let sender = leaving.sender(ruling);
        let tuple = leaving.asked.tuple();
        let found = self.look(tuple.as_ref(), sender, (ruling, origin))?;
        match found {
            Found::Stack(came) => return Ok(told.of_stack(came)),
            Found::Translated(eni, port) => {
                told.step("flow", format!("translated: ENI {eni}, port {port}"));
                return Ok(self.translate(told, eni, leaving.asked.source, Some(port)));
            }
            Found::Not(why) => told.step("flow", format!("not looked for: {why}")),
            Found::Unknown => told.step("flow", "unknown".to_owned()),
            Found::Inbound => {
                question.flow = KnownFlow::Inbound;
                told.step("flow", "opened from the outside".to_owned());
            }
        }
        if question.flow == KnownFlow::None {
            tell_policy(leaving.asked, &question, &mut told);
        }
        match decide(&question) {
            Decision::Untranslated(why) => {
                let (verdict, owner) = (Verdict::Untranslated, EniNumber(sender.owner));
                Ok(told.leave(verdict, why.name(), owner, None))
            }
            Decision::Translate(exit) => self.open(leaving, (exit, sender), tuple.as_ref(), told),
            // No packet that opens a flow gets these decisions.
            Decision::NoteInbound | Decision::KnownTranslation => Ok(told.drop(DropReason::NoFlow)),
            Decision::Drop(reason) => Ok(told.drop(reason)),
        }
    }

    /// Looks up the flow of a packet where the programs do.
    fn look(
        &self,
        tuple: Option<&PodTuple>,
        sender: Sender,
        (ruling, origin): (Ruling, Origin),
    ) -> Result<Found> {
        let looks_up = matches!(ruling, Ruling::Translated(_)) || self.lookups.exempt;
        let goes_by_notes = self.notes_stack() && origin == Origin::Pod;
        if !looks_up && !goes_by_notes {
            return Ok(Found::Not("nothing depends on it"));
        }
        let Some(tuple) = tuple else {
            return Ok(Found::Not("tell source and destination port"));
        };
        if looks_up && let Some(known) = self.known(tuple, sender)? {
            return Ok(if known.takes_stack && goes_by_notes {
                Found::Stack(Came::Eni(EniNumber(sender.owner)))
            } else {
                Found::Translated(known.eni, known.port)
            });
        }
        if goes_by_notes && let Some(came) = self.stack_note(tuple, sender.endpoint)? {
            return Ok(Found::Stack(came));
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
        mut told: Told,
    ) -> Result<Explanation> {
        let exit = match exit {
            Exit::Primary => "the primary, as for all metadata",
            Exit::External => "by the external policy for the owner ENI",
        };
        told.step("exit", format!("ENI {}, {exit}", sender.policy));
        let end = self.translate(told, sender.policy, leaving.asked.source, None);
        if end.verdict == Verdict::Dropped {
            return Ok(end);
        }
        let room = self.room(leaving.asked, sender, tuple)?;
        Ok(with_room(end, &room.to_string(), room.refuses()))
    }

    fn translate(&self, mut told: Told, eni: u8, source: IpAddr, port: Option<u16>) -> Explanation {
        let Some(entry) = self.eni(eni) else {
            return told.without_eni("exit ENI", eni);
        };
        let snat = addresses(entry, source).snat;
        if snat.is_unspecified() {
            return told.drop(DropReason::NoTranslationAddress);
        }
        let snat = IpAddr::from(snat);
        told.step("translation address", snat.to_string());
        Explanation {
            port,
            ..told.leave(
                Verdict::Translated,
                "translated",
                EniNumber(eni),
                Some(snat),
            )
        }
    }
}

/// Adds the relevant inputs of the decision to the explanation.
fn tell_policy(asked: &Asked, question: &Question, told: &mut Told) {
    let class = question.destination;
    if class.contains(DestinationClass::METADATA) {
        let policy = crate::intent::masquerade::metadata_name(question.metadata);
        told.step("metadata", format!("policy {policy}"));
        if !asked.has_ports && matches!(rule(question), Ruling::Translated(_)) {
            told.step("protocol has ports", yes_or_no(false));
        }
        return;
    }
    if question.pool.is_always() {
        told.step("plain pool, always masqueraded", yes_or_no(true));
    } else {
        let exempt = class.intersects(DestinationClass::EXEMPT);
        told.step("exempt destination", yes_or_no(exempt));
        if exempt {
            return;
        }
        let skips = question.pool == PoolPolicy::Skip;
        told.step("pool skips masquerade", yes_or_no(skips));
        if skips {
            return;
        }
    }
    let family = match Family::of(asked.destination) {
        Family::V4 => "IPv4 is masqueraded",
        Family::V6 => "IPv6 is masqueraded",
    };
    told.step(family, yes_or_no(question.is_on));
    if question.is_on && !asked.has_ports {
        told.step("protocol has ports", yes_or_no(false));
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
