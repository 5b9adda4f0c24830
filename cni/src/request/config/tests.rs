//! Parsing of configurations.

use std::collections::BTreeMap;
use std::net::IpAddr;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::agent::wire::Family;

/// A call by the newest version.
fn invocation(role: Role, command: Command) -> Invocation {
    Invocation {
        role,
        command,
        version: SpecVersion::V1_1_0,
    }
}

fn parse(role: Role, config: &Value) -> Result<Config, Failure> {
    let raw = config.to_string().into_bytes();
    Config::parse(invocation(role, Command::Add), config, &raw)
}

fn refused(config: &Value) -> Failure {
    parse(Role::Interface, config).unwrap_err()
}

#[test]
fn what_is_left_out_has_defaults() {
    let config = parse(Role::Interface, &json!({"name": "towpath"})).unwrap();
    assert_eq!(config.socket, PathBuf::from("/run/towpath/agent.sock"));
    assert_eq!(config.state_dir, PathBuf::from("/run/towpath/cni"));
    assert_eq!(config.timeout, Duration::from_secs(35));
    assert_eq!(config.ipam, Ipam::Agent);
    assert_eq!(config.requested.dns, json!({}));
    assert!(config.requested.families.is_empty() && config.requested.pools.is_empty());
    assert_eq!(config.log_file, None);
}

/// As libcni writes the list of a runtime that runs nothing.
#[test]
fn a_list_of_attachments_that_nobody_has_made_is_empty() {
    let valid = |config: &Value| parse(Role::Interface, config).unwrap().valid;
    assert_eq!(valid(&json!({"name": "a"})), None);
    for list in [Value::Null, json!([])] {
        let config = json!({"name": "a", "cni.dev/valid-attachments": list});
        assert_eq!(valid(&config), Some(Vec::new()));
    }
}

#[test]
fn fields_of_runtimes_and_other_plugins_are_left_alone() {
    let config = json!({
        "name": "towpath", "type": "towpath-cni", "cniVersions": ["1.0.0"],
        "capabilities": {"portMappings": true}, "ipMasq": false, "mtu": null,
        "runtimeConfig": {"portMappings": [{"hostPort": 80}], "bandwidth": {}},
        "args": {"labels": {"a": "b"}}, "future": {"x": 1},
    });
    assert!(
        parse(Role::Interface, &config)
            .unwrap()
            .requested
            .addresses
            .is_empty()
    );
}

#[test]
fn the_ipam_plugins_fields_stand_in_its_section() {
    let config = json!({
        "name": "plain", "type": "macvlan", "mtu": 1500, "socket": 7, "families": ["x"],
        "ipam": {"type": "towpath-ipam", "socket": "/a.sock", "families": ["ipv6"],
            "pools": {"ipv4": "a", "ipv6": "b"}},
    });
    let config = parse(Role::Ipam, &config).unwrap();
    assert_eq!(config.socket, PathBuf::from("/a.sock"));
    assert_eq!(config.requested.families, [Family::Ipv6]);
    assert_eq!(
        config.requested.pools,
        BTreeMap::from([(Family::Ipv6, "b".to_owned())])
    );
    assert_eq!(config.requested.gateways, Gateways::default());
}

#[test]
fn a_gateway_on_the_host_is_never_the_vpcs() {
    let config = |more: Value| {
        let mut config = json!({"name": "a", "type": "bridge", "ipam": {"type": "towpath-ipam"}});
        for (key, value) in more.as_object().unwrap() {
            config[key] = value.clone();
        }
        config
    };
    for more in [
        json!({"type": "ptp"}),
        json!({"isGateway": true}),
        json!({"isDefaultGateway": true}),
        json!({"type": "ptp", "ipam": {"gateways": ["fe80::1"]}}),
        json!({"ipam": {"gateways": ["10.0.0.1", "10.0.0.2"]}}),
    ] {
        let failure = parse(Role::Ipam, &config(more)).unwrap_err();
        assert_eq!(failure.code.number(), 7);
        assert!(failure.message.starts_with("ipam.gateways "), "{failure}");
    }
    for more in [
        json!({}),
        json!({"type": "ptp", "ipam": {"families": ["ipv6"]}}),
        json!({"isGateway": true, "ipam": {"gateways": ["10.0.0.10"]}}),
    ] {
        assert!(parse(Role::Ipam, &config(more)).is_ok());
    }
}

#[test]
fn what_is_wrong_with_an_add_does_not_stop_a_del() {
    let config = json!({"name": "a", "families": ["x"], "mtu": 1, "prevResult": 1, "dns": 1});
    let parse = |command| Config::parse(invocation(Role::Interface, command), &config, b"");
    assert!(parse(Command::Del).is_ok() && parse(Command::Gc).is_ok());
    assert!(parse(Command::Add).is_err() && parse(Command::Status).is_err());
}

#[test]
fn our_own_ipam_section_may_hold_pools_and_families() {
    let config = json!({"name": "a", "ipam": {"type": "towpath-ipam", "pools": {"ipv4": "blue"}}});
    let config = parse(Role::Interface, &config).unwrap();
    assert_eq!(config.ipam, Ipam::Agent);
    assert_eq!(config.requested.pools[&Family::Ipv4], "blue");
    let config = json!({"name": "a", "ipam": {"type": "host-local", "pools": "its own"}});
    let config = parse(Role::Interface, &config).unwrap();
    assert_eq!(config.ipam, Ipam::Delegated("host-local".to_owned()));
}

/// Configurations, and the code and message of the refusal of each.
fn wrong_values() -> Vec<(Value, u32, &'static str)> {
    vec![
        (
            json!([]),
            6,
            "the network configuration is not a JSON object",
        ),
        (json!({}), 7, "name is missing; expected the network's name"),
        (json!({"name": 1}), 7, "name is 1: a string is allowed"),
        (
            json!({"name": "a/b"}),
            7,
            "name is \"a/b\": a letter or digit, then letters, digits, `_`, `.` and `-` are allowed",
        ),
        (
            json!({"name": "a", "socket": "run/x"}),
            7,
            "socket is \"run/x\": an absolute path is allowed",
        ),
        (
            json!({"name": "a", "timeout": 0}),
            7,
            "timeout is 0: 1 to 600 seconds are allowed",
        ),
        (
            json!({"name": "a", "families": []}),
            7,
            "families is []: a list of ipv4 and ipv6, each at most once, is allowed",
        ),
        (
            json!({"name": "a", "families": ["ipv4", "ipv4"]}),
            7,
            "families is [\"ipv4\",\"ipv4\"]: a list of ipv4 and ipv6, each at most once, is allowed",
        ),
        (
            json!({"name": "a", "pools": {"ipv4": ""}}),
            7,
            "pools is {\"ipv4\":\"\"}: an object with a pool's name for ipv4, ipv6 or both is allowed",
        ),
        (
            json!({"name": "a", "ipam": {"type": "../x"}}),
            7,
            "ipam.type is \"../x\": a plugin's name, without a folder, is allowed",
        ),
        (
            json!({"name": "a", "runtimeConfig": {"ips": ["10.0.0.1/33"]}}),
            7,
            "runtimeConfig.ips is [\"10.0.0.1/33\"]: a list of addresses, with a prefix length or \
             without, is allowed",
        ),
        (
            json!({"name": "a", "prevResult": {"ips": [{"address": "x"}]}}),
            7,
            "prevResult.ips is {\"address\":\"x\"}: an object with address is allowed",
        ),
        (
            json!({"name": "a", "cni.dev/valid-attachments": [{"containerID": "a"}]}),
            7,
            "cni.dev/valid-attachments is [{\"containerID\":\"a\"}]",
        ),
        (
            json!({"name": "a", "ipMasq": true}),
            2,
            "ipMasq is true: ipMasq is not supported",
        ),
    ]
}

#[test]
fn a_wrong_value_is_named_with_what_is_allowed() {
    for (config, code, message) in wrong_values() {
        let failure = refused(&config);
        assert_eq!(failure.message, message);
        assert_eq!(failure.code.number(), code, "{message}");
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z0-9./:]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("(type|ips|cni|ipv4|interfaces|address)", inner, 0..4)
                .prop_map(|map| map.into_iter().collect()),
        ]
    })
}

proptest! {
    #[test]
    fn any_value_of_any_field_is_read_or_refused(
        key in "(name|ipam|pools|families|socket|timeout|dns|args|runtimeConfig|prevResult|mtu|\
                cni.dev/valid-attachments|type|log-file)",
        value in any_json(),
        is_ipam in any::<bool>(),
    ) {
        let mut config = json!({"name": "towpath"});
        config[&key] = value;
        let role = if is_ipam { Role::Ipam } else { Role::Interface };
        if let Err(failure) = parse(role, &config) {
            prop_assert!(matches!(failure.code.number(), 2 | 7), "{failure}");
            prop_assert!(failure.message.contains(&key), "{failure}");
        }
    }

    #[test]
    fn what_a_plugin_before_us_had_stays(
        names in prop::collection::vec("[a-z]{1,8}", 0..4),
        addresses in prop::collection::vec(any::<[u8; 4]>(), 1..3),
        version in prop::sample::select(SpecVersion::ALL.to_vec()),
    ) {
        let before: Vec<_> = names.iter().map(|name| json!({"name": name})).collect();
        let config = json!({"name": "a", "prevResult": {"interfaces": before}});
        let invocation = Invocation { version, ..invocation(Role::Interface, Command::Add) };
        let config = Config::parse(invocation, &config, b"").unwrap();
        let attachment = crate::agent::wire::Attachment {
            netns: "/n".into(),
            host_device: "tow0".into(),
            host_mac: "m".into(),
            pod_mac: "p".into(),
            mtu: 1500,
            addresses: addresses.iter().map(|address| crate::agent::wire::AttachedAddress {
                address: IpAddr::from(*address),
                pod_gateway: IpAddr::from([169, 254, 1, 1]),
            }).collect(),
        };
        let interface = crate::result::Interface {
            name: "eth0",
            netns: "/n".as_ref(),
            attachment: &attachment,
        };
        let result = crate::result::of_attachment(&config, interface, &json!({}));
        let interfaces = result["interfaces"].as_array().unwrap();
        prop_assert_eq!(&interfaces[..before.len()], &before[..]);
        let object = result.as_object().unwrap().clone();
        let read = PreviousResult::new(object, "").unwrap();
        let position = read.interface("eth0", "/n".as_ref()).unwrap();
        prop_assert_eq!(position, before.len() + 1);
        let given: Vec<_> = addresses.iter().map(|address| IpAddr::from(*address)).collect();
        prop_assert_eq!(read.addresses_of(position), given);
        for ip in result["ips"].as_array().unwrap() {
            prop_assert_eq!(ip.get("version").is_some(), version < SpecVersion::V1_0_0);
        }
        prop_assert_eq!(interfaces[position].get("mtu").is_some(), version.has_mtu());
    }
}

#[test]
fn the_specifications_own_results_are_read() {
    // Appendix of the specification 1.0.0, "Add example".
    let later = json!({
        "ips": [{"address": "10.1.0.5/16", "gateway": "10.1.0.1", "interface": 2}],
        "routes": [{"dst": "0.0.0.0/0"}],
        "interfaces": [
            {"name": "cni0", "mac": "00:11:22:33:44:55"},
            {"name": "veth3243", "mac": "55:44:33:22:11:11"},
            {"name": "eth0", "mac": "99:88:77:66:55:44", "sandbox": "/var/run/netns/blue"}
        ],
        "dns": {"nameservers": ["10.1.0.1"]}
    });
    // In 0.4.0 each address names its family.
    let mut earlier = later.clone();
    earlier["cniVersion"] = json!("0.4.0");
    earlier["ips"][0]["version"] = json!("4");
    for result in [later, earlier] {
        let result = PreviousResult::new(result.as_object().unwrap().clone(), "").unwrap();
        let position = result.interface("eth0", "/var/run/netns/blue".as_ref());
        assert_eq!(position, Some(2));
        assert_eq!(result.addresses_of(2), [IpAddr::from([10, 1, 0, 5])]);
        assert_eq!(result.addresses_of(1), [] as [IpAddr; 0]);
        assert_eq!(
            result.interface("cni0", "/".as_ref()),
            None,
            "not in a sandbox"
        );
        assert_eq!(
            result.get("dns"),
            Some(&json!({"nameservers": ["10.1.0.1"]}))
        );
    }
}

#[test]
fn gc_of_a_delegated_plugin_keeps_what_is_the_agents_own() {
    let agents = [Owner {
        container_id: "towpath-ingress-a".to_owned(),
        interface: "eth0".to_owned(),
    }];
    let own = json!({"containerID": "towpath-ingress-a", "ifname": "eth0"});
    let pod = json!({"containerID": "p", "ifname": "eth0"});
    for (list, expected) in [
        (json!([pod]), json!([pod, own])),
        (json!(null), json!([own])),
    ] {
        for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
            let raw = json!({"cniVersion": "1.1.0", "name": "a", "type": "towpath-cni",
                "ipam": {"type": "host-local"}, key: list});
            let text = raw.to_string();
            let invocation = invocation(Role::Interface, Command::Gc);
            let config = Config::parse(invocation, &raw, text.as_bytes()).unwrap();
            let with: Value = serde_json::from_slice(&config.with_valid(&agents)).unwrap();
            assert_eq!(with[key], expected);
            assert_eq!(config.with_valid(&[]), text.as_bytes());
        }
    }
}
