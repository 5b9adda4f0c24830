//! Beds for tests of Towpath: a VPC of network namespaces, test runs of the eBPF programs,
//! container runtimes, clusters of Kubernetes, and a cloud. Every bed removes what it made when it
//! is dropped. Most need root.
//!
//! | to test | use |
//! |---|---|
//! | the agent with real packets, in a VPC that checks sources | [`fabric`] |
//! | one packet in one eBPF program | [`testrun`], with frames of [`packet`] |
//! | the figures of the kernel's verifier | [`verifier`] |
//! | frames on a device, past the kernel's stack | [`raw`] |
//! | pods of containerd, podman or cnitool | [`cri`] |
//! | beside a real API server, kubelets and kube-proxies | [`kubernetes`] |
//! | a whole cluster with two worker nodes | [`cluster`] |
//! | an operator, and ENIs that the fake of EC2 attaches | [`cloud`] |
//! | numbers that follow from a seed | [`random`] |
//! | the end of a long run by a signal | [`interrupt`] |
//!
//! A node with an agent, two pods on two ENIs, and one exchange of each protocol between them:
//!
//! ```no_run
//! use ipam::Family;
//! use testkit::fabric::traffic::Protocol;
//! use testkit::fabric::{Fabric, Spec};
//!
//! # fn main() -> anyhow::Result<()> {
//! let mut fabric = Fabric::ready(&Spec::default())?;
//! let first = fabric.add_pod(0, 0)?;
//! let second = fabric.add_pod(1, 0)?;
//! for protocol in Protocol::ALL {
//!     protocol.exchange(first.at(Family::V4), second.at(Family::V4))?;
//! }
//! // Fails if a packet left by an ENI that does not own its source.
//! fabric.finish()?;
//! # Ok(())
//! # }
//! ```

pub mod cloud;
pub mod cluster;
pub mod cri;
pub mod fabric;
pub mod interrupt;
pub mod kubernetes;
pub mod packet;
pub mod random;
pub mod raw;
pub mod system_calls;
pub mod testrun;
pub mod verifier;
