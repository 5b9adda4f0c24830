//! The suites, and which test program belongs to which.

use std::fmt;

use anyhow::{Result, bail};
use clap::ValueEnum;

use crate::artifacts::Target;

/// A suite of tests, from the least to the most that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Suite {
    /// Pure code; needs no root.
    Unit,
    /// The eBPF programs, by the kernel's test run; loading, pinning, attaching.
    Bpf,
    /// The agent and its parts in network namespaces.
    Netns,
    /// The programs and the agent on other kernels, in virtual machines.
    Vm,
}

/// Every test program's suite: package, kind, name of the target, suite. A name that ends with `*`
/// stands for all that begin so; the first line that fits counts.
const MEMBERS: &[(&str, &str, &str, Suite)] = &[
    ("datapath-build", "lib", "*", Suite::Unit),
    ("datapath-common", "lib", "*", Suite::Unit),
    ("xtask", "bin", "*", Suite::Unit),
    ("towpath", "lib", "*", Suite::Unit),
    ("towpath", "bin", "*", Suite::Unit),
    ("towpath", "test", "config*", Suite::Unit),
    ("towpath", "test", "documents*", Suite::Unit),
    ("towpath", "test", "reconcile*", Suite::Unit),
    ("towpath", "test", "bpf*", Suite::Bpf),
    ("towpath", "test", "netlink*", Suite::Netns),
    ("towpath", "test", "api*", Suite::Netns),
    ("towpath", "test", "agent*", Suite::Netns),
    ("towpath", "test", "cli*", Suite::Netns),
    // The fabric's checks of itself need its tools.
    ("bpf-tests", "lib", "*", Suite::Netns),
    ("bpf-tests", "bin", "*", Suite::Unit),
    ("bpf-tests", "test", "programs*", Suite::Bpf),
    ("bpf-tests", "test", "netns*", Suite::Netns),
    ("bpf-tests", "test", "smoke", Suite::Netns),
    ("bpf-tests", "test", "guest*", Suite::Vm),
];

impl Suite {
    /// Every suite, in the order in which they run.
    pub(crate) const ALL: [Self; 4] = [Self::Unit, Self::Bpf, Self::Netns, Self::Vm];

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

    /// Whether its tests need root.
    pub(crate) fn needs_root(self) -> bool {
        match self {
            Self::Unit => false,
            Self::Bpf | Self::Netns | Self::Vm => true,
        }
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Unit => "unit",
            Self::Bpf => "bpf",
            Self::Netns => "netns",
            Self::Vm => "vm",
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
    use crate::artifacts::Target;

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
            Suite::of(&target("towpath", "test", "bpf")),
            Some(Suite::Bpf)
        );
        assert_eq!(
            Suite::of(&target("bpf-tests", "test", "netns_flows")),
            Some(Suite::Netns)
        );
        assert_eq!(Suite::of(&target("bpf-tests", "test", "other")), None);
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
