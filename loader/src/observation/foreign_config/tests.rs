use api::ids::MacAddr;
use ipam::Family;

use super::*;
use crate::kernel::fixture::{ETH0, eni, link, mac};

/// A node whose ENIs have nothing of others on them.
struct Host {
    enis: Vec<Eni>,
    links: BTreeMap<u32, Link>,
    addresses: BTreeSet<(u32, IpNet)>,
    routes: BTreeSet<ForeignRoute>,
    rules: BTreeSet<Rule>,
}

impl Host {
    fn new() -> Self {
        let mut host = Self {
            enis: vec![eni(0), eni(1)],
            links: BTreeMap::new(),
            addresses: BTreeSet::new(),
            routes: BTreeSet::new(),
            rules: BTreeSet::new(),
        };
        for number in [0, 1] {
            let ifindex = ETH0 + u32::from(number);
            let link = link(ifindex, &format!("eth{number}"), mac(number));
            host.links.insert(ifindex, link);
            host.address(ifindex, "fe80::1/64");
            host.route(ifindex, "fe80::/64", None, PROTOCOL_KERNEL);
            host.route(ifindex, "ff00::/8", None, PROTOCOL_KERNEL);
        }
        host.address(ETH0, "10.0.0.10/24");
        host.route(ETH0, "0.0.0.0/0", Some("10.0.0.1"), 16);
        host.route(ETH0, "10.0.0.0/24", None, PROTOCOL_KERNEL);
        host.address(ETH0 + 1, "10.0.1.10/32");
        // The address of DHCPv6, and the route that the kernel adds for it.
        host.address(ETH0 + 1, "2001:db8:0:1::10/128");
        host.route(ETH0 + 1, "2001:db8:0:1::10/128", None, PROTOCOL_KERNEL);
        host
    }

    fn address(&mut self, ifindex: u32, net: &str) {
        self.addresses.insert((ifindex, net.parse().unwrap()));
    }

    fn route(&mut self, ifindex: u32, net: &str, gateway: Option<&str>, protocol: u8) {
        self.routes.insert(ForeignRoute {
            mtu: None,
            table: TABLE_MAIN,
            destination: net.parse().unwrap(),
            metric: 0,
            gateway: gateway.map(|gateway| gateway.parse().unwrap()),
            ifindex,
            protocol,
        });
    }

    fn rule(&mut self, priority: u32, source: &str, table: u32) {
        self.rules.insert(Rule {
            family: Family::V4,
            priority,
            selector: Selector::Source(source.parse().unwrap()),
            action: Action::Table(table),
            protocol: 4,
        });
    }

    /// Kind, ENI, device, object and protocol of all of it.
    fn foreign_config(&self) -> Vec<(ForeignConfigKind, u8, String, String, Option<String>)> {
        let placed = self.enis.iter().map(|eni| {
            let by_mac = |link: &&Link| link.mac == Some(eni.mac);
            Placed {
                eni,
                ifindex: self.links.values().find(by_mac).map(|link| link.ifindex),
                last: Some(ETH0 + u32::from(eni.number.0)),
            }
        });
        let placed: Vec<_> = placed.collect();
        let seen = Seen {
            links: &self.links,
            addresses: &self.addresses,
            routes: &self.routes,
            rules: &self.rules,
        };
        let found = foreign_config(&placed, seen).into_iter();
        found
            .map(|t| (t.kind, t.eni.0, t.device, t.object, t.protocol))
            .collect()
    }
}

fn foreign(
    kind: ForeignConfigKind,
    (eni, device): (u8, &str),
    object: &str,
    protocol: Option<&str>,
) -> (ForeignConfigKind, u8, String, String, Option<String>) {
    let protocol = protocol.map(str::to_owned);
    (kind, eni, device.to_owned(), object.to_owned(), protocol)
}

#[test]
fn a_node_as_it_should_be_has_none() {
    assert_eq!(Host::new().foreign_config(), []);
}

#[test]
fn what_a_dhcp_client_does_to_a_secondary_eni_is_named() {
    let mut host = Host::new();
    host.address(ETH0 + 1, "10.0.1.10/24");
    host.route(ETH0 + 1, "0.0.0.0/0", Some("10.0.1.1"), 16);
    host.route(ETH0 + 1, "10.0.1.0/24", None, PROTOCOL_KERNEL);
    host.route(ETH0 + 1, "::/0", Some("fe80:ec2::1"), 9);
    host.route(ETH0 + 1, "10.0.0.2/32", Some("10.0.1.1"), 16);
    let eth1 = (1, "eth1");
    assert_eq!(
        host.foreign_config(),
        [
            foreign(ForeignConfigKind::Address, eth1, "10.0.1.10/24", None),
            foreign(
                ForeignConfigKind::DefaultRoute,
                eth1,
                "default via 10.0.1.1",
                Some("dhcp")
            ),
            foreign(
                ForeignConfigKind::DefaultRoute,
                eth1,
                "default via fe80:ec2::1",
                Some("ra")
            ),
            foreign(
                ForeignConfigKind::ConnectedRoute,
                eth1,
                "10.0.1.0/24",
                Some("kernel")
            ),
            foreign(
                ForeignConfigKind::Route,
                eth1,
                "10.0.0.2/32 via 10.0.1.1",
                Some("dhcp")
            ),
        ]
    );
}

#[test]
fn a_link_local_address_that_is_gone_is_named_where_pods_need_it() {
    let mut host = Host::new();
    let gone: IpNet = "fe80::1/64".parse().unwrap();
    host.addresses.retain(|(_, net)| *net != gone);
    let object = "no IPv6 link-local address";
    let named = foreign(ForeignConfigKind::NoLinkLocal, (1, "eth1"), object, None);
    assert_eq!(host.foreign_config(), [named]);
    for eni in &mut host.enis {
        eni.blocks.retain(|block| block.addr().is_ipv4());
    }
    assert_eq!(host.foreign_config(), []);
}

/// A pod's address that `amazon-ec2-net-utils` puts on the ENI, one on the primary, and the ENI's
/// own on a device that is not its own.
#[test]
fn addresses_that_are_another_ones_are_claims() {
    let mut host = Host::new();
    host.address(ETH0 + 1, "10.0.1.20/32");
    host.address(ETH0, "10.0.1.64/28");
    host.address(ETH0, "10.0.1.10/24");
    host.address(ETH0 + 1, "10.0.0.10/32");
    assert_eq!(
        host.foreign_config(),
        [
            // The primary's own address, which is foreign on the secondary.
            foreign(ForeignConfigKind::Claim, (0, "eth1"), "10.0.0.10/32", None),
            foreign(ForeignConfigKind::Claim, (1, "eth0"), "10.0.1.10/24", None),
            foreign(ForeignConfigKind::Claim, (1, "eth0"), "10.0.1.64/28", None),
            foreign(
                ForeignConfigKind::Address,
                (1, "eth1"),
                "10.0.0.10/32",
                None
            ),
            foreign(ForeignConfigKind::Claim, (1, "eth1"), "10.0.1.20/32", None),
        ]
    );
}

#[test]
fn rules_for_an_enis_addresses_that_are_not_ours_are_named() {
    let mut host = Host::new();
    host.rule(112, "10.0.1.10/32", 11);
    host.rule(10_001, "10.0.1.10/32", 10_001);
    host.rule(10_001, "10.0.1.20/32", 10_001);
    host.rule(10_001, "192.0.2.1/32", 10_001);
    let rule = |source: &str| {
        let object = format!("rule 10001: from {source} lookup 10001");
        foreign(
            ForeignConfigKind::Rule,
            (1, "eth1"),
            &object,
            Some("static"),
        )
    };
    assert_eq!(
        host.foreign_config(),
        [rule("10.0.1.10/32"), rule("10.0.1.20/32")]
    );
}

#[test]
fn a_changed_mac_is_named_and_a_new_name_is_not() {
    let mut host = Host::new();
    let link = host.links.get_mut(&(ETH0 + 1)).unwrap();
    link.name = "ens6".to_owned();
    assert_eq!(host.foreign_config(), []);
    let link = host.links.get_mut(&(ETH0 + 1)).unwrap();
    link.mac = Some(MacAddr([2, 0, 0, 0, 0, 0x99]));
    let found = host.foreign_config();
    let object = "MAC 02:00:00:00:00:99, which was 02:00:00:00:00:01";
    assert_eq!(
        found[0],
        foreign(ForeignConfigKind::Mac, (1, "ens6"), object, None)
    );
}
