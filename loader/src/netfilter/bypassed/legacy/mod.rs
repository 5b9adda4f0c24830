//! The tables of the older iptables: `getsockopt` copies one out.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use anyhow::Context as _;
use ipam::Family;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use super::nft::Rule;
use super::policy::DropPolicy;
use super::xtables::{self, Info};

/// `IPT_SO_GET_INFO` and `IPT_SO_GET_ENTRIES` in `include/uapi/linux/netfilter_ipv4/ip_tables.h`; those of
/// IPv6 have the same numbers.
const GET_INFO: libc::c_int = 64;
const GET_ENTRIES: libc::c_int = 65;
/// Room for a table's name (`XT_TABLE_MAXNAMELEN`).
const NAME: usize = 32;
/// Length of `struct ipt_getinfo`.
const INFO: usize = 84;
/// Length of `struct ipt_get_entries` before the entries.
const HEAD: usize = 40;
/// Not `/proc/net`, which is of the namespace of the process's first thread.
const NAMES: [(Family, &str); 2] = [
    (Family::V4, "/proc/thread-self/net/ip_tables_names"),
    (Family::V6, "/proc/thread-self/net/ip6_tables_names"),
];

/// The tables as they were read, by family and name.
#[derive(Default)]
pub(super) struct Tables(BTreeMap<(Family, String), Table>);

struct Table {
    info: Info,
    rules: Vec<Rule>,
    policies: Vec<DropPolicy>,
}

impl Tables {
    /// Reads the existing tables. One with the same number of entries and bytes as before is not
    /// read again, unless it has a policy whose count may have grown.
    pub(super) fn look(&mut self) -> anyhow::Result<()> {
        let mut there = BTreeMap::new();
        for (family, path) in NAMES {
            let names = match fs::read_to_string(path) {
                Ok(names) => names,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error).with_context(|| format!("read {path}")),
            };
            for name in names.lines() {
                let key = (family, name.to_owned());
                let known = self.0.remove(&key);
                let table = table(family, name, known);
                there.insert(
                    key,
                    table.with_context(|| format!("read table {name} of iptables"))?,
                );
            }
        }
        self.0 = there;
        Ok(())
    }

    /// The rules that name something.
    pub(super) fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.0.values().flat_map(|table| &table.rules)
    }

    /// The policies of forwarded packets to drop.
    pub(super) fn policies(&self) -> impl Iterator<Item = &DropPolicy> {
        self.0.values().flat_map(|table| &table.policies)
    }
}

fn table(family: Family, name: &str, known: Option<Table>) -> anyhow::Result<Table> {
    let socket = open(family)?;
    let mut answer = [0; INFO];
    named(&mut answer, name);
    ask(&socket, family, GET_INFO, &mut answer)?;
    let info = info(&answer).context("the kernel's answer is too short")?;
    if let Some(known) = known.filter(|known| known.info == info && known.policies.is_empty()) {
        return Ok(known);
    }
    let size = usize::try_from(info.size)?;
    let mut entries = vec![0; HEAD + size];
    named(&mut entries, name);
    if let Some(place) = entries.get_mut(NAME..NAME + 4) {
        place.copy_from_slice(&info.size.to_ne_bytes());
    }
    ask(&socket, family, GET_ENTRIES, &mut entries)?;
    let bytes = entries.get(HEAD..).unwrap_or_default();
    let (rules, policies) =
        xtables::read(family, name, &info, bytes).context("its entries are none")?;
    Ok(Table {
        info,
        rules,
        policies,
    })
}

fn open(family: Family) -> io::Result<OwnedFd> {
    let family = match family {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    };
    let (kind, flags) = (SockType::Raw, SockFlag::SOCK_CLOEXEC);
    Ok(socket(family, kind, flags, SockProtocol::Raw)?)
}

fn named(request: &mut [u8], name: &str) {
    let bytes = name.bytes().take(NAME - 1);
    request
        .iter_mut()
        .zip(bytes)
        .for_each(|(to, from)| *to = from);
}

fn ask(
    socket: &OwnedFd,
    family: Family,
    option: libc::c_int,
    answer: &mut [u8],
) -> anyhow::Result<()> {
    let level = match family {
        Family::V4 => libc::IPPROTO_IP,
        Family::V6 => libc::IPPROTO_IPV6,
    };
    let mut length = libc::socklen_t::try_from(answer.len())?;
    // SAFETY: the kernel writes at most `length` bytes to the answer, which is as long.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            option,
            answer.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error().into())
    }
}

/// The answer to [`GET_INFO`].
fn info(answer: &[u8]) -> Option<Info> {
    let mut words = answer.get(NAME..)?.chunks_exact(4).map(|word| {
        let bytes = word.try_into().unwrap_or_default();
        u32::from_ne_bytes(bytes)
    });
    let hooks = words.next()?;
    let mut five = || {
        let mut all = [0; 5];
        for word in &mut all {
            *word = words.next()?;
        }
        Some(all)
    };
    let (entries, policies) = (five()?, five()?);
    Some(Info {
        hooks,
        entries,
        policies,
        count: words.next()?,
        size: words.next()?,
    })
}

#[cfg(test)]
mod tests;
