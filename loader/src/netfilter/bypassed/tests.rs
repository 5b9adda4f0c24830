use super::*;

fn subjects() -> Subjects {
    Subjects {
        prefixes: vec!["tow".to_owned()],
        devices: BTreeSet::from(["tow0123456789ab".to_owned()]),
        indexes: BTreeSet::from([7]),
        enis: BTreeSet::from(["eth1".to_owned()]),
        addresses: BTreeSet::from([IpAddr::from([10, 0, 1, 20])]),
        blocks: vec!["10.0.1.16/28".parse().unwrap()],
    }
}

fn warning(names: Vec<Name>) -> Option<String> {
    let place = "nftables ip filter FORWARD, handle 7".to_owned();
    line(&Rule { place, names }, &subjects())
}

fn device(name: &str, is_prefix: bool) -> Name {
    let name = name.to_owned();
    Name::Device { name, is_prefix }
}

fn offload(name: &str, is_prefix: bool) -> Name {
    let name = name.to_owned();
    Name::Offload { name, is_prefix }
}

fn net(text: &str) -> Name {
    Name::Network(text.parse().unwrap())
}

#[test]
fn a_rule_is_named_with_the_remedy_of_what_it_is_about() {
    for (names, part) in [
        (vec![net("169.254.169.254/32")], "masquerade.metadata"),
        (vec![net("169.254.0.0/16")], "masquerade.metadata"),
        (vec![net("fd00:ec2::254/128")], "masquerade.metadata"),
        (
            vec![device("tow", true), net("169.254.169.254/32")],
            "masquerade.metadata",
        ),
        (vec![Name::Mss], "endpoint.internet-mtu"),
        (vec![device("tow", true)], "the pod device tow*"),
        (vec![device("to", true)], "the pod device to*"),
        (vec![device("tow01", true)], "the pod device tow01*"),
        (vec![device("tow0123456789ab", false)], "datapath.path"),
        (vec![net("10.0.1.20/32")], "10.0.1.20/32"),
        (vec![net("10.0.1.16/28")], "10.0.1.16/28"),
        (vec![Name::Set("blocked".to_owned())], "the set blocked"),
        (vec![Name::Index(7)], "the pod device with index 7"),
        (vec![Name::Group(DEVICE_GROUP)], "group 0x7477"),
        (
            vec![offload("docker0", false), offload("eth1", false)],
            "the ENI eth1 receives",
        ),
        (vec![offload("eth", true)], "the ENI eth* receives"),
        (
            vec![offload("tow0123456789ab", false)],
            "leave pods' devices and ENIs out of it",
        ),
    ] {
        let line = warning(names.clone()).unwrap_or_else(|| panic!("{names:?}"));
        assert!(line.contains(part), "{names:?}: {line}");
        assert!(
            line.starts_with("nftables ip filter FORWARD, handle 7 "),
            "{line}"
        );
    }
}

#[test]
fn a_rule_about_others_is_not_named() {
    for name in [
        net("0.0.0.0/0"),
        net("10.0.0.0/8"),
        net("10.0.1.21/32"),
        net("169.254.20.10/32"),
        device("eth0", false),
        device("tow", false),
        device("cni", true),
        device("", true),
        device("eth1", false),
        Name::Index(8),
        Name::Group(0),
        offload("docker0", false),
    ] {
        assert_eq!(warning(vec![name.clone()]), None, "{name:?}");
    }
}

#[test]
fn very_many_rules_are_counted() {
    let all = Bypassed::default();
    lock(&all.0).rules = (0..40)
        .map(|handle| Rule {
            place: format!("nftables inet fw forward, handle {handle}"),
            names: vec![Name::Mss],
        })
        .collect();
    let lines = all.named(&subjects());
    assert_eq!(lines.len(), NAMED + 1);
    assert!(lines[NAMED].starts_with("8 more"), "{}", lines[NAMED]);
}
