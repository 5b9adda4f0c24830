//! A cluster in small: objects with versions, agents, pools, and leaders whose writes come late.

use std::collections::BTreeMap;

use ipam::cluster::{Blocks, Needed, PoolSpec, Requested};
use ipam::{EdgeRules, Family};
use ipnet::IpNet;

use super::pool;

/// Pseudorandom numbers (xorshift), so that a run can be repeated.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let number = (self.0 >> 16) % u64::try_from(bound).unwrap();
        usize::try_from(number).unwrap()
    }
}

pub(super) const NODES: [&str; 5] = ["a", "b", "c", "d", "e"];
pub(super) const POOLS: [&str; 3] = ["blue", "green", "red"];

/// CIDRs of each pool. Those of `green` overlap with those of the others.
const CIDRS: [&[&str]; 3] = [
    &["10.0.0.0/28", "10.0.0.16/28", "fd00::/123"],
    &[
        "10.0.0.24/29",
        "10.0.0.32/28",
        "fd00::10/124",
        "fd00::40/124",
    ],
    &["10.0.0.32/27", "10.0.0.64/29"],
];
const MASKS: [(u8, u8); 3] = [(30, 126), (31, 127), (29, 0)];

/// A node's object.
#[derive(Clone, Debug, Default)]
pub(super) struct Object {
    pub(super) version: u64,
    pub(super) requested: Requested,
    pub(super) allocated: Blocks,
}

/// A grant in flight to the API server.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) node: usize,
    version: u64,
    blocks: Blocks,
}

/// The API server and the agents.
#[derive(Default)]
pub(super) struct World {
    pub(super) objects: BTreeMap<usize, Object>,
    pub(super) pools: BTreeMap<usize, PoolSpec>,
    version: u64,
    /// The node of each address.
    owners: BTreeMap<(Family, u8), usize>,
    late: Vec<Write>,
}

impl World {
    fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// An agent, a person or a late write changes something.
    pub(super) fn step(&mut self, random: &mut Random) {
        let node = random.below(NODES.len());
        match random.below(20) {
            0..=8 => self.ask(node, random),
            9..=12 => self.give_back(node, random),
            13 => self.touch(node),
            14 => self.remove(node),
            15..=16 => self.change_pool(random),
            _ => {
                if !self.late.is_empty() {
                    let late = self.late.swap_remove(random.below(self.late.len()));
                    self.apply(&late);
                }
            }
        }
    }

    fn ask(&mut self, node: usize, random: &mut Random) {
        let version = self.next_version();
        let object = self.objects.entry(node).or_default();
        let name = POOLS.get(random.below(4)).copied().unwrap_or("absent");
        let needed = Needed {
            ipv4: u32::try_from(random.below(9)).unwrap(),
            ipv6: u32::try_from(random.below(7)).unwrap(),
        };
        object.requested.insert(name.to_owned(), needed);
        object.version = version;
    }

    fn give_back(&mut self, node: usize, random: &mut Random) {
        let version = self.next_version();
        let Some(object) = self.objects.get_mut(&node) else {
            return;
        };
        object.version = version;
        let name = POOLS[random.below(POOLS.len())];
        let Some(blocks) = object.allocated.get_mut(name) else {
            return;
        };
        if let Some(block) = blocks.pop_first() {
            self.disown(block);
        }
    }

    /// Changes an object's version and nothing else.
    pub(super) fn touch(&mut self, node: usize) {
        let version = self.next_version();
        if let Some(object) = self.objects.get_mut(&node) {
            object.version = version;
        }
    }

    fn remove(&mut self, node: usize) {
        let object = self.objects.remove(&node).unwrap_or_default();
        for block in object.allocated.into_values().flatten() {
            self.disown(block);
        }
    }

    fn change_pool(&mut self, random: &mut Random) {
        let number = random.below(POOLS.len());
        let chosen = random.below(1 << CIDRS[number].len());
        if chosen == 0 && random.below(4) == 0 {
            self.pools.remove(&number);
            return;
        }
        let all = CIDRS[number].iter().enumerate();
        let cidrs = all.filter(|(bit, _)| chosen & (1 << bit) != 0);
        let cidrs: Vec<&str> = cidrs.map(|(_, cidr)| *cidr).collect();
        let spec = PoolSpec {
            created: number.to_string(),
            edges: EdgeRules {
                allow_first: number != 1,
                allow_last: true,
            },
            is_deleted: random.below(10) == 0,
            ..pool(&cidrs, MASKS[number])
        };
        self.pools.insert(number, spec);
    }

    /// Sends a grant. It is applied at once, or late, or never.
    pub(super) fn send(&mut self, node: usize, version: u64, blocks: Blocks, random: &mut Random) {
        let write = Write {
            node,
            version,
            blocks,
        };
        match random.below(4) {
            0 => self.late.push(write),
            1 => {
                // Its answer is lost, so that it may be sent again.
                self.apply(&write);
                self.late.push(write);
            }
            _ => self.apply(&write),
        }
        // One that is lost.
        if self.late.len() > 12 {
            self.late.swap_remove(random.below(12));
        }
    }

    /// Applies a write if the object has the version that it is for. No address may have another node.
    fn apply(&mut self, write: &Write) {
        let version = self.version + 1;
        let Some(object) = self.objects.get_mut(&write.node) else {
            return;
        };
        if object.version != write.version {
            return;
        }
        self.version = version;
        object.version = version;
        for (pool, blocks) in &write.blocks {
            let allocated = object.allocated.entry(pool.clone()).or_default();
            for block in blocks {
                assert!(
                    allocated.insert(*block),
                    "{block} was granted to its own node again"
                );
                for address in addresses(*block) {
                    let before = self.owners.insert(address, write.node);
                    assert_eq!(before, None, "{block} of {}", NODES[write.node]);
                }
            }
        }
    }

    fn disown(&mut self, block: IpNet) {
        for address in addresses(block) {
            self.owners.remove(&address);
        }
    }
}

/// The addresses of a block, by the last byte of each.
pub(super) fn addresses(block: IpNet) -> impl Iterator<Item = (Family, u8)> {
    let family = Family::of_net(block);
    let octet = |address| match address {
        std::net::IpAddr::V4(address) => address.octets()[3],
        std::net::IpAddr::V6(address) => address.octets()[15],
    };
    (octet(block.network())..=octet(block.broadcast())).map(move |number| (family, number))
}
