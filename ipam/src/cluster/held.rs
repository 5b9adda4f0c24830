//! The blocks that are taken, by address range.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use crate::Family;

/// The assigned blocks, each with its nodes. More than one node is a fault of the objects' writer.
/// The block is free once the last of them is gone.
#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    nodes: BTreeMap<IpNet, BTreeSet<String>>,
    /// Lengths of prefixes in use, with their number: a block can only be within one of these.
    lengths: BTreeMap<(Family, u8), usize>,
}

impl Held {
    /// Takes a block for a node.
    pub(super) fn take(&mut self, block: IpNet, node: &str) {
        let nodes = self.nodes.entry(block).or_default();
        if nodes.is_empty() {
            let length = (Family::of_net(block), block.prefix_len());
            *self.lengths.entry(length).or_default() += 1;
        }
        if !nodes.contains(node) {
            nodes.insert(node.to_owned());
        }
    }

    /// Gives a node's block back. Returns true if it is free now.
    pub(super) fn give(&mut self, block: IpNet, node: &str) -> bool {
        let Some(nodes) = self.nodes.get_mut(&block) else {
            return false;
        };
        if !nodes.remove(node) || !nodes.is_empty() {
            return false;
        }
        self.nodes.remove(&block);
        let length = (Family::of_net(block), block.prefix_len());
        if let Some(count) = self.lengths.get_mut(&length) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&length);
            }
        }
        true
    }

    /// The taken blocks that have an address in common with a CIDR, each with its nodes.
    pub(super) fn overlapping(
        &self,
        net: IpNet,
    ) -> impl Iterator<Item = (IpNet, &BTreeSet<String>)> {
        let family = Family::of_net(net);
        let above = self
            .lengths
            .range((family, 0)..(family, net.prefix_len()))
            .filter_map(move |((_, length), _)| {
                let wider = IpNet::new(net.addr(), *length).ok()?.trunc();
                let (block, nodes) = self.nodes.get_key_value(&wider)?;
                Some((*block, nodes))
            });
        above.chain(self.within(net))
    }

    /// The taken blocks within a CIDR, each with its nodes.
    pub(super) fn within(&self, net: IpNet) -> impl Iterator<Item = (IpNet, &BTreeSet<String>)> {
        let net = net.trunc();
        let last = IpNet::from(net.broadcast());
        let inside = self.nodes.range(net..=last);
        inside.map(|(block, nodes)| (*block, nodes))
    }

    /// Blocks that several nodes have, or that overlap with another node's.
    pub(super) fn conflicts(&self) -> impl Iterator<Item = (IpNet, &BTreeSet<String>)> {
        let shared = |(block, nodes): &(&IpNet, &BTreeSet<String>)| {
            let mut others = self.overlapping(**block);
            nodes.len() > 1 || others.any(|(_, others)| others != *nodes)
        };
        let all = self.nodes.iter().filter(shared);
        all.map(|(block, nodes)| (*block, nodes))
    }
}
