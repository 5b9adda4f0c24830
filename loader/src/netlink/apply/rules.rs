//! Policy routing rules.

use anyhow::{Context, bail};
use ipam::Family;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};

use super::super::address_family;
use super::super::errno::deleted;
use super::super::observe::{self, ParsedRule};
use super::super::socket::Socket;
use crate::kernel::{Action, Rule, Selector};

/// `RT_TABLE_COMPAT` in include/uapi/linux/rtnetlink.h: "see the attribute".
const TABLE_COMPAT: u8 = 252;

/// Adds a rule.
pub(in crate::netlink) async fn add(socket: &mut Socket, rule: &Rule) -> anyhow::Result<()> {
    let request = RouteNetlinkMessage::NewRule(message(rule)?);
    match socket.change(request, NLM_F_CREATE | NLM_F_EXCL).await {
        Err(error) if error.is_exists() => {
            // The kernel does not compare the target of a goto.
            let rules = observe::rules(socket).await?;
            if rules.iter().any(|found| found.rule() == *rule) {
                return Ok(());
            }
            Err(error).with_context(|| {
                format!(
                    "add the {}: one that differs only in its target is there",
                    text(rule)
                )
            })
        }
        other => other.with_context(|| format!("add the {}", text(rule))),
    }
}

/// Removes a rule.
///
/// The kernel deletes the first rule that matches the request. A part that the request leaves out,
/// a mark of 0 included, matches any value (`rule_find` in `net/core/fib_rules.c`). So the rules
/// are listed first. If a foreign rule would be deleted instead of ours, none is.
pub(in crate::netlink) async fn delete(socket: &mut Socket, rule: &Rule) -> anyhow::Result<()> {
    let request = RouteNetlinkMessage::DelRule(message(rule)?);
    let rules = observe::rules(socket).await?;
    if !rules.iter().any(|found| found.rule() == *rule) {
        return Ok(());
    }
    if let Some(first) = rules.iter().find(|found| is_hit(found, rule))
        && first.rule() != *rule
    {
        bail!(
            "the {} cannot be deleted: the kernel would delete the {first} instead",
            text(rule)
        );
    }
    deleted(socket.change(request, 0).await).with_context(|| format!("delete the {}", text(rule)))
}

/// True if a delete of `requested` matches a rule in the kernel.
fn is_hit(found: &ParsedRule, requested: &Rule) -> bool {
    let selected = match requested.selector {
        Selector::All => true,
        Selector::Mark { value, mask } => {
            (value == 0 || found.mark == Some(value)) && (mask == 0 || found.mask == Some(mask))
        }
        Selector::Source(source) => source.prefix_len() == 0 || found.source == Some(source),
        Selector::Foreign => false,
    };
    let acts = match requested.action {
        Action::Table(table) => found.kind == RuleAction::ToTable && found.table == table,
        Action::Goto(_) => found.kind == RuleAction::Goto,
        Action::Nop => found.kind == RuleAction::Nop,
        Action::Foreign => false,
    };
    selected
        && acts
        && found.family == requested.family
        && found.priority == requested.priority
        && (requested.protocol == 0 || found.protocol == requested.protocol)
}

fn message(rule: &Rule) -> anyhow::Result<RuleMessage> {
    let mut message = RuleMessage::default();
    let header = &mut message.header;
    header.family = address_family(rule.family);
    let attributes = &mut message.attributes;
    attributes.push(RuleAttribute::Priority(rule.priority));
    attributes.push(RuleAttribute::Protocol(rule.protocol.into()));
    match rule.selector {
        Selector::All => {}
        Selector::Mark { value, mask } => {
            attributes.push(RuleAttribute::FwMark(value));
            attributes.push(RuleAttribute::FwMask(mask));
        }
        Selector::Source(source) => {
            header.src_len = source.prefix_len();
            attributes.push(RuleAttribute::Source(source.addr()));
        }
        Selector::Foreign => bail!("refusing to change a foreign object: the {}", text(rule)),
    }
    match rule.action {
        Action::Table(table) => {
            header.action = RuleAction::ToTable;
            header.table = u8::try_from(table).unwrap_or(TABLE_COMPAT);
            attributes.push(RuleAttribute::Table(table));
        }
        Action::Goto(target) => {
            header.action = RuleAction::Goto;
            attributes.push(RuleAttribute::Goto(target));
        }
        Action::Nop => header.action = RuleAction::Nop,
        Action::Foreign => bail!("refusing to change a foreign object: the {}", text(rule)),
    }
    Ok(message)
}

fn text(rule: &Rule) -> String {
    let family = match rule.family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    };
    let selector = match rule.selector {
        Selector::All => "all".to_owned(),
        Selector::Mark { value, mask } => format!("fwmark {value:#x}/{mask:#x}"),
        Selector::Source(source) => format!("from {source}"),
        Selector::Foreign => "something else".to_owned(),
    };
    let action = match rule.action {
        Action::Table(table) => format!("lookup {table}"),
        Action::Goto(target) => format!("goto {target}"),
        Action::Nop => "nop".to_owned(),
        Action::Foreign => "something else".to_owned(),
    };
    format!("{family} rule {}: {selector} {action}", rule.priority)
}
