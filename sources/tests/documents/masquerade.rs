//! Masquerade settings of documents and files: a node's pools, and files that are watched.

use std::fs;
use std::path::Path;
use std::time::Duration;

use api::ids::EniNumber;
use loader::intent::masquerade::{MasqueradeSettings, Policy};
use serde_json::json;
use sources::follow::Followed;
use sources::{masq_agent, pools};
use tokio::sync::watch::Receiver;
use tokio::time::timeout;

use super::support::{ENI, parse, problem, secondary, set};

/// Well below the interval at which files are read anyway: a change has to be noticed.
const NOTICED: Duration = Duration::from_secs(3);

async fn wait<T>(of: &mut Receiver<Followed<T>>, what: impl Fn(&Followed<T>) -> bool) {
    let found = timeout(NOTICED, of.wait_for(|followed| what(followed)))
        .await
        .is_ok();
    let error = of.borrow().error.clone();
    assert!(found, "not seen in time; error: {error:?}");
}

#[test]
fn the_longest_allocated_cidr_names_the_pool() {
    let mut document = secondary();
    set(
        &mut document,
        "/spec/ipam/pools",
        json!({"allocated": [
            {"pool": "wide", "cidrs": ["100.120.134.0/24", "2001:db8:120:a::/80"]},
            {"pool": "red", "cidrs": ["100.120.134.75/32"]},
            {"pool": "empty", "cidrs": []},
        ]}),
    );
    set(
        &mut document,
        &format!("{ENI}/public-ip"),
        json!("203.0.113.7"),
    );
    let node = parse(&document.to_string()).unwrap();
    for (address, pool) in [
        ("100.120.134.75", "red"),
        ("100.120.134.76", "wide"),
        ("100.120.135.1", "default"),
        ("2001:db8:120:a::75", "wide"),
    ] {
        assert_eq!(node.pool_of(address.parse().unwrap()), pool, "{address}");
    }
    let public = node.enis[&EniNumber(1)].public_address;
    assert_eq!(public.unwrap().to_string(), "203.0.113.7");
}

#[test]
fn bad_pools_and_public_addresses_are_named() {
    let refused = |pointer: &str, value: serde_json::Value| {
        let mut document = secondary();
        set(&mut document, pointer, value);
        problem(&document).0
    };
    let pools = |allocated| refused("/spec/ipam/pools", json!({"allocated": allocated}));
    let error = pools(json!([{"pool": "a", "cidrs": ["10.0.0.1/24"]}]));
    let expected = "spec.ipam.pools.allocated[0].cidrs[0]: \"10.0.0.1/24\" is refused; allowed: \
                    10.0.0.0/24";
    assert!(error.starts_with(expected), "{error}");
    let error = pools(json!([{"cidrs": []}]));
    assert_eq!(
        error,
        "spec.ipam.pools.allocated[0].pool: missing; allowed: the name of a pool"
    );
    let twice = json!([
        {"pool": "a", "cidrs": ["10.0.0.0/24"]},
        {"pool": "b", "cidrs": ["10.0.0.0/24"]},
    ]);
    let error = pools(twice);
    assert!(
        error.ends_with("allowed: a CIDR of one pool only; a has it"),
        "{error}"
    );
    let error = refused(&format!("{ENI}/public-ip"), json!("x"));
    assert!(error.contains("public-ip: \"x\" is refused"), "{error}");
}

fn pool(name: &str, skip: &str) -> String {
    format!(
        "apiVersion: cilium.io/v2alpha1\nkind: CiliumPodIPPool\nmetadata:\n  name: {name}\n  \
         annotations:\n    ipam.cilium.io/skip-masquerade: \"{skip}\"\n"
    )
}

fn skips(of: &Receiver<Followed<loader::intent::masquerade::Pools>>, name: &str) -> Option<bool> {
    let policy = Policy {
        pools: of.borrow().value.clone(),
        agent: None,
    };
    let settings = MasqueradeSettings {
        pools: Some("/pools".into()),
        ..MasqueradeSettings::default()
    };
    Some(policy.pool(name, &settings)?.skip_masquerade)
}

#[tokio::test]
async fn a_folder_of_pools_is_followed() {
    let top = tempfile::tempdir().unwrap();
    let folder = top.path().join("pools");
    let mut pools = pools::watch(folder.clone());
    assert!(
        pools
            .borrow()
            .error
            .as_ref()
            .unwrap()
            .contains("no such file")
    );
    assert_eq!(skips(&pools, "red"), None, "not known yet");

    fs::create_dir(&folder).unwrap();
    wait(&mut pools, |p| p.error.is_none() && p.value.is_some()).await;
    assert_eq!(skips(&pools, "red"), Some(false));
    fs::write(folder.join("red.yaml"), pool("red", "true")).unwrap();
    wait(&mut pools, |p| {
        p.value.as_ref().is_some_and(|v| v.has("red"))
    })
    .await;
    assert_eq!(skips(&pools, "red"), Some(true));

    // A bad document in another file, and no file that is none of ours.
    fs::write(folder.join("notes.txt"), "x").unwrap();
    fs::write(folder.join("blue.yml"), "kind: Pod\n").unwrap();
    let refused = |p: &Followed<loader::intent::masquerade::Pools>| {
        let first = p.value.as_ref()?.refused().first()?;
        Some(first.to_string())
    };
    wait(&mut pools, |p| refused(p).is_some()).await;
    let error = refused(&pools.borrow()).unwrap();
    assert!(
        error.contains("blue.yml: document 1: kind: \"Pod\""),
        "{error}"
    );
    assert_eq!(skips(&pools, "red"), Some(true), "the others stay");

    fs::remove_file(folder.join("blue.yml")).unwrap();
    fs::write(folder.join("red.yaml"), pool("red", "false")).unwrap();
    wait(&mut pools, |p| refused(p).is_none()).await;
    assert_eq!(skips(&pools, "red"), Some(false));
}

#[tokio::test]
async fn an_agent_file_is_followed_through_everything() {
    let top = tempfile::tempdir().unwrap();
    let path = top.path().join("ip-masq-agent");
    let mut agent = masq_agent::watch(path.clone());
    let count = |of: &Followed<loader::intent::masquerade::AgentCidrs>| {
        of.value.as_ref().map(|value| value.cidrs.len())
    };
    assert_eq!(count(&agent.borrow()), Some(11), "missing");
    rename_into(&path, "nonMasqueradeCIDRs: [10.0.0.0/8]\n");
    wait(&mut agent, |a| count(a) == Some(1)).await;
    rename_into(
        &path,
        "nonMasqueradeCIDRs: [10.0.0.0/8]\nmasqLinkLocale: true\n",
    );
    wait(&mut agent, |a| a.error.is_some()).await;
    let error = agent.borrow().error.clone().unwrap();
    assert!(
        error.contains("masqLinkLocale") && error.contains("line 2"),
        "{error}"
    );
    assert_eq!(count(&agent.borrow()), Some(1), "the last good one stays");
    rename_into(&path, "nonMasqueradeCIDRs: []\n");
    wait(&mut agent, |a| a.error.is_none() && count(a) == Some(0)).await;
    fs::remove_file(&path).unwrap();
    wait(&mut agent, |a| count(a) == Some(11)).await;
}

fn rename_into(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).expect("a new file");
    fs::rename(&new, path).expect("a rename");
}
