//! Changes of objects of the API server, and the inputs of the fleet that they are.

use apiserver::client::Connection;
use apiserver::objects;
use apiserver::retry::Retry;
use fleet::Input;
use futures_util::StreamExt as _;
use kube::Api;
use kube::api::DynamicObject;
use kube::runtime::watcher::Event;
use serde_json::Value;
use tokio::time::sleep;

use super::health::Beat;

/// A change of a resource's objects.
#[derive(Debug)]
pub(super) enum Change {
    /// All objects, from a list.
    All(Vec<Value>),
    /// An object that was added or changed.
    One(Value),
    /// An object that was deleted.
    Gone(Value),
}

/// The objects of a resource, as the operator follows all of them.
pub(super) struct Followed {
    /// The resource.
    pub(super) api: Api<DynamicObject>,
    /// Its name in logs.
    pub(super) name: &'static str,
    /// The beat of the task that follows them.
    pub(super) beat: Beat,
}

impl Followed {
    /// Watches the objects until `tell` returns false. Failures are logged and retried forever.
    pub(super) async fn follow<F>(self, connection: &Connection, mut tell: impl FnMut(Change) -> F)
    where
        F: Future<Output = bool>,
    {
        let Self { api, name, beat } = self;
        let mut retry = Retry::default();
        loop {
            let events = connection.lists.follow(api.clone(), connection.watching());
            let mut events = std::pin::pin!(events);
            let mut listed = None;
            let error = loop {
                let event = match beat.rest(events.next()).await {
                    Some(Ok(event)) => event,
                    Some(Err(error)) => break error,
                    None => return,
                };
                let Some(change) = change(event, &mut listed) else {
                    continue;
                };
                retry.succeeded();
                if !tell(change).await {
                    return;
                }
            };
            let wait = retry.failed(&error);
            let cause = connection.lists.describe(&error);
            tracing::warn!("follow {name}: {cause}; next try in {wait:?}");
            beat.rest(sleep(wait)).await;
        }
    }
}

/// The change that an event completes.
fn change(event: Event<DynamicObject>, listed: &mut Option<Vec<Value>>) -> Option<Change> {
    match event {
        Event::Init => {
            *listed = Some(Vec::new());
            None
        }
        Event::InitApply(object) => {
            let value = objects::value(object).ok();
            listed.get_or_insert_default().extend(value);
            None
        }
        Event::InitDone => Some(Change::All(listed.take().unwrap_or_default())),
        Event::Apply(object) => objects::value(object).ok().map(Change::One),
        Event::Delete(object) => objects::value(object).ok().map(Change::Gone),
    }
}

/// The input that a change of `CiliumNode` objects is.
pub(super) fn of_nodes(change: Change) -> Input {
    match change {
        Change::All(all) => Input::Nodes(all),
        Change::One(object) => Input::Node(Box::new(object)),
        Change::Gone(object) => Input::NodeGone {
            name: text(&object, "name"),
            uid: text(&object, "uid"),
        },
    }
}

/// The input that a change of Nodes is.
pub(super) fn of_hosts(change: &Change) -> Input {
    match change {
        Change::All(all) => Input::Hosts(all.iter().map(|it| text(it, "name")).collect()),
        Change::One(object) => Input::Host {
            name: text(object, "name"),
            is_there: true,
        },
        Change::Gone(object) => Input::Host {
            name: text(object, "name"),
            is_there: false,
        },
    }
}

/// The input that the kubelets' numbers in a change of Nodes are.
pub(super) fn of_max_pods(change: &Change) -> Input {
    let nodes = match change {
        Change::All(all) => all.as_slice(),
        Change::One(object) => std::slice::from_ref(object),
        Change::Gone(_) => &[],
    };
    let number = |node: &Value| {
        let pods = node["status"]["allocatable"]["pods"].as_str()?;
        Some((text(node, "name"), pods.parse().ok()?))
    };
    Input::MaxPods(nodes.iter().filter_map(number).collect())
}

fn text(object: &Value, key: &str) -> String {
    let value = object["metadata"][key].as_str();
    value.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(name: &str) -> DynamicObject {
        let object = json!({"metadata": {"name": name, "uid": format!("{name}-1")}});
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_list_is_one_change_and_an_interrupted_one_is_none() {
        let mut listed = None;
        let mut take = |event| change(event, &mut listed).map(of_nodes);
        assert!(take(Event::Init).is_none());
        assert!(take(Event::InitApply(object("a"))).is_none());
        assert!(take(Event::Init).is_none());
        assert!(take(Event::InitApply(object("b"))).is_none());
        let Some(Input::Nodes(all)) = take(Event::InitDone) else {
            panic!("no list");
        };
        assert_eq!(all.len(), 1);
        assert_eq!(all[0]["metadata"]["name"], "b");
    }

    #[test]
    fn the_number_of_a_kubelet_is_read() {
        let mut node = json!({"metadata": {"name": "a"}});
        let read = |node: &Value| match of_max_pods(&Change::One(node.clone())) {
            Input::MaxPods(numbers) => numbers,
            other => panic!("{other:?}"),
        };
        assert!(read(&node).is_empty());
        node["status"] = json!({"allocatable": {"pods": "110"}});
        assert_eq!(read(&node), [("a".to_owned(), 110)].into());
    }

    #[test]
    fn a_deleted_object_is_named_with_its_uid() {
        let gone = change(Event::Delete(object("a")), &mut None).unwrap();
        let Input::Host { name, is_there } = of_hosts(&gone) else {
            panic!("{gone:?}");
        };
        assert_eq!((name.as_str(), is_there), ("a", false));
        let Input::NodeGone { name, uid } = of_nodes(gone) else {
            panic!("no deletion");
        };
        assert_eq!((name.as_str(), uid.as_str()), ("a", "a-1"));
    }
}
