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
    let port = Expressions::Payload(vec![Payload::Base(2), Payload::Offset(2), Payload::Len(2)]);
    assert!(read(V4, vec![port, equals(&[0, 80])]).names.is_empty());
}

fn compared(operator: Operator, value: &[u8]) -> Expressions {
    Expressions::Cmp(vec![
        Cmp::Op(operator),
        Cmp::Data(DataAttribute::Value(value.to_vec())),
    ])
}

fn named_nets(expressions: Vec<Expressions>) -> Vec<String> {
    let names = read(BOTH, expressions).names.into_iter();
    let nets = names.filter_map(|name| match name {
        Name::Network(net) => Some(net.to_string()),
        _ => None,
    });
    nets.collect()
}

#[test]
fn a_range_names_the_networks_that_it_is_made_of() {
    let (first, last) = (Operator::GreatherThanEqual, Operator::LessThanEqual);
    let block = vec![
        header(16, 4),
        compared(first, &[10, 0, 1, 16]),
        compared(last, &[10, 0, 1, 32]),
    ];
    assert_eq!(named_nets(block), ["10.0.1.16/28", "10.0.1.32/32"]);
    let none = vec![
        header(16, 4),
        compared(first, &[10, 0, 1, 16]),
        compared(last, &[10, 0, 1, 15]),
    ];
    assert!(named_nets(none).is_empty());
    // The next comparison is of another field.
    let port = Expressions::Payload(vec![Payload::Base(2), Payload::Offset(2), Payload::Len(2)]);
    let ports = [compared(first, &[0, 80]), compared(last, &[0, 90])];
    let both = [header(16, 4), compared(first, &[10, 0, 1, 16]), port];
    assert!(named_nets([&both[..], &ports[..]].concat()).is_empty());
}

#[test]
fn devices_by_their_index_or_group_are_named() {
    let by = |key| Expressions::Meta(vec![Meta::Key(key)]);
    let number = |number: u32| equals(&number.to_ne_bytes());
    for (key, name) in [
        (MetaKey::Iif, Name::Index(7)),
        (MetaKey::Oif, Name::Index(7)),
        (MetaKey::Iifgroup, Name::Group(7)),
        (MetaKey::Oifgroup, Name::Group(7)),
    ] {
        assert_eq!(read(V4, vec![by(key), number(7)]).names, [name], "{key:?}");
    }
    assert!(
        read(V4, vec![by(MetaKey::Mark), number(7)])
            .names
            .is_empty()
    );
}

/// The information of `-m iprange --dst-range 10.0.1.16-10.0.1.17`.
fn destinations() -> Vec<u8> {
    let mut info = vec![0; 68];
    info[32..36].copy_from_slice(&[10, 0, 1, 16]);
    info[48..52].copy_from_slice(&[10, 0, 1, 17]);
    info[64] = 2;
    info
}

#[test]
fn matches_of_iptables_name_sets_and_ranges() {
    let set = other("match", &[(1, b"set\0"), (3, &[0; 4])]);
    let unread = Name::Set("of ipset".to_owned());
    assert_eq!(read(V4, vec![set]).names, [unread]);
    let range = other("match", &[(1, b"iprange\0"), (3, &destinations())]);
    let net = Name::Network("10.0.1.16/31".parse().unwrap());
    assert_eq!(read(V4, vec![range]).names, [net]);
    let cut = other("match", &[(1, b"iprange\0"), (3, &destinations()[..40])]);
    assert!(read(V4, vec![cut]).names.is_empty());
    let comment = other("match", &[(1, b"comment\0"), (3, b"to 10.0.1.16\0")]);
    assert!(read(V4, vec![comment]).names.is_empty());
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
    let port = Expressions::Payload(vec![
        Payload::Base(NETWORK_HEADER + 1),
        Payload::Offset(2),
        Payload::Len(2),
    ]);
    let beside = vec![header(16, 4), port.clone(), lookup.clone()];
    assert_eq!(read(V4, beside).names, set, "an address and a port");
    let after = vec![header(16, 4), equals(&[10, 8, 0, 1]), port, lookup.clone()];
    assert_eq!(read(V4, after).names.len(), 1, "an address, then a port");
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
