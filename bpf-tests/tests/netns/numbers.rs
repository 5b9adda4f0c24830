//! The number of an ENI that is gone rests while anything carries it.

use std::ops::RangeFrom;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use flows::LONGEST;
use serde_json::{Value, json};
use testkit::fabric::eventually::check;
use testkit::fabric::{Fabric, Spec};

use crate::support::{CHANGE, get, within};

/// Numbers of the ENIs by id.
fn numbers(fabric: &Fabric) -> Vec<(String, u64)> {
    let enis = get(fabric, "/v1/enis");
    let enis = enis.as_array().into_iter().flatten();
    let number = |eni: &Value| {
        let id = eni["id"].as_str()?.to_owned();
        Some((id, eni["number"].as_u64()?))
    };
    enis.filter_map(number).collect()
}

/// The document with another id for ENI 1, as if another one had been attached in its place.
fn replaced(fabric: &Fabric, id: &str) -> Value {
    let mut document = fabric.document();
    let enis = document["status"]["eni"]["enis"].as_object_mut().unwrap();
    let mut eni = enis.remove(&fabric.eni(1).unwrap().id()).unwrap();
    eni["id"] = json!(id);
    enis.insert(id.to_owned(), eni);
    document
}

/// Puts an ENI of this id in the place of the one before, and waits for its number.
fn attach(fabric: &Fabric, id: &str) -> u64 {
    fabric.agent.write_document(&replaced(fabric, id)).unwrap();
    within(CHANGE, &format!("{id} has a number"), || {
        let numbers = numbers(fabric);
        let found = numbers.iter().find(|(name, _)| name == id);
        let number = found.map(|(_, number)| *number);
        number.ok_or_else(|| anyhow::anyhow!("{numbers:?}"))
    })
}

/// Waits for a sweep that begins from now on.
fn next_sweep(fabric: &Fabric) {
    let start = Instant::now();
    within(LONGEST + CHANGE, "a sweep", || {
        let stats = fabric.agent.ask("GET", "/v1/nat/stats", None)?;
        let ago = stats["sweeper"]["last-sweep"]["seconds-ago"].as_u64();
        // It is rounded down.
        let ago = ago.map(|ago| Duration::from_secs(ago + 1));
        check(ago.is_some_and(|ago| ago < start.elapsed()), || {
            stats.to_string()
        })
    });
}

/// Puts new ENIs in the place of ENI 1, a sweep apart, until one gets this number. None may get one
/// that is kept.
fn attach_until(fabric: &Fabric, ids: &mut RangeFrom<u8>, wanted: u64, kept: Option<u64>) {
    within(
        4 * (LONGEST + CHANGE),
        &format!("number {wanted} is free"),
        || {
            next_sweep(fabric);
            // One that was here before would get its own number back.
            let id = ids.next().context("ids are left")?;
            let number = attach(fabric, &format!("eni-new{id}"));
            assert_ne!(Some(number), kept);
            check(number == wanted, || number.to_string())
        },
    );
}

#[test]
fn a_number_in_a_mark_of_conntrack_is_not_given_again() {
    let fabric = Fabric::ready(&Spec::default()).unwrap();
    // ENI 1's bits with another's beside them, as `CONNMARK --save-mark` keeps them.
    let flow = "-p udp -s 10.0.1.20 -d 192.0.2.1 --sport 1000 --dport 2000";
    let mark = (2 << 24) | 0x4000;
    let insert = format!("conntrack -I -t 600 {flow} --mark {mark}");
    fabric.node.run(&insert).unwrap();
    let mut ids = 1..;
    attach_until(&fabric, &mut ids, 2, Some(1));
    // Number 2 goes and comes back, and the sweeps that let it free leave 1 alone.
    assert_eq!(attach(&fabric, "eni-between"), 3);
    attach_until(&fabric, &mut ids, 2, Some(1));

    fabric.node.run(&format!("conntrack -D {flow}")).unwrap();
    attach_until(&fabric, &mut ids, 1, None);
    fabric.finish().unwrap();
}
