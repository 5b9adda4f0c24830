//! An API server: objects with versions, merge patches, a watch that lags.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use fleet::{Input, Part, Written};
use ipam::Time;
use json_patch::merge;
use serde_json::{Map, Value, json};

#[derive(Default)]
pub(crate) struct Api {
    pub(crate) objects: BTreeMap<String, Value>,
    pub(crate) pools: BTreeMap<String, Value>,
    /// Extended resources of Nodes, and the number of their writes.
    pub(crate) advertised: BTreeMap<String, (Value, u32)>,
    version: u64,
    events: VecDeque<(Time, Input)>,
    /// Events come so late.
    pub(crate) lag: Duration,
    /// Patches and deletions that took effect, by object.
    pub(crate) writes: BTreeMap<String, u32>,
    pub(crate) conflicts: u32,
    /// A field of ENIs in the status that the resource definition lacks.
    pub(crate) lacks: Option<&'static str>,
    /// Patches that changed nothing.
    pub(crate) vain: u32,
}

fn finalizers(pool: &Value) -> &[Value] {
    let all = pool["metadata"]["finalizers"].as_array();
    all.map_or(&[], Vec::as_slice)
}

impl Api {
    pub(crate) fn new(lag: Duration) -> Self {
        Self {
            lag,
            ..Self::default()
        }
    }

    /// Changes or creates an object as another controller.
    pub(crate) fn change(&mut self, name: &str, patch: &Value, now: Time) {
        let version = self.next_version();
        let object = self.objects.entry(name.to_owned()).or_insert_with(|| {
            json!({"metadata": {
                "name": name, "uid": format!("uid-{version}"),
                "creationTimestamp": format!("2026-01-31T12:00:00.{version:09}Z")
            }})
        });
        merge(object, patch);
        self.stamp(name, version, now);
    }

    fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    fn stamp(&mut self, name: &str, version: u64, now: Time) {
        let object = self.objects.get_mut(name).unwrap();
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        let event = Input::Node(Box::new(object.clone()));
        self.events.push_back((now.after(self.lag), event));
    }

    pub(crate) fn delete(&mut self, name: &str, now: Time) {
        self.version += 1;
        let object = self.objects.remove(name).unwrap();
        let uid = object["metadata"]["uid"].as_str().unwrap().to_owned();
        let gone = Input::NodeGone {
            name: name.to_owned(),
            uid,
        };
        self.events.push_back((now.after(self.lag), gone));
    }

    /// Carries out the operator's patch.
    pub(crate) fn patch(&mut self, name: &str, part: Part, body: &Value, now: Time) -> Written {
        let Some(object) = self.objects.get_mut(name) else {
            return Written::Gone;
        };
        let version = &body["metadata"]["resourceVersion"];
        if part != Part::Metadata && *version != object["metadata"]["resourceVersion"] {
            self.conflicts += 1;
            return Written::Conflict;
        }
        let key = part.key();
        let before = object.clone();
        let change = Map::from_iter([(key.to_owned(), body[key].clone())]);
        merge(object, &Value::Object(change));
        if let Some(field) = self.lacks {
            let enis = object["status"]["eni"]["enis"].as_object_mut();
            for eni in enis.into_iter().flat_map(Map::values_mut) {
                eni.as_object_mut().unwrap().remove(field);
            }
        }
        // A patch without a version can come twice, and then changes nothing.
        let may_be_vain = self.lacks.is_some() || part == Part::Metadata;
        if may_be_vain && *object == before {
            self.vain += 1;
            return Written::Done(Some(Box::new(before)));
        }
        assert_ne!(
            *object, before,
            "{name}: a write that changes nothing: {body}"
        );
        *self.writes.entry(name.to_owned()).or_default() += 1;
        let version = self.next_version();
        self.stamp(name, version, now);
        Written::Done(self.objects.get(name).cloned().map(Box::new))
    }

    /// A person makes a pool, changes it or deletes it (null). One with finalizers is marked first.
    pub(crate) fn set_pool(&mut self, name: &str, spec: &Value, now: Time) {
        let version = self.next_version();
        match self.pools.get_mut(name) {
            Some(pool) if spec.is_null() && !finalizers(pool).is_empty() => {
                pool["metadata"]["deletionTimestamp"] = json!("2026-02-01T00:00:00Z");
            }
            Some(_) if spec.is_null() => drop(self.pools.remove(name)),
            Some(pool) => pool["spec"] = spec.clone(),
            None => {
                let metadata = json!({
                    "name": name, "uid": format!("pool-{version}"),
                    "creationTimestamp": format!("2026-01-31T12:00:00.{version:09}Z")
                });
                let pool = json!({"metadata": metadata, "spec": spec});
                self.pools.insert(name.to_owned(), pool);
            }
        }
        self.stamp_pool(name, version, now);
    }

    fn stamp_pool(&mut self, name: &str, version: u64, now: Time) {
        if let Some(pool) = self.pools.get_mut(name) {
            pool["metadata"]["resourceVersion"] = json!(version.to_string());
        }
        let all = self.pools.values().cloned().collect();
        self.events
            .push_back((now.after(self.lag), Input::Pools(all)));
    }

    /// Carries out the operator's patch of a pool.
    pub(crate) fn patch_pool(&mut self, name: &str, body: &Value, now: Time) -> Written {
        let version = self.next_version();
        let Some(pool) = self.pools.get_mut(name) else {
            return Written::Gone;
        };
        if body["metadata"]["resourceVersion"] != pool["metadata"]["resourceVersion"] {
            self.conflicts += 1;
            return Written::Conflict;
        }
        let before = finalizers(pool).len();
        merge(pool, body);
        *self.writes.entry(format!("pool {name}")).or_default() += 1;
        let is_deleted = !pool["metadata"]["deletionTimestamp"].is_null();
        let after = finalizers(pool).len();
        assert!(!is_deleted || after <= before, "{name}: a new finalizer");
        if is_deleted && after == 0 {
            self.pools.remove(name);
        }
        self.stamp_pool(name, version, now);
        Written::Done(self.pools.get(name).cloned().map(Box::new))
    }

    /// Carries out the operator's deletion.
    pub(crate) fn remove(&mut self, name: &str, uid: &str, version: &str, now: Time) -> Written {
        let Some(object) = self.objects.get(name) else {
            return Written::Gone;
        };
        let meta = &object["metadata"];
        if meta["uid"] != uid || meta["resourceVersion"] != version {
            self.conflicts += 1;
            return Written::Conflict;
        }
        self.delete(name, now);
        Written::Done(None)
    }

    /// Takes an event out that has come.
    pub(crate) fn event(&mut self, now: Time) -> Option<Input> {
        let (at, _) = self.events.front()?;
        if *at > now {
            return None;
        }
        self.events.pop_front().map(|(_, event)| event)
    }

    pub(crate) fn next_event(&self) -> Option<Time> {
        self.events.front().map(|(at, _)| *at)
    }

    /// A list, after which the watch goes on.
    pub(crate) fn list(&mut self) -> Input {
        let is_pools = |(_, event): &(Time, Input)| matches!(event, Input::Pools(_));
        self.events.retain(is_pools);
        Input::Nodes(self.objects.values().cloned().collect())
    }
}
