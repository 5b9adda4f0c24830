//! The least that any program could do for a packet, as instructions. It checks the packet, finds
//! the result in one or two look-ups, changes the packet, and returns the result. It counts
//! nothing, keeps no state of flows and handles no exceptions.
//!
//! Tables are keyed by flow or address. A cache is an array indexed by a sum over the packet's
//! addresses and ports, and stores these with the result. No program can reach a target below both
//! on this machine.

mod code;

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use testkit::testrun::REDIRECT;
use testkit::testrun::assembled::{EntrySize, Kind, OwnMap, OwnProgram};
use testkit::testrun::assembler::frame::{DESTINATION, SOURCE, SOURCE_PORT as PORTS};
use testkit::testrun::repeat::Packet;

use super::meter::Beside;
use code::{CACHE, CACHED, Code, NEW_VALUE, VALUE};

/// A table as large as a node's.
const ENTRIES: usize = 262_144;

/// Key of a look-up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lookup {
    /// An address, in the 16 bytes of either family.
    Address(i16),
    /// A flow by address and ports, in 24 bytes.
    Flow(i16),
    /// An address in a table of prefixes.
    Prefix(i16),
    /// Addresses and ports in a cache of recent packets.
    Cache,
}

/// Target of the packet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    /// A next hop, whose MACs the kernel writes.
    NextHop,
    /// A pod, with other MACs.
    Pod,
}

/// Steps of a program.
pub(super) struct Floor {
    name: &'static str,
    lookups: &'static [Lookup],
    /// Offset of the address that is replaced.
    rewrites: Option<i16>,
    to: To,
}

impl Floor {
    /// Exempt packets: with one look-up, and with those for source and destination.
    pub(super) const EXEMPT: [Self; 3] = [
        Self {
            name: "floor: exempt out, from a cache",
            lookups: &[Lookup::Cache],
            rewrites: None,
            to: To::NextHop,
        },
        Self {
            name: "floor: exempt out, one look-up",
            lookups: &[Lookup::Address(SOURCE)],
            rewrites: None,
            to: To::NextHop,
        },
        Self {
            name: "floor: exempt out, source and prefix",
            lookups: &[Lookup::Address(SOURCE), Lookup::Prefix(DESTINATION)],
            rewrites: None,
            to: To::NextHop,
        },
    ];
    /// A packet from an ENI to a pod.
    pub(super) const FROM_ENI: [Self; 2] = [
        Self {
            name: "floor: from ENI to pod, from a cache",
            lookups: &[Lookup::Cache],
            rewrites: None,
            to: To::Pod,
        },
        Self {
            name: "floor: from ENI to pod",
            lookups: &[Lookup::Address(DESTINATION)],
            rewrites: None,
            to: To::Pod,
        },
    ];
    /// A packet from a pod to a pod of the node.
    pub(super) const LOCAL: [Self; 3] = [
        Self {
            name: "floor: pod to pod, from a cache",
            lookups: &[Lookup::Cache],
            rewrites: None,
            to: To::Pod,
        },
        Self {
            name: "floor: pod to pod, one look-up",
            lookups: &[Lookup::Address(DESTINATION)],
            rewrites: None,
            to: To::Pod,
        },
        Self {
            name: "floor: pod to pod, source and destination",
            lookups: &[Lookup::Address(SOURCE), Lookup::Address(DESTINATION)],
            rewrites: None,
            to: To::Pod,
        },
    ];
    /// A packet that leaves translated.
    pub(super) const OUT: [Self; 2] = [
        Self {
            name: "floor: masqueraded out, from a cache",
            lookups: &[Lookup::Cache],
            rewrites: Some(SOURCE),
            to: To::NextHop,
        },
        Self {
            name: "floor: masqueraded out",
            lookups: &[Lookup::Flow(DESTINATION)],
            rewrites: Some(SOURCE),
            to: To::NextHop,
        },
    ];
    /// A translated packet that comes back.
    pub(super) const BACK: [Self; 2] = [
        Self {
            name: "floor: masqueraded back, from a cache",
            lookups: &[Lookup::Cache],
            rewrites: Some(DESTINATION),
            to: To::Pod,
        },
        Self {
            name: "floor: masqueraded back",
            lookups: &[Lookup::Flow(SOURCE)],
            rewrites: Some(DESTINATION),
            to: To::Pod,
        },
    ];

    /// Programs that only insert an entry into an empty table, which allocates memory for each
    /// entry like ours, or has allocated all of it.
    pub(super) fn opening() -> Result<[Built; 2]> {
        let size = EntrySize::new(Lookup::Flow(DESTINATION).size(), NEW_VALUE);
        let growing = OwnMap::new(Kind::Hash, size, ENTRIES)?;
        let whole = OwnMap::preallocated(size, ENTRIES)?;
        Ok([
            Self::inserting("floor: new flow, one insertion", growing)?,
            Self::inserting("floor: new flow, one insertion, preallocated table", whole)?,
        ])
    }

    fn inserting(name: &'static str, map: OwnMap) -> Result<Built> {
        let lookup = Lookup::Flow(DESTINATION);
        let mut code = Code::new();
        code.insert(lookup, &map);
        code.lower_ttl(None);
        code.redirect(To::NextHop);
        Ok(Built {
            name,
            program: OwnProgram::load(&code.finish())?,
            _maps: vec![map],
        })
    }

    /// Loads several programs, for these packets.
    pub(super) fn build_all(floors: &[Self], packets: &[Packet]) -> Result<Vec<Built>> {
        floors.iter().map(|floor| floor.build(packets)).collect()
    }

    fn build(&self, packets: &[Packet]) -> Result<Built> {
        let maps: Vec<_> = self
            .lookups
            .iter()
            .map(|lookup| lookup.table(packets))
            .collect::<Result<_>>()?;
        let program = OwnProgram::load(&self.code(&maps))?;
        Ok(Built {
            name: self.name,
            program,
            _maps: maps,
        })
    }

    fn code(&self, maps: &[OwnMap]) -> Vec<u64> {
        let mut code = Code::new();
        for (lookup, map) in self.lookups.iter().zip(maps) {
            code.look_up(*lookup, map);
        }
        code.lower_ttl(self.rewrites);
        match self.to {
            To::NextHop => {}
            To::Pod => code.write_macs(),
        }
        if self.rewrites.is_some() {
            code.sum_up();
        }
        code.redirect(self.to);
        code.finish()
    }
}

impl Lookup {
    /// Bytes of the key.
    fn size(self) -> usize {
        match self {
            Self::Address(_) => 16,
            Self::Flow(_) => 24,
            Self::Prefix(_) => 20,
            Self::Cache => 4,
        }
    }

    fn kind(self) -> Kind {
        match self {
            Self::Cache => Kind::Array,
            Self::Address(_) | Self::Flow(_) => Kind::Hash,
            Self::Prefix(_) => Kind::Prefixes,
        }
    }

    /// The key of a packet.
    fn key(self, frame: &[u8]) -> Vec<u8> {
        let at = |offset: i16| {
            let offset = usize::from(offset.unsigned_abs());
            &frame[offset..offset + 4]
        };
        let mapped = |address: i16| [&[0; 8][..], &[0, 0, 0xff, 0xff], at(address)].concat();
        match self {
            Self::Address(address) => mapped(address),
            Self::Flow(address) => [&mapped(address), at(PORTS), &6_u32.to_ne_bytes()[..]].concat(),
            Self::Prefix(address) => [&128_u32.to_ne_bytes()[..], &mapped(address)].concat(),
            Self::Cache => [at(SOURCE), at(DESTINATION), at(PORTS)].concat(),
        }
    }

    /// A table with entries for the packets.
    fn table(self, packets: &[Packet]) -> Result<OwnMap> {
        if self == Self::Cache {
            return cache(packets);
        }
        let map = OwnMap::new(self.kind(), EntrySize::new(self.size(), VALUE), ENTRIES)?;
        let keys: BTreeSet<_> = packets
            .iter()
            .map(|packet| self.key(&packet.frame))
            .collect();
        for key in keys {
            map.put(&key, &[0x0a; VALUE])?;
        }
        Ok(map)
    }
}

/// A cache with the first packet at every index: the index need not be computed, and for one packet
/// the cost is the same.
fn cache(packets: &[Packet]) -> Result<OwnMap> {
    let map = OwnMap::new(Kind::Array, EntrySize::new(4, VALUE), CACHE)?;
    let packet = packets.first().context("a floor without a packet")?;
    let mut value = vec![0x0a; VALUE];
    value[usize::from(CACHED.unsigned_abs())..].copy_from_slice(&Lookup::Cache.key(&packet.frame));
    for place in 0..u32::try_from(CACHE)? {
        map.put(&place.to_ne_bytes(), &value)?;
    }
    Ok(map)
}

/// A program, with its tables.
pub(super) struct Built {
    name: &'static str,
    program: OwnProgram,
    /// Kept for the program, which refers to them.
    _maps: Vec<OwnMap>,
}

impl Built {
    /// The program, to be measured next to a path.
    pub(super) fn beside(&self, suffix: &str) -> Beside<'_> {
        Beside {
            name: format!("{}{suffix}", self.name),
            program: &self.program,
            code: REDIRECT,
        }
    }
}
