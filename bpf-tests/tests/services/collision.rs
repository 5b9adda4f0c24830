//! One client port that asks a pod by its own address, and by a service that has it as backend. On
//! the direct path netfilter knows nothing of the first flow, and cannot keep the second one apart
//! from it: there is no mechanism against that, and the documentation says so.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bpf_tests::fabric::traffic::{Session, uninterrupted};
use ipam::Family;

use crate::model::{Policy, SERVICE_PORT};
use crate::scene::{Path, Scene, Site, Which};

/// The client and the pod that it asks in two ways: on ENIs of their own.
const CLIENT: Site = Site::Pod(0, 0);
const SERVER: Site = Site::Pod(1, 1);
/// The client's port, which no other test has.
const PORT: u16 = 23_456;
/// The time that an answer may take.
const SOON: Duration = Duration::from_secs(2);

/// What happens is what is documented.
pub(crate) fn happens(scene: &Scene, path: Path) -> Result<()> {
    for family in Family::ALL {
        let pod = SocketAddr::new(scene.place(SERVER, family)?.address, SERVER.port());
        let service = scene.service(Which::Of(SERVER), Policy::Cluster, family)?;
        let service = SocketAddr::new(service.address, SERVICE_PORT);
        by_tcp(scene, path, pod, service)?;
        by_udp(scene, pod, service)?;
    }
    Ok(())
}

fn by_tcp(scene: &Scene, path: Path, pod: SocketAddr, service: SocketAddr) -> Result<()> {
    let client = scene.place(CLIENT, Family::of(pod.ip()))?;
    let mut first = Session::open(client, PORT, pod)?;
    first.exchange()?;
    let mut second = Session::open(client, PORT, service).context("the later connection")?;
    second.exchange()?;
    match path {
        // Netfilter has given the second one another port.
        Path::Stack => first.exchange(),
        // The server cannot tell them apart, and its answer about the first one to the second one's
        // SYN has the client reset it.
        Path::Direct => {
            ensure!(first.exchange().is_err(), "the earlier connection goes on");
            second.exchange()
        }
    }
}

fn by_udp(scene: &Scene, pod: SocketAddr, service: SocketAddr) -> Result<()> {
    let client = scene.place(CLIENT, Family::of(pod.ip()))?;
    let socket = client
        .netns
        .enter(|| Ok(UdpSocket::bind((client.address, PORT))?))?;
    socket.set_read_timeout(Some(SOON))?;
    let ask = |to: SocketAddr| -> Result<SocketAddr> {
        socket.send_to(&[7], to)?;
        let (_, from) = uninterrupted(|| socket.recv_from(&mut [0; 256]))?;
        Ok(from)
    };
    // A question past the stack does not stay so once the service has been asked from the same port.
    let answers = [ask(pod)?, ask(service)?, ask(pod)?];
    ensure!(answers == [pod, service, pod], "answers of {answers:?}");
    Ok(())
}
