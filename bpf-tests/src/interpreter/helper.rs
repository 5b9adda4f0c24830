//! The kernel's helpers, as far as the programs use them.

use anyhow::{Result, bail, ensure};
use testkit::testrun::REDIRECT;

use super::memory::{self, Memory};

/// `ENOMEM` and `ENOTSUPP` of the kernel, as helpers return them.
const NO_MEMORY: i64 = -12;
const NOT_SUPPORTED: i64 = -524;
/// `EFAULT`.
const FAULT: i64 = -14;

/// A helper: its number and name are those of `include/uapi/linux/bpf.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Helper {
    MapLookup,
    MapUpdate,
    MapDelete,
    Random,
    Cpu,
    StoreBytes,
    L4ChecksumReplace,
    LoadBytes,
    PullData,
    UdpSocket,
    ReleaseSocket,
    Lock,
    Unlock,
    TcpSocket,
    TcpConnection,
    ChecksumUpdate,
    Jiffies,
    Redirect,
    RedirectNeighbour,
    RedirectPeer,
}

/// All of them, by number.
const HELPERS: [(i32, Helper, &str); 20] = [
    (1, Helper::MapLookup, "map_lookup_elem"),
    (2, Helper::MapUpdate, "map_update_elem"),
    (3, Helper::MapDelete, "map_delete_elem"),
    (7, Helper::Random, "get_prandom_u32"),
    (8, Helper::Cpu, "get_smp_processor_id"),
    (9, Helper::StoreBytes, "skb_store_bytes"),
    (11, Helper::L4ChecksumReplace, "l4_csum_replace"),
    (23, Helper::Redirect, "redirect"),
    (26, Helper::LoadBytes, "skb_load_bytes"),
    (39, Helper::PullData, "skb_pull_data"),
    (40, Helper::ChecksumUpdate, "csum_update"),
    (85, Helper::UdpSocket, "sk_lookup_udp"),
    (86, Helper::ReleaseSocket, "sk_release"),
    (93, Helper::Lock, "spin_lock"),
    (94, Helper::Unlock, "spin_unlock"),
    (96, Helper::TcpConnection, "tcp_sock"),
    (99, Helper::TcpSocket, "skc_lookup_tcp"),
    (118, Helper::Jiffies, "jiffies64"),
    (152, Helper::RedirectNeighbour, "redirect_neigh"),
    (155, Helper::RedirectPeer, "redirect_peer"),
];

impl Helper {
    /// The helper with this number.
    pub(super) fn from_number(number: i32) -> Result<Self> {
        match HELPERS.iter().find(|(of, ..)| *of == number) {
            Some((_, helper, _)) => Ok(*helper),
            None => bail!("the interpreter has no helper {number}"),
        }
    }

    /// Its name.
    pub(super) fn name(self) -> &'static str {
        let of = HELPERS.iter().find(|(_, helper, _)| *helper == self);
        of.map_or("?", |(.., name)| name)
    }
}

/// State of helpers outside of memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Host {
    /// The time.
    pub(super) jiffies: u64,
    /// State of the pseudo-random numbers, which are the same in each run.
    pub(super) random: u64,
}

impl Host {
    /// The next number of a 64-bit linear congruential generator (Knuth's MMIX), its upper half.
    fn draw(&mut self) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.random >> 32
    }
}

/// Calls a helper with the registers from 1 on. Its result is sign-extended.
pub(super) fn call(
    helper: Helper,
    memory: &mut Memory<'_>,
    host: &mut Host,
    arguments: [u64; 5],
) -> Result<u64> {
    let [first, second, third, fourth, fifth] = arguments;
    let code = match helper {
        Helper::MapLookup => return look_up(memory, first, second),
        Helper::MapUpdate => {
            let number = memory::map_number(first)?;
            let map = &memory.maps[number];
            let key = memory.bytes(second, map.key_size())?.to_vec();
            let value = memory.bytes(third, map.value_size())?.to_vec();
            let put = memory.maps[number].put(&key, &value, fourth);
            put.map_or_else(super::map::Refusal::code, |()| 0)
        }
        Helper::MapDelete => {
            let number = memory::map_number(first)?;
            let key = memory.bytes(second, memory.maps[number].key_size())?;
            let key = key.to_vec();
            let removed = memory.maps[number].remove(&key);
            removed.map_or_else(super::map::Refusal::code, |()| 0)
        }
        Helper::Random => return Ok(host.draw()),
        // There is only one CPU.
        Helper::Cpu => return Ok(0),
        Helper::Jiffies => return Ok(host.jiffies),
        // The program runs alone.
        Helper::Lock | Helper::Unlock => {
            memory.bytes(first, 4)?;
            0
        }
        // There are no sockets.
        Helper::TcpSocket | Helper::UdpSocket => {
            memory.bytes(second, usize::try_from(third)?)?;
            return Ok(0);
        }
        Helper::TcpConnection => bail!("there was no socket to look into"),
        Helper::ReleaseSocket => bail!("there was no socket to release"),
        Helper::RedirectNeighbour => {
            memory.bytes(second, usize::try_from(third)?)?;
            ensure!(fourth == 0, "flags of redirect_neigh");
            REDIRECT.into()
        }
        Helper::Redirect | Helper::RedirectPeer => {
            ensure!(second == 0, "flags of a redirection");
            REDIRECT.into()
        }
        Helper::StoreBytes | Helper::LoadBytes | Helper::PullData | Helper::L4ChecksumReplace => {
            ensure!(first == memory::CONTEXT, "not the context");
            of_packet(helper, memory, [second, third, fourth, fifth])?
        }
        // The device has not summed up the packet.
        Helper::ChecksumUpdate => NOT_SUPPORTED,
    };
    Ok(code.cast_unsigned())
}

/// The address of a key's value in a map, or 0.
fn look_up(memory: &mut Memory<'_>, map: u64, key: u64) -> Result<u64> {
    let number = memory::map_number(map)?;
    let key = memory.bytes(key, memory.maps[number].key_size())?;
    let found = memory.maps[number].find(key);
    let number = u32::try_from(number)?;
    Ok(match found {
        Some(offset) => memory::value_address(number, u32::try_from(offset)?),
        None => 0,
    })
}

/// Calls a helper that works on the packet.
fn of_packet(helper: Helper, memory: &mut Memory<'_>, arguments: [u64; 4]) -> Result<i64> {
    let [second, third, fourth, fifth] = arguments;
    let length = memory.skb.frame.len();
    let offset = usize::try_from(second & u64::from(u32::MAX))?;
    match helper {
        Helper::PullData => Ok(if offset > length { NO_MEMORY } else { 0 }),
        Helper::StoreBytes => {
            let bytes = memory.bytes(third, usize::try_from(fourth)?)?.to_vec();
            let place = offset..offset + bytes.len();
            Ok(match memory.skb.frame.get_mut(place) {
                Some(place) => {
                    place.copy_from_slice(&bytes);
                    0
                }
                None => FAULT,
            })
        }
        Helper::LoadBytes => {
            let place = offset..offset + usize::try_from(fourth)?;
            let bytes = memory.skb.frame.get(place).map(<[u8]>::to_vec);
            let to = memory.bytes_mut(third, usize::try_from(fourth)?)?;
            Ok(if let Some(bytes) = bytes {
                to.copy_from_slice(&bytes);
                0
            } else {
                to.fill(0);
                FAULT
            })
        }
        _ => replace_checksum(memory, offset, [third, fourth, fifth]),
    }
}

/// `bpf_l4_csum_replace` of `net/core/filter.c`, with a difference.
fn replace_checksum(memory: &mut Memory<'_>, offset: usize, arguments: [u64; 3]) -> Result<i64> {
    /// The lowest bits of the flags: the size of what has changed, 0 for a difference.
    const SIZE: u64 = 0xf;
    /// `BPF_F_MARK_MANGLED_0`: 0 means that there is no checksum.
    const MANGLED_ZERO: u64 = 1 << 5;
    /// `BPF_F_MARK_ENFORCE`.
    const ENFORCE: u64 = 1 << 6;
    let [from, to, flags] = arguments;
    ensure!(
        flags & SIZE == 0 && from == 0 && flags & ENFORCE == 0,
        "flags of l4_csum_replace: {flags:#x}"
    );
    let Ok(half) = memory.skb.half(offset) else {
        return Ok(FAULT);
    };
    let sum = u16::from_ne_bytes(*half);
    let may_be_none = flags & MANGLED_ZERO != 0;
    if may_be_none && sum == 0 {
        return Ok(0);
    }
    let mut total = (to & u64::from(u32::MAX)) + u64::from(!u32::from(sum));
    while total > u64::from(u16::MAX) {
        total = (total >> 16) + (total & u64::from(u16::MAX));
    }
    let folded = !u16::try_from(total)?;
    *half = if may_be_none && folded == 0 {
        u16::MAX
    } else {
        folded
    }
    .to_ne_bytes();
    Ok(0)
}
