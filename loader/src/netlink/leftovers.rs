//! What other CNIs leave behind in the rule lists. Shown, never touched.

use anyhow::Context;

use super::observe::{self, ParsedRule};
use super::socket::Socket;
use crate::numbers;

/// Every rule that another CNI is known to make, as text.
pub(super) async fn list(socket: &mut Socket) -> anyhow::Result<Vec<String>> {
    let rules = observe::rules(socket).await.context("read the rules")?;
    Ok(rules
        .iter()
        .filter_map(|rule| Some(format!("{}: {rule}", maker(rule)?)))
        .collect())
}

/// Who makes rules of this shape: Cilium's ENI mode (20 `to` a pod, 111 `from` a pod, 109 by mark)
/// and the Amazon VPC CNI (512, 1024, 1535, 1536).
fn maker(rule: &ParsedRule) -> Option<&'static str> {
    match rule.priority {
        numbers::RULE_PODS if rule.destination.is_some() => Some("Cilium"),
        numbers::RULE_ENI if rule.source.is_some() => Some("Cilium"),
        109 if rule.mark.is_some() => Some("Cilium"),
        512 | 1535 if rule.destination.is_some() => Some("Amazon VPC CNI"),
        1024 if rule.mark.is_some() => Some("Amazon VPC CNI"),
        1536 if rule.source.is_some() => Some("Amazon VPC CNI"),
        _ => None,
    }
}
