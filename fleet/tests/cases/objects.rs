//! Objects that are made, changed and deleted by others.

use std::time::Duration;

use cloud::call::query::Items;
use fleet::{Input, Standing, Task, Written};
use serde_json::json;

use super::bed::{Bed, world};

const MINUTE: Duration = Duration::from_mins(1);

fn bed() -> Bed {
    let mut bed = Bed::new(&world());
    bed.add_node("one", "m5.large", "subnet-a");
    bed.add_node("two", "m5.large", "subnet-a");
    bed.run(MINUTE);
    bed.lead();
    bed.run(MINUTE);
    bed
}

#[test]
fn an_object_goes_when_its_node_is_absent_and_its_instance_ended() {
    let mut bed = bed();
    bed.set_hosts(&["one", "two"]);
    bed.run(MINUTE * 10);
    bed.set_hosts(&["one"]);
    bed.run(MINUTE * 10);
    assert!(bed.api.objects.contains_key("two"), "its instance runs");
    assert_eq!(bed.fleet.without_node(), 1);
    let named = ["one", "two"].map(|name| {
        let findings = bed.fleet.why(name, bed.at()).unwrap().findings;
        findings
            .iter()
            .any(|it| it.starts_with("there is no Node "))
    });
    assert_eq!(named, [false, true]);
    let date = bed.at().date;
    bed.cloud.terminate("i-two", date).unwrap();
    bed.run(MINUTE * 7);
    assert!(!bed.api.objects.contains_key("two"));
    let date = bed.at().date;
    bed.cloud.terminate("i-one", date).unwrap();
    bed.run(MINUTE * 60);
    assert!(bed.api.objects.contains_key("one"), "its Node is there");
}

#[test]
fn an_object_of_a_node_that_was_absent_for_less_than_five_minutes_stays() {
    let mut bed = bed();
    let date = bed.at().date;
    bed.cloud.terminate("i-two", date).unwrap();
    bed.set_hosts(&["one"]);
    bed.run(Duration::from_secs(290));
    assert!(bed.api.objects.contains_key("two"));
    let at = bed.at();
    let back = Input::Host {
        name: "two".to_owned(),
        is_there: true,
    };
    bed.fleet.take(back, at);
    bed.run(MINUTE * 20);
    assert!(bed.api.objects.contains_key("two"));
}

/// Reads of EC2 can be old. One that lacks an instance is no proof that it ended.
#[test]
fn an_object_stays_when_one_read_lacks_its_instance() {
    let without = |items: &mut Items| {
        if let Items::Instances(instances) = items {
            instances.clear();
        }
    };
    let mut bed = bed();
    bed.set_hosts(&["one", "two"]);
    bed.run(MINUTE);
    bed.set_hosts(&["one"]);
    bed.run(Duration::from_secs(290));
    let reads = bed.calls("DescribeInstances");
    bed.faults.distort = without;
    bed.until(MINUTE * 7, "a read", |bed| {
        bed.calls("DescribeInstances") > reads
    });
    bed.run(Duration::from_secs(30));
    bed.faults.distort = |_| ();
    bed.run(MINUTE * 10);
    assert!(bed.api.objects.contains_key("two"), "its instance runs");
    bed.faults.distort = without;
    bed.until(MINUTE * 8, "all reads lack it", |bed| {
        !bed.api.objects.contains_key("two")
    });
    assert!(bed.api.objects.contains_key("one"), "its Node is there");
}

#[test]
fn a_node_that_is_replaced_under_its_name_starts_with_an_empty_status() {
    let mut bed = bed();
    let old: Vec<String> = enis(&bed, "one");
    let instance =
        json!({"id": "i-new", "type": "m5.large", "subnet": "subnet-a", "groups": ["sg-1"]});
    let date = bed.at().date;
    bed.cloud
        .start(&serde_json::from_value(instance).unwrap(), date)
        .unwrap();
    bed.change("one", &json!({"spec": {"instance-id": "i-new"}}));
    bed.run(Duration::from_millis(100));
    assert_eq!(enis(&bed, "one"), Vec::<String>::new());
    bed.until(MINUTE, "addresses of the new instance", |bed| {
        bed.shown("one") >= 8
    });
    assert!(enis(&bed, "one").iter().all(|id| !old.contains(id)));
    bed.assert_true("replaced");
}

fn enis(bed: &Bed, name: &str) -> Vec<String> {
    let enis = bed.api.objects[name]["status"]["eni"]["enis"].as_object();
    let keys = enis.into_iter().flat_map(|it| it.keys());
    keys.cloned().collect()
}

#[test]
fn an_object_that_is_deleted_and_made_again_by_hand_has_its_addresses_again() {
    let mut bed = bed();
    bed.request("one", 18);
    bed.run(MINUTE);
    let before = enis(&bed, "one");
    bed.api.delete("one", bed.now);
    bed.run(Duration::from_secs(1));
    bed.add_object("one", "m5.large", "subnet-a");
    bed.request("one", 18);
    bed.until(MINUTE, "18 addresses", |bed| bed.shown("one") >= 18);
    assert_eq!(enis(&bed, "one"), before);
    bed.run(MINUTE * 15);
    assert_eq!(bed.cloud.interfaces().count(), 3);
    bed.assert_no_leaks("made again");
}

#[test]
fn objects_as_they_were_an_hour_ago_lose_no_address() {
    let mut bed = bed();
    let old = bed.api.objects["one"].clone();
    bed.request("one", 18);
    bed.run(MINUTE * 3);
    let before = enis(&bed, "one");
    // The server is set back: an object of a lower version.
    bed.api.objects.insert("one".to_owned(), old);
    let list = bed.api.list();
    let at = bed.at();
    bed.fleet.take(list, at);
    bed.run(MINUTE);
    assert_eq!(enis(&bed, "one"), before);
    bed.run(MINUTE * 15);
    bed.assert_true("set back");
    bed.assert_no_leaks("set back");
}

#[test]
fn an_ignored_node_is_left_alone() {
    let mut bed = bed();
    let annotation = json!({"metadata": {"annotations": {"ipam.cilium.io/ignore": "true"}}});
    bed.change("one", &annotation);
    bed.run(Duration::from_secs(1));
    let (calls, writes) = (bed.calls("AssignPrivateIpAddresses"), bed.api.writes["one"]);
    bed.request("one", 18);
    bed.change("one", &json!({"status": {"eni": null}}));
    bed.run(MINUTE * 5);
    assert_eq!(bed.calls("AssignPrivateIpAddresses"), calls);
    assert_eq!(bed.calls("CreateNetworkInterface"), 0);
    assert_eq!(bed.api.writes["one"], writes);
}

#[test]
fn rules_that_cannot_be_read_stop_changes_and_are_named() {
    let mut bed = bed();
    bed.change("one", &json!({"spec": {"eni": {"subnet-ids": "subnet-a"}}}));
    bed.request("one", 18);
    bed.run(MINUTE * 2);
    let report = bed.report("one");
    assert!(
        report.starts_with("BadDocument: spec.eni.subnet-ids"),
        "{report}"
    );
    assert_eq!(bed.calls("CreateNetworkInterface"), 0);
    assert!(bed.shown("one") >= 8, "what is there stays");
}

#[test]
fn the_older_of_two_objects_has_the_instance() {
    let mut bed = bed();
    bed.change("two", &json!({"spec": {"instance-id": "i-one"}}));
    bed.run(MINUTE * 2);
    let report = bed.report("two");
    assert!(report.contains("i-one is also that of one"), "{report}");
    assert_eq!(bed.shown("two"), 0);
    assert!(bed.shown("one") >= 8);
    bed.assert_true("rivals");
}

#[test]
fn a_watching_operator_shows_its_steps_and_takes_none() {
    let mut bed = Bed::new(&world());
    bed.add_node("one", "m5.large", "subnet-a");
    bed.run(MINUTE);
    bed.watch();
    bed.run(MINUTE);
    let at = bed.at();
    let view = bed.fleet.why("one", at).unwrap();
    let step = view.node.step.unwrap();
    assert!(
        step.starts_with("AssignPrivateIpAddresses 8 of kind Address"),
        "{step}"
    );
    assert_eq!(view.need.as_deref(), Some("no addresses"));
    let read = |action: &str| action.starts_with("Describe");
    assert!(bed.cloud.log().all(|it| read(it.action)));
    assert_eq!(bed.api.writes.len(), 0);
    assert!(bed.events.is_empty());
    let shown = serde_json::to_value(bed.fleet.nodes(at)).unwrap();
    assert_eq!(shown[0]["missing"], 8);
    assert_eq!(bed.fleet.subnets(at)[0].id, "subnet-a");
    assert_eq!(bed.fleet.budgets(at).len(), 17);
    assert!(bed.fleet.leaks().is_empty());
}

#[test]
fn an_eni_that_a_stranger_detaches_comes_back_within_a_minute() {
    let mut bed = bed();
    bed.request("one", 18);
    bed.run(MINUTE * 3);
    let before = bed.shown("one");
    let eni = bed
        .cloud
        .interfaces()
        .find(|it| it.attachment.as_ref().is_some_and(|at| at.index == 1));
    let id = eni.unwrap().attachment.as_ref().unwrap().id.clone();
    let request = ec2_fake::Request {
        call: ec2_fake::Call::Detach(id),
        dry_run: false,
    };
    let date = bed.at().date;
    bed.cloud.call(date, "stranger", &request).outcome.unwrap();
    bed.until(MINUTE, "it is taken out of the status", |bed| {
        bed.shown("one") < before
    });
    bed.until(MINUTE, "it is back", |bed| bed.shown("one") == before);
    assert_eq!(bed.calls("CreateNetworkInterface"), 1);
    bed.assert_true("detached");
}

#[test]
fn a_follower_has_no_work() {
    let mut bed = bed();
    let at = bed.at();
    bed.fleet.take(Input::Standing(Standing::Following), at);
    assert!(bed.fleet.work(at).is_empty());
    assert_eq!(bed.fleet.wake_at(at.now), None);
}

#[test]
fn waiting_pods_come_before_spare_addresses() {
    let mut bed = bed();
    bed.add_node("big", "m5.4xlarge", "subnet-a");
    bed.run(MINUTE);
    bed.request("big", 9);
    bed.watched.pods.insert("big".to_owned(), 5);
    let at = bed.at();
    let object = bed.api.objects["big"].clone();
    bed.fleet.take(Input::Node(Box::new(object)), at);
    bed.fleet.take(Input::Pods(bed.watched.pods.clone()), at);
    let work = bed.fleet.work(at);
    let call = work.iter().find_map(|it| match &it.task {
        Task::Call(step) => Some(step.clone()),
        _ => None,
    });
    let Some(cloud::node::Step::Assign { blocks, .. }) = call else {
        panic!("{work:?}");
    };
    assert_eq!(blocks.count, 5, "one is missing, and four more pods wait");
    assert_eq!(bed.fleet.why("big", at).unwrap().node.waiting_pods, 5);
}

#[test]
fn work_that_is_never_answered_is_handed_out_again() {
    let mut bed = Bed::new(&world());
    bed.add_node("one", "m5.large", "subnet-a");
    let list = bed.api.list();
    let mut at = bed.at();
    bed.fleet.take(list, at);
    bed.fleet.take(Input::Standing(Standing::Watching), at);
    let reads = |bed: &mut Bed, at| bed.fleet.work(at).len();
    let first = reads(&mut bed, at);
    assert!(first >= 5, "{first}");
    at.now = at.now.after(Duration::from_secs(29));
    assert_eq!(reads(&mut bed, at), 0);
    at.now = at.now.after(Duration::from_secs(2));
    reads(&mut bed, at);
    at.now = at.now.after(Duration::from_secs(3));
    assert!(reads(&mut bed, at) >= 5);
}

#[test]
fn a_conflict_is_tried_again_with_the_next_event() {
    let mut bed = bed();
    bed.change("one", &json!({"status": {"eni": null}}));
    let at = bed.at();
    let patched = |bed: &mut Bed| {
        let work = bed.fleet.work(at).into_iter();
        let mut ids = work.filter_map(|it| matches!(it.task, Task::Patch { .. }).then_some(it.id));
        ids.next()
    };
    let show = |bed: &mut Bed| {
        let object = bed.api.objects["one"].clone();
        bed.fleet.take(Input::Node(Box::new(object)), at);
    };
    show(&mut bed);
    let id = patched(&mut bed).unwrap();
    let written = Written::Conflict;
    bed.fleet.take(Input::Written { id, written }, at);
    assert_eq!(patched(&mut bed), None);
    bed.change("one", &json!({"metadata": {"labels": {"a": "b"}}}));
    show(&mut bed);
    assert!(patched(&mut bed).is_some());
}

#[test]
fn fields_that_the_api_server_does_not_keep_are_named_and_hold_nothing_else_up() {
    let mut bed = Bed::new(&world());
    bed.api.lacks = Some("mac");
    bed.add_node("one", "m5.large", "subnet-a");
    bed.lead();
    bed.until(MINUTE, "addresses", |bed| bed.shown("one") >= 8);
    bed.request("one", 20);
    bed.until(MINUTE * 2, "more addresses", |bed| bed.shown("one") >= 20);
    bed.run(MINUTE);
    let before = bed.api.vain;
    bed.run(MINUTE * 60);
    // One try in ten minutes, for the resource definition can be another one by then.
    assert!(bed.api.vain - before <= 6, "{}", bed.api.vain - before);
    assert!(before <= 6, "{before}");
    let at = bed.at();
    let why = bed.fleet.why("one", at).unwrap();
    let fault = why.write_fault.unwrap();
    assert!(
        fault.contains("ciliumnodes.cilium.io") && fault.contains("mac"),
        "{fault}"
    );
}
