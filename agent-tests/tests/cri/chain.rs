//! The reference plugins after ours: `portmap`, `bandwidth`, `tuning`; and `loopback` as a network
//! of its own.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ipam::Family;
use serde_json::{Value, json};
use testkit::cri::{Bed, Containerd, Plugins, PodRequest, PortMapping, Setup};
use testkit::fabric::Place;
use testkit::fabric::eventually::{check, eventually};
use testkit::fabric::traffic::{Echo, Protocol, connect_from_port, tcp};

use crate::census::{Census, exactly};
use crate::containers::Containers;
use crate::driver::Network;
use crate::scene::{Reach, Scene};

/// The host's port, and the pod's port that it leads to.
const PORTS: (u16, u16) = (8080, 9090);
/// Bits a second that a pod may receive and send.
const RATE: u64 = 16_000_000;
/// Bits at once beyond that.
const BURST: u64 = 800_000;
/// Bytes that are timed: a second's worth.
const BYTES: u64 = RATE / 8;
/// The time that the agent may take to follow a change of the rules.
const CHANGE: Duration = Duration::from_secs(5);

/// The time to send the bytes from one place to another.
fn pour(from: Place, to: Place) -> Result<Duration> {
    let listener = to.netns.enter(|| Ok(TcpListener::bind((to.address, 0))?))?;
    let address = listener.local_addr()?;
    let mut sender = connect_from_port(from, 0, address)?;
    let (mut receiver, _) = listener.accept()?;
    let start = Instant::now();
    let bytes = usize::try_from(BYTES)?;
    thread::scope(|scope| -> Result<()> {
        let sent = scope.spawn(move || sender.write_all(&vec![1; bytes]));
        let mut buffer = vec![0; bytes];
        receiver.read_exact(&mut buffer)?;
        sent.join()
            .map_err(|_panicked| anyhow::anyhow!("the sender panicked"))??;
        Ok(())
    })?;
    Ok(start.elapsed())
}

fn behind(folder: &std::path::Path) -> Vec<Value> {
    vec![
        json!({"type": "portmap", "capabilities": {"portMappings": true}, "snat": true}),
        json!({"type": "bandwidth", "capabilities": {"bandwidth": true}}),
        json!({
            "type": "tuning", "sysctl": {"net.core.somaxconn": "500"}, "dataDir": folder
        }),
    ]
}

/// Expects that peers reach a pod by the host's port.
fn port_is_mapped(scene: &Scene, pod: &Reach) {
    for family in Family::ALL {
        let echo = Echo::telling(pod.at(family).unwrap(), PORTS.1).unwrap();
        let node = scene.fabric.node_at(family).unwrap().address;
        let peer = scene.fabric.peer(family);
        let target = SocketAddr::new(node, PORTS.0);
        eventually(CHANGE, "the port leads to the pod", || {
            let mut stream = connect_from_port(peer, 0, target)?;
            stream.write_all(b"x")?;
            let mut answer = [0; 1];
            stream.read_exact(&mut answer).context("an answer")
        })
        .unwrap();
        drop(echo);
    }
}

/// Expects that the pod receives and sends at the requested rate; packets of neither family bypass
/// the limit.
fn bandwidth_is_shaped(scene: &Scene, pod: &Reach, plain: &Reach) {
    for family in Family::ALL {
        let (pod, peer) = (pod.at(family).unwrap(), scene.fabric.peer(family));
        let plain = plain.at(family).unwrap();
        let times = [
            ("peer to pod", pour(peer, pod).unwrap()),
            ("pod to peer", pour(pod, peer).unwrap()),
            ("pod to pod here", pour(pod, plain).unwrap()),
        ];
        let free = pour(peer, plain).unwrap();
        println!("{family:?}: {BYTES} bytes: without limit {free:?}, with {times:?}");
        for (what, time) in times {
            // The burst is free, and the token bucket does not count headers.
            assert!(
                time > Duration::from_millis(800),
                "{family:?} {what}: {time:?}"
            );
            assert!(time < Duration::from_secs(3), "{family:?} {what}: {time:?}");
        }
        assert!(free < Duration::from_millis(500), "{family:?}: {free:?}");
    }
}

/// Shaping is done by the stack's qdiscs, which redirected packets bypass.
fn is_sent_through_them(scene: &Scene, container: &str) {
    eventually(CHANGE, "what is shaped takes the stack", || {
        let status = scene.fabric.agent.ask("GET", "/v1/status", None)?;
        let notes = status["endpoint-notes"].as_object();
        let note = notes.and_then(|notes| notes.get(&format!("{container}/eth0")));
        let is_named = |note: &Value| note.as_str().is_some_and(|note| note.contains("tbf qdisc"));
        check(note.is_some_and(is_named), || format!("{notes:?}"))
    })
    .unwrap();
}

fn reference_plugins_work_behind_ours(plugins: Plugins) {
    let scene = Scene::ready().unwrap();
    let (node, containers) = (&scene.fabric.node, Containers::new(&scene));
    let mut network = scene
        .network("1.0.0", behind(&scene.fabric.file("tuning")))
        .unwrap();
    network.path[1] = plugins.folder().unwrap();
    let census = Census::of_empty(&scene).unwrap();
    let mut container = containers.take().unwrap();
    let (host, inside) = PORTS;
    container.attachment.runtime.insert(
        "portMappings".to_owned(),
        json!([{"hostPort": host, "containerPort": inside, "protocol": "tcp"}]),
    );
    container.attachment.runtime.insert(
        "bandwidth".to_owned(),
        json!({
            "ingressRate": RATE, "ingressBurst": BURST, "egressRate": RATE, "egressBurst": BURST
        }),
    );
    let result = network.add(node, &container.attachment).unwrap();
    let other = containers.take().unwrap();
    let other_result = network.add(node, &other.attachment).unwrap();
    let pod = Reach::of_result(&container.attachment.netns, &result).unwrap();
    let plain = Reach::of_result(&other.attachment.netns, &other_result).unwrap();
    exactly(&scene, &[container.id(), other.id()]).unwrap();
    is_sent_through_them(&scene, container.id());
    pod.talk(&Protocol::ALL, |family| Ok(scene.fabric.peer(family)))
        .unwrap();
    pod.talk(&Protocol::ALL, |family| plain.at(family)).unwrap();
    port_is_mapped(&scene, &pod);
    bandwidth_is_shaped(&scene, &pod, &plain);
    assert_eq!(container.netns.sysctl("core/somaxconn").unwrap(), "500");
    // portmap 1.1 looks for the rules of IPv4 among those of IPv6.
    if plugins == Plugins::New {
        let checked = network.check(node, &container.attachment, &result);
        checked.unwrap();
    }
    network
        .del(node, &container.attachment, Some(&result))
        .unwrap();
    network
        .del(node, &other.attachment, Some(&other_result))
        .unwrap();
    exactly(&scene, &[]).unwrap();
    // portmap leaves only its empty chains; the devices of `bandwidth` are gone.
    let links = node.ip_json("link show type ifb").unwrap();
    assert_eq!(links, json!([]), "{links}");
    drop((container, other, census));
    scene.fabric.finish().unwrap();
}

#[test]
fn reference_plugins_1_1() {
    reference_plugins_work_behind_ours(Plugins::Old);
}

#[test]
fn reference_plugins_1_9() {
    reference_plugins_work_behind_ours(Plugins::New);
}

#[test]
fn loopback_stands_beside_ours() {
    let scene = Scene::ready().unwrap();
    let (node, containers) = (&scene.fabric.node, Containers::new(&scene));
    let network = scene.network("1.0.0", Vec::new()).unwrap();
    let loopback = Network {
        name: "lo".to_owned(),
        plugins: vec![json!({"type": "loopback"})],
        ..network.clone()
    };
    let container = containers.take().unwrap();
    container.netns.ip("link set lo down").unwrap();
    let mut lo = container.attachment.clone();
    "lo".clone_into(&mut lo.interface);
    let lo_result = loopback.add(node, &lo).unwrap();
    let result = network.add(node, &container.attachment).unwrap();
    let pod = Reach::of_result(&container.attachment.netns, &result).unwrap();
    let v4 = pod.at(Family::V4).unwrap();
    let echo = Echo::start(v4).unwrap();
    tcp(v4, echo.address()).unwrap();
    drop(echo);
    network
        .del(node, &container.attachment, Some(&result))
        .unwrap();
    loopback.del(node, &lo, Some(&lo_result)).unwrap();
    exactly(&scene, &[]).unwrap();
    scene.fabric.finish().unwrap();
}

/// The chain under a runtime, which has ports and bandwidths in its own format.
#[test]
fn a_runtime_asks_for_ports_and_bandwidth() {
    let scene = Scene::ready().unwrap();
    let network = scene
        .network("1.0.0", behind(&scene.fabric.file("tuning")))
        .unwrap();
    let setup = Setup {
        containerd: Containerd::One,
        plugins: Plugins::Old,
        own_plugins: scene.own_plugins(),
        networks: &[("runc", network.list())],
    };
    let bed = Bed::start(&scene.fabric, &setup).unwrap();
    let (host, container) = PORTS;
    let mut request = PodRequest::new("shaped");
    request.ports = vec![PortMapping { host, container }];
    for direction in ["ingress", "egress"] {
        let name = format!("kubernetes.io/{direction}-bandwidth");
        request.annotations.insert(name, RATE.to_string());
    }
    let pods = [
        bed.cri.run_pod(&request).unwrap(),
        bed.cri.run_pod(&PodRequest::new("plain")).unwrap(),
    ];
    let [pod, plain] =
        [&pods[0], &pods[1]].map(|pod| Reach::new(&pod.netns, &pod.addresses).unwrap());
    port_is_mapped(&scene, &pod);
    // Kubernetes sets no burst, and containerd takes the largest possible one.
    pod.talk(&Protocol::ALL, |family| plain.at(family)).unwrap();
    for answer in bed
        .cri
        .stop_pods(&pods)
        .into_iter()
        .chain(bed.cri.remove_pods(&pods))
    {
        answer.unwrap();
    }
    exactly(&scene, &[]).unwrap();
    drop(bed);
    scene.fabric.finish().unwrap();
}
