//! The source address of masqueraded packets, and the ENI by which they leave.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use api::ids::EniNumber;
use api::types::{EniMasquerade, ExternalPolicy, FamilyMasquerade};
use datapath_common::abi::{Addr, EniAddresses, EniEntry};
use ipam::Family;
use ipnet::IpNet;

use super::devices::{EniState, ResolvedEni};
use crate::constants;
use crate::intent::{Eni, Intent};
use crate::kernel::{Link, MapEntry, MapKey, Observed};

type Enis<'a> = BTreeMap<EniNumber, ResolvedEni<'a>>;

/// The ENIs by which translated packets can leave.
#[derive(Debug, Default)]
pub(super) struct Exits {
    all: BTreeMap<EniNumber, ExitEni>,
}

/// One ENI as an egress.
#[derive(Debug)]
struct ExitEni {
    id: Option<String>,
    /// True if it needs an entry beside those of the ENIs for pods: the primary that the document
    /// does not list, or excludes from pods.
    is_extra: bool,
    ifindex: u32,
    mtu: u32,
    public: Option<IpAddr>,
    families: [Egress; 2],
}

/// The egress of one family by an ENI.
#[derive(Debug)]
struct Egress {
    gateway: Option<IpAddr>,
    /// The translation address, or why there is none.
    address: Result<IpAddr, String>,
    /// True if there is none because the document gives it to pods.
    is_given_to_pods: bool,
    external: EniNumber,
    why: String,
    /// Ports of the reserve of a destination that each endpoint may have.
    share: u16,
}

/// An ENI with a device, before policy is applied.
struct Candidate<'a> {
    number: EniNumber,
    eni: Option<&'a Eni>,
    device: &'a Link,
    mtu: u32,
    is_extra: bool,
}

/// Finds the egress ENIs. `primary` is the primary ENI's device, if packets may leave by it.
pub(super) fn exits(
    intent: &Intent,
    observed: &Observed,
    enis: &Enis<'_>,
    primary: Option<&Link>,
) -> Exits {
    let usable = enis.values().filter_map(|resolved| match &resolved.state {
        EniState::Usable(device) => Some(Candidate {
            number: resolved.eni.number,
            eni: Some(resolved.eni),
            device: device.link,
            mtu: device.mtu,
            is_extra: false,
        }),
        EniState::Fenced(_) | EniState::Excluded { .. } => None,
    });
    let listed = enis.get(&EniNumber::PRIMARY);
    let for_pods = listed.is_some_and(|resolved| resolved.eni.excluded.is_none());
    let extra = primary
        .filter(|device| device.up && !for_pods)
        .map(|device| Candidate {
            number: EniNumber::PRIMARY,
            eni: listed.map(|resolved| resolved.eni),
            device,
            mtu: device.mtu,
            is_extra: true,
        });
    let scene = Scene { intent, observed };
    let all = extra.into_iter().chain(usable);
    let mut exits = Exits {
        all: all.map(|c| (c.number, scene.exit(&c))).collect(),
    };
    exits.choose(intent.settings.masquerade.external);
    exits.divide(intent, observed);
    exits
}

impl Exits {
    /// The device of an egress ENI.
    pub(super) fn device(&self, number: EniNumber) -> Option<u32> {
        self.all.get(&number).map(|exit| exit.ifindex)
    }
}

struct Scene<'a> {
    intent: &'a Intent,
    observed: &'a Observed,
}

impl Scene<'_> {
    fn exit(&self, of: &Candidate<'_>) -> ExitEni {
        let egress = |family| {
            let address = match (family, of.eni) {
                (Family::V4, Some(eni)) if eni.use_primary_address => {
                    Err("use-primary-address: its own address is a pod's to have".to_owned())
                }
                (Family::V4, Some(eni)) => {
                    let missing = || "it has no IPv4 address".to_owned();
                    eni.own_address().ok_or_else(missing)
                }
                (Family::V4, None) | (Family::V6, _) => self.on_device(of, family),
            };
            let gateway = match (family, of.eni) {
                (_, Some(eni)) => eni.gateway(family),
                (Family::V6, None) => Some(constants::GATEWAY_V6.into()),
                (Family::V4, None) => {
                    let address = address.as_ref().ok();
                    address.and_then(|address| self.gateway_v4(of.device.ifindex, *address))
                }
            };
            Egress {
                is_given_to_pods: family == Family::V4
                    && of.eni.is_some_and(|eni| eni.use_primary_address),
                // Without a next hop nothing can leave, and the address is of no use.
                address: match gateway {
                    Some(_) => address,
                    None => address.and_then(|address| {
                        Err(format!("{address} is in no subnet on {}", of.device.name))
                    }),
                },
                gateway,
                external: of.number,
                why: String::new(),
                share: 0,
            }
        };
        let public = match of.eni {
            Some(eni) => eni.public_address.map(IpAddr::V4),
            None => self.intent.node.addresses.first_external(Family::V4),
        };
        ExitEni {
            id: of.eni.map(|eni| eni.id.clone()),
            is_extra: of.is_extra,
            ifindex: of.device.ifindex,
            mtu: of.mtu,
            public,
            families: Family::ALL.map(egress),
        }
    }

    /// An address on the device that the whole network knows and that is no pod's. On the primary
    /// the node's own one goes first; otherwise the one in use stays in use, because connections
    /// hang on it.
    fn on_device(&self, of: &Candidate<'_>, family: Family) -> Result<IpAddr, String> {
        let ifindex = of.device.ifindex;
        let on_it = self.observed.addresses.iter();
        let on_it = on_it.filter(|a| a.ifindex == ifindex).map(|a| a.net.addr());
        let fit: Vec<IpAddr> = on_it
            .filter(|address| Family::of(*address) == family && self.may_be_translation(*address))
            .collect();
        let node = self.intent.node.addresses.first_internal(family);
        let node = node.filter(|_| of.number.is_primary());
        let preferred = node.into_iter().chain(self.in_use(of.number, family));
        preferred
            .filter(|address| fit.contains(address))
            .chain(fit.iter().copied())
            .next()
            .ok_or_else(|| {
                let name = &of.device.name;
                format!("{name} has no global address that is not for pods")
            })
    }

    fn may_be_translation(&self, address: IpAddr) -> bool {
        if self.intent.plain_pool_of(address).is_some() {
            return false;
        }
        let is_global = match address {
            IpAddr::V4(a) => !a.is_loopback() && !a.is_link_local() && !a.is_unspecified(),
            IpAddr::V6(a) => !a.is_loopback() && !a.is_unicast_link_local() && !a.is_unspecified(),
        };
        let mut enis = self.intent.node.enis.values();
        let mut endpoints = self.intent.endpoints.values();
        is_global
            && !enis.any(|eni| eni.owns(address))
            && !endpoints.any(|endpoint| endpoint.addresses.contains(&address))
    }

    /// The translation address that the datapath has for an ENI now.
    fn in_use(&self, number: EniNumber, family: Family) -> Option<IpAddr> {
        match self.observed.maps.get(&MapKey::Eni(number)) {
            Some(MapEntry::Eni(_, entry)) => {
                let of_family = match family {
                    Family::V4 => entry.v4(),
                    Family::V6 => entry.v6(),
                };
                Some(of_family.snat)
                    .filter(|snat| !snat.is_unspecified())
                    .map(IpAddr::from)
            }
            _ => None,
        }
    }

    /// The VPC's router in the subnet of an address on a device: the subnet's first address after
    /// the network's.
    fn gateway_v4(&self, ifindex: u32, address: IpAddr) -> Option<IpAddr> {
        let mut on_device = self.observed.addresses.iter();
        let subnet = on_device.find_map(|a| match a.net {
            IpNet::V4(net) if a.ifindex == ifindex && IpAddr::V4(net.addr()) == address => {
                Some(net)
            }
            IpNet::V4(_) | IpNet::V6(_) => None,
        })?;
        let network = u32::from(subnet.network());
        let gateway = Ipv4Addr::from(network.checked_add(1)?);
        (subnet.prefix_len() <= 30).then_some(gateway.into())
    }
}

impl Exits {
    /// Chooses the ENI by which each ENI's packets leave.
    fn choose(&mut self, policy: ExternalPolicy) {
        let primary_public = self
            .all
            .get(&EniNumber::PRIMARY)
            .is_some_and(|exit| exit.public.is_some());
        for (number, exit) in &mut self.all {
            for (family, egress) in Family::ALL.into_iter().zip(&mut exit.families) {
                let (external, why) = match policy {
                    _ if number.is_primary() => (*number, "it is the primary".to_owned()),
                    ExternalPolicy::OwnEni => (*number, "own-eni".to_owned()),
                    ExternalPolicy::PrimaryEni => (EniNumber::PRIMARY, "primary-eni".to_owned()),
                    // Every global IPv6 address is a public one.
                    ExternalPolicy::Auto if family == Family::V6 => {
                        (*number, "auto: IPv6 needs no public address".to_owned())
                    }
                    ExternalPolicy::Auto if exit.public.is_none() && primary_public => (
                        EniNumber::PRIMARY,
                        "auto: only the primary has a public address".to_owned(),
                    ),
                    ExternalPolicy::Auto if exit.public.is_some() => {
                        (*number, "auto: it has a public address".to_owned())
                    }
                    ExternalPolicy::Auto => (
                        *number,
                        "auto: the primary has no public address".to_owned(),
                    ),
                };
                let may_change = policy == ExternalPolicy::Auto || egress.is_given_to_pods;
                (egress.external, egress.why) = match &egress.address {
                    Err(reason) if external == *number && !number.is_primary() && may_change => {
                        (EniNumber::PRIMARY, format!("{reason}: by the primary"))
                    }
                    Err(reason) if external == *number => {
                        (external, format!("{why}, but {reason}: dropped"))
                    }
                    Ok(_) | Err(_) => (external, why),
                };
            }
        }
    }

    /// An ENI's addresses of both families, as the datapath should know them.
    pub(super) fn addresses(&self, number: EniNumber) -> [EniAddresses; 2] {
        self.all
            .get(&number)
            .map_or([EniAddresses::NONE; 2], |exit| {
                [&exit.families[0], &exit.families[1]].map(|egress| {
                    EniAddresses::new(
                        egress.gateway.map_or(Addr::UNSPECIFIED, Addr::from),
                        egress
                            .address
                            .as_ref()
                            .map_or(Addr::UNSPECIFIED, |a| Addr::from(*a)),
                        egress.external.0,
                    )
                    .with_share(egress.share)
                })
            })
    }

    /// The translation address of an ENI.
    pub(super) fn address(&self, number: EniNumber, family: Family) -> Option<IpAddr> {
        let mut families = Family::ALL
            .into_iter()
            .zip(&self.all.get(&number)?.families);
        let (_, egress) = families.find(|(of, _)| *of == family)?;
        egress.address.as_ref().ok().copied()
    }

    /// The entry of a primary that no pod uses.
    pub(super) fn extra_entry(&self) -> Option<EniEntry> {
        let exit = self.all.get(&EniNumber::PRIMARY).filter(|e| e.is_extra)?;
        let [v4, v6] = self.addresses(EniNumber::PRIMARY);
        Some(EniEntry::new(exit.ifindex, exit.mtu, v4, v6))
    }

    /// Every translation address and its ENI.
    pub(super) fn translation_addresses(&self) -> impl Iterator<Item = (IpAddr, EniNumber)> {
        self.all.iter().flat_map(|(number, exit)| {
            let families = exit.families.iter();
            families.filter_map(|egress| Some((*egress.address.as_ref().ok()?, *number)))
        })
    }

    /// The translation of each ENI, for people.
    pub(super) fn view(&self) -> Vec<EniMasquerade> {
        let of = |(number, exit): (&EniNumber, &ExitEni)| {
            let [v4, v6] = [&exit.families[0], &exit.families[1]].map(|egress| FamilyMasquerade {
                address: egress.address.as_ref().ok().copied(),
                no_address: egress.address.as_ref().err().cloned(),
                external: egress.external,
                why: egress.why.clone(),
            });
            EniMasquerade {
                number: *number,
                id: exit.id.clone(),
                public: exit.public,
                ipv4: v4,
                ipv6: v6,
            }
        };
        self.all.iter().map(of).collect()
    }
}

mod reserve;
#[cfg(test)]
mod tests;
