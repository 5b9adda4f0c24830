//! The blocks of ports of busy destinations, compared with the existing flows.

use std::collections::{HashMap, HashSet};

use anyhow::Result;
use datapath_common::abi::{Addr, FlowKey, PortBlockKey, TransportAddr};
use datapath_common::ports;

use crate::tables::Tables;

/// A block as it was, and the ports of it that were met.
struct Block {
    used: [u64; 8],
    met: [u64; 8],
}

/// The blocks with the ports of them that were met, and their destinations.
pub(super) struct Blocks {
    blocks: HashMap<PortBlockKey, Block>,
    busy: HashSet<Destination>,
}

/// Destination: an ENI, a protocol, an address and a port.
type Destination = (u8, u8, Addr, u16);

fn destination(key: &PortBlockKey) -> Destination {
    (key.eni, key.protocol, key.remote, key.remote_port)
}

impl Blocks {
    /// The blocks that there are.
    pub(crate) fn read(tables: &impl Tables) -> Result<Self> {
        let mut blocks = HashMap::new();
        let mut busy = HashSet::new();
        tables.blocks(&mut |key, block| {
            let (used, met) = (block.used, [0; 8]);
            blocks.insert(*key, Block { used, met });
            busy.insert(destination(key));
        })?;
        Ok(Self { blocks, busy })
    }

    /// Records a flow; returns true if its destination is busy.
    pub(crate) fn see(&mut self, key: &FlowKey) -> bool {
        if self.blocks.is_empty() {
            return false;
        }
        let port = u16::from_be(key.port);
        let block = ports::block_of(port);
        let block = PortBlockKey::new(
            key.eni,
            key.protocol,
            TransportAddr::new(key.remote, key.remote_port),
            block,
        );
        let is_busy = self.busy.contains(&destination(&block));
        let (word, bit) = ports::bit_of(port);
        let block = self.blocks.get_mut(&block);
        let word = block.zip(usize::try_from(word).ok());
        if let Some(word) = word.and_then(|(block, word)| block.met.get_mut(word)) {
            *word |= bit;
        }
        is_busy
    }

    /// Removes the blocks of destinations that no flow has, and clears the bits without a flow. A
    /// flow that was opened during the sweep may lose its bit; that costs a try, and no flow.
    pub(crate) fn clean(self, tables: &impl Tables) -> Result<()> {
        let met: HashSet<Destination> = self
            .blocks
            .iter()
            .filter(|(_, block)| block.met != [0; 8])
            .map(|(key, _)| destination(key))
            .collect();
        for (key, block) in &self.blocks {
            if !met.contains(&destination(key)) {
                tables.remove_block(key)?;
                continue;
            }
            let mut stale = block.used;
            for (stale, met) in stale.iter_mut().zip(block.met) {
                *stale &= !met;
            }
            if stale != [0; 8] {
                tables.clear_bits(key, &stale)?;
            }
        }
        Ok(())
    }
}
