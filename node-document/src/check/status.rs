//! The operator's status of addresses.

use loader::intent::StaticAddress;

use crate::fields::{CiliumNode, IpamStatus};
use crate::problem::Findings;

/// State of the public address that `static-ip-tags` request.
pub(super) fn static_address(doc: &CiliumNode, findings: &mut Findings) -> StaticAddress {
    let assigned = &doc.status.ipam.assigned_static_ip;
    if !assigned.is_empty() {
        return StaticAddress::Assigned;
    }
    let tags = &doc.spec.ipam.static_ip_tags;
    if tags.is_empty() {
        return StaticAddress::NotAsked;
    }
    let pairs: Vec<String> = tags.iter().map(|(k, v)| format!("{k}={v}")).collect();
    findings.note(
        "spec.ipam.static-ip-tags",
        format_args!(
            "the operator has assigned no public address with the tags {} yet \
             (status.ipam.assigned-static-ip)",
            pairs.join(", ")
        ),
    );
    StaticAddress::Awaited
}

/// Adds a note with the operator's error about demand that it cannot meet.
pub(super) fn note_operator(status: &IpamStatus, findings: &mut Findings) {
    let error = &status.operator_status.error;
    if !error.is_empty() {
        findings.note("status.ipam.operator-status.error", error);
    }
}
