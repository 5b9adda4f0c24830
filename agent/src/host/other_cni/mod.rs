//! Other CNIs that are active on the node.
//!
//! Two CNIs on one node give the same addresses to different pods, and each treats the other's
//! rules as damage. Leftovers of a removed CNI are usually harmless. Only the following count: a
//! running process, a program that sees packets, a device of a pod, and the configuration that
//! runtimes use for the next pod.

mod configuration;
mod listeners;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Result, bail};
use loader::bpf::{BpfProgram, programs_on};
use loader::constants;
use loader::kernel::{Link, LinkKind};
use loader::netlink::Netlink;

pub(crate) use self::configuration::CONFLIST;
use self::configuration::Used;
use self::listeners::{listener, listening};
use config::{Config, OtherCni};

const AWS: &str = "Amazon VPC CNI (aws-node)";
const CALICO: &str = "Calico";
const CILIUM: &str = "Cilium";
/// Beginning of the names of Cilium's programs (`bpf/` of its sources).
const CILIUM_PROGRAM: &str = "cil_";
/// Beginning of the names of Cilium's own devices.
const CILIUM_DEVICE: &str = "cilium_";
/// Ports of the VPC CNI's ipamd on the loopback address: its plugin's, and its introspection's.
const IPAMD: [u16; 2] = [50_051, 61_679];
/// End of the path at which cilium-agent listens.
const CILIUM_SOCKET: &str = "/cilium/cilium.sock";

/// The traces of other CNIs.
#[derive(Debug, Default)]
struct Seen<'a> {
    links: &'a [Link],
    /// Rules that only other CNIs make.
    has_rules: bool,
    /// Listeners of this network namespace, as `/proc/net/unix` lists them.
    unix: &'a str,
    /// TCP listeners, from `/proc/net/tcp` and `tcp6`.
    tcp: &'a str,
    /// Programs on devices that are no pod's of ours.
    programs: &'a [BpfProgram],
    /// The configuration that runtimes use, where it is another CNI's.
    used: Option<&'a Used>,
}

/// Detects other CNIs. If one is in use, the result is a warning.
///
/// # Errors
/// When the setting refuses them, and no pod of ours runs here.
pub(crate) async fn check(netlink: &mut Netlink, config: &Config) -> Result<Option<String>> {
    let read = |name: &str| fs::read_to_string(format!("/proc/thread-self/net/{name}"));
    // A file that cannot be read counts as empty.
    let [unix, tcp, tcp6] = ["unix", "tcp", "tcp6"].map(|name| read(name).unwrap_or_default());
    let links = netlink.links().await?;
    let rules = netlink.others(&BTreeSet::new()).await?.leftovers;
    let programs = programs(netlink, &links).await.unwrap_or_else(|error| {
        tracing::debug!("programs of other CNIs cannot be seen: {error:#}");
        Vec::new()
    });
    let used = configuration::used(config.cni.conf_dir.as_path());
    let seen = Seen {
        links: &links,
        has_rules: !rules.is_empty(),
        unix: &unix,
        tcp: &(tcp + &tcp6),
        programs: &programs,
        used: used.as_ref(),
    };
    let found = at_work(&seen);
    if found.is_empty() {
        return Ok(None);
    }
    let found = found.join("; ");
    let has_pods = links
        .iter()
        .any(|link| link.group == constants::DEVICE_GROUP);
    if config.node.other_cni == OtherCni::Refuse && !has_pods {
        bail!(
            "another CNI is at work on this node: {found}. Remove its DaemonSet and drain the node \
             first (docs/guide/kubernetes.md, \"From another CNI\"), and remove files and programs that it \
             left; or set node.other-cni: ignore"
        );
    }
    Ok(Some(format!(
        "another CNI is at work on this node: {found}"
    )))
}

/// Says which CNIs are at work, and what shows it.
fn at_work(seen: &Seen<'_>) -> Vec<String> {
    let mut found: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut find = |name, evidence| found.entry(name).or_default().push(evidence);
    let ports = listening(seen.tcp);
    if IPAMD.iter().all(|port| ports.contains(port)) {
        find(AWS, format!("ipamd listens at port {}", IPAMD[0]));
    }
    if let Some(path) = listener(seen.unix, CILIUM_SOCKET) {
        find(CILIUM, format!("cilium-agent listens at {path}"));
    }
    for (name, prefix) in [(AWS, "eni"), (CILIUM, "lxc"), (CALICO, "cali")] {
        if let Some(device) = pods(seen, prefix) {
            find(name, format!("pods have devices such as {device}"));
        }
    }
    if let Some(BpfProgram { name, device }) = seen.programs.first() {
        find(CILIUM, format!("its program {name} is on {device}"));
    }
    if let Some(Used { file, by }) = seen.used {
        for name in by {
            find(name, format!("runtimes use its configuration {file}"));
        }
    }
    let found = found.into_iter();
    let found = found.map(|(name, evidence)| format!("{name}: {}", evidence.join(", ")));
    found.collect()
}

/// Finds a device that another CNI has made for a pod.
fn pods<'a>(seen: &Seen<'a>, prefix: &str) -> Option<&'a str> {
    let theirs = seen.links.iter().filter(|link| {
        let rest = link.name.strip_prefix(prefix);
        link.kind == LinkKind::Veth
            && link.group != constants::DEVICE_GROUP
            && rest.is_some_and(|rest| seen.has_rules || is_hash(rest))
    });
    theirs.map(|link| link.name.as_str()).min()
}

/// Lists Cilium's programs on devices other than our pods'. Those on its own devices get no packets
/// once it is gone.
async fn programs(netlink: &mut Netlink, links: &[Link]) -> Result<Vec<BpfProgram>> {
    let devices = links.iter().filter(|link| {
        link.group != constants::DEVICE_GROUP && !link.name.starts_with(CILIUM_DEVICE)
    });
    let xdp = netlink.xdp_programs().await?;
    let mut programs = programs_on(devices, &xdp)?;
    programs.retain(|program| program.name.starts_with(CILIUM_PROGRAM));
    Ok(programs)
}

/// Checks for the text that these CNIs write after a prefix: the beginning of a hash.
fn is_hash(rest: &str) -> bool {
    rest.len() >= 10 && rest.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "Num       RefCount Protocol Flags    Type St Inode Path\n";

    fn link(name: &str, kind: LinkKind, group: u32) -> Link {
        Link {
            ifindex: 7,
            name: name.to_owned(),
            alias: None,
            mac: None,
            mtu: 1500,
            up: true,
            group,
            kind,
            master: None,
            peer_namespace: None,
        }
    }

    #[test]
    fn programs_and_the_configuration_in_use_show_them() {
        let program = BpfProgram {
            device: "eth0".to_owned(),
            name: "cil_from_netdev".to_owned(),
        };
        let used = Used {
            file: "/etc/cni/net.d/05-cilium.conflist".to_owned(),
            by: vec![AWS, CILIUM, "Flannel"],
        };
        let found = at_work(&Seen {
            programs: &[program],
            used: Some(&used),
            ..Seen::default()
        });
        let uses = "runtimes use its configuration /etc/cni/net.d/05-cilium.conflist";
        let expected = [
            format!("{AWS}: {uses}"),
            format!("Cilium: its program cil_from_netdev is on eth0, {uses}"),
            format!("Flannel: {uses}"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn devices_of_others_pods_show_them_and_no_other_device_does() {
        for (name, kind, group, who) in [
            ("eni8478779f379", LinkKind::Veth, 0, Some("Amazon VPC CNI")),
            ("lxc8f1c2d3e4a5b", LinkKind::Veth, 0, Some("Cilium")),
            ("cali0ef24b12a3c", LinkKind::Veth, 0, Some("Calico")),
            ("eni8478779f379", LinkKind::Physical, 0, None),
            ("eni0", LinkKind::Veth, 0, None),
            (
                "cali0ef24b12a3c",
                LinkKind::Veth,
                constants::DEVICE_GROUP,
                None,
            ),
            ("cilium_host", LinkKind::Veth, 0, None),
            ("veth0", LinkKind::Veth, 0, None),
        ] {
            let links = [link(name, kind, group)];
            let found = at_work(&Seen {
                links: &links,
                ..Seen::default()
            });
            assert_eq!(found.len(), usize::from(who.is_some()), "{name}: {found:?}");
            for (text, who) in found.iter().zip(who) {
                assert!(text.starts_with(who) && text.contains(name), "{text}");
            }
        }
    }

    #[test]
    fn listeners_show_them_and_connections_do_not() {
        let unix = |flags: &str, path: &str| {
            format!("{HEADER}0000000000000000: 00000002 00000000 {flags} 0001 01 23456 {path}\n")
        };
        let found = |unix: &str, tcp: &str| {
            at_work(&Seen {
                unix,
                tcp,
                ..Seen::default()
            })
        };
        let path = "/var/run/cilium/cilium.sock";
        let cilium = found(&unix("00010000", path), "");
        assert_eq!(cilium, [format!("Cilium: cilium-agent listens at {path}")]);
        assert_eq!(found(&unix("00000000", path), ""), [""; 0]);
        assert_eq!(
            found(&unix("00010000", "/run/cilium/other.sock"), ""),
            [""; 0]
        );

        let line = |port: u16, state: &str| {
            format!("   0: 0100007F:{port:04X} 00000000:0000 {state} 00000000:00000000 00:0 0 0\n")
        };
        let both = line(50_051, "0A") + &line(61_679, "0A");
        let expected = "Amazon VPC CNI (aws-node): ipamd listens at port 50051";
        assert_eq!(found("", &both), [expected]);
        // Others have gRPC's usual port too.
        assert_eq!(found("", &line(50_051, "0A")), [""; 0]);
        assert_eq!(
            found("", &(line(50_051, "01") + &line(61_679, "0A"))),
            [""; 0]
        );
    }
}
