//! Types that go over the socket. Field names are in kebab case, as in the node document.

mod address;
mod cluster;
mod datapath;
mod endpoint;
mod health;
mod kernel;
mod readiness;
mod refused;
mod status;

pub use address::{
    Addresses, AllocationMode, AllocationStatus, AskAddresses, CoolingStatus, LeaseState,
    LeaseStatus, Leased, LeasedAddress, PoolStatus, UnansweredStatus,
};
pub use cluster::{ClusterStatus, UnenforcedPolicy};
pub use datapath::explanation::{Explanation, Onward, Step, Verdict};
pub use datapath::masquerade::{
    EniMasquerade, ExemptCidr, ExternalPolicy, FamilyMasquerade, FileStatus, MasqueradeStatus,
    MasqueradeView, PoolPolicy, PoolView,
};
pub use datapath::metric::Metric;
pub use datapath::nat::{
    DestinationUse, FlowCount, FlowFilter, FlowKind, LastSweep, MapUse, NatFamily, NatFlow,
    NatFlows, NatFlushed, NatStats, NatStatus, Tries,
};
pub use endpoint::{
    AddEndpoint, AddressStatus, Allocation, Attachment, EndpointCheck, EndpointStatus, EniRef,
    GcKept, GcRequest, GcResult,
};
pub use health::{Health, HealthState};
pub use kernel::eni::EniStatus;
pub use kernel::feature::MissingFeature;
pub use kernel::foreign::{Direction, ForeignProgram, Mechanism, Position};
pub use kernel::foreign_config::{ForeignConfig, ForeignConfigKind};
pub use kernel::object::{ObjectKind, ObjectState, OwnedObject};
pub use readiness::Readiness;
pub use refused::{Refused, RefusedKind};
pub use status::{
    DatapathStatus, DocumentStatus, PathMode, RepairWar, Repairs, ServiceNat, ServiceNatStatus,
    Status, SysctlStatus,
};
