//! Service NAT on a node, by one rule of nftables each, as kube-proxy has it.

use std::net::SocketAddr;

use anyhow::Result;
use towpath::intent::Family;

use super::Fabric;

impl Fabric {
    /// Has what goes to an address and port, by TCP or UDP, go to a server instead. Of several rules
    /// for one address and port the newest counts.
    ///
    /// # Errors
    /// When nftables refuses.
    pub fn serve(&self, asked: SocketAddr, server: SocketAddr) -> Result<()> {
        let family = match Family::of(asked.ip()) {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        };
        for line in [
            "add table inet services".to_owned(),
            "add chain inet services pre { type nat hook prerouting priority dstnat ; }".to_owned(),
            format!(
                "insert rule inet services pre {family} daddr {} meta l4proto {{ tcp, udp }} \
                 th dport {} dnat {family} to {server}",
                asked.ip(),
                asked.port()
            ),
        ] {
            self.node.run(&format!("nft {line}"))?;
        }
        Ok(())
    }
}
