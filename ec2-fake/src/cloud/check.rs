//! Invariants after any call.

use std::collections::BTreeSet;

use super::Cloud;
use crate::family::Family;

impl Cloud {
    /// Checks the whole state.
    ///
    /// # Errors
    /// With the first fault: an address of two interfaces, an interface with more slots than its
    /// instance allows, two interfaces at one index, or a subnet that counts other addresses.
    pub fn check(&self) -> Result<(), String> {
        for subnet in self.network.subnets.values() {
            let mut nets = Vec::new();
            for eni in self
                .interfaces()
                .filter(|eni| eni.placement.subnet == subnet.spec.id)
            {
                nets.extend(eni.addresses.nets().map(|net| (net, &eni.id)));
            }
            nets.sort_by_key(|(net, _)| (net.network(), net.prefix_len()));
            for pair in nets.windows(2) {
                if let [(one, owner), (other, second)] = pair
                    && one.contains(other)
                {
                    return Err(format!("{other} of {second} is in {one} of {owner}"));
                }
            }
            for (net, owner) in nets {
                let space = subnet.space(Family::of(&net.addr()));
                if !space.is_some_and(|space| space.is_used(&net)) {
                    return Err(format!("{net} of {owner} counts as free"));
                }
            }
        }
        for (instance, ids) in &self.of_instance {
            let mut places = BTreeSet::new();
            let limits = self.instance(instance).and_then(|found| found.limits());
            for eni in ids.iter().filter_map(|id| self.interface(id)) {
                let Some(attachment) = &eni.attachment else {
                    return Err(format!("{} is free and of {instance}", eni.id));
                };
                if !places.insert((attachment.card, attachment.index)) {
                    return Err(format!("{instance} has two at index {}", attachment.index));
                }
                if limits.is_some_and(|limits| eni.addresses.slots(Family::V4) > limits.ipv4) {
                    return Err(format!("{} has too many addresses", eni.id));
                }
            }
        }
        Ok(())
    }
}
