//! Our entry of a configuration list that other programs add to. Service meshes append their plugin
//! to the list that they find, and watch it. A program that claims the whole list for itself is in
//! permanent conflict with them.

use anyhow::{Context as _, Result};
use serde_json::{Map, Value};
use towpath_cni::request::config::{IPAM_PLUGIN, PLUGIN};

use super::conflist::{Wanted, portmap};

const PLUGINS: &str = "plugins";
/// The keys that other programs may change, within the versions that our plugin supports.
const VERSIONS: [&str; 2] = ["cniVersion", "cniVersions"];

/// The desired list.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Merged {
    pub(super) text: Vec<u8>,
    /// Types of the entries that other programs added.
    pub(super) others: Vec<String>,
}

/// The existing list with our part repaired, and that alone. A correct list stays as it is, to the
/// byte. `before` is the list that was wanted last: its content is ours to change.
///
/// # Errors
/// When runtimes could not use the existing list.
pub(super) fn merge(there: &[u8], wanted: &Wanted, before: Option<&Value>) -> Result<Merged> {
    let list: Map<String, Value> = serde_json::from_slice(there).context("no JSON object")?;
    let entries = list.get(PLUGINS).and_then(Value::as_array);
    let entries = entries.context("plugins: a list is expected")?;
    let target: Map<String, Value> = serde_json::from_slice(&wanted.text)?;
    let entries = plugins(entries, plugins_of(&target), wanted.is_given, before);
    let others = others(&entries, plugins_of(&target));
    let mut merged = list.clone();
    merged.insert(PLUGINS.to_owned(), Value::Array(entries));
    settings(&mut merged, &target, before);
    if merged == list {
        towpath_cni::conflist::check(there)?;
        let text = there.to_owned();
        return Ok(Merged { text, others });
    }
    let text = if others.is_empty() {
        wanted.text.clone()
    } else {
        text_of(&merged)?
    };
    towpath_cni::conflist::check(&text)?;
    Ok(Merged { text, others })
}

/// The list without our part of it; `None` if it has no entry of another program.
pub(super) fn without_ours(there: &[u8], before: Option<&Value>) -> Option<Vec<u8>> {
    let mut list: Map<String, Value> = serde_json::from_slice(there).ok()?;
    let entries = list.get_mut(PLUGINS)?.as_array_mut()?;
    entries.retain(|entry| !is_ours(entry) && !is_written(entry, before));
    if entries.is_empty() {
        return None;
    }
    text_of(&list).ok()
}

/// The list without the foreign entries whose plugin is gone.
pub(super) fn with_plugins(there: &[u8], is_there: impl Fn(&str) -> bool) -> Option<Vec<u8>> {
    let mut list: Map<String, Value> = serde_json::from_slice(there).ok()?;
    let entries = list.get_mut(PLUGINS)?.as_array_mut()?;
    entries.retain(|entry| is_ours(entry) || kind(entry).is_some_and(&is_there));
    text_of(&list).ok()
}

fn text_of(list: &Map<String, Value>) -> Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(list).context("write JSON")?;
    text.push(b'\n');
    Ok(text)
}

fn kind(entry: &Value) -> Option<&str> {
    entry.get("type").and_then(Value::as_str)
}

fn is_ours(entry: &Value) -> bool {
    let ipam = entry.pointer("/ipam/type").and_then(Value::as_str);
    kind(entry) == Some(PLUGIN) || ipam == Some(IPAM_PLUGIN)
}

/// An entry other than ours that an installation wrote, unchanged.
fn is_written(entry: &Value, before: Option<&Value>) -> bool {
    let before = before.and_then(|list| list.get(PLUGINS));
    let before = before.and_then(Value::as_array);
    *entry == portmap() || before.is_some_and(|entries| entries.contains(entry))
}

fn plugins_of(list: &Map<String, Value>) -> &[Value] {
    let entries = list.get(PLUGINS).and_then(Value::as_array);
    entries.map_or(&[][..], Vec::as_slice)
}

/// The entries of the list: each wanted one once, all others in their places.
fn plugins(
    there: &[Value],
    wanted: &[Value],
    is_given: bool,
    before: Option<&Value>,
) -> Vec<Value> {
    let mut missing: Vec<Option<&Value>> = wanted.iter().map(Some).collect();
    let mut take = |matches: &dyn Fn(&Value) -> bool| {
        let slot = missing.iter_mut().find(|one| one.is_some_and(matches));
        slot.and_then(Option::take)
    };
    let mut merged = Vec::new();
    for entry in there {
        let like = |one: &Value| !is_ours(one) && kind(one) == kind(entry);
        if is_ours(entry) {
            merged.extend(take(&is_ours).cloned());
        } else if is_written(entry, before) {
            merged.extend(take(&like).cloned());
        } else if is_given && before.is_none() {
            merged.push(take(&like).unwrap_or(entry).clone());
        } else {
            take(&like);
            merged.push(entry.clone());
        }
    }
    for (position, one) in missing.iter().enumerate() {
        let Some(one) = one else { continue };
        let ahead = wanted.get(..position).unwrap_or_default();
        let place = merged.iter().rposition(|entry| ahead.contains(entry));
        merged.insert(place.map_or(0, |place| place + 1), (*one).clone());
    }
    merged
}

/// Repairs the fields other than the entries.
fn settings(list: &mut Map<String, Value>, wanted: &Map<String, Value>, before: Option<&Value>) {
    let is_news = |key: &&str| before.and_then(|list| list.get(*key)) != wanted.get(*key);
    let keep_versions = !VERSIONS.iter().any(is_news)
        && text_of(list).is_ok_and(|text| towpath_cni::conflist::check(&text).is_ok());
    let obsolete = before.and_then(Value::as_object).into_iter().flatten();
    for (key, value) in obsolete {
        if !wanted.contains_key(key) && list.get(key) == Some(value) {
            list.remove(key);
        }
    }
    for (key, value) in wanted {
        let is_version = VERSIONS.contains(&key.as_str());
        if key != PLUGINS && !(is_version && keep_versions) {
            list.insert(key.clone(), value.clone());
        }
    }
}

/// Types of the entries beyond the wanted ones.
fn others(entries: &[Value], wanted: &[Value]) -> Vec<String> {
    let others = entries.iter().filter(|entry| !wanted.contains(entry));
    let name = |entry| kind(entry).unwrap_or("an entry without a type").to_owned();
    others.map(name).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ours() -> Value {
        json!({"type": PLUGIN})
    }

    fn mesh() -> Value {
        json!({"type": "istio-cni", "log_level": "info"})
    }

    fn list(plugins: &[Value]) -> Value {
        json!({"cniVersion": "1.0.0", "cniVersions": ["1.0.0", "1.1.0"], "name": "towpath",
            "plugins": plugins})
    }

    fn wanted(list: &Value) -> Wanted {
        let text = list.to_string().into_bytes();
        Wanted {
            text,
            is_given: false,
        }
    }

    /// The entries and the foreign plugins of a list after its repair.
    fn merged(there: &Value, want: &Value) -> (Value, Vec<String>) {
        let merged = merge(there.to_string().as_bytes(), &wanted(want), Some(want)).unwrap();
        (serde_json::from_slice(&merged.text).unwrap(), merged.others)
    }

    #[test]
    fn entries_of_others_stay_where_they_are_and_ours_is_put_right() {
        let tuning = || json!({"type": "tuning"});
        let shaper = || json!({"type": "bandwidth", "capabilities": {"bandwidth": true}});
        let altered = || json!({"type": PLUGIN, "socket": "/x"});
        let by_ipam = || json!({"type": "macvlan", "ipam": {"type": IPAM_PLUGIN}});
        for (there, expected) in [
            (vec![ours(), mesh()], vec![ours(), mesh()]),
            (
                vec![tuning(), ours(), shaper(), mesh()],
                vec![tuning(), ours(), shaper(), mesh()],
            ),
            (vec![mesh()], vec![ours(), mesh()]),
            (vec![mesh(), altered()], vec![mesh(), ours()]),
            (vec![by_ipam(), mesh()], vec![ours(), mesh()]),
            (
                vec![ours(), mesh(), ours(), altered()],
                vec![ours(), mesh()],
            ),
            (vec![], vec![ours()]),
            (vec![ours(), portmap(), mesh()], vec![ours(), mesh()]),
        ] {
            let (is, _) = merged(&list(&there), &list(&[ours()]));
            assert_eq!(is, list(&expected), "{there:?}");
        }
    }

    #[test]
    fn new_settings_go_into_our_part() {
        let before = list(&[ours(), json!({"type": "sbr"})]);
        let there = list(&[ours(), json!({"type": "sbr"}), mesh()]);
        let want = list(&[json!({"type": PLUGIN, "timeout": 50}), portmap()]);
        let new = merge(there.to_string().as_bytes(), &wanted(&want), Some(&before));
        let new: Value = serde_json::from_slice(&new.unwrap().text).unwrap();
        let expected = [json!({"type": PLUGIN, "timeout": 50}), portmap(), mesh()];
        assert_eq!(new, list(&expected));
    }

    #[test]
    fn an_entry_that_others_have_for_portmap_is_theirs() {
        let theirs = json!({"type": "portmap", "snat": false});
        let there = list(&[ours(), theirs]);
        let (is, others) = merged(&there, &list(&[ours(), portmap()]));
        assert_eq!((is, others), (there, vec!["portmap".to_owned()]));
    }

    #[test]
    fn a_list_that_is_right_stays_to_the_byte() {
        let mut version = list(&[ours(), mesh()]);
        version["cniVersion"] = json!("0.4.0");
        version["added"] = json!(1);
        let text = format!("  {version}\n\n");
        let want = list(&[ours()]);
        let is = merge(text.as_bytes(), &wanted(&want), Some(&want)).unwrap();
        assert_eq!(is.text, text.as_bytes());
        assert_eq!(is.others, ["istio-cni"]);
    }

    #[test]
    fn settings_that_our_plugin_cannot_use_are_put_right() {
        for (key, value) in [
            ("cniVersion", json!("9.0.0")),
            ("cniVersion", Value::Null),
            ("cniVersions", json!(5)),
            ("name", json!("other")),
        ] {
            let mut there = list(&[ours(), mesh()]);
            there[key] = value;
            let (is, _) = merged(&there, &list(&[ours()]));
            assert_eq!(is, list(&[ours(), mesh()]), "{key}");
        }
    }

    #[test]
    fn what_is_no_list_is_not_merged() {
        let want = list(&[ours()]);
        for text in ["", "{", "[]", "{\"plugins\": 5}", "{\"plugins\": [{}]}"] {
            assert!(
                merge(text.as_bytes(), &wanted(&want), None).is_err(),
                "{text}"
            );
        }
    }

    #[test]
    fn our_part_goes_and_the_rest_stays() {
        let rest = without_ours(
            list(&[ours(), portmap(), mesh()]).to_string().as_bytes(),
            None,
        );
        let rest: Value = serde_json::from_slice(&rest.unwrap()).unwrap();
        assert_eq!(rest, list(&[mesh()]));
        let alone = list(&[ours(), portmap()]).to_string();
        assert_eq!(without_ours(alone.as_bytes(), None), None);
        assert_eq!(without_ours(b"{", None), None);
    }
}
