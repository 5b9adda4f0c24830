//! The cluster's part of the status, as text.

use api::types::{ClusterStatus, UnenforcedPolicy};
use terminal::Tone;

/// The lines of it.
pub(super) fn cluster_lines(status: &ClusterStatus) -> Vec<(Tone, String)> {
    let ClusterStatus {
        configured_services,
        service_cidrs,
        service_addresses,
        unenforced_policies,
        notes,
    } = status;
    let nets = configured_services.iter().chain(service_cidrs);
    let nets: Vec<String> = nets.map(ToString::to_string).collect();
    let nets = if nets.is_empty() {
        "no CIDR".to_owned()
    } else {
        nets.join(", ")
    };
    let services =
        format!("Services: {nets}; external addresses of the cluster: {service_addresses}");
    let notes = notes
        .iter()
        .map(|note| (Tone::Plain, format!("  note: {note}")));
    let policies = unenforced_policies.iter().map(|policy| {
        let UnenforcedPolicy {
            namespace,
            name,
            pods,
        } = policy;
        let pods = pods.join(", ");
        let text = format!(
            "NetworkPolicy {namespace}/{name} selects pods of this node ({pods}): netfilter does not see \
             their packets, and with datapath.path: stack it does"
        );
        (Tone::Warning, text)
    });
    std::iter::once((Tone::Plain, services))
        .chain(notes)
        .chain(policies)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_told_with_what_was_left_out() {
        let status = ClusterStatus {
            configured_services: vec!["10.96.0.0/12".parse().unwrap()],
            service_addresses: 2,
            unenforced_policies: vec![UnenforcedPolicy {
                namespace: "shop".to_owned(),
                name: "deny".to_owned(),
                pods: vec!["a".to_owned(), "b".to_owned()],
            }],
            notes: vec!["one".to_owned()],
            ..ClusterStatus::default()
        };
        let lines: Vec<String> = cluster_lines(&status).into_iter().map(|(_, l)| l).collect();
        assert_eq!(
            lines,
            [
                "Services: 10.96.0.0/12; external addresses of the cluster: 2",
                "  note: one",
                "NetworkPolicy shop/deny selects pods of this node (a, b): netfilter does not see their \
                 packets, and with datapath.path: stack it does",
            ]
        );
        let none = &cluster_lines(&ClusterStatus::default())[0].1;
        assert!(none.starts_with("Services: no CIDR"), "{none}");
    }
}
