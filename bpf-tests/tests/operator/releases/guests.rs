//! Pods on nodes, which send packets until they are gone.

use std::collections::VecDeque;
use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result};
use ipam::Family;
use serde_json::json;
use testkit::fabric::eventually::{check, eventually};
use testkit::fabric::traffic::{Echo, udp};
use testkit::fabric::{Fabric, Netns, Place};

use super::scene::Node;
use crate::bed::SOON;

/// Time between two packets of a pod.
const TICK: Duration = Duration::from_millis(20);

/// A pod.
pub(crate) struct Guest {
    netns: Netns,
    address: IpAddr,
}

impl Guest {
    /// Adds a pod once the node has an address for it.
    ///
    /// # Errors
    /// When the node has none in time.
    fn add(fabric: &Fabric, name: &str) -> Result<Self> {
        let netns = Netns::create(&format!("{}-{name}", fabric.node.name()))?;
        let request = json!({
            "owner": {"container-id": netns.name(), "interface": "eth0"},
            "netns": netns.path(), "network": "towpath", "families": [Family::V4],
        });
        let add = || {
            let (status, answer) = fabric
                .agent
                .request("PUT", "/v1/endpoints", Some(&request))?;
            check(status == 200, || answer.to_string())?;
            let address = answer["addresses"][0]["address"].as_str();
            Ok(address.context("an address")?.parse()?)
        };
        let (address, _) = eventually(SOON, "a pod has an address", add)?;
        Ok(Self { netns, address })
    }

    fn delete(&self, fabric: &Fabric) -> Result<()> {
        let path = format!("/v1/endpoints/{}/eth0", self.netns.name());
        fabric.agent.ask("DELETE", &path, None).map(drop)
    }

    fn place(&self) -> Place<'_> {
        Place {
            netns: &self.netns,
            address: self.address,
        }
    }
}

/// Sockets that send a packet at each tick, whether they can or not.
#[derive(Default)]
struct Senders {
    sockets: Mutex<Vec<(IpAddr, UdpSocket)>>,
    stop: AtomicBool,
}

impl Senders {
    fn run(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            self.change(|sockets| {
                for (_, socket) in sockets.iter() {
                    // The pod's device may just have gone.
                    drop(socket.send(b"towpath"));
                }
            });
            thread::sleep(TICK);
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut Vec<(IpAddr, UdpSocket)>) -> T) -> T {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut sockets)
    }
}

/// The pods of a node. Each sends packets to a server on the other node.
pub(crate) struct Guests<'a> {
    fabric: &'a Fabric,
    /// The server of pods on the other node.
    server: Guest,
    echo: Echo,
    pods: VecDeque<Guest>,
    made: usize,
    senders: Arc<Senders>,
    thread: Option<JoinHandle<()>>,
}

impl<'a> Guests<'a> {
    /// A node with one pod, which is a server.
    ///
    /// # Errors
    /// When it has no address in time.
    pub(crate) fn on(node: &'a Node) -> Result<Self> {
        let server = Guest::add(&node.fabric, "server")?;
        let senders = Arc::new(Senders::default());
        let sending = Arc::clone(&senders);
        Ok(Self {
            fabric: &node.fabric,
            echo: Echo::start(server.place())?,
            server,
            pods: VecDeque::new(),
            made: 0,
            senders,
            thread: Some(thread::spawn(move || sending.run())),
        })
    }

    /// Adds a pod, which exchanges a packet with the server of the other node, and goes on sending.
    ///
    /// # Errors
    /// When the node has no address in time, or no packet comes back.
    pub(crate) fn add(&mut self, other: &Self) -> Result<()> {
        self.made += 1;
        let pod = Guest::add(self.fabric, &format!("p{}", self.made))?;
        let to = other.echo.address();
        udp(pod.place(), to, b"towpath")?;
        let socket = pod.netns.enter(|| Ok(UdpSocket::bind((pod.address, 0))?))?;
        socket.connect(to)?;
        self.senders
            .change(|sockets| sockets.push((pod.address, socket)));
        self.pods.push_back(pod);
        Ok(())
    }

    /// Deletes the oldest pod, if there is one. It sends until then.
    ///
    /// # Errors
    /// When the agent refuses.
    pub(crate) fn remove(&mut self) -> Result<()> {
        let Some(pod) = self.pods.pop_front() else {
            return Ok(());
        };
        pod.delete(self.fabric)?;
        self.senders.change(|sockets| {
            // A later pod can have the same address. Its socket comes after this one.
            let first = sockets.iter().position(|(of, _)| *of == pod.address);
            drop(first.map(|first| sockets.remove(first)));
        });
        Ok(())
    }

    /// Number of pods beside the server.
    pub(crate) fn count(&self) -> usize {
        self.pods.len()
    }

    /// Exchanges a packet of each pod with the server of the other node.
    ///
    /// # Errors
    /// With the first pod that has no answer.
    pub(crate) fn all_exchange(&self, other: &Self) -> Result<()> {
        let pods = self.pods.iter().chain([&self.server]);
        pods.map(Guest::place)
            .try_for_each(|place| udp(place, other.echo.address(), b"towpath"))
    }
}

impl Drop for Guests<'_> {
    fn drop(&mut self) {
        self.senders.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of it has been printed.
            let _ended = thread.join();
        }
    }
}
