//! User space's view of the ABI: conversions from the standard library's types, and aya's traits.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::abi::{Addr, AddressEntry, DestinationClass, EniEntry, GatewayEntry};
use crate::counter::Counter;

macro_rules! pod {
    ($($type:ty),+) => {
        $(
            // SAFETY: the type derives zerocopy's `IntoBytes` and `FromBytes`: it has no padding,
            // and every bit pattern is a value.
            unsafe impl aya::Pod for $type {}
        )+
    };
}

pod!(
    Addr,
    AddressEntry,
    DestinationClass,
    EniEntry,
    GatewayEntry,
    Counter
);

impl From<Ipv4Addr> for Addr {
    fn from(address: Ipv4Addr) -> Self {
        Self::from_v4_word(u32::from_ne_bytes(address.octets()))
    }
}

impl From<Ipv6Addr> for Addr {
    fn from(address: Ipv6Addr) -> Self {
        let bytes = address.octets();
        let word =
            |i: usize| u32::from_ne_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
        Self::from_words([word(0), word(4), word(8), word(12)])
    }
}

impl From<IpAddr> for Addr {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => v4.into(),
            IpAddr::V6(v6) => v6.into(),
        }
    }
}

impl From<Addr> for IpAddr {
    fn from(address: Addr) -> Self {
        let mut bytes = [0; 16];
        for (chunk, word) in bytes.chunks_exact_mut(4).zip(address.words()) {
            chunk.copy_from_slice(&word.to_ne_bytes());
        }
        Ipv6Addr::from(bytes).to_canonical()
    }
}

impl Addr {
    /// A prefix as the destination trie takes it: its length out of 128 bits, and its address.
    #[must_use]
    pub fn prefix(net: IpNet) -> (u32, Self) {
        let offset = if net.addr().is_ipv4() { 96 } else { 0 };
        (u32::from(net.prefix_len()) + offset, net.network().into())
    }

    /// The prefix that a key of the destination trie stands for; `None` for a length that no
    /// prefix of the address's family has.
    #[must_use]
    pub fn to_prefix(self, length: u32) -> Option<IpNet> {
        let address = IpAddr::from(self);
        let offset = if address.is_ipv4() { 96 } else { 0 };
        let length = u8::try_from(length.checked_sub(offset)?).ok()?;
        IpNet::new(address, length).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_prefixes_survive_the_round_trip() {
        for text in ["10.0.1.16/28", "0.0.0.0/0", "2001:db8::/80", "fd00::1/128"] {
            let net: IpNet = text.parse().unwrap();
            let (length, addr) = Addr::prefix(net);
            assert_eq!(addr.to_prefix(length), Some(net));
            assert_eq!(addr.is_v4(), net.addr().is_ipv4());
        }
        assert_eq!(Addr::from(Ipv4Addr::new(10, 0, 0, 1)).to_prefix(8), None);
    }

    #[test]
    fn address_classes() {
        let is = |text: &str| Addr::from(text.parse::<IpAddr>().unwrap());
        assert!(is("224.0.0.251").is_multicast_or_broadcast());
        assert!(is("255.255.255.255").is_multicast_or_broadcast());
        assert!(is("ff02::1").is_multicast_or_broadcast());
        assert!(!is("223.255.255.255").is_multicast_or_broadcast());
        assert!(is("fe80::1").is_v6_link_local());
        assert!(is("febf::1").is_v6_link_local());
        assert!(!is("fec0::1").is_v6_link_local());
        assert!(!is("169.254.1.1").is_v6_link_local());
        assert!(is("::").is_unspecified());
    }
}
