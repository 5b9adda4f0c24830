//! Flow marks from conntrack's entries, as the programs would have made them at the start of the
//! flows.

use std::net::{IpAddr, SocketAddr};

use datapath_common::abi::{Addr, AddressEntry, PodTuple, TrackedFlow, TransportAddr};
use datapath_common::headers::protocol;
use datapath_common::progress::{DATA, FIN, RST, STREAM, SYN};

use crate::netfilter::conntrack::{Entry, TcpState};

/// True if NAT has changed a flow's addresses, so that its answers must take the stack.
#[must_use]
pub fn is_translated(entry: &Entry) -> bool {
    entry.is_destination_translated() || entry.is_source_translated()
}

/// The mark of a translated flow; none without a pod of this node. `find` returns the entry of an
/// address, `now` is the time in jiffies.
///
/// # Errors
/// If `find` fails, with its error.
pub fn note<E>(
    entry: &Entry,
    now: u64,
    find: impl Fn(IpAddr) -> Result<Option<AddressEntry>, E>,
) -> Result<Option<(PodTuple, TrackedFlow)>, E> {
    let pod = |address| Ok(find(address)?.filter(AddressEntry::is_endpoint));
    // After NAT, packets of the opening side are the answers with both ends swapped.
    let (from, to) = (entry.reply.destination, entry.reply.source);
    let noted = if let Some(server) = pod(to.ip())? {
        Some((to, from, server, ingress_eni(entry, &find)?, Opener::Remote))
    } else {
        pod(from.ip())?.map(|client| (from, to, client, Some(client.eni()), Opener::Pod))
    };
    Ok(noted.map(|(pod, remote, of, eni, opener)| {
        let tuple = tuple(entry.original.protocol, pod, remote);
        let (opened, answered) = progress(entry);
        let (out, inward) = match opener {
            Opener::Pod => (opened, answered),
            Opener::Remote => (answered, opened),
        };
        let mut note = TrackedFlow::new(&tuple, now, of.identity(), out).by(eni);
        note.progress_in = inward;
        (tuple, note)
    }))
}

/// The ENI by which a request reached a server, by its conntrack entry: that of the destination, or
/// the primary for another address of the host. A client of a service's own address is on this
/// node, or behind it.
fn ingress_eni<E>(
    entry: &Entry,
    find: impl Fn(IpAddr) -> Result<Option<AddressEntry>, E>,
) -> Result<Option<u8>, E> {
    if find(entry.original.source.ip())?.is_some() {
        return Ok(None);
    }
    let host = find(entry.original.destination.ip())?;
    Ok(host.filter(AddressEntry::is_host).map(|host| host.eni()))
}

/// The side that began a flow.
#[derive(Clone, Copy)]
enum Opener {
    Pod,
    Remote,
}

fn tuple(protocol: u8, pod: SocketAddr, remote: SocketAddr) -> PodTuple {
    PodTuple::new(
        protocol,
        TransportAddr::new(Addr::from(pod.ip()), pod.port().to_be()),
        TransportAddr::new(Addr::from(remote.ip()), remote.port().to_be()),
    )
}

/// Progress of the side that began, and of the one that answers.
fn progress(entry: &Entry) -> (u8, u8) {
    if entry.original.protocol != protocol::TCP {
        return match (entry.has_seen_reply(), entry.is_assured()) {
            (false, _) => (DATA, 0),
            (true, false) => (DATA, DATA),
            (true, true) => (DATA | STREAM, DATA | STREAM),
        };
    }
    match entry.tcp_state {
        Some(TcpState::SynSent) => (SYN, 0),
        Some(TcpState::SynRecv | TcpState::SynSent2) => (SYN, SYN),
        Some(TcpState::FinWait | TcpState::CloseWait) => (SYN | DATA | FIN, SYN | DATA),
        Some(TcpState::LastAck | TcpState::TimeWait) => (SYN | DATA | FIN, SYN | DATA | FIN),
        Some(TcpState::Close) => (SYN | DATA | RST, SYN | DATA),
        // Conntrack is consulted before such a note goes.
        Some(TcpState::Established | TcpState::None | TcpState::Other(_)) | None => {
            (SYN | DATA, SYN | DATA)
        }
    }
}

#[cfg(test)]
mod tests {
    use datapath_common::masquerade::PoolPolicy;
    use std::convert::Infallible;

    use datapath_common::abi::EndpointAddress;

    use super::*;
    use crate::netfilter::conntrack::Tuple;

    const SOURCE_NAT: u32 = 1 << 4;
    const DESTINATION_NAT: u32 = 1 << 5;

    fn endpoint(eni: u8) -> AddressEntry {
        AddressEntry::endpoint(EndpointAddress {
            eni,
            eni_ifindex: 2,
            pool: PoolPolicy::Masquerade,
            via_stack: false,
            ifindex: 7,
            mtu: 1500,
            pod_mac: [2; 6],
            host_mac: [2, 0, 0, 0, 0, eni],
            namespace: None,
        })
    }

    /// 10.0.K.20 are pods of ENI K, 10.0.K.10 its address.
    fn find(address: IpAddr) -> Option<AddressEntry> {
        let IpAddr::V4(address) = address else {
            return None;
        };
        match address.octets() {
            [10, 0, eni, 20] => Some(endpoint(eni)),
            [10, 0, eni, 10] => Some(AddressEntry::translation(eni)),
            [10, 0, 0, 11] => Some(AddressEntry::host()),
            _other => None,
        }
    }

    fn entry(original: [&str; 2], reply: [&str; 2], state: Option<TcpState>) -> Entry {
        let tuple = |[source, destination]: [&str; 2]| Tuple {
            protocol: if state.is_some() {
                protocol::TCP
            } else {
                protocol::UDP
            },
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
        };
        Entry {
            original: tuple(original),
            reply: tuple(reply),
            tcp_state: state,
            status: DESTINATION_NAT,
            id: 1,
        }
    }

    fn noted(entry: &Entry) -> Option<(PodTuple, TrackedFlow)> {
        let Ok(noted) = note::<Infallible>(entry, 5, |address| Ok(find(address)));
        noted
    }

    #[test]
    fn a_clients_and_a_servers_side_are_noted_as_the_programs_do() {
        let state = Some(TcpState::Established);
        let service = entry(
            ["10.0.1.20:4000", "172.20.0.1:80"],
            ["10.0.9.9:8080", "10.0.1.20:4000"],
            state,
        );
        let (tuple, note) = noted(&service).unwrap();
        assert_eq!(IpAddr::from(tuple.pod), IpAddr::from([10, 0, 1, 20]));
        assert_eq!(tuple.pod_port, 4000_u16.to_be());
        assert_eq!(IpAddr::from(tuple.remote), IpAddr::from([10, 0, 9, 9]));
        assert_eq!((note.eni, note.endpoint), (1, endpoint(1).identity()));

        let node_port = entry(
            ["192.0.2.1:5000", "10.0.0.10:30080"],
            ["10.0.1.20:80", "192.0.2.1:5000"],
            state,
        );
        let (tuple, note) = noted(&node_port).unwrap();
        assert_eq!(IpAddr::from(tuple.remote), IpAddr::from([192, 0, 2, 1]));
        assert_eq!(tuple.pod_port, 80_u16.to_be());
        assert_eq!(note.mark(), Some(0), "by the ENI that got the request");
        assert!(note.is_of(&tuple));
    }

    #[test]
    fn a_local_backend_has_the_note() {
        let local = entry(
            ["10.0.1.20:4000", "172.20.0.1:80"],
            ["10.0.2.20:8080", "10.0.1.20:4000"],
            Some(TcpState::SynSent),
        );
        let (tuple, note) = noted(&local).unwrap();
        assert_eq!(IpAddr::from(tuple.pod), IpAddr::from([10, 0, 2, 20]));
        assert_eq!(note.mark(), None, "it came by the other pod's device");
        assert_eq!((note.progress_out, note.progress_in), (0, SYN));
    }

    #[test]
    fn an_address_of_the_host_that_is_no_enis_own_was_asked_at_the_primary() {
        let node_port = entry(
            ["192.0.2.1:5000", "10.0.0.11:30080"],
            ["10.0.1.20:80", "192.0.2.1:5000"],
            None,
        );
        let (_, note) = noted(&node_port).unwrap();
        assert_eq!(note.mark(), Some(0));
    }

    #[test]
    fn what_concerns_no_pod_is_not_noted() {
        let host = entry(
            ["192.0.2.1:5000", "10.0.0.10:30080"],
            ["10.0.9.9:80", "10.0.0.10:61000"],
            None,
        );
        assert!(noted(&host).is_none());
    }

    #[test]
    fn how_far_a_flow_has_come_is_told() {
        let udp = |status| {
            let mut entry = entry(
                ["10.0.1.20:4000", "172.20.0.1:53"],
                ["10.0.9.9:53", "10.0.1.20:4000"],
                None,
            );
            entry.status = status;
            let (_, note) = noted(&entry).unwrap();
            (note.progress_out, note.progress_in)
        };
        let (seen_reply, assured) = (1 << 1, 1 << 2);
        assert_eq!(udp(DESTINATION_NAT), (DATA, 0));
        assert_eq!(udp(DESTINATION_NAT | seen_reply), (DATA, DATA));
        let stream = DATA | STREAM;
        assert_eq!(
            udp(DESTINATION_NAT | seen_reply | assured),
            (stream, stream)
        );
    }

    #[test]
    fn only_translated_flows_count() {
        let mut entry = entry(
            ["10.0.1.20:1", "10.0.2.20:2"],
            ["10.0.2.20:2", "10.0.1.20:1"],
            None,
        );
        for (status, expected) in [(0, false), (SOURCE_NAT, true), (DESTINATION_NAT, true)] {
            entry.status = status;
            assert_eq!(is_translated(&entry), expected);
        }
    }
}
