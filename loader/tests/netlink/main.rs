//! The netlink side against the real kernel, with `ip` as the second opinion. Every test has a
//! network namespace of its own. Needs root and the Debian packages iproute2, iputils-ping, procps
//! and util-linux.

mod endpoint;
mod events;
mod host;
mod links;
mod neighbours_addresses;
mod routes;
mod rules;
