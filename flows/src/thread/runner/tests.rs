//! The sweeper's thread on model maps.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc;

use api::types::{FlowFilter, FlowKind};
use datapath_common::abi::{Addr, FlowKey, FlowQuotas, TransportAddr};
use datapath_common::headers::protocol;

use super::*;
use crate::lifetimes::Lifetimes;
use crate::model::Model;
use crate::room::quota::Limits;
use crate::thread::handle::{CompatLookups, LookupControl};
use crate::thread::pace::LONGEST;

const POD: Addr = Addr::from_v4_word(u32::from_ne_bytes([10, 0, 0, 20]));
const REMOTE: Addr = Addr::from_v4_word(u32::from_ne_bytes([192, 0, 2, 1]));
const DEVICE: u32 = 7;
/// Longer than any expected event takes.
const DEADLINE: Duration = Duration::from_secs(10);

struct NoSwitch;

impl LookupControl for NoSwitch {
    fn set(&self, _lookups: CompatLookups) -> Result<()> {
        Ok(())
    }
}

struct Bench {
    model: Model,
    handle: Handle,
    running: Option<Running>,
}

impl Bench {
    fn new() -> Self {
        let model = Model::new();
        model.maps().add_endpoint(POD, DEVICE);
        let handle = Handle::new(Arc::new(NoSwitch)).unwrap();
        Self {
            model,
            handle,
            running: None,
        }
    }

    fn start(&mut self) {
        self.start_with(FlowQuotas::DEFAULT);
    }

    fn start_with(&mut self, quotas: FlowQuotas) {
        let lifetimes = Lifetimes::default();
        let limits = Limits {
            ports: 24_576,
            quotas,
        };
        let tracker = self.model.tracker();
        let sweeper = Sweeper::new(self.model.clone(), lifetimes, limits, tracker);
        let running = start(sweeper, self.handle.clone());
        self.running = Some(running.unwrap());
    }

    fn open(&self, port: u16, idle: u64) {
        self.model.maps().open(key(port), POD, DEVICE, idle);
    }

    fn ask<T: Send + 'static>(&self, ask: impl FnOnce(&Handle, crate::Answer<T>)) -> T {
        let (sender, receiver) = mpsc::channel();
        ask(&self.handle, Box::new(move |it| drop(sender.send(it))));
        receiver.recv_timeout(DEADLINE).unwrap().unwrap()
    }
}

fn key(port: u16) -> FlowKey {
    FlowKey::new(
        1,
        protocol::UDP,
        TransportAddr::new(REMOTE, 8080_u16.to_be()),
        port.to_be(),
    )
}

#[track_caller]
fn until(what: &str, is: impl Fn() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !is() {
        assert!(Instant::now() < deadline, "{what}");
        thread::yield_now();
    }
}

#[test]
fn it_sweeps_at_the_start_and_when_endpoints_change() {
    let mut bench = Bench::new();
    bench.open(50_000, 31);
    bench.open(50_001, 0);
    bench.start();
    until("the idle flow is gone", || {
        bench.model.maps().flows.len() == 1
    });
    bench.model.maps().addresses.clear();
    bench.handle.passed(BTreeSet::new(), true);
    until("the pod's flow is gone", || {
        bench.model.maps().flows.is_empty()
    });
    until("it is reported", || bench.handle.report().gone == 1);
    assert_eq!(bench.handle.report().reaped, 1);
}

/// It is removed at the second sweep, which must not be ten seconds after the first.
#[test]
fn the_count_of_an_endpoint_that_went_goes_soon() {
    let mut bench = Bench::new();
    bench.start();
    until("a first sweep", || bench.handle.report().last.is_some());
    bench.model.maps().quotas.insert(77, 0);
    let start = Instant::now();
    bench.handle.passed(BTreeSet::new(), true);
    until("the count is gone", || bench.model.maps().quotas.is_empty());
    assert!(start.elapsed() < LONGEST / 2, "{:?}", start.elapsed());
}

#[test]
fn a_failed_allocation_wakes_it_and_a_full_quota_is_pressure() {
    let mut bench = Bench::new();
    bench.start();
    until("a first sweep", || bench.handle.report().last.is_some());
    let sweeps = || {
        let report = bench.handle.report();
        report.last.map(|(_, sweep)| sweep.is_pressed)
    };
    assert_eq!(sweeps(), Some(false));
    bench.model.maps().quotas.insert(DEVICE, u32::MAX);
    bench
        .model
        .maps()
        .counted
        .nat
        .set(Family::V6, NatStat::Failed, 1);
    until("a sweep under pressure", || sweeps() == Some(true));
}

/// The counters are sums over all endpoints, and one of these may have opened every new flow.
#[test]
fn flows_that_may_fill_one_quota_wake_it() {
    for stat in [NatStat::Allocated, NatStat::InboundNoted] {
        let mut bench = Bench::new();
        bench.start_with(FlowQuotas {
            endpoint: 10,
            inbound: 10,
            host: 100,
        });
        until("a first sweep", || bench.handle.report().last.is_some());
        bench.model.maps().quotas.insert(DEVICE, 10);
        bench.model.maps().counted.nat.set(Family::V6, stat, 8);
        let start = Instant::now();
        until("a sweep under pressure", || {
            let report = bench.handle.report();
            report.last.is_some_and(|(_, sweep)| sweep.is_pressed)
        });
        assert!(start.elapsed() < LONGEST / 2, "{:?}", start.elapsed());
    }
}

#[test]
fn it_outlives_errors_and_says_what_is_wrong() {
    let mut bench = Bench::new();
    bench.model.maps().is_broken = true;
    bench.start();
    until("the error is reported", || {
        bench.handle.report().error.is_some()
    });
    bench.open(50_000, 31);
    bench.model.maps().is_broken = false;
    until("it goes on", || bench.model.maps().flows.is_empty());
    until("all is well", || bench.handle.report().error.is_none());
}

#[test]
fn it_answers_and_flushes() {
    let mut bench = Bench::new();
    bench.open(50_000, 3);
    bench.open(50_001, 0);
    bench.model.maps().open(key(50_002), REMOTE, 0, 0);
    bench.start();
    let list = |bench: &Bench, filter| bench.ask(|handle, answer| handle.list(filter, answer));
    let all = list(&bench, FlowFilter::default());
    assert_eq!((all.total, all.flows.len()), (3, 3));
    let of_pod = FlowFilter {
        pod: Some(POD.into()),
        ..FlowFilter::default()
    };
    let flows = list(&bench, of_pod.clone()).flows;
    assert_eq!(flows.len(), 2);
    let flow = &flows[0];
    assert_eq!(flow.translated, Some(IpAddr::from([10, 0, 1, 1])));
    assert_eq!(
        (flow.translated_port, flow.remote_port),
        (Some(50_000), 8080)
    );
    assert_eq!((flow.idle_seconds, flow.expires_seconds), (3, 27));
    assert_eq!((flow.kind, flow.phase.as_str()), (FlowKind::Pod, "opening"));
    let none = FlowFilter {
        protocol: Some("tcp".to_owned()),
        ..FlowFilter::default()
    };
    assert_eq!(list(&bench, none).total, 0);

    let stats = bench.ask(Handle::stats);
    assert_eq!(stats.destinations.len(), 1);
    assert_eq!(stats.destinations[0].ports, 3);
    let flows: u64 = stats.flows.iter().map(|count| count.flows).sum();
    assert_eq!(flows, 3);

    let flushed = bench.ask(|handle, answer| handle.flush(of_pod, answer));
    assert_eq!(flushed.removed, 2);
    assert_eq!(list(&bench, FlowFilter::default()).total, 1);
    assert_eq!(bench.handle.report().flushed, 2);
}

#[test]
fn an_address_waits_until_conntrack_has_nothing_of_its_last_pod() {
    let mut bench = Bench::new();
    let address = IpAddr::from(POD);
    bench.model.maps().conntrack.stale.insert(address, 1);
    let others = IpAddr::from(REMOTE);
    bench.model.maps().conntrack.stale.insert(others, 1);
    bench.start();
    assert!(!bench.handle.is_forgotten(address), "nothing was requested");
    bench.handle.set_leaving(&BTreeSet::from([address]));
    until("its entries come again", || {
        let lasting = bench.handle.lasting();
        lasting.get(&address).is_some_and(|found| found.looks == 2)
    });
    assert!(!bench.handle.is_forgotten(address));
    until("they stay away", || bench.handle.is_forgotten(address));
    let left = bench.model.maps().conntrack.stale.clone();
    assert_eq!(left.into_keys().collect::<Vec<_>>(), [others]);
}

#[test]
fn it_ends_when_it_is_told_to() {
    let mut bench = Bench::new();
    bench.start();
    bench.running = None;
    bench.open(50_000, 31);
    let (sender, receiver) = mpsc::channel();
    let answer = move |stats: Result<_>| drop(sender.send(stats));
    bench.handle.stats(Box::new(answer));
    assert!(receiver.recv_timeout(DEADLINE).is_err(), "nobody answers");
    assert_eq!(bench.model.maps().flows.len(), 1);
}
