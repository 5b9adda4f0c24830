//! Whom the world sees when a pod talks to it, and by which ENI that left.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::{Context as _, Result};
use ipam::Family;

use crate::fabric::eventually::check;
use crate::fabric::source_check;
use crate::fabric::traffic::Protocol;
use crate::fabric::world::Site;
use crate::fabric::{Fabric, Place};

impl Fabric {
    /// The address that an ENI's translated packets carry.
    ///
    /// # Errors
    /// When there is no such ENI, or it has no address of the family.
    pub fn translation_address(&self, eni: u8, family: Family) -> Result<IpAddr> {
        let address = self.eni(eni)?.own_address(family);
        address.with_context(|| format!("ENI {eni} has no {family:?} address"))
    }

    /// One exchange with a site: whom the site saw, and the ENIs that the packets left by.
    ///
    /// # Errors
    /// When the exchange fails, or nft does.
    pub fn look(
        &self,
        from: Place,
        to: Site,
        protocol: Protocol,
    ) -> Result<(Vec<IpAddr>, BTreeSet<u8>)> {
        let family = Family::of(from.address);
        let world = self.world()?;
        let to_place = world.at(to, family);
        self.forget_seen()?;
        protocol.exchange(from, to_place)?;
        let seen = world.seen(to, family, protocol.number(family))?;
        let enis = self.enis_between(from.address, to_place.address)?;
        Ok((seen, enis))
    }

    /// An exchange by every protocol with a site, which must see each of them with one address;
    /// all must leave by one ENI.
    ///
    /// # Errors
    /// When an exchange fails, or one was seen with something else.
    pub fn check_seen(&self, from: Place, to: Site, address: IpAddr, eni: u8) -> Result<()> {
        let family = Family::of(from.address);
        let world = self.world()?;
        let to_place = world.at(to, family);
        self.forget_seen()?;
        for protocol in Protocol::ALL {
            let exchange = protocol.exchange(from, to_place);
            exchange.with_context(|| format!("{protocol} from {} to {to:?}", from.address))?;
        }
        let arrived = world.arrived(to)?;
        for protocol in Protocol::ALL {
            let number = protocol.number(family);
            let is_it =
                |flow: &&source_check::Flow| flow.to == to_place.address && flow.protocol == number;
            let seen: Vec<_> = arrived.iter().filter(is_it).map(|flow| flow.from).collect();
            check(seen == [address], || {
                let from = from.address;
                format!("{protocol} from {from} to {to:?}: seen as {seen:?} and not as {address}")
            })?;
        }
        let enis = self.enis_between(from.address, to_place.address)?;
        check(enis == BTreeSet::from([eni]), || {
            let from = from.address;
            format!("packets from {from} to {to:?} left by the ENIs {enis:?} and not by {eni}")
        })
    }

    fn forget_seen(&self) -> Result<()> {
        source_check::forget_flows(&self.vpc.router)?;
        self.world()?.forget()
    }
}
