//! The most pods that instance types can have addresses for: a value of the kubelet's `maxPods`.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, anyhow};
use cloud::Limits;
use cloud::call::query::{Items, What};
use cloud::want::{Capacity, OF_THE_HOST, most_addresses};
use ec2::Ec2;
use serde::Serialize;

use crate::reading::read_all;

/// An instance type with what it can have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MaxPods {
    /// The type.
    pub instance_type: String,
    /// ENIs that give addresses.
    pub enis: u16,
    /// Blocks of an ENI, each an address or a prefix.
    pub blocks_per_eni: u16,
    /// Each block is a prefix of 16 addresses.
    pub prefixes: bool,
    /// Addresses for pods. Pods of the host's network need none.
    pub addresses: u32,
    /// The number for the kubelet: a pod for each address, and two in the host's network.
    pub max_pods: u32,
}

/// Asks EC2 for the types.
///
/// # Errors
/// When EC2 refuses the read, or does not know a type.
pub async fn max_pods(
    ec2: &dyn Ec2,
    types: BTreeSet<String>,
    capacity: Capacity,
) -> Result<Vec<MaxPods>> {
    let read = read_all(ec2, What::Types(types.clone()), BTreeSet::new()).await;
    let Items::Types(infos) = read.context("read the instance types")? else {
        return Err(anyhow!(
            "EC2 answered with something else than instance types"
        ));
    };
    let of = |name: String| {
        let info = infos.iter().find(|it| it.name == name);
        let info = info.with_context(|| {
            format!("EC2 has no instance type {name:?} in this region; expected one like m5.large")
        })?;
        Ok(judge(name, Limits::of(info)?, capacity))
    };
    types.into_iter().map(of).collect()
}

fn judge(instance_type: String, limits: Limits, capacity: Capacity) -> MaxPods {
    let capacity = Capacity {
        prefixes: capacity.prefixes && limits.prefixes,
        ..capacity
    };
    let addresses = most_addresses(&limits, &capacity);
    MaxPods {
        instance_type,
        enis: limits.adapters.saturating_sub(capacity.first_index),
        blocks_per_eni: limits.slots,
        prefixes: capacity.prefixes,
        addresses,
        max_pods: addresses + OF_THE_HOST,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The figures of Cilium's own tests for m5.large, and a type without prefixes.
    #[test]
    fn the_figures_are_those_of_cilium() {
        let limits = Limits {
            adapters: 3,
            slots: 9,
            slots_v6: 10,
            prefixes: true,
        };
        let old = Limits {
            prefixes: false,
            ..limits
        };
        for (first_index, prefixes, limits, addresses) in [
            (0, false, limits, 27),
            (1, false, limits, 18),
            (4, false, limits, 0),
            (0, true, limits, 432),
            (0, true, old, 27),
        ] {
            let capacity = Capacity {
                first_index,
                prefixes,
                ..Capacity::default()
            };
            let found = judge("m5.large".to_owned(), limits, capacity);
            assert_eq!(found.addresses, addresses, "{first_index} {prefixes}");
        }
    }

    /// Numbers of AWS's own list of instance types (`eni-max-pods.txt`), by ENIs of card 0 and
    /// addresses of an ENI.
    #[test]
    fn the_numbers_are_those_that_aws_publishes() {
        for (name, adapters, of_eni, published) in [
            ("t3.medium", 3, 6, 17),
            ("t3.large", 3, 12, 35),
            ("m4.large", 2, 10, 20),
            ("m5.large", 3, 10, 29),
            ("m5.xlarge", 4, 15, 58),
            ("m5.4xlarge", 8, 30, 234),
            ("m5.24xlarge", 15, 50, 737),
            ("d3en.12xlarge", 3, 30, 89),
            ("p4d.24xlarge", 15, 50, 737),
            ("p5.48xlarge", 2, 50, 100),
            ("c6in.32xlarge", 8, 50, 394),
        ] {
            let limits = Limits {
                adapters,
                slots: of_eni - 1,
                slots_v6: of_eni,
                prefixes: name != "m4.large",
            };
            let found = judge(name.to_owned(), limits, Capacity::default());
            assert_eq!(found.max_pods, published, "{name}");
            // AWS's formula for prefixes has 16 addresses in place of one.
            let prefixes = Capacity {
                prefixes: true,
                ..Capacity::default()
            };
            let size = if limits.prefixes { 16 } else { 1 };
            let found = judge(name.to_owned(), limits, prefixes);
            assert_eq!(
                found.max_pods,
                (published - 2) * size + 2,
                "{name} with prefixes"
            );
        }
    }

    #[test]
    fn own_addresses_of_enis_are_those_of_pods_but_for_the_primary_one() {
        let limits = Limits {
            adapters: 3,
            slots: 9,
            slots_v6: 10,
            prefixes: true,
        };
        for (first_index, addresses) in [(0, 27 + 2), (1, 18 + 2), (2, 9 + 1), (3, 0), (9, 0)] {
            let capacity = Capacity {
                first_index,
                use_primary: true,
                ..Capacity::default()
            };
            let found = judge("m5.large".to_owned(), limits, capacity);
            assert_eq!(found.addresses, addresses, "{first_index}");
        }
    }
}
