//! Netfilter and conntrack: entries and timeouts, service NAT of the host, our own nftables table, and
//! the rules that packets on the fast path bypass.

pub mod bypassed;
pub mod conntrack;
mod periodic;
pub mod service_nat;
pub mod untracked;

pub use self::periodic::Periodic;
