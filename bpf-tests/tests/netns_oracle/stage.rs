//! A pod, a node and the world, connected by two pairs of devices: equal for the kernel's
//! translation and for ours.

use std::cell::RefCell;
use std::fs;
use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use testkit::raw::{Namespace, RawSocket};
use testkit::testrun::ip;

use crate::canonical::is_about;

/// Deadline for a packet that must arrive.
const DEADLINE: Duration = Duration::from_secs(5);

type Mac = [u8; 6];

/// The pod's own MAC, that of its host-side device, that of the ENI, and the router's.
pub(crate) const POD_MAC: Mac = [0x0a, 0, 0, 0, 0, 0xaa];
pub(crate) const VETH_MAC: Mac = [0x0a, 0, 0, 0, 0, 11];
pub(crate) const ENI_MAC: Mac = [0x0a, 0, 0, 0, 0, 21];
pub(crate) const ROUTER_MAC: Mac = [0x0a, 7, 7, 7, 7, 0];

/// Indices of the devices; those at the other ends have 100 more.
pub(crate) const VETH: u32 = 11;
pub(crate) const ENI: u32 = 21;

/// The addresses of a family.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Net {
    pub(crate) name: &'static str,
    pub(crate) pod: IpAddr,
    /// The node's own address, which is its translation address.
    pub(crate) node: IpAddr,
    pub(crate) gateway: IpAddr,
    pub(crate) remote: IpAddr,
    /// A router on the path to the remote.
    pub(crate) router: IpAddr,
}

const fn v4(a: u8, b: u8, c: u8, d: u8) -> IpAddr {
    IpAddr::V4(std::net::Ipv4Addr::new(a, b, c, d))
}

const fn v6(a: u16, b: u16, c: u16, d: u16) -> IpAddr {
    IpAddr::V6(std::net::Ipv6Addr::new(a, b, 0, c, 0, 0, 0, d))
}

pub(crate) const NETS: [Net; 2] = [
    Net {
        name: "IPv4",
        pod: v4(10, 0, 1, 10),
        node: v4(10, 0, 0, 5),
        gateway: v4(10, 0, 0, 1),
        remote: v4(198, 51, 100, 7),
        router: v4(203, 0, 113, 1),
    },
    Net {
        name: "IPv6",
        pod: v6(0x2001, 0xdb8, 1, 0xa),
        node: v6(0x2001, 0xdb8, 0, 5),
        gateway: v6(0xfe80, 0xec2, 0, 1),
        remote: v6(0x2600, 0, 0, 7),
        router: v6(0x2600, 0, 1, 1),
    },
];

/// One end of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Pod,
    World,
}

/// The namespaces and a packet socket at each end.
pub(crate) struct Stage {
    pub(crate) node: Namespace,
    pod: RawSocket,
    world: RawSocket,
    /// The namespaces of the pod and of the world.
    pub(crate) ends: [Namespace; 2],
}

impl Stage {
    /// Makes the namespaces and devices. The calling thread stays on one CPU from then on, so that
    /// packets keep their order through the node.
    pub(crate) fn new() -> Result<Self> {
        let mut cpus = CpuSet::new();
        cpus.set(0)?;
        sched_setaffinity(Pid::from_raw(0), &cpus)?;
        let (node, pod, world) = (Namespace::new()?, silent()?, silent()?);
        node.run(|| {
            sysctls()?;
            wire(VETH, "veth-a", &pod, [VETH_MAC, POD_MAC])?;
            wire(ENI, "eni0", &world, [ENI_MAC, ROUTER_MAC])?;
            NETS.iter().try_for_each(routes)
        })?;
        Ok(Self {
            pod: pod.run(|| RawSocket::open(VETH + 100))?,
            world: world.run(|| RawSocket::open(ENI + 100))?,
            node,
            ends: [pod, world],
        })
    }

    /// Makes the kernel translate, by conntrack and nftables.
    pub(crate) fn masquerade(&self) -> Result<()> {
        self.node.run(|| {
            for (net, family) in NETS.iter().zip(["ip", "ip6"]) {
                nft(&format!(
                    "add table {family} nat; \
                     add chain {family} nat post {{ type nat hook postrouting priority 100; }}; \
                     add rule {family} nat post oifname eni0 {family} saddr {} masquerade",
                    net.pod
                ))?;
            }
            Ok(())
        })
    }

    fn socket(&self, end: End) -> &RawSocket {
        match end {
            End::Pod => &self.pod,
            End::World => &self.world,
        }
    }

    /// Sends an IP packet from one end.
    pub(crate) fn send(&self, end: End, packet: &[u8]) -> Result<()> {
        let mut frame = match end {
            End::Pod => [VETH_MAC, POD_MAC].concat(),
            End::World => [ENI_MAC, ROUTER_MAC].concat(),
        };
        let is_v4 = packet.first().is_some_and(|byte| byte >> 4 == 4);
        frame.extend(if is_v4 { [8, 0] } else { [0x86, 0xdd] });
        frame.extend(packet);
        self.socket(end).send(&frame)
    }

    /// The frames from or to the outside that reach one end, until one that contains `mark`, which
    /// is last.
    pub(crate) fn collect(&self, end: End, net: &Net, mark: &[u8]) -> Result<Vec<Vec<u8>>> {
        let came = RefCell::new(Vec::new());
        let last = self.socket(end).receive(DEADLINE, |frame| {
            let is_mark = frame.windows(mark.len()).any(|bytes| bytes == mark);
            if !is_mark && (is_about(frame, net.remote) || is_about(frame, net.router)) {
                came.borrow_mut().push(frame.to_vec());
            }
            is_mark
        })?;
        let last = last.with_context(|| format!("{} at {end:?}: no mark came", net.name))?;
        let mut came = came.into_inner();
        came.push(last);
        Ok(came)
    }
}

fn routes(net: &Net) -> Result<()> {
    let Net {
        pod, node, gateway, ..
    } = net;
    let (subnet, flags) = if pod.is_ipv4() {
        (24, "")
    } else {
        (64, " nodad")
    };
    for command in [
        format!("addr add {node}/{subnet} dev eni0{flags}"),
        format!("route add {pod} dev veth-a"),
        format!(
            "neigh add {pod} lladdr {} dev veth-a nud permanent",
            text(POD_MAC)
        ),
        format!(
            "neigh add {gateway} lladdr {} dev eni0 nud permanent",
            text(ROUTER_MAC)
        ),
        format!("route add default via {gateway} dev eni0"),
    ] {
        ip(&command)?;
    }
    Ok(())
}

fn sysctls() -> Result<()> {
    for (key, value) in [
        ("ipv4/ip_forward", "1"),
        ("ipv4/icmp_ratelimit", "0"),
        ("ipv4/conf/all/rp_filter", "0"),
        ("ipv4/conf/default/rp_filter", "0"),
        ("ipv4/conf/all/send_redirects", "0"),
        ("ipv4/conf/default/send_redirects", "0"),
        ("ipv6/conf/all/forwarding", "1"),
        ("ipv6/conf/default/accept_dad", "0"),
        ("ipv6/icmp/ratelimit", "0"),
    ] {
        fs::write(format!("/proc/sys/net/{key}"), value).with_context(|| format!("net/{key}"))?;
    }
    Ok(())
}

/// A device in this namespace, its peer with the same index plus 100 in another.
fn wire(index: u32, name: &str, there: &Namespace, [mac, peer]: [Mac; 2]) -> Result<()> {
    ip(&format!(
        "link add name {name} index {index} address {} type veth \
         peer name far index {} address {} netns {}",
        text(mac),
        index + 100,
        text(peer),
        there.path(),
    ))?;
    ip(&format!("link set {name} up"))?;
    there.run(|| ip("link set far up"))
}

/// A namespace that sends no packets of its own.
fn silent() -> Result<Namespace> {
    let namespace = Namespace::new()?;
    namespace.run(|| {
        let key = "/proc/sys/net/ipv6/conf/default/disable_ipv6";
        fs::write(key, "1").context(key)
    })?;
    Ok(namespace)
}

pub(crate) fn text(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn nft(rules: &str) -> Result<()> {
    let output = Command::new("nft").arg(rules).output().context("nft")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "nft {rules}: {said}");
    Ok(())
}
