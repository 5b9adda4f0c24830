//! Namespace tests: the agent on a node in a VPC of network namespaces, with real traffic.
//!
//! Every fabric drops and counts packets that leave by an ENI that does not own their source, and
//! every test ends with none.

mod self_check;
