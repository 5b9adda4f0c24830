//! Which tests run in a guest.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use super::kernel::{Depth, Kernel};
use crate::build::artifacts::{Executable, Target};
use crate::test::Suite;

/// A test program that runs in guests, with the parts of it that do.
struct Choice {
    package: &'static str,
    name: &'static str,
    /// The least depth of the kernels that it runs on.
    from: Depth,
    /// Parts of tests' names; without any, all run.
    tests: &'static [&'static str],
    /// More of them, for kernels with TCX.
    with_tcx: &'static [&'static str],
    /// More of them, for the older kernels without.
    without_tcx: &'static [&'static str],
}

/// Every branch of the programs on each kernel, and more as its depth says: an emulated machine
/// takes minutes for all. Tests of what is the same on every kernel are left to the other suites.
const CHOICES: [Choice; 5] = [
    Choice {
        package: "bpf-tests",
        name: "programs",
        from: Depth::Programs,
        tests: &[
            "from_endpoint::",
            "from_network::",
            "neighbour_discovery::",
            "wire::",
        ],
        // Linux 5.10 has no test run of a packet that another device received.
        with_tcx: &["nat::flows_are_translated_there_and_back", "stack_flows::"],
        without_tcx: &["nat::flows_that_the_stack_does_not_carry"],
    },
    Choice {
        package: "towpath-loader",
        name: "bpf",
        from: Depth::Packets,
        // Each load takes many seconds there.
        tests: &["lifecycle::a_restart"],
        with_tcx: &["tcx::programs_of_others"],
        without_tcx: &[
            "clsact::a_filter_or_qdisc",
            "clsact::an_ingress_qdisc",
            "clsact::filters_of_others",
            // Tries have no batches on Linux 5.10.
            "maps::entries_are_written",
        ],
    },
    Choice {
        package: "bpf-tests",
        name: "programs_load",
        from: Depth::Thorough,
        tests: &["displaced::echo", "sweeps::flows_go"],
        with_tcx: &[],
        without_tcx: &[],
    },
    Choice {
        package: "bpf-tests",
        name: "smoke",
        from: Depth::Packets,
        tests: &[],
        with_tcx: &[],
        without_tcx: &[],
    },
    Choice {
        package: "bpf-tests",
        name: "guest",
        from: Depth::Thorough,
        tests: &[],
        with_tcx: &[],
        without_tcx: &[],
    },
];

/// A test program for guests.
pub(super) struct Program {
    /// The file, here and in the guest.
    pub(super) path: PathBuf,
    /// Folder of its package.
    folder: PathBuf,
    choice: &'static Choice,
}

impl Program {
    /// The line of a guest's script that runs the program; none on a kernel that it is not for.
    pub(super) fn line(&self, kernel: &Kernel) -> Option<String> {
        let choice = self.choice;
        if kernel.depth < choice.from {
            return None;
        }
        let more = if kernel.tcx {
            choice.with_tcx
        } else {
            choice.without_tcx
        };
        let tests = [choice.tests, more].concat().join(" ");
        let folder = self.folder.display();
        Some(format!(
            "mkdir -p '{folder}'; cd '{folder}'; CARGO_MANIFEST_DIR='{folder}' '{}' {tests}; \
             echo \"towpath-vm: status $?\"\n",
            self.path.display(),
        ))
    }
}

/// The guests' programs among what was built.
pub(super) fn programs(executables: &[Executable]) -> Result<Vec<Program>> {
    check_all_chosen(executables)?;
    CHOICES
        .iter()
        .map(|choice| {
            let (package, name) = (choice.package, choice.name);
            let built = executables
                .iter()
                .find(|built| {
                    built.test
                        && built.target.kind == "test"
                        && built.target.package == package
                        && built.target.name == name
                })
                .with_context(|| format!("{package} has no test program {name}"))?;
            Ok(Program {
                path: built.path.clone(),
                folder: built.folder.clone(),
                choice,
            })
        })
        .collect()
}

/// Fails when a test program of the suite is not among the choices: it would never run.
fn check_all_chosen(executables: &[Executable]) -> Result<()> {
    let is_chosen = |target: &Target| {
        let same = |choice: &Choice| choice.package == target.package && choice.name == target.name;
        CHOICES.iter().any(same)
    };
    let ours = executables.iter().filter(|built| {
        built.test && Suite::of(&built.target) == Some(Suite::Vm) && !is_chosen(&built.target)
    });
    let strays: Vec<_> = ours.map(|built| built.target.name.as_str()).collect();
    if strays.is_empty() {
        return Ok(());
    }
    bail!(
        "these test programs are for the guests alone, and no guest runs them; name them in {}: {}",
        file!(),
        strays.join(", ")
    );
}

#[cfg(test)]
mod tests {
    use super::{CHOICES, Executable, Target, check_all_chosen, programs};
    use crate::vm::kernel::KERNELS;

    fn built(package: &str, name: &str) -> Executable {
        Executable {
            target: Target {
                package: package.to_owned(),
                kind: "test".to_owned(),
                name: name.to_owned(),
            },
            test: true,
            path: format!("/x/{name}").into(),
            folder: "/".into(),
        }
    }

    #[test]
    fn a_program_of_the_suite_that_no_guest_runs_is_an_error_that_names_it() {
        let guest = |name| built("bpf-tests", name);
        check_all_chosen(&[guest("guest"), guest("netns")]).unwrap();
        let error = check_all_chosen(&[guest("guest"), guest("guest_other")]).unwrap_err();
        assert!(error.to_string().ends_with(": guest_other"), "{error}");
    }

    /// The lines of a kernel's script, each with its program's name.
    fn lines(kernel: &str) -> Vec<(&'static str, String)> {
        let kernel = KERNELS.iter().find(|other| other.name == kernel).unwrap();
        let built = CHOICES.map(|choice| built(choice.package, choice.name));
        let programs = programs(&built).unwrap();
        let lines = programs
            .iter()
            .filter_map(|program| Some((program.choice.name, program.line(kernel)?)));
        lines.collect()
    }

    #[test]
    fn a_kernel_has_the_tests_of_its_depth() {
        let names =
            |kernel| -> Vec<_> { lines(kernel).into_iter().map(|(name, _)| name).collect() };
        for kernel in ["5.10", "6.12", "newest"] {
            assert_eq!(names(kernel), CHOICES.map(|choice| choice.name), "{kernel}");
        }
        assert_eq!(names("6.1"), ["programs", "bpf", "smoke"]);
        assert_eq!(names("6.18"), ["programs"]);
    }

    #[test]
    fn a_kernel_has_the_tests_of_its_attachment() {
        for (kernel, attachment) in [("5.10", "clsact::"), ("6.1", "clsact::"), ("6.12", "tcx::")] {
            let lines = lines(kernel);
            let (_, line) = lines.iter().find(|(name, _)| *name == "bpf").unwrap();
            let expected = format!("'/x/bpf' lifecycle::a_restart {attachment}");
            assert!(line.contains(&expected), "{line}");
        }
    }
}
