use std::net::SocketAddr;

use proptest::prelude::*;

use super::entry::read;
use super::*;
use crate::netlink::netfilter::fixture::{bytes, decode, framed};

/// Entries as Linux 6.18 dumped them, made by `conntrack -I`: a TCP flow to a service that is
/// translated, seen from both sides and assured; a UDP flow of IPv6; one of SCTP.
const TCP: &str = "f00000000001020007000000af200000020000003400018014000180080001000a0100020800\
02000a6000011c0002800500010006000000060002009c40000006000300005000003400028014000180080001000a0200\
02080002000a0100021c0002800500010006000000060002001f900000060003009c400000080003000000000e08000800\
0000000008000c009c96aa2408000b00000000010800070000000063300004802c00018005000100030000000500020000\
0000000500030000000000060004000a000000060005000a0000001c001880080001000000000008000200000000000800\
030000000000";
const UDP_V6: &str = "f00000000001020007000000af2000000a0000004c0001802c00018014000300fd0100000000\
0000000000000000000214000400fd9600000000000000000000000000011c0002800500010011000000060002009c4100\
0006000300003500004c0002802c00018014000300fd96000000000000000000000000000114000400fd01000000000000\
00000000000000021c00028005000100110000000600020000350000060003009c41000008000300000000080800080000\
00000008000c00402b759208000b000000000108000700000000631c001880080001000000000008000200000000000800\
030000000000";
const SCTP: &str = "e00000000001020007000000af200000020000003400018014000180080001000a010002080002\
000a6000091c0002800500010084000000060002009c40000006000300003500003400028014000180080001000a600009\
080002000a0100021c00028005000100840000000600020000350000060003009c40000008000300000000080800080000\
00000008000c00f0cb6a9608000b00000000010800070000000063200004801c0003800500010004000000080002000100\
000008000300020000001c001880080001000000000008000200000000000800030000000000";
/// A UDP flow in zone 5.
const ZONED: &str = "c80000000001020007000000af200000020000003400018014000180080001000a01000208000\
2000a6000091c0002800500010011000000060002009c40000006000300003500003400028014000180080001000a60000\
9080002000a0100021c00028005000100110000000600020000350000060003009c4000000600120000050000080003000\
0000008080008000000000008000c006779d42008000b000000000108000700000000631c0018800800010000000000080\
00200000000000800030000000000";
/// An echo.
const ICMP: &str = "d00000000001020007000000af200000020000003c00018014000180080001000a010002080002\
000a6000012400028005000100010000000600040000050000050005000800000005000600000000003c00028014000180\
080001000a600001080002000a010002240002800500010001000000060004000005000005000500000000000500060000\
0000000800030000000008080008000000000008000c000543093e08000b000000000108000700000000631c0018800800\
01000000000008000200000000000800030000000000";

/// The type of a conntrack message in an answer (`NFNL_SUBSYS_CTNETLINK`, `IPCTNL_MSG_CT_NEW`).
const NEW: u16 = 1 << 8;

fn one(digits: &str) -> Result<Option<Entry>, &'static str> {
    let messages = decode(&bytes(digits));
    assert_eq!(messages.len(), 1);
    read(&messages[0])
}

fn tuple(protocol: i32, source: &str, destination: &str) -> Tuple {
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    Tuple {
        protocol: u8::try_from(protocol).unwrap(),
        source: address(source),
        destination: address(destination),
    }
}

#[test]
fn a_translated_flow_has_two_tuples_its_state_and_its_bits() {
    let entry = one(TCP).unwrap().unwrap();
    let tcp = libc::IPPROTO_TCP;
    let expected = tuple(tcp, "10.1.0.2:40000", "10.96.0.1:80");
    assert_eq!((entry.original, entry.id), (expected, 0x9c96_aa24));
    assert_eq!(entry.reply, tuple(tcp, "10.2.0.2:8080", "10.1.0.2:40000"));
    assert_eq!(entry.tcp_state, Some(TcpState::Established));
    assert!(entry.has_seen_reply() && entry.is_assured());
    assert!(!entry.is_source_translated() && !entry.is_destination_translated());
}

#[test]
fn flows_without_a_tcp_state_are_entries_too() {
    let entry = one(UDP_V6).unwrap().unwrap();
    let udp = libc::IPPROTO_UDP;
    let expected = tuple(udp, "[fd01::2]:40001", "[fd96::1]:53");
    assert_eq!(entry.original, expected);
    assert_eq!(entry.reply, tuple(udp, "[fd96::1]:53", "[fd01::2]:40001"));
    assert_eq!(entry.tcp_state, None);
    assert!(!entry.has_seen_reply() && !entry.is_assured());
    let entry = one(SCTP).unwrap().unwrap();
    let expected = tuple(libc::IPPROTO_SCTP, "10.1.0.2:40000", "10.96.0.9:53");
    assert_eq!((entry.original, entry.tcp_state), (expected, None));
}

#[test]
fn each_bit_has_its_own_name() {
    let entry = one(UDP_V6).unwrap().unwrap();
    let said = |status| {
        let entry = Entry { status, ..entry };
        [
            entry.has_seen_reply(),
            entry.is_assured(),
            entry.is_source_translated(),
            entry.is_destination_translated(),
        ]
    };
    assert_eq!(said(1 << 1), [true, false, false, false]);
    assert_eq!(said(1 << 2), [false, true, false, false]);
    assert_eq!(said(1 << 4), [false, false, true, false]);
    assert_eq!(said(1 << 5), [false, false, false, true]);
    assert_eq!(said(!0b11_0110), [false; 4]);
}

#[test]
fn other_protocols_and_other_zones_are_left_out() {
    assert_eq!(one(ICMP), Ok(None));
    assert_eq!(one(ZONED), Ok(None));
}

#[test]
fn what_is_missing_has_its_name() {
    // nfgenmsg, and nothing in it.
    let messages = decode(&framed(NEW, &[2, 0, 0, 0]));
    assert_eq!(read(&messages[0]), Err("CTA_TUPLE_ORIG"));
    // The header, the family and the first attribute only.
    let whole = bytes(TCP);
    let messages = decode(&framed(NEW, &whole[16..20 + 0x34]));
    assert_eq!(read(&messages[0]), Err("CTA_TUPLE_REPLY"));
    let messages = decode(&framed(NEW, &whole[16..20 + 2 * 0x34]));
    assert_eq!(read(&messages[0]), Err("CTA_STATUS"));
    // Up to the status, which lies before the id.
    let messages = decode(&framed(NEW, &whole[16..20 + 2 * 0x34 + 8]));
    assert_eq!(read(&messages[0]), Err("CTA_ID"));
}

#[test]
fn a_question_has_the_tuple_as_the_kernel_writes_it() {
    for digits in [TCP, UDP_V6, SCTP] {
        let whole = bytes(digits);
        let entry = one(digits).unwrap().unwrap();
        let key = ConntrackAttribute::CtaTupleOrig(entry.original.attributes());
        let mut written = vec![0; netlink_packet_core::Emitable::buffer_len(&key)];
        netlink_packet_core::Emitable::emit(&key, &mut written);
        assert_eq!(written, whole[20..20 + written.len()]);
    }
}

#[test]
fn a_missing_part_of_the_kernel_is_said_in_words() {
    let refused = |errno| {
        let reason = None;
        let error = unavailable(RequestError::Refused { errno, reason });
        format!("{error:#}")
    };
    let text = refused(libc::EINVAL);
    assert!(text.contains("no nf_conntrack_netlink"), "{text}");
    let text = refused(libc::EPERM);
    assert!(!text.contains("no nf_conntrack_netlink"), "{text}");
    assert!(
        text.ends_with("Operation not permitted (os error 1)"),
        "{text}"
    );
}

/// One of the captured messages, damaged: some bytes others, and cut.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let message = prop::sample::select(vec![TCP, UDP_V6, SCTP, ZONED, ICMP]);
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8);
    let damage = (
        message,
        changes,
        any::<prop::sample::Index>(),
        any::<bool>(),
    );
    damage.prop_map(|(digits, changes, end, is_cut)| {
        let mut payload = bytes(digits).split_off(16);
        for (index, value) in changes {
            let index = index.index(payload.len());
            payload[index] = value;
        }
        if is_cut {
            payload.truncate(end.index(payload.len()));
        }
        payload
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_bytes_make_it_panic(
        payload in prop::collection::vec(any::<u8>(), 0..200),
        kind in 0_u16..4,
    ) {
        decode(&payload);
        for message in decode(&framed(NEW + kind, &payload)) {
            read(&message).ok();
        }
    }

    #[test]
    fn no_damage_makes_it_panic(payload in damaged()) {
        for message in decode(&framed(NEW, &payload)) {
            if let Ok(Some(entry)) = read(&message) {
                prop_assert_eq!(
                    entry.original.source.is_ipv4(),
                    entry.original.destination.is_ipv4()
                );
            }
        }
    }
}
