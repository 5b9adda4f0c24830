//! Records of addresses: damage, records that cannot be removed, and an agent that gives no
//! addresses for a while.

use std::net::IpAddr;

use api::types::Leased;

use super::allocation::{ask, claim, give, given, lease, listed, wanted};
use super::*;
use crate::server::{AddressCommand, AddressSpec};

fn explicit(container: &str, addresses: &[IpAddr]) -> EndpointRequest {
    EndpointRequest {
        addresses: addresses.iter().copied().collect(),
        ..wanted(container, AddressSpec::default())
    }
}

fn leased(answer: &Leased) -> IpAddr {
    answer.addresses[0].address
}

async fn release(actor: &mut Actor<ModelHost>, container: &str) {
    let (reply, answer) = oneshot::channel();
    let owner = endpoint(container, &[]).owner;
    let command = AddressCommand::Release(owner, reply);
    actor.address_command(command).await;
    answer.await.unwrap().unwrap();
}

async fn cooling(actor: &mut Actor<ModelHost>) -> Vec<IpAddr> {
    let cooling = listed(actor).await.cooling;
    cooling.into_iter().map(|cooling| cooling.address).collect()
}

/// Whatever happens to one record, its address is given to no other owner, and the other records
/// are unchanged.
#[tokio::test]
async fn a_lease_that_cannot_be_read_holds_its_address_until_its_owner_is_deleted() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let x = leased(&lease(&mut actor, "x").await.unwrap());
    claim(&mut actor, "x").await.unwrap();
    let file = machine.ledger("lease").pop().unwrap();
    let y = leased(&lease(&mut actor, "y").await.unwrap());
    claim(&mut actor, "y").await.unwrap();
    machine.kill(actor);
    let whole = fs::read(&file).unwrap();
    for damaged in [&whole[..whole.len() / 2], b"", b"\xff\xfe", b"{}"] {
        fs::write(&file, damaged).unwrap();
        let mut actor = machine.start().await;
        let problems = actor.status().await.allocation.problems.join("\n");
        assert!(problems.contains(file.to_str().unwrap()), "{problems}");
        let of_y = lease(&mut actor, "y").await.unwrap();
        assert_eq!((leased(&of_y), of_y.expires_seconds), (y, None));
        let error = give(&mut actor, explicit("z", &[x])).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::AddressInUse, "{error}");
        let pod = give(&mut actor, wanted("z", ask(&[]))).await.unwrap();
        assert_ne!(given(&pod), [x]);
        actor.delete(&[pod.owner]).await.remove(0).unwrap();
        // It is unknown if that would be the same address.
        let error = lease(&mut actor, "x").await.unwrap_err();
        assert_eq!(error.code, ErrorCode::OwnerConflict, "{error}");
        machine.kill(actor);
    }
    let mut actor = machine.start().await;
    release(&mut actor, "x").await;
    assert!(!file.exists());
    assert_eq!(actor.status().await.allocation.problems, [""; 0]);
    machine.kill(actor);
    let mut actor = machine.start().await;
    assert!(cooling(&mut actor).await.contains(&x));
    assert_ne!(leased(&lease(&mut actor, "x").await.unwrap()), x);
}

#[tokio::test]
async fn a_cooldown_that_cannot_be_read_begins_anew() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let pod = give(&mut actor, wanted("x", ask(&[]))).await.unwrap();
    delete(&mut actor, &pod.owner).await;
    machine.kill(actor);
    let file = machine.ledger("cooling").pop().unwrap();
    fs::write(&file, "").unwrap();
    let mut actor = machine.start().await;
    assert_eq!(cooling(&mut actor).await, given(&pod));
    let seconds = listed(&mut actor).await.cooling[0].seconds;
    assert!((25..=30).contains(&seconds), "{seconds}");
    assert!(!fs::read(&file).unwrap().is_empty(), "it is written anew");
}

/// Its record says nothing of the address, so the kernel does.
#[tokio::test]
async fn an_endpoint_whose_record_cannot_be_read_leaves_a_cooldown() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let deleted = give(&mut actor, wanted("x", ask(&[]))).await.unwrap();
    let vanished = give(&mut actor, wanted("y", ask(&[]))).await.unwrap();
    let ifindex = actor.passes.last.view.endpoints[&EndpointId::of(&vanished.owner)].ifindex;
    machine.kill(actor);
    for record in machine.records() {
        fs::write(machine.folder.path().join(record), "{").unwrap();
    }
    let mut actor = machine.start().await;
    assert_eq!(
        listed(&mut actor).await.leases.len(),
        2,
        "somebody has them"
    );
    delete(&mut actor, &deleted.owner).await;
    assert_eq!(cooling(&mut actor).await, given(&deleted));
    machine.kill(actor);
    let mut actor = machine.start().await;
    assert_eq!(cooling(&mut actor).await, given(&deleted));
    let model = &mut actor.reconciler.kernel_mut().model;
    model.unplug(ifindex.unwrap());
    actor.run_pass().await;
    assert_eq!(
        cooling(&mut actor).await,
        given(&deleted),
        "its owner may live"
    );
    delete(&mut actor, &vanished.owner).await;
    let both = [given(&deleted), given(&vanished)].concat();
    assert_eq!(cooling(&mut actor).await, both);
    let error = add(&mut actor, explicit("z", &given(&vanished)))
        .await
        .unwrap_err();
    assert_ne!(error.code, ErrorCode::AddressInUse, "{error}");
    machine.kill(actor);
    let mut actor = machine.start().await;
    assert_eq!(cooling(&mut actor).await, both);
}

/// A delete is answered when it is on disk. Objects that the kernel then refuses to remove are
/// tried again with every pass. Until they are gone, the address is given to no other owner.
#[tokio::test]
async fn what_cannot_be_removed_is_tried_again_and_keeps_its_address() {
    let mut machine = Machine::new();
    machine.config = Config::parse("ipam: {cooldown: 0}").unwrap();
    let mut actor = machine.start().await;
    let pod = give(&mut actor, wanted("x", ask(&[]))).await.unwrap();
    let refuse = |actor: &mut Actor<ModelHost>, refuses: bool| {
        actor.reconciler.kernel_mut().model.refuse =
            Box::new(move |step| refuses && matches!(step, StepKind::DeleteMapEntry(_)));
    };
    refuse(&mut actor, true);
    delete(&mut actor, &pod.owner).await;
    actor.run_pass().await;
    assert_eq!(cooling(&mut actor).await, given(&pod));
    let health = actor.status().await.health;
    assert_eq!(health.state, HealthState::Degraded, "{health:?}");
    machine.kill(actor);

    let mut actor = machine.start().await;
    assert_eq!(cooling(&mut actor).await, given(&pod));
    let error = give(&mut actor, explicit("y", &given(&pod)))
        .await
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::AddressCoolingDown);
    refuse(&mut actor, false);
    actor.run_pass().await;
    assert_eq!(cooling(&mut actor).await, [] as [IpAddr; 0]);
    assert!(devices(&actor).is_empty());
    give(&mut actor, explicit("y", &given(&pod))).await.unwrap();
}

/// The address was given to no owner, and is given to none while the kernel has something of it.
#[tokio::test]
async fn what_a_failed_add_leaves_keeps_its_address() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let free = leased(&lease(&mut actor, "first").await.unwrap());
    actor.reconciler.kernel_mut().model.refuse =
        Box::new(|step| matches!(step, StepKind::AddRoute(_) | StepKind::DeleteMapEntry(_)));
    let error = give(&mut actor, wanted("x", ask(&[]))).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::SetUpFailed);
    let next = leased(&lease(&mut actor, "y").await.unwrap());
    actor.reconciler.kernel_mut().model.refuse = Box::new(|_| false);
    actor.run_pass().await;
    let left = leased(&lease(&mut actor, "z").await.unwrap());
    assert!(free < left && left < next, "{free}, {left}, {next}");
}

/// Leases and cooldowns are correct again when the agent gives addresses again.
#[tokio::test]
async fn an_agent_that_gives_no_addresses_keeps_count() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    let pod = give(&mut actor, wanted("x", ask(&[]))).await.unwrap();
    let y = leased(&lease(&mut actor, "y").await.unwrap());
    let z = leased(&lease(&mut actor, "z").await.unwrap());
    claim(&mut actor, "z").await.unwrap();
    machine.kill(actor);

    machine.config = Config::parse("ipam: {enabled: false}").unwrap();
    let mut actor = machine.start().await;
    let error = lease(&mut actor, "y").await.unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidField);
    let error = give(&mut actor, explicit("thief", &[z])).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::AddressInUse);
    delete(&mut actor, &pod.owner).await;
    release(&mut actor, "y").await;
    let own = "10.0.2.66".parse().unwrap();
    let brought = give(&mut actor, explicit("w", &[own])).await.unwrap();
    actor.delete(&[brought.owner]).await.remove(0).unwrap();
    assert_eq!(listed(&mut actor).await, api::types::Addresses::default());
    assert_eq!(actor.status().await.allocation.problems, [""; 0]);
    machine.kill(actor);

    machine.config = Config::default();
    let mut actor = machine.start().await;
    let mut expected = [given(&pod), vec![y, own]].concat();
    expected.sort();
    assert_eq!(cooling(&mut actor).await, expected);
    let leases = listed(&mut actor).await.leases;
    assert_eq!(leases.len(), 1);
    assert_eq!(leases[0].address, z);
}
