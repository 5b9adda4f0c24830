//! The things that one rule of nftables names, iptables' own among them where iptables is the newer one.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::{DefaultNla, Nla};
use netlink_packet_netfilter::NetfilterProtoFamily;
use netlink_packet_netfilter::nftables::{
    Bitwise, Cmp, DataAttribute, ExpressionAttribute, Expressions, Immediate, ListAttribute,
    Lookup, Meta, MetaKey, Payload, RuleAttribute, RuleMessage, VerdictAttribute,
};

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
/// `NFTA_TARGET_NAME`: a target of iptables, as its newer form hands it to the kernel.
const TARGET_NAME: u16 = 1;
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
    /// An address or a network.
    Network(IpNet),
    /// The MSS of a TCP connection is written.
    Mss,
    /// A set that addresses or devices are looked up in.
    Set(String),
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

/// The part of a packet that was loaded last.
enum Loaded {
    Device,
    Address { is_v4: bool, mask: Option<u8> },
}

/// Reads a rule of a table of this family.
pub(super) fn facts(family: NetfilterProtoFamily, message: &RuleMessage) -> Facts {
    let mut facts = Facts::default();
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Chain(chain) => facts.chain.clone_from(chain),
            RuleAttribute::Handle(handle) => facts.handle = *handle,
            RuleAttribute::Expressions(list) => {
                let mut loaded = None;
                for expression in list.iter().filter_map(data) {
                    facts.take(family, expression, &mut loaded);
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
    fn take(
        &mut self,
        family: NetfilterProtoFamily,
        expression: &Expressions,
        loaded: &mut Option<Loaded>,
    ) {
        match expression {
            Expressions::Meta(attributes) => *loaded = device(attributes),
            Expressions::Payload(attributes) => *loaded = address(family, attributes),
            Expressions::Bitwise(attributes) => {
                if let Some(Loaded::Address { mask, .. }) = loaded {
                    *mask = prefix_length(attributes);
                }
            }
            Expressions::Cmp(attributes) => {
                let value = attributes.iter().find_map(|attribute| match attribute {
                    Cmp::Data(DataAttribute::Value(value)) => Some(value.as_slice()),
                    _ => None,
                });
                let name = loaded.take().zip(value);
                self.names
                    .extend(name.and_then(|(loaded, value)| loaded.named(value)));
            }
            Expressions::Lookup(attributes) => {
                let set = attributes.iter().find_map(|attribute| match attribute {
                    Lookup::Set(set) => Some(set),
                    _ => None,
                });
                let set = loaded.take().and(set);
                self.names.extend(set.map(|set| Name::Set(set.clone())));
            }
            Expressions::Immediate(attributes) => self.leads_to.extend(jump(attributes)),
            Expressions::Other {
                expression_type,
                attributes,
            } if writes_mss(expression_type, attributes) => self.names.push(Name::Mss),
            _ => {}
        }
    }
}

impl Loaded {
    /// The value that it is compared with.
    fn named(self, value: &[u8]) -> Option<Name> {
        match self {
            Self::Device => {
                let end = value.iter().position(|byte| *byte == 0);
                let name = value.get(..end.unwrap_or(value.len()))?;
                Some(Name::Device {
                    name: String::from_utf8_lossy(name).into_owned(),
                    is_prefix: end.is_none(),
                })
            }
            Self::Address { is_v4, mask } => {
                let bits = u8::try_from(value.len().checked_mul(8)?).ok()?;
                let length = mask.unwrap_or(bits);
                let net = if is_v4 {
                    let mut bytes = [0; 4];
                    bytes.get_mut(..value.len())?.copy_from_slice(value);
                    IpNet::new(IpAddr::from(bytes), length)
                } else {
                    let mut bytes = [0; 16];
                    bytes.get_mut(..value.len())?.copy_from_slice(value);
                    IpNet::new(IpAddr::from(bytes), length)
                };
                net.ok().map(Name::Network)
            }
        }
    }
}

fn device(attributes: &[Meta]) -> Option<Loaded> {
    let is_name =
        |attribute: &Meta| matches!(attribute, Meta::Key(MetaKey::Iifname | MetaKey::Oifname));
    attributes.iter().any(is_name).then_some(Loaded::Device)
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
    let mask = None;
    if may_be_v4 && V4_ADDRESSES.contains(&offset) && length <= 4 {
        return Some(Loaded::Address { is_v4: true, mask });
    }
    // One byte there is IPv4's time to live in a table of both families.
    let is_v6 = may_be_v6 && V6_ADDRESSES.contains(&offset) && (2..=16).contains(&length);
    is_v6.then_some(Loaded::Address { is_v4: false, mask })
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

fn writes_mss(expression_type: &str, attributes: &[DefaultNla]) -> bool {
    let value = |kind| {
        let attribute = attributes
            .iter()
            .find(|attribute| attribute.kind() == kind)?;
        let mut bytes = vec![0; attribute.value_len()];
        attribute.emit_value(&mut bytes);
        Some(bytes)
    };
    match expression_type {
        "exthdr" => {
            value(EXTHDR_SREG).is_some()
                && value(EXTHDR_OP) == Some(TCP_OPTION.to_be_bytes().to_vec())
                && value(EXTHDR_TYPE) == Some(vec![MSS])
        }
        "target" => value(TARGET_NAME).is_some_and(|name| name == TCPMSS),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_netfilter::nftables::Verdict;

    use super::*;

    const V4: NetfilterProtoFamily = NetfilterProtoFamily::IPv4;
    const BOTH: NetfilterProtoFamily = NetfilterProtoFamily::Inet;

    fn read(family: NetfilterProtoFamily, expressions: Vec<Expressions>) -> Facts {
        let list = expressions.into_iter().map(Into::into).collect();
        let attributes = vec![
            RuleAttribute::Chain("FORWARD".to_owned()),
            RuleAttribute::Handle(7),
            RuleAttribute::Expressions(list),
        ];
        facts(family, &RuleMessage { attributes })
    }

    fn header(offset: u32, length: u32) -> Expressions {
        Expressions::Payload(vec![
            Payload::Base(NETWORK_HEADER),
            Payload::Offset(offset),
            Payload::Len(length),
        ])
    }

    fn input() -> Expressions {
        Expressions::Meta(vec![Meta::Key(MetaKey::Iifname)])
    }

    fn equals(value: &[u8]) -> Expressions {
        Expressions::Cmp(vec![Cmp::Data(DataAttribute::Value(value.to_vec()))])
    }

    fn mask(value: &[u8]) -> Expressions {
        let value = DataAttribute::Value(value.to_vec());
        Expressions::Bitwise(vec![Bitwise::Mask(value)])
    }

    fn other(expression_type: &str, attributes: &[(u16, &[u8])]) -> Expressions {
        let attributes = attributes.iter();
        Expressions::Other {
            expression_type: expression_type.to_owned(),
            attributes: attributes
                .map(|(kind, value)| DefaultNla::new(*kind, value.to_vec()))
                .collect(),
        }
    }

    #[test]
    fn addresses_and_networks_are_named_in_each_form_of_them() {
        let v6: IpAddr = "fd00:ec2::254".parse().unwrap();
        let IpAddr::V6(bytes) = v6 else { panic!() };
        for (family, expressions, expected) in [
            (
                V4,
                vec![header(16, 4), equals(&[169, 254, 169, 254])],
                "169.254.169.254/32",
            ),
            (
                V4,
                vec![header(16, 2), equals(&[169, 254])],
                "169.254.0.0/16",
            ),
            (
                BOTH,
                vec![
                    header(12, 4),
                    mask(&[255, 255, 255, 240]),
                    equals(&[10, 0, 1, 16]),
                ],
                "10.0.1.16/28",
            ),
            (
                BOTH,
                vec![header(24, 16), equals(&bytes.octets())],
                "fd00:ec2::254/128",
            ),
        ] {
            let names = read(family, expressions).names;
            assert_eq!(names, [Name::Network(expected.parse().unwrap())]);
        }
        // A time to live, and a port.
        assert!(
            read(BOTH, vec![header(8, 1), equals(&[1])])
                .names
                .is_empty()
        );
        let port =
            Expressions::Payload(vec![Payload::Base(2), Payload::Offset(2), Payload::Len(2)]);
        assert!(read(V4, vec![port, equals(&[0, 80])]).names.is_empty());
    }

    #[test]
    fn devices_sets_jumps_and_a_written_mss_are_seen() {
        let named = |text: &str, is_prefix| {
            let name = text.to_owned();
            vec![Name::Device { name, is_prefix }]
        };
        assert_eq!(
            read(V4, vec![input(), equals(b"tow")]).names,
            named("tow", true)
        );
        let whole = read(V4, vec![input(), equals(b"eth0\0\0\0\0")]);
        assert_eq!(whole.names, named("eth0", false));
        assert_eq!((whole.chain.as_str(), whole.handle), ("FORWARD", 7));
        let lookup = Expressions::Lookup(vec![Lookup::Set("blocked".to_owned())]);
        let set = [Name::Set("blocked".to_owned())];
        assert_eq!(read(V4, vec![header(16, 4), lookup.clone()]).names, set);
        assert!(read(V4, vec![lookup]).names.is_empty(), "of neither");
        let verdict = vec![
            VerdictAttribute::Code(Verdict::Jump),
            VerdictAttribute::Chain("pods".to_owned()),
        ];
        let verdict = Immediate::Data(DataAttribute::Verdict(verdict));
        let jump = read(V4, vec![Expressions::Immediate(vec![verdict])]);
        assert_eq!(jump.leads_to, ["pods"]);
        let option = [0, 0, 0, 1];
        let written = other("exthdr", &[(2, &[MSS]), (6, &option), (7, &option)]);
        let target = other("target", &[(1, TCPMSS)]);
        for clamp in [written, target] {
            assert_eq!(read(V4, vec![clamp]).names, [Name::Mss]);
        }
        let only_read = other("exthdr", &[(2, &[MSS]), (6, &option), (1, &option)]);
        assert!(read(V4, vec![only_read]).names.is_empty());
    }
}
