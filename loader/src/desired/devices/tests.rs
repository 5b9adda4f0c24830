use super::*;
use crate::desired::{Desired, desired};
use crate::kernel::fixture::{BRIDGE, ETH0, host, intent, link, mac};
use crate::kernel::{Hook, LinkKind, Object, Scope, Sysctl, SysctlScope};
use datapath_common::counter::Program;
use ipam::Family;

fn readiness(intent: &Intent, observed: &Observed, number: u8) -> Readiness {
    desired(intent, observed).enis[&EniNumber(number)]
        .readiness
        .clone()
}

fn has(desired: &Desired, object: Object) -> bool {
    desired.objects.contains_key(&object)
}

fn sysctl(family: Family, ifindex: u32, name: &'static str) -> Sysctl {
    Sysctl {
        family,
        scope: SysctlScope::Device(ifindex),
        name,
    }
}

#[test]
fn an_eni_is_known_by_its_mac_and_nothing_that_borrows_it() {
    let stacked = Link {
        kind: LinkKind::Stacked,
        ..link(20, "eth1.5", mac(1))
    };
    let port = Link {
        master: Some(BRIDGE),
        ..link(21, "port", mac(1))
    };
    let mut observed = host();
    observed.links.insert(20, stacked);
    observed.links.insert(21, port);
    assert_eq!(readiness(&intent(), &observed, 1), Readiness::Ready);

    observed.links.insert(22, link(22, "twin", mac(1)));
    let reason = "more than one device with MAC 02:00:00:00:00:01: eth1 and twin";
    assert_eq!(
        readiness(&intent(), &observed, 1),
        Readiness::not_ready(reason)
    );

    observed.links.remove(&22);
    observed.links.remove(&(ETH0 + 1));
    let reason = "no device with MAC 02:00:00:00:00:01 but port, which is a port of another device";
    assert_eq!(
        readiness(&intent(), &observed, 1),
        Readiness::not_ready(reason)
    );

    observed.links.remove(&21);
    let reason = "no device with MAC 02:00:00:00:00:01";
    assert_eq!(
        readiness(&intent(), &observed, 1),
        Readiness::not_ready(reason)
    );
    assert_eq!(readiness(&intent(), &observed, 2), Readiness::Ready);
}

#[test]
fn the_primary_is_eni_0_else_the_internal_address_else_the_setting() {
    let name = |intent: &Intent| desired(intent, &host()).primary.map(|device| device.name);
    let eth0 = Some("eth0".to_owned());
    let mut intent = intent();
    assert_eq!(name(&intent), eth0);

    intent.node.enis.remove(&EniNumber::PRIMARY);
    assert_eq!(name(&intent), eth0, "it holds 10.0.0.10");

    intent.node.addresses.internal.clear();
    let unknown = desired(&intent, &host());
    assert_eq!(unknown.primary, None);
    assert!(
        unknown
            .node
            .reason()
            .unwrap()
            .contains("set node.primary-device")
    );
    let eth1 = ETH0 + 1;
    let own = Object::Mtu {
        ifindex: eth1,
        mtu: 1500,
    };
    assert!(
        has(&unknown, own),
        "without a primary the MTU stays as it is"
    );

    intent.settings.primary_device = Some("eth0".into());
    assert_eq!(name(&intent), eth0);
    intent.settings.primary_device = Some("eth1".into());
    assert_eq!(
        readiness(&intent, &host(), 1),
        Readiness::not_ready("its device eth1 is the primary ENI's")
    );
    intent.settings.primary_device = Some("eth7".into());
    let reason = desired(&intent, &host()).node;
    assert!(
        reason
            .reason()
            .unwrap()
            .contains("node.primary-device \"eth7\" does not exist")
    );
}

#[test]
fn a_listed_primary_without_a_device_is_not_looked_for_elsewhere() {
    let mut observed = host();
    observed.links.remove(&ETH0);
    let mut intent = intent();
    intent.settings.primary_device = Some("eth1".into());
    assert_eq!(desired(&intent, &observed).primary, None);
}

#[test]
fn the_primary_keeps_what_is_the_hosts() {
    let desired = desired(&intent(), &host());
    assert!(!has(&desired, Object::Up(ETH0)));
    assert!(!has(
        &desired,
        Object::Mtu {
            ifindex: ETH0,
            mtu: 9001
        }
    ));
    let of_primary =
        |object: &&Object| matches!(object, Object::Address(address) if address.ifindex == ETH0);
    assert_eq!(desired.objects.keys().find(of_primary), None);
    let accept_ra = sysctl(Family::V6, ETH0, "accept_ra");
    assert!(has(&desired, Object::Sysctl(accept_ra, "2")));
    let rp_filter = sysctl(Family::V4, ETH0, "rp_filter");
    assert!(has(&desired, Object::Sysctl(rp_filter, "2")));

    let mut off = host();
    off.sysctls.insert(accept_ra, "0".into());
    let desired = crate::desired::desired(&intent(), &off);
    assert!(!has(&desired, Object::Sysctl(accept_ra, "2")));
}

#[test]
fn an_eni_that_is_excluded_is_left_alone_but_the_primary_receives() {
    let mut intent = intent();
    for eni in intent.node.enis.values_mut() {
        eni.excluded = Some("exclude-interface-tags".into());
    }
    let desired = desired(&intent, &host());
    let reason = "exclude-interface-tags".to_owned();
    assert_eq!(
        desired.enis[&EniNumber(1)].readiness,
        Readiness::Excluded { reason }
    );
    let receives = |ifindex| {
        let program = Program::FromNetwork;
        has(&desired, Object::Attachment(Hook { ifindex, program }))
    };
    assert!(receives(ETH0));
    assert!(!receives(ETH0 + 1));
    assert!(
        desired
            .objects
            .values()
            .all(|scope| *scope != Scope::Eni(EniNumber(1)))
    );
    let rules = |object: &Object| matches!(object, Object::Rule(r) if r.priority == 111);
    assert!(!desired.objects.keys().any(rules));
}

#[test]
fn mtu_of_secondaries_follows_the_primary_within_bounds() {
    for (primary, secondary) in [(9001, 9001), (1500, 1500), (68, 1280), (65_535, 9001)] {
        let mut observed = host();
        observed.links.get_mut(&ETH0).unwrap().mtu = primary;
        let desired = desired(&intent(), &observed);
        let mtu = Object::Mtu {
            ifindex: ETH0 + 1,
            mtu: secondary,
        };
        assert!(has(&desired, mtu), "{primary}");
    }
}
