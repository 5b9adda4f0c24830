//! Device indexes that are exchanged while pods send: the ENIs keep their numbers, and no packet
//! leaves by another ENI in between.

use ipam::Family;
use serde_json::{Value, json};
use testkit::fabric::eventually::check;
use testkit::fabric::traffic::Stream;
use testkit::fabric::{Fabric, Place, Spec};

use crate::support::{CHANGE, End, PEER, carry_all, nothing_differs, within};

/// Number of exchanges: the moments between are short.
const TIMES: usize = 12;
/// Packets a second of each stream.
const RATE: u64 = 4000;

/// The document with the device indexes of two ENIs exchanged.
fn exchanged(fabric: &Fabric, one: u8, other: u8) -> Value {
    let mut document = fabric.document();
    let enis = &mut document["status"]["eni"]["enis"];
    enis[fabric.eni(one).unwrap().id()]["number"] = json!(other);
    enis[fabric.eni(other).unwrap().id()]["number"] = json!(one);
    document
}

fn wait_for_document(fabric: &Fabric, document: &Value) {
    let enis = document["status"]["eni"]["enis"].as_object().unwrap();
    within(CHANGE, "the indexes are taken", || {
        let listed = fabric.agent.ask("GET", "/v1/enis", None)?;
        let listed = listed.as_array().into_iter().flatten();
        for eni in listed {
            let id = eni["id"].as_str().unwrap_or_default();
            let number = enis.get(id).map(|eni| &eni["number"]);
            check(number == Some(&eni["device-index"]), || eni.to_string())?;
        }
        nothing_differs(fabric)
    });
}

/// Starts a stream.
type Start = fn(Place, Place, u64, &str) -> anyhow::Result<Stream>;

fn indexes_change_hands(start: Start) {
    let spec = Spec {
        enis: 3,
        ..Spec::default()
    };
    let mut fabric = Fabric::ready(&spec).unwrap();
    let pods = [fabric.add_pod(1, 0).unwrap(), fabric.add_pod(2, 0).unwrap()];
    let peer = fabric.peer(Family::V4);
    let streams: Vec<_> = pods
        .iter()
        .map(|pod| start(pod.at(Family::V4), peer, RATE, "udp").unwrap())
        .collect();
    let documents = [exchanged(&fabric, 1, 2), fabric.document()];
    for document in documents.iter().cycle().take(TIMES) {
        fabric.agent.write_document(document).unwrap();
        wait_for_document(&fabric, document);
    }
    for stream in streams {
        let report = stream.finish().unwrap();
        println!("{TIMES} exchanges: {report}");
        assert_eq!(report.duplicates, 0, "{report}");
    }
    for (pod, eni) in pods.iter().zip([1, 2]) {
        carry_all(&fabric, End::Pod(pod), PEER, &[eni]);
    }
    fabric.finish().unwrap();
}

#[test]
fn two_enis_can_exchange_their_indexes() {
    indexes_change_hands(Stream::start);
}

#[test]
fn two_enis_can_exchange_their_indexes_under_what_the_stack_forwards() {
    indexes_change_hands(Stream::start_by_stack);
}

/// ENI 1 is removed from the document and ENI 2 gets its index, in one change, while a pod of the
/// removed ENI still sends.
#[test]
fn an_index_that_is_used_again_is_no_way_out_for_the_pods_of_who_had_it() {
    let spec = Spec {
        enis: 3,
        ..Spec::default()
    };
    let mut fabric = Fabric::ready(&spec).unwrap();
    let pod = fabric.add_pod(1, 0).unwrap();
    let stream = Stream::start(pod.at(Family::V4), fabric.peer(Family::V4), RATE, "udp").unwrap();
    let (first, second) = (fabric.eni(1).unwrap().id(), fabric.eni(2).unwrap().id());
    let mut document = fabric.document();
    let enis = document["status"]["eni"]["enis"].as_object_mut().unwrap();
    enis.remove(&first);
    enis[&second]["number"] = json!(1);
    let whole = fabric.document();
    for document in [&document, &whole].into_iter().cycle().take(TIMES) {
        fabric.agent.write_document(document).unwrap();
        wait_for_document(&fabric, document);
    }
    println!("{}", stream.finish().unwrap());
    carry_all(&fabric, End::Pod(&pod), PEER, &[1]);
    fabric.finish().unwrap();
}
