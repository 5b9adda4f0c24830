//! The names in one rule of nftables, which includes rules of the nftables-based iptables.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Subnets, Ipv6Subnets};
use netlink_packet_core::{DefaultNla, Nla};
use netlink_packet_netfilter::NetfilterProtoFamily;
use netlink_packet_netfilter::nftables::{
    Bitwise, Cmp, DataAttribute, ExpressionAttribute, Expressions, Immediate, ListAttribute,
    Lookup, Meta, MetaKey, Operator, Payload, RuleAttribute, RuleMessage, VerdictAttribute,
};

use super::matches;
use ipam::Family;

/// `NFT_PAYLOAD_NETWORK_HEADER` in `include/uapi/linux/netfilter/nf_tables.h`.
const NETWORK_HEADER: u32 = 1;
/// Where the addresses lie in the headers of both families (RFC 791, RFC 8200).
const V4_ADDRESSES: [u32; 2] = [12, 16];
const V6_ADDRESSES: [u32; 2] = [8, 24];
/// `NFTA_EXTHDR_TYPE`, `NFTA_EXTHDR_OP` and `NFTA_EXTHDR_SREG` in the same file: what is written.
const EXTHDR_TYPE: u16 = 2;
const EXTHDR_OP: u16 = 6;
const EXTHDR_SREG: u16 = 7;
/// `NFT_EXTHDR_OP_TCPOPT`.
const TCP_OPTION: u32 = 1;
/// The option with the maximum segment size (RFC 9293, 3.2).
const MSS: u8 = 2;
/// `NFTA_TARGET_NAME` and `NFTA_MATCH_NAME`: a target or match of iptables, as its newer form hands it to
/// the kernel.
const EXTENSION_NAME: u16 = 1;
/// `NFTA_MATCH_INFO`: the match's own structure.
const MATCH_INFO: u16 = 3;
/// The target of iptables that clamps the MSS.
const TCPMSS: &[u8] = b"TCPMSS\0";

/// Something that a rule names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Name {
    /// Devices whose names are this one, or begin with it.
    Device {
        /// The name or its beginning.
        name: String,
        /// True for the beginning of names.
        is_prefix: bool,
    },
    /// A device by its index.
    Index(u32),
    /// Devices of a group.
    Group(u32),
    /// A device whose packets a flowtable offloads.
    Offload {
        /// Its name, or the beginning of the names of several.
        name: String,
        /// True for the beginning of names.
        is_prefix: bool,
    },
    /// An address or a network.
    Network(IpNet),
    /// The MSS of a TCP connection is written.
    Mss,
    /// A set that addresses or devices are looked up in.
    Set(String),
}

impl Name {
    /// Devices by the bytes of a name, which a zero byte may end, or of the beginning of names.
    pub(super) fn device(bytes: &[u8], is_prefix: bool) -> Self {
        let name = matches::text(bytes);
        Self::Device { name, is_prefix }
    }
}

/// The parts of a rule that matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// Its chain.
    pub(super) chain: String,
    /// Its number in the table.
    pub(super) handle: u64,
    /// The things that it names.
    pub(super) names: Vec<Name>,
    /// The chains that it leads to.
    pub(super) leads_to: Vec<String>,
}

/// The parts of a packet that a comparison or look-up to come is about.
#[derive(Default)]
struct Parts {
    /// The one that was loaded last, where it matters.
    last: Option<Loaded>,
    /// True if any of them matters: what is looked up may be several, one beside the other.
    any: bool,
}

impl Parts {
    fn load(&mut self, part: Option<Loaded>) {
        self.any |= part.is_some();
        self.last = part;
    }
}

/// A part of a packet that matters.
enum Loaded {
    Device,
    Index,
    Group,
    Address(Address),
}

/// An address that was loaded.
struct Address {
    is_v4: bool,
    mask: Option<u8>,
    /// The first one of a range, once it was compared with that.
    first: Option<IpAddr>,
}

/// Reads a rule of a table of this family.
pub(super) fn facts(family: NetfilterProtoFamily, message: &RuleMessage) -> Facts {
    let mut facts = Facts::default();
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Chain(chain) => facts.chain.clone_from(chain),
            RuleAttribute::Handle(handle) => facts.handle = *handle,
            RuleAttribute::Expressions(list) => {
                let mut parts = Parts::default();
                for expression in list.iter().filter_map(data) {
                    facts.take(family, expression, &mut parts);
                }
            }
            _ => {}
        }
    }
    facts
}

fn data(element: &ListAttribute<ExpressionAttribute>) -> Option<&Expressions> {
    let ListAttribute::Element(attributes) = element else {
        return None;
    };
    attributes.iter().find_map(|attribute| match attribute {
        ExpressionAttribute::Data(expression) => Some(expression),
        _ => None,
    })
}

impl Facts {
    fn take(&mut self, family: NetfilterProtoFamily, expression: &Expressions, parts: &mut Parts) {
        match expression {
            Expressions::Meta(attributes) => parts.load(device(attributes)),
            Expressions::Payload(attributes) => parts.load(address(family, attributes)),
            Expressions::Bitwise(attributes) => {
                if let Some(Loaded::Address(address)) = &mut parts.last {
                    address.mask = prefix_length(attributes);
                }
            }
            Expressions::Cmp(attributes) => {
                self.compare(attributes, &mut parts.last);
                parts.any = parts.last.is_some();
            }
            Expressions::Lookup(attributes) => {
                let set = attributes.iter().find_map(|attribute| match attribute {
                    Lookup::Set(set) => Some(set),
                    _ => None,
                });
                let set = set.filter(|_| parts.any);
                self.names.extend(set.map(|set| Name::Set(set.clone())));
                *parts = Parts::default();
            }
            Expressions::Immediate(attributes) => self.leads_to.extend(jump(attributes)),
            Expressions::Other {
                expression_type,
                attributes,
            } => {
                let is_clamp = writes_mss(expression_type, attributes);
                self.names.extend(is_clamp.then_some(Name::Mss));
                self.names
                    .extend(matched(family, expression_type, attributes));
            }
            _ => {}
        }
    }

    /// Takes a comparison with what was loaded. A range is two of them.
    fn compare(&mut self, attributes: &[Cmp], loaded: &mut Option<Loaded>) {
        let mut operator = Operator::Equal;
        let mut value = None;
        for attribute in attributes {
            match attribute {
                Cmp::Op(op) => operator = *op,
                Cmp::Data(DataAttribute::Value(bytes)) => value = Some(bytes.as_slice()),
                _ => {}
            }
        }
        let Some(value) = value else {
            *loaded = None;
            return;
        };
        if let Some(Loaded::Address(address)) = loaded {
            if operator == Operator::GreatherThanEqual {
                address.first = address.value(value);
                return;
            }
            if let Some((first, last)) = address.first.zip(address.value(value)) {
                self.names.extend(range(first, last));
                *loaded = None;
                return;
            }
        }
        let name = loaded.take().and_then(|loaded| loaded.named(value));
        self.names.extend(name);
    }
}

/// The networks that a range of addresses is made of.
pub(super) fn range(first: IpAddr, last: IpAddr) -> Vec<Name> {
    let networks: Vec<IpNet> = match (first, last) {
        (IpAddr::V4(first), IpAddr::V4(last)) => {
            Ipv4Subnets::new(first, last, 0).map(Into::into).collect()
        }
        (IpAddr::V6(first), IpAddr::V6(last)) => {
            Ipv6Subnets::new(first, last, 0).map(Into::into).collect()
        }
        _ => Vec::new(),
    };
    networks.into_iter().map(Name::Network).collect()
}

impl Loaded {
    /// The value that it is compared with.
    fn named(self, value: &[u8]) -> Option<Name> {
        match self {
            // A prefix of names has no zero byte at its end.
            Self::Device => Some(Name::device(value, !value.contains(&0))),
            Self::Index => Some(Name::Index(number(value)?)),
            Self::Group => Some(Name::Group(number(value)?)),
            Self::Address(address) => {
                let bits = u8::try_from(value.len().checked_mul(8)?).ok()?;
                let length = address.mask.unwrap_or(bits);
                let net = IpNet::new(address.value(value)?, length);
                net.ok().map(Name::Network)
            }
        }
    }
}

impl Address {
    /// The address that these are the first bytes of.
    fn value(&self, value: &[u8]) -> Option<IpAddr> {
        if self.is_v4 {
            let mut bytes = [0; 4];
            bytes.get_mut(..value.len())?.copy_from_slice(value);
            Some(bytes.into())
        } else {
            let mut bytes = [0; 16];
            bytes.get_mut(..value.len())?.copy_from_slice(value);
            Some(bytes.into())
        }
    }
}

/// A number in the order of bytes that the kernel itself has.
fn number(value: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(value.try_into().ok()?))
}

fn device(attributes: &[Meta]) -> Option<Loaded> {
    attributes.iter().find_map(|attribute| match attribute {
        Meta::Key(MetaKey::Iifname | MetaKey::Oifname) => Some(Loaded::Device),
        Meta::Key(MetaKey::Iif | MetaKey::Oif) => Some(Loaded::Index),
        Meta::Key(MetaKey::Iifgroup | MetaKey::Oifgroup) => Some(Loaded::Group),
        _ => None,
    })
}

/// An address of the packet, or the first bytes of one.
fn address(family: NetfilterProtoFamily, attributes: &[Payload]) -> Option<Loaded> {
    let (mut base, mut offset, mut length) = (None, None, None);
    for attribute in attributes {
        match attribute {
            Payload::Base(value) => base = Some(*value),
            Payload::Offset(value) => offset = Some(*value),
            Payload::Len(value) => length = Some(*value),
            _ => {}
        }
    }
    let (offset, length) = (offset?, length?);
    if base != Some(NETWORK_HEADER) {
        return None;
    }
    let may_be_v4 = family != NetfilterProtoFamily::IPv6;
    let may_be_v6 = family != NetfilterProtoFamily::IPv4;
    let loaded = |is_v4| {
        Loaded::Address(Address {
            is_v4,
            mask: None,
            first: None,
        })
    };
    if may_be_v4 && V4_ADDRESSES.contains(&offset) && length <= 4 {
        return Some(loaded(true));
    }
    // One byte there is IPv4's time to live in a table of both families.
    let is_v6 = may_be_v6 && V6_ADDRESSES.contains(&offset) && (2..=16).contains(&length);
    is_v6.then(|| loaded(false))
}

/// The length of the prefix that a mask leaves; none where it is none.
fn prefix_length(attributes: &[Bitwise]) -> Option<u8> {
    let mask = attributes.iter().find_map(|attribute| match attribute {
        Bitwise::Mask(DataAttribute::Value(mask)) => Some(mask),
        _ => None,
    })?;
    let ones = mask.iter().map(|byte| byte.leading_ones());
    let full = ones.take_while(|ones| *ones == 8).count();
    let rest = mask.get(full).map_or(0, |byte| byte.leading_ones());
    u8::try_from(full * 8)
        .ok()?
        .checked_add(u8::try_from(rest).ok()?)
}

fn jump(attributes: &[Immediate]) -> Option<String> {
    attributes.iter().find_map(|attribute| match attribute {
        Immediate::Data(DataAttribute::Verdict(verdict)) => {
            verdict.iter().find_map(|attribute| match attribute {
                VerdictAttribute::Chain(chain) => Some(chain.clone()),
                _ => None,
            })
        }
        _ => None,
    })
}

/// The things that a match of iptables names.
fn matched(
    family: NetfilterProtoFamily,
    expression_type: &str,
    attributes: &[DefaultNla],
) -> Vec<Name> {
    let family = match family {
        NetfilterProtoFamily::IPv4 => Family::V4,
        NetfilterProtoFamily::IPv6 => Family::V6,
        _ => return Vec::new(),
    };
    let name = value(attributes, EXTENSION_NAME).filter(|_| expression_type == "match");
    let info = value(attributes, MATCH_INFO);
    let found = name.zip(info);
    found.map_or_else(Vec::new, |(name, info)| {
        matches::names(family, &matches::text(&name), &info)
    })
}

fn writes_mss(expression_type: &str, attributes: &[DefaultNla]) -> bool {
    let value = |kind| value(attributes, kind);
    match expression_type {
        "exthdr" => {
            value(EXTHDR_SREG).is_some()
                && value(EXTHDR_OP) == Some(TCP_OPTION.to_be_bytes().to_vec())
                && value(EXTHDR_TYPE) == Some(vec![MSS])
        }
        "target" => value(EXTENSION_NAME).is_some_and(|name| name == TCPMSS),
        _ => false,
    }
}

fn value(attributes: &[DefaultNla], kind: u16) -> Option<Vec<u8>> {
    let attribute = attributes
        .iter()
        .find(|attribute| attribute.kind() == kind)?;
    let mut bytes = vec![0; attribute.value_len()];
    attribute.emit_value(&mut bytes);
    Some(bytes)
}

#[cfg(test)]
mod tests;
