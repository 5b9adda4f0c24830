//! Flows that go early, and whose they are.

use super::*;
use crate::Capacities;

const ANOTHER: u32 = ENDPOINT + 1;

fn tcp(port: u16) -> FlowKey {
    FlowKey::new(1, protocol::TCP, at(REMOTE, 443_u16.to_be()), port.to_be())
}

/// Puts in a flow that has shown this, idle for so many seconds.
fn put(sweeper: &Sweeper<Model>, key: FlowKey, endpoint: u32, (shown, idle): ((u8, u8), u64)) {
    let pod = if endpoint == ENDPOINT { POD } else { OTHER };
    let mut maps = sweeper.tables.maps();
    maps.open(key, pod, endpoint, idle);
    if let Some(flow) = maps.flows.get_mut(&key) {
        (flow.progress_out, flow.progress_in) = shown;
    }
}

fn two_endpoints() -> Sweeper<Model> {
    let sweeper = sweeper();
    sweeper.tables.maps().add_endpoint(OTHER, ANOTHER);
    sweeper
}

#[test]
fn a_full_quota_shortens_its_endpoints_flows_and_no_others() {
    let mut sweeper = two_endpoints();
    let closed = ((SYN | DATA | FIN, SYN | DATA | FIN), 3);
    for port in 0..9 {
        put(&sweeper, tcp(50_000 + port), ENDPOINT, ((SYN, 0), 0));
    }
    put(&sweeper, tcp(50_100), ENDPOINT, closed);
    put(&sweeper, tcp(50_200), ANOTHER, closed);
    let sweep = sweeper.sweep(&around(&[POD, OTHER]), false).unwrap();
    assert!(sweep.is_pressed);
    assert_eq!(sweep.reaped.idle, 1);
    assert!(!ports(&sweeper).contains(&50_100));
    assert!(ports(&sweeper).contains(&50_200));
    let sweep = sweeper.sweep(&around(&[POD, OTHER]), true).unwrap();
    assert_eq!(sweep.reaped.idle, 1, "the table is short of room for all");
}

#[test]
fn half_open_flows_of_who_has_most_at_a_destination_go_at_the_next_sweep() {
    let mut sweeper = two_endpoints();
    sweeper.limits = Limits {
        ports: 12,
        quotas: FlowQuotas {
            endpoint: 1000,
            ..LIMITS.quotas
        },
    };
    let half_open = ((SYN, 0), 11);
    for port in 0..7 {
        put(&sweeper, tcp(50_000 + port), ENDPOINT, half_open);
    }
    put(&sweeper, tcp(50_100), ENDPOINT, ((SYN, 0), 9));
    put(
        &sweeper,
        tcp(50_101),
        ENDPOINT,
        ((SYN | DATA, SYN | DATA), 60),
    );
    put(&sweeper, tcp(50_200), ANOTHER, half_open);
    let elsewhere = FlowKey::new(
        1,
        protocol::TCP,
        at(REMOTE, 80_u16.to_be()),
        50_300_u16.to_be(),
    );
    put(&sweeper, elsewhere, ENDPOINT, half_open);
    // The destination has become busy.
    let busy = block(&tcp(0), &[50_000]);
    sweeper.tables.maps().blocks.push(busy);
    let pods = around(&[POD, OTHER]);
    assert_eq!(
        sweeper.sweep(&pods, false).unwrap().reaped.idle,
        0,
        "not known yet"
    );
    assert_eq!(sweeper.sweep(&pods, false).unwrap().reaped.idle, 7);
    assert_eq!(ports(&sweeper), [50_300, 50_200, 50_100, 50_101]);
}

#[test]
fn unanswered_flows_of_who_has_most_of_a_table_that_is_short_go_early() {
    let mut sweeper = two_endpoints();
    let to = |number: u8, port: u16| {
        let remote = Addr::from_v4_word(u32::from_ne_bytes([192, 0, 2, number]));
        FlowKey::new(1, protocol::TCP, at(remote, 443_u16.to_be()), port.to_be())
    };
    let (half_open, established) = (((SYN, 0), 11), ((SYN | DATA, SYN | DATA), 60));
    for number in 0..7 {
        put(&sweeper, to(number, 50_000), ENDPOINT, half_open);
    }
    put(&sweeper, to(7, 50_001), ENDPOINT, ((SYN, 0), 9));
    put(&sweeper, to(8, 50_002), ENDPOINT, established);
    let ping = FlowKey::new(1, protocol::ICMP, at(REMOTE, 0), 50_003_u16.to_be());
    put(&sweeper, ping, ENDPOINT, ((DATA, 0), 11));
    let v6 = FlowKey::new(1, protocol::TCP, at(REMOTE_V6, 443), 50_100_u16.to_be());
    put(&sweeper, v6, ENDPOINT, half_open);
    for number in 0..2 {
        put(&sweeper, to(number, 50_200), ANOTHER, half_open);
    }
    let pods = around(&[POD, OTHER]);
    let short = Pressed::of(
        &Used {
            flows_v4: 100,
            ..Used::default()
        },
        &Capacities {
            flows_v4: 100,
            flows_v6: 100,
            inbound: 100,
            stack: 100,
        },
    );
    assert_eq!(
        sweeper.sweep(&pods, false).unwrap().reaped.idle,
        0,
        "room for all"
    );
    assert_eq!(sweeper.sweep(&pods, short).unwrap().reaped.idle, 7 + 1);
    let mut left = ports(&sweeper);
    left.sort_unstable();
    assert_eq!(left, [50_001, 50_002, 50_100, 50_200, 50_200]);
}
