//! The maps of flows: translated flows, inbound flows, flows of the stack, their groups and the
//! flow cache.

pub(in crate::bpf) mod cache;
mod counters;
mod credit;
pub(in crate::bpf) mod flow_groups;
pub(in crate::bpf) mod nat;
pub(in crate::bpf) mod notes;
mod per_cpu;
pub(in crate::bpf) mod stack_flows;
