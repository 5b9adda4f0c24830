//! Any start converges, on the real kernel: whatever of the agent's state is missing, changed or
//! stale when it starts, it reaches the same state. Foreign objects stay unchanged.

use std::collections::BTreeSet;

use api::ids::EndpointId;
use serde_json::{Value, json};
use testkit::fabric::document::document;
use testkit::fabric::eventually::check;
use testkit::fabric::state::{State, difference};
use testkit::fabric::{Fabric, Pod, Spec};
use testkit::random::Random;

use crate::damage::{Damage, Entry};
use crate::support::{CHANGE, End, PEER, carry_all, get, is_full, nothing_differs, within};

/// Starts with each kind of attachment in an ordinary run, and in the long form.
const STARTS: u64 = 5;
const STARTS_FULL: u64 = 12;

/// Foreign objects, in forms close to ours.
const FOREIGN: &str = "\
rule add priority 20 from 192.0.2.7 lookup 99
rule add priority 111 fwmark 0x80/0x80 lookup 10
-6 rule add priority 111 fwmark 0x80/0x80 lookup 10
rule add priority 112 from 10.0.1.10 to 192.0.2.9 lookup 11
rule add priority 512 to 192.0.2.10 lookup main
route add 192.0.2.128/25 via 10.0.0.1 dev eth0
route add 192.0.2.192/26 via 10.0.0.1 dev eth0 onlink table 97
addr add 192.0.2.5/32 dev eth0
link add towpath0 type bridge
link add tow-foreign type veth peer name tow-peer
neigh add 192.0.2.66 lladdr 02:00:00:00:00:66 dev towpath0 nud permanent
neigh add 10.0.1.66 lladdr 02:00:00:00:00:66 dev tow-foreign nud permanent";

/// Missing and changed objects, and remains of an older agent.
fn damages(pod: &Pod, attach: &str) -> Vec<Damage> {
    let (veth, mac) = (pod.host_device(), EndpointId::of(&pod.owner()).pod_mac());
    let v4 = pod.address(ipam::Family::V4);
    let sysctl = |key: &str, value| Damage::Sysctl(key.to_owned(), value);
    let mut damages = vec![
        Damage::DeleteMapEntry("ADDRESSES", Entry::First),
        Damage::DeleteMapEntry("DESTINATIONS", Entry::First),
        Damage::DeleteMapEntry("ENI_BY_IFINDEX", Entry::First),
        Damage::SpoilMapEntry("ADDRESSES", Entry::First),
        Damage::SpoilMapEntry("DESTINATIONS", Entry::First),
        Damage::SpoilMapEntry("ENIS", Entry::First),
        sysctl("ipv4/conf/eth1/rp_filter", "1"),
        sysctl("ipv4/conf/eth0/arp_ignore", "0"),
        sysctl("ipv4/conf/eth1/arp_announce", "0"),
        sysctl("ipv4/conf/all/send_redirects", "1"),
        sysctl("ipv6/conf/eth1/accept_ra", "1"),
        sysctl("ipv4/ip_forward", "0"),
        sysctl("ipv6/conf/all/forwarding", "0"),
    ];
    damages.extend(match attach {
        "clsact" => vec![
            Damage::Tc(format!("filter del dev {veth} ingress")),
            Damage::Tc("filter del dev eth0 ingress".to_owned()),
            Damage::Tc("qdisc del dev eth1 clsact".to_owned()),
        ],
        _ => vec![Damage::DetachLinks, Damage::RemoveLinkPins],
    });
    let text = [
        "rule del priority 20 from all lookup 220",
        "-6 rule del priority 20",
        "rule del priority 110",
        "-6 rule del priority 110",
        "rule del priority 111 lookup 11",
        "-6 rule del priority 111 lookup 11",
        "rule add priority 111 fwmark 0x9000000/0x3f000000 lookup 18",
        "-6 rule add priority 111 fwmark 0x9000000/0x3f000000 lookup 18",
        "rule add priority 112 from 10.0.1.99 lookup 11",
        "route flush table 11",
        "-6 route flush table 10",
        "route replace default via 10.0.1.77 dev eth1 onlink table 11",
        "route add unreachable 10.0.1.200/32 metric 9000 table 220",
        "addr del 10.0.1.10/32 dev eth1",
        "link set eth1 mtu 1400",
        "link set eth1 down",
        "link set eth1 name ens7",
    ];
    let of_pod = [
        format!("route del {v4} dev {veth} table 220"),
        format!("neigh del {v4} dev {veth}"),
        format!("neigh replace {v4} lladdr 02:00:00:00:00:99 dev {veth} nud permanent"),
        format!("neigh add 10.0.1.250 lladdr {mac} dev {veth} nud permanent"),
        format!("-6 neigh add 2001:db8::99 lladdr {mac} dev {veth} nud permanent"),
        format!("link del {veth}"),
    ];
    let ip = text.iter().map(ToString::to_string).chain(of_pod);
    damages.extend(ip.map(Damage::Ip));
    damages
}

/// The documents that a start may find: two ENIs, a third one too, fewer addresses on all.
fn documents(fabric: &Fabric) -> [Value; 3] {
    let (two, three) = (&fabric.enis[..2], &fabric.enis);
    let mut fewer = two.to_vec();
    for eni in &mut fewer {
        // Eight addresses of each family; the pods have the first ones.
        let blocks = eni.blocks.chunks(8);
        eni.blocks = blocks.flat_map(|family| &family[..4]).copied().collect();
    }
    [two, three, &fewer].map(document)
}

/// The number of addresses for pods in a document.
fn addresses(document: &Value) -> usize {
    let enis = document["status"]["eni"]["enis"].as_object().unwrap();
    let lists = enis.values().filter_map(|eni| eni["addresses"].as_array());
    lists.map(Vec::len).sum()
}

/// The number of unreachable routes for them on the node.
fn blocks(state: &State) -> usize {
    let lines = state.values().flatten();
    let ours = lines.filter(|line| line.starts_with("unreachable") && line.contains("table 220"));
    ours.count()
}

/// Foreign objects: the lines that a state has more than an earlier one. Sysctls of a new device
/// follow those of the node.
fn more_lines(before: &State, after: &State) -> State {
    let mut more = after.clone();
    more.remove("sysctls");
    for (section, lines) in &mut more {
        let known = before.get(section);
        lines.retain(|line| known.is_none_or(|known| !known.contains(line)));
    }
    more
}

/// Waits until the node's state is the recorded one for this document. If a section is not
/// recorded, its present state is taken.
fn comes_to(fabric: &Fabric, whole: &mut State, what: &str) {
    *whole = within(CHANGE, what, || {
        nothing_differs(fabric)?;
        let now = fabric.state()?;
        let mut after = now.clone();
        after.retain(|section, _| whole.contains_key(section));
        let difference = difference(whole, &after);
        check(difference.is_empty(), || difference.clone())?;
        Ok(now)
    });
}

/// Adds the foreign objects, and returns the lines of the state that they are.
fn add_foreign(fabric: &Fabric) -> State {
    let bare = fabric.state().unwrap();
    for line in FOREIGN.lines() {
        fabric.node.run(&format!("ip {line}")).unwrap();
    }
    let foreign = more_lines(&bare, &fabric.state().unwrap());
    let count: usize = foreign.values().map(BTreeSet::len).sum();
    assert!(count >= FOREIGN.lines().count(), "{foreign:#?}");
    foreign
}

/// The settled state of a node that follows a document.
fn followed(fabric: &Fabric, document: &Value) -> State {
    fabric.agent.write_document(document).unwrap();
    within(CHANGE, "the document is followed", || {
        let state = fabric.state()?;
        let (there, listed) = (blocks(&state), addresses(document));
        check(there == listed, || format!("{there} blocks of {listed}"))?;
        nothing_differs(fabric)?;
        // The first one may be from before the last step.
        let (again, settled) = (fabric.state()?, fabric.state()?);
        let moved = [difference(&state, &again), difference(&again, &settled)];
        check(moved.iter().all(String::is_empty), || moved.concat())?;
        Ok(settled)
    })
}

/// Inflicts some of the damages, and returns their names.
fn inflict(fabric: &Fabric, damages: &[Damage], random: &mut Random) -> Vec<String> {
    let mut done = Vec::new();
    for damage in damages {
        // One damage may make the next one impossible.
        if random.number().is_multiple_of(3) && damage.inflict(fabric).is_ok() {
            done.push(damage.name());
        }
    }
    done
}

/// Traffic of both pods makes the agent repair nothing: a settled state stays settled.
fn nothing_is_left_to_repair(fabric: &Fabric, pods: [&Pod; 2], what: &str) {
    let repairs = || get(fabric, "/v1/status")["repairs"]["total"].clone();
    let before = repairs();
    carry_all(fabric, End::Pod(pods[0]), PEER, &[1]);
    carry_all(fabric, PEER, End::Pod(pods[1]), &[0]);
    assert_eq!(repairs(), before, "{what}");
}

fn any_start_converges(attach: &str) {
    let spec = Spec {
        enis: 3,
        late: vec![2],
        settings: json!({"datapath": {"attach": attach}}),
        ..Spec::default()
    };
    let mut fabric = Fabric::create(&spec).unwrap();
    let third = fabric.eni(2).unwrap();
    fabric.vpc.attach(&fabric.node, third, spec.mtu).unwrap();
    let foreign = add_foreign(&fabric);
    let documents = documents(&fabric);
    fabric.start_agent().unwrap();
    let (pod, other) = (fabric.add_pod(1, 0).unwrap(), fabric.add_pod(0, 0).unwrap());
    // All three ENIs are in use when the first state is taken: their devices stay up.
    within(CHANGE, "everything is there", || nothing_differs(&fabric));
    let mut wholes = [0, 2, 1].map(|target: usize| followed(&fabric, &documents[target]));
    wholes.swap(1, 2);
    let mut target = 1;
    let starts = if is_full() { STARTS_FULL } else { STARTS };
    for seed in 1..=starts {
        let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        fabric.agent.kill().unwrap();
        let done = inflict(&fabric, &damages(&pod, attach), &mut random);
        target = (target + 1 + usize::from(random.number().is_multiple_of(2))) % documents.len();
        fabric.agent.write_document(&documents[target]).unwrap();
        let what = format!("seed {seed}, document {target}, after {done:#?}");
        if done.iter().any(|damage| damage.contains("link del")) {
            // The device has another index, which the maps and the pins' names contain.
            for whole in &mut wholes {
                whole.remove("maps");
            }
        }
        fabric.start_agent().unwrap();
        if done.iter().any(|damage| damage.contains(" name ")) {
            within(CHANGE, &what, || nothing_differs(&fabric));
            let back = "link set ens7 down\nlink set ens7 name eth1\nlink set eth1 up";
            fabric.node.ip(back).unwrap();
        }
        comes_to(&fabric, &mut wholes[target], &what);
        let lost = more_lines(&wholes[target], &foreign);
        assert!(lost.values().all(BTreeSet::is_empty), "{what}: {lost:#?}");
        nothing_is_left_to_repair(&fabric, [&pod, &other], &what);
    }
    fabric.finish().unwrap();
}

#[test]
fn any_start_converges_with_tcx() {
    any_start_converges("tcx");
}

#[test]
fn any_start_converges_with_clsact() {
    any_start_converges("clsact");
}
