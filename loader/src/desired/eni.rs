//! The objects that one ENI needs in the kernel.

use api::ids::EniNumber;
use datapath_common::abi::EniEntry;
use datapath_common::counter::Program;
use ipam::Family;
use ipnet::IpNet;

use super::builder::Builder;
use super::devices::{EniDevice, EniState, ResolvedEni};
use super::host_networks::HostNetworks;
use super::translation::Exits;
use crate::constants;
use crate::intent::Eni;
use crate::kernel::{
    Action, Address, Hook, Link, MapEntry, NextHop, Object, Route, Rule, Scope, Selector, Sysctl,
};
use crate::observation::ownership::default_metric;

/// Adds everything of one ENI.
pub(super) fn add(
    builder: &mut Builder<'_>,
    resolved: &ResolvedEni<'_>,
    exits: &Exits,
    networks: &HostNetworks,
) {
    let eni = resolved.eni;
    match &resolved.state {
        EniState::Usable(device) => {
            add_fence(builder, eni.number);
            add_routes(builder, eni, device.link);
            add_networks(builder, eni, networks);
            add_datapath(builder, eni, *device, exits);
            if !eni.number.is_primary() {
                add_secondary(builder, eni, *device, exits);
            }
        }
        EniState::Fenced(_) => add_fence(builder, eni.number),
        EniState::Excluded { .. } => {}
    }
}

/// Adds the fence of an ENI's table: packets that are marked for the ENI use only its table, and
/// end there without another route. Otherwise they would use the main table, and leave by the
/// primary ENI with an address that it does not own.
pub(super) fn add_fence(builder: &mut Builder<'_>, number: EniNumber) {
    let layout = builder.intent.settings.mark;
    let Some(value) = layout.eni(u32::from(number.0)) else {
        return;
    };
    let mask = layout.field_mask();
    let table = constants::TABLE_ENI_BASE + u32::from(number.0);
    let scope = Scope::Eni(number);
    for &family in builder.families() {
        builder.put(
            scope,
            Object::Route(Route {
                table,
                destination: family.default_route(),
                metric: constants::METRIC_UNREACHABLE,
                next_hop: NextHop::Unreachable,
                source: None,
                protocol: builder.intent.settings.protocol,
            }),
        );
        let rule = Rule {
            family,
            priority: constants::RULE_ENI,
            selector: Selector::Mark { value, mask },
            action: Action::Table(table),
            protocol: builder.intent.settings.protocol,
        };
        builder.put(scope, Object::Rule(rule));
    }
}

fn add_routes(builder: &mut Builder<'_>, eni: &Eni, device: &Link) {
    for &family in builder.families() {
        let ours_to_turn_on = !eni.number.is_primary() && has_blocks(eni, family);
        if !builder.is_on(family, device.ifindex) && !ours_to_turn_on {
            continue;
        }
        let Some(gateway) = eni.gateway(family) else {
            continue;
        };
        let route = |destination, next_hop| {
            Object::Route(Route {
                table: eni.table(),
                destination,
                metric: default_metric(family),
                next_hop,
                source: None,
                protocol: builder.intent.settings.protocol,
            })
        };
        let on_link = route(IpNet::from(gateway), NextHop::Device(device.ifindex));
        let default = route(
            family.default_route(),
            NextHop::Gateway(gateway, device.ifindex),
        );
        builder.put(Scope::Eni(eni.number), on_link);
        builder.put(Scope::Eni(eni.number), default);
    }
}

/// Adds the rules by which packets for the host's networks use the host's own tables, whatever
/// their mark.
fn add_networks(builder: &mut Builder<'_>, eni: &Eni, networks: &HostNetworks) {
    for net in &networks.all {
        let family = Family::of(net.addr());
        if builder.families().contains(&family) {
            let route = Route {
                table: eni.table(),
                destination: *net,
                metric: default_metric(family),
                next_hop: NextHop::Throw,
                source: None,
                protocol: builder.intent.settings.protocol,
            };
            builder.put(Scope::Eni(eni.number), Object::Route(route));
        }
    }
}

fn add_datapath(builder: &mut Builder<'_>, eni: &Eni, device: EniDevice<'_>, exits: &Exits) {
    let [v4, v6] = exits.addresses(eni.number);
    let entry = EniEntry::new(device.link.ifindex, device.mtu, v4, v6);
    let scope = Scope::Eni(eni.number);
    builder.put(scope, Object::MapEntry(MapEntry::Eni(eni.number, entry)));
    add_programs(builder, scope, device.link);
}

fn has_blocks(eni: &Eni, family: Family) -> bool {
    eni.blocks
        .iter()
        .any(|block| Family::of(block.addr()) == family)
}

/// Adds the programs of an ENI's device: what it receives and what it sends.
pub(super) fn add_programs(builder: &mut Builder<'_>, scope: Scope, device: &Link) {
    for program in [Program::FromNetwork, Program::ToNetwork] {
        let ifindex = device.ifindex;
        builder.put(scope, Object::Attachment(Hook { ifindex, program }));
    }
}

/// The device of a secondary ENI is ours to set up; the primary's belongs to the host.
fn add_secondary(builder: &mut Builder<'_>, eni: &Eni, device: EniDevice<'_>, exits: &Exits) {
    let scope = Scope::Eni(eni.number);
    let (ifindex, mtu) = (device.link.ifindex, device.mtu);
    builder.put(scope, Object::Mtu { ifindex, mtu });
    builder.put(scope, Object::Up(ifindex));
    builder.put(
        scope,
        Object::MapEntry(MapEntry::EniDevice(ifindex, eni.number)),
    );
    add_sysctls(builder, scope, device.link);
    let sysctl = |name| Sysctl::of_device(Family::V6, ifindex, name);
    builder.sysctl(scope, sysctl("accept_ra"), "0");
    if has_blocks(eni, Family::V6) {
        builder.sysctl(scope, sysctl("disable_ipv6"), "0");
        // Network managers turn link-local addresses off (1), and without one the kernel cannot ask
        // for the gateway.
        builder.sysctl(scope, sysctl("addr_gen_mode"), "0");
    }
    if let Some(own) = eni.own_address().filter(|_| !eni.use_primary_address) {
        let net = IpNet::from(own);
        builder.put(scope, Object::Address(Address { ifindex, net }));
        add_own_address(builder, eni, net);
    }
    // We do not add the host's own IPv6 address there. But pods' flows use it, and ICMPv6 errors of
    // the node about them (RFC 4443 section 2.2) have to leave by the ENI that has it, too.
    if let Some(address) = exits.address(eni.number, Family::V6) {
        add_own_address(builder, eni, IpNet::from(address));
    }
}

/// Packets from an address of a secondary ENI leave by that ENI.
pub(super) fn add_own_address(builder: &mut Builder<'_>, eni: &Eni, net: IpNet) {
    let rule = Rule {
        family: Family::of(net.addr()),
        priority: constants::RULE_OWN_ADDRESS,
        selector: Selector::Source(net),
        action: Action::Table(eni.table()),
        protocol: builder.intent.settings.protocol,
    };
    builder.put(Scope::Eni(eni.number), Object::Rule(rule));
}

/// The sysctls of every ENI's device, the primary's too.
///
/// `rp_filter` is never 0, since the kernel takes the larger of this and `all`'s. ARP: an ENI
/// answers for its own addresses only, and asks with one of them.
pub(super) fn add_sysctls(builder: &mut Builder<'_>, scope: Scope, device: &Link) {
    for (name, value) in [
        ("rp_filter", "2"),
        ("arp_ignore", "1"),
        ("arp_announce", "2"),
        ("send_redirects", "0"),
    ] {
        let sysctl = Sysctl::of_device(Family::V4, device.ifindex, name);
        builder.sysctl(scope, sysctl, value);
    }
    builder.forwards(scope, device.ifindex);
}
