//! The eBPF loader against the real kernel: each test in a network namespace and on a BPF
//! filesystem of its own. Needs root, iproute2 and bpftool.
#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails like the test does"
)]

mod adoption;
mod cleanup;
mod clsact;
#[cfg(feature = "debug-log")]
mod debug_log;
mod egress;
mod lifecycle;
mod maps;
mod nat;
mod replacement;
mod system_calls;
mod tcx;
mod upkeep;
mod world;
