//! Reading the kernel's tables into values: each object reduced to what we specify, so that what
//! we asked for is observed equal to what we asked.

mod addresses;
mod links;
mod neighbours;
mod routes;
mod rules;

use anyhow::Context;

use super::errno::RequestError;
use super::socket::Socket;
use super::sysctl;
use crate::kernel::Observed;

pub(super) use self::addresses::list as addresses;
pub(super) use self::links::{by_index, by_name};
pub(super) use self::neighbours::{address as neighbour_address, list as neighbours};
pub(super) use self::routes::{foreign as foreign_routes, table as route_table};
pub(super) use self::rules::{ParsedRule, list as rules};

/// Reads everything but maps and attachments.
pub(super) async fn all(socket: &mut Socket, observed: &mut Observed) -> anyhow::Result<()> {
    let (links, mut sysctls) = links::list(socket).await.context("read the links")?;
    sysctls.extend(sysctl::read_node());
    let addresses = addresses::list(socket)
        .await
        .context("read the addresses")?;
    let routes = routes::list(socket).await.context("read the routes")?;
    let rules = rules::list(socket).await.context("read the rules")?;
    let neighbours = neighbours::list(socket)
        .await
        .context("read the neighbours")?;
    observed.links = links;
    observed.sysctls = sysctls;
    observed.reserved_ports = sysctl::reserved_ports();
    observed.addresses = addresses;
    observed.routes = routes;
    observed.rules = rules.iter().map(ParsedRule::rule).collect();
    observed.neighbours = neighbours;
    Ok(())
}

/// Reads a device and what is on it; nothing where there is no such device.
pub(super) async fn device(
    socket: &mut Socket,
    name: &str,
    observed: &mut Observed,
) -> Result<(), RequestError> {
    let Some((link, sysctls)) = links::with_sysctls(socket, name).await? else {
        return Ok(());
    };
    let ifindex = link.ifindex;
    let routes = routes::on(socket, ifindex).await;
    let neighbours = neighbours::on(socket, ifindex).await;
    let (routes, neighbours) = match (routes, neighbours) {
        (Ok(routes), Ok(neighbours)) => (routes, neighbours),
        // It went meanwhile.
        (Err(error), _) | (_, Err(error)) if error.is_gone() => return Ok(()),
        (Err(error), _) | (_, Err(error)) => return Err(error),
    };
    observed.links.insert(ifindex, link);
    observed.sysctls.extend(sysctls);
    observed.routes.extend(routes);
    observed.neighbours.extend(neighbours);
    Ok(())
}
