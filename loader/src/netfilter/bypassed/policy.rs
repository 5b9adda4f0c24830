//! Chains that drop what the host's stack forwards, unless a rule accepts it.

use std::time::{Duration, Instant};

use netlink_packet_core::{DefaultNla, Nla as _};
use netlink_packet_netfilter::NetfilterMessage;
use netlink_packet_netfilter::nftables::{ChainAttribute, InetHookNumber};

use super::nft::chain;

/// `NF_DROP` in `include/uapi/linux/netfilter.h`.
const DROP: u32 = 0;
/// `NFTA_COUNTER_PACKETS` in `include/uapi/linux/netfilter/nf_tables.h`.
const PACKETS: u16 = 2;
/// The time after a dropped packet for which a policy counts as one that drops.
const LATELY: Duration = Duration::from_mins(5);

/// A chain of forwarded packets whose policy is to drop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DropPolicy {
    /// The chain, as nft(8) takes it.
    pub(super) place: String,
    /// Number of packets that it has dropped; none where the chain does not count.
    packets: Option<u64>,
    /// When it was seen to have dropped more than before.
    moved: Option<Instant>,
}

impl DropPolicy {
    /// The policy of a chain's message, if it is one.
    pub(super) fn read(message: &NetfilterMessage) -> Option<Self> {
        let chain = chain(message)?;
        let is_forward = InetHookNumber::from(chain.hook?) == InetHookNumber::Forward;
        if !is_forward || !chain.is_of_ip() {
            return None;
        }
        let mut is_drop = false;
        let mut packets = None;
        for attribute in chain.attributes {
            match attribute {
                ChainAttribute::Policy(policy) => is_drop = *policy == DROP,
                ChainAttribute::Counter(counter) => packets = counter.iter().find_map(count),
                _ => {}
            }
        }
        is_drop.then(|| Self::new(chain.place_text(), packets))
    }

    /// A policy, with how many packets it has dropped.
    pub(super) fn new(place: String, packets: Option<u64>) -> Self {
        Self {
            place,
            packets,
            moved: None,
        }
    }

    /// Adds the earlier observations of the chain.
    pub(super) fn after(mut self, earlier: &[Self], now: Instant) -> Self {
        let earlier = earlier.iter().find(|earlier| earlier.place == self.place);
        if let Some(earlier) = earlier {
            let is_more = self.packets > earlier.packets;
            self.moved = if is_more { Some(now) } else { earlier.moved };
        }
        self
    }

    /// True if it has dropped packets a moment ago.
    pub(super) fn is_dropping(&self, now: Instant) -> bool {
        self.moved
            .is_some_and(|moved| now.duration_since(moved) < LATELY)
    }

    /// The policy in words, with the remedy.
    pub(super) fn line(&self) -> String {
        let Self { place, packets, .. } = self;
        let so_far = packets.map(|packets| format!(", {packets} packets so far"));
        format!(
            "{place} drops what none of its rules accepts{}: packets of pods that the host forwards, as \
             those of services, need a rule that accepts them (-i tow+ and -o tow+)",
            so_far.unwrap_or_default()
        )
    }
}

fn count(attribute: &DefaultNla) -> Option<u64> {
    let mut bytes = [0; 8];
    if attribute.kind() != PACKETS || attribute.value_len() != bytes.len() {
        return None;
    }
    attribute.emit_value(&mut bytes);
    Some(u64::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(packets: Option<u64>) -> DropPolicy {
        DropPolicy {
            place: "nftables ip filter FORWARD".to_owned(),
            packets,
            moved: None,
        }
    }

    #[test]
    fn a_policy_drops_packets_while_its_count_has_grown_lately() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let first = policy(Some(7)).after(&[], start);
        assert!(
            !first.is_dropping(start),
            "of what was before nobody knows when"
        );
        let same = policy(Some(7)).after(&[first], after(2));
        assert!(!same.is_dropping(after(2)));
        let more = policy(Some(8)).after(&[same], after(4));
        assert!(more.is_dropping(after(4)));
        assert!(
            more.line().contains(", 8 packets so far"),
            "{}",
            more.line()
        );
        let still = policy(Some(8)).after(&[more], after(200));
        assert!(still.is_dropping(after(303)) && !still.is_dropping(after(304)));
        let uncounted = policy(None).after(&[policy(None)], start);
        assert!(!uncounted.is_dropping(start));
    }
}
