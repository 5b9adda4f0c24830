//! Floods of questions to a resolver beyond the VPC, each from a random port and with its answer.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use ipam::Family;
use serde_json::json;
use testkit::fabric::record::Record;
use testkit::fabric::traffic::{Echo, Session};
use testkit::fabric::{Netns, Place};

use crate::masq::{internet, scene};
use crate::support::is_full;

/// The resolver's port.
const DNS: u16 = 53;
/// The time for which questions are sent. Ports of the resolver run short within ten seconds.
const FLOOD: Duration = Duration::from_secs(40);
/// The time in the long form.
const LONG_FLOOD: Duration = Duration::from_mins(5);
/// The time between two bursts of questions.
const TICK: Duration = Duration::from_millis(10);
/// A question without an answer is lost after so long.
const LOST: Duration = Duration::from_secs(3);

/// A question under way.
struct Question {
    socket: UdpSocket,
    sent: Instant,
}

/// The questions of a flood.
#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    answered: usize,
    /// Questions that could not be sent, or had no answer.
    lost: usize,
}

/// Sends a question from a port that the kernel chooses at random.
fn question(from: IpAddr, to: SocketAddr) -> Result<Question> {
    let socket = UdpSocket::bind((from, 0))?;
    socket.connect(to)?;
    socket.set_nonblocking(true)?;
    socket.send(b"towpath")?;
    Ok(Question {
        socket,
        sent: Instant::now(),
    })
}

/// Sends so many questions a second, and waits for the last answers.
fn flood(from: Place, to: SocketAddr, per_second: u32, time: Duration) -> Result<Count> {
    from.netns.enter(|| {
        let mut count = Count::default();
        let mut open: VecDeque<Question> = VecDeque::new();
        let start = Instant::now();
        let mut sent = 0;
        let all = f64::from(per_second) * time.as_secs_f64();
        while f64::from(sent) < all || !open.is_empty() {
            let due = f64::from(per_second) * start.elapsed().as_secs_f64();
            while f64::from(sent) < due.min(all) {
                sent += 1;
                match question(from.address, to) {
                    Ok(question) => open.push_back(question),
                    Err(_refused) => count.lost += 1,
                }
            }
            open.retain(|it| {
                let is_answered = it.socket.recv(&mut [0; 16]).is_ok();
                let is_lost = !is_answered && it.sent.elapsed() > LOST;
                count.answered += usize::from(is_answered);
                count.lost += usize::from(is_lost);
                !is_answered && !is_lost
            });
            thread::sleep(TICK);
        }
        Ok(count)
    })
}

/// Each place sends so many questions a second to one resolver.
fn floods(from: &[Place], resolver: SocketAddr, per_second: u32, time: Duration) -> Vec<Count> {
    thread::scope(|scope| {
        let floods = from
            .iter()
            .map(|place| scope.spawn(move || flood(*place, resolver, per_second, time).unwrap()));
        let floods: Vec<_> = floods.collect();
        floods.into_iter().map(|it| it.join().unwrap()).collect()
    })
}

/// Clients, a router and a resolver, where the kernel's own NAT translates.
struct Oracle {
    clients: Vec<Netns>,
    resolver: Netns,
    _router: Netns,
    _record: Record,
}

impl Oracle {
    fn new(clients: usize) -> Self {
        let record = Record::create().unwrap();
        let netns = |name: &str| Netns::create(&format!("{}-{name}", record.prefix())).unwrap();
        let (router, resolver) = (netns("router"), netns("resolver"));
        let connect = |to: &Netns, number: usize| {
            let name = to.name();
            let device = format!("link{number}");
            let words = format!("link add {device} type veth peer name eth0 netns {name}");
            let net = |host| format!("198.18.{number}.{host}");
            let up = format!(
                "address add {}/24 dev {device}\nlink set {device} up",
                net(1)
            );
            router.ip(&format!("{words}\n{up}")).unwrap();
            let up = format!("address add {}/24 dev eth0\nlink set eth0 up", net(2));
            let route = format!("route add default via {}", net(1));
            to.ip(&format!("{up}\n{route}")).unwrap();
        };
        connect(&resolver, 0);
        let make = |number| {
            let client = netns(&format!("client{number}"));
            connect(&client, number);
            client
        };
        let clients = (1..=clients).map(make).collect();
        router.sysctls(&[("ipv4/ip_forward", "1")]).unwrap();
        for command in [
            "nft add table ip nat",
            "nft add chain ip nat post { type nat hook postrouting priority 100 ; }",
            "nft add rule ip nat post oifname link0 masquerade",
        ] {
            router.run(command).unwrap();
        }
        Self {
            clients,
            resolver,
            _router: router,
            _record: record,
        }
    }

    /// Questions that are lost by the kernel's NAT, or by the test itself.
    fn lost(&self, per_second: u32) -> usize {
        let at = |netns, [net, host]: [u8; 2]| Place {
            netns,
            address: [198, 18, net, host].into(),
        };
        let resolver = Echo::telling(at(&self.resolver, [0, 2]), DNS).unwrap();
        let clients = self.clients.iter().zip(1..);
        let clients: Vec<_> = clients.map(|(client, net)| at(client, [net, 2])).collect();
        let session = Session::open(clients[0], 0, resolver.address()).unwrap();
        let router: IpAddr = [198, 18, 0, 1].into();
        assert_eq!(session.seen().ip(), router, "the kernel translates");
        let counts = floods(&clients, resolver.address(), per_second, FLOOD);
        counts.iter().map(|count| count.lost).sum()
    }
}

/// Each pod sends so many questions a second to one resolver, and each has its answer. The kernel's
/// NAT, with the same load at the same time, tells what is lost without us.
#[track_caller]
fn none_is_lost(from: &[Place], resolver: SocketAddr, per_second: u32) {
    let time = if is_full() { LONG_FLOOD } else { FLOOD };
    let oracle = Oracle::new(from.len());
    let (counts, oracle) = thread::scope(|scope| {
        let oracle = scope.spawn(|| oracle.lost(per_second));
        let counts = floods(from, resolver, per_second, time);
        (counts, oracle.join().unwrap())
    });
    let lost: usize = counts.iter().map(|count| count.lost).sum();
    assert!(
        lost <= oracle,
        "lost {lost}, and {oracle} by the kernel's NAT in {FLOOD:?}: {counts:?}"
    );
    let seconds = usize::try_from(time.as_secs()).unwrap();
    let expected = Count {
        answered: usize::try_from(per_second).unwrap() * seconds,
        lost: 0,
    };
    for count in &counts {
        assert_eq!(
            *count, expected,
            "{oracle} lost by the kernel's NAT: {counts:?}"
        );
    }
}

/// Without early reuse of answered flows, these use up the ports of the resolver within a minute.
#[test]
fn two_pods_of_an_eni_ask_one_resolver_1600_times_a_second_and_lose_nothing() {
    let (mut fabric, [_, first]) = scene(json!({}));
    let second = fabric.add_pod(1, 1).unwrap();
    let family = Family::V4;
    let resolver = Echo::telling(internet(&fabric, family), DNS).unwrap();
    let pods = [first.at(family), second.at(family)];
    none_is_lost(&pods, resolver.address(), 800);
    fabric.finish().unwrap();
}

#[test]
fn a_pod_asks_one_resolver_1000_times_a_second_and_loses_nothing() {
    let (fabric, [_, pod]) = scene(json!({}));
    let family = Family::V4;
    let resolver = Echo::telling(internet(&fabric, family), DNS).unwrap();
    none_is_lost(&[pod.at(family)], resolver.address(), 1000);
    fabric.finish().unwrap();
}
