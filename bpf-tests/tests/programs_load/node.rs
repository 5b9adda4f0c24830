//! The node: loaded programs in a namespace of the test's own, and their maps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use datapath_common::abi::{
    Addr, AddressEntry, EndpointAddress, EniAddresses, EniEntry, Flow, FlowKey, Moved, PodTuple,
    Quota, Room, SharedTable, TrackedFlow, TransportAddr, map,
};
use datapath_common::counter::{Counter, NatStat, Program};
use datapath_common::masquerade::PoolPolicy;
use datapath_common::outcome::{DropReason, Outcome};
use flows::{NatCounters, Sweep, SweepInput, Tables as _};
use loader::bpf::DatapathSettings;
use testkit::testrun;
use testkit::testrun::reaper::Reaper;
use testkit::testrun::tables::{Plain, Table};

use crate::frames::Family;
use crate::loaded::{self, Lease};
use crate::world::{Driver, ENI, MTU, POD_MAC, PODS, Tuple, mac, veth};

/// A number of seconds in jiffies.
fn jiffies(seconds: u64) -> u64 {
    seconds * u64::from(loader::bpf::jiffies_per_second().unwrap())
}

/// The entry of a pod's address behind a device.
fn endpoint(ifindex: u32) -> AddressEntry {
    AddressEntry::endpoint(EndpointAddress {
        eni: 0,
        eni_ifindex: ENI,
        pool: PoolPolicy::Masquerade,
        via_stack: false,
        ifindex,
        mtu: MTU,
        pod_mac: POD_MAC,
        host_mac: mac(ifindex),
        namespace: None,
    })
}

/// Settings with room for so many entries in each table of flows.
pub(crate) fn of_capacity(entries: u32) -> DatapathSettings {
    DatapathSettings {
        flows_v4: entries,
        flows_v6: entries,
        inbound: entries,
        ..DatapathSettings::default()
    }
}

/// The node.
pub(crate) struct Node {
    pub(crate) loaded: Lease,
    /// Counts before this node.
    before: NatCounters,
    counted: BTreeMap<u32, Counter>,
    pub(crate) family: Family,
    pub(crate) driver: Driver,
    pub(crate) reaper: Reaper,
    /// Input of sweeps.
    pub(crate) input: SweepInput,
    pods: usize,
}

impl Node {
    /// A node with these settings, on which both families are masqueraded, for the traffic of one.
    pub(crate) fn new(family: Family, settings: &DatapathSettings) -> Self {
        Self::with_pods(family, settings, PODS, 0)
    }

    /// A node with a number of pods, each of which has this share of a destination's reserve.
    pub(crate) fn with_pods(
        family: Family,
        settings: &DatapathSettings,
        pods: usize,
        share: u16,
    ) -> Self {
        testrun::private_namespace().unwrap();
        let devices: Vec<_> = (0..pods.next_multiple_of(2))
            .map(veth)
            .chain([ENI, ENI + 1])
            .collect();
        for pair in devices.chunks(2) {
            let [one, two] = pair.try_into().unwrap();
            let text = |index| mac(index).map(|byte| format!("{byte:02x}")).join(":");
            testrun::ip(&format!(
                "link add index {one} address {} type veth peer index {two} address {}",
                text(one),
                text(two)
            ))
            .unwrap();
        }
        let settings = DatapathSettings {
            masquerade_v6: true,
            ..settings.clone()
        };
        let mut loaded = loaded::lease(&settings).unwrap();
        let programs = &mut loaded.programs;
        for family in Family::ALL {
            for pod in 0..pods {
                let entry = endpoint(veth(pod));
                programs.put_address(family.pod(pod), entry).unwrap();
            }
            let entry = AddressEntry::translation(0);
            programs.put_address(family.node(), entry).unwrap();
        }
        let [v4, v6] = Family::ALL.map(|family| {
            let (gateway, node) = (family.gateway().into(), family.node().into());
            EniAddresses::new(gateway, node, 0).with_share(share)
        });
        programs
            .put_eni(0, EniEntry::new(ENI, MTU, v4, v6))
            .unwrap();
        let driver = Driver::new(programs, family);
        let reaper = programs.reaper(ENI).unwrap();
        let counted = programs.counters().unwrap();
        Self {
            before: loaded.sweeper.tables.counters().unwrap(),
            counted,
            loaded,
            family,
            driver,
            reaper,
            input: SweepInput::default(),
            pods,
        }
    }

    pub(crate) fn table<K: Plain, V: Plain>(&self, name: &str) -> Table<K, V> {
        self.loaded.programs.table(name).unwrap()
    }

    pub(crate) fn flows(&self) -> Table<FlowKey, Flow> {
        self.table(self.family.maps().0)
    }

    pub(crate) fn moved(&self) -> Table<PodTuple, Moved> {
        self.table(self.family.maps().1)
    }

    /// Flows from the outside.
    pub(crate) fn inbound(&self) -> Table<PodTuple, TrackedFlow> {
        self.table(map::INBOUND)
    }

    /// Flows that a pod's quota counts.
    pub(crate) fn quota(&self, pod: usize) -> u32 {
        let table: Table<u32, Quota> = self.table(map::QUOTA);
        let quota = table.get(&veth(pod)).unwrap();
        quota.map_or(0, |quota| quota.flows)
    }

    /// Publishes what a table lends beyond quotas, as a sweep does.
    pub(crate) fn lend(&self, table: SharedTable, flows: u32) {
        let lend = self.table::<u32, u32>(map::LEND);
        lend.put(&(table as u32), &flows).unwrap();
    }

    /// Takes back what sweeps have published of the tables' room: the maps alone limit flows.
    pub(crate) fn lift_reserves(&self) {
        let rooms = self.table::<u32, Room>(map::ROOM);
        for table in SharedTable::ALL {
            rooms.put(&(table as u32), &Room::UNKNOWN).unwrap();
        }
    }

    /// A count of translation on this node, over all CPUs.
    pub(crate) fn stat(&self, stat: NatStat) -> u64 {
        let family = self.family.intent();
        let now = self.loaded.sweeper.tables.counters().unwrap();
        now.of(family, stat) - self.before.of(family, stat)
    }

    /// Packets of pods that were dropped for a reason on this node.
    pub(crate) fn dropped(&self, reason: DropReason) -> u64 {
        let slot = Program::FromEndpoint.slot(Outcome::Dropped(reason));
        let counters = self.loaded.programs.counters().unwrap();
        let packets = |counters: &BTreeMap<u32, Counter>| {
            let counter = counters.get(&slot);
            counter.map_or(0, |counter| counter.packets)
        };
        packets(&counters) - packets(&self.counted)
    }

    /// The key of a flow with a port for translation.
    pub(crate) fn key(&self, tuple: Tuple, port: u16, protocol: u8) -> FlowKey {
        self.family.key(tuple, port, protocol)
    }

    /// Moves the last packet of every flow back by a number of seconds, and returns the flows for
    /// the reaper.
    pub(crate) fn age(&self, seconds: u64) -> Vec<(FlowKey, u64)> {
        let flows = self.flows();
        let entries = flows.entries().unwrap();
        let aged = entries.into_iter().map(|(key, flow)| {
            let mut aged: Flow = flow;
            aged.last_seen -= jiffies(seconds);
            flows.put(&key, &aged).unwrap();
            (key, aged.last_seen)
        });
        aged.collect()
    }

    /// Makes a flow idle for a number of seconds.
    #[track_caller]
    pub(crate) fn set_idle(&self, key: &FlowKey, seconds: u64) {
        let mut flow = self.flows().get(key).unwrap().unwrap();
        flow.last_seen = self.now() - jiffies(seconds);
        self.flows().put(key, &flow).unwrap();
    }

    /// Makes a flow from the outside idle for a number of seconds.
    #[track_caller]
    pub(crate) fn set_inbound_idle(&self, tuple: &PodTuple, seconds: u64) {
        let mut note = self.inbound().get(tuple).unwrap().unwrap();
        note.last_seen = self.now() - jiffies(seconds);
        self.inbound().put(tuple, &note).unwrap();
    }

    /// The time, in jiffies.
    fn now(&self) -> u64 {
        self.loaded.sweeper.tables.now().unwrap()
    }

    /// Sweeps as the agent does, with the present endpoints.
    pub(crate) fn sweep(&mut self, is_pressed: bool) -> Sweep {
        self.loaded.sweeper.sweep(&self.input, is_pressed).unwrap()
    }

    /// Removes a pod, as the agent does.
    pub(crate) fn remove_pod(&mut self, pod: usize) {
        let addresses: Table<Addr, AddressEntry> = self.table(map::ADDRESSES);
        addresses.remove(&Addr::from(self.family.pod(pod))).unwrap();
        let rest = (0..PODS).filter(|other| *other != pod);
        let rest = rest.map(|pod| self.family.pod(pod)).collect();
        self.input.endpoints = Some(Arc::new(rest));
    }

    /// Gives a pod's address to another device.
    pub(crate) fn replace_pod(&mut self, pod: usize, ifindex: u32) {
        let address = self.family.pod(pod);
        let programs = &mut self.loaded.programs;
        programs.put_address(address, endpoint(ifindex)).unwrap();
    }

    /// The key of a flow from the outside.
    pub(crate) fn inbound_key(&self, tuple: Tuple, protocol: u8) -> PodTuple {
        PodTuple::new(
            protocol,
            TransportAddr::new(Addr::from(self.family.pod(tuple.pod)), tuple.port.to_be()),
            TransportAddr::new(
                Addr::from(self.family.remote(tuple.remote)),
                tuple.remote_port.to_be(),
            ),
        )
    }

    /// Time of a flow's last packet, in jiffies.
    #[track_caller]
    pub(crate) fn last_seen(&self, key: &FlowKey) -> u64 {
        self.flows().get(key).unwrap().unwrap().last_seen
    }

    /// Removes flows, whatever the time of their last packet.
    pub(crate) fn remove(&self, keys: &[FlowKey]) -> u32 {
        let always = datapath_common::abi::ReapFlow::ALWAYS;
        let items: Vec<_> = keys.iter().map(|key| (*key, always)).collect();
        self.reaper.flows(&items).unwrap()
    }

    /// Checks the invariants between the maps while nothing runs: each flow holds one port, is
    /// found by its pod and counted for it, and there are no other entries.
    #[track_caller]
    pub(crate) fn check(&self) {
        let flows = self.flows().entries().unwrap();
        let mut owners = BTreeMap::new();
        let mut counted = BTreeMap::<u32, u32>::new();
        for (key, flow) in &flows {
            assert!(flow.is_of(key), "{key:?} holds {flow:?}");
            assert_eq!(flow.dead, 0, "{key:?} is there, and dead");
            let tuple = PodTuple::new(
                key.protocol,
                TransportAddr::new(flow.pod, flow.pod_port),
                TransportAddr::new(key.remote, key.remote_port),
            );
            let before = owners.insert(tuple, key);
            assert_eq!(before, None, "{tuple:?} has two flows");
            *counted.entry(flow.endpoint).or_default() += 1;
        }
        let places: BTreeSet<_> = flows.iter().map(|(key, _)| *key).collect();
        for (tuple, moved) in self.moved().entries().unwrap() {
            let key = FlowKey::new(
                moved.eni,
                tuple.protocol,
                TransportAddr::new(tuple.remote, tuple.remote_port),
                moved.port,
            );
            assert!(places.contains(&key), "{tuple:?} leads to nothing");
            assert_eq!(owners.get(&tuple), Some(&&key), "{tuple:?} leads elsewhere");
        }
        for pod in 0..self.pods {
            let expected = counted.get(&veth(pod)).copied().unwrap_or_default();
            assert_eq!(self.quota(pod), expected, "flows counted for pod {pod}");
        }
    }
}
