//! Addresses that the agent gives: to whom, from which pool, and what a restart makes of them.

use std::net::IpAddr;

use api::ids::PodRef;
use api::types::{Addresses as Listed, GcRequest, Leased};
use ipam::Family;

use super::demand::document;
use super::*;
use crate::server::{AddressCommand, AddressRequest, AddressSpec};

pub(super) fn ask(families: &[Family]) -> AddressSpec {
    AddressSpec {
        families: families.iter().copied().collect(),
        network: Some("towpath".into()),
        ..AddressSpec::default()
    }
}

pub(super) fn wanted(container: &str, ask: AddressSpec) -> EndpointRequest {
    EndpointRequest {
        addresses: BTreeSet::new(),
        ask: Box::new(ask),
        ..request(&endpoint(container, &[]))
    }
}

/// As `add`, without a look at the namespace, which a model has not.
pub(super) async fn give(
    actor: &mut Actor<ModelHost>,
    request: EndpointRequest,
) -> Result<Attachment, ApiError> {
    let request = actor.with_addresses(request)?;
    let EndpointRequest {
        owner,
        netns,
        addresses,
        ask,
    } = request;
    let endpoint = Endpoint {
        owner,
        netns,
        addresses,
        mtu: 9001,
        about: loader::intent::EndpointMeta {
            device: None,
            network: ask.network.clone(),
            pod: ask.pod.clone(),
            since: Some(Addresses::now()),
            namespace: None,
            leases: Vec::new(),
        },
    };
    let admitted = actor.record_with_leases(endpoint, &ask);
    actor.finish(vec![admitted]).await.remove(0)
}

pub(super) fn given(attachment: &Attachment) -> Vec<IpAddr> {
    attachment.addresses.iter().map(|a| a.address).collect()
}

pub(super) async fn listed(actor: &mut Actor<ModelHost>) -> Listed {
    let (reply, answer) = oneshot::channel();
    actor.address_command(AddressCommand::List(reply)).await;
    answer.await.unwrap().unwrap()
}

pub(super) async fn lease(
    actor: &mut Actor<ModelHost>,
    container: &str,
) -> Result<Leased, ApiError> {
    let request = AddressRequest {
        owner: endpoint(container, &[]).owner,
        addresses: BTreeSet::new(),
        ask: Box::new(ask(&[])),
    };
    let (reply, answer) = oneshot::channel();
    let command = AddressCommand::Lease(request, reply);
    actor.address_command(command).await;
    answer.await.unwrap()
}

pub(super) async fn claim(actor: &mut Actor<ModelHost>, container: &str) -> Result<(), ApiError> {
    let (reply, answer) = oneshot::channel();
    let command = AddressCommand::Claim(endpoint(container, &[]).owner, reply);
    actor.address_command(command).await;
    answer.await.unwrap()
}

#[tokio::test]
async fn nothing_is_given_before_the_kernel_was_looked_at() {
    let mut machine = Machine::new();
    let mut actor = machine.boot();
    give_document(&mut actor);
    let error = give(&mut actor, wanted("x", ask(&[]))).await.unwrap_err();
    assert_eq!((error.code, error.retry), (ErrorCode::NotReady, true));
    assert_eq!(actor.ready().unwrap_err().code, ErrorCode::NotReady);
    actor.run_pass().await;
    actor.ready().unwrap();
    give(&mut actor, wanted("x", ask(&[]))).await.unwrap();
}

/// The document can call a part of the default pool's blocks another pool's.
#[tokio::test]
async fn who_gave_an_address_and_whose_policy_it_has_are_told_apart() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let first = give(&mut actor, wanted("x", ask(&[]))).await.unwrap();
    let address = given(&first)[0];
    let names = |actor: &Actor<ModelHost>| {
        let endpoint = actor.endpoints().remove(0).addresses.remove(0);
        (endpoint.pool.unwrap(), endpoint.policy.unwrap())
    };
    let alike = ("default".to_owned(), "default".to_owned());
    assert_eq!(names(&actor), alike);
    assert!(actor.status().await.allocation.problems.is_empty());
    document(&mut actor, |node| {
        node.pools.insert(address.into(), "direct".to_owned());
    });
    actor.run_pass().await;
    assert_eq!(names(&actor), ("default".to_owned(), "direct".to_owned()));
    let leased = actor.list_addresses().leases.remove(0);
    assert_eq!(leased.pool.as_deref(), Some("default"));
    assert_eq!(leased.policy.as_deref(), Some("direct"));
    let again = add(&mut actor, wanted("x", ask(&[]))).await.unwrap();
    let again = &again.addresses[0];
    assert_eq!(again.pool.as_deref(), Some("default"));
    assert_eq!(again.policy.as_deref(), Some("direct"));
    let problems = actor.status().await.allocation.problems.join("\n");
    let expected =
        format!("{address} of pool default: the masquerade policy is that of pool direct");
    assert!(problems.contains(&expected), "{problems}");
}

/// The default of `ipam.families` fits no node of IPv6 alone, and the refusal leads to it.
#[tokio::test]
async fn a_node_with_one_family_names_it_where_the_other_one_is_asked_for() {
    for (there, requested) in [(Family::V6, Family::V4), (Family::V4, Family::V6)] {
        let mut machine = Machine::new();
        let mut actor = machine.start().await;
        document(&mut actor, |node| {
            for eni in node.enis.values_mut() {
                eni.blocks.retain(|block| Family::of_net(*block) == there);
            }
        });
        actor.run_pass().await;
        let error = give(&mut actor, wanted("x", ask(&[requested]))).await;
        let message = error.unwrap_err().message;
        let expected = format!("this node has only {there} addresses");
        assert!(message.contains(&expected), "{message}");
        assert!(message.contains("ipam.families"), "{message}");
        give(&mut actor, wanted("x", ask(&[there]))).await.unwrap();
    }
}

#[tokio::test]
async fn both_families_are_given_and_given_again_and_survive_a_restart() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let both = wanted("x", ask(&Family::ALL));
    let first = give(&mut actor, both.clone()).await.unwrap();
    assert_eq!(first.addresses.len(), 2);
    assert_eq!(first.addresses[0].pool.as_deref(), Some("default"));
    let again = add(&mut actor, both.clone()).await.unwrap();
    assert_eq!(again, first, "the same request gets the same answer");
    let other = give(&mut actor, wanted("y", ask(&[]))).await.unwrap();
    assert!(!given(&first).contains(&given(&other)[0]));
    machine.kill(actor);

    let mut actor = machine.start().await;
    assert_eq!(add(&mut actor, both).await.unwrap(), first);
    let third = give(&mut actor, wanted("z", ask(&[]))).await.unwrap();
    let taken = [given(&first), given(&other)].concat();
    assert!(!taken.contains(&given(&third)[0]));
    assert_eq!(listed(&mut actor).await.leases.len(), 4);
}

#[tokio::test]
async fn a_released_address_cools_down_across_a_restart() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let pod = give(&mut actor, wanted("x", ask(&[]))).await.unwrap();
    let address = given(&pod)[0];
    actor.delete(&[pod.owner]).await.remove(0).unwrap();
    machine.kill(actor);
    let mut actor = machine.start().await;
    let cooling = listed(&mut actor).await.cooling;
    assert_eq!(cooling.len(), 1);
    assert_eq!(cooling[0].address, address);
    assert!((25..=30).contains(&cooling[0].seconds), "{cooling:?}");
    let mut explicit = wanted("y", AddressSpec::default());
    explicit.addresses = [address].into();
    let error = give(&mut actor, explicit).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::AddressCoolingDown);
    assert!(error.retry);
}

#[tokio::test]
async fn without_a_cooldown_an_address_is_free_at_once() {
    let mut machine = Machine::new();
    machine.config = Config::parse("ipam: {cooldown: 0}").unwrap();
    let mut actor = machine.start().await;
    let pod = give(&mut actor, wanted("x", ask(&[]))).await.unwrap();
    delete(&mut actor, &pod.owner).await;
    assert_eq!(listed(&mut actor).await.cooling.len(), 0);
    let mut explicit = wanted("y", AddressSpec::default());
    explicit.addresses = given(&pod).into_iter().collect();
    give(&mut actor, explicit).await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_made_gives_its_address_back_at_once() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    actor.reconciler.kernel_mut().model.refuse =
        Box::new(|step| matches!(step, StepKind::AddNeighbour(_)));
    let error = give(&mut actor, wanted("x", ask(&[]))).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::SetUpFailed);
    let list = listed(&mut actor).await;
    assert!(
        list.leases.is_empty() && list.cooling.is_empty(),
        "{list:?}"
    );
    // One whose namespace is none has not even a record.
    let error = add(&mut actor, wanted("y", ask(&[]))).await.unwrap_err();
    assert_eq!(error.field.as_deref(), Some("netns"));
    assert!(listed(&mut actor).await.leases.is_empty());
}

#[tokio::test]
async fn addresses_without_an_endpoint_wait_for_their_claim_on_disk() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let first = lease(&mut actor, "x").await.unwrap();
    assert!(
        first
            .expires_seconds
            .is_some_and(|s| (595..=600).contains(&s))
    );
    let second = lease(&mut actor, "y").await.unwrap();
    claim(&mut actor, "y").await.unwrap();
    let error = claim(&mut actor, "z").await.unwrap_err();
    assert_eq!(error.code, ErrorCode::UnknownLease);
    machine.kill(actor);

    let mut actor = machine.start().await;
    assert_eq!(
        lease(&mut actor, "x").await.unwrap().addresses,
        first.addresses
    );
    let claimed = lease(&mut actor, "y").await.unwrap();
    assert_eq!(claimed.addresses, second.addresses);
    assert_eq!(claimed.expires_seconds, None, "it is claimed still");
    // An endpoint of the same owner takes them over.
    let pod = give(&mut actor, wanted("y", ask(&[]))).await.unwrap();
    assert_eq!(given(&pod)[0], second.addresses[0].address);
    let error = lease(&mut actor, "y").await.unwrap_err();
    assert_eq!(error.code, ErrorCode::EndpointExists);
}

#[tokio::test]
async fn what_nobody_claims_is_taken_back() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let leased = lease(&mut actor, "x").await.unwrap();
    machine.kill(actor);
    let file = machine.ledger("lease").pop().unwrap();
    let text = fs::read_to_string(&file).unwrap();
    let mut content: Value = serde_json::from_str(&text).unwrap();
    let claim = &mut content["entry"]["owner"]["leases"][0]["claim"];
    assert!(claim["unclaimed"]["until"].is_u64(), "{text}");
    claim["unclaimed"]["until"] = 1.into();
    fs::write(&file, content.to_string()).unwrap();
    let mut actor = machine.start().await;
    let list = listed(&mut actor).await;
    assert!(list.leases.is_empty(), "{list:?}");
    assert_eq!(list.cooling[0].address, leased.addresses[0].address);
    machine.kill(actor);

    // The clock of another boot says nothing of this one's.
    content["boot"] = "another".into();
    fs::remove_file(machine.ledger("cooling").pop().unwrap()).unwrap();
    fs::write(&file, content.to_string()).unwrap();
    let mut actor = machine.start().await;
    let again = lease(&mut actor, "x").await.unwrap();
    assert_eq!(again.addresses, leased.addresses);
    assert!(again.expires_seconds.is_some_and(|s| s <= 600), "{again:?}");
}

/// The address of an endpoint whose record cannot be read is not given to another owner.
#[tokio::test]
async fn the_address_of_a_record_that_cannot_be_read_is_kept() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let pod = give(&mut actor, wanted("x", ask(&[]))).await.unwrap();
    machine.kill(actor);
    let name = machine.records().pop_first().unwrap();
    fs::write(machine.folder.path().join(name), "{").unwrap();
    let mut actor = machine.start().await;
    let other = give(&mut actor, wanted("y", ask(&[]))).await.unwrap();
    assert_ne!(given(&other), given(&pod));
    let mut explicit = wanted("z", AddressSpec::default());
    explicit.addresses = given(&pod).into_iter().collect();
    let error = add(&mut actor, explicit).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::AddressInUse);
    delete(&mut actor, &pod.owner).await;
    let mut explicit = wanted("z", AddressSpec::default());
    explicit.addresses = given(&pod).into_iter().collect();
    let error = give(&mut actor, explicit).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::AddressCoolingDown);
}

/// A delete needs no document, and is not forgotten for want of one.
#[tokio::test]
async fn a_delete_before_the_document_is_remembered() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let pod = give(&mut actor, wanted("x", ask(&[]))).await.unwrap();
    let leased = lease(&mut actor, "y").await.unwrap();
    machine.kill(actor);
    let mut actor = machine.boot();
    let owners = [pod.owner.clone(), leased.owner];
    for answer in actor.delete(&owners).await {
        answer.unwrap();
    }
    machine.kill(actor);
    let mut actor = machine.start().await;
    let list = listed(&mut actor).await;
    assert!(list.leases.is_empty(), "{list:?}");
    assert_eq!(list.cooling.len(), 2);
}

#[tokio::test]
async fn a_full_disk_refuses_an_add_and_lets_a_delete_go() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let pod = give(&mut actor, wanted("x", ask(&[]))).await.unwrap();
    // A file in the folder's place: nothing can be written there.
    let file = machine.state.path().join("addresses");
    fs::remove_dir(&file).unwrap();
    fs::write(&file, "").unwrap();
    let error = lease(&mut actor, "y").await.unwrap_err();
    assert_eq!(
        (error.code, error.retry),
        (ErrorCode::StateNotWritten, true)
    );
    let leases = listed(&mut actor).await.leases;
    assert_eq!(
        leases.len(),
        1,
        "what could not be written is not given: {leases:?}"
    );
    let records = machine.folder.path();
    let aside = machine.state.path().join("aside");
    fs::rename(records, &aside).unwrap();
    fs::write(records, "").unwrap();
    let error = give(&mut actor, wanted("z", ask(&[]))).await.unwrap_err();
    assert_eq!(
        (error.code, error.retry),
        (ErrorCode::StateNotWritten, true)
    );
    assert!(error.message.starts_with("write "), "{error}");
    fs::remove_file(records).unwrap();
    fs::rename(&aside, records).unwrap();
    actor.delete(&[pod.owner]).await.remove(0).unwrap();
    let problems = actor.status().await.allocation.problems.join("\n");
    assert!(problems.contains("a crash would lose"), "{problems}");
    fs::remove_file(&file).unwrap();
    actor.run_pass().await;
    assert_eq!(actor.status().await.allocation.problems, [""; 0]);
}

#[tokio::test]
async fn deletes_that_were_left_are_carried_out_before_anything_is_given() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let pod = give(&mut actor, wanted("x", ask(&[]))).await.unwrap();
    machine.kill(actor);
    let folder = machine.state.path().join("pending-deletes");
    fs::create_dir(&folder).unwrap();
    let left = r#"{"version": 1, "container-id": "x", "interface": "eth0", "network": "towpath"}"#;
    fs::write(folder.join("a.json"), left).unwrap();
    fs::write(folder.join("b.json"), "{").unwrap();
    let mut actor = machine.start().await;
    assert!(devices(&actor).is_empty() && machine.records().is_empty());
    assert_eq!(listed(&mut actor).await.cooling[0].address, given(&pod)[0]);
    assert!(!folder.join("a.json").exists());
    let problems = actor.status().await.allocation.problems;
    assert!(problems[0].contains("b.json"), "{problems:?}");
}

#[tokio::test]
async fn a_collection_takes_what_is_old_and_unknown_and_of_its_network() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    for name in ["old", "known", "young"] {
        give(&mut actor, wanted(name, ask(&[]))).await.unwrap();
    }
    let mut elsewhere = ask(&[]);
    elsewhere.network = Some("other".into());
    give(&mut actor, wanted("elsewhere", elsewhere))
        .await
        .unwrap();
    for name in ["old", "known"] {
        let endpoint = actor.intent.endpoints.get_mut(&endpoint(name, &[]).id());
        endpoint.unwrap().about.since = None;
    }
    let request = || GcRequest {
        network: "towpath".into(),
        valid: vec![endpoint("known", &[]).owner],
    };
    let collected = actor.collect(request()).await;
    assert_eq!(collected.removed, [endpoint("old", &[]).owner]);
    assert_eq!(collected.kept.len(), 1);
    assert_eq!(collected.kept[0].owner, endpoint("young", &[]).owner);
    assert_eq!(actor.endpoints().len(), 3);
    // Its namespace is gone: no ADD of it is in progress.
    let young = actor.intent.endpoints.get_mut(&endpoint("young", &[]).id());
    young.unwrap().netns = "/nowhere".into();
    let collected = actor.collect(request()).await;
    assert_eq!(collected.removed, [endpoint("young", &[]).owner]);
}

#[tokio::test]
async fn a_check_names_what_is_missing_and_repairs_nothing() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let pod = give(&mut actor, wanted("x", ask(&[]))).await.unwrap();
    let check = actor.check_endpoint(&pod.owner).await.unwrap();
    assert_eq!((check.attachment, check.problems), (pod.clone(), vec![]));
    let address = given(&pod)[0];
    let model = &mut actor.reconciler.kernel_mut().model;
    model
        .state
        .routes
        .retain(|route| route.destination != address.into());
    let before = writes(&actor);
    let problems = actor.check_endpoint(&pod.owner).await.unwrap().problems;
    assert!(problems[0].contains(&address.to_string()), "{problems:?}");
    assert_eq!(writes(&actor), before);
    let unknown = actor.check_endpoint(&endpoint("y", &[]).owner).await;
    assert_eq!(unknown.unwrap_err().code, ErrorCode::UnknownEndpoint);
}

#[tokio::test]
async fn who_has_what_is_listed_with_its_pod() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let pod = PodRef {
        namespace: "web".into(),
        name: "front".into(),
        uid: None,
    };
    let ask = AddressSpec {
        pod: Some(pod.clone()),
        ..ask(&[])
    };
    give(&mut actor, wanted("x", ask)).await.unwrap();
    assert_eq!(listed(&mut actor).await.leases[0].pod, Some(pod));
    let pools = actor.list_pools();
    assert_eq!(pools[0].in_use, 1);
    assert_eq!(pools[0].blocks.len(), 6);
}

#[tokio::test]
async fn an_eni_that_goes_leaves_orphans_and_nobody_gets_them() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let pod = give(&mut actor, wanted("x", ask(&[]))).await.unwrap();
    let number = pod.addresses[0].eni.as_ref().unwrap().number;
    let mut node = fixture::intent().node;
    node.enis.remove(&number);
    let (_sender, mut receiver) = watch::channel(NodeSource {
        is_refused: false,
        value: Some(Arc::new(node)),
        error: None,
        generation: 2,
    });
    actor.take_document(&mut receiver);
    actor.run_pass().await;
    let orphans = actor.status().await.allocation.orphans;
    assert_eq!(orphans.len(), 1);
    assert_eq!(orphans[0].address, given(&pod)[0]);
}
