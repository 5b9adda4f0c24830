use std::time::Instant;

use super::*;
use crate::intent::Endpoint;
use crate::kernel::fixture::{endpoint, host, id, intent};
use crate::kernel::{MapKey, StepKind};
use crate::reconcile::model::ModelKernel;
use crate::reconcile::tests::block_on;

/// A node that is as it should be.
struct Bench {
    reconciler: Reconciler<ModelKernel>,
    intent: Intent,
}

impl Bench {
    fn new() -> Self {
        let mut bench = Self {
            reconciler: Reconciler::new(ModelKernel::new(host()), Instant::now),
            intent: intent(),
        };
        assert!(bench.whole_pass().is_clean());
        bench
    }

    fn whole_pass(&mut self) -> crate::reconcile::Pass {
        block_on(self.reconciler.pass(&self.intent))
    }

    fn pass(&mut self, of: &Endpoint) -> Option<EndpointsPass> {
        let of = Endpoints::from([(of.id(), of.addresses.clone())]);
        block_on(self.reconciler.pass_endpoints(&self.intent, &of))
    }

    fn add(&mut self, endpoint: &Endpoint) -> EndpointsPass {
        self.intent
            .endpoints
            .insert(endpoint.id(), endpoint.clone());
        self.pass(endpoint).unwrap()
    }

    fn kernel(&mut self) -> &mut ModelKernel {
        self.reconciler.kernel_mut()
    }

    fn ifindex(&mut self, name: &str) -> u32 {
        let mut links = self.kernel().state.links.values();
        let link = links.find(|link| link.name == id(name).device());
        link.unwrap().ifindex
    }
}

fn pod() -> Endpoint {
    endpoint("new", &["10.0.1.70", "2001:db8:0:1:a::70"])
}

#[test]
fn it_leaves_nothing_to_do_for_a_whole_pass() {
    let mut bench = Bench::new();
    let pass = bench.add(&pod());
    assert_eq!((pass.remaining, &pass.failures), (0, &Vec::new()));
    assert!(pass.applied > 0 && pass.endpoints[&pod().id()].readiness.is_ready());
    let whole = bench.whole_pass();
    assert!(whole.is_clean());
    assert_eq!(whole.applied, 0);
    assert_eq!(
        whole.view.endpoints[&pod().id()],
        pass.endpoints[&pod().id()]
    );

    bench.intent.endpoints.remove(&pod().id());
    let pass = bench.pass(&pod()).unwrap();
    assert_eq!((pass.remaining, pass.endpoints.len()), (0, 0));
    assert_eq!(bench.whole_pass().applied, 0);
}

#[test]
fn others_are_left_to_the_whole_pass() {
    let mut bench = Bench::new();
    let (broken, address) = (bench.ifindex("a"), "10.0.1.64".parse::<IpAddr>().unwrap());
    bench.kernel().set_down(broken);
    bench.add(&pod());
    assert!(!bench.kernel().state.links[&broken].up);
    let entry = MapKey::Address(address);
    let has_entry = bench.kernel().state.maps.contains_key(&entry);
    let whole = bench.whole_pass();
    assert!(whole.is_clean() && whole.applied > 0);
    assert!(bench.kernel().state.links[&broken].up);
    assert_eq!(bench.kernel().state.maps.contains_key(&entry), has_entry);
}

#[test]
fn entries_of_an_endpoint_whose_device_went_first_go() {
    let mut bench = Bench::new();
    bench.add(&pod());
    let ifindex = bench.ifindex("new");
    bench.kernel().unplug(ifindex);
    bench.intent.endpoints.remove(&pod().id());
    bench.pass(&pod()).unwrap();
    for address in pod().addresses {
        let key = MapKey::Address(address);
        assert!(!bench.kernel().state.maps.contains_key(&key), "{address}");
    }
    assert!(bench.whole_pass().is_clean());
}

#[test]
fn what_fails_is_told() {
    let mut bench = Bench::new();
    bench.kernel().refuse = Box::new(|step| matches!(step, StepKind::AddNeighbour(_)));
    let pass = bench.add(&pod());
    assert_eq!(pass.remaining, 2, "nothing waits for a neighbour entry");
    assert_eq!(pass.failures.len(), 2, "{:?}", pass.failures);
    assert!(!pass.endpoints[&pod().id()].readiness.is_ready());
}

#[test]
fn another_node_needs_a_whole_pass_first() {
    let mut bench = Bench::new();
    bench
        .intent
        .settings
        .services
        .configured
        .insert("10.96.0.0/16".parse().unwrap());
    bench.intent.endpoints.insert(pod().id(), pod());
    assert_eq!(bench.pass(&pod()), None);
    assert!(bench.whole_pass().is_clean());
    assert!(bench.pass(&pod()).is_some());

    bench.kernel().budget = Some(0);
    bench.whole_pass();
    assert_eq!(bench.pass(&pod()), None, "the kernel could not be read");
}
