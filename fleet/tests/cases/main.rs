//! Fleets in virtual time: EC2 is the fake's machine, the API server a map of objects.

#![expect(
    clippy::unwrap_used,
    reason = "a failure of a helper is a failure of the test"
)]

mod absent;
mod advertise;
mod bad_input;
mod bed;
mod clocks;
mod compat;
mod crash;
mod creation;
mod four_words;
mod kubelet;
mod objects;
mod one_node;
mod others;
mod plain;
mod pool_marks;
mod pools;
mod protocol;
mod release;
mod reports;
mod reports_network;
mod reports_writes;
mod reuse;
mod scale;
mod static_ip;
mod subnets;
