//! The agent is killed with SIGKILL at named points, under traffic: no packet is lost, nothing
//! leaks, and the next agent heals everything.

use std::collections::BTreeMap;
use std::time::Duration;

use ipam::Family;
use testkit::fabric::agent::FAULT_VARIABLE;
use testkit::fabric::state::{State, difference, program_ids};
use testkit::fabric::traffic::Stream;
use testkit::fabric::{Fabric, Place, Pod, Spec};

use crate::support::{CHANGE, End, PEER, carry_all, is_full, nothing_differs, within};

/// Kills of an ordinary run, and of the long form.
const KILLS: usize = 20;
const KILLS_FULL: usize = 200;
/// Packets a second that a stream must have reached, in each direction.
const RATE: u64 = 1000;
/// The time that the agent may take to reach a point after its trigger.
const REACH: Duration = Duration::from_secs(10);

/// Trigger for writes of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// An endpoint is added.
    Add,
    /// The endpoint is deleted.
    Delete,
    /// Rules are removed by hand.
    Damage,
    /// The agent starts, and replaces the programs of its predecessor.
    Start,
}

/// A pod's life, again and again: each row is one kill during the work. The effect of the kill is
/// measured, not taken from here.
const CASES: [(Work, &str); 34] = [
    (Work::Add, "applied.create-endpoint-device"),
    (Work::Delete, "applied.delete-map-entry"),
    (Work::Damage, "applied.add-rule"),
    (Work::Start, "applied.attach"),
    (Work::Add, "applied.add-neighbour"),
    (Work::Delete, "apply.delete-map-entry:2"),
    (Work::Add, "apply.set-up"),
    (Work::Delete, "applied.delete-route:2"),
    (Work::Add, "applied.set-up"),
    (Work::Delete, "applied.delete-map-entry:2"),
    (Work::Add, "apply.add-route"),
    (Work::Delete, "apply.delete-route"),
    (Work::Start, "apply.attach:2"),
    (Work::Add, "applied.add-route"),
    (Work::Delete, "applied.delete-route"),
    (Work::Damage, "apply.add-rule:2"),
    (Work::Add, "endpoint.add.recorded"),
    (Work::Delete, "endpoint.del.recorded"),
    (Work::Add, "apply.put-map-entry"),
    (Work::Delete, "apply.delete-route:2"),
    (Work::Start, "applied.attach:2"),
    (Work::Add, "applied.put-map-entry"),
    (Work::Delete, "apply.delete-device"),
    (Work::Add, "apply.add-route:2"),
    (Work::Delete, "plan.begin:2"),
    (Work::Damage, "applied.add-rule:2"),
    (Work::Add, "apply.put-map-entry:2"),
    (Work::Delete, "applied.delete-map-entry"),
    (Work::Start, "apply.attach:3"),
    (Work::Add, "store.rename"),
    (Work::Add, "apply.add-neighbour"),
    (Work::Delete, "applied.delete-map-entry:2"),
    (Work::Damage, "apply.add-rule:3"),
    (Work::Start, "applied.attach:3"),
];

/// Rules that are removed by hand: nothing of the direct path depends on them.
const DAMAGE: &str = "rule del priority 20\n\
                      rule del priority 110\n\
                      rule del priority 111 lookup 11\n\
                      rule del priority 112 lookup 11";
/// Number of lines of the state that the damage removes.
const DAMAGED: usize = 4;

struct Scene {
    fabric: Fabric,
    hooks: Vec<String>,
    guest: std::sync::Arc<Pod>,
}

fn lines(state: &State) -> usize {
    state.values().map(std::collections::BTreeSet::len).sum()
}

impl Scene {
    fn programs(&self) -> Vec<Vec<u32>> {
        let ids = |device: &String| program_ids(&self.fabric.node, device).unwrap();
        self.hooks.iter().map(ids).collect()
    }

    /// Starts the agent with a fault, gives it work, and waits until the fault kills it. Its writes
    /// show if the kill came between the first and the last one.
    fn kill(&mut self, work: Work, point: &str) -> bool {
        let (before, programs) = (self.fabric.state().unwrap(), self.programs());
        let fault = [(FAULT_VARIABLE, point)];
        self.fabric.agent.start(&self.fabric.node, &fault).unwrap();
        let guest = &self.guest;
        match work {
            Work::Start => {}
            Work::Add | Work::Delete | Work::Damage => self.fabric.wait_until_ready().unwrap(),
        }
        match work {
            Work::Start => {}
            // The agent dies instead of answering.
            Work::Add => drop(self.fabric.add_endpoint(guest).unwrap_err()),
            Work::Delete => drop(self.fabric.delete_endpoint(guest).unwrap_err()),
            Work::Damage => self.fabric.node.ip(DAMAGE).unwrap(),
        }
        if let Err(error) = self.fabric.agent.wait_for_fault(REACH) {
            panic!("{work:?}: {point} was not reached: {error:#}");
        }
        let killed = self.fabric.state().unwrap();
        let killed_programs = self.programs();

        self.fabric.start_agent().unwrap();
        match work {
            Work::Start | Work::Damage => {}
            // The client got no answer, and repeats its request.
            Work::Add => drop(self.fabric.add_endpoint(guest).unwrap()),
            Work::Delete => self.fabric.delete_endpoint(guest).unwrap(),
        }
        within(CHANGE, "everything is healed", || {
            nothing_differs(&self.fabric)
        });
        let after = self.fabric.state().unwrap();
        match work {
            Work::Start | Work::Damage => {
                assert_eq!(difference(&before, &after), "", "{work:?} {point}");
            }
            Work::Add | Work::Delete => {}
        }
        let (before, killed, after) = (lines(&before), lines(&killed), lines(&after));
        match work {
            Work::Add => before < killed && killed < after,
            Work::Delete => after < killed && killed < before,
            Work::Damage => before - DAMAGED < killed && killed < before,
            Work::Start => {
                let pairs = programs.iter().zip(&killed_programs);
                let replaced = pairs.filter(|(old, new)| old != new).count();
                0 < replaced && replaced < programs.len()
            }
        }
    }
}

/// Traffic between the pods, and of each with the peer, in both directions.
fn streams(fabric: &Fabric, pod: &Pod, other: &Pod) -> [Stream; 6] {
    let start = |from: Place, to: Place| Stream::start(from, to, RATE + RATE / 5, "udp").unwrap();
    let (peer_v4, peer_v6) = (fabric.peer(Family::V4), fabric.peer(Family::V6));
    [
        start(pod.at(Family::V4), peer_v4),
        start(peer_v4, pod.at(Family::V4)),
        start(other.at(Family::V6), peer_v6),
        start(peer_v6, other.at(Family::V6)),
        start(pod.at(Family::V6), other.at(Family::V6)),
        start(other.at(Family::V4), pod.at(Family::V4)),
    ]
}

/// Kills agents at the points in turn. Most kills have to come between the writes of a plan.
fn kill_at_each_point(scene: &mut Scene, kills: usize) {
    let mut points = BTreeMap::<String, (usize, usize)>::new();
    let mut added = false;
    let mut done = 0;
    for (work, point) in CASES.iter().cycle() {
        if done == kills {
            break;
        }
        // A case whose request is already fulfilled is skipped.
        match (work, added) {
            (Work::Add, true) | (Work::Delete, false) => continue,
            (Work::Add, false) | (Work::Delete, true) => added = !added,
            (Work::Damage | Work::Start, _) => {}
        }
        let within_plan = scene.kill(*work, point);
        let name = format!("{work:?} {point}").to_lowercase();
        let (all, inside) = points.entry(name).or_default();
        *all += 1;
        *inside += usize::from(within_plan);
        done += 1;
    }
    println!("kills at each point, and of these between the first and the last write of a plan:");
    for (point, (all, inside)) in &points {
        println!("  {point:<45} {all:>4} {inside:>4}");
    }
    let inside: usize = points.values().map(|(_, inside)| inside).sum();
    println!("{kills} kills, {inside} of them between the first and the last write of a plan");
    assert!(
        inside * 100 >= kills * 80,
        "at least 80% have to come between the writes of a plan"
    );
}

#[test]
fn a_killed_agent_loses_no_packet_and_leaks_nothing() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let (pod, other) = (fabric.add_pod(1, 0).unwrap(), fabric.add_pod(0, 0).unwrap());
    let guest = fabric.make_pod(1, 1).unwrap();
    carry_all(&fabric, End::Pod(&pod), PEER, &[1]);
    let streams = streams(&fabric, &pod, &other);
    let hooks = vec![
        pod.host_device(),
        other.host_device(),
        "eth0".into(),
        "eth1".into(),
    ];
    let whole = fabric.state().unwrap();
    let mut scene = Scene {
        fabric,
        hooks,
        guest,
    };
    let kills = if is_full() { KILLS_FULL } else { KILLS };
    kill_at_each_point(&mut scene, kills);

    let Scene { fabric, guest, .. } = scene;
    fabric.delete_endpoint(&guest).unwrap();
    within(CHANGE, "nothing is left of the guest", || {
        nothing_differs(&fabric)
    });
    assert_eq!(
        difference(&whole, &fabric.state().unwrap()),
        "",
        "leaked or missing"
    );
    for stream in streams {
        let report = stream.finish().unwrap();
        println!("{kills} kills: {report}");
        assert!(report.lost.is_empty(), "{report}");
        assert_eq!(report.refused, None, "{report}");
        assert!(report.rate >= RATE, "{report}");
    }
    fabric.finish().unwrap();
}
