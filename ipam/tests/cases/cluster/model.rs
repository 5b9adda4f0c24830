//! The ledger compared with a model that keeps only lists and checks every address.

use std::collections::BTreeMap;

use ipam::Family;
use ipam::cluster::{Blocks, Grant, Ledger, PoolSpec, Requested, Takeover};
use ipnet::IpNet;

use super::world::{NODES, Object, POOLS, Random, World, addresses};

/// The long form is for `cargo xtask test --full`.
fn steps() -> usize {
    if std::env::var_os("TOWPATH_FULL").is_some() {
        10_000_000
    } else {
        1_000_000
    }
}

/// Grants by looking at every address.
#[derive(Default)]
struct Reference {
    pools: BTreeMap<usize, PoolSpec>,
    /// CIDRs in force, with the numbers of their pools.
    cidrs: Vec<(usize, IpNet)>,
    nodes: BTreeMap<usize, (u64, Blocks, Blocks)>,
    last: BTreeMap<(usize, Family), IpNet>,
}

impl Reference {
    fn set_pools(&mut self, pools: &BTreeMap<usize, PoolSpec>) {
        self.pools.clone_from(pools);
        let all = || {
            let of = |(number, pool): (&usize, &PoolSpec)| {
                let number = *number;
                let cidrs = pool.spaces.values().flat_map(|space| space.cidrs.clone());
                cidrs.map(move |cidr| (number, cidr)).collect::<Vec<_>>()
            };
            pools.iter().flat_map(of)
        };
        let before = std::mem::take(&mut self.cidrs);
        let (kept, new): (Vec<_>, Vec<_>) = all().partition(|it| before.contains(it));
        let mut taken = [[false; 256]; 2];
        for (number, cidr) in kept.into_iter().chain(new) {
            if addresses(cidr).all(|address| !taken[at(address).0][at(address).1]) {
                addresses(cidr).for_each(|it| taken[at(it).0][at(it).1] = true);
                self.cidrs.push((number, cidr));
            }
        }
    }

    fn set_node(&mut self, node: usize, object: &Object) {
        let known = self.nodes.remove(&node);
        let granted = known.filter(|it| it.0 == object.version).map(|it| it.2);
        let entry = (
            object.version,
            object.allocated.clone(),
            granted.unwrap_or_default(),
        );
        self.nodes.insert(node, entry);
    }

    fn taken(&self) -> [[bool; 256]; 2] {
        let mut taken = [[false; 256]; 2];
        for (_, allocated, granted) in self.nodes.values() {
            for block in allocated.values().chain(granted.values()).flatten() {
                addresses(*block).for_each(|it| taken[at(it).0][at(it).1] = true);
            }
        }
        taken
    }

    fn grant(&mut self, node: usize, requested: &Requested) -> Blocks {
        let mut taken = self.taken();
        for (name, needed) in requested {
            let Some(number) = POOLS.iter().position(|pool| pool == name) else {
                continue;
            };
            let Some(spec) = self.pools.get(&number).cloned() else {
                continue;
            };
            for family in Family::ALL {
                let needed = u128::from(needed.of(family));
                while !spec.is_deleted && self.usable(node, (number, family), &spec) < needed {
                    let Some(block) = self.free((number, family), &spec, &taken) else {
                        break;
                    };
                    addresses(block).for_each(|it| taken[at(it).0][at(it).1] = true);
                    self.last.insert((number, family), block);
                    let (_, _, granted) = self.nodes.get_mut(&node).unwrap();
                    granted.entry(name.clone()).or_default().insert(block);
                }
            }
        }
        self.nodes.get(&node).unwrap().2.clone()
    }

    fn usable(&self, node: usize, (number, family): (usize, Family), spec: &PoolSpec) -> u128 {
        let (_, allocated, granted) = &self.nodes[&node];
        let all = [allocated, granted].into_iter();
        let all = all.filter_map(|blocks| blocks.get(POOLS[number])).flatten();
        let all = all.filter(|block| Family::of_net(**block) == family);
        all.map(|block| spec.edges.usable(*block)).sum()
    }

    /// The blocks in order, from the one that was granted last on.
    fn free(
        &self,
        (number, family): (usize, Family),
        spec: &PoolSpec,
        taken: &[[bool; 256]; 2],
    ) -> Option<IpNet> {
        let space = spec.spaces.get(&family)?;
        let is_used = |cidr: &&IpNet| self.cidrs.contains(&(number, **cidr));
        let used: Vec<IpNet> = space.cidrs.iter().filter(is_used).copied().collect();
        let blocks = used
            .iter()
            .flat_map(|cidr| cidr.subnets(space.mask).unwrap());
        let mut blocks: Vec<IpNet> = blocks.collect();
        if let Some(last) = self.last.get(&(number, family))
            && let Some(place) = blocks.iter().position(|block| block == last)
        {
            blocks.rotate_left(place + 1);
        }
        let mut blocks = blocks.into_iter();
        blocks.find(|block| addresses(*block).all(|it| !taken[at(it).0][at(it).1]))
    }
}

fn at((family, number): (Family, u8)) -> (usize, usize) {
    (usize::from(family == Family::V6), number.into())
}

/// A leader with its model.
#[derive(Default)]
struct Leader {
    ledger: Ledger,
    reference: Reference,
    takeover: Takeover,
    seen: BTreeMap<usize, Object>,
}

impl Leader {
    /// Lists everything, as a new leader does.
    fn begin(world: &World) -> Self {
        let mut leader = Self::default();
        leader.see_pools(world);
        for node in world.objects.keys() {
            leader.see(*node, world);
        }
        let unmet = leader.seen.iter().filter(|(node, object)| {
            let requested = &object.requested;
            leader.ledger.is_unmet(NODES[**node], requested)
        });
        let unmet = unmet.map(|(node, _)| NODES[*node].to_owned()).collect();
        leader.takeover = Takeover::begin(unmet);
        leader
    }

    fn see_pools(&mut self, world: &World) {
        for (number, name) in POOLS.iter().enumerate() {
            match world.pools.get(&number) {
                Some(spec) => self.ledger.set_pool(name, spec.clone()),
                None => self.ledger.lose_pool(name),
            }
            // One after another, as events come.
            let mut pools = self.reference.pools.clone();
            match world.pools.get(&number) {
                Some(spec) => pools.insert(number, spec.clone()),
                None => pools.remove(&number),
            };
            self.reference.set_pools(&pools);
        }
    }

    fn see(&mut self, node: usize, world: &World) {
        let Some(object) = world.objects.get(&node) else {
            self.ledger.lose_node(NODES[node]);
            self.reference.nodes.remove(&node);
            self.takeover.touched(NODES[node]);
            self.seen.remove(&node);
            return;
        };
        let version = object.version.to_string();
        let allocated = object.allocated.clone();
        self.ledger.set_node(NODES[node], &version, allocated);
        self.reference.set_node(node, object);
        self.seen.insert(node, object.clone());
    }

    fn act(&mut self, node: usize, world: &mut World, random: &mut Random) {
        if self.takeover.awaits(NODES[node]) {
            world.touch(node);
            self.see(node, world);
            self.takeover.touched(NODES[node]);
        }
        let Some(object) = self.seen.get(&node) else {
            return;
        };
        if !self.takeover.is_over() {
            return;
        }
        let Grant { blocks, .. } = self.ledger.grant(NODES[node], &object.requested);
        let expected = self.reference.grant(node, &object.requested);
        assert_eq!(blocks, expected, "{}: {:?}", NODES[node], object.requested);
        if !blocks.is_empty() {
            world.send(node, object.version, blocks, random);
        }
    }

    /// The views add up.
    fn check(&self) {
        assert!(self.ledger.conflicts().is_empty());
        let taken = self.reference.taken();
        for (number, name) in POOLS.iter().enumerate() {
            let view = self.ledger.view(name);
            for (family, space) in &view.spaces {
                let spec = &self.reference.pools[&number];
                let mask = spec.spaces[family].mask;
                let cidrs = self.reference.cidrs.iter();
                let cidrs =
                    cidrs.filter(|(of, cidr)| *of == number && Family::of_net(*cidr) == *family);
                let blocks = cidrs.flat_map(|(_, cidr)| cidr.subnets(mask).unwrap());
                let (mut all, mut used) = (0, 0);
                for block in blocks {
                    all += 1;
                    let is_used = addresses(block).any(|it| taken[at(it).0][at(it).1]);
                    used += u64::from(is_used);
                }
                assert_eq!((space.blocks, space.taken), (all, used), "{name} {family}");
            }
        }
    }
}

#[test]
fn a_ledger_is_its_model_whatever_happens_and_no_address_has_two_nodes() {
    let mut random = Random(0x5eed_0000_0000_0030);
    let mut world = World::default();
    let mut leader = Leader::begin(&world);
    let (mut takeovers, mut grants) = (0, 0);
    for step in 0..steps() {
        let node = random.below(NODES.len());
        match random.below(100) {
            0..=44 => world.step(&mut random),
            45..=69 => leader.see(node, &world),
            70..=73 => leader.see_pools(&world),
            74 if random.below(4) == 0 => {
                // Requests of the previous leader can still arrive.
                leader = Leader::begin(&world);
                takeovers += 1;
            }
            75 if step % 16 == 0 => leader.check(),
            _ => {
                leader.act(node, &mut world, &mut random);
                grants += 1;
            }
        }
    }
    assert!(
        takeovers > steps() / 1000 && grants > steps() / 10,
        "{takeovers} {grants}"
    );
}
