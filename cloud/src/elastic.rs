//! Elastic IP addresses: the one that a node has, and the one that it can get.
//!
//! EC2 is the state. An address with the tags of a node that is associated with the node's primary
//! ENI is the node's static IP, whoever associated it.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use ipam::Time;

use crate::inventory::SETTLES;
use crate::object::tags::match_all;
use crate::{AllocationId, Eni, EniId, Tags};

/// While a node lacks its static IP, the addresses are read again after so long.
pub const READ_AGAIN: Duration = Duration::from_mins(1);

/// The static IP that a node asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// The tags that it has to have; without any, the node asks for none.
    pub tags: Tags,
    /// The one that the node's status names. Of the free ones it comes first.
    pub last: Option<Ipv4Addr>,
}

/// An Elastic IP address as EC2 shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elastic {
    /// Its allocation.
    pub id: AllocationId,
    /// The address.
    pub address: Ipv4Addr,
    /// Its association; none while it is free.
    pub association: Option<Association>,
    /// Its tags.
    pub tags: Tags,
}

/// The association of an Elastic IP address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Association {
    /// The ENI, if EC2 names one.
    pub eni: Option<EniId>,
    /// The private address of the ENI.
    pub private: Option<Ipv4Addr>,
}

/// All Elastic IP addresses of a read.
#[derive(Clone, Debug)]
pub struct Listing {
    /// The beginning of the read.
    pub begun: Time,
    /// The addresses.
    pub all: Vec<Elastic>,
}

/// Addresses that calls of this operator are about. Reads lag, and show them as free for a while.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    by_id: BTreeMap<AllocationId, Claim>,
}

#[derive(Clone, Debug)]
struct Claim {
    /// The ENI that the call is for; none for an address that EC2 refused.
    eni: Option<EniId>,
    /// The time of the answer; none while the call is in flight.
    since: Option<Time>,
}

impl Claims {
    /// A call begins that associates an address with an ENI.
    pub fn begin(&mut self, id: &AllocationId, eni: &EniId) {
        let claim = Claim {
            eni: Some(eni.clone()),
            since: None,
        };
        self.by_id.insert(id.clone(), claim);
    }

    /// The call took effect, or its effect is not known. The address stays the ENI's until a read
    /// shows what it is.
    pub fn hold(&mut self, id: &AllocationId, now: Time) {
        if let Some(claim) = self.by_id.get_mut(id) {
            claim.since = Some(now);
        }
    }

    /// EC2 refused the address as such. No ENI gets it before a later read shows it as free.
    pub fn refuse(&mut self, id: &AllocationId, now: Time) {
        let claim = Claim {
            eni: None,
            since: Some(now),
        };
        self.by_id.insert(id.clone(), claim);
    }

    /// The call had no effect.
    pub fn release(&mut self, id: &AllocationId) {
        self.by_id.remove(id);
    }

    /// The addresses were read. Claims that the read shows are dropped.
    pub fn read(&mut self, begun: Time) {
        let is_later = |since: Time| since.after(SETTLES) > begun;
        self.by_id.retain(|_, it| it.since.is_none_or(is_later));
    }

    fn of(&self, id: &AllocationId) -> Option<&Claim> {
        self.by_id.get(id)
    }
}

/// The static IP of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StaticIp<'a> {
    /// Its primary ENI has it.
    Assigned(&'a Elastic),
    /// This one is free.
    Free(&'a Elastic),
    /// The primary ENI has another Elastic IP address, which lacks a tag.
    Other(&'a Elastic),
    /// No address with the tags is free.
    Missing {
        /// Addresses with the tags.
        matching: usize,
    },
}

impl Listing {
    /// The static IP of the node with this primary ENI.
    #[must_use]
    pub fn static_ip(&self, wish: &Wish, primary: &Eni, claims: &Claims) -> StaticIp<'_> {
        let tags = &wish.tags;
        if let Some(own) = self.all.iter().find(|it| it.is_of(primary)) {
            return if match_all(&own.tags, tags) {
                StaticIp::Assigned(own)
            } else {
                StaticIp::Other(own)
            };
        }
        let matching = || self.all.iter().filter(|it| match_all(&it.tags, tags));
        let is_claimed = |it: &&Elastic| {
            let claim = claims.of(&it.id);
            claim.is_some_and(|it| it.eni.as_ref() == Some(&primary.id))
        };
        let is_free = |it: &&Elastic| it.association.is_none() && claims.of(&it.id).is_none();
        // A call whose effect is not known is repeated for the same address. The same is true of a
        // call of the leader before, which reads may not show yet.
        let mut free = matching().filter(is_free);
        let last = free.clone().find(|it| wish.last == Some(it.address));
        let chosen = matching().find(is_claimed).or(last);
        match chosen.or_else(|| free.next()) {
            Some(elastic) => StaticIp::Free(elastic),
            None => StaticIp::Missing {
                matching: matching().count(),
            },
        }
    }
}

impl Elastic {
    /// Reports if the own address of an ENI has it, by a read of either.
    fn is_of(&self, eni: &Eni) -> bool {
        let is_associated = self.association.as_ref().is_some_and(|it| {
            let private = it.private.filter(|_| eni.own.is_some());
            it.eni.as_ref() == Some(&eni.id) && (private.is_none() || private == eni.own)
        });
        eni.public == Some(self.address) || is_associated
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_fixture::attached;

    fn tags(value: &str) -> Tags {
        [("tier".to_owned(), value.to_owned())].into()
    }

    fn wish(value: &str) -> Wish {
        Wish {
            tags: tags(value),
            last: None,
        }
    }

    fn elastic(n: u8, value: &str) -> Elastic {
        Elastic {
            id: format!("eipalloc-{n}").as_str().into(),
            address: Ipv4Addr::new(198, 51, 100, n),
            association: None,
            tags: tags(value),
        }
    }

    fn of(eni: &str, private: &str, elastic: Elastic) -> Elastic {
        let association = Association {
            eni: Some(eni.into()),
            private: private.parse().ok(),
        };
        Elastic {
            association: Some(association),
            ..elastic
        }
    }

    fn listing(all: Vec<Elastic>) -> Listing {
        Listing {
            begun: Time::default(),
            all,
        }
    }

    fn at(seconds: u64) -> Time {
        Time::from_millis(seconds * 1000)
    }

    #[test]
    fn the_address_of_the_primary_eni_is_the_answer_by_either_read() {
        let primary = attached("eni-1", "i-1", 0);
        let claims = Claims::default();
        let list = listing(vec![
            elastic(1, "front"),
            of("eni-1", "10.0.0.4", elastic(2, "front")),
        ]);
        let found = list.static_ip(&wish("front"), &primary, &claims);
        assert_eq!(found, StaticIp::Assigned(&list.all[1]));
        let found = list.static_ip(&wish("back"), &primary, &claims);
        assert_eq!(found, StaticIp::Other(&list.all[1]));
        // The ENI shows the address, and the listing is older.
        let list = listing(vec![elastic(1, "front"), elastic(2, "front")]);
        let mut primary = primary;
        primary.public = Some(list.all[1].address);
        let found = list.static_ip(&wish("front"), &primary, &claims);
        assert_eq!(found, StaticIp::Assigned(&list.all[1]));
    }

    #[test]
    fn an_address_of_another_private_address_is_not_the_nodes() {
        let primary = attached("eni-1", "i-1", 0);
        let list = listing(vec![
            of("eni-1", "10.0.0.99", elastic(1, "front")),
            elastic(2, "front"),
        ]);
        let found = list.static_ip(&wish("front"), &primary, &Claims::default());
        assert_eq!(found, StaticIp::Free(&list.all[1]));
    }

    #[test]
    fn all_tags_have_to_match_and_taken_addresses_are_passed_over() {
        let primary = attached("eni-1", "i-1", 0);
        let mut both = wish("front");
        both.tags.insert("zone".to_owned(), "a".to_owned());
        let mut good = elastic(3, "front");
        good.tags.clone_from(&both.tags);
        let list = listing(vec![
            elastic(1, "front"),
            of("eni-9", "10.0.0.9", good.clone()),
        ]);
        let found = list.static_ip(&both, &primary, &Claims::default());
        assert_eq!(found, StaticIp::Missing { matching: 1 });
        let list = listing(vec![elastic(1, "front"), good]);
        let found = list.static_ip(&both, &primary, &Claims::default());
        assert_eq!(found, StaticIp::Free(&list.all[1]));
    }

    #[test]
    fn the_address_of_the_status_comes_before_other_free_ones() {
        let primary = attached("eni-1", "i-1", 0);
        let list = listing(vec![elastic(1, "front"), elastic(2, "front")]);
        let wish = Wish {
            last: Some(list.all[1].address),
            ..wish("front")
        };
        let found = list.static_ip(&wish, &primary, &Claims::default());
        assert_eq!(found, StaticIp::Free(&list.all[1]));
        let list = listing(vec![elastic(1, "front"), elastic(2, "back")]);
        let found = list.static_ip(&wish, &primary, &Claims::default());
        assert_eq!(found, StaticIp::Free(&list.all[0]));
    }

    #[test]
    fn a_claimed_address_is_left_to_its_eni_until_a_late_read() {
        let (one, two) = (attached("eni-1", "i-1", 0), attached("eni-2", "i-2", 0));
        let list = listing(vec![elastic(1, "front"), elastic(2, "front")]);
        let mut claims = Claims::default();
        claims.begin(&list.all[1].id, &one.id);
        // The call goes on, whatever reads come.
        claims.read(at(1000));
        let chosen = |claims: &Claims, eni| list.static_ip(&wish("front"), eni, claims);
        assert_eq!(chosen(&claims, &one), StaticIp::Free(&list.all[1]));
        assert_eq!(chosen(&claims, &two), StaticIp::Free(&list.all[0]));
        claims.hold(&list.all[1].id, at(1000));
        claims.refuse(&list.all[0].id, at(1000));
        claims.read(at(1029));
        assert_eq!(chosen(&claims, &two), StaticIp::Missing { matching: 2 });
        claims.read(at(1030));
        assert_eq!(chosen(&claims, &two), StaticIp::Free(&list.all[0]));
    }
}
