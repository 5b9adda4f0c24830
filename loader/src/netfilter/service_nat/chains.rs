//! The base chains of nftables, iptables' own among them where iptables is the newer one.

use std::ops::ControlFlow;

use netlink_packet_netfilter::nftables::{
    ChainAttribute, ChainMessage, Hook, HookNumber, InetHookNumber, NfTablesMessage,
};
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
};

use crate::netlink::RequestError;
use crate::netlink::netfilter::Socket;

/// The type of chains whose rules see the first packet of a flow and change its addresses.
const NAT: &str = "nat";

/// The first chain that can change addresses, as text.
pub(super) fn first_nat_chain(socket: &mut Socket) -> Result<Option<String>, RequestError> {
    let all = NfTablesMessage::GetChain(ChainMessage {
        attributes: Vec::new(),
    });
    let header = NetfilterHeader::new(NetfilterProtoFamily::Unspec, 0, 0);
    let mut found = None;
    let answer = socket.dump(&NetfilterMessage::new(header, all), &mut |message| {
        found = describe(&message);
        match found {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    });
    answer.map(|()| found)
}

/// A chain as text, if it does NAT at any hook. Answers to an address that a chain after routing
/// has put in can only be reverted in the host's stack.
pub(super) fn describe(message: &NetfilterMessage) -> Option<String> {
    let NetfilterMessageInner::NfTables(NfTablesMessage::NewChain(chain)) = &message.inner else {
        return None;
    };
    let (mut table, mut name, mut is_nat, mut hook) = ("", "", false, None);
    for attribute in &chain.attributes {
        match attribute {
            ChainAttribute::Table(text) => table = text,
            ChainAttribute::Name(text) => name = text,
            ChainAttribute::Type(text) => is_nat = text == NAT,
            ChainAttribute::Hook(hooks) => hook = hooks.iter().find_map(hook_name),
            _ => {}
        }
    }
    let hook = hook.filter(|_| is_nat)?;
    let family = family_name(message.header.family);
    Some(format!(
        "nftables chain {family} {table} {name} (type nat, hook {hook})"
    ))
}

fn hook_name(hook: &Hook) -> Option<&'static str> {
    match hook {
        Hook::Number(HookNumber::Inet(InetHookNumber::PreRouting)) => Some("prerouting"),
        Hook::Number(HookNumber::Inet(InetHookNumber::LocalIn)) => Some("input"),
        Hook::Number(HookNumber::Inet(InetHookNumber::LocalOut)) => Some("output"),
        Hook::Number(HookNumber::Inet(InetHookNumber::PostRouting)) => Some("postrouting"),
        _ => None,
    }
}

/// A family as `nft` writes it. Only these have chains of type nat.
fn family_name(family: NetfilterProtoFamily) -> &'static str {
    match family {
        NetfilterProtoFamily::Inet => "inet",
        NetfilterProtoFamily::IPv4 => "ip",
        NetfilterProtoFamily::IPv6 => "ip6",
        _ => "of another family",
    }
}
