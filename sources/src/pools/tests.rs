//! Accepted documents, and the effects on their pools.

use std::collections::BTreeSet;
use std::sync::Arc;

use ipam::Family;
use loader::intent::masquerade::{MasqueradeSettings, Policy};

use super::*;

fn fragments(texts: &[&str]) -> Fragments {
    let named = |(i, text): (usize, &&str)| Fragment {
        path: format!("/pools/{i}.yaml").into(),
        text: Ok((*text).to_owned()),
    };
    Fragments::Found(texts.iter().enumerate().map(named).collect())
}

fn parse(texts: &[&str]) -> Result<Pools, String> {
    parse_after(texts, None)
}

fn parse_after(texts: &[&str], last: Option<&Pools>) -> Result<Pools, String> {
    PoolDocuments.parse(Path::new("/pools"), &fragments(texts), last)
}

/// Refused fields, as text.
fn refused(pools: &Pools) -> Vec<String> {
    pools.refused().iter().map(ToString::to_string).collect()
}

fn pool(name: &str, annotations: &str) -> String {
    format!(
        "apiVersion: cilium.io/v2alpha1\nkind: CiliumPodIPPool\nmetadata:\n  name: {name}\n  \
         annotations: {annotations}\nspec:\n  ipv4: {{cidrs: [10.9.0.0/16], maskSize: 28}}\n"
    )
}

fn skip(value: &str) -> String {
    format!("{{\"ipam.cilium.io/skip-masquerade\": {value}}}")
}

#[test]
fn only_true_skips() {
    for (value, skips, problems) in [
        ("\"true\"", true, 0),
        ("\"false\"", false, 0),
        ("\"True\"", false, 1),
        ("\"1\"", false, 1),
        ("\"\"", false, 1),
        ("true", false, 1),
        ("[x]", false, 1),
    ] {
        let pools = parse(&[&pool("red", &skip(value))]).unwrap();
        assert_eq!(pools.refused().len(), problems, "{value}: {pools:?}");
        let policy = Policy {
            pools: Some(Arc::new(pools)),
            agent: None,
        };
        let red = policy.pool("red", &MasqueradeSettings::default()).unwrap();
        assert_eq!(red.skip_masquerade, skips, "{value}: {red:?}");
    }
}

#[test]
fn many_documents_in_yaml_json_and_lists_are_one_set() {
    let two = format!("{}---\n{}---\n", pool("a", "{}"), pool("b", "null"));
    let json = r#"{"apiVersion": "cilium.io/v2alpha1", "kind": "CiliumPodIPPool",
        "metadata": {"name": "c", "annotations": {"ipam.cilium.io/skip-masquerade": "true"}}}"#;
    let list = format!("{{\"kind\": \"List\", \"apiVersion\": \"v1\", \"items\": [{json}]}}");
    let list = list.replace("\"c\"", "\"d\"");
    let pools = parse(&[&two, json, &list, "", "# nothing\n---\n---\n"]).unwrap();
    assert_eq!(pools.names().collect::<Vec<_>>(), ["a", "b", "c", "d"]);
    assert_eq!(pools.by_name["b"].number, 2);
    assert!(pools.by_name["d"].skip);
}

#[test]
fn what_is_wrong_is_named_with_file_document_and_field() {
    let good = pool("a", "{}");
    let cases = [
        (
            pool("b", "{}"),
            "/pools/1.yaml: document 2: metadata.name: \"b\" is refused; allowed: a name that no \
             other document has; /pools/1.yaml, document 1 has it",
        ),
        (
            good.replace("CiliumPodIPPool", "CiliumNode"),
            "/pools/1.yaml: document 2: kind: \"CiliumNode\" is refused; allowed: CiliumPodIPPool",
        ),
        (
            good.replace("v2alpha1", "v1"),
            "/pools/1.yaml: document 2: apiVersion: \"cilium.io/v1\" is refused; allowed: \
             cilium.io/v2alpha1 or cilium.io/v2",
        ),
        (
            good.replace("name: a", "name:"),
            "/pools/1.yaml: document 2: metadata.name: missing; allowed: the name of the pool",
        ),
        (
            good.replace("name: a", "name: [a]"),
            "/pools/1.yaml: document 2: metadata.name: [\"a\"] is refused",
        ),
        (
            "7".to_owned(),
            "/pools/1.yaml: document 2: document: 7 is refused; allowed: a CiliumPodIPPool",
        ),
        (
            "kind: List\nitems: 7\n".to_owned(),
            "/pools/1.yaml: document 2: items: 7 is refused; allowed: a list of pools",
        ),
        ("a: [".to_owned(), "/pools/1.yaml: document 2: "),
    ];
    for (text, expected) in cases {
        let second = format!("{}---\n{text}", pool("b", "{}"));
        let pools = parse(&[&pool("first", "{}"), &second, &pool("last", "{}")]).unwrap();
        let [problem] = refused(&pools).try_into().unwrap();
        assert!(problem.starts_with(expected), "{problem}");
        let names: Vec<_> = pools.names().collect();
        assert_eq!(names, ["b", "first", "last"], "the others are there");
        if !text.contains("name: b") {
            let error = parse(&[&text]).unwrap_err();
            let expected = expected.replace("1.yaml: document 2", "0.yaml: document 1");
            assert!(error.starts_with(&expected), "nothing can be used: {error}");
        }
    }
    let path = Path::new("/pools");
    let missing = PoolDocuments.parse(path, &Fragments::Missing, None);
    assert_eq!(missing, Err("/pools: there is no such file".to_owned()));
}

const V4: &[Family] = &[Family::V4];
const V6: &[Family] = &[Family::V6];
const BOTH: &[Family] = &[Family::V4, Family::V6];

/// Specifications, the families that remain, and the starts of what is said of each.
const WRONG_FIELDS: &[(&str, &[Family], &[&str])] = &[
    ("7", &[], &["spec: 7 is refused; allowed: an object"]),
    ("{}", &[], &[]),
    (
        "{ipv4: x, ipv6: {cidrs: [fd00::/104]}}",
        V6,
        &["spec.ipv4: \"x\" is refused"],
    ),
    (
        "{ipv4: {cidrs: 10.0.0.0/8}}",
        V4,
        &["spec.ipv4.cidrs: \"10.0.0.0/8\" is refused; allowed: a list"],
    ),
    (
        "{ipv4: {cidrs: [10.0.0.300/8, 10.0.0.0/8, fd00::/8, 7]}}",
        V4,
        &[
            "spec.ipv4.cidrs[0]: \"10.0.0.300/8\"",
            "spec.ipv4.cidrs[2]: \"fd00::/8\"",
            "spec.ipv4.cidrs[3]: 7",
        ],
    ),
    (
        "{ipv4: {cidrs: [10.0.0.0/16], maskSize: 33}, ipv6: {cidrs: [fd00::/64], maskSize: 129}}",
        BOTH,
        &[
            "spec.ipv4.maskSize: 33 is refused; allowed: 16 to 32",
            "spec.ipv6.maskSize: 129",
        ],
    ),
    (
        "{ipv4: {cidrs: [10.0.0.0/16], maskSize: 8}}",
        V4,
        &["spec.ipv4.maskSize: 8"],
    ),
    (
        "{ipv4: {maskSize: big}}",
        V4,
        &["spec.ipv4.maskSize: \"big\""],
    ),
];

#[test]
fn a_field_that_is_wrong_costs_no_other_one() {
    let spec = |spec: &str| {
        let head =
            "apiVersion: cilium.io/v2alpha1\nkind: CiliumPodIPPool\nmetadata:\n  name: red\n";
        let skip = "  annotations: {ipam.cilium.io/skip-masquerade: 'true'}\n";
        format!("{head}{skip}spec: {spec}\n")
    };
    for (text, families, expected) in WRONG_FIELDS {
        let pools = parse(&[&spec(text), &pool("blue", "{}")]).unwrap();
        assert!(pools.has("blue") && pools.by_name["red"].skip, "{text}");
        let found = &pools.by_name["red"].pool.families;
        assert_eq!(*found, families.iter().copied().collect(), "{text}");
        let problems = refused(&pools);
        assert_eq!(problems.len(), expected.len(), "{problems:?}");
        for (problem, expected) in problems.iter().zip(*expected) {
            assert!(
                problem.starts_with(&format!("pool red: {expected}")),
                "{problem}"
            );
        }
    }
    let without = spec("null");
    let pools = parse(&[&without]).unwrap();
    assert!(pools.has("red") && pools.notes()[0].starts_with("pool red: spec: missing"));
}

#[test]
fn pools_of_a_file_that_cannot_be_read_any_more_stay() {
    let one = format!("{}---\n{}", pool("a", "{}"), pool("b", "{}"));
    let two = pool("c", "{}");
    let before = parse(&[&one, &two]).unwrap();
    let broken = format!("{}---\na: [", pool("a", &skip("'true'")));
    let after = parse_after(&[&broken, &two], Some(&before)).unwrap();
    assert_eq!(after.names().collect::<Vec<_>>(), ["a", "b", "c"]);
    assert!(after.by_name["a"].skip, "what can be read of it counts");
    // So does what stands elsewhere by now.
    let moved = pool("b", &skip("'true'"));
    let after = parse_after(&[&broken, &moved], Some(&after)).unwrap();
    assert_eq!(after.names().collect::<Vec<_>>(), ["a", "b"]);
    assert!(after.by_name["b"].skip && after.refused().len() == 1);
    let mut unreadable = fragments(&["", &two]);
    if let Fragments::Found(all) = &mut unreadable {
        all[0].text = Err("is not a text".to_owned());
    }
    let path = Path::new("/pools");
    let after = PoolDocuments
        .parse(path, &unreadable, Some(&before))
        .unwrap();
    assert_eq!(after.names().collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(refused(&after), ["/pools/0.yaml: is not a text"]);
    // Once it can be read, what stands in it counts.
    let mended = parse_after(&["", &two], Some(&after)).unwrap();
    assert_eq!(mended.names().collect::<Vec<_>>(), ["c"]);
}

#[test]
fn the_policy_of_a_pool() {
    let documents = [
        pool("default", &skip("'true'")),
        pool("red", &skip("'true'")),
    ];
    let texts: Vec<&str> = documents.iter().map(String::as_str).collect();
    let policy = Policy {
        pools: Some(Arc::new(parse(&texts).unwrap())),
        agent: None,
    };
    let none = Policy::default();
    let with_file = MasqueradeSettings {
        pools: Some("/pools".into()),
        ..MasqueradeSettings::default()
    };
    let only_default = MasqueradeSettings {
        only_default_pool: true,
        ..with_file.clone()
    };
    let plain = MasqueradeSettings::default();
    let cases = [
        (&policy, &with_file, "default", Some(true)),
        (&policy, &with_file, "red", Some(true)),
        (&policy, &with_file, "blue", Some(false)),
        (&policy, &only_default, "default", Some(true)),
        (&policy, &only_default, "blue", Some(true)),
        (&none, &only_default, "blue", Some(true)),
        // Not known yet.
        (&none, &only_default, "default", None),
        (&none, &with_file, "red", None),
        (&none, &plain, "red", Some(false)),
    ];
    for (policy, settings, name, expected) in cases {
        let skips = policy.pool(name, settings).map(|p| p.skip_masquerade);
        assert_eq!(skips, expected, "{name} {settings:?}");
    }
}

#[test]
fn bindings_are_read_and_mistakes_in_them_named() {
    let bound = pool("blue", "{\"ipam.towpath.dev/eni-tags\": \"team=blue\"}");
    let plain = pool("red", "{\"ipam.towpath.dev/restrict\": \"selectors\"}");
    let before = parse(&[&bound, &plain]).unwrap();
    let pools = before.for_allocation();
    assert!(pools["blue"].binding.is_some() && pools["red"].binding.is_none());
    assert_eq!(pools["red"].families, [Family::V4].into());
    for (annotations, expected) in [
        (
            "{ipam.towpath.dev/eni-tag: team=blue}",
            "metadata.annotations: ipam.towpath.dev/eni-tag is unknown",
        ),
        (
            "{ipam.towpath.dev/eni-tags: team}",
            "metadata.annotations: ipam.towpath.dev/eni-tags: \"team\" is no tag",
        ),
        (
            "{ipam.towpath.dev/eni-tags: 7}",
            "metadata.annotations.ipam.towpath.dev/eni-tags: 7 is refused",
        ),
        (
            "[x]",
            "metadata.annotations: [\"x\"] is refused; allowed: a map of texts",
        ),
    ] {
        let mistaken = pool("blue", annotations);
        let after = parse(&[&mistaken, &plain]).unwrap();
        let [problem] = refused(&after).try_into().unwrap();
        assert!(
            problem.starts_with(&format!("pool blue: {expected}")),
            "{problem}"
        );
        assert_eq!(after.refused()[0].kind, RefusedKind::Annotation);
        // Neither a plain pool nor any ENI's: what it is bound to is not known.
        let nothing = Some(Binding::nothing());
        assert_eq!(
            after.for_allocation()["blue"].binding,
            nothing,
            "{annotations}"
        );
        // A known value stays, also when it is read from its kept record.
        let after = parse_after(&[&mistaken, &plain], Some(&before)).unwrap();
        let kept = read(Path::new("/kept"), &after.text(), None).unwrap();
        for pools in [after, kept].map(|pools| pools.for_allocation()) {
            assert_eq!(pools, before.for_allocation(), "{annotations}");
        }
    }
}

#[test]
fn pools_are_read_from_what_was_kept_of_them() {
    let texts = [
        pool("a", &skip("'true'")),
        pool("b", "{ipam.towpath.dev/subnet-ids: subnet-1, other: x}"),
        pool("c", "null"),
    ];
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let pools = parse(&texts).unwrap();
    let kept = read(Path::new("/kept"), &pools.text(), None).unwrap();
    assert_eq!(kept.for_allocation(), pools.for_allocation());
    assert!(kept.by_name["a"].skip && !kept.by_name["b"].skip);
    assert_eq!(kept.text(), pools.text());
}

/// A document of pool red with these annotations and this specification.
fn red(annotations: &str, spec: &str) -> String {
    format!(
        "apiVersion: cilium.io/v2alpha1\nkind: CiliumPodIPPool\nmetadata:\n  name: red\n  \
         annotations: {annotations}\nspec: {spec}\n"
    )
}

const PLAIN_SPEC: &str = "{ipv4: {cidrs: [10.9.0.0/16], maskSize: 28}, ipv6: {cidrs: [fd09::/64]}}";

/// Places of faults, documents of the pool `red` with each, and the kind of their refusal.
fn unreadable(skips: &str, good: &str) -> Vec<(&'static str, String, RefusedKind)> {
    vec![
        (
            "a CIDR",
            red(skips, &PLAIN_SPEC.replace("10.9.0.0/16", "10.9.0/16")),
            RefusedKind::Pool,
        ),
        (
            "a list",
            red(
                skips,
                &PLAIN_SPEC.replace("[10.9.0.0/16]", "[10.9.0.0/16, x]"),
            ),
            RefusedKind::Pool,
        ),
        (
            "a family",
            red(skips, "{ipv4: 10.9.0.0/16, ipv6: {cidrs: [fd09::/64]}}"),
            RefusedKind::Pool,
        ),
        ("the specification", red(skips, "none"), RefusedKind::Pool),
        (
            "an annotation",
            red(&skip("'ture'"), PLAIN_SPEC),
            RefusedKind::Annotation,
        ),
        (
            "a type",
            red(&skip("1"), PLAIN_SPEC),
            RefusedKind::Annotation,
        ),
        (
            "all annotations",
            red("[x]", PLAIN_SPEC),
            RefusedKind::Annotation,
        ),
        (
            "the kind",
            good.replace("PodIPPool", "PodIPPol"),
            RefusedKind::Document,
        ),
        (
            "the version",
            good.replace("v2alpha1", "v3"),
            RefusedKind::Document,
        ),
        (
            "the name",
            good.replace("name: red", "name: [red]"),
            RefusedKind::Document,
        ),
        (
            "the syntax",
            good.replace("spec: {", "spec: {{"),
            RefusedKind::Document,
        ),
    ]
}

#[test]
fn what_becomes_unreadable_of_a_plain_pool_stays_as_it_was() {
    let skips = skip("'true'");
    let good = red(&skips, PLAIN_SPEC);
    let blue = pool("blue", "{}");
    let before = parse(&[&good, &blue]).unwrap();
    for (what, text, kind) in unreadable(&skips, &good) {
        let after = parse_after(&[&text, &blue], Some(&before)).unwrap();
        let kinds: BTreeSet<_> = after.refused().iter().map(|one| one.kind).collect();
        assert_eq!(kinds, [kind].into(), "{what}: {:?}", after.refused());
        let again = parse_after(&[&text, &blue], Some(&after)).unwrap();
        let kept = read(Path::new("/kept"), &after.text(), None).unwrap();
        for pools in [&after, &again, &kept] {
            assert_eq!(pools.for_allocation(), before.for_allocation(), "{what}");
            assert!(
                pools.by_name["red"].skip && !pools.by_name["blue"].skip,
                "{what}"
            );
        }
        // Once it is good again, it counts; also where it says something else.
        let other = red(&skip("'false'"), "{ipv6: {cidrs: [fd09::/64]}}");
        let mended = parse_after(&[&other, &blue], Some(&after)).unwrap();
        assert_eq!(mended.refused(), []);
        assert!(!mended.by_name["red"].skip, "{what}");
        assert_eq!(mended.by_name["red"].pool.families, [Family::V6].into());
    }
    let gone = parse_after(&[&blue], Some(&before)).unwrap();
    assert!(
        !gone.has("red"),
        "a document that is taken away is no unreadable one"
    );
}

#[test]
fn a_document_that_comes_takes_no_pool_from_the_one_that_has_it() {
    let (theirs, ours) = (pool("a", "{}"), pool("a", &skip("'true'")));
    let before = parse(&["", &ours]).unwrap();
    let after = parse_after(&[&theirs, &ours], Some(&before)).unwrap();
    assert!(after.by_name["a"].skip);
    let [problem] = refused(&after).try_into().unwrap();
    let expected = "/pools/0.yaml: document 1: metadata.name: \"a\" is refused";
    assert!(problem.starts_with(expected), "{problem}");
    assert!(
        problem.ends_with("/pools/1.yaml, document 1 has it"),
        "{problem}"
    );
    let again = parse_after(&[&theirs, &ours], Some(&after)).unwrap();
    assert!(again.by_name["a"].skip);
    let moved = parse_after(&[&theirs, ""], Some(&after)).unwrap();
    assert!(!moved.by_name["a"].skip && moved.refused().is_empty());
}
