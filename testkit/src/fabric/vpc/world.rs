//! The world outside of the VPC: a server on the Internet behind a router of its own, and the
//! instance metadata service.
//!
//! ```text
//!   vpc (router) ── world ── path (router) ── server: the Internet
//!                └─ metadata: instance metadata
//! ```
//!
//! Both record the sources that they see.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::Result;
use ipam::Family;

use super::source_check;
use crate::fabric::netns::Netns;
use crate::fabric::{Place, command};

/// TTL of the metadata service's answers when they leave it: the VPC's router takes one hop, and 1
/// reaches the node (AWS, "Configure the instance metadata options": the default hop limit).
const METADATA_TTL: u8 = 2;

/// A destination outside of the VPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// A server with addresses that no list of exemptions has.
    Internet,
    /// That server by addresses of documentation (RFC 5737, RFC 3849); ip-masq-agent's standard
    /// list exempts the IPv4 one.
    Listed,
    /// The instance metadata service.
    Metadata,
    /// A link-local service other than the metadata service: the address of AWS's time server. The
    /// server on the Internet answers for it.
    Time,
}

impl Site {
    /// Its address.
    #[must_use]
    pub fn address(self, family: Family) -> IpAddr {
        let v6 = |segments: [u16; 8]| IpAddr::from(Ipv6Addr::from(segments));
        match (self, family) {
            (Self::Internet, Family::V4) => Ipv4Addr::new(8, 8, 4, 10).into(),
            (Self::Internet, Family::V6) => v6([0x2606, 0x4700, 0x10, 0, 0, 0, 0, 0x10]),
            (Self::Listed, Family::V4) => Ipv4Addr::new(203, 0, 113, 10).into(),
            (Self::Listed, Family::V6) => v6([0x2001, 0xdb8, 0x113, 0, 0, 0, 0, 0x10]),
            (Self::Metadata, Family::V4) => Ipv4Addr::new(169, 254, 169, 254).into(),
            (Self::Metadata, Family::V6) => v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254]),
            (Self::Time, Family::V4) => Ipv4Addr::new(169, 254, 169, 123).into(),
            (Self::Time, Family::V6) => v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x123]),
        }
    }
}

/// A link of the path to the Internet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Between the VPC's router and the path's.
    Near,
    /// Between the path's router and the server.
    Far,
}

/// The world of one fabric.
#[derive(Debug)]
pub struct World {
    /// The router between the VPC's and the server.
    pub path: Netns,
    server: Netns,
    metadata: Netns,
}

/// Two ends of a link: the nearer one's address, the farther one's, and the prefix length.
type LinkEnds = (&'static str, &'static str, u8);

const NEAR: [LinkEnds; 2] = [
    ("8.8.3.1", "8.8.3.2", 24),
    ("2606:4700:3::1", "2606:4700:3::2", 64),
];
const FAR: [LinkEnds; 2] = [
    ("8.8.4.1", "8.8.4.10", 24),
    ("2606:4700:10::1", "2606:4700:10::10", 64),
];
const METADATA: [LinkEnds; 2] = [
    ("169.254.169.1", "169.254.169.254", 24),
    ("fd00:ec2::1", "fd00:ec2::254", 64),
];

impl World {
    /// Makes the world behind a VPC's router.
    ///
    /// # Errors
    /// When a namespace or a device cannot be made.
    pub fn create(prefix: &str, router: &Netns, mtu: u32) -> Result<Self> {
        let world = Self {
            path: Netns::create(&format!("{prefix}-path"))?,
            server: Netns::create(&format!("{prefix}-world"))?,
            metadata: Netns::create(&format!("{prefix}-metadata"))?,
        };
        // Duplicate address detection of a link-local address would block neighbour discovery.
        for netns in [&world.path, &world.server, &world.metadata] {
            netns.sysctls(&[("ipv6/conf/default/accept_dad", "0")])?;
        }
        world.path.sysctls(&[
            ("ipv4/ip_forward", "1"),
            ("ipv6/conf/all/forwarding", "1"),
            ("ipv4/icmp_ratelimit", "0"),
            ("ipv6/icmp/ratelimit", "0"),
        ])?;
        for netns in [&world.server, &world.metadata] {
            netns.sysctls(&[("ipv4/icmp_ratelimit", "0"), ("ipv6/icmp/ratelimit", "0")])?;
            witness(netns)?;
        }
        connect((router, "world"), (&world.path, "vpc"), NEAR, mtu)?;
        connect((&world.path, "server"), (&world.server, "eth0"), FAR, mtu)?;
        connect(
            (router, "metadata"),
            (&world.metadata, "eth0"),
            METADATA,
            mtu,
        )?;
        world.set_metadata_ttl(METADATA_TTL)?;
        let mut by_path = String::new();
        let mut by_server = String::new();
        for ((near, far), family) in NEAR.iter().zip(&FAR).zip(Family::ALL) {
            let length = family.host_length();
            let also = [Site::Listed, Site::Time].map(|site| site.address(family));
            for address in also {
                // Writing to a string cannot fail.
                let _infallible = writeln!(by_path, "route add {address}/{length} via {}", far.1);
                let _infallible = writeln!(by_server, "addr add {address}/{length} dev lo");
                // Some sites are not behind the default route.
                router.ip(&format!("route add {address}/{length} via {}", near.1))?;
            }
            let _infallible = writeln!(by_path, "route add default via {}", near.0);
            let _infallible = writeln!(by_server, "route add default via {}", far.0);
            router.ip(&format!("route add default via {}", near.1))?;
        }
        for (gateway, ..) in METADATA {
            world
                .metadata
                .ip(&format!("route add default via {gateway}"))?;
        }
        world.path.ip(&by_path)?;
        world.server.ip(&by_server)?;
        Ok(world)
    }

    /// A site's end of a flow.
    #[must_use]
    pub fn at(&self, site: Site, family: Family) -> Place<'_> {
        Place {
            netns: self.netns(site),
            address: site.address(family),
        }
    }

    /// Sets the TTL that the metadata service's answers leave it with. One of 2 reaches the node
    /// as 1.
    ///
    /// # Errors
    /// When the namespace is gone.
    pub fn set_metadata_ttl(&self, ttl: u8) -> Result<()> {
        let ttl = ttl.to_string();
        self.metadata.sysctls(&[
            ("ipv4/ip_default_ttl", &ttl),
            ("ipv6/conf/eth0/hop_limit", &ttl),
        ])
    }

    fn netns(&self, site: Site) -> &Netns {
        match site {
            Site::Internet | Site::Listed | Site::Time => &self.server,
            Site::Metadata => &self.metadata,
        }
    }

    /// The path router's addresses on the side of the VPC.
    #[must_use]
    pub fn path_address(family: Family) -> &'static str {
        NEAR[usize::from(family == Family::V6)].1
    }

    /// Sets the MTU of a link of the path to the Internet, at both of its ends.
    ///
    /// # Errors
    /// When a device refuses it.
    pub fn set_mtu(&self, router: &Netns, link: Link, mtu: u32) -> Result<()> {
        let ends = match link {
            Link::Near => [(router, "world"), (&self.path, "vpc")],
            Link::Far => [(&self.path, "server"), (&self.server, "eth0")],
        };
        for (netns, device) in ends {
            netns.ip(&format!("link set {device} mtu {mtu}"))?;
        }
        Ok(())
    }

    /// The packets that have reached the server or the metadata service of a site since the last
    /// reset.
    ///
    /// # Errors
    /// When nft fails or answers something unknown.
    pub fn arrived(&self, site: Site) -> Result<Vec<source_check::Flow>> {
        source_check::elements(self.netns(site), "seen_", |_| Some(0))
    }

    /// The sources that a site has seen packets from since the last reset, for one of its addresses
    /// and an IP protocol.
    ///
    /// # Errors
    /// As [`Self::arrived`].
    pub fn seen(&self, site: Site, family: Family, protocol: u8) -> Result<Vec<IpAddr>> {
        let mut flows = self.arrived(site)?;
        flows.retain(|flow| flow.to == site.address(family) && flow.protocol == protocol);
        Ok(flows.into_iter().map(|flow| flow.from).collect())
    }

    /// Forgets the sources seen so far.
    ///
    /// # Errors
    /// When nft fails.
    pub fn forget(&self) -> Result<()> {
        for netns in [&self.server, &self.metadata] {
            let flush = "flush set inet witness seen_v4\nflush set inet witness seen_v6\n";
            command::run_with_input(netns.command("nft").args(["-f", "-"]), flush)?;
        }
        Ok(())
    }
}

/// Connects a nearer namespace's new device with a farther one's.
fn connect(near: (&Netns, &str), far: (&Netns, &str), ends: [LinkEnds; 2], mtu: u32) -> Result<()> {
    let ((near, near_device), (far, far_device)) = (near, far);
    let mut near_batch = format!(
        "link add {near_device} mtu {mtu} type veth peer name {far_device} netns {} mtu {mtu}\n\
         link set {near_device} up\n",
        far.name()
    );
    let mut far_batch = format!("link set {far_device} up\n");
    for (here, there, length) in ends {
        let nodad = if here.contains(':') { " nodad" } else { "" };
        // Writing to a string cannot fail.
        let _infallible = writeln!(
            near_batch,
            "addr add {here}/{length} dev {near_device}{nodad}"
        );
        let _infallible = writeln!(
            far_batch,
            "addr add {there}/{length} dev {far_device}{nodad}"
        );
    }
    near.ip(&near_batch)?;
    far.ip(&far_batch)
}

/// Makes a namespace record the sources of its packets, except neighbour discovery.
fn witness(netns: &Netns) -> Result<()> {
    let mut text = "table inet witness {\n".to_owned();
    let mut rules = String::new();
    for (header, kind, name) in [("ip", "ipv4_addr", "v4"), ("ip6", "ipv6_addr", "v6")] {
        let _infallible = writeln!(
            text,
            "  set seen_{name} {{ type {kind} . {kind} . inet_proto; flags dynamic; size 65535; \
             counter; }}"
        );
        let _infallible = writeln!(
            rules,
            "    update @seen_{name} {{ {header} saddr . {header} daddr . meta l4proto }}"
        );
    }
    let _infallible = write!(
        text,
        "  chain input {{\n    type filter hook input priority 0; policy accept;\n    \
         icmpv6 type {{ nd-neighbor-solicit, nd-neighbor-advert }} accept\n{rules}  }}\n}}\n"
    );
    command::run_with_input(netns.command("nft").args(["-f", "-"]), &text)?;
    Ok(())
}
