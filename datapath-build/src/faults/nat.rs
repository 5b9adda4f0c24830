//! Faults of the tables: flows, ports, quotas, notes.

use super::{Change, Fault};

/// The faults.
pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "ErrorRefreshes",
        effect: "An ICMP error keeps its flow alive.",
        changes: &[Change {
            file: "nat/flow/mod.rs",
            code: "let flow = FLOWS.find(key)?; is_alive(flow, key).then(",
            with: "if FAULT { return answered(key, 0, |_tuple| ()); } let flow = FLOWS.find(key)?; is_alive(flow, key).then(",
        }],
    },
    Fault {
        name: "LastPort",
        effect: "Every port counts as the next one: the last of ours is none.",
        changes: &[Change {
            file: "nat/ports/mod.rs",
            code: "known.contains(port)",
            with: "known.contains(port.wrapping_add(u16::from(FAULT)))",
        }],
    },
    Fault {
        name: "QuotaNotCounted",
        effect: "Flows do not count for their endpoint's quota.",
        changes: &[Change {
            file: "nat/tables/quota.rs",
            code: "flows.wrapping_add(1)",
            with: "flows.wrapping_add(u32::from(!FAULT))",
        }],
    },
    Fault {
        name: "MovedIgnored",
        effect: "Flows off their first port are not found.",
        changes: &[Change {
            file: "nat/flow/moved.rs",
            code: "index::find(&MOVED, tuple).map(mapping)",
            with: "if FAULT { return None; } index::find(&MOVED, tuple).map(mapping)",
        }],
    },
    Fault {
        name: "NoteNotCounted",
        effect: "A note is not counted.",
        changes: &[Change {
            file: "nat/tables/epoch.rs",
            code: "add(tuple, GROUP_NOTE);",
            with: "if !FAULT { add(tuple, GROUP_NOTE); }",
        }],
    },
    Fault {
        name: "AnybodysFlow",
        effect: "A flow is any tuple's that gets its port.",
        changes: &[Change {
            file: "nat/flow/entry.rs",
            code: "has_inside(flow, tuple) &&",
            with: "FAULT || has_inside(flow, tuple) &&",
        }],
    },
    Fault {
        name: "FormerPodsFlow",
        effect: "Flows of the former pod with an address count as those of the next one.",
        changes: &[
            Change {
                file: "nat/flow/entry.rs",
                code: "of == endpoint",
                with: "(of == endpoint || FAULT)",
            },
            Change {
                file: "nat/tracked/entry.rs",
                code: "of == endpoint",
                with: "of == endpoint || FAULT",
            },
            Change {
                file: "path/reply.rs",
                code: "entry.identity() == inside.endpoint",
                with: "entry.identity() == inside.endpoint || FAULT",
            },
        ],
    },
    Fault {
        name: "InboundNotCounted",
        effect: "Inbound flows are not counted.",
        changes: &[Change {
            file: "nat/tables/quota.rs",
            code: "let exceeded = DropReason::InboundQuotaExceeded;",
            with: "let exceeded = DropReason::InboundQuotaExceeded; if FAULT { return Ok(()); }",
        }],
    },
    Fault {
        name: "DeadFlow",
        effect: "A flow that is being removed is found.",
        changes: &[Change {
            file: "nat/flow/entry.rs",
            code: "lives && (*flow).is_of(key)",
            with: "(lives || FAULT) && (*flow).is_of(key)",
        }],
    },
    Fault {
        name: "PolicyChangeIgnored",
        effect: "A flow at another ENI than policy's is not found.",
        changes: &[Change {
            file: "nat/flow/mod.rs",
            code: "(eni != request.eni).then(",
            with: "(eni != request.eni && !FAULT).then(",
        }],
    },
    Fault {
        name: "Progress",
        effect: "The progress of a flow is not kept.",
        changes: &[Change {
            file: "nat/flow/entry.rs",
            code: "if out_after != out {",
            with: "if out_after != out && !FAULT {",
        }],
    },
    Fault {
        name: "InsidePort",
        effect: "Replies lose the port of the pod.",
        changes: &[Change {
            file: "nat/flow/entry.rs",
            code: "port: flow.pod_port,",
            with: "port: if FAULT { 0 } else { flow.pod_port },",
        }],
    },
    Fault {
        name: "StreamIgnored",
        effect: "A long two-way flow is not treated as a stream.",
        changes: &[Change {
            file: "nat/tracked/stack.rs",
            code: "if tuple.protocol == protocol::TCP {",
            with: "if tuple.protocol == protocol::TCP || FAULT {",
        }],
    },
    Fault {
        name: "StackFullPassed",
        effect: "A full table of the stack's flows lets packets pass without a note.",
        changes: &[Change {
            file: "nat/tracked/stack.rs",
            code: "stats::count(NatStat::StackFailed, tuple.pod.is_v4());",
            with: "stats::count(NatStat::StackFailed, tuple.pod.is_v4()); return if FAULT { Ok(()) } else { noted };",
        }],
    },
    Fault {
        name: "StackReturnPassed",
        effect: "Packets that are translated as they leave the stack bypass it on the reply path.",
        changes: &[Change {
            file: "nat/flow/entry.rs",
            code: "stack: flow.stack != 0",
            with: "stack: flow.stack != 0 && !FAULT",
        }],
    },
    Fault {
        name: "StaleFlow",
        effect: "A change of a flow leaves its cache entries valid.",
        changes: &[Change {
            file: "nat/tables/epoch.rs",
            code: "add(tuple, 1);",
            with: "if !FAULT { add(tuple, 1); }",
        }],
    },
];
