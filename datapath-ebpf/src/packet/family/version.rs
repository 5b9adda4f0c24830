//! A packet's IP version, which selects between the code of the two families.
//!
//! Long steps select at run time. Otherwise the verifier would check each of them twice.

use datapath_common::abi::{Addr, EniAddresses, EniEntry};
use datapath_common::headers::{IcmpMessage, ether_type};
use datapath_common::outcome::DropReason;

use super::{Family, NewAddress, Quoted, V4, V6};
use crate::packet::Packet;
use crate::scratch::{self, Ip, NextHop, Version, scratch};

/// Asks the one of both that it is.
macro_rules! ask {
    ($version:expr, $($question:tt)+) => {
        match $version {
            Version::V4 => V4::$($question)+,
            Version::V6 => V6::$($question)+,
        }
    };
}

impl Version {
    /// That of a frame's payload; none for another protocol.
    #[inline(always)]
    pub(crate) fn of_ether_type(number: u16) -> Option<Self> {
        match number {
            ether_type::IPV4 => Some(Self::V4),
            ether_type::IPV6 => Some(Self::V6),
            _ => None,
        }
    }

    /// That of an address.
    #[inline(always)]
    pub(crate) fn of(address: Addr) -> Self {
        if address.is_v4() { Self::V4 } else { Self::V6 }
    }

    /// As one register.
    #[inline(always)]
    pub(crate) fn to_register(self) -> u32 {
        match self {
            Self::V4 => 4,
            Self::V6 => 6,
        }
    }

    /// Inverse of [`Self::to_register`].
    #[inline(always)]
    pub(crate) fn from_register(register: u32) -> Self {
        if register == 4 { Self::V4 } else { Self::V6 }
    }

    /// Reads the packet's IP header, holds its lengths against what is there, and keeps it.
    #[inline(always)]
    pub(crate) fn parse(self, packet: &mut Packet) -> Result<&'static Ip, DropReason> {
        // Looked up first: otherwise the header's fields would be kept on the stack during the
        // look-up.
        let part = scratch()?.ip();
        // SAFETY: this CPU's own part of the scratch space; no other reference to it exists by now.
        let ip = unsafe { &mut *part };
        match self {
            Self::V4 => V4::parse(packet, ip)?,
            Self::V6 => V6::parse(packet, ip)?,
        }
        Ok(scratch::read(part))
    }

    /// [`Family::quoted`].
    #[inline(always)]
    pub(crate) fn quoted(
        self,
        packet: &Packet,
        offset: usize,
        end: usize,
    ) -> Result<Quoted, DropReason> {
        ask!(self, quoted(packet, offset, end))
    }

    /// [`Family::ICMP`].
    #[inline(always)]
    pub(crate) fn icmp(self) -> u8 {
        ask!(self, ICMP)
    }

    /// [`Family::ICMP_COVERS_ADDRESSES`].
    #[inline(always)]
    pub(crate) fn icmp_covers_addresses(self) -> bool {
        ask!(self, ICMP_COVERS_ADDRESSES)
    }

    /// [`Family::icmp_message`].
    #[inline(always)]
    pub(crate) fn icmp_message(self, kind: u8) -> IcmpMessage {
        ask!(self, icmp_message(kind))
    }

    /// [`Family::decrement_ttl`].
    #[inline(always)]
    pub(crate) fn decrement_ttl(self, packet: &mut Packet) -> Result<(), DropReason> {
        ask!(self, decrement_ttl(packet))
    }

    /// [`Family::set_address`].
    #[inline(always)]
    pub(crate) fn set_address(
        self,
        packet: &mut Packet,
        new: NewAddress,
        growth: u32,
    ) -> Result<(), DropReason> {
        ask!(self, set_address(packet, new, growth))
    }

    /// [`Family::set_quoted_address`].
    #[inline(always)]
    pub(crate) fn set_quoted_address(
        self,
        packet: &mut Packet,
        offset: usize,
        new: NewAddress,
        growth: u32,
    ) -> Result<u32, DropReason> {
        ask!(self, set_quoted_address(packet, offset, new, growth))
    }

    /// [`Family::addresses`].
    #[inline(always)]
    pub(crate) fn addresses(self, eni: &EniEntry) -> &EniAddresses {
        ask!(self, addresses(eni))
    }

    /// [`Family::is_masqueraded`].
    #[inline(always)]
    pub(crate) fn is_masqueraded(self) -> bool {
        ask!(self, is_masqueraded())
    }

    /// [`Family::next_hop`].
    #[inline(always)]
    pub(crate) fn next_hop(self, eni: &EniEntry) -> NextHop {
        ask!(self, next_hop(eni))
    }

    /// [`Family::discovery`].
    #[inline(always)]
    pub(crate) fn discovery(self, packet: &Packet) -> Option<u8> {
        ask!(self, discovery(packet))
    }
}
