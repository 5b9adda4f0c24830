//! Result of a sweep.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use api::ids::EniNumber;
use api::types::FlowKind;
use datapath_common::abi::{Flow, FlowKey};

use super::SweepInput;
use super::pods::Pods;
use crate::census::Census;
use crate::tables::Tables;
use crate::thread::report::Top;

/// Result of a sweep.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sweep {
    /// Entries that exist, without the expired ones and those of endpoints that are gone.
    pub census: Census,
    /// The removed entries.
    pub reaped: Reaped,
    /// Flows that do not follow the current policy.
    pub outdated: Outdated,
    /// State of the quotas.
    pub quotas: QuotaUse,
    /// True if closed connections of any endpoint were removed at once.
    pub is_pressed: bool,
    /// True if the next sweep is to come soon: a destination is short of ports, or the sweep will
    /// remove something, provided that it finds it unchanged.
    pub is_urgent: bool,
    /// Addresses of endpoints that are gone but still had entries.
    pub lost: BTreeSet<IpAddr>,
    /// The ENIs that flows and notes name.
    pub enis: BTreeSet<EniNumber>,
    /// Resting numbers that no entry of conntrack carries in its mark.
    pub unmarked: BTreeSet<EniNumber>,
    /// The addresses of the endpoints that were to exist.
    pub endpoints: Option<Arc<BTreeSet<IpAddr>>>,
    /// Error of the look-up in conntrack.
    pub error: Option<String>,
    /// Duration of the sweep.
    pub took: Duration,
}

/// Numbers of flows and notes that a sweep removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    /// Those that had been idle for too long.
    pub idle: u64,
    /// Those whose endpoint is gone.
    pub gone: u64,
}

/// State of the quotas after a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QuotaUse {
    /// Quotas that were corrected.
    pub corrected: u64,
    /// Largest part of its quota that an endpoint uses, from 0 to 1.
    pub fullest: f64,
    /// The endpoint with the most flows.
    pub top: Option<Top>,
}

/// Numbers of flows that were opened under an earlier policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outdated {
    /// Flows that policy would not translate any more.
    pub exempt: u64,
    /// Flows of pods that are not where the programs look first under the current policy.
    pub elsewhere: u64,
}

impl Outdated {
    /// Counts a flow that the current policy would not open, or not by this ENI.
    pub(super) fn count<T: Tables>(
        &mut self,
        input: &SweepInput,
        pods: &mut Pods<'_, T>,
        key: &FlowKey,
        flow: &Flow,
    ) {
        let Some(policy) = &input.policy else {
            return;
        };
        let (pod, remote) = (flow.pod.into(), key.remote.into());
        let is_pods = FlowKind::of(flow.endpoint) == FlowKind::Pod;
        // The host's flow at its own port needs no look-up to go on.
        if (is_pods || key.port != flow.pod_port) && policy.is_exempt(pod, remote) {
            self.exempt += 1;
        }
        if is_pods {
            // A flow whose address has no known owner may be elsewhere.
            let owner = pods.owner(flow.pod, flow.endpoint);
            let is_there = |owner| policy.exit(pod, remote, owner) == key.eni;
            self.elsewhere += u64::from(!owner.is_some_and(is_there));
        }
    }
}
