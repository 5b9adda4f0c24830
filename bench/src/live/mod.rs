//! Cost of real traffic: the same exchanges through nodes that are set up differently, side by side
//! in one run.
//!
//! Client and server are threads of one process, in two namespaces, pinned to one CPU. The kernel's
//! work for their packets runs on that CPU and in the time of that process. The whole path is
//! therefore counted, and most other load of the machine is not. The modes take turns in random
//! order in every round. The result is the median of a ratio within a round.
//!
//! Each mode has a node in a VPC of its own. The source-checking fabric first proves that the
//! node's packets leave correctly. Then the checks are lifted, so that no mode includes their cost.
//! The servers are in the router's namespace, one hop behind the ENI. More hosts would add the same
//! cost to every mode and blur the differences.

pub mod clock;
pub mod lane;
pub mod nodes;
pub mod operation;
pub mod rounds;
pub mod scene;
pub mod stats;
pub mod traffic;
