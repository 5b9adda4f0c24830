//! The netlink side against the real kernel, with `ip` as the second opinion. Every test has a
//! network namespace of its own. Needs root and the Debian packages conntrack, iproute2, iptables,
//! iputils-ping, nftables, procps and util-linux.

mod conntrack;
mod endpoint;
mod events;
mod host;
mod links;
mod neighbours_addresses;
mod routes;
mod rules;
mod service_nat;
