//! What the live maps make of a packet of a pod: the programs' own order of questions, told in
//! words.

use std::collections::BTreeMap;
use std::net::IpAddr;

use datapath_common::abi::{Addr, AddressEntry, DestinationClass, EniAddresses, EniEntry};
use datapath_common::masquerade::{
    Decision, Exit, KnownFlow, Opening, PoolPolicy, Question, decide,
};
use datapath_common::outcome::DropReason;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::MasqueradeSettings;
use super::judge::longest;
use crate::intent::Family;
use crate::kernel::{MapEntry, MapKey};
use crate::types::EniNumber;

/// The live maps, and the settings that the programs were loaded with.
#[derive(Clone, Copy, Debug)]
pub struct Live<'a> {
    /// The entries of the maps.
    pub entries: &'a BTreeMap<MapKey, MapEntry>,
    /// The settings.
    pub settings: &'a MasqueradeSettings,
}

/// A packet that is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Its source.
    pub source: IpAddr,
    /// Its destination.
    pub destination: IpAddr,
    /// Whether its protocol has ports, or ids in their place.
    pub has_ports: bool,
    /// What is known of its flow.
    pub flow: Found,
}

/// What was found of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Ports were not told, so it was not looked for.
    NotAsked,
    /// There is none.
    Unknown,
    /// It is translated.
    Translated {
        /// The ENI by which it leaves.
        eni: EniNumber,
        /// The port that the outside sees.
        port: u16,
    },
    /// It was opened from the outside.
    Inbound,
    /// It takes the host's stack both ways.
    Stack {
        /// The ENI whose mark it gets there.
        eni: EniNumber,
    },
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Out by an ENI with another source.
    Translated,
    /// Out by an ENI with its own source.
    Untranslated,
    /// Into another pod's namespace.
    Delivered,
    /// Up to the host's stack.
    Stack,
    /// Dropped.
    Dropped,
}

/// What becomes of a packet, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Explanation {
    /// What was looked at, in the programs' order, and what was found.
    pub steps: Vec<Step>,
    /// What becomes of it.
    pub verdict: Verdict,
    /// Why: `exempt-vpc`, `exempt-native`, `exempt-masq-agent`, `exempt-link-local`, `skip-pool`,
    /// `off`, `translated`, `inbound`, `stack`, `stack-flow`, `local` or `host`; for a dropped packet
    /// the reason's name.
    pub why: String,
    /// The ENI by which it leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eni: Option<EniNumber>,
    /// The source that the outside sees, where it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snat: Option<IpAddr>,
    /// The port that the outside sees, where the flow is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// One question and its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Step {
    /// What was looked at.
    pub question: String,
    /// What was found.
    pub answer: String,
}

impl Live<'_> {
    fn address(&self, address: IpAddr) -> Option<&AddressEntry> {
        match self.entries.get(&MapKey::Address(address)) {
            Some(MapEntry::Address(_, entry)) => Some(entry),
            _ => None,
        }
    }

    fn eni(&self, number: u8) -> Option<&EniEntry> {
        match self.entries.get(&MapKey::Eni(EniNumber(number))) {
            Some(MapEntry::Eni(_, entry)) if entry.ifindex() != 0 => Some(entry),
            _ => None,
        }
    }

    /// The longest prefix of a destination and its classes.
    fn destination(&self, address: IpAddr) -> Option<(IpNet, DestinationClass)> {
        longest(address, |net| {
            match self.entries.get(&MapKey::Destination(net)) {
                Some(MapEntry::Destination(_, class)) => Some(*class),
                _ => None,
            }
        })
    }

    fn question(&self, pod: &AddressEntry, remote: IpAddr) -> Question {
        Question {
            flow: KnownFlow::None,
            destination: self
                .destination(remote)
                .map_or(DestinationClass::NONE, |(_, class)| class),
            pool: pod.pool(),
            is_on: self.settings.is_on(Family::of(remote)),
            metadata: self.settings.metadata,
            opening: Opening::Opens,
        }
    }

    /// What becomes of a packet; `None` when its source is no pod's.
    #[must_use]
    pub fn explain(&self, asked: &Asked) -> Option<Explanation> {
        let pod = self.address(asked.source).filter(|e| e.is_endpoint())?;
        let mut told = Told::default();
        let owner = EniNumber(pod.eni());
        told.step("source", format!("a pod's, owned by ENI {owner}"));
        if let Some(end) = self.on_this_node(asked, &mut told) {
            return Some(end);
        }
        if let Found::Stack { eni } = asked.flow {
            return Some(told.of_stack(eni));
        }
        let question = Question {
            flow: match asked.flow {
                Found::NotAsked | Found::Unknown | Found::Stack { .. } => KnownFlow::None,
                Found::Translated { .. } => KnownFlow::Translated,
                Found::Inbound => KnownFlow::Inbound,
            },
            opening: if asked.has_ports {
                Opening::Opens
            } else {
                Opening::Portless
            },
            ..self.question(pod, asked.destination)
        };
        Self::tell_policy(asked, &question, &mut told);
        Some(match decide(&question) {
            Decision::Untranslated(why) => {
                told.leave(Verdict::Untranslated, why.name(), owner, None)
            }
            // No question of ours accepts or refuses anything.
            Decision::NoteInbound => told.leave(Verdict::Untranslated, "inbound", owner, None),
            Decision::KnownTranslation => match asked.flow {
                Found::Translated { eni, port } => self.translate(told, eni, asked, Some(port)),
                Found::NotAsked | Found::Unknown | Found::Inbound | Found::Stack { .. } => {
                    told.drop(DropReason::NoFlow)
                }
            },
            Decision::Translate(exit) => {
                let of_owner = self
                    .eni(owner.0)
                    .map(|entry| addresses(entry, asked.source));
                let eni = match (exit, of_owner) {
                    (Exit::Primary, _) => EniNumber::PRIMARY,
                    (Exit::External, Some(addresses)) => EniNumber(addresses.external),
                    (Exit::External, None) => {
                        return Some(told.drop(DropReason::EniNotReady));
                    }
                };
                let exit = match exit {
                    Exit::Primary => "the primary, as for all metadata",
                    Exit::External => "by the external policy for the owner ENI",
                };
                told.step("exit", format!("ENI {eni}, {exit}"));
                self.translate(told, eni, asked, None)
            }
            Decision::Drop(reason) => told.drop(reason),
        })
    }

    /// What ends on this node, whatever the policy.
    fn on_this_node(&self, of: &Asked, told: &mut Told) -> Option<Explanation> {
        let (destination, asked) = (of.destination, "destination's address");
        let address = Addr::from(destination);
        if address.is_multicast_or_broadcast() {
            return Some(told.end(asked, "multicast or broadcast", Verdict::Stack, "stack"));
        }
        if address.is_v6_link_local() {
            return Some(told.end(asked, "link-local", Verdict::Stack, "stack"));
        }
        match self.address(destination) {
            Some(entry) if matches!(of.flow, Found::Stack { .. }) => {
                let whose = if entry.is_endpoint() {
                    "a pod of this node"
                } else {
                    "the host's"
                };
                told.step(asked, whose.to_owned());
                return None;
            }
            Some(entry) if entry.is_endpoint() => {
                return Some(told.end(asked, "a pod of this node", Verdict::Delivered, "local"));
            }
            Some(_) => return Some(told.end(asked, "the host's", Verdict::Stack, "host")),
            None => told.step(asked, "none of this node".to_owned()),
        }
        let asked = "destination's prefix";
        let Some((net, class)) = self.destination(destination) else {
            told.step(asked, "none that is known".to_owned());
            return None;
        };
        let found = format!("{net} ({})", class_names(class).join(", "));
        if class.contains(DestinationClass::SERVICE) {
            return Some(told.end(asked, &found, Verdict::Stack, "stack"));
        }
        told.step(asked, found);
        class
            .contains(DestinationClass::BLOCK)
            .then(|| told.drop(DropReason::NoEndpoint))
    }

    /// Tells what the decision looks at, as far as it matters.
    fn tell_policy(asked: &Asked, question: &Question, told: &mut Told) {
        let flow = match asked.flow {
            Found::NotAsked => "not looked for: tell source and destination port".to_owned(),
            Found::Unknown => "unknown".to_owned(),
            Found::Translated { eni, port } => format!("translated: ENI {eni}, port {port}"),
            Found::Inbound => "opened from the outside".to_owned(),
            Found::Stack { eni } => stack_flow(eni),
        };
        told.step("flow", flow);
        if question.flow != KnownFlow::None {
            return;
        }
        let class = question.destination;
        if class.contains(DestinationClass::METADATA) {
            let policy = super::settings::metadata_name(question.metadata);
            told.step("metadata", format!("policy {policy}"));
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
            let skips = matches!(question.pool, PoolPolicy::Skip);
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

    fn translate(
        &self,
        mut told: Told,
        eni: EniNumber,
        asked: &Asked,
        port: Option<u16>,
    ) -> Explanation {
        let Some(entry) = self.eni(eni.0) else {
            return told.drop(DropReason::EniNotReady);
        };
        let snat = addresses(entry, asked.source).snat;
        if snat.is_unspecified() {
            return told.drop(DropReason::NoTranslationAddress);
        }
        let snat = IpAddr::from(snat);
        told.step("translation address", snat.to_string());
        Explanation {
            port,
            ..told.leave(Verdict::Translated, "translated", eni, Some(snat))
        }
    }
}

fn stack_flow(eni: EniNumber) -> String {
    format!("through the host's stack both ways, with the mark of ENI {eni}")
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

/// The names of classes, as people know them.
#[must_use]
pub fn class_names(class: DestinationClass) -> Vec<&'static str> {
    [
        (DestinationClass::BLOCK, "block of this node"),
        (DestinationClass::SERVICE, "service"),
        (DestinationClass::VPC, "vpc"),
        (DestinationClass::NATIVE, "native"),
        (DestinationClass::MASQ_AGENT, "masq-agent"),
        (DestinationClass::LINK_LOCAL, "link-local"),
        (DestinationClass::METADATA, "metadata"),
    ]
    .into_iter()
    .filter(|(one, _)| class.contains(*one))
    .map(|(_, name)| name)
    .collect()
}

/// The steps so far.
#[derive(Default)]
struct Told {
    steps: Vec<Step>,
}

impl Told {
    fn step(&mut self, question: &str, answer: String) {
        self.steps.push(Step {
            question: question.to_owned(),
            answer,
        });
    }

    fn finish(&mut self, verdict: Verdict, why: &str) -> Explanation {
        Explanation {
            steps: std::mem::take(&mut self.steps),
            verdict,
            why: why.to_owned(),
            eni: None,
            snat: None,
            port: None,
        }
    }

    fn end(&mut self, question: &str, answer: &str, verdict: Verdict, why: &str) -> Explanation {
        self.step(question, answer.to_owned());
        self.finish(verdict, why)
    }

    fn of_stack(&mut self, eni: EniNumber) -> Explanation {
        self.end("flow", &stack_flow(eni), Verdict::Stack, "stack-flow")
    }

    fn drop(&mut self, reason: DropReason) -> Explanation {
        self.step("drop", reason.explanation().to_owned());
        self.finish(Verdict::Dropped, reason.name())
    }

    fn leave(
        &mut self,
        verdict: Verdict,
        why: &str,
        eni: EniNumber,
        snat: Option<IpAddr>,
    ) -> Explanation {
        Explanation {
            eni: Some(eni),
            snat,
            ..self.finish(verdict, why)
        }
    }
}

#[cfg(test)]
mod tests;
