//! Foreign objects in the kernel: other CNIs' rules, and rules and routes of network managers.
//! Shown, never touched.

use std::collections::BTreeSet;

use anyhow::Context;

use super::observe::{self, ParsedRule};
use super::socket::Socket;
use crate::constants;
use crate::kernel::{ForeignRoute, Rule};

/// Foreign objects in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// Every rule that another CNI is known to make, as text.
    pub leftovers: Vec<String>,
    /// Every other rule, ours among them.
    pub rules: BTreeSet<Rule>,
    /// The routes by the requested devices, in foreign tables.
    pub routes: BTreeSet<ForeignRoute>,
}

/// Reads what others have; of the routes, those out of `devices`.
pub(super) async fn list(socket: &mut Socket, devices: &BTreeSet<u32>) -> anyhow::Result<Others> {
    let rules = observe::rules(socket).await.context("read the rules")?;
    let routes = observe::foreign_routes(socket, devices)
        .await
        .context("read the routes")?;
    let mut others = Others {
        routes,
        ..Others::default()
    };
    for rule in rules {
        match maker(&rule) {
            Some(maker) => others.leftovers.push(format!("{maker}: {rule}")),
            None => {
                others.rules.insert(rule.rule());
            }
        }
    }
    Ok(others)
}

/// The maker of rules of this shape: Cilium's ENI mode (20 `to` a pod, 111 `from` a pod, 109 by
/// mark) and the Amazon VPC CNI (512, 1024, 1535, 1536).
fn maker(rule: &ParsedRule) -> Option<&'static str> {
    match rule.priority {
        constants::RULE_PODS if rule.destination.is_some() => Some("Cilium"),
        constants::RULE_ENI if rule.source.is_some() => Some("Cilium"),
        109 if rule.mark.is_some() => Some("Cilium"),
        512 | 1535 if rule.destination.is_some() => Some("Amazon VPC CNI"),
        1024 if rule.mark.is_some() => Some("Amazon VPC CNI"),
        1536 if rule.source.is_some() => Some("Amazon VPC CNI"),
        _ => None,
    }
}
