//! Conntrack's entries of addresses whose cooldown is over. They are removed before the addresses
//! are allocated. Otherwise a client that keeps using its service would reach the address's next
//! pod.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::thread::pace::{AGAIN, REST};

/// Time that an address rests where conntrack cannot be read. A connection that hangs lives for as
/// long: Linux sends SYNs for 127 seconds (`tcp_syn_retries` of 6, RFC 6298), conntrack keeps
/// `SYN_SENT` for 120.
const STALE_AFTER: Duration = Duration::from_secs(130);

/// The entries that a scan of conntrack found and removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Number of entries that led to each address, and one of them.
    pub leading_to: BTreeMap<IpAddr, (usize, String)>,
    /// True if all of conntrack was read.
    pub is_whole: bool,
}

/// An address that rests because entries come again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lasting {
    /// Number of consecutive scans that have found entries.
    pub looks: u32,
    /// Number of entries that the last scan has removed.
    pub entries: usize,
    /// One of them.
    pub example: String,
}

impl fmt::Display for Lasting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            looks,
            entries,
            example,
        } = self;
        write!(
            f,
            "connection tracking had {entries} entries that lead to it, removed and come again at \
             each of {looks} looks ({example}): stop the client, or the rule that sends it here"
        )
    }
}

/// The state of one address.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Known {
    /// Nothing yet, since a moment.
    Unasked(Instant),
    /// Entries were found and removed.
    Found(Lasting),
    /// A scan found nothing. No other one follows: the address may be a pod's at any moment.
    Clean,
}

/// The addresses whose cooldown is over but for conntrack.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stale {
    addresses: BTreeMap<IpAddr, Known>,
    /// End and duration of the last scan.
    last: Option<(Instant, Duration)>,
}

impl Stale {
    /// Takes which addresses are waited for. What is known of one that was among them stays.
    pub(crate) fn set(&mut self, due: &BTreeSet<IpAddr>, now: Instant) {
        self.addresses.retain(|address, _| due.contains(address));
        for address in due {
            let known = self.addresses.entry(*address);
            known.or_insert(Known::Unasked(now));
        }
    }

    /// The addresses to look up in conntrack now. At most a tenth of a CPU goes into that.
    pub(crate) fn due(&self, now: Instant) -> BTreeSet<IpAddr> {
        if let Some((ended, took)) = self.last
            && now.duration_since(ended) < AGAIN.max(took * REST)
        {
            return BTreeSet::new();
        }
        let addresses = self.addresses.iter();
        addresses
            .filter(|(_, known)| **known != Known::Clean)
            .map(|(address, _)| *address)
            .collect()
    }

    /// Records the result of a scan for these addresses; none if conntrack could not be read.
    pub(crate) fn take(
        &mut self,
        addresses: &BTreeSet<IpAddr>,
        removed: Option<&Removed>,
        now: Instant,
        took: Duration,
    ) {
        self.last = Some((now, took));
        let Some(removed) = removed else {
            return;
        };
        for address in addresses {
            let Some(known) = self.addresses.get_mut(address) else {
                continue;
            };
            if let Some((entries, example)) = removed.leading_to.get(address) {
                let looks = match known {
                    Known::Found(before) => before.looks.saturating_add(1),
                    Known::Unasked(_) | Known::Clean => 1,
                };
                *known = Known::Found(Lasting {
                    looks,
                    entries: *entries,
                    example: example.clone(),
                });
            } else if removed.is_whole {
                *known = Known::Clean;
            }
        }
    }

    /// True if nothing in conntrack leads to the address any more, as far as can be known.
    pub(crate) fn is_clean(&self, address: IpAddr, now: Instant) -> bool {
        match self.addresses.get(&address) {
            Some(Known::Clean) => true,
            Some(Known::Unasked(since)) => now.duration_since(*since) >= STALE_AFTER,
            Some(Known::Found(_)) | None => false,
        }
    }

    /// The addresses to which entries lead again that were removed before.
    pub(crate) fn lasting(&self) -> BTreeMap<IpAddr, Lasting> {
        let found = self.addresses.iter();
        found
            .filter_map(|(address, known)| match known {
                Known::Found(lasting) if lasting.looks > 1 => Some((*address, lasting.clone())),
                Known::Unasked(_) | Known::Found(_) | Known::Clean => None,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 1, 20));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 1, 21));
    const TOOK: Duration = Duration::from_millis(1);

    fn found(address: IpAddr) -> Removed {
        Removed {
            leading_to: BTreeMap::from([(address, (2, "an entry".to_owned()))]),
            is_whole: true,
        }
    }

    fn nothing() -> Removed {
        Removed {
            is_whole: true,
            ..Removed::default()
        }
    }

    #[test]
    fn an_address_is_clean_once_a_look_found_nothing_and_is_asked_for_no_more() {
        let mut stale = Stale::default();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let both = BTreeSet::from([ONE, OTHER]);
        stale.set(&both, start);
        assert_eq!(stale.due(start), both);
        stale.take(&both, Some(&found(ONE)), after(0), TOOK);
        assert!(stale.is_clean(OTHER, after(0)) && !stale.is_clean(ONE, after(500)));
        assert!(stale.due(after(0)).is_empty(), "not at once again");
        assert!(stale.lasting().is_empty(), "once removed, not come again");
        let one = BTreeSet::from([ONE]);
        assert_eq!(stale.due(after(1)), one);
        stale.take(&one, Some(&found(ONE)), after(1), TOOK);
        assert_eq!(stale.lasting()[&ONE].looks, 2);
        stale.take(&one, Some(&nothing()), after(2), TOOK);
        assert!(stale.is_clean(ONE, after(2)));
        assert!(stale.due(after(9)).is_empty());
    }

    #[test]
    fn an_address_that_was_given_and_comes_back_is_looked_for_anew() {
        let mut stale = Stale::default();
        let start = Instant::now();
        let one = BTreeSet::from([ONE]);
        stale.set(&one, start);
        stale.take(&one, Some(&nothing()), start, TOOK);
        stale.set(&BTreeSet::new(), start);
        assert!(!stale.is_clean(ONE, start), "nobody waits for it");
        // A scan that began before the address was passed does not count.
        stale.take(&one, Some(&nothing()), start, TOOK);
        stale.set(&one, start);
        assert!(!stale.is_clean(ONE, start));
    }

    #[test]
    fn a_look_that_was_broken_off_clears_nobody() {
        let mut stale = Stale::default();
        let start = Instant::now();
        let both = BTreeSet::from([ONE, OTHER]);
        stale.set(&both, start);
        let part = Removed {
            is_whole: false,
            ..found(ONE)
        };
        stale.take(&both, Some(&part), start, TOOK);
        assert!(!stale.is_clean(OTHER, start));
    }

    #[test]
    fn where_conntrack_cannot_be_asked_an_address_rests_for_as_long_as_a_connection_hangs() {
        let mut stale = Stale::default();
        let start = Instant::now();
        let one = BTreeSet::from([ONE]);
        stale.set(&one, start);
        stale.take(&one, None, start, Duration::from_secs(1));
        let after = |seconds| start + Duration::from_secs(seconds);
        assert!(
            stale.due(after(8)).is_empty(),
            "nine times as long as it took"
        );
        assert_eq!(stale.due(after(9)), one);
        stale.set(&one, after(100));
        assert!(!stale.is_clean(ONE, after(129)));
        assert!(stale.is_clean(ONE, after(130)));
    }
}
