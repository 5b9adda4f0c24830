//! Blocks: the CIDRs that belong to the node, and how far each of them is in its life.

mod rules;
mod slots;

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

pub use self::rules::{Barred, EdgeRules, WINDOW};
pub(crate) use self::slots::Slots;
use crate::{Counts, Family};

/// The source that delivers a block's packets to the node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The node as such: always ready.
    Node,
    /// Something that can be not ready, such as an ENI, by its id.
    Device(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node => f.write_str("the node"),
            Self::Device(id) => f.write_str(id),
        }
    }
}

/// The phase of a block's life. Only a usable block's free addresses are given out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Life {
    /// The node has it, and what delivers it is not ready, or its claim is not written yet.
    Announced,
    /// It serves.
    Usable,
    /// The node has it, and nothing more is given from it.
    Draining(Draining),
    /// The node has it no more; addresses of it are still in use or cooling down.
    Gone,
}

/// Why nothing more is given from a block that the node has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Draining {
    /// It is not needed and was given back; it is taken again if it is needed before it goes.
    Released,
    /// The block belongs to another pool now. It moves there once no owner has an address of it,
    /// since an address in use never changes its pool.
    MovesTo(String),
    /// The block's pool is unknown, for example because two pools claim its ENI.
    Undecided,
}

impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Announced => f.write_str("announced"),
            Self::Usable => f.write_str("usable"),
            Self::Draining(Draining::Released) => f.write_str("draining: released"),
            Self::Draining(Draining::MovesTo(pool)) => write!(f, "draining: moves to pool {pool}"),
            Self::Draining(Draining::Undecided) => f.write_str("draining: pool undecided"),
            Self::Gone => f.write_str("gone"),
        }
    }
}

/// The view of a block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct BlockView {
    /// The block.
    pub cidr: IpNet,
    /// Its pool; `None` while that is undecided and no address of it is in use.
    pub pool: Option<String>,
    /// Its source; `None` once that is gone.
    pub source: Option<Source>,
    /// The phase of its life.
    pub life: Life,
    /// Its addresses by state.
    pub counts: Counts,
}

/// A block that the node has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) source: Source,
    pub(crate) pool: Option<String>,
    pub(crate) life: Life,
    pub(crate) slots: Slots,
    /// The number of addresses of it that are in use or cooling down, within its window or not.
    pub(crate) held: u32,
}

impl Block {
    pub(crate) fn cidr(&self) -> IpNet {
        self.slots.space().net()
    }

    pub(crate) fn edges(&self) -> EdgeRules {
        self.slots.space().edges()
    }

    pub(crate) fn start(&self) -> IpAddr {
        self.cidr().addr()
    }

    pub(crate) fn family(&self) -> Family {
        Family::of_net(self.cidr())
    }

    pub(crate) fn is_usable(&self) -> bool {
        self.life == Life::Usable
    }

    pub(crate) fn is_released(&self) -> bool {
        self.life == Life::Draining(Draining::Released)
    }

    pub(crate) fn is_of(&self, pool: &str, family: Family) -> bool {
        self.family() == family && self.pool.as_deref() == Some(pool)
    }

    /// True if a free address of it would do, were it ready.
    pub(crate) fn waits_for_its_source(&self) -> bool {
        self.life == Life::Announced && self.slots.free() > 0
    }
}
