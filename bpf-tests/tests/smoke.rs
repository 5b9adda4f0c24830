//! One round of everything: the agent, pods on two ENIs, real packets of both families. Small
//! enough for an emulated machine: the kernel matrix runs it on every kernel.

use bpf_tests::fabric::source_check;
use bpf_tests::fabric::traffic::Protocol;
use bpf_tests::fabric::{Fabric, Place, Spec};
use towpath::intent::Family;

#[test]
fn pods_on_two_enis_reach_each_other_the_node_and_the_vpc() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let pods = [0, 1].map(|eni| fabric.add_pod(eni, 0).unwrap());
    for family in Family::ALL {
        let [first, second] = [&pods[0], &pods[1]].map(|pod| pod.at(family));
        let node = fabric.node_at(family).unwrap();
        let peer = fabric.peer(family);
        for protocol in Protocol::ALL {
            let exchange = |from: Place<'_>, to: Place<'_>| {
                protocol.exchange(from, to).unwrap_or_else(|error| {
                    panic!(
                        "{protocol} from {} to {}: {error:#}",
                        from.address, to.address
                    )
                });
            };
            exchange(first, second);
            for (eni, pod) in [(0, first), (1, second)] {
                exchange(pod, node);
                exchange(node, pod);
                exchange(pod, peer);
                exchange(peer, pod);
                let router = &fabric.vpc.router;
                let enis =
                    source_check::enis_between(router, pod.address, peer.address, &[]).unwrap();
                assert!(
                    enis.iter().eq([&eni]),
                    "{protocol} of ENI {eni} took {enis:?}"
                );
            }
        }
    }
    fabric.finish().unwrap();
}
