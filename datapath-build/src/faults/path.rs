//! Faults of the paths: marks, ENIs, the stack, the cache.

use super::{Change, Fault};

/// The faults.
pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "SkipIgnored",
        effect: "Pools that skip masquerade are masqueraded.",
        changes: &[Change {
            file: "path/egress/prepare.rs",
            code: "pool: source.pool(),",
            with: "pool: if FAULT { datapath_common::masquerade::PoolPolicy::Masquerade } else { source.pool() },",
        }],
    },
    Fault {
        name: "ExemptionIgnored",
        effect: "Exempt destinations are masqueraded.",
        changes: &[Change {
            file: "path/egress/prepare.rs",
            code: "destination: class,",
            with: "destination: if FAULT { DestinationClass::NONE } else { class },",
        }],
    },
    Fault {
        name: "OwnerExit",
        effect: "New flows leave by the owner ENI, whatever the external policy.",
        changes: &[Change {
            file: "path/egress/prepare.rs",
            code: "policy: version.addresses(owner).external,",
            with: "policy: if FAULT { source.eni() } else { version.addresses(owner).external },",
        }],
    },
    Fault {
        name: "MetadataExit",
        effect: "Translated packets to the metadata service leave by any ENI.",
        changes: &[Change {
            file: "path/egress/prepare.rs",
            code: "if matches!(exit, Exit::Primary)",
            with: "if matches!(exit, Exit::Primary) && !FAULT",
        }],
    },
    Fault {
        name: "SpoofedSource",
        effect: "A packet may have any source.",
        changes: &[Change {
            file: "programs/from_endpoint.rs",
            code: "entry.ifindex() == packet.ifindex()",
            with: "entry.ifindex() == packet.ifindex() || FAULT",
        }],
    },
    Fault {
        name: "DeliveryMac",
        effect: "A packet is delivered from the pod's own MAC.",
        changes: &[Change {
            file: "path/redirect.rs",
            code: "*endpoint.host_mac()",
            with: "if FAULT { *endpoint.pod_mac() } else { *endpoint.host_mac() }",
        }],
    },
    Fault {
        name: "LastHop",
        effect: "A packet with an expired TTL goes on.",
        changes: &[Change {
            file: "path/deliver.rs",
            code: "if ip.ttl <= 1 {",
            with: "if ip.ttl <= u8::from(!FAULT) {",
        }],
    },
    Fault {
        name: "Mtu",
        effect: "A packet may be longer than the MTU by one byte.",
        changes: &[Change {
            file: "path/deliver.rs",
            code: "> mtu as usize {",
            with: "> mtu as usize + usize::from(FAULT) {",
        }],
    },
    Fault {
        name: "AnyEni",
        effect: "A pod's packet may come by any ENI.",
        changes: &[Change {
            file: "programs/from_network.rs",
            code: "if owner != packet.ifindex() {",
            with: "if owner != packet.ifindex() && !FAULT {",
        }],
    },
    Fault {
        name: "EniMark",
        effect: "The mark is that of the ENI before.",
        changes: &[Change {
            file: "base/mark.rs",
            code: "u32::from(number) + 1",
            with: "u32::from(number) + u32::from(!FAULT)",
        }],
    },
    Fault {
        name: "HostExempt",
        effect: "The host claims its port towards destinations that are exempt.",
        changes: &[Change {
            file: "path/host.rs",
            code: "nat::may_be_exempt()",
            with: "nat::may_be_exempt() || FAULT",
        }],
    },
    Fault {
        name: "HostIgnored",
        effect: "The host's packets claim no port.",
        changes: &[Change {
            file: "path/host.rs",
            code: "if !nat::in_range(ports.source) {",
            with: "if !nat::in_range(ports.source) || FAULT {",
        }],
    },
    Fault {
        name: "HostPortKept",
        effect: "A host's packet keeps the port that a pod's flow has.",
        changes: &[Change {
            file: "path/host.rs",
            code: "if mapping.port() == ports.source {",
            with: "if mapping.port() == ports.source || FAULT {",
        }],
    },
    Fault {
        name: "InboundIgnored",
        effect: "A datagram from the outside is not noted.",
        changes: &[Change {
            file: "programs/from_network.rs",
            code: "let may_open = matches!(",
            with: "let may_open = !FAULT && matches!(",
        }],
    },
    Fault {
        name: "SegmentIgnored",
        effect: "The progress that segments from the outside show of their connection is not recorded.",
        changes: &[Change {
            file: "programs/from_network.rs",
            code: "let is_whole = matches!(ip.fragment, FragmentKind::Whole);",
            with: "let is_whole = matches!(ip.fragment, FragmentKind::Whole) && !FAULT;",
        }],
    },
    Fault {
        name: "DoneForgotten",
        effect: "Redirected packets are not marked as done.",
        changes: &[Change {
            file: "path/redirect.rs",
            code: "packet.set_mark(Mark::done());",
            with: "if !FAULT { packet.set_mark(Mark::done()); }",
        }],
    },
    Fault {
        name: "HostNotMoved",
        effect: "The stack's choice of an ENI for a packet with an address of the host is not corrected.",
        changes: &[Change {
            file: "path/host.rs",
            code: "if !source.is_translation() {",
            with: "if !source.is_translation() || FAULT {",
        }],
    },
    Fault {
        name: "DoneIgnored",
        effect: "Packets that are marked as done are processed once more.",
        changes: &[Change {
            file: "base/mark.rs",
            code: "mark & MARK_DONE.load() != 0",
            with: "mark & MARK_DONE.load() != 0 && !FAULT",
        }],
    },
    Fault {
        name: "ExceptionNoted",
        effect: "Packets that take the stack because of an exception are noted as a flow of the stack.",
        changes: &[Change {
            file: "base/mark.rs",
            code: "mark & MARK_EXCEPTION.load() != 0",
            with: "mark & MARK_EXCEPTION.load() != 0 && !FAULT",
        }],
    },
    Fault {
        name: "StackPassed",
        effect: "A packet of a flow of the stack bypasses it.",
        changes: &[
            Change {
                file: "path/stack.rs",
                code: "Some(IngressEni::Eni(eni)) => Ok(",
                with: "Some(_) if FAULT => Ok(DIRECT), Some(IngressEni::Eni(eni)) => Ok(",
            },
            Change {
                file: "path/egress/mod.rs",
                code: "let Some(eni) = nat::stack_known(Direction::FromPod)",
                with: "let Some(eni) = nat::stack_known(Direction::FromPod) && !FAULT",
            },
        ],
    },
    Fault {
        name: "StackMark",
        effect: "Replies to a flow of the stack get the owner's mark.",
        changes: &[Change {
            file: "path/stack.rs",
            code: "IngressEni::Eni(eni) => Mark::eni(eni),",
            with: "IngressEni::Eni(_) | IngressEni::Elsewhere if FAULT => Mark::eni(owner), IngressEni::Eni(eni) => Mark::eni(eni),",
        }],
    },
    Fault {
        name: "StackOutPassed",
        effect: "A pod's own packets of a translated flow of the stack bypass it.",
        changes: &[Change {
            file: "path/egress/mod.rs",
            code: "mapping.takes_stack() && goes_by_notes(origin)",
            with: "mapping.takes_stack() && goes_by_notes(origin) && !FAULT",
        }],
    },
    Fault {
        name: "StackErrorPassed",
        effect: "An ICMP error about a flow of the stack bypasses it.",
        changes: &[
            Change {
                file: "path/stack.rs",
                code: "Some(ingress) => ForwardPath::Stack(ingress), None => ForwardPath::Direct,",
                with: "Some(ingress) if !FAULT => ForwardPath::Stack(ingress), Some(_) | None => ForwardPath::Direct,",
            },
            Change {
                file: "path/egress/mod.rs",
                code: "let Some(eni) = nat::peek_stack()",
                with: "let Some(eni) = nat::peek_stack() && !FAULT",
            },
        ],
    },
    Fault {
        name: "NotTold",
        effect: "A flow is not updated by a cached segment.",
        changes: &[Change {
            file: "cache/flow_update.rs",
            code: "tell(entry, tcp_flags, is_from_outside).is_some()",
            with: "(FAULT || tell(entry, tcp_flags, is_from_outside).is_some())",
        }],
    },
    Fault {
        name: "StalePolicy",
        effect: "A change of addresses, destinations or ENIs leaves cache entries valid.",
        changes: &[Change {
            file: "cache/lookup.rs",
            code: "entry.stamp.generation == generation()",
            with: "(entry.stamp.generation == generation() || FAULT)",
        }],
    },
    Fault {
        name: "ShapingIgnored",
        effect: "Packets that are shaped in the stack bypass it.",
        changes: &[Change {
            file: "path/deliver.rs",
            code: "endpoint.is_via_stack()",
            with: "(endpoint.is_via_stack() && !FAULT)",
        }],
    },
    Fault {
        name: "SentBack",
        effect: "Packets that an ENI received for an unknown address leave by it again.",
        changes: &[Change {
            file: "programs/to_network.rs",
            code: "packet.is_marked() && match packet.ingress_ifindex() {",
            with: "!FAULT && packet.is_marked() && match packet.ingress_ifindex() {",
        }],
    },
    Fault {
        name: "UnroutableSent",
        effect: "Packets to a destination without a route are sent.",
        changes: &[Change {
            file: "programs/from_endpoint.rs",
            code: "DestinationClass::UNROUTABLE) {",
            with: "DestinationClass::UNROUTABLE) && !FAULT {",
        }],
    },
    Fault {
        name: "UnroutableDelivered",
        effect: "Packets from a source without a route are delivered.",
        changes: &[Change {
            file: "programs/from_network.rs",
            code: "if is_unroutable(ip) {",
            with: "if is_unroutable(ip) && !FAULT {",
        }],
    },
    Fault {
        name: "HostUnnoted",
        effect: "Packets that the host sends with a source of netfilter's are not noted.",
        changes: &[Change {
            file: "programs/to_endpoint.rs",
            code: "!entry.is_endpoint())",
            with: "!entry.is_endpoint()) || FAULT",
        }],
    },
    Fault {
        name: "MetadataPassed",
        effect: "Packets to the metadata service that the stack decides on bypass it.",
        changes: &[Change {
            file: "path/deliver.rs",
            code: "&& class.contains(DestinationClass::METADATA)",
            with: "&& class.contains(DestinationClass::METADATA) && !FAULT",
        }],
    },
];
