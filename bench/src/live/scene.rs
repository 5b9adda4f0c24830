//! All nodes that the two groups compare, set up side by side.

use anyhow::{Context as _, Result};
use testkit::interrupt;

use super::lane::Lane;
use super::rounds::{Effort, Samples, run};
use crate::live::nodes::floor::{checking, floor, masquerading};
use crate::live::nodes::kernel::{self, Population};
use crate::live::nodes::ours::{self, Size};
use crate::live::nodes::site::Traffic;
use crate::live::nodes::vpc_cni;

/// A datapath for a pod's packets, and the kind of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Datapath {
    /// The kernel's own routing with the rules of this many pods; exempt traffic.
    Kernel(usize),
    /// The VPC CNI's rules and iptables for this many pods.
    VpcCni(usize, Traffic),
    /// Our datapath.
    Ours {
        /// True if service NAT is on.
        service_nat: bool,
        /// Kind of traffic.
        traffic: Traffic,
    },
    /// Programs that only redirect; nothing is translated.
    Floor,
    /// Programs that masquerade in the fewest possible steps.
    MasqueradingFloor,
    /// Programs that masquerade in the fewest possible steps, with the indispensable checks.
    CheckingFloor,
    /// A process on the node itself.
    Direct,
}

/// Numbers of pods for the datapaths that have rules for each pod.
pub const POPULATIONS: [usize; 3] = [1, 250, 1000];

/// The node of ours that is compared with those: as large as the largest of them.
const OURS: Size = Size {
    endpoints: 1000,
    ..Size::SMALL
};

/// Measures every datapath side by side.
///
/// # Errors
/// When a datapath cannot be set up, does not behave as expected, or does not carry an operation.
pub fn compare(populations: &[usize], effort: Effort) -> Result<Samples<Datapath>> {
    let mut samples = Samples::none();
    for pass in 0..effort.passes {
        samples.add(compare_once(populations, effort, pass)?);
    }
    Ok(samples)
}

fn compare_once(populations: &[usize], effort: Effort, pass: usize) -> Result<Samples<Datapath>> {
    let mut kernels = Vec::new();
    let mut vpc_cnis = Vec::new();
    for &pods in populations {
        interrupt::check()?;
        let population = Population { pods };
        let kernel = kernel::site(population);
        kernels.push((
            pods,
            kernel.with_context(|| format!("routes, {pods} pods"))?,
        ));
        let vpc_cni = vpc_cni::site(population);
        vpc_cnis.push((
            pods,
            vpc_cni.with_context(|| format!("VPC CNI, {pods} pods"))?,
        ));
    }
    let mut ours = Vec::new();
    for service_nat in in_turn([false, true].into(), pass) {
        interrupt::check()?;
        ours.push((service_nat, ours::site(OURS, service_nat)?));
    }
    let (floor, masquerading, checking) = (floor()?, masquerading()?, checking()?);
    let mut lanes = vec![
        (Datapath::Floor, floor.site.lane(Traffic::Exempt)),
        (
            Datapath::MasqueradingFloor,
            masquerading.site.lane(Traffic::Masqueraded),
        ),
        (
            Datapath::CheckingFloor,
            checking.site.lane(Traffic::Masqueraded),
        ),
        (Datapath::Direct, floor.site.direct()?),
    ];
    for (pods, site) in &kernels {
        lanes.push((Datapath::Kernel(*pods), site.lane(Traffic::Exempt)));
    }
    for traffic in Traffic::ALL {
        for (pods, site) in &vpc_cnis {
            lanes.push((Datapath::VpcCni(*pods, traffic), site.lane(traffic)));
        }
        for (service_nat, site) in &ours {
            let datapath = Datapath::Ours {
                service_nat: *service_nat,
                traffic,
            };
            lanes.push((datapath, site.lane(traffic)));
        }
    }
    run(&lanes, effort)
}

/// Begins with another thing in each pass: a node that is made first may be slower for its
/// lifetime, by some percent of TCP's cost.
fn in_turn<T>(mut things: Vec<T>, pass: usize) -> Vec<T> {
    let first = pass.checked_rem(things.len()).unwrap_or(0);
    things.rotate_left(first);
    things
}

/// Dimension in which a node is large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Growth {
    /// None.
    None,
    /// None, for another node of the same size. Its seeming growth is the error of the method.
    Again,
    /// This many endpoints instead of 10.
    Endpoints(usize),
    /// This many ENIs instead of 2.
    Enis(u8),
    /// This many exempt CIDRs instead of 10.
    Cidrs(usize),
    /// This many live flows instead of 1,000.
    Flows(usize),
}

impl Growth {
    fn size(self) -> Size {
        let mut size = Size::SMALL;
        match self {
            Self::None | Self::Again => {}
            Self::Endpoints(endpoints) => size.endpoints = endpoints,
            Self::Enis(enis) => size.enis = enis,
            Self::Cidrs(cidrs) => size.cidrs = cidrs,
            Self::Flows(flows) => size.flows = flows,
        }
        size
    }
}

/// Measures a small node of ours next to larger ones.
///
/// # Errors
/// As [`compare`].
pub fn grow(growths: &[Growth], effort: Effort) -> Result<Samples<(Growth, Traffic)>> {
    let mut samples = Samples::none();
    for pass in 0..effort.passes {
        samples.add(grow_once(growths, effort, pass)?);
    }
    Ok(samples)
}

fn grow_once(
    growths: &[Growth],
    effort: Effort,
    pass: usize,
) -> Result<Samples<(Growth, Traffic)>> {
    let growths = [Growth::None].iter().chain(growths).copied().collect();
    let mut sites = Vec::new();
    for growth in in_turn(growths, pass) {
        interrupt::check()?;
        let site = ours::site(growth.size(), false);
        sites.push((growth, site.with_context(|| format!("{growth:?}"))?));
    }
    let lanes: Vec<((Growth, Traffic), Lane<'_>)> = sites
        .iter()
        .flat_map(|(growth, site)| {
            Traffic::ALL.map(|traffic| ((*growth, traffic), site.lane(traffic)))
        })
        .collect();
    run(&lanes, effort)
}
