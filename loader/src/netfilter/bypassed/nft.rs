//! The rules of nftables that packets of pods meet where they take the host's stack.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use anyhow::Context as _;
use netlink_packet_netfilter::nftables::{
    ChainAttribute, ChainMessage, Hook, HookNumber, InetHookNumber, NfTablesMessage, RuleAttribute,
    RuleMessage,
};
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
};

use super::flowtable;
use super::policy::DropPolicy;
use super::rule::{Facts, Name, facts};
use crate::netlink::netfilter::Socket;

/// Maximum number of chains that are read: jumps may lead to a hundred thousand.
const CHAINS: usize = 512;
/// `NF_NETDEV_INGRESS` in `include/uapi/linux/netfilter.h`.
const NETDEV_INGRESS: u32 = 0;
/// Foreign tables that handle packets of the stack, and our own.
const LEFT_OUT_TABLES: [&str; 3] = ["kube-proxy", "towpath", "cni_"];
/// Beginnings of their chains' names in tables that many share.
const LEFT_OUT_CHAINS: [&str; 3] = ["KUBE-", "CNI-", "cali-nat"];

/// A chain's place: the number of its table's family, its table, its name.
pub(super) type Place = (u8, String, String);

/// A rule that names something, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rule {
    /// The place, as nft(8) takes it.
    pub(super) place: String,
    /// The things that it names.
    pub(super) names: Vec<Name>,
}

/// Reads the rules that name something, in the chains of prerouting, forward and ingress and those that
/// these lead to. In postrouting the MSS counts alone.
pub(super) fn read(socket: &mut Socket) -> anyhow::Result<Vec<Rule>> {
    let Bases {
        chains, on_devices, ..
    } = bases(socket)?;
    let mut waiting: Vec<(Place, bool)> = chains.into_iter().collect();
    let mut seen = BTreeSet::new();
    let mut rules = on_devices;
    rules.extend(flowtable::read(socket)?);
    while let Some((chain, is_late)) = waiting.pop() {
        let is_new = seen.len() < CHAINS && seen.insert((chain.clone(), is_late));
        if is_left_out(&chain) || !is_new {
            continue;
        }
        for Facts {
            handle,
            mut names,
            leads_to,
            ..
        } in of_chain(socket, &chain).context("list the rules of nftables")?
        {
            let (number, table, name) = &chain;
            if is_late {
                names.retain(|name| *name == Name::Mss);
            }
            for next in leads_to {
                waiting.push(((*number, table.clone(), next), is_late));
            }
            if !names.is_empty() {
                let family = family_name(NetfilterProtoFamily::from(*number));
                let place = format!("nftables {family} {table} {name}, handle {handle}");
                rules.push(Rule { place, names });
            }
        }
    }
    rules.sort();
    // Of chains that change while they are read, the kernel shows some twice.
    rules.dedup();
    Ok(rules)
}

pub(super) fn is_left_out((_, table, chain): &Place) -> bool {
    LEFT_OUT_TABLES.iter().any(|name| table.starts_with(name)) || is_left_out_chain(chain)
}

/// True if a chain belongs to programs that handle packets of the stack.
pub(super) fn is_left_out_chain(chain: &str) -> bool {
    LEFT_OUT_CHAINS.iter().any(|name| chain.starts_with(name))
}

/// The chains at hooks.
#[derive(Default)]
struct Bases {
    /// Those at the hooks that count, and whether they come after routing.
    chains: BTreeMap<Place, bool>,
    /// Those that see the packets of some devices alone.
    on_devices: Vec<Rule>,
    /// Those that drop what no rule accepts.
    policies: Vec<DropPolicy>,
}

fn bases(socket: &mut Socket) -> anyhow::Result<Bases> {
    let all = NfTablesMessage::GetChain(ChainMessage {
        attributes: Vec::new(),
    });
    let header = NetfilterHeader::new(NetfilterProtoFamily::Unspec, 0, 0);
    let mut found = Bases::default();
    let mut show = |message| {
        if let Some(chain) = chain(&message) {
            found.on_devices.extend(chain.on_devices());
            found.chains.extend(chain.counts());
        }
        found.policies.extend(DropPolicy::read(&message));
        ControlFlow::Continue(())
    };
    socket
        .dump(&NetfilterMessage::new(header, all), &mut show)
        .context("list the chains of nftables")?;
    Ok(found)
}

/// The chains that drop what no rule accepts.
pub(super) fn drop_policies(socket: &mut Socket) -> anyhow::Result<Vec<DropPolicy>> {
    Ok(bases(socket)?.policies)
}

/// A chain, as the kernel shows it.
pub(super) struct Chain<'a> {
    family: NetfilterProtoFamily,
    table: &'a str,
    name: &'a str,
    /// The number of its hook; none where other chains lead to it.
    pub(super) hook: Option<u32>,
    /// All that the kernel says of it.
    pub(super) attributes: &'a [ChainAttribute],
}

/// The chain of a message.
pub(super) fn chain(message: &NetfilterMessage) -> Option<Chain<'_>> {
    let NetfilterMessageInner::NfTables(NfTablesMessage::NewChain(chain)) = &message.inner else {
        return None;
    };
    let (mut table, mut name, mut hook) = (None, None, None);
    for attribute in &chain.attributes {
        match attribute {
            ChainAttribute::Table(text) => table = Some(text.as_str()),
            ChainAttribute::Name(text) => name = Some(text.as_str()),
            ChainAttribute::Hook(hooks) => hook = hooks.iter().find_map(number),
            _ => {}
        }
    }
    Some(Chain {
        family: message.header.family,
        table: table?,
        name: name?,
        hook,
        attributes: &chain.attributes,
    })
}

impl Chain<'_> {
    /// The chain, as nft(8) takes it.
    pub(super) fn place_text(&self) -> String {
        let family = family_name(self.family);
        format!("nftables {family} {} {}", self.table, self.name)
    }

    /// True if it sees the packets of either family that the host receives and forwards.
    pub(super) fn is_of_ip(&self) -> bool {
        matches!(
            self.family,
            NetfilterProtoFamily::Inet | NetfilterProtoFamily::IPv4 | NetfilterProtoFamily::IPv6
        )
    }

    /// The chain, if it is at hooks of devices: it applies to all packets that they receive or
    /// send.
    fn on_devices(&self) -> Option<Rule> {
        let hooks = self
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                ChainAttribute::Hook(hooks) => Some(hooks),
                _ => None,
            });
        let names: Vec<Name> = hooks?.iter().flat_map(devices).collect();
        let place = (
            self.family.into(),
            self.table.to_owned(),
            self.name.to_owned(),
        );
        (!names.is_empty() && !is_left_out(&place)).then(|| Rule {
            place: self.place_text(),
            names,
        })
    }

    /// Its place, and whether it comes after routing; none where it is at no hook that counts.
    fn counts(&self) -> Option<(Place, bool)> {
        let hook = self.hook?;
        let is_late = match self.family {
            NetfilterProtoFamily::Inet
            | NetfilterProtoFamily::IPv4
            | NetfilterProtoFamily::IPv6 => match InetHookNumber::from(hook) {
                InetHookNumber::PreRouting | InetHookNumber::Forward | InetHookNumber::Ingress => {
                    false
                }
                InetHookNumber::PostRouting => true,
                _ => return None,
            },
            NetfilterProtoFamily::NetDev if hook == NETDEV_INGRESS => false,
            _ => return None,
        };
        let (table, name) = (self.table.to_owned(), self.name.to_owned());
        Some(((self.family.into(), table, name), is_late))
    }
}

/// The devices that a hook is on.
fn devices(hook: &Hook) -> Vec<Name> {
    match hook {
        Hook::NetDeviceName(name) => vec![Name::device(name.as_bytes(), false)],
        Hook::NetDevices(all) => flowtable::devices(all),
        _ => Vec::new(),
    }
}

fn number(hook: &Hook) -> Option<u32> {
    match hook {
        Hook::Number(HookNumber::Inet(number)) => Some(u32::from(*number)),
        Hook::Number(HookNumber::Dev(number)) => Some(u32::from(*number)),
        Hook::Number(HookNumber::Other(number)) => Some(*number),
        _ => None,
    }
}

/// The rules of a chain.
fn of_chain(socket: &mut Socket, (number, table, chain): &Place) -> anyhow::Result<Vec<Facts>> {
    let family = NetfilterProtoFamily::from(*number);
    let message = NfTablesMessage::GetRule(RuleMessage {
        attributes: vec![
            RuleAttribute::Table(table.clone()),
            RuleAttribute::Chain(chain.clone()),
        ],
    });
    let header = NetfilterHeader::new(family, 0, 0);
    let mut rules = Vec::new();
    socket.dump(&NetfilterMessage::new(header, message), &mut |message| {
        if let NetfilterMessageInner::NfTables(NfTablesMessage::NewRule(rule)) = &message.inner {
            let facts = facts(family, rule);
            // A kernel that ignores the question's chain shows all of them.
            if facts.chain == *chain {
                rules.push(facts);
            }
        }
        ControlFlow::Continue(())
    })?;
    Ok(rules)
}

/// A family as `nft` writes it.
pub(super) fn family_name(family: NetfilterProtoFamily) -> &'static str {
    match family {
        NetfilterProtoFamily::Inet => "inet",
        NetfilterProtoFamily::IPv4 => "ip",
        NetfilterProtoFamily::IPv6 => "ip6",
        NetfilterProtoFamily::NetDev => "netdev",
        _ => "of another family",
    }
}
