//! Objects that others remove or change are back within a second, map contents within ten, sysctls
//! of pods' devices without an event within half a minute, and all are counted.

use std::time::{Duration, Instant};

use ipam::Family;
use serde_json::json;
use testkit::fabric::eventually::check;
use testkit::fabric::state::{State, difference};
use testkit::fabric::{Fabric, Pod, Spec};

use crate::damage::{Damage, Entry};
use crate::support::{
    CHANGE, End, HEAL, HEAL_AUDIT, HEAL_MAPS, PEER, carry_all, get, is_full, nothing_differs,
    within, within_counted,
};

/// Damage to a node with a pod on ENI 1, however programs are attached.
fn damages(pod: &Pod) -> Vec<Damage> {
    let ip = |words: &str| Damage::Ip(words.to_owned());
    let veth = pod.host_device();
    let mut damages = vec![
        ip("rule del priority 20 from all lookup 220"),
        ip("-6 rule del priority 20"),
        ip("rule del priority 110"),
        ip("-6 rule del priority 111 lookup 11"),
        ip("rule del priority 111 lookup 10"),
        ip("rule del priority 112 from 10.0.1.10 lookup 11"),
        ip("route flush table 220"),
        ip("-6 route flush table 220"),
        ip("route del default table 11"),
        ip("-6 route del default table 10"),
        ip("route flush table 11"),
        ip("route replace default via 10.0.1.77 dev eth1 onlink table 11"),
        ip("addr del 10.0.1.10/32 dev eth1"),
        ip("-4 addr flush dev eth1"),
        ip("link set eth1 mtu 1300"),
        ip("link set eth1 down"),
        ip(&format!("neigh flush dev {veth} nud permanent")),
        Damage::Sysctl("ipv4/conf/eth1/rp_filter".into(), "1"),
        Damage::Sysctl("ipv4/conf/eth0/rp_filter".into(), "1"),
        Damage::Sysctl("ipv4/conf/eth1/arp_ignore".into(), "0"),
        Damage::Sysctl("ipv4/conf/eth1/arp_announce".into(), "0"),
        Damage::Sysctl("ipv4/conf/all/send_redirects".into(), "1"),
        Damage::Sysctl("ipv6/conf/eth1/accept_ra".into(), "1"),
        Damage::Sysctl("ipv6/conf/eth1/addr_gen_mode".into(), "1"),
        Damage::Sysctl("ipv4/conf/eth1/forwarding".into(), "0"),
        Damage::Sysctl(format!("ipv4/conf/{veth}/forwarding"), "0"),
        Damage::Sysctl(format!("ipv6/conf/{veth}/disable_ipv6"), "1"),
        Damage::Sysctl("ipv4/ip_forward".into(), "0"),
        Damage::Sysctl("ipv6/conf/all/forwarding".into(), "0"),
    ];
    for family in Family::ALL {
        let address = pod.address(family);
        damages.push(ip(&format!("route del {address} dev {veth} table 220")));
        damages.push(ip(&format!("neigh del {address} dev {veth}")));
        damages.push(ip(&format!(
            "neigh replace {address} lladdr 02:00:00:00:00:99 dev {veth} nud permanent"
        )));
    }
    damages
}

/// Damage to a pod's device of which the kernel sends no event, and which an audit finds.
fn silent_damages(pod: &Pod) -> Vec<Damage> {
    let conf = |family: &str, name: &str| {
        let path = format!("{family}/conf/{}/{name}", pod.host_device());
        Damage::Sysctl(path, "1")
    };
    vec![conf("ipv4", "send_redirects"), conf("ipv6", "accept_ra")]
}

/// Damage to the contents of maps: entries removed, and entries changed.
fn map_damages(pod: &Pod) -> [Vec<Damage>; 2] {
    let mut removed = vec![
        Damage::DeleteMapEntry("DESTINATIONS", Entry::First),
        Damage::DeleteMapEntry("ENI_BY_IFINDEX", Entry::First),
    ];
    let mut changed = vec![
        Damage::SpoilMapEntry("ENIS", Entry::First),
        Damage::SpoilMapEntry("ENI_BY_IFINDEX", Entry::First),
    ];
    // A pod's and the host's.
    for address in [
        pod.address(Family::V4),
        pod.address(Family::V6),
        [10, 0, 1, 10].into(),
    ] {
        removed.push(Damage::DeleteMapEntry("ADDRESSES", Entry::Of(address)));
        changed.push(Damage::SpoilMapEntry("ADDRESSES", Entry::Of(address)));
    }
    [removed, changed]
}

/// Objects of others, some of them close to ours.
const FOREIGN: &str = "\
rule add priority 20 from 192.0.2.7 lookup 99
rule add priority 111 fwmark 0x80/0x80 lookup 98
rule add priority 112 from 192.0.2.8 lookup 97
rule add priority 111 to 192.0.2.9 lookup 11
route add 192.0.2.128/25 via 10.0.0.1 dev eth0
route add 192.0.2.192/26 via 10.0.0.1 dev eth0 onlink table 97
addr add 192.0.2.5/32 dev eth0
link add foreign0 type bridge
addr add 192.0.2.65/27 dev foreign0
link set foreign0 up
neigh add 192.0.2.66 lladdr 02:00:00:00:00:66 dev foreign0 nud permanent";

fn repairs(fabric: &Fabric) -> u64 {
    let status = get(fabric, "/v1/status");
    status["repairs"]["total"].as_u64().unwrap()
}

/// Inflicts damages and waits until the node's state is what it was; what went wrong. Panics
/// when the state does not come back at all: nothing more can be learnt then.
///
/// The agent's own count says when, and the first look after it has to find everything: a look
/// takes a tenth of a second, on a busy machine far longer, and would be part of the time.
fn inflict(fabric: &Fabric, damages: &[Damage], limit: Duration, whole: &State) -> Option<String> {
    let (names, repaired) = (damages.iter().map(Damage::name), repairs(fabric));
    let name = names.collect::<Vec<_>>().join(", ");
    for damage in damages {
        damage.inflict(fabric).unwrap();
    }
    let most = limit + CHANGE;
    let counted = within_counted(most, &format!("{name}: the repair is counted"), || {
        check(repairs(fabric) > repaired, || {
            "no repair was counted".to_owned()
        })
    });
    let more = within_counted(CHANGE, &name, || {
        let difference = difference(whole, &fabric.state()?);
        check(difference.is_empty(), || difference.clone())
    });
    let back = counted + more;
    println!("{name}: back after {} ms", back.as_millis());
    (back > limit).then(|| format!("{name}: back only after {back:?}"))
}

fn everything_is_repaired(attach: &str, more: impl Fn(&Pod) -> Vec<Damage>) {
    let spec = Spec {
        settings: json!({"datapath": {"attach": attach}}),
        ..Spec::default()
    };
    let mut fabric = Fabric::create(&spec).unwrap();
    fabric.node.ip(FOREIGN).unwrap();
    fabric.start_agent().unwrap();
    let (pod, other) = (fabric.add_pod(1, 0).unwrap(), fabric.add_pod(0, 0).unwrap());
    carry_all(&fabric, End::Pod(&pod), PEER, &[1]);
    within(CHANGE, "everything is there", || nothing_differs(&fabric));
    let whole = fabric.state().unwrap();
    let mut failures = Vec::new();
    // Only hooks depend on the kind of attachment.
    let all = if attach == "tcx" || is_full() {
        damages(&pod)
    } else {
        Vec::new()
    };
    for damage in all.into_iter().chain(more(&pod)) {
        failures.extend(inflict(&fabric, &[damage], HEAL, &whole));
    }
    failures.extend(inflict(&fabric, &silent_damages(&pod), HEAL_AUDIT, &whole));
    for damages in map_damages(&pod) {
        failures.extend(inflict(&fabric, &damages, HEAL_MAPS, &whole));
    }
    assert!(
        failures.is_empty(),
        "not repaired:\n{}",
        failures.join("\n")
    );
    carry_all(&fabric, End::Pod(&pod), PEER, &[1]);
    carry_all(&fabric, PEER, End::Pod(&pod), &[1]);
    carry_all(&fabric, End::Pod(&pod), End::Pod(&other), &[]);
    fabric.finish().unwrap();
}

#[test]
fn everything_is_repaired_with_tcx() {
    everything_is_repaired("tcx", |_pod| {
        vec![Damage::RemoveLinkPins, Damage::DetachLinks]
    });
}

#[test]
fn everything_is_repaired_with_clsact() {
    everything_is_repaired("clsact", |pod| {
        let tc = |words: String| Damage::Tc(words);
        vec![
            tc("filter del dev eth1 ingress".into()),
            tc("qdisc del dev eth1 clsact".into()),
            tc(format!("filter del dev {} ingress", pod.host_device())),
            tc(format!("qdisc del dev {} clsact", pod.host_device())),
        ]
    });
}

/// A device that checks no source gets the loose check. It is not counted: the agent wants no value
/// of this sysctl as long as it is not 0.
#[test]
fn a_pods_device_checks_sources_again_within_a_second() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let pod = fabric.add_pod(1, 0).unwrap();
    let rp_filter = format!("ipv4/conf/{}/rp_filter", pod.host_device());
    for _ in 0..3 {
        fabric.node.sysctls(&[(rp_filter.as_str(), "0")]).unwrap();
        within(HEAL, "the source check is on", || {
            let value = fabric.node.sysctl(&rp_filter)?;
            check(value == "2", || value.clone())
        });
    }
    fabric.finish().unwrap();
}

#[test]
fn a_host_side_device_that_is_deleted_or_down_is_mended() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let (pod, other) = (fabric.add_pod(1, 0).unwrap(), fabric.add_pod(0, 0).unwrap());
    let device = pod.host_device();
    for damage in [
        format!("link del {device}"),
        format!("link set {device} down"),
    ] {
        carry_all(&fabric, End::Pod(&pod), PEER, &[1]);
        let repaired = repairs(&fabric);
        fabric.node.ip(&damage).unwrap();
        within(HEAL, "the device is back", || {
            fabric.node.ip_json(&format!("link show dev {device}"))?;
            check(repairs(&fabric) > repaired, || {
                "no repair was counted".to_owned()
            })?;
            nothing_differs(&fabric)
        });
        carry_all(&fabric, End::Pod(&pod), PEER, &[1]);
        carry_all(&fabric, End::Pod(&other), End::Pod(&pod), &[]);
    }
    within(CHANGE, "nothing is left", || nothing_differs(&fabric));
    fabric.finish().unwrap();
}

#[test]
fn who_repairs_against_us_is_named() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let pod = fabric.add_pod(0, 0).unwrap();
    let there = || -> anyhow::Result<()> {
        let rules = fabric.node.ip_json("rule list priority 20")?;
        check(
            rules.as_array().is_some_and(|list| !list.is_empty()),
            || "missing".to_owned(),
        )
    };
    // One more than the ten times a minute that are no war yet, and some.
    for _ in 0..14 {
        within(CHANGE, "the rule is back", there);
        fabric.node.run("ip rule del priority 20").unwrap();
    }
    within(CHANGE, "the war is reported", || {
        let status = fabric.agent.ask("GET", "/v1/status", None)?;
        let wars = status["repairs"]["wars"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let war = wars
            .iter()
            .find(|war| war["object"].to_string().contains("20"));
        let hint = war.and_then(|war| war["hint"].as_str());
        check(
            hint.is_some_and(|hint| !hint.is_empty()) && status["health"]["state"] == "degraded",
            || format!("{} {}", status["repairs"], status["health"]),
        )
    });
    // It goes on, once a second, however often the rule is removed.
    let (before, start) = (repairs(&fabric), Instant::now());
    while start.elapsed() < Duration::from_secs(3) {
        // Most often it is not there.
        let _missing = fabric.node.run("ip rule del priority 20");
    }
    let made = repairs(&fabric) - before;
    assert!((2..=4).contains(&made), "{made} repairs in 3 s of war");
    within(CHANGE, "the rule is back", there);
    carry_all(&fabric, End::Pod(&pod), PEER, &[0]);
    fabric.finish().unwrap();
}
