//! Pods on ENIs and on plain pools beside them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::{
    AllocatedPool, Binding, BindingError, Eni, EniAddress, NodePools, POOL_TAG, RequestedPool,
};
use crate::value::family::overlap;
use crate::{
    AnnouncedBlock, Announcement, DEFAULT_POOL, EdgeRules, Family, Kind, Problem, Source, Wanted,
};

/// Facts about pools from their `CiliumPodIPPool` documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pools {
    by_name: BTreeMap<String, Pool>,
    default: String,
}

/// One pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// The families that it has CIDRs of. A pool that is bound to ENIs gives what these have.
    pub families: BTreeSet<Family>,
    /// Which ENIs it is bound to. `None`: it is a plain pool.
    pub binding: Option<Binding>,
}

impl Pools {
    /// The pools by name.
    ///
    /// # Errors
    ///
    /// When the default pool is bound to ENIs.
    pub fn new(by_name: BTreeMap<String, Pool>, default: &str) -> Result<Self, BindingError> {
        let is_bound = |pool: &Pool| pool.binding.is_some();
        if by_name.get(default).is_some_and(is_bound) {
            return Err(BindingError::DefaultPool(default.to_owned()));
        }
        let default = default.to_owned();
        Ok(Self { by_name, default })
    }

    fn bound(&self) -> impl Iterator<Item = (&str, &Binding)> {
        let all = self.by_name.iter();
        all.filter_map(|(name, pool)| Some((name.as_str(), pool.binding.as_ref()?)))
    }

    /// The pools that are known to be bound to an ENI, in order of their names.
    pub fn bound_to<'a>(&'a self, eni: &'a Eni) -> impl Iterator<Item = &'a str> {
        let tagged = self.tagged(eni);
        let bound = self.bound();
        bound.filter_map(move |(name, binding)| {
            let is_bound = match tagged {
                Some(tagged) => tagged == name,
                None => binding.binds(eni) == Some(true),
            };
            is_bound.then_some(name)
        })
    }

    /// The pool in an ENI's tag: a bound one, or the default one. The operator tags an ENI at its
    /// creation.
    fn tagged<'a>(&self, eni: &'a Eni) -> Option<&'a str> {
        let name = eni.tags.get(POOL_TAG)?;
        let is_bound = |pool: &Pool| pool.binding.is_some();
        let is_known = *name == self.default || self.by_name.get(name).is_some_and(is_bound);
        is_known.then_some(name.as_str())
    }

    /// True if there is a document of a pool.
    fn is_known(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// True if a pool's addresses are those of ENIs.
    fn is_on_enis(&self, name: &str) -> bool {
        let pool = self.by_name.get(name);
        name == self.default || pool.is_some_and(|pool| pool.binding.is_some())
    }

    /// The pool that an ENI serves; `None` if that is unknown.
    fn of_eni(&self, eni: &Eni, problems: &mut Vec<Problem>) -> Option<String> {
        if let Some(tagged) = self.tagged(eni) {
            return Some(tagged.to_owned());
        }
        let mut binding = Vec::new();
        let mut unknown = None;
        for (name, pool) in self.bound() {
            match pool.binds(eni) {
                Some(true) => binding.push(name.to_owned()),
                Some(false) => {}
                None => {
                    unknown.get_or_insert(name);
                }
            }
        }
        if binding.len() > 1 {
            problems.push(Problem::TwoPools {
                eni: eni.id.clone(),
                pools: binding,
            });
            return None;
        }
        if let Some(pool) = unknown {
            problems.push(Problem::SubnetTagsUnknown {
                eni: eni.id.clone(),
                subnet: eni.subnet.id.clone(),
                pool: pool.to_owned(),
            });
            return None;
        }
        Some(binding.pop().unwrap_or_else(|| self.default.clone()))
    }

    /// The families of each pool, where that is certain.
    fn families(&self, is_certain: impl Fn(&str) -> bool) -> BTreeMap<String, BTreeSet<Family>> {
        let certain = self.by_name.iter().filter(|(name, _)| is_certain(name));
        certain
            .map(|(name, pool)| (name.clone(), pool.families.clone()))
            .collect()
    }
}

impl Default for Pools {
    /// No pool has a document.
    fn default() -> Self {
        Self {
            by_name: BTreeMap::new(),
            default: DEFAULT_POOL.to_owned(),
        }
    }
}

/// Pods on ENIs. Each ENI serves the pool that is bound to it, else the default one; pools that are
/// neither are plain ones beside them.
#[derive(Clone, Debug)]
pub struct PodsOnEnis<F> {
    /// Facts about pools.
    pub pools: Pools,
    /// True if a pool's addresses keep their source; `None` while that is not known.
    pub skips_masquerade: F,
    /// `plain-pools.native`: the VPC routes the addresses of plain pools, so that they may leave
    /// untranslated.
    pub plain_is_native: bool,
    /// The families that are masqueraded. Addresses of plain pools of another one are not given,
    /// unless the VPC routes them.
    pub masqueraded: BTreeSet<Family>,
}

impl<F> PodsOnEnis<F> {
    /// True if addresses of plain pools can leave the node.
    fn plain_leaves(&self, family: Family) -> bool {
        self.plain_is_native || self.masqueraded.contains(&family)
    }

    /// Reads the entries of allocated blocks. Returns the pools of those that only echo an ENI's
    /// own blocks.
    fn read_entries<'a>(
        &self,
        document: &'a NodePools,
        announcement: &mut Announcement,
    ) -> BTreeSet<&'a String> {
        let mut echoed = BTreeSet::new();
        for (entry, cidr) in entries(document) {
            let net = cidr.trunc();
            let on_eni = |eni: &Eni| {
                eni.prefixes.iter().any(|prefix| overlap(*prefix, net))
                    || eni.addresses.iter().any(|address| net.contains(address))
                    || eni.own_address().is_some_and(|own| net.contains(&own))
            };
            if document.enis.iter().any(on_eni) {
                echoed.insert(&entry.pool);
                continue;
            }
            let (pool, family) = (entry.pool.clone(), Family::of_net(net));
            let in_vpc = |eni: &Eni| eni.vpc_cidrs.iter().any(|cidr| overlap(*cidr, net));
            let problem = if self.pools.is_on_enis(&entry.pool) {
                Problem::OnNoEni { block: net, pool }
            } else if document.enis.iter().any(in_vpc) {
                Problem::WithinVpc { block: net, pool }
            } else if !self.plain_leaves(family) {
                announcement.not_masqueraded.insert((pool.clone(), family));
                Problem::NotMasqueraded { block: net, pool }
            } else {
                announcement.blocks.push(plain(entry, net));
                continue;
            };
            announcement.problems.push(problem);
        }
        echoed
    }

    /// The families that plain pools can give. Adds to `stuck` those that they cannot.
    fn plain_families(
        &self,
        stuck: &mut BTreeSet<(String, Family)>,
    ) -> BTreeMap<String, BTreeSet<Family>> {
        let mut gives = self.pools.families(|name| !self.pools.is_on_enis(name));
        for (pool, families) in &mut gives {
            let (leave, stay) = families
                .iter()
                .partition(|family| self.plain_leaves(**family));
            *families = leave;
            let stay: BTreeSet<Family> = stay;
            stuck.extend(stay.into_iter().map(|family| (pool.clone(), family)));
        }
        gives
    }
}

impl<F: Fn(&str) -> Option<bool>> Kind for PodsOnEnis<F> {
    type Document = NodePools;
    /// `None` of an address of a plain pool.
    type Details = Option<EniAddress>;

    fn read(&self, document: &NodePools) -> Announcement {
        let mut announcement = Announcement {
            pre_allocate: document.pre_allocate,
            claimed: entries(document).map(|(_, cidr)| cidr.trunc()).collect(),
            is_versioned: document.is_versioned,
            excluded: own_addresses(document),
            ..Announcement::default()
        };
        let hidden = |eni: &&Eni| eni.number == 0 || !eni.use_primary_address;
        let own = document.enis.iter().filter(hidden);
        let own = own.filter_map(|eni| eni.own_address().map(IpNet::from));
        announcement.excluded.extend(own);
        for eni in document.enis.iter().filter(|eni| !eni.excluded) {
            let pool = self.pools.of_eni(eni, &mut announcement.problems);
            let blocks = eni.blocks().into_iter().map(|cidr| AnnouncedBlock {
                cidr,
                source: Source::Device(eni.id.clone()),
                pool: pool.clone(),
                edges: EdgeRules::ALL,
            });
            announcement.blocks.extend(blocks);
        }
        let echoed = self.read_entries(document, &mut announcement);
        let plain = document.allocated.iter().map(|entry| &entry.pool);
        let plain = plain.chain(self.pools.by_name.keys());
        let plain = plain.filter(|name| !self.pools.is_on_enis(name));
        // An ENI backs what is called so, whatever the pool is bound to.
        let plain = plain.filter(|name| !echoed.contains(name));
        announcement.plain = plain.cloned().collect();
        if !self.plain_is_native {
            let plain = announcement.plain.iter();
            let known = plain.filter(|name| self.pools.is_known(name));
            let asking = known.filter(|name| (self.skips_masquerade)(name) == Some(true));
            let problems = asking.map(|pool| Problem::PlainPoolSkips { pool: pool.clone() });
            announcement.problems.extend(problems);
        }
        announcement.pools = self.plain_families(&mut announcement.not_masqueraded);
        announcement
    }

    fn write(&self, wanted: &Wanted, document: &mut NodePools) -> bool {
        write(wanted, document)
    }

    fn skips_masquerade(&self, pool: &str) -> Option<bool> {
        let may_skip = self.plain_is_native || self.pools.is_on_enis(pool);
        (self.skips_masquerade)(pool).map(|skips| skips && may_skip)
    }

    fn details(
        &self,
        document: &NodePools,
        source: &Source,
        block: IpNet,
        address: IpAddr,
    ) -> Option<EniAddress> {
        let Source::Device(id) = source else {
            return None;
        };
        let eni = document.enis.iter().find(|eni| eni.id == *id)?;
        Some(eni.describe(block, address))
    }
}

fn entries(document: &NodePools) -> impl Iterator<Item = (&AllocatedPool, IpNet)> {
    let all = document.allocated.iter();
    all.flat_map(|entry| entry.cidrs.iter().map(move |cidr| (entry, *cidr)))
}

fn plain(entry: &AllocatedPool, cidr: IpNet) -> AnnouncedBlock {
    AnnouncedBlock {
        cidr,
        source: Source::Node,
        pool: Some(entry.pool.clone()),
        edges: entry.edges,
    }
}

fn own_addresses(document: &NodePools) -> BTreeSet<IpNet> {
    document.addresses.iter().map(|a| IpNet::from(*a)).collect()
}

/// Puts what is wanted in the place of what stands there.
fn write(wanted: &Wanted, document: &mut NodePools) -> bool {
    let requested = wanted.requested.iter();
    let requested: Vec<_> = requested
        .map(|(pool, needed)| RequestedPool {
            pool: pool.clone(),
            needed: needed.clone(),
        })
        .collect();
    let allocated = wanted.allocated.iter();
    let allocated: Vec<_> = allocated
        .map(|kept| AllocatedPool {
            pool: kept.pool.clone(),
            edges: kept.edges,
            cidrs: kept.cidrs.clone(),
        })
        .collect();
    let is_changed = document.requested != requested || document.allocated != allocated;
    document.requested = requested;
    document.allocated = allocated;
    is_changed
}
