//! Removes a rule and a route by hand, and waits until they are back.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use loader::constants::{RULE_ENI, TABLE_ENI_BASE};
use serde_json::Value;
use testkit::fabric::eventually::{check, eventually};

use crate::report::Healed;
use crate::stage::Stage;

/// Deadline for an object to come back.
const DEADLINE: Duration = Duration::from_secs(3);

/// An object to remove.
#[derive(Clone, Debug)]
pub(crate) struct Damage {
    /// Arguments of ip(8) that list the object.
    list: String,
    /// Arguments of ip(8) that remove the object.
    remove: String,
    /// The object, as ip(8) writes it.
    object: String,
    /// Fields that identify the object in the listing: the table has a default route of last resort
    /// too.
    sign: Vec<(&'static str, Value)>,
}

/// The ENI whose rule and route are removed.
const ENI: u8 = 1;

/// Objects that the demo removes.
pub(crate) fn damages(stage: &Stage) -> Result<Vec<Damage>> {
    let eni = stage.fabric.eni(ENI)?;
    let table = TABLE_ENI_BASE + u32::from(ENI);
    let gateway = eni.gateway_v4();
    let rules = stage
        .fabric
        .node
        .ip_json(&format!("rule list priority {RULE_ENI}"))?;
    let rule = rules
        .as_array()
        .into_iter()
        .flatten()
        .find(|rule| rule["table"].as_str() == Some(&table.to_string()));
    let Some((mark, mask)) =
        rule.and_then(|rule| Some((rule["fwmark"].as_str()?, rule["fwmask"].as_str()?)))
    else {
        bail!("there is no rule {RULE_ENI} for table {table}: {rules}");
    };
    let rule = format!("priority {RULE_ENI} fwmark {mark}/{mask} lookup {table}");
    Ok(vec![
        Damage {
            list: format!("rule list priority {RULE_ENI}"),
            remove: format!("rule del {rule}"),
            object: format!("rule {rule}"),
            sign: vec![
                ("table", table.to_string().into()),
                ("fwmark", mark.into()),
                ("fwmask", mask.into()),
            ],
        },
        Damage {
            list: format!("route show table {table}"),
            remove: format!("route del default table {table}"),
            object: format!(
                "route default via {gateway} dev {} table {table}",
                eni.device()
            ),
            sign: vec![
                ("dst", "default".into()),
                ("gateway", gateway.to_string().into()),
                ("dev", eni.device().into()),
            ],
        },
    ])
}

impl Damage {
    /// Removes the object, and waits until the agent has restored it.
    pub(crate) fn run(&self, stage: &Stage) -> Result<Healed> {
        self.heal(stage)
            .with_context(|| format!("not healed: {}", self.object))
    }

    fn heal(&self, stage: &Stage) -> Result<Healed> {
        let node = &stage.fabric.node;
        let there = || {
            let list = node.ip_json(&self.list)?;
            check(self.is_in(&list), || "it is missing".to_owned())
        };
        there()?;
        let repaired = repairs(stage)?;
        // The time starts before the removal, so that the reported time is never too short.
        let start = Instant::now();
        node.run(&format!("ip {}", self.remove))?;
        eventually(DEADLINE, "what was removed is back", there)?;
        let after_ms = u64::try_from(start.elapsed().as_millis())?;
        eventually(DEADLINE, "the agent counts the repair", || {
            let now = repairs(stage)?;
            check(now > repaired, || format!("{now} repairs as before"))
        })?;
        Ok(Healed {
            object: self.object.clone(),
            after_ms,
        })
    }

    fn is_in(&self, list: &Value) -> bool {
        list.as_array()
            .into_iter()
            .flatten()
            .any(|item| self.sign.iter().all(|(key, value)| &item[key] == value))
    }
}

/// The number of repairs since the agent's start, from `towpath status`.
fn repairs(stage: &Stage) -> Result<u64> {
    let fabric = &stage.fabric;
    let status: Value = fabric.agent.cli_json(&fabric.node, &["status"])?;
    status["repairs"]["total"]
        .as_u64()
        .with_context(|| format!("no total of repairs in {status}"))
}
