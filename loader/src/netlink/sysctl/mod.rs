//! Sysctls under `/proc/sys/net`, which shows each thread those of its own network namespace.

mod held;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::Context;
use ipam::Family;

pub(crate) use self::held::Held;
pub(super) use self::held::NodeSysctls;
pub use self::held::PortSysctls;
use crate::intent::masquerade::PortList;

/// Default folder of the sysctls.
const USUAL: &str = "/proc/sys/net";
/// The configured folder of the process: there is one tree of sysctls, as there is one kernel.
static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// Makes this process find them in another folder from now on: containers see `/proc/sys`
/// read-only. The first call counts.
pub fn find_sysctls_in(folder: &Path) {
    FOLDER.get_or_init(|| folder.to_owned());
}

fn folder() -> &'static Path {
    FOLDER.get().map_or(Path::new(USUAL), PathBuf::as_path)
}

/// Where a sysctl is. `device` is a device's name, `all`, or nothing for the family's own.
pub(super) fn path(family: Family, device: Option<&str>, name: &str) -> PathBuf {
    let mut path = folder().to_owned();
    path.push(match family {
        Family::V4 => "ipv4",
        Family::V6 => "ipv6",
    });
    if let Some(device) = device {
        path.push("conf");
        path.push(device);
    }
    path.push(name);
    path
}

/// Writes a sysctl that has to be there.
pub(super) fn write(path: &Path, value: &str) -> anyhow::Result<()> {
    // Not `fs::write`: nothing is to be created or cut off here.
    fs::OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|mut file| file.write_all(value.as_bytes()))
        .with_context(|| format!("write {value:?} to {}", path.display()))
}

/// The sysctls that change how packets of ours are routed, for the status: their names as
/// `sysctl` has them, and their values. For each device the effective `rp_filter` follows, which
/// is the maximum of the device's and `all`; and IPv6 `forwarding` where it is off. Missing ones are
/// left out.
#[must_use]
pub fn routing_sysctls(devices: &[&str]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut push = |name: String, value: Option<String>| {
        found.extend(value.map(|value| (name, value)));
    };
    let all = read(&path(Family::V4, Some("all"), "rp_filter"));
    push("net.ipv4.conf.all.rp_filter".to_owned(), all.clone());
    for (family, name, file) in [
        (Family::V4, "net.ipv4.fwmark_reflect", "fwmark_reflect"),
        (Family::V6, "net.ipv6.fwmark_reflect", "fwmark_reflect"),
        (
            Family::V4,
            "net.ipv4.tcp_fwmark_accept",
            "tcp_fwmark_accept",
        ),
    ] {
        push(name.to_owned(), read(&path(family, None, file)));
    }
    for device in devices {
        let own = read(&path(Family::V4, Some(device), "rp_filter"));
        // Each is one digit, so the order of the texts is that of the numbers.
        let effective = own.map(|own| all.clone().map_or(own.clone(), |all| own.max(all)));
        push(format!("net.ipv4.conf.{device}.rp_filter"), effective);
        let v6 = read(&path(Family::V6, Some(device), "forwarding"));
        push(
            format!("net.ipv6.conf.{device}.forwarding"),
            v6.filter(|value| value == "0"),
        );
    }
    found
}

fn reserved_path() -> PathBuf {
    path(Family::V4, None, "ip_local_reserved_ports")
}

/// Sets the ports that the host's automatic ports keep off.
///
/// # Errors
/// When the kernel refuses.
pub fn write_reserved_ports(ports: &PortList) -> anyhow::Result<()> {
    // The newline, because a write of nothing changes nothing.
    write(&reserved_path(), &format!("{ports}\n"))
}

/// A number that netfilter has as a sysctl; none where the part of the kernel is missing.
pub(crate) fn netfilter(name: &str) -> Option<u32> {
    read(&netfilter_path(name))?.parse().ok()
}

fn netfilter_path(name: &str) -> PathBuf {
    folder().join("netfilter").join(name)
}

fn read(path: &Path) -> Option<String> {
    Held::new(path.to_owned()).read()
}
