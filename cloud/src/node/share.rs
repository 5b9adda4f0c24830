//! The part of a node's ENIs that serves one pool, with the wants for that pool.

use ipam::node::Binding;

use super::{Aside, Facts, Node, Role};
use crate::groups::Wish;
use crate::object::block;
use crate::object::subnet::Location;
use crate::pool::{self, Pools, Serves, serves};
use crate::want::{Reading, Requested, Want, excess};
use crate::{Eni, EniId, Tags};

/// The ENIs of a node that serve one pool.
#[derive(Debug)]
pub(super) struct Share<'a> {
    /// The pool; none for `default`.
    pub(super) pool: Option<(&'a str, &'a Binding)>,
    /// ENIs that give addresses.
    pub(super) counted: Vec<&'a Eni>,
    /// ENIs that were created for the instance and that nothing holds.
    pub(super) loose: Vec<&'a Eni>,
    /// The place of new ENIs.
    pub(super) location: Location,
    /// The security groups of ENIs.
    pub(super) groups: Wish,
    demand: Demand,
}

/// The demand for a pool.
#[derive(Clone, Copy, Debug)]
enum Demand {
    Default(Reading),
    Bound(Requested),
}

/// The shares of a node, and what belongs to none.
#[derive(Debug, Default)]
pub(super) struct Shares<'a> {
    pub(super) all: Vec<Share<'a>>,
    /// ENIs that several pools are bound to, with the pools' names.
    pub(super) undecided: Vec<(&'a Eni, Vec<&'a str>)>,
}

impl<'a> Shares<'a> {
    /// The shares of a node without ENIs: the default pool's, and those of the requested pools.
    pub(super) fn of(node: &Node, location: &Location, pools: &'a Pools) -> Self {
        let default = Share {
            pool: None,
            counted: Vec::new(),
            loose: Vec::new(),
            location: location.clone(),
            groups: node.groups.clone(),
            demand: Demand::Default(Reading::of(&node.demand, node.marks.pre)),
        };
        let bound = pools.iter().map(|(name, binding)| Share {
            pool: Some((name, binding)),
            counted: Vec::new(),
            loose: Vec::new(),
            location: pool::place(binding, location),
            groups: pool::wish(binding, &node.groups),
            demand: Demand::Bound(requested(node, name, binding)),
        });
        Self {
            all: std::iter::once(default).chain(bound).collect(),
            undecided: Vec::new(),
        }
    }

    /// Adds an ENI to its share.
    pub(super) fn add(&mut self, eni: &'a Eni, node: &Node, facts: &'a Facts) {
        let name = match serves(eni, &facts.pools, &facts.subnets) {
            Serves::Default => None,
            Serves::Pool(name) => Some(name),
            Serves::Nothing(names) => return self.undecided.push((eni, names)),
        };
        let same = |share: &&mut Share<'_>| share.pool.map(|(name, _)| name) == name;
        let Some(share) = self.all.iter_mut().find(same) else {
            return;
        };
        match role(eni, node, name.is_some()) {
            Role::Counted => share.counted.push(eni),
            Role::Aside(Aside::Loose) => share.loose.push(eni),
            Role::Aside(_) => {}
        }
    }

    /// The shares, the most needy first: one without addresses, then the one with fewest ENIs.
    pub(super) fn by_need(&self, node: &Node) -> Vec<&Share<'a>> {
        let mut all: Vec<&Share<'a>> = self.all.iter().collect();
        all.sort_by_key(|it| {
            let has_any = it.available(node, None) > 0;
            (has_any, it.counted.len() + it.loose.len())
        });
        all
    }
}

/// The demand for a pool. Where its ENIs belong is not known while its annotations cannot be read.
fn requested(node: &Node, name: &str, binding: &Binding) -> Requested {
    let requested = node.pools.get(name).filter(|_| !binding.is_void);
    requested.copied().unwrap_or_default()
}

/// The role of an ENI. An ENI with a bound pool serves addresses although its tags exclude it:
/// these are there for Cilium's operator.
pub(super) fn role(eni: &Eni, node: &Node, is_bound: bool) -> Role {
    match Role::of(eni, &node.rules) {
        Role::Aside(Aside::Tags) if is_bound => Role::Counted,
        role => role,
    }
}

impl Share<'_> {
    /// The want for IPv4. Loose ENIs count: they will be attached.
    pub(super) fn want(&self, node: &Node) -> Want {
        self.want_without(node, None)
    }

    /// The want if there was one loose ENI less.
    pub(super) fn want_without(&self, node: &Node, eni: Option<&EniId>) -> Want {
        let available = self.available(node, eni);
        match self.demand {
            Demand::Default(reading) => {
                Want::of(available, reading.used, node.pending, &node.marks)
            }
            Demand::Bound(requested) => Want::of_pool(available, requested.ipv4),
        }
    }

    /// IPv4 addresses beyond the demand.
    pub(super) fn excess(&self, node: &Node) -> u32 {
        let available = self.available(node, None);
        match self.demand {
            Demand::Default(reading) => excess(available, reading.used, &node.marks),
            Demand::Bound(requested) => available.saturating_sub(requested.ipv4),
        }
    }

    /// IPv4 addresses, without those that go back.
    fn available(&self, node: &Node, without: Option<&EniId>) -> u32 {
        let leaving = &node.release.leaving;
        let counted = self.counted.iter().map(|it| {
            let index = it.attachment.as_ref().map_or(0, |at| at.index);
            let all = it.available(node.rules.use_primary && index != 0);
            all.saturating_sub(block::addresses_v4(it.blocks.intersection(leaving)))
        });
        let loose = self.loose.iter().filter(|it| Some(&it.id) != without);
        let loose = loose.map(|it| it.available(node.rules.use_primary));
        counted.chain(loose).fold(0, u32::saturating_add)
    }

    /// True if an IPv6 prefix is requested.
    pub(super) fn asks_ipv6(&self) -> bool {
        match self.demand {
            Demand::Default(reading) => reading.ipv6,
            Demand::Bound(requested) => requested.ipv6 > 0,
        }
    }

    /// Reports if the share has an IPv6 prefix, were there one loose ENI less.
    pub(super) fn has_ipv6_without(&self, eni: Option<&EniId>) -> bool {
        let mut all = self.counted.iter().chain(&self.loose);
        all.any(|it| Some(&it.id) != eni && has_prefix_v6(it))
    }

    /// The tags of a new ENI, beside those that say whose it is.
    pub(super) fn tags(&self, of_all: &Tags) -> Tags {
        match self.pool {
            Some((name, binding)) => pool::tags(name, &binding.eni_tags, of_all),
            None => pool::tags(pool::DEFAULT_POOL, &Tags::new(), of_all),
        }
    }
}

pub(super) fn has_prefix_v6(eni: &Eni) -> bool {
    eni.blocks.iter().any(block::is_prefix_v6)
}
