//! ARP in a VPC of several nodes: a node has a route to its primary's whole subnet, and looks there
//! for the MAC of other nodes' addresses. The VPC answers itself.

use anyhow::Result;

use crate::fabric::layout::Eni;
use crate::fabric::netns::Netns;

/// Makes the router answer ARP for an address that another ENI of the same subnet holds. An address
/// that no ENI holds, or one of another subnet, gets no answer.
///
/// # Errors
/// When the ENI has no device or no source check on the router.
pub(in crate::fabric) fn answer(router: &Netns, eni: &Eni) -> Result<()> {
    let (device, subnet) = (eni.router_device(), eni.subnet());
    router.sysctls(&[
        (&format!("ipv4/conf/{device}/proxy_arp"), "1"),
        // Else the kernel answers late, by chance.
        (&format!("ipv4/neigh/{device}/proxy_delay"), "0"),
    ])?;
    // The kernel answers for whatever it has a route to by another device.
    router.ip(&format!("route replace blackhole {subnet}"))?;
    router
        .run(&format!(
            "nft add rule netdev {device} ingress arp operation request arp daddr ip != {subnet} drop"
        ))
        .map(drop)
}

/// True where an ENI has a device on the router.
pub(super) fn is_attached(router: &Netns, eni: &Eni) -> bool {
    let device = eni.router_device();
    router
        .sysctl(&format!("ipv4/conf/{device}/proxy_arp"))
        .is_ok()
}
