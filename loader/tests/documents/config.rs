//! The configuration file.

use std::fs;
use std::path::Path;

use datapath_common::mark::MarkLayout;
use towpath::bpf::AttachMode;
use towpath::config::{Config, LogLevel, Source};

const EXAMPLE: &str = include_str!("../../../deploy/config.yaml");

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
    assert!(settings.services.is_empty() && settings.host_addresses.is_empty());
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
}

#[test]
fn the_example_has_every_key_and_every_default() {
    for row in Config::parse(EXAMPLE).unwrap().explain() {
        assert_eq!(row.source, Source::File, "{} is missing", row.key);
        assert_eq!(row.value, row.default, "{}", row.key);
    }
}

#[test]
fn every_value_is_taken() {
    let config = Config::parse(
        "node: {document: /a/node.json, primary-device: ens5}
endpoint: {mtu: 1500}
datapath: {attach: clsact, mark-mask: '0x00ff0000', pin-root: /b}
kernel: {route-protocol: 77}
services:
  cidrs: [10.96.0.0/12, 'fd00:96::/112']
  addresses: [203.0.113.9, '2001:db8::9']
host-addresses: [169.254.20.10]
state-dir: /c
socket: /d
log-level: debug
",
    )
    .unwrap();
    let settings = config.settings();
    assert_eq!(settings.mark.mask(), 0x00ff_0000);
    assert_eq!(settings.protocol, 77);
    assert_eq!(settings.primary_device.as_deref(), Some("ens5"));
    let services: Vec<String> = settings.services.iter().map(ToString::to_string).collect();
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
        .host_addresses
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(hosts, ["169.254.20.10"]);
    assert_eq!(
        config.endpoint.mtu.map(towpath::config::Mtu::get),
        Some(1500)
    );
    assert_eq!(config.bpf_options().attach, AttachMode::Clsact);
    assert_eq!(config.bpf_options().pin_root, Path::new("/b"));
    assert_eq!(config.state_dir.as_path(), Path::new("/c"));
    assert_eq!(config.log_level, LogLevel::Debug);
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

#[test]
fn bad_values_are_refused_with_path_value_and_what_is_allowed() {
    let path = "allowed: an absolute path";
    let device = "allowed: the name of a device, 1 to 15 bytes";
    let mask = "allowed: a mask of 32 bits, hexadecimal (0xff000000)";
    let protocol = "allowed: kernel, or a number from 5 to 255";
    let address = "allowed: a unicast IPv4 or IPv6 address";
    let cidr = "allowed: a CIDR of IPv4 or IPv6, not all of it";
    let cases = [
        ("node.document", "node.yaml", path),
        ("node.document", "''", path),
        ("node.document", "[1]", "sequence"),
        ("node.primary-device", "a-name-that-is-too-long", device),
        ("node.primary-device", "a/b", device),
        ("node.primary-device", "'..'", device),
        ("node.primary-device", "''", device),
        ("endpoint.mtu", "1279", "allowed: 1280 to 9001"),
        ("endpoint.mtu", "9002", "allowed: 1280 to 9001"),
        ("endpoint.mtu", "-1", "allowed: 1280 to 9001"),
        ("endpoint.mtu", "99999999999", "allowed: 1280 to 9001"),
        ("endpoint.mtu", "jumbo", "expected i64"),
        (
            "datapath.attach",
            "xdp",
            "expected one of `auto`, `tcx`, `clsact`",
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
        ("datapath.mark-mask", "0x1ff000000", mask),
        ("datapath.mark-mask", "'0x+f000000'", mask),
        ("datapath.mark-mask", "ff000000", mask),
        ("datapath.mark-mask", "-1", mask),
        (
            "datapath.mark-mask",
            "18446744073709551615",
            "expected a text or an integer",
        ),
        ("datapath.mark-mask", "1.5", "expected a text or an integer"),
        ("datapath.pin-root", "bpf", path),
        ("kernel.route-protocol", "4", protocol),
        ("kernel.route-protocol", "0", protocol),
        ("kernel.route-protocol", "256", protocol),
        ("kernel.route-protocol", "static", protocol),
        (
            "kernel.route-protocol",
            "true",
            "expected a text or an integer",
        ),
        ("services.cidrs", "10.96.0.0/12", "expected a sequence"),
        ("services.cidrs[0]", "10.96.0.0", cidr),
        ("services.cidrs[0]", "0.0.0.0/0", cidr),
        ("services.cidrs[0]", "10.96.0.1/12", "allowed: 10.96.0.0/12"),
        ("services.addresses[0]", "10.96.0.0/12", address),
        ("services.addresses[0]", "224.0.0.1", address),
        ("host-addresses[0]", "0.0.0.0", address),
        ("host-addresses[0]", "'::1'", address),
        ("state-dir", "run", path),
        ("socket", "agent.sock", path),
        (
            "log-level",
            "loud",
            "expected one of `error`, `warn`, `info`, `debug`, `trace`",
        ),
    ];
    for (key, value, allowed) in cases {
        let (plain, list) = key
            .strip_suffix("[0]")
            .map_or((key, false), |key| (key, true));
        let written = if list {
            format!("[{value}]")
        } else {
            value.to_owned()
        };
        let text = match plain.split_once('.') {
            Some((section, key)) => format!("{section}:\n  {key}: {written}\n"),
            None => format!("{plain}: {written}\n"),
        };
        let error = Config::parse(&text).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{key}: ")), "{text}: {error}");
        assert!(error.contains(allowed), "{text}: {error}");
        if allowed.starts_with("allowed") {
            // Numbers are shown in decimal, whatever they were written in.
            let shown = match value.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16).unwrap().to_string(),
                None => value.trim_matches('\'').to_owned(),
            };
            assert!(error.contains(&shown), "{text}: {error}");
        }
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
    assert_eq!(
        config.endpoint.mtu.map(towpath::config::Mtu::get),
        Some(1400)
    );

    fs::write(&path, "endpoint: {mtu: 65536}\n").unwrap();
    let error = Config::load(Some(&path)).unwrap_err().to_string();
    assert!(
        error.contains("config.yaml: endpoint.mtu: 65536 is refused"),
        "{error}"
    );

    let error = Config::load(Some(folder.path())).unwrap_err().to_string();
    assert!(error.contains("is not a file"), "{error}");
}
