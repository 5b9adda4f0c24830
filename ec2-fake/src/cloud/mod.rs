//! The machine: state and time become answers and effects.

mod assign;
mod attach;
mod build;
mod check;
mod create;
mod describe;
mod due;
mod elastic;
mod filter;
mod modify;
mod object;
mod past;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::answer::Answer;
use crate::call::{Call, Request};
use crate::error::{Failure, Result};
use crate::fault::{Delivery, FaultKind, Faults};
use crate::settings::Settings;
use crate::settings::throttle::{self, Buckets};
use crate::world::{self, Principal};
use create::Tokens;
use due::Due;
pub use due::Effect;
pub use object::{
    Addresses, AttachState, Attachment, Elastic, Eni, Instance, InstanceState, Placement, Public,
    Subnet,
};
use past::Past;

/// Calls that the log keeps.
const LOG_LENGTH: usize = 100_000;

/// A call in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logged {
    /// The time.
    pub at: Timestamp,
    /// The caller's access key.
    pub caller: String,
    /// The action.
    pub action: &'static str,
    /// The error's code.
    pub error: Option<String>,
    /// Set for a trial.
    pub dry_run: bool,
    /// The page of a listing.
    pub page: Option<LoggedPage>,
}

/// A page of a listing in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedPage {
    /// The token that requested it; none for a first page.
    pub token: Option<String>,
    /// Its items.
    pub items: usize,
}

impl LoggedPage {
    fn of(call: &Call, outcome: &Result<Answer>) -> Option<Self> {
        match (call, outcome) {
            (Call::Describe(describe), Ok(Answer::Page(page))) => Some(Self {
                token: describe.next.clone(),
                items: page.items.len(),
            }),
            _ => None,
        }
    }
}

/// The outcome of a request.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The answer or the error.
    pub outcome: Result<Answer>,
    /// Delivery of the answer.
    pub delivery: Delivery,
}

/// EC2's network interfaces of one account and region.
#[derive(Clone, Debug)]
pub struct Cloud {
    settings: Settings,
    time: Timeline,
    counter: u64,
    random: fastrand::Rng,
    network: Network,
    instances: BTreeMap<String, Past<Instance>>,
    enis: BTreeMap<String, Past<Eni>>,
    /// Interfaces of each instance, whatever the state of their attachments.
    of_instance: BTreeMap<String, Vec<String>>,
    /// Removed interfaces that reads may still see, the oldest first.
    removed: VecDeque<(Timestamp, String)>,
    addresses: BTreeMap<String, Elastic>,
    tokens: Tokens,
    gate: Gate,
    log: VecDeque<Logged>,
}

/// The present, and what changes with time.
#[derive(Clone, Debug)]
struct Timeline {
    now: Timestamp,
    due: BTreeMap<(Timestamp, u64), Due>,
    effects: Vec<Effect>,
}

/// The VPCs, and what is in them before there are instances.
#[derive(Clone, Debug)]
struct Network {
    vpcs: BTreeMap<String, world::Vpc>,
    subnets: BTreeMap<String, Subnet>,
    tables: BTreeMap<String, world::RouteTable>,
    groups: BTreeMap<String, world::Group>,
}

impl Network {
    /// The VPC of a subnet, a security group or a route table.
    fn vpc_of(&self, id: &str) -> Option<&str> {
        let subnet = self.subnets.get(id).map(|subnet| &subnet.spec.vpc);
        let group = || self.groups.get(id).map(|group| &group.vpc);
        let table = || self.tables.get(id).map(|table| &table.vpc);
        subnet.or_else(group).or_else(table).map(String::as_str)
    }
}

/// Request rates, injected faults and rights, which a call meets before it is carried out.
#[derive(Clone, Debug)]
struct Gate {
    buckets: Buckets,
    faults: Faults,
    principals: BTreeMap<String, Principal>,
}

impl Cloud {
    /// Carries out a request of a caller at a time.
    pub fn call(&mut self, now: Timestamp, caller: &str, request: &Request) -> Reply {
        self.advance(now);
        let action = request.call.action();
        let ids = request.call.ids();
        let fault = self.gate.faults.of(action, &|name| ids.contains(&name));
        let outcome = self.judged(caller, request, fault.as_ref());
        let delivery = match &fault {
            Some(FaultKind::Unheard | FaultKind::AnswerLost) => Delivery::Lost,
            Some(FaultKind::Late(millis)) => Delivery::Late(*millis),
            Some(FaultKind::Cut) => Delivery::Cut,
            Some(FaultKind::Garbage) => Delivery::Garbage,
            Some(FaultKind::Refused(_) | FaultKind::Twice) | None => Delivery::Whole,
        };
        if self.log.len() == LOG_LENGTH {
            self.log.pop_front();
        }
        self.log.push_back(Logged {
            at: self.time.now,
            caller: caller.to_owned(),
            action,
            error: outcome.as_ref().err().map(|failure| failure.code.clone()),
            dry_run: request.dry_run,
            page: LoggedPage::of(&request.call, &outcome),
        });
        Reply { outcome, delivery }
    }

    fn judged(
        &mut self,
        caller: &str,
        request: &Request,
        fault: Option<&FaultKind>,
    ) -> Result<Answer> {
        if matches!(fault, Some(FaultKind::Unheard)) {
            return Err(Failure::new("RequestTimeout", "the request was not heard"));
        }
        if self.settings.throttle
            && !self
                .gate
                .buckets
                .take(&budget(&request.call), self.time.now)
        {
            return Err(Failure::new(
                "RequestLimitExceeded",
                "Request limit exceeded.",
            ));
        }
        if let Some(FaultKind::Refused(code)) = fault {
            return Err(Failure::new(code, "a fault that the test injected"));
        }
        self.authorise(caller, &request.call)?;
        if request.dry_run {
            return Err(Failure::new(
                "DryRunOperation",
                "Request would have succeeded, but DryRun flag is set.",
            ));
        }
        let first = self.carry_out(&request.call);
        if matches!(fault, Some(FaultKind::Twice)) {
            return self.carry_out(&request.call);
        }
        first
    }

    fn carry_out(&mut self, call: &Call) -> Result<Answer> {
        match call {
            Call::Describe(describe) => self.describe(describe).map(Answer::Page),
            Call::Create(create) => self.create(create),
            Call::Attach(attach) => self.attach(attach),
            Call::Detach(attachment) => self.detach(attachment),
            Call::Delete(eni) => self.delete(eni),
            Call::Modify(modify) => self.modify(modify),
            Call::Assign(assign) => self.assign(assign),
            Call::Unassign(assign) => self.unassign(assign),
            Call::Tag { resources, tags } => self.tag(resources, tags),
            Call::Associate(associate) => self.associate(associate),
            Call::Disassociate(association) => self.disassociate(association),
        }
    }

    /// The caller of an access key.
    #[must_use]
    pub fn principal(&self, key: &str) -> Option<&Principal> {
        self.gate.principals.get(key)
    }

    /// Reports if calls need no credentials.
    pub(crate) fn has_no_principals(&self) -> bool {
        self.gate.principals.is_empty()
    }

    /// The VPC of a subnet, a security group or a route table.
    pub(crate) fn vpc_of(&self, id: &str) -> Option<&str> {
        self.network.vpc_of(id)
    }

    /// The name of a security group.
    #[cfg(feature = "server")]
    pub(crate) fn group_name(&self, id: &str) -> Option<&str> {
        self.network.groups.get(id).map(|group| group.name.as_str())
    }

    /// The allocation and the interface of an association.
    pub(crate) fn elastic_of(&self, association: &str) -> Option<(String, String)> {
        self.addresses.values().find_map(|elastic| {
            let (id, eni, _) = elastic.association.as_ref()?;
            (id == association).then(|| (elastic.id.clone(), eni.clone()))
        })
    }

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The calls so far.
    pub fn log(&self) -> impl Iterator<Item = &Logged> {
        self.log.iter()
    }

    /// Injects a fault.
    pub fn inject(&mut self, fault: crate::fault::Fault) {
        self.gate.faults.0.push(fault);
    }

    /// Every interface, as it is now.
    pub fn interfaces(&self) -> impl Iterator<Item = &Arc<Eni>> {
        self.enis.values().filter_map(Past::latest)
    }

    /// An interface, as it is now.
    #[must_use]
    pub fn interface(&self, id: &str) -> Option<&Arc<Eni>> {
        self.enis.get(id)?.latest()
    }

    /// An instance, as it is now.
    #[must_use]
    pub fn instance(&self, id: &str) -> Option<&Arc<Instance>> {
        self.instances.get(id)?.latest()
    }

    /// A new id with a prefix such as `eni`.
    fn new_id(&mut self, prefix: &str) -> String {
        self.counter += 1;
        format!("{prefix}-{:017x}", self.counter)
    }

    /// Time for which versions are kept for reads.
    fn kept(&self) -> SignedDuration {
        let listing = self.settings.lag_listing.longest();
        listing.max(self.settings.lag_by_id.longest())
    }

    /// An interface that a mutation names.
    fn known(&self, id: &str) -> Result<&Arc<Eni>> {
        let known = self.interface(id).filter(|eni| !eni.is_pending);
        known.ok_or_else(|| {
            Failure::new(
                "InvalidNetworkInterfaceID.NotFound",
                format!("The networkInterface ID '{id}' does not exist"),
            )
        })
    }

    fn instance_or_failure(&self, id: &str) -> Result<&Arc<Instance>> {
        self.instance(id).ok_or_else(|| {
            Failure::new(
                "InvalidInstanceID.NotFound",
                format!("The instance ID '{id}' does not exist"),
            )
        })
    }

    /// Changes an interface and keeps the version before.
    fn edit(&mut self, id: &str, change: impl FnOnce(&mut Eni)) {
        let (now, kept) = (self.time.now, self.kept());
        let Some(past) = self.enis.get_mut(id) else {
            return;
        };
        if let Some(eni) = past.latest() {
            let mut eni = Eni::clone(eni);
            change(&mut eni);
            past.set(now, Some(Arc::new(eni)), kept);
        }
    }
}

/// The budget that a call counts against.
fn budget(call: &Call) -> String {
    let action = call.action();
    match call {
        Call::Describe(describe)
            if describe.ids.is_empty() && describe.filters.is_empty() && describe.max.is_none() =>
        {
            throttle::unfiltered(action)
        }
        _ => action.to_owned(),
    }
}
