//! Exempt destinations of all kinds of files.

use loader::intent::masquerade::MASQUERADE_DEFAULTS;

use super::*;

fn parse(texts: &[&str]) -> Result<AgentCidrs, String> {
    let named = |(i, text): (usize, &&str)| Fragment {
        path: format!("/config/{i}").into(),
        text: Ok((*text).to_owned()),
    };
    let fragments = Fragments::Found(texts.iter().enumerate().map(named).collect());
    AgentFiles.parse(Path::new("/config"), &fragments, None)
}

fn cidrs(of: &AgentCidrs) -> Vec<String> {
    of.cidrs.keys().map(ToString::to_string).collect()
}

#[test]
fn yaml_and_json_are_read_alike() {
    let yaml = "nonMasqueradeCIDRs:\n- 10.0.0.0/8\n- fd00::/8\nmasqLinkLocal: true\n\
                masqLinkLocalIPv6: false\nresyncInterval: 60s\ncidrLimit: 64\n";
    let json = r#"{"nonMasqueradeCIDRs": ["10.0.0.0/8", "fd00::/8"], "masqLinkLocal": true,
        "masqLinkLocalIPv6": false, "resyncInterval": "60s", "cidrLimit": 64}"#;
    let read = parse(&[yaml]).unwrap();
    assert_eq!(read, parse(&[json]).unwrap());
    assert_eq!(cidrs(&read), ["10.0.0.0/8", "fd00::/8"]);
    assert!(read.masq_link_local && !read.masq_link_local_ipv6);
    assert_eq!(read.resync, Some(Duration::from_mins(1)));
}

#[test]
fn nothing_is_the_standard_list_and_an_empty_list_is_nothing() {
    let missing = AgentFiles.parse(Path::new("/config"), &Fragments::Missing, None);
    assert_eq!(missing.unwrap().cidrs.len(), 11);
    for texts in [&[][..], &[""], &["\n# a comment\n"], &["---\n", ""]] {
        let read = parse(texts).unwrap();
        assert_eq!(read.cidrs.len(), MASQUERADE_DEFAULTS.len(), "{texts:?}");
        assert!(!read.masq_link_local && !read.masq_link_local_ipv6);
    }
    for text in [
        "nonMasqueradeCIDRs: []",
        "nonMasqueradeCIDRs:",
        "masqLinkLocal: false",
        "{}",
    ] {
        assert!(parse(&[text]).unwrap().cidrs.is_empty(), "{text}");
    }
}

#[test]
fn fragments_are_merged() {
    let read = parse(&[
        "nonMasqueradeCIDRs: [10.0.0.0/8]\nresyncInterval: 5m",
        "",
        "nonMasqueradeCIDRs: [10.0.0.0/8, 192.168.0.0/16]\nmasqLinkLocalIPv6: true",
        "resyncInterval: 2s",
    ])
    .unwrap();
    assert_eq!(cidrs(&read), ["10.0.0.0/8", "192.168.0.0/16"]);
    assert!(!read.masq_link_local && read.masq_link_local_ipv6);
    assert_eq!(read.resync, Some(Duration::from_secs(2)));
    let first = &read.cidrs[&"10.0.0.0/8".parse::<IpNet>().unwrap()];
    assert_eq!(first, "/config/0");
}

#[test]
fn host_bits_are_masked_off_with_a_note() {
    let read = parse(&["nonMasqueradeCIDRs: [10.1.2.3/8]"]).unwrap();
    assert_eq!(cidrs(&read), ["10.0.0.0/8"]);
    assert_eq!(
        read.notes,
        ["/config/0: nonMasqueradeCIDRs[0]: 10.1.2.3/8 is taken as 10.0.0.0/8"]
    );
}

#[test]
fn what_is_wrong_is_named_with_file_line_and_field() {
    let cases = [
        (
            "nonMasqueradeCIDRs:\n- 10.0.0.0/8\n- 10.0.0.300/8\n",
            "/config/0: nonMasqueradeCIDRs[1]: \"10.0.0.300/8\" is refused; allowed: a CIDR of \
             IPv4 or IPv6 (10.0.0.0/8, fd00::/8) at line 3 column 3",
        ),
        (
            "nonMasqueradeCIDRs: [10.0.0.1]",
            "/config/0: nonMasqueradeCIDRs[0]: \"10.0.0.1\" is refused; allowed: a CIDR",
        ),
        (
            "nonMasqueradeCIDRs: ['::ffff:10.0.0.0/104']",
            "/config/0: nonMasqueradeCIDRs[0]: \"::ffff:10.0.0.0/104\" is refused",
        ),
        (
            "{\"nonMasqueradeCIDRs\":\n[\"x\"]}",
            "/config/0: nonMasqueradeCIDRs[0]: \"x\" is refused; allowed: a CIDR of IPv4 or IPv6 \
             (10.0.0.0/8, fd00::/8) at line 2",
        ),
        (
            "masqLinkLocal: true\nnonMasqueradeCIDR: []\n",
            "/config/0: nonMasqueradeCIDR: unknown field `nonMasqueradeCIDR`, expected one of \
             `nonMasqueradeCIDRs`",
        ),
        ("\nresyncInterval: 60\n", "/config/0: resyncInterval: "),
        (
            "resyncInterval: soon",
            "/config/0: resyncInterval: \"soon\" is refused; allowed: a duration",
        ),
        (
            "cidrLimit: -1",
            "/config/0: cidrLimit: invalid type: integer `-1`, expected u64",
        ),
        (
            "cidrLimit: 1\nnonMasqueradeCIDRs: [10.0.0.0/8, 10.0.0.0/9]",
            "/config/0: nonMasqueradeCIDRs: 2 CIDRs are refused; allowed: at most 1 (cidrLimit)",
        ),
        (
            "masqLinkLocal: 7",
            "/config/0: masqLinkLocal: invalid type: integer `7`, expected a boolean at line 1",
        ),
        ("nonMasqueradeCIDRs: [", "/config/0: "),
        (
            "[]",
            "/config/0: document: invalid type: sequence, expected the fields of an ip-masq-agent \
             file",
        ),
    ];
    for (text, expected) in cases {
        let error = parse(&[text]).unwrap_err();
        assert!(error.starts_with(expected), "{text:?}: {error}");
        let is_about_all = error.contains("(cidrLimit)");
        assert!(error.contains(" line ") || is_about_all, "{error}");
    }
    let both = parse(&["nonMasqueradeCIDRs: [10.0.0.0/8]", "x: 1"]).unwrap_err();
    assert!(both.starts_with("/config/1: x: "), "{both}");
}

#[test]
fn the_files_are_read_as_often_as_they_ask() {
    let interval = |resync: Option<u64>| {
        let value = AgentCidrs {
            resync: resync.map(Duration::from_millis),
            ..AgentCidrs::default()
        };
        AgentFiles.interval(Some(&value)).as_millis()
    };
    assert_eq!(interval(None), 5_000);
    assert_eq!(interval(Some(0)), 5_000);
    assert_eq!(interval(Some(2_000)), 2_000);
    assert_eq!(interval(Some(1)), 1_000);
    assert_eq!(interval(Some(60_000)), 5_000);
}
