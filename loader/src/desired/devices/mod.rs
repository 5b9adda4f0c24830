//! From the node document's MACs to devices.

use std::collections::BTreeMap;

use api::ids::{EniNumber, MacAddr};
use api::types::Readiness;

use crate::constants;
use crate::intent::{Eni, Intent};
use crate::kernel::{Link, Observed};
use crate::observation::ownership::may_be_eni;
use crate::observation::view::EniView;

/// An ENI and what became of looking for its device.
pub(super) struct ResolvedEni<'a> {
    pub(super) eni: &'a Eni,
    pub(super) state: EniState<'a>,
}

/// The device of an ENI.
#[derive(Clone, Copy)]
pub(super) struct EniDevice<'a> {
    pub(super) link: &'a Link,
    /// The MTU that the device is to have, in bytes.
    pub(super) mtu: u32,
}

/// The use that an ENI is of.
pub(super) enum EniState<'a> {
    /// It has a device.
    Usable(EniDevice<'a>),
    /// It has none, for this reason: packets marked for it must go nowhere else.
    Fenced(String),
    /// It is not for pods.
    Excluded {
        /// Why.
        reason: String,
        /// The device, for display.
        device: Option<&'a Link>,
    },
}

impl ResolvedEni<'_> {
    pub(super) fn view(&self) -> EniView {
        let (device, readiness) = match &self.state {
            EniState::Usable(device) => (Some(device.link), Readiness::Ready),
            EniState::Fenced(reason) => (None, Readiness::not_ready(reason)),
            EniState::Excluded { reason, device } => (
                *device,
                Readiness::Excluded {
                    reason: reason.clone(),
                },
            ),
        };
        let single = |net: &&ipnet::IpNet| net.prefix_len() == net.max_prefix_len();
        let addresses = self.eni.blocks.iter().filter(single).count();
        EniView {
            id: self.eni.id.clone(),
            number: self.eni.number,
            mac: self.eni.mac,
            primary_address: self.eni.primary_address,
            device: device.map(super::device_view),
            table: self.eni.table(),
            addresses,
            prefixes: self.eni.blocks.len() - addresses,
            readiness,
            stale: self.eni.stale.clone(),
        }
    }
}

/// The primary ENI's device: ENI number 0's; where the document does not list it, the device that
/// holds the node's first internal address, else the one that the settings name. Default routes
/// never decide it: the host may have several.
pub(super) fn primary<'a>(intent: &Intent, observed: &'a Observed) -> Result<&'a Link, String> {
    if let Some(eni) = intent.node.enis.get(&EniNumber::PRIMARY) {
        return by_mac(eni.mac, observed)
            .map_err(|reason| format!("the primary ENI ({}): {reason}", eni.id));
    }
    // Its entry may be of no use, and the node still has it.
    let listed = intent.node.primary_mac();
    if let Some(Ok(link)) = listed.map(|mac| by_mac(mac, observed)) {
        return Ok(link);
    }
    if let Some(internal) = intent.node.addresses.internal.first() {
        let holder = observed
            .addresses
            .iter()
            .find(|address| address.net.addr() == *internal)
            .and_then(|address| observed.links.get(&address.ifindex));
        if let Some(link) = holder {
            return Ok(link);
        }
    }
    if let Some(name) = &intent.settings.primary_device {
        return observed
            .links
            .values()
            .find(|link| link.name == *name)
            .ok_or_else(|| {
                format!(
                    "the primary ENI: the node document does not list it, no device holds the \
                     node's internal address, and node.primary-device {name:?} does not exist"
                )
            });
    }
    Err(
        "the primary ENI: the node document does not list it and no device holds the node's \
         internal address; set node.primary-device"
            .to_owned(),
    )
}

/// Every ENI of the document with its device.
pub(super) fn enis<'a>(
    intent: &'a Intent,
    observed: &'a Observed,
    primary: Option<&'a Link>,
) -> BTreeMap<EniNumber, ResolvedEni<'a>> {
    let resolve = |eni: &'a Eni| ResolvedEni {
        eni,
        state: state(eni, observed, primary),
    };
    let all = intent.node.enis.values();
    all.map(|eni| (eni.number, resolve(eni))).collect()
}

fn state<'a>(eni: &Eni, observed: &'a Observed, primary: Option<&'a Link>) -> EniState<'a> {
    let device = by_mac(eni.mac, observed);
    if let Some(reason) = &eni.excluded {
        return EniState::Excluded {
            reason: reason.clone(),
            device: device.ok(),
        };
    }
    let device = match device {
        Ok(device) => device,
        Err(reason) => return EniState::Fenced(reason),
    };
    let secondary = !eni.number.is_primary();
    match primary {
        Some(primary) if secondary && primary.ifindex == device.ifindex => {
            EniState::Fenced(format!("its device {} is the primary ENI's", device.name))
        }
        Some(primary) if secondary => EniState::Usable(EniDevice {
            link: device,
            mtu: primary.mtu.clamp(constants::MTU_MIN, constants::MTU_MAX),
        }),
        // Setting the primary up is the host's to do.
        Some(_) | None if !secondary && !device.up => {
            EniState::Fenced(format!("its device {} is down", device.name))
        }
        Some(_) | None => EniState::Usable(EniDevice {
            link: device,
            mtu: device.mtu,
        }),
    }
}

/// The one device with a MAC. Devices on top of others borrow theirs, and so do the ports of a
/// bond: neither is an ENI's device.
fn by_mac(mac: MacAddr, observed: &Observed) -> Result<&Link, String> {
    let with_mac = || {
        observed
            .links
            .values()
            .filter(|link| link.mac == Some(mac) && may_be_eni(link))
    };
    let mut free = with_mac().filter(|link| link.master.is_none());
    match (free.next(), free.next()) {
        (Some(device), None) => Ok(device),
        (Some(one), Some(other)) => Err(format!(
            "more than one device with MAC {mac}: {} and {}",
            one.name, other.name
        )),
        (None, _) => Err(with_mac().next().map_or_else(
            || format!("no device with MAC {mac}"),
            |port| {
                format!(
                    "no device with MAC {mac} but {}, which is a port of another device",
                    port.name
                )
            },
        )),
    }
}

#[cfg(test)]
mod tests;
