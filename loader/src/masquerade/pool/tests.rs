//! Which documents are taken, and what follows for their pools.

use std::sync::Arc;

use super::*;

fn fragments(texts: &[&str]) -> Fragments {
    let named = |(i, text): (usize, &&str)| Fragment {
        path: format!("/pools/{i}.yaml").into(),
        text: (*text).to_owned(),
    };
    Fragments::Found(texts.iter().enumerate().map(named).collect())
}

fn parse(texts: &[&str]) -> Result<Pools, String> {
    PoolDocuments.parse(Path::new("/pools"), &fragments(texts))
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
    for (value, skips, notes) in [
        ("\"true\"", true, 0),
        ("\"false\"", false, 0),
        ("\"True\"", false, 1),
        ("\"1\"", false, 1),
        ("\"\"", false, 1),
    ] {
        let pools = parse(&[&pool("red", &skip(value))]).unwrap();
        assert_eq!(pools.notes().len(), notes, "{value}: {:?}", pools.notes());
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
            good.clone() + "---\n" + &good,
            "/pools/0.yaml: document 2: metadata.name: \"a\" is refused; allowed: a name that no \
             other document has; /pools/0.yaml, document 1 has it",
        ),
        (
            good.replace("CiliumPodIPPool", "CiliumNode"),
            "/pools/0.yaml: document 1: kind: \"CiliumNode\" is refused; allowed: CiliumPodIPPool",
        ),
        (
            good.replace("v2alpha1", "v1"),
            "/pools/0.yaml: document 1: apiVersion: \"cilium.io/v1\" is refused; allowed: \
             cilium.io/v2alpha1 or cilium.io/v2",
        ),
        (
            good.replace("name: a", "name:"),
            "/pools/0.yaml: document 1: metadata.name: missing; allowed: the name of the pool",
        ),
        (
            good.clone() + "---\nmetadata: 7\n",
            "/pools/0.yaml: document 2: metadata: invalid type: integer `7`",
        ),
        (
            good.clone() + "---\nmetadata: {annotations: {x: [1]}}\n",
            "/pools/0.yaml: document 2: metadata.annotations.x: invalid type: sequence",
        ),
        ("a: [".to_owned(), "/pools/0.yaml: document 1: "),
    ];
    for (text, expected) in cases {
        let error = parse(&[&text]).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
    let path = Path::new("/pools");
    let missing = PoolDocuments.parse(path, &Fragments::Missing);
    assert_eq!(missing, Err("/pools: there is no such file".to_owned()));
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
    let plain = pool("red", "{}");
    let pools = parse(&[&bound, &plain]).unwrap().for_allocation();
    assert!(pools["blue"].binding.is_some() && pools["red"].binding.is_none());
    assert_eq!(pools["red"].families, [Family::V4].into());
    let mistaken = pool("blue", "{\"ipam.towpath.dev/eni-tag\": \"team=blue\"}");
    let error = parse(&[&mistaken]).unwrap_err();
    assert!(
        error.starts_with(
            "/pools/0.yaml: document 1: metadata.annotations: ipam.towpath.dev/eni-tag is unknown"
        ),
        "{error}"
    );
}
