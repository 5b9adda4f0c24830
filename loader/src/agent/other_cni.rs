//! Other CNIs at work on the node.
//!
//! Two CNIs on one node give the same addresses to different pods, and each takes the other's rules for
//! damage. What a removed one left behind does no harm: only what runs, or what carries a pod, counts.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Result, bail};

use crate::config::OtherCni;
use crate::kernel::{Link, LinkKind};
use crate::netlink::Netlink;
use crate::numbers;

/// Ports of the VPC CNI's ipamd on the loopback address: its plugin's, and its introspection's.
const IPAMD: [u16; 2] = [50_051, 61_679];
/// End of the path at which cilium-agent listens.
const CILIUM_SOCKET: &str = "/cilium/cilium.sock";
/// State of a TCP socket that listens (`TCP_LISTEN` in `include/net/tcp_states.h`).
const LISTEN: &str = "0A";
/// Flag of a Unix socket that listens (`__SO_ACCEPTCON` in include/uapi/linux/net.h).
const ACCEPTS: u32 = 1 << 16;

/// What of other CNIs can be seen.
#[derive(Debug, Default)]
struct Seen<'a> {
    links: &'a [Link],
    /// Rules that only other CNIs make.
    has_rules: bool,
    /// Listeners of this network namespace, as `/proc/net/unix` lists them.
    unix: &'a str,
    /// The same of TCP, from `/proc/net/tcp` and `tcp6`.
    tcp: &'a str,
}

/// Looks for other CNIs. Where one is at work, the answer is a warning.
///
/// # Errors
/// When the setting refuses them, and no pod of ours runs here.
pub(super) async fn check(netlink: &mut Netlink, setting: OtherCni) -> Result<Option<String>> {
    let read = |name: &str| fs::read_to_string(format!("/proc/thread-self/net/{name}"));
    // What cannot be read shows nothing.
    let [unix, tcp, tcp6] = ["unix", "tcp", "tcp6"].map(|name| read(name).unwrap_or_default());
    let links = netlink.links().await?;
    let rules = netlink.others(&BTreeSet::new()).await?.leftovers;
    let seen = Seen {
        links: &links,
        has_rules: !rules.is_empty(),
        unix: &unix,
        tcp: &(tcp + &tcp6),
    };
    let found = at_work(&seen);
    if found.is_empty() {
        return Ok(None);
    }
    let found = found.join("; ");
    let has_pods = links.iter().any(|link| link.group == numbers::DEVICE_GROUP);
    if setting == OtherCni::Refuse && !has_pods {
        bail!(
            "another CNI is at work on this node: {found}. Remove its DaemonSet and drain the node \
             first (docs/kubernetes.md, \"From another CNI\"); or set node.other-cni: ignore"
        );
    }
    Ok(Some(format!(
        "another CNI is at work on this node: {found}"
    )))
}

/// Says which CNIs are at work, and what shows it.
fn at_work(seen: &Seen<'_>) -> Vec<String> {
    let mut found = Vec::new();
    let pods = |prefix| {
        let theirs = seen.links.iter().filter(|link| {
            let rest = link.name.strip_prefix(prefix);
            link.kind == LinkKind::Veth
                && link.group != numbers::DEVICE_GROUP
                && rest.is_some_and(|rest| seen.has_rules || is_hash(rest))
        });
        let names = theirs.map(|link| link.name.as_str());
        Some(format!("pods have devices such as {}", names.min()?))
    };
    let ports = listening(seen.tcp);
    let ipamd = IPAMD
        .iter()
        .all(|port| ports.contains(port))
        .then(|| format!("ipamd listens at port {}", IPAMD[0]));
    let socket = listener(seen.unix, CILIUM_SOCKET);
    let socket = socket.map(|path| format!("cilium-agent listens at {path}"));
    for (name, runs, carries) in [
        ("Amazon VPC CNI (aws-node)", ipamd, pods("eni")),
        ("Cilium", socket, pods("lxc")),
        ("Calico", None, pods("cali")),
    ] {
        let evidence: Vec<_> = runs.into_iter().chain(carries).collect();
        if !evidence.is_empty() {
            found.push(format!("{name}: {}", evidence.join(", ")));
        }
    }
    found
}

/// Checks for what these CNIs write behind a prefix: the beginning of a hash.
fn is_hash(rest: &str) -> bool {
    rest.len() >= 10 && rest.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Ports at which somebody listens by TCP.
fn listening(table: &str) -> BTreeSet<u16> {
    let port = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let (_, port) = words.next()?.rsplit_once(':')?;
        let state = words.nth(1)?;
        (state == LISTEN).then(|| u16::from_str_radix(port, 16).ok())?
    };
    table.lines().filter_map(port).collect()
}

/// Finds the listener whose path ends so. One that is gone leaves its file and no line.
fn listener<'a>(table: &'a str, end: &str) -> Option<&'a str> {
    let path = |line: &'a str| {
        let mut words = line.split_whitespace();
        let flags = u32::from_str_radix(words.nth(3)?, 16).ok()?;
        let path = words.nth(3)?;
        (flags & ACCEPTS != 0 && path.ends_with(end)).then_some(path)
    };
    table.lines().find_map(path)
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
        }
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
                numbers::DEVICE_GROUP,
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
