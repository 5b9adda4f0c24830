//! Types that go over the socket. Field names are in kebab case, as in the node document.

mod address;
mod cluster;
mod endpoint;
mod eni;
mod explanation;
mod feature;
mod foreign;
mod health;
mod masquerade;
mod metric;
mod nat;
mod object;
mod readiness;
mod refused;
mod status;
mod trace;

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
pub use explanation::{Explanation, Onward, Step, Verdict};
pub use feature::MissingFeature;
pub use foreign::{Direction, ForeignProgram, Mechanism, Position};
pub use health::{Health, HealthState};
pub use masquerade::{
    EniMasquerade, ExemptCidr, ExternalPolicy, FamilyMasquerade, FileStatus, MasqueradeStatus,
    MasqueradeView, PoolPolicy, PoolView,
};
pub use metric::Metric;
pub use nat::{
    DestinationUse, FlowCount, FlowFilter, FlowKind, LastSweep, MapUse, NatFamily, NatFlow,
    NatFlows, NatFlushed, NatStats, NatStatus, Tries,
};
pub use object::{ObjectKind, ObjectState, OwnedObject};
pub use readiness::Readiness;
pub use refused::{Refused, RefusedKind};
pub use status::{
    DatapathStatus, DocumentStatus, PathMode, RepairWar, Repairs, ServiceNat, ServiceNatStatus,
    Status, SysctlStatus,
};
pub use trace::{Trace, TraceKind};
