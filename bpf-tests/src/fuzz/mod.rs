//! Random packets through the programs and the reference model: both must give the same bytes and
//! the same state.
//!
//! A run is made of batches. Each has a seed of its own, from which everything in it follows: the
//! node's policy, what is remembered at its start, and every packet. A batch that fails can so be
//! had again alone.

mod aim;
mod aim_stack;
mod batch;
mod clock;
mod explained;
mod frame;
mod groups;
mod node;
mod packet;
mod preload;
mod snapshot;
mod variant;

pub use batch::{Failure, Fuzzer, Outcomes, PACKETS, make_devices};
pub use explained::{Explained, Seen};
pub use node::{DEVICES, Device};
pub use variant::Variant;
