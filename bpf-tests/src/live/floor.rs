//! A node whose programs do nothing but redirect: what is left of the cost is the kernel's.
//!
//! The pod has the ENI's MAC, so that what comes for it needs no rewriting, and its gateway is a
//! permanent neighbour. Nothing is looked at: the programs are right for the one pod's IPv4 alone.

use anyhow::{Context as _, Result};
use towpath::intent::Family;

use super::kernel;
use super::site::{ENI, Expected, Site, Traffic};
use crate::fabric::program::{Deed, ForeignProgram, Hook, Position};

/// The node; its programs go with it.
#[derive(Debug)]
pub struct Floor {
    /// The node.
    pub site: Site,
    _programs: Vec<ForeignProgram>,
}

/// A node that only redirects.
///
/// # Errors
/// When something cannot be set up, or packets do not leave as they should.
pub fn floor() -> Result<Floor> {
    let (fabric, pod) = kernel::bare()?;
    let eni = fabric.eni(ENI)?;
    let (device, gateway) = (eni.device(), eni.gateway_v4());
    let host = kernel::connect(&fabric, &pod, Some(eni.mac.to_string()))?;
    let links = fabric.vpc.router.ip_json("link show dev eni1")?;
    let router = links[0]["address"].as_str().context("the router's MAC")?;
    fabric.node.ip(&format!(
        "neigh replace {gateway} lladdr {router} dev {device} nud permanent"
    ))?;
    let index = |device: &str| {
        let index = || Ok(nix::net::if_::if_nametoindex(device)?);
        fabric.node.enter(index)
    };
    let to_network = Deed::RedirectNeighbour {
        ifindex: index(&device)?,
        gateway,
    };
    let folder = fabric.pin_root();
    let folder = folder.parent().context("the fabric's bpffs")?;
    let mut programs = Vec::new();
    for (name, deed, at) in [
        ("floor_out", to_network, (host.as_str(), Hook::Ingress)),
        // Ours has a program there too, for what the host sends.
        ("floor_pass", Deed::Pass, (device.as_str(), Hook::Egress)),
        (
            "floor_in",
            Deed::RedirectPeer(index(&host)?),
            (device.as_str(), Hook::Ingress),
        ),
    ] {
        let mut program = ForeignProgram::load_uncounted(name, folder, deed)?;
        program.attach_tcx_at(&fabric.node, at, Position::Last)?;
        programs.push(program);
    }
    let mut site = Site::new(fabric, pod)?;
    let expected = Expected {
        traffic: Traffic::Exempt,
        source: site.pod.address(Family::V4),
        eni: ENI,
    };
    site.prove(&[expected])?;
    Ok(Floor {
        site,
        _programs: programs,
    })
}
