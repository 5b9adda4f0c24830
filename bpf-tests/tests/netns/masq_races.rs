//! The first packets of a flow on two CPUs at once: it gets one port.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use ipam::Family;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use serde_json::json;
use testkit::fabric::Place;
use testkit::fabric::traffic::{Echo, uninterrupted};

use crate::masq::{FIRST_PORT, internet, scene};

/// Flows, each of which begins on two CPUs.
const FLOWS: u16 = 300;
const CPUS: usize = 2;

/// Sends one datagram from each CPU at the same time, and returns whom the server saw.
fn race(from: Place, port: u16, server: SocketAddr) -> BTreeSet<String> {
    let open = || Ok(UdpSocket::bind((from.address, port))?);
    let socket = from.netns.enter(open).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(3)))
        .unwrap();
    socket.connect(server).unwrap();
    let barrier = Barrier::new(CPUS);
    thread::scope(|scope| {
        for cpu in 0..CPUS {
            let (socket, barrier) = (&socket, &barrier);
            scope.spawn(move || {
                let mut cpus = CpuSet::new();
                cpus.set(cpu).unwrap();
                sched_setaffinity(Pid::from_raw(0), &cpus).unwrap();
                barrier.wait();
                socket.send(b"").unwrap();
            });
        }
    });
    (0..CPUS)
        .map(|_| {
            let mut answer = [0; 128];
            let length = uninterrupted(|| socket.recv(&mut answer)).unwrap();
            String::from_utf8_lossy(&answer[..length]).into_owned()
        })
        .collect()
}

#[test]
fn first_packets_on_two_cpus_are_one_flow() {
    let (fabric, [pod, _]) = scene(json!({}));
    for family in Family::ALL {
        let server = Echo::telling(internet(&fabric, family), 0).unwrap();
        for index in 0..FLOWS {
            // Below the range the first candidate is another port, within it the port itself.
            for port in [20_000 + index, FIRST_PORT + index] {
                let seen = race(pod.at(family), port, server.address());
                assert_eq!(seen.len(), 1, "port {port}: {seen:?}");
            }
        }
    }
    fabric.finish().unwrap();
}
