//! Flowtables of nftables: forwarded packets of a flow in one bypass the host's rules, from the
//! receiving device on. Packets that bypass the host's stack never get into one.

use std::ops::ControlFlow;

use anyhow::Context as _;
use netlink_packet_core::{DefaultNla, Nla as _, NlasIterator};
use netlink_packet_netfilter::nftables::NfTablesMessage;
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
};

use super::matches::text;
use super::nft::{Rule, family_name, is_left_out};
use super::rule::Name;
use crate::netlink::netfilter::Socket;

/// `NFTA_FLOWTABLE_TABLE`, `NFTA_FLOWTABLE_NAME` and `NFTA_FLOWTABLE_HOOK` in
/// `include/uapi/linux/netfilter/nf_tables.h`.
const TABLE: u16 = 1;
const NAME: u16 = 2;
const HOOK: u16 = 3;
/// `NFTA_FLOWTABLE_HOOK_DEVS`.
const DEVICES: u16 = 3;
/// `NFTA_DEVICE_NAME` and `NFTA_DEVICE_PREFIX`.
const DEVICE: u16 = 1;
const DEVICE_PREFIX: u16 = 2;
/// The bits of an attribute's kind that are none of it (`NLA_TYPE_MASK`).
const KIND: u16 = 0x3fff;

/// Reads the flowtables, with the devices of each.
pub(super) fn read(socket: &mut Socket) -> anyhow::Result<Vec<Rule>> {
    let header = NetfilterHeader::new(NetfilterProtoFamily::Unspec, 0, 0);
    let question = NetfilterMessage::new(header, NfTablesMessage::GetFlowTable(Vec::new()));
    let mut found = Vec::new();
    let mut show = |message: NetfilterMessage| {
        if let NetfilterMessageInner::NfTables(NfTablesMessage::NewFlowTable(all)) = &message.inner
        {
            found.extend(flowtable(message.header.family, all));
        }
        ControlFlow::Continue(())
    };
    let listed = socket.dump(&question, &mut show);
    listed.context("list the flowtables of nftables")?;
    Ok(found)
}

fn flowtable(family: NetfilterProtoFamily, attributes: &[DefaultNla]) -> Option<Rule> {
    let value = |kind| {
        attributes
            .iter()
            .find(|one| one.kind() & KIND == kind)
            .map(value)
    };
    let (table, name) = (text(&value(TABLE)?), text(&value(NAME)?));
    let hook = nested(&value(HOOK)?);
    let on = hook.iter().find(|one| one.kind() & KIND == DEVICES)?;
    let names = devices(&nested(&self::value(on)));
    let names = names.into_iter().filter_map(|name| match name {
        Name::Device { name, is_prefix } => Some(Name::Offload { name, is_prefix }),
        _ => None,
    });
    let place = format!("nftables {} {table} flowtable {name}", family_name(family));
    let is_others = !is_left_out(&(family.into(), table, name));
    is_others.then(|| Rule {
        place,
        names: names.collect(),
    })
}

/// The devices of a hook.
pub(super) fn devices(all: &[DefaultNla]) -> Vec<Name> {
    let named = all.iter().filter_map(|one| match one.kind() & KIND {
        DEVICE => Some(Name::device(&value(one), false)),
        DEVICE_PREFIX => Some(Name::device(&value(one), true)),
        _ => None,
    });
    named.collect()
}

fn value(attribute: &DefaultNla) -> Vec<u8> {
    let mut bytes = vec![0; attribute.value_len()];
    attribute.emit_value(&mut bytes);
    bytes
}

fn nested(bytes: &[u8]) -> Vec<DefaultNla> {
    use netlink_packet_core::Parseable as _;
    let parsed = NlasIterator::new(bytes).flatten();
    let parsed = parsed.filter_map(|buffer| DefaultNla::parse(&buffer).ok());
    parsed.collect()
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::NLA_F_NESTED;

    use super::*;

    /// An attribute as it lies in a message: its length, its kind, its value, zeros up to the next word.
    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(value.len() + 4).unwrap();
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn read(table: &str, nested: u16) -> Option<Rule> {
        let names = [
            attribute(DEVICE, b"eth1\0"),
            attribute(DEVICE_PREFIX, b"tow\0"),
            attribute(77, b"lo\0"),
        ];
        // The hook's number and priority come first.
        let hook = [
            attribute(1, &[0; 4]),
            attribute(2, &[0; 4]),
            attribute(DEVICES | nested, &names.concat()),
        ];
        let all = [
            (TABLE, format!("{table}\0").into_bytes()),
            (NAME, b"fast\0".to_vec()),
            (HOOK | nested, hook.concat()),
        ];
        let all = all.map(|(kind, value)| DefaultNla::new(kind, value));
        flowtable(NetfilterProtoFamily::Inet, &all)
    }

    #[test]
    fn its_devices_are_read_and_those_of_others_tables_left_out() {
        let offload = |name: &str, is_prefix| Name::Offload {
            name: name.to_owned(),
            is_prefix,
        };
        let rule = Rule {
            place: "nftables inet fw flowtable fast".to_owned(),
            names: vec![offload("eth1", false), offload("tow", true)],
        };
        for nested in [0, NLA_F_NESTED] {
            assert_eq!(read("fw", nested), Some(rule.clone()));
        }
        assert_eq!(read("kube-proxy", 0), None);
    }
}
