//! Which of our crates may depend on which of our crates, and which of them on certain crates of
//! others. Anything else is an error.

use anyhow::{Result, bail};

use crate::build::artifacts::Metadata;

/// Package, and the packages of ours that it may depend on.
const ALLOWED: &[(&str, &[&str])] = &[
    ("datapath-common", &[]),
    ("datapath-build", &[]),
    ("ec2-fake", &[]),
    ("towpath-api", &["towpath-ipam"]),
    ("towpath-apiserver", &["towpath-kubernetes"]),
    ("towpath-cloud", &["towpath-ipam"]),
    ("towpath-cni", &[]),
    (
        "towpath-config",
        &[
            "datapath-common",
            "towpath-api",
            "towpath-cni",
            "towpath-document",
            "towpath-flows",
            "towpath-ipam",
            "towpath-kubernetes",
            "towpath-loader",
        ],
    ),
    ("towpath-document", &[]),
    ("towpath-ec2", &["ec2-fake", "towpath-cloud"]),
    (
        "towpath-fleet",
        &[
            "ec2-fake",
            "towpath-cloud",
            "towpath-ipam",
            "towpath-kubernetes",
        ],
    ),
    (
        "towpath-flows",
        &["datapath-common", "towpath-api", "towpath-ipam"],
    ),
    ("towpath-ingress", &["towpath-cni"]),
    ("towpath-ipam", &[]),
    ("towpath-kubernetes", &["towpath-ipam"]),
    (
        "towpath-node-document",
        &[
            "datapath-common",
            "towpath-api",
            "towpath-document",
            "towpath-ipam",
            "towpath-loader",
        ],
    ),
    (
        "towpath-operator",
        &[
            "towpath-apiserver",
            "towpath-cloud",
            "towpath-document",
            "towpath-ec2",
            "towpath-fleet",
            "towpath-ipam",
            "towpath-kubernetes",
            "towpath-terminal",
        ],
    ),
    (
        "towpath-policy",
        &[
            "datapath-common",
            "towpath-api",
            "towpath-flows",
            "towpath-ipam",
            "towpath-loader",
        ],
    ),
    (
        "towpath-sources",
        &[
            "datapath-common",
            "towpath-api",
            "towpath-document",
            "towpath-flows",
            "towpath-ipam",
            "towpath-kubernetes",
            "towpath-loader",
            "towpath-node-document",
        ],
    ),
    ("towpath-terminal", &[]),
    ("datapath-ebpf", &["datapath-common"]),
    (
        "towpath-loader",
        &[
            "datapath-build",
            "datapath-common",
            "towpath-api",
            "towpath-flows",
            "towpath-ipam",
            "towpath-kubernetes",
        ],
    ),
    (
        "towpath",
        &[
            "datapath-common",
            "towpath-api",
            "towpath-apiserver",
            "towpath-cni",
            "towpath-config",
            "towpath-document",
            "towpath-flows",
            "towpath-ingress",
            "towpath-ipam",
            "towpath-kubernetes",
            "towpath-loader",
            "towpath-node-document",
            "towpath-policy",
            "towpath-sources",
            "towpath-terminal",
        ],
    ),
    (
        "testkit",
        &[
            "datapath-common",
            "ec2-fake",
            "towpath-api",
            "towpath-ipam",
            "towpath-loader",
            "towpath-node-document",
        ],
    ),
    (
        "bench",
        &[
            "datapath-common",
            "testkit",
            "towpath-flows",
            "towpath-ipam",
            "towpath-loader",
            "towpath-node-document",
        ],
    ),
    (
        "bpf-tests",
        &[
            "datapath-build",
            "datapath-common",
            "ec2-fake",
            "testkit",
            "towpath-api",
            "towpath-cni",
            "towpath-flows",
            "towpath-ipam",
            "towpath-loader",
            "towpath-node-document",
            "towpath-policy",
        ],
    ),
    (
        "agent-tests",
        &[
            "datapath-common",
            "testkit",
            "towpath",
            "towpath-cni",
            "towpath-config",
            "towpath-ipam",
            "towpath-loader",
            "towpath-node-document",
            "towpath-sources",
        ],
    ),
    ("xtask", &["datapath-build"]),
];

/// The beginning of other packages' names, and the packages of ours that may depend on them.
const OUTSIDE: &[(&[&str], &[&str])] = &[
    (&["aya-ebpf", "aya-log-ebpf"], &["datapath-ebpf"]),
    (
        &["aya", "netlink-packet-", "rtnetlink"],
        // The ABI's types are plain data for aya, with a feature.
        &[
            "bench",
            "bpf-tests",
            "datapath-common",
            "testkit",
            "towpath-loader",
        ],
    ),
    // The SDK of AWS is one crate's own: it takes minutes and gigabytes to compile.
    (&["aws-"], &["towpath-ec2"]),
    (
        &["k8s-openapi", "kube"],
        &[
            "testkit",
            "towpath",
            "towpath-apiserver",
            "towpath-operator",
        ],
    ),
    (
        &["tokio"],
        &[
            "agent-tests",
            "ec2-fake",
            "testkit",
            "towpath",
            "towpath-api",
            "towpath-apiserver",
            "towpath-ec2",
            "towpath-ingress",
            "towpath-loader",
            "towpath-operator",
            "towpath-sources",
        ],
    ),
];

/// True if a package of ours may depend on one of others.
fn may_use(package: &str, other: &str) -> bool {
    let of_other = |(names, _): &&(&[&str], &[&str])| names.iter().any(|n| other.starts_with(n));
    let rule = OUTSIDE.iter().find(of_other);
    rule.is_none_or(|(_, allowed)| allowed.contains(&package))
}

/// Fails on an edge that is not allowed.
pub(super) fn check(metadata: &Metadata) -> Result<()> {
    let mut faults = Vec::new();
    for package in &metadata.packages {
        let Some((_, allowed)) = ALLOWED.iter().find(|(name, _)| *name == package.name) else {
            faults.push(format!("{} is not listed in {}", package.name, file!()));
            continue;
        };
        for dependency in &package.dependencies {
            let is_allowed = match dependency.path {
                Some(_) => allowed.contains(&dependency.name.as_str()),
                None => may_use(&package.name, &dependency.name),
            };
            if !is_allowed {
                faults.push(format!(
                    "{} must not depend on {}",
                    package.name, dependency.name
                ));
            }
        }
    }
    if faults.is_empty() {
        return Ok(());
    }
    bail!("{}", faults.join("; "));
}

#[cfg(test)]
mod tests {
    use super::{check, may_use};
    use crate::build::artifacts::Metadata;

    fn metadata(package: &str, dependency: &str) -> Metadata {
        serde_json::from_str(&format!(
            r#"{{"packages": [{{"name": "{package}", "manifest_path": "/x/Cargo.toml",
                "targets": [], "dependencies": [
                    {{"name": "libc", "path": null}},
                    {{"name": "{dependency}", "path": "/x/{dependency}"}}]}}]}}"#
        ))
        .unwrap()
    }

    #[test]
    fn allowed_edges_pass() {
        check(&metadata("datapath-ebpf", "datapath-common")).unwrap();
    }

    #[test]
    fn other_edges_and_unknown_crates_fail() {
        let error = check(&metadata("datapath-common", "towpath")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "datapath-common must not depend on towpath"
        );
        assert!(check(&metadata("ipam", "datapath-common")).is_err());
    }

    #[test]
    fn crates_of_others_are_used_where_they_belong() {
        assert!(may_use("towpath-loader", "rtnetlink"));
        assert!(!may_use("towpath", "rtnetlink"));
        assert!(!may_use("towpath", "aya-obj"));
        assert!(may_use("datapath-ebpf", "aya-ebpf"));
        assert!(!may_use("towpath-loader", "kube"));
        assert!(may_use("towpath-ec2", "aws-sdk-ec2"));
        for other in ["ec2-fake", "towpath-operator", "testkit"] {
            assert!(!may_use(other, "aws-sdk-ec2"), "{other}");
        }
        assert!(!may_use("towpath-operator", "aws-config"));
        assert!(!may_use("towpath-ipam", "tokio-util"));
        assert!(may_use("towpath-ipam", "serde"));
    }
}
