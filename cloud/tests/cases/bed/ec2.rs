//! A naive EC2: addresses are owned once, reads can be old, tokens are remembered.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use cloud::call::budget::Bucket;
use cloud::inventory::Scope;
use cloud::node::{Create, Outcome, Step};
use cloud::object::subnet::Subnet;
use cloud::{
    Action, AttachState, Attachment, Eni, EniId, Failure, InstanceId, InterfaceKind, Kind, Limits,
    Placement, SubnetId, Tags,
};
use ipam::{Family, Time};
use ipnet::{IpNet, Ipv4Net};

/// The longest lag of reads.
const HISTORY: Duration = Duration::from_secs(30);

type Enis = BTreeMap<EniId, Eni>;

/// An instance.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    pub(crate) limits: Limits,
    pub(crate) is_running: bool,
}

/// A naive EC2.
#[derive(Debug, Default)]
pub(crate) struct Ec2 {
    pub(crate) now: Time,
    pub(crate) enis: Enis,
    pub(crate) instances: BTreeMap<InstanceId, Instance>,
    pub(crate) subnets: BTreeMap<SubnetId, Subnet>,
    pub(crate) room: Room,
    /// Failures to come, by call.
    pub(crate) refusals: BTreeMap<Action, VecDeque<&'static str>>,
    /// Every call that was answered, refused ones included.
    pub(crate) calls: Vec<Action>,
    /// The account's buckets; none where calls are not counted.
    pub(crate) buckets: BTreeMap<Action, Bucket>,
    tokens: BTreeMap<String, (Create, EniId)>,
    history: VecDeque<(Time, Enis)>,
    attaching: BTreeMap<EniId, Time>,
    count: u32,
}

/// The room that is left in the subnets.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// Subnets without a free /28.
    pub(crate) fragmented: BTreeSet<SubnetId>,
    /// Subnets without a free /80.
    pub(crate) without_v6: BTreeSet<SubnetId>,
    used: BTreeMap<SubnetId, BTreeSet<u32>>,
}

fn failure(action: Action, code: &str) -> Failure {
    Failure::answered(action, 400, code, "")
}

impl Ec2 {
    /// Adds a subnet 10.0.`n`.0/24.
    pub(crate) fn add_subnet(&mut self, id: &str, n: u8) {
        let net = Ipv4Net::new(Ipv4Addr::new(10, 0, n, 0), 24).unwrap();
        let subnet = Subnet {
            id: id.into(),
            vpc: "vpc-1".into(),
            zone: "a".to_owned(),
            ipv4: Some(net),
            ipv6: None,
            free: 251,
            tags: Tags::new(),
            route_table: Some("rtb-1".into()),
        };
        let first = u32::from(net.network());
        let reserved = [0, 1, 2, 3, 255].map(|n| first + n);
        self.room.used.insert(subnet.id.clone(), reserved.into());
        self.subnets.insert(subnet.id.clone(), subnet);
    }

    /// Another account user takes all addresses but so many.
    pub(crate) fn leave(&mut self, subnet: &str, free: u32) {
        let id = SubnetId::from(subnet);
        while self.subnets[&id].free > free {
            self.take(&id, Kind::Address).unwrap();
        }
    }

    /// Adds an instance with its primary ENI.
    pub(crate) fn add_instance(&mut self, id: &str, subnet: &str, limits: Limits) {
        let instance = InstanceId::from(id);
        let subnet = SubnetId::from(subnet);
        let running = Instance {
            limits,
            is_running: true,
        };
        self.instances.insert(instance.clone(), running);
        let own = self.take(&subnet, Kind::Address).unwrap();
        let mut eni = self.make(&subnet, Some(own));
        eni.attachment = Some(attachment(&eni.id, &instance, 0, AttachState::Attached));
        eni.attachment.as_mut().unwrap().delete_on_termination = true;
        self.enis.insert(eni.id.clone(), eni);
    }

    fn make(&mut self, subnet: &SubnetId, own: Option<IpNet>) -> Eni {
        self.count += 1;
        let own = own.and_then(|net| match net.addr() {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        });
        let [_, b, c, d] = self.count.to_be_bytes();
        Eni {
            id: format!("eni-{:04}", self.count).as_str().into(),
            placement: Placement {
                vpc: "vpc-1".into(),
                subnet: subnet.clone(),
                zone: "a".to_owned(),
            },
            mac: [2, 0, 0, b, c, d],
            kind: InterfaceKind::Standard,
            description: String::new(),
            own,
            public: None,
            blocks: BTreeSet::new(),
            groups: ["sg-1".into()].into(),
            tags: Tags::new(),
            is_pending: false,
            attachment: None,
        }
    }

    /// Time goes on; ENIs finish attaching.
    pub(crate) fn advance(&mut self, now: Time) {
        // An entry is the state from its time on.
        if self
            .history
            .back()
            .is_none_or(|(_, last)| *last != self.enis)
        {
            self.history.push_back((self.now, self.enis.clone()));
        }
        self.now = now;
        let is_old =
            |entry: Option<&(Time, Enis)>| entry.is_some_and(|(at, _)| now.since(*at) >= HISTORY);
        while is_old(self.history.get(1)) {
            self.history.pop_front();
        }
        let enis = &mut self.enis;
        self.attaching.retain(|id, until| {
            let attachment = enis.get_mut(id).and_then(|eni| eni.attachment.as_mut());
            match attachment {
                Some(attachment) if *until <= now => attachment.state = AttachState::Attached,
                Some(_) => return true,
                None => {}
            }
            false
        });
    }

    /// The ENIs of a scope as they were that long ago.
    pub(crate) fn read(&self, scope: &Scope, lag: Duration) -> Vec<Eni> {
        let mut old = self.history.iter().rev();
        let old = old.find(|(at, _)| lag > Duration::ZERO && self.now.since(*at) >= lag);
        let enis = old.map_or(&self.enis, |(_, enis)| enis).values();
        enis.filter(|eni| match scope {
            Scope::All => true,
            Scope::Loose => eni.is_loose(),
            Scope::Primaries => eni.attachment.as_ref().is_some_and(|it| it.index == 0),
            Scope::Instances(ids) => eni.instance().is_some_and(|it| ids.contains(it)),
            Scope::Ids(ids) => ids.contains(&eni.id),
        })
        .cloned()
        .collect()
    }

    /// The instance ends, and ENIs that are marked end with it.
    pub(crate) fn terminate(&mut self, id: &str) {
        let id = InstanceId::from(id);
        self.instances.remove(&id);
        let mine = self.enis.values().filter(|eni| eni.instance() == Some(&id));
        let ids: Vec<EniId> = mine.map(|eni| eni.id.clone()).collect();
        for id in ids {
            let eni = self.enis.get_mut(&id).unwrap();
            if eni.attachment.take().unwrap().delete_on_termination {
                self.remove(&id);
            }
        }
    }

    /// Detaches an ENI as a foreign program.
    pub(crate) fn detach(&mut self, id: &EniId) {
        self.enis.get_mut(id).unwrap().attachment = None;
    }

    fn remove(&mut self, id: &EniId) {
        let eni = self.enis.remove(id).unwrap();
        let own = eni.own.map(|it| IpNet::from(IpAddr::V4(it)));
        for block in eni.blocks.into_iter().chain(own) {
            self.give_back(&eni.placement.subnet, block);
        }
    }

    fn give_back(&mut self, subnet: &SubnetId, block: IpNet) {
        let IpNet::V4(net) = block else { return };
        let size = 1 << (32 - net.prefix_len());
        let first = u32::from(net.network());
        let used = self.room.used.get_mut(subnet).unwrap();
        assert!(
            (first..first + size).all(|it| used.remove(&it)),
            "{net} was not taken"
        );
        self.subnets.get_mut(subnet).unwrap().free += size;
    }

    fn take(&mut self, subnet: &SubnetId, kind: Kind) -> Option<IpNet> {
        if kind == Kind::PrefixV6 {
            self.count += 1;
            let net = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, self.count.try_into().ok()?, 0, 0, 0);
            return IpNet::new(net.into(), 80)
                .ok()
                .filter(|_| !self.room.without_v6.contains(subnet));
        }
        if kind == Kind::Prefix && self.room.fragmented.contains(subnet) {
            return None;
        }
        let net = self.subnets[subnet].ipv4?;
        let used = self.room.used.get_mut(subnet)?;
        let (first, size) = (u32::from(net.network()), kind.addresses());
        let places = (0..256 / size).map(|n| first + n * size);
        let start = match kind {
            // Single addresses come from the end, so that prefixes stay free.
            Kind::Address => places.rev().find(|it| !used.contains(it))?,
            _ => places
                .clone()
                .find(|it| (*it..*it + size).all(|a| !used.contains(&a)))?,
        };
        used.extend(start..start + size);
        self.subnets.get_mut(subnet)?.free -= size;
        let length = if kind == Kind::Prefix { 28 } else { 32 };
        IpNet::new(Ipv4Addr::from(start).into(), length).ok()
    }

    /// Blocks of a subnet, all or none.
    fn take_all(
        &mut self,
        subnet: &SubnetId,
        kinds: &[(Kind, u32)],
    ) -> Result<BTreeSet<IpNet>, &'static str> {
        let mut taken = BTreeSet::new();
        for (kind, count) in kinds {
            for _ in 0..*count {
                let Some(block) = self.take(subnet, *kind) else {
                    for block in taken {
                        self.give_back(subnet, block);
                    }
                    return Err(match kind {
                        Kind::Address => "InsufficientFreeAddressesInSubnet",
                        _ => "InsufficientCidrBlocks",
                    });
                };
                taken.insert(block);
            }
        }
        Ok(taken)
    }

    /// Carries out a call.
    pub(crate) fn call(&mut self, step: &Step) -> Outcome {
        let action = step.action();
        self.calls.push(action);
        let bucket = self.buckets.get_mut(&action);
        if bucket.is_some_and(|it| it.take(self.now).is_err()) {
            return Outcome::Failed(failure(action, "RequestLimitExceeded"));
        }
        let injected = self.refusals.get_mut(&action).and_then(VecDeque::pop_front);
        if let Some(code) = injected {
            return Outcome::Failed(failure(action, code));
        }
        let outcome = match step {
            Step::Create(create) => self.create(create),
            Step::Attach {
                eni,
                instance,
                index,
            } => self.attach(eni, instance, *index),
            Step::Assign { eni, blocks, .. } => self.assign(eni, blocks.kind, blocks.count),
            Step::Mark { eni, attachment } => self.mark(eni, attachment.as_str()),
            Step::Group { eni, groups } => self.eni(eni).map(|it| {
                it.groups.clone_from(groups);
                Outcome::Done
            }),
            Step::Unassign { eni, blocks } => self.unassign(eni, blocks),
            Step::Detach { eni, .. } => self.eni(eni).map(|it| {
                it.attachment = None;
                Outcome::Done
            }),
            Step::Delete { eni } => self.delete(eni),
            Step::Associate { eni, address, .. } => self.eni(eni).map(|it| {
                it.public = Some(*address);
                Outcome::Done
            }),
        };
        outcome.unwrap_or_else(|code| Outcome::Failed(failure(action, code)))
    }

    fn unassign(&mut self, id: &EniId, blocks: &BTreeSet<IpNet>) -> Result<Outcome, &'static str> {
        let eni = self.eni(id)?;
        if !eni.blocks.is_superset(blocks) {
            return Err("InvalidParameterValue");
        }
        eni.blocks.retain(|block| !blocks.contains(block));
        Ok(Outcome::Done)
    }

    fn eni(&mut self, id: &EniId) -> Result<&mut Eni, &'static str> {
        self.enis
            .get_mut(id)
            .ok_or("InvalidNetworkInterfaceID.NotFound")
    }

    fn create(&mut self, create: &Create) -> Result<Outcome, &'static str> {
        if let Some((first, id)) = self.tokens.get(&create.token) {
            if first != create {
                return Err("IdempotentParameterMismatch");
            }
            let eni = self
                .enis
                .get(id)
                .ok_or("InvalidNetworkInterfaceID.NotFound")?;
            return Ok(Outcome::Created(Box::new(eni.clone())));
        }
        let ipv4 = create.ipv4.map(|it| (it.kind, it.count));
        let ipv6 = create.ipv6_prefix.then_some((Kind::PrefixV6, 1));
        let has_v4 = self.subnets[&create.subnet].ipv4.is_some();
        let own = has_v4.then_some((Kind::Address, 1));
        let own = self.take_all(&create.subnet, own.as_slice())?;
        let kinds: Vec<(Kind, u32)> = ipv4.into_iter().chain(ipv6).collect();
        let blocks = match self.take_all(&create.subnet, &kinds) {
            Ok(blocks) => blocks,
            Err(code) => {
                for own in own {
                    self.give_back(&create.subnet, own);
                }
                return Err(code);
            }
        };
        let mut eni = self.make(&create.subnet, own.first().copied());
        eni.blocks = blocks;
        eni.tags.clone_from(&create.tags);
        eni.groups.clone_from(&create.groups);
        let known = (create.clone(), eni.id.clone());
        self.tokens.insert(create.token.clone(), known);
        self.enis.insert(eni.id.clone(), eni.clone());
        Ok(Outcome::Created(Box::new(eni)))
    }

    fn attach(
        &mut self,
        id: &EniId,
        instance: &InstanceId,
        index: u16,
    ) -> Result<Outcome, &'static str> {
        let there = self
            .instances
            .get(instance)
            .ok_or("InvalidInstanceID.NotFound")?;
        if !there.is_running {
            return Err("IncorrectState");
        }
        let adapters = usize::from(there.limits.adapters);
        let mine = self
            .enis
            .values()
            .filter(|eni| eni.instance() == Some(instance));
        let indices: Vec<u16> = mine
            .filter_map(|eni| Some(eni.attachment.as_ref()?.index))
            .collect();
        if !self.eni(id)?.is_loose() {
            return Err("InvalidParameterValue");
        }
        if indices.len() >= adapters {
            return Err("AttachmentLimitExceeded");
        }
        if indices.contains(&index) {
            return Err("InvalidParameterValue");
        }
        let until = self.now.after(Duration::from_secs(2));
        let bond = attachment(id, instance, index, AttachState::Attaching);
        self.eni(id)?.attachment = Some(bond.clone());
        self.attaching.insert(id.clone(), until);
        Ok(Outcome::Attached(bond.id))
    }

    fn assign(&mut self, id: &EniId, kind: Kind, count: u32) -> Result<Outcome, &'static str> {
        let eni = self.eni(id)?.clone();
        let limits = eni
            .instance()
            .and_then(|it| self.instances.get(it))
            .map(|it| it.limits);
        let slots = match (kind.family(), limits) {
            (Family::V4, Some(limits)) => limits.slots,
            (Family::V6, Some(limits)) => limits.slots_v6,
            (_, None) => 50,
        };
        if eni.taken(kind.family()) + count > u32::from(slots) {
            return Err("PrivateIpAddressLimitExceeded");
        }
        let blocks = self.take_all(&eni.placement.subnet, &[(kind, count)])?;
        self.eni(id)?.blocks.extend(&blocks);
        Ok(Outcome::Assigned(blocks))
    }

    fn mark(&mut self, id: &EniId, bond: &str) -> Result<Outcome, &'static str> {
        let attachment = self.eni(id)?.attachment.as_mut();
        let attachment = attachment.filter(|it| it.id.as_str() == bond);
        attachment
            .ok_or("InvalidAttachmentID.NotFound")?
            .delete_on_termination = true;
        Ok(Outcome::Done)
    }

    fn delete(&mut self, id: &EniId) -> Result<Outcome, &'static str> {
        if !self.eni(id)?.is_loose() {
            return Err("IncorrectState");
        }
        self.remove(id);
        Ok(Outcome::Done)
    }
}

fn attachment(eni: &EniId, instance: &InstanceId, index: u16, state: AttachState) -> Attachment {
    Attachment {
        id: format!("attach-{eni}-{index}").as_str().into(),
        instance: Some(instance.clone()),
        index,
        card: 0,
        state,
        delete_on_termination: false,
    }
}
