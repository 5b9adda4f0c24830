//! A cloud from its document, and what people do to instances.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;

use super::create::Tokens;
use super::due::Due;
use super::object::{Addresses, Placement};
use super::{
    AttachState, Attachment, Cloud, Elastic, Eni, Gate, Instance, InstanceState, Network, Past,
    Subnet, Timeline,
};
use crate::error::{Failure, Result};
use crate::fault::Faults;
use crate::settings::throttle::Buckets;
use crate::space::{Ask, Space};
use crate::world::{self, World};

impl Cloud {
    /// The cloud of a document. Its instances run at once.
    ///
    /// # Errors
    /// When an entry names something that is not in the document, or an address that is not free.
    pub fn build(world: &World, now: Timestamp) -> Result<Self> {
        let mut cloud = Self {
            settings: world.settings.clone(),
            time: Timeline {
                now,
                due: BTreeMap::new(),
                effects: Vec::new(),
            },
            counter: 0,
            random: fastrand::Rng::with_seed(world.settings.seed),
            network: Network {
                vpcs: by_id(&world.vpcs, |vpc| &vpc.id),
                subnets: BTreeMap::new(),
                tables: by_id(&world.route_tables, |table| &table.id),
                groups: by_id(&world.groups, |group| &group.id),
            },
            instances: BTreeMap::new(),
            enis: BTreeMap::new(),
            of_instance: BTreeMap::new(),
            removed: VecDeque::new(),
            addresses: BTreeMap::new(),
            tokens: Tokens::default(),
            gate: Gate {
                buckets: Buckets::new(world.settings.rates.clone()),
                faults: Faults(world.faults.clone()),
                principals: world.principals.clone(),
            },
            log: VecDeque::new(),
        };
        for spec in &world.subnets {
            cloud.add_subnet(spec)?;
        }
        for elastic in &world.addresses {
            let elastic = Elastic {
                id: elastic.id.clone(),
                ip: elastic.ip,
                tags: elastic.tags.clone(),
                association: None,
            };
            cloud.addresses.insert(elastic.id.clone(), elastic);
        }
        for instance in &world.instances {
            cloud.add_instance(instance, InstanceState::Running)?;
        }
        Ok(cloud)
    }

    fn add_subnet(&mut self, spec: &world::Subnet) -> Result<()> {
        if !self.network.vpcs.contains_key(&spec.vpc) {
            return Err(Failure::value(format!("{}: no VPC {}", spec.id, spec.vpc)));
        }
        let space = |cidr| Space::new(cidr, &spec.reservations);
        let mut subnet = Subnet {
            spec: spec.clone(),
            ipv4: spec.ipv4.map(space),
            ipv6: spec.ipv6.map(space),
        };
        for address in &spec.taken {
            let ask = Ask {
                addresses: vec![*address],
                ..Ask::default()
            };
            let family = crate::family::Family::of(address);
            let space = subnet.space_mut(family).ok_or_else(|| {
                Failure::value(format!("{}: no addresses like {address}", spec.id))
            })?;
            space.take(&ask)?;
        }
        self.network.subnets.insert(spec.id.clone(), subnet);
        Ok(())
    }

    /// Starts an instance; it runs after a while.
    ///
    /// # Errors
    /// When the type or the subnet is unknown, or its address is not free.
    pub fn start(&mut self, spec: &world::Instance, now: Timestamp) -> Result<()> {
        self.advance(now);
        self.add_instance(spec, InstanceState::Pending)?;
        let delay = self.settings.pending.draw(&mut self.random);
        self.schedule(delay, Due::Running(spec.id.clone()));
        Ok(())
    }

    /// Terminates an instance. Its interfaces go or become free when it has ended.
    ///
    /// # Errors
    /// When the instance is unknown.
    pub fn terminate(&mut self, id: &str, now: Timestamp) -> Result<()> {
        self.advance(now);
        self.instance_or_failure(id)?;
        self.set_state(id, InstanceState::ShuttingDown);
        let delay = self.settings.shutdown.draw(&mut self.random);
        self.schedule(delay, Due::Terminated(id.to_owned()));
        Ok(())
    }

    /// Stops an instance, or runs a stopped one.
    ///
    /// # Errors
    /// When the instance is unknown, or ends.
    pub fn set_stopped(&mut self, id: &str, stopped: bool, now: Timestamp) -> Result<()> {
        self.advance(now);
        match self.instance_or_failure(id)?.state {
            InstanceState::ShuttingDown | InstanceState::Terminated => Err(Failure::new(
                "IncorrectInstanceState",
                format!("The instance '{id}' is not in a state from which it can be changed"),
            )),
            InstanceState::Pending | InstanceState::Running | InstanceState::Stopped => {
                let state = if stopped {
                    InstanceState::Stopped
                } else {
                    InstanceState::Running
                };
                self.set_state(id, state);
                Ok(())
            }
        }
    }

    pub(super) fn set_state(&mut self, id: &str, state: InstanceState) {
        let (now, kept) = (self.time.now, self.kept());
        let Some(past) = self.instances.get_mut(id) else {
            return;
        };
        if let Some(instance) = past.latest() {
            let mut instance = Instance::clone(instance);
            instance.state = state;
            past.set(now, Some(Arc::new(instance)), kept);
        }
    }

    fn add_instance(&mut self, spec: &world::Instance, state: InstanceState) -> Result<()> {
        if crate::settings::limits::of(&spec.kind).is_none() {
            return Err(Failure::value(format!(
                "{}: the fake has no type {:?}",
                spec.id, spec.kind
            )));
        }
        let subnet = self
            .network
            .subnets
            .get_mut(&spec.subnet)
            .ok_or_else(|| Failure::value(format!("{}: no subnet {}", spec.id, spec.subnet)))?;
        let primary = match (&mut subnet.ipv4, spec.address) {
            (Some(space), Some(address)) => space.take(&Ask {
                addresses: vec![IpAddr::V4(address)],
                ..Ask::default()
            })?,
            (Some(space), None) => space.take(&Ask {
                count: 1,
                ..Ask::default()
            })?,
            (None, _) => Vec::new(),
        };
        let instance = Instance {
            id: spec.id.clone(),
            kind: spec.kind.clone(),
            vpc: subnet.spec.vpc.clone(),
            subnet: spec.subnet.clone(),
            zone: subnet.spec.zone.clone(),
            state,
            launched: self.time.now,
            tags: spec.tags.clone(),
            interface_limit: spec.interface_limit,
        };
        let mut eni = self.new_eni(&instance.subnet, spec.groups.clone())?;
        eni.addresses.primary = primary.first().and_then(|net| match net.addr() {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        });
        eni.attachment = Some(Attachment {
            id: self.new_id("eni-attach"),
            instance: spec.id.clone(),
            card: 0,
            index: 0,
            state: AttachState::Attached,
            since: self.time.now,
            delete_on_termination: true,
        });
        self.of_instance
            .insert(spec.id.clone(), vec![eni.id.clone()]);
        self.instances
            .insert(spec.id.clone(), Past::new(self.time.now, instance));
        self.enis
            .insert(eni.id.clone(), Past::new(self.time.now, eni));
        Ok(())
    }

    /// An interface without addresses, which is not in the cloud yet.
    pub(super) fn new_eni(&mut self, subnet: &str, groups: Vec<String>) -> Result<Eni> {
        let id = self.new_id("eni");
        let spec = &self.subnet(subnet)?.spec;
        let bytes = self.counter.to_be_bytes();
        let mac = bytes.get(3..).unwrap_or_default();
        let mac: Vec<_> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Eni {
            id,
            placement: Placement {
                subnet: spec.id.clone(),
                vpc: spec.vpc.clone(),
                zone: spec.zone.clone(),
            },
            mac: format!("02:{}", mac.join(":")),
            description: String::new(),
            kind: "interface".to_owned(),
            groups,
            addresses: Addresses::default(),
            tags: world::Tags::new(),
            source_dest_check: true,
            requester_managed: false,
            is_pending: false,
            attachment: None,
        })
    }

    pub(super) fn subnet(&self, id: &str) -> Result<&Subnet> {
        self.network.subnets.get(id).ok_or_else(|| {
            Failure::new(
                "InvalidSubnetID.NotFound",
                format!("The subnet ID '{id}' does not exist"),
            )
        })
    }
}

fn by_id<T: Clone>(items: &[T], id: impl Fn(&T) -> &String) -> BTreeMap<String, T> {
    let pairs = items.iter().map(|item| (id(item).clone(), item.clone()));
    pairs.collect()
}
