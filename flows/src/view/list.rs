//! Listing and flushing flows.

use anyhow::{Context as _, Result};
use api::types::FlowKind;
use api::types::{FlowFilter, NatFlow, NatFlows, NatFlushed};
use datapath_common::abi::{
    Addr, Flow, FlowKey, PodTuple, REAP_BATCH, ReapFlow, ReapNote, TrackedFlow,
};
use ipam::Family;

use super::protocols;
use crate::census::phase_name;
use crate::lifetimes::{flow_phase, note_phase};
use crate::sweep::Sweeper;
use crate::sweep::expiry::Expiry;
use crate::tables::{NoteKind, Tables};

/// A filter in the maps' terms.
struct Wanted {
    pod: Option<Addr>,
    remote: Option<Addr>,
    protocol: Option<u8>,
}

impl Wanted {
    fn of(filter: &FlowFilter) -> Result<Self> {
        let number = |name: &String| {
            protocols::number(name).with_context(|| format!("{name:?} is no protocol"))
        };
        Ok(Self {
            pod: filter.pod.map(Addr::from),
            remote: filter.remote.map(Addr::from),
            protocol: filter.protocol.as_ref().map(number).transpose()?,
        })
    }

    fn takes(&self, pod: Addr, remote: Addr, protocol: u8) -> bool {
        self.pod.is_none_or(|wanted| wanted == pod)
            && self.remote.is_none_or(|wanted| wanted == remote)
            && self.protocol.is_none_or(|wanted| wanted == protocol)
    }
}

/// The stable name of a family.
pub(super) fn family_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "ipv4",
        Family::V6 => "ipv6",
    }
}

/// The flows that a filter takes, in order; of too many the first that were met.
pub(crate) fn flows<T: Tables>(sweeper: &Sweeper<T>, filter: &FlowFilter) -> Result<NatFlows> {
    let wanted = Wanted::of(filter)?;
    let tables = &sweeper.tables;
    let expiry = sweeper.expiry()?;
    let mut list = NatFlows::default();
    let mut add = |row: &dyn Fn() -> NatFlow| {
        list.total += 1;
        if list.flows.len() < NatFlows::MAX {
            list.flows.push(row());
        }
    };
    for family in Family::ALL {
        tables.flows(family, &mut |key, flow| {
            if wanted.takes(flow.pod, key.remote, key.protocol) {
                add(&|| translated(&expiry, family, key, flow));
            }
        })?;
    }
    for kind in [NoteKind::Inbound, NoteKind::Stack] {
        tables.notes(kind, &mut |tuple, note| {
            if wanted.takes(tuple.pod, tuple.remote, tuple.protocol) {
                add(&|| noted(&expiry, kind, tuple, note));
            }
        })?;
    }
    for flow in &mut list.flows {
        if flow.translated_port.is_none() {
            continue;
        }
        let Some(eni) = flow.eni.map(|eni| tables.eni(eni)).transpose()?.flatten() else {
            continue;
        };
        let addresses = match Family::of(flow.pod) {
            Family::V4 => eni.v4(),
            Family::V6 => eni.v6(),
        };
        let snat = addresses.snat;
        flow.translated = (!snat.is_unspecified()).then(|| snat.into());
    }
    list.flows.sort();
    Ok(list)
}

fn translated(expiry: &Expiry<'_>, family: Family, key: &FlowKey, flow: &Flow) -> NatFlow {
    let idle = expiry.idle(flow.last_seen);
    let lifetime = expiry.lifetime(key, flow);
    NatFlow {
        family: family_name(family).to_owned(),
        protocol: protocols::name(key.protocol),
        kind: FlowKind::of(flow.endpoint),
        pod: flow.pod.into(),
        pod_port: u16::from_be(flow.pod_port),
        eni: Some(key.eni),
        translated: None,
        translated_port: Some(u16::from_be(key.port)),
        remote: key.remote.into(),
        remote_port: u16::from_be(key.remote_port),
        phase: phase_name(flow_phase(key, flow)).to_owned(),
        idle_seconds: idle.as_secs(),
        expires_seconds: lifetime.saturating_sub(idle).as_secs(),
    }
}

fn noted(expiry: &Expiry<'_>, kind: NoteKind, tuple: &PodTuple, note: &TrackedFlow) -> NatFlow {
    let idle = expiry.idle(note.last_seen);
    let lifetime = expiry.note_lifetime(kind, tuple, note);
    NatFlow {
        family: family_name(Family::of(tuple.pod.into())).to_owned(),
        protocol: protocols::name(tuple.protocol),
        kind: kind.flow_kind(),
        pod: tuple.pod.into(),
        pod_port: u16::from_be(tuple.pod_port),
        eni: match kind {
            NoteKind::Inbound => None,
            NoteKind::Stack => note.mark(),
        },
        translated: None,
        translated_port: None,
        remote: tuple.remote.into(),
        remote_port: u16::from_be(tuple.remote_port),
        phase: phase_name(note_phase(kind, tuple, note)).to_owned(),
        idle_seconds: idle.as_secs(),
        expires_seconds: lifetime.saturating_sub(idle).as_secs(),
    }
}

/// Removes the flows that a filter takes, busy ones too; of the host's stack what conntrack has no
/// entry of: it would translate a connection, and its answers would go past it.
pub(crate) fn flush<T: Tables>(
    sweeper: &mut Sweeper<T>,
    filter: &FlowFilter,
) -> Result<NatFlushed> {
    let wanted = Wanted::of(filter)?;
    let Sweeper {
        tables, tracker, ..
    } = sweeper;
    let last_seen = ReapFlow::ALWAYS;
    let mut removed = 0;
    for family in Family::ALL {
        let mut flows = Vec::with_capacity(REAP_BATCH);
        tables.flows(family, &mut |key, flow| {
            if wanted.takes(flow.pod, key.remote, key.protocol) {
                let key = *key;
                flows.push(ReapFlow { key, last_seen });
            }
        })?;
        removed += tables.reap_flows(&flows)?;
    }
    for kind in [NoteKind::Inbound, NoteKind::Stack] {
        let mut notes = Vec::new();
        tables.notes(kind, &mut |tuple, _note| {
            if wanted.takes(tuple.pod, tuple.remote, tuple.protocol) {
                let key = *tuple;
                notes.push(ReapNote { key, last_seen });
            }
        })?;
        if kind == NoteKind::Stack {
            let mut unknown = Vec::new();
            for note in notes {
                if !tracker.has(&note.key)? {
                    unknown.push(note);
                }
            }
            notes = unknown;
        }
        removed += tables.reap_notes(kind, &notes)?;
    }
    Ok(NatFlushed { removed })
}
