//! The real systemd-networkd on a node with a secondary ENI: as on Amazon Linux 2023, it configures
//! both ENIs by DHCP.

use std::fmt::Write as _;
use std::net::IpAddr;

use ipam::Family;
use serde_json::{Value, json};
use testkit::fabric::eventually::check;
use testkit::fabric::manager::{DhcpServer, Manager, shipped};
use testkit::fabric::traffic::Stream;
use testkit::fabric::{Fabric, Pod, Spec};

use crate::managers::{healed, named, renamed, repairs_of, takes};
use crate::support::{CHANGE, End, HEAL, PEER, carry_all, get, within};

/// Amazon Linux 2023's settings for every ENI (`80-ec2.network` of amazon-ec2-net-utils 2.3),
/// matched by name.
///
/// The driver here is not ENA, and IPv6 comes without router advertisements.
const EC2: &str = "\
[Match]
Name=ens*
[Link]
MTUBytes=9001
[Network]
DHCP=ipv4
IPv6AcceptRA=no
IPv6DuplicateAddressDetection=0
LLMNR=no
LinkLocalAddressing=ipv6
[DHCPv4]
UseHostname=no
UseDNS=no
";

/// The own address of ENI 1.
const OWN: &str = "10.0.1.10";

/// Protocol of our rules and routes that systemd-networkd regards as foreign, unlike the kernel's.
fn settings() -> Value {
    json!({"kernel": {"route-protocol": 118}})
}

/// A node whose devices have the names of a Nitro instance, with a pod on each ENI and a DHCP server
/// for each.
fn scene() -> (Fabric, [std::sync::Arc<Pod>; 2], [DhcpServer; 2]) {
    let spec = Spec {
        settings: settings(),
        ..Spec::default()
    };
    let mut fabric = renamed(&spec);
    let servers = [0, 1].map(|eni| DhcpServer::start(&fabric, eni).unwrap());
    fabric.start_agent().unwrap();
    let pods = [0, 1].map(|eni| fabric.add_pod(eni, 0).unwrap());
    (fabric, pods, servers)
}

/// Those settings for every device, and the primary's address from `DHCPv6`.
fn ec2(fabric: &Fabric) -> Vec<(&'static str, String)> {
    let v6 = fabric.eni(0).unwrap().own_address(Family::V6).unwrap();
    let primary = EC2.replace("ens*", "ens5");
    let v6 =
        format!("[Address]\nAddress={v6}/128\n[Route]\nGateway=fe80:ec2::1\nGatewayOnLink=yes\n");
    vec![
        ("network/70-ens5.network", format!("{primary}{v6}")),
        ("network/80-ec2.network", EC2.to_owned()),
    ]
}

/// Files by which amazon-ec2-net-utils configures an ENI in systemd-networkd. The ENI gets a table
/// of its own, rules for each address, and every address on the device, including the pods'
/// (`create_if_overrides`, `create_rules` and `create_ipv4_aliases` in its `lib.sh`, version 2.3).
/// Its units need systemd and the instance metadata service. These are their files for ENI 1 with a
/// pod's address.
fn net_utils(pod: IpAddr) -> [(&'static str, String); 4] {
    let mut policy = String::new();
    for address in [OWN.to_owned(), pod.to_string()] {
        let _infallible = write!(
            policy,
            "[RoutingPolicyRule]\nFrom={address}\nPriority=10001\nTable=10001\n"
        );
    }
    let eni = "\
[Match]
MACAddress=06:7e:00:00:00:01
[DHCPv4]
RouteMetric=522
RouteTable=10001
[Route]
Gateway=_dhcp4
Table=10001
";
    let alias = format!("[Address]\nAddress={pod}/32\nAddPrefixRoute=false\n");
    [
        ("network/70-ens6.network", EC2.to_owned()),
        ("network/70-ens6.network.d/eni.conf", eni.to_owned()),
        ("network/70-ens6.network.d/ec2net_alias.conf", alias),
        ("network/70-ens6.network.d/ec2net_policy_4.conf", policy),
    ]
}

/// Waits until a device has its configuration from DHCP.
fn leased(fabric: &Fabric, device: &str) {
    within(CHANGE * 2, &format!("{device} has a lease"), || {
        let shown = fabric.node.run(&format!("ip -4 addr show dev {device}"))?;
        check(shown.contains("/24"), || shown.clone())
    });
}

fn rules(fabric: &Fabric) -> u64 {
    repairs_of(&get(fabric, "/v1/status"), "rule")
}

#[test]
fn networkd_on_every_eni_takes_nothing_from_pods_and_is_named() {
    let (fabric, pods, _servers) = scene();
    let streams: Vec<_> = pods
        .iter()
        .zip(Family::ALL)
        .map(|(pod, family)| {
            let (from, to) = (pod.at(family), fabric.peer(family));
            Stream::start(from, to, 500, "udp").unwrap()
        })
        .collect();
    let manager = Manager::networkd(&fabric, &ec2(&fabric)).unwrap();
    leased(&fabric, "ens6");
    within(CHANGE, "what it did is named", || {
        let status = fabric.agent.ask("GET", "/v1/status", None)?;
        named(&status, "address", "10.0.1.10/24", None)?;
        named(&status, "default-route", "via 10.0.1.1", Some("dhcp"))?;
        named(&status, "connected-route", "10.0.1.0/24", Some("kernel"))?;
        let state = &status["health"]["state"];
        check(state == "ready", || status["health"].to_string())
    });
    takes(&fabric, &pods);

    // When it reconfigures a device, it removes foreign rules and routes, and the device's
    // addresses.
    let before = rules(&fabric);
    manager.reconfigure(&fabric.node, "ens6").unwrap();
    healed(&fabric, "ens6 set up anew", before + 1);
    leased(&fabric, "ens6");
    takes(&fabric, &pods);
    let text = fabric.agent.cli(&fabric.node, &["status"]).unwrap();
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    let line = text
        .lines()
        .find(|line| line.contains("default via 10.0.1.1"));
    assert!(line.is_some_and(|line| line.contains("dhcp")), "{text}");
    for stream in streams {
        let report = stream.finish().unwrap();
        println!("{report}");
        let lost = u64::try_from(report.lost.len()).unwrap();
        assert!(lost < report.rate * 2 * HEAL.as_secs(), "{report}");
    }
    fabric.finish().unwrap();
}

#[test]
fn the_drop_ins_keep_networkd_off() {
    let (fabric, pods, _servers) = scene();
    let names = [
        "network/05-towpath-eni.network",
        "network/05-towpath-pod.network",
        "networkd.conf.d/50-towpath.conf",
    ];
    let shipped = names.map(|name| (name, shipped(&format!("systemd/{name}")).unwrap()));
    let mut files = ec2(&fabric);
    files.extend(shipped);
    files.extend(net_utils(pods[1].address(Family::V4)));
    // A careless user's file for every device.
    files.push((
        "network/90-all.network",
        "[Match]\nName=*\n[Network]\nDHCP=ipv4\n".into(),
    ));
    let manager = Manager::networkd(&fabric, &files).unwrap();
    leased(&fabric, "ens5");
    within(CHANGE, "the primary's is its own, the rest is not", || {
        let devices = [
            "ens5",
            "ens6",
            &pods[0].host_device(),
            &pods[1].host_device(),
        ];
        let states =
            devices.map(|device| manager.state_of(&fabric.node, device).unwrap_or_default());
        let expected = ["configured", "unmanaged", "unmanaged", "unmanaged"];
        check(states == expected, || format!("{states:?}"))
    });
    let before = rules(&fabric);
    for device in ["ens6", "ens5"] {
        manager.reconfigure(&fabric.node, device).unwrap();
    }
    leased(&fabric, "ens5");
    // The primary's addresses are removed and added again, and the kernel's routes there go with
    // the last one.
    healed(&fabric, "the primary set up anew", before);
    assert_eq!(rules(&fabric), before, "our rules stay: {}", manager.log());
    assert_eq!(get(&fabric, "/v1/status")["foreign-config"], json!([]));
    takes(&fabric, &pods);
    fabric.finish().unwrap();
}

#[test]
fn what_amazon_ec2_net_utils_writes_takes_nothing_from_pods_and_is_named() {
    let (fabric, pods, _servers) = scene();
    let pod = pods[1].address(Family::V4);
    let mut files = ec2(&fabric);
    files.extend(net_utils(pod));
    let manager = Manager::networkd(&fabric, &files).unwrap();
    leased(&fabric, "ens6");
    within(CHANGE, "what it did is named", || {
        let status = fabric.agent.ask("GET", "/v1/status", None)?;
        named(&status, "claim", &format!("{pod}/32"), None)?;
        named(&status, "default-route", "table 10001", None)?;
        for address in [OWN.to_owned(), pod.to_string()] {
            let rule = format!("rule 10001: from {address}/32 lookup 10001");
            named(&status, "rule", &rule, Some("static"))?;
        }
        Ok(())
    });
    for (pod, eni) in pods.iter().zip([0, 1]) {
        carry_all(&fabric, End::Pod(pod), PEER, &[eni]);
        carry_all(&fabric, PEER, End::Pod(pod), &[eni]);
    }
    carry_all(&fabric, End::Pod(&pods[0]), End::Pod(&pods[1]), &[]);
    drop(manager);
    fabric.finish().unwrap();
}
