//! Nodes whose programs do the least that any could: the rest of the cost is the kernel's.
//!
//! One node only redirects, one also masquerades, and one also makes the indispensable checks. The
//! pod has the ENI's MAC, so that packets for it need no rewriting, and its gateway is a permanent
//! neighbour. The programs are correct for the one pod's IPv4 alone.

use std::net::IpAddr;

use anyhow::{Context as _, Result, bail};
use ipam::Family;
use testkit::fabric::Fabric;
use testkit::fabric::program::{Action, ForeignProgram, Hook, Position};

use super::by_hand::{self, Checks, Ends};
use super::kernel;
use super::site::{ENI, Expected, Site, Traffic};

/// The node; its programs go with it.
#[derive(Debug)]
pub struct Floor {
    /// The node.
    pub site: Site,
    _programs: Vec<ForeignProgram>,
}

/// Programs for packets that the pod sends, and for packets that the ENI receives.
struct Both<T> {
    out: Vec<u64>,
    back: Vec<u64>,
    /// Tables that must live until the programs are loaded.
    tables: T,
}

/// A node that only redirects.
///
/// # Errors
/// When something cannot be set up, or packets leave with a wrong source or by a wrong ENI.
pub fn floor() -> Result<Floor> {
    let make = |out: Action, back: Action, _ends| {
        Ok(Both {
            out: out.instructions(),
            back: back.instructions(),
            tables: (),
        })
    };
    let floor = node(Traffic::Exempt, make);
    floor.context("a floor that redirects")
}

/// A node that only masquerades the pod's packets out of the VPC.
///
/// A flow is an entry in a table like ours, found in both directions. Its port is assumed to be
/// free. It counts nothing and keeps no state.
///
/// # Errors
/// As [`floor`].
pub fn masquerading() -> Result<Floor> {
    translating(|_ends| Ok(None)).context("a floor that masquerades")
}

/// A node that masquerades with the indispensable checks: the sender, the destination, the port,
/// the number of flows, timeouts and counters.
///
/// # Errors
/// As [`floor`].
pub fn checking() -> Result<Floor> {
    let checks = |ends| Checks::new(ends).map(Some);
    translating(checks).context("a floor that masquerades and checks")
}

fn translating(checks: impl FnOnce(Ends) -> Result<Option<Checks>>) -> Result<Floor> {
    node(Traffic::Masqueraded, |out, back, ends| {
        let flows = by_hand::table()?;
        let checks = checks(ends)?;
        Ok(Both {
            out: by_hand::out(&flows, ends, checks.as_ref(), out),
            back: by_hand::back(&flows, ends, checks.as_ref(), back),
            tables: (flows, checks),
        })
    })
}

fn node<T>(
    traffic: Traffic,
    make: impl FnOnce(Action, Action, Ends) -> Result<Both<T>>,
) -> Result<Floor> {
    let (fabric, pod) = kernel::bare()?;
    let eni = fabric.eni(ENI)?;
    let (device, gateway) = (eni.device(), eni.gateway_v4());
    let own = eni.own_address(Family::V4);
    let host = kernel::connect(&fabric, &pod, Some(eni.mac.to_string()))?;
    let router = fabric.vpc.router_mac(eni)?;
    fabric.node.ip(&format!(
        "neigh replace {gateway} lladdr {router} dev {device} nud permanent"
    ))?;
    let index = |device: &str| {
        let index = || Ok(nix::net::if_::if_nametoindex(device)?);
        fabric.node.enter(index)
    };
    let to_network = Action::RedirectNeighbour {
        ifindex: index(&device)?,
        gateway,
    };
    let pods_device = index(&host)?;
    let to_pod = Action::RedirectPeer(pods_device);
    let (IpAddr::V4(inside), Some(IpAddr::V4(outside))) = (pod.address(Family::V4), own) else {
        bail!("the pod and the ENI have IPv4 addresses");
    };
    let ends = Ends {
        inside,
        outside,
        device: pods_device,
    };
    let Both {
        out,
        back,
        tables: _tables,
    } = make(to_network, to_pod, ends)?;
    let programs = attach(&fabric, [&host, &device], [out, back])?;
    let mut site = Site::new(fabric, pod)?;
    let source = match traffic {
        Traffic::Exempt => inside,
        Traffic::Masqueraded => outside,
    };
    let expected = Expected {
        traffic,
        source: source.into(),
        eni: ENI,
    };
    site.prove(&[expected])?;
    Ok(Floor {
        site,
        _programs: programs,
    })
}

/// Attaches the programs to the pod's device on the node and to the ENI's.
fn attach(
    fabric: &Fabric,
    [host, device]: [&str; 2],
    [out, back]: [Vec<u64>; 2],
) -> Result<Vec<ForeignProgram>> {
    let folder = fabric.pin_root();
    let folder = folder.parent().context("the fabric's bpffs")?;
    let mut programs = Vec::new();
    for (name, instructions, (device, hook)) in [
        ("floor_out", out, (host, Hook::Ingress)),
        // Our datapath has a program there too, for packets that the host sends.
        (
            "floor_pass",
            Action::Pass.instructions(),
            (device, Hook::Egress),
        ),
        ("floor_in", back, (device, Hook::Ingress)),
    ] {
        let mut program = ForeignProgram::load_uncounted(name, folder, &instructions)?;
        program.attach_tcx_at(&fabric.node, device, hook, Position::Last)?;
        programs.push(program);
    }
    Ok(programs)
}
