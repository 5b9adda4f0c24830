//! The plan of one node: its next call, its reads, its writes.

use cloud::call::budget::Entry;
use cloud::call::query::What;
use cloud::inventory::Scope;
use cloud::node::{Condition, Next, Progress, Reason as Cause, World, next};
use cloud::{EniId, InstanceId};
use ipam::Time;
use kubernetes::operation::report::Reason;

use super::{Fleet, Key};
use crate::input::Moment;
use crate::member::{Evidence, Member, Obstacle, Publication};

/// Number of reads of a missing primary ENI before its instance is read.
const LOOKS: u32 = 3;

/// The state before a plan of a node.
enum Ready<'a> {
    /// Its ENIs are read.
    Read(&'a InstanceId),
    /// It has to wait.
    Waits(Obstacle),
    /// Reads come first.
    Reads(Obstacle),
    /// Its status has ENIs that EC2 does not show.
    Doubts(Obstacle),
    /// EC2 does not show its primary ENI.
    NoPrimary(Obstacle),
    /// Its own document lacks something, which the plan names.
    Unclear,
}

impl Fleet {
    /// Plans a node, and queues its calls and writes.
    pub(super) fn look_at(&mut self, name: &str, at: Moment) {
        let Some(member) = self.nodes.members.get_mut(name) else {
            return;
        };
        if member.is_left_alone() {
            member.next = Next::default();
            member.reported.obstacles.clear();
            self.calls.queue.remove(&Key::Node(name.to_owned()));
            self.nodes.timers.set(name, None);
            return;
        }
        if let Some(instance) = member.node.instance.clone() {
            let evidence = Evidence {
                inventory: &self.memory.inventory,
                lacked: &self.nodes.lacked,
                epoch: member.reads.since,
            };
            let member = &mut *member;
            let (doubts, published) = (&mut member.reads.doubts, &member.published);
            doubts.update(published, &instance, evidence, at.now);
        }
        self.want_type_of(name, at.now);
        let addresses = self.want_addresses(name, at.now);
        self.release(name, at);
        let (plan, again) = self.plan_and_read(name, at);
        let mut again = soonest(again, addresses);
        let publication = self.publication(name);
        let member = self.nodes.members.get(name);
        let is_plain_only = member.is_some_and(|it| self.is_plain_only(it));
        let blocks = member.map(|it| self.plain.obstacles(&it.document));
        let blocks = blocks.unwrap_or_default();
        if let Some(member) = self.nodes.members.get_mut(name) {
            let withheld = publication
                .iter()
                .flat_map(|it| it.unjudged.iter().chain(&it.withheld));
            let withheld = withheld.map(|text| Obstacle::new(Reason::NotReady, text));
            if is_plain_only {
                member.reported.obstacles.clear();
            }
            member.reported.obstacles.extend(withheld);
            member.reported.obstacles.extend(blocks);
            member.next = plan;
        }
        self.line_up(name, at);
        self.warn_of_max_pods(name, at);
        self.report_released(name, at);
        let publication = publication.filter(|it| it.unjudged.is_empty());
        again = soonest(again, self.write(name, publication.as_ref(), at));
        let release = self.nodes.members.get(name).map(|it| &it.releases);
        again = soonest(again, release.and_then(|it| it.next(at.now)));
        self.nodes.timers.set(name, again);
    }

    /// Decides which blocks and ENIs of a node go back.
    fn release(&mut self, name: &str, at: Moment) {
        let Some(member) = self.nodes.members.get(name) else {
            return;
        };
        let is_read = matches!(self.readiness(member), Ready::Read(_));
        let taking = self.nodes.progress.get(name).map(Progress::taking);
        if let Some(member) = self.nodes.members.get_mut(name) {
            let (releases, node) = (&mut member.releases, &member.node);
            releases.taking = taking.unwrap_or_default();
            let world = World {
                facts: &self.topology.facts,
                memory: &self.memory,
                now: at.now,
                date: at.date,
            };
            member.node.release = releases.update(node, &world, is_read);
        }
    }

    /// The plan of a node, with the time of its next check. Requests the reads that the plan needs.
    fn plan_and_read(&mut self, name: &str, at: Moment) -> (Next, Option<Time>) {
        let Some(member) = self.nodes.members.get(name) else {
            return (Next::default(), None);
        };
        let (plan, obstacles, again) = match self.readiness(member) {
            Ready::Read(_) | Ready::Unclear => {
                let plan = self.next_of(name, at);
                let obstacles = plan.conditions.iter().map(|it| self.obstacle(member, it));
                let obstacles = obstacles.chain(self.bad_pools(member)).collect();
                let again = plan.at().filter(|it| *it > at.now);
                if let Some(scope) = &plan.read {
                    self.reads.want(scope);
                }
                (plan, obstacles, again)
            }
            Ready::Waits(obstacle) => (Next::default(), vec![obstacle], None),
            Ready::Reads(obstacle) => {
                if let Some(instance) = member.instance() {
                    self.reads
                        .want(&Scope::Instances([instance.clone()].into()));
                }
                (Next::default(), vec![obstacle], None)
            }
            Ready::Doubts(obstacle) => {
                let due = member.reads.doubts.due(at.now);
                if !due.is_empty() {
                    self.reads.want(&Scope::Ids(due));
                }
                (
                    Next::default(),
                    vec![obstacle],
                    member.reads.doubts.next(at.now),
                )
            }
            Ready::NoPrimary(obstacle) => {
                let again = self.look_for_primary(name, at.now);
                (Next::default(), vec![obstacle], again)
            }
        };
        if let Some(member) = self.nodes.members.get_mut(name) {
            member.reported.obstacles = obstacles;
        }
        (plan, again)
    }

    /// A condition of a plan as an obstacle. The read of an instance type has the reason for missing
    /// limits, and that of Elastic IP addresses the reason that they are not known.
    fn obstacle(&self, member: &Member, condition: &Condition) -> Obstacle {
        let kind = member.node.instance_type.as_deref();
        let fault = kind.and_then(|it| self.topology.type_fault(it));
        let call = What::Addresses.action().name();
        match (condition.reason, fault, self.reads.failures.get(call)) {
            (Cause::UnknownType, Some(fault), _) => Obstacle::new(Reason::UnknownType, fault),
            (Cause::UnlistedAddresses, _, Some(failure)) => Obstacle::unread(call, failure),
            _ => Obstacle::from(condition),
        }
    }

    /// Judges the state before a plan of the node.
    fn readiness<'a>(&self, member: &'a Member) -> Ready<'a> {
        let problems = &member.document.problems.of_rules;
        if !problems.is_empty() {
            let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
            return Ready::Waits(Obstacle::new(Reason::BadDocument, texts.join("; ")));
        }
        let Some(instance) = member.instance() else {
            return Ready::Unclear;
        };
        if let Some(rival) = &member.rival {
            let text =
                format!("spec.instance-id {instance} is also that of {rival}, which is older");
            return Ready::Waits(Obstacle::new(Reason::BadDocument, text));
        }
        if !self.topology.is_read() {
            let text = "subnets, route tables, security groups and VPCs are not read yet";
            return Ready::Waits(self.unread(text));
        }
        if self.cluster.bindings.is_none() {
            let text = "the pools (CiliumPodIPPool) are not read yet";
            return Ready::Waits(Obstacle::new(Reason::NotReady, text));
        }
        let from = member.reads.since.max(self.topology.facts.epoch);
        let inventory = &self.memory.inventory;
        if inventory.read_of(instance).is_none_or(|begun| begun < from) {
            let text = format!("the ENIs of {instance} are not read yet");
            return Ready::Reads(self.unread(&text));
        }
        if inventory.primary_of(instance).is_none() {
            return Ready::NoPrimary(self.no_primary(instance));
        }
        if !member.reads.doubts.open.is_empty() {
            let ids: Vec<&str> = member.reads.doubts.open.keys().map(EniId::as_str).collect();
            let text = format!(
                "EC2 does not show {} as the status does, and is read again",
                ids.join(", ")
            );
            return Ready::Doubts(Obstacle::new(Reason::NotReady, text));
        }
        Ready::Read(instance)
    }

    /// Something is not read yet, because reads fail or because they take their time.
    fn unread(&self, text: &str) -> Obstacle {
        let failed = self.reads.failures.first_key_value();
        let failed = failed.map(|(call, failure)| Obstacle::unread(call, failure));
        failed.unwrap_or_else(|| Obstacle::new(Reason::NotReady, text))
    }

    fn no_primary(&self, instance: &InstanceId) -> Obstacle {
        match self.nodes.removals.state_of(instance) {
            Some(false) => {
                let text = format!("EC2 has no instance {instance}, or calls it terminated");
                Obstacle::new(Reason::InstanceGone, text)
            }
            _ => self.unread(&format!("EC2 shows no primary ENI of {instance}")),
        }
    }

    /// Requests the primary ENI again, and after a while the instance.
    fn look_for_primary(&mut self, name: &str, now: Time) -> Option<Time> {
        let member = self.nodes.members.get_mut(name)?;
        let instance = member.node.instance.clone()?;
        if now >= member.reads.search {
            let looks = member.reads.search_again(now);
            if looks >= LOOKS {
                self.reads.want_state(&instance);
            }
            self.reads.want(&Scope::Instances([instance].into()));
        }
        self.nodes.members.get(name).map(|it| it.reads.search)
    }

    /// The next call of a node, by what is known now.
    pub(super) fn next_of(&self, name: &str, at: Moment) -> Next {
        let Some(member) = self.nodes.members.get(name) else {
            return Next::default();
        };
        if !matches!(self.readiness(member), Ready::Read(_) | Ready::Unclear) {
            return Next::default();
        }
        let world = World {
            facts: &self.topology.facts,
            memory: &self.memory,
            now: at.now,
            date: at.date,
        };
        let fresh = Progress::default();
        next(
            &member.node,
            self.nodes.progress.get(name).unwrap_or(&fresh),
            &world,
        )
    }

    fn want_type_of(&mut self, name: &str, now: Time) {
        let kind = self
            .nodes
            .members
            .get(name)
            .and_then(|it| it.node.instance_type.as_deref());
        if let Some(kind) = kind.filter(|it| self.topology.wants_type(it, now)) {
            self.reads.want_type(kind);
        }
    }

    /// The ENIs and blocks that a node is to be shown, if they can be judged.
    pub(super) fn publication(&self, name: &str) -> Option<Publication> {
        let member = self.nodes.members.get(name)?;
        if !member.published.is_believed {
            return Some(Publication {
                static_ip: Self::no_static_ip(member),
                ..Publication::default()
            });
        }
        let Ready::Read(instance) = self.readiness(member) else {
            return None;
        };
        let (inventory, topology) = (&self.memory.inventory, &self.topology);
        let mut publication = Publication {
            static_ip: self.assigned_static_ip(member),
            ..Publication::of(member, instance, inventory, topology)
        };
        self.show_at_primary(&mut publication, member);
        Some(publication)
    }

    /// Puts the node's call into the queue, or takes it out.
    fn line_up(&mut self, name: &str, at: Moment) {
        let key = Key::Node(name.to_owned());
        let Some(member) = self.nodes.members.get(name) else {
            return;
        };
        match (&member.next.step, member.next.need) {
            (Some(step), Some(need)) => self.calls.queue.push(Entry {
                key,
                action: step.action(),
                need,
                since: at.now,
            }),
            _ => drop(self.calls.queue.remove(&key)),
        }
    }

    /// The nodes that something of EC2 keeps from getting on.
    pub(super) fn look_at_stuck(&mut self) {
        let stuck = self
            .nodes
            .members
            .iter()
            .filter(|(_, it)| !it.reported.obstacles.is_empty());
        self.nodes.dirty.extend(stuck.map(|(name, _)| name.clone()));
    }
}

/// The earlier of two times.
pub(super) fn soonest(one: Option<Time>, other: Option<Time>) -> Option<Time> {
    one.into_iter().chain(other).min()
}
