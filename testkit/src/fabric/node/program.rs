//! A foreign program: it does one thing with every packet, and the kernel counts its runs.

use std::ffi::CString;
use std::fs;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::fabric::{Netns, command};

// Commands, types and flags of bpf(2): include/uapi/linux/bpf.h.
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_OBJ_PIN: libc::c_long = 6;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_ENABLE_STATS: libc::c_long = 32;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_PROG_TYPE_XDP: u32 = 6;
/// Verdict of XDP: the packet goes on.
const XDP_PASS: u64 = 2;
const BPF_TCX_INGRESS: u32 = 46;
const BPF_TCX_EGRESS: u32 = 47;
const BPF_F_BEFORE: u32 = 1 << 3;
const BPF_F_AFTER: u32 = 1 << 4;
const BPF_STATS_RUN_TIME: u32 = 0;
// Verdicts: include/uapi/linux/pkt_cls.h.
const TC_ACT_OK: u32 = 0;
const TC_ACT_SHOT: u32 = 2;
// Helpers: `___BPF_FUNC_MAPPER` there.
const REDIRECT_NEIGH: u64 = 152;
const REDIRECT_PEER: u64 = 155;
/// `struct bpf_redir_neigh`: a family, and room for an address of either.
const NEXT_HOP_SIZE: i16 = 20;

/// Action of a program for every packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Passes it on.
    Pass,
    /// Drops it.
    Drop,
    /// Hands it to the stack, past every later program.
    Accept,
    /// Sets a mark and passes it on.
    Mark(u32),
    /// Sends it by a device to a neighbour there.
    RedirectNeighbour {
        /// The device.
        ifindex: u32,
        /// The neighbour.
        gateway: Ipv4Addr,
    },
    /// Puts it into the namespace of a device's peer.
    RedirectPeer(u32),
}

impl Action {
    /// The program: instructions as include/uapi/linux/bpf.h has them.
    #[must_use]
    pub fn instructions(self) -> Vec<u64> {
        // `r0 = verdict; exit`. To pass a packet on is TCX_NEXT, which is TC_ACT_UNSPEC too.
        let end = |verdict: u32| [u64::from(verdict) << 32 | 0xb7, 0x95];
        match self {
            Self::Pass => end(u32::MAX).into(),
            Self::Drop => end(TC_ACT_SHOT).into(),
            Self::Accept => end(TC_ACT_OK).into(),
            // `r2 = mark; *(u32 *)(r1 + offsetof(struct __sk_buff, mark)) = r2`.
            Self::Mark(mark) => [u64::from(mark) << 32 | 0x02b7, 0x0008_2163]
                .into_iter()
                .chain(end(u32::MAX))
                .collect(),
            Self::RedirectNeighbour { ifindex, gateway } => {
                // `*(u32 *)(r10 + off) = word`, from the lowest word up.
                let words = [
                    libc::AF_INET.cast_unsigned(),
                    u32::from_ne_bytes(gateway.octets()),
                    0,
                    0,
                    0,
                ];
                let stores = words.into_iter().zip((-NEXT_HOP_SIZE..0).step_by(4));
                let stores = stores.map(|(word, off)| {
                    u64::from(word) << 32 | u64::from(off.cast_unsigned()) << 16 | 0x0a62
                });
                let size = u64::from(NEXT_HOP_SIZE.unsigned_abs());
                let below = u64::from((-i32::from(NEXT_HOP_SIZE)).cast_unsigned());
                stores
                    .chain([
                        // `r1 = ifindex; r2 = r10 - size; r3 = size; r4 = 0`, and the helper's
                        // result is returned.
                        u64::from(ifindex) << 32 | 0x01b7,
                        0xa2bf,
                        below << 32 | 0x0207,
                        size << 32 | 0x03b7,
                        0x04b7,
                        REDIRECT_NEIGH << 32 | 0x85,
                        0x95,
                    ])
                    .collect()
            }
            Self::RedirectPeer(ifindex) => {
                // `r1 = ifindex; r2 = 0`, and the helper's result is returned.
                let device = u64::from(ifindex) << 32 | 0x01b7;
                vec![device, 0x02b7, REDIRECT_PEER << 32 | 0x85, 0x95]
            }
        }
    }
}

/// A device's hook for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Packets that the device receives.
    Ingress,
    /// Packets that the device sends.
    Egress,
}

/// Position of a TCX program among the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// Before all others.
    First,
    /// After all others.
    Last,
}

/// A foreign program.
#[derive(Debug)]
pub struct ForeignProgram {
    fd: OwnedFd,
    pin: PathBuf,
    link: Option<OwnedFd>,
    /// While this is open, the kernel counts runs of every program.
    _stats: Option<OwnedFd>,
}

/// The first fields of `union bpf_attr` for `BPF_PROG_LOAD`.
#[repr(C)]
#[derive(Default)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
}

/// `union bpf_attr` for `BPF_OBJ_PIN`.
#[repr(C)]
#[derive(Default)]
struct ObjPin {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

/// The first fields of `union bpf_attr` for `BPF_LINK_CREATE` of a TCX link.
#[repr(C)]
#[derive(Default)]
struct LinkCreate {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
    relative_fd: u32,
    padding: u32,
    expected_revision: u64,
}

/// `union bpf_attr` for `BPF_ENABLE_STATS`.
#[repr(C)]
#[derive(Default)]
struct EnableStats {
    kind: u32,
}

/// Calls bpf(2).
fn bpf<T>(command: libc::c_long, attributes: &T) -> Result<i64> {
    // SAFETY: `attributes` is one of the `#[repr(C)]` structures above, a prefix of `union
    // bpf_attr` for the command, and its size is passed. The addresses in it are of values that the
    // callers keep alive over the call; the kernel only reads them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attributes),
            size_of::<T>(),
        )
    };
    if result < 0 {
        return Err(std::io::Error::last_os_error()).context(format!("bpf(2), command {command}"));
    }
    Ok(result)
}

/// Calls bpf(2) with a command that returns a file descriptor.
fn bpf_fd<T>(command: libc::c_long, attributes: &T) -> Result<OwnedFd> {
    let fd = i32::try_from(bpf(command, attributes)?)?;
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn descriptor(fd: &OwnedFd) -> Result<u32> {
    Ok(u32::try_from(fd.as_raw_fd())?)
}

impl ForeignProgram {
    /// Loads the program under a name and pins it to a folder on a bpffs.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn load(name: &str, folder: &Path, deed: Action) -> Result<Self> {
        let stats = EnableStats {
            kind: BPF_STATS_RUN_TIME,
        };
        let stats = bpf_fd(BPF_ENABLE_STATS, &stats)?;
        let kind = BPF_PROG_TYPE_SCHED_CLS;
        Self::load_with(name, folder, (kind, &deed.instructions()), Some(stats))
    }

    /// Loads an XDP program that passes every packet on.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn load_xdp(name: &str, folder: &Path) -> Result<Self> {
        let instructions = [XDP_PASS << 32 | 0xb7, 0x95];
        Self::load_with(name, folder, (BPF_PROG_TYPE_XDP, &instructions), None)
    }

    /// Loads a program of the caller's instructions.
    ///
    /// Its runs are not counted, which would slow every program down.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn load_uncounted(name: &str, folder: &Path, instructions: &[u64]) -> Result<Self> {
        let kind = BPF_PROG_TYPE_SCHED_CLS;
        Self::load_with(name, folder, (kind, instructions), None)
    }

    fn load_with(
        name: &str,
        folder: &Path,
        (kind, instructions): (u32, &[u64]),
        stats: Option<OwnedFd>,
    ) -> Result<Self> {
        let license = CString::new("GPL")?;
        let mut prog_name = [0; 16];
        for (slot, byte) in prog_name.iter_mut().take(15).zip(name.bytes()) {
            *slot = byte;
        }
        let fd = bpf_fd(
            BPF_PROG_LOAD,
            &ProgLoad {
                prog_type: kind,
                insn_cnt: u32::try_from(instructions.len())?,
                insns: instructions.as_ptr() as u64,
                license: license.as_ptr() as u64,
                prog_name,
                ..ProgLoad::default()
            },
        )?;
        let pin = folder.join(name);
        let pathname = CString::new(pin.to_string_lossy().as_bytes())?;
        bpf(
            BPF_OBJ_PIN,
            &ObjPin {
                pathname: pathname.as_ptr() as u64,
                bpf_fd: descriptor(&fd)?,
                file_flags: 0,
            },
        )?;
        Ok(Self {
            fd,
            pin,
            link: None,
            _stats: stats,
        })
    }

    /// Attaches it to the TCX ingress of a device.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn attach_tcx(&mut self, netns: &Netns, device: &str, position: Position) -> Result<()> {
        self.attach_tcx_at(netns, device, Hook::Ingress, position)
    }

    /// Attaches it to a TCX hook of a device.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn attach_tcx_at(
        &mut self,
        netns: &Netns,
        device: &str,
        hook: Hook,
        position: Position,
    ) -> Result<()> {
        let link = netns.enter(|| {
            bpf_fd(
                BPF_LINK_CREATE,
                &LinkCreate {
                    prog_fd: descriptor(&self.fd)?,
                    target_ifindex: nix::net::if_::if_nametoindex(device)?,
                    attach_type: match hook {
                        Hook::Ingress => BPF_TCX_INGRESS,
                        Hook::Egress => BPF_TCX_EGRESS,
                    },
                    flags: match position {
                        Position::First => BPF_F_BEFORE,
                        Position::Last => BPF_F_AFTER,
                    },
                    ..LinkCreate::default()
                },
            )
        })?;
        self.link = Some(link);
        Ok(())
    }

    /// Attaches it as a tc filter of a priority to a device's ingress, which has a clsact qdisc.
    ///
    /// # Errors
    /// When tc refuses.
    pub fn attach_filter(&self, netns: &Netns, device: &str, priority: u16) -> Result<()> {
        let line = format!(
            "filter add dev {device} ingress pref {priority} bpf direct-action object-pinned"
        );
        let mut tc = netns.command("tc");
        tc.args(line.split_whitespace()).arg(&self.pin);
        command::run(&mut tc).map(drop)
    }

    /// Attaches it to XDP of a device.
    ///
    /// # Errors
    /// When ip refuses.
    pub fn attach_xdp(&self, netns: &Netns, device: &str) -> Result<()> {
        let mut ip = netns.command("ip");
        ip.args(["link", "set", "dev", device, "xdpgeneric", "pinned"]);
        command::run(ip.arg(&self.pin)).map(drop)
    }

    /// Number of runs.
    ///
    /// # Errors
    /// When bpftool fails.
    pub fn runs(&self) -> Result<u64> {
        let mut bpftool = Command::new("bpftool");
        bpftool
            .args(["-j", "prog", "show", "pinned"])
            .arg(&self.pin);
        let program: Value = serde_json::from_str(&command::run(&mut bpftool)?)?;
        // bpftool omits the field while it is 0.
        Ok(program["run_cnt"].as_u64().unwrap_or_default())
    }
}

impl Drop for ForeignProgram {
    fn drop(&mut self) {
        // The whole bpffs may already be gone.
        let _gone = fs::remove_file(&self.pin);
    }
}
