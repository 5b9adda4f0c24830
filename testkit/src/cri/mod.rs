//! Container runtimes on the fabric's node: containerd in the node's network namespace, with everything
//! that it writes below the fabric's folder, a client of its interface (CRI), podman, and cnitool.
//!
//! ```text
//!   test ── CRI ── containerd ── runc: pods' processes, cgroup of the fabric
//!                      └── CNI ── plugin ── agent
//! ```
//!
//! All of it goes with the fabric, whatever happens: its folder and its cgroup say what is its own.

mod client;
mod cnitool;
mod containerd;
pub mod cost;
mod image;
mod podman;
mod private;
mod runtimes;
mod sandbox;

pub use client::{Cri, Exec};
pub use cnitool::Cnitool;
pub use containerd::{Bed, Setup};
pub use image::{IMAGE, Image};
pub use podman::Podman;
pub use runtimes::{Containerd, Plugins, RUNTIMES_VARIABLE};
pub use sandbox::{PodRequest, PortMapping, Sandbox};
