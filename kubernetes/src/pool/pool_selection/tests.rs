use serde_json::json;

use super::*;

fn metadata(labels: &[(&str, &str)], annotations: &[(&str, &str)]) -> Metadata {
    let map = |pairs: &[(&str, &str)]| {
        let pairs = pairs.iter();
        pairs
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    };
    Metadata {
        namespace: "shop".to_owned(),
        name: "web-1".to_owned(),
        uid: String::new(),
        labels: map(labels),
        annotations: map(annotations),
    }
}

fn candidates() -> Candidates {
    let pool = |name: &str, spec: Value| json!({"metadata": {"name": name}, "spec": spec});
    let cidrs = json!({"cidrs": ["10.20.0.0/16"], "maskSize": 24});
    let labelled = |key: &str| json!({"matchLabels": {"team": key}});
    Candidates::read(
        &[
            pool("plain", json!({"ipv4": cidrs})),
            pool(
                "of-pods",
                json!({"ipv4": cidrs, "podSelector": labelled("blue")}),
            ),
            pool(
                "of-namespaces",
                json!({"ipv4": cidrs, "namespaceSelector": labelled("red")}),
            ),
            pool(
                "of-both",
                json!({
                    "ipv4": cidrs, "ipv6": {"cidrs": ["fd00::/104"], "maskSize": 120},
                    "podSelector": labelled("green"), "namespaceSelector": labelled("green")
                }),
            ),
            pool(
                "of-one",
                json!({
                    "ipv4": cidrs,
                    "podSelector": {"matchLabels": {
                        "io.kubernetes.pod.namespace": "shop", "io.kubernetes.pod.name": "web-2"
                    }}
                }),
            ),
            pool(
                "bad",
                json!({"ipv4": cidrs, "podSelector": {"matchExpressions": [
                    {"key": "a", "operator": "Like"}
                ]}}),
            ),
        ],
        None,
    )
}

fn chosen(family: Family, pod: &Metadata, namespace: &Metadata) -> Result<Choice, ChoiceError> {
    candidates().choose(family, pod, namespace, "default")
}

fn pool(family: Family, pod: &Metadata, namespace: &Metadata) -> (String, Why) {
    let choice = chosen(family, pod, namespace).unwrap();
    (choice.pool, choice.why)
}

#[test]
fn the_nearest_annotation_counts_and_that_of_the_family_first() {
    let v4 = "ipam.cilium.io/ipv4-pool";
    let v6 = "ipam.cilium.io/ipv6-pool";
    let both = metadata(&[], &[(IP_POOL, "a"), (v4, "b")]);
    let other = metadata(&[], &[(IP_POOL, "c"), (v6, "d")]);
    let none = metadata(&[], &[]);
    let empty = metadata(&[], &[(IP_POOL, "")]);
    for (pod, namespace, of_v4, of_v6) in [
        (&both, &other, ("b", Why::Pod(v4)), ("a", Why::Pod(IP_POOL))),
        (
            &none,
            &other,
            ("c", Why::Namespace(IP_POOL)),
            ("d", Why::Namespace(v6)),
        ),
        (
            &empty,
            &other,
            ("c", Why::Namespace(IP_POOL)),
            ("d", Why::Namespace(v6)),
        ),
        (
            &none,
            &none,
            ("default", Why::Default),
            ("default", Why::Default),
        ),
    ] {
        for (family, (name, why)) in [(Family::V4, of_v4), (Family::V6, of_v6)] {
            assert_eq!(pool(family, pod, namespace), (name.to_owned(), why));
        }
    }
}

#[test]
fn selectors_select_where_no_annotation_says_anything() {
    let none = metadata(&[], &[]);
    let team = |name: &str| metadata(&[("team", name)], &[]);
    let mut second = none.clone();
    second.name = "web-2".to_owned();
    for (pod, namespace, expected) in [
        (&none, &none, "default"),
        (&team("blue"), &none, "of-pods"),
        (&none, &team("red"), "of-namespaces"),
        // Both have to select.
        (&team("green"), &none, "default"),
        (&none, &team("green"), "default"),
        (&team("green"), &team("green"), "of-both"),
        (&second, &none, "of-one"),
    ] {
        assert_eq!(pool(Family::V4, pod, namespace).0, expected);
    }
    // A pool of the other family is none.
    assert_eq!(pool(Family::V6, &team("blue"), &none).0, "default");
    let annotated = metadata(&[("team", "blue")], &[(IP_POOL, "named")]);
    assert_eq!(pool(Family::V4, &annotated, &none).0, "named");
}

#[test]
fn two_pools_or_none_where_one_has_to_be_are_told() {
    let none = metadata(&[], &[]);
    let two = chosen(
        Family::V4,
        &metadata(&[("team", "blue")], &[]),
        &metadata(&[("team", "red")], &[]),
    );
    let message = two.unwrap_err().to_string();
    assert!(message.contains("pools of-namespaces and of-pods all select pod shop/web-1"));
    let asking = metadata(&[], &[(REQUIRE, "true")]);
    for (pod, namespace, whose) in [
        (&asking, &none, "the pod"),
        (&none, &asking, "its namespace"),
    ] {
        let message = chosen(Family::V4, pod, namespace).unwrap_err().to_string();
        assert!(
            message.contains(&format!("{REQUIRE} of {whose}")),
            "{message}"
        );
    }
    let not_asking = metadata(&[], &[(REQUIRE, "yes")]);
    assert_eq!(pool(Family::V4, &not_asking, &none).0, "default");
    let selected = metadata(&[("team", "blue")], &[(REQUIRE, "true")]);
    assert_eq!(pool(Family::V4, &selected, &none).0, "of-pods");
}

/// A pool whose selectors select pods of team blue, with a restriction.
fn restricted(restriction: &str) -> Candidates {
    let selector = json!({"matchLabels": {"team": "blue"}});
    Candidates::read(
        &[json!({
            "metadata": {"name": "blue", "annotations": {RESTRICT: restriction}},
            "spec": {"ipv4": {"cidrs": ["10.20.0.0/16"]}, "podSelector": selector}
        })],
        None,
    )
}

#[test]
fn an_annotation_chooses_a_pool_only_where_that_admits_the_pod() {
    let named = [(IP_POOL, "blue")];
    let none = metadata(&[], &[]);
    let (blue, red) = ([("team", "blue")], [("team", "red")]);
    for (restriction, of_blue, of_red) in [
        ("selectors", true, false),
        ("namespaces=shop,other", true, true),
        ("namespaces=other", false, false),
        ("namespaces", false, false),
    ] {
        let all = restricted(restriction);
        for (labels, expected) in [(blue, of_blue), (red, of_red)] {
            let by_pod = (metadata(&labels, &named), none.clone());
            let by_namespace = (metadata(&labels, &[]), metadata(&[], &named));
            // The restriction holds for pools of the other family as well.
            let families = [Family::V4, Family::V6].into_iter();
            for (family, (pod, namespace)) in families.zip([by_pod, by_namespace]) {
                let chosen = all.choose(family, &pod, &namespace, "default");
                assert_eq!(chosen.is_ok(), expected, "{restriction} {chosen:?}");
                if let Err(error) = chosen {
                    let message = error.to_string();
                    for part in ["pool blue", "shop/web-1", RESTRICT, IP_POOL] {
                        assert!(message.contains(part), "{message}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_restriction_narrows_selectors_and_leaves_the_default_pool_to_all() {
    let blue = metadata(&[("team", "blue")], &[]);
    let none = metadata(&[], &[]);
    for (restriction, expected) in [
        ("selectors", "blue"),
        ("namespaces=shop", "blue"),
        ("namespaces=other", "default"),
        ("nobody", "default"),
    ] {
        let all = restricted(restriction);
        let chosen = all.choose(Family::V4, &blue, &none, "default").unwrap();
        assert_eq!(chosen.pool, expected, "{restriction}");
        // A pod that names no pool has not chosen it.
        let chosen = all.choose(Family::V4, &none, &none, "blue").unwrap();
        assert_eq!(chosen.why, Why::Default, "{restriction}");
    }
    let candidates = restricted("nobody");
    assert!(candidates.problems()[0].starts_with("pool blue: metadata.annotations."));
}

#[test]
fn an_object_that_is_none_hides_no_other_one() {
    let good = json!({"metadata": {"name": "good"}, "spec": {
        "ipv4": {}, "podSelector": {"matchLabels": {"team": "blue"}}
    }});
    let bad = [
        json!(7),
        json!({}),
        json!({"metadata": 7, "spec": 7}),
        json!({"metadata": {"name": 7}}),
        json!({"metadata": {"name": "no-spec"}}),
        json!({"metadata": {"name": "a", "annotations": 7}, "spec": 7}),
        json!({"metadata": {"name": "b"}, "spec": {"ipv4": 7, "podSelector": 7}}),
        json!({"metadata": {"name": "c"}, "spec": {"ipv4": {}, "podSelector": {"matchLabels": 7}}}),
        json!({"metadata": {"name": "d"}, "spec": {"ipv4": {}, "namespaceSelector": []}}),
    ];
    let all = Candidates::read(bad.iter().chain([&good]), None);
    let blue = metadata(&[("team", "blue")], &[]);
    let chosen = all.choose(Family::V4, &blue, &metadata(&[], &[]), "default");
    assert_eq!(chosen.unwrap().pool, "good");
    let expected: Vec<_> = ["a", "b", "c", "d"]
        .map(|name| format!("pool {name}"))
        .into();
    for (problem, pool) in all.problems().iter().zip(&expected) {
        assert!(problem.starts_with(pool.as_str()), "{problem}");
    }
    assert_eq!(all.problems().len(), expected.len(), "{:?}", all.problems());
}

#[test]
fn a_selector_that_means_nothing_selects_nothing_and_is_told() {
    let all = candidates();
    let [problem] = all.problems() else {
        panic!("{:?}", all.problems())
    };
    assert!(
        problem.starts_with("pool bad selects no pod: spec.podSelector: "),
        "{problem}"
    );
    assert!(all.has("bad") && !all.has("missing"));
}

#[test]
fn a_slip_in_a_pool_changes_neither_its_pods_nor_whom_it_admits() {
    let pool = |restriction: &Value, team: &Value, namespaces: &Value| {
        json!({
            "metadata": {"name": "blue", "annotations": {RESTRICT: restriction}},
            "spec": {
                "ipv4": {"cidrs": ["10.20.0.0/16"]},
                "podSelector": {"matchLabels": {"team": team}}, "namespaceSelector": namespaces
            }
        })
    };
    let (good, none) = (json!("namespaces=shop"), json!(null));
    let first = pool(&good, &json!("blue"), &none);
    let before = Candidates::read([&first], None);
    let mut last = before.clone();
    for slip in [
        pool(&good, &json!(7), &none),
        pool(&good, &json!("red"), &json!([])),
        pool(&json!("namespaces"), &json!("blue"), &none),
        pool(&json!(7), &json!([]), &json!("all")),
    ] {
        // A second slip finds what the first one has left.
        last = Candidates::read([&slip], Some(&last));
        assert_eq!(last.by_name, before.by_name, "{slip}");
        assert!(!last.problems().is_empty() && before.problems().is_empty());
        let problem = last.problems().concat();
        assert!(
            problem.contains("before") || problem.contains("last good"),
            "{problem}"
        );
    }
    let wider = pool(&json!("namespaces=shop,other"), &json!("red"), &none);
    let changed = Candidates::read([&wider], Some(&last));
    assert_eq!(changed, Candidates::read([&wider], None));
    assert_ne!(changed.by_name, before.by_name);

    // Selectors that never could be read select no pod, however often they are read.
    let slip = pool(&good, &json!(7), &none);
    let mut never = Candidates::read([&slip], None);
    for _ in 0..2 {
        assert!(never.problems()[0].starts_with("pool blue selects no pod: "));
        never = Candidates::read([&slip], Some(&never));
    }

    // If the first restriction is unreadable, no pod may use the pool.
    let open = json!({"metadata": {"name": "blue"}, "spec": first["spec"]});
    let open = Candidates::read([&open], None);
    let closed = Candidates::read(
        [&pool(&json!("nobody"), &json!("blue"), &none)],
        Some(&open),
    );
    assert!(open.problems().is_empty() && closed.is_restricted("blue"));
    let blue = metadata(&[("team", "blue")], &[]);
    let chosen = closed.choose(Family::V4, &blue, &metadata(&[], &[]), "default");
    assert_eq!(chosen.unwrap().pool, "default");
}
