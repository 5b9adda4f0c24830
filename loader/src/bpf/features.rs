//! What the kernel offers, probed once.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context, Result, bail};
use aya::programs::ProgramType;
use aya::sys::{BpfHelper, is_helper_supported};
use serde::{Deserialize, Serialize};

use super::AttachMode;
use super::attach::Mechanism;
use super::sys::{Direction, query_tcx};

/// The loopback device has this index in every network namespace (`LOOPBACK_IFINDEX` in
/// include/net/flow.h).
const LOOPBACK: u32 = 1;

/// What the kernel offers to the datapath.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is the answer of one probe, independent of the others"
)]
pub struct Features {
    /// The kernel's release, as `uname -r`.
    pub kernel: String,
    /// Whether programs can be attached by TCX (Linux 6.6).
    pub tcx: bool,
    /// How programs are attached: what the setting and the kernel come to.
    pub attach: Mechanism,
    /// Whether the kernel describes its types (`/sys/kernel/btf/vmlinux`).
    pub btf: bool,
    /// Whether programs are compiled to machine code (`net.core.bpf_jit_enable`); `None` when it
    /// cannot be read.
    pub jit: Option<bool>,
    /// Whether a program can deliver into another namespace (`bpf_redirect_peer`, Linux 5.10).
    pub redirect_peer: bool,
    /// Whether a program can send to a next hop (`bpf_redirect_neigh`, Linux 5.10).
    pub redirect_neigh: bool,
}

impl Features {
    /// Probes the kernel.
    ///
    /// # Errors
    /// When a probe cannot be carried out, or `attach` asks for what the kernel lacks.
    pub(super) fn probe(attach: AttachMode) -> Result<Self> {
        let tcx = has_tcx().context("cannot probe the kernel for TCX")?;
        let helper = |helper| {
            is_helper_supported(ProgramType::SchedClassifier, helper)
                .context("cannot probe the kernel's BPF helpers")
        };
        Ok(Self {
            kernel: read("/proc/sys/kernel/osrelease")
                .context("cannot read the kernel's release")?,
            tcx,
            attach: mechanism(attach, tcx)?,
            btf: Path::new("/sys/kernel/btf/vmlinux").exists(),
            jit: read("/proc/sys/net/core/bpf_jit_enable")
                .ok()
                .map(|value| value != "0"),
            redirect_peer: helper(BpfHelper::BPF_FUNC_redirect_peer)?,
            redirect_neigh: helper(BpfHelper::BPF_FUNC_redirect_neigh)?,
        })
    }
}

fn mechanism(attach: AttachMode, tcx: bool) -> Result<Mechanism> {
    match (attach, tcx) {
        (AttachMode::Auto | AttachMode::Tcx, true) => Ok(Mechanism::Tcx),
        (AttachMode::Auto, false) | (AttachMode::Clsact, _) => Ok(Mechanism::Clsact),
        (AttachMode::Tcx, false) => bail!(
            "attach is \"tcx\", but this kernel has no TCX (Linux 6.6 or later); allowed here are \
             \"auto\" and \"clsact\""
        ),
    }
}

fn has_tcx() -> io::Result<bool> {
    match query_tcx(LOOPBACK, Direction::Ingress) {
        Ok(_programs) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        Err(error) => Err(error),
    }
}

fn read(path: &str) -> io::Result<String> {
    Ok(fs::read_to_string(path)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcx_is_taken_where_it_is_and_refused_where_it_is_not() {
        assert_eq!(mechanism(AttachMode::Auto, true).unwrap(), Mechanism::Tcx);
        assert_eq!(
            mechanism(AttachMode::Auto, false).unwrap(),
            Mechanism::Clsact
        );
        assert_eq!(
            mechanism(AttachMode::Clsact, true).unwrap(),
            Mechanism::Clsact
        );
        let error = mechanism(AttachMode::Tcx, false).unwrap_err().to_string();
        assert!(error.contains("attach is \"tcx\""), "{error}");
    }
}
