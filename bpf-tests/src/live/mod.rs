//! What real traffic costs: the same exchanges by way of nodes that are set up differently, side by
//! side in one run.
//!
//! Client and server are threads of one process, in two namespaces, pinned to one CPU. Whatever the
//! kernel does for a packet between them, it does on that CPU and in the time of that process: the
//! whole path is counted, and the machine's other load mostly is not. The modes take turns in random
//! order in every round; what counts is the median of a ratio within the same round.
//!
//! Each mode has a node in a VPC of its own, which first shows on the source-checking fabric that
//! its packets leave as they should. Then the checks are lifted, so that no mode pays for them. The
//! servers are in the router's namespace, one hop behind the ENI: all that a way through more hosts
//! would add is the same for every mode and would blur the differences.

pub mod by_hand;
pub mod clock;
pub mod floor;
pub mod kernel;
pub mod lane;
pub mod operation;
pub mod ours;
pub mod plant;
pub mod rounds;
pub mod scene;
pub mod site;
pub mod stats;
pub mod traffic;
pub mod vpc_cni;
