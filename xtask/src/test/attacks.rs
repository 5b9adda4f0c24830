//! `test attacks`: the tests of other suites that attack a node, and the attacks it does not
//! withstand.

use super::results::Results;
use super::runner::Runner;
use crate::build::artifacts::Executable;
use crate::console;

/// Tests of one test program: package, name of the target, and parts of the tests' names.
struct Tests {
    package: &'static str,
    target: &'static str,
    names: &'static [&'static str],
}

/// One kind of attack, with its tests.
struct Attack {
    name: &'static str,
    tests: &'static [Tests],
}

const fn programs(names: &'static [&'static str]) -> Tests {
    of("bpf-tests", "programs", names)
}

const fn under_load(names: &'static [&'static str]) -> Tests {
    of("bpf-tests", "programs_load", names)
}

const fn in_namespaces(names: &'static [&'static str]) -> Tests {
    of("bpf-tests", "netns", names)
}

const fn of(package: &'static str, target: &'static str, names: &'static [&'static str]) -> Tests {
    Tests {
        package,
        target,
        names,
    }
}

const ATTACKS: &[Attack] = &[
    Attack {
        name: "spoofed sources, odd frames, header lies",
        tests: &[programs(&[
            "hostile::",
            "from_endpoint::",
            "from_network::",
        ])],
    },
    Attack {
        name: "packets of every kind at random, held against a model",
        tests: &[programs(&["fuzz::"])],
    },
    Attack {
        name: "destinations that no network routes, the node's loopback",
        tests: &[in_namespaces(&["loopback::"])],
    },
    Attack {
        name: "another pod's flow, cached or not",
        tests: &[programs(&["cache::what_the_other_side", "reuse::"])],
    },
    Attack {
        name: "fragments and ICMP errors",
        tests: &[
            programs(&["fragments::"]),
            in_namespaces(&["masq_fragments::", "masq_errors::"]),
        ],
    },
    Attack {
        name: "instance metadata",
        tests: &[in_namespaces(&["masq_metadata::"])],
    },
    Attack {
        name: "scans, unsolicited packets, another ENI",
        tests: &[in_namespaces(&["masq_inbound::"])],
    },
    Attack {
        name: "neighbour tables",
        tests: &[
            programs(&["neighbour_discovery::"]),
            in_namespaces(&["neighbour_floods::"]),
        ],
    },
    Attack {
        name: "ports of a destination",
        tests: &[under_load(&["fairness::"]), in_namespaces(&["masq_dns::"])],
    },
    Attack {
        name: "flow tables and quotas",
        tests: &[
            under_load(&["limits::", "rooms::", "a_syn_flood_of_a_pod"]),
            programs(&["stack_notes::a_pod_gets_its_share"]),
            in_namespaces(&["masq_room::"]),
        ],
    },
    Attack {
        name: "the host's connection tracking",
        tests: &[in_namespaces(&["conntrack_full::"])],
    },
    Attack {
        name: "resets and FINs of who does not see the connection",
        tests: &[in_namespaces(&["masq_blind::"])],
    },
    Attack {
        name: "pods that break their own devices",
        tests: &[in_namespaces(&["device::", "endpoints::"])],
    },
    Attack {
        name: "the agent's socket and its lock",
        tests: &[
            of("towpath", "api", &["body", "callers", "no_http", "root"]),
            in_namespaces(&["socket::", "one_agent::"]),
        ],
    },
    Attack {
        name: "hostile documents",
        tests: &[of("towpath-sources", "documents", &["hostile::"])],
    },
    Attack {
        name: "the state folder and the pins",
        tests: &[in_namespaces(&["orphans::", "pins::"])],
    },
];

/// Attacks that a node does not withstand, and the reasons. Most are consequences of a decision in
/// `docs/design/`, whose number follows.
const NOT_HELD: &[(&str, &str)] = &[
    (
        "256 pods or more fill a flow table, each with its share",
        "a share is a 256th of the last eighth, because a node has hardly more pods (39)",
    ),
    (
        "768 pods or more of one ENI use up the ports of a destination",
        "each may have four ports of the last eighth, a smaller share is of no use (37)",
    ),
    (
        "pods use up their shares of a destination, then the pods of the ENI double beyond 128",
        "shares become smaller, and a flow that is in use is never evicted (37)",
    ),
    (
        "more than 128 pods keep their rings of fragmented datagrams full",
        "the kernel evicts the record that was used least recently, whoever has it (39)",
    ),
    (
        "two CPUs start a fragmented datagram of one pod at the same time, again and again",
        "a ring has no lock, so one record stays until the kernel evicts it (39)",
    ),
    (
        "resets and FINs to an idle connection of a virtual machine or of gVisor",
        "no socket has the sequence number, so the flow has 240 s until the next segment (38)",
    ),
    (
        "pods fill the host's connection tracking",
        "the kernel has no limit for each pod; the event ConntrackFull names the top pod",
    ),
];

/// Runs every attack, and prints the number of tests that ran and passed for each.
pub(super) fn run(runner: &Runner<'_>, executables: &[Executable]) -> Results {
    let mut rows = Vec::new();
    let mut all = Results::default();
    for attack in ATTACKS {
        let tests = attack.tests.iter();
        let results: Results = tests.map(|of| run_tests(runner, executables, of)).sum();
        let counts = results.counts;
        rows.push(vec![
            attack.name.to_owned(),
            counts.total().to_string(),
            counts.passed.to_string(),
        ]);
        all = all + results;
    }
    println!("\n{}", console::table(&["attack", "tried", "held"], &rows));
    for (attack, why) in NOT_HELD {
        println!("not held: {attack}: {why}");
    }
    all
}

fn run_tests(runner: &Runner<'_>, executables: &[Executable], tests: &Tests) -> Results {
    let named = executables.iter().filter(|built| {
        let target = &built.target;
        built.test && target.package == tests.package && target.name == tests.target
    });
    let results: Results = named.map(|built| runner.run_one(built, tests.names)).sum();
    if results.counts.total() == 0 {
        let name = format!("{} {}", tests.package, tests.target);
        return Results::failure(&name, &format!("no test has {:?} in its name", tests.names));
    }
    results
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{ATTACKS, Tests};

    /// All text of a test program.
    fn sources(tests: &Tests) -> String {
        let package = match tests.package {
            "towpath" => "agent",
            name => name.trim_start_matches("towpath-"),
        };
        let folder = datapath_build::workspace_root().join(package).join("tests");
        let files = fs::read_dir(folder.join(tests.target)).unwrap();
        let read = |file: std::io::Result<fs::DirEntry>| fs::read_to_string(file.unwrap().path());
        files.filter_map(|file| read(file).ok()).collect()
    }

    #[test]
    fn each_attack_has_the_tests_that_it_names() {
        for tests in ATTACKS.iter().flat_map(|it| it.tests) {
            let sources = sources(tests);
            for name in tests.names {
                let wanted = match name.strip_suffix("::") {
                    Some(module) => format!("mod {module};"),
                    None => name.rsplit("::").next().unwrap_or(name).to_string(),
                };
                let target = tests.target;
                assert!(sources.contains(&wanted), "{target}: {wanted}");
            }
        }
    }
}
