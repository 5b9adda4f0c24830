use ipnet::IpNet;
use proptest::prelude::*;

use super::{Ask, Space};

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn singles(count: usize) -> Ask {
    Ask {
        count,
        ..Ask::default()
    }
}

fn prefixes(prefix_count: usize) -> Ask {
    Ask {
        prefix_count,
        ..Ask::default()
    }
}

#[test]
fn five_addresses_are_kept_and_the_rest_is_given() {
    let mut space = Space::new(net("10.0.0.0/28"), &[]);
    assert_eq!(space.free(), 11);
    let got = space.take(&singles(11)).unwrap();
    assert_eq!(got.first(), Some(&net("10.0.0.4/32")));
    assert_eq!(got.last(), Some(&net("10.0.0.14/32")));
    let failure = space.take(&singles(1)).unwrap_err();
    assert_eq!(failure.code, "InsufficientFreeAddressesInSubnet");
}

#[test]
fn a_call_takes_all_or_nothing() {
    let mut space = Space::new(net("10.0.0.0/28"), &[]);
    space.take(&singles(12)).unwrap_err();
    assert_eq!(space.free(), 11);
}

#[test]
fn prefixes_are_aligned_and_need_a_wholly_free_block() {
    let mut space = Space::new(net("10.0.0.0/26"), &[]);
    let got = space.take(&prefixes(2)).unwrap();
    assert_eq!(got, [net("10.0.0.16/28"), net("10.0.0.32/28")]);
    let failure = space.take(&prefixes(1)).unwrap_err();
    assert_eq!(failure.code, "InsufficientCidrBlocks");
    space.give_back(&got[0]);
    assert_eq!(space.take(&prefixes(1)).unwrap(), [got[0]]);
}

#[test]
fn one_address_in_each_block_leaves_no_prefix() {
    let mut space = Space::new(net("10.0.0.0/26"), &[]);
    for address in ["10.0.0.20", "10.0.0.40"] {
        let ask = Ask {
            addresses: vec![address.parse().unwrap()],
            ..Ask::default()
        };
        space.take(&ask).unwrap();
    }
    let failure = space.take(&prefixes(1)).unwrap_err();
    assert_eq!(failure.code, "InsufficientCidrBlocks");
    assert_eq!(space.free(), 57);
}

#[test]
fn a_reservation_gives_prefixes_alone() {
    let mut space = Space::new(net("10.0.0.0/26"), &[net("10.0.0.16/28")]);
    assert_eq!(space.free(), 64 - 5 - 16);
    let got = space.take(&singles(64 - 5 - 16)).unwrap();
    assert!(!got.iter().any(|got| net("10.0.0.16/28").contains(got)));
    assert_eq!(space.take(&prefixes(1)).unwrap(), [net("10.0.0.16/28")]);
    assert_eq!(space.free(), 0);
}

#[test]
fn ipv6_prefixes_are_80_bits_long() {
    let mut space = Space::new(net("2001:db8::/64"), &[]);
    assert_eq!(
        space.take(&prefixes(1)).unwrap(),
        [net("2001:db8:0:0:1::/80")]
    );
    assert_eq!(space.take(&singles(1)).unwrap(), [net("2001:db8::4/128")]);
}

#[test]
fn a_used_foreign_or_crooked_value_is_refused() {
    let mut space = Space::new(net("10.0.0.0/26"), &[]);
    for (value, code) in [
        ("10.0.0.1/32", "InvalidIPAddress.InUse"),
        ("10.0.1.9/32", "InvalidParameterValue"),
        ("10.0.0.24/29", "InvalidParameterValue"),
        ("10.0.0.17/28", "InvalidParameterValue"),
        ("10.0.0.0/28", "InvalidIPAddress.InUse"),
    ] {
        let ask = Ask {
            prefixes: vec![net(value)],
            ..Ask::default()
        };
        assert_eq!(space.take(&ask).unwrap_err().code, code, "{value}");
    }
}

proptest! {
    /// Addresses in use never overlap, and free and used ones make up the subnet.
    #[test]
    fn no_address_is_given_twice(steps in prop::collection::vec((0_u8..3, 1_usize..4), 1..60)) {
        let mut space = Space::new(net("10.0.0.0/24"), &[]);
        let mut held: Vec<IpNet> = Vec::new();
        for (kind, count) in steps {
            let ask = match kind {
                0 => singles(count),
                1 => prefixes(count),
                _ => {
                    for net in held.drain(..count.min(held.len())) {
                        space.give_back(&net);
                    }
                    continue;
                }
            };
            let Ok(got) = space.take(&ask) else { continue };
            for new in got {
                prop_assert!(!held.iter().any(|old| old.contains(&new) || new.contains(old)));
                held.push(new);
            }
            let used: u128 = held.iter().map(|net| 1 << (32 - net.prefix_len())).sum();
            prop_assert_eq!(space.free() + used + 5, 256);
        }
    }
}
