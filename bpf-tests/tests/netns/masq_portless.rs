//! Protocols without ports: dropped and counted where they would have to be translated, carried
//! where not.

use ipam::Family;
use serde_json::json;
use testkit::fabric::traffic::{of_protocol, send_ip};
use testkit::fabric::world::Site;
use testkit::fabric::{Fabric, Place, source_check};

use crate::masq::{internet, scene};
use crate::support::count;

/// GRE, ESP, and an unassigned one (IANA, "Protocol Numbers": 253 is for experiments).
const PROTOCOLS: [u8; 3] = [47, 50, 253];

fn sent(fabric: &Fabric, from: Place, to: Place, protocol: u8) -> Vec<source_check::Flow> {
    source_check::forget_flows(&fabric.vpc.router).unwrap();
    let packet = of_protocol(from.address, to.address, protocol, &[7; 64]).unwrap();
    send_ip(from, to.address, [&packet]).unwrap();
    let mut flows = source_check::flows(&fabric.vpc.router).unwrap();
    flows.retain(|flow| flow.to == to.address);
    flows
}

#[test]
fn what_cannot_be_translated_is_dropped_and_what_need_not_be_is_carried() {
    let (fabric, pods) = scene(json!({}));
    for (pod, eni) in pods.iter().zip([0_u8, 1]) {
        for (family, protocol) in Family::ALL.iter().flat_map(|f| PROTOCOLS.map(|p| (*f, p))) {
            let from = pod.at(family);
            let before = count(&fabric, "from_endpoint", "protocol-without-ports");
            let left = sent(&fabric, from, internet(&fabric, family), protocol);
            assert!(left.is_empty(), "{left:?}");
            let after = count(&fabric, "from_endpoint", "protocol-without-ports");
            assert_eq!(after - before, 1, "{family:?} {protocol}");
            let seen = fabric
                .world()
                .unwrap()
                .seen(Site::Internet, family, protocol);
            assert!(seen.unwrap().is_empty());
            let left = sent(&fabric, from, fabric.peer(family), protocol);
            let [flow] = &left[..] else {
                panic!("{family:?} {protocol} to the peer: {left:?}")
            };
            assert_eq!((flow.eni, flow.from), (eni.into(), from.address));
        }
    }
    fabric.finish().unwrap();
}
