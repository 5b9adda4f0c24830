//! Entries that outlive a pod: they still lead packets to its address, which another pod may get.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::ControlFlow;

use anyhow::Context as _;
use netlink_packet_core::DefaultNla;
use netlink_packet_netfilter::NetfilterProtoFamily;
use netlink_packet_netfilter::conntrack::{ConntrackAttribute, ConntrackMessage};

use super::entry::{self, ID};
use super::{Conntrack, Entry, TcpState, Tuple, message};

/// Maximum number of entries that one scan removes, so that a resolver's 100,000 queries take
/// little memory.
const MOST: usize = 16_384;

/// Entries that were found and removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Number of entries that led to each address, and the first of them as it was opened.
    pub leading_to: BTreeMap<IpAddr, (usize, Tuple)>,
    /// True if the whole table was scanned. Then no entry led to any other address.
    pub is_whole: bool,
}

impl Entry {
    /// The address among those of pods that are gone to which the entry leads packets. Its next pod
    /// would get them: of DNAT those of a service's client, by whatever protocol; of UDP those of
    /// anybody who goes on sending; of an open TCP connection its segments.
    #[must_use]
    pub fn leads_to(&self, gone: &BTreeSet<IpAddr>) -> Option<IpAddr> {
        let is_open = self.tcp_state == Some(TcpState::Established);
        let is_udp = i32::from(self.original.protocol) == libc::IPPROTO_UDP;
        if !(self.is_destination_translated() || is_udp || is_open) {
            return None;
        }
        [self.reply.source, self.original.destination]
            .map(|end| end.ip())
            .into_iter()
            .find(|address| gone.contains(address))
    }
}

impl Conntrack {
    /// Removes the entries that lead packets to addresses whose pods are gone
    /// ([`Entry::leads_to`]), each by its id. So a newer entry in the place of another one stays.
    ///
    /// # Errors
    /// As for [`Conntrack::dump`]. An entry that cannot be removed still counts as found.
    pub fn remove_leading_to(&mut self, gone: &BTreeSet<IpAddr>) -> anyhow::Result<Removed> {
        let mut found = Vec::new();
        let all = message(family(gone), ConntrackMessage::Get(Vec::new()));
        self.socket
            .dump(&all, &mut |message| {
                if let Ok(Some(entry)) = entry::read(&message)
                    && let Some(address) = entry.leads_to(gone)
                {
                    found.push((address, entry));
                }
                if found.len() < MOST {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            })
            .context("read conntrack entries of deleted pods")?;
        let mut removed = Removed {
            is_whole: found.len() < MOST,
            ..Removed::default()
        };
        for (address, entry) in found {
            if let Err(error) = self.remove(&entry) {
                tracing::debug!("{error:#}");
            }
            let of = removed.leading_to.entry(address);
            of.or_insert((0, entry.original)).0 += 1;
        }
        Ok(removed)
    }

    fn remove(&mut self, entry: &Entry) -> anyhow::Result<()> {
        let family = family(&BTreeSet::from([entry.original.source.ip()]));
        let id = DefaultNla::new(ID, entry.id.to_be_bytes().to_vec());
        let key = vec![
            ConntrackAttribute::CtaTupleOrig(entry.original.attributes()),
            ConntrackAttribute::Other(id),
        ];
        match self
            .socket
            .get(message(family, ConntrackMessage::Delete(key)))
        {
            Err(error) if error.errno() == Some(libc::ENOENT) => Ok(()),
            removed => removed.with_context(|| format!("remove from conntrack {}", entry.original)),
        }
    }
}

/// The family of all of these addresses, by which the kernel filters what it shows.
fn family(addresses: &BTreeSet<IpAddr>) -> NetfilterProtoFamily {
    match (
        addresses.iter().any(IpAddr::is_ipv4),
        addresses.iter().any(IpAddr::is_ipv6),
    ) {
        (true, false) => NetfilterProtoFamily::IPv4,
        (false, true) => NetfilterProtoFamily::IPv6,
        _ => NetfilterProtoFamily::Unspec,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: u8 = 6;
    const UDP: u8 = 17;
    const SCTP: u8 = 132;
    const DESTINATION_NAT: u32 = 1 << 5;
    const POD: &str = "10.0.1.20";

    fn entry(
        protocol: u8,
        [called, answers]: [&str; 2],
        status: u32,
        tcp_state: Option<TcpState>,
    ) -> Entry {
        let end = |address: &str, port: u16| (address.parse::<IpAddr>().unwrap(), port).into();
        let client = end("10.0.0.20", 45_556);
        Entry {
            original: Tuple {
                protocol,
                source: client,
                destination: end(called, 80),
            },
            reply: Tuple {
                protocol,
                source: end(answers, 8080),
                destination: client,
            },
            tcp_state,
            status,
            id: 1,
        }
    }

    #[test]
    fn what_would_reach_the_next_pod_leads_to_its_address_and_nothing_else_does() {
        let service = ["172.20.0.77", POD];
        let straight = [POD, POD];
        let elsewhere = ["172.20.0.77", "10.0.1.21"];
        let of = |state| Some(state);
        for (entry, leads) in [
            (
                entry(TCP, service, DESTINATION_NAT, of(TcpState::SynSent)),
                true,
            ),
            (
                entry(TCP, service, DESTINATION_NAT, of(TcpState::TimeWait)),
                true,
            ),
            (entry(UDP, service, DESTINATION_NAT, None), true),
            (entry(SCTP, service, DESTINATION_NAT, None), true),
            // A rule that redirects requests for the pod.
            (entry(TCP, [POD, "10.0.1.21"], DESTINATION_NAT, None), true),
            (entry(UDP, straight, 0, None), true),
            (entry(TCP, straight, 0, of(TcpState::Established)), true),
            // Its SYN comes again, whatever conntrack knows.
            (entry(TCP, straight, 0, of(TcpState::SynSent)), false),
            (entry(TCP, straight, 0, of(TcpState::TimeWait)), false),
            (entry(SCTP, straight, 0, None), false),
            (entry(UDP, elsewhere, DESTINATION_NAT, None), false),
        ] {
            let pod = POD.parse().unwrap();
            let expected = leads.then_some(pod);
            assert_eq!(
                entry.leads_to(&BTreeSet::from([pod])),
                expected,
                "{entry:?}"
            );
        }
        let client = BTreeSet::from(["10.0.0.20".parse().unwrap()]);
        let called = entry(UDP, service, DESTINATION_NAT, None);
        assert_eq!(called.leads_to(&client), None, "it is the side that asks");
    }
}
