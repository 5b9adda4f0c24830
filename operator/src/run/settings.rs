//! Settings of the fleet, from the configuration.

use cloud::call::budget::Rate;
use fleet::{EniSettings, PoolSettings, RateSettings, ReadSettings, ReleaseMode, Settings};

use crate::config::{Config, GroupsFallback, Release};

/// Settings of the fleet for a cluster.
pub(super) fn of(config: &Config, cluster: &str) -> Settings {
    let rates = config.ec2.rates.iter().map(|(action, rate)| {
        let rate = Rate {
            burst: rate.burst.get(),
            per_second: rate.per_second.get(),
        };
        (*action, rate)
    });
    Settings {
        enis: EniSettings {
            tags: config.eni.tags.clone(),
            prefixes: config.eni.prefixes,
            primary_groups: config.eni.groups_fallback == GroupsFallback::Primary,
        },
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
        rates: RateSettings {
            share: config.ec2.share.get(),
            own: rates.collect(),
        },
        reads: ReadSettings {
            enis: config.ec2.reads.enis.get(),
            subnets: config.ec2.reads.subnets.get(),
            network: config.ec2.reads.network.get(),
        },
        ..Settings::of(cluster)
    }
}
