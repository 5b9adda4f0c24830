//! What goes over the socket. Field names are in kebab case, as in the node document.

mod endpoint;
mod eni;
mod health;
mod metric;
mod status;

pub use endpoint::{AddEndpoint, AddressStatus, Allocation, Attachment, EndpointStatus, EniRef};
pub use eni::EniStatus;
pub use health::{Health, HealthState};
pub use metric::Metric;
pub use status::{DatapathStatus, DocumentStatus, Repairs, Status, SysctlStatus};
