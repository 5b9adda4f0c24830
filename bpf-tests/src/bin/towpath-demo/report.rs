//! The demo's result, as one document.

use std::io::Write as _;

use anyhow::Result;
use serde::Serialize;

/// The time that a removed object may be missing.
pub(crate) const HEAL_LIMIT_MS: u64 = 1000;

/// All results of the demo.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Document {
    /// True if all results were as expected.
    pub(crate) ok: bool,
    /// The flows that were tried.
    pub(crate) flows: Vec<Flow>,
    /// Packets that the VPC dropped because their source was not the ENI's.
    pub(crate) foreign_source_drops: u64,
    /// Packets that the VPC's gateways dropped because they carried a pod's address out of it.
    pub(crate) untranslated_drops: u64,
    /// Objects that were removed by hand and came back.
    pub(crate) healed: Vec<Healed>,
}

/// A flow that was tried.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Flow {
    /// Stable name of the flow.
    pub(crate) name: &'static str,
    /// `ipv4` or `ipv6`.
    pub(crate) family: &'static str,
    /// `tcp`, `udp` or `icmp`.
    pub(crate) protocol: String,
    /// Address of the end that opened it.
    pub(crate) from: String,
    /// Address of the end that answered.
    pub(crate) to: String,
    /// True if the answer came, and the packets took the expected path.
    pub(crate) ok: bool,
    /// Number of the ENI that carried it, as the VPC saw it; none when it stayed on the node.
    pub(crate) eni: Option<u16>,
    /// The source that the other end saw it with, when it left the node.
    pub(crate) snat: Option<String>,
    /// `direct` when the programs carried it, `stack` when the host's stack did.
    pub(crate) path: &'static str,
    /// The reason for the path: for a flow that a pod opens, as in `towpath masq explain`; for
    /// others, by the counters.
    pub(crate) why: String,
    /// Difference from the expected result.
    #[serde(skip)]
    pub(crate) problem: Option<String>,
}

/// An object that was removed by hand.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Healed {
    /// The object, as ip(8) writes it.
    pub(crate) object: String,
    /// The time that it was missing, in milliseconds.
    pub(crate) after_ms: u64,
}

impl Document {
    pub(crate) fn new(
        flows: Vec<Flow>,
        foreign_source_drops: u64,
        untranslated_drops: u64,
        healed: Vec<Healed>,
    ) -> Self {
        let ok = flows.iter().all(|flow| flow.ok)
            && foreign_source_drops == 0
            && untranslated_drops == 0
            && healed.iter().all(|object| object.after_ms <= HEAL_LIMIT_MS);
        Self {
            ok,
            flows,
            foreign_source_drops,
            untranslated_drops,
            healed,
        }
    }

    /// Writes the document to stdout.
    pub(crate) fn print(&self) -> Result<()> {
        let mut stdout = std::io::stdout().lock();
        serde_json::to_writer_pretty(&mut stdout, self)?;
        writeln!(stdout)?;
        Ok(())
    }
}
