use proptest::prelude::*;

use super::chains::describe;
use super::*;
use crate::netlink::netfilter::fixture::{bytes, decode, framed};

/// The dump by Linux 6.18 of the chain that `iptables-nft -t nat -A PREROUTING` made.
const PREROUTING: &str = "6c000000030a020007000000af20000002000002080001006e6174000f00030050524552\
4f5554494e4700000c000200000000000000000114000400080001000000000008000200ffffff9c080005000000000108\
0007006e61740008000a00000000010800060000000001";

/// The type of a chain in an answer (`NFNL_SUBSYS_NFTABLES`, `NFT_MSG_NEWCHAIN`).
const NEW_CHAIN: u16 = (10 << 8) | 3;
/// Where the number of the hook stands, and the first letter of the type.
const HOOK: usize = 67;
const TYPE: usize = 88;

fn described(message: &[u8]) -> Option<String> {
    let messages = decode(message);
    assert_eq!(messages.len(), 1);
    describe(&messages[0])
}

#[test]
fn a_chain_of_nat_is_named() {
    assert_eq!(
        described(&bytes(PREROUTING)).unwrap(),
        "nftables chain ip nat PREROUTING (type nat, hook prerouting)"
    );
}

#[test]
fn hook_and_type_have_to_fit() {
    let with = |index: usize, value: u8| {
        let mut message = bytes(PREROUTING);
        message[index] = value;
        described(&message)
    };
    for (hook, name) in [(1, "input"), (3, "output"), (4, "postrouting")] {
        let end = format!("(type nat, hook {name})");
        assert!(with(HOOK, hook).unwrap().ends_with(&end), "hook {hook}");
    }
    for hook in [2, 5, 255] {
        assert_eq!(with(HOOK, hook), None, "hook {hook}");
    }
    assert_eq!(with(TYPE, b'N'), None);
}

#[test]
fn the_older_tables_are_looked_for_by_their_whole_name() {
    assert!(has_nat_table("filter\nnat\n"));
    assert!(!has_nat_table("filter\nnatural\n"));
    assert!(!has_nat_table(""));
}

#[test]
fn ipvs_counts_once_it_has_a_service() {
    let heading = "IP Virtual Server version 1.2.1 (size=4096)\n\
                   Prot LocalAddress:Port Scheduler Flags\n  \
                   -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n";
    assert!(!has_virtual_service(heading));
    for service in ["TCP  0A600001:01BB rr", "FWM  00000001 rr"] {
        let real = "\n  -> 0A020002:1F90      Masq    1      0          0\n";
        assert!(has_virtual_service(&format!("{heading}{service}{real}")));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_bytes_make_it_panic(
        payload in prop::collection::vec(any::<u8>(), 0..120),
        index in 0_usize..0x5c,
        value in any::<u8>(),
        end in 0_usize..0x5c,
    ) {
        let mut chain = bytes(PREROUTING).split_off(16);
        chain[index] = value;
        for payload in [&payload[..], &chain, &chain[..end]] {
            for message in decode(&framed(NEW_CHAIN, payload)) {
                describe(&message);
            }
        }
    }
}
