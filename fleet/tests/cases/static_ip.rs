//! Static IPs: a node gets an Elastic IP address by tags.

use std::time::Duration;

use ec2_fake::{Associate, Call, Fault as InjectedFault, FaultKind, Request, Settings as Rules};
use serde_json::{Value, json};

use super::bed::{Bed, Fault, Planned, document, world_of};

const MINUTE: Duration = Duration::from_mins(1);
const SECOND: Duration = Duration::from_secs(1);
const CALL: &str = "AssociateAddress";

/// Nodes that ask for an address with the tag `role=egress`, of which there are so many beside one
/// of another role.
fn bed(nodes: &[&str], addresses: u8) -> Bed {
    bed_of(nodes, addresses, None)
}

/// Such nodes, in a cloud with these settings.
fn bed_of(nodes: &[&str], addresses: u8, rules: Option<Rules>) -> Bed {
    let mut document = document();
    let other = json!({"id": "eipalloc-0", "ip": "198.51.100.100", "tags": {"role": "other"}});
    let egress = (1..=addresses).map(|n| {
        json!({
            "id": format!("eipalloc-{n}"), "ip": format!("198.51.100.{n}"),
            "tags": {"role": "egress", "n": n.to_string()}
        })
    });
    document["addresses"] = [other].into_iter().chain(egress).collect();
    let mut world = world_of(document);
    if let Some(rules) = rules {
        world.settings = rules;
    }
    let mut bed = Bed::new(&world);
    for name in nodes {
        bed.add_node(name, "m5.large", "subnet-a");
        ask(&mut bed, name, &json!({"role": "egress"}));
    }
    bed.run(MINUTE);
    bed.lead();
    bed
}

fn ask(bed: &mut Bed, name: &str, tags: &Value) {
    bed.change(name, &json!({"spec": {"ipam": {"static-ip-tags": tags}}}));
}

/// The address in a node's status.
fn assigned<'a>(bed: &'a Bed, name: &str) -> Option<&'a str> {
    bed.api.objects[name]["status"]["ipam"]["assigned-static-ip"].as_str()
}

/// True if an ENI in a node's status has the address.
fn shows(bed: &Bed, name: &str, address: &str) -> bool {
    let enis = bed.api.objects[name]["status"]["eni"]["enis"].as_object();
    let mut enis = enis.into_iter().flatten();
    enis.any(|(_, eni)| eni["public-ip"] == address)
}

/// The address that EC2 has for the primary ENI of a node.
fn held(bed: &Bed, name: &str) -> Option<String> {
    let primary = bed.cloud.primary_of(&format!("i-{name}"))?;
    let eni = bed.cloud.interface(&primary)?;
    let public = eni.addresses.public.get(&eni.addresses.primary?)?;
    Some(public.ip.to_string())
}

/// Waits until the status of a node has the address that EC2 has for it.
fn served(bed: &mut Bed, name: &str, what: &str) -> String {
    let both = |bed: &Bed| {
        assigned(bed, name).is_some() && assigned(bed, name) == held(bed, name).as_deref()
    };
    bed.until(MINUTE * 3, what, both);
    held(bed, name).unwrap()
}

/// Another client gives an address to an instance.
fn associate(bed: &mut Bed, allocation: &str, name: &str) {
    let call = Call::Associate(Associate {
        allocation: allocation.to_owned(),
        instance: None,
        eni: bed.cloud.primary_of(&format!("i-{name}")),
        private: None,
        reassociate: true,
    });
    let request = Request {
        call,
        dry_run: false,
    };
    let date = bed.at().date;
    bed.cloud.call(date, "other", &request).outcome.unwrap();
}

fn refused(bed: &Bed) -> usize {
    let log = bed.cloud.log();
    log.filter(|it| it.action == CALL && it.error.is_some())
        .count()
}

#[test]
fn a_node_gets_one_address_with_the_tags_and_then_rests() {
    let mut bed = bed(&["one"], 3);
    let address = served(&mut bed, "one", "an address");
    assert_ne!(address, "198.51.100.100");
    assert!(shows(&bed, "one", &address));
    bed.until(MINUTE, "addresses for pods", |bed| bed.shown("one") >= 8);
    let writes = bed.api.writes["one"];
    let reads = bed.calls("DescribeAddresses");
    bed.run(MINUTE * 60);
    assert_eq!((bed.calls(CALL), bed.api.writes["one"]), (1, writes));
    assert!(bed.calls("DescribeAddresses") - reads <= 13);
    assert_eq!(bed.report("one"), "");
}

#[test]
fn nodes_without_such_tags_cause_no_reads() {
    let mut bed = bed(&[], 1);
    bed.add_node("one", "m5.large", "subnet-a");
    bed.run(MINUTE * 10);
    assert_eq!((bed.calls("DescribeAddresses"), bed.shown("one")), (0, 8));
    assert_eq!(assigned(&bed, "one"), None);
}

#[test]
fn two_nodes_never_have_the_same_address() {
    for seed in 0..10 {
        let rules = Rules {
            seed,
            ..Rules::default()
        };
        let mut bed = bed_of(&["one", "two"], 2, Some(rules));
        let one = served(&mut bed, "one", "the first");
        let two = served(&mut bed, "two", "the second");
        assert_ne!(one, two, "seed {seed}");
        assert_eq!((bed.calls(CALL), refused(&bed)), (2, 0), "seed {seed}");
    }
}

#[test]
fn of_two_nodes_and_one_address_one_waits_and_names_the_tags() {
    let mut bed = bed(&["one", "two"], 1);
    bed.run(MINUTE * 2);
    let nodes = ["one", "two"];
    let has: Vec<_> = nodes.map(|name| assigned(&bed, name).is_some()).into();
    assert_eq!(has.iter().filter(|it| **it).count(), 1);
    let (winner, loser) = if has[0] {
        ("one", "two")
    } else {
        ("two", "one")
    };
    let report = bed.report(loser);
    assert!(
        report.starts_with("StaticIpMissing: no Elastic IP address")
            && report.contains("(role=egress)"),
        "{report}"
    );
    assert_eq!(bed.report(winner), "");
    // Its addresses for pods do not wait for that, and nothing is written again.
    assert!(bed.shown(loser) >= 8);
    let writes = bed.api.writes[loser];
    bed.run(MINUTE * 30);
    assert_eq!((bed.calls(CALL), bed.api.writes[loser]), (1, writes));
    let date = bed.at().date;
    bed.cloud.terminate(&format!("i-{winner}"), date).unwrap();
    served(&mut bed, loser, "the address that is free now");
    assert_eq!(bed.report(loser), "");
}

#[test]
fn an_address_that_another_client_took_is_passed_over() {
    let mut bed = bed(&["one", "other"], 2);
    ask(&mut bed, "other", &Value::Null);
    // The operator has read the addresses, and waits for its ENIs.
    bed.cloud.inject(InjectedFault {
        action: CALL.to_owned(),
        names: None,
        skip: 0,
        count: 1,
        kind: FaultKind::Refused("Resource.AlreadyAssociated".to_owned()),
    });
    bed.until(MINUTE, "a refusal", |bed| refused(bed) == 1);
    associate(&mut bed, "eipalloc-1", "other");
    assert_eq!(served(&mut bed, "one", "the other one"), "198.51.100.2");
    assert_eq!(bed.calls(CALL), 3);
    assert_eq!(held(&bed, "other").as_deref(), Some("198.51.100.1"));
}

#[test]
fn an_address_that_the_node_has_already_is_the_answer() {
    let mut bed = bed(&["one"], 3);
    bed.kill();
    associate(&mut bed, "eipalloc-3", "one");
    let calls = bed.calls(CALL);
    bed.run(SECOND * 20);
    bed.lead();
    assert_eq!(served(&mut bed, "one", "that address"), "198.51.100.3");
    assert_eq!(bed.calls(CALL), calls);
}

#[test]
fn a_foreign_address_of_the_node_is_kept_and_named() {
    let mut bed = bed(&["one"], 2);
    bed.kill();
    associate(&mut bed, "eipalloc-0", "one");
    let calls = bed.calls(CALL);
    bed.run(SECOND * 20);
    bed.lead();
    bed.run(MINUTE * 5);
    let report = bed.report("one");
    assert!(report.starts_with("StaticIpMissing: eni-"), "{report}");
    assert!(report.contains("198.51.100.100"), "{report}");
    assert_eq!(held(&bed, "one").as_deref(), Some("198.51.100.100"));
    assert_eq!((bed.calls(CALL), assigned(&bed, "one")), (calls, None));
}

#[test]
fn an_address_that_a_person_took_away_is_replaced() {
    let mut bed = bed(&["one", "other"], 2);
    ask(&mut bed, "other", &Value::Null);
    let first = served(&mut bed, "one", "an address");
    let number = first.rsplit('.').next().unwrap().to_owned();
    associate(&mut bed, &format!("eipalloc-{number}"), "other");
    bed.until(MINUTE * 12, "another address", |bed| {
        assigned(bed, "one").is_some_and(|it| it != first)
    });
    let second = served(&mut bed, "one", "the same in EC2");
    assert_ne!(first, second);
}

#[test]
fn every_fault_of_the_call_and_of_the_write_heals() {
    for (what, kills) in [CALL, "status"]
        .into_iter()
        .flat_map(|it| [(it, false), (it, true)])
    {
        for (skip, fault) in (0..2).flat_map(|skip| Fault::ALL.map(|fault| (skip, fault))) {
            let rules = Rules {
                seed: u64::from(skip),
                ..Rules::default()
            };
            let name = format!("{what} {skip}, {fault:?}, killed: {kills}");
            let mut bed = bed_of(&["one", "two"], 3, Some(rules));
            bed.faults.planned = Some(Planned {
                what,
                skip,
                fault,
                kills,
            });
            for _ in 0..300 {
                bed.run(SECOND);
                if !bed.lease.is_led {
                    bed.run(SECOND * 17);
                    bed.lead();
                }
            }
            assert!(bed.faults.planned.is_none(), "{name}: nothing was hit");
            let (one, two) = (
                served(&mut bed, "one", &name),
                served(&mut bed, "two", &name),
            );
            assert_ne!(one, two, "{name}");
            // No node took a second address.
            let held = bed
                .cloud
                .interfaces()
                .filter(|it| !it.addresses.public.is_empty());
            assert_eq!(held.count(), 2, "{name}");
            assert_eq!(bed.report("one"), "", "{name}");
        }
    }
}

#[test]
fn a_new_leader_removes_no_address_by_old_reads() {
    // The reads of each cloud lag by other times.
    for seed in 0..16 {
        let rules = Rules {
            seed,
            ..Rules::default()
        };
        let mut bed = bed_of(&[], 3, Some(rules));
        bed.add_node("one", "m5.large", "subnet-a");
        bed.until(MINUTE * 3, "addresses for pods", |bed| {
            bed.shown("one") >= 8
        });
        // Only the static IP is new. While ENIs are new as well, their read by id comes first.
        bed.run(MINUTE * 3);
        ask(&mut bed, "one", &json!({"role": "egress"}));
        let address = served(&mut bed, "one", "an address");
        for _ in 0..2 {
            bed.kill();
            bed.run(SECOND);
            bed.lead();
            let end = bed.at().now.after(MINUTE);
            bed.until(MINUTE, "the end", |bed| {
                assert_eq!(assigned(bed, "one"), Some(address.as_str()), "{seed}");
                assert!(shows(bed, "one", &address), "{seed}");
                // A call that reads do not show yet is repeated for the same address.
                assert_eq!(held(bed, "one").as_ref(), Some(&address), "{seed}");
                bed.at().now >= end
            });
        }
        // Each of the two later leaders repeats it once at most.
        assert!(bed.calls(CALL) <= 3, "{seed}: {}", bed.calls(CALL));
    }
}

#[test]
fn another_instance_of_the_name_gets_its_own_address() {
    let mut bed = bed(&["one"], 1);
    served(&mut bed, "one", "an address");
    let date = bed.at().date;
    bed.cloud.terminate("i-one", date).unwrap();
    let next =
        json!({"id": "i-next", "type": "m5.large", "subnet": "subnet-a", "groups": ["sg-1"]});
    bed.cloud
        .start(&serde_json::from_value(next).unwrap(), date)
        .unwrap();
    bed.change("one", &json!({"spec": {"instance-id": "i-next"}}));
    bed.until(SECOND * 10, "no address of the old instance", |bed| {
        assigned(bed, "one").is_none()
    });
    let has = |bed: &Bed| {
        let eni = bed.cloud.primary_of("i-next");
        let eni = eni.and_then(|id| bed.cloud.interface(&id));
        eni.is_some_and(|it| !it.addresses.public.is_empty()) && assigned(bed, "one").is_some()
    };
    bed.until(MINUTE * 3, "the address", has);
}

#[test]
fn missing_rights_are_named_by_that_node_alone() {
    for action in ["DescribeAddresses", CALL] {
        let mut bed = bed(&["one", "other"], 1);
        ask(&mut bed, "other", &Value::Null);
        bed.cloud.inject(InjectedFault {
            action: action.to_owned(),
            names: None,
            skip: 0,
            count: 1_000,
            kind: FaultKind::Refused("UnauthorizedOperation".to_owned()),
        });
        bed.until(MINUTE * 2, "addresses for pods", |bed| {
            bed.shown("one") >= 8 && bed.shown("other") >= 8
        });
        let reads = bed.calls("DescribeNetworkInterfaces");
        bed.run(MINUTE);
        assert!(bed.calls("DescribeNetworkInterfaces") > reads);
        let report = bed.report("one");
        let expected = format!("Denied: {action}: UnauthorizedOperation");
        assert!(report.starts_with(&expected), "{report}");
        assert_eq!(bed.report("other"), "");
        bed.run(MINUTE * 4);
        assert!(bed.calls(action) <= 3, "{}", bed.calls(action));
    }
}
