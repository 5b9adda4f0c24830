//! Conversion of the document's texts to checked values. All problems are found, not only the first
//! one. Each affects only the part that it is in.

mod blocks;
mod claims;
mod eni;
mod exclusion;
mod pools;
mod status;
mod values;

use std::collections::BTreeMap;
use std::net::IpAddr;

use loader::intent::{Eni, Node, NodeAddresses, OtherEni, Problem, Unfollowed};

use self::eni::{Checked, Context};
use super::fields::{CiliumNode, IpamSpec, NodeAddress};
use super::placement::{Around, place};
use super::problem::{DocumentError, Findings};

const API_VERSION: &str = "cilium.io/v2";
const KIND: &str = "CiliumNode";
/// Longest name of a Kubernetes object (RFC 1123 subdomain).
const NAME_MAX: usize = 253;

/// Checks a document. `wrong` are its fields of a wrong type.
pub(super) fn check(
    doc: &CiliumNode,
    wrong: &[Problem],
    highest: u8,
) -> Result<Node, DocumentError> {
    check_object(doc)?;
    let mut findings = Findings::default();
    for problem in wrong {
        findings.put(problem.clone());
    }
    check_name(&doc.metadata.name, &mut findings);
    if let Some(first) = doc.spec.eni.first_interface_index.filter(|i| *i < 0) {
        let value = first.to_string();
        findings.refuse("spec.eni.first-interface-index", &value, "0 or more");
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
        spec: &doc.spec.eni,
        wrong,
        node: &addresses,
    };
    let (enis, others) = enis(doc, &context, &mut findings);
    note_pool(&doc.spec.ipam, &enis, &mut findings);
    let static_address = status::static_address(doc, &mut findings);
    status::note_operator(&doc.status.ipam, &mut findings);
    let (refused, notes) = findings.finish();
    let mut node = Node {
        unfollowed: Unfollowed { notes, refused },
        name: doc.metadata.name.clone(),
        instance: Some(doc.spec.instance_id.clone()).filter(|id| !id.is_empty()),
        addresses: NodeAddresses {
            internal: addresses,
            external: external_addresses,
        },
        pools: pools.by_block,
        allocated: pools.allocated,
        pre_allocate,
        flat: None,
        is_versioned: false,
        static_address,
        enis: BTreeMap::new(),
        others,
    };
    place(&mut node, enis, &Around::new(highest));
    Ok(node)
}

/// Checks that it is an object of the kind. An object of another kind is not checked further.
fn check_object(doc: &CiliumNode) -> Result<(), DocumentError> {
    let wrong = [
        ("apiVersion", &doc.api_version, API_VERSION),
        ("kind", &doc.kind, KIND),
    ];
    let wrong = wrong.into_iter().filter(|(_, value, want)| value != want);
    let wrong = wrong.map(|(path, value, want)| Problem::refused(path, value, want));
    let wrong: Vec<Problem> = wrong.collect();
    if wrong.is_empty() {
        return Ok(());
    }
    Err(wrong.into())
}

/// Checks the entries of the ENIs, each separately.
fn enis(
    doc: &CiliumNode,
    context: &Context<'_>,
    findings: &mut Findings,
) -> (Vec<Eni>, Vec<OtherEni>) {
    let mut whole = Vec::new();
    let mut others = Vec::new();
    for (key, entry) in &doc.status.eni.enis.0 {
        match eni::check(key, entry, context, findings) {
            Checked::Whole(eni, claims) => whole.push((eni, claims)),
            Checked::Other(other) => others.push(other),
        }
    }
    let (enis, unusable) = claims::settle(whole, findings);
    others.extend(unusable);
    (enis, others)
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

/// The addresses of a type, in order. Entries of other types concern other software
/// (`CiliumInternalIP` is an address of Cilium's own device).
fn node_addresses(entries: &[NodeAddress], wanted: &str, findings: &mut Findings) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for (i, entry) in entries.iter().enumerate() {
        // The problem is reported once, not for each wanted type.
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

/// Adds notes for unused entries of the flat pool: those without an address, and those whose ENI
/// does not have the address. Only the status counts. The spec is written at another time, so this
/// is no error.
fn note_pool(spec: &IpamSpec, enis: &[Eni], findings: &mut Findings) {
    let of_v4 = spec.pool.iter().map(|entry| ("pool", entry));
    let of_v6 = spec.ipv6_pool.iter().map(|entry| ("ipv6-pool", entry));
    for (field, (address, entry)) in of_v4.chain(of_v6) {
        let path = format!("spec.ipam.{field}.{address}");
        let Ok(ip) = address.parse::<IpAddr>() else {
            findings.note(path, "the key is no address: not used");
            continue;
        };
        let Some(eni) = enis.iter().find(|eni| eni.id == entry.resource) else {
            continue;
        };
        if !eni.owns(ip) {
            findings.note(
                path,
                format_args!("status.eni.enis.{} does not have it: not used", eni.id),
            );
        }
    }
}
