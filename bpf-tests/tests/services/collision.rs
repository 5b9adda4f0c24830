//! One client port for a pod's own address, and for a service with that pod as a backend. On the
//! direct path netfilter does not see the first flow, and cannot keep the second one apart from it.
//! There is no mechanism against that, as the documentation says.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ipam::Family;
use testkit::fabric::traffic::{Session, uninterrupted};

use crate::model::{Policy, SERVICE_PORT};
use crate::scene::{Path, Scene, Site, Which};

/// The client and its server, on different ENIs.
const CLIENT: Site = Site::Pod(0, 0);
const SERVER: Site = Site::Pod(1, 1);
/// The client's port, which no other test uses.
const PORT: u16 = 23_456;
/// The time that an answer may take.
const SOON: Duration = Duration::from_secs(2);

/// Checks the documented behaviour.
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
        // The server cannot distinguish them. It answers the second one's SYN with an ACK for the
        // first one, and the client resets that.
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
    // Requests that bypass the stack take it once the service has been used from the same port.
    let answers = [ask(pod)?, ask(service)?, ask(pod)?];
    ensure!(answers == [pod, service, pod], "answers of {answers:?}");
    Ok(())
}
