//! Guards of calls, of objects and of leaders.

use super::{Fault, Mutant, beside, fleet};

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        number: 11,
        symptom: "Prefixes never go back",
        mutants: &[Mutant {
            guard: "idle blocks go after a delay",
            file: "fleet/src/member/release/mod.rs",
            code: "since.is_some_and(|since| now.since(since) >= self.policy.delay)",
            without: "since.is_some_and(|_| false)",
            test: fleet("release::what_nobody_claims_goes_after_the_delay_and_the_grace"),
        }],
    },
    Fault {
        number: 12,
        symptom: "An address is unassigned under a new pod",
        mutants: &[
            Mutant {
                guard: "a block that is claimed again is not unassigned",
                file: "fleet/src/member/release/marked.rs",
                code: "leaving.retain(|it| !self.returning.contains(it));",
                without: "leaving.retain(|_| true);",
                test: fleet(
                    "release::a_block_that_is_claimed_again_stays_while_no_write_gets_through",
                ),
            },
            Mutant {
                guard: "agents that use a block before they have written so have time to write",
                file: "fleet/src/member/release/mod.rs",
                code: "RETURN_TIME_OF_OTHERS: Duration = Duration::from_mins(1);",
                without: "RETURN_TIME_OF_OTHERS: Duration = Duration::from_secs(1);",
                test: fleet("protocol::no_address_is_both_given_and_unassigned"),
            },
        ],
    },
    Fault {
        number: 15,
        symptom: "The operator serves no new nodes after one call that has no answer",
        mutants: &[Mutant {
            guard: "a work without an answer counts as lost after half a minute",
            file: "fleet/src/machine/works.rs",
            code: "if now.since(*since) < LOST {",
            without: "if now.since(*since) < Duration::MAX {",
            test: fleet("objects::work_that_is_never_answered_is_handed_out_again"),
        }],
    },
    Fault {
        number: 17,
        symptom: "A node without an instance id lists the whole VPC",
        mutants: &[Mutant {
            guard: "an empty id is none",
            file: "cloud/src/object/id.rs",
            code: "(!text.is_empty()).then(|| Self(text.into()))",
            without: "Some(Self(text.into()))",
            test: fleet("reports::r17_an_empty_instance_id_makes_no_calls_for_the_node"),
        }],
    },
    Fault {
        number: 18,
        symptom: "EC2 throttles most calls",
        mutants: &[
            Mutant {
                guard: "each action has its budget",
                file: "cloud/src/call/budget/mod.rs",
                code: "        budget.bucket.take(now)\n",
                without: "        budget.bucket.take(now).or(Ok(()))\n",
                test: fleet("scale::a_cluster_comes_up_with_150_nodes_within_45_seconds"),
            },
            Mutant {
                guard: "a throttled action is slowed down",
                file: "cloud/src/call/budget/mod.rs",
                code: "self.factor = (self.factor * CUT).max(FLOOR);",
                without: "self.factor = self.factor.max(FLOOR);",
                test: fleet("scale::an_account_with_lower_rates_is_adapted_to"),
            },
        ],
    },
    Fault {
        number: 19,
        symptom: "A hidden limiter slows calls down",
        mutants: &[Mutant {
            guard: "calls go at the configured rate",
            file: "cloud/src/call/budget/bucket.rs",
            code: "per_second: self.per_second * share,",
            without: "per_second: self.per_second * share * 0.9,",
            test: fleet(
                "scale::a_cluster_comes_up_with_500_nodes_within_130_seconds_and_costs_nothing_then",
            ),
        }],
    },
    Fault {
        number: 20,
        symptom: "A listing ends after its first page",
        mutants: &[Mutant {
            guard: "a page with a token is followed by the next one",
            file: "fleet/src/machine/pages.rs",
            code: "} else if page.next.is_some() {",
            without: "} else if false {",
            test: beside(
                "towpath-fleet",
                "machine::pages::tests::a_page_with_a_token_is_followed_by_the_next_one",
            ),
        }],
    },
    Fault {
        number: 21,
        symptom: "A listing shows all ENIs of the account in one page",
        mutants: &[Mutant {
            guard: "a listing is of the cluster's VPCs",
            file: "fleet/src/reads.rs",
            code: "            self.vpcs.clone()\n",
            without: "            BTreeSet::new()\n",
            test: fleet("others::r21_a_listing_shows_the_clusters_vpc_alone_in_pages_of_500"),
        }],
    },
    Fault {
        number: 22,
        symptom: "Old reads bring a second assignment",
        mutants: &[Mutant {
            guard: "an answer is believed until reads are late enough",
            file: "cloud/src/inventory/expect.rs",
            code: "age >= GIVES_UP || (age >= SETTLES && (by_id || self.change.agrees(read)))",
            without: "age >= Duration::ZERO || by_id || self.change.agrees(read)",
            test: fleet("reports::r22_reads_that_are_old_bring_no_second_assignment"),
        }],
    },
    Fault {
        number: 24,
        symptom: "An ENI that was just created is given up, as EC2 does not show it yet",
        mutants: &[Mutant {
            guard: "a fresh ENI is not missed",
            file: "cloud/src/inventory/known.rs",
            code: "        if self.is_fresh(begun) {\n            return false;\n        }\n",
            without: "",
            test: beside(
                "towpath-cloud",
                "inventory::tests::a_created_eni_is_not_missed_for_a_minute",
            ),
        }],
    },
    Fault {
        number: 28,
        symptom: "Calls without a right are made again and again",
        mutants: &[Mutant {
            guard: "a denied call is paused",
            file: "cloud/src/call/pause.rs",
            code: "Class::Denied | Class::Quota => {",
            without: "Class::Quota => {",
            test: fleet(
                "reports::r28_a_right_that_is_missing_is_named_and_tried_every_five_minutes",
            ),
        }],
    },
    Fault {
        number: 31,
        symptom: "A leader whose lease ends goes on",
        mutants: &[Mutant {
            guard: "no change begins that could end after the lease",
            file: "fleet/src/machine/mod.rs",
            code: "Standing::Leading { until } => now.after(CALL) < until,",
            without: "Standing::Leading { .. } => true,",
            test: fleet("reports::r31_a_leader_whose_lease_ends_changes_nothing"),
        }],
    },
    Fault {
        number: 34,
        symptom: "Endless conflicts with a third writer",
        mutants: &[
            Mutant {
                guard: "a change of metadata alone is a new version too",
                file: "fleet/src/member/mod.rs",
                code: "        self.object = object;\n",
                without: "        if object[\"spec\"] != self.object[\"spec\"] { self.object = object; }\n",
                test: fleet("reports_writes::r34_a_third_writer_keeps_nobody_waiting"),
            },
            Mutant {
                guard: "a new version ends the wait after a conflict",
                file: "fleet/src/member/mod.rs",
                code: "self.writes.renewed();",
                without: "",
                test: fleet(
                    "reports_writes::r34_a_writer_that_is_always_first_keeps_nobody_waiting_long",
                ),
            },
        ],
    },
    Fault {
        number: 35,
        symptom: "The spec names an ENI that the status lacks",
        mutants: &[Mutant {
            guard: "the status is written first",
            file: "fleet/src/machine/objects/writes.rs",
            code: "            .filter(|_| status.is_none())\n            \
                   .and_then(|it| patch::spec(object, &it.blocks, self.settings.compat, pre_allocate))\n            \
                   .filter(|body| !member.has_dropped(Part::Spec, body, at.now));\n        \
                   let status = status.map(|body| (Part::Status, body));\n        \
                   let Some((part, body)) = status.or(spec.map(|body| (Part::Spec, body))) else {\n",
            without: "            \
                   .and_then(|it| patch::spec(object, &it.blocks, self.settings.compat, pre_allocate));\n        \
                   let status = status.map(|body| (Part::Status, body));\n        \
                   let Some((part, body)) = spec.map(|body| (Part::Spec, body)).or(status) else {\n",
            test: fleet(
                "reports_writes::r35_r36_a_spec_names_no_eni_that_the_status_lacks_and_foreign_fields_stay",
            ),
        }],
    },
    Fault {
        number: 36,
        symptom: "Fields of others are overwritten",
        mutants: &[Mutant {
            guard: "a patch has what changes",
            file: "kubernetes/src/operation/patch/mod.rs",
            code: "    let there = &object[\"spec\"][\"ipam\"];\n    let mut ipam = Map::new();\n",
            without: "    let there = &object[\"spec\"][\"ipam\"];\n    let keys = there.as_object().into_iter().flat_map(Map::keys);\n    \
                      let mut ipam: Map<String, Value> = keys.map(|key| (key.clone(), Value::Null)).collect();\n",
            test: fleet(
                "reports_writes::r35_r36_a_spec_names_no_eni_that_the_status_lacks_and_foreign_fields_stay",
            ),
        }],
    },
    Fault {
        number: 39,
        symptom: "An idle operator makes many calls",
        mutants: &[
            Mutant {
                guard: "larger clusters are listed less often",
                file: "fleet/src/reads.rs",
                code: "let paced = LISTED.saturating_mul(self.pages).max(LISTED_LEAST);",
                without: "let paced = GATHERED.min(LISTED.saturating_mul(self.pages));",
                test: fleet(
                    "scale::a_cluster_comes_up_with_500_nodes_within_130_seconds_and_costs_nothing_then",
                ),
            },
            Mutant {
                guard: "ENIs of others count for the pace of listings",
                file: "fleet/src/reads.rs",
                code: "self.pages = reading.pages;",
                without: "self.pages = 1;",
                test: fleet("others::listings_are_the_rarer_the_more_enis_others_have"),
            },
        ],
    },
    Fault {
        number: 0,
        symptom: "ENIs keep the security groups that the primary ENI had",
        mutants: &[Mutant {
            guard: "primary ENIs are read by id where listings are rare",
            file: "fleet/src/machine/pages.rs",
            code: "if self.reads.begin_primaries(&self.settings, at.now) {",
            without: "if false {",
            test: fleet(
                "others::groups_follow_those_of_the_primary_eni_within_two_minutes_beside_many_others",
            ),
        }],
    },
    Fault {
        number: 0,
        symptom: "Two nodes have one static IP, or a node has two",
        mutants: &[
            Mutant {
                guard: "an address that a call is about goes to no other ENI",
                file: "cloud/src/elastic.rs",
                code: "it.association.is_none() && claims.of(&it.id).is_none();",
                without: "it.association.is_none();",
                test: fleet("static_ip::two_nodes_never_have_the_same_address"),
            },
            Mutant {
                guard: "the one that the node has is the answer",
                file: "cloud/src/elastic.rs",
                code: "self.all.iter().find(|it| it.is_of(primary))",
                without: "self.all.iter().find(|_| false)",
                test: fleet("static_ip::an_address_that_the_node_has_already_is_the_answer"),
            },
            Mutant {
                guard: "a refused address is passed over",
                file: "cloud/src/node/settle.rs",
                code: "Class::AddressTaken => claims.refuse(id, context.now),",
                without: "Class::AddressTaken => claims.release(id),",
                test: fleet("static_ip::an_address_that_another_client_took_is_passed_over"),
            },
            Mutant {
                guard: "old reads of a new leader remove nothing",
                file: "fleet/src/machine/static_ip.rs",
                code: "Some(_) if self.is_late_enough(member) =>",
                without: "Some(_) =>",
                test: fleet("static_ip::a_new_leader_removes_no_address_by_old_reads"),
            },
            Mutant {
                guard: "nor do they at the primary ENI",
                file: "fleet/src/machine/plan.rs",
                code: "        self.show_at_primary(&mut publication, member);\n",
                without: "",
                test: fleet("static_ip::a_new_leader_removes_no_address_by_old_reads"),
            },
            Mutant {
                guard: "a missing right pauses no other reads",
                file: "cloud/src/call/query.rs",
                code: "Self::Addresses => Action::DescribeAddresses,",
                without: "Self::Addresses => Action::DescribeEnis,",
                test: fleet("static_ip::missing_rights_are_named_by_that_node_alone"),
            },
        ],
    },
    Fault {
        number: 0,
        symptom: "A node stays as it is until something else changes it",
        mutants: &[
            Mutant {
                guard: "an answer that a listing settles changes the instance",
                file: "cloud/src/inventory/read.rs",
                code: "if settles || before.as_ref() != after {",
                without: "if before.as_ref() != after {",
                test: beside(
                    "towpath-cloud",
                    "inventory::tests::a_listing_that_settles_an_answer_or_a_block_changes_the_instance",
                ),
            },
            Mutant {
                guard: "loose ENIs of a node that gets no calls are swept",
                file: "fleet/src/machine/sweeping.rs",
                code: "&& member.document.problems.of_rules.is_empty()",
                without: "",
                test: fleet("reports::r2_a_loose_eni_of_a_node_that_gets_no_calls_is_swept"),
            },
        ],
    },
    Fault {
        number: 0,
        symptom: "The ENIs of others in the VPC take memory and calls",
        mutants: &[
            Mutant {
                guard: "a listing keeps none of them",
                file: "fleet/src/machine/pages.rs",
                code: "enis.retain(|eni| self.memory.inventory.concerns(eni));",
                without: "",
                test: beside(
                    "towpath-fleet",
                    "machine::pages::tests::a_listing_keeps_no_enis_of_others",
                ),
            },
            Mutant {
                guard: "those of other instances are not read for their state",
                file: "cloud/src/inventory/read.rs",
                code: "owner().is_some_and(|it| is_served(&it))",
                without: "owner().is_some()",
                test: beside(
                    "towpath-cloud",
                    "inventory::tests::what_others_do_with_their_enis_brings_no_reads",
                ),
            },
        ],
    },
    Fault {
        number: 0,
        symptom: "No forecast says that a subnet has run out",
        mutants: &[
            Mutant {
                guard: "a subnet without a free address lasts no longer",
                file: "cloud/src/place/forecast.rs",
                code: "if free == 0 {",
                without: "if false {",
                test: fleet(
                    "subnets::a_subnet_lasts_as_long_as_its_use_grows_and_no_time_when_it_is_full",
                ),
            },
            Mutant {
                guard: "one without IPv4 has no part in it",
                file: "fleet/src/topology.rs",
                code: "subnets.iter().filter(|it| it.ipv4.is_some())",
                without: "&subnets",
                test: fleet(
                    "subnets::a_subnet_lasts_as_long_as_its_use_grows_and_no_time_when_it_is_full",
                ),
            },
        ],
    },
    Fault {
        number: 0,
        symptom: "The kubelet takes more pods than its node can ever have addresses for",
        mutants: &[
            Mutant {
                guard: "the own address of the primary ENI is no pod's",
                file: "cloud/src/want/capacity.rs",
                code: "limits.adapters.saturating_sub(capacity.first_index.max(1))",
                without: "limits.adapters",
                test: fleet("kubelet::a_full_node_has_as_many_addresses_as_the_number_says"),
            },
            Mutant {
                guard: "max-allocate is a bound as well",
                file: "fleet/src/machine/nodes/kubelet.rs",
                code: "let most = bound.unwrap_or(of_type);",
                without: "let most = of_type;",
                test: fleet(
                    "kubelet::the_warning_begins_beyond_the_number_that_the_type_and_the_node_allow",
                ),
            },
        ],
    },
];
