//! Requests that failed for want of addresses, and who waits for them.

use std::collections::BTreeMap;

use crate::{Family, Owner, Pod, Request, Time};

/// A waiting pod or owner. A pod is known by its name, because another one of that name takes its
/// place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Waiter {
    /// A pod and its interface.
    Pod {
        namespace: String,
        name: String,
        interface: String,
    },
    /// An owner whose requests name no pod.
    Owner(Owner),
}

impl Waiter {
    fn of(owner: &Owner, pod: Option<&Pod>) -> Self {
        match pod {
            Some(pod) => Self::Pod {
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
                interface: owner.interface.clone(),
            },
            None => Self::Owner(owner.clone()),
        }
    }
}

/// A pool that had no address for an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    pub(crate) family: Family,
    pub(crate) pool: String,
    /// The time until which it counts as demand.
    pub(crate) until: Time,
}

/// Addresses that an owner waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wish {
    pod: Option<Pod>,
    /// The pool of each family, and until when it counts.
    pools: BTreeMap<Family, (String, Time)>,
}

impl Wish {
    /// True if it is this pod's, and not one's that had its name before.
    fn is_of(&self, pod: Option<&Pod>) -> bool {
        match (&self.pod, pod) {
            (Some(own), Some(other)) => own.may_be(other),
            (own, other) => own.is_none() && other.is_none(),
        }
    }
}

/// Waiting pods and owners, their requests, and the time until which each counts. A pod counts
/// once, however many sandboxes its attempts had.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiting {
    by_waiter: BTreeMap<Waiter, Wish>,
}

impl Waiting {
    /// Notes that an attempt failed. For each family the pool of the last attempt counts.
    pub(crate) fn put(&mut self, owner: &Owner, pod: Option<&Pod>, shortage: Shortage) {
        let Shortage {
            family,
            pool,
            until,
        } = shortage;
        let new = || Wish {
            pod: pod.cloned(),
            pools: BTreeMap::new(),
        };
        let known = self.by_waiter.entry(Waiter::of(owner, pod));
        let known = known.or_insert_with(new);
        if !known.is_of(pod) {
            *known = new();
        }
        if pod.is_some_and(|pod| pod.uid.is_some()) {
            known.pod = pod.cloned();
        }
        known.pools.insert(family, (pool, until));
    }

    /// Forgets what an attempt was for: it succeeded, or never can.
    pub(crate) fn remove(&mut self, request: &Request) {
        let pod = request.pod.as_ref();
        let waiter = Waiter::of(&request.owner, pod);
        if self
            .by_waiter
            .get(&waiter)
            .is_some_and(|wish| wish.is_of(pod))
        {
            self.by_waiter.remove(&waiter);
        }
    }

    /// Forgets a pod, whatever its interfaces wait for. Answers whether it waited.
    pub(crate) fn forget(&mut self, pod: &Pod) -> bool {
        let before = self.by_waiter.len();
        self.by_waiter.retain(|_, wish| !wish.is_of(Some(pod)));
        before > self.by_waiter.len()
    }

    /// Forgets what is over, and shortens what a clock that was set back would prolong. Answers how
    /// many wishes it forgot, each family by itself.
    pub(crate) fn expire(&mut self, now: Time, longest: Time) -> usize {
        let before = self.iter().count();
        self.by_waiter.retain(|_, wish| {
            wish.pools.retain(|_, (_, until)| *until > now);
            for (_, until) in wish.pools.values_mut() {
                *until = longest.min(*until);
            }
            !wish.pools.is_empty()
        });
        before - self.iter().count()
    }

    /// The pool and family of each wish.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, Family)> {
        let wishes = self.by_waiter.values().flat_map(|wish| &wish.pools);
        wishes.map(|(family, (pool, _))| (pool.as_str(), *family))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Want;

    fn owner(id: &str) -> Owner {
        Owner {
            container_id: id.to_owned(),
            interface: "eth0".to_owned(),
        }
    }

    fn pod(uid: Option<&str>) -> Pod {
        Pod {
            namespace: "shop".to_owned(),
            name: "db-0".to_owned(),
            uid: uid.map(str::to_owned),
        }
    }

    fn request(id: &str, pod: &Pod) -> Request {
        Request {
            owner: owner(id),
            pod: Some(pod.clone()),
            pool: None,
            want: Want::Any(Family::V4),
        }
    }

    fn at(seconds: u64) -> Time {
        Time::from_millis(seconds * 1000)
    }

    fn put(waiting: &mut Waiting, id: &str, pod: &Pod, pool: &str) {
        let shortage = Shortage {
            family: Family::V4,
            pool: pool.to_owned(),
            until: at(300),
        };
        waiting.put(&owner(id), Some(pod), shortage);
    }

    fn pools(waiting: &Waiting) -> Vec<&str> {
        waiting.iter().map(|(pool, _)| pool).collect()
    }

    #[test]
    fn attempts_of_one_pod_are_one_wish_of_the_last_pool() {
        let mut waiting = Waiting::default();
        let web = pod(Some("u-1"));
        put(&mut waiting, "a", &web, "mars");
        put(&mut waiting, "b", &web, "mars");
        assert_eq!(pools(&waiting), ["mars"]);
        put(&mut waiting, "c", &web, "venus");
        assert_eq!(pools(&waiting), ["venus"]);
        waiting.remove(&request("d", &web));
        assert_eq!(waiting, Waiting::default());
    }

    #[test]
    fn a_pod_of_the_same_name_takes_the_place_of_the_one_before() {
        let (old, new) = (pod(Some("u-1")), pod(Some("u-2")));
        let mut waiting = Waiting::default();
        let shortage = Shortage {
            family: Family::V6,
            pool: "mars".to_owned(),
            until: at(1),
        };
        waiting.put(&owner("a"), Some(&old), shortage);
        put(&mut waiting, "b", &new, "venus");
        assert_eq!(pools(&waiting), ["venus"], "nothing is left of the first");
        waiting.remove(&request("a", &old));
        assert!(!waiting.forget(&old), "its end is not the other's");
        assert_eq!(pools(&waiting), ["venus"]);
        assert!(waiting.forget(&new));
        assert_eq!(waiting, Waiting::default());
    }

    #[test]
    fn without_a_uid_the_name_decides() {
        let mut waiting = Waiting::default();
        put(&mut waiting, "a", &pod(None), "mars");
        put(&mut waiting, "b", &pod(Some("u-1")), "mars");
        assert_eq!(pools(&waiting), ["mars"]);
        assert!(
            !waiting.forget(&pod(Some("u-2"))),
            "its uid is known by now"
        );
        assert!(waiting.forget(&pod(None)));
    }
}
