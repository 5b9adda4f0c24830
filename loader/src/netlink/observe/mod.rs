//! Reading the kernel's tables into values. Each object is reduced to the attributes that we set,
//! so that an object of ours is observed equal to the desired one.

mod addresses;
mod host_routes;
mod links;
mod neighbours;
mod routes;
mod rules;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;

use super::errno::RequestError;
use super::socket::Socket;
use crate::kernel::Observed;

pub(super) use self::addresses::list as addresses;
pub(super) use self::links::{by_index, by_name, list as links, sysctls, without_statistics, xdp};
pub(super) use self::neighbours::{
    address as neighbour_address, list as neighbours, resolved as resolved_neighbour,
};
pub(super) use self::routes::{Reader, foreign as foreign_routes, table as route_table};
pub(super) use self::rules::{ParsedRule, list as rules};

/// Reads everything but the sysctls of the node, maps and attachments.
pub(super) async fn all(
    socket: &mut Socket,
    reader: &mut Reader,
    observed: &mut Observed,
) -> anyhow::Result<()> {
    let (links, sysctls) = links::list(socket).await.context("read the links")?;
    let addresses = addresses::list(socket)
        .await
        .context("read the addresses")?;
    let routes = reader.read(socket).await;
    let (routes, networks) = routes.context("read the routes")?;
    let networks: Vec<_> = networks.all().collect();
    let rules = rules::list(socket).await.context("read the rules")?;
    let neighbours = neighbours::list(socket)
        .await
        .context("read the neighbours")?;
    observed.links = links;
    observed.sysctls = sysctls;
    observed.addresses = addresses;
    let chosen = host_routes::choose(&rules, &networks);
    observed.host.routes = chosen.led;
    observed.host.local = chosen.local;
    observed.routes = routes;
    observed.rules = rules.iter().map(ParsedRule::rule).collect();
    observed.neighbours = neighbours.permanent;
    observed.resolved = neighbours.resolved;
    Ok(())
}

/// Reads devices by their names, and their objects. If a device goes in between, a part of its
/// objects may be seen, which the next observation corrects.
pub(super) async fn devices(
    socket: &mut Socket,
    names: &[String],
    observed: &mut Observed,
) -> anyhow::Result<()> {
    let mut links = BTreeMap::new();
    for name in names {
        let found = links::with_sysctls(socket, name).await;
        if let Some((link, sysctls)) = found.with_context(|| format!("read the device {name}"))? {
            links.insert(link.ifindex, (link, sysctls));
        }
    }
    let on: BTreeSet<_> = links.keys().copied().collect();
    let routes = routes::on(socket, &on).await.context("read the routes")?;
    let neighbours = neighbours::on(socket, &on).await;
    observed.routes.extend(routes);
    observed
        .neighbours
        .extend(neighbours.context("read the neighbours")?);
    for (ifindex, (link, sysctls)) in links {
        observed.links.insert(ifindex, link);
        observed.sysctls.extend(sysctls);
    }
    Ok(())
}

/// Maximum number of devices that are read one by one. The kernel scans a whole table for each of
/// them. For more devices the table is read once, with the objects of all other devices.
const FEW: usize = 8;

/// The devices to ask a table for one by one; no device stands for all of it.
fn each(devices: &BTreeSet<u32>) -> Vec<Option<u32>> {
    if devices.len() <= FEW {
        devices.iter().copied().map(Some).collect()
    } else {
        vec![None]
    }
}

/// The part of a table for a device: nothing if the device has gone.
fn of_present<T: Default>(found: Result<T, RequestError>) -> Result<T, RequestError> {
    match found {
        Err(error) if error.is_gone() => Ok(T::default()),
        other => other,
    }
}
