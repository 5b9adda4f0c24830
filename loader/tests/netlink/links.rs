//! Devices and their sysctls.

use std::fs::{self, File};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use ipam::Family;
use loader::kernel::{LinkKind, Observed, StepKind, Sysctl, SysctlScope};
use loader::netlink::{Netlink, routing_sysctls};
use nix::sched::{CloneFlags, setns};

use crate::host::{PROTOCOL, apply_twice, in_netns, ip, ip_json, link, observe, refused, veth};

#[test]
fn devices_are_read_with_kind_mac_mtu_state_group_and_master() {
    in_netns(async |netlink| {
        veth(netlink, "eni1").await;
        ip("link add br0 type bridge");
        ip("link add ifb9 type ifb");
        ip("link add macvlan0 link eni1p type macvlan");
        ip("link add vx0 type vxlan id 1 dstport 4789");
        ip("link set eni1 master br0 address 02:11:22:33:44:55 mtu 9001 group 7");
        let observed = observe(netlink).await;
        let named = |name: &str| observed.links.values().find(|l| l.name == name).unwrap();
        let eni = named("eni1");
        assert_eq!(eni.kind, LinkKind::Veth);
        assert_eq!(eni.mac, Some("02:11:22:33:44:55".parse().unwrap()));
        assert_eq!((eni.mtu, eni.up), (9001, true));
        assert_eq!((eni.group, named("br0").group), (7, 0));
        assert_eq!(eni.master, Some(named("br0").ifindex));
        assert_eq!(named("lo").kind, LinkKind::Loopback);
        assert_eq!(named("br0").kind, LinkKind::Stacked);
        assert!(!named("br0").up);
        assert_eq!(named("macvlan0").kind, LinkKind::Stacked);
        assert_eq!(named("ifb9").kind, LinkKind::Other);
        assert_eq!(named("vx0").kind, LinkKind::Other);
        assert_eq!(named("br0").master, None);
        let shown = ip_json("link show");
        assert_eq!(shown.len(), observed.links.len());
        for device in shown {
            let index = u32::try_from(device["ifindex"].as_u64().unwrap()).unwrap();
            assert_eq!(
                observed.links[&index].name,
                device["ifname"].as_str().unwrap()
            );
        }
    });
}

#[test]
fn mtu_up_and_delete_work_whatever_a_device_is_called() {
    in_netns(async |netlink| {
        ip("link add eth7 type veth peer name other");
        let ifindex = link(netlink, "eth7").await.ifindex;
        ip("link set eth7 name ens5.100");
        apply_twice(netlink, StepKind::SetMtu { ifindex, mtu: 1400 }).await;
        apply_twice(netlink, StepKind::SetUp(ifindex)).await;
        let now = link(netlink, "ens5.100").await;
        assert_eq!((now.ifindex, now.mtu, now.up), (ifindex, 1400, true));
        let error = refused(
            netlink,
            StepKind::SetMtu {
                ifindex,
                mtu: 70_000,
            },
        )
        .await;
        assert!(error.contains("70000"), "{error}");
        let reason = "mtu greater than device maximum";
        assert!(error.contains(reason), "the kernel's own words: {error}");
        apply_twice(netlink, StepKind::DeleteDevice(ifindex)).await;
        assert!(!observe(netlink).await.links.contains_key(&ifindex));
        refused(netlink, StepKind::SetUp(ifindex)).await;
    });
}

#[test]
fn devices_are_deleted_together_and_others_stay() {
    in_netns(async |netlink| {
        for name in ["one", "two", "other"] {
            ip(&format!("link add {name} type veth peer name {name}p"));
        }
        let [one, two] = [link(netlink, "one").await, link(netlink, "two").await];
        let gone = u32::MAX >> 1;
        let devices = [one.ifindex, gone, two.ifindex];
        netlink.delete_together(&devices).await.unwrap();
        let left = observe(netlink).await.links;
        let mut left: Vec<_> = left.into_values().map(|link| link.name).collect();
        left.sort();
        assert_eq!(left, ["lo", "other", "otherp"]);
        netlink.delete_together(&devices).await.unwrap();
    });
}

/// Everything that we manage on a device.
const OF_DEVICE: [(Family, &str, &str); 6] = [
    (Family::V4, "rp_filter", "2"),
    (Family::V4, "arp_ignore", "1"),
    (Family::V4, "arp_announce", "2"),
    (Family::V4, "send_redirects", "0"),
    (Family::V6, "accept_ra", "0"),
    (Family::V6, "addr_gen_mode", "0"),
];

fn folder(family: Family) -> &'static str {
    match family {
        Family::V4 => "/proc/sys/net/ipv4",
        Family::V6 => "/proc/sys/net/ipv6",
    }
}

#[test]
fn device_sysctls_are_written_and_read_under_any_name() {
    in_netns(async |netlink| {
        let ifindex = veth(netlink, "eni1").await;
        for (name, value) in [("eni1", None), ("ens6.7", Some("ens6.7"))] {
            if let Some(new) = value {
                ip(&format!("link set eni1 name {new}"));
            }
            for (family, sysctl, value) in OF_DEVICE {
                let path = format!("{}/conf/{name}/{sysctl}", folder(family));
                fs::write(&path, if value == "0" { "1" } else { "0" }).unwrap();
                let key = Sysctl {
                    family,
                    scope: SysctlScope::Device(ifindex),
                    name: sysctl,
                };
                let before = fs::read_to_string(&path).unwrap();
                let observed = observe(netlink).await.sysctls;
                assert_eq!(observed[&key], before.trim(), "{path}");
                assert_ne!(observed[&key], value, "{path}");
                apply_twice(netlink, StepKind::SetSysctl(key, value)).await;
                assert_eq!(fs::read_to_string(&path).unwrap().trim(), value, "{path}");
                assert_eq!(observe(netlink).await.sysctls[&key], value, "{path}");
            }
        }
        let loopback = link(netlink, "lo").await.ifindex;
        let observed = observe(netlink).await.sysctls;
        let scopes: Vec<_> = observed.keys().map(|key| key.scope).collect();
        assert!(!scopes.contains(&SysctlScope::Device(loopback)));
        ip("link del ens6.7");
        let (family, name, value) = OF_DEVICE[0];
        let scope = SysctlScope::Device(ifindex);
        let key = Sysctl {
            family,
            scope,
            name,
        };
        apply_twice(netlink, StepKind::SetSysctl(key, value)).await;
    });
}

#[test]
fn node_sysctls_are_written_and_read() {
    in_netns(async |netlink| {
        for (family, scope, name, file) in [
            (Family::V4, SysctlScope::Family, "ip_forward", "ip_forward"),
            (
                Family::V4,
                SysctlScope::All,
                "send_redirects",
                "conf/all/send_redirects",
            ),
            (
                Family::V6,
                SysctlScope::All,
                "forwarding",
                "conf/all/forwarding",
            ),
        ] {
            let key = Sysctl {
                family,
                scope,
                name,
            };
            for value in ["0", "1", "0"] {
                apply_twice(netlink, StepKind::SetSysctl(key, value)).await;
                let path = format!("{}/{file}", folder(family));
                assert_eq!(fs::read_to_string(path).unwrap().trim(), value);
                assert_eq!(observe(netlink).await.sysctls[&key], value);
            }
        }
        let unknown = Sysctl {
            family: Family::V4,
            scope: SysctlScope::Family,
            name: "no_such",
        };
        let error = refused(netlink, StepKind::SetSysctl(unknown, "1")).await;
        assert!(error.contains("/proc/sys/net/ipv4/no_such"), "{error}");
    });
}

#[test]
fn the_effective_rp_filter_is_the_larger_one() {
    in_netns(async |netlink| {
        veth(netlink, "eni1").await;
        for (all, own, effective) in [("0", "2", "2"), ("1", "0", "1"), ("2", "1", "2")] {
            fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", all).unwrap();
            fs::write("/proc/sys/net/ipv4/conf/eni1/rp_filter", own).unwrap();
            let shown = routing_sysctls(&["eni1", "missing"]);
            let expected = [
                ("net.ipv4.conf.all.rp_filter", all),
                ("net.ipv4.fwmark_reflect", "0"),
                ("net.ipv6.fwmark_reflect", "0"),
                ("net.ipv4.tcp_fwmark_accept", "0"),
                ("net.ipv4.conf.eni1.rp_filter", effective),
                ("net.ipv6.conf.eni1.forwarding", "0"),
            ];
            assert_eq!(shown, expected.map(|(k, v)| (k.to_owned(), v.to_owned())));
        }
    });
}

#[test]
fn a_device_with_ipv6_off_has_no_ipv6_trouble() {
    in_netns(async |netlink| {
        let ifindex = veth(netlink, "eni1").await;
        // Below 1280 the kernel takes the family off the device.
        ip("link set eni1 mtu 1000");
        let observed = observe(netlink).await;
        let of_device = observed
            .sysctls
            .keys()
            .filter(|k| k.scope == SysctlScope::Device(ifindex));
        let families: Vec<_> = of_device.map(|k| k.family).collect();
        assert_eq!(families, [Family::V4; 5]);
    });
}

#[test]
fn an_abandoned_look_does_not_spoil_the_next_one() {
    in_netns(async |netlink| {
        // More devices than one datagram holds: the kernel is left in the middle of its dump.
        for number in 0..40 {
            ip(&format!("link add v{number} type veth peer name p{number}"));
        }
        let whole = observe(netlink).await;
        assert_eq!(whole.links.len(), 81);
        for polls in 1..5 {
            let mut fresh = Netlink::open(PROTOCOL).unwrap();
            let mut partial = Observed::default();
            {
                let mut look = pin!(fresh.observe(&mut partial));
                for _ in 0..polls {
                    if look.as_mut().now_or_never().is_some() {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
            }
            assert_eq!(observe(&mut fresh).await, whole, "after {polls} polls");
        }
    });
}

#[test]
fn devices_that_come_and_go_hide_no_other() {
    in_netns(async |netlink| {
        for number in 0..150 {
            ip(&format!("link add v{number} type veth peer name p{number}"));
        }
        let lines = "link add churn type veth peer name churnp\nlink del churn\n".repeat(50);
        let batch = tempfile::NamedTempFile::new().unwrap();
        fs::write(batch.path(), lines).unwrap();
        let namespace = File::open("/proc/thread-self/ns/net").unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let churn = std::thread::spawn(move || {
            setns(&namespace, CloneFlags::CLONE_NEWNET).unwrap();
            while !stopped.load(Ordering::Relaxed) {
                ip(&format!("-batch {}", batch.path().display()));
            }
        });
        for _ in 0..10 {
            let observed = observe(netlink).await;
            let steady = observed
                .links
                .values()
                .filter(|l| !l.name.starts_with("churn"));
            assert_eq!(steady.count(), 301);
        }
        stop.store(true, Ordering::Relaxed);
        churn.join().unwrap();
    });
}

#[test]
fn looking_and_changing_can_move_between_threads() {
    fn moves<T: Send>(_: &T) {}
    in_netns(async |netlink| {
        moves(&netlink.observe(&mut Observed::default()));
        moves(&netlink.apply(&StepKind::SetUp(1)));
        moves(&netlink.events().unwrap());
        moves(netlink);
    });
}
