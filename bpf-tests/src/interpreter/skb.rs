//! A packet and its context, `struct __sk_buff` of `include/uapi/linux/bpf.h`, as in the kernel's
//! test run. The whole packet is linear, and no device has summed it up.

use anyhow::{Context as _, Result, bail, ensure};
use testkit::testrun::Input;

use super::memory;

/// Offsets of the fields that the programs use.
mod field {
    pub(super) const LENGTH: usize = 0;
    pub(super) const KIND: usize = 4;
    pub(super) const MARK: usize = 8;
    pub(super) const VLAN_PRESENT: usize = 20;
    pub(super) const INGRESS_IFINDEX: usize = 36;
    pub(super) const IFINDEX: usize = 40;
    pub(super) const DATA: usize = 76;
    pub(super) const DATA_END: usize = 80;
    pub(super) const GSO_SIZE: usize = 176;
}

/// A packet and its metadata.
#[derive(Debug)]
pub(super) struct Skb {
    pub(super) frame: Vec<u8>,
    pub(super) mark: u32,
    ifindex: u32,
    ingress_ifindex: u32,
    gso_size: u32,
    kind: u32,
}

impl Skb {
    /// A packet on a device with this MAC.
    pub(super) fn new(input: &Input, mac: [u8; 6]) -> Self {
        Self {
            frame: input.frame.clone(),
            mark: input.mark,
            ifindex: input.ifindex,
            ingress_ifindex: input.ingress_ifindex,
            gso_size: input.gso_size,
            kind: kind(&input.frame, mac),
        }
    }

    /// A field as the program loads it. The kernel replaces `data` and `data_end` by addresses,
    /// which the object loads as words.
    pub(super) fn field(&self, offset: usize, size: usize) -> Result<u64> {
        ensure!(size == 4, "{size} bytes of a field of the context");
        let length = u64::try_from(self.frame.len())?;
        Ok(match offset {
            field::LENGTH => length,
            field::KIND => self.kind.into(),
            field::MARK => self.mark.into(),
            // The kernel's test run has no out-of-band tag.
            field::VLAN_PRESENT => 0,
            field::INGRESS_IFINDEX => self.ingress_ifindex.into(),
            field::IFINDEX => self.ifindex.into(),
            field::DATA => memory::PACKET,
            field::DATA_END => memory::PACKET + length,
            field::GSO_SIZE => self.gso_size.into(),
            _ => bail!("the context's field at {offset} is not known"),
        })
    }

    /// Writes a field.
    pub(super) fn set_field(&mut self, offset: usize, size: usize, value: u64) -> Result<()> {
        ensure!(
            offset == field::MARK && size == 4,
            "the context's field at {offset} is not to be written"
        );
        self.mark = u32::try_from(value & u64::from(u32::MAX))?;
        Ok(())
    }

    /// A 16-bit number of the packet, in memory order.
    pub(super) fn half(&mut self, offset: usize) -> Result<&mut [u8; 2]> {
        let half = self
            .frame
            .get_mut(offset..)
            .and_then(<[u8]>::first_chunk_mut);
        half.context("behind the packet's end")
    }
}

/// Packet type, by the destination's MAC (`eth_type_trans` of `net/ethernet/eth.c`).
fn kind(frame: &[u8], mac: [u8; 6]) -> u32 {
    /// Values of `include/uapi/linux/if_packet.h`.
    const HOST: u32 = 0;
    const BROADCAST: u32 = 1;
    const MULTICAST: u32 = 2;
    const OTHER_HOST: u32 = 3;
    match frame.first_chunk() {
        Some(to) if *to == mac => HOST,
        Some([0xff, 0xff, 0xff, 0xff, 0xff, 0xff]) => BROADCAST,
        Some([first, ..]) if first & 1 != 0 => MULTICAST,
        _ => OTHER_HOST,
    }
}
