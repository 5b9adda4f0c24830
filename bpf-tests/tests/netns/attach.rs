//! ENIs that come late, change their name, go, and come back.

use serde_json::json;
use testkit::fabric::eventually::check;
use testkit::fabric::{Fabric, Spec};

use crate::support::{
    CHANGE, End, PEER, carry_all, eni_status, get, nothing_differs, wait_for_eni, within,
};

#[test]
fn an_eni_that_is_attached_late_comes_up_by_itself() {
    let spec = Spec {
        late: vec![1],
        ..Spec::default()
    };
    let mut fabric = Fabric::ready(&spec).unwrap();
    let here = fabric.add_pod(0, 0).unwrap();
    let waiting = eni_status(&fabric, 1).unwrap();
    assert_eq!(waiting["readiness"]["state"], "not-ready");
    let reason = waiting["readiness"]["reason"].as_str().unwrap();
    let mac = fabric.eni(1).unwrap().mac.to_string();
    assert!(
        reason.contains(&mac),
        "the reason names the MAC that is missing: {reason}"
    );

    let pod = fabric.make_pod(1, 0).unwrap();
    let (status, refusal) = fabric
        .agent
        .request("PUT", "/v1/endpoints", Some(&pod.request()))
        .unwrap();
    assert_eq!(
        (status, &refusal["error"]["code"]),
        (422, &json!("eni-not-ready")),
        "{refusal}"
    );

    fabric.attach(1).unwrap();
    wait_for_eni(&fabric, 1, "ready");
    fabric.add_endpoint(&pod).unwrap();
    carry_all(&fabric, End::Pod(&pod), PEER, &[1]);
    carry_all(&fabric, PEER, End::Pod(&pod), &[1]);
    carry_all(&fabric, End::Pod(&pod), End::Pod(&here), &[]);
    fabric.finish().unwrap();
}

#[test]
fn an_eni_that_is_renamed_stays_what_it_is() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let pod = fabric.add_pod(1, 0).unwrap();
    // As udev does it: live where the kernel allows that, else down and up.
    if fabric.node.ip("link set eth1 name ens6").is_err() {
        fabric
            .node
            .ip("link set eth1 down\nlink set eth1 name ens6\nlink set ens6 up")
            .unwrap();
    }
    within(CHANGE, "the new name is known", || {
        let eni = eni_status(&fabric, 1)?;
        check(
            eni["device"] == "ens6" && eni["readiness"]["state"] == "ready",
            || eni.to_string(),
        )?;
        nothing_differs(&fabric)
    });
    carry_all(&fabric, End::Pod(&pod), PEER, &[1]);

    // All objects at the device are lost while it is renamed.
    fabric
        .node
        .ip("link set ens6 down\nlink set ens6 name eni-b\nlink set eni-b up")
        .unwrap();
    within(CHANGE, "everything is back at the device", || {
        let eni = eni_status(&fabric, 1)?;
        check(
            eni["device"] == "eni-b" && eni["readiness"]["state"] == "ready",
            || eni.to_string(),
        )?;
        nothing_differs(&fabric)
    });
    carry_all(&fabric, PEER, End::Pod(&pod), &[1]);
    fabric.finish().unwrap();
}

#[test]
fn an_eni_that_goes_takes_nothing_with_it_and_comes_back_with_another_index() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let (pod, other) = (fabric.add_pod(1, 0).unwrap(), fabric.add_pod(0, 0).unwrap());
    carry_all(&fabric, End::Pod(&pod), PEER, &[1]);
    fabric.detach(1).unwrap();
    wait_for_eni(&fabric, 1, "not-ready");
    // Traffic that does not need the ENI goes on.
    carry_all(&fabric, End::Pod(&other), PEER, &[0]);
    carry_all(&fabric, PEER, End::Pod(&other), &[0]);
    carry_all(&fabric, End::Pod(&pod), End::Pod(&other), &[]);
    carry_all(&fabric, End::Node, End::Pod(&pod), &[]);
    let stuck = testkit::fabric::traffic::ping(
        pod.at(ipam::Family::V4),
        fabric.peer(ipam::Family::V4).address,
        &["-W", "1"],
    );
    stuck.unwrap_err();
    fabric.agent.ask("GET", "/v1/status", None).unwrap();

    // The new device gets another index: something else takes the next one first.
    fabric.node.ip("link add between type bridge").unwrap();
    fabric.attach(1).unwrap();
    wait_for_eni(&fabric, 1, "ready");
    carry_all(&fabric, End::Pod(&pod), PEER, &[1]);
    carry_all(&fabric, PEER, End::Pod(&pod), &[1]);
    within(CHANGE, "nothing of the old device is left", || {
        nothing_differs(&fabric)
    });
    fabric.finish().unwrap();
}

#[test]
fn an_eni_that_leaves_the_document_is_withdrawn() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let other = fabric.add_pod(0, 0).unwrap();
    let before = fabric.state().unwrap();
    let eni = fabric.enis.pop().unwrap();
    fabric.publish().unwrap();
    within(CHANGE, "its rules, routes and address are gone", || {
        let state = fabric.state()?;
        let left: Vec<_> = [
            "rules of IPv4",
            "rules of IPv6",
            "routes of IPv4",
            "addresses",
        ]
        .iter()
        .flat_map(|section| state.get(section).into_iter().flatten())
        .filter(|line| line.contains("10.0.1.") || line.contains("lookup 11"))
        .collect();
        check(left.is_empty(), || format!("{left:?}"))?;
        nothing_differs(&fabric)
    });
    carry_all(&fabric, End::Pod(&other), PEER, &[0]);
    fabric.enis.push(eni);
    fabric.publish().unwrap();
    wait_for_eni(&fabric, 1, "ready");
    let after = fabric.state().unwrap();
    assert_eq!(testkit::fabric::state::difference(&before, &after), "");
    fabric.finish().unwrap();
}

#[test]
fn a_second_default_route_changes_nothing_for_pods() {
    let mut fabric = Fabric::create(&Spec::default()).unwrap();
    // systemd-networkd configures a secondary ENI with an address and a default route of the same
    // metric.
    fabric
        .node
        .ip("link set eth1 up\n\
             addr add 10.0.1.10/24 dev eth1\n\
             route append default via 10.0.1.1 dev eth1\n\
             route append default via fe80:ec2::1 dev eth1")
        .unwrap();
    fabric.start_agent().unwrap();
    let pods = [fabric.add_pod(0, 0).unwrap(), fabric.add_pod(1, 0).unwrap()];
    for (pod, eni) in pods.iter().zip([0, 1]) {
        carry_all(&fabric, End::Pod(pod), PEER, &[eni]);
        carry_all(&fabric, PEER, End::Pod(pod), &[eni]);
    }
    carry_all(&fabric, End::Pod(&pods[0]), End::Pod(&pods[1]), &[]);
    let routes = fabric.node.run("ip route show default").unwrap();
    assert!(
        routes.contains("via 10.0.1.1"),
        "a stranger's route stays: {routes}"
    );
    fabric.finish().unwrap();
}

#[test]
fn an_unknown_mac_holds_back_nobody_else() {
    let mut fabric = Fabric::create(&Spec::default()).unwrap();
    let mut document = fabric.document();
    let stray =
        testkit::fabric::layout::Eni::new(2, testkit::fabric::layout::Addressing::Addresses);
    let mut entry = testkit::fabric::document::document(std::slice::from_ref(&stray));
    document["status"]["eni"]["enis"][stray.id()] =
        entry["status"]["eni"]["enis"][stray.id()].take();
    fabric.agent.write_document(&document).unwrap();
    fabric.start_agent().unwrap();
    let pod = fabric.add_pod(1, 0).unwrap();
    carry_all(&fabric, End::Pod(&pod), PEER, &[1]);
    let eni = eni_status(&fabric, 2).unwrap();
    assert_eq!(eni["readiness"]["state"], "not-ready", "{eni}");
    assert!(eni.to_string().contains(&stray.mac.to_string()), "{eni}");
    let health = get(&fabric, "/v1/status")["health"].clone();
    assert_eq!(health["state"], "degraded", "{health}");
    fabric.finish().unwrap();
}
