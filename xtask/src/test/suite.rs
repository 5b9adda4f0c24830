//! The suites, and which test program belongs to which.

use std::fmt;

use anyhow::{Result, bail};
use clap::ValueEnum;

use crate::build::artifacts::Target;

/// A suite of tests, from the least to the most that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Suite {
    /// Pure code; needs no root.
    Unit,
    /// The fake of EC2, driven by Amazon's own clients; needs no root.
    Cloud,
    /// The eBPF programs, by the kernel's test run; loading, pinning, attaching.
    Bpf,
    /// The agent and its parts in network namespaces.
    Netns,
    /// Masquerade in network namespaces, and the kernel's own as the oracle.
    Masq,
    /// Services beside it, by kube-proxy and by rules like its own.
    Services,
    /// The agent beside a real API server of Kubernetes.
    Api,
    /// The operator beside a real API server of Kubernetes and a fake of EC2.
    Operator,
    /// Nodes with kubelets, in a whole cluster of Kubernetes.
    Cluster,
    /// Pods that container runtimes make, with the agent and the plugin.
    Cri,
    /// The programs and the agent on other kernels, in virtual machines.
    Vm,
    /// The tests of other suites that attack a node. Runs only on request.
    Attacks,
}

/// Every test program's suite: package, kind, name of the target, suite. A name that ends with `*`
/// stands for all that begin so; the first line that fits counts.
const MEMBERS: &[(&str, &str, &str, Suite)] = &[
    ("datapath-build", "lib", "*", Suite::Unit),
    ("datapath-common", "lib", "*", Suite::Unit),
    ("ec2-fake", "lib", "*", Suite::Unit),
    ("towpath-api", "lib", "*", Suite::Unit),
    ("towpath-apiserver", "lib", "*", Suite::Unit),
    ("ec2-fake", "bin", "*", Suite::Unit),
    ("ec2-fake", "test", "boto3", Suite::Cloud),
    ("towpath-cloud", "lib", "*", Suite::Unit),
    ("towpath-cloud", "test", "*", Suite::Unit),
    ("towpath-cni", "lib", "*", Suite::Unit),
    ("towpath-cni", "bin", "*", Suite::Unit),
    ("towpath-cni", "test", "process*", Suite::Unit),
    ("towpath-cni", "test", "chain*", Suite::Netns),
    ("towpath-config", "lib", "*", Suite::Unit),
    ("towpath-config", "test", "*", Suite::Unit),
    ("towpath-document", "lib", "*", Suite::Unit),
    ("towpath-ec2", "lib", "*", Suite::Unit),
    ("towpath-ec2", "test", "*", Suite::Unit),
    ("towpath-fleet", "lib", "*", Suite::Unit),
    ("towpath-fleet", "test", "*", Suite::Unit),
    ("towpath-flows", "lib", "*", Suite::Unit),
    // Its calls of plugins need network namespaces.
    ("towpath-ingress", "lib", "*", Suite::Netns),
    ("towpath-ipam", "lib", "*", Suite::Unit),
    ("towpath-ipam", "test", "*", Suite::Unit),
    ("towpath-kubernetes", "lib", "*", Suite::Unit),
    ("towpath-kubernetes", "test", "*", Suite::Unit),
    ("towpath-node-document", "lib", "*", Suite::Unit),
    ("towpath-operator", "lib", "*", Suite::Unit),
    ("towpath-operator", "bin", "*", Suite::Unit),
    ("towpath-policy", "lib", "*", Suite::Unit),
    ("towpath-sources", "lib", "*", Suite::Unit),
    ("towpath-sources", "test", "*", Suite::Unit),
    ("towpath-terminal", "lib", "*", Suite::Unit),
    ("xtask", "bin", "*", Suite::Unit),
    ("towpath", "lib", "*", Suite::Unit),
    ("towpath", "bin", "*", Suite::Unit),
    ("towpath", "test", "cni*", Suite::Unit),
    ("towpath-loader", "lib", "*", Suite::Unit),
    ("towpath-loader", "test", "bpf*", Suite::Bpf),
    ("towpath-loader", "test", "netlink*", Suite::Netns),
    ("towpath", "test", "api*", Suite::Netns),
    ("towpath", "test", "agent*", Suite::Netns),
    ("towpath", "test", "cli*", Suite::Netns),
    // The fabric's checks of itself need its tools.
    ("testkit", "lib", "*", Suite::Netns),
    // Its floors are checked by the kernel's test run.
    ("bench", "lib", "*", Suite::Netns),
    // Its smoke run needs the fabric.
    ("bench", "bin", "towpath-bench", Suite::Netns),
    ("bench", "test", "live", Suite::Netns),
    ("bench", "test", "program", Suite::Bpf),
    ("bpf-tests", "lib", "*", Suite::Netns),
    ("bpf-tests", "bin", "*", Suite::Unit),
    ("bpf-tests", "test", "programs*", Suite::Bpf),
    ("bpf-tests", "test", "netns_oracle", Suite::Masq),
    ("bpf-tests", "test", "netns*", Suite::Netns),
    ("bpf-tests", "test", "services", Suite::Services),
    ("agent-tests", "test", "kubernetes", Suite::Api),
    ("bpf-tests", "test", "operator", Suite::Operator),
    ("bpf-tests", "test", "cluster", Suite::Cluster),
    ("agent-tests", "test", "cri", Suite::Cri),
    ("bpf-tests", "test", "smoke", Suite::Netns),
    ("bpf-tests", "test", "guest*", Suite::Vm),
];

/// The program that has tests of two suites, for they share their fabric: how the names of those
/// begin that belong to [`Suite::Masq`].
const SHARED: (&str, &str, &str) = ("bpf-tests", "test", "netns");
const MASQ: [&str; 5] = [
    "masq_",
    "nat_commands::",
    "nat_restart::",
    "path_stack::",
    "service_nat::",
];

impl Suite {
    /// Every suite that has tests of its own, in the order in which they run.
    pub(crate) const ALL: [Self; 11] = [
        Self::Unit,
        Self::Cloud,
        Self::Bpf,
        Self::Netns,
        Self::Masq,
        Self::Services,
        Self::Api,
        Self::Operator,
        Self::Cluster,
        Self::Cri,
        Self::Vm,
    ];

    /// True if its tests mostly wait, for timers, neighbours and servers: then twice as many run at
    /// once as there are cores.
    pub(crate) fn waits(self) -> bool {
        matches!(
            self,
            Self::Netns | Self::Masq | Self::Services | Self::Api | Self::Operator
        )
    }

    /// Which tests of a program this suite runs, as arguments of the program; `None` where it runs
    /// none. `arguments` are the user's: who names tests has them looked for in the whole program,
    /// once.
    pub(crate) fn selection(
        self,
        target: &Target,
        arguments: &[String],
    ) -> Option<Vec<&'static str>> {
        let is_shared = (
            target.package.as_str(),
            target.kind.as_str(),
            target.name.as_str(),
        ) == SHARED;
        let is_own = Self::of(target) == Some(self);
        if !is_shared || !arguments.is_empty() {
            return is_own.then(Vec::new);
        }
        match self {
            Self::Netns => Some(MASQ.iter().flat_map(|name| ["--skip", name]).collect()),
            Self::Masq => Some(MASQ.to_vec()),
            Self::Unit
            | Self::Cloud
            | Self::Bpf
            | Self::Services
            | Self::Api
            | Self::Operator
            | Self::Cluster
            | Self::Cri
            | Self::Vm
            | Self::Attacks => None,
        }
    }

    /// The suite of a test program.
    pub(crate) fn of(target: &Target) -> Option<Self> {
        MEMBERS
            .iter()
            .find(|(package, kind, name, _)| {
                *package == target.package
                    && *kind == target.kind
                    && name
                        .strip_suffix('*')
                        .map_or(*name == target.name, |start| target.name.starts_with(start))
            })
            .map(|(_, _, _, suite)| *suite)
    }

    /// True if its tests need root.
    pub(crate) fn needs_root(self) -> bool {
        match self {
            Self::Unit | Self::Cloud => false,
            Self::Bpf
            | Self::Netns
            | Self::Masq
            | Self::Services
            | Self::Api
            | Self::Operator
            | Self::Cluster
            | Self::Cri
            | Self::Vm
            | Self::Attacks => true,
        }
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Unit => "unit",
            Self::Cloud => "cloud",
            Self::Bpf => "bpf",
            Self::Netns => "netns",
            Self::Masq => "masq",
            Self::Services => "services",
            Self::Api => "api",
            Self::Operator => "operator",
            Self::Cluster => "cluster",
            Self::Cri => "cri",
            Self::Vm => "vm",
            Self::Attacks => "attacks",
        })
    }
}

/// Fails when a test program belongs to no suite: it would never run.
pub(crate) fn check_membership(targets: &[Target]) -> Result<()> {
    let strays: Vec<_> = targets
        .iter()
        .filter(|target| Suite::of(target).is_none())
        .map(|target| format!("{} {} {}", target.package, target.kind, target.name))
        .collect();
    if strays.is_empty() {
        return Ok(());
    }
    bail!(
        "these test programs belong to no suite; name them in {}: {}",
        file!(),
        strays.join(", ")
    );
}

#[cfg(test)]
mod tests {
    use super::{Suite, check_membership};
    use crate::build::artifacts::Target;

    fn target(package: &str, kind: &str, name: &str) -> Target {
        Target {
            package: package.to_owned(),
            kind: kind.to_owned(),
            name: name.to_owned(),
        }
    }

    #[test]
    fn members_are_found_by_the_start_of_their_name() {
        assert_eq!(
            Suite::of(&target("towpath-loader", "test", "bpf")),
            Some(Suite::Bpf)
        );
        assert_eq!(
            Suite::of(&target("bpf-tests", "test", "netns_flows")),
            Some(Suite::Netns)
        );
        assert_eq!(Suite::of(&target("bpf-tests", "test", "other")), None);
    }

    #[test]
    fn the_tests_of_a_shared_program_run_once() {
        let shared = target("bpf-tests", "test", "netns");
        let of = |suite: Suite, arguments: &[String]| suite.selection(&shared, arguments);
        let skipped = of(Suite::Netns, &[]).unwrap();
        let chosen = of(Suite::Masq, &[]).unwrap();
        let skips: Vec<_> = chosen.iter().flat_map(|name| ["--skip", name]).collect();
        assert_eq!(skipped, skips);
        assert_eq!(of(Suite::Bpf, &[]), None);
        let named = ["masq_mtu".to_owned()];
        assert_eq!(of(Suite::Netns, &named), Some(Vec::new()));
        assert_eq!(of(Suite::Masq, &named), None);
        let oracle = target("bpf-tests", "test", "netns_oracle");
        assert_eq!(Suite::Masq.selection(&oracle, &[]), Some(Vec::new()));
        assert_eq!(Suite::Netns.selection(&oracle, &[]), None);
    }

    #[test]
    fn a_stray_test_program_is_an_error_that_names_it() {
        let error = check_membership(&[target("bpf-tests", "test", "other")]).unwrap_err();
        assert!(
            error.to_string().ends_with("bpf-tests test other"),
            "{error}"
        );
    }
}
