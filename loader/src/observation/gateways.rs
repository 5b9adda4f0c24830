//! The gateways' MACs in the maps, so that the programs need no look-up in the kernel for each
//! packet.
//!
//! The kernel resolves the MACs and caches them. The maps have the kernel's state as long as the
//! agent watches it. Packets to a gateway with an unknown MAC are left to the kernel, which then
//! resolves it.

use std::net::IpAddr;

use api::ids::{EniNumber, MacAddr};
use datapath_common::abi::{EniEntry, GatewayEntry};
use ipam::Family;

use crate::kernel::{MapEntry, Observed};

/// The gateway of an ENI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// The number of the ENI.
    pub eni: EniNumber,
    /// Its device.
    pub ifindex: u32,
    /// The gateway's address.
    pub address: IpAddr,
    /// Its MAC, if the kernel knows it.
    pub mac: Option<MacAddr>,
    /// That of the device, if it has one.
    pub(crate) device_mac: Option<MacAddr>,
    /// True if the kernel has not had it confirmed for a while. It resolves it again when it sends
    /// a packet there, and it does not see the programs' packets.
    pub is_stale: bool,
}

impl Gateway {
    /// The slot of the programs' map.
    #[must_use]
    pub fn slot(&self) -> u32 {
        GatewayEntry::slot(self.eni.0, self.address.is_ipv4())
    }

    /// Destination and source MAC of a frame to the gateway, if both are known. A device without
    /// neighbour resolution has entries for its neighbours, too, with its broadcast address.
    #[must_use]
    pub fn macs(&self) -> Option<[[u8; 6]; 2]> {
        let mac = self.mac.filter(|mac| mac.is_unicast())?;
        Some([mac.0, self.device_mac?.0])
    }
}

/// The gateways of all ENIs that the programs know.
#[must_use]
pub fn list(observed: &Observed) -> Vec<Gateway> {
    let enis = observed.maps.values().filter_map(|entry| match entry {
        MapEntry::Eni(number, entry) => Some((*number, entry)),
        MapEntry::Address(..) | MapEntry::Destination(..) | MapEntry::EniDevice(..) => None,
    });
    enis.flat_map(|(eni, entry)| {
        let of = move |family| of(observed, eni, entry, family);
        Family::ALL.into_iter().filter_map(of)
    })
    .collect()
}

fn of(observed: &Observed, eni: EniNumber, entry: &EniEntry, family: Family) -> Option<Gateway> {
    let of_family = match family {
        Family::V4 => entry.v4(),
        Family::V6 => entry.v6(),
    };
    let ifindex = entry.ifindex();
    let is_there = ifindex != 0 && !of_family.gateway.is_unspecified();
    let address = is_there.then(|| IpAddr::from(of_family.gateway))?;
    let resolved = observed.resolved.get(&(ifindex, address));
    let device = observed.links.get(&ifindex);
    Some(Gateway {
        eni,
        ifindex,
        address,
        mac: resolved.map(|resolved| resolved.mac),
        device_mac: device.and_then(|link| link.mac),
        is_stale: resolved.is_some_and(|resolved| resolved.is_stale),
    })
}

#[cfg(test)]
mod tests {
    use datapath_common::abi::{Addr, EniAddresses};

    use super::*;
    use crate::kernel::Resolved;
    use crate::kernel::fixture::link;

    const GATEWAY: MacAddr = MacAddr([2; 6]);
    const DEVICE: MacAddr = MacAddr([4; 6]);

    fn v4() -> IpAddr {
        [10, 0, 1, 1].into()
    }

    fn v6() -> IpAddr {
        "fe80:ec2::1".parse().unwrap()
    }

    /// A node with an ENI on a device with the index 3.
    fn node(entry: EniEntry) -> Observed {
        let mut observed = Observed::default();
        let entry = MapEntry::Eni(EniNumber(1), entry);
        observed.maps.insert(entry.key(), entry);
        observed.links.insert(3, link(3, "eth1", DEVICE));
        observed
    }

    fn eni(v4: Option<IpAddr>, v6: Option<IpAddr>) -> EniEntry {
        let addresses = |gateway: Option<IpAddr>| {
            let gateway = gateway.map_or(Addr::UNSPECIFIED, Addr::from);
            EniAddresses::new(gateway, Addr::UNSPECIFIED, 1)
        };
        EniEntry::new(3, 9001, addresses(v4), addresses(v6))
    }

    #[test]
    fn a_gateway_has_the_mac_that_the_kernel_found_on_its_device() {
        let mut observed = node(eni(Some(v4()), Some(v6())));
        let resolved = |mac, is_stale| Resolved { mac, is_stale };
        observed.resolved.insert((3, v6()), resolved(GATEWAY, true));
        observed
            .resolved
            .insert((2, v4()), resolved(MacAddr([6; 6]), false));
        let gateways = list(&observed);
        let [of_v4, of_v6] = gateways.as_slice() else {
            panic!("{gateways:?}");
        };
        assert_eq!(
            (of_v4.address, of_v4.mac, of_v4.is_stale),
            (v4(), None, false)
        );
        assert_eq!(of_v4.macs(), None, "found on another device");
        assert_eq!((of_v6.address, of_v6.is_stale), (v6(), true));
        assert_eq!(of_v6.macs(), Some([GATEWAY.0, DEVICE.0]));
        assert_ne!(of_v4.slot(), of_v6.slot());
    }

    #[test]
    fn without_a_device_or_an_address_there_is_no_gateway() {
        assert_eq!(list(&node(EniEntry::ABSENT)), []);
        assert_eq!(list(&node(eni(None, None))), []);
        let of_v4 = list(&node(eni(Some(v4()), None)));
        assert_eq!(of_v4.len(), 1, "{of_v4:?}");
    }

    #[test]
    fn no_frame_begins_with_a_mac_that_is_none() {
        let mut observed = node(eni(Some(v4()), None));
        let mut find = |mac| {
            let is_stale = false;
            let resolved = Resolved { mac, is_stale };
            observed.resolved.insert((3, v4()), resolved);
            list(&observed)[0].macs()
        };
        assert_eq!(find(MacAddr([0xff; 6])), None);
        assert_eq!(find(GATEWAY), Some([GATEWAY.0, DEVICE.0]));
        observed.links.clear();
        assert_eq!(list(&observed)[0].macs(), None);
    }
}
