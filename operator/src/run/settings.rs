//! Settings of the fleet, from the configuration.

use cloud::call::budget::Rate;
use fleet::{PoolSettings, ReleaseMode, Settings};

use crate::config::{Config, GroupsFallback, Release};

/// Settings of the fleet for a cluster.
pub(super) fn of(config: &Config, cluster: &str) -> Settings {
    let rates = config.ec2.rates.iter().map(|(action, rate)| {
        let rate = Rate {
            burst: rate.burst.get(),
            per_second: rate.per_second.get(),
        };
        ((*action).into(), rate)
    });
    Settings {
        eni_tags: config.eni.tags.clone(),
        prefixes: config.eni.prefixes,
        primary_groups: config.eni.groups_fallback == GroupsFallback::Primary,
        surge: config.addresses.surge,
        release: match config.addresses.release {
            Release::On => ReleaseMode::On,
            Release::Off => ReleaseMode::Off,
        },
        release_delay: config.addresses.release_delay.get(),
        compat: config.addresses.allocated.into(),
        pre_allocate: Some(config.addresses.pre_allocate.get()),
        pools: PoolSettings {
            plain: config.pools.plain,
            advertised: config.pools.advertise,
            migrate_pod_cidrs: config.pools.migrate_pod_cidrs,
        },
        share: config.ec2.share.get(),
        rates: rates.collect(),
        listing: config.ec2.reads.enis.get(),
        subnets: config.ec2.reads.subnets.get(),
        vpc_reads: config.ec2.reads.network.get(),
        ..Settings::of(cluster)
    }
}
