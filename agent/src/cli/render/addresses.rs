//! Tables of pools and addresses, and their lines of the status.

use api::types::{Addresses, AllocationStatus, CoolingStatus, LeaseState, LeaseStatus, PoolStatus};
use terminal::{Paint, Table, Tone};

/// The pools.
pub(in crate::cli) fn pools(pools: &[PoolStatus], paint: Paint) -> String {
    let mut table = Table::new([
        "POOL",
        "FAMILY",
        "IN USE",
        "COOLING",
        "FREE",
        "UNAVAILABLE",
        "WAITING",
        "REQUESTED",
        "BLOCKS",
    ]);
    for pool in pools {
        let tone = if pool.free == 0 {
            Tone::Warning
        } else {
            Tone::Plain
        };
        let blocks = pool.blocks.iter().map(|block| match &block.life {
            ipam::Life::Usable => block.cidr.to_string(),
            life => format!("{} ({life})", block.cidr),
        });
        table.row(
            tone,
            [
                pool_name(pool.pool.as_deref()),
                pool.family.to_string(),
                pool.in_use.to_string(),
                pool.cooling.to_string(),
                pool.free.to_string(),
                pool.unavailable.to_string(),
                pool.waiting.to_string(),
                pool.requested.to_string(),
                blocks.collect::<Vec<_>>().join(","),
            ],
        );
    }
    table.render(paint)
}

/// The owners of addresses.
pub(in crate::cli) fn addresses(addresses: &Addresses, paint: Paint) -> String {
    let mut table = Table::new(["ADDRESS", "POOL", "POLICY", "STATE", "OWNER", "POD", "NOTE"]);
    for lease in &addresses.leases {
        let tone = if lease.orphan { Tone::Bad } else { Tone::Plain };
        table.row(
            tone,
            [
                lease.address.to_string(),
                pool_name(lease.pool.as_deref()),
                pool_name(lease.policy.as_deref()),
                state(lease).to_owned(),
                lease.owner.to_string(),
                lease
                    .pod
                    .as_ref()
                    .map(ToString::to_string)
                    .unwrap_or_default(),
                note(lease),
            ],
        );
    }
    for cooling in &addresses.cooling {
        table.row(
            Tone::Plain,
            [
                cooling.address.to_string(),
                pool_name(cooling.pool.as_deref()),
                String::new(),
                "cooling".to_owned(),
                String::new(),
                String::new(),
                until(cooling),
            ],
        );
    }
    table.render(paint)
}

/// The state of allocation, in lines of the status.
pub(super) fn lines(status: &AllocationStatus) -> Vec<(Tone, String)> {
    let AllocationStatus {
        enabled,
        mode,
        waiting,
        pools,
        // Among the reasons of the agent's health.
        unanswered: _,
        orphans,
        problems,
    } = status;
    if !enabled {
        let text = format!("IPAM mode: {mode}: each request brings its addresses");
        return vec![(Tone::Plain, text)];
    }
    let mut lines = vec![(Tone::Plain, format!("IPAM mode: {mode}"))];
    if !waiting.is_empty() {
        let text = format!(
            "Addresses: none is allocated yet: waiting for {}",
            waiting.join(", ")
        );
        lines.push((Tone::Bad, text));
    }
    for pool in pools {
        let tone = if pool.free == 0 {
            Tone::Warning
        } else {
            Tone::Plain
        };
        let text = format!(
            "Pool {}, {}: {} in use, {} cooling down, {} free, {} unavailable, {} pods waiting",
            pool_name(pool.pool.as_deref()),
            pool.family,
            pool.in_use,
            pool.cooling,
            pool.free,
            pool.unavailable,
            pool.waiting
        );
        lines.push((tone, text));
    }
    for orphan in orphans {
        let LeaseStatus { address, owner, .. } = orphan;
        lines.push((
            Tone::Bad,
            format!("  {address} of {owner}: {}", note(orphan)),
        ));
    }
    let problems = problems.iter();
    lines.extend(problems.map(|problem| (Tone::Warning, format!("  {problem}"))));
    lines
}

fn pool_name(pool: Option<&str>) -> String {
    pool.unwrap_or("?").to_owned()
}

fn state(lease: &LeaseStatus) -> &'static str {
    match lease.state {
        LeaseState::Endpoint => "endpoint",
        LeaseState::Orphaned => "orphaned",
        LeaseState::Claimed => "claimed",
        LeaseState::Unclaimed => "unclaimed",
        LeaseState::Agent => "agent",
    }
}

fn note(lease: &LeaseStatus) -> String {
    if lease.orphan {
        return format!("block {} is gone: no ENI delivers it", lease.block);
    }
    let expires = lease.expires_seconds;
    expires.map_or_else(String::new, |s| format!("expires in {s} s unless claimed"))
}

fn until(cooling: &CoolingStatus) -> String {
    match (cooling.seconds, cooling.flows, &cooling.entries) {
        (0, true, _) => "until its flows are gone".to_owned(),
        (0, false, Some(entries)) => entries.clone(),
        (0, false, None) => "about to be free".to_owned(),
        (seconds, _, _) => format!("{seconds} s at least"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::ids::Owner;
    use api::types::AllocationMode;
    use ipam::Family;

    /// An address whose block is gone.
    fn orphan() -> LeaseStatus {
        LeaseStatus {
            address: "10.0.1.20".parse().unwrap(),
            owner: Owner {
                container_id: "a".into(),
                interface: "eth0".into(),
            },
            pool: None,
            policy: Some("direct".into()),
            block: "10.0.1.16/28".parse().unwrap(),
            state: LeaseState::Endpoint,
            orphan: true,
            expires_seconds: None,
            pod: None,
        }
    }

    /// A status in which each field says something.
    fn troubled() -> AllocationStatus {
        AllocationStatus {
            enabled: true,
            mode: AllocationMode::MultiPool,
            waiting: vec!["the pools".into()],
            orphans: vec![orphan()],
            unanswered: Vec::new(),
            problems: vec!["two pools".into()],
            pools: vec![PoolStatus {
                pool: Some("mars".into()),
                family: Family::V6,
                in_use: 1,
                unclaimed: 0,
                cooling: 2,
                free: 3,
                waiting: 4,
                unavailable: 5,
                excluded: 6,
                requested: 7,
                blocks: Vec::new(),
            }],
        }
    }

    #[test]
    fn what_is_wrong_is_told() {
        let status = troubled();
        let text: Vec<_> = lines(&status).into_iter().map(|(_, text)| text).collect();
        assert_eq!(
            text,
            [
                "IPAM mode: multi-pool",
                "Addresses: none is allocated yet: waiting for the pools",
                "Pool mars, IPv6: 1 in use, 2 cooling down, 3 free, 5 unavailable, 4 pods waiting",
                "  10.0.1.20 of a/eth0: block 10.0.1.16/28 is gone: no ENI delivers it",
                "  two pools",
            ]
        );
        let table = pools(&status.pools, Paint(false));
        let columns: Vec<_> = table.split_whitespace().collect();
        let (names, values) = columns.split_at(9);
        assert_eq!(
            names.join(" "),
            "POOL FAMILY IN USE COOLING FREE UNAVAILABLE WAITING REQUESTED"
        );
        assert_eq!(values.join(" "), "BLOCKS mars IPv6 1 2 3 5 4 7 -");
        let cooling = CoolingStatus {
            address: "10.0.1.21".parse().unwrap(),
            pool: Some("blue".into()),
            seconds: 0,
            flows: true,
            entries: None,
        };
        let list = Addresses {
            leases: vec![orphan()],
            cooling: vec![cooling],
        };
        let text = addresses(&list, Paint(false));
        assert_eq!(
            text,
            "ADDRESS    POOL  POLICY  STATE     OWNER   POD  NOTE\n\
             10.0.1.20  ?     direct  endpoint  a/eth0  -    block 10.0.1.16/28 is gone: no ENI delivers it\n\
             10.0.1.21  blue  -       cooling   -       -    until its flows are gone\n"
        );
    }
}
