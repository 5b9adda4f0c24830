//! Foreign programs on our devices.

use serde::{Deserialize, Serialize};

/// A foreign program or filter on a device of ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeignProgram {
    /// The device's name.
    pub device: String,
    /// The device's index.
    pub ifindex: u32,
    /// Direction of the packets that it sees.
    pub direction: Direction,
    /// Mechanism of its attachment.
    pub mechanism: Mechanism,
    /// Kind of the program: `bpf`, or the kind of another filter, such as `flower`.
    pub kind: String,
    /// Its name, where it has one.
    pub name: Option<String>,
    /// The program's id, for BPF.
    pub id: Option<u32>,
    /// Priority of a filter.
    pub priority: Option<u16>,
    /// When it runs.
    pub position: Position,
}

/// When a foreign program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Position {
    /// Before ours: it may keep packets from us.
    Before,
    /// After ours: it sees what we pass on.
    After,
    /// Ours is not on this hook.
    Alone,
}

/// Mechanism by which programs are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mechanism {
    /// Pinned TCX links, after all other programs.
    Tcx,
    /// Filters of a clsact qdisc.
    Clsact,
}

/// Direction of packets through a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Packets that the device receives.
    Ingress,
    /// Packets that the device sends.
    Egress,
}

impl Direction {
    /// Both directions.
    pub const ALL: [Self; 2] = [Self::Ingress, Self::Egress];

    /// The name, as `tc` has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }
}
