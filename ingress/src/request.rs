//! A request to a plugin: all that its calls need.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use towpath_cni::request::owner::Owner;

use crate::network::Network;

/// Beginning of the container id, in front of the node's name.
const ID: &str = "towpath-ingress-";
/// Name of the interface in the plugin's arguments; there is none.
const INTERFACE: &str = "eth0";
/// Namespace of the pod in the plugin's arguments; there is none.
const NAMESPACE: &str = "kube-system";

/// One attachment, with all arguments of ADD, CHECK and DEL. DEL gets the arguments of the ADD,
/// even if the configuration has changed by then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Request {
    /// Container id and interface.
    pub owner: Owner,
    /// The plugin's program.
    pub plugin: PathBuf,
    /// Folders of plugins (`CNI_PATH`).
    pub folders: Vec<PathBuf>,
    /// `CNI_ARGS`.
    pub args: String,
    /// Standard input.
    pub config: String,
}

impl Request {
    /// The request for a node's own addresses.
    #[must_use]
    pub fn new(node: &str, network: &Network, folders: &[PathBuf]) -> Self {
        let owner = Self::owner(node);
        let found = folders.iter().map(|folder| folder.join(&network.plugin));
        let mut found = found.filter(|path| path.is_file());
        let first = folders.first().map(PathBuf::as_path);
        // One that is not there is named when it is called.
        let named = first.unwrap_or(Path::new("/")).join(&network.plugin);
        Self {
            args: format!(
                "IgnoreUnknown=true;K8S_POD_NAMESPACE={NAMESPACE};K8S_POD_NAME={}",
                owner.container_id
            ),
            owner,
            plugin: found.next().unwrap_or(named),
            folders: folders.to_owned(),
            config: network.config.clone(),
        }
    }

    /// The owner of the addresses of a node's agent.
    #[must_use]
    pub fn owner(node: &str) -> Owner {
        Owner {
            container_id: format!("{ID}{node}"),
            interface: INTERFACE.to_owned(),
        }
    }

    /// True for a container id of a node's agent, whatever the node is called.
    #[must_use]
    pub fn is_agents(container_id: &str) -> bool {
        container_id.starts_with(ID)
    }

    /// True if a plugin keeps both as one attachment.
    pub(crate) fn is_of_same(&self, other: &Self) -> bool {
        self.key() == other.key()
    }

    /// True if the addresses of an earlier request serve this one as well. Parts that do not affect
    /// the plugin may differ. The folder of the earlier program has to be configured still.
    pub(crate) fn is_same(&self, earlier: &Self) -> bool {
        self.key() == earlier.key()
            && self.ipam() == earlier.ipam()
            && self.has_folder_of(&earlier.plugin)
    }

    /// This request for its DEL. If its program is gone, the wanted one of the same name is called.
    pub(crate) fn for_delete(&self, wanted: Option<&Self>) -> Self {
        let name = self.plugin.file_name();
        let wanted = wanted.filter(|wanted| wanted.plugin.file_name() == name);
        match wanted {
            Some(wanted) if !self.plugin.exists() => Self {
                plugin: wanted.plugin.clone(),
                folders: wanted.folders.clone(),
                ..self.clone()
            },
            _ => self.clone(),
        }
    }

    /// True if the configuration's version of the specification has CHECK.
    pub(crate) fn has_check(&self) -> bool {
        let version = self.field("/cniVersion");
        version.is_some_and(|version| version != "0.3.0" && version != "0.3.1")
    }

    /// Standard input of CHECK, which has the result of ADD.
    pub(crate) fn config_with(&self, result: &Value) -> String {
        let config = serde_json::from_str::<Value>(&self.config);
        let Ok(Value::Object(mut config)) = config else {
            return self.config.clone();
        };
        config.insert("prevResult".to_owned(), result.clone());
        Value::Object(config).to_string()
    }

    fn key(&self) -> (&Owner, Option<Value>, Option<&std::ffi::OsStr>) {
        (&self.owner, self.field("/name"), self.plugin.file_name())
    }

    fn has_folder_of(&self, program: &Path) -> bool {
        let folder = program.parent();
        self.plugin == program || self.folders.iter().any(|one| Some(one.as_path()) == folder)
    }

    fn ipam(&self) -> Option<Value> {
        self.field("/ipam")
    }

    fn field(&self, path: &str) -> Option<Value> {
        let config: Value = serde_json::from_str(&self.config).ok()?;
        config.pointer(path).cloned()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(config: &Value, folder: &str) -> Request {
        let network = Network {
            name: "pods".to_owned(),
            plugin: "host-local".to_owned(),
            config: config.to_string(),
        };
        Request::new("node-1", &network, &[PathBuf::from(folder)])
    }

    #[test]
    fn the_container_id_is_the_nodes() {
        let one = request(&json!({"name": "pods"}), "/opt/cni/bin");
        assert_eq!(one.owner.container_id, "towpath-ingress-node-1");
        assert_eq!(one.owner.interface, "eth0");
        assert_eq!(one.plugin, Path::new("/opt/cni/bin/host-local"));
        assert_eq!(
            one.args,
            "IgnoreUnknown=true;K8S_POD_NAMESPACE=kube-system;K8S_POD_NAME=towpath-ingress-node-1"
        );
    }

    #[test]
    fn only_what_concerns_the_plugin_makes_another_request() {
        let config = json!({"name": "pods", "mtu": 1500, "ipam": {"type": "host-local"}});
        let one = request(&config, "/a");
        let mtu = json!({"name": "pods", "mtu": 9000, "ipam": {"type": "host-local"}});
        assert!(one.is_same(&request(&mtu, "/a")));
        assert!(one.is_same(&request(&mtu, "/a/")));
        assert!(!one.is_same(&request(&mtu, "/b")));
        assert!(one.is_of_same(&request(&mtu, "/b")));
        let range = json!({"name": "pods", "ipam": {"type": "host-local", "subnet": "10.0.0.0/8"}});
        assert!(!one.is_same(&request(&range, "/a")));
        assert!(one.is_of_same(&request(&range, "/a")));
        let name = json!({"name": "others", "ipam": {"type": "host-local"}});
        assert!(!one.is_of_same(&request(&name, "/a")));
    }

    #[test]
    fn check_is_there_from_0_4_0_on() {
        for (version, expected) in [("0.3.1", false), ("0.4.0", true), ("1.1.0", true)] {
            let one = request(&json!({"cniVersion": version}), "/a");
            assert_eq!(one.has_check(), expected, "{version}");
            let config: Value =
                serde_json::from_str(&one.config_with(&json!({"ips": []}))).unwrap();
            assert_eq!(config["prevResult"], json!({"ips": []}));
        }
    }
}
