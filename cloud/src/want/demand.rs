//! The double read: which generation of agent is on a node, and what it uses.

/// The demand in a node's document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// `spec.ipam.pools.requested` of the pool `default`, if it is there.
    pub requested: Option<Requested>,
    /// Entries of `status.ipam.used`.
    pub used: u32,
}

/// The addresses that an agent wants in all, of each family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requested {
    /// `needed.ipv4-addrs`.
    pub ipv4: u32,
    /// `needed.ipv6-addrs`.
    pub ipv6: u32,
}

/// The generation of a node's agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// It writes each address that it uses.
    Used,
    /// It writes how many addresses it wants in all.
    Requested,
}

/// A demand as it is understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The generation.
    pub generation: Generation,
    /// IPv4 addresses in use, pending ones included.
    pub used: u32,
    /// The node wants an IPv6 prefix.
    pub ipv6: bool,
}

impl Reading {
    /// Reads a demand. After a downgrade both fields are there and `requested` is stale, so `used`
    /// wins. A newer agent wants its pre-allocation as well, which is taken off again.
    #[must_use]
    pub fn of(demand: &Demand, pre_allocate: i32) -> Self {
        match demand.requested {
            Some(Requested { ipv4, ipv6 }) if demand.used == 0 => Self {
                generation: Generation::Requested,
                used: ipv4.saturating_sub(u32::try_from(pre_allocate).unwrap_or(0)),
                ipv6: ipv6 > 0,
            },
            _ => Self {
                generation: Generation::Used,
                used: demand.used,
                ipv6: false,
            },
        }
    }
}
