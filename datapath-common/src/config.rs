//! Settings fixed when the programs are loaded: read-only globals of the object, so that the
//! verifier removes the branches they rule out.

/// Shift of the ENI field in the packet mark (`u32`).
pub const MARK_SHIFT: &str = "MARK_SHIFT";
/// All bits of the packet mark that are ours (`u32`).
pub const MARK_MASK: &str = "MARK_MASK";
/// The exception bit of the packet mark (`u32`).
pub const MARK_EXCEPTION: &str = "MARK_EXCEPTION";

/// Names of the programs in the object.
pub mod program {
    /// TC ingress of an endpoint's host-side device: what the pod sends.
    pub const FROM_ENDPOINT: &str = "from_endpoint";
    /// TC ingress of an ENI: what the VPC delivers.
    pub const FROM_NETWORK: &str = "from_network";
}
