//! An endpoint works from the moment that the agent has answered.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use ipam::Family;
use testkit::fabric::layout::Host;
use testkit::fabric::traffic::{Echo, udp};
use testkit::fabric::{Fabric, Spec};

/// Endpoints that are made one after the other.
const TIMES: usize = 20;
/// Threads that make the kernel's lock for devices a busy one.
const OTHERS: usize = 2;

/// The kernel activates a device in its own time, and the first packet of a pod that is quicker is
/// lost. On a node where much is made at once, that time is long.
#[test]
fn the_first_packet_of_a_pod_arrives() {
    let mut fabric = Fabric::ready(&Spec::default()).unwrap();
    let pod = fabric.add_pod(1, 0).unwrap();
    let echoes = Family::ALL.map(|family| Echo::start(fabric.peer(family)).unwrap());
    let stop = AtomicBool::new(false);
    let lost = thread::scope(|scope| {
        for other in 0..OTHERS {
            let (elsewhere, stop) = (fabric.vpc.host(Host::Outside), &stop);
            scope.spawn(move || {
                let batch = format!(
                    "link add busy{other} type bridge\n\
                     link set busy{other} up\n\
                     link del busy{other}"
                );
                while !stop.load(Ordering::Relaxed) {
                    elsewhere.ip(&batch).unwrap();
                }
            });
        }
        let mut lost = Vec::new();
        for time in 0..TIMES {
            let done = fabric
                .delete_endpoint(&pod)
                .and_then(|()| fabric.add_endpoint(&pod).map(drop));
            // One family each time: the first packet is of interest.
            let family = Family::ALL[time % 2];
            let sent = udp(pod.at(family), echoes[time % 2].address(), b"first");
            lost.extend(
                done.and(sent)
                    .err()
                    .map(|error| format!("{time}: {error:#}")),
            );
        }
        stop.store(true, Ordering::Relaxed);
        lost
    });
    assert!(lost.is_empty(), "{lost:#?}");
    fabric.finish().unwrap();
}
