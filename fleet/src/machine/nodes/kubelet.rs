//! The number of pods that a kubelet takes, beside the addresses that its node can ever have.

use std::collections::BTreeMap;

use cloud::want::{Capacity, OF_THE_HOST, most_addresses};
use kubernetes::operation::node::DEFAULT_POOL;
use kubernetes::operation::report::Reason;

use crate::input::Moment;
use crate::machine::Fleet;
use crate::member::Member;

impl Fleet {
    /// Updates the numbers of some kubelets.
    pub(in crate::machine) fn set_max_pods(&mut self, numbers: BTreeMap<String, u32>) {
        for (name, number) in numbers {
            if self.cluster.max_pods.insert(name.clone(), number) != Some(number) {
                self.nodes.dirty.insert(name);
            }
        }
    }

    /// The warning for a node whose kubelet accepts more pods than there can be addresses. A node
    /// with addresses of other pools than the default one can have more than those of its ENIs.
    pub(crate) fn max_pods_warning(&self, name: &str, member: &Member) -> Option<String> {
        let pods = *self.cluster.max_pods.get(name)?;
        let requested = &member.document.demand.requested;
        let kind = member.node.instance_type.as_ref()?;
        let limits = self.topology.facts.limits.get(kind)?;
        member.instance()?;
        if requested.keys().any(|pool| pool != DEFAULT_POOL) {
            return None;
        }
        let rules = &member.node.rules;
        let capacity = Capacity {
            first_index: rules.first_index,
            prefixes: rules.prefixes && limits.prefixes,
            use_primary: rules.use_primary,
            ..Capacity::default()
        };
        let of_type = most_addresses(limits, &capacity);
        let bound = Some(member.node.marks.max).filter(|it| *it > 0 && *it < of_type);
        let most = bound.unwrap_or(of_type);
        (pods > most.saturating_add(OF_THE_HOST)).then(|| {
            let reason = match bound {
                Some(bound) => format!("max-allocate leaves the node {bound} addresses"),
                None => format!("an instance of type {kind} has at most {most} addresses"),
            };
            format!(
                "the kubelet takes {pods} pods, and {reason} for pods; set maxPods of the kubelet to \
                 {} or less",
                most.saturating_add(OF_THE_HOST)
            )
        })
    }

    /// Records an event about a kubelet's number, once for each text.
    pub(in crate::machine) fn warn_of_max_pods(&mut self, name: &str, at: Moment) {
        if !self.may_change(at.now) {
            return;
        }
        let member = self.nodes.members.get(name);
        let warning = member.and_then(|it| self.max_pods_warning(name, it));
        let Some(member) = self.nodes.members.get_mut(name) else {
            return;
        };
        if member.reported.max_pods_warning == warning {
            return;
        }
        member.reported.max_pods_warning.clone_from(&warning);
        if let Some(text) = warning {
            self.report(name, Reason::MaxPodsTooHigh, text);
        }
    }
}
