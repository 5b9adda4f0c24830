//! The flows that are cut off if flows of service NAT are not marked (`services.nat: off`):
//! connection tracking has changed their addresses, and their answers bypass the host's stack,
//! untranslated.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::is_translated;
use crate::netfilter::conntrack::{Conntrack, Entry, entries};
use crate::netfilter::periodic::{Periodic, lock};

/// Interval of reads of connection tracking.
const LOOK: Duration = Duration::from_secs(5);
/// Rest after a read, in multiples of its duration.
const REST: u32 = 50;
/// Most pairs of addresses that are kept.
const PAIRS: usize = 65_536;

/// Numbers of flows between two addresses, as they are after NAT.
type Pairs = BTreeMap<[IpAddr; 2], u64>;

/// The flows of the last read, for any caller.
#[derive(Clone, Default)]
pub struct Missed(Arc<Mutex<Option<Pairs>>>);

impl Missed {
    /// Starts reading connection tracking of the calling thread's network namespace.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(&self) -> anyhow::Result<Periodic> {
        let found = self.0.clone();
        Periodic::start("missed-nat", move || {
            let began = Instant::now();
            let pairs = look();
            if let Err(error) = &pairs {
                tracing::debug!("cannot read the flows that services.nat: off cuts off: {error:#}");
            }
            *lock(&found) = pairs.ok();
            LOOK.max(began.elapsed() * REST)
        })
    }

    /// Number of the flows of pods that are cut off; none where that is not known.
    pub fn of(&self, is_pod: impl Fn(&IpAddr) -> bool) -> Option<u64> {
        let found = lock(&self.0);
        let of_pods = found.as_ref()?.iter();
        let of_pods = of_pods.filter(|(pair, _)| pair.iter().any(&is_pod));
        Some(of_pods.map(|(_, flows)| flows).sum())
    }
}

fn look() -> anyhow::Result<Pairs> {
    let mut pairs = Pairs::new();
    // Where connection tracking is not at work, a question would load it.
    if entries().is_none_or(|entries| entries == 0) {
        return Ok(pairs);
    }
    Conntrack::open()?.dump(&mut |entry| take(&mut pairs, entry))?;
    Ok(pairs)
}

/// Counts a flow that NAT has changed and whose answers connection tracking does not see.
fn take(pairs: &mut Pairs, entry: &Entry) {
    let pair = [entry.reply.source.ip(), entry.reply.destination.ip()];
    let has_room = pairs.len() < PAIRS || pairs.contains_key(&pair);
    if is_translated(entry) && !entry.has_seen_reply() && has_room {
        *pairs.entry(pair).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netfilter::conntrack::Tuple;

    /// The bits `IPS_SEEN_REPLY`, `IPS_SRC_NAT` and `IPS_DST_NAT`.
    const ANSWERED: u32 = 1 << 1;
    const SOURCE_NAT: u32 = 1 << 4;
    const DESTINATION_NAT: u32 = 1 << 5;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// A flow from a client to a service, whose backend answers.
    fn flow(client: &str, backend: &str, status: u32) -> Entry {
        let tuple = |source, destination| Tuple {
            protocol: 6,
            source: (address(source), 40_000).into(),
            destination: (address(destination), 80).into(),
        };
        Entry {
            original: tuple(client, "172.20.0.10"),
            reply: tuple(backend, client),
            tcp_state: None,
            status,
            id: 1,
        }
    }

    #[test]
    fn flows_of_pods_that_nat_changed_count_while_no_answer_was_seen() {
        let pods = ["10.0.0.20", "10.0.0.21"].map(address);
        let mut pairs = Pairs::new();
        for (client, backend, status) in [
            ("10.0.0.20", "10.0.9.9", DESTINATION_NAT),
            ("10.0.0.20", "10.0.9.9", DESTINATION_NAT),
            ("10.0.9.9", "10.0.0.20", DESTINATION_NAT),
            ("10.0.0.20", "10.0.0.21", SOURCE_NAT),
            // An answered entry, one without NAT, and one without a pod of this node.
            ("10.0.0.20", "10.0.9.9", DESTINATION_NAT | ANSWERED),
            ("10.0.0.20", "10.0.9.9", 0),
            ("10.0.9.9", "10.0.9.8", DESTINATION_NAT),
        ] {
            take(&mut pairs, &flow(client, backend, status));
        }
        let missed = Missed(Arc::new(Mutex::new(Some(pairs))));
        assert_eq!(missed.of(|address| pods.contains(address)), Some(4));
        assert_eq!(Missed::default().of(|_| true), None);
    }
}
