//! Intents at random.

use std::collections::BTreeSet;

use api::ids::EniNumber;
use datapath_common::mark::MarkLayout;
use ipnet::IpNet;
use proptest::prelude::*;

use crate::intent::Intent;
use crate::kernel::fixture::{endpoint, eni, intent};

/// Addresses that pods may have: some shared by choices of several pods, one that is an ENI's
/// own, one that no ENI owns.
const ADDRESSES: [&str; 7] = [
    "10.0.0.20",
    "10.0.1.65",
    "2001:db8:0:1:a::65",
    "10.0.2.66",
    "10.0.1.66",
    "10.0.1.10",
    "10.9.9.9",
];

#[derive(Clone, Debug)]
pub(super) struct Spec {
    enis: [EniSpec; 3],
    pods: [Option<(usize, usize)>; 4],
    variants: BTreeSet<Variant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Variant {
    OtherMark,
    NoServices,
    /// ENI 1's prefix is ENI 2's.
    MovedPrefix,
    NoNodeAddress,
}

#[derive(Clone, Copy, Debug)]
struct EniSpec {
    listed: bool,
    excluded: bool,
    use_primary_address: bool,
}

fn eni_spec() -> impl Strategy<Value = EniSpec> {
    let often = prop::bool::weighted(0.8);
    let seldom = || prop::bool::weighted(0.15);
    (often, seldom(), seldom()).prop_map(|(listed, excluded, use_primary_address)| EniSpec {
        listed,
        excluded,
        use_primary_address,
    })
}

pub(super) fn spec() -> impl Strategy<Value = Spec> {
    let pod = prop::option::weighted(0.7, (0..ADDRESSES.len(), 0..ADDRESSES.len()));
    (
        [eni_spec(), eni_spec(), eni_spec()],
        [pod.clone(), pod.clone(), pod.clone(), pod],
        prop::sample::subsequence(
            vec![
                Variant::OtherMark,
                Variant::NoServices,
                Variant::MovedPrefix,
                Variant::NoNodeAddress,
            ],
            0..=4,
        ),
    )
        .prop_map(|(enis, pods, variants)| Spec {
            enis,
            pods,
            variants: variants.into_iter().collect(),
        })
}

impl Spec {
    /// No ENI and no pod.
    pub(super) fn nothing() -> Self {
        let unlisted = EniSpec {
            listed: false,
            excluded: false,
            use_primary_address: false,
        };
        Self {
            enis: [unlisted; 3],
            pods: [None; 4],
            variants: BTreeSet::new(),
        }
    }

    fn has(&self, variant: Variant) -> bool {
        self.variants.contains(&variant)
    }

    pub(super) fn intent(&self) -> Intent {
        let mut intent = intent();
        intent.node.enis.clear();
        for (number, spec) in (0..).zip(self.enis) {
            if !spec.listed {
                continue;
            }
            let mut eni = eni(number);
            eni.excluded = spec.excluded.then(|| "exclude-interface-tags".to_owned());
            eni.use_primary_address = spec.use_primary_address;
            if spec.use_primary_address {
                eni.blocks.extend(eni.own_address().map(IpNet::from));
            }
            intent.node.enis.insert(EniNumber(number), eni);
        }
        let prefix: IpNet = "10.0.1.64/28".parse().unwrap();
        if self.has(Variant::MovedPrefix)
            && let Some(eni) = intent.node.enis.get_mut(&EniNumber(1))
        {
            eni.blocks.remove(&prefix);
            if let Some(eni) = intent.node.enis.get_mut(&EniNumber(2)) {
                eni.blocks.insert(prefix);
            }
        }
        let names = ["a", "b", "c", "d"];
        let pods = names.into_iter().zip(self.pods);
        intent.endpoints = pods
            .filter_map(|(name, pod)| {
                let (one, other) = pod?;
                let pod = endpoint(name, &[ADDRESSES[one], ADDRESSES[other]]);
                Some((pod.id(), pod))
            })
            .collect();
        if self.has(Variant::OtherMark) {
            intent.settings.mark = MarkLayout::new(0x00ff_0000).unwrap();
        }
        if self.has(Variant::NoServices) {
            intent.settings.services.configured.clear();
        }
        if self.has(Variant::NoNodeAddress) {
            intent.node.addresses.internal.clear();
            intent.settings.primary_device = Some("eth0".into());
        }
        intent
    }
}
