//! The documents that the operator writes, read as agents read them.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use datapath_common::mark::MarkLayout;
use loader::intent::Unfollowed;
use serde_json::{Value, json};
use testkit::cloud::audit::published;
use testkit::fabric::eventually::{check, eventually};

use super::bed::{Bed, NODES, SOON};

/// The agent refuses and notes nothing of a document, and has each published address on the ENI that
/// the status names.
fn is_read_whole(document: &Value) -> Result<()> {
    let node = node_document::parse(&document.to_string(), MarkLayout::DEFAULT)?;
    let Unfollowed { notes, refused } = &node.unfollowed;
    ensure!(refused.is_empty(), "refused: {refused:?}");
    ensure!(notes.is_empty(), "notes: {notes:?}");
    ensure!(node.others.is_empty(), "unused: {:?}", node.others);
    for (id, address) in published(document) {
        let owner = node.enis.values().find(|eni| eni.id == id);
        let owner = owner.with_context(|| format!("{id} is not read"))?;
        ensure!(owner.owns(address.parse()?), "{id} has no {address}");
    }
    Ok(())
}

/// The addresses of the flat pool, each with its ENI.
fn flat(document: &Value) -> BTreeSet<(String, String)> {
    let pool = document["spec"]["ipam"]["pool"].as_object();
    let entries = pool.into_iter().flatten().map(|(address, entry)| {
        let eni = entry["resource"].as_str().unwrap_or_default();
        (eni.to_owned(), address.clone())
    });
    entries.collect()
}

#[test]
fn agents_of_both_generations_read_what_is_written() {
    let bed = Bed::create(2).unwrap();
    let _operator = bed.start(0, &json!({})).unwrap();
    bed.add_node(0, 12).unwrap();
    // An agent before Cilium 1.20 requests nothing.
    let mut old = bed.add_host(1, 0).unwrap();
    old["spec"]["ipam"] = json!({"pre-allocate": 8});
    let admin = bed.plane.server.admin();
    admin.post(NODES, &old).unwrap().expect(201).unwrap();

    is_read_whole(&bed.node_has(0, 12).unwrap()).unwrap();
    bed.node_has(1, 8).unwrap();
    let look = || {
        let document = bed.node(1)?;
        let written: BTreeSet<_> = published(&document).into_iter().collect();
        let pool = flat(&document);
        check(pool == written, || format!("{pool:?}, status {written:?}"))?;
        Ok(document)
    };
    let (document, _) = eventually(SOON, "the flat pool is that of the status", look).unwrap();
    is_read_whole(&document).unwrap();
    bed.finish().unwrap();
}
