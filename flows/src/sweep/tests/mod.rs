//! Sweeps of model maps.

use datapath_common::abi::{FlowKey, FlowQuotas, Moved, PodTuple, TrackedFlow, TransportAddr};
use datapath_common::headers::protocol;
use datapath_common::progress::{DATA, FIN, STREAM, SYN};

use super::*;
use crate::model::{HERTZ, Maps, Model, START, block};
use crate::{Mark, Report, Resting};

mod quotas;
mod shortages;

const POD: Addr = Addr::from_v4_word(u32::from_ne_bytes([10, 0, 0, 20]));
const OTHER: Addr = Addr::from_v4_word(u32::from_ne_bytes([10, 0, 0, 21]));
const REMOTE: Addr = Addr::from_v4_word(u32::from_ne_bytes([192, 0, 2, 1]));
const SERVER: TransportAddr = TransportAddr::new(REMOTE, 8080_u16.to_be());
const REMOTE_V6: Addr = Addr::from_words([0x2001, 0, 0, 1]);
const ENDPOINT: u32 = 7;
const LIMITS: Limits = Limits {
    ports: 24_576,
    quotas: FlowQuotas {
        endpoint: 10,
        inbound: 20,
        host: 40,
    },
};

fn at(address: Addr, port: u16) -> TransportAddr {
    TransportAddr::new(address, port)
}

fn key(port: u16) -> FlowKey {
    FlowKey::new(1, protocol::UDP, SERVER, port.to_be())
}

fn sweeper() -> Sweeper<Model> {
    let model = Model::new();
    let tracker = model.tracker();
    let sweeper = Sweeper::new(model, Lifetimes::default(), LIMITS, tracker);
    sweeper.tables.maps().add_endpoint(POD, ENDPOINT);
    sweeper
}

fn around(endpoints: &[Addr]) -> SweepInput {
    let endpoints = endpoints.iter().map(|pod| IpAddr::from(*pod)).collect();
    SweepInput {
        endpoints: Some(Arc::new(endpoints)),
        ..SweepInput::default()
    }
}

fn ports(sweeper: &Sweeper<Model>) -> Vec<u16> {
    let maps = sweeper.tables.maps();
    maps.flows
        .keys()
        .map(|key| u16::from_be(key.port))
        .collect()
}

#[test]
fn idle_flows_go_and_others_stay() {
    let mut sweeper = sweeper();
    {
        let mut maps = sweeper.tables.maps();
        for (port, idle) in [(50_000, 30), (50_001, 31), (50_002, 0)] {
            maps.open(key(port), POD, ENDPOINT, idle);
        }
        let v6 = FlowKey::new(1, protocol::UDP, at(REMOTE_V6, 1), 2);
        maps.open(v6, POD, ENDPOINT, 40);
        // A packet comes between the scan and the reaper's check.
        maps.open(key(50_003), POD, ENDPOINT, 31);
        maps.races.busy.push(key(50_003));
    }
    let sweep = sweeper.sweep(&around(&[POD]), false).unwrap();
    assert_eq!(ports(&sweeper), [50_000, 50_002, 50_003]);
    assert_eq!((sweep.reaped.idle, sweep.reaped.gone), (2, 0));
    assert_eq!(sweep.census.translated(Family::V4), 2);
    assert_eq!(sweep.census.translated(Family::V6), 0);
}

#[test]
fn closed_connections_go_at_once_where_room_is_short() {
    let mut sweeper = sweeper();
    let tcp = FlowKey::new(1, protocol::TCP, at(REMOTE, 80), 90);
    {
        let mut maps = sweeper.tables.maps();
        maps.open(tcp, POD, ENDPOINT, 3);
        let flow = maps.flows.get_mut(&tcp).unwrap();
        flow.progress_out = SYN | DATA | FIN;
        flow.progress_in = SYN | DATA | FIN;
        maps.open(key(50_000), POD, ENDPOINT, 3);
    }
    assert_eq!(
        sweeper.sweep(&around(&[POD]), false).unwrap().reaped.idle,
        0
    );
    assert_eq!(sweeper.sweep(&around(&[POD]), true).unwrap().reaped.idle, 1);
    assert_eq!(ports(&sweeper), [50_000]);
}

#[test]
fn flows_go_with_their_endpoint_and_not_before_it_is_known_to_be_gone() {
    let mut sweeper = sweeper();
    let inbound = PodTuple::new(protocol::UDP, at(OTHER, 1), at(REMOTE, 2));
    {
        let mut maps = sweeper.tables.maps();
        maps.open(key(50_000), POD, ENDPOINT, 0);
        // An earlier pod of the same address.
        maps.open(key(50_001), POD, ENDPOINT - 1, 0);
        maps.open(key(50_002), OTHER, ENDPOINT + 1, 0);
        // The host's.
        maps.open(key(50_003), REMOTE, 0, 0);
        maps.notes
            .inbound
            .insert(inbound, TrackedFlow::new(&inbound, START, ENDPOINT + 1, 0));
        let earlier = PodTuple::new(protocol::UDP, at(POD, 1), at(REMOTE, 2));
        maps.notes
            .inbound
            .insert(earlier, TrackedFlow::new(&earlier, START, ENDPOINT - 1, 0));
    }
    // The datapath does not know OTHER, and the set of endpoints is unknown.
    let sweep = sweeper.sweep(&SweepInput::default(), false).unwrap();
    assert_eq!(sweep.reaped.gone, 2, "a translated flow and a note");
    assert_eq!(ports(&sweeper), [50_000, 50_002, 50_003]);
    // It is to be there, but is not yet.
    let sweep = sweeper.sweep(&around(&[POD, OTHER]), false).unwrap();
    assert_eq!(sweep.reaped.gone, 0);
    let sweep = sweeper.sweep(&around(&[POD]), false).unwrap();
    assert_eq!(sweep.reaped.gone, 2, "the translated flow and the note");
    assert_eq!(ports(&sweeper), [50_000, 50_003]);
    assert!(sweeper.tables.maps().notes.inbound.is_empty());
}

#[test]
fn an_address_is_quiet_once_a_sweep_found_nothing_of_its_last_owner() {
    let mut sweeper = sweeper();
    sweeper.tables.maps().open(key(50_000), POD, ENDPOINT, 0);
    let mut report = Report::default();
    let mut is_quiet = |sweeper: &mut Sweeper<Model>, endpoints: &[Addr]| {
        let sweep = sweeper.sweep(&around(endpoints), false).unwrap();
        report.take(sweep, sweeper.tables.capacities());
        report.is_quiet(POD.into())
    };
    assert!(!is_quiet(&mut sweeper, &[POD]), "an endpoint has it");
    sweeper.tables.maps().addresses.clear();
    assert!(!is_quiet(&mut sweeper, &[]), "there was a flow");
    assert!(is_quiet(&mut sweeper, &[]));
    // Notes count as flows do, also one that would go by its age.
    let tuple = stack(protocol::UDP, 8080);
    let note = TrackedFlow::new(&tuple, 1, ENDPOINT, DATA);
    sweeper.tables.maps().notes.stack.insert(tuple, note);
    assert!(!is_quiet(&mut sweeper, &[]), "there was a note");
    assert!(is_quiet(&mut sweeper, &[]));
    assert!(!Report::default().is_quiet(POD.into()), "before any sweep");
}

#[test]
fn a_record_that_cannot_be_read_costs_its_pod_no_flow() {
    let mut sweeper = sweeper();
    sweeper.tables.maps().open(key(50_000), POD, ENDPOINT, 0);
    // The agent does not know the endpoint, but its entry was left alone.
    assert_eq!(sweeper.sweep(&around(&[]), false).unwrap().reaped.gone, 0);
}

#[test]
fn notes_from_outside_go_when_they_are_idle() {
    let mut sweeper = sweeper();
    let note = |port| PodTuple::new(protocol::UDP, at(POD, port), at(REMOTE, 2));
    {
        let mut maps = sweeper.tables.maps();
        maps.notes.inbound.insert(
            note(1),
            TrackedFlow::new(&note(1), START - 3_100, ENDPOINT, 0),
        );
        maps.notes.inbound.insert(
            note(2),
            TrackedFlow::new(&note(2), START - 3_100, ENDPOINT, DATA),
        );
    }
    assert_eq!(
        sweeper.sweep(&around(&[POD]), false).unwrap().reaped.idle,
        1
    );
    let left: Vec<_> = sweeper
        .tables
        .maps()
        .notes
        .inbound
        .keys()
        .copied()
        .collect();
    assert_eq!(left, [note(2)]);
}

#[test]
fn blocks_follow_the_flows() {
    let mut sweeper = sweeper();
    let idle = FlowKey::new(
        1,
        protocol::UDP,
        at(REMOTE, 9090_u16.to_be()),
        50_000_u16.to_be(),
    );
    {
        let mut maps = sweeper.tables.maps();
        maps.open(key(50_000), POD, ENDPOINT, 0);
        maps.open(idle, POD, ENDPOINT, 100);
        maps.blocks.push(block(&key(0), &[50_000, 50_001]));
        // Nothing of this block is used, but something of the destination is.
        maps.blocks.push(block(&key(0), &[41_000]));
        maps.blocks.push(block(&idle, &[50_000]));
    }
    sweeper.sweep(&around(&[POD]), false).unwrap();
    let maps = sweeper.tables.maps();
    let right = [block(&key(0), &[50_000]), {
        let (key, mut block) = block(&key(0), &[41_000]);
        block.used = [0; 8];
        (key, block)
    }];
    assert_eq!(maps.blocks, right);
}

#[test]
fn notes_of_moved_flows_that_lead_nowhere_go_at_the_second_look() {
    let mut sweeper = sweeper();
    let tuple = |pod, port: u16| PodTuple::new(protocol::UDP, at(pod, port.to_be()), SERVER);
    {
        let mut maps = sweeper.tables.maps();
        maps.open(key(50_000), POD, ENDPOINT, 0);
        let to = |port: u16| Moved::new(1, port.to_be());
        maps.moved.insert(tuple(POD, 50_000), to(50_000));
        maps.moved.insert(tuple(OTHER, 50_000), to(50_000));
        maps.moved.insert(tuple(POD, 50_001), to(50_001));
    }
    sweeper.sweep(&around(&[POD]), false).unwrap();
    assert_eq!(sweeper.tables.maps().moved.len(), 3);
    let sweep = sweeper.sweep(&around(&[POD]), false).unwrap();
    assert!(!sweep.is_urgent);
    let left: Vec<_> = sweeper.tables.maps().moved.keys().copied().collect();
    assert_eq!(left, [tuple(POD, 50_000)]);
}

struct ExemptRemote;

impl FlowPolicy for ExemptRemote {
    fn is_exempt(&self, pod: IpAddr, remote: IpAddr) -> bool {
        assert!([POD, OTHER, REMOTE].map(IpAddr::from).contains(&pod));
        remote == IpAddr::from(REMOTE)
    }

    fn exit(&self, _pod: IpAddr, _remote: IpAddr, owner: u8) -> u8 {
        owner
    }
}

#[test]
fn flows_that_policy_exempts_by_now_are_counted() {
    let mut sweeper = sweeper();
    {
        let mut maps = sweeper.tables.maps();
        maps.open(key(50_000), POD, ENDPOINT, 0);
        maps.open(key(50_001), POD, ENDPOINT, 100);
        maps.open(FlowKey::new(1, 17, at(OTHER, 1), 2), POD, ENDPOINT, 0);
        // The host's: by its own port, and by another one.
        maps.open(key(50_003), REMOTE, 0, 0);
        maps.open(key(50_004), REMOTE, 0, 0);
        let moved = maps.flows.get_mut(&key(50_004)).unwrap();
        moved.pod_port = 51_000_u16.to_be();
    }
    let mut around = around(&[POD]);
    assert_eq!(sweeper.sweep(&around, false).unwrap().outdated.exempt, 0);
    around.policy = Some(Arc::new(ExemptRemote));
    assert_eq!(sweeper.sweep(&around, false).unwrap().outdated.exempt, 2);
}

#[test]
fn flows_that_are_not_where_policy_has_them_are_counted() {
    let mut sweeper = sweeper();
    {
        let mut maps = sweeper.tables.maps();
        // The pod's address is the primary's.
        maps.open(key(50_000), POD, ENDPOINT, 0);
        maps.open(FlowKey::new(0, 17, at(REMOTE, 1), 2), POD, ENDPOINT, 0);
        // The datapath does not know the owner of this one yet.
        maps.open(key(50_001), OTHER, ENDPOINT + 1, 0);
        maps.open(key(50_002), REMOTE, 0, 0);
        maps.open(key(50_003), POD, ENDPOINT + 2, 0);
    }
    let mut around = around(&[POD, OTHER]);
    assert_eq!(sweeper.sweep(&around, false).unwrap().outdated.elsewhere, 0);
    around.policy = Some(Arc::new(ExemptRemote));
    {
        let mut maps = sweeper.tables.maps();
        maps.open(key(50_003), POD, ENDPOINT + 2, 0);
        // A packet may come between the scan and the reaper's check.
        maps.open(key(50_004), POD, ENDPOINT, 100);
    }
    let sweep = sweeper.sweep(&around, false).unwrap();
    assert_eq!((sweep.outdated.elsewhere, sweep.reaped.gone), (3, 1));
}

/// A flow of the host's stack.
fn stack(protocol: u8, port: u16) -> PodTuple {
    PodTuple::new(protocol, at(POD, port), at(REMOTE, 2))
}

#[test]
fn notes_of_the_stack_go_by_their_age_and_tcps_only_with_conntracks_entry() {
    let mut sweeper = sweeper();
    let ages = [
        // Seconds; a question and its answer live for 40, a stream for 150.
        (stack(protocol::UDP, 1), 42, DATA, DATA),
        (stack(protocol::UDP, 2), 38, DATA, DATA),
        (stack(protocol::UDP, 3), 148, DATA | STREAM, DATA),
        (stack(protocol::UDP, 4), 152, DATA | STREAM, DATA),
        (stack(protocol::TCP, 5), 500_000, SYN | DATA, SYN | DATA),
        (stack(protocol::TCP, 6), 500_000, SYN | DATA, SYN | DATA),
        (stack(protocol::TCP, 7), 400_000, SYN | DATA, SYN | DATA),
    ];
    {
        let mut maps = sweeper.tables.maps();
        maps.now = 100_000_000;
        for (tuple, age, out, inward) in ages {
            let seen = maps.now - age * u64::from(HERTZ);
            let mut note = TrackedFlow::new(&tuple, seen, ENDPOINT, out);
            note.progress_in = inward;
            maps.notes.stack.insert(tuple, note);
        }
        maps.conntrack.entries = vec![stack(protocol::TCP, 6), stack(protocol::UDP, 1)];
    }
    let left = |sweeper: &Sweeper<Model>| {
        let maps = sweeper.tables.maps();
        maps.notes
            .stack
            .keys()
            .map(|tuple| tuple.pod_port)
            .collect::<BTreeSet<_>>()
    };
    let sweep = sweeper.sweep(&around(&[POD]), false).unwrap();
    assert_eq!(left(&sweeper), BTreeSet::from([2, 3, 6, 7]));
    // Entries that were looked up in conntrack count until the next sweep.
    assert_eq!((sweep.reaped.idle, sweep.census.stack()), (3, 5));
    // With their endpoint they go at once, whatever conntrack has.
    let other = PodTuple::new(protocol::TCP, at(OTHER, 8), at(REMOTE, 2));
    {
        let mut maps = sweeper.tables.maps();
        let now = maps.now;
        maps.notes
            .stack
            .insert(other, TrackedFlow::new(&other, now, ENDPOINT + 1, SYN));
        maps.conntrack.entries.push(other);
    }
    assert_eq!(
        sweeper.sweep(&around(&[POD]), false).unwrap().reaped.gone,
        1
    );
}

#[test]
fn closed_connections_of_the_stack_are_not_asked_for_where_room_is_short() {
    for (is_pressed, left) in [(false, 1), (true, 0)] {
        let mut sweeper = sweeper();
        let closed = stack(protocol::TCP, 1);
        {
            let mut maps = sweeper.tables.maps();
            let seen = maps.now - 200 * u64::from(HERTZ);
            let mut note = TrackedFlow::new(&closed, seen, ENDPOINT, SYN | DATA | FIN);
            note.progress_in = SYN | DATA | FIN;
            maps.notes.stack.insert(closed, note);
            maps.conntrack.entries = vec![closed];
        }
        sweeper.sweep(&around(&[POD]), is_pressed).unwrap();
        assert_eq!(
            sweeper.tables.maps().notes.stack.len(),
            left,
            "{is_pressed}"
        );
    }
}

#[test]
fn a_translated_flow_of_the_stack_lives_while_conntrack_has_it() {
    let mut sweeper = sweeper();
    let tcp = |port: u16| FlowKey::new(1, protocol::TCP, SERVER, port.to_be());
    {
        let mut maps = sweeper.tables.maps();
        maps.now = 100_000_000;
        for (port, age, stack) in [
            (50_000, 8_000, 0),
            (50_001, 8_000, 1),
            (50_002, 500_000, 1),
            (50_003, 500_000, 1),
        ] {
            maps.open(tcp(port), POD, ENDPOINT, age);
            let flow = maps.flows.get_mut(&tcp(port)).unwrap();
            (flow.progress_out, flow.progress_in) = (SYN | DATA, SYN | DATA);
            flow.stack = stack;
        }
        let port = 50_003_u16.to_be();
        maps.conntrack.entries = vec![PodTuple::new(protocol::TCP, at(POD, port), SERVER)];
    }
    sweeper.sweep(&around(&[POD]), false).unwrap();
    assert_eq!(ports(&sweeper), [50_001, 50_003]);
}

#[test]
fn a_resting_number_is_free_once_no_flow_note_or_mark_carries_it() {
    let mut sweeper = sweeper();
    let number = EniNumber(1);
    let mark = |value: u32| Mark {
        value: value << 24,
        mask: 0x3f00_0000,
    };
    let resting = Resting::from([(number, mark(2))]);
    let since = Instant::now();
    let mut is_free = |resting: Resting, change: fn(&mut Maps)| {
        change(&mut sweeper.tables.maps());
        let around = SweepInput {
            resting,
            ..around(&[POD])
        };
        let sweep = sweeper.sweep(&around, false).unwrap();
        let ended = Instant::now() + sweep.took;
        let last = Some((ended, sweep));
        let report = Report {
            last,
            ..Report::default()
        };
        report.has_none_of(number, since)
    };
    // Conntrack was not read.
    assert!(!is_free(Resting::new(), |_| {}));
    assert!(is_free(resting.clone(), |_| {}));
    // Exception and done are not part of the number.
    assert!(!is_free(resting.clone(), |maps| maps.conntrack.marks =
        vec![0xc200_4000]));
    assert!(is_free(resting.clone(), |maps| maps.conntrack.marks =
        vec![0x0300_0000]));
    assert!(!is_free(resting.clone(), |maps| {
        maps.open(key(50_000), POD, ENDPOINT, 0);
    }));
    assert!(is_free(resting.clone(), |maps| maps.flows.clear()));
    // A number goes on resting while conntrack cannot be read.
    assert!(!is_free(resting.clone(), |maps| maps
        .conntrack
        .is_unreadable = true));
}
