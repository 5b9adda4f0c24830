//! The sweeper on the kernel's maps, with the reaper.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::Result;
use api::types::FlowFilter;
use aya::maps::{Array, HashMap, Map, MapData};
use datapath_common::abi::{
    Addr, AddressEntry, EndpointAddress, Flow, FlowKey, Moved, NatControl, PodTuple, PortBlock,
    PortBlockKey, Quota, TransportAddr, map,
};
use datapath_common::headers::protocol;
use datapath_common::masquerade::PoolPolicy;
use datapath_common::ports;
use flows as nat;
use flows::{FlowPolicy, Lifetimes, Limits, SweepInput, Sweeper, Tables as _};
use ipam::Family;
use loader::bpf::{AttachMode, DatapathSettings, ForNat, NatSwitch, NatTables};
use loader::kernel::{MapEntry, StepKind};
use loader::netfilter::service_nat::KernelTracker;

use crate::world::{World, in_world};

/// Plain bytes that aya does not know.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Plain<T>(T);
// SAFETY: used with types that derive zerocopy's `IntoBytes` and `FromBytes` only.
unsafe impl<T: zerocopy::FromBytes + zerocopy::IntoBytes + Copy + 'static> aya::Pod for Plain<T> {}

type Table<K, V> = HashMap<MapData, Plain<K>, Plain<V>>;

/// The identity that the MAC of the pod's host-side device gives.
const ENDPOINT: u32 = 77;

fn pod() -> Addr {
    Addr::from(IpAddr::from([10, 0, 1, 20]))
}

fn key(port: u16, remote: u32) -> FlowKey {
    let remote = Addr::from_v4_word((0xc633_0000 + remote).to_be());
    FlowKey::new(
        0,
        protocol::UDP,
        TransportAddr::new(remote, 53_u16.to_be()),
        port.to_be(),
    )
}

fn pinned(world: &World, name: &str) -> Map {
    Map::HashMap(MapData::from_pin(world.map_pin(name)).unwrap())
}

fn table<K, V>(world: &World, name: &str) -> Table<K, V>
where
    K: zerocopy::FromBytes + zerocopy::IntoBytes + Copy + 'static,
    V: zerocopy::FromBytes + zerocopy::IntoBytes + Copy + 'static,
{
    pinned(world, name).try_into().unwrap()
}

fn nat(world: &World) -> (NatTables, NatSwitch) {
    let mut datapath = world.load(AttachMode::Auto);
    let entry = AddressEntry::endpoint(EndpointAddress {
        eni: 0,
        eni_ifindex: 2,
        pool: PoolPolicy::Masquerade,
        via_stack: false,
        ifindex: 7,
        mtu: 1500,
        pod_mac: [0; 6],
        host_mac: [2, 0, 0, 0, 0, 77],
        namespace: None,
    });
    let entry = MapEntry::Address(IpAddr::from([10, 0, 1, 20]), entry);
    datapath.apply(&StepKind::PutMapEntry(entry)).unwrap();
    let ForNat { tables, switch, .. } = datapath.take_nat().unwrap();
    assert!(datapath.take_nat().is_none());
    (tables, switch)
}

/// Puts flows in as the datapath does, all of them idle for so long.
fn open(world: &World, tables: &NatTables, flows: &[(FlowKey, u32)], idle: Duration) {
    let hertz = u64::from(tables.jiffies_per_second());
    let last_seen = tables.now().unwrap() - idle.as_secs() * hertz;
    let mut map: Table<FlowKey, Flow> = table(world, map::FLOWS_V4);
    let mut quotas: Table<u32, Quota> = table(world, map::QUOTA);
    for (key, endpoint) in flows {
        let flow = Flow::new(
            key,
            TransportAddr::new(pod(), key.port),
            *endpoint,
            last_seen,
        );
        map.insert(Plain(*key), Plain(flow), 0).unwrap();
        let before = quotas.get(&Plain(*endpoint), 0);
        let mut quota = before.map_or(Quota::NONE, |quota| quota.0);
        quota.flows += 1;
        quotas.insert(Plain(*endpoint), Plain(quota), 0).unwrap();
    }
}

fn quota(world: &World, endpoint: u32) -> u32 {
    let quotas: Table<u32, Quota> = table(world, map::QUOTA);
    quotas
        .get(&Plain(endpoint), 0)
        .map_or(0, |quota| quota.0.flows)
}

fn sweeper(tables: NatTables) -> Sweeper<NatTables> {
    Sweeper::new(
        tables,
        Lifetimes::default(),
        Limits::from(&DatapathSettings::default()),
        Box::new(KernelTracker::default()),
    )
}

fn around() -> SweepInput {
    SweepInput {
        endpoints: Some(Arc::new(BTreeSet::from([IpAddr::from(pod())]))),
        ..SweepInput::default()
    }
}

#[test]
fn a_dump_shows_every_flow_once_and_the_reaper_takes_the_idle_ones() {
    in_world(|world| {
        let (tables, _switch) = nat(world);
        // More than a batch, and more than a request.
        let flows = |from, count| -> Vec<(FlowKey, u32)> {
            let keys = (from..from + count).map(|remote| key(50_000, remote));
            keys.map(|key| (key, ENDPOINT)).collect()
        };
        open(world, &tables, &flows(0, 9_000), Duration::ZERO);
        open(
            world,
            &tables,
            &flows(9_000, 1_000),
            Duration::from_secs(40),
        );
        let mut seen = BTreeSet::new();
        tables
            .flows(Family::V4, &mut |key, flow| {
                assert!(seen.insert(*key), "{key:?} is shown twice");
                assert_eq!(flow.endpoint, ENDPOINT);
            })
            .unwrap();
        assert_eq!(seen.len(), 10_000);

        let mut sweeper = sweeper(tables);
        let sweep = sweeper.sweep(&around(), false).unwrap();
        assert_eq!(
            (sweep.reaped.idle, sweep.reaped.gone, sweep.quotas.corrected),
            (1_000, 0, 0)
        );
        assert_eq!(sweep.census.translated(Family::V4), 9_000);
        assert_eq!(quota(world, ENDPOINT), 9_000);
        let again = sweeper.sweep(&around(), false).unwrap();
        assert_eq!((again.reaped.idle, again.quotas.corrected), (0, 0));
    });
}

/// As many flows as there is room for by default, to a few remotes: what a sweep of them takes. The
/// agent rests nine times as long after it.
#[test]
fn a_sweep_of_full_maps_is_quick() {
    in_world(|world| {
        let (tables, _switch) = nat(world);
        let room = tables.capacities().flows_v4;
        let flows = (0..room).map(|index| {
            let port = 40_960 + u16::try_from(index % 24_576).unwrap();
            (key(port, index / 24_576), ENDPOINT)
        });
        let flows: Vec<_> = flows.collect();
        open(world, &tables, &flows, Duration::ZERO);
        let mut sweeper = sweeper(tables);
        for _sweep in 0..3 {
            let (start, before) = (Instant::now(), cpu_time());
            let sweep = sweeper.sweep(&around(), false).unwrap();
            let (took, cpu) = (start.elapsed(), cpu_time().saturating_sub(before));
            assert_eq!(sweep.census.translated(Family::V4), u64::from(room));
            println!("a sweep of {room} flows took {took:?}, {cpu:?} of CPU time");
            assert!(cpu < Duration::from_secs(2), "{cpu:?}");
        }
        let start = Instant::now();
        let handle = nat::Handle::new(Arc::new(NoSwitch)).unwrap();
        let fresh = self::sweeper(sweeper.tables);
        let running = nat::start(fresh, handle.clone()).unwrap();
        let (sender, receiver) = mpsc::channel();
        handle.list(
            FlowFilter::default(),
            Box::new(move |list: Result<_>| sender.send(list).unwrap()),
        );
        let list = receiver.recv_timeout(Duration::from_secs(10)).unwrap();
        let list = list.unwrap();
        assert_eq!((list.total, list.flows.len()), (u64::from(room), 20_000));
        let bytes = serde_json::to_vec(&list).unwrap().len();
        println!("a list took {:?}, {bytes} bytes as JSON", start.elapsed());
        assert!(bytes < 8 << 20, "{bytes}");
        drop(running);
    });
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    // Its first number is the time on the CPU in nanoseconds (Documentation/scheduler/sched-stats.rst).
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let nanoseconds = stat.split_whitespace().next().unwrap().parse();
    Duration::from_nanos(nanoseconds.unwrap())
}

/// A switch for tests without policy.
struct NoSwitch;

impl nat::LookupControl for NoSwitch {
    fn set(&self, _lookups: nat::CompatLookups) -> Result<()> {
        Ok(())
    }
}

#[test]
fn with_a_flow_goes_what_is_about_it() {
    in_world(|world| {
        let (tables, _switch) = nat(world);
        let (idle, busy) = (key(50_000, 1), key(50_001, 1));
        open(world, &tables, &[(idle, ENDPOINT)], Duration::from_secs(40));
        open(world, &tables, &[(busy, ENDPOINT)], Duration::ZERO);
        let mut moved: Table<PodTuple, Moved> = table(world, map::MOVED_V4);
        let tuple = |key: &FlowKey| {
            PodTuple::new(
                key.protocol,
                TransportAddr::new(pod(), key.port),
                TransportAddr::new(key.remote, key.remote_port),
            )
        };
        for key in [&idle, &busy] {
            let to = Plain(Moved::new(key.eni, key.port));
            moved.insert(Plain(tuple(key)), to, 0).unwrap();
        }
        let mut blocks: Table<PortBlockKey, PortBlock> = table(world, map::PORT_BLOCKS);
        let block_key = |key: &FlowKey, port| {
            let block = ports::block_of(port);
            PortBlockKey::new(
                key.eni,
                key.protocol,
                TransportAddr::new(key.remote, key.remote_port),
                block,
            )
        };
        let mut block = PortBlock::FREE;
        for port in [50_000, 50_001, 50_002] {
            let (word, bit) = ports::bit_of(port);
            block.used[word as usize] |= bit;
        }
        let at = Plain(block_key(&idle, 50_000));
        blocks.insert(at, Plain(block), 0).unwrap();
        let other = Plain(block_key(&key(50_000, 2), 50_000));
        blocks.insert(other, Plain(block), 0).unwrap();

        let mut sweeper = sweeper(tables);
        assert_eq!(sweeper.sweep(&around(), false).unwrap().reaped.idle, 1);
        let left: Vec<_> = moved.keys().map(|key| key.unwrap().0).collect();
        assert_eq!(left, [tuple(&busy)]);
        let (word, bit) = ports::bit_of(50_001);
        let mut right = PortBlock::FREE;
        right.used[word as usize] = bit;
        assert_eq!(blocks.get(&at, 0).unwrap().0.used, right.used);
        assert!(blocks.get(&other, 0).is_err(), "nobody uses a port of it");
        assert_eq!(quota(world, ENDPOINT), 1);
    });
}

#[test]
fn a_count_that_is_off_is_corrected() {
    in_world(|world| {
        let (tables, _switch) = nat(world);
        open(
            world,
            &tables,
            &[(key(50_000, 1), ENDPOINT)],
            Duration::ZERO,
        );
        let mut quotas: Table<u32, Quota> = table(world, map::QUOTA);
        let wrong = Quota {
            flows: 9,
            ..Quota::NONE
        };
        quotas.insert(Plain(ENDPOINT), Plain(wrong), 0).unwrap();
        let mut sweeper = sweeper(tables);
        for corrected in [0, 1, 0] {
            let sweep = sweeper.sweep(&around(), false).unwrap();
            assert_eq!(sweep.quotas.corrected, corrected);
        }
        assert_eq!(quota(world, ENDPOINT), 1);
        quotas.remove(&Plain(ENDPOINT)).unwrap();
        for corrected in [0, 1, 0] {
            let sweep = sweeper.sweep(&around(), false).unwrap();
            assert_eq!(sweep.quotas.corrected, corrected);
        }
        assert_eq!(quota(world, ENDPOINT), 1);
    });
}

/// Nothing is exempt.
struct Nothing;

impl FlowPolicy for Nothing {
    fn is_exempt(&self, _pod: IpAddr, _remote: IpAddr) -> bool {
        false
    }

    fn exit(&self, _pod: IpAddr, _remote: IpAddr, owner: u8) -> u8 {
        owner
    }
}

#[test]
fn the_thread_sweeps_lists_flushes_and_settles_the_policy() {
    in_world(|world| {
        let (tables, switch) = nat(world);
        let control: Array<MapData, Plain<NatControl>> =
            Map::Array(MapData::from_pin(world.map_pin(map::NAT_CONTROL)).unwrap())
                .try_into()
                .unwrap();
        let looks_up = || control.get(&0, 0).unwrap().0.may_be_exempt != 0;
        let gone = key(50_000, 1);
        open(world, &tables, &[(gone, ENDPOINT + 1)], Duration::ZERO);
        let of_pod = (key(50_001, 1), ENDPOINT);
        open(
            world,
            &tables,
            &[of_pod, (key(50_002, 1), 0)],
            Duration::ZERO,
        );

        let handle = nat::Handle::new(Arc::new(switch)).unwrap();
        assert!(looks_up());
        let running = nat::start(sweeper(tables), handle.clone()).unwrap();
        let until = |what: &str, is: &dyn Fn() -> bool| {
            let deadline = Instant::now() + Duration::from_secs(10);
            while !is() {
                assert!(Instant::now() < deadline, "{what}");
                std::thread::yield_now();
            }
        };
        until("the flow of another device is gone", &|| {
            handle.report().gone == 1
        });
        handle.policy_changes(Arc::new(Nothing)).unwrap();
        assert!(looks_up());
        handle.passed(BTreeSet::from([IpAddr::from(pod())]), true);
        until("flows are looked up no more", &|| !looks_up());

        let (sender, receiver) = mpsc::channel();
        handle.list(
            FlowFilter::default(),
            Box::new(move |list: Result<_>| sender.send(list).unwrap()),
        );
        let list = receiver.recv_timeout(Duration::from_secs(10));
        assert_eq!(list.unwrap().unwrap().total, 2);
        let (sender, receiver) = mpsc::channel();
        let filter = FlowFilter {
            pod: Some(pod().into()),
            protocol: Some("udp".to_owned()),
            ..FlowFilter::default()
        };
        handle.flush(
            filter,
            Box::new(move |flushed: Result<_>| sender.send(flushed).unwrap()),
        );
        let flushed = receiver.recv_timeout(Duration::from_secs(10));
        assert_eq!(flushed.unwrap().unwrap().removed, 2);
        assert_eq!(quota(world, ENDPOINT), 0);
        drop(running);
    });
}
