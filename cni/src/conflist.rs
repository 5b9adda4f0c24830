//! Network configuration lists: what runtimes read from their folder.

use serde_json::{Map, Value};

use crate::failure::{Code, Failure};
use crate::request::config::{Config, IPAM_PLUGIN, Invocation, PLUGIN, Role};
use crate::request::environment::Command;
use crate::spec::SpecVersion;

/// Checks a list that contains our plugin, as each call of the plugin would check it.
///
/// Returns the list's configuration for our plugin in its first version.
///
/// # Errors
/// With the first error in the list.
pub fn check(text: &[u8]) -> Result<Config, Failure> {
    let list: Value = serde_json::from_slice(text)
        .map_err(|error| Failure::new(Code::Decode, "no JSON").with_details(error.to_string()))?;
    let versions = versions(&list)?;
    let plugins = list
        .get("plugins")
        .and_then(Value::as_array)
        .ok_or_else(|| invalid("plugins: a list is allowed".to_owned()))?;
    let mut ours = Vec::new();
    for (position, plugin) in plugins.iter().enumerate() {
        let at = |failure: Failure| Failure {
            message: format!("plugins[{position}].{}", failure.message),
            ..failure
        };
        let Some(kind) = plugin.get("type").and_then(Value::as_str) else {
            return Err(at(invalid("type: a plugin's name is allowed".to_owned())));
        };
        let ipam = plugin.pointer("/ipam/type").and_then(Value::as_str);
        let role = match (kind, ipam) {
            (PLUGIN, _) => Role::Interface,
            (_, Some(IPAM_PLUGIN)) => Role::Ipam,
            _ => continue,
        };
        let config = of_plugin(&list, plugin);
        let all = versions.iter().map(|version| {
            let invocation = Invocation {
                role,
                command: Command::Add,
                version: *version,
            };
            Config::parse(invocation, &config, &[]).map_err(at)
        });
        ours.extend(all.collect::<Result<Vec<_>, _>>()?.into_iter().next());
    }
    if ours.len() > 1 {
        let count = ours.len();
        return Err(invalid(format!(
            "plugins: {count} are ours, one is allowed"
        )));
    }
    ours.pop().ok_or_else(|| {
        invalid(format!(
            "plugins: none has the type {PLUGIN} or the ipam.type {IPAM_PLUGIN}"
        ))
    })
}

/// The versions that a runtime may choose from (specification 1.1.0, section 1).
fn versions(list: &Value) -> Result<Vec<SpecVersion>, Failure> {
    let mut versions = vec![SpecVersion::of(list)?];
    let more = match list.get("cniVersions") {
        None | Some(Value::Null) => &[][..],
        Some(Value::Array(more)) => more,
        Some(other) => {
            return Err(invalid(format!(
                "cniVersions is {other}: a list is allowed"
            )));
        }
    };
    for version in more {
        let config = Map::from_iter([("cniVersion".to_owned(), version.clone())]);
        versions.push(SpecVersion::of(&Value::Object(config))?);
    }
    Ok(versions)
}

/// Configuration that a plugin gets on standard input: its own object with the list's name.
fn of_plugin(list: &Value, plugin: &Value) -> Value {
    let mut config = plugin.clone();
    if let (Value::Object(config), Some(name)) = (&mut config, list.get("name")) {
        config.insert("name".to_owned(), name.clone());
    }
    config
}

fn invalid(message: String) -> Failure {
    Failure::new(Code::InvalidConfig, message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(list: &Value) -> String {
        check(list.to_string().as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn our_example_is_good() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/10-towpath.conflist");
        let config = check(&std::fs::read(file).unwrap()).unwrap();
        assert_eq!(
            config.state_dir,
            std::path::Path::new(crate::request::config::STATE_DIR)
        );
    }

    #[test]
    fn lists_of_other_plugins_with_our_addresses_are_good() {
        let list = json!({"cniVersion": "1.0.0", "cniVersions": ["1.1.0"], "name": "plain",
            "plugins": [{"type": "macvlan", "ipam": {"type": "towpath-ipam"}}, {"type": "portmap"}]});
        assert_eq!(check(list.to_string().as_bytes()).unwrap().name, "plain");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let list = |plugins: Value| json!({"cniVersion": "1.0.0", "name": "a", "plugins": plugins});
        for (list, message) in [
            (
                json!({"name": "a"}),
                "the network configuration has no cniVersion",
            ),
            (
                json!({"cniVersion": "1.0.0", "cniVersions": ["2.0.0"]}),
                "cniVersion is \"2.0.0\"",
            ),
            (json!({"cniVersion": "1.0.0"}), "plugins: a list is allowed"),
            (
                list(json!([{}])),
                "plugins[0].type: a plugin's name is allowed",
            ),
            (
                list(json!([{"type": "portmap"}])),
                "plugins: none has the type towpath-cni or the ipam.type towpath-ipam",
            ),
            (
                list(json!([{"type": "portmap"}, {"type": "towpath-cni", "timeout": "x"}])),
                "plugins[1].timeout is \"x\": 1 to 600 seconds are allowed",
            ),
            (
                list(json!([{"type": "towpath-cni"}, {"type": "towpath-cni"}])),
                "plugins: 2 are ours, one is allowed",
            ),
            (
                json!({"cniVersion": "1.0.0", "plugins": [{"type": "towpath-cni"}]}),
                "plugins[0].name is missing; expected the network's name",
            ),
        ] {
            let text = refused(&list);
            assert!(text.starts_with(message), "{text}");
        }
        assert!(check(b"{").is_err());
    }
}
