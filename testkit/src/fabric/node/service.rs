//! Service NAT on a node, by rules of nftables like those of kube-proxy.

use std::net::SocketAddr;

use anyhow::Result;
use ipam::Family;

use crate::fabric::{Fabric, command};

/// Marks packets that kube-proxy masquerades.
const MARK: &str = "meta mark set meta mark or 0x4000";
/// Masquerades packets with that mark, as kube-proxy does.
const MASQUERADE: &str = "
    add chain inet services post { type nat hook postrouting priority srcnat ; }
    flush chain inet services post
    add rule inet services post meta mark and 0x4000 == 0 return
    add rule inet services post meta mark set meta mark xor 0x4000
    add rule inet services post masquerade fully-random
";

/// The client that a server sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// The original client.
    Kept,
    /// The node, as with kube-proxy for node ports of policy `Cluster`.
    Masqueraded,
}

impl Fabric {
    /// Redirects traffic for an address and port, TCP and UDP, to a server. Of several rules for
    /// one address and port the newest takes precedence.
    ///
    /// # Errors
    /// When nftables refuses.
    pub fn serve(&self, frontend: SocketAddr, server: SocketAddr) -> Result<()> {
        self.serve_as(frontend, server, Client::Kept)
    }

    /// As [`Self::serve`], with the client that the server must see.
    ///
    /// # Errors
    /// When nftables refuses.
    pub fn serve_as(&self, frontend: SocketAddr, server: SocketAddr, client: Client) -> Result<()> {
        let family = match Family::of(frontend.ip()) {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        };
        let (mark, masquerade) = match client {
            Client::Kept => ("", ""),
            Client::Masqueraded => (MARK, MASQUERADE),
        };
        // One run of nft: an emulated machine takes a while for each.
        let rules = format!(
            "add table inet services
             add chain inet services pre {{ type nat hook prerouting priority dstnat ; }}
             {masquerade}
             insert rule inet services pre {family} daddr {} meta l4proto {{ tcp, udp }} \
                th dport {} {mark} dnat {family} to {server}
            ",
            frontend.ip(),
            frontend.port()
        );
        command::run_with_input(self.node.command("nft").args(["-f", "-"]), &rules)?;
        Ok(())
    }
}
