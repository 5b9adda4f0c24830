//! Names of pods' devices by which policy engines find them.

use super::*;
use std::collections::BTreeMap;

use api::ids::PodRef;

use crate::actor::admission::{Admission, Decision};

const NAME: &str = "eni8478779f379";

fn pod() -> PodRef {
    PodRef {
        namespace: "default".into(),
        name: "my-nginx-86b7cfc89-6lr6v".into(),
        uid: None,
    }
}

fn ask(container: &str, interface: &str, address: &str) -> EndpointRequest {
    let mut endpoint = endpoint(container, &[address]);
    interface.clone_into(&mut endpoint.owner.interface);
    let mut request = request(&endpoint);
    request.ask.pod = Some(pod());
    request
}

/// As `add`, without a look at the namespace, which a model has not.
async fn attach(actor: &mut Actor<ModelHost>, request: EndpointRequest) -> String {
    let facts = actor.reconciler.kernel().facts().unwrap();
    let admission = Admission {
        intent: &actor.intent,
        view: &actor.passes.last.view,
        mtu: None,
        facts,
    };
    let Decision::New(endpoint) = admission.decide(request).unwrap() else {
        panic!("it is new");
    };
    actor.take_device_name(&endpoint).unwrap();
    make(actor, endpoint).await.unwrap().host_device
}

fn shown(actor: &Actor<ModelHost>) -> BTreeMap<String, String> {
    let endpoints = actor.endpoints().into_iter();
    let shown = endpoints.map(|one| (one.owner.to_string(), one.host_device));
    shown.collect()
}

#[tokio::test]
async fn a_pods_first_interface_has_the_name_and_the_latest_sandbox_gets_it() {
    let mut machine = Machine::new();
    let mut actor = machine.start().await;
    actor.intent.settings.device_prefix = Some("eni".into());
    let first = ask("x", "eth0", "10.0.1.66");
    let own = |request: &EndpointRequest| EndpointId::of(&request.owner).device();
    assert_eq!(attach(&mut actor, first.clone()).await, NAME);
    let second = ask("x", "net1", "10.0.1.67");
    assert_eq!(attach(&mut actor, second.clone()).await, own(&second));
    let mut nameless = ask("z", "eth0", "10.0.1.69");
    nameless.ask.pod = None;
    assert_eq!(attach(&mut actor, nameless.clone()).await, own(&nameless));
    assert_eq!(shown(&actor)["x/eth0"], NAME);

    let later = ask("y", "eth0", "10.0.1.68");
    assert_eq!(attach(&mut actor, later).await, NAME);
    actor.run_pass().await;
    let names = shown(&actor);
    assert_eq!(names["y/eth0"], NAME);
    assert_eq!(names["x/eth0"], own(&first));
    assert_eq!(actor.status().await.health.state, HealthState::Ready);

    // An agent with another setting leaves devices as they are.
    machine.kill(actor);
    let mut actor = machine.boot();
    give_document(&mut actor);
    let before = writes(&actor);
    actor.run_pass().await;
    assert_eq!(writes(&actor), before);
    assert_eq!(shown(&actor), names);
    assert_eq!(actor.endpoints().len(), 4);
}
