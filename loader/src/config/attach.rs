//! How programs are attached.

use serde::{Deserialize, Serialize};

/// How the programs are attached to a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttachMode {
    /// TCX where the kernel has it (6.6), clsact where not.
    #[default]
    Auto,
    /// TCX; the agent does not start on a kernel without it.
    Tcx,
    /// A filter in a clsact qdisc, on any kernel: another agent's tc filters can then run first.
    Clsact,
}
