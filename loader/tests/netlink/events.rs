//! Notifications.

use std::fs;
use std::time::Duration;

use api::ids::MacAddr;
use futures_util::{Stream, StreamExt};
use loader::kernel::{Neighbour, StepKind};
use loader::netlink::{Change, Netlink};
use tokio::time::timeout;

use crate::host::{apply_twice, in_netns, ip, observe, run, veth};

/// Maximum time until a change is reported.
const SOON: Duration = Duration::from_secs(1);
/// Time without events that counts as silence.
const QUIET: Duration = Duration::from_millis(100);

/// Keeps the kernel from changing addresses by itself a second after a device came up.
fn without_duplicate_address_detection() {
    for scope in ["all", "default"] {
        fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/accept_dad"), "0").expect("write");
    }
}

/// A device with an address; its index.
async fn eni1(netlink: &mut Netlink) -> u32 {
    without_duplicate_address_detection();
    let ifindex = veth(netlink, "eni1").await;
    ip("addr add 10.0.0.10/24 dev eni1");
    ifindex
}

/// The notifications after an observation.
async fn subscribe(netlink: &mut Netlink) -> impl Stream<Item = Change> + Unpin + use<> {
    observe(netlink).await;
    let mut events = netlink.events().expect("subscribe");
    settle(&mut events).await;
    events
}

async fn settle(events: &mut (impl Stream<Item = Change> + Unpin)) {
    while let Ok(item) = timeout(QUIET, events.next()).await {
        assert!(item.is_some(), "the stream does not end");
    }
}

/// Waits for the notification of a change, and for the end of those that come with it.
async fn expect(events: &mut (impl Stream<Item = Change> + Unpin), change: Change, cause: &str) {
    let heard = timeout(SOON, events.next()).await;
    assert_eq!(heard, Ok(Some(change)), "{cause}");
    settle(events).await;
}

#[test]
fn every_change_that_concerns_us_is_heard_within_a_second() {
    in_netns(async |netlink| {
        let ifindex = eni1(netlink).await;
        for number in 8..10 {
            let neighbour = Neighbour {
                ifindex,
                address: [10, 0, 0, number].into(),
                mac: MacAddr([2, 0, 0, 0, 0, number]),
            };
            apply_twice(netlink, StepKind::AddNeighbour(neighbour)).await;
        }
        let mut events = subscribe(netlink).await;
        for line in [
            "ip neigh add 10.0.0.7 lladdr 02:00:00:00:00:07 nud permanent dev eni1",
            "ip neigh change 10.0.0.8 lladdr 02:00:00:00:00:0a nud stale dev eni1",
            "ip neigh del 10.0.0.9 dev eni1",
            "ip link set eni1 mtu 1400",
            "ip link set eni1 name ens6",
            "ip link set ens6 down",
            "ip link set ens6 up",
            "ip addr add 10.0.1.10/32 dev ens6",
            "ip addr del 10.0.1.10/32 dev ens6",
            "ip addr add 2001:db8::1/128 dev ens6",
            "ip addr del 2001:db8::1/128 dev ens6",
            "ip route add 10.0.1.99 dev ens6 table 220",
            "ip route del 10.0.1.99 dev ens6 table 220",
            "ip route add default via 10.0.0.1 table 11",
            "ip route del default via 10.0.0.1 table 11",
            "ip -6 route add 2001:db8::99 dev ens6 table 220",
            "ip -6 route del 2001:db8::99 dev ens6 table 220",
            "ip rule add priority 20 table 220",
            "ip rule del priority 20 table 220",
            "ip -6 rule add priority 20 table 220",
            "ip -6 rule del priority 20 table 220",
            "tc qdisc add dev ens6 clsact",
            "tc qdisc del dev ens6 clsact",
            "ip link add new0 type veth peer name new1",
            "ip link del new0",
        ] {
            run(line);
            expect(&mut events, Change::Own, line).await;
        }
        for (path, value) in [
            ("/proc/sys/net/ipv4/conf/ens6/rp_filter", "1"),
            ("/proc/sys/net/ipv4/conf/all/rp_filter", "1"),
            ("/proc/sys/net/ipv4/ip_forward", "1"),
            ("/proc/sys/net/ipv6/conf/all/forwarding", "1"),
        ] {
            fs::write(path, value).unwrap();
            expect(&mut events, Change::Own, path).await;
        }
    });
}

#[test]
fn what_does_not_concern_us_is_not_heard() {
    in_netns(async |netlink| {
        eni1(netlink).await;
        let mut events = subscribe(netlink).await;
        for line in [
            "ip route add local 10.9.0.1 dev eni1 proto kernel table 476",
            "ip route add blackhole 10.9.0.0/16",
            "ip neigh add 10.0.0.5 lladdr 02:00:00:00:00:05 nud reachable dev eni1",
            "ip neigh del 10.0.0.5 dev eni1",
        ] {
            run(line);
        }
        assert!(timeout(QUIET, events.next()).await.is_err());
    });
}

#[test]
fn routes_of_others_are_heard_as_such() {
    in_netns(async |netlink| {
        eni1(netlink).await;
        let mut events = subscribe(netlink).await;
        for line in [
            "ip route add 10.9.0.0/16 via 10.0.0.1",
            "ip route add 10.9.0.0/16 via 10.0.0.1 table 476",
            "ip -6 route add 2001:db8:9::/48 dev eni1",
            "ip route del 10.9.0.0/16",
            "ip route add local 192.0.2.0/24 dev lo",
        ] {
            run(line);
            expect(&mut events, Change::Foreign, line).await;
        }
    });
}

#[test]
fn a_burst_is_few_items_and_an_overrun_is_one() {
    in_netns(async |netlink| {
        without_duplicate_address_detection();
        veth(netlink, "eni1").await;
        let mut events = netlink.events().unwrap();
        settle(&mut events).await;
        let batch: Vec<String> = (0..20_000)
            .map(|number| {
                let (high, low) = (number / 256, number % 256);
                format!("route add 10.1.{high}.{low} dev eni1 table 220\n")
            })
            .collect();
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), batch.concat()).unwrap();
        ip(&format!("-batch {}", file.path().display()));
        let mut items = 0;
        while let Ok(item) = timeout(QUIET, events.next()).await {
            assert_eq!(
                item,
                Some(Change::Own),
                "the stream goes on after an overrun"
            );
            items += 1;
        }
        assert!((1..100).contains(&items), "{items} items");
        assert_eq!(observe(netlink).await.routes.len(), 20_000);
        // The socket still works.
        ip("link set eni1 mtu 1400");
        assert_eq!(timeout(SOON, events.next()).await, Ok(Some(Change::Own)));
    });
}
