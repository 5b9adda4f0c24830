use netlink_packet_route::link::LinkMessage;

use super::*;

const SEQUENCE: u32 = 7;

/// A message as the kernel would send it: header, then payload.
fn message(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER + payload.len()).unwrap();
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend(KERNEL.to_ne_bytes());
    bytes.extend(payload);
    bytes
}

fn link(sequence: u32, flags: u16) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.sequence_number = sequence;
    header.flags = flags;
    let inner = RouteNetlinkMessage::NewLink(LinkMessage::default());
    let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(inner));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

/// The sum of messages: the number of objects that they show, whether they are consistent, and how the
/// request ended.
fn answered(all: &[&[u8]]) -> (usize, bool, Option<Result<(), RequestError>>) {
    let mut shown = 0;
    let mut show = |_| shown += 1;
    let mut answer = Answer {
        show: &mut show,
        interrupted: false,
    };
    let end = all.iter().find_map(|bytes| answer.take(bytes, SEQUENCE));
    let interrupted = answer.interrupted;
    (shown, interrupted, end)
}

#[test]
fn only_the_answer_to_our_request_is_taken() {
    let stale = link(SEQUENCE - 1, 0);
    let stale_end = message(NLMSG_ERROR, 0, SEQUENCE - 1, &[0; 20]);
    assert!(matches!(answered(&[&stale, &stale_end]), (0, _, None)));
    let ours = link(SEQUENCE, 0);
    assert!(matches!(answered(&[&stale_end, &ours]), (1, _, None)));
    let end = message(NLMSG_ERROR, 0, SEQUENCE, &[0; 20]);
    assert!(matches!(answered(&[&ours, &end]), (1, false, Some(Ok(())))));
}

#[test]
fn an_inconsistent_dump_is_noticed_in_any_of_its_messages() {
    for kind in [NLMSG_DONE, 16] {
        let bytes = message(kind, NLM_F_DUMP_INTR, SEQUENCE, &[0; 16]);
        let (_, interrupted, _) = answered(&[&bytes]);
        assert!(interrupted, "message type {kind}");
    }
}

#[test]
fn a_dump_that_ends_with_an_error_is_an_error() {
    let end = message(
        NLMSG_DONE,
        0,
        SEQUENCE,
        &(-libc::EAFNOSUPPORT).to_ne_bytes(),
    );
    let (_, _, Some(Err(error))) = answered(&[&end]) else {
        panic!("it has to end with an error");
    };
    assert!(error.is_family_missing());
}

#[test]
fn what_cannot_be_decoded_is_passed_over() {
    let unknown = message(0x7777, 0, SEQUENCE, &[1, 2, 3, 4]);
    let end = message(NLMSG_DONE, 0, SEQUENCE, &[0; 4]);
    assert!(matches!(answered(&[&unknown, &end]), (0, _, Some(Ok(())))));
    // An undecodable end still ends the answer.
    let end = message(NLMSG_ERROR, 0, SEQUENCE, &[0; 2]);
    assert!(matches!(answered(&[&end]), (0, _, Some(Err(_)))));
}

#[test]
fn a_datagram_is_cut_at_its_messages_and_never_read_past() {
    let odd = message(0x7777, 0, 1, &[1, 2, 3, 4, 5]);
    let even = message(0x7778, 0, 2, &[6, 7, 8, 9]);
    let mut datagram = odd.clone();
    datagram.extend([0; 3]);
    datagram.extend(&even);
    assert_eq!(
        messages(&datagram).collect::<Vec<_>>(),
        [&odd[..], &even[..]]
    );
    for cut in 0..datagram.len() {
        assert!(messages(&datagram[..cut]).count() < 2);
    }
    assert_eq!(messages(&[0; 32]).count(), 0);
}
