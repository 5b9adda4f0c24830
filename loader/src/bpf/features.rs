//! The kernel's features, probed once.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context, Result, bail};
use api::types::Direction;
use api::types::Mechanism;
use api::types::MissingFeature;
use aya::programs::ProgramType;
use aya::sys::{BpfHelper, is_helper_supported};
use serde::{Deserialize, Serialize};

use crate::bpf::AttachMode;
use crate::bpf::attach::Mechanisms;
use crate::bpf::signals::BlockedSignals;
use crate::bpf::sys::tcx_revision;

/// The loopback device has this index in every network namespace (`LOOPBACK_IFINDEX` in
/// include/net/flow.h).
const LOOPBACK: u32 = 1;

/// The features that the kernel has for the datapath.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is the answer of one probe, independent of the others"
)]
pub struct Features {
    /// The kernel's release, as `uname -r`.
    pub kernel: String,
    /// True if programs can be attached by TCX (Linux 6.6).
    pub tcx: bool,
    /// The mechanism for ENIs, by the setting and the kernel.
    pub attach: Mechanism,
    /// The mechanism for endpoints' devices.
    pub attach_endpoints: Mechanism,
    /// True if the kernel describes its types (`/sys/kernel/btf/vmlinux`).
    pub btf: bool,
    /// True if programs are compiled to machine code (`net.core.bpf_jit_enable`); `None` when it
    /// cannot be read.
    pub jit: Option<bool>,
    /// True if a program can deliver into another namespace (`bpf_redirect_peer`, Linux 5.10).
    pub redirect_peer: bool,
    /// True if a program can send to a next hop (`bpf_redirect_neigh`, Linux 5.10).
    pub redirect_neigh: bool,
    /// True if the memory of maps and programs counts as the agent's own, in its cgroup (Linux
    /// 5.11), and not as locked memory.
    pub cgroup_memory: bool,
}

impl Features {
    /// Probes the kernel.
    ///
    /// # Errors
    /// If a probe cannot be carried out, or if the kernel lacks the mechanism of `attach`.
    pub fn probe(attach: AttachMode) -> Result<Self> {
        let _blocked = BlockedSignals::new()?;
        let tcx = has_tcx().context("cannot probe the kernel for TCX")?;
        let mechanisms = mechanisms(attach, tcx)?;
        let helper = |helper| {
            is_helper_supported(ProgramType::SchedClassifier, helper)
                .context("cannot probe the kernel's BPF helpers")
        };
        Ok(Self {
            kernel: read("/proc/sys/kernel/osrelease")
                .context("cannot read the kernel's release")?,
            tcx,
            attach: mechanisms.enis,
            attach_endpoints: mechanisms.endpoints,
            btf: Path::new("/sys/kernel/btf/vmlinux").exists(),
            jit: read("/proc/sys/net/core/bpf_jit_enable")
                .ok()
                .map(|value| value != "0"),
            redirect_peer: helper(BpfHelper::BPF_FUNC_redirect_peer)?,
            redirect_neigh: helper(BpfHelper::BPF_FUNC_redirect_neigh)?,
            // There is no direct probe; this helper was added in the same version of the kernel.
            cgroup_memory: helper(BpfHelper::BPF_FUNC_ktime_get_coarse_ns)?,
        })
    }

    /// The features that the kernel lacks, each with its effect.
    #[must_use]
    pub fn missing(&self) -> Vec<MissingFeature> {
        const NEEDED: &str = "the programs cannot be loaded; use Linux 5.10 or later";
        let all = [
            (
                "tcx",
                self.tcx,
                "programs are attached as filters of clsact qdiscs, which share a place with \
                 ingress qdiscs: the CNI bandwidth plugin refuses a pod's device that has our \
                 qdisc, and on a device with its qdisc our programs of the egress find no place",
            ),
            (
                "jit",
                self.jit != Some(false),
                "programs are interpreted, which costs each packet several times as much; set \
                 net.core.bpf_jit_enable to 1",
            ),
            ("redirect_peer", self.redirect_peer, NEEDED),
            ("redirect_neigh", self.redirect_neigh, NEEDED),
            (
                "cgroup_memory",
                self.cgroup_memory,
                "maps count as locked memory, not as the agent's: the agent lifts its limit on \
                 locked memory, which takes CAP_SYS_RESOURCE",
            ),
        ];
        all.into_iter()
            .filter(|(_, is_there, _)| !is_there)
            .map(|(name, _, consequence)| MissingFeature {
                name: name.to_owned(),
                consequence: consequence.to_owned(),
            })
            .collect()
    }
}

/// By TCX, attaching waits until every CPU has passed through the scheduler, with the lock of the
/// network configuration held (`tcx_entry_sync` in `include/net/tcx.h`): 10 ms and more for each pod.
/// By clsact it does not (`mini_qdisc_pair_swap` in `net/sched/sch_generic.c`).
fn mechanisms(attach: AttachMode, tcx: bool) -> Result<Mechanisms> {
    let [enis, endpoints] = match (attach, tcx) {
        (AttachMode::Auto | AttachMode::Tcx, true) => [Mechanism::Tcx; 2],
        (AttachMode::Mixed, true) => [Mechanism::Tcx, Mechanism::Clsact],
        (AttachMode::Auto | AttachMode::Mixed, false) | (AttachMode::Clsact, _) => {
            [Mechanism::Clsact; 2]
        }
        (AttachMode::Tcx, false) => bail!(
            "attach is \"tcx\", but this kernel has no TCX (Linux 6.6 or later); allowed here are \
             \"auto\", \"mixed\" and \"clsact\""
        ),
    };
    Ok(Mechanisms { enis, endpoints })
}

fn has_tcx() -> io::Result<bool> {
    match tcx_revision(LOOPBACK, Direction::Ingress) {
        Ok(_revision) => Ok(true),
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
    fn what_is_missing_is_told_and_what_cannot_be_seen_is_not() {
        let all = Features {
            kernel: "6.18".to_owned(),
            tcx: true,
            attach: Mechanism::Tcx,
            attach_endpoints: Mechanism::Clsact,
            btf: false,
            jit: None,
            redirect_peer: true,
            redirect_neigh: true,
            cgroup_memory: true,
        };
        assert_eq!(all.missing(), []);
        let old = Features {
            tcx: false,
            jit: Some(false),
            cgroup_memory: false,
            ..all
        };
        let missing = old.missing();
        let names: Vec<_> = missing.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["tcx", "jit", "cgroup_memory"]);
    }

    #[test]
    fn tcx_is_taken_where_it_is_and_refused_where_it_is_not() {
        use Mechanism::{Clsact, Tcx};
        let of = |attach, tcx| {
            let Mechanisms { enis, endpoints } = mechanisms(attach, tcx).unwrap();
            [enis, endpoints]
        };
        assert_eq!(of(AttachMode::Auto, true), [Tcx, Tcx]);
        assert_eq!(of(AttachMode::Tcx, true), [Tcx, Tcx]);
        assert_eq!(of(AttachMode::Mixed, true), [Tcx, Clsact]);
        assert_eq!(of(AttachMode::Auto, false), [Clsact, Clsact]);
        assert_eq!(of(AttachMode::Mixed, false), [Clsact, Clsact]);
        assert_eq!(of(AttachMode::Clsact, true), [Clsact, Clsact]);
        let error = mechanisms(AttachMode::Tcx, false).unwrap_err().to_string();
        assert!(error.contains("attach is \"tcx\""), "{error}");
    }
}
