//! Flows that go early, and whose they are.

use super::*;

const ANOTHER: u32 = ENDPOINT + 1;

fn tcp(port: u16) -> FlowKey {
    FlowKey::new(1, protocol::TCP, REMOTE, 443_u16.to_be(), port.to_be())
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
    assert_eq!(sweep.reaped, 1);
    assert!(!ports(&sweeper).contains(&50_100));
    assert!(ports(&sweeper).contains(&50_200));
    let sweep = sweeper.sweep(&around(&[POD, OTHER]), true).unwrap();
    assert_eq!(sweep.reaped, 1, "the table is short of room for all");
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
    let elsewhere = FlowKey::new(1, protocol::TCP, REMOTE, 80_u16.to_be(), 50_300_u16.to_be());
    put(&sweeper, elsewhere, ENDPOINT, half_open);
    // The destination has become busy.
    let busy = block(&tcp(0), &[50_000]);
    sweeper.tables.maps().blocks.push(busy);
    let pods = around(&[POD, OTHER]);
    assert_eq!(
        sweeper.sweep(&pods, false).unwrap().reaped,
        0,
        "not known yet"
    );
    assert_eq!(sweeper.sweep(&pods, false).unwrap().reaped, 7);
    assert_eq!(ports(&sweeper), [50_300, 50_200, 50_100, 50_101]);
}
