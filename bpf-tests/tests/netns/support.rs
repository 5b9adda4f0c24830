//! Helpers of the tests.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use aya::maps::{Array, Map, MapData};
use datapath_common::abi;
use ipam::Family;
use serde_json::Value;
use testkit::fabric::eventually::{check, eventually};
use testkit::fabric::traffic::Protocol;
use testkit::fabric::{Fabric, Place, Pod, counters, source_check};

/// The time that an object of ours may be missing before it is repaired.
pub(crate) const HEAL: Duration = Duration::from_secs(1);
/// The time that contents of maps may be wrong before they are repaired.
pub(crate) const HEAL_MAPS: Duration = Duration::from_secs(10);
/// The time that a sysctl of a pod's device may be wrong of which the kernel sends no event: from
/// one audit to the next, and its repair.
pub(crate) const HEAL_AUDIT: Duration = Duration::from_secs(31);
/// The time that a requested change may take.
pub(crate) const CHANGE: Duration = Duration::from_secs(5);

/// True in the long form of the tests.
pub(crate) fn is_full() -> bool {
    std::env::var_os("TOWPATH_FULL").is_some()
}

/// One end of a flow, for both families.
#[derive(Clone, Copy)]
pub(crate) enum End<'a> {
    Pod(&'a Pod),
    Node,
    Host(testkit::fabric::layout::Host),
}

/// The peer in the VPC.
pub(crate) const PEER: End = End::Host(testkit::fabric::layout::Host::Peer);
/// The host beyond the VPC.
pub(crate) const OUTSIDE: End = End::Host(testkit::fabric::layout::Host::Outside);

impl<'a> End<'a> {
    pub(crate) fn at(self, fabric: &'a Fabric, family: Family) -> Place<'a> {
        match self {
            Self::Pod(pod) => pod.at(family),
            Self::Node => fabric.node_at(family).unwrap(),
            Self::Host(host) => fabric.host(host, family),
        }
    }
}

/// Makes one exchange, which must succeed, and whose packets must leave the node by these ENIs.
#[track_caller]
pub(crate) fn carry([from, to]: [Place; 2], protocol: Protocol, fabric: &Fabric, enis: &[u8]) {
    source_check::forget_flows(&fabric.vpc.router).unwrap();
    if let Err(error) = protocol.exchange(from, to) {
        panic!(
            "{protocol} from {} to {}: {error:#}",
            from.address, to.address
        );
    }
    let taken = fabric.enis_between(from.address, to.address).unwrap();
    assert_eq!(
        taken,
        enis.iter().copied().collect::<BTreeSet<_>>(),
        "ENIs taken by {protocol} from {} to {}",
        from.address,
        to.address
    );
}

/// Makes an exchange of every protocol in both families, whose packets must leave the node by these
/// ENIs.
#[track_caller]
pub(crate) fn carry_all(fabric: &Fabric, from: End, to: End, enis: &[u8]) {
    for family in Family::ALL {
        for protocol in Protocol::ALL {
            carry(
                [from.at(fabric, family), to.at(fabric, family)],
                protocol,
                fabric,
                enis,
            );
        }
    }
}

/// Waits until a check succeeds.
#[track_caller]
pub(crate) fn within<T>(
    deadline: Duration,
    what: &str,
    look: impl FnMut() -> anyhow::Result<T>,
) -> T {
    match eventually(deadline, what, look) {
        Ok((value, _)) => value,
        Err(error) => panic!("{error:#}"),
    }
}

/// Waits until the node has carried no packet for a while, so that no delayed acknowledgement or
/// retransmission is due.
#[track_caller]
pub(crate) fn within_quiet(deadline: Duration, fabric: &Fabric) {
    /// Twice the longest delay of an acknowledgement (`TCP_DELACK_MAX` in include/net/tcp.h).
    const QUIET: Duration = Duration::from_millis(500);
    let mut last = (String::new(), Instant::now());
    within(deadline, "a quiet node", || {
        let devices = fabric.node.run("cat /proc/net/dev")?;
        if devices != last.0 {
            last = (devices, Instant::now());
        }
        check(last.1.elapsed() > QUIET, || "packets go on".to_owned())
    });
}

/// Waits until a check succeeds, and returns the duration.
#[track_caller]
pub(crate) fn within_counted(
    deadline: Duration,
    what: &str,
    look: impl FnMut() -> anyhow::Result<()>,
) -> Duration {
    match eventually(deadline, what, look) {
        Ok(((), time)) => time,
        Err(error) => panic!("{error:#}"),
    }
}

/// The agent's answer to a GET.
#[track_caller]
pub(crate) fn get(fabric: &Fabric, path: &str) -> Value {
    fabric.agent.ask("GET", path, None).unwrap()
}

/// An ENI, as the agent lists it.
pub(crate) fn eni_status(fabric: &Fabric, number: u8) -> anyhow::Result<Value> {
    let enis = fabric.agent.ask("GET", "/v1/enis", None)?;
    let found = enis
        .as_array()
        .into_iter()
        .flatten()
        .find(|eni| eni["number"] == number);
    found
        .cloned()
        .ok_or_else(|| anyhow::anyhow!("ENI {number} is not listed: {enis}"))
}

/// Waits until an ENI has a state, and returns it.
#[track_caller]
pub(crate) fn wait_for_eni(fabric: &Fabric, number: u8, state: &str) -> Value {
    within(CHANGE, &format!("ENI {number} is {state}"), || {
        let eni = eni_status(fabric, number)?;
        check(eni["readiness"]["state"] == state, || eni.to_string())?;
        Ok(eni)
    })
}

/// Packets with an outcome so far.
#[track_caller]
pub(crate) fn count(fabric: &Fabric, program: &str, outcome: &str) -> u64 {
    let counters = counters::read(fabric).unwrap();
    let name = (program.to_owned(), outcome.to_owned());
    counters.get(&name).copied().unwrap_or_default()
}

/// An array that the agent has pinned.
#[track_caller]
pub(crate) fn pinned<T: aya::Pod>(fabric: &Fabric, name: &str) -> Array<MapData, T> {
    let pins = fabric.pin_root().join(format!("v{}", abi::VERSION));
    let map = MapData::from_pin(pins.join("maps").join(name)).unwrap();
    Map::Array(map).try_into().unwrap()
}

/// Checks that no object of ours is missing or superfluous.
pub(crate) fn nothing_differs(fabric: &Fabric) -> anyhow::Result<()> {
    let objects = fabric.agent.ask("GET", "/v1/routes", None)?;
    let list = objects.as_array().into_iter().flatten();
    let differing: Vec<_> = list.filter(|object| object["state"] != "present").collect();
    check(differing.is_empty(), || format!("{differing:?}"))
}
