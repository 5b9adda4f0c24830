//! The documents that the operator writes, against the schemas of Cilium's own resource: an API server
//! drops fields that its schema does not know, and refuses values that break it.
#![expect(
    clippy::unwrap_used,
    reason = "clippy knows only test functions: a panic in a helper fails its test"
)]

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use ipam::EdgeRules;
use ipnet::IpNet;
use json_patch::merge;
use kubernetes::operation::allocated::{Blocks, Compat};
use kubernetes::operation::patch::{self, Marks};
use kubernetes::operation::plain;
use kubernetes::operation::report::{Reason, Report};
use kubernetes::operation::status::{BlocksStatus, EniStatus, SubnetStatus, VpcStatus};
use serde_json::{Value, json};

const CILIUM_1_19: &str = include_str!("schemas/ciliumnode-1.19.txt");
const CILIUM_1_20: &str = include_str!("schemas/ciliumnode-1.20.txt");

/// A schema: the words of each path.
struct Schema(BTreeMap<&'static str, Vec<&'static str>>);

impl Schema {
    fn read(text: &'static str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        Self(
            lines
                .map(|line| {
                    let (path, words) = line.split_once(' ').unwrap();
                    (path, words.split(' ').collect())
                })
                .collect(),
        )
    }

    /// The faults of the operator's parts of an object: paths with a reason.
    fn faults(&self, object: &Value) -> Vec<String> {
        let mut faults = Vec::new();
        for part in ["spec", "status"] {
            self.check(part, &object[part], &mut faults);
        }
        faults
    }

    fn check(&self, path: &str, value: &Value, faults: &mut Vec<String>) {
        let Some(words) = self.0.get(path) else {
            faults.push(format!("{path} is not known"));
            return;
        };
        let broken = words.iter().find(|word| !holds(word, value));
        faults.extend(broken.map(|word| format!("{path} is not {word}: {value}")));
        let is_map = self.0.contains_key(format!("{path}{{}}").as_str());
        for (key, value) in value.as_object().into_iter().flatten() {
            let inner = if is_map {
                format!("{path}{{}}")
            } else {
                format!("{path}.{key}")
            };
            self.check(&inner, value, faults);
        }
        for value in value.as_array().into_iter().flatten() {
            self.check(&format!("{path}[]"), value, faults);
        }
    }
}

/// Judges a value by a word of the schema.
fn holds(word: &str, value: &Value) -> bool {
    let text = value.as_str();
    match word.split_once('=') {
        None => match word {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_i64() || value.is_u64(),
            "cidr" => text.is_some_and(|text| text.parse::<IpNet>().is_ok()),
            _ => panic!("{word}"),
        },
        Some((">", least)) => value.as_i64() >= least.parse().ok(),
        Some(("length>", least)) => text.map(str::len) >= least.parse().ok(),
        Some(("one-of", values)) => text.is_some_and(|text| values.split(',').any(|v| v == text)),
        Some(("required", keys)) => keys.split(',').all(|key| value.get(key).is_some()),
        Some(_) => panic!("{word}"),
    }
}

/// An ENI with every field.
fn eni(ipv6_prefixes: &[&str]) -> EniStatus {
    EniStatus {
        id: "eni-1".to_owned(),
        ip: "10.0.1.10".parse().ok(),
        mac: "06:7e:00:00:00:01".to_owned(),
        zone: "eu-west-1a".to_owned(),
        description: "of node-a".to_owned(),
        number: 1,
        subnet: SubnetStatus {
            id: "subnet-1".to_owned(),
            cidr: "10.0.1.0/24".parse().ok(),
        },
        vpc: VpcStatus {
            id: "vpc-1".to_owned(),
            primary: "10.0.0.0/16".parse().ok(),
            cidrs: ["10.1.0.0/16", "2001:db8::/56"]
                .map(|text| text.parse().unwrap())
                .into(),
        },
        blocks: BlocksStatus {
            addresses: ["10.0.1.20".parse().unwrap()].into(),
            prefixes: ["10.0.1.64/28".parse().unwrap()].into(),
            ipv6_prefixes: ipv6_prefixes
                .iter()
                .map(|text| text.parse().unwrap())
                .collect(),
            with_own: true,
        },
        groups: ["sg-1".to_owned()].into(),
        tags: [("k".to_owned(), "v".to_owned())].into(),
        public_ip: "198.51.100.1".parse().ok(),
    }
}

/// Everything that the operator can write into a `CiliumNode`, with each form of `pools.allocated`.
fn documents(blocks: &[&str], ipv6_prefixes: &[&str]) -> Vec<Value> {
    let block = |text: &&str| (text.parse().unwrap(), "eni-1".to_owned());
    let blocks: Blocks = blocks.iter().map(block).collect();
    let report = Report {
        reason: Reason::SubnetFull,
        text: "subnet-1 has no free prefix".to_owned(),
        since: "2026-11-26T12:00:00Z".to_owned(),
        next: None,
    };
    let bare = EniStatus {
        id: "eni-2".to_owned(),
        ..EniStatus::default()
    };
    let enis = [
        ("eni-1".to_owned(), eni(ipv6_prefixes)),
        ("eni-2".to_owned(), bare),
    ]
    .into();
    let marks = Marks {
        blocks: ["10.0.1.80/28".parse().unwrap()].into(),
        has_operator: true,
        words: BTreeMap::new(),
    };
    let compats = [Compat::UntilAgent, Compat::Always, Compat::Never];
    let document = |compat| {
        let static_ip = patch::StaticIp::Assigned(Ipv4Addr::new(198, 51, 100, 1));
        let mut object = json!({"metadata": {"name": "node-a"}, "spec": {}, "status": {}});
        let shown = patch::Status {
            enis: &enis,
            static_ip,
            marks: &marks,
            report: &report.to_string(),
        };
        let written = patch::status(&object, shown).unwrap();
        merge(&mut object, &written);
        let written = patch::spec(&object, &blocks, compat, Some(8)).unwrap();
        merge(&mut object, &written);
        object
    };
    compats.into_iter().map(document).collect()
}

#[test]
fn what_is_written_for_ipv4_passes_both_schemas() {
    for text in [CILIUM_1_19, CILIUM_1_20] {
        let schema = Schema::read(text);
        for document in documents(&["10.0.1.20/32", "10.0.1.64/28"], &[]) {
            assert_eq!(schema.faults(&document), [""; 0], "{document:#}");
        }
    }
}

#[test]
fn only_cilium_1_20_knows_ipv6_prefixes() {
    let prefix = "2001:db8:0:1:a::/80";
    let blocks = ["10.0.1.64/28", prefix, "2001:db8:0:1::7/128"];
    for document in documents(&blocks, &[prefix]) {
        assert_eq!(Schema::read(CILIUM_1_20).faults(&document), [""; 0]);
        let unknown = "status.eni.enis{}.ipv6-prefixes is not known";
        assert_eq!(Schema::read(CILIUM_1_19).faults(&document), [unknown]);
    }
}

#[test]
fn blocks_of_plain_pools_pass_both_schemas_and_their_flags_the_newer_one() {
    let nets = ["172.16.0.0/28", "fd00::/120"].map(|text| text.parse().unwrap());
    let blocks = [("green".to_owned(), nets.into())].into();
    let faults = |text, edges| {
        let mut object = json!({
            "spec": {"ipam": {"podCIDRs": ["172.17.0.0/24"]}}, "status": {}
        });
        let written = plain::migrated(&object).unwrap();
        merge(&mut object, &written);
        let written = plain::granted(&object, &blocks, |_| edges).unwrap();
        merge(&mut object, &written);
        assert_eq!(
            object["spec"]["ipam"]["pools"]["allocated"][1]["pool"],
            "green"
        );
        Schema::read(text).faults(&object)
    };
    for text in [CILIUM_1_19, CILIUM_1_20] {
        assert_eq!(faults(text, EdgeRules::default()), [""; 0]);
    }
    assert_eq!(faults(CILIUM_1_20, EdgeRules::ALL), [""; 0]);
    let unknown = "spec.ipam.pools.allocated[].allowFirstIP is not known";
    assert_eq!(faults(CILIUM_1_19, EdgeRules::ALL)[0], unknown);
}

#[test]
fn the_check_finds_what_an_api_server_refuses() {
    let schema = Schema::read(CILIUM_1_20);
    for (document, fault) in [
        (
            json!({"spec": {"ipam": {"x": 1}}}),
            "spec.ipam.x is not known",
        ),
        (
            json!({"spec": {"ipam": {"pre-allocate": -1}}}),
            "spec.ipam.pre-allocate is not >=0: -1",
        ),
        (
            json!({"spec": {"ipam": {"pools": {"allocated": [{"cidrs": ["10.0.0.1/33"]}]}}}}),
            "spec.ipam.pools.allocated[] is not required=pool",
        ),
        (
            json!({"spec": {"ipam": {"pools": {"allocated": [{"pool": "", "cidrs": []}]}}}}),
            "spec.ipam.pools.allocated[].pool is not length>=1: \"\"",
        ),
        (
            json!({"status": {"eni": {"enis": {"e": {"subnet": {"cidr": "10.0.0.1/33"}}}}}}),
            "status.eni.enis{}.subnet.cidr is not cidr: \"10.0.0.1/33\"",
        ),
        (
            json!({"status": {"ipam": {"release-ips": {"10.0.0.1": "gone"}}}}),
            "status.ipam.release-ips{} is not one-of=",
        ),
        (
            json!({"status": {"eni": {"enis": []}}}),
            "status.eni.enis is not object: []",
        ),
    ] {
        let mut whole = json!({"spec": {}, "status": {}});
        merge(&mut whole, &document);
        let faults = schema.faults(&whole);
        assert!(
            faults.iter().any(|one| one.starts_with(fault)),
            "{faults:?}"
        );
    }
}
