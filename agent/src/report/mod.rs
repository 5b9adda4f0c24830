//! The state of the agent and of the node.

pub(crate) mod bypassed;
pub(crate) mod cluster;
pub(crate) mod conntrack;
mod enis;
pub(crate) mod foreign_config;
pub(crate) mod health;
pub(crate) mod masquerade;
pub(crate) mod metrics;
pub(crate) mod nat;
pub(crate) mod refused;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::types::PathMode;
use api::types::Readiness;
use api::types::RepairWar;
use api::types::{
    AddressStatus, DatapathStatus, DocumentStatus, EndpointStatus, EniStatus, Metric, Repairs,
    ServiceNatStatus, Status, SysctlStatus,
};
use api::{ApiError, ErrorCode};
use datapath_common::counter::{Counter, Program};
use datapath_common::outcome::Outcome;
use loader::bpf::DatapathMode;
use loader::netfilter::untracked;
use loader::netlink;
use loader::netlink::Others;
use loader::observation::view::EndpointView;

use super::actor::Actor;
use crate::actor::admission::host_device;
use crate::host::kernel::Host;
use crate::report::health::Snapshot;
use crate::state::another_machine::another_machine;

/// Number of refused fields that health names; `document.refused` has all.
const REFUSED: usize = 8;

/// The part of the kernel's state that only the status has.
struct KernelState {
    datapath: DatapathStatus,
    /// Devices where a foreign `ingress` qdisc has the place of our clsact.
    displaced: BTreeSet<u32>,
    others: Others,
    /// The parts that could not be read, with the reasons.
    unreadable: Vec<String>,
}

/// The value that was read, or the default and the reason.
fn or_default<T: Default>(part: &str, read: anyhow::Result<T>, unreadable: &mut Vec<String>) -> T {
    read.unwrap_or_else(|error| {
        unreadable.push(format!("{part} could not be read: {error:#}"));
        T::default()
    })
}

/// The owner of an endpoint that is not ready, and the reason.
fn not_ready(endpoint: &EndpointStatus) -> Option<(String, String)> {
    let reason = endpoint.readiness.reason()?;
    Some((endpoint.owner.to_string(), reason.to_owned()))
}

impl<K: Host> Actor<K> {
    /// The endpoints.
    pub(crate) fn endpoints(&self) -> Vec<EndpointStatus> {
        let of = |(id, endpoint): (_, &loader::intent::Endpoint)| {
            let view = self.passes.last.view.endpoints.get(id);
            let addresses = endpoint.addresses.iter().map(|address| AddressStatus {
                address: *address,
                eni: view.and_then(|view| *view.addresses.get(address)?),
                pool: self.intent.given_by(endpoint, *address).map(str::to_owned),
                policy: Some(self.intent.policy_of(endpoint, *address).to_owned()),
            });
            EndpointStatus {
                owner: endpoint.owner.clone(),
                netns: endpoint.netns.clone(),
                host_device: host_device(self.reconciler.kernel().facts(), *id),
                mtu: endpoint.mtu,
                pod: endpoint.about.pod.clone(),
                network: endpoint.about.network.clone(),
                addresses: addresses.collect(),
                orphaned: endpoint.is_orphan(),
                readiness: view.map_or_else(
                    || Readiness::not_ready("not checked yet"),
                    |view| view.readiness.clone(),
                ),
            }
        };
        self.intent.endpoints.iter().map(of).collect()
    }

    /// The counters, in the order of programs and outcomes.
    pub(crate) fn metrics(&self) -> Result<Vec<Metric>, ApiError> {
        let counters = self.reconciler.kernel().counters();
        let counters =
            counters.map_err(|error| ApiError::new(ErrorCode::Internal, format!("{error:#}")))?;
        let mut metrics = metrics(&counters);
        metrics.extend(nat::metrics(&self.observers.nat.report().counters));
        Ok(metrics)
    }

    /// The state of the whole. What cannot be found out is among the reasons, and hides nothing
    /// else.
    pub(crate) async fn status(&mut self) -> Status {
        let KernelState {
            datapath,
            displaced,
            others,
            unreadable,
        } = self.kernel_state().await;
        let enis = self.enis();
        let devices = enis.iter().filter_map(|eni| eni.device.as_deref());
        let devices: Vec<_> = devices.collect();
        let sysctls = netlink::routing_sysctls(&devices).into_iter().map(sysctl);
        let endpoints = self.endpoints();
        let repairs = self.repairs();
        let mut problems = self.problems(&enis, &endpoints, &repairs.wars);
        problems.extend(unreadable);
        problems.extend(self.displaced_endpoints(&displaced));
        let (dropping, policies) = self.observers.bypassed.drop_policies();
        problems.extend(dropping);
        let health = self.snapshot(&enis, problems).judge().health();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: self.passes.started.elapsed().as_secs(),
            health,
            document: self.document_status(),
            allocation: self.allocation_status(),
            warnings: self
                .observers
                .warnings
                .iter()
                .cloned()
                .chain(policies)
                .collect(),
            masquerade_notes: self.masquerade_notes(),
            endpoints: endpoints.len(),
            endpoints_not_ready: endpoints.iter().filter_map(not_ready).collect(),
            endpoint_notes: self.endpoint_notes(&displaced),
            datapath,
            nat: self.nat_status(),
            service_nat: self.service_nat_status(),
            cluster: self.cluster_status(),
            foreign_config: self.foreign_config(&others),
            bypassed_rules: self.bypassed_rules(),
            leftovers: others.leftovers,
            sysctls: sysctls.chain(masquerade::reserved_ports()).collect(),
            repairs: Repairs {
                total: repairs.total,
                by_kind: repairs.by_kind,
                wars: repairs.wars,
            },
            corrupt_records: self.records.corrupt.values().cloned().collect(),
            enis,
        }
    }

    /// The part of the kernel's state that only the status has.
    async fn kernel_state(&mut self) -> KernelState {
        let hooks = self.hooks();
        let devices = self.eni_devices();
        let kernel = self.reconciler.kernel_mut();
        let mut unreadable = Vec::new();
        let foreign_programs = kernel.foreign_programs(&hooks);
        let foreign_programs = or_default("programs of others", foreign_programs, &mut unreadable);
        let features = or_default("kernel features", kernel.features(), &mut unreadable);
        let displaced = or_default("qdiscs of others", kernel.displaced(), &mut unreadable);
        let others = kernel.others(&devices).await;
        let others = or_default("rules and routes of others", others, &mut unreadable);
        let path = match kernel.datapath_settings().path {
            DatapathMode::Direct | DatapathMode::ServiceNat => PathMode::Direct,
            DatapathMode::Stack => PathMode::Stack,
        };
        KernelState {
            datapath: DatapathStatus {
                path,
                features,
                missing_features: kernel.missing_features(),
                foreign_programs,
            },
            displaced,
            others,
            unreadable,
        }
    }

    fn document_status(&self) -> DocumentStatus {
        let refused = self.intent.node.unfollowed.refused.iter();
        DocumentStatus {
            path: self.documents.path.clone(),
            node: self
                .documents
                .source
                .value
                .as_ref()
                .map(|node| node.name.clone()),
            generation: self.documents.source.generation,
            error: self.documents.source.error.clone(),
            notes: self.intent.node.unfollowed.notes.clone(),
            refused: refused.map(ToString::to_string).collect(),
        }
    }

    fn service_nat_status(&self) -> ServiceNatStatus {
        let endpoints = self.intent.endpoints.values();
        let pods: BTreeSet<&IpAddr> = endpoints.flat_map(|one| &one.addresses).collect();
        ServiceNatStatus {
            missed: self.observers.missed.of(|address| pods.contains(address)),
            ..self.reconciler.kernel().service_nat()
        }
    }

    /// The problem that another qdisc has the place of endpoints' source check, if one has. A shaper
    /// or a program of others takes nothing from what pods are promised.
    fn displaced_endpoints(&self, displaced: &BTreeSet<u32>) -> Option<String> {
        let endpoints = self.passes.last.view.endpoints.values();
        let devices = endpoints.filter_map(|endpoint| endpoint.ifindex);
        let count = devices.filter(|device| displaced.contains(device)).count();
        let all = self.intent.endpoints.len();
        (count > 0).then(|| format!("{count} of {all} endpoints have a foreign ingress qdisc"))
    }

    /// Notes on endpoints that work, by owner: those whose devices others have something on.
    fn endpoint_notes(&self, displaced: &BTreeSet<u32>) -> BTreeMap<String, String> {
        let facts = self.reconciler.kernel().facts();
        let on_device = |endpoint: &EndpointView| {
            let ifindex = endpoint.ifindex?;
            let device = &endpoint.device;
            if displaced.contains(&ifindex) {
                return Some(format!(
                    "{device} has a foreign ingress qdisc (the CNI bandwidth plugin makes \
                     one) in the place of our clsact: what its filters take from the pod, such as \
                     all that they shape, goes through the host's stack without our source check; \
                     remove the qdisc, or use TCX (attach: \"auto\" on Linux 6.6 or later)"
                ));
            }
            let what = facts?.via_stack.get(&ifindex)?.as_ref()?;
            Some(format!(
                "its packets take the host's stack, because {device} has {what}, which would not \
                 see packets of the direct path{}",
                untracked::on_change_of_path()
            ))
        };
        let endpoints = self.passes.last.view.endpoints.values();
        endpoints
            .filter_map(|endpoint| Some((endpoint.owner.to_string(), on_device(endpoint)?)))
            .collect()
    }

    /// The devices that carry our programs.
    fn hooks(&self) -> BTreeSet<u32> {
        let view = &self.passes.last.view;
        let enis = view.enis.values().filter_map(|eni| eni.device.as_ref());
        let primary = view.primary.iter().chain(enis).map(|device| device.ifindex);
        let endpoints = view
            .endpoints
            .values()
            .filter_map(|endpoint| endpoint.ifindex);
        primary.chain(endpoints).collect()
    }

    /// The refused parts of the document, but for the reasons why an ENI is not ready.
    fn refused_beside(&self, enis: &[EniStatus]) -> Vec<String> {
        let refused = self
            .intent
            .node
            .unfollowed
            .refused
            .iter()
            .map(ToString::to_string);
        let reasons: Vec<&str> = enis
            .iter()
            .filter_map(|eni| eni.readiness.reason())
            .collect();
        let is_told = |text: &String| reasons.iter().any(|reason| reason.contains(text));
        refused
            .filter(|text| !is_told(text))
            .take(REFUSED)
            .collect()
    }

    /// The inputs of the judgement, with further problems that a caller has found.
    pub(crate) fn snapshot(&self, enis: &[EniStatus], problems: Vec<String>) -> Snapshot<'_> {
        let room = self.addresses.room();
        let waits = self.services_missing().into_iter();
        Snapshot {
            has_document: self.documents.source.value.is_some(),
            is_kept: self.documents.source.is_kept(),
            document_error: self.documents.source.error.as_deref(),
            node: self.passes.last.view.node.reason(),
            has_eni: enis.iter().any(|eni| eni.readiness.is_ready()),
            waits: waits.chain(room.waits).collect(),
            exhausted: room.exhausted,
            problems,
        }
    }

    /// The problems that keep no pod off.
    fn problems(
        &self,
        enis: &[EniStatus],
        endpoints: &[EndpointStatus],
        wars: &[RepairWar],
    ) -> Vec<String> {
        let facts = self.reconciler.kernel().facts();
        let another = facts.and_then(|facts| another_machine(&self.intent.node, &facts.links));
        let is_another = another.is_some();
        let not_ready = enis.iter().filter_map(|eni| {
            let Readiness::NotReady { reason } = &eni.readiness else {
                return None;
            };
            // Of a document that is another machine's, one line says so of all.
            let is_told = is_another && reason.starts_with("no device with MAC");
            (!is_told).then(|| format!("ENI {}: {reason}", enis::named(eni)))
        });
        let mut problems: Vec<String> = another.into_iter().chain(not_ready).collect();
        let refused = self.refused_beside(enis).into_iter();
        problems.extend(refused.map(|problem| format!("node document: {problem}")));
        let broken = endpoints.iter().filter(|e| !e.readiness.is_ready()).count();
        if broken > 0 {
            problems.push(format!(
                "{broken} of {} endpoints not ready",
                endpoints.len()
            ));
        }
        problems.extend(self.services_problems());
        problems.extend(self.policy_errors());
        problems.extend(self.passes.last.failures.iter().map(ToString::to_string));
        problems.extend(wars.iter().map(|war| {
            format!(
                "another program keeps changing {}: {}",
                war.object, war.hint
            )
        }));
        problems.extend(self.short_of_room());
        problems.extend(self.conntrack_shortage());
        problems.extend(self.reconciler.kernel().interpreted().problem());
        let flows = self.observers.nat.report().error;
        problems
            .extend(flows.map(|error| format!("garbage collection of flows is failing: {error}")));
        problems.extend(self.reconciler.kernel().port_problem());
        problems.extend(self.record_problems());
        problems.extend(self.addresses.unanswered().iter().map(ToString::to_string));
        let faults = self.addresses.faults();
        problems.extend(faults.map(|fault| format!("addresses: {fault}")));
        problems.extend(self.ingress_problems());
        problems.extend(self.observers.cluster_warnings.all());
        problems
    }
}

fn metrics(counters: &BTreeMap<(Program, Outcome), Counter>) -> Vec<Metric> {
    let of = |((program, outcome), counter): (&(Program, Outcome), &Counter)| Metric {
        program: program.name().to_owned(),
        outcome: outcome.name().to_owned(),
        drop: outcome.is_drop(),
        packets: counter.packets,
        bytes: counter.bytes,
        meaning: outcome.explanation().to_owned(),
    };
    counters.iter().map(of).collect()
}

/// A sysctl with what it does to our packets.
fn sysctl((name, effective): (String, String)) -> SysctlStatus {
    let effect = match (name.rsplit('.').next(), effective.as_str()) {
        (Some("rp_filter"), "1") => {
            Some("strict: packets that arrive by another ENI than their reply's are dropped")
        }
        (Some("forwarding"), "0") => Some(
            "the device takes router advertisements as a host's does; it is not changed, for IPv6 is \
             forwarded by net.ipv6.conf.all.forwarding",
        ),
        (Some("fwmark_reflect"), "1") => {
            Some("the kernel's own replies use the ENI of the packet that they answer")
        }
        (Some("tcp_fwmark_accept"), "1") => {
            Some("connections that the host accepts keep the ENI they came by")
        }
        _ => None,
    };
    SysctlStatus {
        name,
        effective,
        effect: effect.map(str::to_owned),
    }
}
