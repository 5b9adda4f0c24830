//! A VPC's CIDRs: an agent routes and translates by them.

use std::collections::BTreeSet;

use ipnet::IpNet;

use crate::VpcId;

/// A VPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vpc {
    /// Its id.
    pub id: VpcId,
    /// Its primary IPv4 CIDR, `cidrBlock` of EC2.
    pub primary: IpNet,
    /// All other CIDRs that are associated with it.
    pub others: BTreeSet<IpNet>,
}
