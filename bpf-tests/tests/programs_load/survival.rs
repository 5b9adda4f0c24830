//! Flows that must outlive all other activity.

use std::collections::BTreeMap;
use std::env;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use datapath_common::abi::{DEFAULT_FLOWS_V4, FlowQuotas};
use datapath_common::headers::protocol;
use flows::Sweep;
use loader::bpf::DatapathSettings;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use crate::frames::{Family, Kind};
use crate::node::Node;
use crate::sweeps::{assert_alive, numbered};
use crate::world::{Driver, Sent, Tuple};

/// Idle flows that exist all the time.
const IDLE: u32 = 1000;
/// Age of the idle flows at the start, in seconds. The rest of the lifetime is for the test, whose
/// long form takes minutes.
const SILENT: u64 = 3600;

/// A connection from its first segment to the reset of the pod.
fn short(driver: &Driver, tuple: Tuple) {
    let port = driver.must_send(tuple, Kind::Syn);
    let passed = driver.answer(tuple, port, Kind::SynAck)
        && driver.send(tuple, Kind::Rst) == Sent::Translated(port);
    assert!(passed, "{tuple:?}");
}

/// Short connections in such numbers that the map repeatedly fills with closed ones.
#[test]
fn idle_connections_survive_short_ones() {
    let (capacity, shorts) = if env::var_os("TOWPATH_FULL").is_some() {
        (DEFAULT_FLOWS_V4, 2_000_000)
    } else {
        (16_384, 200_000)
    };
    let settings = DatapathSettings {
        flows_v4: capacity,
        quotas: FlowQuotas {
            endpoint: capacity,
            ..FlowQuotas::DEFAULT
        },
        ..DatapathSettings::default()
    };
    let mut node = Node::new(Family::V4, &settings);
    let driver = node.driver;
    let idle: Vec<_> = (0..IDLE)
        .map(|number| (numbered(3, number), driver.connect(numbered(3, number))))
        .collect();
    node.age(SILENT);
    let (start, mut swept) = (Instant::now(), Duration::ZERO);
    let (mut opened, mut reaped, mut sweeps) = (0, 0, 0);
    while opened < shorts {
        let room = capacity - IDLE;
        for number in opened..shorts.min(opened + room) {
            short(
                &driver,
                numbered(usize::try_from(number % 3).unwrap(), number),
            );
        }
        opened = shorts.min(opened + room);
        // Even then there is no room for one more.
        if opened < shorts {
            assert_eq!(driver.send(numbered(0, opened), Kind::Syn), Sent::Dropped);
        }
        node.age(3);
        let sweep = node.sweep(true);
        node.lift_reserves();
        assert_eq!(sweep.census.translated(ipam::Family::V4), u64::from(IDLE));
        reaped += sweep.reaped.idle;
        swept += sweep.took;
        sweeps += 1;
    }
    assert_eq!(reaped, u64::from(shorts));
    println!(
        "{shorts} short connections at a capacity of {capacity} in {:.1?}, with {sweeps} sweeps \
         that took {swept:.1?}",
        start.elapsed()
    );
    for (tuple, port) in idle {
        assert_alive(&driver, tuple, port);
    }
    node.check();
}

/// Connections with packets that may come at the moment at which the sweeper regards them as
/// closed.
const RACING: u32 = 4096;
const ROUNDS: u32 = 6;

fn on<T>(cpu: usize, work: impl FnOnce() -> T) -> T {
    let mut cpus = CpuSet::new();
    cpus.set(cpu).unwrap();
    sched_setaffinity(Pid::from_raw(0), &cpus).unwrap();
    work()
}

/// A packet of a connection, from either side; returns the connection's port if the packet passed.
fn packet(driver: &Driver, tuple: Tuple, port: u16, is_answer: bool) -> Option<u16> {
    if is_answer {
        return driver.answer(tuple, port, Kind::Ack).then_some(port);
    }
    match driver.send(tuple, Kind::Ack) {
        Sent::Translated(port) => Some(port),
        Sent::Dropped => None,
    }
}

/// Both pods have the same ports towards the same remotes, so that half of the connections do not
/// get their first candidate.
fn racing(number: u32) -> Tuple {
    numbered(usize::try_from(number % 2).unwrap(), number / 2)
}

/// Sends a packet of each connection while the sweeper sweeps; returns the ports of those that
/// passed.
fn race(node: &mut Node, ports: &BTreeMap<u32, u16>, round: u32) -> (Vec<Option<u16>>, Sweep) {
    let driver = node.driver;
    let barrier = Barrier::new(2);
    thread::scope(|scope| {
        let barrier = &barrier;
        let packets = scope.spawn(move || {
            on(0, || {
                barrier.wait();
                let packet = |number: u32| {
                    let is_answer = (number / 2 + round).is_multiple_of(2);
                    packet(&driver, racing(number), ports[&number], is_answer)
                };
                (0..RACING).map(packet).collect::<Vec<_>>()
            })
        });
        let sweep = scope.spawn(move || {
            on(1, || {
                barrier.wait();
                node.sweep(round.is_multiple_of(2))
            })
        });
        (packets.join().unwrap(), sweep.join().unwrap())
    })
}

#[test]
fn no_connection_is_lost_that_lives_while_the_sweeper_sweeps() {
    for family in Family::ALL {
        let mut node = Node::new(family, &DatapathSettings::default());
        let driver = node.driver;
        let mut ports: BTreeMap<_, _> = (0..RACING)
            .map(|number| (number, driver.connect(racing(number))))
            .collect();
        let (mut reaped, mut passed) = (0, 0);
        for round in 0..ROUNDS {
            node.age(7442);
            let (given, sweep) = race(&mut node, &ports, round);
            reaped += sweep.reaped.idle;
            // Flows that came and went during the sweep need no correction.
            assert_eq!(sweep.quotas.corrected, 0, "{sweep:?}");
            for (number, port) in (0..RACING).zip(given) {
                let Some(port) = port else {
                    // The end came first. The next packet of the pod opens the flow again.
                    let port = driver.must_send(racing(number), Kind::Ack);
                    assert!(driver.answer(racing(number), port, Kind::Ack), "{number}");
                    ports.insert(number, port);
                    continue;
                };
                passed += 1;
                let key = node.key(racing(number), port, protocol::TCP);
                let flow = node.flows().get(&key).unwrap();
                let flow = flow.unwrap_or_else(|| panic!("{number}: a live flow was lost"));
                assert_eq!(flow.dead, 0, "{number}");
                ports.insert(number, port);
            }
            node.check();
        }
        // Each order must have occurred, or the test proves nothing.
        let all = u64::from(RACING * ROUNDS);
        assert!(reaped > 0 && reaped < all, "{reaped} of {all} were reaped");
        assert!(passed > 0, "no packet was first");
        // No count became wrong in between.
        let again = [node.sweep(false), node.sweep(false)];
        assert!(
            again.iter().all(|sweep| sweep.quotas.corrected == 0),
            "{again:?}"
        );
    }
}
