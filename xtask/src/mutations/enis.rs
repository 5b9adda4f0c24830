//! Guards of ENIs and of their addresses.

use super::{Fault, Mutant, beside, fleet, node};

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        number: 1,
        symptom: "ENIs outlive their instance, as the call that marks them failed",
        mutants: &[Mutant {
            guard: "an unmarked ENI is marked, however often that failed",
            file: "cloud/src/node/finish.rs",
            code: "(!attachment.delete_on_termination).then(|| Step::Mark {",
            without: "false.then(|| Step::Mark {",
            test: fleet("reports::r1_a_mark_that_fails_is_made_later"),
        }],
    },
    Fault {
        number: 2,
        symptom: "Hundreds of available ENIs fill a subnet",
        mutants: &[
            Mutant {
                guard: "what nothing holds is swept",
                file: "cloud/src/sweep.rs",
                code: "Some(eni) if self.is_candidate(eni) => Verdict::Delete,",
                without: "Some(eni) if self.is_candidate(eni) => Verdict::Keep,",
                test: fleet(
                    "reports::r2_a_new_leader_without_nodes_sweeps_what_the_last_node_left",
                ),
            },
            Mutant {
                guard: "an operator without nodes lists as well",
                file: "fleet/src/reads.rs",
                code: "|| (is_alone && regular == Regular::Loose);",
                without: ";",
                test: fleet(
                    "reports::r2_a_new_leader_without_nodes_sweeps_what_the_last_node_left",
                ),
            },
        ],
    },
    Fault {
        number: 3,
        symptom: "ENIs are created and cannot be attached, time and again",
        mutants: &[Mutant {
            guard: "a refused attachment teaches the limit of the instance",
            file: "cloud/src/call/limits.rs",
            code: "learned.map_or(limits.adapters, |(count, _)| limits.adapters.min(*count))",
            without: "learned.map_or(limits.adapters, |_| limits.adapters)",
            test: fleet(
                "reports::r3_r5_adapters_that_a_stranger_has_taken_are_learned_and_not_tried_again",
            ),
        }],
    },
    Fault {
        number: 0,
        symptom: "A node lacks addresses for an hour, as an old read hid what had taken the room",
        mutants: &[
            Mutant {
                guard: "a learned limit goes once a read shows more",
                file: "cloud/src/node/mod.rs",
                code: "            self.learned.see(instance, enis);\n",
                without: "            drop(enis);\n",
                test: node(
                    "steps::a_limit_that_was_learned_from_an_old_read_goes_with_the_next_one",
                ),
            },
            Mutant {
                guard: "a call without an answer is done once all of its blocks show",
                file: "cloud/src/node/next.rs",
                code: "u32::try_from(new).is_ok_and(|new| new >= blocks.count)",
                without: "u32::try_from(new).is_ok_and(|new| new > blocks.count - blocks.count)",
                test: fleet(
                    "reuse::addresses_that_ec2_gives_again_without_an_answer_serve_within_a_minute",
                ),
            },
            Mutant {
                guard: "one listing shows the ENIs of all client tokens that were used",
                file: "cloud/src/node/settle.rs",
                code: "progress.relist.get_or_insert(now)",
                without: "progress.relist.insert(now)",
                test: node("steps::several_tokens_that_other_calls_used_lead_to_one_listing"),
            },
        ],
    },
    Fault {
        number: 4,
        symptom: "A deficit that cannot be met is tried for ever",
        mutants: &[Mutant {
            guard: "a full instance is a state",
            file: "cloud/src/node/deficit.rs",
            code: "if view.free_index().is_none() || slots == 0 {",
            without: "if slots == 0 {",
            test: fleet("reports::r4_a_full_node_makes_no_calls"),
        }],
    },
    Fault {
        number: 5,
        symptom: "The limit of ENIs is that of all network cards",
        mutants: &[Mutant {
            guard: "the limit is that of card 0",
            file: "cloud/src/call/limits.rs",
            code: "info.cards.get(&0).copied().unwrap_or(info.enis)",
            without: "info.enis",
            test: beside("towpath-cloud", "call::limits::tests::only_card_0_counts"),
        }],
    },
    Fault {
        number: 6,
        symptom: "ENIs are created for an instance that is gone",
        mutants: &[Mutant {
            guard: "an instance that EC2 does not know gets nothing for a while",
            file: "cloud/src/node/next.rs",
            code: "let mut next = early.or_else(|| gone(&view)).unwrap_or_else(|| plan(&view));",
            without: "let mut next = early.unwrap_or_else(|| plan(&view));",
            test: fleet("reports::r6_an_instance_that_ec2_does_not_know_is_tried_less_and_less"),
        }],
    },
    Fault {
        number: 7,
        symptom: "An instance that is not running for a while is given up",
        mutants: &[Mutant {
            guard: "the error's code gives the state of an instance",
            file: "cloud/src/call/error.rs",
            code: "\"IncorrectState\" | \"IncorrectInstanceState\" => Class::NotNow,",
            without: "\"IncorrectState\" | \"IncorrectInstanceState\" => Class::InstanceGone,",
            test: fleet(
                "reports::r6_r7_an_instance_that_is_gone_gets_nothing_and_one_that_pauses_gets_its_addresses",
            ),
        }],
    },
    Fault {
        number: 8,
        symptom: "One fragmented subnet turns prefixes off for a node",
        mutants: &[
            Mutant {
                guard: "a subnet alone is out of prefixes",
                file: "cloud/src/place/mod.rs",
                code: "let full = self.full.get(&(subnet.id.clone(), kind));",
                without: "let full = self.full.iter().find(|(at, _)| at.1 == kind).map(|(_, it)| it);",
                test: fleet("reports_network::r8_a_fragmented_subnet_costs_no_prefix_elsewhere"),
            },
            Mutant {
                guard: "the subnet is tried again after a while",
                file: "cloud/src/place/mod.rs",
                code: "pub const FULL_FOR: Duration = Duration::from_mins(15);",
                without: "pub const FULL_FOR: Duration = Duration::from_hours(15);",
                test: fleet("reports_network::r8_a_subnet_that_has_healed_gives_prefixes_again"),
            },
        ],
    },
    Fault {
        number: 9,
        symptom: "More addresses are requested than an ENI has slots",
        mutants: &[Mutant {
            guard: "a call requests no more than the free slots",
            file: "cloud/src/node/deficit.rs",
            code: "let count = wanted.count.min(free).min(fitting);",
            without: "let count = wanted.count.min(fitting);",
            test: fleet("reports::r9_more_addresses_than_slots_are_asked_for_in_parts"),
        }],
    },
    Fault {
        number: 10,
        symptom: "Addresses of a prefix in use are unassigned",
        mutants: &[Mutant {
            guard: "an address that a prefix covers is no block",
            file: "cloud/src/object/block.rs",
            code: "!blocks.iter().any(|block| block.contains(address))",
            without: "true",
            test: beside(
                "towpath-cloud",
                "object::block::tests::a_prefix_holds_its_addresses_and_the_own_one_is_left_out",
            ),
        }],
    },
    Fault {
        number: 14,
        symptom: "ENIs and addresses in use vanish by a listing that lacks them",
        mutants: &[
            Mutant {
                guard: "a read by id has the last word, half a minute later",
                file: "cloud/src/inventory/known.rs",
                code: "was_doubted && by_id\n",
                without: "was_doubted || !by_id\n",
                test: fleet("reports::r14_r23_a_listing_that_lacks_an_instance_takes_nothing_away"),
            },
            Mutant {
                guard: "a new leader doubts reads that deny the status",
                file: "fleet/src/machine/plan.rs",
                code: "if !member.reads.doubts.open.is_empty() {",
                without: "if false {",
                test: fleet("reports::r14_r23_a_listing_that_lacks_an_instance_takes_nothing_away"),
            },
        ],
    },
    Fault {
        number: 16,
        symptom: "A node waits a minute for its first address",
        mutants: &[Mutant {
            guard: "the ENIs of a new instance are read at once",
            file: "fleet/src/reads.rs",
            code: "Scope::Instances(ids) => self.instances.want(ids),",
            without: "Scope::Instances(ids) => drop(ids.clone()),",
            test: fleet("one_node::a_new_node_has_its_first_address_within_three_seconds"),
        }],
    },
    Fault {
        number: 25,
        symptom: "An ENI is in a public subnet, its node in a private one",
        mutants: &[Mutant {
            guard: "the route table of the node comes first",
            file: "cloud/src/object/subnet.rs",
            code: "            &[Rule::Routes, Rule::Zone]\n",
            without: "            &[Rule::Zone]\n",
            test: fleet(
                "reports_network::r25_enis_follow_the_node_s_route_table_before_a_subnet_with_more_room",
            ),
        }],
    },
    Fault {
        number: 26,
        symptom: "A node whose own subnet is not among the chosen ones is not served",
        mutants: &[Mutant {
            guard: "the ENIs of an instance count whatever their subnets are",
            file: "cloud/src/node/share.rs",
            code: "Role::Counted => share.counted.push(eni),",
            without: "Role::Counted if !share.location.ids.is_empty() && !share.location.ids.contains(&eni.placement.subnet) => {}\n            Role::Counted => share.counted.push(eni),",
            test: fleet(
                "reports_network::r26_a_node_whose_own_subnet_is_not_among_the_chosen_ones_is_served",
            ),
        }],
    },
    Fault {
        number: 27,
        symptom: "Tags of security groups that match nothing are ignored",
        mutants: &[Mutant {
            guard: "no match is named, and creates nothing",
            file: "cloud/src/groups.rs",
            code: "if !self.or_primary {",
            without: "if false {",
            test: fleet(
                "reports::r27_groups_that_match_nothing_are_named_and_changed_ones_applied",
            ),
        }],
    },
    Fault {
        number: 29,
        symptom: "ENIs of another cluster are deleted",
        mutants: &[
            Mutant {
                guard: "an ENI without the cluster's tag is left alone",
                file: "cloud/src/sweep.rs",
                code: "eni.is_loose() && eni.tags.get(tags::CLUSTER) == Some(&self.cluster)",
                without: "eni.is_loose()",
                test: beside(
                    "towpath-cloud",
                    "sweep::tests::other_clusters_held_and_served_enis_are_left_alone",
                ),
            },
            Mutant {
                guard: "a cluster without a name has no operator",
                file: "cloud/src/sweep.rs",
                code: "if cluster.trim().is_empty() {",
                without: "if false {",
                test: fleet("reports::r29_another_clusters_enis_are_left_alone"),
            },
        ],
    },
    Fault {
        number: 37,
        symptom: "Prefixes pass max-allocate",
        mutants: &[Mutant {
            guard: "the bound is one of whole blocks",
            file: "cloud/src/want/mod.rs",
            code: "blocks.min(room / kind.addresses()),",
            without: "blocks,",
            test: node("steps::a_bound_is_never_passed_by_a_part_of_a_prefix"),
        }],
    },
    Fault {
        number: 38,
        symptom: "ENIs of other network cards are taken for a node's own",
        mutants: &[
            Mutant {
                guard: "an ENI of another card gives nothing",
                file: "cloud/src/node/role.rs",
                code: "if attachment.card != 0 {",
                without: "if false {",
                test: fleet("reports_network::r38_a_strangers_eni_on_another_card_takes_nothing"),
            },
            Mutant {
                guard: "its index is free on card 0",
                file: "cloud/src/node/view.rs",
                code: "eni.attachment.as_ref().filter(|it| it.card == 0) {",
                without: "eni.attachment.as_ref() {",
                test: fleet("reports_network::r38_a_strangers_eni_on_another_card_takes_nothing"),
            },
        ],
    },
    Fault {
        number: 40,
        symptom: "An ENI is attached, no status shows it, and no reason is named",
        mutants: &[
            Mutant {
                guard: "an ENI that cannot be shown is named",
                file: "fleet/src/member/publication.rs",
                code: "Err(reason) => all.withheld.push(reason),",
                without: "Err(_) => {}",
                test: fleet(
                    "reports_network::r40_an_eni_that_cannot_be_shown_is_named_within_a_minute",
                ),
            },
            Mutant {
                guard: "one that is shown and cannot be judged is named",
                file: "fleet/src/machine/plan.rs",
                code: "it.unjudged.iter().chain(&it.withheld)",
                without: "it.withheld.iter()",
                test: fleet("reports_network::r40_an_eni_that_loses_its_cidr_stays_and_is_named"),
            },
        ],
    },
    Fault {
        number: 0,
        symptom: "Attachments of an ENI that EC2 still makes are refused",
        mutants: &[
            Mutant {
                guard: "a pending ENI is read until it is there",
                file: "cloud/src/node/finish.rs",
                code: "if eni.is_pending {",
                without: "if false {",
                test: fleet(
                    "creation::an_eni_that_is_still_made_is_deleted_when_its_instance_ends",
                ),
            },
            Mutant {
                guard: "one that is there is not read first",
                file: "cloud/src/inventory/mod.rs",
                code: ".or_insert_with(|| Known::new(eni, now));",
                without: ".or_insert_with(|| Known::new(Eni { is_pending: true, ..eni }, now));",
                test: fleet("creation::an_eni_that_is_there_at_once_is_attached_at_once"),
            },
        ],
    },
    Fault {
        number: 0,
        symptom: "A node's object goes while its instance runs, as one read was old",
        mutants: &[Mutant {
            guard: "two reads a minute apart have to lack the instance",
            file: "fleet/src/machine/objects/removal.rs",
            code: "Life::Lacking(first) => self.read.since(first) >= CONFIRMED_AFTER,",
            without: "Life::Lacking(_) => true,",
            test: fleet("objects::an_object_stays_when_one_read_lacks_its_instance"),
        }],
    },
    Fault {
        number: 0,
        symptom: "An ENI of an instance that runs goes while the node's objects are absent",
        mutants: &[Mutant {
            guard: "an ENI that is attached is not swept, even if its node is unknown",
            file: "cloud/src/object/eni.rs",
            code: "    pub fn is_loose(&self) -> bool {\n        self.attachment.is_none()",
            without: "    pub fn is_loose(&self) -> bool {\n        self.attachment.is_none() || self.instance().is_some()",
            test: fleet(
                "absent::an_instance_that_runs_keeps_its_enis_while_its_objects_are_absent",
            ),
        }],
    },
    Fault {
        number: 0,
        symptom: "An ENI goes before its time, or never, as a clock jumps",
        mutants: &[Mutant {
            guard: "its age is the time for which one leader has seen it",
            file: "cloud/src/sweep.rs",
            code: "it.last.since(it.first) >= AGE",
            without: "it.last.since(it.first) >= AGE / 2",
            test: fleet(
                "clocks::a_time_of_day_that_jumps_sweeps_no_eni_early_and_keeps_none_for_ever",
            ),
        }],
    },
];
