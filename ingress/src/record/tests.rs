use serde_json::json;

use super::*;
use crate::network::Network;

const NOW: Duration = Duration::from_secs(1000);

fn request(node: &str, network: &str, subnet: &str) -> Request {
    let config = json!({"cniVersion": "1.0.0", "name": network, "type": "towpath-cni",
        "ipam": {"type": "host-local", "subnet": subnet}});
    let network = Network {
        name: network.to_owned(),
        plugin: "host-local".to_owned(),
        config: config.to_string(),
    };
    Request::new(node, &network, &["/opt/cni/bin".into()])
}

fn given() -> State {
    State::Given {
        addresses: ["10.0.1.5".parse().unwrap()].into(),
        result: Value::Null,
    }
}

fn record(entries: &[(&Request, State)]) -> Record {
    let entry = |(request, state): &(&Request, State)| Entry {
        request: Request::clone(request),
        state: state.clone(),
    };
    Record {
        entries: entries.iter().map(entry).collect(),
    }
}

#[test]
fn each_state_leads_to_its_step() {
    let one = request("a", "pods", "10.0.0.0/24");
    let renamed = request("b", "pods", "10.0.0.0/24");
    let moved = request("a", "pods", "10.1.0.0/24");
    let taken = Memory {
        taken: Some(one.clone()),
        ..Memory::default()
    };
    let checked = Memory {
        taken: Some(one.clone()),
        checked: Some(one.clone()),
        ..Memory::default()
    };
    let fresh = Memory::default();
    let empty = record(&[]);
    let requested = record(&[(&one, State::Asked)]);
    let has = record(&[(&one, given())]);
    let leaving = record(&[(&one, State::Leaving)]);
    let both = record(&[(&one, State::Leaving), (&renamed, given())]);
    for (what, record, wanted, memory, expected) in [
        ("nothing", &empty, None, &fresh, Step::Rest(None)),
        ("wanted", &empty, Some(&one), &fresh, Step::Add),
        (
            "killed in ADD",
            &requested,
            Some(&one),
            &fresh,
            Step::Delete(0),
        ),
        (
            "killed in ADD, off",
            &requested,
            None,
            &fresh,
            Step::Delete(0),
        ),
        ("given", &has, Some(&one), &fresh, Step::Take(0)),
        ("in use", &has, Some(&one), &taken, Step::Check(0)),
        ("checked", &has, Some(&one), &checked, Step::Rest(None)),
        ("switched off", &has, None, &checked, Step::Leave(0)),
        ("renamed", &has, Some(&renamed), &checked, Step::Leave(0)),
        (
            "another range",
            &has,
            Some(&moved),
            &checked,
            Step::Leave(0),
        ),
        ("DEL is owed", &leaving, Some(&one), &fresh, Step::Delete(0)),
        (
            "of an earlier name",
            &both,
            Some(&renamed),
            &fresh,
            Step::Delete(0),
        ),
    ] {
        assert_eq!(next(record, wanted, memory, NOW), expected, "{what}");
    }
}

#[test]
fn a_delete_that_fails_holds_back_only_what_the_plugin_takes_for_the_same() {
    let one = request("a", "pods", "10.0.0.0/24");
    let renamed = request("b", "pods", "10.0.0.0/24");
    let record = record(&[(&one, State::Leaving)]);
    let mut memory = Memory::default();
    memory.delete_failed(&one, NOW);
    let until = NOW + Duration::from_secs(1);
    assert_eq!(
        next(&record, Some(&one), &memory, NOW),
        Step::Rest(Some(until))
    );
    assert_eq!(next(&record, Some(&renamed), &memory, NOW), Step::Add);
    assert_eq!(next(&record, Some(&one), &memory, until), Step::Delete(0));
    memory.delete_failed(&one, until);
    let later = until + Duration::from_secs(2);
    assert_eq!(next(&record, None, &memory, until), Step::Rest(Some(later)));
    memory.delete_done(&one);
    assert_eq!(next(&record, None, &memory, until), Step::Delete(0));
}

#[test]
fn an_add_that_fails_waits_after_its_delete() {
    let one = request("a", "pods", "10.0.0.0/24");
    let mut memory = Memory::default();
    memory.add.fail(NOW);
    let requested = record(&[(&one, State::Asked)]);
    assert_eq!(next(&requested, Some(&one), &memory, NOW), Step::Delete(0));
    let until = NOW + Duration::from_secs(1);
    let rest = Step::Rest(Some(until));
    assert_eq!(next(&record(&[]), Some(&one), &memory, NOW), rest);
    assert_eq!(next(&record(&[]), Some(&one), &memory, until), Step::Add);
}

#[test]
fn version_0_3_1_has_no_check() {
    let mut one = request("a", "pods", "10.0.0.0/24");
    one.config = one.config.replace("1.0.0", "0.3.1");
    let memory = Memory {
        taken: Some(one.clone()),
        ..Memory::default()
    };
    let has = record(&[(&one, given())]);
    assert_eq!(next(&has, Some(&one), &memory, NOW), Step::Rest(None));
}
