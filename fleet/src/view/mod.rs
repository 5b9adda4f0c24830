//! A fleet for people to see. Every value can be serialised.

mod plain;
mod pools;

use std::collections::BTreeMap;

use cloud::call::budget::{BudgetView, Need};
use cloud::groups::findings;
use cloud::node::{Aside, Role, Step};
use cloud::want::{Reading, Want};
use cloud::{Eni, InstanceId};
use serde::{Deserialize, Serialize};

pub use self::plain::{PlainView, SpaceView};
pub use self::pools::{PoolView, ReleaseView};
use crate::input::Moment;
use crate::machine::Fleet;
use crate::member::{Member, Obstacle, date_of};

/// A node in short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// Its instance.
    pub instance: Option<String>,
    /// Its instance type.
    pub instance_type: Option<String>,
    /// IPv4 addresses that its pods can have.
    pub addresses: u32,
    /// IPv4 addresses that it lacks.
    pub missing: u32,
    /// Pods that wait for an address.
    pub waiting_pods: u32,
    /// ENIs on network card 0.
    pub enis: u32,
    /// The most ENIs that it can have there; none where its type is not known.
    pub enis_most: Option<u16>,
    /// The next change at EC2.
    pub step: Option<String>,
    /// The first reason for which it does not get on.
    pub obstacle: Option<ObstacleView>,
}

/// A reason for which a node does not get on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObstacleView {
    /// The kind of reason.
    pub reason: String,
    /// The reason.
    pub text: String,
    /// The next try.
    pub next_try: Option<String>,
}

/// A node with all that follows for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WhyView {
    /// The node in short.
    pub node: NodeView,
    /// The urgency of its next change.
    pub need: Option<String>,
    /// A change is in progress at EC2.
    pub is_busy: bool,
    /// All reasons for which it does not get on.
    pub obstacles: Vec<ObstacleView>,
    /// The fields of its document that cannot be used.
    pub problems: Vec<String>,
    /// Faults of its ENIs' security groups, a kubelet that takes more pods than there can be
    /// addresses for, extended resources that cannot be written, and a Node that is not there.
    pub findings: Vec<String>,
    /// Its ENIs, each with its use.
    pub enis: BTreeMap<String, String>,
    /// The reason that the last write of its object failed.
    pub write_fault: Option<String>,
}

/// A subnet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SubnetView {
    /// Its id.
    pub id: String,
    /// Its zone.
    pub zone: String,
    /// Free IPv4 addresses, less those that calls in flight take.
    pub room: u32,
    /// Seconds until it has no free address, if it goes on as in the last hour; none if it does not
    /// become fuller.
    pub lasts_seconds: Option<u64>,
    /// Kinds of blocks that EC2 refused, with the time at which each is tried again.
    pub refused: BTreeMap<String, String>,
}

/// The budget of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Allowance {
    /// The call.
    pub action: String,
    /// Calls at once.
    pub burst: f64,
    /// Calls a second.
    pub per_second: f64,
    /// The part of the rate that is used now, from 0 to 1.
    pub factor: f64,
    /// Throttled answers so far.
    pub throttled: u64,
    /// Calls that wait.
    pub waiting: usize,
    /// The reason for which the call is paused.
    pub pause: Option<String>,
}

/// An ENI that the cluster made and that cannot be deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeakView {
    /// The ENI.
    pub eni: String,
    /// Failures in a row.
    pub failures: u32,
    /// The reason.
    pub reason: String,
}

impl Fleet {
    /// The names of all nodes.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.nodes.members.keys().cloned().collect()
    }

    /// All nodes in short.
    #[must_use]
    pub fn nodes(&self, at: Moment) -> Vec<NodeView> {
        let all = self.nodes.members.iter();
        all.map(|(name, member)| self.node_view(name, member, at))
            .collect()
    }

    /// A node with all that follows for it; none if there is no such node.
    #[must_use]
    pub fn why(&self, name: &str, at: Moment) -> Option<WhyView> {
        let member = self.nodes.members.get(name)?;
        let document = &member.document;
        let problems = &document.problems;
        let problems = problems.others.iter().chain(&problems.of_rules);
        let mut problems: Vec<String> = problems.map(ToString::to_string).collect();
        let kind = member.node.instance_type.as_deref();
        let fault = kind.and_then(|it| self.topology.type_fault(it));
        problems.extend(fault.map(str::to_owned));
        let enis = member.instance().into_iter();
        let enis = enis.flat_map(|it| self.memory.inventory.of_instance(it));
        Some(WhyView {
            node: self.node_view(name, member, at),
            need: member.next.need.map(|it| need(it).to_owned()),
            is_busy: self
                .nodes
                .progress
                .get(name)
                .is_some_and(cloud::node::Progress::is_busy),
            obstacles: member
                .reported
                .obstacles
                .iter()
                .map(|it| obstacle(it, at))
                .collect(),
            problems,
            findings: self.all_findings(name, member),
            enis: enis
                .map(|eni| (eni.id.to_string(), use_of(eni, member)))
                .collect(),
            write_fault: member.write_fault(),
        })
    }

    /// All that is odd about a node and keeps it from nothing.
    fn all_findings(&self, name: &str, member: &Member) -> Vec<String> {
        let mut all = self.findings(member);
        all.extend(self.max_pods_warning(name, member));
        all.extend(self.nodes.advertised.fault(name));
        if self.nodes.removals.absent_since(name).is_some() {
            all.push(format!(
                "there is no Node {name}: its CiliumNode keeps ENIs and blocks until it is deleted"
            ));
        }
        all
    }

    /// Security groups that are not the chosen ones, or that load balancers cannot use.
    fn findings(&self, member: &Member) -> Vec<String> {
        let (Some(instance), Some(vpc)) = (member.instance(), member.vpc()) else {
            return Vec::new();
        };
        let groups = &self.topology.facts.groups;
        let enis = self.memory.inventory.of_instance(instance);
        let counted: Vec<&Eni> = enis
            .filter(|eni| Role::of(eni, &member.node.rules) == Role::Counted)
            .collect();
        let primary = self.memory.inventory.primary_of(instance);
        let Ok(wanted) = member.node.groups.choose(vpc, groups, primary) else {
            return Vec::new();
        };
        let found = findings(counted, &wanted, groups, &self.settings.cluster);
        found.iter().map(ToString::to_string).collect()
    }

    fn node_view(&self, name: &str, member: &Member, at: Moment) -> NodeView {
        let node = &member.node;
        let (addresses, enis) = member
            .instance()
            .map_or((0, 0), |it| self.count(it, member));
        let used = Reading::of(&node.demand, node.marks.pre).used;
        let want = Want::of(addresses, used, node.pending, &node.marks);
        let kind = node.instance_type.as_ref();
        let limits = kind.and_then(|it| self.topology.facts.limits.get(it));
        NodeView {
            name: name.to_owned(),
            instance: member.instance().map(ToString::to_string),
            instance_type: kind.cloned(),
            addresses,
            missing: if self.is_plain_only(member) {
                0
            } else {
                want.needed
            },
            waiting_pods: node.pending,
            enis,
            enis_most: limits.map(|it| it.adapters),
            step: member.next.step.as_ref().map(step),
            obstacle: member.reported.obstacles.first().map(|it| obstacle(it, at)),
        }
    }

    /// The addresses for pods and the ENIs of card 0.
    pub(crate) fn count(&self, instance: &InstanceId, member: &Member) -> (u32, u32) {
        let (mut addresses, mut enis) = (0_u32, 0);
        for eni in self.memory.inventory.of_instance(instance) {
            let Some(attachment) = eni.attachment.as_ref().filter(|it| it.card == 0) else {
                continue;
            };
            enis += 1;
            if Role::of(eni, &member.node.rules) == Role::Counted {
                let with_own = member.node.rules.use_primary && attachment.index != 0;
                addresses = addresses.saturating_add(eni.available(with_own));
            }
        }
        (addresses, enis)
    }

    /// All subnets.
    #[must_use]
    pub fn subnets(&self, at: Moment) -> Vec<SubnetView> {
        let pressure = &self.memory.pressure;
        let all = self.topology.facts.subnets.values();
        let view = all.map(|subnet| SubnetView {
            id: subnet.id.to_string(),
            zone: subnet.zone.clone(),
            room: subnet.free.saturating_sub(pressure.taken(&subnet.id)),
            lasts_seconds: self
                .topology
                .forecasts
                .get(&subnet.id)
                .and_then(cloud::Forecast::lasts)
                .map(|it| it.as_secs()),
            refused: pressure
                .full()
                .filter(|(id, kind, _)| {
                    **id == subnet.id && pressure.is_full(subnet, *kind, at.now)
                })
                .map(|(_, kind, until)| (format!("{kind:?}"), date_of(until, at).to_string()))
                .collect(),
        });
        view.collect()
    }

    /// The budget of each call.
    #[must_use]
    pub fn budgets(&self, at: Moment) -> Vec<Allowance> {
        let view = self.calls.budgets.view().map(|it: BudgetView| Allowance {
            action: it.action.name().to_owned(),
            burst: it.full.burst,
            per_second: it.full.per_second,
            factor: it.factor,
            throttled: it.throttled,
            waiting: self
                .calls
                .queue
                .iter()
                .filter(|call| call.action == it.action)
                .count(),
            pause: self
                .memory
                .pauses
                .of(it.action, at.now)
                .map(|pause| format!("{}, until {}", pause.failure, date_of(pause.until, at))),
        });
        view.collect()
    }

    /// ENIs that the cluster made, that nothing holds, and that cannot be deleted.
    #[must_use]
    pub fn leaks(&self) -> Vec<LeakView> {
        let failed = self.sweeping.leftovers().into_iter().map(|it| LeakView {
            eni: it.eni.to_string(),
            failures: it.failures,
            reason: it.failure.to_string(),
        });
        let unreadable = self.sweeping.unreadable.iter().map(|it| LeakView {
            eni: it.eni.to_string(),
            failures: 0,
            reason: it.to_string(),
        });
        failed.chain(unreadable).collect()
    }

    /// The number of objects whose Node is absent. They keep their blocks until they are deleted.
    #[must_use]
    pub fn without_node(&self) -> usize {
        let names = self.nodes.members.keys();
        let absent = names.filter(|name| self.nodes.removals.absent_since(name).is_some());
        absent.count()
    }

    /// The reads of EC2 that failed last, with their reasons.
    #[must_use]
    pub fn read_faults(&self) -> Vec<String> {
        let failures = self.reads.failures.iter();
        failures
            .map(|(call, failure)| Obstacle::unread(call, failure).text)
            .collect()
    }
}

fn obstacle(obstacle: &Obstacle, at: Moment) -> ObstacleView {
    ObstacleView {
        reason: format!("{:?}", obstacle.reason),
        text: obstacle.text.clone(),
        next_try: obstacle.until.map(|until| date_of(until, at).to_string()),
    }
}

fn use_of(eni: &Eni, member: &Member) -> String {
    match Role::of(eni, &member.node.rules) {
        Role::Counted if member.published.enis.contains_key(&eni.id) => "published".to_owned(),
        Role::Counted => "not published yet".to_owned(),
        Role::Aside(aside @ Aside::Loose) => format!("{aside}, created for this instance"),
        Role::Aside(aside) => aside.to_string(),
    }
}

fn need(need: Need) -> &'static str {
    match need {
        Need::NoAddresses => "no addresses",
        Need::WaitingPods => "waiting pods",
        Need::Deficit => "deficit",
        Need::Order => "order",
        Need::Sweep => "sweep",
    }
}

/// A step in one line.
fn step(step: &Step) -> String {
    let action = step.action();
    match step {
        Step::Create(create) => {
            let blocks = create.ipv4.map_or_else(String::new, |it| {
                format!(" with {} of kind {:?}", it.count, it.kind)
            });
            format!("{action} in {}{blocks}", create.subnet)
        }
        Step::Attach { eni, index, .. } => format!("{action} {eni} at index {index}"),
        Step::Assign { eni, blocks, .. } => {
            format!(
                "{action} {} of kind {:?} to {eni}",
                blocks.count, blocks.kind
            )
        }
        Step::Mark { eni, .. } => format!("{action} {eni}: delete on termination"),
        Step::Group { eni, groups } => {
            let ids: Vec<&str> = groups.iter().map(cloud::GroupId::as_str).collect();
            format!("{action} {eni}: security groups {}", ids.join(","))
        }
        Step::Unassign { eni, blocks } => {
            let blocks: Vec<String> = blocks.iter().map(ToString::to_string).collect();
            format!("{action} {} of {eni}", blocks.join(","))
        }
        Step::Detach { eni, .. } | Step::Delete { eni } => format!("{action} {eni}"),
        Step::Associate { eni, address, .. } => format!("{action} {address} with {eni}"),
    }
}
