//! A model of the kernel, with the side effects that matter: what goes along with a device, with
//! a link that goes down, and with the last address of a device.

use std::collections::BTreeSet;

use anyhow::{bail, ensure};
use ipam::Family;

use crate::constants;
use crate::intent::Endpoint;
use crate::intent::masquerade::SharedPorts;
use crate::kernel::fixture::{link, plug};
use crate::kernel::{
    Attachment, Endpoints, Hook, Kernel, Link, LinkKind, MapKey, Neighbour, NextHop, Object,
    Observed, Route, Rule, Step, StepKind, Sysctl, SysctlScope,
};
use crate::observation::ownership::{finished_device, intact_device};

/// A kernel in memory.
pub struct ModelKernel {
    pub state: Observed,
    /// The state after each step.
    pub(crate) history: Vec<Observed>,
    pub steps: Vec<Step>,
    /// Devices that were to be deleted together.
    pub(crate) together: Vec<Vec<u32>>,
    /// After so many steps the agent is dead: nothing works any more.
    pub budget: Option<usize>,
    /// Steps that fail.
    pub refuse: Box<dyn Fn(&StepKind) -> bool + Send>,
    /// Steps that are undone at once.
    pub(crate) swallow: Box<dyn Fn(&StepKind) -> bool + Send>,
    /// True if no step may be carried out.
    pub(crate) forbid: bool,
    next_ifindex: u32,
}

impl ModelKernel {
    pub fn new(state: Observed) -> Self {
        Self {
            state,
            history: Vec::new(),
            steps: Vec::new(),
            together: Vec::new(),
            budget: None,
            refuse: Box::new(|_| false),
            swallow: Box::new(|_| false),
            forbid: false,
            next_ifindex: 100,
        }
    }

    /// Starts the agent again on this kernel.
    pub fn restart(&mut self) {
        self.budget = None;
        self.history.clear();
        self.steps.clear();
    }

    /// Removes a device and all that hangs on it. The pin of its program's link stays.
    pub fn unplug(&mut self, ifindex: u32) {
        let state = &mut self.state;
        state.links.remove(&ifindex);
        state.addresses.retain(|a| a.ifindex != ifindex);
        state.neighbours.retain(|n| n.ifindex != ifindex);
        state.routes.retain(|r| device(r) != Some(ifindex));
        state
            .sysctls
            .retain(|s, _| s.scope != SysctlScope::Device(ifindex));
        for (hook, attachment) in &mut state.attachments {
            if hook.ifindex == ifindex {
                *attachment = Attachment::Dead;
            }
        }
    }

    /// Sets a device down: its routes and neighbours go.
    pub fn set_down(&mut self, ifindex: u32) {
        if let Some(link) = self.state.links.get_mut(&ifindex) {
            link.up = false;
        }
        self.state.routes.retain(|r| device(r) != Some(ifindex));
        self.state.neighbours.retain(|n| n.ifindex != ifindex);
    }

    /// Makes a device one that an agent died over while making it.
    pub fn unfinish(&mut self, ifindex: u32) {
        self.set_down(ifindex);
        if let Some(link) = self.state.links.get_mut(&ifindex) {
            link.group = 0;
        }
    }

    fn link(&mut self, ifindex: u32) -> anyhow::Result<&mut Link> {
        let link = self.state.links.get_mut(&ifindex);
        link.ok_or_else(|| anyhow::anyhow!("no such device: {ifindex}"))
    }

    fn create(&mut self, endpoint: &Endpoint) {
        let id = endpoint.id();
        let mut links = self.state.links.values_mut();
        let old = links.find(|link| link.name == id.device());
        if let Some(link) = old
            && finished_device(link) == Some(id)
            && intact_device(link).is_none()
        {
            link.mac = Some(id.host_mac());
            return;
        }
        let old = self.state.links.values().find(|l| l.name == id.device());
        if let Some(ifindex) = old.map(|link| link.ifindex) {
            self.unplug(ifindex);
        }
        let alias = endpoint.about.device.clone();
        let links = self.state.links.values_mut();
        for other in links.filter(|link| alias.is_some() && link.alias == alias) {
            other.alias = None;
        }
        let link = Link {
            alias,
            kind: LinkKind::Veth,
            up: false,
            group: constants::DEVICE_GROUP,
            mtu: endpoint.mtu,
            ..link(self.next_ifindex, &id.device(), id.host_mac())
        };
        self.next_ifindex += 1;
        plug(&mut self.state, link);
    }

    fn add_route(&mut self, route: Route) -> anyhow::Result<()> {
        if let Some(ifindex) = device(&route) {
            ensure!(self.link(ifindex)?.up, "network is down: {ifindex}");
        }
        if let Some(source) = route.source {
            let mut addresses = self.state.addresses.iter();
            ensure!(addresses.any(|a| a.net.addr() == source), "invalid source");
        }
        let key = Object::Route(route).key();
        self.state.routes.retain(|r| Object::Route(*r).key() != key);
        self.state.routes.insert(route);
        Ok(())
    }

    fn delete_address(&mut self, address: crate::kernel::Address) {
        self.state.addresses.remove(&address);
        let mut rest = self.state.addresses.iter();
        let is_v4 = |net: ipnet::IpNet| Family::of(net.addr()) == Family::V4;
        if is_v4(address.net) && !rest.any(|a| a.ifindex == address.ifindex && is_v4(a.net)) {
            let flushed = |r: &Route| device(r) == Some(address.ifindex) && is_v4(r.destination);
            self.state.routes.retain(|r| !flushed(r));
        }
    }

    fn set_sysctl(&mut self, sysctl: &Sysctl, value: &str) -> anyhow::Result<()> {
        let Some(old) = self.state.sysctls.get_mut(sysctl) else {
            bail!("no such sysctl: {sysctl:?}");
        };
        value.clone_into(old);
        // As the kernel does: the sysctl of the whole sets that of each device.
        if sysctl.name == "ip_forward" {
            let each = self.state.sysctls.iter_mut();
            let each =
                each.filter(|(other, _)| other.family == Family::V4 && other.name == "forwarding");
            each.for_each(|(_, old)| value.clone_into(old));
        }
        Ok(())
    }

    fn reserve(&mut self, ports: &SharedPorts) {
        let wanted = ports.reserved();
        let host = self.state.host.ports.get_or_insert_default();
        let others = host.others();
        host.reserved = others.union(&wanted);
        host.ours = wanted.minus(&others);
    }

    fn add_rule(&mut self, rule: Rule) {
        let key = Object::Rule(rule).key();
        let mut rules = self.state.rules.iter();
        if !rules.any(|r| Object::Rule(*r).key() == key) {
            self.state.rules.insert(rule);
        }
    }

    fn add_neighbour(&mut self, neighbour: Neighbour) -> anyhow::Result<()> {
        self.link(neighbour.ifindex)?;
        let key = Object::Neighbour(neighbour).key();
        let neighbours = &mut self.state.neighbours;
        neighbours.retain(|n| Object::Neighbour(*n).key() != key);
        neighbours.insert(neighbour);
        Ok(())
    }

    fn carry_out(&mut self, step: &StepKind) -> anyhow::Result<()> {
        match step {
            StepKind::SetSysctl(sysctl, value) => self.set_sysctl(sysctl, value)?,
            StepKind::ReservePorts(ports) => self.reserve(ports),
            StepKind::SetMtu { ifindex, mtu } => self.link(*ifindex)?.mtu = *mtu,
            StepKind::SetUp(ifindex) => self.link(*ifindex)?.up = true,
            StepKind::CreateEndpointDevice(endpoint) => self.create(endpoint),
            StepKind::DeleteDevice(ifindex) => self.unplug(*ifindex),
            StepKind::AddAddress(address) => {
                self.link(address.ifindex)?;
                self.state.addresses.insert(*address);
            }
            StepKind::DeleteAddress(address) => self.delete_address(*address),
            StepKind::AddRoute(route) => self.add_route(*route)?,
            StepKind::DeleteRoute(route) => {
                self.state.routes.remove(route);
            }
            StepKind::AddRule(rule) => self.add_rule(*rule),
            StepKind::DeleteRule(rule) => {
                self.state.rules.remove(rule);
            }
            StepKind::AddNeighbour(neighbour) => self.add_neighbour(*neighbour)?,
            StepKind::DeleteNeighbour(neighbour) => {
                self.state.neighbours.remove(neighbour);
            }
            StepKind::PutMapEntry(entry) => {
                self.state.maps.insert(entry.key(), *entry);
            }
            StepKind::DeleteMapEntry(key) => {
                self.state.maps.remove(key);
            }
            StepKind::Attach(hook) => self.attach(*hook)?,
            StepKind::Detach(hook) => {
                self.state.attachments.remove(hook);
            }
        }
        Ok(())
    }

    fn attach(&mut self, hook: Hook) -> anyhow::Result<()> {
        self.link(hook.ifindex)?;
        self.state.attachments.insert(hook, Attachment::Current);
        Ok(())
    }
}

fn device(route: &Route) -> Option<u32> {
    match route.next_hop {
        NextHop::Device(ifindex) | NextHop::Gateway(_, ifindex) => Some(ifindex),
        NextHop::Unreachable | NextHop::Throw => None,
    }
}

impl Kernel for ModelKernel {
    async fn observe(&mut self) -> anyhow::Result<Observed> {
        ensure!(self.budget != Some(0), "dead");
        Ok(self.state.clone())
    }

    async fn observe_endpoints(&mut self, endpoints: &Endpoints) -> anyhow::Result<Observed> {
        ensure!(self.budget != Some(0), "dead");
        let state = &self.state;
        let devices = state.devices_of(|id| endpoints.contains_key(&id));
        let addresses: BTreeSet<_> = endpoints.values().flatten().collect();
        let is_on = |ifindex| devices.contains(&ifindex);
        Ok(Observed {
            links: state
                .links
                .clone()
                .into_iter()
                .filter(|(i, _)| is_on(*i))
                .collect(),
            sysctls: state
                .sysctls
                .clone()
                .into_iter()
                .filter(|(sysctl, _)| match sysctl.scope {
                    SysctlScope::Device(ifindex) => is_on(ifindex),
                    SysctlScope::All | SysctlScope::Family => false,
                })
                .collect(),
            routes: state
                .routes
                .iter()
                .filter(|route| device(route).is_some_and(is_on))
                .copied()
                .collect(),
            neighbours: state
                .neighbours
                .iter()
                .filter(|neighbour| is_on(neighbour.ifindex))
                .copied()
                .collect(),
            maps: state
                .maps
                .iter()
                .filter(|(key, _)| matches!(key, MapKey::Address(a) if addresses.contains(a)))
                .map(|(key, entry)| (*key, *entry))
                .collect(),
            attachments: state
                .attachments
                .iter()
                .filter(|(hook, _)| is_on(hook.ifindex))
                .map(|(hook, attachment)| (*hook, *attachment))
                .collect(),
            ..Observed::default()
        })
    }

    fn announce(&mut self, _objects: &BTreeSet<Object>) -> anyhow::Result<()> {
        ensure!(!self.forbid, "forbidden");
        Ok(())
    }

    async fn delete_together(&mut self, devices: &[u32]) {
        self.together.push(devices.to_vec());
    }

    async fn apply(&mut self, step: &Step) -> anyhow::Result<()> {
        match &mut self.budget {
            Some(0) => bail!("dead"),
            Some(left) => *left -= 1,
            None => {}
        }
        ensure!(!(self.refuse)(&step.kind), "refused");
        if !(self.swallow)(&step.kind) {
            self.carry_out(&step.kind)?;
        }
        self.steps.push(step.clone());
        self.history.push(self.state.clone());
        Ok(())
    }
}
