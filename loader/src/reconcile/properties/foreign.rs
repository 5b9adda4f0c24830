//! Foreign objects that resemble ours.

use ipam::Family;

use crate::kernel::fixture::{BRIDGE, address, id, link, mac};
use crate::kernel::{Action, Neighbour, NextHop, Observed, Route, Rule, Selector};

/// Objects of others.
pub(super) struct Foreign {
    rules: Vec<Rule>,
    routes: Vec<Route>,
    neighbours: Vec<Neighbour>,
}

pub(super) fn foreign() -> Foreign {
    let rule = |priority, selector, action| Rule {
        family: Family::V4,
        priority,
        selector,
        action,
        protocol: 2,
    };
    let mark = |value, mask| Selector::Mark { value, mask };
    let from = |net: &str| Selector::Source(net.parse().unwrap());
    let route = |table, destination: &str, next_hop, protocol| Route {
        table,
        destination: destination.parse().unwrap(),
        metric: 0,
        next_hop,
        source: None,
        protocol,
    };
    let bridge = NextHop::Device(BRIDGE);
    let gateway = NextHop::Gateway([172, 17, 0, 2].into(), BRIDGE);
    Foreign {
        rules: vec![
            rule(0, Selector::All, Action::Table(255)),
            rule(32766, Selector::All, Action::Table(254)),
            // Cilium's, for a pod and for its ENI.
            rule(20, Selector::Foreign, Action::Table(254)),
            rule(111, from("10.0.1.65/32"), Action::Table(11)),
            // The VPC CNI's.
            rule(1536, from("10.0.1.65/32"), Action::Table(2)),
            rule(111, mark(0x80, 0x80), Action::Table(12)),
            rule(110, mark(0, 0x80), Action::Goto(112)),
            rule(112, from("10.0.9.0/24"), Action::Table(12)),
            rule(112, from("10.0.9.9/32"), Action::Table(100)),
            rule(20, Selector::All, Action::Table(12)),
            rule(112, Selector::All, Action::Table(220)),
        ],
        routes: vec![
            route(12, "10.99.0.0/16", gateway, 2),
            route(12, "10.98.0.1/32", bridge, 4),
            route(40, "0.0.0.0/0", gateway, 2),
            route(220, "10.97.0.1/32", bridge, 2),
            route(220, "10.96.0.0/16", gateway, 2),
            route(220, "10.95.0.0/16", NextHop::Unreachable, 2),
        ],
        neighbours: vec![Neighbour {
            ifindex: BRIDGE,
            address: [172, 17, 0, 2].into(),
            mac: mac(77),
        }],
    }
}

impl Foreign {
    pub(super) fn put_into(&self, state: &mut Observed) {
        state.rules.extend(&self.rules);
        state.routes.extend(&self.routes);
        state.neighbours.extend(&self.neighbours);
        state.addresses.insert(address(BRIDGE, "10.0.9.9/32"));
        let name = id("nobody").device();
        state.links.insert(60, link(60, &name, mac(60)));
    }

    pub(super) fn assert_untouched(&self, state: &Observed) {
        for rule in &self.rules {
            assert!(state.rules.contains(rule), "lost {rule:?}");
        }
        for route in &self.routes {
            assert!(state.routes.contains(route), "lost {route:?}");
        }
        for neighbour in &self.neighbours {
            assert!(state.neighbours.contains(neighbour));
        }
        let bridge = address(BRIDGE, "172.17.0.1/16");
        assert!(state.addresses.contains(&bridge));
        assert!(state.addresses.contains(&address(BRIDGE, "10.0.9.9/32")));
        assert!(state.links.contains_key(&60));
    }
}
