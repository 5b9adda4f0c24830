//! The words that every part of the agent uses: checked at the edge, then passed on as values.

mod eni_number;
mod mac;
mod netns;
mod owner;
mod pod;

pub use eni_number::EniNumber;
pub use mac::MacAddr;
pub use netns::NetnsId;
pub use owner::{EndpointId, Owner, ParseEndpointIdError};
pub use pod::PodRef;
