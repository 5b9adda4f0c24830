//! Policy routing rules.

use std::fmt;
use std::net::IpAddr;

use ipam::Family;
use ipnet::IpNet;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage};

use super::super::errno::RequestError;
use super::super::socket::Socket;
use super::super::{address_family, family};
use crate::kernel::{Action, Rule, Selector};

/// All rules of both families, each family in the kernel's order of evaluation.
pub(in crate::netlink) async fn list(socket: &mut Socket) -> Result<Vec<ParsedRule>, RequestError> {
    let mut rules = Vec::new();
    for family in Family::ALL {
        let mut request = RuleMessage::default();
        request.header.family = address_family(family);
        let messages = match socket.dump(RouteNetlinkMessage::GetRule(request)).await {
            // A kernel without the family has no rules of it.
            Err(error) if error.is_family_missing() => continue,
            other => other?,
        };
        for message in messages {
            if let RouteNetlinkMessage::NewRule(message) = message {
                rules.extend(ParsedRule::parse(&message));
            }
        }
    }
    Ok(rules)
}

/// A rule with the parts that distinguish ours from foreign ones.
#[derive(Clone, Debug)]
pub(in crate::netlink) struct ParsedRule {
    pub(in crate::netlink) family: Family,
    pub(in crate::netlink) priority: u32,
    pub(in crate::netlink) mark: Option<u32>,
    pub(in crate::netlink) mask: Option<u32>,
    pub(in crate::netlink) source: Option<IpNet>,
    pub(in crate::netlink) destination: Option<IpNet>,
    pub(in crate::netlink) table: u32,
    pub(in crate::netlink) protocol: u8,
    pub(in crate::netlink) kind: RuleAction,
    target: u32,
    other_selector: bool,
    other_action: bool,
}

impl ParsedRule {
    pub(super) fn parse(message: &RuleMessage) -> Option<Self> {
        let header = &message.header;
        let mut rule = Self {
            family: family(header.family)?,
            priority: 0,
            mark: None,
            mask: None,
            source: None,
            destination: None,
            table: u32::from(header.table),
            protocol: 0,
            kind: header.action,
            target: 0,
            other_selector: header.tos != 0 || header.flags.contains(RuleFlags::Invert),
            other_action: false,
        };
        let net = |address: &IpAddr, length| IpNet::new(*address, length).ok();
        for attribute in &message.attributes {
            match attribute {
                RuleAttribute::Priority(priority) => rule.priority = *priority,
                RuleAttribute::FwMark(mark) => rule.mark = Some(*mark),
                RuleAttribute::FwMask(mask) => rule.mask = Some(*mask),
                RuleAttribute::Source(address) => rule.source = net(address, header.src_len),
                RuleAttribute::Destination(address) => {
                    rule.destination = net(address, header.dst_len);
                }
                RuleAttribute::Table(table) => rule.table = *table,
                RuleAttribute::Goto(target) => rule.target = *target,
                RuleAttribute::Protocol(protocol) => rule.protocol = (*protocol).into(),
                // The kernel reports "no suppression" as all ones.
                RuleAttribute::SuppressPrefixLen(u32::MAX)
                | RuleAttribute::SuppressIfGroup(u32::MAX) => {}
                RuleAttribute::SuppressPrefixLen(_)
                | RuleAttribute::SuppressIfGroup(_)
                | RuleAttribute::Realm(_) => rule.other_action = true,
                _ => rule.other_selector = true,
            }
        }
        Some(rule)
    }

    /// The rule, reduced to what we specify.
    pub(in crate::netlink) fn rule(&self) -> Rule {
        Rule {
            family: self.family,
            priority: self.priority,
            selector: self.selector(),
            action: self.action(),
            protocol: self.protocol,
        }
    }

    /// The table that the rule leads to and the destinations that it does so for, where nothing else of a
    /// packet matters.
    pub(super) fn by_destination(&self) -> Option<(u32, IpNet)> {
        let is_any = !self.other_selector
            && self.source.is_none()
            && self.mark.is_none()
            && self.mask.is_none();
        let to = self
            .destination
            .unwrap_or_else(|| self.family.default_route());
        (is_any && self.kind == RuleAction::ToTable).then_some((self.table, to))
    }

    fn selector(&self) -> Selector {
        if self.other_selector || self.destination.is_some() {
            return Selector::Foreign;
        }
        let marked = self.mark.is_some() || self.mask.is_some();
        match (marked, self.source) {
            (false, None) => Selector::All,
            (false, Some(source)) => Selector::Source(source),
            // The kernel leaves a value of 0 out, and reports the mask.
            (true, None) => Selector::Mark {
                value: self.mark.unwrap_or(0),
                mask: self.mask.unwrap_or(u32::MAX),
            },
            (true, Some(_)) => Selector::Foreign,
        }
    }

    fn action(&self) -> Action {
        match self.kind {
            _ if self.other_action => Action::Foreign,
            RuleAction::ToTable => Action::Table(self.table),
            RuleAction::Goto => Action::Goto(self.target),
            RuleAction::Nop => Action::Nop,
            _ => Action::Foreign,
        }
    }
}

/// Much as `ip rule` shows it.
impl fmt::Display for ParsedRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = match self.family {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        };
        write!(f, "{family} rule {}: from ", self.priority)?;
        match self.source {
            Some(source) => write!(f, "{source}")?,
            None => f.write_str("all")?,
        }
        if let Some(destination) = self.destination {
            write!(f, " to {destination}")?;
        }
        if self.mark.is_some() || self.mask.is_some() {
            let (value, mask) = (self.mark.unwrap_or(0), self.mask.unwrap_or(u32::MAX));
            write!(f, " fwmark {value:#x}/{mask:#x}")?;
        }
        match self.action() {
            Action::Table(table) => write!(f, " lookup {table}"),
            Action::Goto(target) => write!(f, " goto {target}"),
            Action::Nop => f.write_str(" nop"),
            Action::Foreign => Ok(()),
        }
    }
}
