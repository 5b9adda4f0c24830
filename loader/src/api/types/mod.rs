//! What goes over the socket. Field names are in kebab case, as in the node document.

mod address;
mod cluster;
mod endpoint;
mod eni;
mod figures;
mod health;
mod masquerade;
mod metric;
mod nat;
mod status;

pub use address::{
    Addresses, AllocationMode, AllocationStatus, AskAddresses, CoolingStatus, LeaseState,
    LeaseStatus, Leased, LeasedAddress, PoolStatus, UnansweredStatus,
};
pub use cluster::{ClusterStatus, UnenforcedPolicy};
pub use endpoint::{
    AddEndpoint, AddressStatus, Allocation, Attachment, Collect, Collected, EndpointCheck,
    EndpointStatus, EniRef, Kept,
};
pub use eni::EniStatus;
pub use figures::{Figures, Work};
pub use health::{Health, HealthState};
pub use masquerade::{
    EniMasquerade, ExemptCidr, Explanation, FamilyMasquerade, FileStatus, MasqueradeStatus, Onward,
    PoolPolicy, PoolView, Step, Verdict,
};
pub use metric::Metric;
pub use nat::{
    DestinationUse, FlowCount, FlowFilter, FlowKind, LastSweep, MapUse, NatFamily, NatFlow,
    NatFlows, NatFlushed, NatStats, NatStatus, Tries,
};
pub use status::{DatapathStatus, DocumentStatus, Repairs, ServiceNatStatus, Status, SysctlStatus};
