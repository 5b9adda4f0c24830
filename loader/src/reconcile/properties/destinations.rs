//! While destinations change, each address goes from what it was to what it is to be, and nothing
//! else in between: an exempt one is never masqueraded because the prefix around it goes.

use std::sync::Arc;

use datapath_common::abi::DestinationClass;

use super::*;
use crate::intent::masquerade::{AgentCidrs, Policy};

/// Destinations on a small grid, so that prefixes nest often.
#[derive(Clone, Debug)]
struct Nets {
    native: BTreeSet<IpNet>,
    services: BTreeSet<IpNet>,
    agent: BTreeSet<IpNet>,
}

fn net() -> impl Strategy<Value = IpNet> {
    let v4 = (0..4_u8, 4..=10_u8).prop_map(|(block, length)| {
        let address = [64, block * 64, 0, 0].into();
        IpNet::from(ipnet::Ipv4Net::new(address, length).unwrap()).trunc()
    });
    let wide = Just("::/0".parse().unwrap());
    prop_oneof![9 => v4, 1 => wide]
}

fn nets() -> impl Strategy<Value = Nets> {
    let some = || prop::collection::btree_set(net(), 0..4);
    (some(), some(), some()).prop_map(|(native, services, agent)| Nets {
        native,
        services,
        agent,
    })
}

impl Nets {
    fn intent(&self) -> Intent {
        let mut intent = intent();
        intent
            .settings
            .services
            .configured
            .clone_from(&self.services);
        let masquerade = &mut intent.settings.masquerade;
        masquerade.native.clone_from(&self.native);
        masquerade.agent = Some("/file".into());
        let cidrs = self.agent.iter().map(|net| (*net, "/file".to_owned()));
        let agent = AgentCidrs {
            cidrs: cidrs.collect(),
            ..AgentCidrs::default()
        };
        intent.policy = Policy {
            agent: Some(Arc::new(agent)),
            pools: None,
        };
        intent
    }
}

/// The class that the programs find: that of the longest prefix out of 128 bits, as in the trie.
fn class(state: &Observed, address: IpAddr) -> DestinationClass {
    let mapped = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let matching = state.maps.values().filter_map(|entry| match entry {
        MapEntry::Destination(net, class) => {
            let length = datapath_common::abi::Addr::prefix(*net).0;
            let covers = net.contains(&address) || net.contains(&IpAddr::V6(mapped));
            covers.then_some((length, *class))
        }
        _ => None,
    });
    let longest = matching.max_by_key(|(length, _)| *length);
    longest.map_or(DestinationClass::NONE, |(_, class)| class)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_address_changes_once(before in nets(), after in nets()) {
        let mut kernel = converge(start(), &before.intent());
        kernel.restart();
        let settled = kernel.state.clone();
        let kernel = converge(kernel, &after.intent());
        for block in 0..4_u8 {
            let address = IpAddr::from([64, block * 64, 1, 1]);
            let (old, new) = (class(&settled, address), class(&kernel.state, address));
            for state in &kernel.history {
                let now = class(state, address);
                prop_assert!(now == old || now == new, "{address}: {now:?}, not {old:?} or {new:?}");
            }
        }
    }
}
