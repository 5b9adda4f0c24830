//! Interface of Towpath's eBPF programs and its user space: map keys and values, the layout of the
//! packet mark, and the numbers of verdicts and drop reasons. The arithmetic on packets that both
//! sides need is here too. No I/O, no allocation, and no dependency on anything else of ours.
//!
//! A change to anything under [`abi`] is a change of the pinned maps' layout: raise
//! [`abi::VERSION`] with it.
#![no_std]
#![expect(
    clippy::inline_always,
    reason = "the programs use these on packet and map pointers, which must not cross a call"
)]

#[cfg(any(test, feature = "user"))]
extern crate std;

pub mod abi;
pub mod checksum;
pub mod config;
pub mod counter;
pub mod headers;
pub mod mark;
pub mod masquerade;
pub mod outcome;
pub mod ports;
pub mod progress;
#[cfg(feature = "user")]
mod user;
