//! The list of everything that the commands need from the system.

use std::path::Path;

use super::Need;
use crate::process;

/// A requirement of the machine.
#[derive(Debug)]
pub(super) struct Requirement {
    /// A program's name, or a path.
    pub(super) probe: &'static str,
    /// Debian's package that has it.
    pub(super) package: &'static str,
    /// Purpose of the requirement.
    need: Need,
    /// True if it belongs to Debian's eBPF compiler, which rustup's nightly can replace.
    pub(super) toolchain: bool,
}

const fn tool(need: Need, probe: &'static str, package: &'static str) -> Requirement {
    Requirement {
        probe,
        package,
        need,
        toolchain: false,
    }
}

const fn compiler(need: Need, probe: &'static str, package: &'static str) -> Requirement {
    Requirement {
        probe,
        package,
        need,
        toolchain: true,
    }
}

const REQUIREMENTS: &[Requirement] = &[
    tool(Need::Build, "cc", "gcc"),
    tool(Need::Build, "c++", "g++"),
    // The client of container runtimes is generated from the definition of the CRI.
    tool(Need::Build, "protoc", "protobuf-compiler"),
    compiler(Need::Build, "/usr/bin/rustc", "rustc-web"),
    compiler(Need::Build, "/usr/bin/cargo", "cargo-web"),
    compiler(
        Need::Build,
        "/usr/lib/rustlib/bpfel-unknown-none",
        "libstd-rust-web-dev-bpf",
    ),
    compiler(
        Need::Build,
        "/usr/lib/llvm-22/bin/llvm-config",
        "llvm-22-dev",
    ),
    compiler(
        Need::Build,
        "/usr/lib/llvm-22/lib/libPolly.a",
        "libpolly-22-dev",
    ),
    compiler(Need::Lint, "/usr/bin/cargo-clippy", "rust-web-clippy"),
    tool(Need::Tests, "ip", "iproute2"),
    tool(Need::Tests, "tc", "iproute2"),
    tool(Need::Tests, "bpftool", "bpftool"),
    tool(Need::Tests, "ping", "iputils-ping"),
    tool(Need::Tests, "nft", "nftables"),
    tool(Need::Tests, "nsenter", "util-linux"),
    tool(Need::Tests, "iptables-legacy", "iptables"),
    tool(Need::Tests, "traceroute", "traceroute"),
    tool(Need::Tests, "curl", "curl"),
    tool(Need::Tests, "sysctl", "procps"),
    tool(Need::Tests, "iperf3", "iperf3"),
    tool(Need::Tests, "ethtool", "ethtool"),
    tool(Need::Tests, "ss", "iproute2"),
    tool(Need::Tests, "turnserver", "coturn"),
    tool(Need::Tests, "stun", "stun-client"),
    tool(
        Need::Tests,
        "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
        "libfaketime",
    ),
    tool(
        Need::Tests,
        "/usr/lib/python3/dist-packages/prometheus_client/openmetrics/parser.py",
        "python3-prometheus-client",
    ),
    tool(Need::Tests, "setpriv", "util-linux"),
    tool(Need::Tests, "socat", "socat"),
    tool(Need::Tests, "conntrack", "conntrack"),
    tool(Need::Tests, "iptables-nft", "iptables"),
    tool(
        Need::Tests,
        "/usr/lib/cni/tuning",
        "containernetworking-plugins",
    ),
    tool(Need::Tests, "iptables-legacy", "iptables"),
    tool(Need::Managers, "/lib/systemd/systemd-networkd", "systemd"),
    tool(Need::Managers, "udevadm", "udev"),
    tool(Need::Managers, "dbus-daemon", "dbus-daemon"),
    tool(Need::Managers, "busybox", "busybox-static"),
    // Libraries of NetworkManager, which is unpacked and not installed.
    tool(Need::Managers, "/usr/share/doc/libndp0", "libndp0"),
    tool(
        Need::Managers,
        "/usr/share/doc/libcurl3-gnutls",
        "libcurl3-gnutls",
    ),
    tool(
        Need::Managers,
        "/usr/share/doc/libglib2.0-0",
        "libglib2.0-0",
    ),
    tool(Need::Boto3, "python3", "python3"),
    tool(Need::Boto3, "/usr/share/doc/python3-venv", "python3-venv"),
    tool(Need::Vm, "qemu-system-x86_64", "qemu-system-x86"),
    tool(Need::Vm, "busybox", "busybox-static"),
    tool(Need::Vm, "strip", "binutils"),
    tool(Need::Vm, "xz", "xz-utils"),
    tool(Need::Unpack, "dpkg-deb", "dpkg"),
    tool(Need::Image, "buildah", "buildah"),
    tool(Need::Image, "readelf", "binutils"),
    tool(Need::Image, "tar", "tar"),
    tool(Need::Cri, "busybox", "busybox-static"),
    tool(Need::Cri, "dpkg-deb", "dpkg"),
    // Libraries of runc and podman.
    tool(Need::Cri, "/usr/share/doc/libseccomp2", "libseccomp2"),
    tool(Need::Cri, "/usr/share/doc/libglib2.0-0", "libglib2.0-0"),
    tool(Need::Cri, "/usr/share/doc/libsystemd0", "libsystemd0"),
    tool(Need::Cri, "/usr/share/doc/libgpgme11", "libgpgme11"),
    tool(Need::Cri, "/usr/share/doc/libsubid4", "libsubid4"),
    tool(
        Need::Cri,
        "/usr/share/doc/libdevmapper1.02.1",
        "libdevmapper1.02.1",
    ),
    tool(Need::Cri, "tar", "tar"),
];

/// Requirements for `needs` that the machine lacks.
pub(super) fn missing(needs: &[Need]) -> Vec<&'static Requirement> {
    REQUIREMENTS
        .iter()
        .filter(|item| needs.contains(&item.need) && !is_there(item.probe))
        .collect()
}

/// Names of the packages of `items`, each once.
pub(super) fn packages(items: &[&Requirement]) -> Vec<&'static str> {
    let mut packages: Vec<_> = items.iter().map(|item| item.package).collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

/// One message that names all missing requirements.
pub(super) fn explain(items: &[&Requirement]) -> String {
    let probes: Vec<_> = items.iter().map(|item| item.probe).collect();
    format!(
        "missing: {}. They install by themselves only as root on Debian; here, install what \
         Debian calls {}",
        probes.join(", "),
        packages(items).join(" ")
    )
}

fn is_there(probe: &str) -> bool {
    if probe.starts_with('/') {
        Path::new(probe).exists()
    } else {
        process::find(probe).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::{Need, REQUIREMENTS, explain, is_there, packages};

    #[test]
    fn probes_programs_and_paths() {
        assert!(is_there("sh"));
        assert!(is_there("/proc/self"));
        assert!(!is_there("towpath-no-such-program"));
        assert!(!is_there("/towpath/no/such/path"));
    }

    #[test]
    fn the_message_names_probes_and_each_package_once() {
        let items: Vec<_> = REQUIREMENTS
            .iter()
            .filter(|item| item.package == "iproute2")
            .collect();
        assert_eq!(packages(&items), ["iproute2"]);
        let message = explain(&items);
        assert!(message.starts_with("missing: ip, tc, ss."), "{message}");
        assert!(message.ends_with("iproute2"), "{message}");
    }

    #[test]
    fn every_need_has_requirements() {
        for need in Need::ALWAYS.into_iter().chain([Need::Unpack]) {
            assert!(
                REQUIREMENTS.iter().any(|item| item.need == need),
                "{need:?}"
            );
        }
    }
}
