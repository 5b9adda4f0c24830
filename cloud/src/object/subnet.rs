//! Subnets, and which of them a node may have ENIs in.

use std::collections::{BTreeMap, BTreeSet};

use ipam::Family;
use ipnet::{Ipv4Net, Ipv6Net};

use crate::object::tags;
use crate::{RouteTableId, SubnetId, Tags, VpcId};

/// A subnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// Its id.
    pub id: SubnetId,
    /// Its VPC.
    pub vpc: VpcId,
    /// Its availability zone.
    pub zone: String,
    /// Its IPv4 CIDR; none where it has IPv6 alone.
    pub ipv4: Option<Ipv4Net>,
    /// Its IPv6 CIDR.
    pub ipv6: Option<Ipv6Net>,
    /// Free IPv4 addresses.
    pub free: u32,
    /// Its tags.
    pub tags: Tags,
    /// The route table that its packets follow.
    pub route_table: Option<RouteTableId>,
}

impl Subnet {
    /// Reports if the subnet has addresses of a family.
    #[must_use]
    pub fn serves(&self, family: Family) -> bool {
        match family {
            Family::V4 => self.ipv4.is_some(),
            Family::V6 => self.ipv6.is_some(),
        }
    }
}

/// Subnets by their id.
pub type Subnets = BTreeMap<SubnetId, Subnet>;

/// A route table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteTable {
    /// Its id.
    pub id: RouteTableId,
    /// Its VPC.
    pub vpc: VpcId,
    /// It is the table of subnets that have none of their own.
    pub is_main: bool,
    /// Subnets that it is associated with.
    pub subnets: BTreeSet<SubnetId>,
}

/// Gives each subnet the route table that it has, or its VPC's main one.
pub fn set_route_tables(subnets: &mut Subnets, tables: &[RouteTable]) {
    for subnet in subnets.values_mut() {
        let mut of_vpc = tables.iter().filter(|table| table.vpc == subnet.vpc);
        let own = of_vpc
            .clone()
            .find(|table| table.subnets.contains(&subnet.id));
        let table = own.or_else(|| of_vpc.find(|table| table.is_main));
        subnet.route_table = table.map(|table| table.id.clone());
    }
}

/// Where a node's ENIs can be, from `spec.eni`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// `vpc-id`.
    pub vpc: VpcId,
    /// `availability-zone`.
    pub zone: String,
    /// `node-subnet-id`: the subnet of the primary ENI.
    pub own: Option<SubnetId>,
    /// `subnet-ids`.
    pub ids: BTreeSet<SubnetId>,
    /// `subnet-tags`. With ids, a subnet has to meet both.
    pub tags: Tags,
}

/// The rule by which a subnet is eligible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// The node names it.
    Ids,
    /// It has the tags that the node names.
    Tags,
    /// It is the node's own, or its packets follow the node's route table.
    Routes,
    /// It is in the node's VPC and zone. Its packets can take other routes than the node's.
    Zone,
}

impl Rule {
    /// The rule for messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ids => "subnet-ids",
            Self::Tags => "subnet-tags",
            Self::Routes => "the node's route table",
            Self::Zone => "the node's VPC and zone",
        }
    }
}

impl Location {
    /// The rules of the node, best first. A node that names subnets gets no other ones.
    #[must_use]
    pub fn rules(&self) -> &'static [Rule] {
        if !self.ids.is_empty() {
            &[Rule::Ids]
        } else if !self.tags.is_empty() {
            &[Rule::Tags]
        } else {
            &[Rule::Routes, Rule::Zone]
        }
    }

    /// A rule with its values, for messages.
    #[must_use]
    pub fn describe(&self, rule: Rule) -> String {
        let ids = self.ids.iter().map(ToString::to_string);
        let tags = self
            .tags
            .iter()
            .map(|(key, value)| format!("{key}={value}"));
        let values: Vec<String> = match rule {
            Rule::Ids => ids.chain(tags).collect(),
            Rule::Tags => tags.collect(),
            Rule::Routes | Rule::Zone => return rule.name().to_owned(),
        };
        format!("{} {}", rule.name(), values.join(","))
    }

    /// The subnets that are eligible by one rule.
    pub fn eligible<'a>(
        &'a self,
        rule: Rule,
        subnets: &'a Subnets,
    ) -> impl Iterator<Item = &'a Subnet> + 'a {
        let own = self.own.as_ref();
        let table = own.and_then(|own| subnets.get(own)?.route_table.clone());
        let here = subnets.values();
        let here = here.filter(|it| it.vpc == self.vpc && it.zone == self.zone);
        here.filter(move |it| match rule {
            Rule::Ids => {
                let has_tags = self.tags.is_empty() || tags::match_all(&it.tags, &self.tags);
                self.ids.contains(&it.id) && has_tags
            }
            Rule::Tags => tags::match_all(&it.tags, &self.tags),
            Rule::Routes => Some(&it.id) == own || (table.is_some() && it.route_table == table),
            Rule::Zone => true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_fixture::{location, subnet};

    fn table(id: &str, is_main: bool, subnets: &[&str]) -> RouteTable {
        RouteTable {
            id: id.into(),
            vpc: "vpc-1".into(),
            is_main,
            subnets: subnets.iter().map(|id| SubnetId::from(*id)).collect(),
        }
    }

    fn subnets(list: &[Subnet]) -> Subnets {
        list.iter().map(|it| (it.id.clone(), it.clone())).collect()
    }

    fn ids(location: &Location, rule: Rule, subnets: &Subnets) -> Vec<String> {
        location
            .eligible(rule, subnets)
            .map(|it| it.id.to_string())
            .collect()
    }

    #[test]
    fn a_subnet_without_an_association_follows_the_main_table() {
        let mut all = subnets(&[subnet("a", 10), subnet("b", 10)]);
        all.get_mut(&"b".into()).unwrap().vpc = "vpc-2".into();
        set_route_tables(
            &mut all,
            &[table("rtb-main", true, &[]), table("rtb-1", false, &["c"])],
        );
        assert_eq!(all[&"a".into()].route_table, Some("rtb-main".into()));
        assert_eq!(all[&"b".into()].route_table, None);
        set_route_tables(
            &mut all,
            &[table("rtb-main", true, &[]), table("rtb-1", false, &["a"])],
        );
        assert_eq!(all[&"a".into()].route_table, Some("rtb-1".into()));
    }

    #[test]
    fn each_rule_has_its_subnets_and_other_zones_have_none() {
        let far = Subnet {
            zone: "b".to_owned(),
            ..subnet("far", 99)
        };
        let other = Subnet {
            route_table: Some("rtb-2".into()),
            tags: [("tier".to_owned(), "pods".to_owned())].into(),
            ..subnet("other", 50)
        };
        let all = subnets(&[subnet("own", 5), subnet("same", 20), other, far]);
        let mut node = location();
        assert_eq!(node.rules(), [Rule::Routes, Rule::Zone]);
        assert_eq!(ids(&node, Rule::Routes, &all), ["own", "same"]);
        assert_eq!(ids(&node, Rule::Zone, &all), ["other", "own", "same"]);
        node.tags = [("tier".to_owned(), "pods".to_owned())].into();
        assert_eq!(node.rules(), [Rule::Tags]);
        assert_eq!(ids(&node, Rule::Tags, &all), ["other"]);
        node.ids = ["same".into(), "far".into(), "other".into()].into();
        assert_eq!(node.rules(), [Rule::Ids]);
        assert_eq!(ids(&node, Rule::Ids, &all), ["other"]);
        node.tags.clear();
        assert_eq!(ids(&node, Rule::Ids, &all), ["other", "same"]);
    }

    #[test]
    fn an_unknown_own_subnet_has_no_siblings() {
        let unrouted = Subnet {
            route_table: None,
            ..subnet("unrouted", 9)
        };
        let all = subnets(&[unrouted]);
        assert!(ids(&location(), Rule::Routes, &all).is_empty());
        assert_eq!(ids(&location(), Rule::Zone, &all), ["unrouted"]);
    }
}
