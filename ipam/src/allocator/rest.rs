//! Addresses that were released a short time ago.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::settings::REST;
use crate::{Cooling, Time};

/// The last releases of addresses, as far as they still count.
#[derive(Clone, Debug, Default)]
pub(super) struct Rest {
    /// Addresses in their cooldown, which nobody is given.
    pub(super) cooling: BTreeMap<IpAddr, Cooling>,
    /// Recently released addresses whose cooldown is over, including those with a new owner.
    pub(super) fresh: BTreeMap<IpAddr, Cooling>,
}

impl Rest {
    /// Begins a cooldown.
    pub(super) fn begin(&mut self, cooling: Cooling) {
        self.fresh.remove(&cooling.address);
        self.cooling.insert(cooling.address, cooling);
    }

    /// Takes up a release where it was. One that cools down no more rests on.
    pub(super) fn resume(&mut self, cooling: Cooling, now: Time) {
        if !cooling.over {
            self.cooling.insert(cooling.address, cooling);
            return;
        }
        // Nothing was released later than now.
        let released = cooling.released.unwrap_or(cooling.until).min(now);
        let cooling = Cooling {
            released: Some(released),
            ..cooling
        };
        self.fresh.insert(cooling.address, cooling);
    }

    /// Takes the memory of an address's last release, which counts no more.
    pub(super) fn take(&mut self, address: IpAddr) -> Option<Cooling> {
        let fresh = self.fresh.remove(&address);
        self.cooling.remove(&address).or(fresh)
    }

    /// Addresses whose cooldown is over. None of the others lasts longer than `longest`.
    pub(super) fn cooled(
        &mut self,
        now: Time,
        longest: Time,
        mut is_quiet: impl FnMut(IpAddr) -> bool,
    ) -> Vec<IpAddr> {
        let mut cooled = Vec::new();
        for cooling in self.cooling.values_mut() {
            cooling.until = longest.min(cooling.until);
            if cooling.until <= now && is_quiet(cooling.address) {
                cooled.push(cooling.address);
            }
        }
        cooled
    }

    /// Ends an address's cooldown. Returns what is to become of it among the fresh ones.
    pub(super) fn end(&mut self, address: IpAddr, now: Time) -> Option<Cooling> {
        let cooling = self.cooling.remove(&address)?;
        // Nothing was released later than now. Without its release its rest begins late.
        let released = cooling.released.unwrap_or(cooling.until).min(now);
        Some(Cooling {
            released: Some(released),
            over: true,
            ..cooling
        })
    }

    /// Takes the addresses whose release is long ago, each with its time.
    pub(super) fn take_ripe(&mut self, now: Time) -> Vec<(IpAddr, Time)> {
        let mut ripe = Vec::new();
        for (address, cooling) in &self.fresh {
            let released = cooling.released.unwrap_or(now);
            if released.after(REST) <= now {
                ripe.push((*address, released));
            }
        }
        for (address, _) in &ripe {
            self.fresh.remove(address);
        }
        ripe
    }
}
