//! The document that an earlier agent of this boot has kept.

use api::types::RefusedKind;
use datapath_common::mark::MarkLayout;

use super::*;
use sources::kept::Kept;
use sources::node;

const DOCUMENT: &str = "
apiVersion: cilium.io/v2
kind: CiliumNode
metadata: {name: node}
spec:
  addresses: [{type: InternalIP, ip: 10.0.0.10}]
  ipam: {pools: {allocated: [{pool: default, cidrs: [10.0.1.64/28]}]}}
status:
  eni:
    enis:
      eni-0:
        id: eni-0
        number: 0
        mac: 02:00:00:00:00:00
        ip: 10.0.0.10
        subnet: {cidr: 10.0.0.0/24}
        vpc: {primary-cidr: 10.0.0.0/16}
      eni-1:
        id: eni-1
        number: 1
        mac: 02:00:00:00:00:01
        ip: 10.0.1.10
        subnet: {cidr: 10.0.1.0/24}
        prefixes: [10.0.1.64/28]
        vpc: {primary-cidr: 10.0.0.0/16}
";

impl Machine {
    /// A new agent that follows a file with this text.
    async fn follow(&mut self, text: &str, boot: &str) -> Actor<ModelHost> {
        let path = self.state.path().join("document.yaml");
        fs::write(&path, text).unwrap();
        let kept = Kept::new(self.state.path(), boot);
        let mut source = node::watch_kept(path, MarkLayout::DEFAULT, kept);
        let mut actor = self.boot();
        actor.take_document(&mut source);
        actor.run_pass().await;
        actor
    }
}

async fn reasons(actor: &mut Actor<ModelHost>) -> String {
    actor.status().await.health.reasons.join("\n")
}

#[tokio::test]
async fn a_restart_with_a_broken_document_goes_on_with_the_kept_one() {
    let mut machine = Machine::new();
    let mut actor = machine.follow(DOCUMENT, "this").await;
    let pod = endpoint("x", &["10.0.1.66"]);
    make(&mut actor, pod.clone()).await.unwrap();
    machine.kill(actor);

    let mut actor = machine.follow("kind: [", "this").await;
    let said = reasons(&mut actor).await;
    let begin = "the document kept from before the restart is in force: ";
    assert!(said.contains(begin), "{said}");
    assert!(said.contains("document.yaml: "), "{said}");
    assert!(actor.ready().is_ok());
    assert!(actor.endpoints()[0].readiness.is_ready());
    let new = endpoint("y", &["10.0.1.67"]);
    make(&mut actor, new.clone()).await.unwrap();
    assert_eq!(devices(&actor), [pod.id(), new.id()].into());
    machine.kill(actor);

    let mut actor = machine.follow(DOCUMENT, "this").await;
    let said = reasons(&mut actor).await;
    assert!(!said.contains("restart"), "{said}");
}

#[tokio::test]
async fn a_document_of_another_boot_or_a_corrupt_one_is_not_in_force() {
    let mut machine = Machine::new();
    let actor = machine.follow(DOCUMENT, "this").await;
    machine.kill(actor);
    let actor = machine.follow("kind: [", "other").await;
    assert_eq!(actor.ready().unwrap_err().code, ErrorCode::NotReady);
    machine.kill(actor);
    fs::write(machine.state.path().join("node.json"), "{\"boot\":").unwrap();
    let actor = machine.follow("kind: [", "this").await;
    assert_eq!(actor.ready().unwrap_err().code, ErrorCode::NotReady);
}

#[tokio::test]
async fn a_document_that_is_refused_whole_is_counted_and_named() {
    let mut machine = Machine::new();
    let of_kind = |actor: &Actor<ModelHost>| {
        let refused = actor.refused().into_iter();
        let mut whole = refused.filter(|one| one.kind == RefusedKind::Document);
        let first = whole.next().map(|one| one.to_string());
        (first, whole.count())
    };
    let actor = machine.follow(DOCUMENT, "this").await;
    assert_eq!(of_kind(&actor), (None, 0));
    machine.kill(actor);
    for text in ["kind: [", "kind: CiliumPod", "\u{0}", ""] {
        let actor = machine.follow(text, "this").await;
        let (refused, others) = of_kind(&actor);
        let refused = refused.unwrap();
        assert!(refused.starts_with("node document: "), "{refused}");
        assert!(refused.contains("document.yaml"), "{refused}");
        assert_eq!(others, 0);
        machine.kill(actor);
    }
}
