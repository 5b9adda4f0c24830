//! Collects the objects that should be.

use std::collections::BTreeMap;

use ipam::Family;

use crate::intent::Intent;
use crate::kernel::{Object, Observed, Scope, Sysctl, SysctlScope};

/// Collects the objects that should be. What is put first keeps its scope.
pub(super) struct Builder<'a> {
    pub(super) intent: &'a Intent,
    pub(super) observed: &'a Observed,
    families: &'static [Family],
    objects: BTreeMap<Object, Scope>,
}

impl<'a> Builder<'a> {
    pub(super) fn new(intent: &'a Intent, observed: &'a Observed) -> Self {
        // With `ipv6.disable=1` on the kernel's command line there are no IPv6 sysctls at all.
        let v6 = observed.sysctls.keys().any(|s| s.family == Family::V6);
        Self {
            intent,
            observed,
            families: if v6 { &Family::ALL } else { &[Family::V4] },
            objects: BTreeMap::new(),
        }
    }

    /// The families that this kernel has.
    pub(super) fn families(&self) -> &'static [Family] {
        self.families
    }

    /// True if a device takes part in a family. Hardened hosts turn IPv6 off by sysctl, and then
    /// every IPv6 route to the device is refused.
    pub(super) fn is_on(&self, family: Family, ifindex: u32) -> bool {
        let disabled = Sysctl::of_device(Family::V6, ifindex, "disable_ipv6");
        match family {
            Family::V4 => true,
            Family::V6 => self
                .observed
                .sysctls
                .get(&disabled)
                .is_none_or(|v| v == "0"),
        }
    }

    pub(super) fn put(&mut self, scope: Scope, object: Object) {
        self.objects.entry(object).or_insert(scope);
    }

    /// A sysctl; a kernel that does not have it needs none.
    pub(super) fn sysctl(&mut self, scope: Scope, sysctl: Sysctl, value: &'static str) {
        if self.observed.sysctls.contains_key(&sysctl) {
            self.put(scope, Object::Sysctl(sysctl, value));
        }
    }

    /// Makes the kernel forward packets that a device receives, for service NAT and the stack's
    /// path.
    ///
    /// If the host does not forward at all, enabling that enables it for each device. A device that
    /// has it off after that was changed by a foreign program. IPv6 has one switch for all devices;
    /// that of each device is about router advertisements.
    pub(super) fn forwards(&mut self, scope: Scope, ifindex: u32) {
        let whole = Sysctl {
            family: Family::V4,
            scope: SysctlScope::Family,
            name: "ip_forward",
        };
        if self
            .observed
            .sysctls
            .get(&whole)
            .is_some_and(|value| value == "1")
        {
            let of_device = Sysctl::of_device(Family::V4, ifindex, "forwarding");
            self.sysctl(scope, of_device, "1");
        }
    }

    /// Makes the kernel check the sources of packets that a device receives: where it checks none,
    /// it notes the neighbours of any ARP packet. A stricter check is another's to choose.
    pub(super) fn checks_sources(&mut self, scope: Scope, ifindex: u32) {
        let sysctl = Sysctl::of_device(Family::V4, ifindex, "rp_filter");
        let is = self.observed.sysctls.get(&sysctl);
        if is.is_some_and(|value| value == "0") {
            self.put(scope, Object::Sysctl(sysctl, "2"));
        }
    }

    /// Every object put so far.
    pub(super) fn objects(&self) -> impl Iterator<Item = &Object> {
        self.objects.keys()
    }

    pub(super) fn finish(self) -> BTreeMap<Object, Scope> {
        self.objects
    }
}
