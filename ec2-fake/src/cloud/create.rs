//! `CreateNetworkInterface` and `DeleteNetworkInterface`.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};

use super::due::Due;
use super::{Cloud, Eni, Past};
use crate::answer::Answer;
use crate::call::Create;
use crate::error::{Failure, Result};
use crate::family::Family;
use crate::space::Ask;

/// Security groups of an interface, by EC2's default quota.
const MOST_GROUPS: usize = 5;
/// Characters of a client token.
const LONGEST_TOKEN: usize = 64;
/// Tags of a resource.
pub(super) const MOST_TAGS: usize = 50;
/// The time for which a client token is remembered.
const TOKEN_KEPT: SignedDuration = SignedDuration::from_hours(24);
/// The kinds that a caller may create.
const KINDS: [&str; 5] = ["interface", "efa", "efa-only", "branch", "trunk"];

/// The client tokens of the last day.
#[derive(Clone, Debug, Default)]
pub(super) struct Tokens {
    /// The creation of each, and the id of its interface.
    creations: BTreeMap<String, (Create, String)>,
    /// The tokens, the oldest first.
    order: VecDeque<(Timestamp, String)>,
    /// Their interfaces by id, as they were last if they are known here only.
    interfaces: BTreeMap<String, Option<Arc<Eni>>>,
}

impl Tokens {
    fn add(&mut self, now: Timestamp, token: &str, create: &Create, id: String) {
        self.interfaces.insert(id.clone(), None);
        let creation = (create.clone(), id);
        self.creations.insert(token.to_owned(), creation);
        self.order.push_back((now, token.to_owned()));
    }

    /// Forgets those from before a time.
    fn forget(&mut self, horizon: Timestamp) {
        while let Some((_, token)) = self.order.pop_front_if(|(since, _)| *since <= horizon) {
            if let Some((_, id)) = self.creations.remove(&token) {
                self.interfaces.remove(&id);
            }
        }
    }
}

impl Cloud {
    pub(super) fn create(&mut self, create: &Create) -> Result<Answer> {
        if let Some(answer) = self.remembered(create)? {
            return Ok(answer);
        }
        let groups = self.checked_groups(&create.subnet, &create.groups)?;
        self.check_create(create)?;
        let kind = create.kind.as_deref().unwrap_or("interface");
        let mut eni = self.new_eni(&create.subnet, groups)?;
        let nets = self.take_new(create)?;
        let mut nets = nets.into_iter();
        if self.subnet(&create.subnet)?.spec.ipv4.is_some() {
            eni.addresses.primary = nets.next().and_then(|net| match net.addr() {
                IpAddr::V4(address) => Some(address),
                IpAddr::V6(_) => None,
            });
        }
        eni.addresses.blocks = nets.collect();
        kind.clone_into(&mut eni.kind);
        eni.description.clone_from(&create.description);
        eni.tags.clone_from(&create.tags);
        let id = eni.id.clone();
        let pending = self.settings.unknown.draw(&mut self.random);
        if pending.is_positive() {
            eni.is_pending = true;
            self.schedule(pending, Due::Made(id.clone()));
        }
        let past = Past::new(self.time.now, eni);
        let answer = past.latest().map(Arc::clone);
        self.enis.insert(id.clone(), past);
        if let Some(token) = &create.token {
            self.tokens.add(self.time.now, token, create, id);
        }
        created(answer, create)
    }

    /// The answer of an earlier call with the token.
    fn remembered(&mut self, create: &Create) -> Result<Option<Answer>> {
        let horizon = self
            .time
            .now
            .checked_sub(TOKEN_KEPT)
            .unwrap_or(self.time.now);
        self.tokens.forget(horizon);
        let Some(token) = &create.token else {
            return Ok(None);
        };
        if token.len() > LONGEST_TOKEN || !token.is_ascii() {
            return Err(Failure::value(format!(
                "ClientToken {token:?}: expected at most {LONGEST_TOKEN} ASCII characters"
            )));
        }
        let Some((earlier, id)) = self.tokens.creations.get(token) else {
            return Ok(None);
        };
        if earlier != create {
            return Err(Failure::new(
                "IdempotentParameterMismatch",
                "the client token was used with other parameters",
            ));
        }
        let eni = self.enis.get(id).and_then(Past::last_seen);
        let eni = eni.or_else(|| self.tokens.interfaces.get(id)?.as_ref());
        created(eni.map(Arc::clone), create).map(Some)
    }

    fn check_create(&self, create: &Create) -> Result<()> {
        let quota = self.settings.interface_quota;
        if self.enis.len() >= quota && self.interfaces().count() >= quota {
            return Err(Failure::new(
                "NetworkInterfaceLimitExceeded",
                "the maximum number of network interfaces of the region is reached",
            ));
        }
        if create.tags.len() > MOST_TAGS {
            return Err(Failure::new(
                "TagLimitExceeded",
                "a resource has at most 50 tags",
            ));
        }
        if let Some(kind) = &create.kind
            && !KINDS.contains(&kind.as_str())
        {
            return Err(Failure::value(format!("InterfaceType {kind:?} is unknown")));
        }
        let subnet = self.subnet(&create.subnet)?;
        for (family, ask) in [(Family::V4, &create.ipv4), (Family::V6, &create.ipv6)] {
            ask.check()?;
            let wanted = ask.singles() + ask.blocks() > 0
                || (family == Family::V4 && create.primary.is_some());
            if wanted && subnet.space(family).is_none() {
                return Err(Failure::value(format!(
                    "subnet {} has no {family:?} CIDR",
                    create.subnet
                )));
            }
        }
        Ok(())
    }

    /// The groups of a new interface: those of the call, else the VPC's default group.
    pub(super) fn checked_groups(&self, subnet: &str, groups: &[String]) -> Result<Vec<String>> {
        let vpc = &self.subnet(subnet)?.spec.vpc;
        if groups.len() > MOST_GROUPS {
            return Err(Failure::new(
                "SecurityGroupsPerInterfaceLimitExceeded",
                format!("an interface has at most {MOST_GROUPS} security groups"),
            ));
        }
        for id in groups {
            let group = self.network.groups.get(id).ok_or_else(|| {
                Failure::new(
                    "InvalidGroup.NotFound",
                    format!("The security group '{id}' does not exist"),
                )
            })?;
            if group.vpc != *vpc {
                return Err(Failure::new(
                    "InvalidParameter",
                    format!(
                        "Security group {id} and subnet {subnet} belong to different networks."
                    ),
                ));
            }
        }
        if !groups.is_empty() {
            return Ok(groups.to_vec());
        }
        let mut defaults = self.network.groups.values();
        let default = defaults.find(|group| group.vpc == *vpc && group.name == "default");
        Ok(default.map(|group| group.id.clone()).into_iter().collect())
    }

    /// Takes all addresses of a new interface, or none; the primary one comes first.
    fn take_new(&mut self, create: &Create) -> Result<Vec<IpNet>> {
        let Some(subnet) = self.network.subnets.get_mut(&create.subnet) else {
            return Ok(Vec::new());
        };
        let mut asks = Vec::new();
        if subnet.ipv4.is_some() {
            let primary = Ask {
                addresses: create.primary.map(IpAddr::V4).into_iter().collect(),
                count: usize::from(create.primary.is_none()),
                ..Ask::default()
            };
            asks.push((Family::V4, primary));
            asks.push((Family::V4, create.ipv4.clone()));
        }
        let mut ipv6 = create.ipv6.clone();
        if subnet.ipv4.is_none() && ipv6.singles() + ipv6.blocks() == 0 {
            ipv6.count = 1;
        }
        asks.push((Family::V6, ipv6));
        let mut got: Vec<IpNet> = Vec::new();
        for (family, ask) in &asks {
            let Some(space) = subnet.space_mut(*family) else {
                continue;
            };
            match space.take(ask) {
                Ok(nets) => got.extend(nets),
                Err(failure) => {
                    for net in &got {
                        subnet.give_back(net);
                    }
                    return Err(failure);
                }
            }
        }
        Ok(got)
    }

    pub(super) fn delete(&mut self, id: &str) -> Result<Answer> {
        let eni = self.known(id)?;
        if eni.requester_managed {
            return Err(Failure::new(
                "OperationNotPermitted",
                format!("The interface '{id}' is managed by another service"),
            ));
        }
        if eni.attachment.is_some() {
            return Err(Failure::value(format!(
                "Network interface '{id}' is currently in use."
            )));
        }
        self.remove(id);
        Ok(Answer::Done)
    }

    /// Removes an interface that is not attached.
    pub(super) fn remove(&mut self, id: &str) {
        let (now, kept) = (self.time.now, self.kept());
        let Some(past) = self.enis.get_mut(id) else {
            return;
        };
        if let Some(eni) = past.latest().map(Arc::clone) {
            past.set(now, None, kept);
            if let Some(subnet) = self.network.subnets.get_mut(&eni.placement.subnet) {
                for net in eni.addresses.nets() {
                    subnet.give_back(&net);
                }
            }
            for elastic in self.addresses.values_mut() {
                if matches!(&elastic.association, Some((_, of, _)) if of == id) {
                    elastic.association = None;
                }
            }
            self.removed.push_back((now, id.to_owned()));
        }
        let horizon = now.checked_sub(kept).unwrap_or(Timestamp::MIN);
        self.forget(horizon);
    }

    /// Forgets interfaces that were removed before a time, which no read sees any more.
    fn forget(&mut self, horizon: Timestamp) {
        while let Some((_, id)) = self.removed.pop_front_if(|(since, _)| *since < horizon) {
            let past = self.enis.remove(&id);
            if let Some(of_token) = self.tokens.interfaces.get_mut(&id) {
                *of_token = past.as_ref().and_then(Past::last_seen).map(Arc::clone);
            }
        }
    }
}

fn created(eni: Option<Arc<Eni>>, create: &Create) -> Result<Answer> {
    let eni = eni.ok_or_else(|| Failure::new("InternalError", "the interface is gone"))?;
    Ok(Answer::Created {
        eni,
        token: create.token.clone(),
    })
}
