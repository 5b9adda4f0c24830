//! The address space of an interpreted program. An address has a region in its upper half and an
//! offset in its lower half. Every access is checked against its region's bounds, and no sum leads
//! from one region into another.

use anyhow::{Context as _, Result, bail, ensure};

use super::map::Map;
use super::skb::Skb;

/// Bytes of a function's frame: `MAX_BPF_STACK` of `include/linux/filter.h`.
const FRAME_SIZE: usize = 512;
/// Functions that may call one another in a row: `MAX_CALL_FRAMES` of `include/linux/bpf_verifier.h`.
const MAX_FRAMES: usize = 8;

/// Numbers of regions.
mod region {
    pub(super) const CONTEXT: u32 = 1;
    pub(super) const PACKET: u32 = 2;
    /// The frame of the program; those of called functions follow.
    pub(super) const FRAMES: u32 = 16;
    /// The values of the first map; those of the others follow.
    pub(super) const VALUES: u32 = 64;
    /// The first map, as an argument of helpers; it cannot be read.
    pub(super) const MAPS: u32 = 1024;
}

const fn address(region: u32, offset: u32) -> u64 {
    (region as u64) << 32 | offset as u64
}

/// The context.
pub(super) const CONTEXT: u64 = address(region::CONTEXT, 0);
/// The packet's first byte.
pub(super) const PACKET: u64 = address(region::PACKET, 0);

/// A map, as an argument of helpers.
pub(super) const fn map_address(number: u32) -> u64 {
    address(region::MAPS + number, 0)
}

/// A place in the values of a map.
pub(super) const fn value_address(number: u32, offset: u32) -> u64 {
    address(region::VALUES + number, offset)
}

/// The number of the map at this address, an argument of helpers.
pub(super) fn map_number(address: u64) -> Result<usize> {
    let (region, offset) = split(address);
    let number = region.checked_sub(region::MAPS);
    let number = number.filter(|_| offset == 0);
    Ok(usize::try_from(number.context("no map")?)?)
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the halves of an address are the requested part"
)]
fn split(address: u64) -> (u32, usize) {
    ((address >> 32) as u32, address as u32 as usize)
}

/// Memory that a program can reach.
#[derive(Debug)]
pub(super) struct Memory<'a> {
    /// The packet and its metadata in the kernel.
    pub(super) skb: Skb,
    /// The maps.
    pub(super) maps: &'a mut [Map],
    frames: Vec<[u8; FRAME_SIZE]>,
}

impl<'a> Memory<'a> {
    pub(super) fn new(skb: Skb, maps: &'a mut [Map]) -> Self {
        Self {
            skb,
            maps,
            frames: Vec::new(),
        }
    }

    /// Enters a function, and returns the address of its frame's end.
    pub(super) fn enter(&mut self) -> Result<u64> {
        let depth = self.frames.len();
        ensure!(depth < MAX_FRAMES, "too many functions in a row");
        self.frames.push([0; FRAME_SIZE]);
        let region = region::FRAMES + u32::try_from(depth)?;
        Ok(address(region, u32::try_from(FRAME_SIZE)?))
    }

    /// Leaves a function.
    pub(super) fn leave(&mut self) {
        self.frames.pop();
    }

    /// A number.
    pub(super) fn load(&self, address: u64, size: usize) -> Result<u64> {
        let (region, offset) = split(address);
        if region == region::CONTEXT {
            return self.skb.field(offset, size);
        }
        Ok(number(self.bytes(address, size)?))
    }

    /// Writes a number.
    pub(super) fn store(&mut self, address: u64, size: usize, value: u64) -> Result<()> {
        let (region, offset) = split(address);
        if region == region::CONTEXT {
            return self.skb.set_field(offset, size, value);
        }
        let bytes = self.bytes_mut(address, size)?;
        if cfg!(target_endian = "little") {
            bytes.copy_from_slice(&value.to_le_bytes()[..size]);
        } else {
            bytes.copy_from_slice(&value.to_be_bytes()[8 - size..]);
        }
        Ok(())
    }

    /// Bytes.
    pub(super) fn bytes(&self, address: u64, length: usize) -> Result<&[u8]> {
        let (region, offset) = split(address);
        let all: &[u8] = match region {
            region::PACKET => &self.skb.frame,
            region::FRAMES..region::VALUES => self.frame(region)?,
            region::VALUES..region::MAPS => self.maps_of(region)?.values(),
            _ => bail!("no memory at {address:#x}"),
        };
        all.get(offset..offset + length).with_context(|| {
            format!(
                "{length} bytes at {address:#x} of a region of {}",
                all.len()
            )
        })
    }

    /// Bytes to write to.
    pub(super) fn bytes_mut(&mut self, address: u64, length: usize) -> Result<&mut [u8]> {
        // The bounds are checked in one place.
        self.bytes(address, length)?;
        let (region, offset) = split(address);
        let all: &mut [u8] = match region {
            region::PACKET => &mut self.skb.frame,
            region::FRAMES..region::VALUES => {
                let frame = usize::try_from(region - region::FRAMES)?;
                &mut self.frames[frame]
            }
            _ => {
                let map = usize::try_from(region - region::VALUES)?;
                self.maps[map].values_mut()?
            }
        };
        Ok(&mut all[offset..offset + length])
    }

    fn frame(&self, region: u32) -> Result<&[u8]> {
        let frame = self.frames.get(usize::try_from(region - region::FRAMES)?);
        Ok(frame.context("the frame of a function that has ended")?)
    }

    fn maps_of(&self, region: u32) -> Result<&Map> {
        let map = self.maps.get(usize::try_from(region - region::VALUES)?);
        map.context("no such map")
    }
}

/// Number at a constant address in a read-only map.
pub(super) fn constant(maps: &[Map], address: u64, size: usize) -> Option<u64> {
    let (region, offset) = split(address);
    let map = maps.get(usize::try_from(region.checked_sub(region::VALUES)?).ok()?)?;
    let map = Some(map).filter(|map| map.is_read_only())?;
    map.values().get(offset..offset + size).map(number)
}

/// Up to eight bytes as a number.
fn number(bytes: &[u8]) -> u64 {
    let mut wide = [0; 8];
    if cfg!(target_endian = "little") {
        wide[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(wide)
    } else {
        wide[8 - bytes.len()..].copy_from_slice(bytes);
        u64::from_be_bytes(wide)
    }
}
