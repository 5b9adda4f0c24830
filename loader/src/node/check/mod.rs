//! From the document's texts to checked values. Everything that is wrong is found, not only the
//! first thing.

mod blocks;
mod eni;
mod exclusion;
mod pools;
mod status;
mod values;

use std::collections::BTreeMap;
use std::net::IpAddr;

use datapath_common::mark::MarkLayout;

use self::blocks::Claim;
use self::eni::Context;
use super::document::{CiliumNode, IpamSpec, NodeAddress};
use super::problem::{DocumentError, Findings};
use crate::intent::{Eni, Node};

const API_VERSION: &str = "cilium.io/v2";
const KIND: &str = "CiliumNode";
/// Longest name of a Kubernetes object (RFC 1123 subdomain).
const NAME_MAX: usize = 253;

/// Checks a document.
pub(super) fn check(doc: &CiliumNode, mark: MarkLayout) -> Result<Node, DocumentError> {
    let mut findings = Findings::default();
    if doc.api_version != API_VERSION {
        findings.refuse("apiVersion", &doc.api_version, API_VERSION);
    }
    if doc.kind != KIND {
        findings.refuse("kind", &doc.kind, KIND);
    }
    check_name(&doc.metadata.name, &mut findings);
    if let Some(first) = doc.spec.eni.first_interface_index.filter(|i| *i < 0) {
        findings.refuse(
            "spec.eni.first-interface-index",
            &first.to_string(),
            "0 or more",
        );
    }
    let addresses = node_addresses(&doc.spec.addresses, "InternalIP", &mut findings);
    let external_addresses = node_addresses(&doc.spec.addresses, "ExternalIP", &mut findings);
    let pools = pools::check(&doc.spec.ipam.pools.allocated, &mut findings);

    let pre_allocate = u32::try_from(doc.spec.ipam.pre_allocate)
        .inspect_err(|_| {
            let value = doc.spec.ipam.pre_allocate.to_string();
            findings.refuse("spec.ipam.pre-allocate", &value, "0 or more, below 2^32");
        })
        .ok()
        .filter(|count| *count > 0);

    let context = Context {
        mark,
        spec: &doc.spec.eni,
        node: &addresses,
    };
    let mut enis = Vec::new();
    let mut claims = Vec::new();
    for (key, eni) in &doc.status.eni.enis.0 {
        let (eni, claimed) = eni::check(key, eni, &context, &mut findings);
        enis.extend(eni);
        claims.extend(claimed);
    }
    refuse_twice(&enis, "number", |eni| eni.number, &mut findings);
    refuse_twice(&enis, "mac", |eni| eni.mac, &mut findings);
    refuse_overlaps(claims, &mut findings);
    note_pool(&doc.spec.ipam, &enis, &mut findings);
    let static_address = status::static_address(doc, &mut findings);
    status::note_operator(&doc.status.ipam, &mut findings);

    Ok(Node {
        notes: findings.finish()?,
        refused: Vec::new(),
        name: doc.metadata.name.clone(),
        addresses,
        external_addresses,
        pools: pools.by_block,
        allocated: pools.allocated,
        pre_allocate,
        flat: None,
        static_address,
        enis: enis.into_iter().map(|eni| (eni.number, eni)).collect(),
    })
}

fn check_name(name: &str, findings: &mut Findings) {
    let label = |label: &str| {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        !label.is_empty()
            && label.bytes().all(inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if name.len() > NAME_MAX || !name.split('.').all(label) {
        findings.refuse(
            "metadata.name",
            name,
            "the name of a Kubernetes node: lower case letters, digits, '-' and '.', at most 253",
        );
    }
}

/// The addresses of a type, in order. Entries of other types are the business of others
/// (`CiliumInternalIP` is an address of Cilium's own device).
fn node_addresses(entries: &[NodeAddress], wanted: &str, findings: &mut Findings) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for (i, entry) in entries.iter().enumerate() {
        // Once, not for every type that is wanted.
        if entry.kind.is_empty() && wanted == "InternalIP" {
            findings.refuse(
                format_args!("spec.addresses[{i}].type"),
                "",
                "a type of address (InternalIP, ExternalIP, CiliumInternalIP)",
            );
        }
        if entry.kind == wanted {
            let path = format_args!("spec.addresses[{i}].ip");
            addresses.extend(values::ip(findings, path, &entry.ip));
        }
    }
    addresses
}

/// Refuses a value that two ENIs have.
fn refuse_twice<T: Ord + std::fmt::Display>(
    enis: &[Eni],
    field: &str,
    value: impl Fn(&Eni) -> T,
    findings: &mut Findings,
) {
    let mut seen = BTreeMap::new();
    for eni in enis {
        let value = value(eni);
        if let Some(first) = seen.get(&value) {
            findings.refuse(
                format_args!("status.eni.enis.{}.{field}", eni.id),
                &value.to_string(),
                format_args!("one that no other ENI has; {first} has it"),
            );
        } else {
            seen.insert(value, &eni.id);
        }
    }
}

/// Refuses blocks and primary addresses that overlap, of one ENI or of two.
fn refuse_overlaps(mut claims: Vec<Claim>, findings: &mut Findings) {
    // A CIDR sorts before what it contains, and CIDRs are disjoint or nested.
    claims.sort();
    let mut last: Option<Claim> = None;
    for claim in claims {
        match &last {
            Some(outer) if outer.net.contains(&claim.net) => findings.refuse(
                claim.path,
                &claim.net.to_string(),
                format_args!("clear of {}, which is {}", outer.net, outer.path),
            ),
            Some(_) | None => last = Some(claim),
        }
    }
}

/// Notes addresses of the flat pool that their ENI does not have. Spec and status are written one
/// after the other, so this is no error; only the status counts.
fn note_pool(spec: &IpamSpec, enis: &[Eni], findings: &mut Findings) {
    for (address, entry) in &spec.pool {
        let Some(eni) = enis.iter().find(|eni| eni.id == entry.resource) else {
            continue;
        };
        let owned = address.parse().is_ok_and(|ip| eni.owns(ip));
        if !owned {
            findings.note(
                format_args!("spec.ipam.pool.{address}"),
                format_args!("status.eni.enis.{} does not have it: not used", eni.id),
            );
        }
    }
}
