use super::*;

fn blocks(pool: &str, cidrs: &[&str]) -> Blocks {
    let nets = cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect();
    [(pool.to_owned(), nets)].into()
}

fn node() -> Value {
    json!({
        "metadata": {"name": "n", "resourceVersion": "9"},
        "spec": {"ipam": {"pools": {
            "requested": [{"pool": "red", "needed": {"ipv4-addrs": 36}}],
            "allocated": [
                {"pool": "red", "allowLastIP": true, "cidrs": ["10.20.0.16/28"]},
                {"pool": "default", "cidrs": ["10.0.0.5/32"]}
            ]
        }}}
    })
}

#[test]
fn blocks_are_added_and_nothing_is_taken_away() {
    let granted = |pool, cidrs: &[&str]| granted(&node(), &blocks(pool, cidrs), |_| EdgeRules::ALL);
    let patch = granted("red", &["10.20.0.0/28", "fd00::/120", "10.20.0.16/28"]).unwrap();
    let expected = json!({"metadata": {"resourceVersion": "9"}, "spec": {"ipam": {"pools": {
        "allocated": [
            {"pool": "default", "cidrs": ["10.0.0.5/32"]},
            {"pool": "red", "allowLastIP": true,
             "cidrs": ["10.20.0.0/28", "10.20.0.16/28", "fd00::/120"]}
        ]
    }}}});
    assert_eq!(
        patch, expected,
        "the flags are those of the entry that is there"
    );
    let patch = granted("blue", &["10.9.0.0/24"]).unwrap();
    let new = &patch["spec"]["ipam"]["pools"]["allocated"][0];
    let expected = json!({
        "pool": "blue", "allowFirstIP": true, "allowLastIP": true, "cidrs": ["10.9.0.0/24"]
    });
    assert_eq!(*new, expected);
    assert_eq!(granted("red", &["10.20.0.16/28"]), None);
    assert_eq!(granted("blue", &[]), None);
}

#[test]
fn a_pool_without_flags_has_none_in_the_entry() {
    let patch = granted(&json!({}), &blocks("p", &["10.9.0.0/24"]), |_| {
        EdgeRules::default()
    });
    let allocated = &patch.unwrap()["spec"]["ipam"]["pools"]["allocated"];
    assert_eq!(*allocated, json!([{"pool": "p", "cidrs": ["10.9.0.0/24"]}]));
}

#[test]
fn pod_cidrs_become_blocks_of_the_default_pool() {
    let mut object = json!({
        "metadata": {"resourceVersion": "3"},
        "spec": {"ipam": {"podCIDRs": ["10.1.0.0/24", "fd00:1::/112"]}}
    });
    let expected = json!({"metadata": {"resourceVersion": "3"}, "spec": {"ipam": {
        "podCIDRs": null,
        "pools": {"allocated": [{"pool": "default", "cidrs": ["10.1.0.0/24", "fd00:1::/112"]}]}
    }}});
    assert_eq!(migrated(&object).unwrap(), expected);
    // Nothing is lost for a CIDR that cannot be read.
    object["spec"]["ipam"]["podCIDRs"][0] = json!("all");
    assert_eq!(migrated(&object), None);
    object["spec"]["ipam"]["podCIDRs"] = json!([]);
    assert_eq!(migrated(&object), None);
}

#[test]
fn a_touch_changes_metadata_alone() {
    assert_eq!(
        touch("e1"),
        json!({"metadata": {"annotations": {EPOCH: "e1"}}})
    );
}
