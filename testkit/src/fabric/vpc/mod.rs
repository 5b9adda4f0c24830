//! The VPC: its router, hosts other than nodes, and the ENIs' attachments.

pub(super) mod arp;
pub(super) mod foreign;
pub(super) mod gateway;
pub mod groups;
pub(super) mod join;
pub(super) mod members;
pub(super) mod nft_set;
pub(super) mod outside;
pub mod room;
mod routes;
pub mod source_check;
pub mod world;

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use api::ids::MacAddr;
use ipam::Family;

use self::members::Members;
use super::eventually::{check, eventually};
use super::layout::{Eni, Host};
use super::netns::Netns;

/// Largest MTU of an ENI (AWS, "Network maximum transmission unit (MTU)").
pub const MTU_JUMBO: u32 = 9001;

/// The time that the kernel may take to activate a device.
const LINK: Duration = Duration::from_secs(10);

/// A VPC. Several nodes may be in it.
#[derive(Debug)]
pub struct Vpc {
    /// The VPC's router.
    pub router: Netns,
    /// The nodes in it.
    pub(super) members: Members,
    peer: Netns,
    outside: Netns,
    control: OnceLock<Netns>,
    prefix: String,
    mtu: u32,
    /// Set when a second node joins.
    shared: AtomicBool,
}

impl Vpc {
    /// Makes the router and the hosts.
    ///
    /// # Errors
    /// When a namespace or a device cannot be made.
    pub fn create(prefix: &str, mtu: u32) -> Result<Self> {
        let vpc = Self {
            router: Netns::create(&format!("{prefix}-vpc"))?,
            peer: Netns::create(&format!("{prefix}-peer"))?,
            outside: Netns::create(&format!("{prefix}-outside"))?,
            members: Members::default(),
            control: OnceLock::new(),
            prefix: prefix.to_owned(),
            mtu,
            shared: AtomicBool::new(false),
        };
        vpc.router.sysctls(&[
            ("ipv4/ip_forward", "1"),
            ("ipv4/conf/all/rp_filter", "0"),
            ("ipv4/conf/default/rp_filter", "0"),
            ("ipv4/conf/all/send_redirects", "0"),
            ("ipv4/conf/default/send_redirects", "0"),
            ("ipv6/conf/all/forwarding", "1"),
            ("ipv6/conf/default/accept_dad", "0"),
            // Tests make the router answer often.
            ("ipv4/icmp_ratelimit", "0"),
            ("ipv6/icmp/ratelimit", "0"),
        ])?;
        for host in Host::ALL {
            vpc.connect(host, vpc.host(host), mtu)?;
        }
        Ok(vpc)
    }

    /// A host's namespace.
    ///
    /// # Panics
    /// When the host is a control plane's and was not made.
    #[must_use]
    pub fn host(&self, host: Host) -> &Netns {
        match host {
            Host::Peer => &self.peer,
            Host::Outside => &self.outside,
            Host::Control => match self.control.get() {
                Some(control) => control,
                None => panic!("the VPC has no control plane's host: make_control() makes it"),
            },
        }
    }

    /// Makes the host of a control plane, unless it exists.
    ///
    /// # Errors
    /// When the namespace or its device cannot be made.
    pub fn make_control(&self) -> Result<&Netns> {
        if let Some(control) = self.control.get() {
            return Ok(control);
        }
        let name = Host::Control.name();
        let control = Netns::create(&format!("{}-{name}", self.prefix))?;
        self.connect(Host::Control, &control, self.mtu)?;
        Ok(self.control.get_or_init(|| control))
    }

    fn connect(&self, host: Host, netns: &Netns, mtu: u32) -> Result<()> {
        netns.sysctls(&[("ipv6/conf/default/accept_dad", "0")])?;
        let device = host.name();
        let mut router = format!(
            "link add {device} mtu {mtu} type veth peer name eth0 netns {} mtu {mtu}\n\
             link set {device} up\n",
            netns.name()
        );
        let mut inside = "link set eth0 up\n".to_owned();
        for family in Family::ALL {
            let address = host.address(family);
            let gateway = first_of_subnet(address);
            let length = subnet_length(family);
            let _infallible = writeln!(
                router,
                "addr add {gateway}/{length} dev {device}{}",
                nodad(family)
            );
            let _infallible = writeln!(
                inside,
                "addr add {address}/{length} dev eth0{}\nroute add default via {gateway}",
                nodad(family)
            );
        }
        self.router.ip(&router)?;
        netns.ip(&inside)
    }

    /// Sets the MTU of the link between the router and a host, at both of its ends.
    ///
    /// # Errors
    /// When a device refuses it.
    pub fn set_link_mtu(&self, host: Host, mtu: u32) -> Result<()> {
        self.router
            .ip(&format!("link set {} mtu {mtu}", host.name()))?;
        self.host(host).ip(&format!("link set eth0 mtu {mtu}"))
    }

    /// Attaches an ENI to a node, down like in the cloud, and proves that its source check works.
    ///
    /// # Errors
    /// When a device cannot be made, or the check does not count.
    pub fn attach(&self, node: &Netns, eni: &Eni, mtu: u32) -> Result<()> {
        let (device, inside) = (eni.router_device(), eni.device());
        let mut router = format!(
            "link add {device} mtu {mtu} type veth peer name {inside} netns {} address {} mtu {mtu}\n\
             link set {device} up\n\
             addr add fe80:ec2::1/128 dev {device} nodad\n",
            node.name(),
            eni.mac,
        );
        if eni.own_address(Family::V4).is_some() {
            let _infallible = writeln!(router, "addr add {}/32 dev {device}", eni.gateway_v4());
        }
        if let Some(own) = eni.own_address(Family::V6) {
            let gateway = first_of_subnet(own);
            let _infallible = writeln!(router, "addr add {gateway}/128 dev {device} nodad");
        }
        self.router.ip(&router)?;
        routes::renew(&self.router, eni)?;
        source_check::install(&self.router, eni)?;
        node.ip(&format!("link set {inside} up"))?;
        self.prove_check(node, eni)?;
        if self.shared.load(Ordering::Relaxed) {
            arp::answer(&self.router, eni)?;
        }
        node.ip(&format!("link set {inside} down"))
    }

    /// Waits until the router sends by an ENI. The kernel activates a device a while after its peer
    /// came up, and drops packets until then.
    ///
    /// # Errors
    /// When it does not in time.
    pub(in crate::fabric) fn wait_for_link(&self, eni: &Eni) -> Result<()> {
        let device = eni.router_device();
        let look = || {
            let links = self.router.ip_json(&format!("link show dev {device}"))?;
            let state = &links[0]["operstate"];
            check(state == "UP", || format!("{device}: {state}"))
        };
        eventually(LINK, "the router's link is up", look).map(drop)
    }

    /// Makes the VPC answer ARP for addresses of other ENIs: several nodes share its subnets.
    ///
    /// # Errors
    /// When the router refuses.
    pub(super) fn share(&self) -> Result<()> {
        if self.shared.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let mut enis = self.members.enis();
        enis.retain(|eni| arp::is_attached(&self.router, eni));
        enis.iter()
            .try_for_each(|eni| arp::answer(&self.router, eni))
    }

    /// Detaches an ENI and removes its source check: its device goes at both ends.
    ///
    /// # Errors
    /// When it is not attached.
    pub fn detach(&self, eni: &Eni) -> Result<()> {
        let device = eni.router_device();
        self.router.ip(&format!("link del {device}"))?;
        self.router
            .run(&format!("nft delete table netdev {device}"))
            .map(drop)
    }

    /// Routes an ENI's addresses and prefixes to its MAC, whatever the node answers to ARP and
    /// neighbour solicitations, and updates the source check.
    ///
    /// # Errors
    /// When a route is refused.
    pub fn deliver(&self, eni: &Eni) -> Result<()> {
        routes::renew(&self.router, eni)?;
        source_check::renew(&self.router, eni)
    }

    /// Sends one foreign packet of each family by an ENI: the check must count each, and is then
    /// reset.
    ///
    /// # Errors
    /// When a foreign packet was not counted: a fabric without a working check proves nothing.
    pub fn prove_check(&self, node: &Netns, eni: &Eni) -> Result<()> {
        let router = self.router_mac(eni)?;
        let before = source_check::foreign(&self.router)?;
        for family in Family::ALL {
            let frame = foreign::frame(eni, router, family)?;
            foreign::send(node, &eni.device(), &frame)?;
        }
        let after = source_check::foreign(&self.router)?;
        for family in Family::ALL {
            let cell = (eni.key, family);
            let moved = after.get(&cell).copied().unwrap_or_default()
                - before.get(&cell).copied().unwrap_or_default();
            if moved != 1 {
                bail!(
                    "the fabric's source check of ENI {} counted {moved} of 1 foreign {family:?} \
                     packets: no test on this fabric would show anything",
                    eni.key
                );
            }
        }
        source_check::install(&self.router, eni)
    }

    /// MAC of the router at an ENI.
    ///
    /// # Errors
    /// When it has no such device.
    pub fn router_mac(&self, eni: &Eni) -> Result<MacAddr> {
        let device = eni.router_device();
        let links = self.router.ip_json(&format!("link show dev {device}"))?;
        let mac = links[0]["address"].as_str().context("a device's MAC")?;
        Ok(mac.parse()?)
    }
}

fn subnet_length(family: Family) -> u8 {
    match family {
        Family::V4 => 24,
        Family::V6 => 64,
    }
}

fn nodad(family: Family) -> &'static str {
    match family {
        Family::V4 => "",
        Family::V6 => " nodad",
    }
}

/// The router's address in the subnet of an address.
fn first_of_subnet(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            IpAddr::from([a, b, c, 1])
        }
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 1])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::Addressing;
    use super::*;

    /// A fabric must not start if its check lets all packets pass.
    #[test]
    fn a_check_that_does_not_count_is_found() {
        let prefix = format!("tp-{}-selftest", std::process::id());
        let node = Netns::create(&format!("{prefix}-node")).unwrap();
        let vpc = Vpc::create(&prefix, 1500).unwrap();
        let eni = Eni::new(1, Addressing::Prefixes);
        vpc.attach(&node, &eni, 1500).unwrap();
        let zero: Vec<_> = source_check::foreign(&vpc.router)
            .unwrap()
            .into_values()
            .collect();
        assert_eq!(zero, [0, 0], "both families, from zero");

        node.ip("link set eth1 up").unwrap();
        vpc.router
            .run("nft flush chain netdev eni1 ingress")
            .unwrap();
        let error = vpc.prove_check(&node, &eni).unwrap_err().to_string();
        assert!(error.contains("counted 0 of 1 foreign V4"), "{error}");
    }
}
