//! The netlink side against the real kernel, with `ip` as the second opinion. Every test has a
//! network namespace of its own. Needs root, iproute2, util-linux (`nsenter`) and `ping`.

mod endpoint;
mod events;
mod host;
mod links;
mod neighbours_addresses;
mod routes;
mod rules;
