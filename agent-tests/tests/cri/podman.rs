//! podman as a second runtime: it calls plugins by its own code.

use ipam::Family;
use testkit::cri::Podman;
use testkit::fabric::layout::Host;

use crate::census::{Census, exactly};
use crate::scene::{NETWORK, Scene};

#[test]
fn podman_runs_containers() {
    let scene = Scene::ready().unwrap();
    let census = Census::of_empty(&scene).unwrap();
    let network = scene.network("0.4.0", Vec::new()).unwrap();
    let podman = Podman::new(&scene.fabric, &[network.list()], &[scene.plugins()]).unwrap();
    for family in Family::ALL {
        let ping = match family {
            Family::V4 => "ping",
            Family::V6 => "ping6",
        };
        for host in Host::ALL {
            let address = scene.fabric.host(host, family).address.to_string();
            podman
                .run(NETWORK, &[], &[ping, "-c", "1", "-W", "3", &address])
                .unwrap();
        }
    }
    exactly(&scene, &[]).unwrap();
    census.nothing_left(&scene).unwrap();
    scene.fabric.finish().unwrap();
}
