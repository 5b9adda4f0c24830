//! Patches, applied as an API server applies them.

use std::collections::BTreeSet;

use json_patch::merge;

use super::*;
use crate::operation::status::BlocksStatus;

fn eni(id: &str, addresses: &[&str]) -> (String, EniStatus) {
    let status = EniStatus {
        id: id.to_owned(),
        number: 1,
        blocks: BlocksStatus {
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            ..BlocksStatus::default()
        },
        tags: [("k".to_owned(), "v".to_owned())].into(),
        ..EniStatus::default()
    };
    (id.to_owned(), status)
}

/// A status with a static IP that stays.
fn kept<'a>(
    enis: &'a BTreeMap<String, EniStatus>,
    marks: &'a Marks,
    report: &'a str,
) -> Status<'a> {
    Status {
        enis,
        static_ip: StaticIp::Kept,
        marks,
        report,
    }
}

fn object() -> Value {
    json!({
        "metadata": {"name": "node-a", "resourceVersion": "7"},
        "spec": {"ipam": {"podCIDRs": ["10.4.0.0/24"], "pre-allocate": 3}, "health": {"ipv4": "10.0.0.9"}},
        "status": {
            "ipam": {"release-ips": {"10.0.0.5": "released"}},
            "eni": {"enis": {
                "eni-1": {"id": "eni-1", "number": 1, "tags": {"old": "x", "k": "v"}, "new-field": 7},
                "eni-9": {"id": "eni-9"}
            }}
        }
    })
}

#[test]
fn the_status_shows_the_enis_and_leaves_foreign_fields() {
    let mut object = object();
    let enis = [eni("eni-1", &["10.0.0.5"]), eni("eni-2", &[])].into();
    let patch = status(&object, kept(&enis, &Marks::default(), "SubnetFull: x")).unwrap();
    assert_eq!(patch["metadata"], json!({"resourceVersion": "7"}));
    assert_eq!(patch["status"]["eni"]["enis"]["eni-9"], Value::Null);
    assert!(patch.get("spec").is_none());
    merge(&mut object, &patch);
    let shown = &object["status"]["eni"]["enis"];
    let ids: BTreeSet<_> = shown
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(ids, ["eni-1", "eni-2"].into());
    assert_eq!(shown["eni-1"]["tags"], json!({"k": "v"}));
    assert_eq!(shown["eni-1"]["new-field"], 7);
    let ipam = &object["status"]["ipam"];
    assert_eq!(ipam["operator-status"]["error"], "SubnetFull: x");
    assert_eq!(ipam["release-ips"]["10.0.0.5"], "released");
    assert_eq!(
        status(&object, kept(&enis, &Marks::default(), "SubnetFull: x")),
        None,
        "nothing would change"
    );

    let patch = status(&object, kept(&enis, &Marks::default(), "")).unwrap();
    assert!(patch["status"].get("eni").is_none());
    merge(&mut object, &patch);
    assert_eq!(status(&object, kept(&enis, &Marks::default(), "")), None);
}

#[test]
fn the_spec_has_the_addresses_and_nothing_is_written_twice() {
    let mut object = object();
    let of = |texts: &[&str]| -> Blocks {
        let block = |text: &&str| (text.parse().unwrap(), "eni-1".to_owned());
        texts.iter().map(block).collect()
    };
    let blocks = of(&["10.0.0.5/32", "10.0.0.64/28"]);
    let patch = spec(&object, &blocks, Compat::UntilAgent, Some(8)).unwrap();
    merge(&mut object, &patch);
    let ipam = object["spec"]["ipam"].clone();
    assert_eq!(ipam["pool"].as_object().unwrap().len(), 17);
    assert_eq!(ipam["pre-allocate"], 3, "it is there already");
    assert_eq!(ipam["podCIDRs"], json!(["10.4.0.0/24"]));
    assert_eq!(spec(&object, &blocks, Compat::UntilAgent, Some(8)), None);

    // One block goes: its addresses alone are removed.
    let fewer = of(&["10.0.0.64/28"]);
    let patch = spec(&object, &fewer, Compat::UntilAgent, None).unwrap();
    assert_eq!(patch["spec"]["ipam"]["pool"], json!({"10.0.0.5": null}));
    merge(&mut object, &patch);
    let allocated = json!([{"pool": "default", "cidrs": ["10.0.0.64/28"]}]);
    assert_eq!(object["spec"]["ipam"]["pools"]["allocated"], allocated);
    object["spec"]["ipam"]["pre-allocate"] = json!(null);
    let patch = spec(&object, &fewer, Compat::UntilAgent, Some(4)).unwrap();
    assert_eq!(patch["spec"], json!({"ipam": {"pre-allocate": 4}}));
}

#[test]
fn marks_come_and_go_beside_the_handshake_of_older_agents() {
    let mut object = object();
    object["status"]["ipam"]["release-ips"] =
        json!({"10.0.0.5": "marked-for-release", "10.0.0.16/28": "ready-for-release"});
    let before = object.clone();
    let marks = Marks {
        blocks: ["10.0.0.32/28".parse().unwrap()].into(),
        has_operator: true,
        words: BTreeMap::new(),
    };
    let shown = BTreeMap::new();
    let report = shown_report(&before).to_owned();
    let patch = status(&object, kept(&shown, &marks, &report)).unwrap();
    merge(&mut object, &patch);
    let expected = json!({
        "10.0.0.5": "marked-for-release", "10.0.0.32/28": "ready-for-release",
        "ipam.towpath.dev/operator": "do-not-release"
    });
    assert_eq!(object["status"]["ipam"]["release-ips"], expected);
    assert_eq!(status(&object, kept(&shown, &marks, &report)), None);

    let address = |text: &str| text.parse().unwrap();
    let words = Marks {
        words: [
            (address("10.0.0.5"), None),
            (address("10.0.0.6"), Some(Release::MarkedForRelease)),
        ]
        .into(),
        ..marks
    };
    let patch = status(&object, kept(&shown, &words, &report)).unwrap();
    merge(&mut object, &patch);
    let expected = json!({
        "10.0.0.6": "marked-for-release", "10.0.0.32/28": "ready-for-release",
        "ipam.towpath.dev/operator": "do-not-release"
    });
    assert_eq!(object["status"]["ipam"]["release-ips"], expected);
}

#[test]
fn the_static_ip_is_written_once_and_goes_only_where_the_node_has_none() {
    let mut object = object();
    let enis = [eni("eni-1", &[])].into();
    let of = |object: &Value, static_ip| {
        let marks = Marks::default();
        let shown = Status {
            static_ip,
            ..kept(&enis, &marks, "")
        };
        let patch = status(object, shown);
        patch.map(|it| it["status"]["ipam"].clone())
    };
    let first = status(&object, kept(&enis, &Marks::default(), "")).unwrap();
    merge(&mut object, &first);
    let assigned = StaticIp::Assigned("198.51.100.1".parse().unwrap());
    assert_eq!(of(&object, StaticIp::Missing), None);
    let patch = of(&object, assigned).unwrap();
    assert_eq!(patch, json!({"assigned-static-ip": "198.51.100.1"}));
    merge(&mut object["status"]["ipam"], &patch);
    for unchanged in [assigned, StaticIp::Kept] {
        assert_eq!(of(&object, unchanged), None);
    }
    let patch = of(&object, StaticIp::Missing).unwrap();
    assert_eq!(patch, json!({"assigned-static-ip": null}));
}
