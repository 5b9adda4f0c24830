//! Routes of the VPC's router to the addresses of ENIs.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::IpAddr;

use anyhow::{Context as _, Result};
use ipam::Family;
use ipnet::IpNet;

use crate::fabric::layout::Eni;
use crate::fabric::netns::Netns;

/// Routes an ENI's addresses and prefixes to its MAC, and ends the routes of those that it lost.
/// A route that stays is never missing: the cloud loses no packet while an ENI gets an address.
///
/// # Errors
/// When a route is refused.
pub(super) fn renew(router: &Netns, eni: &Eni) -> Result<()> {
    let device = eni.router_device();
    let wanted = wanted(eni);
    let mut batch = neighbours(eni);
    for block in &wanted {
        let next_hop = match Family::of(block.addr()) {
            // The route to the ENI's own address is that to its next hop.
            Family::V4 => eni
                .own_address(Family::V4)
                .filter(|own| IpNet::from(*own) != *block),
            Family::V6 => Some(eni.next_hop_v6().into()),
        };
        let via = next_hop.map(|hop| format!("via {hop} "));
        let onlink = next_hop.filter(IpAddr::is_ipv4).map_or("", |_| "onlink ");
        let _infallible = writeln!(
            batch,
            "route replace {block} {}dev {device} {onlink}proto static",
            via.unwrap_or_default()
        );
    }
    for block in present(router, &device)?.difference(&wanted) {
        let _infallible = writeln!(batch, "route del {block} dev {device} proto static");
    }
    router.ip(&batch)
}

/// Blocks that the router has to route to an ENI, the next hop's first.
fn wanted(eni: &Eni) -> BTreeSet<IpNet> {
    // Without an own address there is no next hop of IPv4.
    let families = Family::ALL.into_iter();
    let routed =
        families.filter(|family| *family == Family::V6 || eni.own_address(Family::V4).is_some());
    routed.flat_map(|family| eni.sources(family)).collect()
}

/// Commands that set the MAC of an ENI's next hops.
fn neighbours(eni: &Eni) -> String {
    let (device, mac) = (eni.router_device(), eni.mac);
    let next_hops = eni
        .own_address(Family::V4)
        .into_iter()
        .chain([eni.next_hop_v6().into()]);
    next_hops.fold(String::new(), |mut batch, hop| {
        let _infallible = writeln!(
            batch,
            "neigh replace {hop} lladdr {mac} dev {device} nud permanent"
        );
        batch
    })
}

/// Blocks that the router routes to a device now.
fn present(router: &Netns, device: &str) -> Result<BTreeSet<IpNet>> {
    let mut present = BTreeSet::new();
    for family in ["-4", "-6"] {
        let routes = router.ip_json(&format!("{family} route show dev {device} proto static"))?;
        for route in routes.as_array().into_iter().flatten() {
            let block = route["dst"].as_str().context("a route has a destination")?;
            let address = block.parse::<IpAddr>().map(IpNet::from);
            present.insert(address.or_else(|_not_one| block.parse())?);
        }
    }
    Ok(present)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::Stdio;
    use std::time::Duration;

    use super::renew;
    use crate::fabric::eventually::{check, eventually};
    use crate::fabric::layout::{Addressing, Eni};
    use crate::fabric::{Netns, Vpc};

    /// A route that the end of the kernel's messages is seen by.
    const MARK: &str = "203.0.113.0/24";

    #[test]
    fn a_route_that_stays_is_never_missing() {
        let prefix = format!("tp-{}-routes", std::process::id());
        let node = Netns::create(&format!("{prefix}-node")).unwrap();
        let vpc = Vpc::create(&prefix, 1500).unwrap();
        let mut eni = Eni::new(1, Addressing::Addresses);
        vpc.attach(&node, &eni, 1500).unwrap();

        let mut monitor = vpc.router.command("ip");
        let monitor = monitor.args(["monitor", "route"]).stdout(Stdio::piped());
        let mut monitor = monitor.spawn().unwrap();
        let (sender, messages) = std::sync::mpsc::channel();
        let lines = BufReader::new(monitor.stdout.take().unwrap()).lines();
        let reader = std::thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .for_each(|line| drop(sender.send(line)));
        });
        let next = || {
            vpc.router
                .ip(&format!("route add blackhole {MARK}\nroute del {MARK}"))?;
            check(messages.try_iter().any(|line| line.contains(MARK)), || {
                "silence".to_owned()
            })
        };
        eventually(
            Duration::from_secs(10),
            "the kernel's messages are read",
            next,
        )
        .unwrap();

        let lost = eni.blocks.remove(0);
        eni.blocks.push("10.0.1.250/32".parse().unwrap());
        renew(&vpc.router, &eni).unwrap();
        vpc.router
            .ip(&format!("route add blackhole {MARK}"))
            .unwrap();
        let mut ended = Vec::new();
        let over = || {
            let lines: Vec<String> = messages.try_iter().collect();
            ended.extend(lines.iter().filter(|it| it.starts_with("Deleted")).cloned());
            check(lines.iter().any(|it| it.starts_with("blackhole")), || {
                "no mark".to_owned()
            })
        };
        eventually(Duration::from_secs(10), "all messages are read", over).unwrap();
        monitor.kill().unwrap();
        monitor.wait().unwrap();
        reader.join().unwrap();
        ended.retain(|line| !line.contains(MARK));
        assert_eq!(ended.len(), 1, "{ended:?}");
        assert!(ended[0].contains(&lost.addr().to_string()), "{ended:?}");
    }
}
