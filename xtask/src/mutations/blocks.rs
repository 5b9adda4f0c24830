//! Guards of released blocks, restored API servers and plain pools.

use super::{Fault, Mutant, beside, cases, fleet};

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        number: 13,
        symptom: "\"Exhausted\" while blocks are attached",
        mutants: &[
            Mutant {
                guard: "a node that needs a block again claims it",
                file: "ipam/src/allocator/balance.rs",
                code: "self.claims.unclaimed.contains(&net) && self.is_in_time(given_back, now)",
                without: "false && self.is_in_time(given_back, now)",
                test: cases(
                    "towpath-ipam",
                    "reclaim::a_block_is_claimed_again_only_after_its_release_was_seen",
                ),
            },
            Mutant {
                guard: "blocks that may not be claimed again are replaced",
                file: "ipam/src/allocator/surplus.rs",
                code: "*needed = needed.saturating_add(missing);",
                without: "*needed = needed.saturating_add(missing - missing);",
                test: cases(
                    "towpath-ipam",
                    "reclaim::a_block_that_cannot_be_claimed_again_is_replaced_if_its_addresses_are_needed",
                ),
            },
        ],
    },
    Fault {
        number: 30,
        symptom: "Two nodes have one block after a pool changed",
        mutants: &[Mutant {
            guard: "blocks of nodes are taken, whatever pools they are of",
            file: "ipam/src/cluster/ledger.rs",
            code: "        for block in node.blocks() {\n            self.held.take(block, name);\n        }\n",
            without: "",
            test: cases(
                "towpath-ipam",
                "cluster::pools::a_pool_that_shrinks_takes_no_block_from_a_node_and_gives_none_twice",
            ),
        }],
    },
    Fault {
        number: 33,
        symptom: "Objects of nodes that are gone keep their addresses",
        mutants: &[
            Mutant {
                guard: "the object of an ended instance without a Node goes",
                file: "fleet/src/machine/objects/removal.rs",
                code: "Some(state) if state.has_ended() => Some(Removal::Delete),",
                without: "Some(state) if state.has_ended() => None,",
                test: fleet(
                    "objects::an_object_goes_when_its_node_is_absent_and_its_instance_ended",
                ),
            },
            Mutant {
                guard: "that of an instance that runs stays",
                file: "fleet/src/machine/objects/removal.rs",
                code: "Some(state) if state.has_ended() =>",
                without: "Some(_) =>",
                test: fleet(
                    "objects::an_object_goes_when_its_node_is_absent_and_its_instance_ended",
                ),
            },
        ],
    },
    Fault {
        number: 0,
        symptom: "A pod has an address that another project's operator has unassigned",
        mutants: &[
            Mutant {
                guard: "a fresh block is not claimed late",
                file: "ipam/src/allocator/balance.rs",
                code: "self.drop_late(now);",
                without: "",
                test: cases(
                    "towpath-ipam",
                    "reclaim::a_fresh_block_is_claimed_within_two_minutes_or_not_at_all",
                ),
            },
            Mutant {
                guard: "a claim of a fresh block that came late is given up",
                file: "ipam/src/allocator/balance.rs",
                code: "if !self.is_in_time(Some(since), now) {",
                without: "if false {",
                test: cases(
                    "towpath-ipam",
                    "reclaim::a_fresh_block_is_claimed_within_two_minutes_or_not_at_all",
                ),
            },
        ],
    },
    Fault {
        number: 0,
        symptom: "After a restore from a backup pods have addresses that others have too",
        mutants: &[
            Mutant {
                guard: "claims that the agent cannot have made are those of a backup",
                file: "kubernetes/src/node/backup.rs",
                code: "marks::has_agent(object) && !claims(object).is_subset(&blocks_of_enis(known))",
                without: "marks::has_agent(object) && claims(object).is_empty() && known.is_null()",
                test: beside(
                    "towpath-kubernetes",
                    "node::backup::tests::claims_that_the_agent_cannot_have_made_are_those_of_a_backup",
                ),
            },
            Mutant {
                guard: "blocks in use are claimed in the object of a backup",
                file: "kubernetes/src/node/node_pools/mod.rs",
                code: "if !held.is_empty() {",
                without: "if false {",
                test: beside(
                    "towpath-kubernetes",
                    "node::node_pools::tests::in_an_object_of_a_backup_blocks_in_use_are_claimed_and_nothing_else",
                ),
            },
            Mutant {
                guard: "the marks of a backup are void",
                file: "fleet/src/member/mod.rs",
                code: "self.releases.void_marks();",
                without: "",
                test: fleet("release::marks_of_a_backup_are_void"),
            },
        ],
    },
    Fault {
        number: 32,
        symptom: "Blocks of nodes that are gone never come back",
        mutants: &[Mutant {
            guard: "they are given back with the node",
            file: "ipam/src/cluster/ledger.rs",
            code: "self.give_back(node.blocks().collect(), name);",
            without: "drop(node);",
            test: fleet("plain::nothing_is_lost_when_a_pool_shrinks_or_is_removed_by_force"),
        }],
    },
    Fault {
        number: 0,
        symptom: "Blocks overlap with the VPC or with services",
        mutants: &[
            Mutant {
                guard: "services are read before a grant",
                file: "fleet/src/machine/plain.rs",
                code: "if self.cluster.services.is_none() {",
                without: "if false {",
                test: fleet("plain::no_block_is_granted_before_the_services_are_read"),
            },
            Mutant {
                guard: "VPCs are read before a grant",
                file: "fleet/src/machine/plain.rs",
                code: "self.reads.unread_vpc().cloned().map(Unread::Vpc)",
                without: "self.reads.unread_vpc().cloned().map(Unread::Vpc).filter(|_| false)",
                test: fleet("plain::no_block_is_granted_before_the_vpcs_are_read"),
            },
        ],
    },
    Fault {
        number: 0,
        symptom: "Some Nodes never get their extended resources",
        mutants: &[Mutant {
            guard: "Nodes are written in turn",
            file: "fleet/src/machine/advertise.rs",
            code: "self.nodes.advertised.last.clone_from(name);",
            without: "let _ = name;",
            test: fleet("advertise::every_node_has_its_turn_while_numbers_change"),
        }],
    },
    Fault {
        number: 0,
        symptom: "Two nodes have one block, as a paused leader has granted it",
        mutants: &[Mutant {
            guard: "a new leader first changes each node that an older one may still grant blocks",
            file: "fleet/src/machine/plain.rs",
            code: "Opening::Listed(Takeover::begin(unmet))",
            without: "Opening::Listed(Takeover::begin(BTreeSet::new()))",
            test: fleet("plain::a_paused_leader_that_wakes_grants_nothing_twice"),
        }],
    },
    Fault {
        number: 0,
        symptom: "A late call of a dead leader unassigns addresses that pods have",
        mutants: &[Mutant {
            guard: "a new leader shows no block that is marked",
            file: "fleet/src/member/release/mod.rs",
            code: "self.marked.begin_epoch(now);",
            without: "self.marked.void();",
            test: fleet(
                "release::a_release_call_of_a_dead_operator_that_comes_ten_minutes_late_takes_nothing_published",
            ),
        }],
    },
    Fault {
        number: 0,
        symptom: "Addresses go back although the operator claims them itself",
        mutants: &[Mutant {
            guard: "no agent is asked for addresses then",
            file: "fleet/src/member/release/mod.rs",
            code: "settings.compat != Compat::Always",
            without: "settings.compat != Compat::Never",
            test: fleet("compat::always_asks_no_agent_for_addresses_back"),
        }],
    },
];
