use super::*;

fn refused(text: &str) -> String {
    document::read::<Config>(text).unwrap_err().to_string()
}

#[test]
fn an_empty_file_has_every_default_but_no_cluster() {
    let config: Config = document::read("").unwrap();
    assert_eq!(config, Config::default());
    let error = config.cluster().unwrap_err().to_string();
    assert!(error.starts_with("cluster-name: missing"), "{error}");
}

#[test]
fn values_are_read() {
    let text = "cluster-name: blue\nec2:\n  reads: {enis: 10m}\n  rates: {create: {burst: 10, \
                per-second: 0.5}}\neni: {tags: {team: net}}\ntaint:\n";
    let config: Config = document::read(text).unwrap();
    assert_eq!(config.cluster().unwrap().as_str(), "blue");
    assert_eq!(config.ec2.reads.enis.get().as_secs(), 600);
    let rate = config.ec2.rates[&cloud::Action::Create];
    assert!((rate.per_second.get() - 0.5).abs() < f64::EPSILON);
    assert_eq!(config.eni.tags["team"], "net");
    assert_eq!(config.taint, TaintSection::default());
    let text =
        "pools: {create: {p: {ipv4: {cidrs: [172.16.0.0/16], maskSize: 24}, allowFirstIP: true}}}";
    let config: Config = document::read(text).unwrap();
    let spec = serde_json::to_value(&config.pools.create["p"]).unwrap();
    let expected = serde_json::json!({
        "ipv4": {"cidrs": ["172.16.0.0/16"], "maskSize": 24}, "allowFirstIP": true
    });
    assert_eq!(spec, expected, "as the resource has it");
}

#[test]
fn a_refused_value_is_named_with_its_key_and_the_allowed_ones() {
    let cases = [
        ("cluster-name: \"\"", "cluster-name: \"\" is refused"),
        ("cluster-name: \"a*\"", "cluster-name: \"a*\" is refused"),
        ("cluster-name: \"a b\"", "cluster-name: \"a b\" is refused"),
        (
            "ec2: {call-timeout: 6s}",
            "ec2.call-timeout: \"6s\" is refused; allowed: a span of time from 1s to 5s",
        ),
        (
            "ec2: {call-timeout: -1s}",
            "ec2.call-timeout: \"-1s\" is refused",
        ),
        (
            "ec2: {page-size: 4}",
            "ec2.page-size: 4 is refused; allowed: 5 to 1000",
        ),
        ("ec2: {share: 0}", "ec2.share: 0 is refused"),
        ("ec2: {share: .nan}", "ec2.share: NaN is refused"),
        (
            "ec2: {rates: {crate: {burst: 1, per-second: 1}}}",
            "unknown variant `crate`",
        ),
        (
            "ec2: {rates: {create: {burst: 1}}}",
            "missing field `per-second`",
        ),
        (
            "eni: {groups-fallback: all}",
            "eni.groups-fallback: unknown variant `all`, expected `none` or `primary`",
        ),
        (
            "pools: {create: {p: {ipv4: {cidrs: [fd00::/64], maskSize: 24}}}}",
            "pools.create.p.ipv4.cidrs[0]: invalid IP address syntax",
        ),
        (
            "pools: {create: {p: {ipv4: {cidrs: [172.16.0.0/16], maskSize: 33}}}}",
            "pools.create.p.ipv4.maskSize: 33 is refused; allowed: 1 to 32",
        ),
        ("clustername: x", "unknown field `clustername`"),
        (
            "http: {address: localhost}",
            "http.address: invalid socket address",
        ),
    ];
    for (text, expected) in cases {
        let error = refused(text);
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn every_setting_has_help_of_one_sentence_or_more() {
    for row in Config::default().explain("") {
        assert!(row.help.ends_with('.'), "{}: {:?}", row.key, row.help);
        assert_eq!(row.source, Source::Default);
        assert_eq!(row.value, row.default);
    }
}

#[test]
fn a_setting_of_the_file_is_shown_as_such() {
    let text = "ec2: {reads: {subnets: 30s}}";
    let config: Config = document::read(text).unwrap();
    let rows = config.explain(text);
    let row = rows
        .iter()
        .find(|it| it.key == "ec2.reads.subnets")
        .unwrap();
    assert_eq!(row.source, Source::File);
    assert_eq!((row.value.as_str(), row.default.as_str()), ("30s", "1m"));
    let given = rows.iter().filter(|it| it.source == Source::File);
    assert_eq!(given.count(), 1);
}

#[test]
fn the_example_is_the_defaults_and_fits_the_page() {
    let text = example();
    assert_eq!(
        document::read::<Config>(&text).unwrap(),
        Config::default(),
        "{text}"
    );
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
}

#[test]
fn the_deployed_file_of_all_settings_is_the_example() {
    let deployed = include_str!("../../../deploy/operator.yaml");
    assert_eq!(
        deployed,
        example(),
        "write it by: towpath-operator config example"
    );
}
