//! Every number and name that Towpath owns in the kernel, in one place.
//!
//! A number whose meaning changes gets a new value, so that objects of an older agent are never
//! misinterpreted.

use datapath_common::mark::MarkLayout;
use std::net::Ipv6Addr;

/// Rule 20: all packets look up the pod table first. It is one rule, not one for each pod.
pub const RULE_PODS: u32 = 20;
/// Rule 110: a packet without our mark skips the ENI rules.
pub const RULE_SKIP: u32 = 110;
/// Rule 111: a packet marked for an ENI takes that ENI's table. The priority is Cilium's.
pub const RULE_ENI: u32 = 111;
/// Rule 112: a nop as the target of the skip, and what a secondary ENI's own address sends.
pub const RULE_OWN_ADDRESS: u32 = 112;

/// The pod table: one route for each endpoint, one unreachable route for each block. Clear of the
/// kernel's (253 to 255), Cilium's (200, 202, 2004, 2005) and the VPC CNI's (2 to 16).
pub const TABLE_PODS: u32 = 220;
/// An ENI's table is this plus its number, as Cilium's.
pub const TABLE_ENI_BASE: u32 = 10;

/// The highest ENI number that has a table: as many as the default mark can name, and clear of
/// Cilium's tables and the pod table.
pub const ENI_MAX: u8 = 62;

/// True if a table is one of ours: the pod table, or that of an ENI number that we use.
#[must_use]
pub fn is_our_table(table: u32) -> bool {
    let last = TABLE_ENI_BASE + u32::from(ENI_MAX);
    table == TABLE_PODS || (TABLE_ENI_BASE..=last).contains(&table)
}

/// Every table that [`is_our_table`] takes for ours.
pub fn our_tables() -> impl Iterator<Item = u32> {
    let of_enis = TABLE_ENI_BASE..=TABLE_ENI_BASE + u32::from(ENI_MAX);
    of_enis.chain([TABLE_PODS])
}

/// Metric of an unreachable route, higher than that of an endpoint's route of the same length. The
/// latter has the kernel's default of 1024 for IPv6.
pub const METRIC_UNREACHABLE: u32 = 9000;
/// Default metric of an IPv6 route in the kernel (`IP6_RT_PRIO_USER`,
/// `include/uapi/linux/ipv6_route.h`).
pub const METRIC_V6_DEFAULT: u32 = 1024;

/// Address of the VPC's router as every ENI sees it (AWS, "Route table concepts").
pub const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0x0ec2, 0, 0, 0, 0, 0, 1);

/// Link-local gateway of every pod, IPv4: as the VPC CNI's and Calico's.
pub const POD_GATEWAY_V4: std::net::Ipv4Addr = std::net::Ipv4Addr::new(169, 254, 1, 1);
/// Link-local gateway of every pod, IPv6.
pub const POD_GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// Priority of our filter without TCX: after those that tc assigns by itself, which begin at 49152
/// and count down (`tcf_auto_prio`, `net/sched/cls_api.c`).
pub const TC_PRIORITY: u16 = 50_000;
/// Handle of our filter where TCX is missing ("tw").
pub const TC_HANDLE: u32 = 0x7477;

/// Interface group of a pod's finished host-side device ("tw"), explained at
/// [`crate::observation::ownership::finished_device`]. The group is the only attribute that a
/// device keeps while it is down and that has no other effect; 0 is the default group.
pub const DEVICE_GROUP: u32 = 0x7477;

/// Smallest MTU that IPv6 allows (RFC 8200 section 5).
pub const MTU_MIN: u32 = 1280;
/// Largest MTU of an ENI (AWS, "Network maximum transmission unit (MTU)").
pub const MTU_MAX: u32 = 9001;

/// The highest ENI number that both the mark and the tables have room for.
#[must_use]
pub fn highest_number(mark: MarkLayout) -> u8 {
    let max = u8::try_from(mark.max_eni()).unwrap_or(u8::MAX);
    max.min(ENI_MAX)
}
