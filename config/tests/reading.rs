//! The configuration file.

use std::fs;
use std::path::Path;
use std::time::Duration;

use api::types::ExternalPolicy;
use config::{Config, LogLevel, Ports, Source};
use datapath_common::mark::MarkLayout;
use datapath_common::masquerade::MetadataPolicy;
use flows::Lifetimes;
use loader::bpf::{AttachMode, DatapathSettings};

const EXAMPLE: &str = include_str!("../../deploy/config.yaml");

#[test]
fn nothing_is_the_defaults() {
    for text in [
        "",
        "# nothing\n",
        "{}",
        "node:\nservices:\n",
        "services: {cidrs: }\n",
    ] {
        let config = Config::parse(text).unwrap();
        assert_eq!(config.settings(), Config::default().settings(), "{text:?}");
    }
    let config = Config::default();
    let settings = config.settings();
    assert_eq!(settings.mark, MarkLayout::DEFAULT);
    assert_eq!(settings.protocol, 2);
    assert_eq!(settings.primary_device, None);
    assert!(settings.services.configured.is_empty() && settings.host.addresses.is_empty());
    let bpf = config.bpf_options();
    assert_eq!(bpf.attach, AttachMode::Auto);
    assert_eq!(bpf.pin_root, Path::new("/sys/fs/bpf/towpath"));
    assert_eq!(
        config.node.document.as_path(),
        Path::new("/etc/towpath/node.yaml")
    );
    assert_eq!(
        config.socket.as_path(),
        Path::new("/run/towpath/agent.sock")
    );
    assert_eq!(config.datapath_settings(), DatapathSettings::default());
    assert_eq!(config.nat.lifetimes.lifetimes(), Lifetimes::default());
}

#[test]
fn the_example_has_every_key_and_every_default() {
    for row in Config::parse(EXAMPLE).unwrap().explain() {
        assert_eq!(row.source, Source::File, "{} is missing", row.key);
        assert_eq!(row.value, row.default, "{}", row.key);
    }
}

/// Every key with a value that is not its default.
const EVERY: &str = "node: {document: /a/node.json, primary-device: ens5, other-cni: ignore}
endpoint: {mtu: 1500, internet-mtu: 1400, device-name: cali}
datapath: {path: stack, attach: clsact, mark-mask: '0x00ff0000', pin-root: /b, flow-cache: 512}
kernel: {route-protocol: 77, sysctls: /h}
services:
  cidrs: [10.96.0.0/12, 'fd00:96::/112']
  addresses: [203.0.113.9, '2001:db8::9']
  nat: on
masquerade:
  ipv4: false
  ipv6: true
  native-routing-cidrs: [0.0.0.0/0, 'fd00::/8']
  external: primary-eni
  metadata: block
  only-default-pool: true
  pools: /pools
  ip-masq-agent: {enabled: true, path: /masq}
nat:
  ports: [1024-2047, 32768-65535]
  flows: {ipv4: 1000, ipv6: 2000, inbound: 3000, per-endpoint: 100, inbound-per-endpoint: 200, host: 300}
  lifetimes:
    tcp-established: 11
    tcp-transitory: 12
    udp: 13
    udp-well-known: 14
    udp-unreplied: 15
    icmp: 16
    sctp: 17
    closed-under-pressure: 18
ipam:
  enabled: false
  release: 'on'
  families: [ipv6, ipv4]
  default-pool: blue
  pre-allocate: blue=2
  cooldown: 0
  unclaimed: 10
plain-pools: {native: true}
cni: {pending-deletes: /e/pending-deletes, conf-dir: /k}
kubernetes:
  enabled: true
  node-name: node-1
  kubeconfig: /f
  create-node: false
  startup-taint: example.com/not-yet
  metadata-endpoint: http://[fd00:ec2::254]
  update-interval: 20
  watch-timeout: 30
  cni-configuration: /g
  eni:
    first-interface-index: 1
    subnet-ids: [subnet-1]
    subnet-tags: a=1
    security-groups: [sg-1]
    security-group-tags: b=2
    exclude-interface-tags: c=3
    delete-on-termination: false
    use-primary-address: true
    disable-prefix-delegation: true
  ipam: {mode: crd, min-allocate: 1, max-allocate: 2, pre-allocate: 3, max-above-watermark: 4, static-ip-tags: d=4}
http: {address: '127.0.0.1:9971'}
metrics: {address: '0.0.0.0:9972'}
host-addresses: [169.254.20.10]
agent-addresses: {ingress: /run/netns/gateway, pool: blue, plugin-dirs: [/h], timeout: 5, state-dir: /i}
host-cidrs: [10.8.0.0/24]
state-dir: /c
socket: /d
log-level: debug
";

#[test]
fn every_value_is_taken() {
    let config = Config::parse(EVERY).unwrap();
    let settings = config.settings();
    assert_eq!(settings.mark.mask(), 0x00ff_0000);
    assert_eq!(settings.protocol, 77);
    assert_eq!(settings.primary_device.as_deref(), Some("ens5"));
    let services: Vec<String> = settings
        .services
        .configured
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        services,
        [
            "10.96.0.0/12",
            "203.0.113.9/32",
            "2001:db8::9/128",
            "fd00:96::/112"
        ]
    );
    let hosts: Vec<String> = settings
        .host
        .addresses
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(hosts, ["169.254.20.10"]);
    assert_eq!(config.endpoint.mtu.map(config::Mtu::get), Some(1500));
    assert_eq!(settings.internet_mtu, Some(1400));
    assert_eq!(config.bpf_options().attach, AttachMode::Clsact);
    assert_eq!(config.bpf_options().pin_root, Path::new("/b"));
    assert_eq!(config.datapath_settings().cache, 512);
    assert_eq!(config.state_dir.as_path(), Path::new("/c"));
    assert_eq!(config.log_level, LogLevel::Debug);
    assert_allocation(&config);
    assert_translation(&config);
    assert_cluster(&config);
    assert_eq!(config.http.address.unwrap().port(), 9971);
    for row in config.explain() {
        assert_eq!(row.source, Source::File, "{}", row.key);
        assert_ne!(row.value, row.default, "{}", row.key);
    }
    let shown = |key: &str| {
        config
            .explain()
            .into_iter()
            .find(|row| row.key == key)
            .unwrap()
            .value
    };
    assert_eq!(shown("datapath.mark-mask"), "0x00ff0000");
    assert_eq!(shown("kernel.route-protocol"), "77");
    assert_eq!(shown("services.cidrs"), "[10.96.0.0/12, fd00:96::/112]");
}

#[test]
fn that_there_are_no_services_can_be_said() {
    let config = |text: &str| Config::parse(text).unwrap();
    let said = config("services: {cidrs: none}");
    assert!(said.settings().services.configured.is_empty());
    assert!(said.knows_services());
    for text in ["services: {cidrs: []}", "services: {cidrs: null}", "{}"] {
        assert!(!config(text).knows_services(), "{text}");
    }
    assert!(config("services: {cidrs: [10.96.0.0/12]}").knows_services());
    assert!(config("kubernetes: {enabled: true}").knows_services());
}

/// The values of the cluster.
fn assert_cluster(config: &Config) {
    let section = &config.kubernetes;
    assert!(section.enabled && !section.create_node);
    assert_eq!(section.node_name.as_deref(), Some("node-1"));
    assert_eq!(section.update_interval.get(), Duration::from_secs(20));
    let parameters = serde_json::json!([section.parameters().eni, section.parameters().ipam]);
    assert_eq!(
        parameters,
        serde_json::json!([
            {
                "first-interface-index": 1, "subnet-ids": ["subnet-1"], "subnet-tags": {"a": "1"},
                "security-groups": ["sg-1"], "security-group-tags": {"b": "2"},
                "exclude-interface-tags": {"c": "3"}, "delete-on-termination": false,
                "use-primary-address": true, "disable-prefix-delegation": true
            },
            {
                "min-allocate": 1, "max-allocate": 2, "pre-allocate": 3, "max-above-watermark": 4,
                "static-ip-tags": {"d": "4"}
            }
        ])
    );
}

/// The values of masquerade and of translation.
fn assert_allocation(config: &Config) {
    assert!(!config.ipam.enabled && config.plain_pools.native);
    assert_eq!(config.ipam.families.get().len(), 2);
    let settings = config.ipam.settings(ipam::Barrier::new("a test"));
    assert_eq!(settings.default_pool, "blue");
    assert_eq!(settings.pre_allocation.to_string(), "blue=2");
    assert_eq!(settings.cooldown, Duration::ZERO);
    assert_eq!(settings.unclaimed, Duration::from_secs(10));
    assert_eq!(config.cni.pending_deletes.state_dir(), Path::new("/e"));
}

fn assert_translation(config: &Config) {
    let settings = config.settings();
    let masquerade = &settings.masquerade;
    assert!(!masquerade.ipv4 && masquerade.ipv6 && masquerade.only_default_pool);
    assert_eq!(masquerade.native.len(), 2);
    assert_eq!(masquerade.external, ExternalPolicy::PrimaryEni);
    assert_eq!(masquerade.metadata, MetadataPolicy::Block);
    assert_eq!(masquerade.pools.as_deref(), Some(Path::new("/pools")));
    assert_eq!(masquerade.agent.as_deref(), Some(Path::new("/masq")));
    assert_eq!(settings.ports, config.nat.slices());
    let datapath = config.datapath_settings();
    assert!(!datapath.masquerade_v4 && datapath.masquerade_v6);
    assert_eq!(datapath.metadata, MetadataPolicy::Block);
    assert_eq!((datapath.flows_v4, datapath.flows_v6), (1000, 2000));
    assert_eq!(datapath.inbound, 3000);
    let quotas = datapath.quotas;
    assert_eq!(
        (quotas.endpoint, quotas.inbound, quotas.host),
        (100, 200, 300)
    );
    assert_eq!(datapath.path, loader::bpf::DatapathMode::Stack);
    let ranges: Vec<_> = config.nat.ports.iter().flat_map(Ports::ranges).collect();
    assert_eq!(ranges, [(1024, 2047), (32768, 65535)]);
    let lifetimes = config.nat.lifetimes.lifetimes();
    assert_eq!(
        [
            lifetimes.tcp_established,
            lifetimes.tcp_transitory,
            lifetimes.udp,
            lifetimes.udp_well_known,
            lifetimes.udp_unreplied,
            lifetimes.icmp,
            lifetimes.sctp,
            lifetimes.closed_under_pressure,
        ],
        [11, 12, 13, 14, 15, 16, 17, 18].map(Duration::from_secs)
    );
}

#[test]
fn a_mask_may_be_written_as_text_or_number() {
    for text in ["0xff000000", "'0xff000000'", "4278190080", "\"0xFF000000\""] {
        let config = Config::parse(&format!("datapath: {{mark-mask: {text}}}")).unwrap();
        assert_eq!(config.settings().mark, MarkLayout::DEFAULT, "{text}");
    }
    for text in ["2", "kernel"] {
        let config = Config::parse(&format!("kernel: {{route-protocol: {text}}}")).unwrap();
        assert_eq!(config.settings().protocol, 2, "{text}");
    }
}

const ABSOLUTE_PATH: &str = "allowed: an absolute path";
const DEVICE_NAME: &str = "allowed: the name of a device, 1 to 15 bytes";
const MARK_MASK: &str = "allowed: a mask of 32 bits, hexadecimal (0xff000000)";
const CACHE_SIZE: &str = "allowed: 0, or a power of two up to 65536";
const ROUTE_PROTOCOL: &str = "allowed: kernel, or a number from 5 to 255";
const UNICAST: &str = "allowed: a unicast IPv4 or IPv6 address";
const LISTENER: &str = "allowed: an address with a port (127.0.0.1:9971, [::1]:9971), or null";
const CIDR: &str = "allowed: a CIDR of IPv4 or IPv6, not all of it";

/// Keys, values that they refuse, and a part of what is said of each.
const BAD_VALUES: &[(&str, &str, &str)] = &[
    ("node.document", "node.yaml", ABSOLUTE_PATH),
    ("node.document", "''", ABSOLUTE_PATH),
    ("node.document", "[1]", "sequence"),
    (
        "node.primary-device",
        "a-name-that-is-too-long",
        DEVICE_NAME,
    ),
    ("node.primary-device", "a/b", DEVICE_NAME),
    ("node.primary-device", "'..'", DEVICE_NAME),
    ("node.primary-device", "''", DEVICE_NAME),
    ("endpoint.mtu", "1279", "allowed: 1280 to 9001"),
    ("endpoint.mtu", "9002", "allowed: 1280 to 9001"),
    ("endpoint.mtu", "-1", "allowed: 1280 to 9001"),
    ("endpoint.mtu", "99999999999", "allowed: 1280 to 9001"),
    ("endpoint.mtu", "jumbo", "allowed: 1280 to 9001"),
    ("endpoint.mtu", "1.5", "expected a text or an integer"),
    ("ipam.cooldown", "30s", "allowed: 0 to 86400 seconds"),
    ("endpoint.internet-mtu", "1279", "allowed: 1280 to 9001"),
    ("endpoint.internet-mtu", "9002", "allowed: 1280 to 9001"),
    ("http.address", "127.0.0.1", LISTENER),
    ("http.address", "9971", LISTENER),
    ("http.address", "localhost:9971", LISTENER),
    ("http.address", "127.0.0.1:0", LISTENER),
    ("http.address", "'[::1]:99999'", LISTENER),
    ("http.address", "''", LISTENER),
    ("datapath.path", "fast", "expected `direct` or `stack`"),
    (
        "datapath.attach",
        "xdp",
        "expected one of `auto`, `mixed`, `tcx`, `clsact`",
    ),
    (
        "datapath.mark-mask",
        "0xf00f0000",
        "its bits must be contiguous",
    ),
    (
        "datapath.mark-mask",
        "0x1f00",
        "it must have at least 6 bits",
    ),
    ("datapath.mark-mask", "0x1ff000000", MARK_MASK),
    ("datapath.mark-mask", "'0x+f000000'", MARK_MASK),
    ("datapath.mark-mask", "ff000000", MARK_MASK),
    ("datapath.mark-mask", "-1", MARK_MASK),
    (
        "datapath.mark-mask",
        "18446744073709551615",
        "expected a text or an integer",
    ),
    ("datapath.mark-mask", "1.5", "expected a text or an integer"),
    ("datapath.pin-root", "bpf", ABSOLUTE_PATH),
    ("datapath.flow-cache", "1000", CACHE_SIZE),
    ("datapath.flow-cache", "-1", CACHE_SIZE),
    ("datapath.flow-cache", "131072", CACHE_SIZE),
    ("kernel.route-protocol", "4", ROUTE_PROTOCOL),
    ("kernel.route-protocol", "0", ROUTE_PROTOCOL),
    ("kernel.route-protocol", "256", ROUTE_PROTOCOL),
    ("kernel.route-protocol", "static", ROUTE_PROTOCOL),
    (
        "kernel.route-protocol",
        "true",
        "expected a text or an integer",
    ),
    ("services.cidrs", "10.96.0.0/12", "expected a sequence"),
    (
        "services.cidrs",
        "None",
        "expected a sequence of CIDRs, or none",
    ),
    ("services.cidrs[0]", "10.96.0.0", CIDR),
    ("services.cidrs[0]", "0.0.0.0/0", CIDR),
    ("services.cidrs[0]", "10.96.0.1/12", "allowed: 10.96.0.0/12"),
    ("services.addresses[0]", "10.96.0.0/12", UNICAST),
    ("services.addresses[0]", "224.0.0.1", UNICAST),
    ("host-addresses[0]", "0.0.0.0", UNICAST),
    ("host-addresses[0]", "'::1'", UNICAST),
    ("agent-addresses.ingress", "yes", "allowed: off, on, or"),
    ("host-cidrs[0]", "0.0.0.0/0", CIDR),
    ("host-cidrs[0]", "10.8.0.1/24", "allowed: 10.8.0.0/24"),
];

#[test]
fn bad_values_are_refused_with_path_value_and_what_is_allowed() {
    for (key, value, allowed) in BAD_VALUES {
        refused(key, value, allowed);
    }
}

#[test]
fn bad_values_of_the_agent_itself_are_refused_too() {
    let path = "allowed: an absolute path";
    let deletes = "an absolute path that ends with pending-deletes";
    let level = "expected one of `error`, `warn`, `info`, `debug`, `trace`";
    refused("state-dir", "run", path);
    refused("socket", "agent.sock", path);
    refused("cni.pending-deletes", "/run/towpath/deletes", deletes);
    refused("log-level", "loud", level);
}

#[test]
fn bad_values_of_nat_are_refused_too() {
    let ports = "allowed: a range of ports from 1024 on";
    let flows = "allowed: 64 to 4194304";
    let seconds = "allowed: 10 to 864000 seconds";
    let cases = [
        ("nat.ports", "40960-65535", "expected a sequence"),
        ("nat.ports", "[]", "allowed: 1 to 4 ranges"),
        (
            "nat.ports",
            "[1024-1535, 2048-2559, 3072-3583, 4096-4607, 5120-5631]",
            "1 to 4 ranges",
        ),
        ("nat.ports[0]", "512-1023", ports),
        ("nat.ports[0]", "40960-65534", ports),
        ("nat.ports[0]", "40960-70000", ports),
        ("nat.ports[0]", "40960", ports),
        (
            "nat.ports",
            "[40960-65535, 41472-41983]",
            "\"41472-41983\" is refused; allowed: ranges that do not overlap",
        ),
        ("nat.flows.ipv4", "63", flows),
        ("nat.flows.ipv6", "4194305", flows),
        ("nat.flows.inbound", "-1", flows),
        ("nat.flows.per-endpoint", "0", flows),
        ("nat.flows.inbound-per-endpoint", "63", flows),
        ("nat.flows.host", "-1", flows),
        ("nat.lifetimes.tcp-established", "9", seconds),
        ("nat.lifetimes.tcp-transitory", "0", seconds),
        ("nat.lifetimes.udp", "864001", seconds),
        ("nat.lifetimes.udp-well-known", "-1", seconds),
        ("nat.lifetimes.udp-unreplied", "1", seconds),
        ("nat.lifetimes.icmp", "9", seconds),
        ("nat.lifetimes.sctp", "9", seconds),
        (
            "nat.lifetimes.closed-under-pressure",
            "1",
            "2 to 240 seconds",
        ),
        (
            "nat.lifetimes.closed-under-pressure",
            "241",
            "2 to 240 seconds",
        ),
    ];
    for (key, value, allowed) in cases {
        refused(key, value, allowed);
    }
}

#[test]
fn a_list_without_families_is_refused_as_it_was_written() {
    refused("ipam.families", "[]", "allowed: ipv4, ipv6 or both");
}

/// Checks that a key does not take a value, and that the error says what it takes. `key[0]` is a
/// list with the value.
#[track_caller]
fn refused(key: &str, value: &str, allowed: &str) {
    let (plain, list) = key
        .strip_suffix("[0]")
        .map_or((key, false), |key| (key, true));
    let written = if list {
        format!("[{value}]")
    } else {
        value.to_owned()
    };
    let parts = plain.split('.').enumerate();
    let opened = parts.map(|(depth, part)| format!("\n{}{part}:", "  ".repeat(depth)));
    let text = format!("{} {written}\n", opened.collect::<String>());
    let error = Config::parse(&text).expect_err(&text).to_string();
    // A list that is checked as a whole is named as a whole.
    let named = if plain == "nat.ports" { plain } else { key };
    assert!(error.starts_with(&format!("{named}: ")), "{text}: {error}");
    assert!(error.contains(allowed), "{text}: {error}");
    if allowed.starts_with("allowed") {
        // Numbers are shown in decimal, whatever they were written in.
        let shown = match value.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).expect(hex).to_string(),
            None => value.trim_matches('\'').to_owned(),
        };
        assert!(error.contains(&shown), "{text}: {error}");
    }
}

#[test]
fn a_missing_file_is_an_error_where_it_was_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.yaml");
    let error = Config::load(Some(&path)).unwrap_err().to_string();
    assert!(error.contains(&path.display().to_string()), "{error}");
    assert!(error.contains("No such file"), "{error}");

    fs::write(&path, "endpoint: {mtu: 1400}\n").unwrap();
    let config = Config::load(Some(&path)).unwrap();
    assert_eq!(config.endpoint.mtu.map(config::Mtu::get), Some(1400));

    fs::write(&path, "endpoint: {mtu: 65536}\n").unwrap();
    let error = Config::load(Some(&path)).unwrap_err().to_string();
    assert!(
        error.contains("config.yaml: endpoint.mtu: 65536 is refused"),
        "{error}"
    );

    let error = Config::load(Some(folder.path())).unwrap_err().to_string();
    assert!(error.contains("is not a file"), "{error}");
}

#[test]
fn a_refused_value_has_its_line() {
    let text = "log-level: debug\nnat:\n  flows:\n    ipv4: 1000\n    inbound-per-endpoint: 63\n";
    let error = Config::parse(text).unwrap_err().to_string();
    assert!(error.ends_with(" at line 5 column 27"), "{error}");
    let error = Config::parse("log-level: debug\nsocket: x\n").unwrap_err();
    assert!(
        error.to_string().ends_with(" at line 2 column 9"),
        "{error}"
    );
}

#[test]
fn what_masquerade_does_not_take_is_named() {
    for (text, expected) in [
        (
            "ipv4: maybe",
            "masquerade.ipv4: invalid type: string \"maybe\", expected a boolean",
        ),
        (
            "external: both",
            "masquerade.external: unknown variant `both`, expected one of `auto`, `own-eni`, \
             `primary-eni`",
        ),
        (
            "metadata: no",
            "masquerade.metadata: unknown variant `no`, expected one of `primary`, `own`, `block`, `stack`",
        ),
        (
            "native-routing-cidrs: [10.0.0.1/8]",
            "masquerade.native-routing-cidrs[0]: \"10.0.0.1/8\" is refused; allowed: 10.0.0.0/8",
        ),
        (
            "native-routing-cidrs: [10.0.0.0]",
            "masquerade.native-routing-cidrs[0]: \"10.0.0.0\" is refused; allowed: a CIDR",
        ),
        (
            "native-routing-cidrs: ['::ffff:10.0.0.0/104']",
            "masquerade.native-routing-cidrs[0]: \"::ffff:10.0.0.0/104\" is refused",
        ),
        (
            "pools: pools",
            "masquerade.pools: \"pools\" is refused; allowed: an absolute path",
        ),
        (
            "ip-masq-agent: {enable: true}",
            "masquerade.ip-masq-agent.enable: unknown field `enable`",
        ),
    ] {
        let error = Config::parse(&format!("masquerade: {{{text}}}")).unwrap_err();
        let error = error.to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    let default = Config::default().settings().masquerade;
    assert!(default.ipv4 && !default.ipv6 && default.agent.is_none() && default.pools.is_none());
}
