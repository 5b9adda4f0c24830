//! The translation address of an ENI changes under traffic, is removed, and comes back.

use std::io::ErrorKind;
use std::net::IpAddr;

use ipam::Family;
use serde_json::json;
use testkit::fabric::eventually::check;
use testkit::fabric::traffic::{Echo, Protocol, Session, Stream};
use testkit::fabric::world::Site;
use testkit::fabric::{Fabric, Pod};

use crate::masq::{internet, scene, seen_now, snat, translated};
use crate::support::{CHANGE, count, nothing_differs, within};

/// The ENI whose address changes.
const ENI: u8 = 1;
/// Packets a second of the stream that the change must not affect.
const RATE: u64 = 1000;

/// Changes an address of an ENI in the VPC, the document and the device.
fn renumber(fabric: &mut Fabric, address: IpAddr) {
    let old = snat(fabric, ENI, Family::of(address));
    fabric.renumber(ENI, address).unwrap();
    match address {
        IpAddr::V4(_) => fabric.publish().unwrap(),
        IpAddr::V6(_) => fabric
            .node
            .ip(&format!(
                "addr add {address}/128 dev eth{ENI} nodad\naddr del {old}/128 dev eth{ENI}"
            ))
            .unwrap(),
    }
}

/// Waits until new flows have an address, and running ones are invalidated. Between the writes of
/// an entry and of the cache's generation the agent may lose the CPU for long; it answers after
/// both.
fn new_flows_become(fabric: &Fabric, pod: &Pod, wanted: IpAddr) {
    let family = Family::of(wanted);
    let server = Echo::telling(internet(fabric, family), 0).unwrap();
    within(CHANGE, "new flows have the new address", || {
        let seen = seen_now(pod.at(family), &server)?;
        check(seen == wanted, || format!("seen as {seen}"))
    });
    within(CHANGE, "the change is whole", || nothing_differs(fabric));
}

/// Answers in flight to the old address at the moment of the change arrive too.
#[test]
fn an_address_that_changes_under_traffic_loses_no_packet() {
    let (mut fabric, [_, pod]) = scene(json!({}));
    for next in ["10.0.1.12", "2600:1f18:10:5601::12"] {
        let next: IpAddr = next.parse().unwrap();
        let family = Family::of(next);
        let to = internet(&fabric, family);
        // All neighbours on the path are resolved before the stream begins, as it would overrun the
        // queue of an unresolved one.
        fabric
            .check_seen(
                pod.at(family),
                Site::Internet,
                snat(&fabric, ENI, family),
                ENI,
            )
            .unwrap();
        let stream = Stream::start(pod.at(family), to, RATE, "udp").unwrap();
        renumber(&mut fabric, next);
        new_flows_become(&fabric, &pod, next);
        // On a busy machine packets with the old address may still be in flight.
        stream.drain().unwrap();
        fabric.retire_addresses(ENI).unwrap();
        fabric
            .check_seen(pod.at(family), Site::Internet, next, ENI)
            .unwrap();
        let report = stream.finish().unwrap();
        assert!(report.lost.is_empty(), "{report}");
    }
    translated(&fabric, &pod, ENI);
    fabric.finish().unwrap();
}

/// The connection cannot continue.
///
/// The VPC may give the old address to others, and the server has no connection with the new one.
/// It ends with the next packet, by the server's reset, and no packet leaves with the old address.
#[test]
fn a_connection_ends_with_the_address_that_it_had() {
    let (mut fabric, [_, pod]) = scene(json!({}));
    for next in ["10.0.1.12", "2600:1f18:10:5601::12"] {
        let next: IpAddr = next.parse().unwrap();
        let family = Family::of(next);
        let old = snat(&fabric, ENI, family);
        let server = Echo::telling(internet(&fabric, family), 0).unwrap();
        let mut session = Session::open(pod.at(family), 0, server.address()).unwrap();
        assert_eq!(session.seen().ip(), old);
        renumber(&mut fabric, next);
        new_flows_become(&fabric, &pod, next);
        fabric.retire_addresses(ENI).unwrap();
        let error = session.exchange().unwrap_err();
        let kind = error.downcast_ref().map(std::io::Error::kind);
        assert_eq!(kind, Some(ErrorKind::ConnectionReset), "{error:#}");
        let mut session = Session::open(pod.at(family), 0, server.address()).unwrap();
        assert_eq!(session.seen().ip(), next);
        session.exchange().unwrap();
    }
    translated(&fabric, &pod, ENI);
    fabric.finish().unwrap();
}

/// The stack would send packets that still come from the VPC for a removed address back, by the ENI
/// that received them.
#[test]
fn what_comes_for_an_address_that_went_does_not_go_back() {
    let (fabric, [_, pod]) = scene(json!({}));
    let family = Family::V6;
    let [primary, own] = [0, ENI].map(|eni| snat(&fabric, eni, family));
    let line = format!("addr del {own}/128 dev eth{ENI}");
    fabric.node.ip(&line).unwrap();
    new_flows_become(&fabric, &pod, primary);
    let before = count(&fabric, "to_network", "foreign-source");
    let ping = format!("ping -n -c 3 -i 0.1 -W 1 {own}");
    let refused = internet(&fabric, family).netns.run(&ping).unwrap_err();
    assert!(format!("{refused:#}").contains("3 packets transmitted, 0 received"));
    let after = count(&fabric, "to_network", "foreign-source");
    assert_eq!(after - before, 3);
    fabric.finish().unwrap();
}

/// An ENI without an address leaves translation to the primary. If the primary has none either, no
/// packet leaves, neither with another ENI's address nor untranslated.
#[test]
fn without_an_address_the_primary_has_it_and_without_any_packets_are_dropped() {
    let (fabric, [first, second]) = scene(json!({}));
    let family = Family::V6;
    let [primary, own] = [0, ENI].map(|eni| snat(&fabric, eni, family));
    let change = |verb: &str, address: IpAddr, eni: u8| {
        let nodad = if verb == "add" { "nodad" } else { "" };
        let line = format!("addr {verb} {address}/128 dev eth{eni} {nodad}");
        fabric.node.ip(&line).unwrap();
    };
    translated(&fabric, &second, ENI);
    change("del", own, ENI);
    new_flows_become(&fabric, &second, primary);
    fabric
        .check_seen(second.at(family), Site::Internet, primary, 0)
        .unwrap();
    // An answer in flight when the primary's address goes would be sent back: there the host is a
    // router like any other.
    change("del", primary, 0);
    let path = format!(
        "/v1/masquerade/explain/udp/{}/{}",
        second.at(family).address,
        internet(&fabric, family).address
    );
    within(CHANGE, "no flow can be translated any more", || {
        let explained = fabric.agent.ask("GET", &path, None)?;
        check(explained["verdict"] != "translated", || {
            explained.to_string()
        })
    });
    within(CHANGE, "packets are dropped for want of an address", || {
        let before = count(&fabric, "from_endpoint", "no-translation-address");
        let went = fabric.look(second.at(family), Site::Internet, Protocol::Udp);
        check(went.is_err(), || "it went out".to_owned())?;
        let after = count(&fabric, "from_endpoint", "no-translation-address");
        check(after > before, || format!("{before} then {after}"))
    });
    // Packets that need no translation still leave.
    let peer = fabric.peer(family);
    Protocol::Tcp.exchange(second.at(family), peer).unwrap();
    change("add", primary, 0);
    change("add", own, ENI);
    new_flows_become(&fabric, &second, own);
    new_flows_become(&fabric, &first, primary);
    for (pod, eni) in [(&first, 0), (&second, ENI)] {
        translated(&fabric, pod, eni);
    }
    fabric.finish().unwrap();
}
