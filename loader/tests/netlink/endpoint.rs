//! Pod devices.

use std::fs;
use std::path::{Path, PathBuf};

use api::ids::Owner;
use ipam::Family;
use loader::constants;
use loader::intent::{Endpoint, EndpointMeta};
use loader::kernel::{LinkKind, Neighbour, NextHop, Route, StepKind};
use loader::netlink::{Netlink, netns_at};
use loader::observation::ownership::finished_device;
use serde_json::json;

use crate::host::{
    PROTOCOL, Pod, apply_twice, attempt, in_netns, ip, ip_json, link, observe, refused, run,
};

fn endpoint(netns: &Path, addresses: &[&str]) -> Endpoint {
    Endpoint {
        owner: Owner {
            container_id: "0123456789abcdef".to_owned(),
            interface: "eth0".to_owned(),
        },
        netns: netns.to_owned(),
        addresses: addresses
            .iter()
            .map(|address| address.parse().expect("an address"))
            .collect(),
        mtu: 8900,
        about: EndpointMeta::default(),
    }
}

fn create(endpoint: &Endpoint) -> StepKind {
    StepKind::CreateEndpointDevice(Box::new(endpoint.clone()))
}

/// Does the agent's work on the host's side of a finished pair: sets the device up, and adds the
/// objects of the pod's addresses, in the tables that every look-up uses.
async fn host_side(netlink: &mut Netlink, endpoint: &Endpoint) {
    let ifindex = link(netlink, &endpoint.id().device()).await.ifindex;
    apply_twice(netlink, StepKind::SetUp(ifindex)).await;
    for address in &endpoint.addresses {
        let family = Family::of(*address);
        let route = Route {
            table: 220,
            destination: (*address).into(),
            metric: if family == Family::V4 { 0 } else { 1024 },
            next_hop: NextHop::Device(ifindex),
            source: None,
            protocol: PROTOCOL,
        };
        apply_twice(netlink, StepKind::AddRoute(route)).await;
        let neighbour = Neighbour {
            ifindex,
            address: *address,
            mac: endpoint.id().pod_mac(),
        };
        apply_twice(netlink, StepKind::AddNeighbour(neighbour)).await;
    }
    ip("-4 rule add priority 20 table 220");
    ip("-6 rule add priority 20 table 220");
}

#[test]
fn a_pod_device_is_whole_and_carries_packets() {
    in_netns(async |netlink| {
        ip("addr add 10.0.0.10/32 dev lo");
        ip("addr add 2001:db8::10/128 dev lo");
        let pod = Pod::new();
        // As container runtimes leave it.
        pod.run("sysctl -qw net.ipv6.conf.default.disable_ipv6=1");
        let endpoint = endpoint(&pod.path, &["10.0.1.99", "2001:db8::99"]);
        netlink.apply(&create(&endpoint)).await.unwrap();

        let id = endpoint.id();
        let host = link(netlink, &id.device()).await;
        assert_eq!(host.kind, LinkKind::Veth);
        assert_eq!(host.mac, Some(id.host_mac()));
        assert_eq!((host.mtu, host.up), (8900, false));
        assert_eq!(host.group, constants::DEVICE_GROUP);
        assert_eq!(finished_device(&host), Some(id));
        let shown = ip_json(&format!("link show dev {}", id.device()));
        assert_eq!(shown[0]["inet6_addr_gen_mode"], json!("none"));

        let shown = pod.ip_json("addr show dev eth0");
        assert_eq!(shown[0]["address"], json!(id.pod_mac().to_string()));
        assert_eq!(shown[0]["mtu"], json!(8900));
        let infos = shown[0]["addr_info"].as_array().unwrap();
        for (address, length) in [("10.0.1.99", 32), ("2001:db8::99", 128)] {
            let info = infos.iter().find(|i| i["local"] == json!(address)).unwrap();
            assert_eq!(info["prefixlen"], json!(length));
            assert_eq!(info["tentative"], json!(null));
        }
        for (family, gateway) in [("-4", "169.254.1.1"), ("-6", "fe80::1")] {
            let routes = pod.ip_json(&format!("{family} route show"));
            let has = |dst: &str| routes.iter().any(|r| r["dst"] == json!(dst));
            assert!(has(gateway) && has("default"), "{routes:?}");
            let neighbours = pod.ip_json(&format!("{family} neigh show nud permanent"));
            assert_eq!(neighbours[0]["dst"], json!(gateway));
            assert_eq!(neighbours[0]["lladdr"], json!(id.host_mac().to_string()));
        }
        let accept_ra = pod.run("sysctl -n net.ipv6.conf.eth0.accept_ra");
        assert_eq!(accept_ra.trim(), "0");

        host_side(netlink, &endpoint).await;
        pod.run("ping -c1 -W2 10.0.0.10");
        pod.run("ping -c1 -W2 2001:db8::10");
        pod.run("ping -c1 -W2 127.0.0.1");
        run("ping -c1 -W2 10.0.1.99");
        run("ping -c1 -W2 2001:db8::99");
        let addresses = observe(netlink).await.addresses;
        let on_host = addresses.iter().filter(|a| a.ifindex == host.ifindex);
        assert_eq!(on_host.count(), 0, "no link-local address: {addresses:?}");
    });
}

#[test]
fn a_family_without_address_is_left_alone() {
    for (address, untouched) in [("10.0.1.99", "-6"), ("2001:db8::99", "-4")] {
        in_netns(async move |netlink| {
            let pod = Pod::new();
            let endpoint = endpoint(&pod.path, &[address]);
            let accept_ra = "sysctl -n net.ipv6.conf.eth0.accept_ra";
            netlink.apply(&create(&endpoint)).await.unwrap();
            let routes = pod.ip_json(&format!("{untouched} route show default"));
            assert!(routes.is_empty(), "{routes:?}");
            let neighbours = pod.run(&format!("ip {untouched} neigh show nud permanent"));
            assert_eq!(neighbours, "");
            let expected = if untouched == "-6" { "1" } else { "0" };
            assert_eq!(pod.run(accept_ra).trim(), expected);
        });
    }
}

#[test]
fn what_an_earlier_attempt_left_is_made_anew() {
    in_netns(async |netlink| {
        let pod = Pod::new();
        let endpoint = endpoint(&pod.path, &["10.0.1.99", "2001:db8::99"]);
        let (id, path) = (endpoint.id(), pod.path.display().to_string());
        let (device, host_mac, pod_mac) = (id.device(), id.host_mac(), id.pod_mac());
        // Born, then nothing more.
        ip(&format!(
            "link add {device} address {host_mac} type veth peer name eth0 address {pod_mac}"
        ));
        ip(&format!("link set eth0 netns {path}"));
        let first = link(netlink, &device).await.ifindex;
        netlink.apply(&create(&endpoint)).await.unwrap();
        let second = link(netlink, &device).await.ifindex;
        assert_ne!(first, second);
        // Whole, and made once more.
        netlink.apply(&create(&endpoint)).await.unwrap();
        assert_ne!(second, link(netlink, &device).await.ifindex);
        assert_eq!(pod.ip_json("-4 route show").len(), 2);
        // The pod's end has another name: only the host's end identifies it.
        pod.run("ip link set eth0 down");
        pod.run("ip link set eth0 name renamed");
        netlink.apply(&create(&endpoint)).await.unwrap();
        let (there, _) = pod.attempt("ip link show renamed");
        assert!(!there);
        // The host's end has another name: only the pod's end identifies it.
        ip(&format!("link set {device} down"));
        ip(&format!("link set {device} name renamed"));
        netlink.apply(&create(&endpoint)).await.unwrap();
        let observed = observe(netlink).await;
        assert!(!observed.links.values().any(|l| l.name == "renamed"));
        assert_eq!(pod.ip_json("-4 route show").len(), 2);
    });
}

#[test]
fn a_strangers_device_of_our_name_is_an_error_and_stays() {
    in_netns(async |netlink| {
        let pod = Pod::new();
        let endpoint = endpoint(&pod.path, &["10.0.1.99"]);
        let device = endpoint.id().device();
        ip(&format!("link add {device} type veth peer name other"));
        let error = refused(netlink, create(&endpoint)).await;
        assert!(
            error.contains(&device) && error.contains("not ours"),
            "{error}"
        );
        link(netlink, &device).await;
        ip(&format!("link del {device}"));

        pod.run("ip link add eth0 type veth peer name eth1");
        let error = refused(netlink, create(&endpoint)).await;
        assert!(
            error.contains("eth0") && error.contains("not ours"),
            "{error}"
        );
        pod.run("ip link show eth0");
        let (left, _) = attempt(&format!("ip link show {device}"));
        assert!(!left, "nothing stays behind");
    });
}

#[test]
fn a_wrong_netns_is_an_error_that_names_it() {
    in_netns(async |netlink| {
        let own = fs::read_link("/proc/thread-self").unwrap();
        let own = PathBuf::from("/proc").join(own).join("ns/net");
        let before = observe(netlink).await;
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        run(&format!("mkfifo {}", fifo.display()));
        for path in [
            &fifo,
            Path::new("/run/netns/tp-netlink-missing"),
            Path::new("/dev/null"),
            Path::new("/proc/self/ns/mnt"),
            &own,
        ] {
            let endpoint = endpoint(path, &["10.0.1.99"]);
            let error = refused(netlink, create(&endpoint)).await;
            assert!(error.contains(&path.display().to_string()), "{error}");
        }
        let after = observe(netlink).await;
        assert_eq!(before, after, "nothing was made");
    });
}

/// The added pod is gone, and its path leads to another namespace.
#[test]
fn a_netns_that_is_another_one_now_is_left_alone() {
    in_netns(async |netlink| {
        let (pod, next) = (Pod::new(), Pod::new());
        let mut endpoint = endpoint(&next.path, &["10.0.1.99"]);
        endpoint.about.namespace = Some(netns_at(&pod.path).unwrap());
        let error = refused(netlink, create(&endpoint)).await;
        assert!(error.contains("another network namespace"), "{error}");
        let (there, _) = next.attempt("ip link show eth0");
        assert!(!there);
        endpoint.about.namespace = Some(netns_at(&next.path).unwrap());
        apply_twice(netlink, create(&endpoint)).await;
    });
}

#[test]
fn a_failure_inside_the_pod_leaves_nothing() {
    in_netns(async |netlink| {
        let pod = Pod::new();
        // A foreign default route, which we must not replace.
        pod.run("ip link add chained type veth peer name chainedp");
        pod.run("ip link set chained up");
        pod.run("ip route add default dev chained");
        let endpoint = endpoint(&pod.path, &["10.0.1.99"]);
        let error = refused(netlink, create(&endpoint)).await;
        assert!(
            error.contains("eth0") && error.contains("0.0.0.0/0"),
            "{error}"
        );
        let observed = observe(netlink).await;
        assert!(
            observed.links.values().all(|l| l.name == "lo"),
            "{observed:?}"
        );
        let (there, _) = pod.attempt("ip link show eth0");
        assert!(!there);
        assert_eq!(pod.ip_json("-4 route show")[0]["dev"], json!("chained"));
    });
}

#[test]
fn a_device_goes_with_its_pod_and_deleting_it_again_is_fine() {
    in_netns(async |netlink| {
        let pod = Pod::new();
        let endpoint = endpoint(&pod.path, &["10.0.1.99"]);
        netlink.apply(&create(&endpoint)).await.unwrap();
        let ifindex = link(netlink, &endpoint.id().device()).await.ifindex;
        apply_twice(netlink, StepKind::DeleteDevice(ifindex)).await;
        let (there, _) = pod.attempt("ip link show eth0");
        assert!(!there, "both ends are gone");
    });
}
