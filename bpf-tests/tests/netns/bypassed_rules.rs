//! Rules of netfilter that packets of the direct path do not meet are named, with the remedy.

use std::net::IpAddr;
use std::time::Duration;

use ipam::Family;
use serde_json::{Value, json};
use testkit::fabric::eventually::check;
use testkit::fabric::program::{Action, ForeignProgram, Position};
use testkit::fabric::traffic::ping;
use testkit::fabric::{Fabric, Spec};

use crate::support::{get, within};

/// Until rules are read: they are looked at every two seconds.
const READ: Duration = Duration::from_secs(10);

/// The rules that the status names.
fn named(fabric: &Fabric) -> Vec<String> {
    let status = get(fabric, "/v1/status");
    let rules = status["bypassed-rules"].as_array().cloned();
    let rules = rules.unwrap_or_default().into_iter();
    rules
        .map(|rule| rule.as_str().unwrap().to_owned())
        .collect()
}

#[track_caller]
fn until_named(fabric: &Fabric, expected: &[(&str, &str)]) {
    within(READ, "the rules are named", || {
        let rules = named(fabric);
        let is_there = |(place, part): &(&str, &str)| {
            let of = |rule: &&String| rule.starts_with(place) && rule.contains(part);
            rules.iter().filter(of).count() == 1
        };
        check(
            rules.len() == expected.len() && expected.iter().all(is_there),
            || format!("{rules:#?}"),
        )
    });
}

fn rules_of_nftables_are_named(fabric: &Fabric, [v4, v6]: [IpAddr; 2]) {
    for line in [
        "iptables-nft -t nat -A PREROUTING -p tcp -d 169.254.169.254/32 --dport 80 -i tow+ \
         -j DNAT --to-destination 10.0.0.10:8181"
            .to_owned(),
        "iptables-nft -t mangle -A FORWARD -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --set-mss 1400"
            .to_owned(),
        // Of kube-proxy, and about others.
        "iptables-nft -N KUBE-FORWARD".to_owned(),
        format!("iptables-nft -A KUBE-FORWARD -d {v4} -j ACCEPT"),
        "iptables-nft -A FORWARD -j KUBE-FORWARD".to_owned(),
        "iptables-nft -A FORWARD -i docker0 -s 172.17.0.0/16 -j ACCEPT".to_owned(),
        format!("iptables-nft -A INPUT -s {v4} -j ACCEPT"),
        // Where a jump leads to.
        "nft add table inet fw".to_owned(),
        "nft add chain inet fw forward { type filter hook forward priority 0 ; }".to_owned(),
        "nft add chain inet fw pods".to_owned(),
        "nft add rule inet fw forward jump pods".to_owned(),
        format!("nft add rule inet fw pods ip6 saddr {v6} drop"),
        "nft add set inet fw blocked { type ipv4_addr ; }".to_owned(),
        "nft add rule inet fw forward ip daddr @blocked drop".to_owned(),
        "nft add table netdev edge".to_owned(),
        "nft add chain netdev edge in { type filter hook ingress device eth0 priority 0 ; }"
            .to_owned(),
        format!("nft add rule netdev edge in ip daddr {v4} counter"),
    ] {
        fabric.node.run(&line).unwrap();
    }
    until_named(
        fabric,
        &[
            ("nftables ip nat PREROUTING, ", "masquerade.metadata"),
            ("nftables ip mangle FORWARD, ", "endpoint.internet-mtu"),
            ("nftables inet fw pods, ", &v6.to_string()),
            ("nftables inet fw forward, ", "the set blocked"),
            ("nftables netdev edge in, ", &v4.to_string()),
        ],
    );
}

fn rules_of_legacy_iptables_are_named(fabric: &Fabric, [v4, v6]: [IpAddr; 2]) {
    for line in [
        "iptables-legacy -A FORWARD -i tow+ -d 169.254.169.254/32 -j DROP".to_owned(),
        "iptables-legacy -t mangle -A POSTROUTING -p tcp --tcp-flags SYN,RST SYN -j TCPMSS \
         --clamp-mss-to-pmtu"
            .to_owned(),
        "iptables-legacy -N KUBE-FORWARD".to_owned(),
        format!("iptables-legacy -A KUBE-FORWARD -d {v4} -j ACCEPT"),
        format!("iptables-legacy -A INPUT -s {v4} -j ACCEPT"),
        "iptables-legacy -A FORWARD -s 172.17.0.0/16 -o docker0 -j ACCEPT".to_owned(),
        "ip6tables-legacy -N pods".to_owned(),
        format!("ip6tables-legacy -A pods -s {v6} -j DROP"),
    ] {
        fabric.node.run(&line).unwrap();
    }
    until_named(
        fabric,
        &[
            (
                "iptables-legacy filter FORWARD, rule 1 ",
                "masquerade.metadata",
            ),
            (
                "iptables-legacy mangle POSTROUTING, rule 1 ",
                "endpoint.internet-mtu",
            ),
            ("ip6tables-legacy filter pods, rule 1 ", &v6.to_string()),
        ],
    );
}

#[test]
fn rules_that_name_pods_or_metadata_or_clamp_the_mss_are_named_with_their_remedy() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let pod = fabric.add_pod(0, 0).unwrap();
    until_named(&fabric, &[]);
    let addresses = Family::ALL.map(|family| pod.at(family).address);
    rules_of_nftables_are_named(&fabric, addresses);
    fabric.node.run("nft flush ruleset").unwrap();
    until_named(&fabric, &[]);
    rules_of_legacy_iptables_are_named(&fabric, addresses);
    for line in [
        "iptables-legacy -F",
        "iptables-legacy -t mangle -F",
        "ip6tables-legacy -F",
    ] {
        fabric.node.run(line).unwrap();
    }
    until_named(&fabric, &[]);
    fabric.finish().unwrap();
}

#[test]
fn chains_of_devices_indexes_groups_and_ranges_name_pods_too() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let pod = fabric.add_pod(0, 0).unwrap();
    let device = pod.host_device();
    let v4 = pod.at(Family::V4).address;
    let chain = |hook: &str, device: &str| {
        format!("{{ type filter hook {hook} device {device} priority 0 ; }}")
    };
    for line in [
        "nft add table inet fw".to_owned(),
        "nft add chain inet fw forward { type filter hook forward priority 0 ; }".to_owned(),
        format!("nft add rule inet fw forward iif {device} counter"),
        "nft add rule inet fw forward iif lo counter".to_owned(),
        "nft add rule inet fw forward oifgroup 0x7477 counter".to_owned(),
        "nft add rule inet fw forward ip daddr 10.0.0.2-10.0.0.5 counter".to_owned(),
        format!("nft add rule inet fw forward ip daddr . tcp dport {{ {v4} . 80 }} counter"),
        "nft add table netdev edge".to_owned(),
        format!(
            "nft add chain netdev edge pod {}",
            chain("ingress", &device)
        ),
        format!("nft add chain netdev edge eni {}", chain("ingress", "eth1")),
        format!("iptables-nft -t raw -A PREROUTING -m iprange --src-range {v4}-{v4} -j ACCEPT"),
        format!("iptables-legacy -A FORWARD -m iprange --dst-range {v4}-{v4} -j ACCEPT"),
    ] {
        fabric.node.run(&line).unwrap();
    }
    until_named(
        &fabric,
        &[
            ("nftables inet fw forward, ", "the pod device with index "),
            ("nftables inet fw forward, ", "their group 0x7477"),
            ("nftables inet fw forward, ", "the set __set"),
            ("nftables netdev edge pod ", &device),
            ("nftables ip raw PREROUTING, ", &v4.to_string()),
            ("iptables-legacy filter FORWARD, ", &v4.to_string()),
        ],
    );
    fabric.finish().unwrap();
}

/// A kernel may have no flowtables.
#[test]
fn flowtables_with_enis_are_named() {
    let fabric = Fabric::ready(&Spec::default()).unwrap();
    let node = &fabric.node;
    node.run("nft add table inet fw").unwrap();
    let with = |devices: &str| format!("{{ hook ingress priority 0 ; devices = {devices} ; }}");
    let others = format!("nft add flowtable inet fw others {}", with("{ lo }"));
    let is_known = node.run(&others).is_ok();
    until_named(&fabric, &[]);
    if is_known {
        let fast = with("{ lo, eth1 }");
        node.run(&format!("nft add flowtable inet fw fast {fast}"))
            .unwrap();
        until_named(
            &fabric,
            &[("nftables inet fw flowtable fast ", "the ENI eth1")],
        );
        node.run("nft delete flowtable inet fw fast").unwrap();
        until_named(&fabric, &[]);
    }
    fabric.finish().unwrap();
}

/// Filters and programs at the ENIs, and the line of the one that packets go past.
#[test]
fn filters_of_tc_behind_ours_at_an_eni_are_named() {
    let fabric = Fabric::ready(&Spec::default()).unwrap();
    let folder = fabric.pin_root().with_file_name("");
    let mut ahead = ForeignProgram::load("ahead", &folder, Action::Pass).unwrap();
    ahead
        .attach_tcx(&fabric.node, "eth1", Position::First)
        .unwrap();
    until_named(&fabric, &[]);
    let behind = ForeignProgram::load("behind", &folder, Action::Pass).unwrap();
    fabric.node.run("tc qdisc add dev eth1 clsact").unwrap();
    behind.attach_filter(&fabric.node, "eth1", 7).unwrap();
    until_named(&fabric, &[("tc eth1 ingress, behind", "priority 7")]);
    fabric.node.run("tc qdisc del dev eth1 clsact").unwrap();
    until_named(&fabric, &[]);
    fabric.finish().unwrap();
}

#[test]
fn with_the_stacks_path_packets_meet_every_rule() {
    let settings = json!({"datapath": {"path": "stack"}});
    let spec = Spec {
        settings,
        ..Spec::default()
    };
    let fabric = Fabric::ready(&spec).unwrap();
    fabric
        .node
        .run("iptables-nft -A FORWARD -i tow+ -d 169.254.169.254/32 -j DROP")
        .unwrap();
    assert_eq!(named(&fabric), Vec::<String>::new());
    fabric.finish().unwrap();
}

#[test]
fn a_policy_that_drops_what_is_forwarded_is_a_warning_until_its_counter_grows() {
    let settings = json!({"datapath": {"path": "stack"}});
    let spec = Spec {
        settings,
        ..Spec::default()
    };
    let mut fabric = Fabric::ready(&spec).unwrap();
    let pod = fabric.add_pod(1, 0).unwrap();
    for (program, place) in [
        ("iptables-nft", "nftables ip filter FORWARD drops"),
        ("iptables-legacy", "iptables-legacy filter FORWARD drops"),
    ] {
        let policies = || {
            let status = get(&fabric, "/v1/status");
            let of = |list: &Value| {
                let texts = list.as_array().unwrap().iter();
                let is_its = |text: &&Value| text.as_str().unwrap().starts_with(place);
                texts.filter(is_its).count()
            };
            (of(&status["warnings"]), of(&status["health"]["reasons"]))
        };
        let reported = |what, expected| {
            within(READ, what, || {
                let found = policies();
                check(found == expected, || format!("{program}: {found:?}"))
            });
        };
        let set = |policy| {
            let line = format!("{program} -P FORWARD {policy}");
            fabric.node.run(&line).unwrap();
        };
        set("DROP");
        reported("a warning", (1, 0));
        let peer = fabric.peer(Family::V4).address;
        ping(pod.at(Family::V4), peer, &["-c1", "-W1"]).unwrap_err();
        reported("a problem", (0, 1));
        set("ACCEPT");
        reported("neither", (0, 0));
    }
    fabric.finish().unwrap();
}
