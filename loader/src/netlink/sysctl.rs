//! Sysctls under `/proc/sys/net`, which shows each thread those of its own network namespace.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::Context;
use ipam::Family;

use crate::intent::masquerade::PortList;
use crate::kernel::{Sysctl, SysctlScope};

/// The sysctls of the node as a whole that we manage.
const NODE: [Sysctl; 3] = [
    Sysctl {
        family: Family::V4,
        scope: SysctlScope::Family,
        name: "ip_forward",
    },
    Sysctl {
        family: Family::V4,
        scope: SysctlScope::All,
        name: "send_redirects",
    },
    Sysctl {
        family: Family::V6,
        scope: SysctlScope::All,
        name: "forwarding",
    },
];

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

/// The sysctls of the node as a whole; one that is missing, because a family is off, is left out.
pub(super) fn read_node() -> BTreeMap<Sysctl, String> {
    let mut found = BTreeMap::new();
    for sysctl in NODE {
        let device = (sysctl.scope == SysctlScope::All).then_some("all");
        if let Some(value) = read(&path(sysctl.family, device, sysctl.name)) {
            found.insert(sysctl, value);
        }
    }
    found
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

/// The ports that the host's automatic ports exclude; none if they are unknown.
#[must_use]
pub fn reserved_ports() -> Option<PortList> {
    read(&reserved_path())?.parse().ok()
}

/// Sets the ports that the host's automatic ports keep off.
///
/// # Errors
/// When the kernel refuses.
pub fn write_reserved_ports(ports: &PortList) -> anyhow::Result<()> {
    // The newline, because a write of nothing changes nothing.
    write(&reserved_path(), &format!("{ports}\n"))
}

/// The range of the host's automatic ports, by which also IPv6 goes.
#[must_use]
pub fn automatic_ports() -> Option<PortList> {
    let text = read(&path(Family::V4, None, "ip_local_port_range"))?;
    let mut ends = text.split_whitespace().map(str::parse);
    let (first, last) = (ends.next()?.ok()?, ends.next()?.ok()?);
    Some(PortList::new([(first, last)]))
}

/// A number that netfilter has as a sysctl; none where the part of the kernel is missing.
pub(crate) fn netfilter(name: &str) -> Option<u32> {
    read(&folder().join("netfilter").join(name))?.parse().ok()
}

fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}
