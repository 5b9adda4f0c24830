//! Devices, and the sysctls that come with them.

use std::collections::BTreeMap;
use std::mem;

use api::ids::{EndpointId, MacAddr};
use ipam::Family;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    AfSpecInet, AfSpecInet6, AfSpecUnspec, InfoKind, LinkAttribute, LinkExtentMask, LinkFlags,
    LinkInfo, LinkMessage, LinkXdp, Prop,
};

use super::super::errno::RequestError;
use super::super::socket::Socket;
use crate::kernel::{Link, LinkKind, Sysctl, SysctlScope};

/// Devices by index, and the sysctls that belong to devices.
type Links = (BTreeMap<u32, Link>, BTreeMap<Sysctl, String>);

/// Every device, with the sysctls of each that we manage.
///
/// The sysctls are part of the kernel's message about a device, so they belong to its index
/// whatever it is renamed to, and a thousand devices cost no file reads.
pub(in crate::netlink) async fn list(socket: &mut Socket) -> Result<Links, RequestError> {
    let mut request = LinkMessage::default();
    request.attributes.push(without_statistics());
    let mut links = BTreeMap::new();
    let mut sysctls = BTreeMap::new();
    for message in socket.dump(RouteNetlinkMessage::GetLink(request)).await? {
        let RouteNetlinkMessage::NewLink(message) = message else {
            continue;
        };
        let Some(link) = parse(&message) else {
            continue;
        };
        if link.kind != LinkKind::Loopback {
            sysctls.extend(device_sysctls(&message));
        }
        links.insert(link.ifindex, link);
    }
    Ok((links, sysctls))
}

/// Ids of the XDP programs of each device.
pub(in crate::netlink) async fn xdp(
    socket: &mut Socket,
) -> Result<BTreeMap<u32, Vec<u32>>, RequestError> {
    let mut request = LinkMessage::default();
    request.attributes.push(without_statistics());
    let messages = socket.dump(RouteNetlinkMessage::GetLink(request)).await?;
    let ids = messages.into_iter().filter_map(|message| match message {
        RouteNetlinkMessage::NewLink(message) => Some((message.header.index, xdp_ids(&message))),
        _ => None,
    });
    Ok(ids.filter(|(_, ids)| !ids.is_empty()).collect())
}

fn xdp_ids(message: &LinkMessage) -> Vec<u32> {
    let lists = message.attributes.iter().filter_map(|one| match one {
        LinkAttribute::Xdp(list) => Some(list),
        _ => None,
    });
    let ids = lists.flatten().filter_map(|one| match one {
        LinkXdp::ProgId(id)
        | LinkXdp::DrvProgId(id)
        | LinkXdp::SkbProgId(id)
        | LinkXdp::HwProgId(id) => Some(*id),
        _ => None,
    });
    ids.collect()
}

/// The device of an index; `None` when there is none.
pub(in crate::netlink) async fn by_index(
    socket: &mut Socket,
    ifindex: u32,
) -> Result<Option<Link>, RequestError> {
    let mut request = LinkMessage::default();
    request.header.index = ifindex;
    let message = one(socket, request).await?;
    Ok(message.as_ref().and_then(parse))
}

/// The device of a name; `None` when there is none.
pub(in crate::netlink) async fn by_name(
    socket: &mut Socket,
    name: &str,
) -> Result<Option<Link>, RequestError> {
    let message = named(socket, name).await?;
    Ok(message.as_ref().and_then(parse))
}

/// The device with its sysctls.
pub(super) async fn with_sysctls(
    socket: &mut Socket,
    name: &str,
) -> Result<Option<(Link, Vec<(Sysctl, String)>)>, RequestError> {
    let message = named(socket, name).await?;
    Ok(message.and_then(|message| Some((parse(&message)?, device_sysctls(&message)))))
}

/// The sysctls of a device that we manage; none when there is no such device.
pub(in crate::netlink) async fn sysctls(
    socket: &mut Socket,
    ifindex: u32,
) -> Result<Vec<(Sysctl, String)>, RequestError> {
    let mut request = LinkMessage::default();
    request.header.index = ifindex;
    let message = one(socket, request).await?;
    Ok(message.map(|it| device_sysctls(&it)).unwrap_or_default())
}

async fn named(socket: &mut Socket, name: &str) -> Result<Option<LinkMessage>, RequestError> {
    let mut request = LinkMessage::default();
    let name = LinkAttribute::IfName(name.to_owned());
    request.attributes.push(name);
    one(socket, request).await
}

async fn one(
    socket: &mut Socket,
    mut request: LinkMessage,
) -> Result<Option<LinkMessage>, RequestError> {
    request.attributes.push(without_statistics());
    match socket.get(RouteNetlinkMessage::GetLink(request)).await {
        Ok(messages) => Ok(messages.into_iter().find_map(|message| match message {
            RouteNetlinkMessage::NewLink(message) => Some(message),
            _ => None,
        })),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Excludes statistics from the answer, which the kernel would sum up over all CPUs. Older kernels
/// exclude only those of IPv6.
pub(in crate::netlink) fn without_statistics() -> LinkAttribute {
    LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats])
}

fn parse(message: &LinkMessage) -> Option<Link> {
    let mut link = Link {
        ifindex: message.header.index,
        name: String::new(),
        alias: None,
        mac: None,
        mtu: 0,
        up: message.header.flags.contains(LinkFlags::Up),
        group: 0,
        kind: LinkKind::Physical,
        master: None,
        peer_namespace: None,
    };
    let mut other_name = None;
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::PropList(names) => other_name = names.iter().find_map(endpoint_name),
            LinkAttribute::Address(bytes) => {
                link.mac = <[u8; 6]>::try_from(bytes.as_slice()).ok().map(MacAddr);
            }
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::Group(group) => link.group = *group,
            LinkAttribute::Controller(master) => link.master = Some(*master),
            LinkAttribute::LinkNetNsId(number) => {
                link.peer_namespace = u32::try_from(*number).ok();
            }
            LinkAttribute::LinkInfo(info) => {
                if let Some(found) = info.iter().find_map(kind) {
                    link.kind = found;
                }
            }
            _ => {}
        }
    }
    if message.header.flags.contains(LinkFlags::Loopback) {
        link.kind = LinkKind::Loopback;
    }
    if let Some(name) = other_name.filter(|_| link.kind == LinkKind::Veth) {
        link.alias = Some(mem::replace(&mut link.name, name));
    }
    (!link.name.is_empty()).then_some(link)
}

/// An alternative name that is an endpoint's.
fn endpoint_name(property: &Prop) -> Option<String> {
    let Prop::AltIfName(name) = property else {
        return None;
    };
    EndpointId::from_device(name).map(EndpointId::device)
}

fn kind(info: &LinkInfo) -> Option<LinkKind> {
    let LinkInfo::Kind(kind) = info else {
        return None;
    };
    Some(match kind {
        InfoKind::Veth => LinkKind::Veth,
        InfoKind::Vlan
        | InfoKind::MacVlan
        | InfoKind::MacVtap
        | InfoKind::IpVlan
        | InfoKind::IpVtap
        | InfoKind::Bond
        | InfoKind::Bridge
        | InfoKind::Team
        | InfoKind::Vrf => LinkKind::Stacked,
        _ => LinkKind::Other,
    })
}

/// The sysctls of a device that we manage, out of the kernel's message about it
/// (`IFLA_INET_CONF`, `IFLA_INET6_CONF`). A family that is off for the device has none.
fn device_sysctls(message: &LinkMessage) -> Vec<(Sysctl, String)> {
    let mut found = Vec::new();
    let mut push = |family, name, value: i32| {
        let scope = SysctlScope::Device(message.header.index);
        let sysctl = Sysctl {
            family,
            scope,
            name,
        };
        found.push((sysctl, value.to_string()));
    };
    let families = message.attributes.iter().flat_map(|attribute| {
        let LinkAttribute::AfSpecUnspec(families) = attribute else {
            return [].as_slice();
        };
        families.as_slice()
    });
    for family in families {
        match family {
            AfSpecUnspec::Inet(parts) => {
                for part in parts {
                    if let AfSpecInet::DevConf(conf) = part {
                        push(Family::V4, "rp_filter", conf.rp_filter);
                        push(Family::V4, "arp_ignore", conf.arp_ignore);
                        push(Family::V4, "arp_announce", conf.arp_announce);
                        push(Family::V4, "send_redirects", conf.send_redirects);
                        push(Family::V4, "forwarding", conf.forwarding);
                    }
                }
            }
            AfSpecUnspec::Inet6(parts) => {
                for part in parts {
                    if let AfSpecInet6::DevConf(conf) = part {
                        push(Family::V6, "accept_ra", conf.accept_ra);
                        push(Family::V6, "disable_ipv6", conf.disable_ipv6);
                        push(Family::V6, "addr_gen_mode", conf.addr_gen_mode);
                    }
                }
            }
            _ => {}
        }
    }
    found
}
