//! New flows: each packet opens one, and all are removed after each round.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context as _, Result, bail, ensure};
use bench::live::nodes::by_hand;
use datapath_common::abi::{Addr, FlowKey, ReapFlow, TransportAddr};
use datapath_common::counter::NatStat;
use datapath_common::outcome::{DropReason, Outcome};
use datapath_common::ports::Ports;
use testkit::fabric::program::Action;
use testkit::testrun::scene::{ENI_1, V4, VETH_A, from_a};
use testkit::testrun::{DROP, Programs, REDIRECT};

use super::floor::Floor;
use super::flows::{Carries, Flows, Gets, flows_of, preload};
use super::meter::{Beside, Expected, Meter, Path, packet};
use super::paths::{SYN, TCP, numbered, on};
use super::variant::{ROOM, Variant, Variants};

/// Flows opened in a round.
const OPENED: usize = 1000;
/// Fill levels of tables, in percent.
const FILLED: [(&str, u32); 3] = [
    ("empty table", 0),
    ("table half full", 50),
    ("table nearly full", 97),
];

/// Measures new flows.
pub(super) fn measure(meter: &mut Meter, variants: &mut Variants) -> Result<()> {
    let mut there = 0;
    for (filled, percent) in FILLED {
        let wanted = ROOM / 100 * percent;
        for variant in variants.usual() {
            fill(&variant.programs, there..wanted)?;
        }
        there = wanted;
        let is_empty = percent == 0;
        let opened = OPENED.min(meter.plan.flows);
        for gets in Gets::ALL {
            let flows = Flows::new(V4, Carries::Tcp, gets, opened);
            let mut path = flows.opening();
            path.name = format!("new flow, {}, {filled}", gets.name());
            for variant in variants.usual() {
                flows.occupy(&variant.programs)?;
            }
            open(meter, variants, &path, &flows)?;
            if is_empty && gets == Gets::Own {
                floors(meter, &path)?;
            }
        }
    }
    variants.forget_flows()?;
    busy(meter, variants)?;
    variants.forget_flows()
}

/// Fills the table with unrelated flows.
fn fill(programs: &Programs, numbers: std::ops::Range<u32>) -> Result<()> {
    let table = flows_of(programs, &V4)?;
    for number in numbers {
        let remote: IpAddr = (0x0100_0000_u32 | number).to_be_bytes().into();
        let port = 50_000_u16.to_be();
        let key = FlowKey::new(
            0,
            6,
            TransportAddr::new(Addr::from(remote), 443_u16.to_be()),
            port,
        );
        preload(&table, &key, V4.b)?;
    }
    Ok(())
}

/// Rounds of opening every flow of a list and removing it again.
fn open(meter: &mut Meter, variants: &mut Variants, path: &Path, flows: &Flows) -> Result<()> {
    meter.repeater.set(&path.packets)?;
    let count = u32::try_from(path.packets.len())?;
    for round in 0..=meter.plan.long_rounds {
        let noop = meter.noop(path.on)?;
        meter.repeater.rewind()?;
        let empty = meter.repeater.run(meter.repeater.noop(), path.on, count)?;
        for variant in variants.usual() {
            let before = allocated(variant)?;
            meter.repeater.rewind()?;
            let each = meter.checked(path, variant, count)?;
            let made = allocated(variant)? - before;
            ensure!(made == u64::from(count), "{}: {made} new flows", path.name);
            if round > 0 {
                let name = format!("{}{}", path.name, variant.suffix);
                meter.keep(&name, each - empty.each, noop);
            }
            let keys = flows.keys(&variant.programs)?;
            let removed = remove(variant, keys)?;
            ensure!(removed == count, "{removed} of {count} flows were removed");
        }
    }
    Ok(())
}

/// Rounds of the least work for such packets: an insertion, and the checks before it.
fn floors(meter: &mut Meter, path: &Path) -> Result<()> {
    let (IpAddr::V4(inside), IpAddr::V4(outside)) = (V4.a, V4.snat[1]) else {
        bail!("addresses of IPv4");
    };
    let count = u32::try_from(path.packets.len())?;
    meter.repeater.set(&path.packets)?;
    for round in 0..=meter.plan.long_rounds {
        let noop = meter.noop(path.on)?;
        meter.repeater.rewind()?;
        let empty = meter.repeater.run(meter.repeater.noop(), path.on, count)?;
        // The tables are new each time.
        let [growing, whole] = Floor::opening()?;
        let to_gateway = Action::RedirectNeighbour {
            ifindex: ENI_1.ifindex,
            gateway: Ipv4Addr::new(10, 0, 0, 1),
        };
        let ends = by_hand::Ends {
            inside,
            outside,
            device: VETH_A.ifindex,
        };
        let checked = by_hand::Opening::new(ends, to_gateway)?;
        let checked = Beside {
            name: "floor: new flow, with checks".to_owned(),
            program: checked.program(),
            code: REDIRECT,
        };
        for beside in [growing.beside(""), whole.beside(""), checked] {
            meter.repeater.rewind()?;
            let timed = meter
                .repeater
                .run(beside.program.runner(), path.on, count)?;
            let code = timed.code;
            ensure!(code == beside.code, "{} returned {code}", beside.name);
            if round > 0 {
                meter.keep(&beside.name, timed.each - empty.each, noop);
            }
        }
    }
    Ok(())
}

fn allocated(variant: &Variant) -> Result<u64> {
    variant.programs.nat_stat(NatStat::Allocated, true)
}

fn remove(variant: &mut Variant, keys: Vec<FlowKey>) -> Result<u32> {
    let keys: Vec<_> = keys
        .into_iter()
        .map(|key| (key, ReapFlow::ALWAYS))
        .collect();
    variant.programs.reaper(ENI_1.ifindex)?.flows(&keys)
}

/// A destination of which nearly all ports are used, and then all.
fn busy(meter: &mut Meter, variants: &mut Variants) -> Result<()> {
    let all = Ports::DEFAULT.count();
    let used = usize::try_from(all / 100 * 99)?;
    let flows = |first: u16, count: usize| {
        let mut flows = Flows::new(V4, Carries::Tcp, Gets::Candidate, 0);
        let ports = (first..).take(count);
        flows.ends = ports.map(|port| (numbered(V4.outside, 1), port)).collect();
        flows
    };
    let first = 1024;
    let mut before = flows(first, used).opening();
    "making a destination busy".clone_into(&mut before.name);
    meter.pass(&before, variants.usual())?;
    // Several, so that the mean averages over random ports, and few, so that 99 percent stay used.
    let next = first + u16::try_from(used)?;
    let few = flows(next, 24);
    let mut path = few.opening();
    "new flow, 99% of the destination's ports used".clone_into(&mut path.name);
    open(meter, variants, &path, &few)?;
    let rest = flows(next, usize::try_from(all)? - used).opening();
    meter.pass(&rest, variants.usual())?;
    let port = next.checked_add(1000).context("a port that is left")?;
    let frame = from_a(&V4, numbered(V4.outside, 1), TCP.1);
    let refused = Path {
        name: "drop: no-port".to_owned(),
        on: on(VETH_A),
        packets: vec![packet(frame.ports(port, 80).tcp(SYN, 1).bytes(), 0)],
        expected: Expected {
            code: DROP,
            outcome: Some(Outcome::Dropped(DropReason::NoPort)),
        },
        ..rest
    };
    // A search of all blocks takes microseconds.
    let usual = meter.plan.repeat;
    meter.plan.repeat = usual / 50;
    let result = meter.measure(&refused, variants.usual(), &[]);
    meter.plan.repeat = usual;
    result
}
