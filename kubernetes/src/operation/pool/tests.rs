use super::*;

fn pool() -> Value {
    json!({
        "metadata": {
            "name": "green", "uid": "u1", "resourceVersion": "7",
            "creationTimestamp": "2026-01-31T12:00:00Z", "finalizers": ["other/one"]
        },
        "spec": {
            "ipv4": {"cidrs": ["10.10.0.0/16", "10.20.0.0/16"], "maskSize": 24},
            "ipv6": {"cidrs": ["fd00::/104"], "maskSize": 120},
            "allowFirstIP": true
        }
    })
}

fn nets(texts: &[&str]) -> BTreeSet<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn a_pool_is_read_and_one_bad_entry_costs_itself() {
    let mut object = pool();
    object["spec"]["ipv4"]["cidrs"][1] = json!("fd00::/64");
    let read = PoolDocument::read(&object);
    let spec = read.plain.unwrap();
    assert_eq!((read.name.as_str(), read.uid.as_str()), ("green", "u1"));
    assert_eq!(read.api_version, "v2alpha1");
    object["apiVersion"] = json!("cilium.io/v2");
    assert_eq!(PoolDocument::read(&object).api_version, "v2");
    assert_eq!(
        spec.spaces[&Family::V4].cidrs,
        ["10.10.0.0/16".parse().unwrap()]
    );
    assert_eq!(spec.spaces[&Family::V6].mask, 120);
    assert!(spec.edges.allow_first && !spec.edges.allow_last && !spec.is_deleted);
    let problems: Vec<String> = read.problems.iter().map(ToString::to_string).collect();
    let expected = "spec.ipv4.cidrs[1]: \"fd00::/64\" is refused: expected a CIDR of the family";
    assert_eq!(problems, [expected]);
}

#[test]
fn a_family_without_a_mask_and_a_pool_that_is_bound_are_not_served() {
    let mut object = pool();
    object["spec"]["ipv4"]["maskSize"] = json!(33);
    let read = PoolDocument::read(&object);
    assert_eq!(read.problems.len(), 1);
    assert!(!read.plain.unwrap().spaces.contains_key(&Family::V4));
    for (key, value) in [
        ("subnet-ids", "subnet-1"),
        ("eni-tags", ""),
        ("unknown", "x"),
    ] {
        let mut object = pool();
        object["metadata"]["annotations"] = json!({format!("ipam.towpath.dev/{key}"): value});
        assert_eq!(PoolDocument::read(&object).plain, None, "{key}");
    }
}

#[test]
fn reserved_ranges_are_read() {
    let mut object = pool();
    object["spec"]["ipv4"]["pool"] = json!([{"cidr": "10.10.0.0/16", "reservedRanges": [
        {"start": "10.10.0.1", "end": "10.10.0.63"}, {"start": "10.10.1.9", "end": "10.10.1.1"}
    ]}]);
    let read = PoolDocument::read(&object);
    let range = ("10.10.0.1".parse().unwrap(), "10.10.0.63".parse().unwrap());
    assert_eq!(read.plain.unwrap().spaces[&Family::V4].reserved, [range]);
    assert_eq!(read.problems.len(), 1, "{:?}", read.problems);
}

#[test]
fn a_pool_is_marked_once_and_foreign_finalizers_stay() {
    let mut object = pool();
    let patch = PoolDocument::read(&object)
        .marks(&nets(&["10.20.0.0/16"]), true)
        .unwrap();
    let expected = json!({"metadata": {
        "resourceVersion": "7", "finalizers": ["other/one", FINALIZER],
        "annotations": {IN_USE: "10.20.0.0/16"}
    }});
    assert_eq!(patch, expected);
    object["metadata"]["finalizers"] = patch["metadata"]["finalizers"].clone();
    object["metadata"]["annotations"] = patch["metadata"]["annotations"].clone();
    let read = PoolDocument::read(&object);
    assert_eq!(read.marks(&nets(&["10.20.0.0/16"]), true), None);
    let patch = read.marks(&nets(&[]), false).unwrap();
    let expected = json!({"resourceVersion": "7", "annotations": {IN_USE: null}});
    assert_eq!(
        patch["metadata"], expected,
        "the finalizer is there as long as the pool"
    );
}

#[test]
fn a_deleted_pool_goes_when_no_node_has_a_block_of_it() {
    let mut object = pool();
    object["metadata"]["deletionTimestamp"] = json!("2026-02-01T00:00:00Z");
    // It had none, and gets none: the API server would refuse it.
    assert_eq!(PoolDocument::read(&object).marks(&nets(&[]), true), None);
    object["metadata"]["finalizers"] = json!([FINALIZER, "other/one"]);
    let read = PoolDocument::read(&object);
    assert_eq!(read.marks(&nets(&[]), true), None);
    let patch = read.marks(&nets(&[]), false).unwrap();
    assert_eq!(patch["metadata"]["finalizers"], json!(["other/one"]));
}

#[test]
fn a_pool_that_is_plain_no_more_has_its_marks_until_its_last_block() {
    for (key, value) in [("subnet-ids", "subnet-1"), ("unknown", "x")] {
        let mut object = pool();
        object["metadata"]["finalizers"] = json!([FINALIZER]);
        object["metadata"]["annotations"] = json!({
            IN_USE: "10.10.0.0/16", format!("ipam.towpath.dev/{key}"): value
        });
        let read = PoolDocument::read(&object);
        assert_eq!(read.marks(&nets(&[]), true), None, "{key}");
        let patch = read.marks(&nets(&[]), false).unwrap();
        let expected = json!({
            "resourceVersion": "7", "finalizers": [], "annotations": {IN_USE: null}
        });
        assert_eq!(patch["metadata"], expected, "{key}");
        // One that never gave a block has none to lose.
        object["metadata"]["finalizers"] = json!([]);
        object["metadata"]["annotations"][IN_USE] = Value::Null;
        let read = PoolDocument::read(&object);
        assert_eq!(read.marks(&nets(&[]), false), None, "{key}");
    }
}
