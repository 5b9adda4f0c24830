//! A table of the older iptables as the kernel copies it out: `struct ipt_entry` in
//! `include/uapi/linux/netfilter_ipv4/ip_tables.h` and `struct ip6t_entry` in
//! `include/uapi/linux/netfilter_ipv6/ip6_tables.h`, each followed by its matches and its target.

use std::net::IpAddr;
use std::ops::Range;

use ipam::Family;
use ipnet::IpNet;

use super::matches::{self, text};
use super::nft::{Rule, is_left_out_chain};
use super::policy::DropPolicy;
use super::rule::Name;

/// The hooks in the kernel's order (`enum nf_inet_hooks`).
const HOOKS: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
const FORWARD: usize = 2;
/// Length of a target's and a match's header (`struct xt_entry_target`): size, name, revision.
const HEADER: usize = 32;
/// Range of the name in that header, after the size.
const NAME: Range<usize> = 2..31;
/// Room for the name of a chain in the target that begins one (`struct xt_error_target`).
const CHAIN_NAME: usize = 30;
/// Length of a device's name (`IFNAMSIZ`).
const DEVICE: usize = 16;
/// The verdict of a policy to drop: `-NF_DROP - 1`.
const DROP: i32 = -1;

/// Where the kernel says that things are in a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Info {
    /// A bit for each hook that the table has.
    pub(super) hooks: u32,
    /// Where each hook's chain begins.
    pub(super) entries: [u32; 5],
    /// Where each hook's policy is.
    pub(super) policies: [u32; 5],
    /// Number of entries.
    pub(super) count: u32,
    /// Length of all entries, in bytes.
    pub(super) size: u32,
}

/// Where an entry of a family has its parts.
struct Layout {
    family: Family,
    /// Length of an address, in bytes.
    address: usize,
    /// Where the offset of the target is; that of the next entry follows it.
    offsets: usize,
    /// Where the count of packets is.
    packets: usize,
    /// Where the matches begin.
    matches: usize,
}

fn layout(family: Family) -> Layout {
    match family {
        Family::V4 => Layout {
            family,
            address: 4,
            offsets: 88,
            packets: 96,
            matches: 112,
        },
        Family::V6 => Layout {
            family,
            address: 16,
            offsets: 140,
            packets: 152,
            matches: 168,
        },
    }
}

/// The rules of a table that name something, and its policies of forwarded packets to drop; none where
/// the bytes are no table.
pub(super) fn read(
    family: Family,
    table: &str,
    info: &Info,
    bytes: &[u8],
) -> Option<(Vec<Rule>, Vec<DropPolicy>)> {
    let program = match family {
        Family::V4 => "iptables-legacy",
        Family::V6 => "ip6tables-legacy",
    };
    let (mut rules, mut policies) = (Vec::new(), Vec::new());
    let mut user_chain: Option<String> = None;
    let (mut last, mut number) = (String::new(), 0);
    let mut at = 0;
    while at < bytes.len() {
        let entry = Entry::read(family, bytes.get(at..)?)?;
        let length = entry.length;
        if entry.target == "ERROR" {
            // The last one ends the table, under the target's own name.
            user_chain = Some(entry.chain_name()?);
        } else {
            let hook = info.hook(at);
            let chain = user_chain
                .clone()
                .or_else(|| {
                    hook.map(|hook| HOOKS.get(hook).copied().unwrap_or_default().to_owned())
                })
                .unwrap_or_default();
            number = if chain == last { number + 1 } else { 1 };
            let place = format!("{program} {table} {chain}");
            let is_user = user_chain.is_some();
            let names = entry.names(is_user, hook);
            if !is_left_out_chain(&chain) && !names.is_empty() {
                let place = format!("{place}, rule {number}");
                rules.push(Rule { place, names });
            }
            if !is_user && info.is_policy(FORWARD, at) && entry.verdict() == Some(DROP) {
                policies.push(DropPolicy::new(place, entry.packets()));
            }
            last = chain;
        }
        at += length;
    }
    Some((rules, policies))
}

impl Info {
    fn has(&self, hook: usize) -> bool {
        self.hooks & (1 << hook) != 0
    }

    /// The hook whose chain an entry is of.
    fn hook(&self, at: usize) -> Option<usize> {
        let is_within = |hook: &usize| {
            let bound = |all: &[u32; 5]| usize::try_from(*all.get(*hook)?).ok();
            let (start, end) = (bound(&self.entries), bound(&self.policies));
            self.has(*hook) && start <= Some(at) && Some(at) <= end
        };
        (0..HOOKS.len()).find(is_within)
    }

    fn is_policy(&self, hook: usize, at: usize) -> bool {
        let policy = self.policies.get(hook);
        self.has(hook) && policy.is_some_and(|policy| usize::try_from(*policy) == Ok(at))
    }
}

/// One rule.
struct Entry<'a> {
    layout: Layout,
    bytes: &'a [u8],
    /// Where its target begins.
    target_at: usize,
    length: usize,
    /// The name of its target; none for a verdict or a jump.
    target: String,
}

impl<'a> Entry<'a> {
    fn read(family: Family, bytes: &'a [u8]) -> Option<Self> {
        let layout = layout(family);
        let offset = |at| {
            let pair = bytes.get(at..at + 2)?.try_into().ok()?;
            Some(usize::from(u16::from_ne_bytes(pair)))
        };
        let target_at = offset(layout.offsets)?;
        let length = offset(layout.offsets + 2)?;
        let bytes = bytes.get(..length)?;
        let target = text(bytes.get(target_at..)?.get(NAME)?);
        // An entry without a length would be read for ever.
        (target_at >= layout.matches && length >= target_at + HEADER).then_some(Self {
            layout,
            bytes,
            target_at,
            length,
            target,
        })
    }

    fn chain_name(&self) -> Option<String> {
        let start = self.target_at + HEADER;
        self.bytes.get(start..start + CHAIN_NAME).map(text)
    }

    fn verdict(&self) -> Option<i32> {
        let start = self.target_at + HEADER;
        let bytes = self.bytes.get(start..start + 4)?.try_into().ok()?;
        self.target.is_empty().then(|| i32::from_ne_bytes(bytes))
    }

    fn packets(&self) -> Option<u64> {
        let start = self.layout.packets;
        let bytes = self.bytes.get(start..start + 8)?.try_into().ok()?;
        Some(u64::from_ne_bytes(bytes))
    }

    /// The things that the rule names, as far as they count in its chain.
    fn names(&self, is_user: bool, hook: Option<usize>) -> Vec<Name> {
        let mss = (self.target == "TCPMSS").then_some(Name::Mss);
        match hook.and_then(|hook| HOOKS.get(hook)) {
            _ if is_user => {}
            Some(&"PREROUTING" | &"FORWARD") => {}
            Some(&"POSTROUTING") => return mss.into_iter().collect(),
            _ => return Vec::new(),
        }
        let size = self.layout.address;
        let devices = 4 * size;
        let nets = [0, 1].map(|index| self.network(index * size, (index + 2) * size));
        let named = [0, 1].map(|index| {
            let start = devices + index * DEVICE;
            self.device(start, start + 2 * DEVICE)
        });
        let found = nets.into_iter().chain(named).flatten();
        found.chain(mss).chain(self.matched()).collect()
    }

    fn network(&self, address: usize, mask: usize) -> Option<Name> {
        let size = self.layout.address;
        let (address, mask) = (
            self.bytes.get(address..address + size)?,
            self.bytes.get(mask..mask + size)?,
        );
        let length = mask.iter().map(|byte| byte.count_ones()).sum::<u32>();
        let address = match size {
            4 => IpAddr::from(<[u8; 4]>::try_from(address).ok()?),
            _ => IpAddr::from(<[u8; 16]>::try_from(address).ok()?),
        };
        let net = IpNet::new(address, u8::try_from(length).ok()?).ok()?;
        (length > 0).then_some(Name::Network(net))
    }

    fn device(&self, name: usize, mask: usize) -> Option<Name> {
        let name = self.bytes.get(name..name + DEVICE)?;
        let mask = self.bytes.get(mask..mask + DEVICE)?;
        // The mask of a whole name covers its zero byte, too. A prefix of names ends in `+`.
        let compared = mask.iter().take_while(|byte| **byte != 0).count();
        let name = name.get(..compared)?;
        (compared > 0).then(|| Name::device(name, !name.contains(&0)))
    }

    /// The things that its matches name.
    fn matched(&self) -> Vec<Name> {
        let mut found = Vec::new();
        let mut at = self.layout.matches;
        while at + HEADER <= self.target_at {
            let size = self
                .bytes
                .get(at..at + 2)
                .and_then(|size| size.try_into().ok());
            let size = size.map(u16::from_ne_bytes).map_or(0, usize::from);
            // One without a length would be read for ever.
            let Some(bytes) = self.bytes.get(at..at + size).filter(|_| size >= HEADER) else {
                break;
            };
            let name = bytes.get(NAME).map(text).unwrap_or_default();
            let info = bytes.get(HEADER..).unwrap_or_default();
            found.extend(matches::names(self.layout.family, &name, info));
            at += size;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..600),
            is_v4 in any::<bool>(),
            offsets in any::<[u32; 5]>(),
        ) {
            let info = Info { hooks: 31, entries: offsets, policies: offsets, count: 1, size: 600 };
            let family = if is_v4 { Family::V4 } else { Family::V6 };
            read(family, "filter", &info, &bytes);
        }
    }
}
